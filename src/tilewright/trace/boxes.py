"""Tiles as boxes of a tensor map: which modes one bulk copy moves at once, and how the box lies in shared memory.

A bulk copy moves a box: a run of coordinates along each mode of a tensor. In shared memory the box is compact, the
contiguous mode of the tensor first, and may be swizzled. So the modes of a tile, in the order of their strides in
shared memory, are taken into the box as long as they go on where it ends; a loop goes over what is left::

    tile (128, 128) of A with strides (lda, 1)           shared ((128), (64, 2)) : (64, (1, 8192)), 128-byte swizzle
    box                                                  A's mode 1: 64, then A's mode 0: 128
    loop                                                 2 boxes, 64 further along mode 1, 8192 further in shared memory

Source: PTX ISA, "Tensors" (boxes, swizzling modes); CUDA driver API, "cuTensorMapEncodeTiled".
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import LanguageError
from tilewright.ir.core import TensorMap, Value
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.layout.ints import add
from tilewright.tensors import CoordinateEngine, GuardedTensor, Tensor
from tilewright.tensors.guarded import offsets_of
from tilewright.trace.engine import BufferEngine, GuardedEngine
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, known_to_host, require_multiple
from tilewright.trace.walks import common_walk

MOST_MODES = 5
_LONGEST = 256  # elements of a box along a mode
_FARTHEST_STEP = 8  # elements, from one that a box has to the next
_UNIT = 16  # bytes: of the shortest row of a box, of strides, and of what a swizzle keeps together
_PLACE = 128  # bytes: what the address of a box in shared memory is a multiple of
_MOST_BOXES = 64  # of one copy


@dataclass(frozen=True)
class Loop:
    """Boxes side by side: how many, and how far one is from the next, along a leaf of the tensor and in memory."""

    count: int
    leaf: int
    step: int
    elements: int


@dataclass(frozen=True)
class BoxPlan:
    """A tile as boxes: leaves of the tensor from the contiguous one on (`order`), and extents along them (`box`).

    Along each leaf a box has every `steps`-th element.
    """

    order: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    loops: tuple[Loop, ...]
    steps: tuple[int, ...] = ()


class BoxRefusal:
    """What is wrong with a tile, told with both tensors and with what would fit."""

    def __init__(
        self,
        what: str,
        tile: Tensor,
        memory: Tensor,
        sides: tuple[str, str] = ("tile", "shared"),
        caller: str = "tw.copy",
    ) -> None:
        self._what, self._caller = what, caller
        self._details = [f"{side} {tensor.title}" for side, tensor in zip(sides, (tile, memory), strict=True)]

    def __call__(self, text: str, help: str) -> LanguageError:
        return LanguageError(f"{self._caller}: {self._what} {text}", details=self._details, help=help)


def plan_boxes(tile: GuardedTensor, memory: Tensor, refuse: BoxRefusal) -> BoxPlan:
    """Return the boxes of a tile; raise `LanguageError` where the layout of shared memory is none that boxes have."""
    size, rank = tile.dtype.bytes, len(tile.edge.shape)
    if rank > MOST_MODES:
        raise refuse(f"copies tensors of 1 to {MOST_MODES} modes, not of {rank}", "choose the index of a mode first")
    if type(tile.size) is not int or (not memory.layout.is_static and type(memory.size) is not int):
        raise refuse("copies boxes whose extents are known while tracing", "take a tile of static extents")
    if tile.size != memory.size:
        raise refuse(
            f"copies a tile to one of its shape, and {tile.size} elements are not {memory.size}",
            "take a tile of the shape that shared memory has, one stage of it",
        )
    swizzle = _swizzle_bytes(memory.layout, size, refuse)
    positions = [Tensor(CoordinateEngine(0), offsets_of(tile.where, k)) for k in range(rank)]
    inner: Any = memory.layout
    while isinstance(inner, ComposedLayout):
        inner = inner.inner
    walk = common_walk([*positions, Tensor(CoordinateEngine(0), inner)], "tw.copy")
    box: dict[int, int] = {}
    skips: dict[int, int] = {}
    loops: list[Loop] = []
    for n, extent in enumerate(walk.extents):
        steps, elements = [walk.strides[k][n] for k in range(rank)], walk.strides[rank][n]
        leaf, step = _only_leaf(steps, refuse)
        if type(elements) is not int or elements <= 0:
            raise refuse(f"writes compact boxes, and a mode of shared memory has stride {elements}", _COMPACT)
        taken = 1
        if not loops and elements == math.prod(box.values()):
            if leaf not in box and box and 1 < step <= _FARTHEST_STEP:
                skips[leaf] = step
            skip = skips.get(leaf, 1)
            taken = _taken(box, leaf, step, extent, (swizzle or _LONGEST * size) // size, skip)
            if taken > 1:
                box[leaf] = box.get(leaf, 1) * taken
            elif leaf not in box:
                skips.pop(leaf, None)
        if taken < extent:
            loops.append(Loop(extent // taken, leaf, step * taken, elements * taken))
    _check_box(tile, box, loops, swizzle, refuse)
    order = (*box, *[k for k in range(rank) if k not in box])
    apart = tuple(skips.get(k, 1) for k in order) if skips else ()
    return BoxPlan(order, tuple(box.get(k, 1) for k in order), swizzle, tuple(loops), apart)


_COMPACT = (
    "make the tile compact in shared memory, the contiguous mode of the tensor first: "
    "tw.row_major(tile), or tw.tile_to_shape of an atom whose rows a swizzle spans"
)


def _only_leaf(steps: list[Any], refuse: BoxRefusal) -> tuple[int, int]:
    """Return the leaf of the tensor that a mode of a tile runs along, and its step."""
    moving = [(k, step) for k, step in enumerate(steps) if not (type(step) is int and step == 0)]
    if len(moving) != 1 or type(moving[0][1]) is not int or moving[0][1] < 1:
        raise refuse(
            f"copies boxes, and a mode of the tile moves by {steps} along the tensor's modes",
            "let each mode of the tile run along one mode of the tensor, forwards",
        )
    return moving[0]


def _taken(box: dict[int, int], leaf: int, step: int, extent: int, longest_row: int, skip: int) -> int:
    """Return how many steps of a mode go on where the box ends: along a new leaf, or along the last one."""
    last = next(reversed(box), None)
    if (leaf in box and leaf != last) or step != box.get(leaf, 1) * skip:
        return 1
    is_row = last is None or (leaf == last and len(box) == 1)
    room = min(_LONGEST, longest_row) if is_row else _LONGEST // skip
    return max((n for n in range(1, extent + 1) if extent % n == 0 and n * box.get(leaf, 1) <= room), default=1)


def _check_box(tile: GuardedTensor, box: dict[int, int], loops: list[Loop], swizzle: int, refuse: BoxRefusal) -> None:
    size = tile.dtype.bytes
    contiguous = [k for k, d in enumerate(tile.edge.stride) if type(d) is int and d == 1]
    first = next(iter(box), None)
    if first is None or first not in contiguous:
        along = "no mode of the tensor" if first is None else f"its mode {first}"
        which = f"mode {contiguous[0]} is contiguous" if contiguous else "no mode is known to be contiguous"
        raise refuse(
            f"writes rows along the contiguous mode of the tensor: {which}, and shared memory has {along} first",
            "let the tensor's contiguous mode have stride 1 in shared memory too; a transposing copy reads the tile "
            "back with other strides",
        )
    row = box[first] * size
    if row % _UNIT:
        raise refuse(
            f"moves rows of a multiple of 16 bytes, and a row of the box has {box[first]} {tile.dtype}: {row} bytes",
            f"make the tile a multiple of {_UNIT // math.gcd(size, _UNIT)} along mode {first}",
        )
    for loop in loops:
        if loop.elements * size % _PLACE:
            raise refuse(
                f"puts boxes at multiples of {_PLACE} bytes of shared memory, and one would lie "
                f"{loop.elements * size} bytes behind another",
                _COMPACT,
            )
    boxes = math.prod(loop.count for loop in loops)
    if boxes > _MOST_BOXES:
        rows = f"rows of at most {swizzle} bytes, and " if swizzle else ""
        raise refuse(
            f"would move {boxes} boxes of {row // size} x {math.prod(box.values()) * size // row}: it copies {rows}at "
            f"most {_LONGEST} elements along a mode",
            f"{_COMPACT}; with a swizzle of {swizzle} bytes, a row has {swizzle // size} elements"
            if swizzle
            else _COMPACT,
        )


def _swizzle_bytes(layout: Layout | ComposedLayout, size: int, refuse: BoxRefusal) -> int:
    """Return the bytes over which the hardware's swizzle that a layout has spreads its rows, 0 for none."""
    if isinstance(layout, Layout):
        return 0
    outer = layout.outer
    if not isinstance(outer, Swizzle) or not isinstance(layout.inner, Layout):
        raise refuse(f"writes plain and swizzled layouts, not {layout}", _SWIZZLES.format(base=_base(size)))
    if outer.bits == 0:
        return 0
    if outer.bits > 3 or outer.shift != 3 or outer.base != _base(size):
        raise refuse(
            f"swizzles 16 bytes by 1, 2 or 3 bits, and {outer} of {size}-byte elements is none of these",
            _SWIZZLES.format(base=_base(size)),
        )
    return _UNIT << outer.bits


