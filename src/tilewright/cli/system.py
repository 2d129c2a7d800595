"""`tilewright info` and `cache`: versions, devices, what is missing, and the folder of compiled kernels.

Each fact is asked for by itself: what fails is reported as absent.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import textwrap
from pathlib import Path
from typing import Any

import click

from tilewright._version import __version__
from tilewright.cli.output import format_bytes, json_option, print_json, terminal_width
from tilewright.errors import TilewrightError

# What is shown, and the distributions that bring it: the wheels of CuPy carry the CUDA release in their names. The
# last three hold arrays on a GPU, any one of them will do.
_DISTRIBUTIONS = {
    **{name: (name,) for name in ("numpy", "ml_dtypes", "cuda-pathfinder", "nvidia-cuda-nvdisasm")},
    **{"torch": ("torch",), "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"), "jax": ("jax",)},
}


def _versions() -> dict[str, str | None]:
    """Return the versions of all that takes part, None for what is not there."""
    found: dict[str, str | None] = {"tilewright": __version__, "python": platform.python_version()}
    for name, distributions in _DISTRIBUTIONS.items():
        found[name] = next((version for version in map(_version_of, distributions) if version is not None), None)
    found["NVRTC"] = _nvrtc_version()
    found["clang"] = _clang_version()
    found["driver (CUDA)"] = _driver_version()
    return found


def _devices() -> list[dict[str, Any]]:
    """Return what is known of each GPU, as plain data."""
    from tilewright.runtime import driver

    return [
        {
            "index": device.ordinal,
            "name": device.name,
            "arch": device.arch.name,
            "multiprocessors": device.multiprocessors,
            "memory_bytes": device.memory_bytes,
        }
        for device in map(driver.device_properties, range(driver.device_count()))
    ]


def _cache() -> dict[str, Any]:
    """Return the cache's folder, its number of kernels and their size; under "problem" why it is unusable, if it is."""
    from tilewright.runtime.cache import default_cache
    from tilewright.runtime.folders import shown

    disk_cache = default_cache()
    entries = disk_cache.entries()
    problem = disk_cache.problem()
    return {
        "folder": shown(disk_cache.folder),
        "kernels": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        **({} if problem is None else {"problem": problem}),
    }


def _launcher() -> str:
    """Return which launcher kernels are launched by, and why."""
    from tilewright.runtime import compiled
    from tilewright.runtime.folders import shown

    try:
        return shown(compiled.report())
    except TilewrightError as error:
        return error.summary


def _operators() -> str | None:
    """Return who makes calls of operators, and why; None without PyTorch, which takes seconds to import."""
    from tilewright.runtime.folders import shown

    try:
        from tilewright.torch.repeats import EXTENSION

        return shown(EXTENSION.report())
    except TilewrightError as error:
        return error.summary
    except (ImportError, OSError):
        return None


def _missing() -> list[dict[str, str]]:
    """Return what is missing, what it is for, and the command that installs it."""
    from tilewright.runtime import driver
    from tilewright.runtime.libraries import INSTALL, find_program

    found = []

    def note(what: str, purpose: str, install: str) -> None:
        found.append({"what": what, "purpose": purpose, "install": install})

    if _nvrtc_version() is None:
        note("NVRTC, the CUDA compiler", "PTX, machine code and running on a GPU", INSTALL)
    unavailable = driver.why_unavailable()
    if unavailable is not None:
        # The reason's first line; the rest is for those who tried to launch.
        reason = unavailable.splitlines()[0]
        note(f"a usable GPU ({reason})", "running on a GPU", "https://www.nvidia.com/drivers")
    elif all(importlib.util.find_spec(name) is None for name in ("torch", "cupy", "jax")):
        note("a library for arrays on the GPU", "running on a GPU", "pip install torch")
    if find_program("nvdisasm") is None and find_program("cuobjdump") is None:
        note("nvdisasm, the disassembler", "kernel.sass() and `tilewright show --sass`", INSTALL)
    if _clang_version() is None:
        note("clang 14 or later", "machine code for AMD's gfx908 and gfx90a (gfx942: clang 17)", "apt install clang-14")
    if importlib.util.find_spec("typst") is None:
        note("typst, the typesetter", "drawings of layouts", 'pip install "tilewright[draw]"')
    return found


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvrtc_version() -> str | None:
    from tilewright.runtime.nvrtc import nvrtc_version

    try:
        return "{}.{}".format(*nvrtc_version())
    except TilewrightError:
        return None


def _clang_version() -> str | None:
    from tilewright.runtime.clang import clang_version

    return clang_version()


