"""Example files: what one hands to the runner (cases and their trials), and finding and loading the files."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

import tilewright.source
from tilewright.errors import ArgumentError
from tilewright.runtime.compiled import packed_files

Backend: TypeAlias = Literal["sim", "cuda"]

# Any: the element type is the example's matter
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True)
class Trial:
    """One kernel with its data in place, ready to launch.

    `launch` starts the kernel (or kernels) once and may be called again: it must overwrite its output, not add to
    it. `result` brings the output to the host, and `expected` is what NumPy computed; the check passes where no
    element differs by more than `limit`. `library` does the same work by the routine of the array library (torch's
    matmul, a device-to-device copy), for the ratio; it is timed on a GPU only.
    """

    launch: Callable[[], object]
    result: Callable[[], Array]
    expected: Array
    limit: float
    library: Callable[[], object] | None = None


@dataclass(frozen=True)
class Case:
    """One line of the demo's table.

    `prepare` makes the data; it runs just before the launch, so that only one case's arrays are alive at a time.
    `bytes_moved` (read plus written) or `flops` turn the time of a launch into a rate. A `simulated` case has its
    arrays on the host even where the others run on a GPU: its kernel is for another kind of GPU.
    """

    name: str
    size: str
    prepare: Callable[[], Trial]
    bytes_moved: int | None = None
    flops: int | None = None
    simulated: bool = False


CasesFunction: TypeAlias = Callable[[Backend, bool], list[Case]]


@dataclass(frozen=True)
class Report:
    """What came of a case.

    `seconds` is the time of one launch: on the simulator of the first one, tracing included, on a GPU the median
    of repeated ones. `error` is the greatest absolute difference from NumPy, `failure` what went wrong (None where
    the check passed), and `library_seconds` the time of the library's routine for the same work.
    """

    name: str
    size: str
    seconds: float | None = None
    error: float | None = None
    limit: float | None = None
    failure: str | None = None
    bytes_moved: int | None = None
    flops: int | None = None
    library_seconds: float | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None

    @property
    def rate(self) -> tuple[float, str] | None:
        """The rate and its unit, GB/s or GFLOP/s, where the case says how much work it does."""
        if not self.seconds:
            return None
        if self.flops is not None:
            return self.flops / self.seconds / 1e9, "GFLOP/s"
        if self.bytes_moved is not None:
            return self.bytes_moved / self.seconds / 1e9, "GB/s"
        return None

    @property
    def ratio(self) -> float | None:
        """How fast the kernel is against the library's routine: 2.0 takes half its time."""
        if not self.seconds or self.library_seconds is None:
            return None
        return self.library_seconds / self.seconds


@cache
def examples_folder() -> Path:
    """Return the folder of the examples: of the checkout, or a temporary one of what an installed package holds."""
    package = Path(tilewright.source.__file__).resolve().parent
    folder, archive = package.parent.parent / "examples", package / "examples.bz2"
    if any(folder.glob("*.py")):
        return folder
    files = packed_files(archive)
    if not files:
        raise ArgumentError(
            "this installation of tilewright has no examples",
            details=[f"looked for {folder} and {archive}"],
            help="install it again from a checkout: pip install .",
        )
    unpacked = Path(tempfile.mkdtemp(prefix="tilewright-examples-"))
    atexit.register(shutil.rmtree, unpacked, ignore_errors=True)
    for name, text in files.items():
        path = unpacked / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return unpacked


def example_files(folder: Path | None = None) -> list[Path]:
    """Return the example files of `folder` in the order of their names, without those that begin with `_`."""
    folder = examples_folder() if folder is None else folder
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def with_parts(files: list[Path]) -> list[Path]:
    """Return files followed by the example files in the folders beside them: examples/tensorcore and the like.

    Programs are left out: files that run by themselves and have no cases, such as those that `torchrun` starts.
    """
    folders = dict.fromkeys(path.parent for path in files)
    parts = [
        part for folder in folders for part in sorted(folder.iterdir()) if part.is_dir() and part.name[0] not in "_."
    ]
    return files + [path for part in parts for path in example_files(part) if not _is_program(path)]


def _is_program(path: Path) -> bool:
    # by its text: a program may import what need not be installed, and nothing may run before it is asked for
    text = path.read_text(encoding="utf-8")
    return '\nif __name__ == "__main__":' in text and "\ndef cases(" not in text


def load_example(path: Path) -> ModuleType:
    """Import one example file."""
    # Example files may begin with a digit and are not a package: load by path, under a name of their own. The name
    # has to be in sys.modules while the file runs, because dataclasses look their module up there.
    name = f"tilewright_example_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
