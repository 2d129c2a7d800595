"""Pictures and tables of layouts, swizzles, tensors, tiled copies, tiled matrix products, banks and tilings.

`text` gives a table, `typst` Typst source, `svg` an SVG; `save` writes .svg, .png, .pdf or .typ files. Each takes a
layout, swizzle, tensor, TiledCopy or TiledMMA, or a drawing made by `banks`, `tiling`, `beside` or `picture`.
"""

from __future__ import annotations

from tilewright.draw.bank_conflicts import Traffic, traffic
from tilewright.draw.bank_pictures import banks
from tilewright.draw.files import save
from tilewright.draw.model import Drawing, beside
from tilewright.draw.printing import print_typst, svg, text, typst
from tilewright.draw.subjects import picture
from tilewright.draw.tiling_pictures import tiling

__all__ = [
    "Drawing",
    "Traffic",
    "banks",
    "beside",
    "picture",
    "print_typst",
    "save",
    "svg",
    "text",
    "tiling",
    "traffic",
    "typst",
]