def _driver_version() -> str | None:
    from tilewright.runtime import driver

    try:
        return "{}.{}".format(*driver.driver_version())
    except TilewrightError:
        return None


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, devices, the cache, the launchers, and what is missing with the command that installs it."""
    facts: dict[str, Any] = {
        "versions": _versions(),
        "devices": _devices(),
        "cache": _cache(),
        "launcher": _launcher(),
        "operators": _operators(),
        "missing": _missing(),
    }
    if as_json:
        print_json(facts)
    else:
        _print_info(facts)


def _print_info(facts: dict[str, Any]) -> None:
    width = max(len(name) for name in facts["versions"])
    for name, version in facts["versions"].items():
        click.echo(f"{name:{width}}  {version or 'not there'}")
    click.echo()
    if not facts["devices"]:
        click.echo("no GPU: kernels run on the simulator")
    for device in facts["devices"]:
        memory = format_bytes(device["memory_bytes"])
        click.echo(_wrapped(f"GPU {device['index']}: {device['name']}, {device['arch']}, {memory}", ""))
    cache = facts["cache"]
    click.echo(
        _wrapped(f"cache: {cache['folder']}, {cache['kernels']} compiled kernels, {format_bytes(cache['bytes'])}", "")
    )
    if "problem" in cache:
        click.echo(_wrapped(cache["problem"], "  "))
    click.echo(_wrapped(f"launcher: {facts['launcher']}", ""))
    if facts["operators"]:
        click.echo(_wrapped(f"operators of PyTorch: {facts['operators']}", ""))
    if facts["missing"]:
        click.echo("\nmissing:")
    for entry in facts["missing"]:
        click.echo(_wrapped(f"{entry['what']}, for {entry['purpose']}", "  "))
        click.echo(f"    {entry['install']}")  # a command or an address, to be copied: it stays in one line


def _wrapped(text: str, indent: str) -> str:
    """Return a text in lines that fit the terminal, a piped one as it is: `grep` finds it in one line."""
    width = terminal_width()
    if width is None:
        return indent + text
    return textwrap.fill(
        *(text, max(width, 24)),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def cache(ctx: click.Context, as_json: bool) -> None:
    """Show the size of the cache of compiled kernels, or clear it.

    The folder is TILEWRIGHT_CACHE_DIR where that is set.
    """
    ctx.obj = as_json  # `cache --json size` is `cache size --json`
    if ctx.invoked_subcommand is None:
        _show(as_json)


@cache.command()
@json_option
@click.pass_obj
def size(before: bool, as_json: bool) -> None:
    """Show the folder, the number of compiled kernels and their size."""
    _show(as_json or before)


@cache.command()
@json_option
@click.pass_obj
def clear(before: bool, as_json: bool) -> None:
    """Remove all compiled kernels."""
    from tilewright.runtime.cache import default_cache

    disk_cache = default_cache()
    _demand_cache(disk_cache.folder)
    size = disk_cache.size()
    removed = disk_cache.clear()
    facts = _cache()
    left, folder, problem = facts["kernels"], facts["folder"], facts.get("problem")
    if as_json or before:
        print_json(
            {"folder": folder, "removed": removed, "left": left, **({} if problem is None else {"problem": problem})}
        )
    else:
        click.echo(f"removed {removed} compiled kernels ({format_bytes(size - facts['bytes'])}) from {folder}")
        _tell(problem)
    if left:
        raise click.ClickException(f"{left} files could not be removed from {folder}")


def _demand_cache(folder: Path) -> None:
    """Raise `ClickException` for what no cache was ever in: no folder, or a folder with other things only."""
    from tilewright.runtime.folders import VARIABLE, is_temporary, shown

    help = f"set {VARIABLE} to the cache's folder, or leave it unset for the usual one"
    if not folder.exists():
        if os.environ.get(VARIABLE):
            raise click.ClickException(f"{shown(folder)} does not exist, so nothing was removed; {help}")
        return  # the usual folder, before the first kernel
    if not folder.is_dir():
        raise click.ClickException(f"{shown(folder)} is not a folder, so nothing was removed; {help}")
    names = [path.name for path in folder.iterdir()]
    if names and not any(re.fullmatch("[0-9a-f]{2}", name) or is_temporary(name) for name in names):
        raise click.ClickException(f"{shown(folder)} holds no compiled kernels, so nothing was removed; {help}")


def _show(as_json: bool) -> None:
    facts = _cache()
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{facts['folder']}: {facts['kernels']} compiled kernels, {format_bytes(facts['bytes'])}")
        _tell(facts.get("problem"))


def _tell(problem: str | None) -> None:
    if problem is not None:
        click.echo(f"warning: {problem}", err=True)
