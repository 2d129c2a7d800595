"""A call's arguments, checked: from arrays and options to the problem that `tw.matmul` has to compute.

Everything here depends on shapes, strides, element types, alignments and options alone, never on a pointer, so it is
done once for calls of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import FLOAT8_NVIDIA, DType, float32
from tilewright.errors import ArgumentError
from tilewright.kernels.arrangement import (
    Arrangement,
    BlockSteps,
    Extents,
    Placement,
    Shape,
    arrange,
    broadcast_strides,
    extents_of,
)
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.further import Asked, reduced_type
from tilewright.kernels.pairs import Pairs
from tilewright.kernels.problem import BLOCK, FP8_FAST, Blocks, Operand, Problem, Types, check_addend, types_of
from tilewright.runtime.addresses import may_overlap_itself
from tilewright.runtime.arrays import ArrayInfo, common_device
from tilewright.runtime.dlpack import row_major


@dataclass(frozen=True)
class Options:
    """What a call asks for beside its arrays.

    `reads_c`: beta is not 0. The last arrays are those of `further` results, and before them so many as `scales` are
    factors of the accumulators.
    """

    precision: str | None = None
    out_dtype: DType | None = None
    reads_c: bool = False
    function: ElementFunction | None = None
    scales: int = 0
    further: tuple[Asked, ...] = ()

    @property
    def pairs(self) -> Pairs | None:
        """Which columns of the product give one of the result."""
        return None if self.function is None else self.function.pairs


# The places of a call's arrays: these, then those that the epilogue captures, then scales, then further results.
A, B, OUT, C, BIAS = range(5)
NAMES = ("a", "b", "out", "c", "bias")


@dataclass(frozen=True)
class Inputs:
    """The arrays of a call by their places, None where it has none, and what they are called."""

    arrays: tuple[ArrayInfo | None, ...]
    names: tuple[str, ...] = NAMES

    def of(self, place: int) -> ArrayInfo:
        """Return the array of a place that has one."""
        found = self.arrays[place]
        assert found is not None, self.names[place]
        return found

    def given(self) -> list[int]:
        """Return the places that have an array."""
        return [place for place, info in enumerate(self.arrays) if info is not None]


# The row of the result, counted through its batch, that a launch begins with, and how many rows further one step along
# the mode of D that the rows are is, and one matrix of D.
Rows = tuple[int, int, int]
_ROW = 1 << 32  # the stride of rows where that of columns is 1


@dataclass(frozen=True)
class ArrangedProblem:
    """A call's problem and how its arrays lie for it; `arrangement` is None where there is nothing to compute.

    `inputs` has a result, also one that is still to be made. `operands` are the places of what the kernel gets beside
    D, A and B, in order. `rows` has the rows of the result in each launch, where the epilogue drops elements.
    """

    problem: Problem
    inputs: Inputs
    arrangement: Arrangement | None
    operands: tuple[int, ...]
    rows: tuple[Rows, ...] = ()


def arrange_problem(inputs: Inputs, options: Options) -> ArrangedProblem:
    """Return the problem of a call; raise `ArgumentError` for arguments that do not fit together."""
    a, b, out = inputs.of(A), inputs.of(B), inputs.arrays[OUT]
    extents = extents_of(a.shape, b.shape)
    given = inputs.given()
    device = common_device([inputs.of(place) for place in given], [inputs.names[place] for place in given])
    dtype = _out_dtype(out, options.out_dtype)
    product = extents
    extents = product.of_pairs(options.pairs)
    types = types_of(a.dtype, b.dtype, dtype, options.precision, has_epilogue=options.function is not None)
    if out is None:
        out = ArrayInfo(VECTOR_BYTES, extents.result, row_major(extents.result), types.out, device)
        inputs = replace(inputs, arrays=(a, b, out, *inputs.arrays[C:]))
    _check_out(out, extents)
    first_further = len(inputs.arrays) - len(options.further)
    first_scale = first_further - options.scales
    of_result, of_product = (extents, "result"), (product, "product" if extents.pairs else "result")
    strides = {
        place: _broadcast(inputs.names[place], inputs.of(place), *(of_result if place > BIAS else of_product))
        for place in given
        if C <= place < first_scale
    }
    scales, blocks = _scales(inputs, range(first_scale, first_further), types, product)
    if extents.pairs and (blocks or types.parts):
        _refuse_pairs(types)
    further = dict(zip(range(first_further, len(inputs.arrays)), options.further, strict=True))
    for place in (C, BIAS):
        if place in strides:
            check_addend(inputs.names[place], inputs.of(place).dtype, types.accumulator)
    strides = {**scales, **strides}  # in the order in which the epilogue takes them
    read = [place for place in strides if place != C or options.reads_c]
    addends, steps, begins = _addends(read, strides, {*scales, C, BIAS}, extents)
    operands = (*blocks, *addends, *further)
    elements = [place for place in read if BIAS < place < first_scale]
    _check_further(options.further, extents, types)
    is_reduced = any(one.operation is not None for one in further.values())
    has_scales = any(one.operation == "scale" for one in further.values())
    arrangement: Arrangement | None = None
    rows: tuple[Rows, ...] = ()
    is_placed = options.function is not None and options.function.is_placed
    if 0 not in extents.result:
        steps += [_further_strides(one, extents) for one in further.values()]
        factors = (a.shape, a.strides), (b.shape, b.strides)
        steps += [_place_strides(extents)] * is_placed
        # A batch may become rows, but no columns: if there is only one column, it could.
        folds = not is_reduced and not (is_placed and extents.n == 1)
        arrangement = arrange(
            extents, out.strides, *factors, steps, list(blocks.values()), folds=folds, swaps=not has_scales
        )
        if is_placed:
            arrangement, rows = _numbered(arrangement)
        if any(begins):
            arrangement = _begun_later(arrangement, begins)
    is_swapped = arrangement is not None and arrangement.is_swapped
    problem = Problem(
        *_matrices(inputs, extents, arrangement),
        compute=_compute(types.compute, b.dtype, arrangement),
        accumulator=types.accumulator,
        c=inputs.of(C).dtype if C in operands else None,
        bias=inputs.of(BIAS).dtype if BIAS in operands else None,
        elements=tuple(inputs.of(place).dtype for place in elements),
        epilogue=options.function,
        parts=types.parts,
        scales=tuple(inputs.of(place).dtype for place in scales),
        blocks=tuple(
            Blocks("A" if x.of_a is not is_swapped else "B", x.rows, _are_boxed(inputs.of(place), n, x, arrangement))
            for n, (place, x) in enumerate(blocks.items())
        ),
        sums_stay=types.sums_stay,
        further=tuple(one.of(reduced_type(types.accumulator, out.dtype), is_swapped) for one in further.values()),
        places=("M" if is_swapped else "N") if is_placed else None,
        is_gated=extents.pairs is not None,
        doubled=tuple(addends.count(place) > 1 for place in read if place not in elements) if extents.pairs else (),
    )
    return ArrangedProblem(problem, inputs, arrangement, operands, rows)


def _check_further(further: Sequence[Asked], extents: Extents, types: Types) -> None:
    """Raise `ArgumentError` for further results that the product cannot have."""
    if any(one.operation is not None for one in further) and not (extents.rows and extents.columns):
        raise ArgumentError(
            "also asks for a reduction, and a or b is a vector", help="pass matrices: a[None, :] or b[:, None]"
        )
    has_scales = any(one.operation == "scale" for one in further)
    if has_scales and not types.accumulator.is_float:
        raise ArgumentError("also asks for scales, and the accumulators are integers")
    if has_scales and types.out not in FLOAT8_NVIDIA:
        raise ArgumentError(
            f"also asks for scales, and the result is {types.out}",
            help="scales are for results of 8-bit floats: out_dtype=tw.float8_e4m3fn",
        )


def _addends(
    places: Sequence[int], strides: Mapping[int, Shape], product: Container[int], extents: Extents
) -> tuple[tuple[int, ...], list[Shape], list[int]]:
    """Return the arrays that the epilogue reads, with their strides by the result, and the elements where they begin.

    Where columns are pairs, an array that differs along the columns of the `product` is there twice, for the first of
    each pair and for the second.
    """
    found = []
    for place in places:
        steps = strides[place]
        step, partner = extents.of_pair(steps[-1]) if extents.pairs and place in product else (0, 0)
        if partner == 0:
            found.append((place, steps, 0))
        else:
            found += [(place, (*steps[:-1], step), begin) for begin in (0, partner)]
    return tuple(x[0] for x in found), [x[1] for x in found], [x[2] for x in found]


def _begun_later(found: Arrangement, begins: Sequence[int]) -> Arrangement:
    """Return an arrangement whose operands begin so many elements later; those without a number are the last."""
    first = 3 + len(found.blocks)
    moved = [0] * first + list(begins) + [0] * (len(found.operands) - len(begins))
    offsets = tuple(tuple(x + more for x, more in zip(of, moved, strict=True)) for of in found.offsets)
    return replace(found, offsets=offsets)


def _refuse_pairs(types: Types) -> NoReturn:
    """Raise `ArgumentError` for products of pairs that no kernel computes."""
    if types.parts is not None:
        raise ArgumentError(
            f"the epilogue is tw.gated, and precision={types.parts.name!r} has no accumulators of pairs",
            help="precision='ieee' and 'tf32' have; or compute a @ b first, and the function of its halves",
        )
    raise ArgumentError(
        "the epilogue is tw.gated, and scales of blocks are not for pairs of columns",
        help="scales of rows, of columns and of matrices are; or compute a @ b first, and the function of its halves",
    )


def _place_strides(extents: Extents) -> Shape:
    """Return the strides of an array of all modes of the result that has row * 2^32 + column as its elements."""
    batch = [step * extents.m * _ROW for step in row_major(extents.batch)]
    return (*batch, *(_ROW,) * extents.rows, *(1,) * extents.columns)


def _numbered(found: Arrangement) -> tuple[Arrangement, tuple[Rows, ...]]:
    """Take the array of `_place_strides`, the last operand, out of an arrangement, and return the rows by it."""
    *operands, places = found.operands
    step, of_batch = places.strides[1 if found.is_swapped else 0] // _ROW, places.strides[2] // _ROW
    rows = tuple((offsets[-1] // _ROW, step, of_batch) for offsets in found.offsets)
    return replace(found, operands=tuple(operands), offsets=tuple(x[:-1] for x in found.offsets)), rows


def further_infos(
    further: Sequence[Asked],
    given: Sequence[ArrayInfo | None],
    asked: DType | None,
    precision: str | None,
    function: ElementFunction | None,
) -> tuple[ArrayInfo, ...]:
    """Return what arrays of further results are, for a call whose a, b and out, or None, are `given`."""
    a, b, out = given[A], given[B], given[OUT]
    assert a is not None and b is not None
    if not further:
        return ()
    extents = extents_of(a.shape, b.shape).of_pairs(None if function is None else function.pairs)
    types = types_of(a.dtype, b.dtype, _out_dtype(out, asked), precision, has_epilogue=function is not None)
    reduced = reduced_type(types.accumulator, types.out)
    shapes = [one.shape(extents.result) for one in further]
    kinds = [one.of(reduced, False).dtype for one in further]
    return tuple(
        ArrayInfo(VECTOR_BYTES, shape, row_major(shape), kind, a.device)
        for shape, kind in zip(shapes, kinds, strict=True)
    )


def _further_strides(one: Asked, extents: Extents) -> Shape:
    """Return the strides of a row-major further result, by the modes of the result."""
    shape = one.shape(extents.result)
    if one.operation in (None, "scale"):
        return row_major(shape)
    place = len(extents.result) + one.axis
    strides = row_major(shape)
    return (*strides[:place], 0, *strides[place:])


def _compute(compute: DType, b: DType, arrangement: Arrangement | None) -> DType:
    """Return the type that the instruction takes of A: of 8 bits B's may be another, and D^T swaps the two."""
    return b if compute.bits == 8 and arrangement is not None and arrangement.is_swapped else compute


