"""`tw.cross_entropy` and its gradient."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any  # Any: arrays of any library

from tilewright.dtypes import DType, float32, float64, int32, int64
from tilewright.errors import ArgumentError
from tilewright.kernels._loss_kernels import cross_entropy_gradient, cross_entropy_rows
from tilewright.kernels.operands import FLOATS, Operand, check_together, join_modes, launcher, read, result, rows_of
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over
from tilewright.kernels.rows import plan_rows
from tilewright.runtime.views import View

MOST_THREADS = 512  # two blocks of a multiprocessor hide each other's ends


@repeating("ignore_index", "label_smoothing", "statistics")
@handing_over
def cross_entropy(
    logits: Any,
    labels: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """Return the loss log(sum(exp(x))) - x[label] of each row of logits.

    >>> import numpy as np, tilewright as tw
    >>> logits = np.log(np.array([[1, 1, 2], [8, 1, 1]], np.float32))
    >>> np.exp(-tw.cross_entropy(logits, np.array([2, 0]))).round(3)
    array([0.5, 0.8], dtype=float32)

    `logits` has the columns as its last mode, and types and strides as `tw.softmax` takes; `labels`, int32 or int64,
    has the shape of the others. Each logit is read once, whatever the length of the rows. Losses are float32 (float64
    for float64); `out` may have another of these types. The loss of a row whose label is `ignore_index` is 0. A label
    that is not a column gives NaN. With `label_smoothing` e, the label has weight 1 - e, and every column e / columns.

    With `statistics` the result is a triple: the losses, and for the backward pass the greatest logit of each row and
    the sum of exp(logit - greatest).

    Raises `ArgumentError` for other types, shapes that do not fit together, rows without columns, and tensors that
    require a gradient (see `tw.torch.cross_entropy`).
    """
    source, target = _read("cross_entropy", logits, labels)
    ignored, number = _whole(ignore_index), smoothing_of(label_smoothing)
    kind = _kind(source)
    shape = source.shape[:-1]
    losses = result("cross_entropy", out, source, shape, kind, reads=(source, target))
    top, total = (result("cross_entropy", None, source, shape, kind) if statistics else None for _ in ("top", "total"))
    if 0 not in shape:
        rows = rows_of((source,))
        plan = plan_rows(source.dtype.bits, rows.columns, rows.vector)
        if plan.block[0] > MOST_THREADS:
            plan = plan_rows(source.dtype.bits, MOST_THREADS * 512 // source.dtype.bits, rows.vector)
        kernel = launcher(cross_entropy_rows, plan.grid(rows.count), plan.block, plan.min_blocks)
        kernel(
            _flat(losses), *(None if v is None else _flat(v) for v in (top, total)), rows.views[0], _flat(target),
            ignored, kind.numpy.type(number), plan.tiles, plan.held, bool(number),
        )  # fmt: skip
    if top is None or total is None:
        return losses.array
    return losses.array, top.array, total.array


@repeating("ignore_index", "label_smoothing")
@handing_over
def cross_entropy_backward(
    grad: Any,
    logits: Any,
    labels: Any,
    top: Any,
    total: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any = None,
) -> Any:
    """Return the gradient of `tw.cross_entropy`'s logits from those of the losses.

    >>> import numpy as np, tilewright as tw
    >>> logits, labels = np.log(np.array([[1, 1, 2]], np.float32)), np.array([2])
    >>> loss, top, total = tw.cross_entropy(logits, labels, statistics=True)
    >>> tw.cross_entropy_backward(np.ones(1, np.float32), logits, labels, top, total)
    array([[ 0.25,  0.25, -0.5 ]], dtype=float32)

    `top` and `total` are what `tw.cross_entropy` returns with `statistics=True`; the other arguments are those of that
    call. The gradient has the type of the logits. `out` may be `logits` itself, so that nothing is allocated.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    function = "cross_entropy_backward"
    source, target = _read(function, logits, labels)
    ignored, number = _whole(ignore_index), smoothing_of(label_smoothing)
    kind, shape = _kind(source), source.shape[:-1]
    factor = read(function, "grad", grad)
    numbers = [read(function, name, x, (kind,)) for name, x in (("top", top), ("total", total))]
    for x in (factor, *numbers):
        if x.shape != shape:
            raise ArgumentError(f"{x.name} has the shape {x.shape}, and logits {source.shape}")
    check_together((source, target, factor, *numbers))
    gradient = result(
        function, out, source, source.shape, source.dtype, reads=(target, factor, *numbers), may_be=(source,)
    )
    if 0 not in shape:
        rows = rows_of((gradient, source))
        bits = max(view.dtype.bits for view in rows.views)
        plan = plan_rows(bits, min(rows.columns, 128 * 512 // bits), rows.vector)
        width = max(1, min(rows.vector, 16) // (bits // 8))
        blocks = plan.grid(rows.count) * -(-rows.columns // plan.held)
        launcher(cross_entropy_gradient, blocks, plan.block)(
            rows.views[0], _flat(factor), rows.views[1], _flat(target), *map(_flat, numbers),
            ignored, kind.numpy.type(number), plan.tiles, plan.held, width,
        )  # fmt: skip
    return gradient.array


def _read(function: str, logits: Any, labels: Any) -> tuple[Operand, Operand]:
    source, target = read(function, "logits", logits), read(function, "labels", labels, (int64, int32))
    if not source.shape:
        raise ArgumentError("logits has no mode, and its last one are the columns", help="pass logits.reshape(1)")
    if target.shape != source.shape[:-1]:
        raise ArgumentError(f"labels has the shape {target.shape}, and logits {source.shape}: one label for each row")
    if source.shape[-1] == 0:
        raise ArgumentError(f"logits has the shape {source.shape}, and rows without columns have no loss")
    check_together((source, target))
    return source, target


def _kind(logits: Operand) -> DType:
    assert logits.dtype in FLOATS
    return float64 if logits.dtype == float64 else float32


def _flat(x: Operand) -> View:
    """Return an array with an element for each row as the kernels take it, and refuse one whose modes do not join."""
    extents, (steps,) = join_modes(x.shape, [x.info.strides])
    if len(extents) == 1:
        return x.view(extents, steps if extents[0] > 1 else (1,))
    raise ArgumentError(f"the modes of {x.name} do not lie one behind the other", help="pass a contiguous copy")


def _whole(number: Any) -> Any:
    if isinstance(number, bool) or not isinstance(number, Integral) or not -(2**63) <= int(number) < 2**63:
        raise ArgumentError(f"ignore_index is a whole number of 64 bits, got {number!r}")
    return int64.numpy.type(number)


def smoothing_of(number: Any) -> float:
    """Return label smoothing; raise `ArgumentError` for what is not from 0 to 1."""
    if isinstance(number, bool) or not isinstance(number, Real) or not 0 <= float(number) <= 1:
        raise ArgumentError(f"label_smoothing is {number!r}", help="a number from 0 to 1")
    return float(number)
