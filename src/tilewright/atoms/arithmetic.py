"""What the matrix instructions compute, where it is more than `mma.multiply_add`, and how near a GPU comes to it.

Products are exact and sums are made in float64 and rounded once, to nearest. A tensor core instead aligns the products
and the addend to the largest of them, cuts what lies below the last bit it keeps, and does so for a few k at a time:
its result differs in the last bits. `error_bound` says by how much at most. Integers and bits are exact on both.
PTX leaves the order and the rounding of the sums open ("the accumulation order is unspecified").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.atoms.mma import MMAAtom, multiply_add
from tilewright.dtypes import float16, float32

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_TF32_MASK = 0xFFFFE000  # sign, 8 bits of exponent, 10 of fraction
_STEP = 4  # the least k that a tensor core adds at once


def truncate_tf32(x: Array) -> Array:
    """Return float32 values as a tensor core reads them: the low 13 bits of the fraction do not count.

    >>> import numpy as np
    >>> truncate_tf32(np.array([1 + 2**-10 + 2**-11], np.float32)) == 1 + 2**-10
    array([ True])

    Source: PTX ISA, "mma": for .tf32 the operands are .b32 registers whose lower bits are ignored.
    """
    import numpy as np

    bits = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(_TF32_MASK)
    cut: Array = bits.view(np.float32)
    return cut


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


def error_bound(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Return how far a GPU's D may lie from `atom.reference(a, b, c)`, element by element.

    With S the sum of |a * b| over k and of |c|: every step loses at most one unit in the last place that is kept of
    each of its addends, and no addend or sum exceeds S.

    - integers and bits: 0.
    - float64: every k is a fused multiply-add, which rounds by 2**-53 at most: 2 * K * 2**-53 * S for both sides.
    - float32 accumulators: 2**-23 of the largest addend is kept; K addends and one c a step: 2 * K * 2**-23 * S. Of
      8-bit floats some GPUs keep fewer bits of the sum: 2**-13.
    - float16 accumulators: rounded to float16 in every step.
    """
    import numpy as np

    if not atom.dtype_d.is_float:
        return np.zeros(np.broadcast_shapes(c.shape, (*a.shape[:-1], b.shape[-2])))
    k = atom.shape_mnk[2]
    magnitude = np.abs(a).astype(np.float64) @ np.swapaxes(np.abs(b), -1, -2).astype(np.float64)
    magnitude = magnitude + np.abs(c).astype(np.float64)
    if atom.dtype_d is float16:
        steps = max(k // _STEP, 1)
        result: Array = steps * 2.0**-10 * magnitude + 2.0**-24
        return result
    if atom.dtype_d is float32:
        result = 2 * k * (2.0**-13 if atom.dtype_a.bits == 8 else 2.0**-23) * magnitude + 2.0**-149
        return result
    result = 2 * k * 2.0**-53 * magnitude
    return result
