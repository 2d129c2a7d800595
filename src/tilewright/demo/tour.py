"""The tour that `tilewright demo` gives: one kernel, run, broken, mended, drawn, printed and raced, in some seconds.

Each stop is a function that returns a `Stop`: the words that are shown, and what was found as data. Nothing is told
that was not computed on the spot: the race is the simulator's, the layout the profiler's.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from shutil import get_terminal_size
from textwrap import fill, indent
from typing import Any

import numpy as np
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

import tilewright as tw
from tilewright.demo.arrays import array_library, put
from tilewright.demo.examples import Array, Backend, examples_folder, load_example

_INDENT, _WIDTH = "    ", 100  # of code, and of text at most

N = 128  # rows and columns of the matrix
ROWS = tw.Layout((32, 32), (32, 1))


@dataclass(frozen=True)
class Stop:
    """One stop of the tour: a title, what is said, code in a language, and what was found."""

    title: str
    text: str
    code: str = ""
    language: str = "python"
    found: Mapping[str, object] = field(default_factory=dict)
    passed: bool = True


def stops(backend: Backend) -> Iterator[Callable[[], Stop]]:
    """Yield the stops in order; each computes when it is called."""
    yield runs
    yield without_its_barrier
    yield bank_conflict
    yield in_cuda
    if backend == "cuda":
        yield against_cublas


def _arrays() -> tuple[Array, Array]:
    src = np.random.default_rng(0).standard_normal((N, N), dtype=np.float32)
    return np.full_like(src, np.nan), src


def _launcher() -> Any:  # Any: a kernel with its grid and block
    return _example().transpose[(N // 32, N // 32), (32, 8)]


def runs() -> Stop:
    """Run the kernel on the simulator and compare."""
    dst, src = _arrays()
    begin = time.perf_counter()
    with tw.simulate():
        _launcher()(dst, src, ROWS)
    seconds = time.perf_counter() - begin
    right = bool(np.array_equal(dst, src.T))
    text = (
        f"On NumPy arrays a kernel runs in the simulator, here with {(N // 32) ** 2 * 256:,} threads, and every "
        f"access of each of them is checked. It took {seconds:.2f} s, and {_equal(right)}."
    )
    found = {"seconds": seconds, "equal": right}
    return Stop("A kernel", text, _source(), found=found, passed=right)


def without_its_barrier() -> Stop:
    """Run the kernel without its barrier and tell what the simulator finds."""
    dst, src = _arrays()
    with tw.simulate(raise_errors=False) as run:
        _launcher()(dst, src, ROWS, False)
    races = [finding for finding in run.findings if finding.kind == "race"]
    message = races[0].message if races else "no race was found"
    text = "The same kernel with waits=False, which leaves out the barrier. The simulator says:"
    found = {"kinds": [finding.kind for finding in run.findings], "message": message}
    return Stop("Without its barrier", text, message, "text", found, bool(races))


def bank_conflict() -> Stop:
    """Count the wavefronts of shared memory, take the layout that the profiler finds, and count again."""
    before = _launcher().analyze(*_arrays(), ROWS)
    suggestion = next((r.suggestion for r in before.remarks if r.suggestion is not None), None)
    if suggestion is None:
        return Stop("A bank conflict", "the profiler found no better layout", passed=False)
    layout = suggestion.layout
    dst, src = _arrays()
    _launcher()(dst, src, layout)
    after = _launcher().analyze(dst, src, layout)
    right = bool(np.array_equal(dst, src.T)) and after.shared_wavefronts == after.shared_wavefronts_ideal
    text = (
        "Reading a column of the tile, all 32 threads of a warp hit one bank of shared memory: the kernel takes "
        f"{before.shared_wavefronts:,} wavefronts where {before.shared_wavefronts_ideal:,} would do. The profiler "
        f"tries swizzles and paddings on these accesses and finds\n\n    {suggestion.expression}\n\n"
        f"With it the kernel takes {after.shared_wavefronts:,} wavefronts, and {_equal(right)}. The bank of each "
        "element, before and after: a column that was in one bank is in all of them."
    )
    found = {
        "wavefronts": before.shared_wavefronts,
        "ideal": before.shared_wavefronts_ideal,
        "layout": str(layout),
        "wavefronts_after": after.shared_wavefronts,
    }
    return Stop("A bank conflict", text, _banks(ROWS, layout), "banks", found, right)


def in_cuda() -> Stop:
    """Print the CUDA C++ of the kernel."""
    array = tw.spec(tw.float32, (N, N))
    source = _launcher().source(array, array, ROWS, arch="sm_90a")
    start = source.find('extern "C"')
    text = "What runs on a GPU is this, for sm_90a (`tilewright show FILE:KERNEL --ptx` and `--sass` go on from here):"
    return Stop("As CUDA C++", text, source[max(start, 0) :].rstrip("\n"), "cuda", {"source": source})


def against_cublas() -> Stop:
    """Time `tw.matmul` on the GPU against the library of the arrays."""
    from tilewright.bench.race import compare

    n, library = 4096, array_library()
    random = np.random.default_rng(0)
    a, b = (put(random.standard_normal((n, n), dtype=np.float32), "cuda") for _ in range(2))
    if library == "torch":
        import torch

        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    out = tw.matmul(a, b)
    ways: dict[str, Callable[[], object]] = {"matmul": lambda: tw.matmul(a, b, out=out)}
    if library is not None:
        ways["cublas"] = lambda: a @ b
    medians = {name: each.median / 1000 for name, each in _medians(compare(ways, rounds=7, batch_ms=20.0, flush=False))}
    rates = {name: 2 * n**3 / seconds / 1e12 for name, seconds in medians.items()}
    right = True
    if library is not None:  # both round sums of n products to the type of the result
        reference = a[:64] @ b
        right = float(abs(out[:64] - reference).max()) <= 2**-6 * float(abs(reference).max())
    text = f"tw.matmul, {n} x {n} x {n}, on this GPU: {rates['matmul']:.0f} TFLOP/s"
    if "cublas" in rates:
        text += f"; {library} (cuBLAS): {rates['cublas']:.0f} TFLOP/s: {rates['matmul'] / rates['cublas']:.2f} of it"
    return Stop("Against cuBLAS", f"{text}.", found={"tflops": rates}, passed=right)


def _medians(comparison: Any) -> list[tuple[str, Any]]:  # Any: of the bench's own
    return [(name, comparison[name]) for name in ("matmul", "cublas") if name in comparison]


@cache
def _example() -> Any:  # Any: the module of the kernel, which stands with the examples because it is shown as a user's
    return load_example(examples_folder() / "_tour.py")


def _source() -> str:
    return inspect.getsource(_example().transpose.__wrapped__).rstrip("\n")


def _equal(right: bool) -> str:
    return "dst equals src.T" if right else "dst DIFFERS FROM src.T"


def _banks(before: Any, after: Any) -> str:  # Any: layouts of any kind
    parts = [tw.draw.banks(layout, "float32", limit=(8, 8)) for layout in (before, after)]
    drawing = tw.draw.beside(*(part.titled(name) for part, name in zip(parts, ("before", "after"), strict=True)))
    return tw.draw.text(drawing, width=max(get_terminal_size().columns - len(_INDENT), 1))


_COLOURS = 12, 13, 9, 14, 3, 11, 2, 10  # which terminals of 16 colours have too
_CELL = re.compile(r" \d+(?!\d| *│)")  # the numbers of rows stand before a rule


def _in_colour(drawing: str) -> Text:
    """Return a drawing with each bank in a colour of its own; lines without a rule are the numbers of the columns."""
    text, start = Text(drawing), 0
    for line in drawing.splitlines(keepends=True):
        for cell in _CELL.finditer(line) if "│" in line else ():
            text.stylize(f"black on color({_COLOURS[int(cell[0]) % 8]})", start + cell.start(), start + cell.end())
        start += len(line)
    return text


def show(stop: Stop, number: int, console: Console) -> None:
    """Print one stop."""
    console.print(Text(f"{number}. {stop.title}", style="bold"))
    for paragraph in stop.text.split("\n\n"):
        width = len(paragraph) if paragraph.startswith(_INDENT) else min(console.width, _WIDTH)
        console.print(Text(fill(paragraph, width, break_long_words=False, break_on_hyphens=False) + "\n"))
    code = indent(stop.code, _INDENT) + "\n"
    if not stop.code or stop.language == "text":
        console.print(Text(code * bool(stop.code)))
    elif stop.language == "banks":
        console.print(_in_colour(code))
    else:
        # As text, because a console cuts the lines of a Syntax that do not fit.
        console.print(Syntax("", stop.language, background_color="default").highlight(code), soft_wrap=True)
