"""The matrix instructions of AMD's CDNA GPUs (MFMA), which a wave of 64 lanes computes, from gfx908 on.

Names are as CuTe would give them. `GFX908_16x16x4_F32F32F32F32_MFMA` has M x N x K = 16 x 16 x 4, takes D, A, B and C
of these types, and came with gfx908; gfx942 no longer has all that gfx908 and gfx90a have. With R = M = N (16 or 32)
and v elements of A in a lane, neighbours along K:

    A, B   lane l, element j:  row l % R,  k = v * (l / R) + j                            K = v * 64 / R
    C, D   R = 16, value i:    column l % 16,  row 4 * (l / 16) + i
           R = 32, value i:    column l % 32,  row 8 * (i / 4) + 4 * (l / 32) + i % 4
           of float64:         column l % 16,  row 4 * i + l / 16

Instructions of n = 64 / R blocks hold n small tiles side by side, with lane l in row l of A and l of B. With CBSZ =
log2 n one of A's blocks, number ABID, stands for all of them: the instruction multiplies R rows of A by all 64 of B.
`GFX908_64x64x1_F32F32F32F32_MFMA_B4_2` is that for block 2 of 4, computing rows 32 to 47 of a 64 x 64 tile; the atoms
`_B4_0` to `_B4_3` together compute the tile. They take the same fragments of A and of B; each has a C of its own:

    C, D   value i:  column R * (i / w) + l % R,  row R * ABID + the row above of value i % w     w = R * R / 64

An instruction of n products of separate blocks is not one matrix product, and has no atom.

gfx942 multiplies float32 as xf32, the upper 19 bits, which tw.tfloat32 is too. Whether the instruction rounds or cuts
what lies below is not stated, so that the text cuts it first, as NVIDIA's tensor cores do. Its 8-bit floats, FP8 and
BF8 in the names, are tw.float8_e4m3fnuz and tw.float8_e5m2fnuz; A and B may be of either.

Source: AMD, instruction set architecture manuals of CDNA1, CDNA2 and CDNA3, "Matrix arithmetic instructions": layouts,
CBSZ and ABID. The builtins are LLVM's (BuiltinsAMDGPU.def), and what gfx942 lacks is what its code generator refuses.

The builtins take short vectors of elements, and C and D as one vector of all accumulators; the IR has registers, which
hold the same bits in the same order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.atoms.arithmetic import multiply_add_in_order, multiply_add_tf32_in_order
from tilewright.atoms.mma import MMAAtom, Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import bind_results, declare_results, filled, print_call
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.instructions.mma import WarpProduct, multiply_fragments
from tilewright.ir.effects import attribute
from tilewright.layout import Layout
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer


# --- the atoms -------------------------------------------------------------------------------------------

BUILTIN = "__builtin_amdgcn_"
# The elements of the builtins' vectors, of types that travel in words.
_ELEMENTS: dict[DType, str] = {float16: "_Float16", bfloat16: "short"}
LANES = 64


@dataclass(frozen=True)
class _Family:
    """Instructions of the same types: `first` is the target they came with, `word` what the builtin calls A and B.

    A lane holds `values` elements of A, and as many of B, which is of A's type unless `b` is given. `blocks` are the
    numbers of blocks of tiles of 32 and of 16 rows; `removed` is the first target without those of one block, or
    without any where `removed_all`.
    """

    first: str
    types: str
    d: DType
    a: DType
    word: str
    values: int
    rows: tuple[int, ...] = (16, 32)
    blocks: tuple[int, ...] = (2, 4)
    removed: str = ""
    removed_all: bool = False
    b: DType | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its atoms."""
        start = self.first.upper()
        names = [f"{start}_{r}x{r}x{self.values * LANES // r}_{self.types}_MFMA" for r in self.rows]
        for blocks in self.blocks:
            names += [f"{start}_64x64x{self.values}_{self.types}_MFMA_B{blocks}_{i}" for i in range(blocks)]
        return tuple(names)

    def builtin(self, rows: int, k: int) -> str:
        of_d = f"{'f' if self.d.is_float else 'i'}{self.d.bits}"
        return f"{BUILTIN}mfma_{of_d}_{rows}x{rows}x{k}{self.word}"

    def removed_from(self, blocks: int) -> str:
        """Return the first target without the instruction of so many blocks, "" for none."""
        return self.removed if blocks == 1 or self.removed_all else ""


