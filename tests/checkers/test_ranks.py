"""Programs of several ranks: silent where the ranks are ordered, and found out whatever is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import Finding, Rank
from tilewright.backends.sim.histories import Histories, Unknown
from tilewright.runtime.arrays import describe
from tilewright.runtime.views import view

RACES = {"race", "overlapping-writes"}


def in_words(given: Any) -> str:
    """Return the same name for a case in every process: sets have no order."""
    return " ".join(sorted(given)) if isinstance(given, set) else str(given)


SIZE = 3


def findings(main: Callable[[Rank], object], ranks: int = SIZE, schedules: int = 0) -> tuple[Finding, ...]:
    with tw.simulate(ranks=ranks, raise_errors=False, schedules=schedules) as run:
        run.run(main)
    return tuple(run.findings)


def demand(main: Callable[..., object], left_out: dict[str, Any], kinds: set[str]) -> tuple[Finding, ...]:
    """Return what is found where a program leaves something out; `RIGHT` has the same programs with nothing left out."""
    found = findings(lambda rank: main(rank, **left_out))
    assert found and {f.kind for f in found} <= kinds, found
    assert all(f.rank is not None for f in found), found
    assert main in RIGHT, main
    return found


# --- a block to every peer, by stores ----------------------------------------------------------------------


@tw.kernel
def exchange(out, data, mine, flags, told, rank, syncs: tw.constexpr, sems: tw.constexpr, scope: tw.constexpr,
             peers: tw.constexpr, waits: tw.constexpr):  # fmt: skip
    """Write a row to all ranks, tell them, and read what has come from each."""
    thread = tw.thread_idx.x
    for peer in tw.static_range(len(data)):
        data[peer][rank, thread] = 100 * rank + thread
    if syncs[0]:
        tw.sync_threads()
    if thread == 0:
        for peer in tw.static_range(peers):
            tw.store(flags[peer], rank, 1, sem=sems[0], scope=scope)
        for peer in range(waits):
            while tw.load(told, peer, sem=sems[1], scope=scope) == 0:
                pass
    if syncs[1]:
        tw.sync_threads()
    for peer in range(len(data)):
        out[peer, thread] = mine[peer, thread]


def run_exchange(
    rank: Rank, syncs: tuple[bool, bool] = (True, True), sems: tuple[str, str] = ("release", "acquire"),
    scope: str = "sys", peers: int = SIZE, waits: int = SIZE,
) -> np.ndarray:  # fmt: skip
    data, flags = rank.symmetric((SIZE, 64), tw.int32), rank.symmetric(SIZE, tw.int32)
    out = np.zeros((SIZE, 64), np.int32)
    exchange[1, 64](out, data.peers, data.local, flags.peers, flags.local, rank.rank, syncs, sems, scope, peers, waits)
    return out


def test_rows_come_from_every_rank() -> None:
    expected = 100 * np.arange(SIZE)[:, None] + np.arange(64)
    for out in tw.simulate(ranks=SIZE).run(run_exchange):
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "left_out",
    [
        {"sems": ("relaxed", "acquire")},
        {"sems": ("release", "relaxed")},
        {"scope": "gpu"},
        {"scope": "cta"},
        {"waits": 0},
        {"waits": SIZE - 1},
        {"syncs": (False, True)},
        {"syncs": (True, False)},
    ],
    ids=str,
)
def test_a_row_is_read_when_its_flag_has_come(left_out: dict[str, Any]) -> None:
    demand(run_exchange, left_out, RACES)


def test_the_scope_of_one_gpu_does_not_reach_another() -> None:
    found = demand(run_exchange, {"scope": "gpu"}, RACES)
    assert 'scope="sys"' in found[0].message
    assert "by rank" in found[0].message


def test_a_flag_that_nobody_sets_says_which_rank_waits_for_it() -> None:
    (found,) = demand(run_exchange, {"peers": SIZE - 1}, {"deadlock"})
    assert found.rank == SIZE - 1
    assert f"waits for element 0 of symmetric buffer 1 of rank {SIZE - 1} to change" in found.message


# --- ranks that wait for each other -------------------------------------------------------------------------


@tw.kernel
def pass_on(flags, told, rank, writes_first: tw.constexpr):
    """Tell the next rank, and wait for the one before."""
    peer = (rank + 1) % len(flags)
    if not writes_first:
        while tw.load(told, 0, sem="acquire", scope="sys") == 0:
            pass
    for each in tw.static_range(len(flags)):
        if peer == each:
            tw.store(flags[each], 0, 1, sem="release", scope="sys")
    if writes_first:
        while tw.load(told, 0, sem="acquire", scope="sys") == 0:
            pass


def run_pass_on(rank: Rank, writes_first: bool = True) -> None:
    flags = rank.symmetric(1, tw.int32)
    pass_on[1, 1](flags.peers, flags.local, rank.rank, writes_first)


def test_a_circle_of_ranks_that_wait_names_all_of_them() -> None:
    (found,) = demand(run_pass_on, {"writes_first": False}, {"deadlock"})
    for rank in range(SIZE):
        assert f"block (0, 0, 0) of rank {rank}:" in found.message


# --- a buffer that is used again ----------------------------------------------------------------------------


@tw.kernel
def stream(out, data, mine, sent, told, read, freed, rank, steps: tw.constexpr, waits: tw.constexpr,
           tells: tw.constexpr, sem: tw.constexpr):  # fmt: skip
    """Send numbers to the next rank through one buffer, step by step: a step begins when the last one was read."""
    thread = tw.thread_idx.x
    after, before = (rank + 1) % len(data), (rank + len(data) - 1) % len(data)
    for step in range(steps):
        if thread == 0:
            if waits:
                while tw.load(freed, 0, sem="acquire", scope="sys") < step:
                    pass
        tw.sync_threads()
        for peer in tw.static_range(len(data)):
            if peer == after:
                data[peer][thread] = 100 * rank + step
        tw.sync_threads()
        if thread == 0:
            for peer in tw.static_range(len(data)):
                if peer == after:
                    tw.store(sent[peer], 0, step + 1, sem="release", scope="sys")
            while tw.load(told, 0, sem="acquire", scope="sys") <= step:
                pass
        tw.sync_threads()
        out[step, thread] = mine[thread]
        tw.sync_threads()
        if tells:
            if thread == 0:
                for peer in tw.static_range(len(data)):
                    if peer == before:
                        tw.store(read[peer], 0, step + 1, sem=sem, scope="sys")


def run_stream(rank: Rank, waits: bool = True, tells: bool = True, sem: str = "release") -> np.ndarray:
    data, sent, read = (rank.symmetric(n, tw.int32) for n in (32, 1, 1))
    out = np.zeros((3, 32), np.int32)
    stream[1, 32](out, data.peers, data.local, sent.peers, sent.local, read.peers, read.local, rank.rank, 3,
                  waits, tells, sem)  # fmt: skip
    return out


def test_numbers_stream_through_one_buffer() -> None:
    for rank, out in enumerate(tw.simulate(ranks=SIZE).run(run_stream)):
        before = (rank + SIZE - 1) % SIZE
        np.testing.assert_array_equal(out, np.repeat(100 * before + np.arange(3)[:, None], 32, axis=1))


@pytest.mark.parametrize(
    ("left_out", "kinds"),
    [({"waits": False}, RACES), ({"sem": "relaxed"}, RACES), ({"tells": False}, {"deadlock"})],
    ids=in_words,
)
def test_a_buffer_is_written_again_when_the_peer_has_read_it(left_out: dict[str, Any], kinds: set[str]) -> None:
    demand(run_stream, left_out, kinds)


# --- several launches ---------------------------------------------------------------------------------------


@tw.kernel
def put(data, rank):
    """Write a row to all ranks."""
    for peer in tw.static_range(len(data)):
        data[peer][rank, tw.thread_idx.x] = rank + 1


@tw.kernel
def take(out, mine):
    """Read the rows that have come."""
    for row in range(mine.shape[0]):
        out[row, tw.thread_idx.x] = mine[row, tw.thread_idx.x]


@tw.kernel
def meet(flags, told, rank, number, sem: tw.constexpr):
    """Tell all ranks that this one is here, and wait for them: `number` counts the calls."""
    peer = tw.thread_idx.x
    for each in tw.static_range(len(flags)):
        if peer == each:
            tw.store(flags[each], rank, number, sem=sem, scope="sys")
    if peer < len(flags):
        while tw.load(told, peer, sem="acquire", scope="sys") < number:
            pass


def run_launches(rank: Rank, first: str = "kernel", second: str = "kernel", sem: str = "release") -> np.ndarray:
    """Write, read and write again, with a meeting of the ranks after each: by a kernel, by the host, or by nobody."""
    data, flags = rank.symmetric((SIZE, 32), tw.int32), rank.symmetric(SIZE, tw.int32)
    out = np.zeros((SIZE, 32), np.int32)

    def come_together(how: str, number: int) -> None:
        if how == "kernel":
            meet[1, 32](flags.peers, flags.local, rank.rank, number, sem)
        elif how == "host":
            rank.barrier()

    put[1, 32](data.peers, rank.rank)
    come_together(first, 1)
    take[1, 32](out, data.local)
    come_together(second, 2)
    put[1, 32](data.peers, rank.rank)
    return out


def test_launches_are_ordered_where_the_host_lets_ranks_meet_between_them() -> None:
    assert not findings(lambda rank: run_launches(rank, "host", "host"), schedules=5)


@pytest.mark.parametrize("left_out", [{"first": ""}, {"second": ""}, {"sem": "relaxed"}], ids=str)
def test_launches_of_ranks_that_do_not_meet_race(left_out: dict[str, Any]) -> None:
    found = demand(run_launches, left_out, {"race"})
    assert "in an earlier launch of" in found[0].message
    assert "rank.barrier()" in found[0].message


@tw.kernel
def tell(flags, rank, number, sem: tw.constexpr):
    """Tell all ranks that what this one launched before is over."""
    for each in tw.static_range(len(flags)):
        tw.store(flags[each], rank, number, sem=sem, scope="sys")


@tw.kernel
def await_all(told, number, sem: tw.constexpr):
    """Wait until all ranks have told."""
    for peer in range(told.shape[0]):
        while tw.load(told, peer, sem=sem, scope="sys") < number:
            pass


def run_apart(rank: Rank, sems: tuple[str, str] = ("release", "acquire"), tells_last: bool = True) -> np.ndarray:
    """Write, tell, wait and read, each in a launch of its own."""
    data, flags = rank.symmetric((SIZE, 32), tw.int32), rank.symmetric(SIZE, tw.int32)
    out = np.zeros((SIZE, 32), np.int32)
    if not tells_last:
        tell[1, 1](flags.peers, rank.rank, 1, sems[0])
    put[1, 32](data.peers, rank.rank)
    if tells_last:
        tell[1, 1](flags.peers, rank.rank, 1, sems[0])
    await_all[1, 1](flags.local, 1, sems[1])
    take[1, 32](out, data.local)
    return out


@pytest.mark.parametrize(
    "left_out", [{"sems": ("relaxed", "acquire")}, {"sems": ("release", "relaxed")}, {"tells_last": False}], ids=str
)
def test_a_flag_of_one_launch_orders_those_behind_a_wait_in_another(left_out: dict[str, Any]) -> None:
    demand(run_apart, left_out, {"race"})


def test_a_flag_that_is_written_over_tells_of_nothing_any_more() -> None:
    def main(rank: Rank) -> None:
        data, flags = rank.symmetric((SIZE, 32), tw.int32), rank.symmetric(SIZE, tw.int32)
        put[1, 32](data.peers, rank.rank)
        tell[1, 1](flags.peers, rank.rank, 1, "release")
        tell[1, 1](flags.peers, rank.rank, 2, "relaxed")
        await_all[1, 1](flags.local, 1, "acquire")
        take[1, 32](np.zeros((SIZE, 32), np.int32), data.local)

    assert [found.kind for found in findings(main)] == ["race"]


@tw.kernel
def put_in(data, rank, kind: tw.constexpr):
    """Write to all ranks, by a kernel that is another one for each kind."""
    for peer in tw.static_range(len(data)):
        data[peer][rank, tw.thread_idx.x] = rank + kind


def run_alone(rank: Rank, sem: str = "release") -> np.ndarray:
    """Write by a kernel that no other rank launches, tell, wait and read."""
    data, flags = rank.symmetric((SIZE, 32), tw.int32), rank.symmetric(SIZE, tw.int32)
    out = np.zeros((SIZE, 32), np.int32)
    put_in[1, 32](data.peers, rank.rank, rank.rank)
    tell[1, 1](flags.peers, rank.rank, 1, sem)
    await_all[1, 1](flags.local, 1, "acquire")
    take[1, 32](out, data.local)
    return out


def test_what_one_rank_launches_alone_is_unknown_to_the_others() -> None:
    demand(run_alone, {"sem": "relaxed"}, {"race"})


def test_what_was_done_to_freed_memory_is_forgotten() -> None:
    """The allocator of one process gives a rank what another has freed; GPUs have memory of their own."""
    histories, x, other = Histories(2), np.zeros(8, np.int32), np.zeros(8, np.int32)
    given = describe(view(x, (6,), (1,), 2)).host()  # type: ignore[union-attr]  # as matmul hands over its memory
    histories.begin([given, other])
    addresses = given.ctypes.data + np.arange(0, 24, 4)
    histories.unknown = [
        Unknown(0, 1, "write", None, "k", where, 4) for where in (addresses, other.ctypes.data + np.arange(4))
    ]
    histories.flags = [int(addresses[0]), other.ctypes.data]
    del given
    histories.begin([])
    assert len(histories.unknown) == 2 and histories.flags[0] > 0  # x is there
    del x
    histories.begin([])
    assert len(histories.unknown) == 1 and histories.flags == [-1, other.ctypes.data]


# --- copies by TMA ------------------------------------------------------------------------------------------


@tw.kernel
def push_by_tma(out, data, mine, flags, told, source, rank, waits: tw.constexpr, fence: tw.constexpr,
                meets: tw.constexpr):  # fmt: skip
    """Send a tile to every rank by bulk stores, tell them, and read what has come."""
    thread = tw.thread_idx.x
    tile = tw.shared(source.dtype, 64)
    tile[thread] = source[thread]
    if fence:
        tw.fence_proxy_async()
    tw.sync_threads()
    if thread == 0:
        for peer in tw.static_range(len(data)):
            tw.copy(tw.atoms.SM90_BULK_COPY_S2G, tile, data[peer][rank, :])
        tw.tma_store_commit()
        if waits == "written":
            tw.tma_store_wait(0, read=False)
        else:
            tw.tma_store_wait(0)
        for peer in tw.static_range(len(data)):
            tw.store(flags[peer], rank, 1, sem="release", scope="sys")
        if meets:
            for peer in range(len(data)):
                while tw.load(told, peer, sem="acquire", scope="sys") == 0:
                    pass
    tw.sync_threads()
    for peer in range(len(data)):
        out[peer, thread] = mine[peer, thread]


def run_push(rank: Rank, waits: str = "written", fence: bool = True, meets: bool = True) -> np.ndarray:
    data, flags = rank.symmetric((SIZE, 64), tw.float32), rank.symmetric(SIZE, tw.int32)
    out, source = np.zeros((SIZE, 64), np.float32), np.full(64, rank.rank + 1, np.float32)
    push_by_tma[1, 64](
        out, [tw.static(x) for x in data.peers], data.local, flags.peers, flags.local, source, rank.rank, waits, fence,
        meets,
    )  # fmt: skip
    return out


def test_tiles_come_by_tma_from_every_rank() -> None:
    for out in tw.simulate(ranks=SIZE).run(run_push):
        np.testing.assert_array_equal(out, np.repeat(np.arange(1.0, SIZE + 1)[:, None], 64, axis=1))


@pytest.mark.parametrize(
    ("left_out", "kinds"),
    [
        ({"waits": "read"}, {*RACES, "missing-wait"}),
        ({"fence": False}, {"missing-fence"}),
        ({"meets": False}, {*RACES, "missing-wait"}),
    ],
    ids=in_words,
)
def test_bulk_stores_to_peers_are_waited_for_and_told_of(left_out: dict[str, Any], kinds: set[str]) -> None:
    demand(run_push, left_out, kinds)


# --- all of them, with nothing left out ----------------------------------------------------------------------

RIGHT = (run_exchange, run_pass_on, run_stream, run_launches, run_apart, run_alone, run_push)


@pytest.mark.parametrize("main", RIGHT, ids=lambda main: main.__name__)
@pytest.mark.spread(2)
def test_programs_with_nothing_left_out_are_silent_in_every_order(main: Callable[[Rank], object]) -> None:
    found = findings(main, schedules=8)
    assert not found, found[0].message
