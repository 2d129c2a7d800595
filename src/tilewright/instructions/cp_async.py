"""cp.async: copies of 4, 8 or 16 bytes by one thread from global to shared memory, which complete later.

    AsyncCopy       cp.async.ca, cp.async.cg     starts a copy; it belongs to the thread's open group
    AsyncCommit     cp.async.commit_group        closes the group
    AsyncWait       cp.async.wait_group, _all    waits for all groups but the newest ones, or for everything

Source: PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group"; CuTe `SM80_CP_ASYNC_CACHEALWAYS`,
`SM80_CP_ASYNC_CACHEGLOBAL`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tilewright.arch import Arch
from tilewright.arguments import shown
from tilewright.atoms.copy import CacheHints, CopyAtom, bits_of, hints_or_none, one_thread
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.cache_hints import hinted_name, policy_statement, second_level
from tilewright.backends.sim.machine import Access, AccessKind
from tilewright.backends.sim.values import Frame, Lanes, Mask, both, merge, without
from tilewright.dtypes import DType, bool_, int32
from tilewright.errors import LanguageError, LayoutError
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.effects import Completion, Effects, Order, attribute, operand, reads, writes
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Constant
from tilewright.layout import Layout
from tilewright.trace.scalar import as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.trace.vectors import VectorCopy

CacheMode = Literal["always", "global"]
SIZES = (4, 8, 16)  # bytes; past L1 only 16
_LONGEST_CALL = 90
_THROUGH_REGISTERS = "copy through registers: load from global memory, then store to shared memory"


# --- the atom --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AsyncCopyAtom(CopyAtom):
    """cp.async as a copy atom: `cache` is "always" (all levels) or "global" (past L1)."""

    cache: CacheMode = "always"

    @property
    def is_asynchronous(self) -> bool:
        """True: the copy is complete after `tw.cp_async_wait`."""
        return True

    def check(self, copy: VectorCopy, width: int) -> None:
        """Refuse what the instruction cannot do: other spaces, other sizes, older targets."""
        size = width * copy.src.dtype.bytes
        if not reaches(copy.spaces, size):
            raise LanguageError(
                f"tw.copy: {self.name} copies 4, 8 or 16 bytes from global to shared memory, "
                f"not {size} from {copy.spaces[0].value} to {copy.spaces[1].value}"
            )
        if not copy.tracer.arch.has_cp_async:
            raise LanguageError(
                f"tw.copy: {copy.tracer.arch.name} has no cp.async; it needs sm_80 or later",
                details=[f"from {copy.src.title}", f"to {copy.dst.title}"],
                help=f"copy through registers: tw.atoms.UniversalCopy({self.bits})",
            )

    def move(self, copy: VectorCopy, places: list[Any], width: int, guard: Any) -> None:  # Any: host or device numbers
        """Emit the copy of one vector; of `guard`, a bool or a number of elements, see `AsyncCopy.valid`."""
        emit_copy(copy, places, width, guard, "cg" if self.cache == "global" else "ca")


def CpAsync(
    width: int | DType, cache: CacheMode = "always", *, policy: str | None = None, prefetch: int | None = None
) -> CopyAtom:
    """Make the atom of an asynchronous copy from global to shared memory (sm_80 and later).

    `cache="always"` keeps the data in L1 too (4, 8 or 16 bytes); `cache="global"` goes past L1 (16 bytes).
    `policy` says what becomes of the lines in L2 ("evict_first", "evict_last", ...), `prefetch` how many bytes around
    each address may come to L2 with it (64, 128 or 256).

    >>> CpAsync(64).bits, CpAsync(128, cache="global").cache
    (64, 'global')
    >>> print(CpAsync(128, cache="global", policy="evict_last", prefetch=128))
    CpAsync(128, cache='global', policy='evict_last', prefetch=128)

    Raises `LayoutError` for other widths: the instruction moves no others. Source: PTX ISA, "cp.async"; CuTe
    `SM80_CP_ASYNC_CACHEALWAYS` and `SM80_CP_ASYNC_CACHEGLOBAL`.
    """
    bits = bits_of(width)
    if cache not in ("always", "global"):
        raise LayoutError(f"cp.async caches 'always' or 'global', not {cache!r}")
    legal = (32, 64, 128) if cache == "always" else (128,)
    if bits not in legal:
        raise LayoutError(
            f"cp.async (cache={cache!r}) moves {' or '.join(map(str, legal))} bits, not {bits}",
            help="PTX: cp.async.ca takes 4, 8 or 16 bytes, cp.async.cg 16 bytes only",
        )
    layout = one_thread(bits)
    hints = hints_or_none(None, policy, prefetch)
    name = f"CpAsync({bits}, cache={cache!r}{'' if hints is None else f', {hints}'})"
    return AsyncCopyAtom(name, "sm_80", bits, Layout(1), layout, layout, hints=hints, cache=cache)


def SM80_CP_ASYNC_CACHEALWAYS(width: int | DType) -> CopyAtom:
    """Make `CpAsync(width, cache="always")`, under CuTe's name."""
    return CpAsync(width, "always")


