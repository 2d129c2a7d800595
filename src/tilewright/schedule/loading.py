"""Functions of packages, loaded from their manifests: what the Python loader of a package runs."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import operator
import os
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.dtypes import dtype
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.runtime import driver
from tilewright.runtime.addresses import range_of, ranges_meet
from tilewright.runtime.arrays import ArrayInfo, common_device, describe
from tilewright.runtime.launch import ExtentSlot, Packer, PointerSlot, ScalarSlot, Slot, StrideSlot, launch_config
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.plan import Signature
from tilewright.schedule.constants import Placed
from tilewright.schedule.schema import check, evaluate

_MOST_BYTES = 2**24  # of a manifest
_MOST_DIGITS = 4300  # of a number, which is the most that Python itself reads in a time that grows with its length
_MOST_ELEMENTS = 2**31  # offsets of elements are 32-bit in machine code that was compiled for unknown sizes


def load(path: str | Path) -> dict[str, LoadedFunction]:
    """Return the functions of a package by name, given its manifest (JSON, or TOML from Python 3.11 on).

    Nothing is loaded on a device before a function is called. Raises `ScheduleError` for what is not a manifest by
    `tilewright.schedule.schema`, one of another format or of more than 16 MiB, and one that was changed.
    """
    path = Path(path)
    try:
        manifest = check(_read(path))
    except ScheduleError as error:
        raise ScheduleError(
            f"{path.name} cannot be loaded: {error.summary}", details=error.details, help=error.help
        ) from None
    return {entry["name"]: LoadedFunction(entry, path.parent) for entry in manifest["functions"]}


def _read(path: Path) -> Any:  # Any: plain data
    try:
        text = read_file(path, _MOST_BYTES).decode("utf-8")
        if path.suffix != ".toml":
            return json.loads(
                text, object_pairs_hook=_table, parse_float=_finite, parse_constant=_finite, parse_int=_whole
            )
        try:
            import tomllib  # type: ignore[import-not-found, unused-ignore]  # there from Python 3.11 on
        except ImportError:
            raise ScheduleError("it is TOML, which Python reads from 3.11 on", help="load the JSON") from None
        return tomllib.loads(text, parse_float=_finite)
    except (OSError, ValueError) as error:
        raise ScheduleError(f"it cannot be read: {error}") from None
    except RecursionError:
        raise ScheduleError("it cannot be read: it is nested too deep") from None


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: plain data
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"a table has two keys {next(name for name in names if names.count(name) > 1)!a}")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text)} digits; at most {_MOST_DIGITS} are read")
    return int(text)


def read_file(path: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most so many bytes, and of nothing that can block or has no end.

    Raises `OSError` for what is not such a file.
    """
    flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"))
    handle = os.open(path, functools.reduce(operator.or_, flags, os.O_RDONLY))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if status.st_size > most:
            raise OSError(f"{path.name} has {status.st_size} bytes; at most {most} are read")
        return file.read(most)