def _matrices(
    inputs: Inputs, extents: Extents, arrangement: Arrangement | None
) -> tuple[int, int, int, int, Operand, Operand, Operand]:
    """Return M, N, K, the batch, A, B and D as the kernel sees them."""
    if arrangement is None:
        a, b, d = (Operand(x.dtype, "none", x.dtype.bytes) for x in (inputs.of(A), inputs.of(B), inputs.of(OUT)))
        return extents.m, extents.n, extents.k, math.prod(extents.batch), a, b, d
    placed = zip(matrices(arrangement), (arrangement.d, arrangement.a, arrangement.b), strict=True)
    d, a, b = (
        _operand(inputs.of(place), placement, [offsets[n] for offsets in arrangement.offsets])
        for n, (place, placement) in enumerate(placed)
    )
    m, n, batch = arrangement.d.shape
    return m, n, extents.k, batch * len(arrangement.offsets), a, b, d


def matrices(arrangement: Arrangement) -> tuple[int, int, int]:
    """Return the places of what the kernel calls D, A and B."""
    return (OUT, B, A) if arrangement.is_swapped else (OUT, A, B)


def _operand(info: ArrayInfo, placement: Placement, offsets: Sequence[int]) -> Operand:
    """Return how a matrix lies, in every launch of the host's loop."""
    size = info.dtype.bytes
    alignment = min(placement.alignment(info.pointer + offset * size, size) for offset in offsets)
    return Operand(info.dtype, placement.major, alignment, placement.line(size))