def SM80_CP_ASYNC_CACHEGLOBAL(width: int | DType) -> CopyAtom:
    """Make `CpAsync(width, cache="global")`, under CuTe's name."""
    return CpAsync(width, "global")


def reaches(spaces: tuple[Space, Space], size: int) -> bool:
    """Say whether the instruction copies `size` bytes between two spaces."""
    return spaces == (Space.GLOBAL, Space.SHARED) and size in SIZES


def atom_for(bits: int, arch: Arch) -> CopyAtom | None:
    """Return the atom that copies so many bits from global to shared memory, past L1 where it can; None: none does."""
    if not arch.has_cp_async or bits // 8 not in SIZES:
        return None
    return CpAsync(bits, cache="global" if bits == 128 else "always")


def emit_copy(copy: VectorCopy, places: list[Any], width: int, guard: Any, cache: str) -> None:
    """Emit one copy of `width` elements; `places` are the offsets in source and destination."""
    valid = as_scalar(True, bool_) if guard is None else guard
    if not (copy.counts and width > 1):
        valid = as_scalar(valid, bool_)
    src, dst = copy.src.engine, copy.dst.engine
    indices = dst.index(places[1]), src.index(places[0])
    copy.tracer.emit(AsyncCopy(dst.buffer, src.buffer, width, cache, *indices, valid.value, copy.hints[0]))


# --- what a kernel says ----------------------------------------------------------------------------------


def cp_async_commit() -> None:
    """Commit the thread's asynchronous copies started so far as one group (PTX cp.async.commit_group)."""
    current("tw.cp_async_commit").emit(AsyncCommit())


