"""Kernels of a file: finding one, the arguments to compile it with, and `tilewright show FILE:KERNEL`."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import click

from tilewright.cli.failures import users_code
from tilewright.cli.output import json_option, print_json
from tilewright.errors import ArgumentError, LayoutError, TilewrightError
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
        raise click.BadParameter(f"file {path} does not exist", param_hint="FILE")
    # A name of its own and a place at the path's end: a file called copy.py, or one beside it, must not stand in for
    # the standard library's module of that name.
    name = f"tilewright_show_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{path} is not a Python file", param_hint="FILE")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.resolve().parent))
    try:
        with users_code(path):
            spec.loader.exec_module(module)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not a Python file: {error}", param_hint="FILE") from error
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
    title = f"example_{name.rpartition('.')[2]}()"
    example = getattr(module, title[:-2], None)
    signature = inspect.signature(kernel)  # type: ignore[arg-type]  # kernels are callable
    parameters = signature.parameters
    if example is not None:
        example_grid, example_block, values = _called(example, title)
        grid, block = grid or example_grid, block or example_block
        try:
            args = signature.bind_partial(*values).arguments
        except TypeError as error:
            raise ArgumentError(f"the arguments that {title} returns: {error}", help=f"{name}{signature}") from None
    several: dict[str, tuple[Any, ...]] = {}  # of a parameter *NAME, which --arg may give more than once
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in parameters:
            raise click.BadParameter(
                f"{text!r} is not NAME=VALUE with a NAME of: {', '.join(parameters)}", param_hint="--arg"
            )
        args[key] = parse_value(value, module)
        if parameters[key].kind is inspect.Parameter.VAR_POSITIONAL:
            args[key] = several[key] = (*several.get(key, ()), args[key])
    missing = [p.name for p in parameters.values() if p.name not in args and p.default is p.empty and p.kind in _ONE]
    if missing:
        raise ArgumentError(
            f"{name} needs a value for {', '.join(missing)}",
            help=f"pass --arg {missing[0]}=float32[2048,2048] and so on for each, "
            f"or define {title} that returns (grid, block, args)",
        )
    bound = inspect.BoundArguments(signature, {p: args[p] for p in parameters if p in args})
    bound.apply_defaults()
    if block is None:
        return Launch(kernel, bound.args)
    return Launch(kernel[grid or 1, block], bound.args)  # type: ignore[index]  # configured kernels are not in the protocol


_ONE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def _called(example: Any, title: str) -> Any:  # Any: whatever the file calls so
    """Return what example_<kernel>() of a file returns: the grid, the block and the arguments."""
    try:
        inspect.signature(example).bind()
    except TypeError as error:
        raise ArgumentError(f"{title} cannot be called: {error}", help="define it without parameters") from None
    found = example()
    if not (isinstance(found, (tuple, list)) and len(found) == 3 and isinstance(found[2], (tuple, list))):
        raise ArgumentError(f"{title} returned {excerpt(repr(found))}", help="return (grid, block, args), args a tuple")
    return found


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
        if not text.strip().isdigit():
            raise LayoutError(f"{text.strip()!r} among extents is not a number; [:,:] leaves all to the launch")
        return whole(text.strip())
    except LayoutError as error:
        raise click.BadParameter(str(error), param_hint="--arg") from None


def _is_kernel(value: object) -> bool:
    return isinstance(value, Kernel) and not inspect.isclass(value)


# The kernel is an identifier, so that the colon of a Windows drive stays part of the file.
TARGET = re.compile(r"(?P<file>.+?)(:(?P<kernel>[^\W\d][\w.]*))?")


def _arch(context: click.Context, parameter: click.Parameter, name: str) -> str:
    from tilewright.arch import Arch

    try:
        return Arch.parse(name).name
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command()
@click.argument("target", metavar="FILE[:KERNEL]")
@click.option("--arch", default="sm_90a", show_default=True, callback=_arch, help="The target to compile for.")
@click.option("--ptx", "form", flag_value="ptx", help="Show PTX instead of C++.")
@click.option("--sass", "form", flag_value="sass", help="Show machine code instead of C++.")
@click.option(
    "--arg",
    "texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument: an array as float32[2048,2048] or float32[:,:], or a Python expression in FILE's names.",
)
@click.option("--grid", help="The grid, as 64 or 64,32.")
@click.option("--block", help="The threads of a block, as 256 or 32,8.")
@json_option
def show(
    target: str, arch: str, form: str | None, texts: tuple[str, ...], grid: str | None, block: str | None, as_json: bool
) -> None:
    """Show the CUDA or HIP C++, PTX or machine code of a kernel, and what it uses. No GPU is needed.

    FILE is run, so that it defines its kernels. The arguments come from `--arg`, or from a function of FILE called
    example_KERNEL that returns (grid, block, args). Without KERNEL, the kernels of FILE are listed.
    """
    match = TARGET.fullmatch(target)
    assert match is not None, target
    path, name = match["file"], match["kernel"]
    module = load_file(path)
    if name is None:
        _list(kernel_names(module), as_json)
        return
    kernel = find_kernel(module, name)
    form = form or "source"
    with users_code(path):
        launch = launch_of(module, kernel, name, texts, dimensions(grid, "--grid"), dimensions(block, "--block"))
        text = str(getattr(launch.target, form)(*launch.args, arch=arch))
        resources, problem = _resources(launch.target, launch.args, arch)
    if as_json:
        print_json({"kernel": name, "arch": arch, form: text, "resources": resources, "problem": problem})
        return
    _print_code(text, form)
    for key, value in resources.items():
        click.echo(f"// {key.replace('_', ' ')}: {value}")
    if problem is not None:
        click.echo(problem, err=True)


def _list(names: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"kernels": names})
    else:
        click.echo("\n".join(names) if names else "No kernel is defined there.")


def _resources(kernel: Kernel, args: tuple[Any, ...], arch: str) -> tuple[dict[str, Any], str | None]:
    """Return the resources, and where the compiler is missing or refuses, the reason instead."""
    try:
        found = kernel.resources(*args, arch=arch)
    except TilewrightError as error:
        # The text is there and is what was asked for; without a compiler there are no resources to tell.
        return {}, f"resources are not known: {error}"
    if isinstance(found, Mapping):
        return dict(found), None
    assert dataclasses.is_dataclass(found) and not isinstance(found, type), found
    return dataclasses.asdict(found), None


def _print_code(text: str, form: str) -> None:
    if form != "source" or not sys.stdout.isatty():
        click.echo(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.syntax import Syntax

    # As text, because a console cuts the lines of a Syntax that do not fit.
    Console().print(Syntax("", "cuda", background_color="default").highlight(text.rstrip("\n")), soft_wrap=True)
