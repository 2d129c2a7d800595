"""Kernels as users hold them: decorated functions that are launched, printed and prepared.

    kernel[grid, block](a, b, layout)

The first call with arguments of a kind traces and compiles; later calls look the result up and launch. Where the
arrays live decides the backend: NumPy arrays run on the simulator, CUDA arrays on their GPU.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tilewright.arch import Arch
from tilewright.compile import Lowered, lower
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError, LanguageError
from tilewright.lang.captures import Captures
from tilewright.lang.parameters import ArgumentType, ArrayType, ConstantValue, Dynamic, ScalarType
from tilewright.lang.rewrite import rewrite
from tilewright.lang.trace import constexpr
from tilewright.runtime.arrays import ArrayInfo, Static, describe
from tilewright.runtime.launch import launch_config
from tilewright.runtime.plan import ArgumentPlan, Constexpr, Scalar, Signature, scalar_type
from tilewright.specialise import Specialisation, specialise

Extent = Any  # an int, a tuple of up to three, or (for the grid) a function of the arguments


class Kernel:
    """A kernel: made by `@tw.kernel`, launched by `kernel[grid, block](*args)`.

    `grid` counts blocks and `block` threads, each an int or a tuple of up to three; `grid` may be a function of the
    call's arguments. Raises `LanguageError` when the function's source cannot be read.
    """

    def __init__(self, function: types.FunctionType, options: Options | None = None, bound: tuple[Any, ...] = ()) -> None:
        if not isinstance(function, types.FunctionType):
            raise LanguageError(f"@tw.kernel takes a function, got {type(function).__name__}")
        self.function = function
        self.options = options or Options()
        self.__wrapped__ = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__signature__ = inspect.signature(function)
        self._bound = bound
        self._parameters = _parameters(self.__signature__, len(bound))
        self._variants: dict[Any, _Variant] = {}
        self._captures = Captures(function)
        self._methods: dict[int, Kernel] = {}

    @functools.cached_property
    def rewritten(self) -> types.FunctionType:
        """The function with its control flow made traceable."""
        return rewrite(self.function)

    def __getitem__(self, configuration: tuple[Extent, Extent]) -> Launcher:
        """Return the kernel with a grid and a block: `kernel[grid, block]`."""
        try:
            grid, block = configuration
        except (TypeError, ValueError):
            raise ArgumentError(
                f"kernel {self.__name__!r} is launched as kernel[grid, block](...), got kernel[{configuration!r}]"
            ) from None
        return Launcher(self, grid, block)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise ArgumentError(
            f"kernel {self.__name__!r} was called without a grid and a block",
            help=f"write {self.__name__}[grid, block](...)",
        )

    def __get__(self, instance: object, owner: type | None = None) -> Kernel:
        """Bind a kernel that is a method: `self` is then a compile-time argument."""
        if instance is None:
            return self
        known = self._methods.get(id(instance))
        if known is None or known._bound[0] is not instance:
            known = self._methods[id(instance)] = Kernel(self.function, self.options, (instance,))
        return known

    def configure(self, **options: Any) -> Kernel:
        """Return the kernel with launch options: `cluster=(x, y, z)`, `smem=bytes`, `stream=handle`.

        `smem` adds dynamic shared memory to what the kernel declares, `stream` is a CUDA stream handle or an object
        with `cuda_stream` or `ptr`; without it a launch goes to the arrays' current stream.
        """
        try:
            return Kernel(self.function, replace(self.options, **options), self._bound)
        except TypeError:
            raise ArgumentError(f"configure takes cluster, smem and stream, got {', '.join(options)}") from None

    def source(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the CUDA C++ for arguments: arrays, or `tw.spec(dtype, shape)` in their place. No GPU is needed."""
        return self.lower(*args, arch=arch, **kwargs).cuda.text

    def ptx(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the PTX for arguments, compiled by NVRTC. No GPU is needed."""
        from tilewright.runtime.nvrtc import compile_ptx

        lowered = self.lower(*args, arch=arch, **kwargs)
        cuda = lowered.cuda
        return compile_ptx(cuda.text, name=cuda.name, arch=lowered.arch.name, line_map=cuda.line_map)

    def sass(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the machine code for arguments, as nvdisasm prints it. No GPU is needed."""
        from tilewright.runtime.disassemble import disassemble

        return disassemble(self.lower(*args, arch=arch, **kwargs).module.cubin)

    def resources(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> Any:
        """Return registers, spills, shared memory and more, as the compiler reports them. No GPU is needed."""
        return self.lower(*args, arch=arch, **kwargs).module.resources

    def lower(self, *args: Any, arch: str = "sm_90a", block: Extent = None, **kwargs: Any) -> Lowered:
        """Return the kernel's IR for arguments, after all passes, and what is made of it."""
        shape = None if block is None else launch_config(1, block).block
        values = self._complete(args, kwargs)
        types = {p.name: _argument_type(p, value) for p, value in zip(self._parameters, values, strict=True)}
        return lower(self.rewritten, types, arch=Arch.parse(arch), block=shape)

    def _complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order, defaults filled in."""
        try:
            bound = self.__signature__.bind(*self._bound, *args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"kernel {self.__name__!r}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def variant(self, block: Extent) -> _Variant:
        """Return what was compiled for a block shape."""
        if self._captures.changed():
            self._variants.clear()
        try:
            found = self._variants.get(block)
        except TypeError:  # a list
            block = tuple(block)
            found = self._variants.get(block)
        if found is None:
            found = self._variants[block] = _Variant(self, launch_config(1, block).block)
        return found

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"


@dataclass(frozen=True)
class Options:
    """Launch options beside grid and block."""

    cluster: tuple[int, ...] | int | None = None
    smem: int = 0
    stream: Any = None  # Any: a handle, or a framework's stream object


@dataclass(frozen=True)
class _Parameter:
    name: str
    is_constexpr: bool


def _parameters(signature: inspect.Signature, bound: int) -> tuple[_Parameter, ...]:
    result = []
    for n, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise LanguageError(f"a kernel's parameters have names; *{parameter.name} does not")
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else ""
        compile_time = annotation is constexpr or text.rpartition(".")[2] == "constexpr" or n < bound
        result.append(_Parameter(parameter.name, compile_time))
    return tuple(result)


class _Variant:
    """A kernel for one block shape: a signature with its argument plans."""

    def __init__(self, kernel: Kernel, block: tuple[int, int, int]) -> None:
        self.kernel = kernel
        self.block = block
        names = [p.name for p in kernel._parameters]
        self.signature = Signature(names, [p.name for p in kernel._parameters if p.is_constexpr])

    def specialise(self, plan: ArgumentPlan, key: Any, args: tuple[Any, ...]) -> Specialisation:
        """Trace and compile for arguments of a new kind, and remember it."""
        described = plan.describe(args)
        parameters = self.kernel._parameters
        arguments = {p.name: _described_type(d) for p, d in zip(parameters, described, strict=True)}

        def build(arch: Arch) -> Lowered:
            return lower(self.kernel.rewritten, arguments, arch=arch, block=self.block)

        names = [p.name for p in parameters]
        found = specialise(build, names, described, plan.starts, self.kernel.options.smem)
        plan.kernels[key] = found
        return found


class Launcher:
    """A kernel with a grid and a block."""

    __slots__ = ("block", "grid", "kernel")

    def __init__(self, kernel: Kernel, grid: Extent, block: Extent) -> None:
        self.kernel = kernel
        self.grid = grid
        self.block = block

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch. Raises `ArgumentError` for arguments the kernel cannot take, before anything is written."""
        kernel = self.kernel
        variant = kernel.variant(self.block)
        if kwargs or kernel._bound or len(args) != len(kernel._parameters):
            args = kernel._complete(args, kwargs)
        plan, reading = variant.signature.read(args)
        specialisation = plan.kernels.get(reading[0])
        if specialisation is None:
            specialisation = variant.specialise(plan, reading[0], args)
        grid = self.grid(*args[len(kernel._bound) :]) if callable(self.grid) else self.grid
        options = kernel.options
        config = launch_config(grid, self.block, specialisation.dynamic_shared_bytes, options.cluster)
        specialisation.run(config, plan, reading, args, options.stream)

    def prepare(self, *args: Any, **kwargs: Any) -> Callable[[], None]:
        """Return the launch with these arguments packed: calling it costs the driver's time and little more.

        The arrays are kept alive. On the simulator the call runs the kernel again.
        """
        kernel = self.kernel
        variant = kernel.variant(self.block)
        args = kernel._complete(args, kwargs)
        plan, reading = variant.signature.read(args)
        specialisation = plan.kernels.get(reading[0]) or variant.specialise(plan, reading[0], args)
        grid = self.grid(*args[len(kernel._bound) :]) if callable(self.grid) else self.grid
        config = launch_config(grid, self.block, specialisation.dynamic_shared_bytes, kernel.options.cluster)
        return specialisation.prepare(config, plan, reading, args, kernel.options.stream)

    def source(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the CUDA C++, as `Kernel.source`, for this block."""
        return self.kernel.source(*args, arch=arch, block=self.block, **kwargs)

    def ptx(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the PTX, as `Kernel.ptx`, for this block."""
        return self.kernel.ptx(*args, arch=arch, block=self.block, **kwargs)

    def sass(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> str:
        """Return the machine code, as `Kernel.sass`, for this block."""
        return self.kernel.sass(*args, arch=arch, block=self.block, **kwargs)

    def resources(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> Any:
        """Return the compiler's resource report, as `Kernel.resources`, for this block."""
        return self.kernel.resources(*args, arch=arch, block=self.block, **kwargs)

    def lower(self, *args: Any, arch: str = "sm_90a", **kwargs: Any) -> Lowered:
        """Return the IR after all passes, as `Kernel.lower`, for this block."""
        return self.kernel.lower(*args, arch=arch, block=self.block, **kwargs)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function: `@tw.kernel`.

    The function runs once for each kind of arguments, to be traced; its loops over `range` and its branches on device
    values become loops and branches of the device. Arrays arrive as tensors with dynamic extents and strides, numbers as
    device scalars, and parameters annotated `tw.constexpr` as they are.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def double(x):
    ...     i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    ...     if i < x.size:
    ...         x[i] = 2 * x[i]
    >>> x = np.arange(5, dtype=np.float32)
    >>> double[1, 32](x)
    >>> x
    array([0., 2., 4., 6., 8.], dtype=float32)
    """
    return Kernel(function)  # type: ignore[arg-type]  # checked there, with an error that says what came


def static(array: object) -> Static:
    """Make an array's whole layout compile-time: extents and strides become Python ints in the kernel.

    Each layout makes a specialisation of its own.
    """
    return Static(array)


@dataclass(frozen=True)
class ArraySpec:
    """Stands for an array where only its kind matters: in `kernel.source(...)` and its like."""

    info: ArrayInfo


def spec(dtype: object, shape: int | tuple[int, ...], stride: tuple[int, ...] | None = None, align: int = 16) -> ArraySpec:
    """Describe an array without having one, for `kernel.source`, `.ptx`, `.sass`, `.resources` and `tw.check`.

    `shape` is a shape, or a rank for arrays of well divisible extents; `stride` is in elements, row-major without one;
    `align` is what the pointer is a multiple of, in bytes.

    Raises `ArgumentError` when shape and stride differ in length or the alignment is no power of two.
    """
    extents = (64,) * shape if isinstance(shape, int) else tuple(shape)
    if align < 1 or align & (align - 1):
        raise ArgumentError(f"tw.spec: align is a power of two in bytes, got {align}")
    if stride is None:
        steps = [1]
        for extent in reversed(extents[1:]):
            steps.insert(0, steps[0] * extent)
        stride = tuple(steps[: len(extents)])
    if len(stride) != len(extents):
        raise ArgumentError(f"tw.spec: shape {extents} and stride {stride} differ in length")
    return ArraySpec(ArrayInfo(align, extents, tuple(stride), as_dtype(dtype), "cpu"))


def _argument_type(parameter: _Parameter, value: Any) -> ArgumentType:
    """Return what a kernel is specialised on for an argument, or for a spec in its place."""
    if parameter.is_constexpr or value is None:
        return ConstantValue(value)
    if isinstance(value, ArraySpec):
        return _array_type(value.info)
    if isinstance(value, Static) and isinstance(value.array, ArraySpec):
        return _array_type(replace(value.array.info, static=True))
    info = describe(value)
    if info is not None:
        return _array_type(info)
    element = scalar_type(value)
    if element is None:
        raise ArgumentError(
            f"argument {parameter.name!r} is a {type(value).__name__}; a kernel takes arrays and numbers",
            help=f"for a compile-time argument write {parameter.name}: tw.constexpr",
        )
    return ScalarType(element)


def _described_type(described: ArrayInfo | Scalar | Constexpr) -> ArgumentType:
    if isinstance(described, ArrayInfo):
        return _array_type(described)
    return ScalarType(described.dtype) if isinstance(described, Scalar) else ConstantValue(described.value)


def _array_type(info: ArrayInfo) -> ArrayType:
    kind = info.specialisation
    if info.static:
        return ArrayType(info.dtype, info.shape, info.strides, kind.alignment, kind.wide)
    stride = tuple(s.value if s.value is not None else Dynamic(s.divisor) for s in kind.strides)
    return ArrayType(info.dtype, tuple(Dynamic(d) for d in kind.extents), stride, kind.alignment, kind.wide)


