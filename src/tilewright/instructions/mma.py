"""mma.sync: matrix products of a warp, D = A * B + C, from sm_70 to sm_90, under CuTe's names.

A name says all: `SM80_16x8x8_F32TF32TF32F32_TN` is from sm_80 on, has M x N x K = 16 x 8 x 8, takes D, A, B and C of
these types, A row-major (T: K contiguous) and B column-major (N: K contiguous). So the table is a list of names,
and an atom is made of its name when it is first asked for. Operands and results are fragments in registers.

Source: PTX ISA, "mma"; CUTLASS, include/cute/arch/mma_sm70.hpp to mma_sm90.hpp. CuTe's complex types (C64) are not
instructions but four of float64 each, and are not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.atoms import fragments
from tilewright.atoms.arithmetic import count_and, count_xor, multiply_add_saturating, multiply_add_tf32
from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import MMAAtom, Registers, unpack
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import bind_results, declare_results, print_call
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d, by_lanes, by_threads
from tilewright.dtypes import DType, float32, float64, int32, uint32
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Scope, attribute, operands
from tilewright.ir.instruction import Instruction, TypedValues
from tilewright.ir.ops import Select
from tilewright.layout import Layout, complement
from tilewright.tensors import Tensor
from tilewright.trace.control import nest
from tilewright.trace.fragments import Fragment
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import Tracer, current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


# --- the atoms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarpMMAAtom(MMAAtom):
    """An mma.sync as an atom; `instruction` is its text."""

    instruction: str = ""

    def multiply(self, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Emit loops over K, M and N of register fragments, with one instruction inside."""
        if not self.instruction:
            super().multiply(d, a, b, c)
        multiply_fragments(Mma, self, d, a, b, c)


# CuTe's abbreviation of a type, its PTX name and the element type.
_TYPES: dict[str, tuple[str, t.DType]] = {
    "F16": ("f16", t.float16),
    "BF16": ("bf16", t.bfloat16),
    "TF32": ("tf32", t.tfloat32),
    "F32": ("f32", t.float32),
    "F64": ("f64", t.float64),
    "E4M3": ("e4m3", t.float8_e4m3fn),
    "E5M2": ("e5m2", t.float8_e5m2),
    "S32": ("s32", t.int32),
    "S8": ("s8", t.int8),
    "U8": ("u8", t.uint8),
    "S4": ("s4", t.int4),
    "U4": ("u4", t.uint4),
    "U1": ("b1", t.uint1),
}


def _listed() -> tuple[str, ...]:
    """Return all names in the order of architectures."""
    names = [f"SM70_8x8x4_{types}_{majors}" for types in _TYPES_SM70 for majors in _MAJORS_SM70]
    names += ["SM75_16x8x8_F32F16F16F32_TN", "SM75_16x8x8_F16F16F16F16_TN"]
    names += ["SM75_8x8x16_S32S8S8S32_TN", "SM75_8x8x16_S32U8U8S32_TN"]
    for shape in ("16x8x8", "16x8x16"):
        names += [f"SM80_{shape}_{types}_TN" for types in ("F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32")]
    names += [f"SM80_{shape}_F32TF32TF32F32_TN" for shape in ("16x8x4", "16x8x8")]
    names += ["SM80_8x8x4_F64F64F64F64_TN"]
    for bits, shapes in ((8, ("8x8x16", "16x8x16", "16x8x32")), (4, ("8x8x32", "16x8x32", "16x8x64"))):
        for a in "SU":
            for b in "SU":
                for shape in shapes:
                    name = f"SM80_{shape}_S32{a}{bits}{b}{bits}S32_TN"
                    names += [name, f"{name}_SATURATE"]
    for operation in ("XORPOPC", "ANDPOPC"):
        names += [f"SM80_{shape}_S32U1U1S32_TN_{operation}" for shape in ("8x8x128", "16x8x128", "16x8x256")]
    for d in ("F32", "F16"):
        names += [f"SM89_16x8x32_{d}{a}{b}{d}_TN" for a in ("E4M3", "E5M2") for b in ("E4M3", "E5M2")]
    names += [f"SM90_{shape}_F64F64F64F64_TN" for shape in ("16x8x4", "16x8x8", "16x8x16")]
    return tuple(names)


