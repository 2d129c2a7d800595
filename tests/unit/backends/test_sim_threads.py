"""Threads together: shuffles, votes, atomics, printing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.backends.sim_kernels import Sketch

from tilewright.dtypes import DType, bool_, float16, float32, int32, int64, uint32
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.shuffle import Shuffle
from tilewright.instructions.vote import Vote
from tilewright.ir.core import Value
from tilewright.ir.ops import Atomic, Cast, Print
from tilewright.profile import simulate


def shuffled(kind: str, amount: object, width: int = 32, threads: int = 32, keep: int | None = None) -> list[int]:
    """Return what each thread reads of `100 + thread` (block 1 adds 1000)."""
    out = np.full((2, threads), -1, np.int32)
    sketch = Sketch()
    dst, thread = sketch.array("dst", out, int32), sketch.thread()
    value = sketch.add(thread, sketch.add(sketch.mul(sketch.special("block_idx.x"), 1000), 100))
    lane = amount(sketch, thread) if callable(amount) else amount

    def write() -> None:
        result = sketch.emit(Shuffle(kind, value, sketch.value(lane), width), int32)
        sketch.store(dst, sketch.global_thread(), result)

    if keep is None:
        write()
    else:
        with sketch.when(sketch.compare("lt", thread, keep)):
            write()
    with simulate(check=keep is None):  # a shuffle of part of a warp is a finding
        sketch.run_inside(2, threads)
    assert [x + 1000 if x >= 0 else x for x in out[0]] == out[1].tolist()
    return [x - 100 if x >= 0 else x for x in out[0].tolist()]


@pytest.mark.parametrize("width", [32, 16, 8, 2])
@pytest.mark.parametrize("amount", [0, 1, 5, 16, 31])
def test_shuffles_follow_ptx(width: int, amount: int) -> None:
    lanes = range(32)
    group = [lane - lane % width for lane in lanes]
    assert shuffled("up", amount, width) == [n - amount if n - amount >= group[n] else n for n in lanes]
    assert shuffled("down", amount, width) == [n + amount if n + amount < group[n] + width else n for n in lanes]
    assert shuffled("xor", amount, width) == [n ^ amount if n ^ amount < group[n] + width else n for n in lanes]
    assert shuffled("idx", amount, width) == [group[n] + amount % width for n in lanes]


def test_shuffles_with_a_lane_that_differs_by_thread() -> None:
    assert shuffled("idx", lambda s, t: s.binary("sub", 31, t)) == list(range(31, -1, -1))
    by_block = shuffled("idx", lambda s, t: s.add(t, s.mul(s.special("block_idx.x"), 32)))
    assert by_block == list(range(32))


def test_shuffles_count_lanes_modulo_32_and_stay_in_the_warp() -> None:
    assert shuffled("idx", 33, threads=64) == [1] * 32 + [33] * 32
    assert shuffled("down", 1, threads=64)[30:33] == [31, 31, 33]


def test_a_lane_that_is_not_there_or_inactive_gives_the_own_value() -> None:
    assert shuffled("down", 4, threads=10) == [4, 5, 6, 7, 8, 9, 6, 7, 8, 9]
    assert shuffled("down", 1, keep=4) == [1, 2, 3, 3] + [-1] * 28
    assert shuffled("idx", 20, keep=21)[:3] == [20] * 3


@pytest.mark.parametrize(("below", "here"), [(40, None), (32, None), (39, 7), (33, 1), (31, 31)])
def test_a_shuffle_or_vote_of_part_of_a_warp_is_found(below: int, here: int | None) -> None:
    """A block of 40 threads: the last warp is whole with 8."""
    out = np.zeros(40, np.uint32)
    sketch = Sketch()
    dst, thread = sketch.array("dst", out, uint32), sketch.thread()
    with sketch.when(sketch.compare("lt", thread, below)):
        sketch.emit(Shuffle("xor", thread, sketch.value(1), 32), int32)
        sketch.store(dst, thread, sketch.emit(Vote("ballot", sketch.compare("lt", thread, 5)), uint32))
    with simulate(raise_errors=False) as run:
        sketch.run_inside(1, 40)
    found = [f.message.splitlines()[0] for f in run.findings]
    size = 32 if below < 32 else 8
    says = [f"{what} of the warp is reached by {here} of its {size} threads" for what in ("a shuffle", "a vote")]
    assert found == ([] if here is None else says)
    assert {f.kind for f in run.findings} <= {"warp-divergence"}


@pytest.mark.parametrize("masked", [False, True])
def test_votes(masked: bool) -> None:
    threads = 40
    found = {}
    for kind in ("any", "all", "ballot"):
        sketch = Sketch()
        dtype = uint32 if kind == "ballot" else bool_
        out = np.zeros((2, threads), np.uint32)
        dst, thread = sketch.array("dst", out, uint32), sketch.thread()
        bound = sketch.add(sketch.mul(sketch.special("block_idx.x"), 35), 3)
        predicate = sketch.compare("lt", thread, bound)  # block 0: threads 0..2, block 1: threads 0..37

        def write(
            sketch: Sketch = sketch, kind: str = kind, predicate: Value = predicate, dtype: DType = dtype, dst=dst
        ) -> None:
            result = sketch.emit(Vote(kind, predicate), dtype)
            sketch.store(dst, sketch.global_thread(), sketch.emit(Cast(result), uint32))

        if masked:
            with sketch.when(sketch.compare("ne", thread, 39)):
                write()
        else:
            write()
        with simulate(check=not masked):
            sketch.run_inside(2, threads)
        found[kind] = out[:, :39].tolist()
    full = 2**32 - 1
    assert found["ballot"] == [[7] * 32 + [0] * 7, [full] * 32 + [0b111111] * 7]
    assert found["any"] == [[1] * 32 + [0] * 7, [1] * 39]
    assert found["all"] == [[0] * 39, [1] * 32 + [0] * 7]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("kind", ["add", "min", "max"])
@pytest.mark.parametrize("dtype", [int32, uint32, int64, float32, float16], ids=str)
@pytest.mark.parametrize("addresses", [1, 3, 64])
@pytest.mark.spread(6)
def test_atomics_in_order(addresses: int, dtype: DType, kind: str, wanted: bool, check: bool) -> None:
    threads, blocks = 48, 3
    values = np.random.default_rng(1).integers(0, 1000, blocks * threads).astype(dtype.numpy)
    memory = np.full(addresses, 500, dtype.numpy)
    out = np.zeros(blocks * threads, dtype.numpy)
    sketch = Sketch()
    target, source = sketch.array("target", memory, dtype), sketch.array("source", values, dtype)
    dst, thread = sketch.array("dst", out, dtype), sketch.global_thread()
    active = sketch.compare("ne", sketch.binary("rem", thread, 5), 2)
    expected, old = memory.copy(), np.zeros_like(out)
    with sketch.when(active):
        index = sketch.binary("rem", sketch.mul(thread, 7), addresses)
        before = sketch.emit(Atomic(kind, target, index, sketch.load(source, thread)), dtype)
        if wanted:
            sketch.store(dst, thread, before)
    sketch.run(blocks, threads, check=check)
    for n in range(blocks * threads):
        if n % 5 != 2:
            at = n * 7 % addresses
            old[n] = expected[at]
            expected[at] = {"add": np.add, "min": np.minimum, "max": np.maximum}[kind](expected[at], values[n])
    np.testing.assert_array_equal(memory, expected)
    if wanted:
        np.testing.assert_array_equal(out, old)


def test_atomics_in_shared_memory_are_one_for_each_block() -> None:
    out = np.zeros(3, np.int32)
    sketch = Sketch()
    dst, count = sketch.array("dst", out, int32), sketch.shared("count", int32, 1)
    first = sketch.compare("eq", sketch.thread(), 0)
    with sketch.when(first):
        sketch.store(count, 0, 0)
    sketch.do(Barrier("block"))
    sketch.emit(Atomic("add", count, sketch.value(0), sketch.special("block_idx.x")), int32)
    sketch.do(Barrier("block"))
    with sketch.when(first):
        sketch.store(dst, sketch.special("block_idx.x"), sketch.load(count, 0))
    sketch.run(3, 64)
    assert out.tolist() == [0, 64, 128]


def printed(write: Callable[[Sketch], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    sketch = Sketch()
    write(sketch)
    sketch.run(2, 3)
    return capsys.readouterr().out.splitlines()


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    def write(sketch: Sketch) -> None:
        thread = sketch.thread()
        half = sketch.value(0.5, float32)
        with sketch.when(sketch.compare("ne", thread, 1)):
            flag = sketch.compare("gt", thread, 0)
            block = sketch.special("block_idx.x")
            sketch.do(Print(("block ", " thread ", " is 100% ", " ", ""), (block, thread, half, flag)))
        sketch.do(Print(("end",), ()))

    lines = printed(write, capsys)
    assert lines == [
        "block 0 thread 0 is 100% 0.5 False",
        "block 0 thread 2 is 100% 0.5 True",
        "block 1 thread 0 is 100% 0.5 False",
        "block 1 thread 2 is 100% 0.5 True",
        *["end"] * 6,
    ]


def test_floats_print_as_in_c(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [0.1, 1e10, float("nan"), float("-inf"), 100000.0, 1234567.0]

    def write(sketch: Sketch) -> None:
        with sketch.when(sketch.compare("eq", sketch.global_thread(), 0)):
            for x in numbers:
                sketch.do(Print(("", ""), (sketch.value(x, float32),)))

    assert printed(write, capsys) == ["0.1", "1e+10", "nan", "-inf", "100000", "1.23457e+06"]
