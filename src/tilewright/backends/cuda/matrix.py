"""How the matrix instructions of a warp are written: one function of inline PTX an instruction, and its calls."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.atoms.mma import MMAAtom, Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.calls import declare_results, hand_on, print_call
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, float32, float64, int32, uint32
from tilewright.ir.core import Op
from tilewright.ir.ops import LoadMatrix, Mma, RoundToTfloat32, StoreMatrix, TransposeMatrix

# The letters of inline PTX for a register of a type.
_LETTERS: dict[DType, str] = {float32: "f", float64: "d", int32: "r", uint32: "r"}


# --- calls -----------------------------------------------------------------------------------------------


def mma(printer: Printer, op: Mma) -> None:
    """Print the call of a matrix product."""
    _demand(printer, op, op.atom.arch, op.atom.name)
    name, definition = _mma_function(op.atom)
    printer.prelude.need(definition)
    results = declare_results(printer, op, "d")
    operands = [[exact(printer, v).text for v in group] for group in (op.a, op.b, op.c)]
    print_call(printer, op, name, [results, *operands])
    hand_on(printer, op, results)


def round_to_tfloat32(printer: Printer, op: RoundToTfloat32) -> Expression:
    """Return the call that rounds to the bits that a tensor core reads."""
    _demand(printer, op, "sm_80", "cvt.rna.tf32")
    printer.prelude.need(_TO_TFLOAT32)
    return call("to_tfloat32", (printer.expression(op.x),), float32)


def load_matrix(printer: Printer, op: LoadMatrix) -> None:
    """Print the call that reads matrices from shared memory."""
    _demand(printer, op, "sm_75", "ldmatrix")
    name, definition = _matrix_function("ldmatrix", len(op.results), transposed=op.transposed)
    printer.prelude.need(definition)
    results = declare_results(printer, op, "matrix")
    print_call(printer, op, name, [results, [address(printer, op.buffer, op.index).text]])
    hand_on(printer, op, results)


def store_matrix(printer: Printer, op: StoreMatrix) -> None:
    """Print the call that writes matrices to shared memory."""
    _demand(printer, op, "sm_90", "stmatrix")
    name, definition = _matrix_function("stmatrix", len(op.values), transposed=op.transposed)
    printer.prelude.need(definition)
    values = [exact(printer, v).text for v in op.values]
    print_call(printer, op, name, [[address(printer, op.buffer, op.index).text], values])


def transpose_matrix(printer: Printer, op: TransposeMatrix) -> None:
    """Print the call that transposes a matrix in registers."""
    _demand(printer, op, "sm_75", "movmatrix")
    printer.prelude.need(_MOVMATRIX)
    results = declare_results(printer, op, "matrix")
    print_call(printer, op, "movmatrix_trans", [results, [exact(printer, op.value).text]])
    hand_on(printer, op, results)


def _demand(printer: Printer, op: Op, arch: str, what: str) -> None:
    if printer.arch.number < Arch.parse(arch).number:
        raise printer.refuse(op, f"{what} needs {arch} or later, and the target is {printer.arch}")


# --- functions -------------------------------------------------------------------------------------------


def _mma_function(atom: MMAAtom) -> tuple[str, str]:
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


_TO_TFLOAT32 = f"""\
// Rounds to nearest, ties away from zero, to the 19 bits that a tensor core reads.
{FUNCTION} float to_tfloat32(float x) {{
    unsigned int y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}}"""

_MOVMATRIX = f"""\
{FUNCTION} void movmatrix_trans(unsigned int& d, unsigned int a) {{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
}}"""