_MAJORS_SM70 = ("TN", "NT", "NN", "TT")
# CUTLASS has the first and the last; MoYe.jl has the one between too, whose D is held otherwise than its C.
_TYPES_SM70 = ("F16F16F16F16", "F32F16F16F16", "F32F16F16F32")
NAMES = _listed()


_NAME = re.compile(r"SM(\d+)_(\d+)x(\d+)x(\d+)_(\w+?)_([TN])([TN])(?:_(\w+))?")
_TYPE = re.compile("|".join(sorted(_TYPES, key=len, reverse=True)))
# PTX's words for the major of A and of B, and what the end of a name adds to the instruction and to its meaning.
_ORDER = ({"T": "row", "N": "col"}, {"N": "col", "T": "row"})
_VARIANTS = {
    "SATURATE": (".satfinite", multiply_add_saturating),
    "ANDPOPC": (".and.popc", count_and),
    "XORPOPC": (".xor.popc", count_xor),
}


@cache
def warp_mma(name: str) -> WarpMMAAtom:
    """Return the atom of a name in `NAMES`.

    >>> atom = warp_mma("SM80_16x8x8_F32TF32TF32F32_TN")
    >>> atom.instruction, str(atom.layout_a)
    ('mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32', '((4,8),(2,2)):((16,1),(8,64))')
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    arch, m, n, k = (int(match[i]) for i in range(1, 5))
    types = [_TYPES[found] for found in _TYPE.findall(match[5])]
    d, a, b, c = (dtype for _, dtype in types)
    a_major, b_major, variant = match[6], match[7], match[8]
    suffix, arithmetic = _VARIANTS[variant] if variant else ("", multiply_add_tf32 if a is t.tfloat32 else None)
    majors = f"{_ORDER[0][a_major]}.{_ORDER[1][b_major]}"
    ptx = ".".join(ptx_type for ptx_type, _ in types)
    instruction = f"mma.sync.aligned.m{m}n{n}k{k}.{majors}.{ptx}{suffix}"
    if arch == 70:
        return WarpMMAAtom(
            name, "sm_70", (m, n, k), d, a, b, c, fragments.QUAD_PAIR,
            fragments.QUAD_PAIR_ROW if a_major == "T" else fragments.QUAD_PAIR_COLUMN,
            fragments.QUAD_PAIR_ROW if b_major == "N" else fragments.QUAD_PAIR_COLUMN,
            fragments.QUAD_PAIR_F32 if c is t.float32 else fragments.QUAD_PAIR_F16,
            layout_d=None if d is c else fragments.QUAD_PAIR_F32, instruction=instruction,
        )  # fmt: skip
    return WarpMMAAtom(
        name, f"sm_{arch}", (m, n, k), d, a, b, c, Layout(fragments.WARP),
        fragments.operand(m, k, a.bits), fragments.operand(n, k, b.bits), fragments.accumulator(m),
        arithmetic, instruction=instruction,
    )  # fmt: skip


# --- how a kernel multiplies fragments -------------------------------------------------------------------


def multiply_fragments(op_class: type[WarpProduct], atom: MMAAtom, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    """Emit loops over K, M and N of register fragments, with one instruction inside.

    N goes forth and back from one m to the next (serpentine), so that each instruction shares an operand with the one
    before it.
    """
    tracer = current("tw.gemm")
    refuse_partial_warps(tracer, str(atom))
    fragments = (
        Fragment("A", a, atom.registers_a, atom),
        Fragment("B", b, atom.registers_b, atom),
        Fragment("C", c, atom.registers_c, atom),
        Fragment("D", d, atom.registers_d, atom),
    )
    extents = [_static(t.layout[mode].size) for t, mode in ((a, 2), (a, 1), (b, 1))]
    result_types = (atom.registers_d.dtype,) * atom.registers_d.count

    def instruction(k: Any, m: Any, step: Any) -> None:
        fragment_a, fragment_b, fragment_c, fragment_d = fragments
        n = _back_and_forth(tracer, m, step, extents[2])
        op = op_class(atom, fragment_a.load(m, k), fragment_b.load(n, k), fragment_c.load(m, n))
        fragment_d.store((m, n), tracer.emit(op, *result_types))

    nest(extents, instruction, unroll=True, names=("k", "m", "n" if extents[1] == 1 else "i"))


def _static(extent: Any) -> int:
    assert isinstance(extent, int), extent  # fragments have static layouts
    return extent


def _back_and_forth(tracer: Tracer, m: Any, n: Any, extent: int) -> Any:
    """Return n for an even m, and extent - 1 - n for an odd one."""
    if not isinstance(m, Scalar) or not isinstance(n, Scalar):
        return n
    chosen = tracer.pure(Select((m % 2 == 0).value, n.value, (extent - 1 - n).value), n.dtype)
    chosen.name = "n"
    return Scalar(chosen)


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class WarpProduct(Instruction):
    """results = the registers of D = A * B + C, which the threads of a warp compute together as `atom` says.

    Operands and results are each thread's registers, in types and numbers `atom.registers_a` and its like. All threads
    of the warp take part; a warp holds several groups of threads where the atom has fewer than the warp.
    """

    atom: MMAAtom = attribute()
    a: tuple[Value, ...] = operands()
    b: tuple[Value, ...] = operands()
    c: tuple[Value, ...] = operands()

    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "mma"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        atom = self.atom
        groups = (self.a, self.b, self.c, self.results)
        registers_of = (atom.registers_a, atom.registers_b, atom.registers_c, atom.registers_d)
        for name, values, registers in zip("abcd", groups, registers_of, strict=True):
            fits = len(values) == registers.count and all(v.type is registers.dtype for v in values)
            expect(fits, f"{atom} takes {registers.count} {registers.dtype} for {name}")

    def simulate(self, compiler: Compiler) -> Step:
        """Gather fragments to tiles, let the atom's reference compute, and hand D back, in all warps at once."""
        machine, atom = compiler.machine, self.atom
        a, b, c, d = _fragments(atom, machine.warp)
        slots_a, slots_b, slots_c = compiler.slots(self.a), compiler.slots(self.b), compiler.slots(self.c)
        results, threads = compiler.slots(self.results), machine.threads

        def run(frame: Frame) -> None:
            values = frame.values
            demand_whole_warps(self, "a matrix instruction", frame.mask, machine, full=True)
            computed = atom.reference(
                a.tile([values[s] for s in slots_a], threads),
                b.tile([values[s] for s in slots_b], threads),
                c.tile([values[s] for s in slots_c], threads),
            )
            registers = d.spread(computed, threads)
            for number, result in enumerate(results):
                values[result] = np.ascontiguousarray(registers[..., number])

        return run

    def floats(self) -> tuple[TypedValues, TypedValues] | None:
        atom = self.atom
        groups = ((self.a, atom.dtype_a), (self.b, atom.dtype_b), (self.c, atom.dtype_c), (self.results, atom.dtype_d))
        a, b, c, d = ([(v, dtype.storage) for v in values if dtype.storage.is_float] for values, dtype in groups)
        return [*a, *b, *c], d

    def work(self, warp: int) -> tuple[str, int, bool] | None:
        return f"tensor {self.atom.dtype_a}", 2 * self.atom.products * warp // self.atom.threads, True


