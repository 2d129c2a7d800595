"""Functions of a package: kernels with what a caller outside of Python has to know of them."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilewright.arch import VECTOR_BYTES
from tilewright.backends.cpp.names import KEYWORDS
from tilewright.dtypes import DType
from tilewright.errors import CompileError, ScheduleError
from tilewright.ir.core import Buffer
from tilewright.pickling import without_caches
from tilewright.runtime.specs import spec
from tilewright.schedule.affine import Affine, Dimension, Quotient, Symbol, recording
from tilewright.schedule.arrays import Array, ArrayLayout
from tilewright.schedule.calls import record_call
from tilewright.schedule.naming import calling_frame
from tilewright.schedule.scheduled import CacheMemory, ScheduledKernel, strides_for
from tilewright.schedule.views import Computed, Derived
from tilewright.trace.tracer import locate

if TYPE_CHECKING:
    from tilewright.backends.cpp.generate import DeviceSource
    from tilewright.compile import Lowered
    from tilewright.runtime.nvrtc import CompiledModule

# An extent for each size that only the launch knows while the kernel is compiled. It is odd, so that nothing is
# assumed of what divides the true one.
_ANY_EXTENT = 61
C_WORDS = KEYWORDS | {"restrict", "main"}  # what C and C++ have taken
# Further names that a header may not give to what a user named: macros and types of stddef.h and stdint.h, macros of
# compilers, what C and C++ keep for themselves, and what the header defines for each function and of the driver.
_C_FAMILIES = re.compile(
    r"_[A-Z_]\w*|NULL|offsetof|asm|typeof|linux|unix|i386|nullptr|u?int\w*_t|(size|ssize|ptrdiff|wchar|wint|max_align)_t"
    r"|U?INT\w*_(MIN|MAX|C|WIDTH)|(SIZE|PTRDIFF|SIG_ATOMIC|WCHAR|WINT|INTMAX|UINTMAX|INTPTR|UINTPTR)_\w+"
    r"|\w+_(ENTRY|BLOCK_[XYZ]|GRID_[XYZ]|SHARED_BYTES|ALIGNMENT|PARAMETERS|LAUNCH|grid_[xyz]|parameters|launch)"
    r"|TILEWRIGHT_\w+|CUDA_VERSION|CU(function|stream)\w*|cuLaunchKernel"
)
# What the functions of a header call their own parameters.
_HEADER_WORDS = frozenset(("function", "stream", "arguments", "parameters"))
ALIGNMENT = VECTOR_BYTES  # of each array that a packaged function is given


@dataclass(frozen=True)
class PackagedFunction:
    """What `Package.add` returns: a kernel under the name that it has in the package.

    Calling it launches the kernel, as `plan.build()`'s: NumPy arrays run in the simulator. `parameters` are the values
    of the plan's parameters, by name.
    """

    name: str
    base_name: str
    kernel: ScheduledKernel
    parameters: Mapping[str, Any]  # Any: whatever was chosen

    def __getstate__(self) -> dict[str, Any]:  # Any: attributes
        return without_caches(self)

    def __call__(self, *args: Any) -> None:  # Any: arrays of any library, and numbers
        """Launch the kernel. In the logic of a nest, compute what it computes at each point: on arrays of the nest."""
        if recording.is_on:
            self._inline(args)
        else:
            self.kernel(*args)

    def _inline(self, args: tuple[Any, ...]) -> None:  # Any: arrays of the nest, and numbers
        plan, location = self.kernel.plan, locate(calling_frame(2))
        if location is not None:  # what called the logic says nothing
            location = replace(location, inlined_at=None)
        if plan.bindings or plan.tensorization is not None:
            what = (
                f"binds {plan.bindings[0].indices[0]} to {plan.bindings[0].unit.name}"
                if plan.bindings
                else "is tensorized"
            )
            raise ScheduleError(
                f"{self.name} {what} and is called by a nest, each of whose threads would run it",
                location=location,
                help="add it without bindings: the plan that calls says what its loops are bound to",
            )
        record_call(self.name, plan.nest, self.arrays, args, location)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of a call, in order."""
        return self.kernel.arguments

    @property
    def is_amd(self) -> bool:
        return self.kernel.plan.target.arch.is_amd

    @cached_property
    def lowered(self) -> Lowered:
        """The kernel after all passes, compiled for whatever sizes the launch brings."""
        arrays = (*self.arrays, *self.kernel.constants, *self.kernel.scratch)
        memory = (spec(x.cache.element_type, (_ANY_EXTENT,), (1,), ALIGNMENT) for x in self.kernel.cache_memory)
        found = self.kernel.kernel[(1, 1, 1), self.kernel.block].lower(
            *map(stand_in, arrays), *memory, arch=self.kernel.plan.target.arch.name
        )
        if found.kernel.tensor_maps:
            raise ScheduleError(
                f"function {self.name} copies by TMA, with tensor maps that the loader of a package does not make",
                location=found.kernel.tensor_maps[0].location,
                help="tma=False for its caches, or call the kernel from Python: plan.build()",
            )
        if found.kernel.requirements:
            first = found.kernel.requirements[0]
            raise ScheduleError(
                f"function {self.name} asks at launch whether {first.message}, which a package cannot",
                location=first.location,
            )
        return found

    @cached_property
    def device_source(self) -> DeviceSource:
        """The kernel's C++, its entry point and dynamic shared memory: CUDA, or HIP for AMD targets."""
        return self.lowered.source

    @cached_property
    def module(self) -> CompiledModule | None:
        """The machine code, None for an AMD target where no compiler for it is installed."""
        try:
            return self.lowered.module
        except CompileError:
            if not self.is_amd:
                raise
            return None

    @cached_property
    def dimensions(self) -> dict[Dimension, str]:
        """The sizes that only the launch knows, with names that are identifiers and differ."""
        names: dict[Dimension, str] = {}
        for array in self.arrays:
            for extent in (*array.shape, array.stands_for):
                if isinstance(extent, Dimension) and not isinstance(extent, Derived) and extent not in names:
                    plain = c_name(extent.name)
                    taken = {*names.values(), *_HEADER_WORDS}
                    names[extent] = next(
                        name for n in range(len(taken) + 1) if (name := f"{plain}_{n}" if n else plain) not in taken
                    )
        return names

    @property
    def grid(self) -> tuple[int | str, int | str, int | str]:
        """The blocks along each axis: numbers, or expressions of the sizes with + - * and //."""
        grid: list[int | str] = [1, 1, 1]
        blocks = self.kernel.plan.blocks
        if blocks is not None and self.dimensions:
            raise ScheduleError(
                f"function {self.name}: the least of {blocks} and of blocks that only the launch knows is not computed "
                "by a caller in C",
                help="leave blocks= out, or call the kernel from Python: plan.build()",
            )
        if blocks is not None:
            return self.kernel.plan.grid({})
        for binding in self.kernel.plan.bindings:
            if binding.kind != "BLOCK":
                continue
            if binding.extent is not None:
                grid[binding.axis] = binding.extent
                continue
            for loop in binding.loops:
                self._refuse_negative(loop.stop, f"{loop.index} is bound to {binding.unit.name}")
            factors = [
                f"(({self.text(loop.stop)}) + {loop.step - 1}) // {loop.step}"
                if loop.trips is None
                else str(loop.trips)
                for loop in binding.loops
            ]
            grid[binding.axis] = " * ".join(f"({factor})" for factor in factors) if len(factors) > 1 else factors[0]
        return grid[0], grid[1], grid[2]

    def text(self, size: Affine) -> str:
        """Return an expression of sizes with the names that the package has for them."""
        found = ""
        for symbol, factor in sorted(size.terms, key=lambda term: term[1] < 0):
            name = self._term_text(symbol)
            text = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
            found = f"{found or 0} - {text}" if factor < 0 else f"{found} + {text}" if found else text
        if size.constant or not found:
            sign = "-" if size.constant < 0 else "+"
            found = f"{found} {sign} {abs(size.constant)}" if found else str(size.constant)
        return found

    def _term_text(self, symbol: Symbol) -> str:
        if isinstance(symbol, Quotient):
            self._refuse_negative(symbol.value, f"{symbol.name} is in a grid")
            return f"(({self.text(symbol.value)}) // {symbol.divisor})"
        assert isinstance(symbol, Dimension), symbol  # loops end at numbers, sizes and quotients of them
        return self.size_text(symbol)

    def _refuse_negative(self, value: Affine, what: str) -> None:
        """Raise `ScheduleError` for what may be below 0 for sizes from 1, which C would round up."""
        least, _ = value.bounds(lambda symbol: (1, None))
        if least is None or least < 0:
            raise ScheduleError(
                f"function {self.name}: {what}, and {value} may be below 0 where a caller in C computes it",
                help="bind loops that run to sizes, or call the kernel from Python: plan.build()",
            )

    def size_text(self, size: Dimension) -> str:
        """Return a size with the names that the package has: of one that follows from others, an expression."""
        if not isinstance(size, Derived):
            return self.dimensions[size]
        if isinstance(size, Computed):
            return f"({self.text(size.expression)})"
        above, below = (
            " * ".join(self.size_text(x) if isinstance(x, Dimension) else str(x) for x in factors) or "1"
            for factors in (size.factors, size.divisors)
        )
        return f"(({above}) // ({below}))" if size.divisors else f"({above})"

    @property
    def held(self) -> tuple[Array | CacheMemory, ...]:
        """What lives as long as a launch: TEMP arrays, and memory of caches."""
        return *self.kernel.scratch, *self.kernel.cache_memory

    def extents(self, array: Array | CacheMemory) -> list[int | str]:
        """Return an array's shape: numbers, and names of sizes."""
        if isinstance(array, CacheMemory):
            blocks = [extent for extent in self.grid if isinstance(extent, str)]
            whole = array.elements * math.prod(extent for extent in self.grid if isinstance(extent, int))
            return [" * ".join([str(whole), *(f"({extent})" for extent in blocks)]) if blocks else whole]
        return [self.size_text(extent) if isinstance(extent, Dimension) else extent for extent in array.shape]

    def strides(self, array: Array | CacheMemory) -> list[int | str]:
        """Return an array's strides in elements: numbers, or products of sizes."""
        if isinstance(array, CacheMemory):
            return [1]
        if all(step is not None for step in array.strides):
            return list(array.strides)
        extents = self.extents(array)
        modes = list(range(array.rank))
        if array.layout is ArrayLayout.FIRST_MAJOR:
            modes.reverse()
        found: list[int | str] = [1] * array.rank
        for mode, inner in zip(modes[1:], modes, strict=False):
            step, extent = found[inner], extents[inner]
            if isinstance(step, int) and isinstance(extent, int):
                found[mode] = step * extent
            else:
                found[mode] = str(extent) if step == 1 else str(step) if extent == 1 else f"{step} * {extent}"
        return found

    @property
    def machine_parameters(self) -> list[dict[str, Any]]:  # Any: plain data
        """The parameters of the machine code in order: which part of which argument each is, and its type."""
        found: list[dict[str, Any]] = []
        for parameter in self.lowered.kernel.parameters:
            target, part = parameter.target, parameter.part
            element = target.dtype if isinstance(target, Buffer) else target.type
            assert isinstance(element, DType), parameter
            entry: dict[str, Any] = {"argument": parameter.argument, "type": element.name}
            if isinstance(part, tuple):
                entry |= {"part": part[0], "mode": part[1]}
            else:
                entry["part"] = part
            found.append(entry)
        return found


def constant_file(package: str, function: str, number: int) -> str:
    """Return the name of the file of a CONST array's data.

    It goes by the array's number: names of arrays are the user's, and may be those of other files, or of none.
    """
    return f"{package}.{function}.constant{number}.bin"


def c_name(name: str) -> str:
    """Return a name as C and C++ take it: itself where they do."""
    if not (name.isidentifier() and name.isascii()):
        return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in f"n_{name}")
    if name in C_WORDS or _C_FAMILIES.fullmatch(name):
        return f"n{name}_" if name.startswith("_") else f"{name}_"
    return name


def stand_in(array: Array) -> Any:  # Any: a description of an array, or a number
    """Return what a packaged kernel is compiled for: an array of which only what was declared is known."""
    if not array.rank:
        return array.element_type(0)
    shape = tuple(extent if isinstance(extent, int) else _ANY_EXTENT for extent in array.shape)
    return spec(array.element_type, shape, strides_for(array, shape), ALIGNMENT)


def plain(value: Any) -> Any:  # Any: any value; what JSON and TOML can hold
    """Return a parameter's value as plain data; what these cannot hold as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return str(value)
