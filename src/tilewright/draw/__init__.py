"""Pictures and tables of layouts, swizzles, tensors, tiled copies, tiled matrix products, banks and tilings.

`text` gives a table, `typst` Typst source, `svg` an SVG; `save` writes .svg, .png, .pdf or .typ files. Each takes a
layout, swizzle, tensor, TiledCopy or TiledMMA, or a drawing made by `banks`, `tiling`, `beside` or `picture`.
"""

from tilewright.draw.bank_pictures import Traffic, banks, traffic
from tilewright.draw.model import Drawing, beside
from tilewright.draw.printing import picture, print_typst, save, svg, text, typst
from tilewright.draw.thread_pictures import tiling
from tilewright.frames import hiding_all

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

hiding_all(globals(), __all__)
