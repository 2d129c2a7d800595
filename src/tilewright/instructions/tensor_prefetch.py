"""Prefetches of bulk copies: of what they will read to L2, and of the tensor maps by which they find it.

    TensorPrefetch  cp.async.bulk.prefetch.tensor       a box of a tensor
    MapPrefetch     prefetch.tensormap                  a tensor map

Runs are prefetched by `bulk_copies.BulkPrefetch`. A prefetch changes how fast data comes, never what comes.

Source: PTX ISA, "cp.async.bulk.prefetch.tensor", "prefetch"; CuTe `prefetch`, `prefetch_tma_descriptor`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.arguments import shown
from tilewright.atoms.copy import CacheHints, CopyAtom
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION, PREFETCH_TENSOR_MAP
from tilewright.backends.cuda.cache_hints import hinted_name
from tilewright.dtypes import int32
from tilewright.errors import LanguageError
from tilewright.instructions.bulk_copies import BulkAtom, hinted, print_call, refuse_old
from tilewright.ir.core import Buffer, TensorMap, Value
from tilewright.ir.effects import Effects, attribute, names, operands
from tilewright.ir.instruction import Instruction
from tilewright.tensors import Tensor
from tilewright.trace.boxes import BoxRefusal
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


# --- what a kernel says ----------------------------------------------------------------------------------


def prefetch(atom: CopyAtom, src: Tensor, dst: Tensor | None = None) -> None:
    """Prefetch into L2 what `tw.copy(atom, src, dst)` will read, by one thread (PTX cp.async.bulk.prefetch).

    `atom` is SM90_TMA_LOAD, whose `src` is a guarded tile and whose `dst` is the tensor of shared memory that it will
    be copied to (the two use one tensor map), or SM90_BULK_COPY_G2S, which needs no `dst`. A prefetch is not waited
    for, and writes nothing.

    Raises `LanguageError` for other atoms, and where the copy itself would. Source: CuTe `prefetch`.
    """
    given: object = atom
    if not isinstance(given, BulkAtom):
        raise LanguageError(
            f"tw.prefetch: the atom is that of a bulk load, got {shown(given)}",
            help="tw.prefetch(tw.atoms.SM90_TMA_LOAD, tile, smem)",
        )
    for name, tensor in (("src", src), ("dst", dst)):
        what: object = tensor
        if not isinstance(what, Tensor) and not (what is None and name == "dst"):
            raise LanguageError(f"tw.prefetch: {name} is a {type(what).__name__}, and it must be a tensor")
    given.prefetch_bulk(src, dst)


def prefetch_tensor_map(atom: CopyAtom, src: Tensor, dst: Tensor) -> None:
    """Fetch the tensor map with which `tw.copy(atom, src, dst)` copies, by one thread (PTX prefetch.tensormap).

    By default the first thread of each block fetches all maps of its launch when it starts; a map that is named here is
    fetched only here. Raises `LanguageError` for atoms that use no tensor map, and where the copy itself would. Source:
    CuTe `prefetch_tma_descriptor`.
    """
    what = "tw.prefetch_tensor_map"
    given: tuple[object, ...] = (atom, src, dst)
    if not isinstance(given[0], BulkAtom) or not all(isinstance(side, Tensor) for side in given[1:]):
        raise LanguageError(
            f"{what}: it takes the atom and the tensors of a copy by TMA, got {', '.join(map(shown, given))}",
            help=f"{what}(tw.atoms.SM90_TMA_LOAD, tile, smem)",
        )
    tracer = current(what)
    refuse = BoxRefusal(given[0].name, *((src, dst) if given[0].is_load else (dst, src)), caller=what)
    given[0].demand_start(tracer, refuse)
    found = given[0].map_of(tracer, src, dst, refuse)
    tracer.emit(MapPrefetch(found.buffer, found))


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class TensorPrefetch(Instruction):
    """Bring the box at `coordinates` of a tensor map to L2."""

    buffer: Buffer = names()
    map: TensorMap = attribute()
    coordinates: tuple[Value, ...] = operands()
    hints: CacheHints | None = attribute(None)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "prefetch"
    RESERVED: ClassVar[str] = r"tma_\w+|CUtensorMap|prefetch_tensor_map"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy of tensors", "leave tw.prefetch out")

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.buffer is self.map.buffer, "the map is of another array")
        expect(len(self.coordinates) == self.map.coordinates, "a coordinate for each mode of the map")
        expect(all(v.type is int32 for v in self.operands), "coordinates are int32")

    def simulate(self, compiler: Compiler) -> Step:
        """Do nothing: there are no caches here."""
        return lambda frame: None

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _prefetch_function(len(self.coordinates), self.hints)
        printer.prelude.need(definition)
        given = [f"&{printer.map_names[self.map]}", *(exact(printer, c).text for c in self.coordinates)]
        print_call(printer, self, name, given)


@dataclass(eq=False)
class MapPrefetch(Instruction):
    """Fetch a tensor map itself."""

    buffer: Buffer = names()
    map: TensorMap = attribute()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "prefetch"
    RESERVED: ClassVar[str] = r"CUtensorMap|prefetch_tensor_map"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy of tensors", "leave tw.prefetch_tensor_map out")

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.buffer is self.map.buffer, "the map is of another array")

    def simulate(self, compiler: Compiler) -> Step:
        """Do nothing: there are no caches here."""
        return lambda frame: None

    def fetched_map(self) -> TensorMap | None:
        return self.map

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        printer.prelude.need(PREFETCH_TENSOR_MAP)
        printer.statement(f"prefetch_tensor_map(&{printer.map_names[self.map]});", self)


def _prefetch_function(rank: int, hints: CacheHints | None) -> tuple[str, str]:
    parameters = ", ".join(f"int c{n}" for n in range(rank))
    braces = ", ".join(f"%{1 + n}" for n in range(rank))
    operands = ", ".join(f'"r"(c{n})' for n in range(rank))
    name, (line, qualifier, operand, value) = hinted_name(f"tma_prefetch_{rank}d", hints), hinted(hints, 1 + rank)
    definition = f"""\
// Brings a box of a tensor to L2.
{FUNCTION} void {name}(const CUtensorMap* map, {parameters}) {{
{line}    asm volatile("cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile{qualifier} [%0, {{{braces}}}]{operand};"
                 :: "l"(map), {operands}{value} : "memory");
}}"""
    return name, definition
