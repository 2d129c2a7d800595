"""A kernel of a package: its arguments, and for each GPU the machine code with all that its launch computes."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias, Union  # Any: arguments of a kernel

from tilewright.admission import attributes_of
from tilewright.ahead import _loader
from tilewright.ahead.sizes import Language, Printer, Size, SizedArray, as_size
from tilewright.arch import Arch
from tilewright.backends.cpp.names import KEYWORDS
from tilewright.compile import Lowered
from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.ir.core import Buffer, Parameter, TensorMap, Value
from tilewright.runtime.arrays import ArrayInfo, ArraySpec, Static, describe
from tilewright.runtime.attributes import Attribute
from tilewright.runtime.launch import computed_grid
from tilewright.runtime.numbers import number_type
from tilewright.runtime.plan import named_leaves

Extents: TypeAlias = "tuple[Size, Size, Size]"

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
# What the launchers call their own variables, types and functions, and what C's headers take.
_OWN = """
    stream function status parameters maps str floor_quotient floor_remainder array mode machine_code code codes choose
    chosen device driver blocks shared_bytes memory config attributes launched load failed refuse check launch
    ANY REFUSED restrict main NULL linux unix errno typeof EOF BUFSIZ IN OUT near far small interface
"""
# Taken in the Python module, where functions stand beside the code that calls them.
_LOADER = frozenset(keyword.kwlist) | frozenset(vars(_loader))
_NAMES = re.compile(r"p\d+|u?int\d+_t|(check|launch|encode|find)_\w+")  # of the launchers
_LIMITS = re.compile(r"(U?INT\w*|SIZE|PTRDIFF|WCHAR|WINT|SIG_ATOMIC)_(MAX|MIN|WIDTH|C)|(SEEK|RTLD|TMP)_\w+")  # macros
_LIBRARIES = frozenset(("torch", "numpy", "cupy", "jax", "tilewright"))  # modules that a package would hide
_TAKEN = KEYWORDS | _LOADER | set(_OWN.split())


class Launchable(Protocol):
    """A kernel with a grid and a block: `kernel[grid, block]`."""

    kernel: Any  # Any: see `launch.Kernel`
    grid: Any
    block: Any

    def lower(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Lowered:
        """Return the kernel's IR for arguments and a target."""


@dataclass(frozen=True)
class ExportedArray:
    """An array argument, and what the kernel takes for granted of it: of each mode the extent, or what divides it.

    `extents` and `strides` hold a number that is compiled in, and None where only the launch knows; `divisors` what the
    unknown ones are multiples of, extents first. The pointer is a multiple of `alignment` bytes. An array that is not
    `wide` spans less than 2**31 elements.
    """

    name: str  # as C and Python take it
    path: str  # as the kernel has it: "params.weight"
    dtype: DType
    extents: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    divisors: tuple[tuple[int, ...], tuple[int, ...]]
    alignment: int
    wide: bool
    written: bool
    read: bool

    @property
    def rank(self) -> int:
        """The number of modes."""
        return len(self.extents)


@dataclass(frozen=True)
class ExportedNumber:
    """A number that each launch gives."""

    name: str
    path: str
    dtype: DType


Exported = Union[ExportedArray, ExportedNumber]


