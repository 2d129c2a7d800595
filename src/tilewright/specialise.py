"""One compiled form of a kernel: for arguments of one kind, on the simulator or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, Protocol

from tilewright.admission import Admit, admission_of, attributes_of, blocks_at_once
from tilewright.arch import Arch, default_arch
from tilewright.compile import Lowered
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, DeviceError
from tilewright.figures import Compiled
from tilewright.ir.core import Buffer, Parameter, TensorMap
from tilewright.ir.maps import MapValues
from tilewright.pickling import Refused
from tilewright.runtime import driver
from tilewright.runtime.addresses import address_range, meeting_distances, range_of, ranges_meet
from tilewright.runtime.arrays import ArrayInfo, ArraySpec, Layouts, Static, StreamGetter, common_device, describe
from tilewright.runtime.compiled import launcher
from tilewright.runtime.launch import (
    ExtentSlot,
    LaunchConfig,
    Packer,
    Pair,
    PointerSlot,
    PreparedLaunch,
    ScalarSlot,
    Slot,
    StrideSlot,
    launch_config,
    share_memory,
)
from tilewright.runtime.numbers import number_type
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.runtime.options import has_dependent_launches, is_simulator_chosen, stream_handle
from tilewright.runtime.plan import (
    Argument,
    ArgumentPlan,
    Reading,
    Scalar,
    Structured,
    is_constant,
    refusal_of,
    shown_argument,
)
from tilewright.runtime.pointers import reached
from tilewright.runtime.recent import Recent
from tilewright.runtime.tensor_maps import encode
from tilewright.structures import demand_depth, structure_of
from tilewright.trace.parameters import ArgumentType, ArrayType, ConstantValue, Dynamic, ScalarType, StructureType

_MAX_ENCODED = 256  # launches whose tensor maps are remembered
_PARTS = {"shape": 0, "stride": 1}  # where they stand in an array's layout


class Ready(Protocol):
    """A compiled form that was found fit for calls of one kind: what runs them."""

    dynamic_shared_bytes: int
    is_simple: bool  # nothing but pointers has to be looked at: it has `ordinal`, its GPU's number, and `launch`

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        """Launch with the arguments of a reading, after all that has to be looked at."""

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        """Return the launch with everything packed."""

    def resident_blocks(self, config: LaunchConfig) -> int:
        """Return how many blocks of this configuration run at once."""


class Specialisation(Protocol):
    """A compiled form of a kernel."""

    def admit(self, reading: Reading) -> Ready:
        """Return the form for calls that agree with this one in all but pointers and numbers.

        Raises `ArgumentError` for a condition of the launch that does not hold.
        """


def specialise(
    build: Callable[[Arch, bool], Lowered],
    names: Sequence[str],
    described: Sequence[Argument],
    starts: Sequence[int],
    arch: str | None = None,
) -> Specialisation:
    """Lower a kernel for arguments and make it ready where their arrays live.

    `build` takes the target, and whether the simulator is to check coordinates. `arch` is the simulator's target; a
    GPU is its own, and runs no code for AMD.

    Raises `ArgumentError` for arrays on different devices, and for outputs that cannot be written; `DeviceError` for
    arrays on a GPU where the target is one of AMD's.
    """
    arrays = [(name, d) for name, d in zip(names, described, strict=True) if isinstance(d, ArrayInfo)]
    device = common_device([info for _, info in arrays], [name for name, _ in arrays])
    simulate = is_simulator_chosen() or device == "cpu"
    named = None if arch is None else Arch.parse(arch)
    if named is not None and named.is_amd and not simulate:
        raise DeviceError(
            f"the kernel is configured for {named}, and its arrays live on an NVIDIA GPU",
            help="AMD's targets are compiled and simulated, not launched: pass NumPy arrays, or set "
            "TILEWRIGHT_BACKEND=sim",
        )
    if named is not None and simulate:
        target = named
    else:
        target = default_arch() if isinstance(device, str) else driver.device_properties(device).arch
    lowered = build(target, simulate)
    _check_outputs(lowered, arrays)
    if simulate:
        return OnSimulator(lowered, names, starts, lambda: build(target, False))
    assert isinstance(device, int)
    return OnDevice(lowered, names, starts, device)


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


def _lookup(names: Sequence[str], starts: Sequence[int], reading: Reading) -> Callable[[Parameter], Any]:
    """Return what finds the value of a scalar parameter in a reading."""
    return _finder(names, starts, reading[0].layouts, reading[1])


def _finder(
    names: Sequence[str], starts: Sequence[int], layouts: Layouts, values: tuple[Any, ...]
) -> Callable[[Parameter], Any]:
    position = dict(zip(names, starts, strict=True))

    def find(parameter: Parameter) -> Any:
        start = position[parameter.argument]
        if isinstance(parameter.part, tuple):
            part, mode = parameter.part
            layout = layouts[start]
            assert layout is not None, parameter
            return layout[_PARTS[part]][mode]
        return values[start]

    return find


class OnSimulator:
    """A kernel on the simulator; CUDA arrays are copied there and back.

    `lower_for_gpu` lowers it once more without the simulator's checks of coordinates, as a GPU runs it.
    """

    dynamic_shared_bytes = 0
    is_simple = False

    def __init__(
        self, lowered: Lowered, names: Sequence[str], starts: Sequence[int], lower_for_gpu: Callable[[], Lowered]
    ) -> None:
        self.lowered = lowered
        self.names = names
        self.starts = starts
        self._lower_for_gpu = lower_for_gpu

    @cached_property
    def lowered_for_gpu(self) -> Lowered:
        """The kernel that a GPU would run, for those who ask its compiler."""
        return self._lower_for_gpu()

    def compiled(self) -> Compiled:
        """Return what a profile needs to know of the GPU's machine code, as `Lowered.compiled`."""
        return self.lowered_for_gpu.compiled()

    def admit(self, reading: Reading) -> Ready:
        return self  # the conditions are checked at each run, which is slow anyway

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        self._run(config, plan.describe(args), reading)

    def _run(self, config: LaunchConfig, arguments_described: Sequence[Argument], reading: Reading) -> None:
        from tilewright.backends.sim import execute

        described = dict(zip(self.names, arguments_described, strict=True))
        find = _lookup(self.names, self.starts, reading)
        self.lowered.check(find)
        self.lowered.check_grid(config.grid)
        arch = self.lowered.arch
        _, sized = self.lowered.shared_memory(find, arch.shared_bytes_optin, str(arch))
        infos = {n: info for n, info in described.items() if isinstance(info, ArrayInfo)}
        lowered, written, places = self.lowered, self.lowered.written, {}
        if lowered.takes_addresses:
            others = reached(infos)
            infos = {**infos, **{n: info for n, info in others.items() if n not in infos}}
            if lowered.writes_by_address:
                written |= {n for n in others if others[n].writable}
        staged = _stage(infos, frozenset(infos) if lowered.takes_addresses else written)
        if lowered.takes_addresses:
            from tilewright.backends.sim import reachable

            places = {n: reachable(s.array, n, s.info.pointer if s.info.is_cuda else None) for n, s in staged.items()}
        arguments: dict[Parameter, Any] = {
            p: staged[p.argument].array if isinstance(p.target, Buffer) else find(p)
            for p in self.lowered.kernel.parameters
        }
        execute(
            lowered.kernel,
            config.grid,
            config.block,
            arguments,
            arch=lowered.arch.name,
            compile=self.compiled,
            copies=frozenset(name for name, each in staged.items() if each.info.is_cuda),
            addresses=tuple(places.values()),
            sized=sized,
            described=lambda: tuple([(name, shown_argument(value)) for name, value in described.items()]),
            maps=self._maps(find, infos),
            remembers=has_dependent_launches(),
        )
        for name in written:
            staged[name].write_back()

    def _maps(self, find: Callable[[Parameter], Any], infos: dict[str, ArrayInfo]) -> dict[TensorMap, MapValues]:
        """Return what the kernel's tensor maps describe, once the hardware's demands are met."""
        found = self.lowered.map_values(find)
        if found:
            argument = {p.target: p.argument for p in self.lowered.kernel.parameters}
            for map, values in found.items():
                values.check_address(map, infos[argument[map.buffer]].pointer)
        return found

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        described = plan.describe(args)  # now: a list may be changed afterwards
        return PreparedRun(lambda: self._run(config, described, reading), config)

    def resident_blocks(self, config: LaunchConfig) -> int:
        from tilewright.backends.sim.machine import RESIDENT_THREADS

        return RESIDENT_THREADS // prod(config.block)


