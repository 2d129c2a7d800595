"""`tw.softmax_backward`, `tw.rms_norm_backward` and their like: gradients of the functions of rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any  # Any: arrays of any library, and launchers

import tilewright as tw
from tilewright.dtypes import DType, float32, float64
from tilewright.errors import ArgumentError
from tilewright.kernels._row_gradient_kernels import (
    COLUMNS,
    GROUPS,
    add_rows,
    norm_gradient_held,
    norm_gradient_long,
    softmax_gradient_held,
    softmax_gradient_long,
    weight_gradient_long,
)
from tilewright.kernels.operands import Operand, Rows, axis_of, check_together, launcher, read, result, rows_of
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over
from tilewright.kernels.rows import RESIDENT, RowPlan, plan_rows, read_vector
from tilewright.runtime import driver
from tilewright.runtime.views import View

PAIR_BYTES = 32  # of each of two arrays that a thread holds
_SIMULATED = 2  # multiprocessors that sums over rows are divided for in the simulator


@repeating("axis")
@handing_over
def softmax_backward(grad: Any, result: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Return the gradient of `tw.softmax`'s argument: result * (grad - sum(grad * result)) along the axis.

    >>> import numpy as np, tilewright as tw
    >>> y = np.array([[0.25, 0.75]], np.float32)
    >>> tw.softmax_backward(np.array([[1, 0]], np.float32), y)
    array([[ 0.1875, -0.1875]], dtype=float32)

    `grad` and `result` have one shape, and types and strides as `tw.softmax` takes. The gradient has the type of
    `result`; `out` may be either of the two.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    return _softmax_backward("softmax_backward", grad, result, axis, out, is_log=False)


@repeating("axis")
@handing_over
def log_softmax_backward(grad: Any, result: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Return the gradient of `tw.log_softmax`'s argument: grad - exp(result) * sum(grad) along the axis.

    >>> import numpy as np, tilewright as tw
    >>> y = np.log(np.array([[0.25, 0.75]], np.float32))
    >>> tw.log_softmax_backward(np.array([[1, 0]], np.float32), y)
    array([[ 0.75, -0.75]], dtype=float32)

    Arguments are those of `tw.softmax_backward`.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    return _softmax_backward("log_softmax_backward", grad, result, axis, out, is_log=True)


def _softmax_backward(function: str, grad: Any, y: Any, axis: int, out: Any, is_log: bool) -> Any:
    gradient, values = read(function, "grad", grad), read(function, "result", y)
    _check_same_shape(gradient, values)
    check_together((gradient, values))
    axis = axis_of(function, axis, len(values.shape))
    target = result(function, out, values, values.shape, values.dtype, may_be=(gradient, values))
    if 0 not in values.shape:
        rows = rows_of((target, gradient, values), axis)
        plan = plan_rows(_bits(rows), rows.columns, rows.vector, PAIR_BYTES)
        kernel = softmax_gradient_long if plan.is_long else softmax_gradient_held
        launch = launcher(kernel, plan.grid(rows.count), plan.block, plan.min_blocks)
        launch(*rows.views, plan.tiles, plan.held, is_log)
    return target.array


@repeating()
@handing_over
def rms_norm_backward(grad: Any, x: Any, scale: Any, weight: Any = None, *, out: Any = None) -> tuple[Any, Any]:
    """Return the gradients of `tw.rms_norm`'s x and weight; the latter is None without a weight.

    >>> import numpy as np, tilewright as tw
    >>> x, w = np.array([[3, 4, 0, 0]], np.float32), np.ones(4, np.float32)
    >>> y, scale = tw.rms_norm(x, w, eps=0.0, statistics=True)
    >>> dx, dw = tw.rms_norm_backward(np.array([[1, 0, 0, 0]], np.float32), x, scale, w)
    >>> dx.round(3), dw.round(3)
    (array([[ 0.256, -0.192,  0.   ,  0.   ]], dtype=float32), array([1.2, 0. , 0. , 0. ], dtype=float32))

    `scale` is what `tw.rms_norm` returns with `statistics=True`. Gradients have the types of what they are gradients
    of; `out`, for that of x, may be `grad` or `x`. Sums over rows are bitwise reproducible.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    dx, dweight, _ = _norm_backward("rms_norm_backward", grad, x, None, scale, weight, out, weight is not None, False)
    return dx, dweight