_SWIZZLES = "use Swizzle(3, {base}, 3) for rows of 128 bytes, Swizzle(2, {base}, 3) of 64, Swizzle(1, {base}, 3) of 32"


def _base(size: int) -> int:
    return 4 - (size.bit_length() - 1)


def start_in_memory(memory: Tensor, plan: BoxPlan, refuse: BoxRefusal) -> Any:  # Any: an int or a Scalar
    """Return the element of the buffer where the first box begins, not swizzled, and have the buffer aligned."""
    engine, size = memory.engine, memory.dtype.bytes
    buffer = engine.buffer.root
    needed = max(_PLACE, 8 * plan.swizzle)
    if buffer.size is None and buffer.alignment < needed:
        raise refuse(f"needs shared memory at multiples of {needed} bytes", f"tw.shared(..., alignment={needed})")
    buffer.alignment = max(buffer.alignment, needed)
    engine.buffer.alignment = buffer.alignment
    offset: Any = memory.layout.offset if isinstance(memory.layout, ComposedLayout) else 0
    for what, number, unit in (("the tensor", engine.start, needed), ("the tile", offset, _PLACE)):
        if not _is_multiple(number, unit, size):
            raise refuse(
                f"puts boxes at multiples of {unit} bytes of shared memory, and {what} is not known to begin at one",
                f"make the strides of stages and tiles multiples of {unit} bytes, or assume_multiple the index",
            )
    return add(engine.start, offset)


