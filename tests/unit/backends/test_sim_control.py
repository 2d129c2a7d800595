"""Branches and loops, uniform and divergent."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.backends.sim_kernels import Sketch

from tilewright.dtypes import bool_, float32, int32, uint8
from tilewright.ir.core import Block, Value, VectorType
from tilewright.ir.ops import Binary, If, Pack, Yield


@pytest.mark.parametrize("limit", ["thread", "block", "uniform true", "uniform false", "all", "none"])
def test_branch(limit: str) -> None:
    out = np.full((3, 8), -1, np.int32)
    sketch = Sketch()
    dst, thread, block = sketch.array("dst", out, int32), sketch.thread(), sketch.special("block_idx.x")
    condition = {
        "thread": lambda: sketch.compare("lt", thread, 5),
        "block": lambda: sketch.compare("lt", block, 2),
        "uniform true": lambda: sketch.scalar("flag", True, bool_),
        "uniform false": lambda: sketch.scalar("flag", False, bool_),
        "all": lambda: sketch.compare("ge", thread, 0),
        "none": lambda: sketch.compare("lt", thread, 0),
    }[limit]()
    then, otherwise = Block(), Block()
    result = sketch.emit(If(condition, then, otherwise), int32)
    with sketch.builder.inside(then):
        doubled = sketch.mul(thread, 2)
        sketch.store(dst, sketch.global_thread(), 7)
        sketch.do(Yield((doubled,)))
    with sketch.builder.inside(otherwise):
        sketch.do(Yield((sketch.value(100),)))
    old = sketch.load(dst, sketch.global_thread())
    sketch.store(dst, sketch.global_thread(), sketch.add(old, result))
    sketch.run(3, 8)
    for b in range(3):
        for t in range(8):
            yes = {"thread": t < 5, "block": b < 2, "uniform true": True, "all": True}.get(limit, False)
            assert out[b, t] == (7 + 2 * t if yes else 99), (b, t)


def test_nested_branches_see_the_outer_mask() -> None:
    out = np.zeros((2, 16), np.int32)
    sketch = Sketch()
    dst, thread = sketch.array("dst", out, int32), sketch.global_thread()
    with sketch.when(sketch.compare("ge", sketch.thread(), 4)):
        with sketch.when(sketch.compare("lt", sketch.thread(), 8)):
            sketch.store(dst, thread, 1)
        with sketch.when(sketch.compare("lt", sketch.thread(), 2)):
            sketch.store(dst, thread, 50)  # nobody comes here
        sketch.store(dst, thread, sketch.add(sketch.load(dst, thread), 10))
    sketch.run(2, 16)
    assert out.tolist() == [[0] * 4 + [11] * 4 + [10] * 8] * 2


def test_branches_merge_vectors_and_registers() -> None:
    out = np.zeros((8, 2), np.float32)
    sketch = Sketch()
    dst = sketch.array("dst", out, float32)
    one, two = (sketch.emit(Pack((sketch.value(x, float32),) * 2), VectorType(float32, 2)) for x in (1.0, 2.0))
    merged = sketch.choose(sketch.compare("lt", sketch.thread(), 3), one, two)
    sketch.store(dst, sketch.mul(sketch.thread(), 2), merged)
    sketch.run(1, 8)
    assert out.tolist() == [[1, 1]] * 3 + [[2, 2]] * 5


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 5, 1), (5, 0, -2), (3, 3, 1), (4, 2, 1), (-3, 9, 4)])
def test_uniform_loop(start: int, stop: int, step: int) -> None:
    out = np.zeros(4, np.int32)
    sketch = Sketch()
    dst = sketch.array("dst", out, int32)
    with sketch.loop(stop, [sketch.value(100)], start, step) as loop:
        loop.next = [sketch.add(sketch.mul(loop.carried[0], 3), loop.index)]
    sketch.store(dst, sketch.thread(), loop.results[0])
    sketch.run(1, 4)
    wanted = 100
    for i in range(start, stop, step):
        wanted = wanted * 3 + i
    assert out.tolist() == [wanted] * 4


def test_carried_values_move_together() -> None:
    out = np.zeros(2, np.int32)
    sketch = Sketch()
    dst = sketch.array("dst", out, int32)
    with sketch.loop(5, [sketch.value(1), sketch.value(2)]) as loop:
        loop.next = loop.carried[::-1]
    sketch.store(dst, 0, loop.results[0])
    sketch.store(dst, 1, loop.results[1])
    sketch.run(1, 1)
    assert out.tolist() == [2, 1]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["stop", "start", "step", "down", "strided"])
def test_loop_whose_bounds_differ_by_thread(kind: str, masked: bool) -> None:
    out = np.zeros((2, 16), np.int32)
    sketch = Sketch()
    dst, thread = sketch.array("dst", out, int32), sketch.thread()
    bounds = {
        "stop": (0, thread, 1),
        "start": (thread, 9, 1),
        "step": (0, 20, sketch.add(thread, 1)),
        "down": (thread, 2, -2),
        "strided": (thread, sketch.add(thread, 48), 16),  # all threads run it equally often
    }[kind]

    def write() -> None:
        with sketch.loop(bounds[1], [sketch.value(1)], bounds[0], bounds[2]) as loop:
            old = sketch.load(dst, sketch.global_thread())
            sketch.store(dst, sketch.global_thread(), sketch.add(old, loop.index))
            loop.next = [sketch.mul(loop.carried[0], 3)]
        old = sketch.load(dst, sketch.global_thread())
        sketch.store(dst, sketch.global_thread(), sketch.add(old, sketch.mul(loop.results[0], 1000)))

    if masked:
        with sketch.when(sketch.compare("ne", sketch.binary("rem", thread, 3), 1)):
            write()
    else:
        write()
    sketch.run(2, 16)
    for t in range(16):
        steps = {
            "stop": range(t),
            "start": range(t, 9),
            "step": range(0, 20, t + 1),
            "down": range(t, 2, -2),
            "strided": range(t, t + 48, 16),
        }[kind]
        wanted = sum(steps) + 3 ** len(steps) * 1000
        wanted = (wanted + 2**31) % 2**32 - 2**31
        assert out[:, t].tolist() == [0 if masked and t % 3 == 1 else wanted] * 2, t


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


@pytest.mark.parametrize("masked", [False, True])
def test_divergent_while(masked: bool) -> None:
    out = np.full(40, -1, np.int32)
    sketch = Sketch()
    dst, thread = sketch.array("dst", out, int32), sketch.global_thread()

    def write() -> None:
        with sketch.repeat([sketch.add(thread, 1), sketch.value(0)]) as loop:
            with loop.test(sketch) as (n, _):
                sketch.do(Yield((sketch.compare("ne", n, 1),)))
            n, steps = loop.carried
            even = sketch.compare("eq", sketch.binary("rem", n, 2), 0)
            odd = sketch.add(sketch.mul(n, 3), 1)
            loop.next = [sketch.choose(even, sketch.binary("div", n, 2), odd), sketch.add(steps, 1)]
        sketch.store(dst, thread, loop.results[1])

    if masked:
        with sketch.when(sketch.compare("gt", thread, 4)):
            write()
    else:
        write()
    sketch.run(2, 20)
    assert out.tolist() == [-1 if masked and t <= 4 else collatz(t + 1) for t in range(40)]


def test_uniform_while() -> None:
    out = np.zeros(1, np.int32)
    sketch = Sketch()
    dst = sketch.array("dst", out, int32)
    with sketch.repeat([sketch.scalar("n", 27, int32), sketch.value(0)]) as loop:
        with loop.test(sketch) as (n, _):
            sketch.do(Yield((sketch.compare("gt", n, 0),)))
        loop.next = [sketch.binary("div", loop.carried[0], 2), sketch.add(loop.carried[1], 1)]
    sketch.store(dst, 0, loop.results[1])
    sketch.run(1, 1)
    assert out.tolist() == [5]


def test_loop_index_may_be_narrow() -> None:
    out = np.zeros(4, np.uint8)
    sketch = Sketch()
    dst = sketch.array("dst", out, uint8)
    zero, one = sketch.value(0, uint8), sketch.value(1, uint8)
    stop = sketch.scalar("stop", 255, uint8)
    index = Value(uint8)
    carried = Value(uint8)
    body = Block(arguments=(index, carried))
    from tilewright.ir.ops import For

    (total,) = sketch.builder.emit(For(zero, stop, one, (zero,), body), uint8)
    with sketch.builder.inside(body):
        sketch.do(Yield((sketch.emit(Binary("add", carried, index), uint8),)))
    sketch.store(dst, sketch.thread(), total)
    sketch.run(1, 4)
    assert out.tolist() == [sum(range(255)) % 256] * 4
