"""The form of one entry of the cache on disk, and the key that it is found by.

::

    TWCUBIN2 | sha256 of the rest | length of metadata | metadata (JSON) | machine code

The metadata names the key, the kernel and the architecture. An entry that was copied or linked over another is whole,
but its key is not the one that was looked for; so it is refused like one with damaged bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import TilewrightError
from tilewright.runtime import clang, nvrtc
from tilewright.runtime.compiler_log import AmdResources, Resources
from tilewright.runtime.nvrtc import CompiledModule

MAX_BYTES = 1 << 28  # of one entry; the machine code of the largest kernels takes a few MiB

_MAGIC = b"TWCUBIN2"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 4
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES + _LENGTH_BYTES
_TEXTS = ("key", "name", "arch", "log", "assembly")


def cache_key(source: str, name: str, arch: str, options: Sequence[str]) -> str:
    """Return the key of an entry: a hash of all that machine code depends on, and of the form of entries."""
    digest = hashlib.sha256(_MAGIC)  # releases with another form keep theirs beside ours
    target = Arch.parse(arch)
    compiler = clang if target.is_amd else nvrtc
    identity = clang.compiler_identity(target) if target.is_amd else nvrtc.compiler_identity()
    for part in (identity, source, name, arch, *compiler.DEFAULT_OPTIONS, *options):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))  # so that no two lists of parts run together
        digest.update(data)
    return digest.hexdigest()


def pack(key: str, module: CompiledModule) -> bytes:
    """Return an entry as bytes."""
    facts = {
        "key": key,
        "name": module.name,
        "arch": module.arch,
        "log": module.log,
        "resources": asdict(module.resources),
        "assembly": module.assembly,
    }
    metadata = json.dumps(facts).encode()
    rest = len(metadata).to_bytes(_LENGTH_BYTES, "little") + metadata + module.cubin
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def unpack(data: bytes, key: str) -> CompiledModule | None:
    """Return what `pack` wrote under `key`, or None for anything else, whatever the bytes are."""
    digest = data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]
    rest = memoryview(data)[len(_MAGIC) + _DIGEST_BYTES :]
    if not data.startswith(_MAGIC) or hashlib.sha256(rest).digest() != digest:
        return None
    end = _HEADER_BYTES + int.from_bytes(rest[:_LENGTH_BYTES], "little")
    code = data[end:]
    if not code:
        return None
    try:
        facts = json.loads(data[_HEADER_BYTES:end])
        return _module(facts, code) if _is_complete(facts) and facts["key"] == key else None
    except (ValueError, RecursionError, TilewrightError):  # written by something else, with a right checksum
        return None


def _is_complete(facts: Any) -> bool:  # Any: JSON
    return (
        isinstance(facts, dict)
        and facts.keys() == {*_TEXTS, "resources"}
        and all(isinstance(facts[name], str) for name in _TEXTS)
        and isinstance(facts["resources"], dict)
        and all(type(value) is int and value >= 0 for value in facts["resources"].values())
    )


def _module(facts: dict[str, Any], code: bytes) -> CompiledModule | None:
    kind = AmdResources if Arch.parse(facts["arch"]).is_amd else Resources
    if facts["resources"].keys() != {field.name for field in fields(kind)}:
        return None
    return CompiledModule(
        name=facts["name"],
        arch=facts["arch"],
        cubin=code,
        log=facts["log"],
        resources=kind(**facts["resources"]),
        assembly=facts["assembly"],
    )
