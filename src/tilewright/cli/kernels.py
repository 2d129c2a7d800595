"""Find a kernel in a file, and the arguments to show it with."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import click

from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout.text import excerpt, whole

# An array without its data: float32[2048,2048], float32[:,:], with strides float32[64,64]:[1,64].
_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9]*_?)\[(?P<shape>[0-9:,\s]*)\](:\[(?P<stride>[0-9,\s]*)\])?")


@runtime_checkable
class Kernel(Protocol):
    """What `tilewright show` needs of a kernel, or of a kernel with its grid and block."""

    def source(self, *args: Any, arch: str) -> str: ...

    def resources(self, *args: Any, arch: str) -> Any: ...


@dataclass(frozen=True)
class Launch:
    """A kernel, configured where grid and block are known, and its arguments."""

    target: Kernel
    args: tuple[Any, ...]


def load_file(path: str) -> ModuleType:
    """Run the Python file `path` as a module; it may import the files beside it."""
    file = Path(path)
    if not file.is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="FILE")
    # A name of its own and a place at the path's end: a file called copy.py, or one beside it, must not stand in for
    # the standard library's module of that name.
    name = f"tilewright_show_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{path} is not a Python file", param_hint="FILE")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.resolve().parent))
    spec.loader.exec_module(module)
    return module


def kernel_names(module: ModuleType) -> list[str]:
    """Return the names of the kernels that `module` defines, methods as Class.method."""
    names = []
    for name, value in vars(module).items():
        if _is_kernel(value):
            names.append(name)
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            names += [f"{name}.{member}" for member, kernel in vars(value).items() if _is_kernel(kernel)]
    return names


def find_kernel(module: ModuleType, name: str) -> Kernel:
    """Return the kernel called `name` in `module`."""
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not _is_kernel(value):
        known = ", ".join(kernel_names(module)) or "none"
        reason = "is not defined" if value is None else "is not a kernel"
        raise click.BadParameter(f"{name} {reason} in {module.__file__}; its kernels: {known}", param_hint="KERNEL")
    assert isinstance(value, Kernel), value
    return value


def launch_of(
    module: ModuleType,
    kernel: Kernel,
    name: str,
    texts: Sequence[str],
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
) -> Launch:
    """Return `kernel` with the arguments of `texts` (NAME=VALUE), or those of the module's example_<kernel>()."""
    args: dict[str, Any] = {}
    example = getattr(module, f"example_{name.rpartition('.')[2]}", None)
    parameters = list(inspect.signature(kernel).parameters.values())  # type: ignore[arg-type]  # kernels are callable
    if example is not None:
        example_grid, example_block, values = example()
        grid, block = grid or example_grid, block or example_block
        args = dict(zip((parameter.name for parameter in parameters), values, strict=False))
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in {parameter.name for parameter in parameters}:
            known = ", ".join(parameter.name for parameter in parameters)
            raise click.BadParameter(f"{text!r} is not NAME=VALUE with a NAME of: {known}", param_hint="--arg")
        args[key] = parse_value(value, module)
    missing = [p.name for p in parameters if p.name not in args and p.default is inspect.Parameter.empty]
    if missing:
        raise ArgumentError(
            f"{name} needs a value for {', '.join(missing)}",
            help=f"pass --arg {missing[0]}=float32[2048,2048] and so on for each, "
            f"or define example_{name.rpartition('.')[2]}() that returns (grid, block, args)",
        )
    ordered = tuple(args.get(parameter.name, parameter.default) for parameter in parameters)
    if block is None:
        return Launch(kernel, ordered)
    return Launch(kernel[grid or 1, block], ordered)  # type: ignore[index]  # configured kernels are not in the protocol


def parse_value(text: str, module: ModuleType) -> Any:  # Any: an array's description or a Python value
    """Return what `text` says: an array without its data, or the value of a Python expression in `module`."""
    match = _ARRAY.fullmatch(text.strip())
    if match is not None:
        import tilewright as tw

        extents = [part.strip() for part in match["shape"].split(",") if part.strip()]
        shape = len(extents) if all(extent == ":" for extent in extents) else tuple(map(_whole, extents))
        stride = match["stride"]
        if stride is None:
            return tw.spec(match["dtype"], shape)
        return tw.spec(match["dtype"], shape, stride=tuple(_whole(part) for part in stride.split(",") if part.strip()))
    try:
        return eval(text, vars(module))
    except Exception as error:
        raise click.BadParameter(f"{text!r}: {type(error).__name__}: {error}", param_hint="--arg") from error


def dimensions(text: str | None, option: str) -> tuple[int, ...] | None:
    """Return the numbers of an option such as --grid 64,32; None where it was not given."""
    if text is None:
        return None
    match = re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10}){0,2}", text)
    if match is None:
        raise click.BadParameter(f"{excerpt(text)!r} is not one to three numbers with commas", param_hint=option)
    return tuple(int(part) for part in text.split(","))


def _whole(text: str) -> int:
    """Return an extent or a stride of an array."""
    try:
        return whole(text.strip())
    except LayoutError as error:
        raise click.BadParameter(str(error), param_hint="--arg") from None


def _is_kernel(value: object) -> bool:
    return isinstance(value, Kernel) and not inspect.isclass(value)
