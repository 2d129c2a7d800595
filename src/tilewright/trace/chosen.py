"""Tensors that a device condition chooses or a device loop swaps: global memory is carried by its address.

    t = x if c else y        ->      address = &y[0]; if (c) address = &x[0];      t begins at the address

Registers have no addresses, and shared memory is placed after the trace: there one tensor with one more mode serves.
"""

from __future__ import annotations

import dataclasses
import math

from tilewright.dtypes import uint64
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.ops import AddressOf, Point
from tilewright.tensors import Tensor
from tilewright.trace.engine import BufferEngine
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import current


def address_of(buffer: Buffer) -> Value:
    """Return the address of a global buffer's first element: that of an argument is taken where the kernel begins."""
    tracer, root = current("an address"), buffer.root
    found = tracer.addresses.get(root)
    if found is None:
        found = Value(uint64, f"{root.name}_address" if root.name else None)
        tracer.body.ops.insert(0, AddressOf(root, results=(found,), location=root.location))
        tracer.addresses[root] = found
    return found


def point(name: str, like: Buffer, alignment: int, address: Value) -> Buffer:
    """Begin a global buffer at an address, of the element type of another, and return it."""
    tracer = current("an address")
    buffer = Buffer(name, like.dtype, Space.GLOBAL, None, alignment, tracer.location(), is_pointed=True)
    tracer.emit(Point(buffer, address))
    tracer.addresses[buffer] = address
    return buffer


def chosen_engine(name: str, engines: tuple[BufferEngine, BufferEngine], values: list[Value]) -> BufferEngine:
    """Return the engine of one of two tensors: `values` are the address and the offset."""
    a, b = engines
    buffer = point(name, a.buffer, common_alignment(a, b), values[0])
    wider = a if a.index_type.bits >= b.index_type.bits else b
    guards = a.guards if a.guards == b.guards else (*a.guards, *b.guards)
    return dataclasses.replace(wider, buffer=buffer, start=Scalar(values[1]), guards=guards)


def common_alignment(a: BufferEngine, b: BufferEngine) -> int:
    """Return what both buffers are aligned to."""
    return math.gcd(a.buffer.alignment, b.buffer.alignment)


def can_be_chosen(a: Tensor, b: Tensor) -> bool:
    """Say whether an address can stand for the memory of either tensor."""
    one, other = a.engine, b.engine
    alike = one.dtype is other.dtype and one.space == other.space == Space.GLOBAL.value
    return alike and one.slices == other.slices


def refusal(what: str, a: Tensor, b: Tensor, both: bool) -> LanguageError | None:
    """Return the error for two tensors that differ in their memory alone, None where more differs."""
    one, other = a.engine, b.engine
    if one.dtype is not other.dtype or one.space != other.space:
        return None
    names = f"{one.name or 'one'} and {other.name or 'another'}"
    when = "depending on the branch" if both else "from one iteration to the next"
    if one.space == Space.GLOBAL.value:
        return LanguageError(
            f"{what} is a part of {names} that a tiled copy or mma gave, {when}",
            help="choose the tensors before they are partitioned",
        )
    maker = "registers" if one.space == Space.REGISTER.value else "shared"
    has = "registers have no addresses" if one.space == Space.REGISTER.value else "its memory is placed after the trace"
    way = "copy the chosen one's elements" if one.space == Space.REGISTER.value else "index the mode by a device value"
    together = f"make one tensor of both, with a mode more: tw.{maker}(dtype, (..., 2)), and {way}"
    if one.space == Space.REGISTER.value and not both:
        again = (
            "where each iteration makes a new tensor, update the one before the loop, as in acc += x or acc[...] = x"
        )
        together = f"{again}; else {together}"
    return LanguageError(f"{what} is one of two {one.space} tensors, {names}, {when}: {has}", help=together)
