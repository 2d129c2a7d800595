"""atom: indivisible updates of an element, with what they order and for whom; compare-and-swap, and pairs of halves.

`sem` says what an operation orders besides: "relaxed" nothing, "release" that whoever acquires what it wrote sees what
the thread did before, "acquire" the other side of it, "acq_rel" both. `scope` says for whom: the block ("cta"), the
cluster, the GPU, or the whole system.

Source: PTX ISA, "atom", "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.arguments import instance
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.atomics import compare_and_swap
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.memory import Swap, update_memory, update_pair
from tilewright.dtypes import bfloat16, bool_, float16
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Space, Value, VectorType
from tilewright.ir.effects import MEMORY_SCOPES, Effects, attribute, operand, strong, updates
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Atomic, Extract, Pack
from tilewright.tensors import Tensor
from tilewright.trace.engine import BufferEngine
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
_HALVES = (float16, bfloat16)


# --- what a kernel says ----------------------------------------------------------------------------------


def atomic_add(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Add to an element atomically and return its old value: old = t[coord]; t[coord] = old + value.

    A tuple of two float16 or bfloat16 values is added by one instruction to the element and the next one in memory,
    each atomically; the offset of the first must be even. The result then is a tuple too.

    Raises `LanguageError` for registers, for a type without such an operation, and for a `sem` or `scope` other than
    "relaxed", "acquire", "release", "acq_rel" and "cta", "cluster", "gpu", "sys".
    """
    if isinstance(value, tuple):
        return _add_pair(tensor, coord, value, sem, scope)
    return _atomic("add", tensor, coord, value, sem, scope)


