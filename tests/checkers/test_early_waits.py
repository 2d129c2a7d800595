"""Waits at mbarriers that may hold two phases early: found in the order that runs, and right in every order where not."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim.early_waits import EarlyWaits

BYTES = 32 * 4


class Waits:
    """What the waits of a run went on after: of each warp the phases, and those that it did not know to be the ones."""

    def __init__(self) -> None:
        self.phases: dict[int, list[int]] = defaultdict(list)
        self.unsure: list[tuple[str, int]] = []


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    found, acquire = Waits(), EarlyWaits.acquire

    def recording(self: EarlyWaits, op: Any, buffer: Any, number: int, phase: Any, here: Any) -> Any:
        sure = acquire(self, op, buffer, number, phase, here)
        if buffer is not None:
            found.phases[int(np.argmax(here)) // 32].append(int(phase[0, 0]))
            if not np.array_equal(*np.broadcast_arrays(sure, here)):
                found.unsure.append((buffer.name, int(phase[0, 0])))
        return sure

    monkeypatch.setattr(EarlyWaits, "acquire", recording)
    return found


def findings(kernel: object, warps: int = 2) -> list[tuple[str, str]]:
    """Return kind and line of the findings of a run on one block."""
    out, x = np.zeros(32, np.float32), np.ones(32, np.float32)
    with tw.simulate(raise_errors=False) as found:
        kernel[1, 32 * warps](tw.static(out), tw.static(x))  # type: ignore[index]
    return [(each.kind, each.location.text.strip() if each.location else "") for each in found.findings]


def marked_as_free(without: str = "") -> object:
    """A writer arrives once before it has written; the reader may have to wait for that phase, too."""

    @tw.kernel
    def kernel(out, x):
        tile, written, free = tw.shared(tw.float32, tw.Layout(32)), tw.mbarrier(32), tw.mbarrier(32)
        tw.sync_threads()
        if tw.warp_id() == 0:
            written.arrive()
            free.wait(0)
            tile[tw.lane_id()] = x[tw.lane_id()]
            written.arrive()
        else:
            if without != "wait":
                written.wait(0)
            free.arrive()
            written.wait(1)
            out[tw.lane_id()] = tile[31 - tw.lane_id()]

    return kernel


def test_phase_that_nobody_waits_for_is_found() -> None:
    """So it was in the kernel of attention's gradients: one of 20,000 launches beside others had a wrong tile."""
    assert findings(marked_as_free()) == []
    assert findings(marked_as_free("wait")) == [("race", "out[tw.lane_id()] = tile[31 - tw.lane_id()]")]


def test_message_says_what_goes_wrong() -> None:
    with pytest.raises(tw.CheckError) as error:
        marked_as_free("wait")[1, 64](*[tw.static(np.ones(32, np.float32)) for _ in range(2)])  # type: ignore[index]
    told = str(error.value)
    assert "race: load of tile[31] meets a store by another thread" in told
    assert "nothing tells the thread that phase 0 of written is over, so that its wait in line " in told


def test_wait_that_nothing_relies_on_is_silent(waits: Waits) -> None:
    @tw.kernel
    def kernel(out, x):
        done = tw.mbarrier(1)
        tw.sync_threads()
        if tw.warp_id() == 0:
            for k in range(2):
                if tw.elect_one():
                    done.arrive()
                done.wait(k % 2)
        else:
            done.wait(1)
            out[tw.lane_id()] = x[tw.lane_id()]

    assert findings(kernel) == [] and waits.unsure == [("done", 1)]


@pytest.mark.parametrize("meets", [True, False])
def test_who_meets_a_thread_that_has_waited_knows(meets: bool, waits: Waits) -> None:
    @tw.kernel
    def kernel(out, x):
        written, free, both = tw.mbarrier(32), tw.mbarrier(32), tw.named_barrier(1, 64)
        tw.sync_threads()
        if tw.warp_id() == 0:
            written.arrive()
            free.wait(0)
            written.arrive()
        elif tw.warp_id() == 1:
            written.wait(0)
            free.arrive()
            if meets:
                both.sync()
        else:
            if meets:
                both.sync()
            written.wait(1)

    assert findings(kernel, 3) == [] and waits.unsure == ([] if meets else [("written", 1)])


@pytest.mark.parametrize("own", [True, False])
def test_who_makes_all_arrivals_of_a_phase_knows(own: bool, waits: Waits) -> None:
    @tw.kernel
    def kernel(out, x):
        written = tw.mbarrier(32)
        tw.sync_threads()
        if tw.warp_id() == (1 if own else 2):
            written.arrive()
            tw.sync_warp()  # a lane knows of the others' arrivals, too
        if tw.warp_id() == 0:
            written.wait(0)
            written.arrive()
        elif tw.warp_id() == 1:
            written.wait(1)

    assert findings(kernel, 3) == [] and waits.unsure == ([] if own else [("written", 1)])


