"""Numbers as text: counts, quantities with their units, extents."""

from __future__ import annotations

import math

_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def amount(number: float) -> str:
    """Return a count with separators: 1,024."""
    return f"{number:,.0f}"


def quantity(number: float, unit: str) -> str:
    """Return a number with a decimal prefix: 1.5 GB, 20 us.

    >>> quantity(1.5e9, "B"), quantity(2e-5, "s"), quantity(0, "B"), quantity(999.96, "B")
    ('1.5 GB', '20 us', '0 B', '1 kB')
    """
    if number == 0:
        return f"0 {unit}"
    number = float(f"{number:.3g}")  # 999.96 is 1000 then, of the next prefix
    power = min(max(math.floor(math.log10(number)) // 3, -3), 5)
    return f"{number / 1000.0**power:.3g} {_PREFIXES[power]}{unit}"


def shape(extents: tuple[int, int, int]) -> str:
    """Return a grid or a block without its trailing ones: 4, (4, 2)."""
    x, y, z = extents
    return f"({x}, {y}, {z})" if z > 1 else f"({x}, {y})" if y > 1 else str(x)
