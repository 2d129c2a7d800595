"""Fragments as the registers of a warp's matrix instruction.

A fragment has the modes (V, rest...), V being what one thread passes to one instruction. Elements narrower than a
register travel in words of 32 bits: neighbours in the fragment are read as one vector, others are packed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.atoms import MMAAtom
from tilewright.atoms.mma import Registers
from tilewright.dtypes import DType, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Space, Value, VectorType
from tilewright.ir.ops import Bitcast, Extract, Pack
from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes
from tilewright.tensors import Tensor
from tilewright.trace.tracer import Tracer, current


class Words:
    """Elements of a register tensor that an instruction takes or gives in registers.

    `offsets` are the elements of one instruction, from wherever it starts; starts are multiples of `steps`.
    """

    def __init__(self, tensor: Tensor, registers: Registers, offsets: Sequence[int], steps: Sequence[Any]) -> None:
        self.tracer: Tracer = current("a matrix instruction")
        self.engine: Any = tensor.engine
        self.dtype: DType = tensor.dtype
        self.registers = registers
        lanes = registers.lanes
        self.groups: list[tuple[int, ...]] = [tuple(offsets[i : i + lanes]) for i in range(0, len(offsets), lanes)]
        self.are_vectors: bool = lanes > 1 and self._lie_in_vectors(steps)

    def _lie_in_vectors(self, steps: Sequence[Any]) -> bool:
        """Say whether each register's elements are neighbours, aligned to the register's size."""
        lanes = self.registers.lanes
        near = all(group == tuple(range(group[0], group[0] + lanes)) for group in self.groups)
        starts = [group[0] for group in self.groups] + [s if isinstance(s, int) else 1 for s in steps]
        aligned: bool = self.engine.alignment % (lanes * self.dtype.bytes) == 0
        return near and aligned and math.gcd(*starts) % lanes == 0

    def load(self, start: Any) -> tuple[Value, ...]:
        """Return the registers of the instruction whose elements start there."""
        return tuple(self._load(start, group) for group in self.groups)

    def store(self, start: Any, values: Sequence[Value]) -> None:
        """Write the registers that an instruction has given."""
        for group, value in zip(self.groups, values, strict=True):
            self._store(start, group, value)

    def _load(self, start: Any, group: tuple[int, ...]) -> Value:
        engine, dtype = self.engine, self.dtype
        if len(group) == 1:
            value: Value = engine.load_value(start + group[0], dtype)
            return value if dtype is self.registers.dtype else self.tracer.pure(Bitcast(value), self.registers.dtype)
        type = VectorType(dtype, len(group))
        if self.are_vectors:
            vector = engine.load_value(start + group[0], type)
        else:
            vector = self.tracer.pure(Pack(tuple(engine.load_value(start + o, dtype) for o in group)), type)
        return self.tracer.pure(Bitcast(vector), uint32)

    def _store(self, start: Any, group: tuple[int, ...], value: Value) -> None:
        engine, dtype = self.engine, self.dtype
        if len(group) == 1:
            exact = value if value.type is dtype else self.tracer.pure(Bitcast(value), dtype)
            engine.store_value(start + group[0], exact)
            return
        vector = self.tracer.pure(Bitcast(value), VectorType(dtype, len(group)))
        if self.are_vectors:
            engine.store_value(start + group[0], vector)
            return
        for lane, offset in enumerate(group):
            engine.store_value(start + offset, self.tracer.pure(Extract(vector, lane), dtype))


class Fragment:
    """A register tensor (V, rest...) that a matrix product takes or gives as `registers` of each thread."""

    def __init__(self, name: str, tensor: Tensor, registers: Registers, atom: MMAAtom) -> None:
        layout = tensor.layout
        values = registers.count * registers.lanes
        if not isinstance(layout, Layout) or not layout.is_static or tensor.engine.buffer.space is not Space.REGISTER:
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
        steps = [d for mode in range(1, layout.rank) for d in flat_modes(layout[mode])[1]]
        self.words: Words = Words(tensor, registers, [layout[0](v) for v in range(values)], steps)

    def load(self, *rest: Any) -> tuple[Value, ...]:
        """Return the registers at a coordinate of the rest modes."""
        return self.words.load(self.layout((0, *rest)))

    def store(self, rest: tuple[Any, ...], values: tuple[Value, ...]) -> None:
        """Write the registers at a coordinate of the rest modes."""
        self.words.store(self.layout((0, *rest)), values)
