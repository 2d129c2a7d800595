"""Random programs of warps that meet at barriers, against every schedule that a GPU could take.

A program is a short list of actions for each warp. An independent search runs it in all orders: if no order comes to an
end, the simulator must report a deadlock, and if all do, it must not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw

WARPS = 3
Action = tuple[str, int, int]  # what, which barrier, and a parity or a number of warps
Program = tuple[tuple[Action, ...], ...]


@tw.function
def act(kind, which, argument, mbarriers):
    if kind == "arrive":
        if tw.elect_one():
            mbarriers[which].arrive()
    elif kind == "wait":
        mbarriers[which].wait(argument)
    elif kind == "lane":
        if tw.elect_one():
            mbarriers[which].wait(argument)
        tw.sync_warp()  # the others wait for the one that waits
    elif kind == "sync":
        tw.named_barrier(1 + which, 32 * argument).sync()
    else:
        tw.named_barrier(1 + which, 32 * argument).arrive()


@tw.kernel
def perform(out, program: tw.constexpr, count: tw.constexpr):
    mbarriers = tw.mbarrier(count, stages=2)
    tw.sync_threads()
    for warp in tw.static_range(WARPS):
        if tw.warp_id() == warp:
            for kind, which, argument in program[warp]:
                act(kind, which, argument, mbarriers)
            if tw.elect_one():
                out[warp] = 1


ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 1), st.just(0)),
    st.tuples(st.sampled_from(["wait", "lane"]), st.integers(0, 1), st.integers(0, 1)),
    # A barrier's number of threads is always the same: other numbers are a fault of their own.
    st.integers(0, 1).flatmap(lambda n: st.tuples(st.sampled_from(["sync", "come"]), st.just(n), st.just(n + 2))),
)
PROGRAMS = st.tuples(*[st.lists(ACTIONS, max_size=4).map(tuple)] * WARPS)


def outcomes(program: Program, count: int) -> set[bool]:
    """Return whether orders of the actions exist that come to an end, and such that do not."""

    @cache
    def search(state: Any) -> frozenset[bool]:
        places, phases, left, named, inside = state
        found: set[bool] = set()
        moved = False
        for warp, place in enumerate(places):
            if place == len(program[warp]):
                continue
            kind, which, argument = program[warp][place]
            p, rest, n, i = list(phases), list(left), [list(x) for x in named], list(inside)
            if kind in ("wait", "lane"):
                if p[which] % 2 == argument:
                    continue
            elif kind == "arrive":
                rest[which] -= 1
                if rest[which] == 0:
                    p[which], rest[which] = p[which] + 1, count
            elif i[warp] is not None:  # it has arrived, and waits for the end of that phase
                if n[which][0] == i[warp]:
                    continue
                i[warp] = None
            else:
                if kind == "sync":
                    i[warp] = n[which][0]
                n[which][1] += 1
                if n[which][1] == argument:
                    n[which] = [n[which][0] + 1, 0]
            moved = True
            stays = i[warp] is not None
            after = tuple(x if w != warp or stays else x + 1 for w, x in enumerate(places))
            found |= search((after, tuple(p), tuple(rest), tuple(map(tuple, n)), tuple(i)))
        if not moved:
            found.add(all(place == len(program[w]) for w, place in enumerate(places)))
        return frozenset(found)

    return set(search(((0,) * WARPS, (0, 0), (count, count), ((0, 0), (0, 0)), (None,) * WARPS)))


@examples(13, 60)
@given(PROGRAMS, st.integers(1, 2))
def test_deadlock_if_and_only_if_no_order_ends(program: Program, count: int) -> None:
    out = np.zeros(WARPS, np.int32)
    try:
        with tw.simulate(raise_errors=False) as run:
            perform[1, 32 * WARPS](out, program, count)
    except tw.LanguageError as error:  # what is refused while tracing could not have ended
        assert "this wait never ends" in str(error)
        assert True not in outcomes(program, count), program
        return
    kinds = {finding.kind for finding in run.findings}
    assert kinds <= {"deadlock"}, run.findings
    possible = outcomes(program, count)
    if len(possible) == 1:
        assert (kinds == set()) == (possible == {True}), run.findings
    assert bool(out.all()) == (kinds == set())