def _is_multiple(number: Any, unit: int, size: int) -> bool:
    divisor = abs(number) if isinstance(number, int) else number.facts.divisor
    return divisor * size % unit == 0


@dataclass(frozen=True, eq=False)
class MappedEngine(GuardedEngine):
    """The engine of a tensor whose map threads have made: of boxes of one plan, which copies of it keep to.

    `copies` emits these copies.
    """

    plan: Any = None  # Any: a `BoxPlan`
    map: Any = None  # Any: a `TensorMap`, the pattern
    copies: Any = None  # Any: see `instructions.made_maps`

    def guarded(self) -> BufferEngine:
        """Return itself: it is guarded."""
        return self

    def unguarded(self) -> BufferEngine:
        """Return the engine of the memory, for who knows which elements exist."""
        return BufferEngine(**{f.name: getattr(self, f.name) for f in dataclasses.fields(BufferEngine)})

    def map_for(self, plan: BoxPlan, refuse: BoxRefusal) -> TensorMap:
        """Return the pattern; refuse boxes of another form than the map was made for."""
        own, found = ((p.order, p.box, p.swizzle, p.steps) for p in (self.plan, plan))
        if own != found:
            raise refuse(
                f"copies boxes of {self.plan.box} with a swizzle of {self.plan.swizzle} bytes, as the map was made, "
                f"and this tile takes {plan.box} with {plan.swizzle}",
                "give tw.make_tensor_map a tile and shared memory of the form that is copied",
            )
        pattern: TensorMap = self.map
        return pattern


