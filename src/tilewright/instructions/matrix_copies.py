"""ldmatrix, stmatrix and movmatrix: copies of 8 x 8 matrices by a warp, under CuTe's names.

A matrix has 8 rows of 16 bytes. In shared memory a row lies together, at an address that one lane gives: lane 8 * i + r
for row r of matrix i. In registers lane l holds 4 bytes of each matrix: the elements 2 * (l % 4) and the next of row
l / 4 for 16-bit elements, or of column l / 4 where the instruction transposes.

A name says how many 32-bit registers (`U32x4`) or 16-bit elements (`U16x8`) a lane has, and whether matrices are
transposed (`_T`) or not (`_N`). The layouts map (lane, bit) to a bit of the matrices, which lie one after the other.

Source: PTX ISA, "ldmatrix", "stmatrix", "movmatrix"; CUTLASS, include/cute/atom/copy_traits_sm75.hpp and _sm90.hpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arch import Arch
from tilewright.atoms.copy import CopyAtom
from tilewright.atoms.mma import Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import bind_results, declare_results, print_call
from tilewright.backends.sim.machine import Access, AccessKind, demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, at_least_2d, both, by_lanes, by_threads, fill, without
from tilewright.dtypes import uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.effects import Effects, Scope, attribute, operand, operands, reads, writes
from tilewright.ir.instruction import Instruction
from tilewright.layout import ComposedLayout, Layout, coalesce, make_layout
from tilewright.layout.layouts import flat_modes, inside
from tilewright.tensors import Tensor
from tilewright.trace.fragments import Words
from tilewright.trace.tracer import Tracer, current, refuse_partial_warps
from tilewright.trace.walks import Walk, common_walk, each_step, place, vector_limit

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_ROW_BYTES = 16  # of a matrix of 8 x 8 elements of 16 bits
_ROWS = 8
_WHAT = "a matrix instruction"
_PLAIN = "copy with tw.copy(src, dst), which loads and stores vectors"


# --- the atoms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixCopyAtom(CopyAtom):
    """A copy of matrices as an atom. `memory` is the side in shared memory: 0 the source, 1 the destination."""

    transposed: bool = False

    spaces: ClassVar[tuple[Space, Space]] = (Space.REGISTER, Space.REGISTER)
    memory: ClassVar[int | None] = None

    def copy_together(self, src: Tensor, dst: Tensor) -> None:
        """Emit loops over partitions of a tiled copy with one instruction inside."""
        MatrixCopy(current("tw.copy"), self, src, dst).emit()

    def move_matrices(self, copy: MatrixCopy, starts: list[Any]) -> None:  # Any: offsets of host or device
        """Emit one instruction, from and to the elements at `starts`."""
        raise NotImplementedError


class LoadMatrixAtom(MatrixCopyAtom):
    """ldmatrix as a copy atom."""

    spaces: ClassVar[tuple[Space, Space]] = (Space.SHARED, Space.REGISTER)
    memory: ClassVar[int | None] = 0

    def move_matrices(self, copy: MatrixCopy, starts: list[Any]) -> None:
        words, engine = copy.words(1), copy.src.engine
        engine.demand_guards()
        load = LoadMatrix(engine.buffer, self.transposed, engine.index(starts[0]))
        words.store(starts[1], copy.tracer.emit(load, *(uint32,) * words.registers.count))


class StoreMatrixAtom(MatrixCopyAtom):
    """stmatrix as a copy atom."""

    spaces: ClassVar[tuple[Space, Space]] = (Space.REGISTER, Space.SHARED)
    memory: ClassVar[int | None] = 1

    def move_matrices(self, copy: MatrixCopy, starts: list[Any]) -> None:
        words, engine = copy.words(0), copy.dst.engine
        engine.demand_guards()
        values = words.load(starts[0])
        copy.tracer.emit(StoreMatrix(engine.buffer, self.transposed, engine.index(starts[1]), values))


class TransposeMatrixAtom(MatrixCopyAtom):
    """movmatrix as a copy atom."""

    def move_matrices(self, copy: MatrixCopy, starts: list[Any]) -> None:
        turned = [copy.tracer.emit(TransposeMatrix(v), uint32)[0] for v in copy.words(0).load(starts[0])]
        copy.words(1).store(starts[1], turned)


_ROW = 128  # bits
_MATRIX = 8 * _ROW
_WORD = 32
_LANES = 32

NAMES = (
    *(f"SM75_U32x{n}_LDSM_N" for n in (1, 2, 4)),
    *(f"SM75_U16x{n}_LDSM_T" for n in (2, 4, 8)),
    "SM75_U32x1_MOVM_T",
    *(f"SM90_U32x{n}_STSM_N" for n in (1, 2, 4)),
    *(f"SM90_U16x{n}_STSM_T" for n in (2, 4, 8)),
)

_NAME = re.compile(r"SM(\d+)_U(\d+)x(\d+)_(LDSM|STSM|MOVM)_([NT])")


@cache
def matrix_copy(name: str) -> MatrixCopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> from tilewright.dtypes import float16
    >>> atom = matrix_copy("SM75_U32x4_LDSM_N")
    >>> print(atom.src_tv(float16), atom.dst_tv(float16))
    (32,8):(8,1) (32,(2,4)):(2,(1,64))
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    arch, instruction, transposed = f"sm_{match[1]}", match[4], match[5] == "T"
    count = int(match[2]) * int(match[3]) // _WORD
    registers = _registers(count, transposed=transposed)
    if instruction == "MOVM":
        plain = _registers(1, transposed=False)
        return TransposeMatrixAtom(name, arch, _WORD, Layout(_LANES), plain, registers, layout_ref=plain)
    kind: type[MatrixCopyAtom] = LoadMatrixAtom if instruction == "LDSM" else StoreMatrixAtom
    sides = (_rows(count), registers) if kind is LoadMatrixAtom else (registers, _rows(count))
    return kind(name, arch, _ROW, Layout(_LANES), *sides, layout_ref=registers, transposed=transposed)


def _rows(count: int) -> Layout:
    """Return (lane, bit) -> bit as addresses are given: lanes beyond the rows repeat them, and are not used."""
    lanes, repeats = 8 * count, _LANES // (8 * count)
    if repeats == 1:
        return Layout((lanes, _ROW), (_ROW, 1))
    return Layout(((lanes, repeats), _ROW), ((_ROW, 0), 1))


def _registers(count: int, *, transposed: bool) -> Layout:
    """Return (lane, bit) -> bit as registers hold the matrices."""
    several: list[Any] = [(count, _MATRIX)] if count > 1 else []
    if not transposed:
        return _layout(_LANES, _WORD, [(_WORD, 1), *several])
    # Two elements of 16 bits, of neighbouring rows.
    return _layout((4, 8), (2 * _ROW, 16), [(16, 1), (2, _ROW), *several])


def _layout(lanes: Any, steps: Any, values: list[tuple[int, int]]) -> Layout:
    if len(values) == 1:
        return Layout((lanes, values[0][0]), (steps, values[0][1]))
    return Layout((lanes, tuple(v for v, _ in values)), (steps, tuple(d for _, d in values)))


# --- how a kernel copies matrices ------------------------------------------------------------------------


class MatrixCopy:
    """One copy of matrices being lowered."""

    def __init__(self, tracer: Tracer, atom: MatrixCopyAtom, src: Tensor, dst: Tensor) -> None:
        self.tracer = tracer
        self.atom = atom
        self.src = src
        self.dst = dst
        self._demand_target()
        refuse_partial_warps(tracer, atom.name)
        dtype = src.dtype
        if dtype.bits > _WORD or (dtype.bits != 16 and (atom.transposed or atom.memory is None)):
            raise self._refusal(f"moves elements of 16 bits{'' if atom.transposed else ' or 8 or 32'}, not {dtype}")
        counts = [tv[1].size for tv in (atom.src_tv(dtype), atom.dst_tv(dtype))]
        self.parts: list[tuple[Layout, Tensor]] = [self._split(t, n) for t, n in zip((src, dst), counts, strict=True)]
        self.walk: Walk = common_walk([rest for _, rest in self.parts], "tw.copy")
        if atom.memory is not None:
            self._demand_rows(atom.memory)

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
        wanted = self.atom.spaces
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

    def words(self, side: int) -> Words:
        values, rest = self.parts[side]
        lanes = _WORD // self.src.dtype.bits
        size = values.size
        assert isinstance(size, int), values
        offsets = [values(v) for v in range(size)]
        return Words(rest, Registers(uint32, size // lanes, lanes), offsets, self.walk.strides[side])

    def _step(self, steps: tuple[Any, ...]) -> None:
        """Move the matrices of one instruction."""
        starts = [place(rest, s) for (_, rest), s in zip(self.parts, steps, strict=True)]
        self.atom.move_matrices(self, starts)


def _modes(layout: Layout) -> tuple[Layout, ...]:
    return tuple(layout[n] for n in range(layout.rank))


# --- the ops ---------------------------------------------------------------------------------------------


def _row(op: LoadMatrix | StoreMatrix) -> int:
    return _ROW_BYTES // op.buffer.dtype.bytes


@dataclass(eq=False)
class LoadMatrix(Instruction):
    """results = one uint32 a matrix: 8 x 8 matrices of 16-bit elements from shared memory (ldmatrix).

    Row r of matrix i is the 16 bytes at buffer[index] of lane 8 * i + r, aligned to 16. Lane l gets elements
    2 * (l % 4) and the next of row l / 4, or of column l / 4 where `transposed`. All threads of the warp take part.
    """

    buffer: Buffer = reads("index", _row, lanes=lambda op: _ROWS * len(op.results), rows=True)
    transposed: bool = attribute()
    index: Value = operand()

    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP)
    COUNTED: ClassVar[str | None] = "ldmatrix"
    RESERVED: ClassVar[str] = r"ldmatrix_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("ldmatrix", _PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.results, expect)

    def simulate(self, compiler: Compiler) -> Step:
        """Read matrices, 16 bytes a row, and hand every lane its two elements of each."""
        machine, storage = compiler.machine, compiler.machine.storages[self.buffer]
        index, results, count = compiler.slot(self.index), compiler.slots(self.results), len(self.results)
        elements, threads = _ROW_BYTES // self.buffer.dtype.bytes, machine.threads
        rows_of = machine.leading_lanes(count * _ROWS)

        def run(frame: Frame) -> None:
            values = frame.values
            demand_whole_warps(self, _WHAT, frame.mask, machine, full=True)
            at = fill(values[index], at_least_2d(values[index]).shape[0], threads)
            mask = both(frame.mask, rows_of)
            refused = machine.observe(Access(self, AccessKind.LOAD, storage, at, elements, mask))
            allowed = mask if refused is None else without(mask, refused)
            try:
                found = np.asarray(storage.load(at, elements, allowed))
            except IndexError as error:
                raise machine.outside(self, self.buffer, error) from None
            found = fill(found, found.shape[0], threads)
            lines = by_lanes(np.ascontiguousarray(found).view(np.uint16), _LANES)[:, :, : count * _ROWS]
            registers = _to_registers(lines.reshape(*lines.shape[:2], count, _ROWS, _ROWS), self.transposed)
            for number, result in enumerate(results):
                values[result] = by_threads(registers[:, :, number], threads)

        return run

    def cuda(self, printer: Printer) -> None:
        _demand(printer, self, "sm_75", "ldmatrix")
        name, definition = _matrix_function("ldmatrix", len(self.results), transposed=self.transposed)
        printer.prelude.need(definition)
        results = declare_results(printer, self, "matrix")
        print_call(printer, self, name, [results, [address(printer, self.buffer, self.index).text]])
        bind_results(printer, self, results)


@dataclass(eq=False)
class StoreMatrix(Instruction):
    """Write one uint32 a matrix of each lane to shared memory, as `LoadMatrix` reads them (stmatrix)."""

    buffer: Buffer = writes("index", _row, lanes=lambda op: _ROWS * len(op.values), rows=True)
    transposed: bool = attribute()
    index: Value = operand()
    values: tuple[Value, ...] = operands()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP)
    COUNTED: ClassVar[str | None] = "stmatrix"
    RESERVED: ClassVar[str] = r"stmatrix_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("stmatrix", _PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.values, expect)

    def simulate(self, compiler: Compiler) -> Step:
        """Gather matrices from the lanes, and write 16 bytes a row."""
        machine, storage = compiler.machine, compiler.machine.storages[self.buffer]
        index, slots, count = compiler.slot(self.index), compiler.slots(self.values), len(self.values)
        elements, threads = _ROW_BYTES // self.buffer.dtype.bytes, machine.threads
        rows_of = machine.leading_lanes(count * _ROWS)

        def run(frame: Frame) -> None:
            values = frame.values
            demand_whole_warps(self, _WHAT, frame.mask, machine, full=True)
            at = fill(values[index], at_least_2d(values[index]).shape[0], threads)
            mask = both(frame.mask, rows_of)
            refused = machine.observe(Access(self, AccessKind.STORE, storage, at, elements, mask))
            if refused is not None:
                mask = without(mask, refused)
                if not mask.any():
                    return
            held = np.broadcast_arrays(*[at_least_2d(values[s]) for s in slots])
            registers = np.stack([by_lanes(fill(h, h.shape[0], threads), _LANES) for h in held], axis=2)
            rows = _to_rows(registers, self.transposed)
            lines = np.zeros((*rows.shape[:2], _LANES, _ROWS), np.uint16)
            lines[:, :, : count * _ROWS] = rows.reshape(*rows.shape[:2], count * _ROWS, _ROWS)
            given = np.ascontiguousarray(by_threads(lines, threads)).view(self.buffer.dtype.numpy)
            try:
                storage.store(at, given, elements, mask)
            except IndexError as error:
                raise machine.outside(self, self.buffer, error) from None

        return run

    def cuda(self, printer: Printer) -> None:
        _demand(printer, self, "sm_90", "stmatrix")
        name, definition = _matrix_function("stmatrix", len(self.values), transposed=self.transposed)
        printer.prelude.need(definition)
        values = [exact(printer, v).text for v in self.values]
        print_call(printer, self, name, [[address(printer, self.buffer, self.index).text], values])


@dataclass(eq=False)
class TransposeMatrix(Instruction):
    """result = the transpose of an 8 x 8 matrix of 16-bit elements in the registers of a warp (movmatrix)."""

    value: Value = operand()

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "movmatrix"
    RESERVED: ClassVar[str] = r"movmatrix_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("movmatrix", "transpose by way of shared memory")

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.value.type is self.result.type is uint32, "moves a uint32")

    def simulate(self, compiler: Compiler) -> Step:
        """Transpose the 8 x 8 matrix that a warp holds."""
        machine, value, result = compiler.machine, compiler.slot(self.value), compiler.slot(self.result)

        def run(frame: Frame) -> None:
            demand_whole_warps(self, _WHAT, frame.mask, machine, full=True)
            held = at_least_2d(frame.values[value])
            registers = by_lanes(fill(held, held.shape[0], machine.threads), _LANES)[:, :, None]
            turned = _to_registers(_to_rows(registers, transposed=False), transposed=True)
            frame.values[result] = by_threads(turned[:, :, 0], machine.threads)

        return run

    def cuda(self, printer: Printer) -> None:
        _demand(printer, self, "sm_75", "movmatrix")
        printer.prelude.need(_MOVMATRIX)
        results = declare_results(printer, self, "matrix")
        print_call(printer, self, "movmatrix_trans", [results, [exact(printer, self.value).text]])
        bind_results(printer, self, results)


def _verify(op: LoadMatrix | StoreMatrix, values: tuple[Value, ...], expect: Callable[[bool, str], None]) -> None:
    expect(op.buffer.space is Space.SHARED, f"{op.buffer.name} is not shared memory")
    expect(len(values) in (1, 2, 4) and all(v.type is uint32 for v in values), "1, 2 or 4 matrices of uint32")
    expect(not op.transposed or op.buffer.dtype.bits == 16, "only 16-bit elements are transposed")


# --- what they compute -----------------------------------------------------------------------------------


def _to_registers(rows: Array, transposed: bool) -> Array:
    """Return (blocks, warps, matrices, 32 lanes) of rows (blocks, warps, matrices, 8, 8 elements of 16 bits)."""
    if transposed:
        rows = rows.swapaxes(-1, -2)
    pairs = np.ascontiguousarray(rows).view(np.uint32)
    return pairs.reshape(*pairs.shape[:3], _LANES)


def _to_rows(registers: Array, transposed: bool) -> Array:
    """Return the rows of matrices in registers: the inverse of `_to_registers`."""
    elements = np.ascontiguousarray(registers).view(np.uint16)
    rows = elements.reshape(*registers.shape[:3], _ROWS, _ROWS)
    return np.ascontiguousarray(rows.swapaxes(-1, -2) if transposed else rows)


# --- how they are written --------------------------------------------------------------------------------


def _demand(printer: Printer, op: Instruction, arch: str, what: str) -> None:
    if printer.arch.number < Arch.parse(arch).number:
        raise printer.refuse(op, f"{what} needs {arch} or later, and the target is {printer.arch}")


def _matrix_function(instruction: str, count: int, *, transposed: bool) -> tuple[str, str]:
    """Return the name and the definition of a function that moves 1, 2 or 4 matrices from or to shared memory."""
    name = f"{instruction}_x{count}" + ("_trans" if transposed else "")
    ptx = f"{instruction}.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16"
    registers = Registers(uint32, count, 2)
    if instruction == "ldmatrix":
        braces = ", ".join(f"%{i}" for i in range(count))
        parameters = f"{_parameters('d', registers, '&')}, const void* row"
        text = f'"{ptx} {{{braces}}}, [%{count}];" : {_constraints("d", registers, "=")} : "r"(address) : "memory"'
    else:
        braces = ", ".join(f"%{i + 1}" for i in range(count))
        parameters = f"void* row, {_parameters('a', registers, '')}"
        text = f'"{ptx} [%0], {{{braces}}};" :: "r"(address), {_constraints("a", registers, "")} : "memory"'
    definition = f"""\
{FUNCTION} void {name}({parameters}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile({text});
}}"""
    return name, definition


def _parameters(letter: str, registers: Registers, reference: str) -> str:
    return ", ".join(f"{registers.dtype.c_name}{reference} {letter}{i}" for i in range(registers.count))


def _constraints(letter: str, registers: Registers, mode: str) -> str:
    return ", ".join(f'"{mode}r"({letter}{i})' for i in range(registers.count))


_MOVMATRIX = f"""\
{FUNCTION} void movmatrix_trans(unsigned int& d, unsigned int a) {{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
}}"""
