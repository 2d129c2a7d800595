"""What a matrix product asks for: extents, element types, how each matrix lies in memory; and how it is cut up."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Literal

from tilewright import dtypes as t
from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.kernels.precision import PARTS, Parts
from tilewright.kernels.weights import WeightFormat
from tilewright.pickling import hashed_once
from tilewright.transactions import ROW

# Which mode of a matrix has stride 1: its K (for D its N is "MN"), the other one, or neither.
Major = Literal["K", "MN", "none"]


@dataclass(frozen=True)
class Operand:
    """How a matrix lies in memory.

    `alignment` is in bytes: the greatest power of two, up to 16, that divides the pointer and every stride but the
    unit one, that of the batch included. `line` is that of the strides alone, up to a line of the caches: a row of a
    tile that begins within one is read from two.
    """

    dtype: DType
    major: Major
    alignment: int
    line: int = ROW


BLOCK = 128  # elements of K, and rows or columns, that share a scale


@dataclass(frozen=True)
class Blocks:
    """Scales of an operand's blocks: of `rows` rows (A) or columns (B), 1 or `BLOCK`, and of `BLOCK` elements of K.

    Those that are `boxed` are contiguous along rows or columns, and aligned so that TMA copies them.
    """

    of: Literal["A", "B"]
    rows: int
    boxed: bool = False

    def __str__(self) -> str:
        return f"{self.of} in blocks of {self.rows} x {BLOCK}"


Operation = Literal["sum", "max", "min", "amax", "scale"]


@dataclass(frozen=True)
class Further:
    """A result beside D, of values that the epilogue computes: all of them, or an `operation` over them.

    Over "M" a value is left of each column, over "N" of each row. The operation "scale" leaves one of each `BLOCK`
    columns of a row, by which D is divided: the greatest absolute value over the greatest number of D's type.
    """

    dtype: DType
    operation: Operation | None = None
    over: Literal["M", "N"] | None = None

    def __str__(self) -> str:
        return str(self.dtype) if self.operation is None else f"{self.operation} over {self.over} in {self.dtype}"

    @property
    def is_combined(self) -> bool:
        """Whether tiles leave parts of it."""
        return self.operation not in (None, "scale")

    @property
    def transposed(self) -> Further:
        """The same result of the transposed matrix."""
        return self if self.over is None else replace(self, over="N" if self.over == "M" else "M")


@hashed_once
@dataclass(frozen=True)
class Problem:
    """D[m, n, l] = epilogue(alpha * s[m, n, l] * sum over k of A[m, k, l] * B[n, k, l] + beta * C + bias).

    C and bias are those at [m, n, l], as are all operands; s is the product of the `scales`, 1 without them. Under the
    sum each A[m, k, l] and B[n, k, l] is multiplied by the scale of its block, where there are `blocks`; the sums of a
    block of K are made first. With `sums_stay` the tensor cores may sum up all of K: packed weights may be rounded.

    `batch` is the extent of l. `compute` is the element type that the matrix instruction takes: tfloat32 for float32
    operands that may be rounded; of 8-bit operands A's, while B may have another. With `parts`, A and B are float32
    and multiplied in parts of the type `compute`. `accumulator` is the type of the accumulators and of alpha and beta;
    C and bias are converted to it. D is contiguous along N ("MN") or along neither mode ("none").

    `epilogue` is None or a function called as `epilogue(accumulator, *elements)`, with one element for each type in
    `elements`; it is equal to others that mean the same. Where there are `further` results it returns a value for each
    of them behind that of D, or one value for all. Where it drops elements, `places` is the mode of D that the columns
    of the result are.

    Where it `is_gated`, the epilogue takes a pair of accumulators for each element of D, those of the two matrices that
    B has along a mode of its own: B[n, k, pair, l]. Of scales, C and bias those that are `doubled` are two operands
    each, one for each of a pair; the others are the same for both.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Operand  # (M, K)
    b: Operand  # (N, K)
    d: Operand  # (M, N)
    compute: DType
    accumulator: DType
    c: DType | None = None
    bias: DType | None = None
    elements: tuple[DType, ...] = ()
    epilogue: Hashable | None = None
    weights: WeightFormat | None = None  # of packed weights in B's place
    parts: Parts | None = None
    scales: tuple[DType, ...] = ()
    blocks: tuple[Blocks, ...] = ()
    sums_stay: bool = False
    further: tuple[Further, ...] = ()
    places: Literal["M", "N"] | None = None
    is_gated: bool = False
    doubled: tuple[bool, ...] = ()

    @property
    def columns(self) -> int:
        """The columns of the product: two for each of D where its epilogue takes pairs."""
        return self.n * (1 + self.is_gated)

    @property
    def is_whole_vectors(self) -> bool:
        """Whether D's rows begin and end at multiples of 16 bytes: a store by TMA writes up to such an end."""
        d = self.d
        return d.major == "MN" and d.alignment >= VECTOR_BYTES and self.n * d.dtype.bytes % VECTOR_BYTES == 0

    @property
    def quantises(self) -> bool:
        """Whether D is divided by scales that are computed on the way."""
        return any(x.operation == "scale" for x in self.further)

    @property
    def promotes(self) -> bool:
        """Whether sums of some K by the tensor cores are added up in float32: for their accuracy, or to be scaled."""
        return bool(self.blocks) or (self.a.dtype in t.FLOAT8_NVIDIA and not self.sums_stay)

    @property
    def arithmetic(self) -> str:
        """What is multiplied, in words."""
        return str(self.compute) if self.parts is None else f"float32 by {self.parts}"

    @property
    def has_c(self) -> bool:
        return self.c is not None

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    @property
    def operands(self) -> tuple[DType, ...]:
        """The element types of what the epilogue reads: scales, C, bias, and what its function takes."""
        before = self.scales + tuple(x for x in (self.c, self.bias) if x is not None)
        doubled = self.doubled or (False,) * len(before)
        return tuple(x for x, twice in zip(before, doubled, strict=True) for _ in range(1 + twice)) + self.elements

    @property
    def flops(self) -> int:
        """The number of multiplications and additions."""
        return 2 * self.m * self.columns * self.k * self.batch

    @property
    def bytes(self) -> int:
        """The bytes that pass between device memory and the multiprocessors when each element passes once."""
        a = self.m * self.k * self.a.dtype.bytes
        b = self.columns * self.k * self.b.dtype.bytes if self.weights is None else self.weights.bytes
        d = self.m * self.n * self.d.dtype.bytes
        c = self.m * self.columns * self.c.bytes if self.c is not None else 0
        stored = sum(x.dtype.bytes for x in self.further if x.operation is None)
        return (a + b + c + d + self.m * self.n * stored) * self.batch


