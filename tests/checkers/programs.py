"""Programs of statements (see `happens_before`) as kernels in IR, a statement a line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.checkers.happens_before import Statement
from tests.unit.backends.sim_kernels import Sketch

from tilewright.backends.sim import Finding
from tilewright.dtypes import bool_, int32
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.core import Value
from tilewright.ir.ops import Atomic
from tilewright.profile import simulate

SIZE = 256  # elements of the tile and of the array

# What all statements may say, so that their kernels read tables of it: the index of each thread, and who takes part.
RACES = ("race", "missing-wait", "overlapping-writes")


def findings(program: Sequence[Statement], blocks: int, threads: int) -> list[Finding]:
    """Return what is found when a program runs."""
    sketch = Sketch()
    array = sketch.array("array", np.zeros(SIZE, np.int32), int32)
    tile = sketch.shared("tile", int32, SIZE)
    member = sketch.add(sketch.mul(sketch.special("block_idx.x"), threads), sketch.thread())

    def table(name: str, function: object) -> Value:
        """Return a value that a function gives for each block and thread, from an array that only it reads."""
        numbers = [int(function(b, t)) for b in range(blocks) for t in range(threads)]  # type: ignore[operator]
        return sketch.load(sketch.array(name, np.array(numbers, np.int32), int32), member)

    for line, statement in enumerate(program, 1):
        sketch.line = line
        everybody = all(statement.when(b, t) for b in range(blocks) for t in range(threads))
        condition = sketch.value(True, bool_) if everybody else sketch.compare("ne", table("when", statement.when), 0)
        index, source = table("index", statement.index), table("source", statement.source)
        with sketch.when(condition):
            _emit(sketch, statement, tile if statement.memory == "tile" else array, index, array, source)
    with simulate(raise_errors=False) as run:
        sketch.run_inside(blocks, threads)
    return run.findings


def _emit(sketch: Sketch, statement: Statement, memory: object, index: Value, array: object, source: Value) -> None:
    kind = statement.kind
    if kind == "load":
        sketch.load(memory, index)  # type: ignore[arg-type]
    elif kind == "store":
        sketch.store(memory, index, 1)  # type: ignore[arg-type]
    elif kind == "atomic":
        sketch.emit(Atomic("add", memory, index, sketch.value(1)), int32)  # type: ignore[arg-type]
    elif kind == "copy":
        sketch.do(AsyncCopy(memory, array, 1, "ca", index, source, sketch.value(True, bool_)))  # type: ignore[arg-type]
    elif kind == "commit":
        sketch.do(AsyncCommit())
    elif kind == "wait":
        sketch.do(AsyncWait(statement.pending))
    else:
        sketch.do(Barrier("block" if kind == "sync_threads" else "warp"))