class LoadedFunction:
    """One function of a package, called with arrays on a GPU in the order of `arguments`. Its entry is `manifest`."""

    def __init__(self, entry: Mapping[str, Any], folder: Path) -> None:  # Any: plain data
        self.manifest = entry
        self.folder = folder
        self.name: str = entry["name"]
        self.__name__: str = self.name
        self.arguments: tuple[str, ...] = tuple(argument["name"] for argument in entry["arguments"])
        held = (array["name"] for kind in ("constants", "scratch") for array in entry.get(kind, ()))
        self._signature = Signature([*self.arguments, *held])
        self._functions: dict[int, driver.Function] = {}
        self._constants: dict[int, tuple[Placed, ...]] = {}
        self._packers: dict[tuple[int, ...], Packer] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadedFunction, (self.manifest, self.folder)  # what is on devices stays in this process

    def __call__(self, *args: Any, stream: int | None = None) -> None:  # Any: arrays of any library, and numbers
        """Launch on the arrays' device, on their framework's current stream unless a CUDA handle is given.

        Raises `ArgumentError` for arrays of other types, shapes, strides or alignment than the manifest says, on the
        CPU or on several devices, and for an array that is only read and shares memory with one that is written.
        """
        infos = self._described(args)
        sizes = self.sizes(infos, args)
        for argument in self.manifest["arguments"]:
            if argument["name"] in infos:
                self._check(argument, infos[argument["name"]], sizes)
        self._refuse_overlaps(infos)
        ordinal = self._ordinal(infos)
        launch = self.manifest["launch"]
        grid = tuple(evaluate(extent, sizes) for extent in launch["grid"])
        if 0 in grid:
            return  # arrays without elements
        everything = (*args, *self._constants_on(ordinal), *self._scratch_on(ordinal, sizes))
        plan, (call, values, described) = self._signature.read(everything)
        handle = plan.stream(ordinal, described) if stream is None else stream
        shared = launch["dynamic_shared_bytes"]
        config = launch_config(grid, tuple(launch["block"]), shared)
        self._packer(tuple(plan.starts)).launch(self._function_on(ordinal), config, handle, values, call.layouts)

    def sizes(self, infos: Mapping[str, ArrayInfo], args: tuple[Any, ...] = ()) -> dict[str, int]:
        """Return the sizes that only the launch knows, from arrays and from arguments of their own.

        Raises `ArgumentError` where they disagree.
        """
        sizes: dict[str, int] = {}
        for argument in self.manifest["arguments"]:
            info = infos.get(argument["name"])
            for extent, given in zip(argument["shape"], () if info is None else info.shape, strict=False):
                if extent in self.manifest["sizes"] and sizes.setdefault(extent, given) != given:
                    assert info is not None
                    raise ArgumentError(
                        f"argument {argument['name']!r} of {self.name} has shape {info.shape}; "
                        f"{extent} is {sizes[extent]} by another array"
                    )
        for argument, value in zip(self.manifest["arguments"], args, strict=False):
            name = argument.get("size")
            if name is None:
                continue
            if value != int(value) or not 0 <= value < _MOST_ELEMENTS:
                raise ArgumentError(f"argument {argument['name']!r} of {self.name} is {value}, which is not a size")
            if sizes.setdefault(name, int(value)) != value:
                raise ArgumentError(
                    f"argument {argument['name']!r} of {self.name} is {value}, and by an array it is {sizes[name]}"
                )
        return sizes

    def _described(self, args: tuple[Any, ...]) -> dict[str, ArrayInfo]:
        if len(args) != len(self.arguments):
            raise ArgumentError(f"{self.name} takes ({', '.join(self.arguments)}), got {len(args)} arguments")
        infos: dict[str, ArrayInfo] = {}
        for argument, value in zip(self.manifest["arguments"], args, strict=True):
            info = describe(value)
            if bool(argument["shape"]) != (info is not None):
                wanted = "an array" if argument["shape"] else "a number"
                raise ArgumentError(
                    f"argument {argument['name']!r} of {self.name} is a {type(value).__name__}; {wanted} is needed"
                )
            if info is not None:
                infos[argument["name"]] = info
        return infos

    def _check(self, argument: Mapping[str, Any], info: ArrayInfo, sizes: Mapping[str, int]) -> None:
        what = f"argument {argument['name']!r} of {self.name}"
        if len(info.shape) != len(argument["shape"]):
            raise ArgumentError(f"{what} has shape {info.shape}; {len(argument['shape'])} modes are needed")
        shape = tuple(evaluate(extent, sizes) for extent in argument["shape"])
        strides = tuple(evaluate(step, sizes) for step in argument["strides"])
        empty = 0 in shape
        same = all(a == b or n == 1 or empty for a, b, n in zip(info.strides, strides, shape, strict=True))
        if info.dtype is not dtype(argument["type"]):
            raise ArgumentError(f"{what} is of {info.dtype}; {argument['type']} is needed")
        if info.shape != shape or not same:
            raise ArgumentError(
                f"{what} has shape {info.shape} and strides {info.strides}; "
                f"shape {shape} and strides {strides} are needed"
            )
        if info.pointer % argument["alignment"]:
            raise ArgumentError(f"{what} does not begin at a multiple of {argument['alignment']} bytes")
        if argument["written"] and not info.writable:
            raise ArgumentError(f"{what} is written, and the array is read-only")
        if info.span > _MOST_ELEMENTS and sizes:
            raise ArgumentError(f"{what} spans {info.span} elements; at most {_MOST_ELEMENTS} are possible")

    def _refuse_overlaps(self, infos: Mapping[str, ArrayInfo]) -> None:
        written = {a["name"] for a in self.manifest["arguments"] if a.get("written")}
        ranges = {name: range_of(info) for name, info in infos.items()}
        for out in written & set(ranges):
            for name, reached in ranges.items():
                if name not in written and ranges_meet(reached, ranges[out]):
                    raise ArgumentError(
                        f"argument {name!r} of {self.name} shares memory with {out!r}, which is written",
                        help="pass a copy of one of them",
                    )

    def _ordinal(self, infos: Mapping[str, ArrayInfo]) -> int:
        target = self.manifest["target"]
        if target["vendor"] != "nvidia":
            raise ScheduleError(f"{self.name} is for {target['arch']}, and functions are launched on NVIDIA GPUs only")
        device = common_device(tuple(infos.values()), tuple(infos)) if infos else 0
        if not isinstance(device, int):
            raise ArgumentError(
                f"{self.name} runs on a GPU, and its arguments are on the CPU",
                help="pass CUDA arrays; the simulator runs what plan.build() and package.add() return",
            )
        return device

    def _constants_on(self, ordinal: int) -> tuple[Placed, ...]:
        found = self._constants.get(ordinal)
        if found is None:
            found = self._constants[ordinal] = tuple(
                Placed(DeviceArray.from_numpy(memory, ordinal=ordinal), tuple(entry["shape"]), tuple(entry["strides"]))
                for memory, entry in zip(self._constant_values, self.manifest["constants"], strict=True)
            )
        return found

    @cached_property
    def _constant_values(self) -> tuple[np.ndarray[Any, Any], ...]:
        return tuple(
            np.frombuffer(self._read(entry["file"]), dtype(entry["type"]).numpy) for entry in self.manifest["constants"]
        )

    def _scratch_on(self, ordinal: int, sizes: Mapping[str, int]) -> tuple[Placed, ...]:
        """Return memory for the arrays that live as long as this launch."""
        found = []
        for entry in self.manifest.get("scratch", ()):
            shape = tuple(evaluate(extent, sizes) for extent in entry["shape"])
            strides = tuple(evaluate(step, sizes) for step in entry["strides"])
            memory = np.zeros(max(math.prod(shape), 1), dtype(entry["type"]).numpy)
            found.append(Placed(DeviceArray.from_numpy(memory, ordinal=ordinal), shape, strides))
        return tuple(found)

    def _function_on(self, ordinal: int) -> driver.Function:
        found = self._functions.get(ordinal)
        if found is None:
            shared = self.manifest["launch"]["dynamic_shared_bytes"]
            found = driver.load_function(
                self.machine_code, self.manifest["entry"], ordinal=ordinal, dynamic_shared_bytes=shared
            )
            self._functions[ordinal] = found
        return found

    @cached_property
    def machine_code(self) -> bytes:
        """The machine code. Raises `ScheduleError` where the package has none, or another than was written."""
        file = self.manifest["files"].get("machine_code")
        if file is None:
            why = self.manifest.get("machine_code", "the package was built without it")
            raise ScheduleError(f"{self.name} has no machine code: {why}")
        return self._read(file)

    def _read(self, file: Mapping[str, Any]) -> bytes:
        try:
            folder = self.folder.resolve()
            path = (folder / file["name"]).resolve()
        except (OSError, RuntimeError) as error:  # links in a circle
            raise ScheduleError(f"{self.name} cannot be loaded: {error}") from None
        if path.parent != folder:
            raise ScheduleError(
                f"{file['name']} of {self.name} is a link to {path}, outside of the package's folder",
                help="put the file itself beside the manifest",
            )
        try:
            data = read_file(path, file["bytes"])
        except OSError as error:
            raise ScheduleError(f"{self.name} cannot be loaded: {error}") from None
        if len(data) != file["bytes"] or hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise ScheduleError(
                f"{file['name']} is not the file that the manifest names: its size or its hash differs",
                help="build the package again; all its files belong together",
            )
        return data

    def _packer(self, starts: tuple[int, ...]) -> Packer:
        found = self._packers.get(starts)
        if found is None:
            names = self._signature.names
            slots = [
                _slot(parameter, names.index(parameter["argument"]))
                for parameter in self.manifest["machine_parameters"]
            ]
            found = self._packers[starts] = Packer(slots, starts)
        return found

    def __repr__(self) -> str:
        return f"<packaged function {self.name}({', '.join(self.arguments)})>"


def _slot(parameter: Mapping[str, Any], argument: int) -> Slot:
    part, element = parameter["part"], dtype(parameter["type"])
    if part == "pointer":
        return PointerSlot(argument)
    if part == "shape":
        return ExtentSlot(argument, parameter["mode"], element)
    return StrideSlot(argument, parameter["mode"], element) if part == "stride" else ScalarSlot(argument, element)
