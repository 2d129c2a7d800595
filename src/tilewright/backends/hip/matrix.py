"""How the matrix instructions of a wave are written: one function around clang's builtin an instruction, and its calls.

The builtins take short vectors of elements, and C and D as one vector of all accumulators; the IR has registers,
which hold the same bits in the same order.

Source: AMD, "CDNA1/CDNA2 instruction set architecture", "Matrix arithmetic instructions" (V_MFMA).
"""

from __future__ import annotations

from tilewright.atoms.mma import MMAAtom, Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.calls import declare_results, filled, hand_on, print_call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.ir.ops import Mma

BUILTIN = "__builtin_amdgcn_"
# The elements of the builtins' vectors, of types that travel in words.
_ELEMENTS: dict[DType, str] = {float16: "_Float16", bfloat16: "short"}


def mma(printer: Printer, op: Mma) -> None:
    """Print the call of a matrix product."""
    if not op.atom.instruction.startswith(BUILTIN):
        raise printer.refuse(
            op,
            f"{op.atom.name} is an instruction of NVIDIA's GPUs, and the target is {printer.arch}",
            "take a MFMA atom of tw.atoms",
        )
    name = _name(op.atom)
    printer.prelude.need(_function(name, op.atom))
    results = declare_results(printer, op, "d")
    operands = [[exact(printer, v).text for v in group] for group in (op.a, op.b, op.c)]
    print_call(printer, op, name, [results, *operands])
    hand_on(printer, op, results)


def _name(atom: MMAAtom) -> str:
    """Return the name of a matrix product's function: the builtin's, with the modifiers that are set."""
    given = [f"_{word}{n}" for word, n in zip(("cbsz", "abid", "blgp"), atom.modifiers, strict=True) if n]
    return atom.instruction.removeprefix(BUILTIN) + "".join(given)


def _function(name: str, atom: MMAAtom) -> str:
    """Return the definition of a matrix product's function."""
    d, a, b, c = atom.registers_d, atom.registers_a, atom.registers_b, atom.registers_c
    parameters = [_parameters("d", d, "&"), *(_parameters(x, r, "") for x, r in (("a", a), ("b", b), ("c", c)))]
    operand = _operand_type(atom.dtype_a, a)
    lines = [f"typedef {c.dtype.c_name} Accumulators __attribute__((ext_vector_type({c.count})));"]
    if operand.startswith("_Float16") or operand.startswith("short"):
        element, count = operand.split("@")
        lines.append(f"typedef {element} Operand __attribute__((ext_vector_type({count})));")
        operand = "Operand"
    lines.append(f"const Accumulators c = {{{', '.join(f'c{i}' for i in range(c.count))}}};")
    lines += [f"const {operand} {x} = {_joined(x, r, operand)};" for x, r in (("a", a), ("b", b))]
    lines.append(f"const Accumulators d = {atom.instruction}(a, b, c, {', '.join(map(str, atom.modifiers))});")
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
        return element.c_name
    return "int" if registers.count == 1 else "long long"


def _joined(letter: str, registers: Registers, operand: str) -> str:
    """Return the registers of A or B as one value of the type that the builtin takes."""
    names = [f"{letter}{i}" for i in range(registers.count)]
    joined = names[0] if len(names) == 1 else f"make_uint{len(names)}({', '.join(names)})"
    return joined if registers.dtype.c_name == operand else f"__builtin_bit_cast({operand}, {joined})"
