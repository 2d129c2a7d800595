"""A call with packed weights, checked: the problem with x as A, the weights as B, scales and zeros beside them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import bfloat16, float16, int16, int32, uint8
from tilewright.errors import ArgumentError
from tilewright.kernels.arguments import A, ArrangedProblem, B, Inputs, Options, arrange_problem
from tilewright.kernels.arrangement import Arrangement, Placement
from tilewright.kernels.problem import Operand
from tilewright.kernels.weights import TILE, WeightFormat
from tilewright.runtime.arrays import ArrayInfo, common_device
from tilewright.runtime.dlpack import row_major


def arrange_weights(inputs: Inputs, options: Options, weights: WeightFormat) -> ArrangedProblem:
    """Return the problem of a call whose b is packed weights; the last of `inputs` are their scales and zeros.

    Everything but b is checked as for matrices: a stand-in of the weights' extents takes its place meanwhile. Raises
    `ArgumentError` for arguments that do not fit together.
    """
    a, packed = inputs.of(A), inputs.of(B)
    if a.dtype not in (float16, bfloat16):
        raise ArgumentError(
            f"a is {a.dtype}, and packed weights multiply float16 and bfloat16",
            help="convert a, or multiply by weights.dequantised()",
        )
    if options.precision not in (None, "rounded"):
        raise ArgumentError(
            f"precision={options.precision!r}, and a is multiplied by packed weights",
            help="leave precision out, or let weights be rounded to the type of a: 'rounded'",
        )
    last = len(inputs.arrays) - (1 if weights.zero is not None else 2)
    parts = tuple(range(last, len(inputs.arrays)))
    given = [A, B, *parts]
    common_device([inputs.of(place) for place in given], [inputs.names[place] for place in given])
    kinds = (int32, weights.scale, uint8 if weights.bits == 4 else int16)
    ends = ((weights.chunks, weights.words), *[(weights.groups, TILE)] * 2)
    for place, kind, shape in zip(given[1:], kinds, ends, strict=False):
        x, whole = inputs.of(place), (weights.tiles, *shape)
        is_whole = x.shape == whole and all(
            n == 1 or s == step or 0 in whole for n, s, step in zip(whole, x.strides, row_major(whole), strict=True)
        )
        if x.dtype != kind or not is_whole:
            name = "the packed array" if place == B else inputs.names[place]
            raise ArgumentError(
                f"{name} is {x.dtype} of shape {x.shape} and strides {x.strides}, and {weights} have {kind} of shape "
                f"{whole}, row by row",
                help="take weights as tw.quantize and tw.quantized return them",
            )
    matrix = (weights.k, weights.n)
    stand_in = ArrayInfo(VECTOR_BYTES, matrix, row_major(matrix), a.dtype, packed.device)
    matrices = Inputs((a, stand_in, *inputs.arrays[B + 1 : last]), inputs.names[:last])
    found = arrange_problem(matrices, replace(options, precision=None))
    problem, arrangement = found.problem, found.arrangement
    if arrangement is not None:
        if arrangement.is_swapped:  # the weights are B always
            m, n, d = problem.n, problem.m, replace(problem.d, major="none")
            problem = replace(problem, m=m, n=n, a=problem.b, d=d, places=problem.places and "N")
        arrangement = _with_weights(arrangement, packed, [inputs.of(place) for place in parts])
    return ArrangedProblem(
        replace(
            problem,
            b=Operand(int32, "K", VECTOR_BYTES),
            compute=a.dtype,
            weights=weights,
            sums_stay=options.precision is not None,
        ),
        Inputs((a, packed, *found.inputs.arrays[B + 1 :], *inputs.arrays[last:]), inputs.names),
        arrangement,
        (*parts, *found.operands),
        found.rows,
    )


def _with_weights(found: Arrangement, packed: ArrayInfo, parts: list[ArrayInfo]) -> Arrangement:
    """Return an arrangement with the weights' arrays in B's place and before the operands."""
    d, a, operands = found.d, found.a, found.operands
    if found.is_swapped:
        d, a, operands = _transposed(d), found.b, tuple(map(_transposed, operands))
    x = 2 if found.is_swapped else 1  # where a's offset stands beside D's
    return Arrangement(
        False,
        d,
        a,
        _as_it_lies(packed),
        (*map(_as_it_lies, parts), *operands),
        tuple((o[0], o[x], 0, *(0 for _ in parts), *o[3:]) for o in found.offsets),
    )


def _transposed(placement: Placement) -> Placement:
    (m, n, batch), (m_step, n_step, step) = placement.shape, placement.strides
    return Placement((n, m, batch), (n_step, m_step, step), "none", None)


def _as_it_lies(info: ArrayInfo) -> Placement:
    first, second, third = info.shape
    outer, middle, inner = info.strides
    return Placement((first, second, third), (outer, middle, inner), "K", 2)
