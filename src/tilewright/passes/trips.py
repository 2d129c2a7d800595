"""How often a loop runs, where the facts of its bounds decide it."""

from __future__ import annotations

from tilewright.ir.infer import facts_of
from tilewright.ir.ops import For


def trip_count(op: For) -> int | None:
    """Return how often a loop's body runs, or None where it depends on the launch.

    The bounds need not be constants: `for i in range(x, 8, 8)` with 0 <= x < 8 runs once.
    """
    bounds = trip_bounds(op)
    return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None


def trip_bounds(op: For) -> tuple[int, int] | None:
    """Return the fewest and the most times that a loop's body runs, or None where the step has no known sign."""
    start, stop, step = (facts_of(v) for v in (op.start, op.stop, op.step))
    if step.low > 0:
        least, most = stop.low - start.high, stop.high - start.low
        short, long = step.low, step.high
    elif step.high < 0:
        least, most = start.low - stop.high, start.high - stop.low
        short, long = -step.high, -step.low
    else:
        return None
    # The range spans between `least` and `most` numbers; strides divide it, rounded up.
    return max(-(-least // long), 0), max(-(-most // short), 0)
