r"""PTX of the user's own: an instruction that the library lacks, with the NumPy function that says what it computes.

The text is printed as an asm statement. Its quotes, backslashes and lines are escaped and each % that is not a
placeholder is doubled, so that it stays inside of the statement; a text whose braces or comments would reach beyond
it is refused.

Source: NVIDIA, "Inline PTX Assembly in CUDA"; PTX ISA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arch import Arch
from tilewright.arguments import shown
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import is_half
from tilewright.backends.cpp.expression import Expression, Rank, prefix
from tilewright.backends.cpp.printer import bind_results
from tilewright.backends.cpp.writer import string
from tilewright.backends.sim.machine import Machine, demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, fill
from tilewright.dtypes import (
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilewright.errors import ArgumentError, LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Scope, attribute, operands
from tilewright.ir.instruction import Instruction, TypedValues
from tilewright.tensors import Tensor
from tilewright.tensors.arithmetic import compute
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

Meaning = Callable[..., Any]  # Any: NumPy arrays in, one or a tuple of them out

_MOST_OPERANDS = 30  # of an asm statement, results included


# --- what a kernel says ----------------------------------------------------------------------------------


def inline_ptx(
    text: str,
    operands: Any = (),
    meaning: Meaning | None = None,
    result: Any = None,
    *,
    volatile: bool = False,
    together: str | None = None,
    requires: str | None = None,
) -> Any:  # Any: nothing, one Scalar, or a tuple of them, as `result` says
    """Return the results of PTX, of the type `result`, or a tuple of results for a tuple of types.

    In the text, as in CUDA's asm, `%0`, `%1` and so on are the results and then the operands, in order; any other
    `%name` is PTX's own (`%laneid`). The registers are 32 bits wide for 8-bit and 32-bit integers and bool, which is 0
    or 1, and 16 bits for float16, bfloat16 and int16. Declare registers of your own, and labels, between braces: the
    text may appear several times in a kernel.

    `meaning` defines what it computes for the simulator: a function of one NumPy array for each operand, with an
    element for each thread that executes it, which returns the results as arrays of the same shape in their types.
    Without it the simulator raises an error at this line. With `together="warp"` all threads of a warp take part, and
    the arrays have the shape (warps, 32).

    Without `volatile` the text must be pure, with results that depend on the operands only: it may be computed once for
    equal operands, moved, or removed if its results are not used. With `volatile` it stays in place. `requires` is the
    first target that has the instruction ("sm_90"); one that ends in "a" is required itself.

    Operands may be tensors where the text is pure and has one result: it acts on their elements, and gives a fragment.

    Raises `LanguageError` for a text that does not fit its operands or that would not stay inside of the statement, and
    for targets that lack it.
    """
    tracer = current("tw.inline_ptx")
    given = list(operands) if isinstance(operands, (tuple, list)) else [operands]
    if any(isinstance(x, Tensor) for x in given):
        if volatile or result is None or isinstance(result, (tuple, list)):
            raise LanguageError(
                "tw.inline_ptx acts on the elements of tensors where it is pure and has one result",
                details=[x.title for x in given if isinstance(x, Tensor)],
                help="loop over the elements: for i in range(t.size): tw.inline_ptx(..., t[i], ...)",
            )

        def of_elements(*x: Any) -> Any:
            return inline_ptx(text, x, meaning, result, together=together, requires=requires)

        return compute("tw.inline_ptx", of_elements, tuple(given))
    scalars = [as_scalar(x) for x in given]
    types = [dtype(t) for t in (result if isinstance(result, (tuple, list)) else () if result is None else (result,))]
    for type in [*types, *[x.dtype for x in scalars]]:
        if type not in _CONSTRAINTS:
            raise LanguageError(f"tw.inline_ptx has no register for {type}", help="pass its bits: x.bitcast(tw.uint8)")
    if together not in (None, "warp"):
        raise LanguageError(f'together= of tw.inline_ptx is None or "warp", got {shown(together)}')
    if together:
        refuse_partial_warps(tracer, "PTX of a warp")
    if meaning is not None and not callable(meaning):
        raise LanguageError(f"meaning= of tw.inline_ptx is a function of NumPy arrays, got {shown(meaning)}")
    if not types and not volatile:
        raise LanguageError("PTX without results is left out", help="say what it gives, result=, or volatile=True")
    _demand_target(tracer.arch, requires)
    template = _template(text, len(types), len(scalars))
    op = InlinePtx(template, meaning, bool(volatile), together == "warp", tuple(x.value for x in scalars))
    results = tuple(Scalar(value) for value in tracer.emit(op, *types))
    if isinstance(result, (tuple, list)):
        return results
    return results[0] if results else None


def _demand_target(arch: Arch, requires: str | None) -> None:
    """Raise `LanguageError` for a target that has no PTX, or not the instruction."""
    if arch.is_amd:
        raise LanguageError(f"{arch} has no PTX", help="write it with the functions of tilewright")
    if requires is None:
        return
    try:
        first = Arch.parse(requires)
    except ArgumentError as error:
        raise LanguageError(f"requires= of tw.inline_ptx: {error.summary}") from None
    fits = arch.name == first.name if first.is_specific else arch.number >= first.number
    if first.is_amd or not fits:
        later = "" if first.is_specific else " or later"
        raise LanguageError(
            f"this PTX needs {first}{later}, and the target is {arch}",
            help="compile for such a target, or write it in another way for this one",
        )


# --- the text --------------------------------------------------------------------------------------------

_PERCENT = re.compile(r"%(%|\d+|(?=[A-Za-z_]))?")
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|/\*|"|[{}]|[^\s{}"/]+|/|\s+', re.DOTALL)


def _template(text: object, results: int, operands: int) -> str:
    """Return the text as asm takes it: placeholders kept, other % doubled, a semicolon after the last instruction."""
    if not isinstance(text, str):
        raise LanguageError(f"the text of tw.inline_ptx is a str, got {shown(text)}")
    strange = next((c for c in text if not (" " <= c <= "~" or c in "\n\t")), None)
    if strange is not None:
        raise LanguageError(f"PTX is ASCII text, and this one has the character U+{ord(strange):04X}")
    count = results + operands
    if count > _MOST_OPERANDS:
        raise LanguageError(f"an asm statement has at most {_MOST_OPERANDS} operands, this one has {count}")
    last = _last_token(text)
    used: set[int] = set()

    def percent(found: re.Match[str]) -> str:
        what = found[1]
        if what is None:
            raise LanguageError(
                f"a % of PTX is followed by a number or a name, got {text[found.start() : found.start() + 8]!r}",
                help="write %0, %1, ... for results and operands, %laneid and its like for PTX's own registers",
            )
        if not what.isdigit():
            return "%%"
        number = int(what)
        if number >= count:
            raise LanguageError(f"the PTX names %{number}, and there are {results} results and {operands} operands")
        used.add(number)
        return f"%{number}"

    written = _PERCENT.sub(percent, text)
    missing = [f"%{n}" for n in range(count) if n not in used]
    if missing:
        raise LanguageError(
            f"the PTX does not use {', '.join(missing)}",
            details=[f"there are {results} results, which come first, and {operands} operands"],
        )
    return written if last in (";", "}", ":") else _ended(written)


def _ended(text: str) -> str:
    """Return the text with a semicolon at its end; on a line of its own where a comment might take it."""
    return f"{text.rstrip()}\n;" if "//" in text.rsplit("\n", 1)[-1] else f"{text.rstrip()};"


def _last_token(text: str) -> str:
    """Return the last sign of a text outside of comments; raise `LanguageError` where it reaches beyond its end."""
    depth, last = 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in ("/*", '"'):
            what = "a comment" if token == "/*" else "a string"
            raise LanguageError(f"{what} of the PTX does not end", help="the text must stay inside of its statement")
        if token.isspace() or token.startswith(("//", "/*")):
            continue
        depth += (token == "{") - (token == "}")
        if depth < 0:
            break
        last = token[-1]
    if depth:
        raise LanguageError("the braces of the PTX do not match", help="the text must stay inside of its statement")
    if not last:
        raise LanguageError("the text of tw.inline_ptx has no instruction")
    return last


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class InlinePtx(Instruction):
    """results = what the PTX `text` gives for the values, which is what `meaning` computes."""

    text: str = attribute()
    meaning: Meaning | None = attribute()
    volatile: bool = attribute()
    of_warp: bool = attribute()
    values: tuple[Value, ...] = operands()

    CALLED: ClassVar[str | None] = "PTX"
    COUNTED: ClassVar[str | None] = "inline PTX"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("PTX", "write it with the functions of tilewright")

    @property
    def effects(self) -> Effects:
        if self.of_warp:
            return Effects(together=Scope.WARP, removable=False)
        return Effects(removable=False) if self.volatile else self.EFFECTS

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        for value in (*self.values, *self.results):
            expect(value.type in _CONSTRAINTS, f"no register for {value.type}")

    def floats(self) -> tuple[TypedValues, TypedValues]:
        inputs, outputs = ([(v, v.dtype) for v in side if v.dtype.is_float] for side in (self.values, self.results))
        return inputs, outputs

    def simulate(self, compiler: Compiler) -> Step:
        meaning, machine = self.meaning, compiler.machine
        if meaning is None:
            raise LanguageError(
                "the simulator does not know what this PTX computes",
                location=self.location,
                help="say it as a function of NumPy arrays: tw.inline_ptx(..., meaning=lambda x: ...)",
            )
        slots, results = compiler.slots(self.values), compiler.slots(self.results)

        def run(frame: Frame) -> None:
            if self.of_warp:
                demand_whole_warps(self, "PTX", frame.mask, machine, full=True)
            found = _apply(self, meaning, machine, [frame.values[slot] for slot in slots], frame.mask)
            for slot, value in zip(results, found, strict=True):
                frame.values[slot] = value

        return run

    def cuda(self, printer: Printer) -> None:
        outputs, narrowed, names = [], [], []
        for number, value in enumerate(self.results):
            stem = value.name or ("result" if len(self.results) == 1 else f"result{number}")
            type = value.dtype
            name = printer.names.declare(stem)
            names.append(name)
            if type.bits < 16:  # there are no such registers
                word = printer.names.declare(f"{stem}_word")
                printer.statement(f"int {word};", self)
                cut = f"{word} != 0" if type is bool_ else f"({type.c_name}){word}"
                narrowed.append(f"const {type.c_name} {name} = {cut};")
            else:
                word = f"{name}.bits" if is_half(type) else name
                printer.statement(f"{printer.type_name(type)} {name};", self)
            outputs.append(f'"={_CONSTRAINTS[type]}"({word})')
        inputs = [f'"{_CONSTRAINTS[v.dtype]}"({_register(printer, v).text})' for v in self.values]
        keyword = "asm volatile" if self.volatile or self.of_warp else "asm"
        lines = self.text.strip("\n").split("\n")
        texts = [string(line + ("\n" if n + 1 < len(lines) else "")) for n, line in enumerate(lines)]
        parts = [", ".join(outputs), ", ".join(inputs), '"memory"' if self.volatile or self.of_warp else ""]
        while parts and not parts[-1]:
            parts.pop()
        text = f"\n{' ' * (len(keyword) + 1)}".join(texts)
        printer.statement(f"{keyword}({text}{''.join(f' : {part}' for part in parts)});".replace(" :  :", " ::"), self)
        for statement in narrowed:
            printer.statement(statement, self)
        bind_results(printer, self, names)


# --- what it computes ------------------------------------------------------------------------------------


def _apply(op: InlinePtx, meaning: Meaning, machine: Machine, values: Sequence[Lanes], mask: Mask) -> list[Array]:
    """Return the results in all threads; the function gets those of the active threads alone, or warps."""
    blocks = max([1, *[x.shape[0] for x in (*values, mask) if np.ndim(x)]])
    threads, warp = machine.threads, machine.warp
    shape = (blocks, threads)
    active = np.broadcast_to(np.True_ if mask is None else mask, shape)
    rows = -(-threads // warp) * warp
    if op.of_warp:
        full = np.zeros((blocks, rows), np.bool_)
        full[:, :threads] = active
        chosen = full.reshape(-1, warp).any(axis=1)
    arrays = []
    for value in values:
        lanes = fill(value, *shape)
        if op.of_warp:
            padded = np.zeros((blocks, rows), lanes.dtype)
            padded[:, :threads] = lanes
            arrays.append(padded.reshape(-1, warp)[chosen])
        else:
            arrays.append(lanes[active])
    size = (int(chosen.sum()), warp) if op.of_warp else (int(active.sum()),)
    found = []
    for value, result in zip(op.results, _called(op, meaning, arrays, size), strict=True):
        if op.of_warp:
            every = np.zeros((blocks * rows // warp, warp), value.dtype.numpy)
            every[chosen] = result
            found.append(every.reshape(blocks, rows)[:, :threads])
        else:
            each = np.zeros(shape, value.dtype.numpy)
            each[active] = result
            found.append(each)
    return found


def _called(op: InlinePtx, meaning: Meaning, arrays: Sequence[Array], size: tuple[int, ...]) -> list[Array]:
    """Call the function, and check what it returns."""
    name = getattr(meaning, "__name__", "the function")
    try:
        with np.errstate(all="ignore"):
            returned = meaning(*arrays)
    except Exception as error:
        raise LanguageError(
            f"the meaning of this PTX, {name}, raised {type(error).__name__}: {error}", location=op.location
        ) from error
    results = list(returned) if isinstance(returned, (tuple, list)) else [] if returned is None else [returned]
    if len(results) != len(op.results):
        raise LanguageError(
            f"the meaning of this PTX, {name}, returned {len(results)} results, expected {len(op.results)}",
            location=op.location,
        )
    found = []
    for value, result in zip(op.results, results, strict=True):
        array = np.asarray(result)
        if array.dtype != value.dtype.numpy or array.shape != size:
            raise LanguageError(
                f"the meaning of this PTX, {name}, returned {array.dtype} of shape {array.shape}; "
                f"expected {value.dtype} of shape {size}",
                location=op.location,
                help=f"end it with .astype(np.{value.dtype.numpy.name}) where the type differs",
            )
        found.append(array)
    return found


# --- how it is written -----------------------------------------------------------------------------------

# The letter of the register that holds a type (CUDA's inline assembly, "Constraints").
_CONSTRAINTS: dict[Any, str] = {  # Any: the types of values, vectors among them
    **dict.fromkeys((bool_, int8, uint8, int32, uint32), "r"),
    **dict.fromkeys((int16, uint16, float16, bfloat16), "h"),
    **dict.fromkeys((int64, uint64), "l"),
    float32: "f",
    float64: "d",
}


def _register(printer: Printer, value: Value) -> Expression:
    """Return the text of a value in a type that its register takes."""
    x, type = exact(printer, value), value.dtype
    if is_half(type):
        printer.prelude.need_type(type)
        return Expression(f"{x.at_least(Rank.POSTFIX)}.bits", Rank.POSTFIX, x.type, x.reads)
    if type.bits < 16:
        return prefix("(int)", x, int32)
    return prefix(f"({type.c_name})", x, type) if type.bits == 16 else x
