"""Timing, ceilings, occupancy, the autotuner and `tilewright bench` on a GPU."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.unit.suites.test_bench_command import NAIVE

import tilewright as tw
from tilewright.bench import do_bench, occupancy, time_runs
from tilewright.bench.ceilings import measure_ceilings
from tilewright.bench.machine import Monitor
from tilewright.cli import main
from tilewright.recording import record_launches
from tilewright.runtime import driver
from tilewright.runtime.cache import DiskCache, default_folder
from tilewright.runtime.memory import DeviceArray
from tilewright.runtime.result_store import Store
from tilewright.suites import sgemm
from tilewright.suites.report import resources_of

pytestmark = pytest.mark.gpu

alone = pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1", reason="other tests use the GPU at the same time: -n0"
)

THREADS = 256


@tw.kernel
def spin(out, turns):
    """Multiply and add on registers: a time that is proportional to `turns`."""
    i = tw.block_idx.x * THREADS + tw.thread_idx.x
    x = tw.thread_idx.x.to(tw.float32)
    for _ in range(turns):
        x = tw.fma(x, 0.5, 1.0)
    out[i] = x


@tw.kernel
def scale(dst, src, PER: tw.constexpr, FACTOR: tw.constexpr = 2.0):
    """dst = FACTOR src, PER elements a thread, neighbours apart by the block."""
    first = tw.block_idx.x * THREADS * PER + tw.thread_idx.x
    for n in tw.static_range(PER):
        at = first + n * THREADS
        if at < dst.size:
            dst[at] = src[at] * FACTOR


def blocks(meta) -> int:
    return -(-meta["dst"].shape[0] // (THREADS * meta["PER"]))


@pytest.fixture
def vectors():
    torch = pytest.importorskip("torch")
    src = torch.randn(1 << 22, device="cuda")
    return torch.full_like(src, 7.0), src


# --- timing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_time_is_proportional_to_work(own: bool) -> None:
    """With torch's arrays, and with memory of our own."""
    if own:
        out = DeviceArray((132 * THREADS,))
    else:
        out = pytest.importorskip("torch").empty(132 * THREADS, device="cuda")
    times = [do_bench(lambda turns=turns: spin[132, THREADS](out, turns), 20, 60) for turns in (50_000, 100_000)]
    assert times[1] / times[0] == pytest.approx(2, rel=0.1)


def test_do_bench_agrees_with_torchs_events(vectors) -> None:
    import torch

    dst, src = vectors
    run = lambda: dst.copy_(src)  # noqa: E731
    run()
    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(50):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    assert do_bench(run) == pytest.approx(float(np.median(times)), rel=0.2)


def test_a_slow_host_does_not_show() -> None:
    torch = pytest.importorskip("torch")
    out = torch.empty(132 * THREADS, device="cuda")
    launch = spin[132, THREADS].prepare(out, 2000)

    def slowly() -> None:
        end = time.perf_counter() + 400e-6
        while time.perf_counter() < end:
            pass
        launch()

    quick, slow = time_runs(launch), time_runs(slowly)
    assert slow.host_ms > 0.4 and slow.holds > quick.holds
    assert slow.median == pytest.approx(quick.median, rel=0.2)


def test_the_current_stream_is_timed() -> None:
    torch = pytest.importorskip("torch")
    out = torch.empty(132 * THREADS, device="cuda")
    on_default = do_bench(lambda: spin[132, THREADS](out, 50_000), 10, 30)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert do_bench(lambda: spin[132, THREADS](out, 50_000), 10, 30) == pytest.approx(on_default, rel=0.5)


@alone
@pytest.mark.parametrize("flush", [True, False])
def test_twins_are_equal(flush: bool, vectors) -> None:
    dst, src = vectors
    launch = scale[blocks({"dst": dst, "PER": 4}), THREADS]
    run = lambda: launch(dst, src, 4)  # noqa: E731
    found = tw.bench.compare({"a": run, "b": run, "c": run}, reference=src * 2, outputs=dst, flush=flush)
    for name in "bc":
        assert found.ratio(name).median == pytest.approx(1, abs=0.05)
    assert found["a"].error == 0


@alone
def test_short_kernels_are_captured(vectors) -> None:
    dst, src = (x[:64] for x in vectors)
    found = tw.bench.compare({"tiny": lambda: scale[1, THREADS](dst, src, 1)}, flush=False)["tiny"]
    assert not found.host_bound  # a host that is slow against the kernel has a graph launched in its place
    assert found.median < 0.02


def test_what_cannot_be_captured_is_timed_all_the_same(vectors) -> None:
    import torch

    dst, src = (x[:64] for x in vectors)

    def waits() -> None:
        scale[1, THREADS](dst, src, 1)
        torch.cuda.synchronize()

    found = tw.bench.compare({"waits": waits}, flush=False)["waits"]
    assert not found.captured
    scale[1, THREADS](dst, src, 1)  # the context and the stream are as they were
    torch.cuda.synchronize()
    assert torch.equal(dst, src * 2)


