"""Images as matrices of pixels (im2col): what a convolution multiplies, without the matrix in memory.

A convolution is a sum of products over the positions of its filter. At position (r, s) the operand is a matrix: a row
for each pixel of the output, the channels of the input pixel that lies under the filter there as columns::

    cols = tw.im2col(x, (R, S), stride=1, padding=1)       x: (images, H, W, channels)
    cols[r, s]                                             (images * P * Q, channels), guarded
    tw.local_tile(cols[r, s], (128, 64), (i, k))           what SM90_TMA_LOAD_IM2COL copies

TMA walks through the pixels of such a tile by itself, over the ends of rows and images, and fills in what the padding
reaches outside of the image.

Source: PTX ISA, "Im2col mode"; CUDA driver API, "cuTensorMapEncodeIm2col"; CUTLASS, copy_traits_sm90_im2col.hpp.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import shown
from tilewright.errors import LanguageError
from tilewright.ir.core import Space, TensorMap
from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.tensors.guarded import guarded
from tilewright.trace.boxes import BoxPlan, BoxRefusal, demand_whole_units, is_nan, map_of
from tilewright.trace.engine import BufferEngine, GuardedEngine
from tilewright.trace.tracer import Tracer

_MOST_STEP = 8  # coordinates, from one pixel to the next
# By the number of modes of space: the bits of a corner, which is signed, and of an offset, which is not.
_CORNER_BITS = {1: 16, 2: 8, 3: 5}
_OFFSET_BITS = {1: 16, 2: 8, 3: 5}


@dataclass(frozen=True)
class Filter:
    """A filter over modes of space, from the fastest on: its extents, and how it moves over an image."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Of each mode the first coordinate at which the filter begins, and the last, counted from the image's last."""
        parts = zip(self.extents, self.paddings, self.dilations, strict=True)
        return tuple([(-padding, padding - (extent - 1) * dilation) for extent, padding, dilation in parts])


@dataclass(frozen=True, eq=False)
class PixelEngine(GuardedEngine):
    """The engine of a matrix of pixels, whose elements lie nowhere as the matrix says: only TMA copies them."""

    image: Any = None  # Any: the tensor
    filter: Any = None  # Any: a `Filter`
    offsets: tuple[Any, ...] = ()  # Any: numbers of host or device, from the fastest mode of space on

    def guarded(self) -> BufferEngine:
        """Return itself: it is guarded."""
        return self

    def unguarded(self) -> BufferEngine:
        """Refuse an access to single elements."""
        raise self._refusal()

    def _refusal(self) -> LanguageError:
        return LanguageError(
            f"{self.name or 'the tensor'} is seen as a matrix of pixels (tw.im2col), which only a bulk copy reads",
            help="tw.copy(tw.atoms.SM90_TMA_LOAD_IM2COL, tile, smem, barrier=full), and read shared memory",
        )


class Im2col:
    """A tensor of images under a filter; see `im2col`.

    `output` are the extents of the output: images, and those of space in the order of the tensor's modes.
    """

    def __init__(self, image: Tensor, filter: Filter, fill: Any) -> None:
        self._image, self._filter, self._fill = image, filter, fill
        shape, _ = _modes(image)
        self._counts = [
            (extent - 1 + high - low) // step + 1
            for extent, (low, high), step in zip(shape[-2:0:-1], filter.corners, filter.strides, strict=True)
        ]
        self.output: tuple[Any, ...] = (shape[0], *self._counts[::-1])

    def __getitem__(self, position: Any) -> GuardedTensor:
        """Return the matrix (pixels, channels) at a position of the filter, an index for each mode of space."""
        given = position if isinstance(position, tuple) else (position,)
        extents = self._filter.extents[::-1]
        if len(given) != len(extents):
            raise LanguageError(
                f"tw.im2col: a position of the filter has {len(extents)} indices, got {len(given)}",
                help=f"cols[{', '.join('drs'[-len(extents) :])}], in the order of the tensor's modes",
            )
        for index, extent in zip(given, extents, strict=True):
            if isinstance(index, int) and not 0 <= index < extent:
                raise LanguageError(f"tw.im2col: position {index} of a filter of {extent}")
        offsets = [index * step for index, step in zip(given[::-1], self._filter.dilations, strict=True)]
        shape, stride = _modes(self._image)
        engine: BufferEngine = self._image.engine
        fields = {f.name: getattr(engine, f.name) for f in dataclasses.fields(BufferEngine)}
        pixels: Any = math.prod(self._counts, start=shape[0])
        matrix = PixelEngine(**fields, image=self._image, filter=self._filter, offsets=tuple(offsets))
        found: GuardedTensor = guarded(
            Tensor(matrix, Layout((pixels, shape[-1]), (stride[-2], stride[-1]))), self._fill
        )
        return found


