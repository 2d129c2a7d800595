"""`tw.softmax_backward`, `tw.rms_norm_backward` and their like: gradients of the functions of rows."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any  # Any: arrays of any library

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
from tilewright.kernels.rows import MOST_THREADS, RESIDENT, SMALLEST_BLOCK, RowPlan, plan_rows, read_vector
from tilewright.runtime import driver
from tilewright.runtime.views import View

PAIR_BYTES = 32  # of each of two arrays that a thread holds
STAGES = 3  # of the rows that come into shared memory, at most
# Of the simulator: multiprocessors that rows are divided for, bytes of shared memory, and whether there are clusters.
_SIMULATED = 2, 232448, True


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
            _add_rows([(total, nothing.view((0, columns), (columns, 1)))])
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
    processors, shared, has_clusters = _SIMULATED
    if not isinstance(device, str):
        found = driver.device_properties(device)
        processors, shared, has_clusters = found.multiprocessors, found.shared_bytes_optin, found.capability >= (9, 0)
    plan = plan_gradient(_bits(rows), rows.columns, rows.vector, shared, 8 if has_clusters else 1)

    def partial(count: int) -> list[View | None]:
        """Return memory for partial sums of so many parts of the rows."""
        shape = (count, rows.columns)
        made = [None if out is None else result(function, None, source, shape, kind) for out in sums]
        return [None if p is None else p.view(p.shape, p.info.strides) for p in made]

    threads, beside = plan.block
    if not plan.is_long:
        resident = max(1, RESIDENT // (threads * beside))
        cluster = -(-rows.columns // plan.held)
        # Each thread goes through eight rows at least, where there are so many for all.
        most = processors * resident // cluster
        count = plan.grid(rows.count)
        blocks = max(1, min(count, most, max(-(-count // 8), processors // cluster)))
        parts = partial(blocks)
        kernel = norm_gradient_held if cluster == 1 else norm_gradient_held.configure(cluster=cluster)
        launch = launcher(kernel, blocks * cluster, plan.block, resident)
        arguments = [dx, *parts, dy, x, *numbers, weight, plan.tiles, plan.held, beside, stages_of(plan)]
        if cluster > 1 and (fitting := launch.resident_blocks(*arguments) // cluster) < blocks:
            # Clusters that find no neighbouring multiprocessors would run alone, after all others.
            for part in filter(None, parts):
                part.shape = max(1, fitting), rows.columns
            launch = launcher(kernel, max(1, fitting) * cluster, plan.block, resident)
        launch(*arguments)
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
    pairs = zip(sums, parts, strict=False)
    _add_rows([(out, part) for out, part in pairs if out is not None and part is not None])


def _add_rows(sums: list[tuple[Operand, View]]) -> None:
    """Add up partial sums: one launch for those of weight and bias."""
    if sums:
        arguments = [x for out, part in sums for x in (out.view(out.shape, (1,)), part)]
        launch = launcher(add_rows, (-(-sums[0][0].shape[0] // COLUMNS), len(sums)), (COLUMNS, GROUPS))
        launch(*arguments, *[None] * (4 - len(arguments)))


@lru_cache(maxsize=1024)
def plan_gradient(bits: int, columns: int, vector: int, shared: int, blocks: int) -> RowPlan:
    """Return the plan for gradients of a norm on a GPU with so many bytes of shared memory and blocks of a cluster.

    >>> [plan_gradient(16, columns, 16, 232448, 8).block for columns in (1024, 4096, 131072)]
    [(64, 8), (256, 4), (1024, 1)]
    """
    size = bits // 8
    width, each = max(1, min(vector, 16) // size), PAIR_BYTES // size
    most = 1 << min(MOST_THREADS, shared // (PAIR_BYTES * (2 * STAGES + 1))).bit_length() - 1
    threads = min(most, 1 << (max(-(-columns // each), 1) - 1).bit_length())
    if columns > threads * each * blocks:
        return replace(plan_rows(bits, columns, vector, PAIR_BYTES), is_long=True)
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    steps = min(each, -(-columns // threads))
    beside = max(1, min(8, most // threads), SMALLEST_BLOCK // threads)
    return RowPlan(tiles, (threads, beside), -(-steps // width) * width * threads, False)


def stages_of(plan: RowPlan) -> int:
    """Return the stages of the rows of a block: two where it has several, which was measured to be faster."""
    return 2 if plan.block[1] > 1 else STAGES


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
