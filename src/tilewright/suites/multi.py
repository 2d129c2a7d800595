"""Products over the ranks of a process group: against the longer of product and communication, and against torch's."""

from __future__ import annotations

import importlib
import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.bench.machine import DATA
from tilewright.bench.progress import Progress
from tilewright.demo.examples import Backend
from tilewright.errors import ArgumentError, DeviceError, TilewrightError
from tilewright.suites.products import Shape
from tilewright.suites.report import Column, Report, Row, told

SIZES: dict[Backend, tuple[str, ...]] = {
    "cuda": ("8192", "4096x28672x8192", "16384x4096x4096", "1024x8192x8192"),
    "sim": ("32x16x24",),
}
ROUNDS, BATCH_MS, MOST_CALLS = 15, 20.0, 200
# Of the norm of the result, sums of the ranks' products in bfloat16 and in float32.
_LIMITS = {"bfloat16": 1e-2, "float32": 1e-5}
_COLUMNS = (
    Column("microseconds", "us", "{:,.1f}"),
    Column("of_longer", "of the longer alone", "{:.2f}"),
    Column("error", "error", "{:.1e}"),
)

Call = Callable[[], Any]  # Any: a tensor
PRODUCT, EXCHANGE, OURS = "product alone", "communication alone", "tw.torch"
SYMMETRIC = "tw.torch, symmetric memory"


def new_report(backend: Backend, ranks: int, sizes: Sequence[str]) -> Report:
    """Return the report before anything is measured; raise `ArgumentError` for extents that the ranks do not divide."""
    shapes = [Shape.parse(text) for text in sizes or SIZES[backend]]
    for shape in shapes:
        if any(extent % ranks for extent in (shape.m, shape.n, shape.k)):
            raise ArgumentError(
                f"{shape.m} x {shape.n} x {shape.k} is not divided by {ranks} ranks", help="pass other extents: --size"
            )
    where = "on GPUs" if backend == "cuda" else "on the simulator, checked only"
    settings = {"backend": backend, "ranks": ranks, "sizes": [[s.m, s.n, s.k] for s in shapes], "data": DATA}
    return Report("multi", f"products over {ranks} ranks {where}; data: {DATA}", _COLUMNS, settings)