@pytest.mark.parametrize("knows", [True, False])
def test_bytes_that_are_on_their_way_are_not_known(knows: bool, waits: Waits) -> None:
    """The thread that announces bytes has made the only arrival, and knows nothing of when they come."""

    @tw.kernel
    def kernel(out, x):
        tile, full, free, later = tw.shared(tw.float32, tw.Layout(32)), tw.mbarrier(1), tw.mbarrier(1), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.wait(0)
            if knows:
                free.wait(0)
            full.arrive()
        elif tw.thread_idx.x == 32:
            full.arrive_expect_tx(BYTES)
            tw.copy(tw.atoms.SM90_BULK_COPY_G2S, x, tile, barrier=full)
            if knows:
                full.wait(0)
                free.arrive()
            later.wait(0)  # here the first thread goes on
            full.wait(1)
        elif tw.thread_idx.x == 64:
            later.arrive()

    assert findings(kernel, 3) == [] and waits.unsure == ([] if knows else [("full", 1)])


@pytest.mark.parametrize("stages", [2, 3])
def test_consumers_that_take_every_other_tile(stages: int, waits: Waits) -> None:
    """Of an odd number of stages each consumer has the even or odd phases, and nothing tells it of the others."""

    @tw.kernel
    def kernel(out, x):
        ring = tw.pipeline(stages, consumers=32, bytes=BYTES)
        tile = tw.shared(tw.float32, tw.Layout((32, stages)))
        tw.sync_threads()
        if tw.warp_id() == 0:
            if tw.thread_idx.x == 0:
                state = ring.producer()
                for _ in range(12):
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_BULK_COPY_G2S, x, tile[:, stage], barrier=full)
        else:
            for n in range(6):
                k = 2 * n + tw.warp_id() - 1
                stage, phase = k % stages, k // stages % 2
                ring.full[stage].wait(phase)
                ring.empty[stage].arrive()

    assert bool(findings(kernel, 3)) == bool(waits.unsure) == (stages == 3)


# --- every order -----------------------------------------------------------------------------------------


class Program(NamedTuple):
    """What each warp does at two mbarriers, a statement after the other: ("arrive" or "wait", barrier, parity)."""

    counts: tuple[int, int]
    warps: tuple[tuple[tuple[str, int, int], ...], ...]


def programs(seed: int) -> Iterator[Program]:
    """Yield programs of three warps; waits of a warp count its phases, and may skip some."""
    draw = random.Random(seed)
    while True:
        warps = []
        for _ in range(3):
            phases, lines = [0, 0], []
            for _ in range(draw.randint(2, 4)):
                barrier = int(draw.random() < 0.3)
                if draw.random() < 0.5:
                    lines.append(("arrive", barrier, 0))
                else:
                    phase = phases[barrier] + int(draw.random() < 0.4)
                    lines.append(("wait", barrier, phase % 2))
                    phases[barrier] = phase + 1
            warps.append(tuple(lines))
        yield Program((draw.randint(1, 2), 1), tuple(warps))


def phases_in_every_order(program: Program) -> dict[tuple[int, int], set[int]] | None:
    """Return in which phases each line arrives, or after which it goes on, by warp and line; None if an order hangs."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    start = ((0,) * len(program.warps), ((0, 0), (0, 0)))  # lines, and of each barrier phases over and arrivals
    pending, seen = [start], {start}
    while pending:
        lines, barriers = pending.pop()
        moved = False
        for warp, line in enumerate(lines):
            if line == len(program.warps[warp]):
                continue
            what, barrier, parity = program.warps[warp][line]
            over, come = barriers[barrier]
            if what == "wait":
                if over % 2 == parity:
                    continue
                found[warp, line].add(over - 1)
                state = over, come
            else:
                found[warp, line].add(over)
                state = (over + 1, 0) if come + 1 == program.counts[barrier] else (over, come + 1)
            moved = True
            following = (
                (*lines[:warp], line + 1, *lines[warp + 1 :]),
                (state, barriers[1]) if barrier == 0 else (barriers[0], state),
            )
            if following not in seen:
                seen.add(following)
                pending.append(following)
        if not moved and any(line < len(each) for line, each in zip(lines, program.warps, strict=True)):
            return None
    return found


def kernel_of(program: Program) -> object:
    @tw.kernel
    def kernel(out, x):
        barriers = [tw.mbarrier(count) for count in program.counts]
        tw.sync_threads()
        for warp in tw.static_range(3):
            if tw.thread_idx.x == 32 * warp:
                for what, barrier, parity in program.warps[warp]:
                    if what == "wait":
                        barriers[barrier].wait(parity)
                    else:
                        barriers[barrier].arrive()

    return kernel


@pytest.mark.parametrize("seed", range(4))
def test_wait_that_is_known_goes_on_no_earlier_in_another_order(seed: int, waits: Waits) -> None:
    """The order that runs is one of them; what it says of the others is checked against all of them."""
    kinds = {True: 0, False: 0}
    for program in programs(seed):
        phases = phases_in_every_order(program)
        here = {(w, n) for w, lines in enumerate(program.warps) for n, each in enumerate(lines) if each[0] == "wait"}
        if phases is None or any(len(each) > 1 for at, each in phases.items() if at not in here):
            continue  # what an arrival tells of depends on the order, too
        waits.phases.clear()
        waits.unsure.clear()
        assert findings(kernel_of(program), 3) == []
        if max(map(max, waits.phases.values()), default=0) > 1:
            continue  # of several phases that nobody waits for the checker does not count all arrivals
        of_run = {warp: iter(each) for warp, each in waits.phases.items()}
        is_right = all(next(of_run[warp]) == min(phases[warp, line]) for warp, line in sorted(here))
        assert (waits.unsure == []) == is_right, (program, phases, waits.phases)
        kinds[is_right] += 1
        if min(kinds.values()) >= 4:
            break