def test_a_wrong_candidate_is_refused(vectors) -> None:
    dst, src = vectors
    launch = scale[blocks({"dst": dst, "PER": 1}), THREADS]
    with pytest.raises(tw.CheckError, match="candidate 'wrong' is wrong"):
        tw.bench.compare(
            {"right": lambda: launch(dst, src, 1), "wrong": lambda: launch(dst, src, 1, 2.5)},
            reference=src * 2,
            outputs=dst,
        )


# --- what the machine can do -----------------------------------------------------------------------------


def test_ceilings_are_plausible() -> None:
    found = measure_ceilings()
    assert 1e11 < found.copy_kernel_bytes_per_second <= found.bytes_per_second < 2e13
    if found.flops_by_clock is not None:
        # Other tests may run on the GPU at the same time; alone it is above 0.85.
        assert 0.02 < found.flops_per_second / found.flops_by_clock < 1.05
    json.dumps(found.as_json(), allow_nan=False)


def test_the_machine_is_described() -> None:
    found = tw.bench.machine()
    assert found["gpu"]["name"] == driver.device_properties(0).name
    clock = Monitor(0).sm_clock()
    assert clock is None or 100 < clock < 5000
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("per", [1, 16])
def test_occupancy_is_the_drivers(per: int, vectors) -> None:
    dst, src = vectors
    with record_launches() as launches:
        scale[blocks({"dst": dst, "PER": per}), THREADS](dst, src, per)
    (kernel,) = resources_of(launches)
    own = occupancy(
        driver.device_properties(0).arch,
        threads=THREADS,
        registers=kernel["registers"],
        shared_bytes=kernel["shared_bytes"],
    )
    assert kernel["blocks_per_multiprocessor"] == own.blocks
    assert launches[0].function is not None and launches[0].function.registers == kernel["registers"]


# --- the autotuner ---------------------------------------------------------------------------------------


def test_tuning_measures_checks_and_remembers(vectors, cache_folder: Path) -> None:
    import torch

    dst, src = vectors
    configs = [tw.Config(PER=p, FACTOR=2.0, block=THREADS) for p in (1, 2, 4, 64)]
    wrong = tw.Config(PER=4, FACTOR=3.0, block=THREADS)
    broken = tw.Config(PER=4, FACTOR=2.0, block=4096)
    make = tw.autotune(configs=[*configs, wrong, broken], key=["dst"], progress=False)
    tuned = make(scale)
    found = tuned.tune(dst, src, grid=blocks)
    assert (dst == 7).all(), "the arrays are as they were"
    status = {trial.config: trial.status for trial in found.trials}
    assert status == {**dict.fromkeys(configs, "ok"), wrong: "wrong", broken: "failed"}
    assert found.best in configs and found.source == "measured"
    times = {trial.config: trial.milliseconds for trial in found.trials}
    assert times[found.best] <= 1.06 * min(t for t in times.values() if t is not None)
    tuned[blocks, None](dst, src)
    assert torch.equal(dst, src * 2)
    assert len(DiskCache(default_folder()).entries()) >= 5, "compiled ahead, into the cache"
    again = make(scale).tune(dst, src, grid=blocks)
    assert again.source == "stored" and again.best == found.best
    assert make(scale).best_config(dst, src) == found.best
    assert make(scale).best_config(dst[:1024], src) is None
    assert make(scale).tune(dst, src, grid=blocks, force=True).source == "measured"


