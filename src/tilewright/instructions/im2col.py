"""cp.async.bulk.tensor in im2col mode: tiles of pixels under a filter, for convolutions by matrix products.

    PixelLoad       cp.async.bulk.tensor, .im2col               its bytes arrive at an mbarrier
    PixelMulticast  the same with .multicast::cluster           to several blocks of the cluster
    PixelStore      cp.async.bulk.tensor, .im2col_no_offs       belongs to a bulk group of the thread
    PixelPrefetch   cp.async.bulk.prefetch.tensor, .im2col      global memory to L2

What a matrix of pixels is, and how tiles of it are found, stands in `trace.pixels`; everything else is as of boxes.

Source: PTX ISA, "cp.async.bulk.tensor", "Im2col mode"; CUTLASS, include/cute/arch/copy_sm90_tma.hpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright.atoms.copy import CacheHints, one_thread
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.cache_hints import hinted_name
from tilewright.instructions.bulk_copies import hinted, print_call, refuse_old
from tilewright.instructions.tensor_copies import TensorCopyAtom, TensorLoad, TensorMulticast, TensorStore
from tilewright.instructions.tensor_prefetch import TensorPrefetch
from tilewright.ir.core import TensorMap, Value
from tilewright.layout import Layout
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.boxes import BoxPlan, BoxRefusal
from tilewright.trace.pixels import coordinates_of, describe_pixels, pixels_of
from tilewright.trace.scalar import Scalar, narrowed
from tilewright.trace.tracer import Tracer

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.instructions.mbarrier import MBarrier

NAMES = ("SM90_TMA_LOAD_IM2COL", "SM90_TMA_LOAD_IM2COL_MULTICAST", "SM90_TMA_STORE_IM2COL")


# --- the atom --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PixelCopyAtom(TensorCopyAtom):
    """A bulk load or store of tiles of pixels as an atom."""

    def copy_bulk(self, src: Tensor, dst: Tensor, barrier: MBarrier | None, mask: Any = None) -> None:
        """Emit the boxes of a tile; refuse tensors, layouts and targets that the instruction does not have."""
        tracer, tile, memory, refuse, ranks = self._begin(src, dst, barrier, mask)
        if not self.is_load:
            _demand_no_offsets(tile, refuse)
        buffer, hints = memory.engine.buffer, self.hints

        def emit(map: TensorMap, index: Value, where: tuple[Value, ...]) -> None:
            if barrier is None:
                tracer.emit(PixelStore(map.buffer, buffer, map, index, where, hints=hints))
                return
            at = barrier.element("tw.copy").value
            given = buffer, map.buffer, barrier.buffer, map, index, at, where
            tracer.emit(PixelLoad(*given, hints=hints) if ranks is None else PixelMulticast(*given, ranks, hints=hints))

        self._each_pixel_box(tracer, tile, memory, refuse, emit)

    def prefetch_bulk(self, src: Tensor, dst: Tensor | None) -> None:
        """Emit the prefetch of a tile's boxes, by the map with which they will be copied to `dst`."""
        tracer, refuse = self._begin_prefetch(src, dst)
        if dst is None:
            raise refuse(
                "is prefetched by the tensor map of its copy", f"tw.prefetch(tw.atoms.{self.name}, tile, smem)"
            )

        def fetch(map: TensorMap, index: Value, where: tuple[Value, ...]) -> None:
            tracer.emit(PixelPrefetch(map.buffer, map, where, self.hints))

        self._each_pixel_box(tracer, src, dst, refuse, fetch)

    def _each_pixel_box(
        self,
        tracer: Tracer,
        tile: Tensor,
        memory: Tensor,
        refuse: BoxRefusal,
        emit: Callable[[TensorMap, Value, tuple[Value, ...]], None],
    ) -> None:
        engine = pixels_of(tile, refuse)

        def at_pixel(map: TensorMap, index: Value, coordinates: tuple[Value, ...]) -> None:
            channel, pixel = (Scalar(c) for c in coordinates)
            where = coordinates_of(engine, channel, pixel)
            emit(map, index, tuple([narrowed(number).value for number in where]))

        self._each_box(tracer, tile, memory, refuse, at_pixel)

    def describe(self, tracer: Tracer, tile: GuardedTensor, plan: BoxPlan, refuse: BoxRefusal) -> TensorMap:
        """Return the tensor map of a tile that is planned."""
        return describe_pixels(tracer, tile, plan, refuse, is_load=self.is_load)


