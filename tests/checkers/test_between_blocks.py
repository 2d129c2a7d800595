"""Blocks that hand data to each other: silent where they are ordered, and found out whatever is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import Finding

RACES = {"race", "overlapping-writes"}


def findings(launch: Callable[[], object]) -> tuple[Finding, ...]:
    with tw.simulate(raise_errors=False) as run:
        launch()
    return tuple(run.findings)


# --- the kernels -----------------------------------------------------------------------------------------
#
# Each takes the synchronisations that it has by name, true where it is there.


@tw.kernel
def locked_sums(sums, locks, x, acquire: tw.constexpr, enter: tw.constexpr, leave: tw.constexpr, release: tw.constexpr):
    """Add rows to the row of a group, which a lock protects: the gradient of a layer norm's weights."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    group = block % sums.shape[0]
    if thread == 0:
        while tw.atomic_cas(locks, group, 0, 1, sem="acquire" if acquire else "relaxed") != 0:
            pass
    if enter:
        tw.sync_threads()
    sums[group, thread] += x[block, thread]
    if leave:
        tw.sync_threads()
    if thread == 0:
        tw.atomic_exch(locks, group, 0, sem="release" if release else "relaxed")


def run_locked_sums(seed: int, **given: bool) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, 99, (9, 64)).astype(np.int32)
    sums = np.zeros((2, 64), np.int32)
    locked_sums[9, 64](sums, np.zeros(2, np.int32), x, **given)
    return sums, np.stack([x[0::2].sum(0), x[1::2].sum(0)])


@tw.kernel
def look_back(out, aggregates, prefixes, states, x, part: tw.constexpr, whole: tw.constexpr, acquire: tw.constexpr):
    """Scan in one pass: a block adds what the blocks before it have published, back to a known prefix."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    base = tw.shared(tw.int32, 1)
    i = block * 32 + thread
    value = x[i]
    scan = value
    for step in (1, 2, 4, 8, 16):
        below = tw.shuffle_up(scan, step)
        if thread >= step:
            scan += below
    total = tw.shuffle(scan, 31)
    if thread == 0:
        before = 0
        if block > 0:
            aggregates[block] = total
            tw.store(states, block, 1, sem="release" if part else "relaxed")
            other = block - 1
            state = 0
            while state != 2:
                state = tw.load(states, other, sem="acquire" if acquire else "relaxed")
                if state == 1:
                    before += aggregates[other]
                    other -= 1
                elif state == 2:
                    before += prefixes[other]
        prefixes[block] = before + total
        tw.store(states, block, 2, sem="release" if whole else "relaxed")
        base[0] = before
    tw.sync_threads()
    out[i] = base[0] + scan


def run_look_back(seed: int, **given: bool) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, 99, 12 * 32).astype(np.int32)
    out, aggregates, prefixes, states = (np.zeros(n, np.int32) for n in (x.size, 12, 12, 12))
    look_back[12, 32](out, aggregates, prefixes, states, x, **given)
    return out, x.cumsum()


@tw.kernel
def split_k(c, turns, a, b, acquire: tw.constexpr, enter: tw.constexpr, leave: tw.constexpr, release: tw.constexpr):
    """Multiply slices of K by blocks that add to C one after the other, as a semaphore says."""
    tile, slice_ = tw.block_idx.x, tw.block_idx.y
    row = tile * tw.block_dim.x + tw.thread_idx.x
    total = 0
    for k in range(slice_ * 4, slice_ * 4 + 4):
        total += a[row, k] * b[k]
    if tw.thread_idx.x == 0:
        while tw.load(turns, tile, sem="acquire" if acquire else "relaxed") != slice_:
            pass
    if enter:
        tw.sync_threads()
    if slice_ == 0:
        c[row] = total
    else:
        c[row] += total
    if leave:
        tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.store(turns, tile, slice_ + 1, sem="release" if release else "relaxed")


def run_split_k(seed: int, **given: bool) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 9, (128, 12)).astype(np.int32), random.integers(0, 9, 12).astype(np.int32)
    c = np.zeros(128, np.int32)
    split_k[(2, 3), 64](c, np.zeros(2, np.int32), a, b, **given)
    return c, a @ b


@tw.kernel
def fix_up(
    out, workspace, flags, x, leave: tw.constexpr, before: tw.constexpr, behind: tw.constexpr, enter: tw.constexpr
):
    """Sum tiles that several blocks have parts of: the one with the first part adds those of the others (stream-K).

    The flags are relaxed, and fences order what they stand for.
    """
    block, thread = tw.block_idx.x, tw.thread_idx.x
    parts = 3
    tile, part = block // parts, parts - 1 - block % parts  # the owner of a tile comes last
    total = x[tile, part, thread]
    if part > 0:
        workspace[block, thread] = total
        if leave:
            tw.sync_threads()
        if thread == 0:
            if before:
                tw.threadfence()
            tw.store(flags, block, 1)
    else:
        for other in range(block - parts + 1, block):
            if thread == 0:
                while tw.load(flags, other) == 0:
                    pass
                if behind:
                    tw.threadfence()
            if enter:
                tw.sync_threads()
            total += workspace[other, thread]
        out[tile, thread] = total


def run_fix_up(seed: int, **given: bool) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, 99, (4, 3, 64)).astype(np.int32)
    out, workspace, flags = np.zeros((4, 64), np.int32), np.zeros((12, 64), np.int32), np.zeros(12, np.int32)
    fix_up[12, 64](out, workspace, flags, x, **given)
    return out, x.sum(1)


@tw.kernel
def last_block_sums(
    out, partial, count, x, leave: tw.constexpr, before: tw.constexpr, behind: tw.constexpr, enter: tw.constexpr
):
    """Let the block that is done last add what all blocks have left (CUDA's sample threadFenceReduction)."""
    thread = tw.thread_idx.x
    is_last = tw.shared(tw.int32, 1)
    i = tw.block_idx.x * tw.block_dim.x + thread
    partial[i] = x[i]
    if leave:
        tw.sync_threads()
    if thread == 0:
        if before:
            tw.threadfence()
        done = tw.atomic_add(count, 0, 1)
        if behind:
            tw.threadfence()
        is_last[0] = done == tw.grid_dim.x - 1
    if enter:
        tw.sync_threads()
    if is_last[0] != 0:
        total = 0
        for block in range(tw.grid_dim.x):
            total += partial[block * tw.block_dim.x + thread]
        out[thread] = total


def run_last_block_sums(seed: int, **given: bool) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).integers(0, 99, 7 * 64).astype(np.int32)
    out, partial = np.zeros(64, np.int32), np.zeros_like(x)
    last_block_sums[7, 64](out, partial, np.zeros(1, np.int32), x, **given)
    return out, x.reshape(7, 64).sum(0)


