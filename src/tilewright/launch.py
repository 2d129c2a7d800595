"""Kernels as users hold them: decorated functions that are launched, printed and prepared.

    kernel[grid, block](a, b, layout)

The first call with arguments of a kind traces and compiles; later calls look the result up and launch. Where the
arrays live decides the backend: NumPy arrays run on the simulator, CUDA arrays on their GPU.
"""

from __future__ import annotations

import inspect
import os
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from weakref import ref

from tilewright.arch import Arch, default_arch
from tilewright.compile import Lowered, lower
from tilewright.errors import ArgumentError, LanguageError
from tilewright.frames import hide_frames, hiding_frames
from tilewright.kernel_code import Code
from tilewright.notebook import KernelShown, LauncherShown
from tilewright.pickling import KernelByName, LauncherByName
from tilewright.runtime import compiled, replays
from tilewright.runtime.launch import LaunchConfig, computed_grid, launch_config
from tilewright.runtime.options import Options, as_int, configured, stream_handle
from tilewright.runtime.plan import ArgumentPlan, Reading, Signature
from tilewright.runtime.recent import Recent
from tilewright.specialise import Ready, Specialisation, argument_type, described_type, specialise
from tilewright.trace.parameters import DeclaredParameter, declared_parameters, variadic
from tilewright.trace.tracer import tracing

if TYPE_CHECKING:
    from tilewright.frontend.captures import Captures
    from tilewright.profile import Profile

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Extent = Any  # an int, a tuple of up to three, or (for the grid) a function of the arguments
_MAX_LAUNCHERS = 512  # of grid and block: those used last are kept, and at most twice as many (see `Recent`)


