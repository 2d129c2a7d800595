"""Host time of calls that were met before: what Tilewright takes, and PyTorch for the same, with a GPU or without one.

    python -m benchmarks.host_calls [--json FILE]

On a GPU each call is timed in batches of 200, which its queue holds, with the GPU waited for between them; batches of
all calls alternate, and the median counts. Without a GPU PyTorch's tensors of the CPU stand for those of one, and a
driver of C functions that return at once is built by `cc` and loaded: then the driver's 2 to 3 microseconds a launch
are not in the figures, nor what the allocator of a GPU takes for results, and of PyTorch's own calls there is one only,
an addition on the CPU. The compiled launcher is waited for; TILEWRIGHT_LAUNCHER=python times without it.

Products that exchange their parts are called by the first of two ranks: all memory is of this process, and the flags
say that whatever the other one sends has come.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import timeit
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.timing import machine
from torch.testing._internal.distributed.fake_pg import FakeStore

import tilewright as tw
from tilewright.kernels import results
from tilewright.runtime import arrays, compiled, driver
from tilewright.torch import exchange, symmetric
from tilewright.torch.repeats import EXTENSION


def built(name: str) -> str:
    """Compile a C file that stands beside this one, and return the path of the library."""
    library = Path(tempfile.mkdtemp()) / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    return str(library)


def install_driver() -> None:
    """Build and load the driver that does nothing, and see tensors of the CPU as those of its device."""
    library = built("no_driver")
    stand_in = types.ModuleType("ctypes")
    vars(stand_in).update(vars(ctypes))
    stand_in.CDLL = lambda name: ctypes.CDLL(library)  # type: ignore[attr-defined]
    vars(driver)["ctypes"] = stand_in
    real, make = arrays._torch_adapter(), results._torch_maker
    adapter = dataclasses.replace(
        real,
        describe=lambda tensor: dataclasses.replace(real.describe(tensor), device=0),
        current_stream=abs,  # a C function: abs(0) is 0, as that of PyTorch for its default stream
    )
    vars(arrays)["_torch_adapter"] = lambda: adapter
    vars(results)["_torch_maker"] = lambda shape, dtype, device: make(shape, dtype, "cpu")
    vars(symmetric)["_DEVICE"], vars(exchange)["_COMPARED_EACH_TIME"] = "cpu", "none"
    vars(torch.cuda)["is_current_stream_capturing"] = bool  # a C function, which gives False


@tw.kernel
def add(z, x, y):
    i = tw.block_idx.x * 256 + tw.thread_idx.x
    if i < z.size:
        z[i] = x[i] + y[i]


@tw.kernel
def add_by_python(z, x, y):
    i = tw.block_idx.x * 256 + tw.thread_idx.x
    if i < z.size:
        z[i] = x[i] + y[i]


class FirstOfTwo(symmetric.SymmetricGroup):
    """The first of two ranks, which waits for nothing: its flags are those of the last call that there can be."""

    def __init__(self, group: Any) -> None:
        self.group, self.rank, self.size, self._buffers = group, 0, 2, OrderedDict()
        self._device = torch.get_default_device()

    def symmetric(self, shape: Any, dtype: Any) -> Any:
        peers = [torch.zeros(shape, dtype=getattr(torch, str(dtype)), device=self._device) for _ in range(2)]
        if dtype == "int32" and shape[0] == 2:  # flags; counters are of the other rank alone
            peers[0].fill_(2**31 - 1)
        return types.SimpleNamespace(peers=peers)


def exchanged() -> dict[str, Callable[[], object]]:
    """Return products that exchange their parts by symmetric memory."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    name, ranks = dist.group.WORLD.group_name, FirstOfTwo(dist.group.WORLD)
    symmetric._groups[name] = ranks
    tw.torch.use_symmetric_memory()
    x, w, tall, out = (torch.zeros(256 * n, 256, dtype=torch.bfloat16) for n in (1, 1, 2, 2))
    for function, rows in (("all_gather_matmul", 256), ("matmul_reduce_scatter", 512)):
        exchange._agreed.add((function, name, (rows, 256), x.dtype, x.device.type))
    sums, wanted = torch.zeros_like(x), torch.zeros_like(x).requires_grad_()
    gathers, scatters = (tw.distributed.ExchangeBuffer(ranks, (256, 256), tw.bfloat16) for _ in range(2))

    def switched() -> object:
        tw.torch.use_symmetric_memory(enabled=False)
        tw.torch.use_symmetric_memory()
        return tw.torch.all_gather_matmul(x, w)

    return {
        "tw.distributed.all_gather_matmul": lambda: tw.distributed.all_gather_matmul(x, w, out, gathers),
        "tw.distributed.matmul_reduce_scatter": lambda: tw.distributed.matmul_reduce_scatter(tall, w, sums, scatters),
        "tw.torch.all_gather_matmul, symmetric": lambda: tw.torch.all_gather_matmul(x, w),
        "tw.torch.all_gather_matmul, symmetric, with a gradient": lambda: tw.torch.all_gather_matmul(wanted, w),
        "tw.torch.all_gather_matmul, after switching off and on": switched,
        "tw.torch.matmul_reduce_scatter, symmetric": lambda: tw.torch.matmul_reduce_scatter(tall, w),
    }


