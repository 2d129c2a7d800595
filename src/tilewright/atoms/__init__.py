"""Atoms: hardware instructions as data, with what they compute and how they are written.

An atom says which element of its operands each thread holds in which register (thread-value layouts), what the
instruction computes (its NumPy reference) and its text. Tiled copies and matrix products are built of atoms.

Atoms of a warp are named as in CuTe: `tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN`. There are about a hundred, so each is
made when it is first asked for; `dir(tw.atoms)` lists them.
"""

from __future__ import annotations

import importlib
from typing import Any

from tilewright.atoms.copy import CopyAtom, UniversalCopy
from tilewright.atoms.matrix_copies import NAMES as _MATRIX_COPIES
from tilewright.atoms.matrix_copies import matrix_copy as _matrix_copy
from tilewright.atoms.mfma import NAMES as _MFMAS
from tilewright.atoms.mfma import mfma as _mfma
from tilewright.atoms.mma import MMAAtom, UniversalFMA
from tilewright.atoms.warp_mma import NAMES as _WARP_MMAS
from tilewright.atoms.warp_mma import warp_mma as _warp_mma

__all__ = [
    "CopyAtom",
    "MMAAtom",
    "UniversalCopy",
    "UniversalFMA",
]

# Where the atoms of instructions live that are neither matrix products nor copies of matrices.
_COPIES = dict.fromkeys(
    ("CpAsync", "SM80_CP_ASYNC_CACHEALWAYS", "SM80_CP_ASYNC_CACHEGLOBAL"), "tilewright.instructions.cp_async"
)


def __getattr__(name: str) -> Any:  # Any: an MMAAtom or a CopyAtom, which a type checker cannot tell from the name
    """Make a warp-level atom when it is first used (PEP 562)."""
    if name in _COPIES:
        return getattr(importlib.import_module(_COPIES[name]), name)
    if name in _WARP_MMAS:
        return _warp_mma(name)
    if name in _MFMAS:
        return _mfma(name)
    if name in _MATRIX_COPIES:
        return _matrix_copy(name)
    raise AttributeError(f"tilewright has no atom {name!r}")


def __dir__() -> list[str]:
    """Return the names of all atoms, and of what makes them."""
    return sorted([*__all__, *_COPIES, *_WARP_MMAS, *_MFMAS, *_MATRIX_COPIES])