def im2col(
    x: Tensor, filter: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, fill: Any = 0
) -> Im2col:  # Any: an int, or one for each mode of space; `fill` a number
    """Return images as matrices of pixels, for convolutions by matrix products (TMA's im2col mode, sm_90).

    `x` has the modes (images, space, channels), space being 1 to 3 modes, channels contiguous; the others are ints, or
    one for each mode of space in the order of `x`. For each position of the filter, `im2col(...)[r, s]` is a guarded
    matrix (pixels of the output, channels) that reads as `fill`, 0 or NaN, outside of the images; its tiles are copied
    by `tw.atoms.SM90_TMA_LOAD_IM2COL`. `im2col(...).output` are the extents of the output.

    Law: cols[r, s][(n, p, q), c] == x[n, p * stride + r * dilation - padding, q * stride + s * dilation - padding, c],
    where pixels (n, p, q) are numbered with q the fastest.

    Raises `LanguageError` for a tensor of another form, and for filters that a tensor map cannot describe.
    """
    what: object = x
    if not isinstance(what, Tensor) or isinstance(what, GuardedTensor) or not isinstance(what.engine, BufferEngine):
        raise LanguageError(f"tw.im2col: x is an array of the launch, unguarded, got {shown(what)}")
    if x.engine.buffer.space is not Space.GLOBAL or not isinstance(x.layout, Layout):
        raise LanguageError("tw.im2col: x is a tensor of global memory with a plain layout", details=[x.title])
    shape, strides = _modes(x)
    space = len(shape) - 2
    if space not in _CORNER_BITS or not (type(strides[-1]) is int and strides[-1] == 1):
        raise LanguageError(
            "tw.im2col: x has 3 to 5 modes, images, space and channels, and channels are contiguous",
            details=[x.title],
            help="(images, W, channels), (images, H, W, channels) or (images, D, H, W, channels), row-major",
        )
    given = (("filter", filter, 1), ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1))
    found = Filter(*[_of_space(name, number, space, least) for name, number, least in given])
    _demand_encodable(found, space)
    return Im2col(x, found, fill)


def _modes(image: Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the extents and strides of images."""
    assert isinstance(image.layout, Layout), image
    shape, strides = flat_modes(image.layout)
    return tuple(shape), tuple(strides)


def _of_space(name: str, given: object, space: int, least: int) -> tuple[int, ...]:
    """Return an int for each mode of space, from the fastest on."""
    parts = given if isinstance(given, (tuple, list)) else (given,) * space
    if len(parts) != space or not all(type(n) is int and n >= least for n in parts):
        raise LanguageError(
            f"tw.im2col: {name} is an int of at least {least}, or {space} of them, got {shown(given)}",
            help="they are part of the tensor map, and known while tracing",
        )
    return tuple(parts[::-1])


def _demand_encodable(filter: Filter, space: int) -> None:
    corner, offset = 1 << (_CORNER_BITS[space] - 1), 1 << _OFFSET_BITS[space]
    if max(filter.strides) > _MOST_STEP:
        raise LanguageError(f"tw.im2col: a tensor map has strides of up to {_MOST_STEP}, not {max(filter.strides)}")
    for (low, high), extent, dilation in zip(filter.corners, filter.extents, filter.dilations, strict=True):
        if not (-corner <= low < corner and -corner <= high < corner and (extent - 1) * dilation < offset):
            raise LanguageError(
                f"tw.im2col: with {space} modes of space a tensor map has corners from {-corner} to {corner - 1} and "
                f"offsets below {offset}, and a filter of {extent} with dilation {dilation} and padding {-low} needs "
                f"{low}, {high} and {(extent - 1) * dilation}",
                help="take a smaller filter or dilation",
            )


def pixels_of(tile: Tensor, refuse: BoxRefusal) -> PixelEngine:
    """Return the engine of a tile of pixels; raise `LanguageError` for another tensor."""
    engine = tile.engine
    if not isinstance(engine, PixelEngine) or not isinstance(tile, GuardedTensor):
        raise refuse(
            "copies tiles of pixels",
            "tile a matrix of pixels: tw.local_tile(tw.im2col(x, (3, 3), padding=1)[r, s], (128, 64), (i, k))",
        )
    return engine


def describe_pixels(
    tracer: Tracer, tile: GuardedTensor, plan: BoxPlan, refuse: BoxRefusal, *, is_load: bool
) -> TensorMap:
    """Return the tensor map by which a kernel reaches pixels of an image."""
    engine = pixels_of(tile, refuse)
    if plan.order != (1, 0) or plan.steps:
        raise refuse("copies adjacent channels of adjacent pixels", "let channels have stride 1 in shared memory")
    shape, strides = _modes(engine.image)
    if not is_load:
        demand_whole_units(tracer, engine.image.engine, shape[-1], refuse)
    # Images are the last mode, space goes backwards from the fastest on.
    order = [len(shape) - 1, *range(len(shape) - 2, 0, -1), 0]
    return map_of(
        tracer, engine.image.engine, [shape[k] for k in order], [strides[k] for k in order], refuse, box=plan.box,
        swizzle=plan.swizzle, nan=is_load and is_nan(tile.edge.fill, tile.dtype, refuse),
        steps=(1, *engine.filter.strides, 1), corners=engine.filter.corners,
    )  # fmt: skip


def coordinates_of(engine: PixelEngine, channel: Any, pixel: Any) -> tuple[Any, ...]:
    """Return the coordinates and offsets with which an instruction begins at a channel of a pixel."""
    counts = Im2col(engine.image, engine.filter, 0).output[:0:-1]
    places: list[Any] = []
    left: Any = pixel
    for count, (low, _), step in zip(counts, engine.filter.corners, engine.filter.strides, strict=True):
        places.append(left % count * step + low)
        left = left // count
    return (channel, *places, left, *engine.offsets)
