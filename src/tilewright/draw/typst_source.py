"""Drawings as Typst source: the standard library only, one line for each thing on the page."""

from __future__ import annotations

from tilewright.draw.shapes import Box, Label, Line, Scene

_FONT = "DejaVu Sans Mono"

_PAGE = """#set page(width: {w}pt, height: {h}pt, margin: 0pt, fill: white)
"""

# What the lines below are made of. Positions and sizes are in points from the upper left corner of the drawing.
_HEAD = """#let label(x, y, size, ink, anchor, body, weight: "regular") = place(dx: x * 1pt, dy: y * 1pt,
  place(anchor + horizon, text(font: "{font}", size: size * 1pt, fill: rgb(ink), weight: weight, body)))
#let tile(x, y, w, h, fill) = place(dx: x * 1pt, dy: y * 1pt, rect(width: w * 1pt, height: h * 1pt, fill: rgb(fill)))
#let rule(x1, y1, x2, y2, ink, width) = place(line(start: (x1 * 1pt, y1 * 1pt), end: (x2 * 1pt, y2 * 1pt),
  stroke: (paint: rgb(ink), thickness: width * 1pt, cap: "square")))
"""

_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def typst_text(scene: Scene, page: bool = True) -> str:
    """Write a scene as a Typst document, or without `page` as a piece to put into one."""
    head = _HEAD.format(font=_FONT)
    if page:
        head = _PAGE.format(w=_number(scene.width), h=_number(scene.height)) + head
    body = "\n".join([f"  {_shape(s)}" for s in scene.shapes])
    return f"{head}#block(width: {_number(scene.width)}pt, height: {_number(scene.height)}pt, {{\n{body}\n}})\n"


def _shape(shape: Box | Line | Label) -> str:
    if isinstance(shape, Box):
        place = ", ".join(map(_number, (shape.x, shape.y, shape.w, shape.h)))
        return f'tile({place}, "{shape.fill}")'
    if isinstance(shape, Line):
        ends = ", ".join(map(_number, (shape.x1, shape.y1, shape.x2, shape.y2)))
        return f'rule({ends}, "{shape.colour}", {_number(shape.width)})'
    weight = ', weight: "bold"' if shape.bold else ""
    place = ", ".join(map(_number, (shape.x, shape.y, shape.size)))
    return f'label({place}, "{shape.colour}", {_ANCHORS[shape.anchor]}, {_string(shape.text)}{weight})'


def _string(text: str) -> str:
    """Write a Typst string; what stands in it is never read as markup."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _number(value: float) -> str:
    """Write a number with at most two places."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
