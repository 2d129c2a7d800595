"""ld, st and fence of the memory model: accesses that other threads may make at the same time, and what they order.

    OrderedLoad     ld.relaxed, ld.acquire, ld.volatile
    OrderedStore    st.relaxed, st.release, st.volatile
    Fence           fence.acq_rel (__threadfence and its like)

Source: PTX ISA, "ld", "st", "membar / fence", "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.arguments import instance
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.operations import demand_scope
from tilewright.backends.sim.machine import Synchronisation
from tilewright.backends.sim.memory import load as load_elements
from tilewright.backends.sim.memory import store as store_elements
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Value
from tilewright.ir.effects import MEMORY_SCOPES, Effects, attribute, operand, reads, strong, writes
from tilewright.ir.instruction import Instruction
from tilewright.tensors import Tensor
from tilewright.trace.engine import BufferEngine
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.backends.sim.values import Frame

_OF_LOADS = ("weak", "relaxed", "acquire", "volatile")
_OF_STORES = ("weak", "relaxed", "release", "volatile")


# --- what a kernel says ----------------------------------------------------------------------------------


def load(tensor: Tensor, coord: Any, *, sem: str = "relaxed", scope: str = "gpu") -> Scalar:
    """Return an element that other threads may write at the same time.

    With "acquire", what the thread does next is ordered after everything before the release whose value it read.
    "relaxed" and "volatile" (relaxed for the whole system) order nothing; a `threadfence` after either makes it an
    acquire. "weak" is an ordinary read, `tensor[coord]`. `scope` is "cta", "cluster", "gpu" or "sys".

    Raises `LanguageError` for registers and for other orders and scopes. Source: PTX ISA, ld.
    """
    engine = _engine("tw.load", tensor, sem, _OF_LOADS, scope)
    place = tensor.offset_of(coord)
    if sem == "weak":
        return engine.load(place)
    engine.demand_guards()
    op = OrderedLoad(engine.buffer, engine.index(place), sem, "sys" if sem == "volatile" else scope)
    return Scalar(current("tw.load").emit(op, tensor.dtype)[0])


def store(tensor: Tensor, coord: Any, value: Any, *, sem: str = "relaxed", scope: str = "gpu") -> None:
    """Write an element that other threads may read or write at the same time.

    With "release", a thread that acquires the value sees everything this thread did before. "relaxed" and "volatile"
    order nothing; a `threadfence` before either makes it a release. "weak" is an ordinary write, `tensor[coord] =
    value`. `scope` is "cta", "cluster", "gpu" or "sys".

    Raises `LanguageError` for registers and for other orders and scopes. Source: PTX ISA, st.
    """
    engine = _engine("tw.store", tensor, sem, _OF_STORES, scope)
    place = tensor.offset_of(coord)
    if sem == "weak":
        engine.store(place, value)
        return
    engine.demand_guards()
    given = as_scalar(value, tensor.dtype).to(tensor.dtype)
    scope = "sys" if sem == "volatile" else scope
    current("tw.store").emit(OrderedStore(engine.buffer, engine.index(place), given.value, sem, scope))


def threadfence(scope: str = "gpu") -> None:
    """Order the thread's accesses before the fence before those after it, for all threads of the scope.

    A relaxed store or atomic operation after it becomes a release, and a relaxed load or atomic operation before it an
    acquire. `scope` is "cta", "cluster", "gpu" or "sys" (CUDA __threadfence_block, __threadfence,
    __threadfence_system). Raises `LanguageError` for another word.
    """
    _demand("tw.threadfence", "scope", scope, MEMORY_SCOPES)
    current("tw.threadfence").emit(Fence(scope))


def _engine(name: str, tensor: Tensor, sem: str, known: tuple[str, ...], scope: str) -> BufferEngine:
    instance(name, "tensor", tensor, Tensor, "a tensor")
    _demand(name, "sem", sem, known)
    _demand(name, "scope", scope, MEMORY_SCOPES)
    engine = tensor.engine
    if not isinstance(engine, BufferEngine) or tensor.space not in ("global", "shared"):
        raise LanguageError(f"{name} works on global and shared memory, not on a {tensor.space} tensor")
    return engine


def _demand(name: str, word: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise LanguageError(f"{name}: {word} is {given!r}", help=f"it is one of {', '.join(map(repr, known))}")


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class OrderedLoad(Instruction):
    """result = buffer[index], a strong access."""

    buffer: Buffer = reads("index")
    index: Value = operand()
    sem: str = attribute()
    scope: str = attribute()

    CALLED: ClassVar[str | None] = "tw.load"
    RESULTS: ClassVar[int | None] = 1
    COUNTED: ClassVar[str | None] = "ordered load"
    RESERVED: ClassVar[str] = r"(load|store)_(relaxed|acquire|release|volatile)_\w+"

    @property
    def effects(self) -> Effects:
        return strong(self.sem, self.scope)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.sem in _OF_LOADS[1:], f"no load {self.sem}")
        expect(self.result.type is self.buffer.dtype, f"{self.buffer.name} holds {self.buffer.dtype}")

    def simulate(self, compiler: Compiler) -> Step:
        return load_elements(self, compiler)

    def cuda(self, printer: Printer) -> Expression:
        demand_scope(printer, self, self.scope)
        size = self.buffer.dtype.bytes
        c, ptx, register = _WORDS[size]
        name = f"load_{self.sem}_{self.scope}_{size}"
        printer.prelude.need_type(self.buffer.dtype)
        printer.prelude.need(printer.dialect.bit_cast)
        bits = "(unsigned char)bits" if size == 1 else "bits"
        printer.prelude.need(f"""\