@repeating("parameters")
@handing_over
def layer_norm_backward(
    grad: Any, x: Any, mean: Any, scale: Any, weight: Any = None, *, out: Any = None, parameters: bool = True
) -> tuple[Any, Any, Any]:
    """Return the gradients of `tw.layer_norm`'s x, weight and bias; without `parameters` the last two are None.

    >>> import numpy as np, tilewright as tw
    >>> x = np.array([[1, 3], [5, -5]], np.float32)
    >>> y, mean, scale = tw.layer_norm(x, statistics=True)
    >>> dx, dweight, dbias = tw.layer_norm_backward(np.array([[1, 0], [0, 1]], np.float32), x, mean, scale)
    >>> dweight.round(3), dbias
    (array([-1., -1.], dtype=float32), array([1., 1.], dtype=float32))

    `mean` and `scale` are what `tw.layer_norm` returns with `statistics=True`. The gradients of weight and bias have
    the type of the weight (of x, without one); otherwise as `tw.rms_norm_backward`.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    return _norm_backward("layer_norm_backward", grad, x, mean, scale, weight, out, parameters, parameters)


def _norm_backward(
    function: str, grad: Any, x: Any, mean: Any, scale: Any, weight: Any, out: Any, with_weight: bool, with_bias: bool
) -> tuple[Any, Any, Any]:
    gradient, source = read(function, "grad", grad), read(function, "x", x)
    if not source.shape:
        raise ArgumentError(f"x has no mode, and {function} is of the last one", help="pass x.reshape(1)")
    _check_same_shape(gradient, source)
    columns, kind = source.shape[-1], float64 if source.dtype == float64 else float32
    numbers = [
        None if given is None else _read_numbers(function, name, given, source, kind)
        for name, given in (("mean", None if function.startswith("rms") else mean), ("scale", scale))
    ]
    if not function.startswith("rms") and numbers[0] is None:
        read(function, "mean", mean)
    factor = None if weight is None else read_vector(function, "weight", weight, columns)
    given = [v for v in (gradient, source, *numbers, factor) if v is not None]
    check_together(given)
    target = result(function, out, source, source.shape, source.dtype, reads=given[2:], may_be=(gradient, source))
    type_of_sums = source.dtype if factor is None else factor.dtype
    sums = [
        result(function, None, source, (columns,), type_of_sums) if wanted else None
        for wanted in (with_weight, with_bias)
    ]
    if 0 in source.shape:
        for total in filter(None, sums if columns else ()):
            nothing = result(function, None, source, (0, columns), kind)
            _add_rows(total, nothing.view((0, columns), (columns, 1)))
    else:
        rows = rows_of((target, gradient, source))
        vectors = [None if v is None else v.view((rows.count,), (1,)) for v in numbers]
        w = None if factor is None else factor.view(factor.shape, factor.info.strides)
        _launch_norm(function, rows, vectors, w, sums, source, kind)
    dweight, dbias = (None if v is None else v.array for v in sums)
    return target.array, dweight, dbias


def _launch_norm(
    function: str,
    rows: Rows,
    numbers: list[View | None],
    weight: View | None,
    sums: list[Operand | None],
    source: Operand,
    kind: DType,
) -> None:
    dx, dy, x = rows.views
    device = source.info.device
    processors = _SIMULATED if isinstance(device, str) else driver.device_properties(device).multiprocessors
    plan, layout, is_ahead = plan_gradient(_bits(rows), rows.columns, rows.vector, sum(s is not None for s in sums))

    def partial(count: int) -> list[View | None]:
        """Return memory for partial sums of so many parts of the rows."""
        shape = (count, rows.columns)
        made = [None if out is None else result(function, None, source, shape, kind) for out in sums]
        return [None if p is None else p.view(p.shape, p.info.strides) for p in made]

    threads = plan.block[0] * plan.block[1]
    if not plan.is_long:
        resident = 1 if layout is not None else max(1, RESIDENT // threads)
        # Each thread goes through eight rows at least, where there are so many for all.
        blocks = max(1, min(plan.grid(rows.count), max(processors * resident, 1), -(-plan.grid(rows.count) // 8)))
        blocks = max(blocks, min(plan.grid(rows.count), processors))
        parts = partial(blocks * plan.block[1])
        kernel = launcher(norm_gradient_held, blocks, plan.block, resident)
        kernel(dx, *parts, dy, x, *numbers, weight, plan.tiles, plan.held, layout, is_ahead)
    else:
        parts = []
        if any(s is not None for s in sums):
            strip = plan_strip(_bits(rows), rows.vector)
            across = -(-rows.columns // strip.held)
            down = max(1, min(rows.count, -(-processors * 8 // across)))
            parts = partial(down)
            launcher(weight_gradient_long, (across, down), strip.block)(
                *parts, dy, x, *numbers, strip.tiles, strip.held
            )
        # After the sums: dx may be dy or x itself.
        launch = launcher(norm_gradient_long, rows.count, plan.block, plan.min_blocks)
        launch(dx, dy, x, *numbers, weight, plan.tiles, plan.held)
    for out, part in zip(sums, parts, strict=False):
        if out is not None:
            _add_rows(out, part)


def _add_rows(out: Operand, partial: View | None) -> None:
    launcher(add_rows, -(-out.shape[0] // COLUMNS), (COLUMNS, GROUPS))(out.view(out.shape, (1,)), partial)


@lru_cache(maxsize=1024)
def plan_gradient(bits: int, columns: int, vector: int, sums: int) -> tuple[RowPlan, Any, bool]:
    """Return the plan for gradients of a norm, a layout of sums in shared memory or None, and whether rows are ahead.

    >>> [plan_gradient(16, columns, 16, 2)[0].block[0] for columns in (1024, 8192, 16384)]
    [128, 1024, 1024]
    >>> plan_gradient(16, 8192, 16, 2)[1], plan_gradient(16, 16384, 16, 2)[1].shape
    (None, (1024, (4, 2), 2))
    """
    each, most = {16: (8, 16), 32: (4, 16), 64: (2, 4)}[bits]  # elements of a thread, as its registers allow
    plan = plan_rows(bits, columns, vector, each * bits // 8)
    if not plan.is_long:
        return plan, None, True
    double = plan_rows(bits, columns, vector, most * bits // 8)
    wide = 8 if bits == 64 else 4
    if double.is_long or sums == 0 or double.held * wide * sums > 200 * 1024:
        return plan, None, False
    # A thread's elements are its own, wherever they are: neighbouring threads have neighbouring vectors of 16 bytes.
    threads, width = double.block[0], max(1, min(vector, 16) // (bits // 8))
    four = min(width, 16 // wide)
    inner = (four, width // four) if width > four else four
    steps = (1, four * threads) if width > four else 1
    count = double.held // threads // width
    return double, tw.Layout((threads, inner, count), (four, steps, width * threads)), bits == 16


@lru_cache(maxsize=64)
def plan_strip(bits: int, vector: int) -> RowPlan:
    """Return the plan of a block that adds up columns: a vector for each of 128 threads."""
    width = max(1, vector // (bits // 8))
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(128), tw.Layout(width))
    return RowPlan(tiles, (128, 1), 128 * width, False)


def _bits(rows: Rows) -> int:
    return max(view.dtype.bits for view in rows.views)


def _check_same_shape(grad: Operand, other: Operand) -> None:
    if grad.shape != other.shape:
        raise ArgumentError(f"grad has the shape {grad.shape}, and {other.name} {other.shape}")


def _read_numbers(function: str, name: str, array: Any, x: Operand, kind: DType) -> Operand:
    """Return numbers of rows, contiguous as the forward function makes them."""
    found = read(function, name, array, (kind,))
    if found.shape != x.shape[:-1]:
        raise ArgumentError(f"{name} has the shape {found.shape}, and x {x.shape}, so there are {x.shape[:-1]} rows")
    step = 1
    for extent, stride in zip(reversed(found.shape), reversed(found.info.strides), strict=True):
        if extent > 1 and stride != step and 0 not in found.shape:
            raise ArgumentError(f"{name} is not contiguous", help="pass it as the forward function returned it")
        step *= extent
    return found
