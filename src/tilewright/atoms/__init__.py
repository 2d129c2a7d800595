"""Atoms: hardware instructions as data, with what they compute and how they are written.

An atom says which element of its operands each thread holds in which register (thread-value layouts), what the
instruction computes (its NumPy reference), and how a kernel emits it. Tiled copies and matrix products are built of
atoms.

Atoms of a warp are named as in CuTe: `tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN`. There are about a hundred, so each is
made when it is first asked for; `dir(tw.atoms)` lists them.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

from tilewright.atoms.copy import CopyAtom, UniversalCopy
from tilewright.atoms.mma import MMAAtom
from tilewright.frames import hiding_all

__all__ = ["CopyAtom", "MMAAtom", "UniversalCopy"]

hiding_all(globals(), __all__)

# The index of instructions: the module of each, with the functions that make atoms, and for a family of names the
# function that makes an atom of a name in the module's NAMES.
_FUNCTIONS = {
    "cp_async": ("CpAsync", "SM80_CP_ASYNC_CACHEALWAYS", "SM80_CP_ASYNC_CACHEGLOBAL"),
    "fma": ("UniversalFMA",),
}
_FAMILIES = {
    "mma": "warp_mma",
    "mfma": "mfma",
    "matrix_copies": "matrix_copy",
    "wgmma": "warpgroup_mma",
    "sparse_wgmma": "sparse_mma",
    "descriptors": "shared_layout",
    "tensor_copies": "tensor_copy",
    "bulk_copies": "bulk_copy",
    "block_copies": "block_copy",
    "im2col": "pixel_copy",
}


def __getattr__(name: str) -> Any:  # Any: an atom or what makes one, which a type checker cannot tell from the name
    """Make an atom of an instruction when it is first used (PEP 562)."""
    return _found(name)


@cache  # plans are compared by hundreds
def _found(name: str) -> Any:  # Any: as above
    for module, functions in _FUNCTIONS.items():
        if name in functions:
            return getattr(_module(module), name)
    if not name.startswith("_"):
        for module, function in _FAMILIES.items():
            if name in _module(module).NAMES:
                return getattr(_module(module), function)(name)
    raise AttributeError(f"tilewright has no atom {name!r}{_others_like(name)}")


def _others_like(name: str) -> str:
    """Return words on the atoms whose names differ from one in a single number, empty where there are none."""
    parts = re.split(r"(\d+)", name)
    for number in range(1, len(parts), 2):
        before, after = "".join(parts[:number]), "".join(parts[number + 1 :])
        like = re.compile(f"{re.escape(before)}(\\d+){re.escape(after)}")
        names = (each for module in _FAMILIES for each in _module(module).NAMES)
        found = sorted(int(match[1]) for each in names if (match := like.fullmatch(each)))
        if found:
            listed = ", ".join(map(str, found))
            return f"; there is {before}_{after} with {listed} in place of the {parts[number]}"
    return ""


def _module(name: str) -> Any:  # Any: a module
    return importlib.import_module(f"tilewright.instructions.{name}")


def __dir__() -> list[str]:
    """Return the names of all atoms, and of what makes them."""
    functions = [name for names in _FUNCTIONS.values() for name in names]
    return sorted([*__all__, *functions, *(name for module in _FAMILIES for name in _module(module).NAMES)])