def ranks_here(backend: Backend, asked: int | None) -> int:
    """Return the number of ranks: of the group that torchrun starts, as many as are asked for, or one for each GPU."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    torch = _torch()
    devices = torch.cuda.device_count() if backend == "cuda" else None
    if devices is not None and devices < (asked or 2):
        raise DeviceError(
            f"{asked or 2} ranks take as many GPUs, and {devices} are here",
            help="--backend sim checks the operations on the CPU; torchrun starts ranks on several machines",
        )
    return asked or devices or 2


def is_first() -> bool:
    """Say whether this process is the one that prints: all but rank 0 of those that torchrun starts are not."""
    return os.environ.get("RANK", "0") == "0"


def measure(report: Report) -> None:
    """Check and measure; the rows land in `report` as they come."""
    settings = report.settings
    if "WORLD_SIZE" in os.environ:
        _in_group(settings, "env://", int(os.environ["RANK"]), report.rows.append)
        return
    torch = _torch()
    rows = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, Progress("measuring", 2 * len(settings["sizes"])) as bar:
        arguments = (settings, Path(folder, "group").as_uri(), rows)
        processes = torch.multiprocessing.start_processes(
            _rank, arguments, nprocs=settings["ranks"], join=False, start_method="spawn"
        )
        is_over = False
        while not is_over:
            is_over = processes.join(timeout=0.2)
            while not rows.empty():
                report.rows.append(rows.get())
                bar.describe(report.rows[-1].name)


def _rank(rank: int, settings: dict[str, Any], address: str, rows: Any) -> None:
    _in_group(settings, address, rank, rows.put)


def _in_group(settings: dict[str, Any], address: str, rank: int, put: Callable[[Row], None]) -> None:
    torch = _torch()
    dist, on_gpu = torch.distributed, settings["backend"] == "cuda"
    if on_gpu:
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast needs a fabric that not every machine has
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=address, rank=rank, world_size=settings["ranks"])
    try:
        for m, n, k in settings["sizes"]:
            for operation in (_gather, _scatter):
                for row in operation(Shape(m, n, k), rank, settings):
                    if rank == 0:
                        put(row)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _gather(shape: Shape, rank: int, settings: dict[str, Any]) -> list[Row]:
    """Multiply the rows of all ranks by each rank's columns."""
    size = settings["ranks"]
    x, w = _normal(rank, shape.m // size, shape.k, settings), _normal(100 + rank, shape.k, shape.n // size, settings)
    whole = x.new_empty(shape.m, shape.k)
    _exchange("gather")(whole, x)
    expected = whole.double() @ w.double()

    def one_after_the_other() -> Any:
        _exchange("gather")(whole, x)
        return whole @ w

    calls: dict[str, Call] = {
        PRODUCT: lambda: whole @ w,
        EXCHANGE: lambda: _exchange("gather")(whole, x),
        "one after the other": one_after_the_other,
        OURS: lambda: _ours().all_gather_matmul(x, w),
    }
    calls |= _by_symmetric_memory(lambda: _ours().all_gather_matmul(x, w))
    fused = _fused("fused_all_gather_matmul")
    if fused is not None:
        calls["torch, fused"] = lambda: fused(x, [w], 0, _torch().distributed.group.WORLD.group_name)[1][0]
    return _rows(f"all-gather, product {shape.m} x {shape.n // size} x {shape.k}", calls, expected, settings)


def _scatter(shape: Shape, rank: int, settings: dict[str, Any]) -> list[Row]:
    """Multiply each rank's part of K, and divide the rows of the sum."""
    size = settings["ranks"]
    x, w = _normal(rank, shape.m, shape.k // size, settings), _normal(100 + rank, shape.k // size, shape.n, settings)
    product, part = x @ w, x.new_empty(shape.m // size, shape.n)
    total = x.double() @ w.double()
    _torch().distributed.all_reduce(total)
    expected = total.chunk(size)[rank]

    def exchange() -> Any:
        _exchange("scatter")(part, product)
        return part

    def one_after_the_other() -> Any:
        _exchange("scatter")(part, x @ w)
        return part

    calls: dict[str, Call] = {
        PRODUCT: lambda: x @ w,
        EXCHANGE: exchange,
        "one after the other": one_after_the_other,
        OURS: lambda: _ours().matmul_reduce_scatter(x, w),
    }
    calls |= _by_symmetric_memory(lambda: _ours().matmul_reduce_scatter(x, w))
    fused = _fused("fused_matmul_reduce_scatter")
    if fused is not None:
        calls["torch, fused"] = lambda: fused(x, w, "sum", 0, _torch().distributed.group.WORLD.group_name)
    return _rows(f"product, reduce-scatter {shape.m} x {shape.n} x {shape.k // size}", calls, expected, settings)


def _rows(what: str, calls: dict[str, Call], expected: Any, settings: dict[str, Any]) -> list[Row]:
    """Return a row for each way: checked where it gives the whole result, and timed on GPUs, all interleaved."""
    rows, right = [], {}
    for name, call in calls.items():
        row = Row(f"{what}: {name}")
        try:
            found = call()
            if name not in (PRODUCT, EXCHANGE):
                row.figures["error"] = _worst(float((found.double() - expected).norm() / expected.norm()))
                if not row.figures["error"] <= _LIMITS[_element(settings)]:
                    row.failure = f"wrong: it differs from float64 by {row.figures['error']:.1e} of the norm"
        except TilewrightError as exception:
            row.failure = told(exception)
        rows.append(row)
        if row.failure is None:
            right[name] = call, row
    if settings["backend"] == "cuda":
        times = _times({name: call for name, (call, _) in right.items()})
        longer = max(times[PRODUCT], times[EXCHANGE])
        for name, (_, row) in right.items():
            row.figures |= {"microseconds": times[name], "of_longer": times[name] / longer}
    return rows


def _times(calls: dict[str, Call]) -> dict[str, float]:
    """Return the microseconds of a call of each: the median of rounds, of the slowest rank in each."""
    torch = _torch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def batch(call: Call, count: int) -> float:
        torch.cuda.synchronize()
        torch.distributed.barrier()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return _worst(float(begin.elapsed_time(end)) * 1e3 / count)

    counts = {name: min(max(math.ceil(BATCH_MS * 1e3 / batch(call, 3)), 1), MOST_CALLS) for name, call in calls.items()}
    order, draw = list(calls), random.Random(0)  # the same order on all ranks
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        draw.shuffle(order)
        for name in order:
            found[name].append(batch(calls[name], counts[name]))
    return {name: statistics.median(times) for name, times in found.items()}


def _worst(figure: float) -> float:
    """Return the greatest of all ranks' figures."""
    torch = _torch()
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([figure], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
    return float(shared)


def _exchange(kind: str) -> Callable[[Any, Any], object]:
    """Return torch's collective into a tensor."""
    ours = importlib.import_module("tilewright.torch.exchange")  # which knows its names
    found: Callable[[Any, Any], object] = {"gather": ours.gather_rows, "scatter": ours.scatter_sums}[kind]
    return found


def _by_symmetric_memory(call: Call) -> dict[str, Call]:
    """Return the same call by symmetric memory, where there are GPUs; it is switched on for the time of a call."""
    if _torch().distributed.get_backend() != "nccl":
        return {}

    def by_symmetric_memory() -> Any:
        _ours().use_symmetric_memory()
        try:
            return call()
        finally:
            _ours().use_symmetric_memory(enabled=False)

    return {SYMMETRIC: by_symmetric_memory}


def _fused(name: str) -> Any:
    """Return torch's operation over symmetric memory, None where it has none."""
    torch = _torch()
    if torch.distributed.get_backend() != "nccl":
        return None
    try:
        memory = importlib.import_module("torch.distributed._symmetric_memory")
        memory.enable_symm_mem_for_group(torch.distributed.group.WORLD.group_name)
        return getattr(torch.ops.symm_mem, name)
    except (ImportError, AttributeError, RuntimeError):
        return None


def _element(settings: dict[str, Any]) -> str:
    return "bfloat16" if settings["backend"] == "cuda" else "float32"


def _normal(seed: int, rows: int, columns: int, settings: dict[str, Any]) -> Any:
    torch = _torch()
    device = "cuda" if settings["backend"] == "cuda" else "cpu"
    generator = torch.Generator(device).manual_seed(seed)
    found = torch.randn(rows, columns, generator=generator, device=device)
    return found.to(getattr(torch, _element(settings)))


def _ours() -> Any:
    return importlib.import_module("tilewright.torch")


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ArgumentError(
            "products over several ranks are measured with PyTorch, which is not installed", help="pip install torch"
        ) from None
