"""The race checker against a graph search: something is reported if and only if something races."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.checkers.happens_before import Statement, races
from tests.checkers.programs import RACES, findings
from tests.helpers.slow import examples

from tilewright.backends.sim import Finding


def compare(program: Sequence[Statement], blocks: int, threads: int) -> list[Finding]:
    """Check that races are found where they are, and nowhere else."""
    expected = races(program, blocks, threads)
    found = [f for f in findings(program, blocks, threads) if f.kind in RACES]
    assert bool(found) == bool(expected), (expected, [f.message for f in found])
    for finding in found:
        assert finding.other is not None and frozenset((finding.line, finding.other.line)) in expected, finding.message
    return found


def everybody(block: int, thread: int) -> bool:
    return True


def own(block: int, thread: int) -> int:
    return 64 * block + thread


def in_warp(block: int, thread: int) -> int:
    """The element of the lane mirrored in its warp."""
    return 64 * block + (thread ^ 31)


def in_block(block: int, thread: int) -> int:
    """The element of a lane of the other warp."""
    return 64 * block + (thread ^ 32)


def first(block: int, thread: int) -> int:
    return 64 * block


def shared_by_blocks(block: int, thread: int) -> int:
    return thread


def thread_is(which: int) -> Callable[[int, int], bool]:
    return lambda block, thread: thread == which


def block_is(which: int) -> Callable[[int, int], bool]:
    return lambda block, thread: block == which


# --- programs by chance --------------------------------------------------------------------------------

# Accesses that mostly keep apart, and barriers between most of them: about as many programs race as do not.
WHENS = st.sampled_from([everybody] * 6 + [thread_is(0), thread_is(1), thread_is(33), block_is(0)])
INDICES = st.sampled_from([own, own, own, in_warp, in_warp, in_block, first, shared_by_blocks])
SHARED = {"memory": st.just("tile"), "index": INDICES, "when": WHENS}
GLOBAL = {"memory": st.just("array"), "index": INDICES, "when": WHENS}
ACCESSES = st.one_of(
    st.builds(Statement, kind=st.sampled_from(["load", "load", "load", "store", "store", "atomic"]), **SHARED),
    st.builds(Statement, kind=st.sampled_from(["load", "load", "store"]), **GLOBAL),
    st.builds(Statement, kind=st.just("copy"), source=INDICES, **SHARED),
)
BARRIERS = st.sampled_from([Statement("sync_threads"), Statement("sync_threads"), Statement("sync_warp")])
WAITS = st.lists(
    st.sampled_from(
        [Statement("commit"), Statement("wait", pending=0), Statement("wait", pending=1), Statement("wait")]
    ),
    max_size=3,
)


@st.composite
def programs(draw: st.DrawFn) -> list[Statement]:
    program: list[Statement] = []
    for _ in range(draw(st.integers(2, 6))):
        program.append(draw(ACCESSES))
        program += draw(WAITS)
        program += [draw(BARRIERS)] if draw(st.integers(0, 5)) else []
    return program


@examples(45, 300, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([(1, 64), (2, 64), (1, 36), (3, 64)]))
def test_programs_by_chance(program: list[Statement], shape: tuple[int, int]) -> None:
    compare(program, *shape)


# --- every subset of the synchronisations of small programs --------------------------------------------

STORE, LOAD = Statement("store", "tile", own), Statement("load", "tile", own)
COPY = Statement("copy", "tile", own, source=own)
BLOCK, LANES = Statement("sync_threads"), Statement("sync_warp")
COMMIT, WAIT, WAIT_ONE, WAIT_ALL = (
    Statement("commit"), Statement("wait", pending=0), Statement("wait", pending=1), Statement("wait"),
)  # fmt: skip


def at(
    statement: Statement, index: Callable[[int, int], int], when: Callable[[int, int], bool] = everybody
) -> Statement:
    return replace(statement, index=index, when=when)


def second_stage(block: int, thread: int) -> int:
    return 128 + thread


def in_array(statement: Statement) -> Statement:
    return replace(statement, memory="array")


PROGRAMS = {
    "through the block": [STORE, BLOCK, at(LOAD, in_block), BLOCK, STORE, LANES, at(LOAD, in_warp)],
    "through the warp": [STORE, LANES, at(LOAD, in_warp), LANES, STORE, BLOCK, at(LOAD, in_block)],
    "only own elements": [STORE, BLOCK, LOAD, LANES, STORE, BLOCK, LOAD],
    "one for all": [
        at(STORE, first, thread_is(0)), BLOCK, at(LOAD, first), BLOCK, at(STORE, first, thread_is(33)), BLOCK,
        at(LOAD, first),
    ],
    "two readers": [
        at(LOAD, first, thread_is(40)), BLOCK, at(LOAD, first, thread_is(2)), LANES, at(LOAD, first, thread_is(1)),
        LANES, at(STORE, first, thread_is(1)),
    ],
    "readers of two warps": [
        at(STORE, first, thread_is(5)), BLOCK, at(LOAD, first, thread_is(3)), at(LOAD, first, thread_is(35)),
        at(LOAD, first, thread_is(4)), LANES, at(STORE, first, thread_is(4)),
    ],
    "early readers": [
        at(LOAD, first, thread_is(35)), at(LOAD, first, thread_is(3)), BLOCK, at(STORE, first, thread_is(3)), BLOCK,
        at(LOAD, first, thread_is(7)), LANES, at(STORE, first, thread_is(6)),
    ],
    "written between readers": [
        at(LOAD, first, thread_is(2)), LANES, at(STORE, in_block, thread_is(9)), LANES, at(LOAD, first, thread_is(3)),
        BLOCK, at(STORE, in_block, thread_is(2)), BLOCK, at(STORE, first, thread_is(3)),
    ],
    "a copy": [COPY, COMMIT, WAIT, BLOCK, at(LOAD, in_block)],
    "a copy of one's own": [COPY, COMMIT, WAIT, BLOCK, LOAD],
    "the barrier first": [COPY, COMMIT, BLOCK, WAIT, LANES, at(LOAD, in_warp)],
    "a copy uncommitted": [COPY, WAIT, WAIT_ALL, BLOCK, at(LOAD, in_block)],
    "two stages": [
        COPY, COMMIT, at(COPY, second_stage), COMMIT, WAIT_ONE, BLOCK, at(LOAD, in_block), WAIT, BLOCK,
        at(LOAD, lambda b, t: 128 + (t ^ 32)),
    ],
    "a stage filled again": [COPY, COMMIT, WAIT, BLOCK, at(LOAD, in_block), BLOCK, COPY, COMMIT, WAIT, LOAD],
    "the source of a copy": [COPY, COMMIT, WAIT, BLOCK, in_array(at(STORE, in_block))],
    "one's own source": [COPY, COMMIT, WAIT, in_array(STORE)],
    "the source, the barrier first": [COPY, COMMIT, BLOCK, WAIT, in_array(at(STORE, in_warp))],
    "a source read twice": [
        COPY, COMMIT, at(COPY, second_stage), COMMIT, WAIT_ONE, WAIT, BLOCK, in_array(at(STORE, in_block)),
    ],
    "one of two sources": [
        COPY, COMMIT, replace(COPY, index=second_stage, source=second_stage), COMMIT, WAIT_ONE, BLOCK,
        in_array(at(STORE, in_block)), WAIT,
    ],
    "early readers of an array": [
        in_array(x) for x in (
            at(LOAD, first, thread_is(35)), BLOCK, at(LOAD, first, thread_is(2)), at(LOAD, first, thread_is(1)), LANES,
            at(STORE, first, thread_is(1)),
        )
    ],
    "counting": [
        at(STORE, first, thread_is(0)), BLOCK, Statement("atomic", "tile", first), Statement("atomic", "tile", first),
        BLOCK, at(LOAD, first),
    ],
    "global": [in_array(x) for x in (STORE, BLOCK, at(LOAD, in_block), BLOCK, STORE, BLOCK, LOAD)],
}  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.spread(4)
def test_every_subset(name: str, blocks: int) -> None:
    """Remove some of the synchronisations: there is a finding if and only if one of them was needed."""
    program = PROGRAMS[name]
    places = [n for n, statement in enumerate(program) if statement.is_synchronisation]
    outcomes = set()
    for count in range(len(places) + 1):
        for removed in itertools.combinations(places, count):
            found = compare([s for n, s in enumerate(program) if n not in removed], blocks, 64)
            outcomes.add(bool(found))
    always = {"only own elements": {False}, "readers of two warps": {True}, "the source, the barrier first": {True}}
    assert outcomes == always.get(name, {False, True})


# --- blocks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "kind"),
    [
        ([Statement("store", "array", shared_by_blocks)], "overlapping-writes"),
        ([Statement("store", "array", first, when=block_is(0)), Statement("load", "array", lambda b, t: 0)], "race"),
        ([Statement("load", "array", lambda b, t: 0), Statement("store", "array", own, when=thread_is(0))], "race"),
        ([Statement("atomic", "array", shared_by_blocks)], None),
        ([Statement("atomic", "array", lambda b, t: 0), Statement("store", "array", own, when=thread_is(9))], None),
        ([Statement("atomic", "array", lambda b, t: 0), Statement("store", "array", own, when=block_is(1))], None),
        ([Statement("atomic", "array", lambda b, t: 64), Statement("store", "array", own, when=thread_is(0))], "race"),
        ([Statement("load", "array", shared_by_blocks), Statement("store", "array", lambda b, t: 200 + b, when=thread_is(0))], None),
    ],
)  # fmt: skip
def test_blocks_are_never_ordered(statements: list[Statement], kind: str | None) -> None:
    found = compare([statements[0], BLOCK, *statements[1:]], 2, 64)
    if kind is None:
        assert found == []
    else:
        assert kind in {f.kind for f in found}


def test_blocks_of_different_chunks_are_not_ordered() -> None:
    """40 blocks of 1024 threads do not run at once; the last ones meet what the first ones did."""
    one_each = Statement("store", "array", lambda b, t: b % 39, when=thread_is(0))
    found = findings([one_each], 40, 1024)
    assert [(f.kind, f.block, f.count) for f in found] == [("overlapping-writes", (39, 0, 0), 1)]
    readers = Statement("load", "array", lambda b, t: 100 + b % 39, when=thread_is(3))
    late = Statement("store", "array", lambda b, t: 100 + b, when=lambda b, t: b == 0 and t == 3)
    found = findings([readers, late], 40, 1024)
    assert [(f.kind, f.block) for f in found] == [("race", (39, 0, 0))]
