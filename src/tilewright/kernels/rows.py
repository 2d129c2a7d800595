"""`tw.softmax`, `tw.log_softmax`, `tw.rms_norm`, `tw.layer_norm`: functions of the rows of an array."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any  # Any: arrays of any library, and launchers

import tilewright as tw
from tilewright.dtypes import DType, bfloat16, float16, float32, float64
from tilewright.errors import ArgumentError
from tilewright.kernels._row_kernels import norm_held, norm_long, softmax_held, softmax_long
from tilewright.kernels.operands import Operand, Rows, axis_of, check_together, launcher, read, result, rows_of
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over
from tilewright.transactions import WARP

BYTES = 64  # of a row that a thread holds
SMALLEST_BLOCK = 128
# Of vectors of fewer than 16 bytes, up to a warp of threads for a row: with more for each, softmax of rows of 49 to 197
# elements takes 1.5 to 4 times as long on an H200.
_NARROW_BYTES, _NARROW_VECTORS = 28, 7
MOST_THREADS = 1024
MACHINE_EPSILON = {float16: 2.0**-10, bfloat16: 2.0**-7, float32: 2.0**-23, float64: 2.0**-52}
RESIDENT = 1024  # threads of a multiprocessor, so that each may have 64 registers


@dataclass(frozen=True)
class RowPlan:
    """How a kernel goes through rows: its tiled copy, its block, and the elements that a row's threads hold."""

    tiles: Any  # Any: a TiledCopy
    block: tuple[int, int]
    held: int
    is_long: bool

    @property
    def min_blocks(self) -> int:
        return max(1, RESIDENT // (self.block[0] * self.block[1]))

    def grid(self, rows: int) -> int:
        """Return the number of blocks."""
        return -(-rows // self.block[1])


@lru_cache(maxsize=1024)
def plan_rows(bits: int, columns: int, vector: int, held_bytes: int = BYTES) -> RowPlan:
    """Return the plan for rows of elements of so many bits; `vector` is how many bytes one access may take.

    >>> plan_rows(16, 4096, 16).block, plan_rows(16, 77, 2).block, plan_rows(16, 2**17, 16).is_long
    ((128, 1), (16, 8), True)
    """
    size = bits // 8
    width = max(1, min(vector, 16) // size)
    each = held_bytes // size  # elements of a thread
    threads = min(MOST_THREADS, 1 << (max(-(-columns // each), 1) - 1).bit_length())
    if width * size < 16:
        few = min(_NARROW_BYTES // size, _NARROW_VECTORS * width)
        threads = max(threads, min(WARP, 1 << (max(-(-columns // few), 1) - 1).bit_length()))
    is_long = columns > threads * each
    if is_long and columns <= 65536:
        threads = MOST_THREADS // 2  # two blocks hide each other's ends; of longer rows the caches hold one
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    steps = min(each, -(-columns // threads)) if not is_long else each
    held = -(-steps // width) * width * threads
    return RowPlan(tiles, (threads, max(1, SMALLEST_BLOCK // threads)), held, is_long)


def _plan(rows: Rows, held_bytes: int = BYTES) -> RowPlan:
    widest = max((x.dtype for x in rows.views), key=lambda kind: kind.bits)
    return plan_rows(widest.bits, rows.columns, rows.vector, held_bytes)


@repeating("axis")
@handing_over
def softmax(x: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Return exp(x - max(x)) / sum(exp(x - max(x))) along an axis.

    >>> import numpy as np, tilewright as tw
    >>> tw.softmax(np.log(np.array([[1, 2, 1], [1, 1, 6]], np.float32))).round(3)
    array([[0.25 , 0.5  , 0.25 ],
           [0.125, 0.125, 0.75 ]], dtype=float32)

    `x` is float16, bfloat16, float32 or float64, of any rank and strides, and is computed in float32 (float64 in
    float64). Along a contiguous axis memory is read once, if 1024 threads can hold the row: 32768 elements of 16 bits,
    16384 of float32. Longer rows are read twice. Along another axis accesses are narrow, and slower.

    `out` has the shape of `x`, may be of another of these types, and may be `x` itself. Without it the result is a new
    array of x's type in its library; NumPy arrays and tensors on the CPU run in the simulator.

    NaN and infinities follow the formula: a row with NaN or inf, or of -inf alone, is NaN.

    Raises `ArgumentError` for other types, an axis that x does not have, an `out` that does not fit, and tensors that
    require a gradient (see `tw.torch.softmax`).
    """
    return _softmax("softmax", x, axis, out, is_log=False)


@repeating("axis")
@handing_over
def log_softmax(x: Any, axis: int = -1, *, out: Any = None) -> Any:
    """Return x - max(x) - log(sum(exp(x - max(x)))) along an axis.

    >>> import numpy as np, tilewright as tw
    >>> tw.log_softmax(np.zeros((1, 2), np.float32)).round(3)
    array([[-0.693, -0.693]], dtype=float32)

    Arguments are those of `tw.softmax`.

    Raises `ArgumentError` as `tw.softmax` does.
    """
    return _softmax("log_softmax", x, axis, out, is_log=True)


def _softmax(function: str, x: Any, axis: int, out: Any, is_log: bool) -> Any:
    source = read(function, "x", x)
    axis = axis_of(function, axis, len(source.shape))
    target = result(function, out, source, source.shape, source.dtype, may_be=(source,))
    if 0 not in source.shape:
        rows = rows_of((target, source), axis)
        plan = _plan(rows)
        kernel = softmax_long if plan.is_long else softmax_held
        launcher(kernel, plan.grid(rows.count), plan.block, plan.min_blocks)(*rows.views, plan.tiles, plan.held, is_log)
    return target.array


@repeating("eps", "statistics")
@handing_over
def rms_norm(x: Any, weight: Any = None, *, eps: float | None = None, out: Any = None, statistics: bool = False) -> Any:
    """Return x / sqrt(mean(x^2) + eps) * weight, with means over the last mode.

    >>> import numpy as np, tilewright as tw
    >>> tw.rms_norm(np.array([[3, 4, 0, 0]], np.float32), np.full(4, 5, np.float32), eps=0.0)
    array([[6., 8., 0., 0.]], dtype=float32)

    `x` is float16, bfloat16, float32 or float64, of any rank but 0 and any strides; it is computed in float32 (float64
    in float64), and rounded once. `weight` is a vector of any of these types. `eps` is the machine epsilon of x's type
    if it is not given, as for `torch.nn.functional.rms_norm`. Rows as long as those of `tw.softmax` are read once.

    `out` has the shape of `x`, may be of another of these types, and may be `x` itself. With `statistics` the result is
    a pair: the result itself, and for the backward pass 1 / sqrt(mean(x^2) + eps) of each row, float32 or float64.

    Raises `ArgumentError` for other types, a weight of another length, an `out` that does not fit, and tensors that
    require a gradient (see `tw.torch.rms_norm`).
    """
    target, _, scale = _norm("rms_norm", x, weight, None, eps, out, statistics, is_centred=False)
    return (target, scale) if statistics else target


@repeating("eps", "statistics")
@handing_over
def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, out: Any = None, statistics: bool = False
) -> Any:
    """Return (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, with means over the last mode.

    >>> import numpy as np, tilewright as tw
    >>> tw.layer_norm(np.array([[1, 3], [-5, 5]], np.float32), bias=np.array([0, 10], np.float32), eps=0.0)
    array([[-1., 11.],
           [-1., 11.]], dtype=float32)

    The variance is computed from the differences to the mean, so that rows far from zero lose no accuracy. Arguments
    and types are those of `tw.rms_norm`. With `statistics` the result is a triple: the result itself, and for the
    backward pass mean and 1 / sqrt(variance + eps) of each row, float32 or float64.

    Raises `ArgumentError` as `tw.rms_norm` does (see `tw.torch.layer_norm` for gradients).
    """
    target, mean, scale = _norm("layer_norm", x, weight, bias, eps, out, statistics, is_centred=True)
    return (target, mean, scale) if statistics else target


def _norm(
    function: str, x: Any, weight: Any, bias: Any, eps: float | None, out: Any, statistics: bool, is_centred: bool
) -> tuple[Any, Any, Any]:
    source = read(function, "x", x)
    if not source.shape:
        raise ArgumentError(f"x has no mode, and {function} is of the last one", help="pass x.reshape(1)")
    columns = source.shape[-1]
    vectors = [
        read_vector(function, name, v, columns) for name, v in (("weight", weight), ("bias", bias)) if v is not None
    ]
    check_together((source, *vectors))
    kind = float64 if source.dtype == float64 else float32
    number = epsilon(function, eps, source.dtype)
    if statistics and columns == 0:
        raise ArgumentError("rows of x have no elements, and have no mean", help="leave out statistics=True")
    target = result(function, out, source, source.shape, source.dtype, reads=vectors, may_be=(source,))
    mean, scale = (
        result(function, None, source, source.shape[:-1], kind) if wanted else None
        for wanted in (statistics and is_centred, statistics)
    )
    arrays = tuple(None if v is None else v.array for v in (mean, scale))
    rows = rows_of((target, source))
    if rows.count == 0 or columns == 0:
        return target.array, arrays[0], arrays[1]
    plan = _plan(rows)
    vector = {v.name: v.view(v.shape, v.info.strides) for v in vectors}
    numbers = (None if v is None else v.view((rows.count,), (1,)) for v in (mean, scale))
    kernel = norm_long if plan.is_long else norm_held
    y_rows, x_rows = rows.views
    launcher(kernel, plan.grid(rows.count), plan.block, plan.min_blocks)(
        y_rows, *numbers, x_rows, vector.get("weight"), vector.get("bias"), kind.numpy.type(number),
        plan.tiles, plan.held, is_centred, rows.columns % 8 == 0,
    )  # fmt: skip
    return target.array, arrays[0], arrays[1]


def read_vector(function: str, name: str, array: Any, columns: int) -> Operand:
    """Return a vector with an element for each column."""
    found = read(function, name, array)
    if found.shape != (columns,):
        raise ArgumentError(f"{name} has the shape {found.shape}, and rows of x have {columns} elements")
    return found


def epsilon(function: str, eps: Any, dtype: DType) -> float:
    """Return eps; its default is the distance from 1 to the next number of x's type."""
    if eps is None:
        return MACHINE_EPSILON[dtype]
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise ArgumentError(f"eps of {function} is a number, got {type(eps).__name__}")
    if math.isnan(eps) or eps < 0:
        raise ArgumentError(f"eps of {function} is {eps}, and is added to a mean of squares", help="0 or more")
    return float(eps)
