"""Keep compiled kernels on disk, so that a kernel is compiled once for each machine and not for each process.

One entry is one file (its form is in `entries`). It is written beside its place and moved there in one step, so a
reader sees a whole entry or none, and two processes that compile the same kernel at once both succeed. What fails its
checksum, or was written for another key, is thrown away and compiled again. What others could have written is not used.
Where the cache cannot be used, for whatever reason, kernels are compiled in each process, and one warning says why.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.arch import Arch
from tilewright.errors import CompileError
from tilewright.frames import warn_at
from tilewright.runtime import clang, compiled, nvrtc
from tilewright.runtime.entries import MAX_BYTES, cache_key, pack, unpack
from tilewright.runtime.folders import (
    VARIABLE,
    CacheFolder,
    check_folder,
    find_folder,
    is_temporary,
    probe_folder,
    read_private,
    reason,
    remove,
    shown,
    write_below,
)
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.source import SourceLocation

_SUFFIX = ".cubin"
_PART = re.compile("[0-9a-f]{2}")  # of a key, the name of the folder that its entry is in

_warned: dict[Path, object] = {}  # folders of which this process has said what is wrong


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache; name and arch are empty where it is damaged, or not to be trusted."""

    key: str
    name: str
    arch: str
    bytes: int
    modified: float


