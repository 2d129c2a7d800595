"""Atoms: hardware instructions as data, with what they compute and how they are written.

An atom says which element of its operands each thread holds in which register (thread-value layouts), what the
instruction computes (its NumPy reference) and its text. Tiled copies and matrix products are built of atoms.
"""

from __future__ import annotations

from tilewright.atoms.copy import (
    SM80_CP_ASYNC_CACHEALWAYS,
    SM80_CP_ASYNC_CACHEGLOBAL,
    CopyAtom,
    CpAsync,
    UniversalCopy,
)
from tilewright.atoms.mma import MMAAtom, UniversalFMA

__all__ = [
    "SM80_CP_ASYNC_CACHEALWAYS",
    "SM80_CP_ASYNC_CACHEGLOBAL",
    "CopyAtom",
    "CpAsync",
    "MMAAtom",
    "UniversalCopy",
    "UniversalFMA",
]
