"""`tilewright bench` on a GPU that is played: what is measured, set against what, and told."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.helpers.device import Device, Parameters, installed
from tests.unit.suites.test_bench_command import NAIVE

from tilewright.bench import ceilings
from tilewright.bench import device as stopwatch
from tilewright.cli import main
from tilewright.suites import launching, products, sgemm, transposing


def copy(p: Parameters, blocks: int) -> float:
    p.array(0, blocks * ceilings.TILE)[...] = p.array(1, blocks * ceilings.TILE)
    return 2 * 4 * blocks * ceilings.TILE / 3e9  # 3 TB/s; the driver's own copy has 4


def multiply_add(p: Parameters, blocks: int) -> float:
    p.array(0, blocks * ceilings.THREADS)[...] = 2 * ceilings.CHAINS
    flops = 2 * blocks * ceilings.THREADS * ceilings.CHAINS * ceilings.UNROLLED * p.integer(2)
    return flops / 50e9  # 50 TFLOP/s


class Gpu(Device):
    """Multiplies at 10 TFLOP/s, or the wrong way, and transposes at 2 TB/s."""

    def __init__(self) -> None:
        more = {"naive": self.multiply, "transpose": self.transpose, "transpose_fast": self.transpose}
        super().__init__(
            {"copy_stream": copy, "multiply_add": multiply_add, "add_first": lambda p, blocks: 0.001, **more},
            free_bytes=16 << 20,
        )
        self.wrong = False
        self.stop_after: int | None = None

    def multiply(self, p: Parameters, blocks: int) -> float:
        m = n = k = 64
        C, A, B = p.array(0, m, n), p.array(4, m, k), p.array(7, k, n)
        C[...] = p.real(9) * (A.astype(np.float64) @ B) + p.real(10) * C + self.wrong
        if self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after == 0:
                raise KeyboardInterrupt
        return 2 * m * n * k / 10e9

    def transpose(self, p: Parameters, blocks: int) -> float:
        p.array(0, 128, 128)[...] = p.array(2, 128, 128).T
        return 2 * 4 * 128 * 128 / 2e9


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all tests, which run the same kernels."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Iterator[Gpu]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(compiled))
    for results in compiled.glob("tuning.sqlite*"):  # each test tunes
        results.unlink()
    monkeypatch.setattr(products, "RESERVED", 0)
    ticks = itertools.count()
    # A host whose every look at the clock is a microsecond after the last: how often it is busy decides nothing.
    monkeypatch.setattr(stopwatch.Gpu, "host_seconds", lambda _: next(ticks) * 1e-6)
    with installed(Gpu(), monkeypatch) as device:
        for kernel in (ceilings.copy_stream, ceilings.multiply_add, launching.add_first):
            kernel.forget()
        yield device


@pytest.fixture
def rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sgemm"
    folder.mkdir()
    (folder / "01_naive.py").write_text(NAIVE)
    monkeypatch.setattr(sgemm, "examples_folder", lambda: tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.mark.usefixtures("rung")
def test_the_ladder(gpu: Gpu, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "plot.png"
    drawing = ["--plot", str(plot)] if importlib.util.find_spec("matplotlib") else []
    result = call("sgemm", "--size", "64", "-o", str(out), *drawing)
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert data["facts"]["ceilings"]["flops_per_second"] == pytest.approx(50e12)
    assert data["facts"]["ceilings"]["bytes_per_second"] == pytest.approx(4e12, rel=1e-3)
    assert data["facts"]["race of 64"]["rounds"] == sgemm.ROUNDS
    for row in data["rows"]:
        assert row["gflops"] == pytest.approx(10e3, rel=1e-3) and row["of_ceiling"] == pytest.approx(0.2, rel=1e-3)
        assert row["error"] <= 1 and row["occupancy"] == 3 * 256 / 2048 and row["registers"] > 0
    assert "neither torch nor CuPy is installed" in result.output and "normal" in result.output
    assert data["machine"]["gpu"]["name"] == "Fake GPU 0" and (not drawing or plot.stat().st_size > 1000)


@pytest.mark.usefixtures("rung")
def test_checking_alone_times_nothing(gpu: Gpu) -> None:
    result = call("sgemm", "--size", "64", "--check")
    assert result.exit_code == 0 and "GFLOP/s" not in result.output
    assert len(gpu.launches) == 4, "two rows, each once to tune itself and once to be checked"


@pytest.mark.usefixtures("rung")
def test_a_wrong_rung_is_not_timed(gpu: Gpu, tmp_path: Path) -> None:
    gpu.wrong = True
    result = call("sgemm", "--size", "64", "-o", str(tmp_path / "out.json"))
    assert result.exit_code == 1 and "wrong: the greatest error is" in result.output
    assert all("gflops" not in row for row in json.loads((tmp_path / "out.json").read_text())["rows"])


@pytest.mark.slow
@pytest.mark.usefixtures("rung")
def test_an_interrupt_tells_the_rounds_that_are_complete(gpu: Gpu, tmp_path: Path) -> None:
    assert call("sgemm", "--size", "64").exit_code == 0
    gpu.stop_after = len(gpu.launches) * 3 // 4  # as many again are launched, the checks and tunings among the first
    result = call("sgemm", "--size", "64", "-o", str(tmp_path / "out.json"))
    assert result.exit_code == 130 and "stopped" in result.output and "GFLOP/s" in result.output
    assert not (tmp_path / "out.json").exists()


@pytest.mark.usefixtures("rung")
def test_a_product_that_does_not_fit_is_refused(gpu: Gpu) -> None:
    result = call("sgemm", "--size", "2000")
    assert result.exit_code == 1 and "of the GPU are free" in result.output and "--size" in result.output
    assert gpu.launches == []


@pytest.mark.slow
def test_transpose_and_launch(gpu: Gpu, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = call("transpose", "--size", "128", "-o", str(out))
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["of_ceiling"] for row in rows] == pytest.approx([0.5] * 3, rel=1e-3)
    assert transposing.ROUNDS == len(
        json.loads(out.read_text())["facts"]["race"]["candidates"]["padded"]["milliseconds"]
    )
    result = call("launch", "-o", str(out))
    assert result.exit_code == 0, result.output
    found = {row["name"]: row["microseconds"] for row in json.loads(out.read_text())["rows"]}
    assert found["the loop alone"] < found["prepared launch"]


def test_a_kernel_of_a_file(gpu: Gpu, tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out.json"
    file.write_text(
        "import tilewright as tw\n@tw.kernel\ndef copy_stream(dst, src):\n    i = tw.thread_idx.x\n    dst[i] = src[i]\n"
        "def example_copy_stream():\n    v = tw.spec('float32', (4096,))\n    return 1, 32, (v, v)\n"
    )
    result = call(f"{file}:copy_stream", "-o", str(out))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(out.read_text())["rows"]
    assert row["gigabytes_per_second"] == pytest.approx(3000, rel=1e-3)
