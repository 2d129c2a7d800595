"""Time the simulator, unchecked and checked: `python -m benchmarks.simulate [--json]`.

First two kernels built by hand: a transpose of 2048 x 2048 float32 through shared memory, and a double-buffered matmul
of 512 x 512 x 256. The IR resembles what the front end makes of the kernels in examples/. Then the quick cases of all
examples, with how many times as long the checks make them.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.progress import Progress

from tilewright.backends.sim import Options, execute
from tilewright.demo import collect_cases, example_files
from tilewright.demo.examples import examples_folder
from tilewright.dtypes import bool_, float32, int32
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, Kernel, Parameter, Space, Value, VectorType
from tilewright.ir.ops import Allocate, Binary, Fma, For, Load, Special, Store, Yield, constant
from tilewright.profile import simulate


class Writer:
    """A few words to write IR with: int32 arithmetic, memory, loops."""

    def __init__(self) -> None:
        self.body = Block()
        self.builder = Builder(self.body)

    def integer(self, kind: str, a: Value | int, b: Value | int) -> Value:
        operands = [constant(x, int32) if isinstance(x, int) else x for x in (a, b)]
        return self.builder.pure(Binary(kind, *operands), int32)

    def sum(self, *terms: Value | int) -> Value:
        total, *rest = terms
        for term in rest:
            total = self.integer("add", total, term)
        return constant(total, int32) if isinstance(total, int) else total

    def mul(self, a: Value | int, b: Value | int) -> Value:
        return self.integer("mul", a, b)

    def special(self, name: str) -> Value:
        return self.builder.pure(Special(name), int32)

    def load(self, buffer: Buffer, index: Value, lanes: int = 1) -> Value:
        type = buffer.dtype if lanes == 1 else VectorType(buffer.dtype, lanes)
        return self.builder.emit(Load(buffer, index), type)[0]

    def store(self, buffer: Buffer, index: Value, value: Value) -> None:
        self.builder.emit(Store(buffer, index, value))

    @contextmanager
    def loop(self, stop: Value | int, start: int = 0) -> Iterator[Value]:
        bounds = [constant(x, int32) if isinstance(x, int) else x for x in (start, stop, 1)]
        index = Value(int32)
        body = Block(arguments=(index,))
        self.builder.emit(For(*bounds, (), body))
        with self.builder.inside(body):
            yield index
            self.builder.emit(Yield(()))


def pointer(name: str) -> Buffer:
    return Buffer(name, float32, Space.GLOBAL, None, 16)


def transpose(n: int) -> tuple[Kernel, tuple[int, int, int]]:
    """dst[j, i] = src[i, j] in tiles of 32 x 32 through a padded shared tile, 32 x 8 threads."""
    w = Writer()
    src, dst = pointer("src"), pointer("dst")
    tile = Buffer("tile", float32, Space.SHARED, 32 * 33, 16, offset=0)
    bx, by, tx, ty = (w.special(s) for s in ("block_idx.x", "block_idx.y", "thread_idx.x", "thread_idx.y"))
    w.builder.emit(Allocate(tile))
    source = w.sum(w.mul(by, 32 * n), w.mul(bx, 32))
    target = w.sum(w.mul(bx, 32 * n), w.mul(by, 32))
    with w.loop(4) as i:
        row = w.sum(ty, w.mul(i, 8))
        value = w.load(src, w.sum(source, w.sum(w.mul(row, n), tx)))
        w.store(tile, w.sum(w.mul(row, 33), tx), value)
    w.builder.emit(Barrier("block"))
    with w.loop(4) as i:
        row = w.sum(ty, w.mul(i, 8))
        value = w.load(tile, w.sum(w.mul(tx, 33), row))
        w.store(dst, w.sum(target, w.sum(w.mul(row, n), tx)), value)
    parameters = tuple(Parameter(b.name, "pointer", b) for b in (src, dst))
    return Kernel("transpose", parameters, w.body, (32, 8, 1), shared_bytes=tile.bytes), (n // 32, n // 32, 1)


PITCH, STAGE = 130, 1040  # the shared layout (128, 8, 2):(1, 130, 1040)


def matmul(m: int, n: int, k: int) -> tuple[Kernel, tuple[int, int, int]]:
    """C[m, n] = sum over k of A[m, k] B[n, k], all column-major; tile 128 x 128 x 8, 256 threads, two stages."""
    w = Writer()
    a, b, c = pointer("A"), pointer("B"), pointer("C")
    shared = [Buffer(x, float32, Space.SHARED, 2 * STAGE, 16, offset=o) for x, o in (("sA", 0), ("sB", 8 * STAGE))]
    acc = Buffer("acc", float32, Space.REGISTER, 64, 16)
    parts = [Buffer(x, float32, Space.REGISTER, 8, 16) for x in ("rA", "rB")]
    for buffer in (*shared, acc, *parts):
        w.builder.emit(Allocate(buffer))
    bx, by, tx, ty = (w.special(s) for s in ("block_idx.x", "block_idx.y", "thread_idx.x", "thread_idx.y"))
    origins = [w.mul(bx, 128), w.mul(by, 128)]
    thread = w.sum(tx, w.mul(ty, 32))
    own = [w.integer("rem", thread, 16), w.integer("div", thread, 16)]

    def fetch(step: Value, stage: Value) -> None:
        for buffer, source, origin, rows in zip(shared, (a, b), origins, (m, n), strict=True):
            with w.loop(2) as half:
                row = w.sum(w.mul(tx, 2), w.mul(half, 64))
                at = w.sum(row, w.mul(ty, PITCH), w.mul(stage, STAGE))
                start = w.sum(origin, w.sum(row, w.mul(ty, rows)), w.mul(step, 8 * rows))
                w.builder.emit(AsyncCopy(buffer, source, 2, "ca", at, start, constant(True, bool_)))
        w.builder.emit(AsyncCommit())

    with w.loop(64) as i:
        w.store(acc, i, constant(0.0, float32))
    fetch(constant(0, int32), constant(0, int32))
    with w.loop(k // 8) as step:
        w.builder.emit(AsyncWait(0))
        w.builder.emit(Barrier("block"))
        stage = w.integer("rem", step, 2)
        following = w.integer("rem", w.sum(step, 1), k // 8)
        fetch(following, w.integer("rem", w.sum(step, 1), 2))
        with w.loop(8) as kk:
            base = w.sum(w.mul(stage, STAGE), w.mul(kk, PITCH))
            with w.loop(8) as i:
                for part, tile, first in zip(parts, shared, own, strict=True):
                    w.store(part, i, w.load(tile, w.sum(base, w.sum(first, w.mul(i, 16)))))
            with w.loop(8) as j, w.loop(8) as i:
                at = w.sum(i, w.mul(j, 8))
                total = Fma(w.load(parts[0], i), w.load(parts[1], j), w.load(acc, at))
                w.store(acc, at, w.builder.pure(total, float32))
    with w.loop(8) as j, w.loop(8) as i:
        value = w.load(acc, w.sum(i, w.mul(j, 8)))
        row, column = (w.sum(o, f, w.mul(x, 16)) for o, f, x in zip(origins, own, (i, j), strict=True))
        w.store(c, w.sum(row, w.mul(column, m)), value)
    parameters = tuple(Parameter(x.name, "pointer", x) for x in (a, b, c))
    return Kernel("matmul", parameters, w.body, (32, 8, 1), shared_bytes=16 * STAGE), (m // 128, n // 128, 1)


@dataclass(frozen=True)
class Timing:
    """The seconds of the fastest of a few runs, without and with checks."""

    name: str
    unchecked: float
    checked: float

    @property
    def ratio(self) -> float:
        return self.checked / self.unchecked


def fastest(run: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def by_hand() -> Iterator[Timing]:
    random = np.random.default_rng(0)
    src = random.standard_normal((2048, 2048)).astype(np.float32)
    dst = np.zeros_like(src)
    yield measure("transpose 2048 x 2048", *transpose(2048), [src, dst])
    assert (dst == src.T).all()
    a = random.standard_normal((256, 512)).astype(np.float32)  # A.T: A is column-major
    b = random.standard_normal((256, 512)).astype(np.float32)
    c = np.zeros((512, 512), np.float32)
    yield measure("matmul 512 x 512 x 256", *matmul(512, 512, 256), [a, b, c])
    assert np.abs(c - (a.T.astype(np.float64) @ b).T).max() < 1e-3


def measure(name: str, kernel: Kernel, grid: tuple[int, int, int], arrays: list[np.ndarray]) -> Timing:
    arguments = dict(zip(kernel.parameters, arrays, strict=True))
    block = kernel.block
    assert block is not None
    unchecked, checked = (
        fastest(lambda check=check: execute(kernel, grid, block, arguments, options=Options(check=check)))
        for check in (False, True)
    )
    return Timing(name, unchecked, checked)


def of_examples() -> Iterator[Timing]:
    for case in collect_cases([*example_files(), *example_files(examples_folder() / "tensorcore")], "sim", quick=True):
        trial = case.prepare()
        trial.launch()  # traces
        seconds = []
        for check in (False, True):
            with simulate(check=check):
                seconds.append(fastest(trial.launch))
        yield Timing(case.name, *seconds)


def main() -> None:
    as_json = "--json" in sys.argv[1:]
    rows = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("simulating", total=None)
        for timing in (*by_hand(), *of_examples()):
            rows.append(timing)
            progress.advance(task)
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows[2:]))
    worst = max(row.ratio for row in rows[2:])
    if as_json:
        found = {"timings": [asdict(row) for row in rows], "geometric_mean": mean, "worst": worst}
        print(json.dumps(found, indent=2))
        return
    for row in rows:
        print(f"{row.name:45s} {row.unchecked:8.4f} s unchecked {row.checked:8.4f} s checked, {row.ratio:5.2f} times")
    print(f"examples: {mean:.2f} times in the geometric mean, {worst:.2f} times the worst")


if __name__ == "__main__":
    main()
