"""What figures depend on: the GPU, its clocks and power, the versions of all that takes part, the date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from dataclasses import asdict
from typing import Any

from tilewright._version import __version__
from tilewright.arguments import integer
from tilewright.bench.nvml import Monitor, driver_release
from tilewright.errors import TilewrightError
from tilewright.runtime import driver
from tilewright.runtime.nvrtc import nvrtc_version

DATA = "random, standard normal"

_DISTRIBUTIONS = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"),
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "numpy": ("numpy",),
}


def machine(ordinal: int = 0) -> dict[str, Any]:  # Any: plain data
    """Return what figures measured now depend on, as plain data for JSON; None for what cannot be known.

    >>> sorted(machine())
    ['cpu', 'date', 'gpu', 'versions']
    """
    integer("machine", "ordinal", ordinal, minimum=0)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": _gpu(ordinal),
        "cpu": {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": _versions(),
    }


def _gpu(ordinal: int) -> dict[str, Any] | None:
    if driver.device_count() <= ordinal:
        return None
    properties = driver.device_properties(ordinal)
    return {
        **asdict(properties),
        "arch": properties.arch.name,
        "driver": driver_release(),
        "now": Monitor(ordinal).as_json(),
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"tilewright": __version__, "python": platform.python_version()}
    for name, distributions in _DISTRIBUTIONS.items():
        found[name] = next((v for v in map(_version_of, distributions) if v is not None), None)
    torch = sys.modules.get("torch")
    found["cuda_of_torch"] = None if torch is None else torch.version.cuda
    try:
        found["nvrtc"] = "{}.{}".format(*nvrtc_version())
    except TilewrightError:
        found["nvrtc"] = None
    return found


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
