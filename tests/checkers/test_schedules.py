"""Other orders of agents by seeds: faults that only some orders show, and right kernels that stay silent in all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example

ORDERS = 40


def zeros(*shape: int, dtype: Any = np.int32) -> Any:
    return np.zeros(shape, dtype)


def found(kernel: Any, *arguments: Any, schedules: int = ORDERS, seed: int = 0) -> tw.profile.Run:
    with tw.simulate(raise_errors=False, schedules=schedules, seed=seed) as run:
        kernel(*arguments)
    return run


# --- wrong in some orders --------------------------------------------------------------------------------


@tw.function
def adds_under_both(y, locks, first, second):
    while tw.atomic_cas(locks, first, 0, 1, sem="acquire") != 0:
        pass
    while tw.atomic_cas(locks, second, 0, 1, sem="acquire") != 0:
        pass
    y[0] = y[0] + 1
    tw.store(locks, second, 0, sem="release")
    tw.store(locks, first, 0, sem="release")


@tw.kernel
def locks_in_two_orders(y):
    """Each warp takes two locks, and not in the same order."""
    locks = tw.shared(tw.int32, 2)
    if tw.thread_idx.x < 2:
        locks[tw.thread_idx.x] = 0
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        adds_under_both(y, locks, 0, 1)
    elif tw.thread_idx.x == 32:
        adds_under_both(y, locks, 1, 0)


@tw.kernel
def looks_once(y):
    """The consumer looks whether the data is there, and does not wait for it."""
    data, there = tw.shared(tw.int32, 32), tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        there[0] = 0
    tw.sync_threads()
    if tw.warp_id() == 0:
        data[tw.lane_id()] = 7
        tw.sync_warp()
        if tw.lane_id() == 0:
            tw.store(there, 0, 1, sem="release", scope="cta")
    elif tw.load(there, 0, sem="acquire", scope="cta") == 1:
        y[tw.lane_id()] = data[tw.lane_id()]


@tw.kernel
def looks_at_a_phase_once(y):
    """The consumer tests an mbarrier once."""
    full = tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full.arrive()
    elif tw.thread_idx.x == 32:
        y[0] = tw.where(full.test(0), 1, 2)


@tw.function
def pop(head, after, owned):
    top = tw.load(head, 0)
    following = tw.load(after, top)
    while tw.atomic_cas(head, 0, top, following) != top:
        top = tw.load(head, 0)
        following = tw.load(after, top)
    tw.device_assert(tw.atomic_add(owned, top, 1) == 0, "a node has one owner")
    return top


@tw.kernel
def pops_of_a_stack(y):
    """Nodes are popped by compare and swap: one may go and come back between the look and the swap."""
    head, after, owned = tw.shared(tw.int32, 1), tw.shared(tw.int32, 8), tw.shared(tw.int32, 8)
    if tw.thread_idx.x < 8:
        after[tw.thread_idx.x] = (tw.thread_idx.x + 1) % 8
        owned[tw.thread_idx.x] = 0
    if tw.thread_idx.x == 0:
        head[0] = 0
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        pop(head, after, owned)
        pop(head, after, owned)
    elif tw.thread_idx.x == 32:
        first = pop(head, after, owned)
        pop(head, after, owned)
        top = tw.load(head, 0)
        tw.store(after, first, top)
        tw.atomic_add(owned, first, -1)
        tw.atomic_cas(head, 0, top, first)


@tw.kernel
def numbers_of_blocks(y, ticket):
    """Each block takes a ticket, and takes it for its number."""
    if tw.thread_idx.x == 0:
        y[tw.atomic_add(ticket, 0, 1)] = tw.block_idx.x


@pytest.mark.parametrize(
    ("launch", "arguments", "kind"),
    [
        (locks_in_two_orders[1, 64], (zeros(1),), "deadlock"),
        (looks_once[1, 64], (zeros(32),), "order-dependent"),
        (looks_at_a_phase_once[1, 64], (zeros(1),), "order-dependent"),
        (pops_of_a_stack[1, 64], (zeros(1),), "assertion"),
        (numbers_of_blocks[8, 32], (zeros(8), zeros(1)), "order-dependent"),
    ],
    ids=["locks", "looks once", "tests once", "stack", "blocks"],
)
def test_faults_of_some_orders(launch: Any, arguments: tuple[Any, ...], kind: str) -> None:
    fresh = [a.copy() for a in arguments]
    assert not found(launch, *fresh, schedules=0).findings
    run = found(launch, *arguments)
    (finding,) = [f for f in run.findings if f.kind == kind]
    assert finding.seed is not None and f"seed={finding.seed}" in finding.message, finding
    assert finding.file == __file__ and finding.line is not None
    # The arrays hold the results of the order without a seed.
    for left, right in zip(arguments, fresh, strict=True):
        np.testing.assert_array_equal(left, right)
    # One seed shows it again, to the word.
    again = [found(launch, *[np.zeros_like(a) for a in arguments], schedules=1, seed=finding.seed) for _ in range(2)]
    assert [f.message for f in again[0].findings] == [f.message for f in again[1].findings]
    assert kind in {f.kind for f in again[0].findings}


def test_launches_raise_what_another_order_shows() -> None:
    with tw.simulate(schedules=ORDERS), pytest.raises(tw.CheckError, match="only in .*order"):
        locks_in_two_orders[1, 64](zeros(1))


# --- right in all ----------------------------------------------------------------------------------------


@tw.kernel
def one_lock(y):
    """Every warp adds under a lock."""
    lock = tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        lock[0] = 0
    tw.sync_threads()
    if tw.lane_id() == 0:
        while tw.atomic_cas(lock, 0, 0, 1, sem="acquire") != 0:
            pass
        y[0] = y[0] + tw.warp_id()
        tw.store(lock, 0, 0, sem="release")


@tw.kernel
def shared_in_turns(y, x):
    """Shared memory begins its life anew in each iteration, with atomic operations and barriers between."""
    for k in range(3):
        total = tw.shared(tw.int32, 1)
        if tw.thread_idx.x == 0:
            total[0] = 0
        tw.sync_threads()
        tw.atomic_add(total, 0, x[tw.thread_idx.x] + k)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            y[tw.block_idx.x, k] = total[0]
        tw.sync_threads()


@pytest.mark.parametrize(
    ("launch", "arguments"),
    [
        (one_lock[1, 128], (zeros(1),)),
        (shared_in_turns[3, 96], (zeros(3, 3), np.arange(96, dtype=np.int32))),
    ],
    ids=["one lock", "shared in turns"],
)
def test_right_kernels_are_silent(launch: Any, arguments: tuple[Any, ...]) -> None:
    run = found(launch, *arguments)
    assert not run.findings and not run.notes


@tw.kernel
def float_sum(y, x):
    tw.atomic_add(y, 0, x[tw.thread_idx.x])


def test_rounding_of_atomic_sums_is_a_note() -> None:
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    run = found(float_sum[1, 128], zeros(1, dtype=np.float32), x)
    assert not run.findings
    assert run.notes and all("rounding of atomic sums" in note for note in run.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernels/prefix_sum", "hopper/02_wgmma_tile", "hopper/04_producer_consumers"])
def test_examples_are_silent(name: str) -> None:
    for case in load_example(examples_folder() / f"{name}.py").cases("sim", True):
        trial = case.prepare()
        run = found(trial.launch, schedules=4)
        assert not run.findings, run.findings[0].message


@pytest.mark.parametrize("options", [{"schedules": -1}, {"schedules": 2.5}, {"seed": -1}, {"schedules": True}])
def test_numbers_of_orders_are_whole(options: dict[str, Any]) -> None:
    with pytest.raises(tw.ArgumentError, match="whole number"), tw.simulate(**options):
        pass
