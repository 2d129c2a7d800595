"""Compile CUDA C++ to machine code with NVRTC, the compiler as a library.

NVRTC is reached through ctypes and not through `cuda.bindings`. Importing the bindings costs 60 to 140 ms
in a fresh process, more than NVRTC needs for most kernels and a large share of the half second that a cold
first call may take; ctypes is there already, because NumPy imports it. The functions used here have been the
same since CUDA 11.1. The library itself comes from the `nvidia-cuda-nvrtc` wheel, from wherever
`cuda.pathfinder` finds a toolkit, or from the loader's path, in this order.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import CompileError
from tilewright.runtime.compiler_log import (
    CompilerMessage,
    Resources,
    parse_errors,
    parse_resources,
    places_of_ptx_line,
    ptx_line_of,
)
from tilewright.runtime.libraries import INSTALL, WINDOWS, wheel_files
from tilewright.runtime.prototypes import NVRTC, declared
from tilewright.source import SourceLocation

# Fused multiply-add is what the IR says explicitly, so that the simulator computes the same numbers.
DEFAULT_OPTIONS = ("--std=c++17", "-fmad=false", "--ptxas-options=-v")

_PATTERN = "nvrtc64_*_0.dll" if WINDOWS else "libnvrtc.so.*"
_NAMES = ("nvrtc64_130_0.dll", "nvrtc64_120_0.dll") if WINDOWS else ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_BUILTINS = "nvrtc-builtins64_*.dll" if WINDOWS else "libnvrtc-builtins.so.*"
_FEW_REGISTERS = "C7602"  # ptxas: an instruction needs more
_MAX_ERRORS_SHOWN = 5

# Segments of an ELF file with notes, how much of one is read, and the note with a build's ID of 20 bytes: the lengths
# of owner and content, the kind, the owner, the content.
_NOTES, _MOST_NOTES = 4, 1 << 16
_BUILD_NOTE = re.compile(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", re.DOTALL)


@dataclass(frozen=True)
class CompiledModule:
    """Machine code for one architecture: the cubin, the compiler's log and the resources of its kernel.

    For an AMD target `cubin` holds the ELF code object, and `assembly` its text as the compiler wrote it.
    """

    name: str
    arch: str
    cubin: bytes
    log: str
    resources: Resources
    assembly: str = ""


def compile_cuda(
    source: str,
    *,
    name: str,
    arch: Arch | str,
    options: Sequence[str] = (),
    line_map: Mapping[int, SourceLocation] | None = None,
) -> CompiledModule:
    """Compile CUDA C++ to machine code for `arch`.

    `name` is the `extern "C"` kernel whose resources are reported, and names the program in messages.
    `options` follow the default ones. `line_map` gives the Python place behind a line of `source`; an
    error of the compiler is raised as `CompileError` at the first of these places.
    """
    target = Arch.parse(arch)
    flags = _options(target, options)
    cubin, log = _machine_code(source, name, flags, line_map)
    resources = parse_resources(log, name)
    if not resources.registers and _has_cache():
        cubin, log = _machine_code(source, name, (*flags, "--no-cache"), line_map)
        resources = parse_resources(log, name)
    return CompiledModule(name, target.name, cubin, log, resources)


def _machine_code(
    source: str, name: str, options: Sequence[str], line_map: Mapping[int, SourceLocation] | None
) -> tuple[bytes, str]:
    """Return the cubin and the compiler's log."""
    program = _compile(source, name, options, line_map)
    try:
        return program.output("CUBIN"), program.log
    finally:
        program.close()


def _has_cache() -> bool:
    """Say whether NVRTC may take machine code from a cache of its own.

    It does where there is a driver, and then the log has no line of ptxas: a kernel that another process has compiled
    seemed to take no registers. The option `--no-cache` was tried with 13.5; the library of 13.0 names it too.
    """
    return nvrtc_version() >= (13, 0)


