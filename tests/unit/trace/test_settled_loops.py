"""Loops in loops: a trace of the outer one begins with what the inner one carried the last time, and finds the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright.trace.settle import Loop
from tilewright.trace.tracer import Calls, locate


@dataclass
class State:
    stage: int = 0
    phase: int = 0
    other: int = 0

    def advance(self):
        self.stage = tw.where(self.stage == 2, 0, self.stage + 1)
        self.phase = tw.where(self.stage == 0, self.phase ^ 1, self.phase)


@tw.kernel
def nested(out, n: tw.int32):
    a, b = State(), State(stage=1)
    total = 0
    for i in range(n):
        a.advance()
        for j in range(i):
            b.advance()
            for _ in range(j + 1):
                total += b.stage + 10 * b.phase
        total += 100 * a.stage + 1000 * a.phase
    out[0], out[1], out[2] = total, a.stage, b.phase


def expected(n):
    def advance(stage, phase):
        stage = 0 if stage == 2 else stage + 1
        return stage, phase ^ 1 if stage == 0 else phase

    a, b, total = (0, 0), (1, 0), 0
    for i in range(n):
        a = advance(*a)
        for j in range(i):
            b = advance(*b)
            total += (b[0] + 10 * b[1]) * (j + 1)
        total += 100 * a[0] + 1000 * a[1]
    return [total, a[0], b[1]]


@tw.kernel
def by_turns(out, n: tw.int32):
    """What the inner loop changes is another object in each iteration of a loop that runs while tracing."""
    states = [State(), State(), State()]
    for i in range(n):
        for number, state in enumerate(states):
            for j in range(2):
                if number == 1:
                    state.other += i + j
                else:
                    state.stage += j
    for number, state in enumerate(states):
        out[2 * number], out[2 * number + 1] = state.stage, state.other


@tw.kernel
def kinds(out, n: tw.int32):
    """A variable that the first trace of the outer loop takes for an int is a float in the next."""
    x = 0
    for i in range(n):
        y = x
        for j in range(3):
            y = y + j
        x = y * 0.5
    out[0] = x


def traces_of(kernel, *arguments, monkeypatch, guess=True):
    counted = [0]
    settle = Loop.settle

    def counting(self, trace):
        def again(leaves):
            counted[0] += 1
            return trace(leaves)

        return settle(self, again)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "settle", counting)
        if not guess:
            patch.setattr(Loop, "_guess", lambda self: False)
        text = kernel[1, 1].source(*arguments, arch="sm_90a")
    return counted[0], text


def test_the_innermost_loop_is_traced_few_times(monkeypatch):
    arguments = np.zeros(3, np.int32), 4
    known, text = traces_of(nested, *arguments, monkeypatch=monkeypatch)
    again, plain = traces_of(nested, *arguments, monkeypatch=monkeypatch, guess=False)
    assert known <= 20 < again
    assert text == plain


@tw.kernel
def ring_in_tiles(out, n: tw.int32):
    """Stage and phase of a ring go through two loops."""
    ring = tw.pipeline(5, consumers=4, bytes=16)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        state = ring.producer()
        for _ in range(n):
            for _ in range(n):
                out[state.stage] = state.stage
                state.advance()


@tw.kernel
def ring_of_one(out, n: tw.int32):
    ring = tw.pipeline(1, consumers=4, bytes=16)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        state = ring.producer()
        for _ in range(n):
            out[state.stage] = state.stage
            state.advance()


@tw.kernel
def by_hand(out, n: tw.int32):
    """What an iteration left is met by the next one: 0, 8, 16, 24, and so on."""
    place = 0
    for _ in range(n):
        out[place] = place
        place = place + 8 if place < 24 else 0


@pytest.mark.parametrize(("kernel", "most"), [(ring_in_tiles, 5), (ring_of_one, 2), (by_hand, 4)])
def test_a_ring_is_carried_whole_from_the_second_trace_on(kernel, most, monkeypatch):
    assert traces_of(kernel, np.zeros(32, np.int32), 4, monkeypatch=monkeypatch)[0] <= most


def test_the_stages_of_a_ring_are_known_to_be_its_own():
    """No remainder is needed of a number that lies below the number of stages, nor a check of its sign."""

    @tw.kernel
    def kernel(out, n: tw.int32):
        ring = tw.pipeline(5, consumers=4, bytes=16)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for _ in range(n):
                out[state.stage % 5] = tw.where(state.stage < 0, 7, 8)
                state.advance()

    assert "out[state_stage] = 8;" in kernel[1, 32].source(np.zeros(8, np.int32), 4, arch="sm_90a")


@pytest.mark.parametrize(("kernel", "type"), [(by_turns, np.int32), (kinds, np.float32)])
def test_the_text_is_that_of_a_trace_without_a_guess(kernel, type, monkeypatch):
    arguments = np.zeros(6, type), 3
    assert (
        traces_of(kernel, *arguments, monkeypatch=monkeypatch)[1]
        == traces_of(kernel, *arguments, monkeypatch=monkeypatch, guess=False)[1]
    )


def test_results():
    out = np.zeros(3, np.int32)
    for n in (0, 1, 2, 7):
        nested[1, 1](out, n)
        assert out.tolist() == expected(n)
    out = np.zeros(6, np.int32)
    by_turns[1, 1](out, 3)
    assert out.tolist() == [3, 0, 0, 9, 3, 0]
    x = np.zeros(1, np.float32)
    kinds[1, 1](x, 3)
    assert x[0] == ((0 + 3) * 0.5 + 3) * 0.5 * 0.5 + 1.5


def numbers(out):
    for n in range(6):
        yield out[n]


def taken(source):
    return next(source)


def taken_further(source):
    return taken(source)


@tw.kernel
def resumed(out):
    source = numbers(out)
    out[4] = next(source)
    for take in (taken, taken_further):
        first, second = next(source), take(source)
        out[5] = first + second


@pytest.mark.parametrize("kernel", [nested, by_turns, resumed])
def test_places_are_those_that_all_frames_give(kernel, monkeypatch):
    found = []
    shortcut = Calls.locate

    def both(self, frame):
        found.append((shortcut(self, frame), locate(frame)))
        return found[-1][0]

    monkeypatch.setattr(Calls, "locate", both)
    kernel[1, 1].lower(np.zeros(8, np.int32), *[4][: kernel is not resumed])
    assert len(found) > 5
    for quick, whole in found:
        assert quick == whole
