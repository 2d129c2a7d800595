"""One compiled form of a kernel: for arguments of one kind, on the simulator or on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.arch import Arch, default_arch
from tilewright.compile import Lowered
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DeviceError
from tilewright.ir.core import Buffer, Parameter
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo, common_device
from tilewright.runtime.launch import (
    ExtentSlot,
    LaunchConfig,
    Packer,
    PointerSlot,
    ScalarSlot,
    Slot,
    StrideSlot,
)
from tilewright.runtime.plan import Argument, ArgumentPlan, Reading


class Specialisation(Protocol):
    """What a launch needs of a compiled form."""

    dynamic_shared_bytes: int

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        """Launch with the arguments of a reading."""

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        """Return the launch with everything packed."""


def specialise(
    build: Callable[[Arch], Lowered],
    names: Sequence[str],
    described: Sequence[Argument],
    starts: Sequence[int],
    extra_shared_bytes: int,
) -> Specialisation:
    """Lower a kernel for arguments and make it ready where their arrays live.

    Raises `ArgumentError` for arrays on different devices, and for outputs that cannot be written.
    """
    arrays = [(name, d) for name, d in zip(names, described, strict=True) if isinstance(d, ArrayInfo)]
    device = common_device([info for _, info in arrays], [name for name, _ in arrays])
    simulate = device == "cpu" or os.environ.get("TILEWRIGHT_BACKEND") == "sim"
    arch = default_arch() if isinstance(device, str) else driver.device_properties(device).arch
    lowered = build(arch)
    _check_outputs(lowered, arrays)
    if simulate:
        return OnSimulator(lowered, names, starts)
    assert isinstance(device, int)
    return OnDevice(lowered, names, starts, device, extra_shared_bytes)


def _check_outputs(lowered: Lowered, arrays: Sequence[tuple[str, ArrayInfo]]) -> None:
    for name, info in arrays:
        if name not in lowered.written:
            continue
        if not info.writable:
            raise ArgumentError(
                f"argument {name!r} is written by the kernel, and the array is read-only",
                help="pass a writable array (a copy, or after array.setflags(write=True))",
            )
        for mode in info.specialisation.broadcast:
            raise ArgumentError(
                f"argument {name!r} is written by the kernel, and its elements overlap: mode {mode} has stride 0",
                help="pass an array of its own memory, for example a copy",
            )


def _lookup(names: Sequence[str], starts: Sequence[int], values: tuple[Any, ...]) -> Callable[[Parameter], Any]:
    """Return what finds the value of a scalar parameter in a reading."""
    position = dict(zip(names, starts, strict=True))

    def find(parameter: Parameter) -> Any:
        start = position[parameter.argument]
        if isinstance(parameter.part, tuple):
            part, mode = parameter.part
            return values[start + (1 if part == "shape" else 2)][mode]
        return values[start]

    return find


class OnSimulator:
    """A kernel on the simulator; CUDA arrays are copied there and back."""

    dynamic_shared_bytes = 0

    def __init__(self, lowered: Lowered, names: Sequence[str], starts: Sequence[int]) -> None:
        self.lowered = lowered
        self.names = names
        self.starts = starts

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        from tilewright.backends.sim import execute

        described = dict(zip(self.names, plan.describe(args), strict=True))
        find = _lookup(self.names, self.starts, reading[1])
        self.lowered.check(find)
        staged = {n: _Staged(info) for n, info in described.items() if isinstance(info, ArrayInfo)}
        arguments: dict[Parameter, Any] = {
            p: staged[p.argument].array if isinstance(p.target, Buffer) else find(p)
            for p in self.lowered.kernel.parameters
        }
        execute(self.lowered.kernel, config.grid, config.block, arguments)
        for name in self.lowered.written:
            staged[name].write_back()

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        return lambda: self.run(config, plan, reading, args, stream)


class _Staged:
    """An array as the simulator uses it: the memory itself on the host, a copy of a device's."""

    def __init__(self, info: ArrayInfo) -> None:
        self.info = info
        if info.is_cuda:
            from tilewright.runtime.memory import copy_to_host

            self.array, self._memory = copy_to_host(info)
        else:
            self.array = info.host()

    def write_back(self) -> None:
        if self.info.is_cuda:
            from tilewright.runtime.memory import copy_to_device

            copy_to_device(self.info, self._memory)


class OnDevice:
    """A kernel as machine code on one GPU."""

    def __init__(
        self, lowered: Lowered, names: Sequence[str], starts: Sequence[int], ordinal: int, extra_shared_bytes: int
    ) -> None:
        self.lowered = lowered
        self.names = names
        self.starts = starts
        self.ordinal = ordinal
        self.dynamic_shared_bytes = lowered.cuda.dynamic_shared_bytes + extra_shared_bytes
        properties = driver.device_properties(ordinal)
        if self.dynamic_shared_bytes > properties.shared_bytes_optin:
            raise DeviceError(
                f"kernel {lowered.kernel.name!r} takes {self.dynamic_shared_bytes} bytes of shared memory; "
                f"a block of {properties.name} has {properties.shared_bytes_optin}"
            )
        module = lowered.module
        self.function = driver.load_function(
            module.cubin, module.name, ordinal=ordinal, dynamic_shared_bytes=self.dynamic_shared_bytes
        )
        position = {name: n for n, name in enumerate(names)}
        self.packer = Packer([_slot(p, position) for p in lowered.kernel.parameters], starts)
        self._checked: set[Any] = set()
        self._pointers = frozenset(
            starts[position[p.argument]] for p in lowered.kernel.parameters if p.part == "pointer"
        )

    def _check(self, values: tuple[Any, ...]) -> None:
        """Check the conditions of a launch, once for each set of shapes, strides and numbers."""
        key = tuple(v for n, v in enumerate(values) if n not in self._pointers)
        if key in self._checked:
            return
        self.lowered.check(_lookup(self.names, self.starts, values))
        if len(self._checked) > 4096:
            self._checked.clear()
        self._checked.add(key)

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        _, values, described = reading
        if self.lowered.kernel.requirements:
            self._check(values)
        handle = plan.stream(self.ordinal, described) if stream is None else _stream_handle(stream)
        self.packer.launch(self.function, config, handle, values)

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        _, values, described = reading
        if self.lowered.kernel.requirements:
            self._check(values)
        handle = plan.stream(self.ordinal, described) if stream is None else _stream_handle(stream)
        return self.packer.prepare(self.function, config, handle, values, owners=(*args, *described))


def _slot(parameter: Parameter, position: dict[str, int]) -> Slot:
    argument = position[parameter.argument]
    if isinstance(parameter.target, Buffer):
        return PointerSlot(argument)
    element = parameter.target.type
    assert isinstance(element, DType)
    if isinstance(parameter.part, tuple):
        part, mode = parameter.part
        return ExtentSlot(argument, mode, element) if part == "shape" else StrideSlot(argument, mode, element)
    return ScalarSlot(argument, element)


def _stream_handle(stream: Any) -> int:
    """Return the CUDA handle of a stream: an int, or torch's, CuPy's and cuda-python's objects."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    raise ArgumentError(f"a stream is a CUDA handle or a framework's stream object, got {type(stream).__name__}")
