"""`tw.quantized` and `tw.quantize`: weights of 4 or 8 bits with scales for groups, a value that `tw.matmul` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arguments import one_of
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int16, int32, uint8
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames
from tilewright.kernels._weights_kernel import unpack_weights
from tilewright.kernels.operands import check_together, launcher, read, result
from tilewright.kernels.results import array_beside, host_array
from tilewright.kernels.weights import (
    BITS,
    WeightFormat,
    check_group,
    is_group,
    pack_codes,
    pack_groups,
    unpack_codes,
    unpack_groups,
)

Array = np.ndarray[Any, Any]
SCALES = (float16, bfloat16, float32)
FAR = 1 << 32  # beyond zeros of any weights
# Where AWQ has the eight columns of an int32: bits 4 i of a word hold column AWQ_COLUMNS[i].
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, eq=False)
class Quantized:
    """A weight matrix (K, N) of 4 or 8 bits, packed: what `tw.quantized`, `tw.quantize` and the readers return.

    `tw.matmul(x, weights)` is x @ ((q - zero) * scale). `packed`, `scales` and `zeros` (None where one number is the
    zero of all groups) are arrays of the weights' library; `format` describes them. `order` is None, or the rows of the
    weights in the order in which they are packed: x's columns are taken in that order.
    """

    packed: Any  # Any: arrays of any library
    scales: Any
    zeros: Any
    format: WeightFormat
    order: Any = None

    @property
    def shape(self) -> tuple[int, int]:
        """K and N: the weights represent a matrix of this shape."""
        return self.format.k, self.format.n

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the weights take, with their scales and zeros."""
        return self.format.bytes

    @property
    def parts(self) -> tuple[Any, ...]:
        """The arrays beside `packed`: scales, and zeros where there are."""
        return (self.scales,) if self.zeros is None else (self.scales, self.zeros)

    def take_columns(self, x: Any) -> Any:
        """Return x with its columns in the order in which the rows of the weights are packed."""
        if self.order is None:
            return x
        shape = getattr(x, "shape", None)
        if shape is None or not hasattr(x, "__getitem__"):
            raise ArgumentError(
                f"a is a {type(x).__name__}, and its columns are taken in the order of the weights: a[..., order]",
                help="pass an array of NumPy, torch or CuPy",
            )
        if tuple(shape[-1:]) != (self.format.k,):
            raise ArgumentError(f"the shapes {tuple(shape)} and {self.shape} have no product")
        return x[..., self.order]

    @hiding_frames
    def codes(self) -> Array:
        """Return the whole numbers q that are stored, from 0 to 2**bits - 1, as NumPy uint8 (K, N).

        >>> import numpy as np, tilewright as tw
        >>> q = np.arange(12, dtype=np.uint8).reshape(4, 3)
        >>> tw.quantized(q, np.ones((1, 3), np.float16)).codes().tolist() == q.tolist()
        True
        """
        f = self.format
        codes = unpack_codes(host_array(self.packed, "packed"), f.bits, f.k, f.n)
        return self._in_order(codes)

    @hiding_frames
    def dequantised(self) -> Array:
        """Return (q - zero) * scale as NumPy float32 (K, N): rounded once, where float32 does not hold the product.

        >>> import numpy as np, tilewright as tw
        >>> q, scale = np.array([[1, 9], [8, 0]], np.uint8), np.array([[0.5, 2]], np.float16)
        >>> tw.quantized(q, scale, np.array([[8, 8]])).dequantised().tolist()
        [[-3.5, 2.0], [0.0, -16.0]]
        """
        f = self.format
        codes = unpack_codes(host_array(self.packed, "packed"), f.bits, f.k, f.n).astype(np.int32)
        zeros: Any = f.zero if self.zeros is None else self._of_rows(host_array(self.zeros, "zeros")).astype(np.int32)
        scales = self._of_rows(host_array(self.scales, "scales").astype(np.float32))
        with np.errstate(all="ignore"):  # infinite scales, as in a kernel
            found: Array = (codes - zeros).astype(np.float32) * scales
        return self._in_order(found)

    @hiding_frames
    def to_matrix(self, dtype: Any = None) -> Any:
        """Return (q - zero) * scale as an array (K, N) of the weights' library, computed where they are, rounded once.

        It is contiguous along K. `dtype` is float16, bfloat16 or float32; without it that of the scales. On a GPU
        nothing waits, and nothing comes to the host, unlike `dequantised`.

        >>> import numpy as np, tilewright as tw
        >>> q, scale = np.array([[1, 9], [8, 0]], np.uint8), np.array([[0.5, 2]], np.float16)
        >>> tw.quantized(q, scale, np.array([[8, 8]])).to_matrix().tolist()
        [[-3.5, 2.0], [0.0, -16.0]]

        Raises `ArgumentError` for another type.
        """
        asked = self.format.scale if dtype is None else _scale_type(dtype, np.empty(0), "dtype")
        rows = unpack(self.packed, self.scales, self.zeros, self.format, asked)
        if self.order is not None:
            rows = rows[:, array_beside(np.argsort(host_array(self.order, "order")), rows)]
        return rows.T

    def _of_rows(self, packed: Array) -> Array:
        f = self.format
        return np.repeat(unpack_groups(packed, f.k, f.n, f.group), f.group, 0)[: f.k]

    def _in_order(self, rows: Array) -> Array:
        if self.order is None:
            return rows
        found = np.empty_like(rows)
        found[host_array(self.order, "order")] = rows
        return found

    def __repr__(self) -> str:
        k, n = self.shape
        return f"<{k} x {n}: {self.format}>"