def atomic_max(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Raise an element to a value atomically and return its old value: old = t[coord]; t[coord] = max(old, value).

    For floats, a number is preferred to NaN, and -0 is less than +0. Errors as `atomic_add`.
    """
    return _atomic("max", tensor, coord, value, sem, scope)


def atomic_min(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Lower an element to a value atomically and return its old value: old = t[coord]; t[coord] = min(old, value).

    For floats, a number is preferred to NaN, and -0 is less than +0. Errors as `atomic_add`.
    """
    return _atomic("min", tensor, coord, value, sem, scope)


def atomic_and(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Clear the bits of an integer that a value lacks, atomically; return the old value. Errors as `atomic_add`."""
    return _atomic("and", tensor, coord, value, sem, scope)


def atomic_or(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Set the bits of an integer that a value has, atomically; return the old value. Errors as `atomic_add`."""
    return _atomic("or", tensor, coord, value, sem, scope)


def atomic_xor(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Invert the bits of an integer that a value has, atomically; return the old value. Errors as `atomic_add`."""
    return _atomic("xor", tensor, coord, value, sem, scope)


def atomic_exch(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Any:
    """Store a value in an element atomically and return the old value. Errors as `atomic_add`."""
    return _atomic("exch", tensor, coord, value, sem, scope)


def atomic_cas(
    tensor: Tensor, coord: Any, compare: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu"
) -> Any:
    """Store a value in an element if it equals `compare`, atomically; return the old value: `compare` on success.

    Floats are compared by their bits, so that a NaN equals itself and 0.0 differs from -0.0. Errors as `atomic_add`.
    """
    engine = _engine("atomic_cas", tensor)
    _demand_words("atomic_cas", sem, scope)
    if tensor.dtype.bits < 16 or tensor.dtype is bool_:
        raise _no_type("cas", tensor)
    engine.demand_guards()
    index = engine.index(tensor.offset_of(coord))
    expected, new = (as_scalar(x, tensor.dtype).value for x in (compare, value))
    old = current("an atomic operation").emit(
        CompareAndSwap(engine.buffer, index, expected, new, sem, scope), tensor.dtype
    )
    return Scalar(old[0])


def _atomic(kind: str, tensor: Tensor, coord: Any, value: Any, sem: str, scope: str) -> Any:
    engine = _engine(f"atomic_{kind}", tensor)
    _demand_words(f"atomic_{kind}", sem, scope)
    element = tensor.dtype
    if element.bits < 16 or element is bool_ or (kind in ("and", "or", "xor") and element.is_float):
        raise _no_type(kind, tensor)
    engine.demand_guards()
    place = tensor.offset_of(coord)
    operand = as_scalar(value, element)
    op = Atomic(kind, engine.buffer, engine.index(place), operand.value, sem, scope)
    return Scalar(current("an atomic operation").emit(op, element)[0])


def _add_pair(tensor: Tensor, coord: Any, values: tuple[Any, ...], sem: str, scope: str) -> tuple[Scalar, Scalar]:
    engine = _engine("atomic_add", tensor)
    _demand_words("atomic_add", sem, scope)
    element = tensor.dtype
    if len(values) != 2 or element not in _HALVES:
        raise LanguageError(
            f"tw.atomic_add adds two values at once to float16 and bfloat16, not {len(values)} to {element}",
            help="add one value with each call",
        )
    engine.demand_guards()
    tracer = current("an atomic operation")
    pair = VectorType(element, 2)
    given = tracer.pure(Pack(tuple(as_scalar(v, element).value for v in values)), pair)
    old = tracer.emit(AddPair(engine.buffer, engine.index(tensor.offset_of(coord)), given, sem, scope), pair)[0]
    first, second = (Scalar(tracer.pure(Extract(old, lane), element)) for lane in range(2))
    return first, second


def _engine(name: str, tensor: Tensor) -> BufferEngine:
    instance(f"tw.{name}", "tensor", tensor, Tensor, "a tensor")
    engine = tensor.engine
    if not isinstance(engine, BufferEngine) or tensor.space not in ("global", "shared"):
        raise LanguageError(f"tw.{name} works on global and shared memory, not on a {tensor.space} tensor")
    return engine


def _demand_words(name: str, sem: str, scope: str) -> None:
    for word, given, known in (("sem", sem, _SEMANTICS), ("scope", scope, MEMORY_SCOPES)):
        if given not in known:
            raise LanguageError(f"tw.{name}: {word} is {given!r}", help=f"it is one of {', '.join(map(repr, known))}")


def _no_type(kind: str, tensor: Tensor) -> LanguageError:
    whole = "an integer of 16, 32 or 64 bits"
    help = f"use {whole}" if kind in ("and", "or", "xor") else f"use {whole}, or a float of 16 bits or more"
    return LanguageError(f"atomic {kind} does not exist for {tensor.dtype}", help=help)


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CompareAndSwap(Instruction):
    """result = old = buffer[index]; where that is `compare`, bit for bit, buffer[index] = value; indivisibly."""

    buffer: Buffer = updates("index")
    index: Value = operand()
    compare: Value = operand()
    value: Value = operand()
    sem: str = attribute("relaxed")
    scope: str = attribute("gpu")

    CALLED: ClassVar[str | None] = "tw.atomic_cas"
    RESULTS: ClassVar[int | None] = 1
    COUNTED: ClassVar[str | None] = "compare and swap"

    @property
    def effects(self) -> Effects:
        return strong(self.sem, self.scope)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        types = {self.compare.type, self.value.type, self.result.type}
        expect(types == {self.buffer.dtype}, f"{self.buffer.name} holds {self.buffer.dtype}")

    def simulate(self, compiler: Compiler) -> Step:
        return update_memory(self, compiler, self.buffer, self.index, (self.compare, self.value), Swap())

    def cuda(self, printer: Printer) -> Expression:
        return compare_and_swap(
            printer, self, self.buffer, (self.index, self.compare, self.value), self.sem, self.scope
        )

    def hip(self, printer: Printer) -> Expression:
        return self.cuda(printer)


@dataclass(eq=False)
class AddPair(Instruction):
    """result = old = buffer[index : index + 2]; both elements are increased, each indivisibly."""

    buffer: Buffer = updates("index", elements=lambda op: 2)
    index: Value = operand()
    value: Value = operand()
    sem: str = attribute("relaxed")
    scope: str = attribute("gpu")

    CALLED: ClassVar[str | None] = "tw.atomic_add of two values"
    RESULTS: ClassVar[int | None] = 1
    COUNTED: ClassVar[str | None] = "packed atomic"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("atomic addition of two halves", "add one value with each call")

    @property
    def effects(self) -> Effects:
        return strong(self.sem, self.scope)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        pair = VectorType(self.buffer.dtype, 2)
        expect(self.buffer.dtype in _HALVES, "adds float16 or bfloat16")
        expect(self.value.type == pair and self.result.type == pair, "adds two values")

    def simulate(self, compiler: Compiler) -> Step:
        return update_pair(self, compiler, self.buffer, self.index, self.value)

    def cuda(self, printer: Printer) -> Expression:
        dtype, pair = self.buffer.dtype, self.value.type
        if dtype is bfloat16 and printer.arch.number < 90:
            raise printer.refuse(
                self, f"{printer.arch} has no atomic addition of two bfloat16", "add one value with each call"
            )
        printer.prelude.need_type(dtype)
        c = printer.type_name(pair)
        # A generic address would have the machine ask, before each update, whether it is one of shared memory.
        is_global = self.buffer.space is Space.GLOBAL
        name = f"atomic_add_pair_{self.sem}_{self.scope}" + ("" if is_global else "_shared")
        space, place = (".global", "__cvta_generic_to_global(address)") if is_global else ("", "address")
        suffix = "f16x2" if dtype is float16 else "bf16x2"
        printer.prelude.need(printer.dialect.bit_cast)
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({printer.type_name(dtype)}* address, {c} value) {{
    unsigned int old;
    asm volatile("atom.{self.sem}.{self.scope}{space}.add.noftz.{suffix} %0, [%1], %2;"
        : "=r"(old) : "l"({place}), "r"(bit_cast<unsigned int>(value)) : "memory");
    return bit_cast<{c}>(old);
}}""")
        return call(name, (address(printer, self.buffer, self.index), exact(printer, self.value)), pair)