def _are_boxed(scales: ArrayInfo, number: int, steps: BlockSteps, arrangement: Arrangement | None) -> bool:
    """Return whether TMA copies the scales of a kernel's array of that number, of which each row has its own."""
    if arrangement is None or steps.rows > 1:
        return False
    placement = arrangement.blocks[number]
    operand = _operand(scales, placement, [offsets[3 + number] for offsets in arrangement.offsets])
    return placement.unit == 0 and operand.alignment == VECTOR_BYTES


def _out_dtype(out: ArrayInfo | None, asked: DType | None) -> DType | None:
    if out is None:
        return asked
    if asked is not None and asked is not out.dtype:
        raise ArgumentError(
            f"out is {out.dtype}, and out_dtype asks for {asked}", help="leave out_dtype out: out's type is taken"
        )
    return out.dtype


def _check_out(out: ArrayInfo, extents: Extents) -> None:
    if out.shape != extents.result:
        raise ArgumentError(f"out has the shape {out.shape}, and the result {extents.result}")
    if not out.writable:
        raise ArgumentError(
            "out is read-only", help="pass a writable array (a copy, or after array.setflags(write=True))"
        )
    if may_overlap_itself(out.shape, out.strides):
        raise ArgumentError(
            f"elements of out share memory: shape {out.shape}, strides {out.strides}",
            help="pass an array of its own memory, for example a copy",
        )


