"""`tw.rope`: rotary position embedding."""

from __future__ import annotations

import math
from typing import Any  # Any: arrays of any library

from tilewright.arch import VECTOR_BYTES
from tilewright.errors import ArgumentError
from tilewright.kernels._row_kernels import rotate
from tilewright.kernels.arrangement import broadcast_strides
from tilewright.kernels.operands import Operand, Shape, check_together, join_modes, launcher, read, result
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over

THREADS = 128


@repeating("interleaved", "inverse")
@handing_over
def rope(x: Any, cos: Any, sin: Any, *, interleaved: bool = False, inverse: bool = False, out: Any = None) -> Any:
    """Rotate pairs of elements of the last mode by angles: (a, b) becomes (a cos - b sin, b cos + a sin).

    >>> import numpy as np, tilewright as tw
    >>> x = np.array([[1, 2, 3, 4]], np.float32)
    >>> quarter, half = np.array([0, -1], np.float32), np.array([1, 0], np.float32)  # cos and sin of 90 and 180 degrees
    >>> tw.rope(x, quarter, half)
    array([[-3., -2.,  1., -4.]], dtype=float32)
    >>> tw.rope(x, quarter, half, interleaved=True)
    array([[-2.,  1., -3., -4.]], dtype=float32)

    Pair i of a row of d elements is (i, i + d/2), or (2i, 2i + 1) if `interleaved`. The last mode of `cos` and `sin`
    has an element for each pair; their other modes broadcast to those of `x`: (tokens, d/2) for an `x` of (batch,
    heads, tokens, d), and (tokens, 1, d/2) for (batch, tokens, heads, d). `inverse` rotates back, as the gradient does.
    Arrays are float16, bfloat16, float32 or float64, of any strides; the result has the type of `x`, is computed in
    float32 (float64 in float64), and rounded once. `out` may have another type, and may be `x` itself. To rotate a part
    of each row, pass that part: x[..., :n].

    Raises `ArgumentError` for rows of odd length, angles that do not fit, an `out` that does not fit, and tensors that
    require a gradient (see `tw.torch.rope`).
    """
    source = read("rope", "x", x)
    angles = [read("rope", name, t) for name, t in (("cos", cos), ("sin", sin))]
    if not source.shape or source.shape[-1] % 2:
        raise ArgumentError(f"x has the shape {source.shape}, and its last mode consists of pairs")
    pairs = source.shape[-1] // 2
    shape = (*source.shape[:-1], pairs)
    steps: list[Shape] = []
    for angle in angles:
        strides = broadcast_strides(angle.shape, angle.info.strides, shape)
        if strides is None or not angle.shape or angle.shape[-1] != pairs:
            raise ArgumentError(
                f"{angle.name} has the shape {angle.shape}, which does not broadcast to {shape}",
                help="its last mode has one element for each pair; x[..., :n] is a part of each row",
            )
        steps.append(strides)
    check_together((source, *angles))
    target = result("rope", out, source, source.shape, source.dtype, reads=angles, may_be=(source,))
    if 0 not in source.shape:
        _launch((target, source), angles, steps, pairs, interleaved, inverse)
    return target.array


def _launch(
    rows: tuple[Operand, Operand],
    angles: list[Operand],
    steps: list[Shape],
    pairs: int,
    interleaved: bool,
    inverse: bool,
) -> None:
    leading = [*(x.info.strides[:-1] for x in rows), *(s[:-1] for s in steps)]
    modes, joined = join_modes(rows[0].shape[:-1], leading)
    views = []
    for x, lead in zip(rows, joined[:2], strict=True):
        step = x.info.strides[-1]
        if interleaved:
            views.append(x.view((*modes, 2 * pairs), (*lead, step)))
        else:
            views.append(x.view((*modes, pairs, 2), (*lead, step, pairs * step)))
    for x, lead, strides in zip(angles, joined[2:], steps, strict=True):
        views.append(x.view((*modes, pairs), (*lead, strides[-1])))
    each = VECTOR_BYTES // max(x.dtype.bytes for x in rows)
    each = max(1, each // 2 if interleaved else each)
    across = -(-pairs // each)
    threads = min(across, THREADS)
    beside = THREADS // threads
    grid = (-(-math.prod(modes) // beside), -(-across // threads))
    launcher(rotate, grid, (threads, beside))(*views, each, interleaved, inverse)
