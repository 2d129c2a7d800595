"""Drawings as SVG without any other program, for notebooks: small, and with text that can be searched and copied."""

from __future__ import annotations

from html import escape

from tilewright.draw.shapes import Box, Label, Line, Scene

_FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


def svg_text(scene: Scene) -> str:
    """Write a scene as an SVG document on white, so that it can be read on a dark page too."""
    w, h = _number(scene.width), _number(scene.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}pt" height="{h}pt" viewBox="0 0 {w} {h}" '
        f'font-family="{_FONTS}">\n<rect width="{w}" height="{h}" fill="#ffffff"/>\n'
    )
    return head + "\n".join([_shape(s) for s in scene.shapes]) + "\n</svg>\n"


def _shape(shape: Box | Line | Label) -> str:
    if isinstance(shape, Box):
        return (
            f'<rect x="{_number(shape.x)}" y="{_number(shape.y)}" width="{_number(shape.w)}" '
            f'height="{_number(shape.h)}" fill="{shape.fill}"/>'
        )
    if isinstance(shape, Line):
        return (
            f'<line x1="{_number(shape.x1)}" y1="{_number(shape.y1)}" x2="{_number(shape.x2)}" '
            f'y2="{_number(shape.y2)}" stroke="{shape.colour}" stroke-width="{_number(shape.width)}" '
            'stroke-linecap="square"/>'
        )
    weight = ' font-weight="bold"' if shape.bold else ""
    # A third of the size below its middle is where the line that digits stand on runs.
    return (
        f'<text x="{_number(shape.x)}" y="{_number(shape.y + shape.size * 0.36)}" font-size="{_number(shape.size)}" '
        f'fill="{shape.colour}" text-anchor="{shape.anchor}"{weight}>{escape(shape.text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
