"""What an element type makes of a number while a kernel is traced: tw.int8(300) is a device number."""

from __future__ import annotations

import math

from tilewright.dtypes import OPERANDS, DType, bool_, float32, tfloat32
from tilewright.ir.evaluate import reduce_to
from tilewright.ir.ops import constant
from tilewright.trace.literals import is_numpy_number
from tilewright.trace.scalar import Scalar, as_scalar, convert
from tilewright.trace.tracer import tracing


def typed_number(x: object, target: DType) -> Scalar | None:
    """Return the device number that a type makes of a Python or NumPy number inside a kernel, None outside of one.

    The number is converted as `Cast` converts: integers wrap; a float becomes an integer by truncation, saturating.
    """
    if tracing() is None or (target in OPERANDS and target is not tfloat32):
        return None
    if is_numpy_number(x):
        x = x.item()  # type: ignore[attr-defined]
    if not isinstance(x, (int, float)):
        return None
    if target is tfloat32:
        return convert(as_scalar(float(x), float32), target)
    if target is bool_:
        return Scalar(constant(x != 0, bool_))
    if target.is_float:
        return as_scalar(x if isinstance(x, float) else int(x), target)
    if isinstance(x, float):
        whole = 0 if math.isnan(x) else x
        return Scalar(constant(int(min(max(whole, target.lowest), target.highest)), target))
    return Scalar(constant(reduce_to(int(x), target), target))
