"""Reports, `analyze`, and the commands that run scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilewright as tw
from tilewright.arch import GPUS, find_gpu
from tilewright.cli import main
from tilewright.errors import ArgumentError, CompileError
from tilewright.figures import Compiled, Launch, Line
from tilewright.profile.bounds import bounds_of, occupancy_of
from tilewright.profile.report import Profile

SCRIPT = """
import sys
import numpy as np
import tilewright as tw
import helper

@tw.kernel
def column(x, n):
    smem = tw.shared(tw.float32, tw.Layout((32, 32), (32, 1)))
    for k in tw.static_range(32):
        smem[tw.thread_idx.x, k] = 0.0
    tw.sync_threads()
    if tw.thread_idx.x < n:
        x[tw.thread_idx.x] = smem[0, tw.thread_idx.x]

x = np.ones(32, np.float32)
for _ in range(2):
    column[1, 32](x, int(sys.argv[1]))
print("the script says", helper.word, sys.argv[1:], __name__)
if "fail" in sys.argv:
    raise ValueError("on purpose")
sys.exit(3 if "three" in sys.argv else 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("word = 'hello'\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    yield str(path)
    sys.modules.pop("helper", None)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_profile_runs_a_script_unchanged(script: str, tmp_path: Path) -> None:
    before = list(sys.path), sys.argv, os.environ.get("TILEWRIGHT_BACKEND")
    result = call("profile", script, "32", "--html", str(tmp_path / "page.html"), "--size", "7")
    assert result.exit_code == 0, result.output
    assert "the script says hello ['32', '--size', '7'] __main__" in result.output
    assert "column  grid 1  block 32  2 times" in result.output
    assert "smem[tw.thread_idx.x, k] = 0.0" in (tmp_path / "page.html").read_text()
    assert "tw.composition(tw.Swizzle(5, 0, 5), tw.Layout((32, 32), (32, 1)))" in result.output
    assert (list(sys.path), sys.argv, os.environ.get("TILEWRIGHT_BACKEND")) == before


@pytest.mark.parametrize("order", [["--json", "SCRIPT", "32"], ["SCRIPT", "32", "--json"]])
def test_json_has_stdout_to_itself(script: str, order: list[str]) -> None:
    result = call("profile", *(script if word == "SCRIPT" else word for word in order))
    data = json.loads(result.stdout)
    assert "the script says" in result.stderr
    (launch,) = data["launches"]
    assert (launch["kernel"], launch["times"], launch["total"]["shared_wavefronts"]) == ("column", 2, 32 * 32 + 1)
    assert launch["conflicts"][0]["suggestion"]["after"] == 33
    wanted = SCRIPT.splitlines().index("        smem[tw.thread_idx.x, k] = 0.0") + 1
    (line,) = [line for line in launch["lines"] if line["line"] == wanted]
    assert (line["file"], line["shared_wavefronts"]) == (script, 1024)


def test_the_status_is_the_scripts(script: str) -> None:
    assert call("profile", script, "32", "three").exit_code == 3
    assert call("check", script, "32", "three").exit_code == 3
    failed = call("profile", script, "32", "fail")
    assert failed.exit_code == 1 and "ValueError: on purpose" in failed.stderr and "column" in failed.stdout


WRONG = """
import numpy as np
import tilewright as tw

@tw.kernel
def beyond(x):
    x[tw.thread_idx.x] = 1.0  # too far

beyond[1, 64](np.zeros(40, np.float32))
print("goes on")
"""


def test_check_reports_findings_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    result = call("check", str(path))
    assert result.exit_code == 1
    assert "goes on" in result.output and "\nout of bounds: store" in result.output and "1 finding" in result.output
    data = json.loads(call("check", str(path), "--json").stdout)
    (finding,) = data["findings"]
    assert (finding["kind"], finding["line"], finding["count"]) == ("out-of-bounds", 7, 24)
    assert finding["file"] == str(path)


def test_check_of_a_right_script(script: str) -> None:
    result = call("check", script, "32")
    assert result.exit_code == 0 and "0 findings" in result.output


def test_a_gpu_that_is_not_known_is_refused_before_the_script_runs(script: str) -> None:
    result = call("profile", "--gpu", "GTX 7", script, "32")
    assert result.exit_code == 1 and "no GPU is called" in result.output and "the script says" not in result.output


@tw.kernel
def scale(y, x, a):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    y[i] = a * x[2 * i]


def test_analyze_leaves_the_arguments_alone() -> None:
    y, x = np.full(64, 7, np.float32), np.arange(128, dtype=np.float32)
    profile = scale[2, 32].analyze(y, tw.static(x), 2.0)
    assert (profile.global_sectors, profile.global_sectors_ideal) == (2 * 12, 2 * 8)
    assert (y == 7).all() and (x == np.arange(128)).all()
    assert scale.analyze(y, x, a=2.0, grid=2, block=32).global_sectors == 24
    specs = tw.spec(tw.float32, (64,), align=4), tw.spec(tw.float32, (128,))
    assert scale[2, 32].analyze(*specs, 2.0).global_sectors == 2 * (8 + 5)  # y begins 4 bytes past a sector's start


def test_analyze_of_arrays_in_one_memory_and_of_views() -> None:
    memory = np.arange(256, dtype=np.float32)
    before = memory.copy()
    profile = scale[1, 32].analyze(memory[::-1][:32], memory[::2], 1.0)
    assert profile.launches[0].kernel == "scale"
    np.testing.assert_array_equal(memory, before)


def test_analyze_of_a_wrong_kernel_raises() -> None:
    y = np.zeros(8, np.float32)
    with pytest.raises(tw.CheckError):
        scale[1, 32].analyze(y, y, 1.0)
    assert (y == 0).all()


def test_reports_are_saved_by_their_ending(tmp_path: Path) -> None:
    report = scale[1, 32].analyze(tw.spec(tw.float32, (32,)), tw.spec(tw.float32, (64,)), 1.0).report("A100")
    report.save(tmp_path / "r.json")
    report.save(tmp_path / "r.txt")
    assert json.loads((tmp_path / "r.json").read_text())["launches"][0]["gpu"] == "A100"
    assert (tmp_path / "r.txt").read_text() == report + "\n"
    assert repr(report) == str(report)
    with pytest.raises(ArgumentError, match=r"saved as"):
        report.save(tmp_path / "r.pdf")


# --- bounds and occupancy ---------------------------------------------------------------------------------------------


def launch_with(compiled: Compiled | None = None, *, threads: int = 256, shared: int = 0, **figures: Any) -> Launch:
    def compile() -> Compiled:
        if compiled is None:
            raise CompileError("NVRTC is not installed")
        return compiled

    line = Line(**{k: v for k, v in figures.items() if k not in ("touched",)})
    return Launch(
        "k",
        (1, 1, 1),
        (threads, 1, 1),
        "sm_90a",
        1,
        1,
        shared,
        [line],
        touched_bytes=figures.get("touched", 0),
        compile=compile,
    )


# Registers, threads, shared memory -> blocks a multiprocessor, as CUDA's occupancy calculator gives them.
OCCUPANCY = [
    ("H200", 32, 256, 0, 8, "warps"),
    ("H200", 64, 256, 0, 4, "registers"),
    ("H200", 255, 256, 0, 1, "registers"),
    ("H200", 168, 128, 0, 3, "registers"),
    ("H200", 32, 32, 0, 32, "blocks"),
    ("H200", 32, 256, 100 * 1024, 2, "shared memory"),
    ("H200", 32, 128, 227 * 1024, 1, "shared memory"),
    ("A100", 32, 1024, 0, 2, "warps"),
    ("RTX4090", 32, 1024, 0, 1, "warps"),
    ("T4", 32, 256, 64 * 1024, 1, "shared memory"),
    ("T4", 16, 32, 39 * 128, 12, "shared memory"),  # in units of 256 bytes there, with nothing for the system
]


@pytest.mark.parametrize(("gpu", "registers", "threads", "shared", "blocks", "limiter"), OCCUPANCY)
def test_occupancy(gpu: str, registers: int, threads: int, shared: int, blocks: int, limiter: str) -> None:
    held = occupancy_of(launch_with(Compiled("sm_90a", registers, shared, False), threads=threads), find_gpu(gpu))
    assert (held.blocks, held.limiter) == (blocks, limiter)
    assert held.warps == blocks * -(-threads // 32) and held.problem is None


def test_without_a_compiler_the_report_says_so() -> None:
    held = occupancy_of(launch_with(shared=100 * 1024), find_gpu("H200"))
    assert (held.blocks, held.registers, held.problem) == (2, None, "NVRTC is not installed")


def test_occupancy_that_is_not_known_is_shown_as_unknown() -> None:
    unknown = Profile([launch_with()]).report("H100").html()
    assert "<b>unknown</b><span>occupancy: at most 100%" in unknown
    assert "<b>unknown</b>" not in Profile([launch_with(Compiled("sm_90a", 32, 0, False))]).report("H100").html()


def test_the_compilers_registers_reach_the_report() -> None:
    launch = scale[1, 32].analyze(tw.spec(tw.float32, (32,)), tw.spec(tw.float32, (64,)), 1.0).launches[0]
    held = occupancy_of(launch, find_gpu("H200"))
    if held.problem is None:
        assert (
            held.registers
            == scale[1, 32].resources(tw.spec(tw.float32, (32,)), tw.spec(tw.float32, (64,)), 1.0).registers
        )
    else:
        assert "NVRTC" in held.problem


def test_the_roofline_is_the_lower_of_its_two_sides() -> None:
    gpu = find_gpu("H200")
    thin = bounds_of(launch_with(touched=10**9, operations={"float32": 10**9}), gpu)
    assert thin.intensity == 1 and thin.attainable == gpu.bandwidth
    assert thin.longest is not None and thin.longest.name == "DRAM"
    thick = bounds_of(launch_with(touched=10**6, operations={"float32": 10**12}), gpu)
    assert thick.attainable == thick.peak == gpu.rates["float32"]
    assert thick.longest is not None and thick.longest.name == "float32 arithmetic"
    assert thick.longest.seconds == pytest.approx(1e12 / 66.9e12)
    mixed = bounds_of(launch_with(operations={"float32": 66.9e12, "float64": 33.5e12}), gpu)
    assert mixed.peak == pytest.approx(66.9e12 + 33.5e12)  # units of their own, busy at once
    assert bounds_of(launch_with(operations={"float7": 1}), gpu).unknown == ("float7",)


def test_every_gpu_has_a_source_and_plain_rates() -> None:
    for name, gpu in GPUS.items():
        assert find_gpu(name.lower()) is gpu is find_gpu(gpu.title)
        assert gpu.source and gpu.rates["float32"] >= gpu.rates["float64"] and gpu.bandwidth < 1e13
        # The plain float32 rate is two operations a clock and core.
        cores = gpu.rates["float32"] / (2 * gpu.clock * gpu.multiprocessors)
        assert min(abs(cores - n) / n for n in (64, 128)) < 0.02
    with pytest.raises(ArgumentError, match="no GPU is called 'GTX 7'"):
        find_gpu("GTX 7")


def test_the_examples_of_the_documentation_run(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "profiler.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    path = tmp_path / "transpose.py"
    path.write_text("".join(blocks).replace('"report.html"', repr(str(tmp_path / "report.html"))))
    result = call("profile", str(path))
    assert result.exit_code == 0, result.output
    assert "270336 16384\n65536 65536\n" in result.output and "bank conflict: 32 requests" in result.output
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_loop_of_launches_keeps_one_copy_of_its_accesses() -> None:
    y, x = np.zeros(32, np.float32), np.zeros(64, np.float32)
    with tw.simulate(profile=True) as run:
        for _ in range(3):
            scale[1, 32](y, x, 1.0)
        scale[1, 16](y, x, 1.0)
    first, second, third, other = run.profile.launches
    assert first.timelines is second.timelines is third.timelines is not other.timelines
    assert [each.times for each in run.report().launches] == [3, 1]


def test_a_kernel_of_the_library_has_no_line_and_is_reported_all_the_same() -> None:
    a = np.ones((64, 64), np.float16)
    with tw.simulate(profile=True) as run:
        tw.matmul(a, a)
    (line,) = run.profile.by_line()
    assert (line.file, line.line) == (None, None) and line.global_sectors == run.profile.global_sectors > 0
    report = run.report()
    assert "(no line of yours)" in report and "(no line of yours)" in report.html()
