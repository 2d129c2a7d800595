"""How the matrix instructions of a wave are written: one function around clang's builtin an instruction, and its calls.

The builtins take short vectors of elements, and C and D as one vector of all accumulators; the IR has registers,
which hold the same bits in the same order.

Source: AMD, "CDNA1/CDNA2 instruction set architecture", "Matrix arithmetic instructions" (V_MFMA).
"""

from __future__ import annotations

from tilewright.atoms.mma import MMAAtom, Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.calls import declare_results, hand_on, print_call
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
            "take a MFMA atom, whose name begins with MFMA",
        )
    name = op.atom.instruction.removeprefix(BUILTIN)
    printer.prelude.need(_function(name, op.atom))
    results = declare_results(printer, op, "d")
    operands = [[exact(printer, v).text for v in group] for group in (op.a, op.b, op.c)]
    print_call(printer, op, name, [results, *operands])
    hand_on(printer, op, results)


def _function(name: str, atom: MMAAtom) -> str:
    """Return the definition of a matrix product's function."""
    d, a, b, c = atom.registers_d, atom.registers_a, atom.registers_b, atom.registers_c
    parameters = (
        _parameters("d", d, "&"),
        _parameters("a", a, ""),
        _parameters("b", b, ""),
        _parameters("c", c, ""),
    )
    operands = [_operand(x, element, r) for x, element, r in (("a", atom.dtype_a, a), ("b", atom.dtype_b, b))]
    assigned = "\n".join(f"    d{i} = d[{i}];" for i in range(d.count))
    accumulators = ", ".join(f"c{i}" for i in range(c.count))
    call = f"{atom.instruction}({operands[0]}, {operands[1]}, c, 0, 0, 0)"
    return f"""\
// D = A * B + C by a wave: {" x ".join(map(str, atom.shape_mnk))}.
{FUNCTION} void {name}(
    {("," + chr(10) + "    ").join(parameters)}) {{
    typedef {c.dtype.c_name} Accumulators __attribute__((ext_vector_type({c.count})));
    const Accumulators c = {{{accumulators}}};
    const Accumulators d = {call};
{assigned}
}}"""


def _parameters(letter: str, registers: Registers, reference: str) -> str:
    return ", ".join(f"{registers.dtype.c_name}{reference} {letter}{i}" for i in range(registers.count))


def _operand(letter: str, element: DType, registers: Registers) -> str:
    """Return one argument of a builtin: the registers of A or B as the type that it takes."""
    names = [f"{letter}{i}" for i in range(registers.count)]
    words = names[0] if len(names) == 1 else f"make_uint{len(names)}({', '.join(names)})"
    if element in _ELEMENTS:
        count = registers.count * registers.lanes
        return f"__builtin_bit_cast({_ELEMENTS[element]} __attribute__((ext_vector_type({count}))), {words})"
    wanted = element.c_name if element.bits >= 32 else "int" if len(names) == 1 else "long long"
    return words if registers.dtype.c_name == wanted else f"__builtin_bit_cast({wanted}, {words})"
