"""Kernels that plans are built into: called with arrays, printed, compiled and counted."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.compile import Lowered
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError, CompileError, ScheduleError
from tilewright.frames import hiding_frames
from tilewright.ir.core import Buffer, Value
from tilewright.launch import Kernel, Launcher, traceable_kernel
from tilewright.pickling import without_caches
from tilewright.profile import Profile
from tilewright.runtime.arrays import ArrayInfo, Device, describe
from tilewright.runtime.specs import spec
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.beginnings import scratch_of
from tilewright.schedule.bounds import Condition, conditions_of
from tilewright.schedule.caches import Cache, Location, elements_of
from tilewright.schedule.constants import allocate, bring, memory_for
from tilewright.schedule.emission import Emission
from tilewright.schedule.lanes import lowered
from tilewright.schedule.plan_state import PlanState, sizes_of
from tilewright.schedule.report import Operands, Report, report_of
from tilewright.schedule.scalars import number_of
from tilewright.schedule.scope import located
from tilewright.schedule.validation import begun_with_zeros, validate
from tilewright.schedule.views import Derived, value_of
from tilewright.source import SourceLocation

_ANY = 64  # a size that only the launch knows, for what is printed and counted without a launch


@dataclass(frozen=True)
class CacheMemory:
    """What the launch allocates for a cache in global memory: so many elements for each block, in one array."""

    cache: Cache
    name: str
    elements: int
    role = Role.TEMP
    rank = 1
    stands_for = None

    @property
    def element_type(self) -> DType:
        return self.cache.element_type


class ScheduledKernel:
    """A plan's kernel, made by `plan.build()`. Calling it launches it on the device of its arrays.

    The arrays come in the order of `parameters`. Sizes known only at launch are those of the arrays, or separate
    arguments. The kernel takes `arguments`, arrays and numbers, in that order; then `constants`, and what the launch
    allocates: the memory of TEMP arrays, `scratch`, and of caches in global memory, `cache_memory`.
    """

    def __init__(self, plan: PlanState, name: str, parameters: tuple[Array | Dimension, ...]) -> None:
        plan = copy.copy(plan)  # what it takes is this kernel's own
        self.plan = plan
        self.name = name
        self.parameters = parameters
        self.arguments: tuple[Array, ...] = tuple(number_of(x) if isinstance(x, Dimension) else x for x in parameters)
        plan.given = frozenset(array.memory for array in self.arguments)
        self.lowered: PlanState = lowered(plan)  # with vectorized loops where they run
        validate(self.lowered, self.arguments)
        plan.begun = self.lowered.begun = begun_with_zeros(self.lowered)
        self.conditions: tuple[Condition, ...] = conditions_of(plan, self.arguments)
        self.constants: tuple[Array, ...] = tuple(
            x for x in plan.memories if x.data is not None and x not in plan.given
        )
        self.scratch: tuple[Array, ...] = scratch_of(self.lowered)
        self.cache_memory: tuple[CacheMemory, ...] = tuple(
            CacheMemory(cache, f"{cache.name}_memory{number}", elements_of(cache, self.lowered.region(cache)))
            for number, cache in enumerate(c for c in self.lowered.caches if c.location is Location.GLOBAL)
        )
        self.roles: dict[Buffer, str] = {}  # which operand a buffer of registers holds
        self.k_indices: set[Value] = set()  # the indices of the loops over K
        self._launchers: dict[tuple[int, int, int], Launcher] = {}
        self._placed: dict[Device, tuple[Any, ...]] = {}  # Any: arrays of any library

    def __getstate__(self) -> dict[str, Any]:  # Any: attributes
        # What was traced, compiled and brought to devices is made again; so is what the trace noted.
        return {**without_caches(self), "roles": {}, "k_indices": set(), "_launchers": {}, "_placed": {}}

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel of the language: it takes the arguments, the constants, the scratch arrays, memory of caches."""
        arrays = (*self.arguments, *self.constants, *self.scratch)
        place = self.plan.nest.parts[0].statements[0].location

        def emit(*values: Any) -> None:  # Any: device numbers, tensors
            memory = zip((memory.cache for memory in self.cache_memory), values[len(arrays) :], strict=True)
            self._emit(dict(zip(arrays, values, strict=False)), dict(memory), place)

        build = _named(self.name, place, emit)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [*(array.name for array in arrays), *(memory.name for memory in self.cache_memory)]
        build.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]  # read by inspect.signature
        arch = self.plan.target.arch
        kernel = traceable_kernel(build).configure(arch=arch.name)
        if arch.is_amd or self.plan.tensorization is None:
            return kernel
        # One block a multiprocessor will do: left to itself the compiler spills fragments to make room for more.
        return kernel.configure(min_blocks=1)

    def _emit(
        self,
        arguments: dict[Array, Any],  # Any: device numbers, tensors
        cache_memory: dict[Cache, Any],
        place: SourceLocation | None,
    ) -> None:
        with located(place):
            emission = Emission(self.lowered, arguments, cache_memory)
            emission.emit()
        if emission.tiles is not None:  # other traces' stay: their kernels may be kept, and counted later
            self.roles.update(emission.tiles.roles)
            self.k_indices.update(emission.scope.k_indices)

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block along each axis."""
        return self.plan.block

    @property
    def grid(self) -> tuple[int, int, int]:
        """The blocks of the grid along each axis. Raises `ScheduleError` if they are known only at launch."""
        sizes = sizes_of(self.plan)
        if sizes:
            raise ScheduleError(
                f"the grid depends on {sizes[0]}, which only the launch knows", help="kernel.grid_for(...)"
            )
        return self.plan.grid({})

    def grid_for(self, *args: Any) -> tuple[int, int, int]:  # Any: arrays of any library, and numbers
        """Return the blocks of the grid along each axis for a call's arrays."""
        return self.plan.grid(self._sizes(*self._described(args)))

    @hiding_frames
    def __call__(self, *args: Any) -> None:  # Any: arrays of any library, and numbers
        """Launch. Raises `ArgumentError` for arrays of other shapes, layouts or types than were declared."""
        launcher, values = self._launch(args)
        launcher(*values)

    @hiding_frames
    def prepare(self, *args: Any) -> Callable[[], None]:  # Any: as in __call__
        """Return the launch with these arrays, checked and packed."""
        launcher, values = self._launch(args)
        return launcher.prepare(*values)

    def analyze(self, *args: Any) -> Profile:  # Any: as in __call__
        """Run in the simulator and return the profile, line by line; without arguments on arrays of zeros."""
        launcher, values = self._launch(args or self.specs())
        return launcher.analyze(*values)

    def specs(self) -> tuple[Any, ...]:  # Any: what stands for arguments
        """Return placeholders for the parameters: descriptions of arrays, and zeros for numbers."""
        return tuple(
            spec(array.element_type, *_extents(array))
            if array.rank
            else _number(array, _ANY if array.stands_for else 0)
            for array in self.arguments
        )

    def source(self, arch: str | None = None) -> str:
        """Return the CUDA C++ (HIP C++ for AMD targets), for the plan's target or another arch."""
        return self.lower(arch).source.text

    def sass(self, arch: str | None = None) -> str:
        """Return the machine code as text."""
        return self._launcher((1, 1, 1)).sass(*self._stand_ins(), arch=self._arch(arch))

    def ptx(self, arch: str | None = None) -> str:
        """Return the PTX."""
        return self._launcher((1, 1, 1)).ptx(*self._stand_ins(), arch=self._arch(arch))

    def resources(self, arch: str | None = None) -> Any:  # Any: what the compiler reports
        """Return registers, spills and shared memory, as the compiler reports them."""
        return self._launcher((1, 1, 1)).resources(*self._stand_ins(), arch=self._arch(arch))

    def lower(self, arch: str | None = None) -> Lowered:
        """Return the kernel's IR after all passes, and what is generated from it."""
        return self._launcher((1, 1, 1)).lower(*self._stand_ins(), arch=self._arch(arch))

    def report(self) -> Report:
        """Return counts from the kernel's IR."""
        sizes = bool(sizes_of(self.plan))
        try:
            resources = self.resources()
        except CompileError:
            resources = None  # without a compiler here
        operands = Operands(self.plan.tensorization, self.roles, self.k_indices)
        return report_of(self.lower(), operands, None if sizes else self.grid, self.block, resources)

    def _arch(self, arch: str | None) -> str:
        return self.plan.target.arch.name if arch is None else arch

    def _stand_ins(self) -> tuple[Any, ...]:  # Any: descriptions of arrays, and numbers
        blocks = 1 if sizes_of(self.plan) else math.prod(self.grid)
        memory = (spec(x.cache.element_type, (x.elements * blocks,), (1,)) for x in self.cache_memory)
        beside = (spec(a.element_type, *_extents(a)) for a in (*self.constants, *self.scratch))
        return (*self.specs(), *beside, *memory)

    def _launcher(self, grid: tuple[int, int, int]) -> Launcher:
        launcher = self._launchers.get(grid)
        if launcher is None:
            launcher = self._launchers[grid] = self.kernel[grid, self.block]
        return launcher

    def _launch(self, args: tuple[Any, ...]) -> tuple[Launcher, tuple[Any, ...]]:
        described, numbers = self._described(args)
        sizes = self._sizes(described, numbers)
        grid = self.plan.grid(sizes)
        values = [
            _number(a, x) if not a.rank else _one_element(x) if a.is_number else x
            for x, a in zip(args, self.arguments, strict=True)
        ]
        device: Device = next((info.device for info in described.values()), "cpu")
        like = next((x for x, a in zip(args, self.arguments, strict=True) if a.rank), None)
        scratch = (allocate(array, _shape(array, sizes), like, device) for array in self.scratch)
        blocks = math.prod(grid)
        memory = (memory_for(x.cache.element_type, x.elements * blocks, like, device) for x in self.cache_memory)
        return self._launcher(grid), (*values, *self._constants_on(device, like), *scratch, *memory)

    def _described(self, args: tuple[Any, ...]) -> tuple[dict[Array, ArrayInfo], dict[Dimension, int]]:
        """Return what each array argument is, and the sizes among the numbers.

        Raises `ArgumentError` for what does not fit its declaration.
        """
        if len(args) != len(self.parameters):
            names = ", ".join(array.name for array in self.arguments)
            raise ArgumentError(f"kernel {self.name!r} takes ({names}), got {len(args)} arguments")
        described: dict[Array, ArrayInfo] = {}
        numbers: dict[Dimension, int] = {}
        for array, value in zip(self.arguments, args, strict=True):
            if array.stands_for is not None:
                numbers[array.stands_for] = _size(array, value)
            elif array.rank:
                value = _one_element(value) if array.is_number else value
                info = getattr(value, "info", None) or describe(value)
                if not isinstance(info, ArrayInfo):
                    raise ArgumentError(f"argument {array.name!r} is a {type(value).__name__}, and an array is needed")
                described[array] = info
        sizes = self._sizes(described, numbers)
        for array, info in described.items():
            _check(array, info, sizes)
        for condition in self.conditions:
            condition.check(sizes, self.name)
        return described, numbers

    def _sizes(self, described: Mapping[Array, ArrayInfo], numbers: Mapping[Dimension, int]) -> dict[Dimension, int]:
        sizes: dict[Dimension, int] = {}
        for array, info in described.items():
            for extent, given in zip(array.shape, info.shape, strict=False):
                if isinstance(extent, Derived):
                    continue  # it follows from others
                if isinstance(extent, Dimension) and sizes.setdefault(extent, given) != given:
                    raise ArgumentError(
                        f"argument {array.name!r} has shape {info.shape}, and {extent} is {sizes[extent]} by another "
                        "array"
                    )
        for size, value in numbers.items():
            if sizes.setdefault(size, value) != value:
                raise ArgumentError(f"argument {size.name!r} is {value}, and by an array it is {sizes[size]}")
        for size in sizes_of(self.plan):
            if isinstance(size, Derived):
                sizes[size] = size.value(sizes)
        return sizes

    def _constants_on(self, device: Device, like: Any) -> tuple[Any, ...]:  # Any: an array of any library
        """Return the CONST arrays where the arguments live; they are brought there once."""
        if not self.constants:
            return ()
        if device not in self._placed:
            self._placed[device] = tuple(bring(array, like, device) for array in self.constants)
        return self._placed[device]

    def __repr__(self) -> str:
        return f"<scheduled kernel {self.name}({', '.join(array.name for array in self.arguments)})>"