@dataclass(frozen=True)
class Configuration:
    """Tile, warps and stages of a kernel.

    A block computes `tile` = (M, N) of D, the third extent of K at a time, with `warps` = (along M, along N) warps and
    `stages` tiles of K in shared memory. `group` blocks along M are computed before the next along N. Of K cut into
    `splits`, each block takes one, and a second kernel adds their sums. A family whose kernel is cut up in more ways
    derives a class with more fields.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    group: int = 8
    splits: int = field(default=1, kw_only=True)

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    def __str__(self) -> str:
        m, n, k = self.tile
        splits = f", {self.splits} splits" if self.splits > 1 else ""
        return f"{m}x{n}x{k}, {self.warps[0]}x{self.warps[1]} warps, {self.stages} stages{splits}"


FP8_FAST = "fp8_fast"
PRECISIONS = ("ieee", "tf32", *PARTS, FP8_FAST)
_BYTES = (t.int8, t.uint8)

# What the matrix instruction takes, and the type of the accumulators.
_COMPUTED: dict[DType, tuple[DType, DType]] = {
    t.float16: (t.float16, t.float32),
    t.bfloat16: (t.bfloat16, t.float32),
    t.float32: (t.float32, t.float32),
    t.float64: (t.float64, t.float64),
    t.int8: (t.int8, t.int32),
    t.uint8: (t.uint8, t.int32),
    t.float8_e4m3fn: (t.float8_e4m3fn, t.float32),
    t.float8_e5m2: (t.float8_e5m2, t.float32),
}


@dataclass(frozen=True)
class Types:
    """The element types of a product: of the matrix instruction's A, of the accumulators, and of the result.

    `parts` says how float32 becomes several numbers of the type `compute`, if it does, and `sums_stay` that the tensor
    cores may sum up all of K.
    """

    compute: DType
    accumulator: DType
    out: DType
    parts: Parts | None = None
    sums_stay: bool = False


def types_of(a: DType, b: DType, out: DType | None, precision: str | None, *, has_epilogue: bool = False) -> Types:
    """Return the element types for those of a and b; raise `ArgumentError` for what no kernel computes.

    >>> types_of(t.int8, t.int8, None, None).out, types_of(t.float32, t.float32, None, "tf32").compute
    (tw.int32, tw.tfloat32)
    """
    for name, dtype in (("a", a), ("b", b)):
        if dtype not in _COMPUTED:
            raise ArgumentError(
                f"{name} is {dtype}, and matmul takes {', '.join(map(str, _COMPUTED))}",
                help="convert it to one of these",
            )
    if a is not b and not any(a in group and b in group for group in (t.FLOAT8_NVIDIA, _BYTES)):
        raise ArgumentError(
            f"a is {a} and b is {b}; both have one element type, or are two of 8 bits that multiply each other",
            help=f"convert one of them: to {t.promote(a, b)}"
            if t.promote(a, b) in _COMPUTED
            else "convert one of them",
        )
    if precision is not None and precision not in PRECISIONS:
        raise ArgumentError(
            f"precision is one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}",
            help="'ieee' multiplies float32 numbers as they are, 'tf32' takes 10 bits of their fraction; 'tf32x3', "
            "'bf16x6' and 'bf16x9' multiply them in parts on tensor cores, about as exactly as 'ieee'; "
            f"{FP8_FAST!r} lets tensor cores sum up 8-bit floats, in fewer bits than float32 has; 'rounded' is for "
            "packed weights",
        )
    compute, accumulator = _COMPUTED[a]
    parts = None
    if precision == FP8_FAST:
        if a not in t.FLOAT8_NVIDIA:
            raise ArgumentError(
                f"precision={precision!r} is for 8-bit floats, and a and b are {a}", help="leave precision out"
            )
    elif precision is not None and precision != "ieee":
        if a is not t.float32:
            raise ArgumentError(
                f"precision={precision!r} is for float32, and a and b are {a}", help="leave precision out"
            )
        parts = PARTS.get(precision)
        compute = t.tfloat32 if parts is None else parts.part
    return Types(compute, accumulator, _result(a, accumulator, out, has_epilogue), parts, precision == FP8_FAST)


def _result(a: DType, accumulator: DType, out: DType | None, has_epilogue: bool) -> DType:
    if out is None:
        if accumulator is t.int32:
            return t.int32
        return t.bfloat16 if a in t.FLOAT8 else a
    if out.storage is not out:
        raise ArgumentError(f"out_dtype {out} is not a type of an array")
    # An epilogue may give any type; without one floats stay floats, and integers become floats or wide integers.
    if has_epilogue or out.is_float or (accumulator is t.int32 and out.is_integer and out.bits >= 32):
        return out
    whole = accumulator is t.int32
    reason = "which does not hold them" if whole else "and a float does not become an integer by itself"
    raise ArgumentError(
        f"the accumulators are {accumulator} and out_dtype is {out}, {reason}",
        help=f"convert in an epilogue: epilogue=lambda acc: ...to({out!r})",
    )


def check_addend(name: str, dtype: DType, accumulator: DType) -> None:
    """Raise `ArgumentError` for a c or bias that cannot be converted to the type of the accumulators."""
    if accumulator is t.int32 and dtype.is_float:
        raise ArgumentError(
            f"{name} is {dtype}, and the accumulators of integers are int32",
            help="add it in an epilogue: epilogue=lambda acc: acc + bias, with out_dtype=tw.float32",
        )
