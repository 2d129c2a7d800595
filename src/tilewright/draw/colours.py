"""The colours of pictures, and why these.

Eight fills tell threads and banks apart. They are Paul Tol's "light" scheme, made for cells under black text: it stays
distinct in the common forms of colour blindness, and black has a contrast of at least 8 to 1 on each. They are ordered
here so that neighbours also differ when printed in grey. Offsets get one ramp of a single hue from pale to mid blue, which
keeps its order in grey. No fact is told by colour alone: cells carry labels, and marked ones a heavy frame.
"""

from __future__ import annotations

PAPER = "#ffffff"
INK = "#000000"
PALE_INK = "#6b6b6b"
RULE = "#8c8c8c"
ALARM = "#ee8866"

# blue, pink, orange, cyan, olive, yellow, mint, pear
FILLS = ("#77aadd", "#ffaabb", "#ee8866", "#99ddff", "#aaaa00", "#eedd88", "#44bb99", "#bbcc33")

_RAMP_FROM, _RAMP_TO = (0xF6, 0xFA, 0xFD), (0x7F, 0xB2, 0xDE)


def categorical(index: int) -> str:
    """Return the fill of a thread or bank; eight colours repeat.

    >>> categorical(0) == categorical(8)
    True
    """
    return FILLS[index % len(FILLS)]


def ramp(part: float) -> str:
    """Return the fill at `part` of the ramp, from 0 (pale) to 1.

    >>> ramp(0), ramp(1)
    ('#f6fafd', '#7fb2de')
    """
    mixed = [round(a + (b - a) * part) for a, b in zip(_RAMP_FROM, _RAMP_TO, strict=True)]
    return "#" + "".join([f"{v:02x}" for v in mixed])


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it: 0 for black, 1 for white."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((luminance(a), luminance(b)))
    return round((high + 0.05) / (low + 0.05), 2)
