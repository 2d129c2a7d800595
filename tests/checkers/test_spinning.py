"""Loops that wait for memory: they let others run, end when they can, and are a deadlock when nobody can go on."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import agents
from tilewright.backends.sim.values import same_bits


def zeros(n: int = 1) -> np.ndarray:
    return np.zeros(n, np.int32)


@tw.kernel
def locked(total, lock, how: tw.constexpr):
    """Every thread of every warp takes one lock, which goes only where the lanes of a warp go their own ways."""
    if how == "cas":
        while tw.atomic_cas(lock, 0, 0, 1, sem="acquire") != 0:
            pass
    elif how == "exchange":
        while tw.atomic_exch(lock, 0, 1, sem="acquire") != 0:
            pass
    elif how == "count":
        tries = 0
        while tw.atomic_cas(lock, 0, 0, 1, sem="acquire") != 0:
            tries += 1
    else:
        while True:
            if tw.load(lock, 0) == 0:
                if tw.atomic_cas(lock, 0, 0, 1, sem="acquire") == 0:
                    break
    total[0] += 1
    tw.store(lock, 0, 0, sem="release")


@pytest.mark.parametrize("how", ["cas", "exchange", "count", "test first"])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (3, 40)])
@pytest.mark.spread(3)
def test_a_lock_of_every_thread(how: str, blocks: int, threads: int) -> None:
    total = zeros()
    locked[blocks, threads](total, zeros(), how)
    assert total[0] == blocks * threads


@tw.kernel
def locked_inside(total, lock):
    done = 0
    while done == 0:
        if tw.atomic_cas(lock, 0, 0, 1, sem="acquire") == 0:
            total[0] += 1
            tw.atomic_exch(lock, 0, 0, sem="release")
            done = 1


def test_a_lock_whose_section_is_in_the_loop() -> None:
    total = zeros()
    locked_inside[2, 64](total, zeros())
    assert total[0] == 128


@tw.kernel
def lane_for_lane(out, flags):
    """Lanes of one warp wait for each other, against their order."""
    lane = tw.thread_idx.x
    if lane < 31:
        while tw.load(flags, lane + 1, sem="acquire", scope="cta") == 0:
            pass
        out[lane] = out[lane + 1] + 1
    tw.store(flags, lane, 1, sem="release", scope="cta")


def test_lanes_of_a_warp_wait_for_each_other() -> None:
    out = zeros(32)
    lane_for_lane[1, 32](out, zeros(32))
    assert np.array_equal(out, np.arange(31, -1, -1))


@tw.kernel
def for_the_last_block(out, flag):
    if tw.thread_idx.x == 0:
        if tw.block_idx.x + 1 == tw.grid_dim.x:
            tw.store(flag, 0, 1, sem="release")
        else:
            while tw.atomic_add(flag, 0, 0, sem="acquire") == 0:
                pass
        out[tw.block_idx.x] = 1


@pytest.mark.parametrize("blocks", [2, 100])
def test_earlier_blocks_wait_for_the_last(blocks: int) -> None:
    """100 blocks of 1024 threads are more than the simulator runs at once where nobody waits."""
    out = zeros(blocks)
    for_the_last_block[blocks, 1024](out, zeros())
    assert out.all()


def test_blocks_that_are_not_resident_do_not_start() -> None:
    out = zeros(300)
    with pytest.raises(tw.CheckError) as raised:
        for_the_last_block[300, 1024](out, zeros())
    text = str(raised.value)
    assert "44 blocks of the grid have not started; 256 are resident at once" in text
    assert raised.value.findings[0].kind == "deadlock"  # type: ignore[attr-defined]


@tw.kernel
def nobody_writes(flag, how: tw.constexpr):
    if how == "atomic":
        while tw.atomic_add(flag, 1, 0) == 0:
            pass
    elif how == "acquire":
        while tw.load(flag, 1, sem="acquire") == 0:
            pass
    elif how == "counted":
        n = 0
        while tw.load(flag, 1, sem="volatile") == 0:
            n += 1
        flag[0] = n
    elif how == "stores the same":
        while tw.load(flag, 1) == 0:
            tw.store(flag, 0, 1)
    elif how == "writes it never":
        while flag[1] == 0:
            pass
        flag[1] = 1


@pytest.mark.parametrize("how", ["atomic", "acquire", "counted", "stores the same", "writes it never"])
def test_nobody_can_go_on(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(agents, "_MAX_QUIET_ROUNDS", 32)
    with pytest.raises(tw.CheckError) as raised:
        nobody_writes[1, 32](zeros(2), how)
    found = [f for f in raised.value.findings if f.kind == "deadlock"]  # type: ignore[attr-defined]
    assert len(found) == 1 and found[0].count == 32
    assert "flag[1] to change, in a loop that finds 0 there" in found[0].message
    assert "while " in found[0].message and found[0].line is not None


@tw.kernel
def waits_for_bytes(flag, x, bytes: tw.constexpr):
    """One warp waits for copies to one mbarrier, while those to another are under way, and one for the flag."""
    smem, full = tw.shared(x.dtype, (32, 2)), tw.mbarrier(1, stages=2)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        for stage in tw.static_range(2):
            full[stage].arrive_expect_tx(bytes)
            source = tw.local_tile(x, (32,), (0,))
            tw.copy(tw.atoms.SM90_BULK_COPY_G2S, source, smem[:, stage], barrier=full[stage])
        for stage in tw.static_range(2):
            full[stage].wait(0)
        tw.store(flag, 0, 1, sem="release")
    elif tw.thread_idx.x == 32:
        while tw.load(flag, 0, sem="acquire") == 0:
            pass


def test_copies_under_way_do_not_keep_a_deadlock_alive() -> None:
    """They are asked for again each time that others look at memory, and have changed nothing."""
    x = np.ones(32, np.float32)
    waits_for_bytes[1, 64](zeros(), x, 128)
    with pytest.raises(tw.CheckError, match="deadlock") as raised:
        waits_for_bytes[1, 64](zeros(), x, 144)
    assert "16 bytes that were announced have not come" in str(raised.value)
    assert "flag[0] to change" in str(raised.value)


@tw.kernel
def two_waits(flags):
    """Two threads wait for each other, and a third for the second."""
    thread = tw.thread_idx.x
    if thread == 0:
        while tw.load(flags, 1, sem="acquire") == 0:
            pass
        tw.store(flags, 0, 1, sem="release")
    elif thread == 1:
        while tw.load(flags, 0, sem="acquire") == 0:
            pass
        tw.store(flags, 1, 1, sem="release")
    elif thread == 2:
        while tw.load(flags, 1, sem="acquire") == 0:
            pass


def test_the_report_names_who_waits_where() -> None:
    with pytest.raises(tw.CheckError) as raised:
        two_waits[1, 32](zeros(2))
    text = str(raised.value)
    for line in (
        "3 threads of a block wait for what no thread will do",
        "thread 0 waits for flags[1] to change",
        "thread 1 waits for flags[0] to change",
        "thread 2 waits for flags[1] to change",
        "the other 29 threads of the block have run to their end",
    ):
        assert line in text, text


@tw.kernel
def lane_before_its_warp(flag):
    """One lane waits for what its warp does only behind a barrier of the warp: a deadlock on a GPU too."""
    lane = tw.thread_idx.x
    if lane == 0:
        while tw.load(flag, 0, sem="acquire") == 0:
            pass
    tw.sync_warp()
    if lane == 1:
        tw.store(flag, 0, 1, sem="release")


def test_a_lane_waits_for_what_its_warp_cannot_reach() -> None:
    with pytest.raises(tw.CheckError, match="deadlock"):
        lane_before_its_warp[1, 32](zeros())


# --- what is no wait --------------------------------------------------------------------------------------


@tw.kernel
def draw_work(out, counter, n):
    while True:
        k = tw.atomic_add(counter, 0, 1)
        if k >= n:
            break
        tw.atomic_add(out, k % 5, 1)


@tw.kernel
def probe(found, table, key):
    """Look for a key by linear probing, in a table that is written too: long, and not a wait."""
    k = 0
    while tw.load(table, k) != key:
        k += 1
    found[0] = k
    table[k] = 0


@tw.kernel
def bounded(out, flag):
    tries = 0
    while tw.load(flag, 0, sem="acquire") == 0 and tries < 500:
        tries += 1
    out[tw.thread_idx.x] = tries


def test_loops_that_make_progress_are_not_reported() -> None:
    out = zeros(5)
    draw_work[3, 64](out, zeros(), 2000)
    assert out.sum() == 2000
    out, table = zeros(), zeros(3000)
    table[2999] = 7
    probe[1, 1](out, table, 7)
    assert out[0] == 2999
    out = zeros(32)
    bounded[1, 32](out, zeros())
    assert (out == 500).all()


@tw.kernel
def bounded_for_another(out, flag):
    """The one who writes comes later in the program than those who look a number of times."""
    if tw.warp_id() == 0:
        tries = 0
        while tw.load(flag, 0, sem="acquire") == 0 and tries < 100000:
            tries += 1
        out[tw.thread_idx.x] = tries
    else:
        if tw.lane_id() == 0:
            tw.store(flag, 0, 1, sem="release")


def test_others_run_while_a_bounded_loop_waits() -> None:
    out = zeros(32)
    bounded_for_another[1, 64](out, zeros())
    assert (out < 1000).all()


@tw.kernel
def converge(x, changed):
    """A loop of the whole block, until nothing changes: with barriers inside, and memory that decides."""
    thread = tw.thread_idx.x
    again = tw.shared(tw.int32, 1)
    more = 1
    while more != 0:
        tw.sync_threads()
        if thread == 0:
            again[0] = 0
        tw.sync_threads()
        left = x[thread]
        if thread > 0:
            left = x[thread - 1]
        tw.sync_threads()
        if left > x[thread]:
            x[thread] = left
            tw.atomic_max(again, 0, 1)
        tw.sync_threads()
        more = again[0]


def test_a_loop_until_nothing_changes() -> None:
    x = np.array([9, *range(63)], np.int32)
    expected = np.maximum.accumulate(x)
    converge[1, 64](x, zeros())
    assert np.array_equal(x, expected)


def test_what_a_waiting_loop_carries_is_compared_in_vectors_too() -> None:
    vectors, mask = np.zeros((2, 32, 2)), np.ones((1, 32), np.bool_)
    changed = vectors.copy()
    changed[1, 7, 1] = 1
    assert same_bits(vectors, vectors.copy(), mask)
    assert not same_bits(vectors, changed, mask)
    mask[0, 7] = False
    assert same_bits(vectors, changed, mask)
