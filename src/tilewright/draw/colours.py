"""The colours of pictures, and why these.

Eight hues tell threads and banks apart. They are Paul Tol's "light" scheme, made for cells under black text: it
stays distinct in the common forms of colour blindness, and black has a contrast of at least 8 to 1 on each. They are
ordered here so that neighbours also differ when printed in grey. The next eight numbers have the same hues in a paler
tint, four tints in all, so that the 32 threads of a warp and the 32 banks each have a fill of their own. Offsets get a
ramp of a single hue from pale to mid blue, which keeps its order in grey. No fact is told by colour alone: cells carry
labels, and marked ones stand in a heavy outline.
"""

from __future__ import annotations

PAPER = "#ffffff"
INK = "#000000"
PALE_INK = "#6b6b6b"
RULE = "#8c8c8c"
ALARM = "#ee8866"
CALM = "#99ddff"

# blue, pink, orange, cyan, olive, yellow, mint, pear
HUES = ("#77aadd", "#ffaabb", "#ee8866", "#99ddff", "#aaaa00", "#eedd88", "#44bb99", "#bbcc33")

_RAMP = ("#f6fafd", "#7fb2de")

# How much white the first eight fills, the second eight and so on are mixed with.
_TINTS = (0.0, 0.38, 0.6, 0.77)


def categorical(index: int) -> str:
    """Return the fill of a thread or bank: its hue is index mod 8, its tint index // 8 mod 4.

    >>> categorical(0), categorical(8), categorical(0) == categorical(32)
    ('#77aadd', '#abcaea', True)
    """
    number, hue = divmod(index, len(HUES))
    return tint(HUES[hue], number)


def tint(colour: str, number: int) -> str:
    """Return one of four tints of a colour, 0 for the colour itself; they repeat."""
    return mix(colour, PAPER, _TINTS[number % len(_TINTS)])


def ramp(part: float) -> str:
    """Return the fill at `part` of the ramp, from 0 (pale) to 1.

    >>> ramp(0), ramp(1)
    ('#f6fafd', '#7fb2de')
    """
    return mix(*_RAMP, part)


def mix(a: str, b: str, part: float) -> str:
    """Return the colour at `part` of the way from a to b.

    >>> mix("#000000", "#ff8040", 0.5)
    '#804020'
    """
    return "#" + "".join([f"{round(x + (y - x) * part):02x}" for x, y in zip(_bytes(a), _bytes(b), strict=True)])


def _bytes(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it: 0 for black, 1 for white."""
    parts = [v / 255 for v in _bytes(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((luminance(a), luminance(b)))
    return round((high + 0.05) / (low + 0.05), 2)
