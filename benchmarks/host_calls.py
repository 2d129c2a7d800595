"""Host time of calls that were met before, without a GPU: what Tilewright and PyTorch's Python take beside the driver.

    python -m benchmarks.host_calls [--json FILE]

PyTorch's tensors of the CPU stand for those of a GPU, and a driver of C functions that return at once is built by `cc`
and loaded. On a machine with a GPU the driver's 2 to 3 microseconds a launch come on top, and memory for results costs
what the allocator of the GPU takes.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import platform
import subprocess
import sys
import tempfile
import timeit
import types
from collections.abc import Callable
from pathlib import Path

import torch

import tilewright as tw
from tilewright.kernels import results
from tilewright.runtime import arrays, driver


def install_driver() -> None:
    """Build and load the driver that does nothing, and see tensors of the CPU as those of its device."""
    library = Path(tempfile.mkdtemp()) / "no_driver.so"
    source = Path(__file__).with_name("no_driver.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    stand_in = types.ModuleType("ctypes")
    vars(stand_in).update(vars(ctypes))
    stand_in.CDLL = lambda name: ctypes.CDLL(str(library))  # type: ignore[attr-defined]
    vars(driver)["ctypes"] = stand_in
    real, make = arrays._torch_adapter(), results._torch_maker
    adapter = dataclasses.replace(
        real,
        describe=lambda tensor: dataclasses.replace(real.describe(tensor), device=0),
        current_stream=abs,  # a C function: abs(0) is 0, as that of PyTorch for its default stream
    )
    vars(arrays)["_torch_adapter"] = lambda: adapter
    vars(results)["_torch_maker"] = lambda shape, dtype, device: make(shape, dtype, "cpu")


@tw.kernel
def add(z, x, y):
    i = tw.block_idx.x * 256 + tw.thread_idx.x
    if i < z.size:
        z[i] = x[i] + y[i]


def calls() -> dict[str, Callable[[], object]]:
    """Return what is timed, by its name; results are small, as memory is not what is measured."""
    bf16, flat = torch.bfloat16, [torch.zeros(4096) for _ in range(3)]
    rows, weight = torch.zeros(64, 4096, dtype=bf16), torch.zeros(4096, dtype=bf16)
    out, wanted = torch.zeros_like(rows), torch.zeros_like(rows).requires_grad_()
    a, b, d = (torch.zeros(4096, 4096, dtype=bf16) for _ in range(3))
    q, k, v, o = (torch.zeros(1, 16, 4096, 128, dtype=bf16) for _ in range(4))
    experts, ends = torch.zeros(8, 4096, 1024, dtype=bf16), torch.arange(8, 65, 8, dtype=torch.int32)
    grouped = torch.zeros(64, 1024, dtype=bf16)
    return {
        "kernel[grid, block](z, x, y)": lambda: add[16, 256](*flat),
        "kernel[grid, block].prepare(...)()": add[16, 256].prepare(*flat),
        "tw.matmul(out=)": lambda: tw.matmul(a, b, out=d),
        "tw.matmul.prepare(...)()": tw.matmul.prepare(a, b, out=d),
        "tw.matmul(out=, bias=)": lambda: tw.matmul(a, b, out=d, bias=weight),
        "tw.grouped_matmul(out=)": lambda: tw.grouped_matmul(rows, experts, ends, out=grouped),
        "tw.softmax(out=)": lambda: tw.softmax(rows, out=out),
        "tw.rms_norm(out=)": lambda: tw.rms_norm(rows, weight, out=out),
        "tw.permute(out=)": lambda: tw.permute(rows, (1, 0), out=out.view(4096, 64)),
        "tw.attention(out=)": lambda: tw.attention(q, k, v, out=o),
        "tw.softmax": lambda: tw.softmax(rows),
        "tw.torch.softmax": lambda: tw.torch.softmax(rows),
        "tw.torch.softmax, with a gradient": lambda: tw.torch.softmax(wanted),
        "tw.torch.matmul": lambda: tw.torch.matmul(rows, b),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here, too")
    options = parser.parse_args(arguments)
    install_driver()
    found = {}
    for name, call in calls().items():
        for _ in range(3):
            call()
        found[name] = min(timeit.repeat(call, number=5000, repeat=9)) / 5000 * 1e6
        print(f"{found[name]:7.2f} us  {name}", flush=True)
    if options.json:
        machine = {"python": sys.version.split()[0], "torch": torch.__version__, "cpu": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "microseconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