class PreparedRun(Refused):
    """A run of the simulator with its arguments: calling it runs the kernel again."""

    _why_no_copy = PreparedLaunch._why_no_copy

    def __init__(self, run: Callable[[], None], config: LaunchConfig) -> None:
        self._run = run
        self._config = config

    def __repr__(self) -> str:
        return f"<prepared launch: grid {self._config.grid}, block {self._config.block}>"

    def __call__(self) -> None:
        self._run()


def _stage(infos: dict[str, ArrayInfo], written: frozenset[str]) -> dict[str, _Staged]:
    """Make arrays ready for the simulator; two arguments that are one device array stay one."""
    staged: dict[str, _Staged] = {}
    for name, info in infos.items():
        for other, known in staged.items():
            if info.is_cuda and {name, other} & written and ranges_meet(range_of(info), range_of(known.info)):
                if info != known.info:
                    raise ArgumentError(
                        f"arguments {other!r} and {name!r} overlap in GPU memory, and one of them is written",
                        help="the simulator works on copies of GPU arrays: pass the same array twice, or separate ones",
                    )
                staged[name] = known
                break
        else:
            staged[name] = _Staged(info)
    return staged


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

    def __init__(self, lowered: Lowered, names: Sequence[str], starts: Sequence[int], ordinal: int) -> None:
        if lowered.arch.is_amd:
            raise DeviceError(
                f"kernel {lowered.kernel.name!r} is compiled for {lowered.arch}, and the arrays live on an NVIDIA GPU",
                help="AMD's targets are compiled and simulated, not launched: pass NumPy arrays, or set "
                "TILEWRIGHT_BACKEND=sim",
            )
        self.lowered = lowered
        self.names = names
        self.starts = starts
        self.ordinal = ordinal
        self.dynamic_shared_bytes: int = lowered.cuda.dynamic_shared_bytes
        self.properties: driver.DeviceProperties = driver.device_properties(ordinal)
        # Shared memory whose size depends on numbers is worked out at every call.
        self.sizes_by_number: bool = any(p.part == "value" for p in lowered.sized)
        if self.dynamic_shared_bytes > self.properties.shared_bytes_optin:
            raise DeviceError(
                f"kernel {lowered.kernel.name!r} takes {self.dynamic_shared_bytes} bytes of shared memory; "
                f"a block of {self.properties.name} has {self.properties.shared_bytes_optin}"
            )
        if driver.entry_points(ordinal) is not None:
            launcher()  # its build begins here
        self.function: driver.Function = self.load(lowered.module)
        position = {name: n for n, name in enumerate(names)}
        maps = TensorMaps(lowered, names, starts) if lowered.kernel.tensor_maps else None
        slots = [_slot(p, position) for p in lowered.kernel.parameters]
        self.packer: Packer = Packer(slots, starts, attributes=attributes_of(lowered.kernel), maps=maps)
        self.admitted: Admit | None = admission_of(self)
        self.overlaps: Overlaps = Overlaps(lowered, dict(zip(names, starts, strict=True)))
        # Conditions on extents and strides are checked once for each kind of call, those on numbers at every call.
        self.checks_numbers: bool = any(p.part == "value" for p in lowered.checked)

    @property
    def lowered_for_gpu(self) -> Lowered:
        """The kernel that runs."""
        return self.lowered

    def load(self, module: CompiledModule) -> driver.Function:
        """Load machine code of the kernel on the device."""
        most = self.properties.shared_bytes_optin if self.lowered.kernel.launch_sized else self.dynamic_shared_bytes
        return driver.load_function(module.cubin, module.name, ordinal=self.ordinal, dynamic_shared_bytes=most)

    @cached_property
    def aliased_function(self) -> driver.Function:
        """The machine code for calls in which an array that is only read shares memory with one that is written."""
        return self.load(self.lowered.aliased_module)

    def check(self, reading: Reading) -> None:
        """Raise `ArgumentError` for a condition of the launch that does not hold."""
        self.lowered.check(_lookup(self.names, self.starts, reading))

    def shared_bytes(self, reading: Reading) -> int:
        """Return the dynamic shared memory of a call; raise `ArgumentError` for more than a block has."""
        if not self.lowered.kernel.launch_sized:
            return self.dynamic_shared_bytes
        find = _lookup(self.names, self.starts, reading)
        return self.lowered.shared_memory(find, self.properties.shared_bytes_optin, self.properties.name)[0]

    def admit(self, reading: Reading) -> Ready:
        self.check(reading)
        return _Admitted(self, reading[0].layouts, self.shared_bytes(reading))


