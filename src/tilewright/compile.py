"""The one place that joins front end, passes and backends: a Python function in, IR, C++ and machine code out."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilewright import notebook
from tilewright.arch import Arch
from tilewright.errors import ArgumentError, LanguageError
from tilewright.figures import Compiled
from tilewright.frames import warn_at, with_stack
from tilewright.instructions.late_reads import fence_late_reads
from tilewright.instructions.register_budget import share_registers
from tilewright.ir.core import Buffer, Kernel, Op, Parameter, Space, TensorMap, Value
from tilewright.ir.effects import Completion, Scope
from tilewright.ir.evaluate import evaluate
from tilewright.ir.maps import MapValues
from tilewright.ir.ops import AddressOf, Point
from tilewright.passes.pipeline import run_passes
from tilewright.runtime.options import demand_clusters, demand_dependent_launch
from tilewright.trace.kernel import trace
from tilewright.trace.parameters import ArgumentType

if TYPE_CHECKING:
    from tilewright.backends.cpp.generate import DeviceSource
    from tilewright.backends.cuda import CudaSource
    from tilewright.runtime.nvrtc import CompiledModule

# What the host knows of the arguments: a scalar parameter's value by argument and part.
ScalarLookup = Callable[[Parameter], int]


@dataclass(frozen=True, eq=False)
class Lowered:
    """A kernel specialised for certain arguments, ready for either backend.

    `kernel.parameters` are what the machine code takes; `host_parameters` also what only the checks of a launch read.
    """

    kernel: Kernel
    arch: Arch
    host_parameters: tuple[Parameter, ...]

    def _repr_html_(self) -> str:
        listing = notebook.listing(self.source.text)
        return notebook.box(f"{self.kernel.name} for {self.arch}", listing, note="what the compiler gets")

    @cached_property
    def written(self) -> frozenset[str]:
        """The names of the arguments that the kernel writes."""
        return self._arguments({buffer for op in self.kernel.body.walk() for buffer in op.buffers_written})

    @cached_property
    def read(self) -> frozenset[str]:
        """The names of the array arguments that the kernel reads."""
        return self._arguments({buffer for op in self.kernel.body.walk() for buffer in op.buffers_read})

    @cached_property
    def takes_addresses(self) -> bool:
        """Whether the kernel reaches memory by addresses."""
        return any(isinstance(op, (AddressOf, Point)) for op in self.kernel.body.walk())

    @cached_property
    def writes_by_address(self) -> bool:
        """Whether the kernel writes to memory that it reaches by an address."""
        return any(b.root.is_pointed for op in self.kernel.body.walk() for b in op.buffers_written)

    def _arguments(self, buffers: set[Buffer]) -> frozenset[str]:
        """Return the arguments that are among buffers, or whose address was taken where any of them is pointed."""
        reached = {buffer.root for buffer in buffers}
        if any(buffer.is_pointed for buffer in reached):
            reached |= {op.buffer.root for op in self.kernel.body.walk() if isinstance(op, AddressOf)}
        return frozenset(p.argument for p in self.kernel.parameters if p.target in reached)

    @cached_property
    def source(self) -> DeviceSource:
        """The C++ text in the dialect of the target's vendor: CUDA or HIP."""
        return self._generate(restrict=True) if self.arch.is_amd else self.cuda

    @cached_property
    def cuda(self) -> CudaSource:
        """The CUDA C++ text; raises `ArgumentError` for a target that is not NVIDIA's."""
        if self.arch.is_amd:
            raise ArgumentError(
                f"there is no CUDA C++ for {self.arch}, an AMD target",
                help="Lowered.source is the text in HIP C++",
            )
        return self._generate(restrict=True)

    @cached_property
    def module(self) -> CompiledModule:
        """The machine code, from the disk cache or from the vendor's compiler: NVRTC or clang."""
        return self._compile(self.source)

    def compiled(self) -> Compiled:
        """Return what a profile needs to know of the machine code; raises `CompileError` where there is no compiler."""
        found = self.module.resources
        shared = found.static_shared_bytes + self.source.dynamic_shared_bytes
        return Compiled(self.arch.name, found.registers, shared, found.spills)

    @cached_property
    def aliased_module(self) -> CompiledModule:
        """The machine code for calls in which an array that is only read shares memory with one that is written."""
        return self._compile(self._generate(restrict=False))

    def _generate(self, *, restrict: bool) -> DeviceSource:
        with _without_collections():
            if self.arch.is_amd:
                from tilewright.backends import hip

                return hip.generate(self.kernel, self.arch, restrict=restrict)
            from tilewright.backends import cuda

            return cuda.generate(self.kernel, self.arch, restrict=restrict)

    def _compile(self, source: DeviceSource) -> CompiledModule:
        from tilewright.runtime.cache import default_cache

        module = default_cache().compile(source.text, name=source.name, arch=self.arch.name, line_map=source.line_map)
        self._warn_of_slow_products(module)
        return module

    def _warn_of_slow_products(self, module: CompiledModule) -> None:
        """Warn where ptxas serialises products of warpgroups, or takes no notice of registers, at the first such op."""
        from tilewright.runtime.compiler_log import advisories

        for number, text in advisories(module.log):
            ops = [op for op in self.kernel.body.walk() if _is_advised(op, number)]
            place = next((op.location for op in ops if op.location is not None), self.kernel.location)
            warn_at(f"ptxas says of {self.kernel.name}: {text} ({number})", place)

    @cached_property
    def checked(self) -> tuple[Parameter, ...]:
        """The scalar parameters that the conditions of a launch depend on."""
        return self._behind([requirement.condition for requirement in self.kernel.requirements])

    def _behind(self, values: list[Value]) -> tuple[Parameter, ...]:
        """Return the scalar parameters that values depend on."""
        pending = list(values)
        found: set[Value] = set()
        while pending:
            value = pending.pop()
            if value not in found:
                found.add(value)
                pending += value.definition.operands if value.definition is not None else ()
        return tuple(p for p in self.host_parameters if p.target in found)

    @cached_property
    def sized(self) -> tuple[Parameter, ...]:
        """The scalar parameters that the sizes of shared memory depend on which the launch knows."""
        return self._behind([v for each in self.kernel.launch_sized for v in (each.elements, each.place)])

    def shared_memory(self, lookup: ScalarLookup, limit: int, device: str) -> tuple[int, dict[Buffer, tuple[int, int]]]:
        """Return the bytes of shared memory of a launch, and the place and number of elements of each such buffer.

        Raises `ArgumentError` for a size below 0, and for more than a block of the device has.
        """
        known: dict[Value, int] = {p.target: lookup(p) for p in self.sized if isinstance(p.target, Value)}
        found: dict[Buffer, tuple[int, int]] = {}
        start = end = self.kernel.launch_sized_start
        details = [f"of static size: {start} bytes"] if start else []
        for each in self.kernel.launch_sized:
            buffer, elements, place = each.buffer, evaluate(each.elements, known), evaluate(each.place, known)
            name = buffer.name or str(buffer.dtype)
            if elements < 0:
                raise ArgumentError(
                    f"tw.shared: the layout of {name!r} reaches {elements} elements in this launch",
                    location=buffer.location,
                    help="launch with extents that are not negative",
                )
            found[buffer] = place, elements
            end = start + place + elements * buffer.dtype.bytes
            details.append(f"{name}: {elements} {buffer.dtype}, {elements * buffer.dtype.bytes} bytes")
        if end > limit:
            raise ArgumentError(
                f"kernel {self.kernel.name!r} takes {end} bytes of shared memory in this launch; a block of {device} "
                f"has {limit}",
                details=details,
                location=self.kernel.launch_sized[-1].buffer.location,
                help="launch with smaller extents, or keep less in shared memory",
            )
        return end, found

    @cached_property
    def mapped(self) -> tuple[Parameter, ...]:
        """The scalar parameters that tensor maps depend on."""
        return self._behind([value for map in self.kernel.tensor_maps for value in map.values])

    def map_values(self, lookup: ScalarLookup) -> dict[TensorMap, MapValues]:
        """Return what the tensor maps of a launch describe; raise `ArgumentError` for what no map can describe."""
        known: dict[Value, int] = {p.target: lookup(p) for p in self.mapped if isinstance(p.target, Value)}
        found = {}
        for map in self.kernel.tensor_maps:
            start, *rest = [evaluate(value, known) for value in map.values]
            rank = map.rank
            found[map] = MapValues.of(map, start, tuple(rest[:rank]), tuple(rest[rank:]))
            found[map].check(map)
        return found

    def check(self, lookup: ScalarLookup) -> None:
        """Raise `ArgumentError` for the first condition of the launch that does not hold."""
        if not self.kernel.requirements:
            return
        known: dict[Value, int] = {p.target: lookup(p) for p in self.checked if isinstance(p.target, Value)}
        for requirement in self.kernel.requirements:
            if not evaluate(requirement.condition, known):
                message = requirement.message
                if requirement.shown is not None:
                    message = message.replace("{value}", str(evaluate(requirement.shown, known)))
                raise ArgumentError(message, help=requirement.help, location=requirement.location)

    def check_grid(self, grid: tuple[int, int, int]) -> None:
        """Raise `ArgumentError` for a grid with more blocks than the tiles that the kernel takes them for."""
        for limit in self.kernel.grid_limits:
            if grid[limit.axis] > limit.blocks:
                raise ArgumentError(
                    f"the grid has {grid[limit.axis]} blocks along {'xyz'[limit.axis]}, and {limit.what}",
                    help=f"launch at most {limit.blocks}; or let a number other than tw.block_idx choose the tile, or "
                    "choose it under `if tw.block_idx.x < ...:`, where blocks may do without",
                    location=limit.location,
                )