def _named(name: str, place: SourceLocation | None, body: Callable[..., None]) -> types.FunctionType:
    """Return a function of another name that calls a body, and stands where the user's logic does."""
    call = ast.parse("lambda *values: body(*values)", mode="eval")
    if place is not None:
        where = {"lineno": place.line, "end_lineno": place.line}
        if place.column is not None and place.end_column is not None:
            where |= {"col_offset": place.column, "end_col_offset": place.end_column}
        for node in ast.walk(call):
            vars(node).update((key, value) for key, value in where.items() if hasattr(node, key))
    build: types.FunctionType = eval(compile(call, __file__ if place is None else place.file, "eval"), {"body": body})
    build.__code__ = build.__code__.replace(co_name=name)
    build.__name__ = build.__qualname__ = name
    return build


def _number(array: Array, value: Any) -> Any:  # Any: a number of any library; a NumPy number
    """Return an argument for an array without modes in the type that was declared."""
    number = np.asarray(value) if isinstance(value, (bool, int, float, np.generic, np.ndarray)) else None
    if number is None or number.shape != ():
        raise ArgumentError(
            f"argument {array.name!r} is a {type(value).__name__}, and a number is needed",
            help="pass a Python or NumPy number",
        )
    try:
        return array.element_type.numpy.type(number.item())
    except OverflowError:
        raise ArgumentError(
            f"argument {array.name!r} is {number.item()}, and {array.element_type} does not hold it"
        ) from None


