"""What is said of a NumPy number that makes arithmetic wider than the device values that it meets."""

from __future__ import annotations

from tilewright.arguments import shown
from tilewright.dtypes import DType, float64
from tilewright.remarks import Remark
from tilewright.trace.tracer import current


def note_wide_number(number: object, other: DType, result: DType) -> None:
    """Add a remark to the trace where a NumPy float64 makes an operation on a narrower float one of float64.

    A Python float takes the type of what it meets; NumPy's numbers have a type of their own, float64 mostly without
    anybody's asking: `np.sqrt(2)` and `array.mean()` are such. On most GPUs float64 is computed at a small part of the
    rate of float32.
    """
    if result is not float64 or not other.is_float or other is float64:
        return
    tracer = current("arithmetic")
    location = tracer.location()
    value = shown(float(number))  # type: ignore[arg-type]  # of a NumPy number
    lines = [f"wide number: {value} is a NumPy float64, so {other} is widened and this is computed in float64"]
    if location is not None:
        lines += [f"  {line}" for line in location.excerpt()]
    lines.append(f"  help: write float({value}), which takes the type of what it meets; or tw.{other}({value})")
    tracer.remarks[Remark("wide-number", "\n".join(lines), location)] = None
