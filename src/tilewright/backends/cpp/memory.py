"""Buffers and how they are reached: declarations and parameters, loads and stores.

Global memory is reached through pointers; shared memory and registers are arrays. Shared buffers are separate arrays
where all of them fit into the 48 KiB that every GPU gives without asking. Beyond that, and where buffers with disjoint
lifetimes share their bytes, they are pointers into one array, at the places that the placement of memory chose.
"""

from __future__ import annotations

from itertools import pairwise

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, prefix
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import int32, uint32, uint64
from tilewright.errors import InternalError
from tilewright.ir.core import Buffer, Kernel, Op, Space, Type, Value, VectorType
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import AddressOf, Allocate, AllocateAt, AtRank, Bitcast, Constant, Load, Point, Store

_ARENA_ALIGNMENT = 128  # at least; more where a buffer asks for it


def pointer(printer: Printer, buffer: Buffer, *, restrict: bool) -> str:
    """Return the declaration of a global buffer as a parameter, without its name.

    Only what the kernel never writes is `__restrict__`: its loads may use the read-only path and move across
    stores. Pointers that are written carry no such promise, because two arguments may be one array on purpose, and none
    does in a kernel that writes through addresses. Where reads are to stay behind a fence, there is no promise either.
    """
    type_name = printer.type_name(buffer.dtype)
    restrict = restrict and buffer not in printer.read_in_order
    if buffer in printer.written:
        return f"{type_name}*"
    return f"const {type_name}*" + (" __restrict__" if restrict else "")


def shared_buffers(kernel: Kernel) -> list[Buffer]:
    """Return the shared buffers of a kernel that have bytes of their own, of static size, in order of first use."""
    roots = dict.fromkeys(b.root for b in kernel.buffers() if b.space is Space.SHARED)
    return [root for root in roots if root.size is not None]


def needs_arena(kernel: Kernel, arch: Arch) -> bool:
    """Return whether the shared buffers are places in one array."""
    buffers = shared_buffers(kernel)
    if kernel.launch_sized:
        return True
    if sum(_aligned_size(b) for b in buffers) > arch.shared_bytes:
        unplaced = [b.name for b in buffers if b.offset is None]
        if unplaced:
            raise InternalError(
                f"shared buffers of {kernel.name} are larger than {arch.shared_bytes} bytes and not placed"
            )
        return True
    return _overlap(buffers)