def lower(
    function: types.FunctionType,
    arguments: Mapping[str, ArgumentType],
    *,
    arch: Arch,
    block: tuple[int, int, int] | None,
    min_blocks: int = 0,
    cooperative: bool = False,
    cluster: tuple[int, int, int] = (1, 1, 1),
    dependent_launch: bool = False,
    bounds: bool = False,
    fastmath: bool = False,
) -> Lowered:
    """Trace a rewritten function for certain arguments and run the passes; `bounds` is for the simulator.

    Raises `LanguageError` for what the language or the target refuses, `ArgumentError` for a target without clusters
    or launches that begin early, where these are asked for.
    """
    demand_clusters(arch, cluster)
    demand_dependent_launch(arch, dependent_launch)
    with _without_collections():
        kernel = trace(function, arguments, arch=arch, block=block, bounds=bounds, fastmath=fastmath, cluster=cluster)
        return _prepared(kernel, arch, min_blocks, cooperative, dependent_launch)


with_stack(lower)


def _prepared(kernel: Kernel, arch: Arch, min_blocks: int, cooperative: bool, dependent_launch: bool) -> Lowered:
    """Run the passes over a traced kernel, which takes up what its launches are."""
    kernel.min_blocks = min_blocks
    share_registers(kernel)
    fence_late_reads(kernel)
    kernel.cooperative = cooperative or any(op.effects.together is Scope.GRID for op in kernel.body.walk())
    kernel.dependent_launch = dependent_launch
    run_passes(kernel)
    _check_shared_memory(kernel, arch)
    host = kernel.parameters
    kernel.parameters = _machine_parameters(kernel)
    return Lowered(kernel, arch, host)


