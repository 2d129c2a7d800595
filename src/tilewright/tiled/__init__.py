"""Atoms spread over threads and tiles: TiledCopy and TiledMMA, and one thread's part of them."""

from tilewright.frames import hiding_all
from tilewright.tiled.copies import (
    ThrCopy,
    TiledCopy,
    make_cotiled_copy,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
)
from tilewright.tiled.mma import ThrMMA, TiledMMA, make_tiled_mma

__all__ = [
    "ThrCopy",
    "ThrMMA",
    "TiledCopy",
    "TiledMMA",
    "make_cotiled_copy",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_mma",
]

hiding_all(globals(), __all__)