class DiskCache:
    """Compiled kernels in a folder, and those of this process in memory.

    `refusal` says why the folder is not to be used at all, `note` what else is to be said of it; each is given to the
    user with the first kernel, once in a process.
    """

    def __init__(self, folder: Path, *, refusal: str | None = None, note: str | None = None) -> None:
        self.folder: Path = Path(folder)
        self._refusal, self._note = refusal, note
        self._memory: dict[str, CompiledModule] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._process = os.getpid()

    def compile(
        self,
        source: str,
        *,
        name: str,
        arch: Arch | str,
        options: Sequence[str] = (),
        line_map: Mapping[int, SourceLocation] | None = None,
    ) -> CompiledModule:
        """Return the machine code of `source`, compiling it where the cache has none.

        See `nvrtc.compile_cuda` and, for AMD's targets, `clang.compile_hip`.
        """
        target = Arch.parse(arch)
        key = cache_key(source, name, target.name, options)
        module = self._memory.get(key)
        if module is not None:
            return module
        with self._lock(key):
            module = self._memory.get(key) or self.load(key, name=name, arch=target.name)
            if module is None:
                compiler = clang.compile_hip if target.is_amd else nvrtc.compile_cuda
                module = compiler(source, name=name, arch=arch, options=options, line_map=line_map)
                if not module.cubin:
                    raise CompileError(
                        f"the compiler returned no machine code for kernel {name!r} and {target}",
                        details=module.log.splitlines(),
                        help="leave out options that stop the compiler before the end, such as those for linking later",
                    )
                self.store(key, module)
            self._memory[key] = module
        self._locks.pop(key, None)  # who comes now finds the module
        return module

    def load(self, key: str, *, name: str | None = None, arch: str | None = None) -> CompiledModule | None:
        """Return an entry, or None.

        A damaged one, or one of another key, kernel or architecture, is removed. What others can have written is left
        alone, with a warning.
        """
        if self._tell_note():
            return None
        path = self._path(key)
        try:
            check_folder(self.folder)
            check_folder(path.parent, follow=False)
            module = unpack(read_private(path, MAX_BYTES), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EFBIG:
                remove(path)
            elif isinstance(error, OSError) and error.filename == os.fspath(path):
                self._warn(f"an entry of the kernel cache is not used ({reason(error)}); its kernel is compiled again")
            else:
                self._warn(self._message(reason(error)))
            return None
        if module is None or name not in (None, module.name) or arch not in (None, module.arch):
            remove(path)
            return None
        return module

    def store(self, key: str, module: CompiledModule) -> None:
        """Write an entry. A folder that cannot be used gives one warning, and nothing else."""
        if self._tell_note():
            return
        data = pack(key, module)
        try:
            if len(data) > MAX_BYTES:
                raise OSError(errno.EFBIG, f"kernel {module.name!r} takes {len(data)} bytes, more than {MAX_BYTES}")
            write_below(self.folder, key[:2], f"{key}{_SUFFIX}", data)
        except (OSError, ValueError) as error:
            # Windows refuses to replace a file that another process reads: then the entry is there already.
            if os.name != "nt" or not isinstance(error, PermissionError) or not self._path(key).exists():
                self._warn(self._message(reason(error)))

    def why_unusable(self) -> str | None:
        """Return why a kernel could not be kept now, or None; found out by writing a block, which is removed again."""
        if self._refusal is not None:
            return self._refusal
        try:
            probe_folder(self.folder)
        except (OSError, ValueError) as error:
            return reason(error)
        return None

    def problem(self) -> str | None:
        """Return what there is to say of the folder: why it is unusable, or not the usual one. None if all is well."""
        refusal = self.why_unusable()
        return self._message(refusal) if refusal is not None else self._noted()

    def size(self) -> int:
        """Return the bytes that all entries take."""
        return sum(entry.bytes for entry in self.entries())

    def entries(self) -> list[CacheEntry]:
        """Return all entries, the newest first; none of a folder that cannot be used."""
        found = []
        for path in self._files():
            if path.suffix != _SUFFIX:
                continue
            try:
                status = path.lstat()
            except OSError:
                continue  # another process has just removed it
            try:
                module = unpack(read_private(path, MAX_BYTES), path.stem)
            except OSError:
                module = None
            name, arch = ("", "") if module is None else (module.name, module.arch)
            found.append(CacheEntry(path.stem, name, arch, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: entry.modified, reverse=True)

    def clear(self) -> int:
        """Remove all entries, and what writers that died left behind; return the number of entries."""
        self._memory.clear()
        removed = [path for path in self._files() if remove(path)]
        return sum(path.suffix == _SUFFIX for path in removed)

    def _files(self) -> Iterator[Path]:
        """Yield the entries, compiled launchers and unfinished files; whatever else is in the folder is left alone."""
        if self._refusal is not None:
            return
        try:
            check_folder(self.folder)
            names = os.listdir(self.folder)
        except (OSError, ValueError):
            return
        yield from (self.folder / name for name in names if is_temporary(name))
        for part in (self.folder / name for name in names if _PART.fullmatch(name)):
            try:
                check_folder(part, follow=False)
                names = os.listdir(part)
            except OSError:
                continue
            kept = (_SUFFIX, compiled.SUFFIX)
            yield from (part / name for name in names if name.endswith(kept) or is_temporary(name))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _lock(self, key: str) -> threading.Lock:
        if self._process != os.getpid():
            # After a fork the locks of other threads stay locked in the child, where nobody would release them.
            self._locks, self._process = {}, os.getpid()
        return self._locks.setdefault(key, threading.Lock())

    def _tell_note(self) -> bool:
        """Give the warning that is known from the start; return whether the folder is not to be used."""
        if self._refusal is not None or self._note is not None:
            self._warn(self._message(self._refusal) if self._refusal is not None else str(self._noted()))
        return self._refusal is not None

    def _noted(self) -> str | None:
        if self._note is None:
            return None
        return (
            f"the usual folder for the kernel cache cannot be used ({self._note}); compiled kernels are kept in "
            f"{shown(self.folder)}. Set {VARIABLE} to a folder of your own that can be written"
        )

    def _message(self, why: str) -> str:
        return (
            f"the kernel cache {shown(self.folder)} cannot be used ({why}); kernels are compiled again in each "
            f"process. Set {VARIABLE} to a folder of your own that can be written"
        )

    def _warn(self, message: str) -> None:
        own = object()
        if _warned.setdefault(self.folder, own) is own:  # in one step: threads may find the same fault at once
            warn_at(message)


def default_folder() -> Path:
    """Return the folder of the cache: TILEWRIGHT_CACHE_DIR, else below the platform's folder for caches."""
    return find_folder().path


def default_cache() -> DiskCache:
    """Return the cache in `default_folder()`: one object for each folder, as the environment names it now."""
    return _cache_in(find_folder())


@cache
def _cache_in(folder: CacheFolder) -> DiskCache:
    return DiskCache(folder.path, refusal=folder.refusal, note=folder.note)