Run = Callable[..., tuple[np.ndarray, np.ndarray]]
KERNELS: Mapping[Run, tuple[str, ...]] = {
    run_locked_sums: ("acquire", "enter", "leave", "release"),
    run_look_back: ("part", "whole", "acquire"),
    run_split_k: ("acquire", "enter", "leave", "release"),
    run_fix_up: ("leave", "before", "behind", "enter"),
    run_last_block_sums: ("leave", "before", "behind", "enter"),
}
LEFT_OUT = [(run, name) for run, names in KERNELS.items() for name in names]


@pytest.mark.parametrize("run", KERNELS, ids=lambda run: run.__name__[4:])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.spread(4)
def test_all_of_it_is_silent_and_right(run: Run, seed: int) -> None:
    got, expected = run(seed, **dict.fromkeys(KERNELS[run], True))
    assert np.array_equal(got, expected)


@pytest.mark.parametrize(("run", "name"), LEFT_OUT, ids=lambda x: x if isinstance(x, str) else x.__name__[4:])
@pytest.mark.parametrize("seed", range(3))
def test_each_part_is_needed(run: Run, name: str, seed: int) -> None:
    given = {each: each != name for each in KERNELS[run]}
    found = findings(lambda: run(seed, **given))
    assert RACES & {f.kind for f in found}, found


# --- what orders, and how far it reaches -----------------------------------------------------------------


@tw.kernel
def hand_over(out, data, flag, how: tw.constexpr):
    """Block 0 writes, block 1 reads, and `how` orders them or does not."""
    thread = tw.thread_idx.x
    if tw.block_idx.x == 0:
        data[thread] = thread + 1
        if how == "fences of all":
            tw.threadfence()
        if how != "no barrier before":
            tw.sync_threads()
        if how == "fence of the block":
            tw.threadfence("cta")
        if thread == 0:
            if how in ("fences", "volatile and fences", "no barrier before", "fence of the block behind"):
                tw.threadfence()
            if how == "narrow release":
                tw.store(flag, 0, 1, sem="release", scope="cta")
            elif how in ("release", "narrow acquire", "release and fence", "read twice"):
                tw.store(flag, 0, 1, sem="release")
            elif how == "update between":
                tw.atomic_add(flag, 0, 1, sem="release")
            elif how == "written between":
                tw.atomic_add(flag, 0, 1, sem="release")
                tw.store(flag, 0, 3)
            elif how == "volatile and fences":
                tw.store(flag, 0, 1, sem="volatile")
            elif how == "fence too late":
                tw.store(flag, 0, 1)
                tw.threadfence()
            else:
                tw.store(flag, 0, 1)
            if how == "update between":
                tw.atomic_add(flag, 0, 2)
    else:
        if thread == 0:
            if how in ("release", "narrow release"):
                while tw.load(flag, 0, sem="acquire") == 0:
                    pass
            elif how in ("update between", "written between"):
                while tw.load(flag, 0, sem="acquire") != 3:
                    pass
            elif how == "narrow acquire":
                while tw.load(flag, 0, sem="acquire", scope="cta") == 0:
                    pass
            elif how == "volatile and fences":
                while tw.load(flag, 0, sem="volatile") == 0:
                    pass
            elif how == "read twice":
                while tw.load(flag, 0) == 0:
                    pass
                tw.load(flag, 0, sem="acquire")
            else:
                while tw.load(flag, 0) == 0:
                    pass
            if how in ("fences", "release and fence", "volatile and fences", "no barrier before", "fence too late"):
                tw.threadfence()
            if how == "fence of the block behind":
                tw.threadfence("cta")
        tw.sync_threads()
        if how in ("fences of all", "fence of the block"):
            tw.threadfence()
        out[thread] = data[thread]


