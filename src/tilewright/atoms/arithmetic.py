"""What the matrix instructions compute, where it is more than `mma.multiply_add`, and how near a GPU comes to it.

Products are exact and sums are made in float64 and rounded once, to nearest. A tensor core instead aligns the products
and the addend to the largest of them, cuts what lies below the last bit it keeps, and does so for a few k at a time:
its result differs in the last bits, by `MMAAtom.error_bound` at most. Integers and bits are exact on both.
PTX leaves the order and the rounding of the sums open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.atoms.mma import MMAAtom, multiply_add

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_TF32_MASK = 0xFFFFE000  # sign, 8 bits of exponent, 10 of fraction


def truncate_tf32(x: Array) -> Array:
    """Return float32 values as a tensor core reads them: the low 13 bits of the fraction do not count.

    >>> import numpy as np
    >>> truncate_tf32(np.array([1 + 2**-10 + 2**-11], np.float32)) == 1 + 2**-10
    array([ True])

    PTX leaves the layout of .tf32 in its 32-bit register open; that the low bits are ignored is how GPUs from sm_80 on
    behave, and what the conformance tests check.
    """
    import numpy as np

    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(_TF32_MASK)
    cut: Array = bits.view(np.float32)
    return cut


def round_tf32(x: Array) -> Array:
    """Return float32 values rounded to the nearest that a tensor core reads whole, ties away from zero.

    >>> import numpy as np
    >>> round_tf32(np.array([1 + 2**-11], np.float32)) == 1 + 2**-10
    array([ True])

    Source: PTX ISA, "cvt.rna.tf32.f32".
    """
    import numpy as np

    x = np.ascontiguousarray(x, np.float32)
    rounded = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(_TF32_MASK)
    found: Array = np.where(np.isfinite(x), rounded.view(np.float32), x)
    return found


def multiply_add_tf32(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C of the upper 19 bits of A and B."""
    return multiply_add(atom, truncate_tf32(a), truncate_tf32(b), c)


def multiply_add_saturating(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C of integers, clamped to the range of D instead of wrapping (.satfinite)."""
    import numpy as np

    exact = _sum(a, b, c)
    return np.clip(exact, atom.dtype_d.lowest, atom.dtype_d.highest).astype(atom.dtype_d.numpy)


def _sum(a: Array, b: Array, c: Array) -> Array:
    """Return the exact sums of integers of up to 8 bits."""
    import numpy as np

    product: Array = a.astype(np.float64) @ np.swapaxes(b, -1, -2).astype(np.float64)
    return product.astype(np.int64) + c.astype(np.int64)


def count_and(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Add the number of k at which the bits of A and B are both 1 (.and.popc)."""
    return multiply_add(atom, a, b, c)


def count_xor(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Add the number of k at which the bits of A and B differ (.xor.popc)."""
    # x xor y is x + y - 2xy.
    import numpy as np

    ones = a.sum(axis=-1, dtype=np.int64)[..., :, None] + b.sum(axis=-1, dtype=np.int64)[..., None, :]
    both = _sum(a, b, np.zeros(1, np.int64))
    result: Array = (ones - 2 * both + c).astype(atom.dtype_d.numpy)
    return result


def multiply_add_in_order(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C by one fused multiply-add after the other, in order of k, each rounded to float32.

        d_0 = c,    d_(k+1) = round(a_k * b_k + d_k)

    The order and the rounding within an MFMA are an assumption that was not checked on an AMD GPU;
    `MMAAtom.error_bound` holds for any order. Subnormal numbers count, also where a GPU may take those of float16 and
    bfloat16 for zero (gfx90a). Integers are exact and wrap.

    >>> import numpy as np
    >>> from tilewright.atoms import GFX908_16x16x4_F32F32F32F32_MFMA as atom
    >>> a, b = np.array([[1, -1, 2**-30, 0]], np.float32), np.ones((1, 4), np.float32)
    >>> multiply_add_in_order(atom, a, b, np.zeros((1, 1), np.float32))  # exact from the third product on
    array([[9.313226e-10]], dtype=float32)
    """
    import numpy as np

    if not atom.dtype_d.is_float:
        return multiply_add(atom, a, b, c)
    a, b = a.astype(np.float64), b.astype(np.float64)
    shape = np.broadcast_shapes(c.shape, (*a.shape[:-1], b.shape[-2]))
    d: Array = np.broadcast_to(c, shape).astype(np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[-1]):
            d = _add_rounded_once(a[..., :, None, k] * b[..., None, :, k], d.astype(np.float64))
    return d


def multiply_add_tf32_in_order(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C of the upper 19 bits of A and B as `multiply_add_in_order` does (xf32 of gfx942)."""
    return multiply_add_in_order(atom, truncate_tf32(a), truncate_tf32(b), c)


def _add_rounded_once(x: Array, y: Array) -> Array:
    """Return x + y of float64 rounded once to float32: by way of float64, rounded to odd.

    A sum that float64 cannot hold is replaced by its neighbour in float64 whose last bit is 1, which lies on the same
    side of every border between two float32 as the sum. Source: Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd".
    """
    import numpy as np

    total: Array = np.asarray(x + y)
    part = total - x
    lost = (x - (total - part)) + (y - part)
    even = (total.view(np.int64) & 1) == 0
    odd = np.where(even & (lost != 0) & np.isfinite(lost), np.nextafter(total, np.copysign(np.inf, lost)), total)
    rounded: Array = odd.astype(np.float32)
    return rounded
