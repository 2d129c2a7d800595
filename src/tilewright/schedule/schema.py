"""What a manifest of a package has to be: types, keys, limits and names of files, each refused with its place.

A manifest is data from anywhere. `check` reads nothing else, and what it gives back the loader can rely on: it names no
file outside of its folder, and no launch that no device can do.
"""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from tilewright.arch import ARCHES, Arch
from tilewright.dtypes import ALL, FLOAT8
from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Role

# Of manifests; others are not known. 1 kept the files of CONST arrays under their names, beside those of the code.
FORMAT = 2

Check: TypeAlias = Callable[[Any, str], None]  # Any: plain data, and its place

_MOST_TEXT = 4096  # characters of a text; names of sizes stand in expressions several times
_MOST_ITEMS = 65536  # of a list or table
_MOST_BYTES = 2**40  # of a file
_LARGEST = 2**63 - 1  # what a 64-bit parameter of machine code holds
# CUDA's limits of a grid and a block, which are the larger ones of the vendors'.
_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_DEVICE = re.compile(r"con|prn|aux|nul|(com|lpt)[0-9]", re.IGNORECASE)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TYPES = {t.name: t for t in (*ALL, *FLOAT8)}
_INTEGERS = frozenset(t.name for t in ALL if t.is_integer)
_PARTS = ("pointer", "shape", "stride", "value")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def evaluate(text: int | str, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression of sizes with + - * and //, as manifests have them.

    >>> evaluate("(M + 15) // 16", {"M": 33}), evaluate(4, {})
    (3, 4)

    Raises `ScheduleError` for anything else, and for more than 4096 characters.
    """
    if isinstance(text, int):
        return text
    try:
        if len(text) > _MOST_TEXT:
            raise KeyError(len(text))
        return _value(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        raise ScheduleError(f"{_shown(text)} is not an expression of {', '.join(sizes) or 'numbers'}") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    raise KeyError(type(node))


def digest(manifest: Mapping[str, Any]) -> str:  # Any: plain data
    """Return the checksum of a manifest, of all but the checksum itself: the same for JSON and TOML."""
    plain = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(_without_none(plain), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_none(x: Any) -> Any:  # Any: plain data
    if isinstance(x, Mapping):
        return {key: _without_none(value) for key, value in x.items() if value is not None}
    return [_without_none(item) for item in x if item is not None] if isinstance(x, list) else x


def check(manifest: object) -> Mapping[str, Any]:  # Any: plain data
    """Return a manifest that was read from a file. Raises `ScheduleError` with the place of what is wrong."""
    if not isinstance(manifest, dict):
        _refuse("", "a table", manifest)
    if "format" not in manifest or type(manifest["format"]) is not int or manifest["format"] != FORMAT:
        came = _shown(manifest["format"]) if "format" in manifest else "absent"
        raise ScheduleError(
            f"the manifest is not of format {FORMAT}: its format is {came}",
            help="it may come from another version of Tilewright: build the package again",
        )
    _MANIFEST(manifest, "")
    functions = manifest["functions"]
    _distinct([entry["name"].casefold() for entry in functions], "functions", "names")
    files = [file for n, entry in enumerate(functions) for file in _function(entry, f"functions[{n}]")]
    _distinct([file.casefold() for file in files], "functions", "files")
    if manifest["digest"] != digest(manifest):
        raise ScheduleError(
            "the manifest was changed since it was written: its digest differs",
            help="build the package again; manifests are not edited",
        )
    return manifest


def _function(entry: Mapping[str, Any], place: str) -> list[str]:  # Any: plain data
    """Check what several keys of a function have to agree on, and return the names of its files."""
    scratch = entry.get("scratch", [])
    sizes, arrays = entry["sizes"], [*entry["arguments"], *entry["constants"], *scratch]
    _distinct(sizes, f"{place}.sizes", "names")
    _distinct([array["name"] for array in arrays], place, "names of arrays")
    measured = {array["size"] for array in entry["arguments"] if "size" in array} | {
        extent
        for array in entry["arguments"]
        for extent in array["shape"]
        if isinstance(extent, str) and _IDENTIFIER.fullmatch(extent)
    }
    if measured != set(sizes):
        _refuse(f"{place}.sizes", "each name that shapes of arguments have, and no other,", sizes)
    ones = dict.fromkeys(sizes, 1)
    for kind in ("arguments", "constants", "scratch"):
        for n, array in enumerate(entry.get(kind, [])):
            _array(array, ones, kind == "constants", f"{place}.{kind}[{n}]")
    target, launch = entry["target"], entry["launch"]
    arch = Arch.parse(target["arch"])
    if target["vendor"] != arch.vendor:
        _refuse(f"{place}.target.vendor", f"the vendor of {arch.name}, {arch.vendor!r},", target["vendor"])
    threads = math.prod(launch["block"])
    if threads > arch.threads_per_block:
        _refuse(f"{place}.launch.block", f"a block of at most {arch.threads_per_block} threads", launch["block"])
    if launch["dynamic_shared_bytes"] > arch.shared_bytes_optin:
        most = f"at most {arch.shared_bytes_optin} bytes, what {arch.name} has,"
        _refuse(f"{place}.launch.dynamic_shared_bytes", most, launch["dynamic_shared_bytes"])
    for n, extent in enumerate(launch["grid"]):
        _expression(extent, ones, f"{place}.launch.grid[{n}]")
    by_name = {array["name"]: array for array in arrays}
    for n, parameter in enumerate(entry["machine_parameters"]):
        _machine_parameter(parameter, by_name, f"{place}.machine_parameters[{n}]")
    files = [*entry["files"].values(), *(constant["file"] for constant in entry["constants"])]
    return [file["name"] for file in files]


def _array(array: Mapping[str, Any], sizes: Mapping[str, int], is_constant: bool, place: str) -> None:
    shape, strides = array["shape"], array["strides"]
    if len(strides) != len(shape):
        _refuse(f"{place}.strides", f"a stride for each of {len(shape)} modes", strides)
    for n, step in enumerate(strides):
        _expression(step, sizes, f"{place}.strides[{n}]")
    if bool(shape) != ("written" in array and "alignment" in array):
        _refuse(place, "alignment and written with a shape, and neither without one,", sorted(array))
    if "size" in array and (shape or array["type"] not in _INTEGERS):
        _refuse(f"{place}.size", "of a number of an integer type, and of no other argument,", array["size"])
    if (array["role"] == Role.CONST.value) != is_constant:
        _refuse(f"{place}.role", "const of the constants, and of no others,", array["role"])
    if not is_constant:
        return
    if not shape or not all(type(n) is int and n >= 0 for n in (*shape, *strides)) or array["written"]:
        _refuse(place, "an array of fixed shape and strides that is only read", sorted(array))
    needed = span(array) * _TYPES[array["type"]].bytes
    if array["file"]["bytes"] != needed:
        _refuse(f"{place}.file.bytes", f"{needed}, by shape, strides and type,", array["file"]["bytes"])


def span(array: Mapping[str, Any]) -> int:  # Any: plain data
    """Return how many elements of memory a constant array takes, the gaps between its rows included."""
    reach: int = sum((n - 1) * step for n, step in zip(array["shape"], array["strides"], strict=True))
    return 1 + reach


def _machine_parameter(parameter: Mapping[str, Any], arrays: Mapping[str, Mapping[str, Any]], place: str) -> None:
    array, part = arrays.get(parameter["argument"]), parameter["part"]
    if array is None:
        _refuse(f"{place}.argument", f"one of {', '.join(arrays)}", parameter["argument"])
    if ("mode" in parameter) != (part in ("shape", "stride")):
        _refuse(place, "a mode of shapes and strides, and of nothing else,", sorted(parameter))
    if (part == "value") == bool(array["shape"]):
        _refuse(f"{place}.part", "value of a number, and another part of an array,", part)
    if "mode" in parameter:
        if parameter["mode"] >= len(array["shape"]):
            _refuse(f"{place}.mode", f"one of the {len(array['shape'])} modes of {array['name']}", parameter["mode"])
        if parameter["type"] not in _INTEGERS:
            _refuse(f"{place}.type", "an integer type", parameter["type"])
    elif parameter["type"] != array["type"]:
        _refuse(f"{place}.type", f"that of {array['name']}, {array['type']},", parameter["type"])


def _refuse(place: str, needed: str, came: object) -> NoReturn:
    where = f"{place} " if place else ""
    raise ScheduleError(
        f"the manifest cannot be used: {where}is {_shown(came)}; {needed} is needed".replace(
            ", is needed", " is needed"
        ),
        help="build the package again; manifests are not edited",
    )


def _shown(x: object) -> str:
    """Return a value as a message shows it: not all of what is long."""
    if type(x) is int and x.bit_length() > 128:
        return f"a number of {x.bit_length()} bits"
    if isinstance(x, (list, dict)):
        return f"{'a list' if isinstance(x, list) else 'a table'} of {len(x)}" if len(x) > 8 else ascii(x)[:200]
    text = ascii(x) if isinstance(x, str) and not x.isprintable() else repr(x)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _distinct(names: Sequence[str], place: str, what: str) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        _refuse(place, f"a list of different {what}", sorted(twice))


# The parts of the schema, each a function of a value and its place.


def _whole(least: int, most: int = _LARGEST) -> Check:
    def check(x: Any, place: str) -> None:
        if type(x) is not int or not least <= x <= most:
            _refuse(place, f"a whole number from {least} to {most}", x)

    return check


def _text(pattern: re.Pattern[str] | None = None, what: str = "a text") -> Check:
    def check(x: Any, place: str) -> None:
        fits = isinstance(x, str) and len(x) <= _MOST_TEXT and not any("\ud800" <= c <= "\udfff" for c in x)
        if not fits or (pattern is not None and pattern.fullmatch(x) is None):
            _refuse(place, what, x)

    return check


def is_device(file: str) -> bool:
    """Say whether Windows takes a file's name for a device, in whatever case and with whatever ending."""
    return _DEVICE.fullmatch(file.partition(".")[0]) is not None


def _file_name(x: Any, place: str) -> None:
    if not isinstance(x, str) or _FILE_NAME.fullmatch(x) is None or x.endswith(".") or ".." in x or is_device(x):
        _refuse(place, "the name of a file beside the manifest, of letters, digits, _, - and .,", x)


def _array_name(x: Any, place: str) -> None:
    if not isinstance(x, str) or not x.isidentifier() or keyword.iskeyword(x) or len(x) > _MOST_TEXT:
        _refuse(place, "an identifier of Python, and no keyword,", x)


def _one_of(*values: str) -> Check:
    def check(x: Any, place: str) -> None:
        if not isinstance(x, str) or x not in values:
            _refuse(place, f"one of {', '.join(values)}", x)

    return check


def _flag(x: Any, place: str) -> None:
    if not isinstance(x, bool):
        _refuse(place, "true or false", x)


def _list(item: Check, length: int | None = None) -> Check:
    def check(x: Any, place: str) -> None:
        if not isinstance(x, list) or len(x) > _MOST_ITEMS or (length is not None and len(x) != length):
            _refuse(place, f"a list{'' if length is None else f' of {length}'}", x)
        for n, value in enumerate(x):
            item(value, f"{place}[{n}]")

    return check


def _or_none(inner: Check) -> Check:
    return lambda x, place: None if x is None else inner(x, place)


def _table(needed: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    known = {**needed, **optional}

    def check(x: Any, place: str) -> None:
        if not isinstance(x, dict):
            _refuse(place, "a table", x)
        for key in x:
            if key not in known:
                _refuse(
                    f"{place}.{_shown(key)}" if place else _shown(key), f"one of the keys {', '.join(known)}", x[key]
                )
        for key in needed:
            if key not in x:
                raise ScheduleError(
                    f"the manifest cannot be used: {place or 'it'} has no {key}",
                    help="build the package again; manifests are not edited",
                )
        for key, value in x.items():
            known[key](value, f"{place}.{key}" if place else key)

    return check


def _plain(x: Any, place: str, depth: int = 0) -> None:
    """Check values that are shown and not used: numbers, texts, and lists and tables of them."""
    if depth > 8 or (isinstance(x, float) and not math.isfinite(x)):
        _refuse(place, "a finite number, a text, or a list or table of them, at most 8 deep,", x)
    if isinstance(x, list):
        for n, value in enumerate(x):
            _plain(value, f"{place}[{n}]", depth + 1)
    elif isinstance(x, dict):
        for key, value in x.items():
            _text()(key, f"{place}'s key")
            _plain(value, f"{place}.{_shown(key)}", depth + 1)
    elif isinstance(x, str):
        _text()(x, place)
    elif x is not None and not isinstance(x, (bool, int, float)):
        _refuse(place, "a number or a text", x)


def _plain_table(x: Any, place: str) -> None:
    if not isinstance(x, dict):
        _refuse(place, "a table", x)
    _plain(x, place)


def _size(least: int, most: int = _LARGEST) -> Check:
    whole, text = _whole(least, most), _text()
    return lambda x, place: text(x, place) if isinstance(x, str) else whole(x, place)


def _power_of_two(x: Any, place: str) -> None:
    if type(x) is not int or not 1 <= x <= 4096 or x & (x - 1):
        _refuse(place, "a power of two up to 4096", x)


def _expression(x: int | str, sizes: Mapping[str, int], place: str) -> None:
    if isinstance(x, str):
        try:
            evaluate(x, sizes)
        except ScheduleError:
            _refuse(place, f"a number or an expression of ({', '.join(sizes)}) with + - * //", x)


def _each(*checks: Check) -> Check:
    def check(x: Any, place: str) -> None:
        _list(lambda x, place: None, len(checks))(x, place)
        for n, (inner, value) in enumerate(zip(checks, x, strict=True)):
            inner(value, f"{place}[{n}]")

    return check


_name = _text(_IDENTIFIER, "an identifier of C")
_FILE = _table({"name": _file_name, "sha256": _text(_DIGEST, "a SHA-256 in hex"), "bytes": _whole(0, _MOST_BYTES)}, {})
_ARRAY = {
    "name": _array_name,
    "role": _one_of(*(role.value for role in Role)),
    "type": _one_of(*_TYPES),
    "shape": _list(_size(0)),
    "strides": _list(_size(-_LARGEST)),
}
_OF_ARRAYS = {"alignment": _power_of_two, "written": _flag}  # and not of numbers
_FUNCTION = _table(
    {
        "name": _name,
        "base_name": _text(),
        "parameters": _plain_table,
        "target": _table(
            {"name": _text(), "arch": _one_of(*ARCHES), "vendor": _one_of("nvidia", "amd")},
            {},
        ),
        "entry": _name,
        "sizes": _list(_name),
        "arguments": _list(_table(_ARRAY, {**_OF_ARRAYS, "size": _name})),
        "constants": _list(_table({**_ARRAY, "file": _FILE}, _OF_ARRAYS)),
        "machine_parameters": _list(
            _table(
                {"argument": _array_name, "type": _one_of(*_TYPES), "part": _one_of(*_PARTS)},
                {"mode": _whole(0, _MOST_ITEMS)},
            )
        ),
        "launch": _table(
            {
                "grid": _each(*(_size(1, most) for most in _GRID)),
                "block": _each(*(_whole(1, most) for most in _BLOCK)),
                "dynamic_shared_bytes": _whole(0, 2**31 - 1),
            },
            {"cluster": _or_none(_each(*[_whole(1, 8)] * 3))},
        ),
        "files": _table({}, {"source": _FILE, "machine_code": _FILE}),
    },
    {
        "scratch": _list(_table(_ARRAY, _OF_ARRAYS)),
        "machine_code": _text(),
        "compiler": _text(),
        "resources": _plain_table,
    },
)
_MANIFEST = _table(
    {
        "format": _whole(FORMAT, FORMAT),
        "name": _name,
        "tilewright": _text(),
        "functions": _list(_FUNCTION),
        "digest": _text(_DIGEST, "a SHA-256 in hex"),
    },
    {"header": _or_none(_file_name)},
)
