"""What keeps compilers from moving uses of products' registers across the fences and waits of warpgroups.

NVRTC's optimiser moves what is not volatile; it stays behind where a statement of inline assembly takes the registers.
The assembler does not see these. It moves reads of sums before the wait for them where that looks cheap, and then runs
products one after the other (its advisory C7514), or waits earlier (C7517). Over a branch it moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.dtypes import float32, int32, uint32
from tilewright.ir.core import Block, Buffer, Op, Space, Value
from tilewright.ir.effects import Completion
from tilewright.ir.ops import Allocate, Compare, Constant, For, While

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer

LETTERS = {float32: "f", int32: "r", uint32: "r"}


class Product(Protocol):
    """What a product says of its sums."""

    accumulator: Buffer
    adds: Value


_KEEP_READS = f"""\
// Never traps, for a grid has blocks. Reads of sums stay behind the branch: moved before the wait for them, they would
// let the assembler run products one after the other (its advisories C7514 and C7517).
{FUNCTION} void keep_reads_behind() {{
    if (gridDim.x == 0) __trap();
}}"""


def fence_results(printer: Printer, op: Op, pending: int) -> None:
    """Print what keeps uses of registers behind a wait that leaves so many groups of products under way.

    The registers of these are left alone: to the assembler a statement that takes them is a use, for which it would run
    the products one after the other (C7514). Where they are all that there are nobody uses any; such loops keep the
    statement with which they were measured.
    """
    under_way = _registers_of_last_groups(printer, op, pending) if pending else set()
    found = {b: n for b, n in _in_products(printer, op).items() if not _was_waited_for(printer, op, b)}
    _print_fences(printer, op, {b: n for b, n in found.items() if b.root not in under_way} or found)


def keep_reads_behind(printer: Printer, op: Op) -> None:
    """Print a branch behind a wait for all products, where the assembler would move reads of sums before it.

    It does with sums of 16 bits, of which it combines the two halves of a register where the first of them is ready,
    with products that no loop holds, or one with a constant end. It gets none where operands are in registers too: they
    would be spilled. A loop over products gets none: what moves lets its steps overlap.
    """
    structure = printer.structure
    products = [each for each in structure.places if each.effects.asynchronous is Completion.WARPGROUP]
    loops = [next(_loops_around(printer, each), None) for each in products]
    own = next(_loops_around(printer, op), None)
    if own is not None and own in loops:
        return
    sums = {buffer.root for each in products for buffer in each.buffers_written if buffer.space is Space.REGISTER}
    halves = any(root.dtype.bytes == 2 for root in sums)
    operands = {buffer.root for each in products for buffer in each.buffers if buffer.space is Space.REGISTER} - sums
    if halves or None in loops or (not operands and any(map(_has_constant_end, loops))):
        printer.prelude.need(_KEEP_READS)
        printer.statement("keep_reads_behind();", op)


def _blocks_around(printer: Printer, op: Op) -> Iterator[tuple[Block, int]]:
    """Yield the blocks around an op, the innermost first, and where in each it is."""
    structure = printer.structure
    while True:
        block, index = structure.places[op]
        yield block, index
        if block not in structure.owners:
            return
        op = structure.owners[block]


def _loops_around(printer: Printer, op: Op) -> Iterator[Op]:
    """Yield the loops around an op, the innermost first, without those that are unrolled."""
    for block, _ in _blocks_around(printer, op):
        owner = printer.structure.owners.get(block)
        if isinstance(owner, While) or (isinstance(owner, For) and owner.unroll != 0):
            yield owner


def _has_constant_end(loop: Op | None) -> bool:
    return isinstance(loop, For) and loop.unroll != 1 and isinstance(loop.stop.definition, Constant)


def fence_operands(printer: Printer, op: Op) -> None:
    """Print what keeps uses of registers before a fence, for the products behind it, up to their commit."""
    block, index = printer.structure.places[op]
    needed: set[Buffer] = set()
    for each in block.ops[index + 1 :]:
        if each.effects.commits is Completion.WARPGROUP:
            break
        needed |= _registers_of_products(each)
        needed -= {x.accumulator.root for x in _products_in(each) if begins_sums(printer, x)}
    found = _in_products(printer, op)
    _print_fences(printer, op, {b: n for b, n in found.items() if b.root in needed} or found)


def begins_sums(printer: Printer, product: Product) -> bool:
    """Return whether a product is the first op on sums that are declared beside it, and does not read them at first.

    A statement that took such sums would keep what they held the last time round a loop, in registers of their own.
    """
    structure, sums = printer.structure, product.accumulator.root
    own = cast("Op", product)
    users = (x for x in structure.places if not isinstance(x, Allocate) and sums in (b.root for b in x.buffers))
    if next(users) is not own:
        return False
    declared = _declared_in(printer, sums)
    for block, _ in _blocks_around(printer, own):
        if block is declared:
            break
        owner = structure.owners[block]
        if not (isinstance(owner, For) and owner.unroll == 0):
            return False
    given = product.adds.definition
    if isinstance(given, Compare) and given.kind == "gt" and given.lhs.definition is None:
        given = given.rhs.definition  # k > 0, in a loop over k that is unrolled
    return isinstance(given, Constant) and not given.value


def _declared_in(printer: Printer, root: Buffer) -> Block:
    structure = printer.structure
    return structure.places[next(x for x in structure.users[root] if isinstance(x, Allocate))][0]


def _print_fences(printer: Printer, op: Op, buffers: Mapping[Buffer, int]) -> None:
    for buffer, count in buffers.items():
        c, letter = buffer.dtype.c_name, LETTERS[buffer.dtype]
        printer.prelude.need(
            "// Keeps the compiler from moving uses of registers to the other side of this line.\n"
            f"template <int count>\n{FUNCTION} void fence_registers({c}* r) {{\n"
            f'#pragma unroll\n    for (int i = 0; i < count; i++) asm volatile("" : "+{letter}"(r[i]) :: "memory");\n}}'
        )
        printer.statement(f"fence_registers<{count}>({printer.buffer_names[buffer]});", op)


def _inside(op: Op) -> Iterator[Op]:
    """Yield an op and those in its blocks."""
    yield op
    for block in op.blocks:
        yield from block.walk()


def _products_in(op: Op) -> list[Product]:
    """Return an op that is a product, and those in its blocks."""
    return [cast("Product", each) for each in _inside(op) if each.effects.asynchronous is Completion.WARPGROUP]


def _registers_of_products(op: Op) -> set[Buffer]:
    """Return the registers of an op that is a product, and of those in its blocks."""
    return {b.root for each in _products_in(op) for b in cast("Op", each).buffers if b.space is Space.REGISTER}


def _was_waited_for(printer: Printer, wait: Op, buffer: Buffer) -> bool:
    """Return whether a wait before this one was for the last product on sums that are declared beside both.

    Operands in registers keep the statement at every wait, with which the kernels that have them were measured.
    """
    block, index = printer.structure.places[wait]
    if _declared_in(printer, buffer.root) is not block:
        return False
    groups, waited = 0, False  # committed since the last product on the registers, that of the product too
    for each in block.ops[:index]:
        if buffer.root in {x.accumulator.root for x in _products_in(each)}:
            groups, waited = 0, False
        groups += any(x.effects.commits is Completion.WARPGROUP for x in _inside(each))
        pending = each.effects.pending
        if each.effects.completes is Completion.WARPGROUP and pending is not None and groups > pending:
            waited = True
    return waited


def _registers_of_last_groups(printer: Printer, wait: Op, pending: int) -> set[Buffer]:
    """Return the registers of the newest `pending` groups before a wait, as far as its own block shows them."""
    block, index = printer.structure.places[wait]
    found: set[Buffer] = set()
    for each in reversed(block.ops[:index]):
        if each.effects.commits is Completion.WARPGROUP:
            pending -= 1
            if pending < 0:
                break
        elif any(inner.effects.commits is Completion.WARPGROUP for b in each.blocks for inner in b.walk()):
            break
        found |= _registers_of_products(each)
    return found


def _in_products(printer: Printer, op: Op) -> dict[Buffer, int]:
    """Return the register buffers of products that are declared where an op is, with their sizes."""
    users, places = printer.structure.users, printer.structure.places
    around = dict(_blocks_around(printer, op))
    found: dict[Buffer, int] = {}
    for buffer, ops in users.items():
        if buffer.space is Space.REGISTER and any(each.effects.asynchronous is Completion.WARPGROUP for each in ops):
            block, index = places[next(each for each in users[buffer.root] if isinstance(each, Allocate))]
            if block in around and index < around[block]:
                assert buffer.size is not None, buffer
                found[buffer] = buffer.size
    return found