_FLOAT8 = {"FP8": t.float8_e4m3fnuz, "BF8": t.float8_e5m2fnuz}
_FAMILIES = (
    _Family("gfx908", "F32F32F32F32", t.float32, t.float32, "f32", 1),
    _Family("gfx908", "F32F16F16F32", t.float32, t.float16, "f16", 4),
    _Family("gfx908", "F32BF16BF16F32", t.float32, t.bfloat16, "bf16", 2, removed="gfx942", removed_all=True),
    _Family("gfx908", "S32S8S8S32", t.int32, t.int8, "i8", 4, removed="gfx942"),
    _Family("gfx90a", "F32BF16BF16F32", t.float32, t.bfloat16, "bf16_1k", 4),
    _Family("gfx90a", "F64F64F64F64", t.float64, t.float64, "f64", 1, rows=(16,), blocks=()),
    _Family("gfx942", "F32TF32TF32F32", t.float32, t.tfloat32, "_xf32", 2, blocks=()),
    _Family("gfx942", "S32S8S8S32", t.int32, t.int8, "_i8", 8, blocks=()),
    *(
        _Family("gfx942", f"F32{a}{b}F32", t.float32, type_a, f"_{a}_{b}".lower(), 8, blocks=(), b=type_b)
        for a, type_a in _FLOAT8.items()
        for b, type_b in _FLOAT8.items()
    ),
)