def _demand_no_offsets(tile: Tensor, refuse: BoxRefusal) -> None:
    """Refuse to store where a load needs offsets or steps, which stores do not have."""
    engine = pixels_of(tile, refuse)
    if any(not (type(offset) is int and offset == 0) for offset in engine.offsets):
        raise refuse(
            "stores pixels without offsets of a filter",
            "store at position 0 of the filter: tw.im2col(x, 1)[0, 0] are the pixels of x themselves",
        )
    if any(step != 1 for step in engine.filter.strides):
        steps = " and ".join(map(str, engine.filter.strides[::-1]))
        raise refuse(f"stores adjacent pixels, and these are {steps} apart", "leave stride= out, or store by threads")
    if any(engine.filter.paddings):  # an H200 stops such a store as an illegal instruction
        raise refuse(
            f"stores pixels of the image, and padding={engine.filter.paddings[::-1]} begins outside of it",
            "leave padding= out: tw.im2col(x, 1)[0, 0] are the pixels of x themselves",
        )


@cache
def pixel_copy(name: str) -> PixelCopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> pixel_copy("SM90_TMA_LOAD_IM2COL").is_load, pixel_copy("SM90_TMA_STORE_IM2COL").is_load
    (True, False)
    """
    layout = one_thread(None)
    return PixelCopyAtom(
        name, "sm_90", None, Layout(1), layout, layout, is_load="LOAD" in name, is_multicast="MULTICAST" in name
    )


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class PixelLoad(TensorLoad):
    """As `TensorLoad`, of channels of pixels.

    `coordinates` are those of the first channel and pixel (channel, space from the fastest mode on, image), and behind
    them the offsets of the filter along space.
    """

    def cuda(self, printer: Printer) -> None:
        _print_load(self, printer, *_load_function(self.map.rank, self.hints))


@dataclass(eq=False)
class PixelMulticast(TensorMulticast):
    """As `PixelLoad`, to every block of the cluster that `ranks` has the bit of."""

    def cuda(self, printer: Printer) -> None:
        definition = _load_function(self.map.rank, self.hints, is_multicast=True)
        _print_load(self, printer, *definition, exact(printer, self.ranks).text)


@dataclass(eq=False)
class PixelStore(TensorStore):
    """As `TensorStore`, to channels of pixels; `coordinates` as of `PixelLoad`, with offsets of 0."""

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _store_function(self.map.rank, self.hints)
        printer.prelude.need(definition)
        place = address(printer, self.source, self.source_index).text
        where = [exact(printer, c).text for c in self.coordinates[: self.map.rank]]
        print_call(printer, self, name, [f"&{printer.map_names[self.map]}", place, *where])


def _print_load(op: TensorLoad, printer: Printer, name: str, definition: str, *more: str) -> None:
    refuse_old(printer, op)
    printer.prelude.need(definition)
    place = address(printer, op.destination, op.destination_index).text
    barrier = address(printer, op.barrier, op.barrier_index).text
    where = [exact(printer, c).text for c in op.coordinates]
    print_call(printer, op, name, [place, f"&{printer.map_names[op.map]}", barrier, *more, *where])


@dataclass(eq=False)
class PixelPrefetch(TensorPrefetch):
    """As `TensorPrefetch`, of channels of pixels; `coordinates` as of `PixelLoad`."""

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _prefetch_function(self.map.rank, self.hints)
        printer.prelude.need(definition)
        where = [exact(printer, c).text for c in self.coordinates]
        print_call(printer, self, name, [f"&{printer.map_names[self.map]}", *where])


# --- how they are written --------------------------------------------------------------------------------


def _where(rank: int, first: int) -> tuple[str, str, str, str]:
    """Return the parameters of a function, the operands of the assembly, and the numbers of coordinates and offsets."""
    coordinates, offsets = [f"c{n}" for n in range(rank)], [f"o{n}" for n in range(rank - 2)]
    inputs = [f'"r"({c})' for c in coordinates] + [f'"h"((unsigned short){o})' for o in offsets]
    numbers = [f"%{first + n}" for n in range(len(inputs))]
    parameters = ", ".join(f"int {name}" for name in (*coordinates, *offsets))
    return parameters, ", ".join(inputs), ", ".join(numbers[:rank]), ", ".join(numbers[rank:])


def _load_function(rank: int, hints: CacheHints | None, *, is_multicast: bool = False) -> tuple[str, str]:
    first = 4 if is_multicast else 3
    parameters, inputs, coordinates, offsets = _where(rank, first)
    name = hinted_name(f"tma_load_im2col_{'multicast_' if is_multicast else ''}{rank}d", hints)
    line, qualifier, operand, value = hinted(hints, first + rank + rank - 2)
    where = "the same place in the blocks whose bits `ranks` has" if is_multicast else "shared memory"
    mask = ("int ranks, ", '"h"((unsigned short)ranks), ', ", %3") if is_multicast else ("", "", "")
    qualifier = (".multicast::cluster" if is_multicast else "") + qualifier
    definition = f"""\