def cp_async_wait(pending: int | None = None) -> None:
    """Wait for the thread's asynchronous copies.

    With a number, wait until at most that many of the newest committed groups are pending
    (PTX cp.async.wait_group); without one, for all copies, committed or not (cp.async.wait_all). Other threads'
    copies are visible after a `sync_threads` that follows each thread's wait.
    """
    groups: object = pending
    if groups is not None and (not isinstance(groups, int) or not 0 <= groups <= int32.highest):
        raise LanguageError(
            f"tw.cp_async_wait takes the number of groups left pending, got {shown(groups)}",
            help="the number is part of the instruction: a Python int of 32 bits, at least 0",
        )
    current("tw.cp_async_wait").emit(AsyncWait(pending))


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class AsyncCopy(Instruction):
    """Start copying `elements` elements of global `source` to shared `destination` (cp.async).

    They land when the thread waits for the group, or somebody for an mbarrier that follows them. `valid` is a bool, or
    the int32 number of leading elements that are there (zero or less: none, `elements` or more: all); zeros land in
    place of the others, which are not read. `cache` is "ca" (all levels; 4, 8 or 16 bytes) or "cg" (L2 only; 16 bytes).
    """

    destination: Buffer = writes(
        "destination_index", elements=lambda op: op.elements, past_l1=lambda op: op.cache == "cg"
    )
    source: Buffer = reads("source_index", elements=lambda op: op.elements)
    elements: int = attribute()
    cache: str = attribute()
    destination_index: Value = operand()
    source_index: Value = operand()
    valid: Value = operand()
    hints: CacheHints | None = attribute(None)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(asynchronous=Completion.GROUP)
    COUNTED: ClassVar[str | None] = "cp.async"
    RESERVED: ClassVar[str] = r"cp_async\w*"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("cp.async", _THROUGH_REGISTERS)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        spaces = (self.source.space, self.destination.space)
        expect(spaces == (Space.GLOBAL, Space.SHARED), "copies from global to shared memory")
        expect(self.source.dtype is self.destination.dtype, "the element types differ")
        expect(self.cache in ("ca", "cg"), f"no cache operator {self.cache}")
        sizes = (16,) if self.cache == "cg" else SIZES
        expect(self.elements * self.source.dtype.bytes in sizes, "no instruction of that size")
        expect(self.valid.type in (bool_, int32), "the predicate must be bool, or int32 for a number of elements")

    def simulate(self, compiler: Compiler) -> Step:
        """Read the source now, zeros where it is not valid; what is read lands when it is waited for."""
        machine, queue, lanes = compiler.machine, compiler.copies, self.elements
        destination = machine.storages[self.destination]
        slots = compiler.slots((self.source_index, self.destination_index, self.valid))
        reader = _Reader(self, compiler)
        read = reader.read if self.valid.type is bool_ else reader.read_some

        def run(frame: Frame) -> None:
            values, mask = frame.values, frame.mask
            at_source, index, valid = (values[slot] for slot in slots)
            if machine.observers:
                refused = machine.observe(Access(self, AccessKind.COPY_WRITE, destination, index, lanes, mask))
                if refused is not None:
                    mask = without(mask, refused)
            try:
                value = read(at_source, valid, mask)
            except IndexError as error:
                raise machine.outside(self, self.source, error) from None
            queue.issue(self, destination, index, value, lanes, mask)

        return run

    def cuda(self, printer: Printer) -> None:
        if not printer.arch.has_cp_async:
            raise printer.refuse(
                self, f"cp.async needs sm_80 or later, and the target is {printer.arch}", _THROUGH_REGISTERS
            )
        valid = self.valid.definition
        always = self.valid.dtype is bool_ and isinstance(valid, Constant) and bool(valid.value)
        size = self.elements * self.source.dtype.bytes
        some_of = self.elements if self.valid.dtype is int32 else 0
        name, definition = _copy_function(size, self.cache, zero_fill=not always, some_of=some_of, hints=self.hints)
        printer.prelude.need(definition)
        arguments = [
            address(printer, self.destination, self.destination_index),
            address(printer, self.source, self.source_index),
        ]
        if not always:
            arguments.append(exact(printer, self.valid))
        text = f"{name}({', '.join(a.text for a in arguments)});"
        if len(text) > _LONGEST_CALL:
            text = f"{name}(\n    " + ",\n    ".join(a.text for a in arguments) + ");"
        printer.statement(text, self)


@dataclass(eq=False)
class AsyncCommit(Instruction):
    """Close the thread's current group of asynchronous copies (cp.async.commit_group)."""

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, commits=Completion.GROUP)
    COUNTED: ClassVar[str | None] = "commit"
    RESERVED: ClassVar[str] = r"cp_async\w*"

    def simulate(self, compiler: Compiler) -> Step:
        return compiler.copies.commit

    def cuda(self, printer: Printer) -> None:
        # Without asynchronous copies there is nothing to commit, and they are refused below sm_80.
        if printer.arch.has_cp_async:
            printer.prelude.need(_COMMIT)
            printer.statement("cp_async_commit();", self)

    def hip(self, printer: Printer) -> None:
        """Print nothing: without asynchronous copies there is nothing to close."""