class FromC:
    """A prepared launch that C makes, many times without coming back: what the driver alone takes."""

    def __init__(self, prepared: Callable[[], None]) -> None:
        self.prepared: Any = prepared
        self.loop: Any = ctypes.CDLL(built("launch_loop")).launch_many if self.prepared.finish else None

    def __call__(self) -> None:
        self.many(1)

    def many(self, number: int) -> None:
        """Launch so many times."""
        launch = self.prepared.finish.__self__
        assert not self.loop(launch._launch, launch._configuration, launch._handle, launch._parameters, number)


def met(launcher: Any, *args: Any, by_c: bool = True) -> Any:
    """Return a launcher that has met calls with such arguments; without `by_c`, one that Python alone launches."""
    for _ in range(3):
        launcher(*args)
        if not by_c:
            launcher._variant.signature.last.compiled = launcher._replay = None
    return launcher


def calls() -> dict[str, Callable[[], object]]:
    """Return what is timed, by its name; sizes are small, as memory and arithmetic are not what is measured."""
    bf16, flat = torch.bfloat16, [torch.zeros(4096) for _ in range(3)]
    rows, weight = torch.zeros(64, 4096, dtype=bf16), torch.zeros(4096, dtype=bf16)
    out, wanted = torch.zeros_like(rows), torch.zeros_like(rows).requires_grad_()
    a, b, d = (torch.zeros(256, 256, dtype=bf16) for _ in range(3))
    q, k, v, o = (torch.zeros(1, 8, 256, 128, dtype=bf16) for _ in range(4))
    experts, ends = torch.zeros(8, 256, 256, dtype=bf16), torch.arange(8, 65, 8, dtype=torch.int32)
    few, grouped = (torch.zeros(64, 256, dtype=bf16) for _ in range(2))
    bias = torch.zeros(256, dtype=bf16)
    met(add[16, 256], *flat)
    met(add_by_python[16, 256], *flat, by_c=False)
    prepared = add[16, 256].prepare(*flat)
    from_c = {"the same launch by a loop of C": FromC(prepared)} if hasattr(prepared, "finish") else {}
    return {
        "kernel[grid, block](z, x, y)": lambda: add[16, 256](*flat),
        "kernel[grid, block](z, x, y), by Python's launcher": lambda: add_by_python[16, 256](*flat),
        "kernel[grid, block].prepare(...)()": prepared,
        **from_c,
        "tw.matmul(out=)": lambda: tw.matmul(a, b, out=d),
        "tw.matmul.prepare(...)()": tw.matmul.prepare(a, b, out=d),
        "tw.matmul(out=, bias=)": lambda: tw.matmul(a, b, out=d, bias=bias),
        "tw.grouped_matmul(out=)": lambda: tw.grouped_matmul(few, experts, ends, out=grouped),
        "tw.softmax(out=)": lambda: tw.softmax(rows, out=out),
        "tw.rms_norm(out=)": lambda: tw.rms_norm(rows, weight, out=out),
        "tw.permute(out=)": lambda: tw.permute(rows, (1, 0), out=out.view(4096, 64)),
        "tw.attention(out=)": lambda: tw.attention(q, k, v, out=o),
        "tw.softmax": lambda: tw.softmax(rows),
        "tw.torch.softmax": lambda: tw.torch.softmax(rows),
        "tw.torch.softmax, with a gradient": lambda: tw.torch.softmax(wanted),
        "tw.torch.matmul": lambda: tw.torch.matmul(a, b),
    }


