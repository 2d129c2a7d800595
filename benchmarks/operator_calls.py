"""Host time of an operator of `tw.torch.op` beside one of `torch.library` in C++, which launches the same kernel.

    python -m benchmarks.operator_calls [--library FILE] [--json FILE] [--profile]

Both make their result and launch an addition of two tensors of 4096 elements. The one in C++ is compiled by `c++` as
its author would write it (`cpp_operator.cpp`): it checks types, devices and shapes, sets the device, and is called by
PyTorch's dispatcher. It has no gradient, one in C++, or one that Python registers (`torch.library.register_autograd`).
Ours is called as users call it, which is past the dispatcher where nothing is in between, and by the dispatcher. Its
calls are made in C++, which is waited for; TILEWRIGHT_OPERATORS=python times those of Python. Calls are timed in
batches that alternate, as `benchmarks.host_calls` does, which also says what is measured without a GPU.

The compiler takes half a minute; `--library FILE` keeps what it made, and `--build` does no more than that.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import json
import pstats
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.host_calls import add, described, install_driver, shown
from torch.utils import cpp_extension

import tilewright as tw
from tilewright.arch import default_arch
from tilewright.runtime import compiled, driver
from tilewright.torch.repeats import EXTENSION

SOURCE, ELEMENTS, THREADS = Path(__file__).with_name("cpp_operator.cpp"), 4096, 256


def build(library: Path, *, on_gpu: bool) -> None:
    """Compile the operator in C++."""
    kind = "cuda" if on_gpu else "cpu"
    includes = [f"-I{path}" for path in cpp_extension.include_paths(kind)]
    linked = [f"-L{path}" for path in cpp_extension.library_paths(kind)]
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch", *(["-lc10_cuda"] if on_gpu else [])]
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-w", *(["-DON_GPU"] if on_gpu else [])]
    command = ["c++", *flags, *includes, str(SOURCE), "-o", str(library), *linked, *libraries]
    subprocess.run(command, check=True)


def load(library: Path) -> None:
    """Load the operator in C++, and give it the kernel that ours launches."""
    torch.ops.load_library(str(library))
    x = torch.zeros(ELEMENTS)
    module = add[ELEMENTS // THREADS, THREADS].lower(x, x.clone(), x.clone(), arch=default_arch().name).module
    loaded, function = ctypes.c_void_p(), ctypes.c_void_p()
    with driver.device_context(0):
        driver.check(driver.library().cuModuleLoadData(ctypes.byref(loaded), module.cubin), "loading the kernel")
        status = driver.library().cuModuleGetFunction(ctypes.byref(function), loaded, module.name.encode())
    driver.check(status, "finding the kernel")
    launch = ctypes.cast(driver.library().cuLaunchKernel, ctypes.c_void_p).value
    torch.ops.cpp_operator.load(launch, function.value)
    torch.library.register_autograd("cpp_operator::add_with_gradient_by_python", lambda ctx, grad: (grad, grad))


@tw.torch.op("operator_calls::add", shape="x")
def ours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add[tw.ceil_div(x.numel(), THREADS), THREADS](out, x, y)
    return out


@ours.backward
def ours_backward(grad: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": grad, "y": grad}


def calls() -> dict[str, Callable[[], object]]:
    """Return what is timed, by its name."""
    theirs = torch.ops.cpp_operator
    plain, with_one, by_python = (
        theirs.add.default,
        theirs.add_with_gradient.default,
        (theirs.add_with_gradient_by_python.default),
    )
    through = ours.overload
    x, y, out = (torch.zeros(ELEMENTS) for _ in range(3))
    wanted = torch.zeros(ELEMENTS, requires_grad=True)
    assert torch.equal(plain(x + 1, y + 2), ours(x + 1, y + 2)) or not torch.cuda.is_available()
    return {
        "ours": lambda: ours(x, y),
        "ours, by the dispatcher": lambda: through(x, y),
        "C++": lambda: plain(x, y),
        "C++ that has a gradient": lambda: with_one(x, y),
        "C++ that has a gradient of Python's": lambda: by_python(x, y),
        "x + y": lambda: x + y,
        "torch.empty_like": lambda: torch.empty_like(x),
        "the kernel alone": lambda: add[ELEMENTS // THREADS, THREADS](out, x, y),
        "ours, gradient wanted": lambda: ours(wanted, y),
        "ours, by the dispatcher, gradient wanted": lambda: through(wanted, y),
        "C++ that has a gradient, gradient wanted": lambda: with_one(wanted, y),
        "C++ that has a gradient of Python's, gradient wanted": lambda: by_python(wanted, y),
        "x + y, gradient wanted": lambda: wanted + y,
    }


RATIOS = (
    ("ours", "C++"),
    ("ours", "C++ that has a gradient"),
    ("ours", "C++ that has a gradient of Python's"),
    ("ours, gradient wanted", "C++ that has a gradient, gradient wanted"),
    ("ours, gradient wanted", "C++ that has a gradient of Python's, gradient wanted"),
)


def profiled(call: Callable[[], object]) -> None:
    """Print what functions of Python a call spends its time in."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(5000):
        call()
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here, too")
    parser.add_argument("--library", type=Path, help="the operator in C++: built where there is none")
    parser.add_argument("--build", action="store_true", help="build it, and time nothing")
    parser.add_argument("--profile", action="store_true", help="print which functions of Python take the time")
    options = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        library = options.library or Path(folder) / "cpp_operator.so"
        if not library.exists():
            build(library, on_gpu=on_gpu)
        if options.build:
            return
        if not on_gpu:
            install_driver()
        compiled.wait(), EXTENSION.wait()
        load(library)
    print(f"launcher: {compiled.report()}\noperators: {EXTENSION.report()}")
    with torch.device("cuda" if on_gpu else "cpu"):
        timed = calls()
    found = shown(timed, on_gpu=on_gpu)
    ratios = {f"{one} / {other}": found[one] / found[other] for one, other in RATIOS}
    for name, ratio in ratios.items():
        print(f"{ratio:7.2f}     {name}")
    if options.profile:
        profiled(timed["ours"])
        profiled(timed["ours, gradient wanted"])
    if options.json:
        machine = {**described(on_gpu=on_gpu), "operators": EXTENSION.report().partition(" ")[0]}
        report = {"machine": machine, "microseconds": found, "ratios": ratios}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