class _Admitted:
    """A kernel on one GPU, for calls whose extents and strides were found fit."""

    __slots__ = (
        *("dynamic_shared_bytes", "form", "is_simple", "launch", "layouts", "limits", "ordinal", "owner", "pairs"),
    )

    def __init__(self, owner: OnDevice, layouts: Layouts, shared_bytes: int) -> None:
        self.owner = owner
        self.layouts = layouts
        self.form: Any = None  # Any: what the compiled launcher makes, False where it cannot
        self.pairs = owner.overlaps.pairs(layouts)
        self.limits = owner.lowered.kernel.grid_limits
        self.is_simple = not owner.checks_numbers and not owner.sizes_by_number and not self.limits
        self.ordinal = owner.ordinal
        self.dynamic_shared_bytes = shared_bytes
        self.launch = owner.packer.bind(
            layouts, owner.function, self.pairs, lambda: owner.aliased_function, owner.admitted
        )

    def compiled(self, library: Any, stream_of: StreamGetter) -> Any:  # Any: as `form`
        """Return what the compiled launcher launches such calls with, None where it cannot."""
        if self.form is None:
            owner = self.owner
            form = owner.packer.form(
                *(library, self.layouts, owner.function, self.pairs, owner.admitted, stream_of),
                shared_bytes=self.dynamic_shared_bytes,
            )
            self.form = form or False
        return self.form or None

    def run(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> None:
        if self.limits:
            self.owner.lowered.check_grid(config.grid)
        self.launch(self._sized(config, reading), self._stream(plan, reading, stream), reading[1])

    def prepare(
        self, config: LaunchConfig, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...], stream: Any
    ) -> Callable[[], None]:
        self.owner.lowered.check_grid(config.grid)
        handle = self._stream(plan, reading, stream)
        call, values, described = reading
        function = self.owner.aliased_function if share_memory(self.pairs, values) else self.owner.function
        # A list may be changed afterwards; its arrays are kept.
        owners = (*args, *plan.leaves(args), *described)
        config = self._sized(config, reading)
        if self.owner.admitted is not None:
            function = self.owner.admitted(function, config, handle)
        return self.owner.packer.prepare(function, config, handle, values, call.layouts, owners)

    def resident_blocks(self, config: LaunchConfig) -> int:
        return blocks_at_once(self.owner.function, config)

    def _sized(self, config: LaunchConfig, reading: Reading) -> LaunchConfig:
        """Return the configuration with the shared memory that the numbers of a call ask for."""
        if not self.owner.sizes_by_number:
            return config
        return launch_config(config.grid, config.block, self.owner.shared_bytes(reading), config.cluster)

    def _stream(self, plan: ArgumentPlan, reading: Reading, stream: Any) -> int:
        """Return the stream of a launch, after the conditions on numbers."""
        if self.owner.checks_numbers:
            self.owner.check(reading)
        return plan.stream(self.ordinal, reading[2]) if stream is None else stream_handle(stream)