def test_outputs_that_are_read_are_right_after_tuning() -> None:
    torch = pytest.importorskip("torch")

    @tw.kernel
    def accumulate(total, src, PER: tw.constexpr):
        first = tw.block_idx.x * THREADS * PER + tw.thread_idx.x
        for n in tw.static_range(PER):
            at = first + n * THREADS
            if at < total.size:
                total[at] = total[at] + src[at]

    @tw.autotune(configs=[tw.Config(PER=p) for p in (1, 4)], key=["total"], store=None, progress=False)
    def add(total, src, *, PER):
        accumulate[-(-total.shape[0] // (THREADS * PER)), THREADS](total, src, PER)

    total, src = torch.ones(100_000, device="cuda"), torch.full((100_000,), 2.0, device="cuda")
    add(total, src)
    assert (total == 3).all()
    add(total, src)
    assert (total == 5).all()


def test_a_search_of_a_space(vectors) -> None:
    dst, src = vectors
    space = tw.Space(PER=(1, 2, 4, 8, 16, 32), min_blocks=(1, 2, 4)).where(lambda PER: PER < 32, "few elements")
    tuned = tw.autotune(space=space, key=["dst"], store=None, max_trials=12, progress=False)(scale)
    found = tuned.tune(dst, src, grid=blocks, block=THREADS)
    assert len(found.trials) == 12 and {t.status for t in found.trials} == {"ok"}


def test_a_damaged_store_is_told(vectors, tmp_path: Path) -> None:
    """A tuning that was asked for ends there; a call tunes for its process alone."""
    dst, src = vectors
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(b"no database " * 500)
    for store, message in ((path, "is damaged"), (Store(tmp_path), "cannot be")):
        dst.fill_(7)
        with pytest.raises(tw.TuningError, match=message):
            tw.autotune(configs=[tw.Config(PER=1)], store=store, progress=False)(scale).tune(
                dst, src, grid=blocks, block=THREADS
            )
        assert (dst == 7).all()
        called = tw.autotune(configs=[tw.Config(PER=1)], store=store, progress=False)(scale)
        with pytest.warns(tw.TilewrightWarning, match=f"{message}.*kept in this process"):
            called[blocks, THREADS](dst, src)
        assert (dst == 2 * src).all()


# --- the command -----------------------------------------------------------------------------------------


def bench(tmp_path: Path, *arguments: str) -> dict:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(main, ["bench", *arguments, "-o", str(out)])
    assert result.exit_code == 0, result.output
    return json.loads(out.read_text())


def test_the_ladder_against_cublas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "sgemm"
    folder.mkdir()
    (folder / "01_naive.py").write_text(NAIVE)
    monkeypatch.setattr(sgemm, "examples_folder", lambda: tmp_path)
    plot = tmp_path / "plot.svg"
    more = ["--plot", str(plot)] if "matplotlib" in sys.modules or _has_matplotlib() else []
    data = bench(tmp_path, "sgemm", "--size", "512", "--size", "300x500x700", *more)
    rows = {(row["name"], row["size"]): row for row in data["rows"]}
    for size in ("512", "300 x 500 x 700"):
        library = rows["cuBLAS (torch)", size]
        assert library["of_library"] == 1
        for name in ("01 naive", "01 naive, again"):
            row = rows[name, size]
            assert 0 < row["of_library"] < 1 and row["error"] <= 1 and row["registers"] > 0 and row["occupancy"] > 0
            assert row["of_library_low"] <= row["of_library"] <= row["of_library_high"]
            assert 0 < row["of_ceiling"] < 1
    assert data["facts"]["race of 512"]["rounds"] == 15 and data["machine"]["versions"]["torch"]
    assert not more or plot.stat().st_size > 1000
    result = CliRunner().invoke(main, ["bench", "sgemm", "--size", "400000"])
    assert result.exit_code == 1 and "of the GPU are free" in result.output


def _has_matplotlib() -> bool:
    import importlib.util

    return importlib.util.find_spec("matplotlib") is not None


def test_transpose_launch_and_files(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data = bench(tmp_path, "transpose", "--size", "2048")
    assert all(0 < row["of_ceiling"] < 4 for row in data["rows"])  # 32 MB may stay in the L2 cache of their writer
    rows = {row["name"]: row for row in bench(tmp_path, "launch")["rows"]}
    assert rows["the loop alone"]["microseconds"] < rows["prepared launch"]["microseconds"] < 100
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nx = torch.randn(1 << 20, device='cuda')\n"
        "def candidates():\n    return {'sin': lambda: x.sin(), 'both': lambda: x.sin().cos()}\n"
    )
    rows = {row["name"]: row for row in bench(tmp_path, f"{file}:candidates")["rows"]}
    assert rows["sin"]["of_first"] == 1 and rows["both"]["of_first"] < 0.9


def test_a_gradient_is_captured_on_a_stream_of_its_own_and_spoils_nothing_on_the_default_one() -> None:
    """autograd goes back on the stream of the forward pass; the default stream cannot be captured."""
    torch = pytest.importorskip("torch")

    def is_captured() -> bool:
        x = torch.randn(1 << 12, device="cuda", requires_grad=True)
        y, grad = x.sin(), torch.ones_like(x)
        run = lambda: torch.autograd.grad(y, x, grad, retain_graph=True)  # noqa: E731
        return tw.bench.compare({"sin": run}, rounds=3, batch_ms=1, flush=False)["sin"].captured

    before = torch.cuda.current_stream()
    assert not is_captured()
    assert torch.cuda.current_stream() == before
    assert torch.randn(8, device="cuda").isfinite().all()  # the generator counts outside of captures again
    torch.cuda.empty_cache()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert is_captured()


def test_the_simulator_is_not_timed() -> None:
    dst, src = np.zeros(8, np.float32), np.ones(8, np.float32)
    run = lambda: scale[1, THREADS](dst, src, 1)  # noqa: E731
    with pytest.raises(tw.ArgumentError, match="ran on the simulator, where time means nothing"):
        do_bench(run)
    with pytest.raises(tw.ArgumentError, match="ran on the simulator"):
        tw.bench.compare({"a": run})
