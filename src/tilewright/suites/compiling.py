"""From a Python function to machine code: tracing and passes, CUDA C++, NVRTC, and the way through the cache."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.bench.progress import Progress
from tilewright.demo.examples import example_files, examples_folder, load_example
from tilewright.launch import Kernel
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.nvrtc import nvrtc_version
from tilewright.suites.report import Column, Report, Row, told

_COLUMNS = (
    Column("trace_ms", "trace, passes ms", "{:.1f}"),
    Column("text_ms", "CUDA C++ ms", "{:.1f}"),
    Column("nvrtc_ms", "NVRTC ms", "{:.1f}"),
    Column("cached_ms", "from cache ms", "{:.2f}"),
    Column("lines", "lines"),
    Column("registers", "registers"),
    Column("spills", "spills"),
)


def new_report(arch: str) -> Report:
    """Return the report before anything is measured. Raises `CompileError` without NVRTC."""
    nvrtc_version()
    return Report("compile", f"the kernels of the examples, compiled for {arch}", _COLUMNS, {"arch": arch})


def measure(report: Report) -> None:
    """Compile each kernel that an example shows, in a cache folder of its own; rows land in `report` as they come."""
    kernels = list(_kernels())
    # What a process imports and loads once is not charged to a kernel.
    importlib.import_module("tilewright.backends.cuda")
    with tempfile.TemporaryDirectory() as folder, Progress("compiling", len(kernels)) as bar:
        warm = 'extern "C" __global__ void nothing() {}'
        DiskCache(Path(folder)).compile(warm, name="nothing", arch=report.settings["arch"])
        for name, kernel, launch in kernels:
            bar.describe(name)
            report.rows.append(_row(name, kernel, launch, report.settings["arch"], Path(folder)))
            bar.advance()


def _kernels() -> Iterator[tuple[str, Kernel, Callable[[], tuple[Any, Any, tuple[Any, ...]]]]]:
    folder = examples_folder()
    for path in (*example_files(folder), *example_files(folder / "sgemm")):
        module = load_example(path)
        for name, kernel in vars(module).items():
            example = getattr(module, f"example_{name}", None)
            if isinstance(kernel, Kernel) and example is not None and _is_own(kernel, module):
                yield f"{path.stem}:{name}", kernel, example


def _is_own(kernel: Kernel, module: ModuleType) -> bool:
    return kernel.__module__ == module.__name__


def _row(
    name: str, kernel: Kernel, launch: Callable[[], tuple[Any, Any, tuple[Any, ...]]], arch: str, folder: Path
) -> Row:
    row = Row(name)
    try:
        _, block, arguments = launch()
        begin = time.perf_counter()
        lowered = kernel.lower(*arguments, arch=arch, block=block)
        traced = time.perf_counter()
        cuda = lowered.cuda
        written = time.perf_counter()
        module = DiskCache(folder).compile(cuda.text, name=cuda.name, arch=arch)
        compiled = time.perf_counter()
        DiskCache(folder).compile(cuda.text, name=cuda.name, arch=arch)
        cached = time.perf_counter()
    except Exception as exception:
        row.failure = told(exception)
        return row
    row.figures = {
        "trace_ms": (traced - begin) * 1e3,
        "text_ms": (written - traced) * 1e3,
        "nvrtc_ms": (compiled - written) * 1e3,
        "cached_ms": (cached - compiled) * 1e3,
        "lines": cuda.text.count("\n"),
        "registers": module.resources.registers,
        "spills": "yes" if module.resources.spills else "no",
        "cubin_bytes": len(module.cubin),
    }
    return row