def _broadcast(name: str, info: ArrayInfo, extents: Extents, of: str) -> Shape:
    strides = broadcast_strides(info.shape, info.strides, extents.result)
    if strides is None:
        raise ArgumentError(
            f"{name} has the shape {info.shape}, which does not broadcast to the {of}'s {extents.result}",
            help=f"NumPy's rule: the last modes are compared, and each is 1 or the {of}'s",
        )
    return strides


def _scales(
    inputs: Inputs, places: Sequence[int], types: Types, extents: Extents
) -> tuple[dict[int, Shape], dict[int, BlockSteps]]:
    """Return the strides of scales by their places, those of blocks apart."""
    scales: dict[int, Shape] = {}
    blocks: dict[int, BlockSteps] = {}
    for place in places:
        found = _scale(inputs, place, types.accumulator, extents)
        if isinstance(found, BlockSteps):
            _check_blocks(inputs.names[place], types)
            blocks[place] = found
        else:
            scales[place] = found
    return scales, blocks


def _check_blocks(name: str, types: Types) -> None:
    """Raise `ArgumentError` for products whose sums are not made block by block."""
    if types.parts is not None:
        raise ArgumentError(
            f"{name} has a scale for each block of K, and precision={types.parts.name!r} sums up all of K",
            help="leave precision out, or multiply by the scales first",
        )
    if types.sums_stay:
        raise ArgumentError(
            f"{name} has a scale for each block of K, and precision={FP8_FAST!r} sums up all of K before it is scaled",
            help="leave precision out",
        )