@dataclass(frozen=True)
class Variant:
    """A kernel compiled for one target, with what a launch computes."""

    lowered: Lowered
    grid: Extents
    block: tuple[int, int, int]
    arguments: tuple[Exported, ...]

    @property
    def arch(self) -> Arch:
        """The target."""
        return self.lowered.arch

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that the machine code is for."""
        number = int(re.sub(r"\D", "", self.arch.name))
        return number // 10, number % 10

    @property
    def is_exact(self) -> bool:
        """Whether the code runs on this compute capability only, and not on those of a later minor version."""
        return not self.arch.name[-1].isdigit()

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """What the driver is told of each launch."""
        return attributes_of(self.lowered.kernel)

    @property
    def slots(self) -> tuple[Parameter, ...]:
        """The parameters of the machine code in order; behind them come its tensor maps."""
        return self.lowered.kernel.parameters

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps, which the host encodes."""
        return self.lowered.kernel.tensor_maps

    def printer(self, language: Language) -> Printer:
        """Return what prints values of the launch in a language."""
        known: dict[Value, str] = {}
        for parameter in (*self.lowered.host_parameters, *self.lowered.kernel.parameters):
            if isinstance(parameter.target, Value):
                known[parameter.target] = self.leaf(parameter, language)
        return Printer(language, known)

    def leaf(self, parameter: Parameter, language: Language) -> str:
        """Return what a parameter is given: a number, an extent or a stride."""
        name = self.argument(parameter.argument).name
        if not isinstance(parameter.part, tuple):
            return name
        part, mode = parameter.part
        return (Size.extent if part == "shape" else Size.stride)(name, mode).text(language)

    def argument(self, path: str) -> Exported:
        """Return the argument that the kernel calls so."""
        return next(x for x in self.arguments if x.path == path)

    def array_of(self, buffer: Buffer) -> ExportedArray:
        """Return the array that a buffer is."""
        path = next(p.argument for p in self.slots if p.target is buffer.root)
        found = self.argument(path)
        assert isinstance(found, ExportedArray), path
        return found


@dataclass(frozen=True)
class ExportedFunction:
    """What `Package.add` returns: a kernel under the name that it has in a package, compiled for several GPUs."""

    name: str
    arguments: tuple[Exported, ...]
    variants: tuple[Variant, ...]
    doc: str = ""

    @cached_property
    def arrays(self) -> tuple[ExportedArray, ...]:
        """The arguments that are arrays."""
        return tuple(x for x in self.arguments if isinstance(x, ExportedArray))

    @staticmethod
    def of(launcher: Launchable, args: Sequence[Any], name: str, archs: Sequence[str]) -> ExportedFunction:
        """Compile `kernel[grid, block]` for arguments, or `tw.spec`s in their place, and targets.

        Raises `ArgumentError` for arguments and targets that cannot be exported, `CompileError` where the compiler
        refuses the kernel.
        """
        kernel = launcher.kernel
        if kernel.takes_any_number:
            launcher = kernel.numbered_for(args)[launcher.grid, launcher.block]
            kernel = launcher.kernel
        values = kernel.complete(tuple(args), {})
        given = list(zip(kernel.parameters, values, strict=True))
        leaves: dict[str, Any] = {}
        for parameter, value in given:
            if not parameter.is_constexpr and value is not None:
                leaves.update(named_leaves(parameter.name, value))
        lowered = {arch: launcher.lower(*args, arch=arch) for arch in archs}
        for arch, one in lowered.items():
            if one.arch.is_amd:
                raise ArgumentError(f"{arch} is a target of AMD, and exported kernels are launched on NVIDIA's GPUs")
            _refuse_what_only_python_does(name, one)
        arguments = _arguments(leaves, list(lowered.values()), {p.name: p.dtype for p in kernel.parameters})
        block = kernel.variant(launcher.block).block
        grid = _grid(launcher.grid, [_seen(p, v, arguments) for p, v in given][kernel.bound :])
        variants = tuple(Variant(one, grid, block, arguments) for one in lowered.values())
        for variant in variants:
            _ = variant.lowered.module  # compiled now, so that nothing is written where that fails
        return ExportedFunction(name, arguments, variants, (kernel.__doc__ or "").strip())


def check_name(what: str, name: object) -> str:
    """Return a name that C and Python take. Raises `ArgumentError` for any other."""
    # In C the package's name stands before that of a function, and its files are Python modules.
    functions = _LOADER | vars(builtins).keys() | {"array", "error", "REFUSED"}  # the last are in each header
    taken = _TAKEN | sys.stdlib_module_names | _LIBRARIES if what == "package" else functions
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or name in taken:
        raise ArgumentError(
            f"{name!r} is not a name for a {what}",
            help="take up to 100 letters, digits and _, a letter first, and no word that C++, Python or a loader has",
        )
    return name


