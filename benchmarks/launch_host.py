"""Host time of a launch without a GPU: everything of a call except the driver's own work.

    python -m benchmarks.launch_host

Stand-ins with the attributes of PyTorch tensors (PyTorch's own CPU tensors, where it is installed) and a C
function that returns at once in place of `cuLaunchKernelEx`. The driver's own 1.5 to 2 microseconds come on
top on a machine with a GPU.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import sys
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.dtypes import float32, int32
from tilewright.runtime.driver import Function
from tilewright.runtime.launch import ExtentSlot, Packer, PointerSlot, ScalarSlot, Slot, StrideSlot, launch_config
from tilewright.runtime.plan import Signature


class DeviceName(NamedTuple):
    """The attributes of a torch.device."""

    type: str
    index: int  # type: ignore[assignment]  # the tuple's own method goes, for the name that PyTorch uses


class StandIn:
    """The attributes of a contiguous float32 tensor that a launch reads."""

    dtype = "float32"
    device = DeviceName("cuda", 0)

    def __init__(self, pointer: int, shape: tuple[int, int]) -> None:
        self._pointer = pointer
        self.shape = shape
        self._strides = (shape[1], 1)

    def data_ptr(self) -> int:
        return self._pointer

    def stride(self) -> tuple[int, int]:
        return self._strides

    def is_contiguous(self) -> bool:
        return True

    def get_device(self) -> int:
        return self.device.index


def stand_ins() -> list[tuple[Any, ...]]:
    """Two lists of three arrays, so that the arguments change from call to call."""
    if importlib.util.find_spec("torch"):
        import torch

        return [tuple(torch.zeros(64 + n, 128) for n in range(3)) for _ in range(2)]
    # Tilewright knows a tensor by the names of its class and module.
    kind = type("Tensor", (StandIn,), {"__module__": "torch"})
    return [tuple(kind((1 << 40) + 4096 * (n + k), (64 + n, 128)) for n in range(3)) for k in range(1, 3)]


def launch_nothing() -> Any:
    """Return a C function that gives 0 at once whatever it is called with: fegetround, round to nearest."""
    return ctypes.CDLL(ctypes.util.find_library("m")).fegetround


def main() -> None:
    function = Function("kernel", 0, ctypes.c_void_p(0), launch_nothing())
    first, second = stand_ins()
    args = [(*first, 3, 0.5), (*second, 4, 1.5)]
    signature = Signature(["a", "b", "c", "n", "alpha"])
    plan, (first_call, values, _) = signature.read(args[0])
    slots: list[Slot] = [PointerSlot(n) for n in range(3)]
    for n in range(3):
        slots += [ExtentSlot(n, 0), ExtentSlot(n, 1), StrideSlot(n, 0)]
    slots += [ScalarSlot(3, int32), ScalarSlot(4, float32)]
    packer = Packer(slots, plan.starts)
    config = launch_config((64, 64), (32, 8))
    bound = packer.bind(first_call.layouts, function)

    for arguments in args:
        _, (this_call, _, _) = signature.read(arguments)
        this_call.kernel = packer.bind(this_call.layouts, function)

    def call(arguments: tuple[Any, ...]) -> None:
        _, (this_call, these_values, _) = signature.read(arguments)
        this_call.kernel(launch_config((64, 64), (32, 8)), 0, these_values)

    def two_calls() -> None:
        call(args[0])
        call(args[1])

    rows: list[tuple[str, Callable[[], object], int]] = [
        ("read key and values", lambda: signature.read(args[0]), 1),
        ("grid and block", lambda: launch_config((64, 64), (32, 8)), 1),
        ("pack and launch", lambda: bound(config, 0, values), 1),
        ("all of a call, the arguments changing", two_calls, 2),
        ("prepared launch", packer.prepare(function, config, 0, values, first_call.layouts), 1),
    ]
    kind = f"{type(first[0]).__module__}.{type(first[0]).__name__}"
    print(f"three arguments of {kind}, an int and a float; Python {sys.version.split()[0]}")
    for name, action, calls in rows:
        seconds = min(timeit.repeat(action, number=20000, repeat=7)) / 20000 / calls
        print(f"{seconds * 1e6:6.2f} us  {name}")


if __name__ == "__main__":
    main()
