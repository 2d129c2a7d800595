"""Fragments as the registers of a warp's matrix instruction.

A fragment has the modes (V, rest...), V being what one thread passes to one instruction. Elements narrower than a
register travel in words of 32 bits: neighbours in the fragment are read as one vector, others are packed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.atoms import MMAAtom
from tilewright.atoms.mma import Registers
from tilewright.dtypes import uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Space, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Bitcast, Extract, For, Mma, Pack, Select, Yield, constant
from tilewright.lang.scalar import Scalar, as_scalar
from tilewright.lang.tracer import Tracer, current
from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes
from tilewright.tensors import Tensor


class Fragment:
    """A register tensor (V, rest...) that an instruction reads or writes as `registers` of each thread."""

    def __init__(self, name: str, tensor: Tensor, registers: Registers, atom: object) -> None:
        self.tracer = current("a matrix instruction")
        self.tensor, self.registers = tensor, registers
        layout, engine = tensor.layout, tensor.engine
        values = registers.count * registers.lanes
        if not isinstance(layout, Layout) or not layout.is_static or engine.buffer.space is not Space.REGISTER:
            raise LanguageError(
                f"{name} of {atom} lives in registers, with a static layout, not in {tensor.title}",
                help="copy it into a fragment first: mma.get_slice(thread).partition_fragment_A(...), or _B, or _C",
            )
        if layout[0].size != values:
            raise LanguageError(
                f"{name} of {atom} has {values} values a thread, and the fragment's first mode has {layout[0].size}",
                details=[f"{name}: {tensor.title}"],
                help="partition the tensor by a tiled mma of this atom, or retile the fragment of a tiled copy",
            )
        self.layout = layout
        self.offsets = [layout[0](v) for v in range(values)]
        self.are_vectors = registers.lanes > 1 and self._lie_in_vectors()

    def _lie_in_vectors(self) -> bool:
        """Say whether each register's elements are neighbours, aligned to the register's size."""
        lanes, engine = self.registers.lanes, self.tensor.engine
        starts = self.offsets[::lanes]
        near = all(o == starts[i // lanes] + i % lanes for i, o in enumerate(self.offsets))
        others = [d for n in range(1, self.layout.rank) for d in flat_modes(self.layout[n])[1]]
        whole = math.gcd(*starts, *others) % lanes == 0  # type: ignore[arg-type]  # static
        return near and whole and engine.alignment % (lanes * self.tensor.dtype.bytes) == 0

    def load(self, *rest: Any) -> tuple[Value, ...]:
        """Return the registers at a coordinate of the rest modes."""
        start = self._start(rest)
        lanes = self.registers.lanes
        return tuple(self._load(start, self.offsets[i : i + lanes]) for i in range(0, len(self.offsets), lanes))

    def store(self, rest: tuple[Any, ...], values: tuple[Value, ...]) -> None:
        """Write the registers at a coordinate of the rest modes."""
        start, lanes = self._start(rest), self.registers.lanes
        for number, value in enumerate(values):
            self._store(start, self.offsets[number * lanes : (number + 1) * lanes], value)

    def _start(self, rest: tuple[Any, ...]) -> Any:
        return self.layout((0, *rest)) if rest else 0

    def _load(self, start: Any, offsets: list[int]) -> Value:
        engine, dtype = self.tensor.engine, self.tensor.dtype
        if len(offsets) == 1:
            value = engine.load_value(start + offsets[0], dtype)
            return value if dtype is self.registers.dtype else self.tracer.pure(Bitcast(value), self.registers.dtype)
        type = VectorType(dtype, len(offsets))
        if self.are_vectors:
            vector = engine.load_value(start + offsets[0], type)
        else:
            vector = self.tracer.pure(Pack(tuple(engine.load_value(start + o, dtype) for o in offsets)), type)
        return self.tracer.pure(Bitcast(vector), uint32)

    def _store(self, start: Any, offsets: list[int], value: Value) -> None:
        engine, dtype = self.tensor.engine, self.tensor.dtype
        if len(offsets) == 1:
            exact = value if value.type is dtype else self.tracer.pure(Bitcast(value), dtype)
            engine.store_value(start + offsets[0], exact)
            return
        vector = self.tracer.pure(Bitcast(value), VectorType(dtype, len(offsets)))
        if self.are_vectors:
            engine.store_value(start + offsets[0], vector)
            return
        for lane, offset in enumerate(offsets):
            engine.store_value(start + offset, self.tracer.pure(Extract(vector, lane), dtype))


def multiply(atom: MMAAtom, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    """Emit loops over K, M and N of register fragments, with one instruction inside.

    N goes forth and back from one m to the next (serpentine), so that each instruction shares an operand with the one
    before it.
    """
    tracer = current("tw.gemm")
    fragments = (
        Fragment("A", a, atom.registers_a, atom),
        Fragment("B", b, atom.registers_b, atom),
        Fragment("C", c, atom.registers_c, atom),
        Fragment("D", d, atom.registers_d, atom),
    )
    extents = [int(x) for x in (a.layout[2].size, a.layout[1].size, b.layout[1].size)]
    result_types = (atom.registers_d.dtype,) * atom.registers_d.count

    def instruction(k: Any, m: Any, step: Any) -> None:
        fragment_a, fragment_b, fragment_c, fragment_d = fragments
        n = _back_and_forth(tracer, m, step, extents[2])
        op = Mma(atom, fragment_a.load(m, k), fragment_b.load(n, k), fragment_c.load(m, n))
        fragment_d.store((m, n), tracer.emit(op, *result_types))

    unrolled(
        tracer, extents[0], "k",
        lambda k: unrolled(
            tracer, extents[1], "m", lambda m: unrolled(tracer, extents[2], "n", lambda n: instruction(k, m, n))
        ),
    )  # fmt: skip


def _back_and_forth(tracer: Tracer, m: Any, n: Any, extent: int) -> Any:
    """Return n for an even m, and extent - 1 - n for an odd one."""
    if not isinstance(m, Scalar) or not isinstance(n, Scalar):
        return n
    return Scalar(tracer.pure(Select((m % 2 == 0).value, n.value, (extent - 1 - n).value), n.dtype))


def unrolled(tracer: Tracer, extent: int, name: str, step: Callable[[Any], None]) -> None:
    """Emit a loop that the compiler unrolls fully, and call `step` with its index; for one round there is no loop."""
    if extent == 1:
        step(0)
        return
    stop = as_scalar(extent)
    index = Value(stop.dtype, name, Facts(0, extent - 1, 1))
    body = Block(arguments=(index,))
    with tracer.inside(body):
        step(Scalar(index))
        tracer.emit(Yield(()))
    tracer.emit(For(constant(0, index.dtype), stop.value, constant(1, index.dtype), (), body, 0))
