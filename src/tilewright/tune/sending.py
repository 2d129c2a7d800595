"""Functions on their way to another process: by module and name, and by the text of their file where that fails.

A worker on another machine has the packages of the one that tunes, but seldom its script. It may also have an older
copy of a module, whose kernels would be measured for those that are meant. So the text goes along: a function that the
worker finds by its name counts only where it comes from the same text, and else the text is run there as a module of
its own, in which `__name__ == "__main__"` does not hold.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import inspect
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.pickling import find, not_found, place_of

_loading = threading.Lock()


@dataclass(frozen=True)
class Sent:
    """Where a function is found, how many decorators lie around it, and the text of its file ("" for none)."""

    module: str
    name: str
    depth: int
    text: str


def send(function: Any, what: str) -> Sent:  # Any: a function, or what a decorator made of one
    """Return what another process needs to have the same function.

    Raises `ArgumentError` for a function that has no name at the top of a module, such as a lambda.
    """
    module: str | None = getattr(function, "__module__", None)
    name = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", ""))
    place = place_of(function, module, name, lambda found: getattr(found, "_code", found) is _code_of(function))
    if place is None:
        raise not_found(f"{what}, which goes to workers,", module, name)
    return Sent(*place, _file_text(function))


def receive(sent: Sent) -> Any:  # Any: what `send` got
    """Return the function, in another process.

    Raises `ArgumentError` where neither its name nor its text gives it.
    """
    try:
        found = find(sent.module, sent.name, sent.depth)
    except Exception as error:  # what importing the module raises, whatever that is
        missing: Exception | None = error
    else:
        if not sent.text or _file_text(found) == sent.text:
            return found
        missing = None
    if not sent.text:
        raise ArgumentError(
            f"a worker finds no {sent.name} of module {sent.module!r}, and it was sent without a file: {missing}",
            help="define it in a file that can be imported, or that is read as a script",
        )
    try:
        module = _module_of(sent.module.rpartition(".")[0], sent.text)
    except Exception as error:
        raise ArgumentError(
            f"a worker cannot run the file of {sent.name}: {type(error).__name__}: {error}",
            help="install on the workers what the file imports, and put what only the script does under "
            'if __name__ == "__main__"',
        ) from error
    return find(module, sent.name, sent.depth)


def _code_of(function: Any) -> Any:
    return getattr(function, "_code", function)


def _file_text(function: Any) -> str:
    """Return the text of the file that defines a function, "" where there is no file."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return "" if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError):
        return ""


def _module_of(package: str, text: str) -> str:
    """Return the name of a module with this text, made once in a process."""
    name = f"tilewright_sent_{hashlib.sha256(f'{package} {text}'.encode()).hexdigest()[:16]}"
    with _loading:
        if name not in sys.modules:
            file = _folder() / f"{name}.py"  # kernels are read from a file
            file.write_text(text, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            module.__package__ = package  # so that relative imports mean what they do in the package
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
    return name


@functools.cache
def _folder() -> Path:
    """Return a folder that nobody else may write to, as what is in it is run."""
    folder = tempfile.mkdtemp(prefix="tilewright-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