@dataclass(eq=False)
class Mma(WarpProduct):
    """D = A * B + C by mma.sync."""

    atom: WarpMMAAtom = attribute()

    RESERVED: ClassVar[str] = r"mma_\w+"

    def cuda(self, printer: Printer) -> None:
        atom = self.atom
        if printer.arch.number < Arch.parse(atom.arch).number:
            raise printer.refuse(self, f"{atom.name} needs {atom.arch} or later, and the target is {printer.arch}")
        name, definition = _mma_function(atom)
        printer.prelude.need(definition)
        results = declare_results(printer, self, "d")
        given = [[exact(printer, v).text for v in group] for group in (self.a, self.b, self.c)]
        print_call(printer, self, name, [results, *given])
        bind_results(printer, self, results)

    def hip(self, printer: Printer) -> None:
        raise printer.refuse(
            self,
            f"{self.atom.name} is an instruction of NVIDIA's GPUs, and the target is {printer.arch}",
            "take a MFMA atom of tw.atoms",
        )


# --- what they compute -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fragment:
    """One operand: how registers become a tile (rows, columns) and back."""

    dtype: DType
    registers: Registers
    warp: int
    lanes: Array  # (groups of the warp, threads of the atom) -> lane
    table: Array  # (thread, value) -> place in the column-major tile
    shape: tuple[int, int]

    def tile(self, registers: Sequence[Lanes], threads: int) -> Array:
        """Return the tiles (blocks, warps, groups, rows, columns) of all threads' registers."""
        held = np.stack(np.broadcast_arrays(*[at_least_2d(r) for r in registers]), axis=-1)
        held = np.ascontiguousarray(np.broadcast_to(held, (held.shape[0], threads, held.shape[-1])))
        values = unpack(held, self.dtype) if self.dtype.bits < 8 else held.view(self.dtype.numpy)
        by_group = by_lanes(values, self.warp)[:, :, self.lanes, :]
        rows, columns = self.shape
        flat = np.zeros((*by_group.shape[:3], rows * columns), by_group.dtype)
        flat[..., self.table] = by_group
        tiles: Array = flat.reshape(*flat.shape[:3], columns, rows).swapaxes(-1, -2)
        return tiles

    def spread(self, tiles: Array, threads: int) -> Array:
        """Return the registers (blocks, threads, registers) of tiles."""
        flat = tiles.swapaxes(-1, -2).reshape(*tiles.shape[:3], -1)
        blocks, warps = flat.shape[:2]
        values = np.empty((blocks, warps, self.warp, self.table.shape[1]), tiles.dtype)
        values[:, :, self.lanes, :] = flat[..., self.table]
        return by_threads(values, threads).view(self.registers.dtype.numpy)