def _aligned_size(buffer: Buffer) -> int:
    alignment = max(buffer.alignment, VECTOR_BYTES)
    return -(-buffer.bytes // alignment) * alignment


def _overlap(buffers: list[Buffer]) -> bool:
    placed = sorted((b.offset, b.offset + b.bytes) for b in buffers if b.offset is not None)
    return any(end > start for (_, end), (start, _) in pairwise(placed))


def dynamic_shared_bytes(kernel: Kernel, arch: Arch) -> int:
    """Return how much shared memory the launch must ask for: all of it beyond 48 KiB, else none.

    What only the launch knows the size of comes behind all that is static.
    """
    if kernel.launch_sized:
        return kernel.launch_sized_start
    large = kernel.shared_bytes > arch.shared_bytes
    return kernel.shared_bytes if large and needs_arena(kernel, arch) else 0


def declare_arena(printer: Printer) -> None:
    """Declare the one array of shared memory that buffers are places in, where they are."""
    if not needs_arena(printer.kernel, printer.arch):
        return
    printer.arena = printer.names.declare("shared_memory")
    dynamic = dynamic_shared_bytes(printer.kernel, printer.arch) or printer.kernel.launch_sized
    size = "" if dynamic else str(printer.kernel.shared_bytes)
    sized = [each.buffer for each in printer.kernel.launch_sized]
    alignment = max(_ARENA_ALIGNMENT, *(b.alignment for b in (*shared_buffers(printer.kernel), *sized)))
    extern = "extern " if dynamic else ""
    printer.writer.text(f"{extern}__shared__ __align__({alignment}) unsigned char {printer.arena}[{size}];")


def allocate(printer: Printer, op: Allocate) -> None:
    """Declare a buffer where its life begins."""
    printer.statement(_declaration(printer, op.buffer), op)
    declare_views(printer, op.buffer, op)


def allocate_at(printer: Printer, op: AllocateAt) -> None:
    """Declare a shared buffer as a place in the one array, behind all that is static."""
    buffer, start = op.buffer, printer.kernel.launch_sized_start
    assert printer.arena is not None, buffer
    name = printer.buffer_names[buffer] = printer.names.declare(buffer.name)
    place = exact(printer, op.place)
    is_first = isinstance(op.place.definition, Constant) and op.place.definition.value == 0
    behind = [printer.arena, *([str(start)] if start else []), *([] if is_first else [place.text])]
    type_name, at = printer.type_name(buffer.dtype), " + ".join(behind)
    at = f"({at})" if len(behind) > 1 else at
    printer.statement(f"{type_name}* const {name} = ({type_name}*){at};", op)
    declare_views(printer, buffer, op)


def point(printer: Printer, op: Point) -> None:
    """Declare a pointer with the address that it has."""
    buffer = op.buffer
    name = printer.buffer_names[buffer] = printer.names.declare(buffer.name)
    kind = pointer(printer, buffer, restrict=False)
    address = prefix(f"({kind})", exact(printer, op.address), buffer.dtype)
    printer.statement(f"{kind} const {name} = {address.text};", op)
    declare_views(printer, buffer, op)


def at_rank(printer: Printer, op: AtRank) -> None:
    """Declare a pointer to what a shared buffer is in another block of the cluster."""
    if not printer.arch.has_clusters:
        raise printer.refuse(op, f"clusters need sm_90 or later, and the target is {printer.arch}")
    printer.prelude.need(_AT_RANK)
    name = printer.buffer_names[op.buffer] = printer.names.declare(op.buffer.name)
    source, kind = printer.buffer_names[op.source], printer.type_name(op.buffer.dtype)
    printer.statement(f"{kind}* const {name} = at_rank({source}, {exact(printer, op.rank).text});", op)
    declare_views(printer, op.buffer, op)


# PTX ISA, "mapa": of a generic address in the shared memory of this block.
_AT_RANK = f"""\
// Returns where another block of the cluster has what is at an address of shared memory here.
template <typename T>
{FUNCTION} T* at_rank(T* local, int rank) {{
    unsigned long long address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(local), "r"(rank));
    return (T*)address;
}}"""


def address_of(printer: Printer, op: AddressOf) -> Expression:
    """Return the address of a buffer's first element as a number."""
    name = Expression(printer.buffer_names[op.buffer], Rank.ATOM, op.buffer.dtype)
    return prefix(f"({uint64.c_name})", name, uint64)


def declare_views(printer: Printer, base: Buffer, op: Op | None = None) -> None:
    """Declare the pointers by which the bytes of a buffer are seen as elements of other types, and theirs."""
    for view in printer.structure.users:
        step = view
        while step.base is not None and step.base is not base:
            step = step.base
        if step.base is None or step in printer.buffer_names or step.is_remote:
            continue
        name = printer.buffer_names[step] = printer.names.declare(step.name or f"{base.name}_{step.dtype}")
        kind = printer.type_name(step.dtype)
        if step.space is Space.GLOBAL:
            kind = pointer(printer, step, restrict=False).removesuffix("*")
        text = f"{kind}* const {name} = ({kind}*){printer.buffer_names[base]};"
        if op is None:
            printer.writer.text(text)
        else:
            printer.statement(text, op)
        declare_views(printer, step, op)


def _declaration(printer: Printer, buffer: Buffer) -> str:
    name = printer.buffer_names[buffer] = printer.names.declare(buffer.name)
    type_name = printer.type_name(buffer.dtype)
    if buffer.space is Space.REGISTER:
        users = printer.structure.users
        vectors = any(is_vector_access(op, buffer) for op in users.get(buffer, ()))
        vectors = vectors or any(b.root is buffer and b is not buffer for b in users)
        return f"{f'__align__({VECTOR_BYTES}) ' if vectors else ''}{type_name} {name}[{buffer.size}];"
    if printer.arena is None:
        alignment = max(buffer.alignment, VECTOR_BYTES)
        return f"__shared__ __align__({alignment}) {type_name} {name}[{buffer.size}];"
    place = printer.arena if not buffer.offset else f"({printer.arena} + {buffer.offset})"
    return f"{type_name}* const {name} = ({type_name}*){place};"


def element(printer: Printer, buffer: Buffer, index: Value) -> Expression:
    """Return `buffer[index]`."""
    subscript = exact(printer, index)
    if subscript.unconverted is not None:
        subscript = subscript.unconverted
    elif subscript.type is uint32 and index.type is int32 and not facts_of(index).non_negative:
        subscript = prefix("(int)", subscript, int32)
    text = f"{printer.buffer_names[buffer]}[{subscript.text}]"
    return Expression(text, Rank.POSTFIX, buffer.dtype, subscript.reads)


def address(printer: Printer, buffer: Buffer, index: Value) -> Expression:
    """Return `&buffer[index]`, or the buffer's name for its first element."""
    if isinstance(index.definition, Constant) and index.definition.value == 0:
        return Expression(printer.buffer_names[buffer], Rank.ATOM, buffer.dtype)
    return prefix("&", element(printer, buffer, index), buffer.dtype)


def load(printer: Printer, op: Load) -> Expression:
    """Return `buffer[index]`, or the vector that lies there."""
    type = op.result.type
    printer.type_name(type)
    hinted = printer.dialect.hinted_load(printer, op, type) if op.hints is not None else None
    if hinted is not None:
        return hinted
    if not isinstance(type, VectorType):
        return element(printer, op.buffer, op.index)
    return _as_type(printer, op.buffer, op.index, type, "const ")


def load_as(printer: Printer, op: Load, type: Type) -> Expression:
    """Return the bits that a load gives read as another type of the same size: one access of that type."""
    hinted = printer.dialect.hinted_load(printer, op, type) if op.hints is not None else None
    return hinted or _as_type(printer, op.buffer, op.index, type, "const ")


def _as_type(printer: Printer, buffer: Buffer, index: Value, type: Type, const: str) -> Expression:
    """Return the elements at an index as one value of a wider type: one access of its size."""
    return prefix("*", pointer_to(printer, buffer, index, type, const), type)


def pointer_to(printer: Printer, buffer: Buffer, index: Value, type: Type, const: str) -> Expression:
    """Return the address of an element as a pointer to a type of several elements; `const` is "const " or nothing."""
    return prefix(f"({const}{printer.type_name(type)}*)", address(printer, buffer, index), type)


def store(printer: Printer, op: Store) -> None:
    """Print `buffer[index] = value;`."""
    given = _bits_behind(printer, op.value)
    type = given.type
    value = exact(printer, given)
    if op.hints is not None and printer.dialect.hinted_store(printer, op, type, value):
        return
    if isinstance(op.value.type, VectorType):
        target = _as_type(printer, op.buffer, op.index, type, "")
    else:
        target = element(printer, op.buffer, op.index)
    printer.assign(target.text, value, op)


def _bits_behind(printer: Printer, value: Value) -> Value:
    """Return the word or words whose bits a vector is, so that they are stored as such; else the value itself."""
    op = value.definition
    if isinstance(value.type, VectorType) and isinstance(op, Bitcast) and value in printer.inlined:
        bits = op.x.type
        return value if isinstance(bits, VectorType) and bits.element is not uint32 else op.x
    return value


def is_vector_access(op: object, buffer: Buffer) -> bool:
    """Return whether an op reaches several elements of a buffer at once."""
    if isinstance(op, Load):
        return op.buffer is buffer and isinstance(op.result.type, VectorType)
    return isinstance(op, Store) and op.buffer is buffer and isinstance(op.value.type, VectorType)
