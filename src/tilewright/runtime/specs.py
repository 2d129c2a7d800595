"""What may stand in an array's place: descriptions where only its kind matters, and its whole layout known."""

from __future__ import annotations

from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_all
from tilewright.runtime.arrays import ArrayInfo, ArraySpec, Static
from tilewright.runtime.options import as_int, checked_int, shown

_MOST_MODES = 32
_MOST_ELEMENTS = 2**63 - 1  # int64's
_MOST_ALIGNMENT = 2**30  # bytes


def spec(
    dtype: object, shape: int | tuple[int, ...], stride: tuple[int, ...] | None = None, align: int = 16
) -> ArraySpec:
    """Describe an array without allocating it, for `kernel.source`, `.ptx`, `.sass` and `.resources`.

    `shape` is a shape, or a rank for arrays of well divisible extents; `stride` is in elements, by default row-major;
    `align` is the alignment of the pointer, in bytes.

    Raises `ArgumentError` for an unknown type, extents that are negative or not integers, a shape and stride of
    different lengths, and an alignment that is not a power of two.
    """
    try:
        element = as_dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"tw.spec: {error}") from None
    rank = as_int(shape)
    if rank is not None:
        extents = (64,) * checked_int("tw.spec: the rank", rank, 0, _MOST_MODES, "modes")
    else:
        extents = _integers("shape", shape, 0)
    power = checked_int("tw.spec: align", align, 1, _MOST_ALIGNMENT, "bytes, a power of two")
    if power & (power - 1):
        raise ArgumentError(f"tw.spec: align is a power of two in bytes, got {align}")
    if stride is None:
        steps = [1]
        for extent in reversed(extents[1:]):
            steps.insert(0, steps[0] * extent)
        strides = tuple(steps[: len(extents)])
    else:
        strides = _integers("stride", stride, -_MOST_ELEMENTS)
    if len(strides) != len(extents):
        raise ArgumentError(f"tw.spec: shape {extents} and stride {strides} differ in length")
    return ArraySpec(ArrayInfo(power, extents, strides, element, "cpu"))


def _integers(name: str, given: object, low: int) -> tuple[int, ...]:
    """Return the extents or strides of a spec."""
    if not isinstance(given, (tuple, list)) or len(given) > _MOST_MODES:
        raise ArgumentError(f"tw.spec: {name} is {shown(given)}; expected a tuple of at most {_MOST_MODES} ints")
    return tuple(
        checked_int(f"tw.spec: {name}[{mode}]", value, low, _MOST_ELEMENTS, "elements")
        for mode, value in enumerate(given)
    )


def static(array: object) -> Static:
    """Make an array's whole layout compile-time: extents and strides become Python ints in the kernel.

    Each layout gets its own specialisation.
    """
    return Static(array)


hiding_all(globals(), ("spec",))