// Starts the copy of channels of pixels to {where}; its bytes arrive at the barrier.
{FUNCTION} void {name}(
    void* destination, const CUtensorMap* map, unsigned long long* barrier, {mask[0]}{parameters}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    const unsigned int signal = (unsigned int)__cvta_generic_to_shared(barrier);
{line}    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 "{qualifier} [%0], [%1, {{{coordinates}}}], [%2], {{{offsets}}}{mask[2]}{operand};"
                 :: "r"(address), "l"(map), "r"(signal), {mask[1]}{inputs}{value} : "memory");
}}"""
    return name, definition


def _store_function(rank: int, hints: CacheHints | None) -> tuple[str, str]:
    coordinates = [f"c{n}" for n in range(rank)]
    name, (line, qualifier, operand, value) = hinted_name(f"tma_store_im2col_{rank}d", hints), hinted(hints, 2 + rank)
    numbers = ", ".join(f"%{2 + n}" for n in range(rank))
    inputs = ", ".join(f'"r"({c})' for c in coordinates)
    definition = f"""\
// Starts the copy of shared memory to channels of pixels; it belongs to the thread's open group.
{FUNCTION} void {name}(const CUtensorMap* map, const void* source, {", ".join(f"int {c}" for c in coordinates)}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(source);
{line}    asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group{qualifier}"
                 " [%0, {{{numbers}}}], [%1]{operand};"
                 :: "l"(map), "r"(address), {inputs}{value} : "memory");
}}"""
    return name, definition


def _prefetch_function(rank: int, hints: CacheHints | None) -> tuple[str, str]:
    parameters, inputs, coordinates, offsets = _where(rank, 1)
    name, count = hinted_name(f"tma_prefetch_im2col_{rank}d", hints), 1 + rank + rank - 2
    line, qualifier, operand, value = hinted(hints, count)
    definition = f"""\
// Brings channels of pixels to L2.
{FUNCTION} void {name}(const CUtensorMap* map, {parameters}) {{
{line}    asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col{qualifier}"
                 " [%0, {{{coordinates}}}], {{{offsets}}}{operand};"
                 :: "l"(map), {inputs}{value} : "memory");
}}"""
    return name, definition