def _is_advised(op: Op, number: str) -> bool:
    """Say whether an advisory of ptxas is about ops like this one: C7508 and C7509 are about registers."""
    if number in ("C7508", "C7509"):
        return op.effects.registers is not None
    return op.effects.asynchronous is Completion.WARPGROUP


def _machine_parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """Return the parameters without the extents, strides and numbers that no op reads."""
    needed = {v for op in kernel.body.walk() for v in op.operands}
    return tuple(p for p in kernel.parameters if isinstance(p.target, Buffer) or p.target in needed)


def _check_shared_memory(kernel: Kernel, arch: Arch) -> None:
    limit = arch.shared_bytes_optin
    if kernel.shared_bytes <= limit:
        return
    buffers = list(dict.fromkeys(b.root for b in kernel.buffers() if b.space is Space.SHARED))
    raise LanguageError(
        f"kernel {kernel.name!r} takes {kernel.shared_bytes} bytes of shared memory; "
        f"a block of {arch.name} has {limit}",
        details=[f"{b.name or f'{b.size} {b.dtype}'}: {b.bytes} bytes at {b.location}" for b in buffers],
        location=buffers[-1].location,
        help="make the tiles smaller, or keep fewer stages",
    )


@contextmanager
def _without_collections() -> Iterator[None]:
    """Let Python's garbage collector rest: what a compilation makes stays, and looking through it takes long."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