class TensorMaps:
    """Encodes the tensor maps of a kernel for its launches: once for each layout of the arrays, pointer and number."""

    def __init__(self, lowered: Lowered, names: Sequence[str], starts: Sequence[int]) -> None:
        self._lowered, self._names, self._starts = lowered, names, starts
        self.count: int = len(lowered.kernel.tensor_maps)
        place = dict(zip(names, starts, strict=True))
        argument = {p.target: p.argument for p in lowered.kernel.parameters}
        self._pointers = [place[argument[map.buffer]] for map in lowered.kernel.tensor_maps]
        numbers = [place[p.argument] for p in lowered.mapped if p.part == "value"]
        self.key: Sequence[int] = [*self._pointers, *numbers]
        self._known: Recent[Hashable, bytes] = Recent(_MAX_ENCODED)

    def __call__(self, layouts: Layouts, values: tuple[Any, ...]) -> bytes:
        """Return the maps of a launch, one after another; raise `ArgumentError` for what none can describe."""
        key = layouts, tuple([values[n] for n in self.key])
        return self._known.get(key) or self._known.add(key, self._encode(layouts, values))

    def _encode(self, layouts: Layouts, values: tuple[Any, ...]) -> bytes:
        find = _finder(self._names, self._starts, layouts, values)
        found = self._lowered.map_values(find).items()
        return b"".join(
            encode(map, described, described.check_address(map, values[pointer]))
            for (map, described), pointer in zip(found, self._pointers, strict=True)
        )