template <typename T>
{FUNCTION} T {name}(const T* address) {{
    {c} bits;
    asm volatile("ld.{_qualifiers(self)}.{ptx} %0, [%1];" : "={register}"(bits) : "l"(address) : "memory");
    return bit_cast<T>({bits});
}}""")
        return call(name, (address(printer, self.buffer, self.index),), self.buffer.dtype)

    def hip(self, printer: Printer) -> Expression:
        size = self.buffer.dtype.bytes
        c, name = _AMD_WORDS[size], f"load_{self.sem}_{self.scope}_{size}"
        printer.prelude.need_type(self.buffer.dtype)
        printer.prelude.need(printer.dialect.bit_cast)
        if size < 4:
            behind = f"    {_fence_of_amd(self.scope)};\n" if self.sem == "acquire" else ""
            body = f"    {c} bits = *(const volatile {c}*)address;\n{behind}    return bit_cast<T>(bits);"
        else:
            order, reach = _of_amd(self.sem, self.scope)
            body = f"    return bit_cast<T>(__hip_atomic_load((const {c}*)address, {order}, {reach}));"
        printer.prelude.need(f"template <typename T>\n{FUNCTION} T {name}(const T* address) {{\n{body}\n}}")
        return call(name, (address(printer, self.buffer, self.index),), self.buffer.dtype)


@dataclass(eq=False)
class OrderedStore(Instruction):
    """buffer[index] = value, a strong access."""

    buffer: Buffer = writes("index")
    index: Value = operand()
    value: Value = operand()
    sem: str = attribute()
    scope: str = attribute()

    CALLED: ClassVar[str | None] = "tw.store"
    RESULTS: ClassVar[int | None] = 0
    COUNTED: ClassVar[str | None] = "ordered store"
    RESERVED: ClassVar[str] = OrderedLoad.RESERVED

    @property
    def effects(self) -> Effects:
        return strong(self.sem, self.scope)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.sem in _OF_STORES[1:], f"no store {self.sem}")
        expect(self.value.type is self.buffer.dtype, f"{self.buffer.name} holds {self.buffer.dtype}")

    def simulate(self, compiler: Compiler) -> Step:
        return store_elements(self, compiler)

    def cuda(self, printer: Printer) -> None:
        demand_scope(printer, self, self.scope)
        size = self.buffer.dtype.bytes
        c, ptx, register = _WORDS[size]
        bits = "(unsigned short)bit_cast<unsigned char>(value)" if size == 1 else f"bit_cast<{c}>(value)"
        body = f"""    asm volatile("st.{_qualifiers(self)}.{ptx} [%0], %1;"
        :: "l"(address), "{register}"({bits}) : "memory");"""
        self._print(printer, body)

    def hip(self, printer: Printer) -> None:
        size = self.buffer.dtype.bytes
        c = _AMD_WORDS[size]
        if size < 4:
            before = f"    {_fence_of_amd(self.scope)};\n" if self.sem == "release" else ""
            self._print(printer, f"{before}    *(volatile {c}*)address = bit_cast<{c}>(value);")
            return
        order, reach = _of_amd(self.sem, self.scope)
        self._print(printer, f"    __hip_atomic_store(({c}*)address, bit_cast<{c}>(value), {order}, {reach});")

    def _print(self, printer: Printer, body: str) -> None:
        c = printer.type_name(self.buffer.dtype)
        name = f"store_{self.sem}_{self.scope}_{self.buffer.dtype.bytes}"
        printer.prelude.need_type(self.buffer.dtype)
        printer.prelude.need(printer.dialect.bit_cast)
        printer.prelude.need(f"template <typename T>\n{FUNCTION} void {name}(T* address, T value) {{\n{body}\n}}")
        place = address(printer, self.buffer, self.index)
        printer.statement(f"{name}<{c}>({place.text}, {exact(printer, self.value).text});", self)


@dataclass(eq=False)
class Fence(Instruction):
    """Order what the thread did before and what it does after, for the threads of the scope."""

    scope: str = attribute()

    CALLED: ClassVar[str | None] = "tw.threadfence"
    RESULTS: ClassVar[int | None] = 0
    COUNTED: ClassVar[str | None] = "fence"
    RESERVED: ClassVar[str] = "fence_cluster"

    @property
    def effects(self) -> Effects:
        return strong("acq_rel", self.scope)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.scope in MEMORY_SCOPES, f"no scope {self.scope}")

    def simulate(self, compiler: Compiler) -> Step:
        observers = compiler.machine.observers

        def run(frame: Frame) -> None:
            for observer in observers:
                observer.synchronise(Synchronisation(self, None, None, frame.mask, None))

        return run

    def cuda(self, printer: Printer) -> None:
        if self.scope != "cluster":
            printer.statement(f"{_FENCES[self.scope]}();", self)
            return
        demand_scope(printer, self, self.scope)
        printer.prelude.need(f"""\
{FUNCTION} void fence_cluster() {{
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
}}""")
        printer.statement("fence_cluster();", self)

    def hip(self, printer: Printer) -> None:
        printer.statement(f"{_fence_of_amd(self.scope)};", self)


# --- how they are written --------------------------------------------------------------------------------

_FENCES = {"cta": "__threadfence_block", "gpu": "__threadfence", "sys": "__threadfence_system"}

# By the bytes of an element: the C++ type of its bits, the PTX type of an access, and the register.
_WORDS = {
    1: ("unsigned short", "b8", "h"),
    2: ("unsigned short", "b16", "h"),
    4: ("unsigned int", "b32", "r"),
    8: ("unsigned long long", "b64", "l"),
}
# clang has no atomic accesses of one and two bytes: they are volatile ones, with a fence where they order something.
_AMD_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def _qualifiers(op: OrderedLoad | OrderedStore) -> str:
    return op.sem if op.sem == "volatile" else f"{op.sem}.{op.scope}"


def _of_amd(sem: str, scope: str) -> tuple[str, str]:
    """Return the order and the scope of clang's atomic accesses; AMD's GPUs have no clusters of blocks."""
    reach = {"cta": "WORKGROUP", "cluster": "AGENT", "gpu": "AGENT", "sys": "SYSTEM"}[scope]
    order = "RELAXED" if sem == "volatile" else sem.upper()
    return f"__ATOMIC_{order}", f"__HIP_MEMORY_SCOPE_{reach}"


def _fence_of_amd(scope: str) -> str:
    return f"{_FENCES['gpu' if scope == 'cluster' else scope]}()"
