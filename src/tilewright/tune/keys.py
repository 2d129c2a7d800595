"""What a result of a tuning holds for: the device, the source, and the kind of the arguments."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from tilewright._version import __version__
from tilewright.arch import Arch
from tilewright.arguments import hashable
from tilewright.errors import ArgumentError, TuningError
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.numbers import scalar_type
from tilewright.runtime.nvrtc import compiler_identity
from tilewright.runtime.options import is_simulator_chosen

# Any: arguments of a kernel by name


def fingerprint(function: object, candidates: str) -> str:
    """Return a hash of the file that defines a function, of its candidates and of the versions in use."""
    digest = hashlib.sha256()
    name = getattr(function, "__qualname__", "")
    for part in (__version__, compiler_identity(), name, source_of(function), candidates):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def arrays_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are arrays."""
    return {name: value for name, value in meta.items() if describe(value) is not None}


def is_simulated(arrays: Mapping[str, Any]) -> bool:
    """Say whether calls with these arrays run on the simulator."""
    infos = [describe(array) for array in arrays.values()]
    on_gpu = any(info is not None and info.is_cuda for info in infos)
    return not on_gpu or is_simulator_chosen()


def ordinal_of(arrays: Mapping[str, Any]) -> int:
    """Return the CUDA device of the first array that is on one."""
    for array in arrays.values():
        info = describe(array)
        if info is not None and isinstance(info.device, int):
            return info.device
    raise TuningError("no argument is an array on a GPU")


def arch_of(arrays: Mapping[str, Any]) -> Arch:
    """Return what machine code for these arrays is made for."""
    return driver.device_properties(ordinal_of(arrays)).arch


def key_value(value: Any) -> Hashable:
    """Return what an argument of the key counts by: an array by its shape, all else by its value."""
    info = describe(value)
    if info is not None:
        return info.shape
    if not hashable(value):
        raise ArgumentError(f"an argument of the key has to be an array or hashable, got {type(value).__name__}")
    return value


def kind_of(value: Any) -> str:
    """Return the kind of an argument as text that is the same in each process."""
    info = describe(value)
    if isinstance(info, ArrayInfo):
        c = info.specialisation
        steps = [f"{s.value or '?'}/{s.divisor}" for s in c.strides]
        wide = ", wide" if c.wide else ""
        static = f", static {info.shape}:{info.strides}" if info.static else ""
        return f"{c.dtype.name} {c.extents}:({', '.join(steps)}) at {c.alignment}{wide}{static}"
    number = scalar_type(value)
    return number.name if number is not None else repr(value)


def source_of(function: object) -> str:
    """Return the text of the file that defines a function: helpers beside it count too."""
    try:
        file = inspect.getsourcefile(function)  # type: ignore[arg-type]  # a TypeError is caught
        if file is not None and os.path.exists(file):
            return Path(file).read_text(encoding="utf-8")
        return inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return "" if code is None else repr((code.co_code, code.co_consts))
