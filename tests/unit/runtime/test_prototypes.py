"""Every C function that is called has its prototype, and what does not fit into an argument is refused."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from tests.unit.runtime.conftest import Checked, FakeCuda

import tilewright
from tilewright.runtime import nvrtc
from tilewright.runtime.prototypes import DRIVER, NVRTC, declared

SOURCES = Path(tilewright.__file__).parent
CALLED = re.compile(r"""\.(cu[A-Z]\w+)|[."](nvrtc(?!Get\{)[A-Z]\w+)""")


def test_every_function_that_is_called_is_in_the_table() -> None:
    # The loader of packages stands by itself, and gives ctypes the types with the arguments.
    others = ("prototypes.py", "_loader.py")
    texts = [path.read_text() for path in SOURCES.rglob("*.py") if path.name not in others]
    called = {driver or compiler for text in texts for driver, compiler in CALLED.findall(text)}
    assert {"cuLaunchKernelEx", "cuMemcpyDtoH_v2", "nvrtcCreateProgram"} <= called
    assert called <= DRIVER.keys() | NVRTC.keys()


def test_prototypes_stand_on_the_functions_of_the_library() -> None:
    library = declared(Checked(FakeCuda()), DRIVER)  # type: ignore[arg-type]
    assert library.cuMemAlloc_v2.argtypes == DRIVER["cuMemAlloc_v2"]
    with pytest.raises(ctypes.ArgumentError):
        declared(ctypes.CDLL(None), {"strlen": (ctypes.c_char_p,)}).strlen(3.5)


def test_an_address_keeps_its_64_bits() -> None:
    """Without a prototype ctypes would pass the low half."""
    library = declared(ctypes.CDLL(None), {"labs": (ctypes.c_int64,), "no_such_function": ()})
    library.labs.restype = ctypes.c_int64
    assert library.labs(-(1 << 45)) == 1 << 45


def test_the_compilers_functions_are_declared() -> None:
    library = nvrtc._library()
    assert {name for name in NVRTC if getattr(library, name).argtypes is None} == set()
    assert library.nvrtcGetErrorString(0) == b"NVRTC_SUCCESS"