def _scale(inputs: Inputs, place: int, accumulator: DType, extents: Extents) -> Shape | BlockSteps:
    """Return a scale's strides, broadcast to the result, or how blocks' lie; raise `ArgumentError` for a wrong one."""
    name, info, side = inputs.names[place], inputs.of(place), inputs.names[place][-1]
    if accumulator is not float32:
        raise ArgumentError(
            f"{name} is a factor of float32 accumulators, and those of this product are {accumulator}",
            help=f"scale in an epilogue: epilogue=lambda acc: acc * {name}",
        )
    if info.dtype is not float32:
        raise ArgumentError(f"{name} is {info.dtype}, and scales are float32", help=f"convert {name} to float32")
    if math.prod(info.shape) == 1:
        return (0,) * len(extents.result)
    blocks = _blocks(info, side, inputs.of(A if side == "a" else B), extents)
    if blocks is not None:
        return blocks
    has_modes = len(inputs.of(A if side == "a" else B).shape) > 1
    along = info.shape[-2:-1] if side == "b" else info.shape[-1:]  # empty for the scale of b that is a vector of N
    strides = None
    if has_modes and along in ((), (1,)):
        shape, steps = info.shape, info.strides
        if not (extents.rows if side == "b" else extents.columns):  # nor has the result this mode of one element
            shape, steps = ((*x[:-2], *x[-1:]) if side == "b" else x[:-1] for x in (shape, steps))
        strides = broadcast_strides(shape, steps, extents.result)
    if strides is None:
        each = f"({extents.m}, 1) for one of each row" if side == "a" else f"(1, {extents.n}) for one of each column"
        raise ArgumentError(
            f"{name} has the shape {info.shape}, which does not fit a result of the shape {extents.result}",
            help="pass one element"
            + (f", or the shape {each}, with modes of the batch before it" if has_modes else "")
            + f"; scales of blocks of {BLOCK} elements of K have the shape {_block_shapes(side, extents)}",
        )
    return strides


def _block_shapes(side: str, extents: Extents) -> str:
    """Return the shapes that scales of blocks may have, in words."""
    extent, deep = extents.m if side == "a" else extents.n, -(-extents.k // BLOCK)
    shapes: list[Shape] = [(rows, deep) if side == "a" else (deep, rows) for rows in (extent, -(-extent // BLOCK))]
    if not (extents.rows if side == "a" else extents.columns):
        shapes = [(deep,)]
    return " or ".join(map(str, dict.fromkeys(shapes)))


def _blocks(info: ArrayInfo, side: str, operand: ArrayInfo, extents: Extents) -> BlockSteps | None:
    """Return how scales of blocks of `BLOCK` elements of K lie, None for other scales.

    They have the modes of their operand: those of rows (of `a`; columns of `b`) have one extent, the operand's, or as
    many as there are blocks of `BLOCK` rows, and those of K as many as there are such blocks of K.
    """
    is_matrix = len(operand.shape) > 1
    if len(info.shape) < 1 + is_matrix:
        return None
    *outer, depth = info.shape if side == "a" or not is_matrix else (*info.shape[:-2], *info.shape[:-3:-1])
    *outer_strides, k_stride = (
        info.strides if side == "a" or not is_matrix else (*info.strides[:-2], *info.strides[:-3:-1])
    )
    extent = extents.m if side == "a" else extents.n
    deep, wide = -(-extents.k // BLOCK), -(-extent // BLOCK)
    rows, row_stride = (outer.pop(), outer_strides.pop()) if is_matrix else (1, 0)
    is_wide = rows == wide and wide not in (1, extent)
    if depth not in (1, deep) or (depth == 1 and not is_wide) or (rows not in (1, extent) and not is_wide):
        return None
    batch = broadcast_strides(tuple(outer), tuple(outer_strides), extents.batch)
    if batch is None:
        return None
    steps = row_stride if rows > 1 else 0, k_stride if depth > 1 else 0, batch
    return BlockSteps(side == "a", BLOCK if is_wide else 1, deep, steps)
