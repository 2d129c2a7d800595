"""What figures depend on: the GPU, its clocks and power, the versions of all that takes part, the date.

Clocks, power and temperature come from NVIDIA's management library (NVML) through `nvidia-ml-py`. Every question may go
unanswered (the package or the library is absent, no permission, a virtual GPU): the answer is then None. Nothing here
changes a setting.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import sys
import threading
import time
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright._version import __version__
from tilewright.arguments import integer
from tilewright.errors import DeviceError, TilewrightError
from tilewright.runtime import driver
from tilewright.runtime.nvrtc import nvrtc_version

if TYPE_CHECKING:
    from typing_extensions import Self

DATA = "random, standard normal"

_DISTRIBUTIONS = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"),
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "numpy": ("numpy",),
}


def machine(ordinal: int = 0) -> dict[str, Any]:  # Any: plain data
    """Return the conditions that measurements depend on, as plain data for JSON; None for what is unknown.

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
    versions: dict[str, str | None] = {"tilewright": __version__, "python": platform.python_version()}
    for name, distributions in _DISTRIBUTIONS.items():
        versions[name] = next((v for v in map(_version_of, distributions) if v is not None), None)
    torch = sys.modules.get("torch")
    versions["cuda_of_torch"] = None if torch is None else torch.version.cuda
    try:
        versions["nvrtc"] = "{}.{}".format(*nvrtc_version())
    except TilewrightError:
        versions["nvrtc"] = None
    return versions


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


class Monitor:
    """One device's clocks (MHz), power (W) and temperature (degrees Celsius), each None where it is not told."""

    def __init__(self, ordinal: int = 0) -> None:
        self._nvml = _nvml()
        self._handle = None if self._nvml is None else _handle(self._nvml, ordinal)

    def sm_clock(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")

    def memory_clock(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM")

    def highest_sm_clock(self) -> int | None:
        return self._number("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM")

    def power(self) -> float | None:
        return _watts(self._number("nvmlDeviceGetPowerUsage"))

    def power_limit(self) -> float | None:
        return _watts(self._number("nvmlDeviceGetEnforcedPowerLimit"))

    def temperature(self) -> int | None:
        return self._number("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")

    def as_json(self) -> dict[str, float | None]:
        """Return all of it as it is now."""
        return {
            "sm_clock_mhz": self.sm_clock(),
            "memory_clock_mhz": self.memory_clock(),
            "highest_sm_clock_mhz": self.highest_sm_clock(),
            "power_w": self.power(),
            "power_limit_w": self.power_limit(),
            "temperature_c": self.temperature(),
        }

    def _number(self, function: str, *constants: str) -> int | None:
        """Return what a function of NVML says of the device, its further arguments given by name."""
        nvml = self._nvml
        if nvml is None or self._handle is None:
            return None
        try:
            return int(getattr(nvml, function)(self._handle, *(getattr(nvml, name) for name in constants)))
        except nvml.NVMLError:
            return None


class Sampler:
    """Reads clock and power in a thread of its own while the body of a `with` runs."""

    def __init__(self, monitor: Monitor, seconds: float = 0.01) -> None:
        self._monitor = monitor
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.sm_clocks: list[int] = []
        self.powers: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.is_set():
            clock, power = self._monitor.sm_clock(), self._monitor.power()
            if clock is not None:
                self.sm_clocks.append(clock)
            if power is not None:
                self.powers.append(power)
            if clock is None and power is None:
                return
            time.sleep(self._seconds)


def driver_release() -> str | None:
    """Return the release of NVIDIA's driver, such as "580.95.05", or None."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


@cache
def _nvml() -> Any | None:  # Any: the module of nvidia-ml-py
    """Return NVML, initialised, or None where the package, the library or a driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def _handle(nvml: Any, ordinal: int) -> Any | None:
    """Return NVML's handle of a CUDA device: by PCI address, because the two count devices differently."""
    address = ctypes.create_string_buffer(64)
    device = ctypes.c_int()
    try:
        cuda = driver.library()
    except DeviceError:
        return None
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetPCIBusId(address, len(address), device):
        return None
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(address.value)
    except nvml.NVMLError:
        return None
