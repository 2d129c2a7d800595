"""Copies of matrices by a warp: `tw.copy(tiled_copy, src, dst)` with an atom of ldmatrix, stmatrix or movmatrix.

The tensors are partitions of a tiled copy: their first mode is (values of the atom, rest), and the rest of it and the
other modes are walked together. In shared memory the values of the atom are one row of 16 bytes.
"""

from __future__ import annotations

from typing import Any

from tilewright.arch import Arch
from tilewright.atoms import CopyAtom
from tilewright.atoms.mma import Registers
from tilewright.dtypes import uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Space
from tilewright.ir.ops import LoadMatrix, StoreMatrix, TransposeMatrix
from tilewright.lang.access import common_walk, each_step, place, vector_limit
from tilewright.lang.matrix import Words
from tilewright.lang.targets import demand_whole_warps
from tilewright.lang.tracer import Tracer
from tilewright.layout import ComposedLayout, Layout, coalesce, make_layout
from tilewright.layout.layouts import flat_modes
from tilewright.layout.lift import inside
from tilewright.tensors import Tensor

_WORD = 32
_ROW_BYTES = 16

_SPACES = {
    "ldmatrix": (Space.SHARED, Space.REGISTER),
    "stmatrix": (Space.REGISTER, Space.SHARED),
    "movmatrix": (Space.REGISTER, Space.REGISTER),
}


class MatrixCopy:
    """One copy of matrices being lowered."""

    def __init__(self, tracer: Tracer, atom: CopyAtom, src: Tensor, dst: Tensor) -> None:
        self.tracer, self.atom, self.src, self.dst = tracer, atom, src, dst
        self._demand_target()
        demand_whole_warps(tracer, atom.name)
        dtype = src.dtype
        if dtype.bits > _WORD or (dtype.bits != 16 and (atom.transposed or atom.kind == "movmatrix")):
            raise self._refusal(f"moves elements of 16 bits{'' if atom.transposed else ' or 8 or 32'}, not {dtype}")
        counts = [tv[1].size for tv in (atom.src_tv(dtype), atom.dst_tv(dtype))]
        self.parts = [self._split(t, n) for t, n in zip((src, dst), counts, strict=True)]
        self.walk = common_walk([rest for _, rest in self.parts], "tw.copy")
        self.memory = {"ldmatrix": 0, "stmatrix": 1}.get(atom.kind)
        if self.memory is not None:
            self._demand_rows(self.memory)

    def _refusal(self, what: str, *more: str, help: str | None = None) -> LanguageError:
        return LanguageError(
            f"tw.copy: {self.atom.name} {what}",
            details=[f"from {self.src.title}", f"to {self.dst.title}", *more],
            help=help,
        )

    def _demand_target(self) -> None:
        arch, spaces = self.tracer.arch, tuple(t.engine.buffer.space for t in (self.src, self.dst))
        if arch.number < Arch.parse(self.atom.arch).number:
            raise self._refusal(
                f"needs {self.atom.arch} or later, and the target is {arch.name}",
                help="copy by ordinary accesses: tw.make_tiled_copy_A(tw.atoms.UniversalCopy(...), mma), or _B, or _C",
            )
        wanted = _SPACES[self.atom.kind]
        if spaces != wanted:
            raise self._refusal(f"copies from {wanted[0].value} to {wanted[1].value} memory")

    def _split(self, tensor: Tensor, count: Any) -> tuple[Layout, Tensor]:
        """Return the layout of one atom's values, and the tensor of the atoms' starts."""
        inner: Any = tensor.layout
        while isinstance(inner, ComposedLayout):
            inner = inner.inner
        first = inner[0]
        if isinstance(first.shape, tuple) and first.rank == 2 and first[0].size == count:
            return first[0], tensor.map_layout(inside(lambda layout: make_layout(layout[0][1], *_modes(layout)[1:])))
        if first.size == count:
            return first, tensor.map_layout(inside(lambda layout: make_layout(Layout(1, 0), *_modes(layout)[1:])))
        raise self._refusal(
            f"has {count} values a thread there, and the first mode of {tensor.layout} is not a pair (values, rest)",
            help="partition with make_tiled_copy_A(atom, mma).get_slice(thread), and retile_D the mma's fragment",
        )

    def _demand_rows(self, side: int) -> None:
        """Refuse shared memory in which the rows of matrices are not 16 adjacent, aligned bytes."""
        values, rest = self.parts[side]
        dtype = self.src.dtype
        wanted = _ROW_BYTES // dtype.bytes
        row = coalesce(values)
        strides = self.walk.strides[side]
        adjacent = flat_modes(row) == ([wanted], [1])
        limit = vector_limit(rest, strides) if not any(type(d) is int and d == 1 for d in strides) else 1
        if adjacent and limit % wanted == 0:
            return
        found = f"lie at {values}" if not adjacent else f"are aligned to {limit * dtype.bytes} bytes only"
        raise self._refusal(
            f"takes rows of 16 adjacent bytes, aligned to 16: {wanted} {dtype}",
            f"the {wanted} values of a row {found}",
            help=f"make the mode along the rows contiguous, with other strides (and swizzles) that are multiples of "
            f"{wanted}, or use the {'plain' if self.atom.transposed else 'transposing'} atom",
        )

    def emit(self) -> None:
        """Emit loops over the matrices with one instruction inside."""
        each_step(self.walk, self._step)

    def _words(self, side: int) -> Words:
        values, rest = self.parts[side]
        lanes = _WORD // self.src.dtype.bits
        size = values.size
        assert isinstance(size, int), values
        offsets = [values(v) for v in range(size)]
        return Words(rest, Registers(uint32, size // lanes, lanes), offsets, self.walk.strides[side])

    def _step(self, steps: tuple[Any, ...]) -> None:
        """Move the matrices of one instruction."""
        tracer, transposed = self.tracer, self.atom.transposed
        starts = [place(rest, s) for (_, rest), s in zip(self.parts, steps, strict=True)]
        if self.atom.kind == "ldmatrix":
            words, engine = self._words(1), self.src.engine
            engine.demand_guards()
            load = LoadMatrix(engine.buffer, transposed, engine.index(starts[0]))
            words.store(starts[1], tracer.emit(load, *(uint32,) * words.registers.count))
        elif self.atom.kind == "stmatrix":
            words, engine = self._words(0), self.dst.engine
            engine.demand_guards()
            values = words.load(starts[0])
            tracer.emit(StoreMatrix(engine.buffer, transposed, engine.index(starts[1]), values))
        else:
            turned = [tracer.emit(TransposeMatrix(v), uint32)[0] for v in self._words(0).load(starts[0])]
            self._words(1).store(starts[1], turned)


def _modes(layout: Layout) -> tuple[Layout, ...]:
    return tuple(layout[n] for n in range(layout.rank))
