"""Compile HIP C++ to AMD's machine code with clang, which needs neither ROCm nor a GPU for it.

clang writes assembly, which says what the kernel takes of the hardware, and assembles that. The result is an ELF
object; where LLVM's linker is installed it is linked to the code object that AMD's runtime loads, and without the
linker it stays relocatable.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.arch import Arch
from tilewright.errors import CompileError
from tilewright.runtime.compiler_log import AmdResources
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.source import SourceLocation

VARIABLE = "TILEWRIGHT_CLANG"
# Integers wrap as in the IR, and multiply-adds are fused where the IR says so, as the simulator computes.
DEFAULT_OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fwrapv", "-Wno-pass-failed", "-Wno-unused-value")

_RELEASES = range(14, 30)  # the first has the instructions of gfx90a and HIP's atomic operations
_FIRST_RELEASES = {"gfx942": 17}  # of targets that came later
_SHIPPED = 19  # such a release of Debian and Ubuntu
_DEVICE_ONLY = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib")
_TARGET = "amdgcn-amd-amdhsa"
_MAX_ERRORS_SHOWN = 5
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)
_HELP = f"apt install clang-14, or set {VARIABLE} to a clang 14 or later with the target amdgcn"


def compile_hip(
    source: str,
    *,
    name: str,
    arch: Arch | str,
    options: Sequence[str] = (),
    line_map: Mapping[int, SourceLocation] | None = None,
) -> CompiledModule:
    """Compile HIP C++ to machine code for `arch`: gfx908, gfx90a or gfx942.

    `name` is the kernel whose resources are reported, and names the program in messages. `options` follow the default
    ones. `line_map` gives the Python place behind a line of `source`; an error of the compiler is raised as
    `CompileError` at the first of these places, and so is the lack of a compiler, or of a temporary folder to work in.
    """
    target = Arch.parse(arch)
    clang = os.fspath(_demand_clang(target))
    try:
        return _compile(clang, source, name, target, options, line_map)
    except OSError as error:
        raise CompileError(
            f"clang cannot compile kernel {name!r} for {target}: {error}",
            help="it writes to the temporary folder: set TMPDIR to one that can be written and has space",
        ) from error


def compiler_identity(arch: Arch | None = None) -> str:
    """Return a text that changes whenever another clang or linker for a target is installed, for keys of caches.

    Raises `CompileError` where there is no clang.
    """
    parts = []
    for path in (_demand_clang(arch), find_linker(arch)):
        if path is not None:
            try:
                stat = path.resolve().stat()
            except OSError as error:
                raise CompileError(f"{path} cannot be used: {error.strerror}", help=_HELP) from error
            parts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
    return " ".join(parts)


def clang_version() -> str | None:
    """Return the release of the clang that is used, such as "14.0.6", or None where there is none."""
    clang = find_clang()
    if clang is None:
        return None
    try:
        match = re.search(r"version (\S+)", _run([os.fspath(clang), "--version"], None).stdout)
    except OSError:  # removed meanwhile, or not a program of this machine
        return None
    return match[1] if match else None


def find_clang(arch: Arch | str | None = None) -> Path | None:
    """Return clang: what TILEWRIGHT_CLANG names, else clang-14, clang-15 and so on, else clang on PATH.

    For a target that clang 14 does not know it is the first release that does: clang-17 and so on for gfx942.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        found = shutil.which(chosen)
        return None if found is None else Path(found)
    first = _first_release(arch)
    names = [f"clang-{release}" for release in _RELEASES if release >= first]
    if first > _RELEASES.start:  # a clang without a number in its name may be too old
        return next((Path(path) for name in names if (path := shutil.which(name)) is not None), None) or _plain(first)
    return next((Path(path) for name in (*names, "clang") if (path := shutil.which(name)) is not None), None)


def _first_release(arch: Arch | str | None) -> int:
    name = arch.name if isinstance(arch, Arch) else arch or ""
    return _FIRST_RELEASES.get(name, _RELEASES.start)


def _plain(first: int) -> Path | None:
    """Return clang on PATH if it is of a release or a later one."""
    path = shutil.which("clang")
    if path is None:
        return None
    try:
        match = re.search(r"version (\d+)", _run([path, "--version"], None).stdout)
    except OSError:  # what is called clang there cannot be run
        return None
    return Path(path) if match and int(match[1]) >= first else None


def find_linker(arch: Arch | str | None = None) -> Path | None:
    """Return LLVM's linker: ld.lld beside a target's clang, or of its release on PATH, or any on PATH."""
    clang = find_clang(arch)
    if clang is None:
        return None
    folder, release = clang.resolve().parent, clang.name.removeprefix("clang")
    candidates = (shutil.which("ld.lld", path=os.fspath(folder)), shutil.which(f"ld.lld{release}"))
    return next((Path(path) for path in (*candidates, shutil.which("ld.lld")) if path is not None), None)


