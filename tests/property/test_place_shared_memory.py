"""Buffers that share bytes are never in use together: checked on the orders in which a thread may run the ops."""

from __future__ import annotations

import random
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.sketch import Sketch

from tilewright.dtypes import bool_, float32, int8, int32
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.core import Block, Buffer, Space
from tilewright.ir.ops import For, If, Store, constant
from tilewright.ir.verify import verify
from tilewright.passes.place_shared_memory import place_shared_memory

KINDS = ["use", "use", "use", "copy", "commit", "wait", "wait", "barrier", "barrier", "loop", "branch"]


@st.composite
def sketches(draw: st.DrawFn) -> tuple[Sketch, list[Buffer]]:
    s = Sketch()
    buffers = []
    for n in range(draw(st.integers(2, 5))):
        alignment = draw(st.sampled_from([4, 16, 128]))
        buffers.append(s.shared(f"s{n}", draw(st.integers(1, 40)), draw(st.sampled_from([float32, int8])), alignment))

    def fill(depth: int) -> None:
        for _ in range(draw(st.integers(1, 8 if depth == 2 else 3))):
            match draw(st.sampled_from(KINDS if depth else KINDS[:-2])):
                case "use":
                    s.store(draw(st.sampled_from(buffers)), 0, 0)
                case "copy":
                    zero, floats = constant(0, int32), [b for b in buffers if b.dtype is float32]
                    if floats:
                        to = draw(st.sampled_from(floats))
                        s.builder.emit(AsyncCopy(to, s.fout, 1, "ca", zero, zero, constant(True, bool_)))
                case "commit":
                    s.builder.emit(AsyncCommit())
                case "wait":
                    s.builder.emit(AsyncWait(draw(st.sampled_from([None, 0, 0, 1]))))
                case "barrier":
                    s.barrier()
                case "loop":
                    with s.loop(0, 4):
                        fill(depth - 1)
                case "branch":
                    with s.branch(constant(True, bool_)):
                        fill(depth - 1)

    fill(2)
    return s, buffers


def one_order(block: Block, chance: random.Random) -> list[object]:
    """Return the simple ops in an order in which a thread may meet them: loops run 0 to 2 times, branches or not."""
    found: list[object] = []
    for op in block.ops:
        if isinstance(op, For):
            for _ in range(chance.randint(0, 2)):
                found += one_order(op.body, chance)
        elif isinstance(op, If):
            found += one_order(op.then, chance) if chance.random() < 0.7 else []
        else:
            found.append(op)
    return found


def periods_of_use(order: list[object]) -> dict[Buffer, list[tuple[int, int]]]:
    """Return when each buffer is in use, from one op to another; a copy lasts until it has landed."""
    periods: dict[Buffer, list[tuple[int, int]]] = {}
    groups: list[list[tuple[Buffer, int]]] = [[]]  # the last one is open
    for now, op in enumerate(order):
        match op:
            case Store(buffer=buffer) if buffer.space is Space.SHARED:
                periods.setdefault(buffer, []).append((now, now))
            case AsyncCopy():
                groups[-1].append((op.destination, now))
            case AsyncCommit():
                groups.append([])
            case AsyncWait():
                # The open group is complete only for a wait for everything.
                done = len(groups) if op.pending is None else max(len(groups) - 1 - op.pending, 0)
                for buffer, start in chain(*groups[:done]):
                    periods.setdefault(buffer, []).append((start, now))
                groups = groups[done:] or [[]]
    for buffer, start in chain(*groups):
        periods.setdefault(buffer, []).append((start, len(order)))
    return periods


def overlap(a: Buffer, b: Buffer) -> bool:
    assert a.offset is not None
    assert b.offset is not None
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


@settings(max_examples=400, deadline=None)
@given(sketches(), st.randoms(use_true_random=False))
def test_sharing_is_safe_in_every_order(case: tuple[Sketch, list[Buffer]], chance: random.Random) -> None:
    sketch, buffers = case
    kernel = sketch.kernel()
    verify(kernel)
    place_shared_memory(kernel)
    for buffer in buffers:
        assert buffer.offset is not None
        assert buffer.offset % buffer.alignment == 0
        assert 0 <= buffer.offset <= kernel.shared_bytes - buffer.bytes
    top_barriers = {op for op in kernel.body.ops if isinstance(op, Barrier)}
    for _ in range(6):
        order = one_order(kernel.body, chance)
        passed = [n for n, op in enumerate(order) if op in top_barriers]
        periods = periods_of_use(order)
        for a, b in combinations(periods, 2):
            if not overlap(a, b):
                continue
            for one in periods[a]:
                for other in periods[b]:
                    first, second = sorted([one, other])
                    assert any(first[1] < n < second[0] for n in passed), (a.name, b.name)


@given(sketches())
def test_placing_is_deterministic(case: tuple[Sketch, list[Buffer]]) -> None:
    kernel = case[0].kernel()
    place_shared_memory(kernel)
    first = [b.offset for b in case[1]]
    place_shared_memory(kernel)
    assert [b.offset for b in case[1]] == first