class Overlaps:
    """Finds calls in which an array that the kernel only reads shares memory with one that it writes.

    Only what is read is promised to the compiler to be alone (`__restrict__`), so two outputs may overlap.
    """

    def __init__(self, lowered: Lowered, start: dict[str, int]) -> None:
        self._written: list[tuple[int, int]] = []
        self._read: list[tuple[int, int]] = []
        for parameter in lowered.kernel.parameters:
            if isinstance(parameter.target, Buffer):
                side = self._written if parameter.argument in lowered.written else self._read
                side.append((start[parameter.argument], parameter.target.dtype.bytes))

    def pairs(self, layouts: Layouts) -> tuple[Pair, ...]:
        """Return the pairs to look at in calls with these extents and strides; arrays without elements meet none."""
        written, read = (
            [(start, address_range(*layout, size)) for start, size in side if (layout := layouts[start]) is not None]
            for side in (self._written, self._read)
        )
        return tuple(
            (w, r, *bounds)
            for w, written_range in written
            for r, read_range in read
            if (bounds := meeting_distances(read_range, written_range)) is not None
        )

    def found(self, values: tuple[Any, ...], layouts: Layouts) -> bool:
        """Say whether the address ranges of a written and of a read array meet."""
        return share_memory(self.pairs(layouts), values)


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


def argument_type(
    name: str, value: Any, *, is_constexpr: bool, declared: DType | None = None, depth: int = 0
) -> ArgumentType:
    """Return what a kernel is specialised on for an argument, or for a spec in its place; `depth` counts structures."""
    if is_constexpr or value is None:
        return ConstantValue(value)
    if isinstance(value, ArraySpec):
        return _array_type(value.info)
    if isinstance(value, Static) and isinstance(value.array, ArraySpec):
        return _array_type(replace(value.array.info, static=True))
    info = describe(value, name)
    if info is not None:
        return _array_type(info)
    number = number_type(name, value, declared)
    if number is not None:
        return ScalarType(number.of(name, value))
    structure = structure_of(value)
    if structure is not None:
        demand_depth(depth, name)
        parts = [
            argument_type(structure.path(name, n), part, is_constexpr=False, depth=depth + 1)
            for n, part in enumerate(structure.parts(value))
        ]
        return StructureType(structure, tuple(parts))
    if depth and is_constant(value):
        return ConstantValue(value)
    raise refusal_of(name, value, is_part=depth > 0)


def described_type(described: Argument | Structured) -> ArgumentType:
    """Return what a kernel is specialised on for an argument that was described."""
    if isinstance(described, Structured):
        return StructureType(described.structure, tuple([described_type(part) for part in described.parts]))
    if isinstance(described, ArrayInfo):
        return _array_type(described)
    return ScalarType(described.dtype) if isinstance(described, Scalar) else ConstantValue(described.value)


def _array_type(info: ArrayInfo) -> ArrayType:
    kind = info.specialisation
    if info.static:
        return ArrayType(info.dtype, info.shape, info.strides, kind.alignment, kind.wide)
    stride = tuple(s.value if s.value is not None else Dynamic(s.divisor) for s in kind.strides)
    return ArrayType(info.dtype, tuple(Dynamic(d) for d in kind.extents), stride, kind.alignment, kind.wide)