def describe_tensor(
    tracer: Tracer, tile: GuardedTensor, plan: BoxPlan, refuse: BoxRefusal, *, is_load: bool, is_bits: bool = False
) -> TensorMap:
    """Return the tensor map by which a kernel reaches boxes of the tensor that a tile was cut from: one for equal ones.

    With `is_bits` its elements are bits, whatever integers they are.

    Raises `LanguageError` for a tensor that is not a whole argument as the launch knows it.
    """
    edge = tile.edge
    if isinstance(edge.origin, MappedEngine) and (is_load or not plan.steps):
        return edge.origin.map_for(plan, refuse)
    if edge.origin is not None and type(edge.origin) is not BufferEngine:
        raise refuse("copies tiles of arrays, and this is one of pixels", "copy it by tw.atoms.SM90_TMA_LOAD_IM2COL")
    if plan.steps and not is_load:
        raise refuse(
            f"stores boxes of adjacent elements, and this tile has every {max(plan.steps)}th along a mode",
            "store from registers, or make the tile of adjacent elements; loads take steps of up to 8",
        )
    origin = edge.origin
    if origin is None or not all(type(b) is int and b == 0 for b in edge.begin):
        raise refuse(
            "describes the tensor that was guarded, and this tile was guarded twice or is of a composed layout",
            "guard the argument itself once: tw.guarded(x), or tw.local_tile(x, tile, coord, guard=True)",
        )
    assert isinstance(origin, BufferEngine)
    nan = is_nan(edge.fill, tile.dtype, refuse)
    extents, strides = ([of[k] for k in plan.order] for of in (edge.shape, edge.stride))
    if not is_load:
        demand_whole_units(tracer, origin, extents[0], refuse)
    return map_of(tracer, origin, extents, strides, refuse, box=plan.box, swizzle=plan.swizzle, nan=nan,
                  is_bits=is_bits, steps=plan.steps)  # fmt: skip


def demand_whole_units(tracer: Tracer, origin: BufferEngine, extent: Any, refuse: BoxRefusal) -> None:  # Any: a number
    """Refuse to store rows that end between 16 bytes: while tracing where the extent is known, else at the launch.

    An H200 writes all 16 bytes in which a row of a tensor ends, to what follows the row (336 stores and additions
    of all element sizes, swizzles and residues).
    """
    size = origin.dtype.bytes
    unit = max(_UNIT // size, 1)
    text = f"writes whole {_UNIT} bytes at the end of a row, and rows have {{}} elements of {size} bytes"
    help = f"let rows have a multiple of {unit} elements, padding included, or store by threads: tw.copy(src, dst)"
    if isinstance(extent, int):
        if extent % unit:
            raise refuse(text.format(extent), help)
    elif extent.facts.divisor % unit:
        message = f"argument {origin.buffer.name!r}: a store by TMA {text.format('{value}')}"
        require_multiple(tracer, extent.value, unit, message, help, tracer.location())


def map_of(
    tracer: Tracer, origin: BufferEngine, extents: list[Any], strides: list[Any], refuse: BoxRefusal, **fields: Any
) -> TensorMap:  # Any: numbers of host or device, and fields of a `TensorMap`
    """Return the map of the tensor with these extents and strides at an engine's first element: one for equal ones."""
    if origin.buffer.root.is_pointed or origin.buffer.base is not None:
        raise refuse("describes arguments, and this tensor is reached otherwise", "pass the array itself")
    numbers = [origin.start, *extents, *strides]
    values: list[Value] = []
    for number in numbers:
        value = as_scalar(number).value
        if isinstance(number, Scalar) and not known_to_host(value, tracer):
            raise refuse(
                "describes tensors whose place, extents and strides the host knows, and these are computed by threads",
                "tile the argument itself; its tile's coordinates may be anything",
            )
        values.append(value)
    key = (origin.buffer, *map(_identity, numbers), *fields.items())
    found = tracer.tensor_maps.get(key)
    if found is None:
        rank, name = len(extents), f"{origin.buffer.name}_map"
        found = tracer.tensor_maps[key] = TensorMap(
            name, origin.buffer, values[0], tuple(values[1 : 1 + rank]), tuple(values[1 + rank :]),
            location=tracer.location(), **fields,
        )  # fmt: skip
    return found


def _identity(number: Any) -> object:
    return number if isinstance(number, int) else number.value


def is_nan(fill: Any, dtype: DType, refuse: BoxRefusal) -> bool:
    """Say whether what is outside reads as NaN; refuse what is neither that nor 0."""
    if isinstance(fill, float) and math.isnan(fill) and dtype.is_float and dtype.bits >= 16:
        return True
    if not isinstance(fill, (bool, int, float)) or fill != 0 or str(float(fill)).startswith("-"):
        raise refuse(
            f"fills what lies outside of the tensor with 0, or a float type with NaN, and not with {fill!r}",
            "leave fill= out, and replace what is outside behind the copy",
        )
    return False


def first_coordinates(tile: GuardedTensor, plan: BoxPlan) -> list[Any]:  # Any: ints and Scalars
    """Return the coordinate of the tile's first element, in the order of the map."""
    return [add(tile.edge.base[k], tile.edge.own[k]) for k in plan.order]
