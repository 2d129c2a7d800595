"""The layout algebra: functions from coordinates to offsets, composed, divided, multiplied and inverted.

Words and meanings are CuTe's: colexicographic order, indices from 0, hierarchical modes. An operation returns a
layout that equals its law on every index, or raises `LayoutError`.
"""

from __future__ import annotations

from tilewright.layout.compose import composition
from tilewright.layout.coordinates import crd2crd, crd2idx, idx2crd
from tilewright.layout.division import flat_divide, logical_divide, tiled_divide, zipped_divide
from tilewright.layout.ints import Basis, Coord, DynamicInt, E, Int, IntTuple, Shape, Stride, is_static
from tilewright.layout.inverses import complement, left_inverse, nullspace, right_inverse
from tilewright.layout.layouts import Layout, Tiler, cosize, depth, rank, size
from tilewright.layout.modes import (
    append,
    col_major,
    dice,
    group,
    identity_layout,
    make_layout,
    make_layout_like,
    make_ordered_layout,
    prepend,
    replace,
    row_major,
    select,
    slice_,
    slice_and_offset,
    take,
    unzip,
    zip,  # noqa: A004  # CuTe's name
)
from tilewright.layout.products import (
    blocked_product,
    flat_product,
    logical_product,
    raked_product,
    tile_to_shape,
    tiled_product,
    zipped_product,
)
from tilewright.layout.recasting import downcast, recast, upcast
from tilewright.layout.simplify import coalesce, filter, filter_zeros, flatten  # noqa: A004  # CuTe's name
from tilewright.layout.swizzle import ComposedLayout, Swizzle, make_swizzle
from tilewright.layout.tuples import (
    ceil_div,
    compatible,
    congruent,
    evenly_divides,
    product_each,
    shape_div,
    weakly_congruent,
)
from tilewright.layout.vectors import domain_distribute, max_alignment, max_common_layout, max_common_vector

__all__ = [
    "Basis",
    "ComposedLayout",
    "Coord",
    "DynamicInt",
    "E",
    "Int",
    "IntTuple",
    "Layout",
    "Shape",
    "Stride",
    "Swizzle",
    "Tiler",
    "append",
    "blocked_product",
    "ceil_div",
    "coalesce",
    "col_major",
    "compatible",
    "complement",
    "composition",
    "congruent",
    "cosize",
    "crd2crd",
    "crd2idx",
    "depth",
    "dice",
    "domain_distribute",
    "downcast",
    "evenly_divides",
    "filter",
    "filter_zeros",
    "flat_divide",
    "flat_product",
    "flatten",
    "group",
    "idx2crd",
    "identity_layout",
    "is_static",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "make_layout",
    "make_layout_like",
    "make_ordered_layout",
    "make_swizzle",
    "max_alignment",
    "max_common_layout",
    "max_common_vector",
    "nullspace",
    "prepend",
    "product_each",
    "raked_product",
    "rank",
    "recast",
    "replace",
    "right_inverse",
    "row_major",
    "select",
    "shape_div",
    "size",
    "slice_",
    "slice_and_offset",
    "take",
    "tile_to_shape",
    "tiled_divide",
    "tiled_product",
    "unzip",
    "upcast",
    "weakly_congruent",
    "zip",
    "zipped_divide",
    "zipped_product",
]