def _arguments(
    leaves: Mapping[str, Any], lowered: Sequence[Lowered], declared: Mapping[str, DType | None]
) -> tuple[Exported, ...]:
    written = frozenset().union(*(one.written for one in lowered))
    read = frozenset().union(*(one.read for one in lowered))
    found: list[Exported] = []
    for path, value in leaves.items():
        name = _plain(path, {x.name for x in found})
        info = _info(value)
        if info is not None:
            found.append(_array(name, path, info, path in written, path in read))
            continue
        number = number_type(path, value, declared.get(path))
        if number is not None:
            found.append(ExportedNumber(name, path, number.of(path, value)))
    return tuple(found)


def _array(name: str, path: str, info: ArrayInfo, written: bool, read: bool) -> ExportedArray:
    kind = info.specialisation
    extents: tuple[int | None, ...] = (None,) * info.rank
    strides = tuple(stride.value for stride in kind.strides)
    if info.static:
        extents, strides = info.shape, info.strides
    steps = tuple(1 if stride.value is not None else stride.divisor for stride in kind.strides)
    return ExportedArray(
        name, path, kind.dtype, extents, strides, (kind.extents, steps), kind.alignment, kind.wide, written, read
    )


def _info(value: Any) -> ArrayInfo | None:
    if isinstance(value, Static):
        info = _info(value.array)
        return None if info is None else replace(info, static=True)
    return value.info if isinstance(value, ArraySpec) else describe(value)


def _plain(path: str, taken: set[str]) -> str:
    """Return a name for an argument: `params.weight` is params_weight."""
    name = re.sub(r"\W+", "_", path, flags=re.ASCII).strip("_") or "argument"
    if name in _TAKEN or not name[0].isalpha() or _NAMES.fullmatch(name) or _LIMITS.fullmatch(name):
        name = f"the_{name}"
    while name in taken:
        name += "_"
    return name


def _seen(parameter: Any, value: Any, arguments: Sequence[Exported]) -> Any:
    """Return what the grid's function sees of an argument."""
    if parameter.is_constexpr or value is None:
        return value
    by_path = {x.path: x for x in arguments}
    found = by_path.get(parameter.name)
    if isinstance(found, ExportedNumber):
        return Size("fraction" if found.dtype.is_float else "number", (found.name,))
    if isinstance(found, ExportedArray):
        modes = range(found.rank)
        extents = tuple(_or(found.extents[n], Size.extent(found.name, n)) for n in modes)
        strides = tuple(_or(found.strides[n], Size.stride(found.name, n)) for n in modes)
        return SizedArray(found.dtype, extents, strides)
    return value  # a structure: its own arrays have shapes that the launch need not have


def _or(known: int | None, size: Size) -> Size | int:
    return size if known is None else known


def _grid(grid: Any, seen: Sequence[Any]) -> Extents:
    found = computed_grid(grid, seen) if callable(grid) else grid
    extents = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if not 1 <= len(extents) <= 3:
        raise ArgumentError(f"a grid has 1 to 3 extents, got {len(extents)}")
    sizes = [as_size(extent) for extent in (*extents, 1, 1)]
    for size in sizes:
        if size.kind == "constant" and size.operands[0] < 0:
            raise ArgumentError(f"a grid's extent is at least 0, got {size.operands[0]}")
    x, y, z = sizes[:3]
    return x, y, z


def _refuse_what_only_python_does(name: str, lowered: Lowered) -> None:
    kernel = lowered.kernel
    if kernel.cooperative:
        raise ArgumentError(
            f"{name} needs all its blocks at once, and the launcher of a package does not count how many fit",
            help="launch it from Python",
        )
    if lowered.takes_addresses:
        raise ArgumentError(
            f"{name} reaches arrays by addresses, which the launcher of a package does not look into",
            help="launch it from Python, or pass the arrays themselves",
        )
    for map in kernel.tensor_maps:
        if map.is_pattern or map.corners:
            raise ArgumentError(
                f"{name} copies pixels (im2col) or makes tensor maps on the device, and the launcher of a package "
                "makes maps of boxes of arrays only",
                location=map.location,
                help="launch it from Python",
            )