class Kernel(KernelByName, KernelShown):
    """A kernel: made by `@tw.kernel`, launched by `kernel[grid, block](*args)`.

    `grid` is the number of blocks and `block` the number of threads per block, each an int or a tuple of up to three
    ints; `grid` may be a function of the call's arguments. Raises `LanguageError` for an object that is not a function,
    and at the first trace of a function whose source cannot be read.
    """

    @hiding_frames
    def __init__(
        self,
        function: types.FunctionType,
        options: Options | None = None,
        bound: tuple[Any, ...] = (),
        code: Code | None = None,
        further: int | None = None,
    ) -> None:
        if not isinstance(function, types.FunctionType):
            raise LanguageError(
                f"@tw.kernel takes a function, got {type(function).__name__}",
                help="put @staticmethod or @classmethod above @tw.kernel, not below it"
                if isinstance(function, (staticmethod, classmethod))
                else None,
            )
        self.options: Options = options or Options()
        self.__wrapped__ = function
        self.__name__: str = function.__name__
        self.__qualname__: str = function.__qualname__
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self._code = code or Code(function)
        self.__signature__: inspect.Signature = self._code.signature
        self._bound = bound
        self.bound: int = len(bound)
        # The name of a last parameter such as *operands. Its number of arguments, `further`, differs from call to
        # call: each number makes a kernel of its own, which this one finds.
        self._variadic = variadic(self.__signature__)
        self._further = further
        self._by_number: dict[int, Kernel] = {}
        self._named = sum(p.kind in _POSITIONAL for p in self.__signature__.parameters.values()) - len(bound)
        self.parameters: tuple[DeclaredParameter, ...] = declared_parameters(
            function, self.__signature__, len(bound), further or 0
        )
        self.captures: Captures = self._code.captures.of(bound[0]) if bound else self._code.captures
        self._recent: Recent[Any, Launcher] = Recent(_MAX_LAUNCHERS)
        self._launchers = self._recent.young

    def rewrite(self) -> types.FunctionType:
        """Return the function with its control flow made traceable."""
        return self._code.rewrite()

    @property
    def takes_any_number(self) -> bool:
        """True if the kernel has a parameter such as *operands and the number of its arguments is not known yet."""
        return self._variadic is not None and self._further is None

    def numbered(self, further: int) -> Kernel:
        """Return the kernel for a number of variadic arguments, those of a parameter such as *operands."""
        found = self._by_number.get(further)
        if found is None:
            found = Kernel(self._code.function, self.options, self._bound, self._code, further)
            self._by_number[further] = found
        return found

    def numbered_for(self, args: tuple[Any, ...]) -> Kernel:
        """Return the kernel for the number of variadic arguments in a call."""
        return self.numbered(max(len(args) - self._named, 0))

    def __getitem__(self, configuration: tuple[Extent, Extent]) -> Launcher:
        """Return the kernel with a grid and a block: `kernel[grid, block]`."""
        try:
            known = self._launchers[configuration]
            grid, block = configuration
            # True and 1.0 are equal to 1. A tuple that is equal to one that was launched is not looked into again.
            if type(grid) is type(known.grid) and type(block) is type(known.block):
                return known
        except (KeyError, TypeError):  # new, or a list, which cannot be looked up
            pass
        try:  # not hiding_frames: a call more at every launch
            return self._new_launcher(configuration)
        except Exception as error:
            hide_frames(error)
            raise

    def _new_launcher(self, configuration: tuple[Extent, Extent]) -> Launcher:
        try:
            grid, block = configuration
        except (TypeError, ValueError):
            raise ArgumentError(
                f"kernel {self.__name__!r} is launched as kernel[grid, block](...), got kernel[{configuration!r}]"
            ) from None
        launcher = Launcher(self, grid, block)
        if callable(grid):
            return launcher
        try:
            known = self._recent.add(configuration, launcher)
        except TypeError:  # a list, or a tuple with one in it, cannot be looked up
            return launcher
        return known if type(known.grid) is type(grid) and type(known.block) is type(block) else launcher

    @hiding_frames
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if tracing() is not None:
            raise LanguageError(
                f"kernel {self.__name__!r} is called in a kernel, and only the host launches kernels",
                help=f"decorate {self.__name__} with @tw.function: kernels call functions",
            )
        raise ArgumentError(
            f"kernel {self.__name__!r} was called without a grid and a block",
            help=f"write {self.__name__}[grid, block](...)",
        )

    def __get__(self, instance: object, owner: type | None = None) -> Kernel:
        """Bind a kernel that is a method: `self` is then a compile-time argument.

        When an attribute changes that the kernel or a method that it calls reads, the kernel is traced again. Objects
        that are equal by value share what was compiled, so they must not change: a frozen dataclass is the best home of
        a kernel.
        """
        if instance is None:
            return self
        return Kernel(self._code.function, self.options, (instance,), self._code)

    @hiding_frames
    def configure(self, **options: Any) -> Kernel:
        """Return the kernel with options: those below, and `fastmath` as in `@tw.kernel`.

        `min_blocks=n` makes the compiler limit registers so that n blocks fit on a multiprocessor (the second argument
        of CUDA's __launch_bounds__). `stream` is a CUDA stream handle or an object with `cuda_stream` or `ptr`; the
        default is the arrays' current stream. `arch` is the target, such as "sm_80" or "gfx908", for launches with
        NumPy arrays, for `analyze`, `source` and similar methods, and for `tw.check`; the default is sm_90a. A launch
        with arrays on a GPU runs on that GPU, and is an error if the target is AMD's. With `cooperative=True` all
        blocks of a launch run at the same time, and a grid that does not fit is an error: for kernels whose blocks wait
        for later ones (`tw.sync_grid` sets it by itself). `cluster` is the number of blocks per cluster, an int or up
        to three; they run at the same time and can access each other's shared memory: 8 on any GPU from sm_90 on, up to
        16 where the GPU can place them. With `dependent_launch=True` (from sm_90 on) a launch may begin before the
        previous one on its stream has ended, for which the kernel waits by `tw.grid_dependency_wait`. Raises
        `ArgumentError` for unknown options, and for a target that is unknown or does not support an option.
        """
        return Kernel(self._code.function, configured(self.options, options), self._bound, self._code, self._further)

    @hiding_frames
    def source(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the CUDA C++ for arguments: arrays, or `tw.spec(dtype, shape)` instead. No GPU is needed.

        For `arch="gfx908"` and `"gfx90a"`, AMD's targets, it is HIP C++.
        """
        return self.lower(*args, arch=arch, **kwargs).source.text

    @hiding_frames
    def ptx(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the PTX for arguments, compiled by NVRTC. No GPU is needed.

        Raises `ArgumentError` for AMD's targets, which have no PTX.
        """
        from tilewright.runtime.nvrtc import compile_ptx

        lowered = self.lower(*args, arch=arch, **kwargs)
        if lowered.arch.is_amd:
            raise ArgumentError(
                f"there is no PTX for {lowered.arch}, an AMD target",
                help=f"kernel.sass(..., arch={lowered.arch.name!r}) gives its assembly",
            )
        cuda = lowered.cuda
        return compile_ptx(cuda.text, name=cuda.name, arch=lowered.arch.name, line_map=cuda.line_map)

    @hiding_frames
    def sass(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the machine code for arguments, as nvdisasm prints it. No GPU is needed.

        For AMD's targets it is the assembly that clang writes.
        """
        from tilewright.runtime.disassemble import disassemble

        module = self.lower(*args, arch=arch, **kwargs).module
        return module.assembly or disassemble(module.cubin)

    @hiding_frames
    def resources(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Any:
        """Return registers, spills, shared memory and more, as the compiler reports them. No GPU is needed.

        For AMD's targets, vector, accumulation and scalar registers are listed separately.
        """
        return self.lower(*args, arch=arch, **kwargs).module.resources

    @hiding_frames
    def lower(self, *args: Any, arch: str | None = None, block: Extent = None, **kwargs: Any) -> Lowered:
        """Return the kernel's IR for arguments, after all passes, and what is generated from it."""
        if self.takes_any_number:
            return self.numbered_for(args).lower(*args, arch=arch, block=block, **kwargs)
        shape = None if block is None else launch_config(1, block).block
        values = self.complete(args, kwargs)
        types = {
            p.name: argument_type(p.name, value, is_constexpr=p.is_constexpr, declared=p.dtype)
            for p, value in zip(self.parameters, values, strict=True)
        }
        target = Arch.parse(next((a for a in (arch, self.options.arch) if a is not None), default_arch()))
        return lower(self.rewrite(), types, arch=target, block=shape, **self.options.of_code)

    @hiding_frames
    def analyze(self, *args: Any, grid: Extent, block: Extent, **kwargs: Any) -> Profile:
        """Run the kernel in the simulator and return its profile: as `kernel[grid, block].analyze(*args)`."""
        return self[grid, block].analyze(*args, **kwargs)

    def complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in order, with defaults filled in and those of *operands one by one."""
        try:
            bound = self.__signature__.bind(*self._bound, *args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"kernel {self.__name__!r}: {error}") from None
        bound.apply_defaults()
        if self._variadic is None:
            return tuple(bound.arguments.values())
        values: list[Any] = []
        for name, value in bound.arguments.items():
            values += value if name == self._variadic else [value]
        return tuple(values)

    def forget(self) -> None:
        """Discard the compiled code: something that the kernel was traced with has changed."""
        self._code.forget()

    def variant(self, block: Extent) -> _Variant:
        """Return the compiled code for a block shape."""
        shape, code = launch_config(1, block).block, self._code
        key = self.bound, self._further, self.options.arch, *self.options.of_code.values(), shape
        found: _Variant | None = code.variants.get(key)
        if found is None:
            found = code.variants.add(key, _Variant(self, shape))
            code.held.add(found)
        return found

    def __repr__(self) -> str:
        return f"<kernel {self.__qualname__}>"


class _Variant:
    """A kernel for one block shape: a signature with its argument plans."""

    def __init__(self, kernel: Kernel, block: tuple[int, int, int]) -> None:
        self.kernel: Kernel = kernel
        self.block: tuple[int, int, int] = block
        given = kernel.parameters
        names, constant = [p.name for p in given], [p.name for p in given if p.is_constexpr]
        self.signature: Signature = Signature(names, constant, numbers={p.name: p.dtype for p in given if p.dtype})
        self.forgotten: int = 0  # how often what was compiled was dropped
        # How many arguments a call gives when none is bound or left to its default; -1: always complete them.
        self.arguments: int = -1 if kernel.bound or kernel.takes_any_number else len(names)

    def forget(self) -> None:
        """Drop what was compiled."""
        self.forgotten += 1
        replays.close(self.signature)
        self.signature = Signature(self.signature.names, self.signature.constexpr, numbers=self.signature.numbers)

    def admit(self, plan: ArgumentPlan, reading: Reading, args: tuple[Any, ...]) -> Ready:
        """Return what runs calls of a new kind, compiled if need be, and remember it."""
        call = reading[0]
        found = plan.kernels.get(call.key)
        if found is None:
            found = plan.kernels.add(call.key, self._specialise(plan, args))
        ready: Ready = found.admit(reading)
        call.kernel = ready
        call.is_ready = ready.is_simple and plan.current_stream is not None
        return ready

    def _specialise(self, plan: ArgumentPlan, args: tuple[Any, ...]) -> Specialisation:
        """Trace and compile for arguments of a new kind."""
        own = self.kernel._code.captures
        captures = own.of(args[0]) if self.kernel.bound else own
        parameters = self.kernel.parameters
        given = slice(bool(self.kernel.bound), None)  # what a method is bound to is watched as such
        for parameter, value in zip(parameters[given], args[given], strict=True):
            captures.take(value, is_constant=parameter.is_constexpr)
        captures.note()
        described = plan.describe_arguments(args)
        arguments = {p.name: described_type(d) for p, d in zip(parameters, described, strict=True)}

        code = self.kernel._code
        changes, is_later = code.changes, False

        def build(arch: Arch, bounds: bool) -> Lowered:
            nonlocal is_later
            if is_later and (code.changes != changes or captures.changed()):
                raise ArgumentError(
                    f"what kernel {self.kernel.__name__!r} captures has changed since it was launched",
                    help="ask for its registers, or print its report, before that",
                )
            is_later = True
            rewritten, options = self.kernel.rewrite(), self.kernel.options
            lowered = lower(rewritten, arguments, arch=arch, block=self.block, bounds=bounds, **options.of_code)
            captures.settle()
            return lowered

        return specialise(build, plan.names, plan.describe(args), plan.starts, self.kernel.options.arch)


# What is told of a thread's launches, by the thread's number, and returns whether it ran them; see recording.py.
observers: dict[int, Callable[[Launcher, tuple[Any, ...], dict[str, Any]], bool]] = {}


class Launcher(LauncherByName, LauncherShown):
    """A kernel with a grid and a block."""

    __slots__ = ("_config", "_replay", "_stream", "_variant", "block", "grid", "kernel")

    def __init__(self, kernel: Kernel, grid: Extent, block: Extent) -> None:
        self.kernel: Kernel = kernel
        self.grid: Extent = grid
        self.block: Extent = block
        stream = kernel.options.stream
        handle = as_int(stream)
        self._stream = stream if handle is None else handle
        self._variant = kernel.variant(block)
        self._config: LaunchConfig | None = None
        self._replay: Any = None  # Any: launches calls that were met before; of the compiled launcher

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch. Raises `ArgumentError` for arguments the kernel cannot take, before anything is written."""
        try:  # not hiding_frames: a call more at every launch
            if (replay := self._replay) is not None and replay(args, kwargs):
                return
            if observers and (observer := observers.get(threading.get_ident())) and observer(self, args, kwargs):
                return
            variant, kernel = self._variant, self.kernel
            if kernel.captures.watched and kernel.captures.changed():
                kernel.forget()
            if kwargs or len(args) != variant.arguments:
                if kernel.takes_any_number:
                    kernel.numbered_for(args)[self.grid, self.block](*args, **kwargs)
                    return
                args = kernel.complete(args, kwargs)
            plan: Any  # Any: an `ArgumentPlan`, whose reading is one of its own
            plan, config = variant.signature.last, self._config
            reading = None if plan is None else plan.read(*args)
            if reading is not None and config is not None:
                call, values, _ = reading
                if call.is_ready:  # as below, with fewer calls
                    ready: Any = call.kernel  # Any: a `Ready` on a GPU
                    if ready.dynamic_shared_bytes == config.shared_bytes:
                        stream = self._stream
                        if stream is None:
                            stream = plan.current_stream(ready.ordinal)
                        elif type(stream) is not int:
                            stream = stream_handle(stream)
                        ready.launch(config, stream, values)
                        if plan.compiled is not None:
                            self._replay = replays.learn(self, observers, plan, ready, args, values)
                        return
            if tracing() is not None:
                raise LanguageError(
                    f"kernel {kernel.__name__!r} is launched inside a kernel, and only the host launches kernels",
                    help="put what both do into a helper function: @tw.function",
                )
            self._run(args, plan, reading)
        except Exception as error:
            hide_frames(error)
            raise

    def _run(self, args: tuple[Any, ...], plan: Any, reading: Any) -> None:  # Any: as above
        """Launch with arguments that no earlier call has prepared."""
        variant, config = self._variant, self._config
        if reading is None:
            plan, reading = variant.signature.read(args)
        ready = reading[0].kernel or variant.admit(plan, reading, args)
        if config is None or ready.dynamic_shared_bytes != config.shared_bytes:
            config = self._configure(ready, args)
        if not config.is_empty:
            ready.run(config, plan, reading, args, self.kernel.options.stream)

    def repeat(self, args: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], bool] | None:
        """Return what launches calls like one that was made, from the values of a reading in place of the arguments.

        `args` are all arguments of that call. Calls like it agree with it in all but numbers and pointers, and in the
        alignment of each pointer. What is returned gives False, and launches nothing, where the arguments have to be
        looked at: while launches are observed, after something that the kernel was traced with has changed, and after
        the compiled kernel was forgotten, which this does not keep. None where each call has to be looked at.
        """
        variant, captures, forgotten = self._variant, self.kernel.captures, self._variant.forgotten
        plan, (call, _, _) = variant.signature.read(args)
        stream_of, ready = plan.current_stream, call.kernel
        if observers:  # what ran the call may be theirs: the next one tells
            return lambda values: False
        if stream_of is None or not call.is_ready or self._stream is not None:
            return None
        config, ordinal, known = self._configure(ready, args), ready.ordinal, ref(call)
        if config.is_empty:
            return None
        calls, is_final = replays.calls_of(plan.signature, observers, captures), compiled.is_settled()

        def launch_again(values: tuple[Any, ...]) -> bool:
            if (call := known()) is None or observers or variant.forgotten != forgotten:
                return False
            # Once the compiled launcher is there, it takes the place of this.
            if (captures.watched and captures.changed()) or (not is_final and compiled.is_settled()):
                return False
            call.kernel.launch(config, stream_of(ordinal), values)
            return True

        return replays.again(calls, ready, config, stream_of, launch_again)

    def passed(self, args: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        """Return the pointers and numbers that a launch with all these arguments passes, each with what it is of."""
        plan, (_, values, _) = self._variant.signature.read(args)
        return plan.passed(args, values)

    def _configure(self, ready: Ready, args: tuple[Any, ...]) -> LaunchConfig:
        """Return the checked configuration, and remember it unless the grid depends on the arguments."""
        grid = computed_grid(self.grid, args[self.kernel.bound :]) if callable(self.grid) else self.grid
        config = launch_config(grid, self.block, ready.dynamic_shared_bytes, self.kernel.options.cluster)
        if not callable(self.grid):
            self._config = None if config.is_empty else config
        return config

    def admitted(self, args: tuple[Any, ...]) -> tuple[Ready, LaunchConfig]:
        """Return what runs a call with all these arguments, and its configuration."""
        plan, reading = self._variant.signature.read(args)
        ready = reading[0].kernel or self._variant.admit(plan, reading, args)
        return ready, self._configure(ready, args)

    @hiding_frames
    def prepare(self, *args: Any, **kwargs: Any) -> Callable[[], None]:
        """Return the launch with these arguments packed: calling it costs the driver's time and little more.

        The arrays are kept alive. On the simulator the call runs the kernel again.
        """
        if self.kernel.takes_any_number:
            return self.kernel.numbered_for(args)[self.grid, self.block].prepare(*args, **kwargs)
        if self.kernel.captures.changed():
            self.kernel.forget()
        args = self.kernel.complete(args, kwargs)
        plan, reading = self._variant.signature.read(args)
        ready = reading[0].kernel or self._variant.admit(plan, reading, args)
        config = self._configure(ready, args)
        if config.is_empty:
            return lambda: None
        return ready.prepare(config, plan, reading, args, self.kernel.options.stream)

    @hiding_frames
    def resident_blocks(self, *args: Any, **kwargs: Any) -> int:
        """Return how many blocks of a launch with these arguments the GPU runs at once, whatever the grid is.

        As `cuOccupancyMaxActiveBlocksPerMultiprocessor` times the multiprocessors; the simulator runs 262,144 threads.
        """
        ready, config = self.admitted(self.kernel.complete(args, kwargs))
        return ready.resident_blocks(config)

    @hiding_frames
    def analyze(self, *args: Any, **kwargs: Any) -> Profile:
        """Run the kernel on the simulator and return what it costs, line by line; the arguments stay as they were.

        Arrays may live anywhere, and `tw.spec(dtype, shape)` may stand for one (of zeros). The result is that of
        `tw.simulate(profile=True)`: `.shared_wavefronts`, `.global_sectors`, `.by_line()`, `.report(gpu)`.

        >>> import tilewright as tw
        >>> @tw.kernel
        ... def every_other(y, x):
        ...     y[tw.thread_idx.x] = x[2 * tw.thread_idx.x]
        >>> profile = every_other[1, 64].analyze(tw.spec(tw.float32, (64,)), tw.spec(tw.float32, (128,)))
        >>> profile.global_sectors, profile.global_sectors_ideal
        (24, 16)

        Raises `CheckError` where the kernel is wrong, `ArgumentError` for arguments it cannot take.
        """
        from tilewright.profile import analyze

        return analyze(self, args, kwargs)

    @hiding_frames
    def source(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the CUDA or HIP C++, as `Kernel.source`, for this block."""
        return self.kernel.source(*args, arch=arch, block=self.block, **kwargs)

    @hiding_frames
    def ptx(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the PTX, as `Kernel.ptx`, for this block."""
        return self.kernel.ptx(*args, arch=arch, block=self.block, **kwargs)

    @hiding_frames
    def sass(self, *args: Any, arch: str | None = None, **kwargs: Any) -> str:
        """Return the machine code, as `Kernel.sass`, for this block."""
        return self.kernel.sass(*args, arch=arch, block=self.block, **kwargs)

    @hiding_frames
    def resources(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Any:
        """Return the compiler's resource report, as `Kernel.resources`, for this block."""
        return self.kernel.resources(*args, arch=arch, block=self.block, **kwargs)

    @hiding_frames
    def export(
        self,
        folder: str | os.PathLike[str],
        *args: Any,
        name: str | None = None,
        archs: Sequence[str] = ("sm_80", "sm_90a"),
        overwrite: bool = False,
    ) -> tuple[Path, ...]:
        """Write the kernel, compiled for arguments or `tw.spec`s in their place, as files that launch it without us.

        This is a `tw.Package` of one function, called as the kernel; `name` is the package's, by default the same. See
        there for the files, and for what raises `ArgumentError`.
        """
        from tilewright.ahead import Package

        package = Package(self.kernel.__name__ if name is None else name, archs=archs)
        package.add(self, *args)
        return package.write(folder, overwrite=overwrite)

    @hiding_frames
    def lower(self, *args: Any, arch: str | None = None, **kwargs: Any) -> Lowered:
        """Return the IR after all passes, as `Kernel.lower`, for this block."""
        return self.kernel.lower(*args, arch=arch, block=self.block, **kwargs)


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...


@overload
def kernel(
    *, fastmath: bool = False, cluster: Extent = 1, dependent_launch: bool = False
) -> Callable[[Callable[..., Any]], Kernel]: ...


@hiding_frames
def kernel(function: Any = ..., *, fastmath: bool = False, cluster: Extent = 1, dependent_launch: bool = False) -> Any:
    """Make a kernel of a function: `@tw.kernel`, or `@tw.kernel(fastmath=True)`.

    The function is traced once for each combination of argument types and compile-time values. Its loops over `range`
    and its branches on device values become loops and branches on the device. Arrays arrive as tensors with dynamic
    extents and strides, numbers as device scalars, and parameters annotated `tw.constexpr` as Python values.

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

    With `fastmath`, division and functions of float32 are approximate: `tw.exp` becomes CUDA's `__expf`. `cluster` (the
    number of blocks per cluster) and `dependent_launch` (a launch begins early) are options of `Kernel.configure`.
    """
    options = Options(fastmath=fastmath, cluster=cluster, dependent_launch=dependent_launch)
    return Kernel(function, options) if function is not ... else lambda target: Kernel(target, options)


def traceable_kernel(function: types.FunctionType) -> Kernel:
    """Make a kernel of a function that builds loops and branches of the device by calls: it is traced as it is.

    Its parameters are those of its `__signature__`.
    """
    return Kernel(function, code=Code(function, is_traceable=True))
