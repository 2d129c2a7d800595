"""What is said of a NumPy number that makes arithmetic wider than the device values that it meets."""

from __future__ import annotations

from tilewright.arguments import shown
from tilewright.dtypes import DType
from tilewright.ir.core import Value
from tilewright.remarks import Remark
from tilewright.trace.literals import is_numpy_number
from tilewright.trace.tracer import current


def note_wide_number(number: object, other: DType) -> None:
    """Add a remark to the trace where a NumPy float64 makes an operation on a narrower float one of float64.

    `number` is a number that is known while tracing, or the value of an argument: a Python float is float32 as an
    argument, and takes the type of what it meets in a kernel. NumPy's numbers have a type of their own, float64 mostly
    without anybody's asking: `np.sqrt(2)` and `array.mean()` are such. On most GPUs float64 is computed at a small part
    of the rate of float32.
    """
    tracer = current("arithmetic")
    if isinstance(number, Value):
        name = next((p.argument for p in tracer.parameters if p.target is number), None)
        if name is None:  # computed in float64, or loaded
            return
        what, help = f"argument {name!r}", f"pass float({name}), which is float32 in the kernel; or np.{other}({name})"
    elif is_numpy_number(number):
        value = shown(float(number))  # type: ignore[arg-type]  # of a NumPy number
        what, help = value, f"write float({value}), which takes the type of what it meets; or tw.{other}({value})"
    else:
        return
    location = tracer.location()
    lines = [f"wide number: {what} is a NumPy float64, so {other} is widened and this is computed in float64"]
    if location is not None:
        lines += [f"  {line}" for line in location.excerpt()]
    lines.append(f"  help: {help}")
    tracer.remarks[Remark("wide-number", "\n".join(lines), location)] = None