def calls_of_torch() -> dict[str, Callable[[], object]]:
    """Return PyTorch's calls for the same works."""
    x, y, z = (torch.zeros(4096) for _ in range(3))
    rows, a, b, d = torch.zeros(64, 4096), *(torch.zeros(256, 256, dtype=torch.bfloat16) for _ in range(3))
    rows, wanted = rows.bfloat16(), rows.bfloat16().requires_grad_()
    out = torch.zeros_like(rows)
    return {
        "torch.add(out=)": lambda: torch.add(x, y, out=z),
        "torch.matmul(out=)": lambda: torch.matmul(a, b, out=d),
        "torch.matmul": lambda: torch.matmul(a, b),
        "torch.softmax(out=)": lambda: torch.softmax(rows, -1, out=out),
        "torch.softmax": lambda: torch.softmax(rows, -1),
        "torch.softmax, with a gradient": lambda: torch.softmax(wanted, -1),
    }


def addition() -> Callable[[], object]:
    """Return PyTorch's least work: what its own dispatch costs."""
    x, y, z = (torch.zeros(1) for _ in range(3))
    return lambda: torch.add(x, y, out=z)


def seconds(call: Any, number: int) -> float:
    """Return the time that so many calls take."""
    if not isinstance(call, FromC):
        return timeit.timeit(call, number=number)
    return timeit.timeit(lambda: call.many(number), number=1)


def by_batches(timed: dict[str, Callable[[], object]], number: int = 200, repeat: int = 41) -> dict[str, float]:
    """Return the median time of a call in microseconds, of batches that alternate and that the GPU is waited for."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeat):
        for name, call in timed.items():
            call()
            torch.cuda.synchronize()
            times[name].append(seconds(call, number) / number * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def beside_no_driver(timed: dict[str, Callable[[], object]], number: int = 2000) -> dict[str, float]:
    """Return the least time of a call in microseconds, of batches that alternate."""
    rounds = [{name: seconds(call, number) for name, call in timed.items()} for _ in range(21)]
    return {name: min(found[name] for found in rounds) / number * 1e6 for name in timed}


def shown(timed: dict[str, Callable[[], object]], *, on_gpu: bool) -> dict[str, float]:
    """Return the microseconds of each call when it was met before, and print them."""
    for call in timed.values():
        for _ in range(3):
            call()
    found = by_batches(timed) if on_gpu else beside_no_driver(timed)
    for name, time in found.items():
        print(f"{time:7.2f} us  {name}")
    return found


def described(*, on_gpu: bool) -> dict[str, object]:
    """Return what the times were taken on, and by which launcher."""
    here = machine() if on_gpu else {"python": sys.version.split()[0], "torch": torch.__version__}
    return {**here, "launcher": compiled.report().partition(" ")[0]}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here, too")
    options = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        install_driver()
    compiled.wait(), EXTENSION.wait()
    print(f"launcher: {compiled.report()}\noperators: {EXTENSION.report()}")
    with torch.device("cuda" if on_gpu else "cpu"):  # not as the default: that costs every call of PyTorch's functions
        timed = calls() | exchanged()
        timed |= calls_of_torch() if on_gpu else {"torch.add(out=), one element on the CPU": addition()}
    found = shown(timed, on_gpu=on_gpu)
    if options.json:
        report = {"machine": described(on_gpu=on_gpu), "microseconds": found}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
