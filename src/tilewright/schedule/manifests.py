"""Manifests of packages: what each function takes and how it is launched, as JSON or TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright._version import __version__
from tilewright.errors import CompileError
from tilewright.schedule.functions import ALIGNMENT, PackagedFunction, plain
from tilewright.schedule.memory_spaces import Role
from tilewright.schedule.schema import FORMAT, check, digest

Data = Mapping[str, Any]  # Any: plain data


@dataclass(frozen=True)
class FilesOf:
    """The files of a function: by what they are for, and those of its CONST arrays in their order."""

    roles: Mapping[str, Data]
    constants: Sequence[Data]


def manifest_of(
    name: str, functions: Sequence[PackagedFunction], files: Mapping[str, FilesOf], header: str | None
) -> dict[str, Any]:  # Any: plain data
    """Return the manifest of a package; `files` has those of each function."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "tilewright": __version__,
        "header": header,
        "functions": [_function(function, files[function.name]) for function in functions],
    }
    manifest["digest"] = digest(manifest)
    check(manifest)
    return manifest


def _function(function: PackagedFunction, files: FilesOf) -> dict[str, Any]:  # Any: plain data
    arch, source = function.kernel.plan.target.arch, function.device_source
    entry: dict[str, Any] = {
        "name": function.name,
        "base_name": function.base_name,
        "parameters": {key: plain(value) for key, value in function.parameters.items()},
        "target": {
            "name": function.kernel.plan.target.name,
            "arch": arch.name,
            "vendor": "amd" if arch.is_amd else "nvidia",
        },
        "entry": source.name,
        "sizes": list(function.dimensions.values()),
        "arguments": [_array(function, array) for array in function.arrays],
        "constants": [
            {**_array(function, array), "file": dict(file)}
            for array, file in zip(function.kernel.constants, files.constants, strict=True)
        ],
        "machine_parameters": function.machine_parameters,
        "launch": {
            "grid": list(function.grid),
            "block": list(function.kernel.block),
            "dynamic_shared_bytes": source.dynamic_shared_bytes,
        },
        "files": {role: dict(file) for role, file in files.roles.items()},
    }
    if function.held:
        entry["scratch"] = [_array(function, array) for array in function.held]
    module = function.module
    if module is None:
        entry["machine_code"] = f"not compiled: no compiler for {arch.name} is installed where the package was made"
        return entry
    entry["compiler"] = _compiler(arch.is_amd)
    entry["resources"] = asdict(module.resources)
    return entry


def _array(function: PackagedFunction, array: Any) -> dict[str, Any]:  # Any: an array of a nest; plain data
    entry = {
        "name": array.name,
        # What a caller gives is read, and CONST are the constants of the function itself.
        "role": (Role.INPUT if array.role is Role.CONST and array in function.arrays else array.role).value,
        "type": array.element_type.name,
        "shape": function.extents(array),
        "strides": function.strides(array),
    }
    if array.stands_for is not None:
        entry["size"] = function.dimensions[array.stands_for]
    if array.rank:
        entry |= {"alignment": ALIGNMENT, "written": array.name in function.lowered.written}
    return entry


def _compiler(is_amd: bool) -> str:
    if is_amd:
        return "clang"
    from tilewright.runtime.nvrtc import nvrtc_version

    try:
        return "NVRTC {}.{}".format(*nvrtc_version())
    except CompileError:  # the machine code came from the cache
        return "NVRTC"


def json_text(manifest: Data) -> str:
    """Return a manifest as JSON."""
    return json.dumps(manifest, indent=2) + "\n"


def toml_text(manifest: Data) -> str:
    """Return a manifest as TOML 1.0, which has no null: what is None is left out.

    >>> print(toml_text({"name": "mm", "launch": {"grid": [1, "n"]}, "functions": [{"spills": None, "ok": True}]}))
    name = "mm"
    <BLANKLINE>
    [launch]
    grid = [1, "n"]
    <BLANKLINE>
    [[functions]]
    ok = true
    <BLANKLINE>
    """
    return "\n".join(_table(manifest, "")).lstrip("\n") + "\n"


def _table(data: Data, path: str) -> list[str]:
    """Return the lines of a table: its values, then the tables in it."""
    lines, below = [], []
    for key, value in data.items():
        name = _key(key)
        full = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            below += ["", f"[{full}]", *_table(value, full)]
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for item in value:
                below += ["", f"[[{full}]]", *_table(item, full)]
        elif value is not None:
            lines.append(f"{name} = {_value(value)}")
    return lines + below


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _string(key)


def _value(value: Any) -> str:  # Any: plain data
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value if item is not None)}]"
    if isinstance(value, float):
        return repr(value)
    return str(value)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, apart from DEL, which JSON leaves as it is, and halves of surrogate pairs.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