class Quantizer:
    """Make weights for `tw.matmul` from whole numbers, scales and zeros; see `__call__`, `from_gptq`, `from_awq`."""

    __name__ = "quantized"

    @hiding_frames
    def __call__(self, w: Any, scale: Any, zero: Any = None, *, bits: int = 4, group: int | None = None) -> Quantized:
        """Return weights that represent (w - zero) * scale, packed for `tw.matmul(x, weights)`.

        `w` (K, N) has whole numbers: from 0 to 2**bits - 1 in an unsigned type, from -2**(bits - 1) to
        2**(bits - 1) - 1 in a signed one. `scale` (groups, N) is float16, bfloat16 or float32, and `zero` (groups, N),
        whole numbers, is a zero for each group; None is 0. `group` rows of K share them: 32, 64, a multiple of 128,
        or -1 for all of K; without it what `scale` says, 128 rows where that fits.

        >>> import numpy as np, tilewright as tw
        >>> w = np.arange(48, dtype=np.uint8).reshape(16, 3) % 16
        >>> weights = tw.quantized(w, np.full((1, 3), 0.5, np.float16), np.full((1, 3), 8))
        >>> tw.matmul(np.ones((2, 16), np.float16), weights)
        array([[-4., -4., -4.],
               [-4., -4., -4.]], dtype=float16)

        Arrays are those of NumPy, torch, CuPy, or in the CPU's memory; they are packed on the host, and the result is
        where `w` is. Raises `ArgumentError` for shapes, types and numbers that do not fit.
        """
        bits = _bits(bits)
        codes, scales = _matrix(w, "w"), _scales(scale)
        if codes.dtype.kind not in "iu":
            raise ArgumentError(
                f"w is {codes.dtype}, and weights are whole numbers", help="tw.quantize(w) rounds floats"
            )
        signed = 0 if codes.dtype.kind == "u" else 2 ** (bits - 1)
        if codes.size and not -signed <= codes.min() <= codes.max() < 2**bits - signed:
            raise ArgumentError(
                f"w has numbers from {codes.min()} to {codes.max()}, and {codes.dtype} weights of {bits} bits are from"
                f" {-signed} to {2**bits - 1 - signed}",
                help="numbers from 0 on are given as uint8; bits= says how many bits they have",
            )
        rows = _group(group, codes.shape[0], scales.shape[0])
        zeros = None if zero is None else _zeros(zero)
        zeros = np.full_like(scales, signed, np.int16) if zeros is None else zeros + signed
        return _packed(codes.astype(np.int16) + signed, scales, zeros, bits, rows, w)

    @hiding_frames
    def from_gptq(
        self,
        qweight: Any,
        qzeros: Any,
        scales: Any,
        g_idx: Any = None,
        *,
        bits: int = 4,
        format: str = "gptq",
        group: int | None = None,
    ) -> Quantized:
        """Return weights from GPTQ's arrays, of 4 or 8 bits.

        `qweight` (K * bits / 32, N) int32 has consecutive rows of K in a word, the first in its lowest bits; `qzeros`
        (groups, N * bits / 32) int32 has consecutive columns. Zeros are stored minus one, unless `format` is
        "gptq_v2"; None says that they are 2**(bits - 1). `scales` is (groups, N), and `group` as in `tw.quantized`.
        `g_idx` (K,) is the group of each row ("act-order"): rows are packed by groups, and `tw.matmul` takes x's
        columns in the same order.

        >>> import numpy as np, tilewright as tw
        >>> words = np.array([[0x76543210, 0x0FEDCBA9]], np.int32)
        >>> weights = tw.quantized.from_gptq(words, np.array([[0x77]], np.int32), np.ones((1, 2), np.float16))
        >>> weights.dequantised()[:, 0].tolist()
        [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0]
        """
        bits = _bits(bits)
        if format not in ("gptq", "gptq_v2"):
            raise ArgumentError(f"format is 'gptq' or 'gptq_v2', got {format!r}")
        words, given = _words(qweight, "qweight"), _scales(scales)
        per, n = 32 // bits, words.shape[1]
        codes = _fields(words, bits).transpose(0, 2, 1).reshape(per * len(words), n)
        if qzeros is None:
            zeros = np.full(given.shape, 2 ** (bits - 1), np.int16)
        else:
            stored = _words(qzeros, "qzeros")
            if stored.shape[1] != -(-n // per):
                raise ArgumentError(
                    f"qzeros has {stored.shape[1]} columns, and {-(-n // per)} hold {n} zeros of {bits} bits"
                )
            zeros = _fields(stored, bits).reshape(len(stored), per * stored.shape[1])[:, :n].astype(np.int16)
            zeros += format == "gptq"
        if g_idx is None:
            return _packed(codes, given, zeros, bits, _group(group, codes.shape[0], given.shape[0]), qweight)
        groups = _vector(g_idx, "g_idx")
        rows, order = _order(groups, codes.shape[0], given.shape[0], group)
        is_sorted = np.array_equal(order, np.arange(order.size))
        return _packed(codes[order], given, zeros, bits, rows, qweight, None if is_sorted else order)

    @hiding_frames
    def from_awq(self, qweight: Any, qzeros: Any, scales: Any, *, group: int | None = None) -> Quantized:
        """Return weights from AWQ's arrays (the "gemm" version), of 4 bits.

        `qweight` (K, N / 8) and `qzeros` (groups, N / 8) are int32: a word has eight columns, and from its lowest bits
        on those are 0, 2, 4, 6, 1, 3, 5, 7. `scales` is (groups, N), and `group` as in `tw.quantized`.

        >>> import numpy as np, tilewright as tw
        >>> words, zeros = np.array([[0x75316420]], np.int32), np.zeros((1, 1), np.int32)
        >>> tw.quantized.from_awq(words, zeros, np.ones((1, 8), np.float16)).dequantised().tolist()
        [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]
        """
        words, stored, given = _words(qweight, "qweight"), _words(qzeros, "qzeros"), _scales(scales)
        codes, zeros = (_awq_columns(array) for array in (words, stored))
        rows = _group(group, codes.shape[0], given.shape[0])
        return _packed(codes, given, zeros.astype(np.int16), 4, rows, qweight)

    def __repr__(self) -> str:
        return "<function tilewright.quantized>"


@hiding_frames
def quantize(w: Any, bits: int = 4, group: int = 128, *, symmetric: bool = False, scale_dtype: Any = None) -> Quantized:
    """Quantize float weights `w` (K, N): round each to the nearest of 2**bits numbers of its group and column.

    `group` rows of K share a scale: 32, 64, a multiple of 128, or -1 for all of K. With `symmetric` these are the
    multiples of a scale from -2**(bits - 1) to 2**(bits - 1) - 1, where the scale maps 2**(bits - 1) - 1 to the largest
    magnitude; otherwise they range from the least weight, or 0, to the largest, or 0, and zeros are stored too. Scales
    are of `scale_dtype`, by default w's type if that is float16 or bfloat16, and float16 otherwise.

    >>> import numpy as np, tilewright as tw
    >>> w = np.linspace(-1, 1, 256, dtype=np.float32).reshape(128, 2)
    >>> weights = tw.quantize(w, bits=8)
    >>> float(np.abs(weights.dequantised() - w).max()) < 1 / 255
    True

    This is rounding to nearest. Methods that use activations, such as GPTQ and AWQ, lose less accuracy; `tw.quantized`
    takes their results. Raises `ArgumentError` for weights that are not finite, and for scales that their type cannot
    represent.
    """
    bits, symmetric = _bits(bits), one_of("tw.quantize", "symmetric", symmetric, (True, False))
    values = _matrix(w, "w")
    if values.dtype.kind in "iub":
        raise ArgumentError(f"w is {values.dtype}, and tw.quantize rounds floats", help="tw.quantized packs integers")
    of = _scale_type(scale_dtype, values)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise ArgumentError("w has numbers that are not finite as float32, which no group of weights can hold")
    k, n = values.shape
    rows = check_group(group, k)
    groups = -(-k // rows)
    parts = np.pad(values, ((0, groups * rows - k), (0, 0))).reshape(groups, rows, n)
    low, high = (parts.min(1), parts.max(1)) if parts.size else (np.zeros((groups, n), np.float32),) * 2
    low, high = (x.astype(np.float64) for x in (np.minimum(low, 0), np.maximum(high, 0)))  # whose difference is finite
    steps, middle = 2**bits - 1, 2 ** (bits - 1)
    reach = np.maximum(high, -low) / (middle - 1) if symmetric else (high - low) / steps
    scales = _rounded_scales(reach, of, steps)
    wide = scales.astype(np.float32)
    zeros = (
        np.full((groups, n), middle, np.int16) if symmetric else np.rint(-low / wide).clip(0, steps).astype(np.int16)
    )
    codes = (np.rint(parts / wide[:, None]) + zeros[:, None]).clip(0, steps).astype(np.uint8)
    return _packed(codes.reshape(groups * rows, n)[:k], scales, zeros, bits, rows, w)


def _rounded_scales(reach: Array, of: DType, steps: int) -> Array:
    """Return scales in their type, 1 where a group has nothing but zeros; raise where the type does not hold them."""
    exact = np.where(reach == 0, 1, reach)
    with np.errstate(over="ignore"):
        scales = exact.astype(of.numpy)
    # A scale below the normal numbers may be rounded by more than those are, until the last of the steps is off by half
    # of one: beyond that, weights would be clipped, or all become 0. Those of float32 are as exact as the weights. If
    # all weights of a group are less than half a step of another group, what they are off by is no more than there.
    off = np.abs(scales.astype(np.float64) - exact) / exact
    matters = exact * steps > reach.max(initial=0) / 2
    far = exact[matters & (off > max(float(np.spacing(of.numpy.type(1))), 1 / steps) / 2)]
    if of != float32 and far.size:
        raise ArgumentError(
            f"a scale of {far[0]:.3g} is {'beyond' if far[0] > 1 else 'too small for'} {of}",
            help="ask for scale_dtype=tw.float32",
        )
    least = np.nextafter(np.zeros((), of.numpy), np.ones((), of.numpy))  # where a scale is rounded to nothing
    return np.where(scales == 0, least, scales).astype(of.numpy)


def _scale_type(asked: Any, values: Array, name: str = "scale_dtype") -> DType:
    if asked is None:
        own = _element(values, "w")
        return own if own in (float16, bfloat16) else float16
    try:
        found = as_dtype(asked)
    except TypeError as error:
        raise ArgumentError(f"{name} is not an element type of Tilewright: {error}") from None
    if found not in SCALES:
        raise ArgumentError(f"{name} is one of {', '.join(map(str, SCALES))}, got {found}")
    return found


def _packed(
    codes: Array, scales: Array, zeros: Array, bits: int, group: int, beside: Any, order: Array | None = None
) -> Quantized:
    """Return weights from codes from 0 on, where the array `beside` is."""
    k, n = codes.shape
    groups = -(-k // group)
    for name, array in (("scale", scales), ("zero", zeros)):
        if array.shape != (groups, n):
            raise ArgumentError(
                f"{name} has the shape {array.shape}, and weights of {k} x {n} in groups of {group} have {(groups, n)}"
            )
    if zeros.size and not 0 <= zeros.min() <= zeros.max() <= 2**bits:
        raise ArgumentError(
            f"zeros are from {zeros.min()} to {zeros.max()}, counted from the least weight of {bits} bits as 0, and"
            f" kernels take them from 0 to {2**bits}",
            help="fold what is beyond into the product: x @ w - x.sum(1) * scale * zero",
        )
    one = int(zeros.flat[0]) if zeros.size else 0
    is_one = bool((zeros == one).all())
    found = WeightFormat(bits, k, n, group, as_dtype(scales.dtype), one if is_one else None)
    of_zeros = np.uint8 if bits == 4 else np.int16
    return Quantized(
        array_beside(pack_codes(codes.astype(np.uint8), bits), beside),
        array_beside(pack_groups(scales, found.groups), beside),
        None if is_one else array_beside(pack_groups(zeros.astype(of_zeros), found.groups), beside),
        found,
        None if order is None else array_beside(order.astype(np.int64), beside),
    )


def _bits(asked: object) -> int:
    if isinstance(asked, (int, np.integer)) and int(asked) in BITS:
        return int(asked)
    raise ArgumentError(f"bits is 4 or 8, got {asked!r}")


def _group(asked: int | None, k: int, groups: int) -> int:
    """Return the rows of a group, which `groups` groups of K tell where they are not asked for."""
    if asked is not None:
        return check_group(asked, k)
    if groups <= 1:
        return 128 if k <= 128 and groups else check_group(-1, k)
    if -(-k // 128) == groups:
        return 128
    fitting = {1 << n for n in range(5, k.bit_length()) if -(-k >> n) == groups}
    if k % groups == 0 and is_group(k // groups):
        fitting.add(k // groups)
    if len(fitting) != 1:
        raise ArgumentError(
            f"{groups} groups of {k} rows of weights "
            + (f"may have {' or '.join(map(str, sorted(fitting)))} rows each" if fitting else "have no size that fits"),
            help="say how many rows a group has, 32, 64 or a multiple of 128: group=",
        )
    return fitting.pop()


def _order(groups: Array, k: int, count: int, asked: int | None) -> tuple[int, Array]:
    """Return the rows of a group and the order of rows by their groups."""
    if groups.shape != (k,) or (k and not 0 <= groups.min() <= groups.max() < count):
        raise ArgumentError(f"g_idx has the group of each of {k} rows, from 0 to {count - 1}, got {groups.shape}")
    sizes = np.bincount(groups.astype(np.int64), minlength=count)
    if asked is None and count > 1 and is_group(most := int(sizes.max())):
        asked = most
    rows = _group(asked, k, count)
    full = np.minimum(rows, np.maximum(k - rows * np.arange(count), 0))
    if not np.array_equal(sizes, full):
        raise ArgumentError(
            f"g_idx puts from {sizes.min()} to {sizes.max()} rows into a group, and all groups have {rows}",
            help="make groups of equal size, or multiply by the dequantised weights",
        )
    return rows, np.argsort(groups, kind="stable")


def _awq_columns(words: Array) -> Array:
    fields = _fields(words, 4)
    columns = np.empty_like(fields)
    columns[:, :, list(AWQ_COLUMNS)] = fields
    found: Array = columns.reshape(len(words), 8 * words.shape[1])
    return found


def _fields(words: Array, bits: int) -> Array:
    """Return the numbers of `bits` bits of each word along a new last mode, lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    fields: Array = words[..., None] >> shifts & np.uint32(2**bits - 1)
    return fields.astype(np.uint8)


def _words(array: Any, name: str) -> Array:
    found = _matrix(array, name)
    if found.dtype.kind not in "iu" or found.dtype.itemsize != 4:
        raise ArgumentError(f"{name} is {found.dtype}, and packed numbers are int32")
    return np.ascontiguousarray(found).view(np.uint32)


def _scales(array: Any) -> Array:
    found = _matrix(array, "scale")
    if _element(found, "scale") not in SCALES:
        raise ArgumentError(f"scale is {found.dtype}, and scales are {', '.join(map(str, SCALES))}", help="convert it")
    return found


def _zeros(array: Any) -> Array:
    found = _matrix(array, "zero")
    if found.dtype.kind not in "iu" and _element(found, "zero") not in (*SCALES, float64):
        raise ArgumentError(f"zero is {found.dtype}, and zeros are whole numbers", help="pass them as int32")
    if found.dtype.kind not in "iu":
        found = found.astype(np.float64)
        if not np.array_equal(np.rint(found), found):  # NaN too
            raise ArgumentError(
                "zero has fractions, and zeros are whole numbers",
                help="add what they make of each group in an epilogue, or round them",
            )
    if found.size and not -FAR <= found.min() <= found.max() <= FAR:
        raise ArgumentError(f"zero has numbers from {found.min()} to {found.max()}, beyond weights of any bits")
    return found.astype(np.int64)


def _element(array: Array, name: str) -> DType:
    try:
        return as_dtype(array.dtype)
    except TypeError:
        raise ArgumentError(f"{name} is {array.dtype}, which is not an element type of Tilewright") from None


def _matrix(array: Any, name: str) -> Array:
    found = host_array(array, name)
    if found.ndim != 2:
        raise ArgumentError(f"{name} is a matrix, got the shape {found.shape}")
    return found


def _vector(array: Any, name: str) -> Array:
    found = host_array(array, name)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ArgumentError(f"{name} is a vector of whole numbers, got {found.dtype} of the shape {found.shape}")
    return found


quantized: Quantizer = Quantizer()


def unpack(packed: Any, scales: Any, zeros: Any, weights: WeightFormat, dtype: DType) -> Any:
    """Return (q - zero) * scale as an array (N, K) beside the packed weights, rounded once to `dtype`."""
    words, factors = read("matmul", "packed", packed, (int32,)), read("matmul", "scales", scales, SCALES)
    given = [words, factors]
    if zeros is not None:
        given.append(read("matmul", "zeros", zeros, (uint8, int16)))
    check_together(given)
    target = result("matmul", None, words, (weights.n, weights.k), dtype, types=SCALES)
    if 0 not in target.shape:
        views = [x.view(x.shape, x.info.strides) for x in (target, *given, given[-1])[:4]]
        launcher(unpack_weights, (weights.tiles, weights.chunks), 128)(*views, weights.without_extents())
    return target.array
