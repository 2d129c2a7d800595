"""Keep compiled kernels on disk, so that a kernel is compiled once for each machine and not for each process.

One entry is one file::

    TWCUBIN1 | sha256 of the rest | length of metadata | metadata (JSON) | cubin

It is written beside its place and moved there in one step, so a reader sees a whole entry or none, and two
processes that compile the same kernel at once both succeed. What fails its checksum (a full disk, a
machine that went down) is thrown away and compiled again. A folder that cannot be written costs one warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tilewright.arch import Arch
from tilewright.errors import TilewrightWarning
from tilewright.runtime import clang, nvrtc
from tilewright.runtime.compiler_log import AmdResources, Resources
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.source import SourceLocation

_MAGIC = b"TWCUBIN1"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 4
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES + _LENGTH_BYTES
_SUFFIX = ".cubin"
_TEMPORARY_SUFFIX = ".part"


@dataclass(frozen=True)
class CacheEntry:
    """One file of the cache; name and arch are empty where it is damaged."""

    key: str
    name: str
    arch: str
    bytes: int
    modified: float


class DiskCache:
    """Compiled kernels in a folder, and those of this process in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._memory: dict[str, CompiledModule] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._warned = False

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
        key = cache_key(source, name, Arch.parse(arch).name, options)
        if key in self._memory:
            return self._memory[key]
        with self._locks.setdefault(key, threading.Lock()):
            module = self._memory.get(key) or self.load(key)
            if module is None:
                compiler = clang.compile_hip if Arch.parse(arch).is_amd else nvrtc.compile_cuda
                module = compiler(source, name=name, arch=arch, options=options, line_map=line_map)
                self.store(key, module)
            self._memory[key] = module
        return module

    def load(self, key: str) -> CompiledModule | None:
        """Return an entry, or None; a damaged one is removed."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        module = _unpack(data)
        if module is None:
            _remove(path)
        return module

    def store(self, key: str, module: CompiledModule) -> None:
        """Write an entry. A folder that cannot be written gives one warning, and nothing else."""
        path = self._path(key)
        temporary: Path | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(suffix=_TEMPORARY_SUFFIX, dir=path.parent)
            temporary = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(_pack(module))
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                _remove(temporary)
            # Windows refuses to replace a file that another process reads: then the entry is there already.
            if not path.exists():
                self._warn(error)

    def size(self) -> int:
        """Return the bytes that all entries take."""
        return sum(entry.bytes for entry in self.entries())

    def entries(self) -> list[CacheEntry]:
        """Return all entries, the newest first."""
        found = []
        for path in self._files(_SUFFIX):
            try:
                stat, data = path.stat(), path.read_bytes()
            except OSError:
                continue  # another process has just removed it
            module = _unpack(data)
            name, arch = ("", "") if module is None else (module.name, module.arch)
            found.append(CacheEntry(path.stem, name, arch, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda entry: entry.modified, reverse=True)

    def clear(self) -> int:
        """Remove all entries, and what writers that died left behind; return the number of entries."""
        self._memory.clear()
        count = sum(_remove(path) for path in self._files(_SUFFIX))
        for path in self._files(_TEMPORARY_SUFFIX):
            _remove(path)
        return count

    def _files(self, suffix: str) -> Iterator[Path]:
        # The pattern leaves alone whatever else stands in a folder that a user named.
        return self.folder.glob(f"[0-9a-f][0-9a-f]/*{suffix}")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_SUFFIX}"

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the kernel cache {self.folder} cannot be written ({error.strerror or error}); kernels are compiled "
                "again in each process. Set TILEWRIGHT_CACHE_DIR to a folder that can be written",
                TilewrightWarning,
                stacklevel=2,
            )


def cache_key(source: str, name: str, arch: str, options: Sequence[str]) -> str:
    """Return the key of an entry: a hash of all that machine code depends on."""
    digest = hashlib.sha256()
    compiler = clang if Arch.parse(arch).is_amd else nvrtc
    for part in (compiler.compiler_identity(), source, name, arch, *compiler.DEFAULT_OPTIONS, *options):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))  # so that no two lists of parts run together
        digest.update(data)
    return digest.hexdigest()


def default_folder() -> Path:
    """Return the folder of the cache: TILEWRIGHT_CACHE_DIR, else below the platform's folder for caches."""
    chosen = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / "tilewright"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "tilewright" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "tilewright"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "tilewright"


def default_cache() -> DiskCache:
    """Return the cache in `default_folder()`: one object for each folder, as the environment names it now."""
    return _cache_in(default_folder())


@cache
def _cache_in(folder: Path) -> DiskCache:
    return DiskCache(folder)


def _pack(module: CompiledModule) -> bytes:
    facts = {
        "name": module.name,
        "arch": module.arch,
        "log": module.log,
        "resources": asdict(module.resources),
        "assembly": module.assembly,
    }
    metadata = json.dumps(facts).encode()
    rest = len(metadata).to_bytes(_LENGTH_BYTES, "little") + metadata + module.cubin
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def _unpack(data: bytes) -> CompiledModule | None:
    digest = data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]
    rest = data[len(_MAGIC) + _DIGEST_BYTES :]
    if not data.startswith(_MAGIC) or hashlib.sha256(rest).digest() != digest:
        return None
    end = _HEADER_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little")
    facts = json.loads(data[_HEADER_BYTES:end])
    return CompiledModule(
        name=facts["name"],
        arch=facts["arch"],
        cubin=data[end:],
        log=facts["log"],
        resources=(AmdResources if Arch.parse(facts["arch"]).is_amd else Resources)(**facts["resources"]),
        assembly=facts.get("assembly", ""),
    )


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