ORDERED = ("release", "fences", "fences of all", "release and fence", "volatile and fences", "update between")
UNORDERED = (
    "narrow release", "narrow acquire", "no barrier before", "fence of the block", "fence of the block behind",
    "fence too late", "written between", "nothing",
)  # fmt: skip


@pytest.mark.parametrize("how", [*ORDERED, "read twice"])
def test_ordered(how: str) -> None:
    out, data, flag = (np.zeros(n, np.int32) for n in (64, 64, 1))
    hand_over[2, 64](out, data, flag, how)
    assert np.array_equal(out, np.arange(1, 65))


@pytest.mark.parametrize("how", UNORDERED)
def test_unordered(how: str) -> None:
    out, data, flag = (np.zeros(n, np.int32) for n in (64, 64, 1))
    found = findings(lambda: hand_over[2, 64](out, data, flag, how))
    raced = {f.buffer for f in found if f.kind in RACES}
    assert "data" in raced, found
    assert ("flag" in raced) == how.startswith("narrow"), found


@tw.kernel
def through_a_third(out, data, flags, acquire: tw.constexpr):
    """Block 0 hands over to block 1, and that to block 2, which knows of block 0 by it."""
    block = tw.block_idx.x
    if tw.thread_idx.x == 0:
        if block == 0:
            data[0] = 5
            tw.store(flags, 0, 1, sem="release")
        elif block == 1:
            while tw.load(flags, 0, sem="acquire" if acquire else "relaxed") == 0:
                pass
            tw.store(flags, 1, 1, sem="release")
        else:
            while tw.load(flags, 1, sem="acquire") == 0:
                pass
            out[0] = data[0]


@pytest.mark.parametrize("acquire", [True, False])
def test_causality_goes_through_a_third_block(acquire: bool) -> None:
    out = np.zeros(1, np.int32)
    found = findings(lambda: through_a_third[3, 32](out, np.zeros(1, np.int32), np.zeros(2, np.int32), acquire))
    assert out[0] == 5
    assert bool(found) != acquire


@tw.kernel
def plain_flag(out, data, flag):
    if tw.thread_idx.x == 0:
        if tw.block_idx.x == 0:
            data[0] = 5
            tw.threadfence()
            flag[0] = 1
        else:
            while flag[0] == 0:
                pass
            tw.threadfence()
            out[0] = data[0]


def test_a_plain_flag_orders_nothing() -> None:
    found = findings(lambda: plain_flag[2, 32](*(np.zeros(1, np.int32) for _ in range(3))))
    assert {"flag", "data"} <= {f.buffer for f in found}


@tw.kernel
def within_a_block(out, flag, strong: tw.constexpr):
    """A warp waits for another by shared memory, which hands over what is in shared memory."""
    data, ready = tw.shared(tw.int32, 32), tw.shared(tw.int32, 1)
    lane = tw.lane_id()
    if tw.thread_idx.x == 0:
        ready[0] = 0
    tw.sync_threads()
    if tw.warp_id() == 0:
        data[lane] = lane
        tw.sync_warp()
        if lane == 0:
            tw.store(ready, 0, 1, sem="release" if strong else "relaxed", scope="cta")
    else:
        if lane == 0:
            while tw.load(ready, 0, sem="acquire", scope="cta") == 0:
                pass
        tw.sync_warp()
        out[lane] = data[lane]


@pytest.mark.parametrize("strong", [True, False])
def test_flags_in_shared_memory(strong: bool) -> None:
    out = np.zeros(32, np.int32)
    found = findings(lambda: within_a_block[1, 64](out, np.zeros(1, np.int32), strong))
    assert bool(found) != strong
    assert np.array_equal(out, np.arange(32))