@dataclass(frozen=True)
class MFMAAtom(MMAAtom):
    """A MFMA as an atom: `builtin` is the name of clang's builtin, `modifiers` its last operands CBSZ, ABID and BLGP.

    `block` is (i, n) for an instruction that multiplies only the i-th of n blocks of A's rows, with all of B.
    """

    builtin: str = ""
    modifiers: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int] = (0, 1)
    removed: str = ""  # the first target without it

    def runs_on(self, arch: Arch) -> bool:
        """Return whether a target has the instruction."""
        return super().runs_on(arch) and not (self.removed and arch.has_instructions_of(Arch.parse(self.removed)))

    @property
    def row_block(self) -> tuple[int, int]:
        """Which block of C's rows the instruction computes, and of how many."""
        return self.block

    def multiply(self, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Emit loops over K, M and N of register fragments, with one instruction inside."""
        multiply_fragments(Mfma, self, d, a, b, c)


NAMES = tuple(name for family in _FAMILIES for name in family.names)
_NAME = re.compile(r"(GFX\w{3})_(\d+)x\d+x(\d+)_([A-Z0-9]+)_MFMA(?:_B(\d)_(\d))?")


def mfma_names(arch: Arch, m: int, n: int, k: int, types: str, blocks: int) -> tuple[str, ...]:
    """Return the names of a target's atoms that compute M x N x K in so many blocks, one each; none without them.

    >>> mfma_names(Arch.parse("gfx90a"), 64, 64, 1, "F32F32F32F32", 2)
    ('GFX908_64x64x1_F32F32F32F32_MFMA_B2_0', 'GFX908_64x64x1_F32F32F32F32_MFMA_B2_1')
    >>> mfma_names(Arch.parse("gfx942"), 16, 16, 32, "S32S8S8S32", 1)
    ('GFX942_16x16x32_S32S8S8S32_MFMA',)
    """
    for family in _FAMILIES:
        name = f"{family.first.upper()}_{m}x{n}x{k}_{types}_MFMA"
        names = (name,) if blocks == 1 else tuple(f"{name}_B{blocks}_{block}" for block in range(blocks))
        if all(each in family.names for each in names) and mfma(names[0]).runs_on(arch):
            return names
    return ()


@cache
def mfma(name: str) -> MFMAAtom:
    """Return the atom of a name in `NAMES`.

    >>> atom = mfma("GFX908_16x16x4_F32F32F32F32_MFMA")
    >>> atom.builtin, str(atom.layout_a), str(atom.layout_c)
    ('__builtin_amdgcn_mfma_f32_16x16x4f32', '((16,4),1):((1,16),16)', '((16,4),4):((16,4),1)')
    >>> block = mfma("GFX908_64x64x1_F32F32F32F32_MFMA_B4_2")
    >>> block.builtin, block.modifiers, block.first_row, block.rows
    ('__builtin_amdgcn_mfma_f32_16x16x1f32', (2, 2, 0), 32, 16)
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    family = next(family for family in _FAMILIES if name in family.names)
    extent, k, values = int(match[2]), int(match[3]), family.values
    blocks, block = (int(match[5]), int(match[6])) if match[5] else (1, 0)
    rows = extent // blocks
    operand = Layout(((rows, LANES // rows), values), ((1, rows * (values if blocks == 1 else 1)), extent))
    arithmetic = {t.float64: None, t.tfloat32: multiply_add_tf32_in_order}.get(family.a, multiply_add_in_order)
    return MFMAAtom(
        name, family.first, (extent, extent, k), family.d, family.a, family.b or family.a, family.d, Layout(LANES),
        operand, operand, _float64_accumulator() if family.d is t.float64 else _accumulator(rows, blocks), arithmetic,
        builtin=family.builtin(rows, k), modifiers=(blocks.bit_length() - 1, block, 0), block=(block, blocks),
        removed=family.removed_from(blocks),
    )  # fmt: skip


def _accumulator(rows: int, blocks: int) -> Layout:
    """Return the layout of C: (lane, value) to elements of a column-major tile of rows * blocks by as many."""
    extent = rows * blocks
    shape, stride = [4], [1]
    if rows == 32:
        shape, stride = [4, 4], [1, 8]
    if blocks > 1:
        shape, stride = [*shape, blocks], [*stride, rows * extent]
    values = (shape[0], stride[0]) if len(shape) == 1 else (tuple(shape), tuple(stride))
    return Layout(((rows, LANES // rows), values[0]), ((extent, 4), values[1]))


def _float64_accumulator() -> Layout:
    """Return the layout of C of float64, whose lanes hold every fourth row of a column."""
    return Layout(((16, 4), 4), ((16, 1), 4))


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Mfma(WarpProduct):
    """D = A * B + C by a MFMA of a wave of 64 lanes."""

    atom: MFMAAtom = attribute()

    RESERVED: ClassVar[str] = r"mfma_\w+"

    def cuda(self, printer: Printer) -> None:
        raise printer.refuse(
            self,
            f"{self.atom.name} is an instruction of AMD's GPUs, and the target is {printer.arch}",
            "take a warp-level atom of tw.atoms",
        )

    def hip(self, printer: Printer) -> None:
        name = _name(self.atom)
        printer.prelude.need(_function(name, self.atom))
        results = declare_results(printer, self, "d")
        given = [[exact(printer, v).text for v in group] for group in (self.a, self.b, self.c)]
        print_call(printer, self, name, [results, *given])
        bind_results(printer, self, results)


# --- how it is written -----------------------------------------------------------------------------------


def _name(atom: MFMAAtom) -> str:
    """Return the name of a matrix product's function: the builtin's, with the modifiers that are set."""
    given = [f"_{word}{n}" for word, n in zip(("cbsz", "abid", "blgp"), atom.modifiers, strict=True) if n]
    return atom.builtin.removeprefix(BUILTIN) + "".join(given)


def _function(name: str, atom: MFMAAtom) -> str:
    """Return the definition of a matrix product's function."""
    d, a, b, c = atom.registers_d, atom.registers_a, atom.registers_b, atom.registers_c
    parameters = [_parameters("d", d, "&"), *(_parameters(x, r, "") for x, r in (("a", a), ("b", b), ("c", c)))]
    operand = _operand_type(atom.dtype_a, a)
    lines = [f"typedef {c.dtype.c_name} Accumulators __attribute__((ext_vector_type({c.count})));"]
    if "@" in operand:
        element, count = operand.split("@")
        lines.append(f"typedef {element} Operand __attribute__((ext_vector_type({count})));")
        operand = "Operand"
    lines.append(f"const Accumulators c = {{{', '.join(f'c{i}' for i in range(c.count))}}};")
    if atom.dtype_a is t.tfloat32:
        lines.append("// Whether the instruction rounds or cuts the lower bits is not documented: none are left to it.")
        lines += [
            f"{x}{i} = __uint_as_float(__float_as_uint({x}{i}) & 0xFFFFE000u);" for x in "ab" for i in range(a.count)
        ]
    lines += [f"const {operand} {x} = {_joined(x, r, operand)};" for x, r in (("a", a), ("b", b))]
    lines.append(f"const Accumulators d = {atom.builtin}(a, b, c, {', '.join(map(str, atom.modifiers))});")
    lines += [f"d{i} = d[{i}];" for i in range(d.count)]
    return f"""\
// D = A * B + C by a wave: {" x ".join(map(str, atom.shape_mnk))}.
{FUNCTION} void {name}(
    {("," + chr(10) + "    ").join(line for p in parameters for line in filled(p))}) {{
    {(chr(10) + "    ").join(lines)}
}}"""


def _parameters(letter: str, registers: Registers, reference: str) -> list[str]:
    return [f"{registers.dtype.c_name}{reference} {letter}{i}" for i in range(registers.count)]


def _operand_type(element: DType, registers: Registers) -> str:
    """Return the type in which a builtin takes A or B: a number, packed integers, or a vector as element@count."""
    count = registers.count * registers.lanes
    if element in _ELEMENTS:
        return f"{_ELEMENTS[element]}@{count}"
    if element.bits >= 32:
        return element.storage.c_name if count == 1 else f"{element.storage.c_name}@{count}"
    return "int" if registers.count == 1 else "long long"


def _joined(letter: str, registers: Registers, operand: str) -> str:
    """Return the registers of A or B as one value of the type that the builtin takes."""
    names = [f"{letter}{i}" for i in range(registers.count)]
    if operand == "Operand" and registers.dtype.is_float:
        return f"{{{', '.join(names)}}}"
    joined = names[0] if len(names) == 1 else f"make_uint{len(names)}({', '.join(names)})"
    return joined if registers.dtype.c_name == operand else f"__builtin_bit_cast({operand}, {joined})"