def parse_resources(assembly: str) -> AmdResources:
    """Return what the one kernel of an assembly text takes, from its metadata and from the notes below its code."""

    def noted(*patterns: str) -> int:
        for pattern in patterns:
            if match := re.search(pattern, assembly, re.MULTILINE):
                return int(match[1])
        return 0

    scratch = noted(r"^\s+\.private_segment_fixed_size:\s+(\d+)")
    vector = noted(r"^; NumVgprs: (\d+)", r"^\s+\.vgpr_count:\s+(\d+)")
    return AmdResources(
        registers=noted(r"^; TotalNumVgprs: (\d+)", r"^\s+\.vgpr_count:\s+(\d+)"),
        stack_bytes=scratch,
        static_shared_bytes=noted(r"^\s+\.group_segment_fixed_size:\s+(\d+)"),
        constant_bytes=noted(r"^\s+\.kernarg_segment_size:\s+(\d+)"),
        local_bytes=scratch,
        vector_registers=vector,
        accumulation_registers=noted(r"^; NumAgprs: (\d+)", r"^\s+- \.agpr_count:\s+(\d+)"),
        scalar_registers=noted(r"^\s+\.sgpr_count:\s+(\d+)"),
        vector_spills=noted(r"^\s+\.vgpr_spill_count:\s+(\d+)"),
        scalar_spills=noted(r"^\s+\.sgpr_spill_count:\s+(\d+)"),
        waves_per_simd=noted(r"^; Occupancy: (\d+)"),
        code_bytes=noted(r"^; codeLenInByte = (\d+)"),
    )


def _compile(
    clang: str,
    source: str,
    name: str,
    target: Arch,
    options: Sequence[str],
    line_map: Mapping[int, SourceLocation] | None,
) -> CompiledModule:
    with tempfile.TemporaryDirectory(prefix="tilewright-") as name_of_folder:
        folder = Path(name_of_folder)
        text, assembly, code = f"{name}.hip", f"{name}.s", f"{name}.o"
        (folder / text).write_text(source, encoding="utf-8", newline="\n")
        flags = (*_DEVICE_ONLY, f"--offload-arch={target.name}", *DEFAULT_OPTIONS, *options)
        done = _run([clang, *flags, "-S", text, "-o", assembly], folder)
        if done.returncode != 0:
            raise _compile_error(name, target, done.stderr, line_map)
        _demand_success(_run([clang, "-target", _TARGET, f"-mcpu={target.name}", "-c", assembly, "-o", code], folder))
        linker = find_linker(target)
        if linker is not None:
            _demand_success(_run([os.fspath(linker), "-shared", code, "-o", f"{name}.elf"], folder))
            code = f"{name}.elf"
        written = (folder / assembly).read_text(encoding="utf-8")
        return CompiledModule(
            name, target.name, (folder / code).read_bytes(), done.stderr, parse_resources(written), written
        )


def _demand_clang(target: Arch | None) -> Path:
    clang = find_clang(target)
    if clang is not None:
        return clang
    chosen, first = os.environ.get(VARIABLE), _first_release(target)
    looked = f"looked for clang-{first} to clang-29, clang"
    if chosen:
        looked = f"{VARIABLE} names {chosen!r}, which is not a program"
    for_target = "" if target is None else f" for {target}"
    help = _HELP.replace("clang-14", f"clang-{_SHIPPED}").replace("clang 14", f"clang {first}")
    raise CompileError(
        f"clang, which compiles HIP C++{for_target}, is not installed",
        details=[looked],
        help=help if first > _RELEASES.start else _HELP,
    )


def _run(command: list[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
    # In its folder, so that no text that comes out names a folder.
    return subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False)


def _demand_success(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        program = Path(done.args[0]).name
        raise CompileError(f"{program} failed with exit status {done.returncode}", details=done.stderr.splitlines())


def _compile_error(name: str, target: Arch, log: str, line_map: Mapping[int, SourceLocation] | None) -> CompileError:
    errors = list(_ERROR.finditer(log))
    if not errors and re.search(r"unknown target|unable to create target|[Uu]nsupported|[Ii]nvalid target", log):
        return CompileError(f"this clang does not compile for {target}", details=log.splitlines(), help=_HELP)
    places = [_place(name, error, line_map) for error in errors]
    details = [f"{error['file']}:{error['line']}: {error['text']}" for error in errors[:_MAX_ERRORS_SHOWN]]
    if len(errors) > _MAX_ERRORS_SHOWN:
        details.append(f"and {len(errors) - _MAX_ERRORS_SHOWN} more errors")
    return CompileError(
        f"clang refused the HIP source of kernel {name!r} for {target}",
        details=details or log.splitlines(),
        location=next((place for place in places if place is not None), None),
        help="if your kernel holds no C++ text of its own, this is a fault of Tilewright: please report it",
    )


def _place(name: str, error: re.Match[str], line_map: Mapping[int, SourceLocation] | None) -> SourceLocation | None:
    line = int(error["line"])
    if error["file"] != f"{name}.hip":
        return SourceLocation(error["file"], line, name)
    return None if line_map is None else line_map.get(line)