@tw.kernel
def counted_by_scope(count, scope: tw.constexpr):
    tw.atomic_add(count, 0, 1, scope=scope)


@pytest.mark.parametrize(("scope", "blocks", "races"), [("gpu", 4, False), ("cta", 1, False), ("cta", 4, True)])
def test_updates_race_where_their_scope_does_not_reach(scope: str, blocks: int, races: bool) -> None:
    count = np.zeros(1, np.int32)
    found = findings(lambda: counted_by_scope[blocks, 32](count, scope))
    assert count[0] == 32 * blocks
    assert ("race" in {f.kind for f in found}) == races


@tw.kernel
def scopes_that_differ(count, wide: tw.constexpr):
    """Block 0 reaches itself only, and comes first or last in the simulator's order."""
    if tw.block_idx.x == 0:
        tw.atomic_add(count, 0, 1, scope="cta" if not wide else "gpu")
    else:
        tw.load(count, 0, scope="gpu")
        tw.atomic_max(count, 0, 1)


@pytest.mark.parametrize("wide", [True, False])
def test_a_scope_of_one_side_is_too_narrow(wide: bool) -> None:
    found = findings(lambda: scopes_that_differ[2, 32](np.zeros(1, np.int32), wide))
    assert ("race" in {f.kind for f in found}) != wide


@tw.kernel
def in_chunks(out, flags, x, release: tw.constexpr):
    """A chain over so many blocks that the simulator runs them in several chunks where nobody waits."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    before = 0
    if block > 0:
        if tw.load(flags, block - 1, sem="acquire") == 1:
            before = out[block - 1, thread]
    out[block, thread] = before + x[block, thread]
    tw.sync_threads()
    if thread == 0:
        tw.store(flags, block, 1, sem="release" if release else "relaxed")


@pytest.mark.parametrize("release", [True, False])
def test_order_reaches_over_chunks(release: bool) -> None:
    x = np.ones((40, 1024), np.int32)
    out, flags = np.zeros_like(x), np.zeros(40, np.int32)
    found = findings(lambda: in_chunks[40, 1024](out, flags, x, release))
    assert bool(found) != release


# --- what is told does not reach further than the flag ---------------------------------------------------


@tw.kernel
def told_by_another(out, data, flag, x):
    """Block 1 writes and tells nobody; block 0, which has waited for bytes at an mbarrier, tells block 2."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    smem, full = tw.shared(x.dtype, 32), tw.mbarrier(1)
    tw.sync_threads()
    if block == 0:
        if thread == 0:
            full.arrive_expect_tx(128)
            tw.copy(tw.atoms.SM90_BULK_COPY_G2S, x, smem, barrier=full)
            full.wait(0)
            tw.store(flag, 0, 1, sem="release")
    elif block == 1:
        data[thread] = 7
    else:
        if thread == 0:
            while tw.load(flag, 0, sem="acquire") == 0:
                pass
        tw.sync_threads()
        out[thread] = data[thread]


def test_what_an_mbarrier_brought_to_one_block_tells_nothing_of_the_next() -> None:
    arrays = np.zeros(32, np.int32), np.zeros(32, np.int32), np.zeros(1, np.int32)
    found = findings(lambda: told_by_another[3, 32](*arrays, tw.static(np.ones(32, np.float32))))
    assert [finding.kind for finding in found] == ["race"]


@tw.kernel
def told_at_addresses(out, data, addresses, other: tw.constexpr):
    """Block 0 writes and tells by a flag behind an address; block 1 waits for a flag behind an address."""
    flags = [tw.make_tensor(tw.pointer(addresses[n], tw.int32), tw.Layout(1)) for n in range(2)]
    block, thread = tw.block_idx.x, tw.thread_idx.x
    if block == 0:
        data[thread] = 7
        tw.sync_threads()
        if thread == 0:
            tw.store(flags[0], 0, 1, sem="release")
    else:
        if thread == 0:
            while tw.load(flags[other], 0, sem="acquire") == 0:
                pass
        tw.sync_threads()
        out[thread] = data[thread]


@pytest.mark.parametrize(("other", "kinds"), [(0, []), (1, ["race"])])
def test_a_flag_at_one_address_tells_nothing_to_who_reads_another(other: int, kinds: list[str]) -> None:
    flags = [np.zeros(1, np.int32), np.ones(1, np.int32)]  # the other one is set already
    out, data = np.zeros(32, np.int32), np.zeros(32, np.int32)
    found = findings(lambda: told_at_addresses[2, 32](out, data, tw.addresses(flags), other))
    assert [finding.kind for finding in found] == kinds