@dataclass(eq=False)
class AsyncWait(Instruction):
    """Wait until at most `pending` of the thread's newest groups are still pending (cp.async.wait_group).

    `pending` None waits for every asynchronous copy, committed or not (cp.async.wait_all).
    """

    pending: int | None = attribute()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, completes=Completion.GROUP)
    COUNTED: ClassVar[str | None] = "wait"
    RESERVED: ClassVar[str] = r"cp_async\w*"

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, pending=self.pending)

    def simulate(self, compiler: Compiler) -> Step:
        machine, queue, newest = compiler.machine, compiler.copies, self.pending

        def run(frame: Frame) -> None:
            queue.wait(newest, frame)
            for observer in machine.observers:
                observer.wait(self, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        if not printer.arch.has_cp_async:
            return
        if self.pending is None:
            printer.prelude.need(_WAIT_ALL)
            printer.statement("cp_async_wait_all();", self)
        else:
            printer.prelude.need(_WAIT)
            printer.statement(f"cp_async_wait<{self.pending}>();", self)

    def hip(self, printer: Printer) -> None:
        """Print nothing: without asynchronous copies there is nothing to wait for."""


# --- what it computes ------------------------------------------------------------------------------------


class _Reader:
    """Reads the source of a copy for the threads that have one."""

    def __init__(self, op: AsyncCopy, compiler: Compiler) -> None:
        self.op, self.machine, self.lanes = op, compiler.machine, op.elements
        self.source = compiler.machine.storages[op.source]
        self.zero = np.zeros((1, 1) if self.lanes == 1 else (1, 1, self.lanes), op.source.dtype.numpy)

    def read(self, index: Lanes, valid: Lanes, mask: Mask) -> Lanes:
        """Read whole vectors, zeros where they are not valid."""
        invalid = None
        if isinstance(valid, np.ndarray):
            mask, invalid = both(mask, valid), ~valid
        elif not valid:
            return self.zero
        if self.machine.observers:
            access = Access(self.op, AccessKind.COPY_READ, self.source, index, self.lanes, mask)
            refused = self.machine.observe(access)
            if refused is not None:
                mask = without(mask, refused)
                invalid = refused if invalid is None else invalid | refused
        found = self.source.load(index, self.lanes, mask)
        return found if invalid is None else merge(invalid, self.zero, found)

    def read_some(self, index: Lanes, count: Lanes, mask: Mask) -> Lanes:
        """Read whole vectors where all elements are there, and single elements where only the first are."""
        whole = self.read(index, count >= self.lanes, mask)
        partial = np.atleast_2d((count > 0) & (count < self.lanes))
        if not partial.any():
            return whole
        reads = both(mask, partial)
        assert reads is not None
        shape = np.broadcast_shapes(reads.shape, whole.shape[:2])
        value = np.array(np.broadcast_to(whole, (*shape, self.lanes)))
        for lane in range(self.lanes - 1):
            there = reads & (count > lane)
            value[..., lane] = np.where(there, self._element(index + lane, there), value[..., lane])
        return value

    def _element(self, index: Lanes, mask: Mask) -> Lanes:
        if self.machine.observers:
            refused = self.machine.observe(Access(self.op, AccessKind.COPY_READ, self.source, index, 1, mask))
            if refused is not None:
                return merge(refused, self.zero[..., 0], self.source.load(index, 1, without(mask, refused)))
        return self.source.load(index, 1, mask)


# --- how it is written -----------------------------------------------------------------------------------

_COMMIT = f"""\
{FUNCTION} void cp_async_commit() {{
    asm volatile("cp.async.commit_group;" ::: "memory");
}}"""

_WAIT = f"""\
// Waits until at most `pending` of this thread's newest groups of copies are under way.
template <int pending>
{FUNCTION} void cp_async_wait() {{
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}}"""

_WAIT_ALL = f"""\
{FUNCTION} void cp_async_wait_all() {{
    asm volatile("cp.async.wait_all;" ::: "memory");
}}"""


def _copy_function(
    size: int, cache: str, *, zero_fill: bool, some_of: int = 0, hints: CacheHints | None = None
) -> tuple[str, str]:
    """Return the name and the definition of a copy of 4, 8 or 16 bytes from global to shared memory.

    With `zero_fill` it takes whether the source is there; with `some_of` how many of that many elements are.
    """
    name = f"cp_async_{cache}_{size}" + (f"_some_of_{some_of}" if some_of else "_zero_fill" if zero_fill else "")
    instruction = f"cp.async.{cache}.shared.global{second_level(hints)} [%0], [%1], {size}"
    parameter, value, comment, before = "", "", "", ""
    if some_of:
        comment = (
            f"// Copies the first `count` of {some_of} elements and writes zeros in place of the others, which are not "
            "read.\n"
        )
        parameter, value = ", int count", ', "r"(bytes)'
        before = f"    const int bytes = count <= 0 ? 0 : count >= {some_of} ? {size} : count * {size // some_of};\n"
        instruction += ", %2"
    elif zero_fill:
        comment = "// Where `valid` is false, zeros are written and the source is not read.\n"
        parameter, value = ", bool valid", f', "r"(valid ? {size} : 0)'
        instruction += ", %2"
    policy = "" if hints is None else policy_statement(hints)
    if policy:
        instruction += f", %{3 if some_of or zero_fill else 2}"
        value += ', "l"(l2_policy)'
    name = hinted_name(name, hints)
    definition = f"""\
{comment}{FUNCTION} void {name}(void* destination, const void* source{parameter}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
{before}{policy}    asm volatile("{instruction};" :: "r"(address), "l"(source){value} : "memory");
}}"""
    return name, definition