def compile_ptx(
    source: str,
    *,
    name: str,
    arch: Arch | str,
    options: Sequence[str] = (),
    line_map: Mapping[int, SourceLocation] | None = None,
) -> str:
    """Compile CUDA C++ to PTX text for `arch`, without running ptxas; arguments as in `compile_cuda`."""
    target = Arch.parse(arch)
    flags = [flag for flag in _options(target, options)[1:] if not flag.startswith("--ptxas")]
    virtual = target.name.replace("sm_", "compute_")
    program = _compile(source, name, [f"--gpu-architecture={virtual}", *flags], line_map)
    try:
        return program.output("PTX").rstrip(b"\0").decode()
    finally:
        program.close()


def nvrtc_version() -> tuple[int, int]:
    """Return the version of NVRTC, such as (13, 5)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def supported_arches() -> tuple[int, ...]:
    """Return the compute capabilities that this NVRTC compiles for, such as (75, 80, 86, ...)."""
    count = ctypes.c_int()
    _call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _call("nvrtcGetSupportedArchs", numbers)
    return tuple(numbers)


def compiler_identity() -> str:
    """Return a text that changes whenever another NVRTC is installed, for keys of caches.

    It is read from the library's file, not from the library: loading 140 MB only to ask for the version
    would cost a start from a warm cache up to 80 ms. The build that the file names is the same on every machine, so
    one machine finds what another one compiled. A file that names none counts by when it was written, and without a
    file in a wheel the version is asked for.
    """
    path = library_path()
    if path is None:
        return "nvrtc {}.{}".format(*nvrtc_version())
    try:
        stat = path.stat()
        build = _build_of(path, stat.st_mtime_ns)
    except OSError as error:  # it was there when this process first looked
        raise CompileError(f"NVRTC cannot be used: {path}: {error.strerror}", help=INSTALL) from error
    return f"{path.name} {stat.st_size} {build or stat.st_mtime_ns}"


@cache
def _build_of(path: Path, changed: int) -> str | None:
    """Return the build ID that the linker wrote into an ELF file of 64 bits, or None.

    `changed` tells a file from the one that replaces it.
    """
    with open(path, "rb") as file:
        head = file.read(64)
        if len(head) < 64 or not head.startswith(b"\x7fELF\x02\x01"):
            return None
        end = file.seek(0, os.SEEK_END)
        (begin,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        if begin + size * count > end or size < 56:
            return None
        file.seek(begin)
        table = file.read(size * count)
        for place in range(0, size * count, size):
            kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", table, place)
            if kind == _NOTES and offset + length <= end:
                file.seek(offset)
                found = _BUILD_NOTE.search(file.read(min(length, _MOST_NOTES)))
                if found is not None:
                    return found[1].hex()
    return None


@cache
def library_path() -> Path | None:
    """Return the file of NVRTC in an installed wheel, or None where no wheel carries it."""
    return next(iter(wheel_files("bin" if WINDOWS else "lib", _PATTERN)), None)


def _options(target: Arch, extra: Sequence[str]) -> tuple[str, ...]:
    return (f"--gpu-architecture={target.name}", *DEFAULT_OPTIONS, *extra)


class _Program:
    """One nvrtcProgram: compiled once, then asked for its outputs, then closed."""

    def __init__(self, source: str, file_name: str) -> None:
        self._handle = ctypes.c_void_p()
        self.log = ""
        _call("nvrtcCreateProgram", ctypes.byref(self._handle), source.encode(), file_name.encode(), 0, None, None)

    def compile(self, options: Sequence[str]) -> bool:
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = _library().nvrtcCompileProgram(self._handle, len(options), array)
        self.log = self.output("ProgramLog").rstrip(b"\0").decode(errors="replace")
        return bool(status == 0)

    def output(self, kind: str) -> bytes:
        """Return one result: "CUBIN", "PTX" or "ProgramLog"."""
        size = ctypes.c_size_t()
        _call(f"nvrtcGet{kind}Size", self._handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        _call(f"nvrtcGet{kind}", self._handle, buffer)
        return buffer.raw

    def close(self) -> None:
        _library().nvrtcDestroyProgram(ctypes.byref(self._handle))


def _compile(source: str, name: str, options: Sequence[str], line_map: Mapping[int, SourceLocation] | None) -> _Program:
    program = _Program(source, f"{name}.cu")
    if program.compile(options):
        return program
    log = program.log
    program.close()
    raise _compile_error(source, name, options, log, line_map)


def _compile_error(
    source: str, name: str, options: Sequence[str], log: str, line_map: Mapping[int, SourceLocation] | None
) -> CompileError:
    target = options[0].partition("=")[2]
    supported = supported_arches()
    if int("".join(filter(str.isdigit, target))) not in supported:
        return CompileError(
            "NVRTC {}.{} has no target {}".format(*nvrtc_version(), target),
            details=[f"it compiles for {', '.join(f'sm_{number}' for number in supported)}"],
            help="name another arch, or install the NVRTC of another CUDA release (nvidia-cuda-nvrtc-cu12)",
        )
    messages = parse_errors(log)
    places = [_place(source, name, options, message, line_map) for message in messages]
    location = next((place for place in places if place is not None), None)
    details: list[str] = []
    for message, place in list(zip(messages, places, strict=True))[:_MAX_ERRORS_SHOWN]:
        details += message.text
        if place is not None:  # the error itself ends with the excerpt of its first place
            excerpt = [str(place)] if place == location else place.excerpt()
            details += [f"  from {line}" if n == 0 else f"  {line}" for n, line in enumerate(excerpt)]
    if len(messages) > _MAX_ERRORS_SHOWN:
        details.append(f"and {len(messages) - _MAX_ERRORS_SHOWN} more errors")
    if not messages:
        details = log.splitlines()
    help = "if your kernel holds no CUDA text of its own, this is a fault of Tilewright: please report it"
    if _FEW_REGISTERS in log:
        help = "take fewer blocks of a multiprocessor (`min_blocks`) or threads, or a smaller instruction"
    return CompileError(
        f"NVRTC refused the CUDA source of kernel {name!r} for {target}", details=details, location=location, help=help
    )


def _place(
    source: str,
    name: str,
    options: Sequence[str],
    message: CompilerMessage,
    line_map: Mapping[int, SourceLocation] | None,
) -> SourceLocation | None:
    program_file = f"{name}.cu"
    candidates = [] if message.file is None or message.line is None else [(message.file, message.line)]
    ptx_line = ptx_line_of(message)
    if ptx_line is not None:
        # ptxas counts lines in PTX without line information; a second text with it names the CUDA lines.
        target = Arch.parse(options[0].partition("=")[2].replace("compute_", "sm_"))
        extra = [flag for flag in options[1:] if flag not in DEFAULT_OPTIONS and "line" not in flag]
        plain, located = (
            compile_ptx(source, name=name, arch=target, options=flags) for flags in (extra, [*extra, "-lineinfo"])
        )
        candidates = places_of_ptx_line(plain, located, ptx_line)
    for file, line in candidates:
        if file != program_file:
            return SourceLocation(file, line, name)
        if line_map is not None and line in line_map:
            return line_map[line]
    return None


@cache
def _library() -> ctypes.CDLL:
    path = library_path()
    names = [str(path)] if path is not None else [*_pathfinder_names(), *_NAMES]
    for name in names:
        try:
            return declared(_load(name), NVRTC)
        except OSError:
            continue
    raise CompileError(
        "NVRTC, the CUDA compiler, is not installed",
        details=[f"looked for {_PATTERN} in nvidia/*/ of every import path, then for {', '.join(names)}"],
        help=INSTALL,
    )


def _load(name: str) -> ctypes.CDLL:
    """Load NVRTC, and before it the builtins beside it, which it opens by name; that of 13.0 does not look there."""
    path = Path(name)
    for builtins in path.parent.glob(_BUILTINS) if path.is_absolute() else ():
        with suppress(OSError):  # then NVRTC says what it does not find
            ctypes.CDLL(str(builtins))
    return ctypes.CDLL(name)


def _pathfinder_names() -> list[str]:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # type: ignore[import-not-found, unused-ignore]

        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception:  # pathfinder is optional, and its errors differ between releases
        return []
    return [] if path is None else [path]


def _call(function: str, *arguments: Any) -> None:  # Any: whatever ctypes takes
    library = _library()
    status = getattr(library, function)(*arguments)
    if status != 0:
        message = library.nvrtcGetErrorString(status)
        raise CompileError(f"{function} failed: {message.decode()}")
