"""One dispatch for everything that carries a layout: composed layouts and tensors map the layout inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.layouts import Layout
from tilewright.layout.tuples import show


def lift(operation: Callable[..., Any], x: Any, *arguments: Any) -> Any:  # Any: a tensor gives a tensor
    """Apply a layout operation to what is not a plain Layout: through `map_layout`, or to a shape's own layout."""
    mapper = getattr(x, "map_layout", None)
    if mapper is not None:
        return mapper(lambda layout: operation(layout, *arguments))
    return operation(as_layout(x), *arguments)


def inside(operation: Callable[[Layout], Layout]) -> Callable[[Any], Any]:  # Any: plain and composed layouts
    """Return the operation as one that also takes composed layouts, and then changes the plain layout inside."""

    def apply(layout: Any) -> Any:
        mapper = getattr(layout, "map_layout", None)
        return operation(layout) if mapper is None else mapper(apply)

    return apply


def as_layout(x: Any) -> Layout:  # Any: a layout, or a shape that stands for its compact layout
    """Return a layout as it is, and a shape as its compact column-major layout."""
    if isinstance(x, Layout):
        return x
    if isinstance(x, (tuple, list)) and any(isinstance(v, Layout) or v is None for v in x):
        raise LayoutError(f"a tuple of tilers stands where one layout is expected: {show(x)}")
    return Layout(x)