def _fragments(atom: MMAAtom, warp: int) -> tuple[_Fragment, _Fragment, _Fragment, _Fragment]:
    """Return what becomes of the registers of A, B, C and D."""
    m, n, k = atom.shape_mnk
    own = positions(Layout((atom.thr_id.shape, 1), (atom.thr_id.stride, 0)))[:, 0]
    rest = complement(atom.thr_id, warp)
    others = positions(Layout((rest.shape, 1), (rest.stride, 0)))[:, 0]
    lanes = others[:, None] + own[None, :]
    table_c, table_d = positions(atom.layout_c) + atom.first_row, positions(atom.layout_of_d) + atom.first_row
    return (
        _Fragment(atom.dtype_a.storage, atom.registers_a, warp, lanes, positions(atom.layout_a), (m, k)),
        _Fragment(atom.dtype_b.storage, atom.registers_b, warp, lanes, positions(atom.layout_b), (n, k)),
        _Fragment(atom.dtype_c, atom.registers_c, warp, lanes, table_c, (m, n)),
        _Fragment(atom.dtype_d, atom.registers_d, warp, lanes, table_d, (m, n)),
    )


# --- how mma.sync is written -----------------------------------------------------------------------------

# The letters of inline PTX for a register of a type.
_LETTERS: dict[DType, str] = {float32: "f", float64: "d", int32: "r", uint32: "r"}


def _mma_function(atom: WarpMMAAtom) -> tuple[str, str]:
    """Return the name and the definition of a matrix product's function."""
    words = atom.instruction.split(".")
    name = "mma_" + "_".join(words[3:])
    groups = [atom.registers_d, atom.registers_a, atom.registers_b, atom.registers_c]
    parameters = [
        _parameters(letter, r, "&" if letter == "d" else "") for letter, r in zip("dabc", groups, strict=True)
    ]
    braces, first = [], 0
    for registers in groups:
        braces.append("{" + ", ".join(f"%{first + i}" for i in range(registers.count)) + "}")
        first += registers.count
    outputs, a, b, c = (_constraints(x, r, "=" if x == "d" else "") for x, r in zip("dabc", groups, strict=True))
    definition = f"""\
// D = A * B + C by a warp: {" x ".join(map(str, (atom.elements or atom).shape_mnk))}.
{FUNCTION} void {name}(
    {("," + chr(10) + "    ").join(parameters)}) {{
    asm volatile(
        "{atom.instruction} {", ".join(braces)};"
        : {outputs}
        : {a},
          {b},
          {c});
}}"""
    return name, definition


def _parameters(letter: str, registers: Registers, reference: str) -> str:
    return ", ".join(f"{registers.dtype.c_name}{reference} {letter}{i}" for i in range(registers.count))


def _constraints(letter: str, registers: Registers, mode: str) -> str:
    return ", ".join(f'"{mode}{_LETTERS[registers.dtype]}"({letter}{i})' for i in range(registers.count))