def _size(array: Array, value: Any) -> int:  # Any: a number of any library
    """Return an argument that is a size. Raises `ArgumentError` for what is not a whole number from 0."""
    number = _number(array, value)
    if number != np.asarray(value) or number < 0:
        raise ArgumentError(f"argument {array.name!r} is {value}, and a size is a whole number from 0")
    return int(number)


def _one_element(value: Any) -> Any:  # Any: an array of any library
    """Return the argument for a number that is written as an array of one mode."""
    return value.reshape(1) if getattr(value, "shape", None) == () and hasattr(value, "reshape") else value


def _shape(array: Array, sizes: Mapping[Dimension, int]) -> tuple[int, ...]:
    return tuple(value_of(extent, sizes) if isinstance(extent, Dimension) else extent for extent in array.shape)


def _extents(array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a shape and strides that an argument may have: `_ANY` for each size that only the launch knows."""
    shape = tuple(extent if isinstance(extent, int) else _ANY for extent in array.shape)
    return shape, strides_for(array, shape)


def strides_for(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an array's strides for known extents."""
    if all(step is not None for step in array.strides):
        return array.strides
    steps, step = [0] * len(shape), 1
    first_major = array.layout is Array.Layout.FIRST_MAJOR
    for mode in reversed(range(len(shape))) if first_major else range(len(shape)):
        steps[mode] = step
        step *= shape[mode]
    return tuple(steps)


def _check(array: Array, info: ArrayInfo, sizes: Mapping[Dimension, int]) -> None:
    if len(info.shape) != array.rank:
        raise ArgumentError(f"argument {array.name!r} has shape {info.shape}, and {array} was declared")
    shape = _shape(array, sizes)
    strides = strides_for(array, shape)
    same = 0 in shape or all(a == b or n == 1 for a, b, n in zip(info.strides, strides, shape, strict=True))
    if info.shape != shape or not same:
        raise ArgumentError(
            f"argument {array.name!r} has shape {tuple(info.shape)} and strides {tuple(info.strides)}; "
            f"declared are shape {shape} and strides {strides}",
            help="pass such an array, or declare its layout: Array(..., layout=strides)",
        )
    if info.dtype is not array.element_type:
        raise ArgumentError(f"argument {array.name!r} is of {info.dtype}, and {array.element_type} was declared")
