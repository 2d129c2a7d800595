"""`tilewright bench` as a user calls it, on the simulator: rungs, files, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tilewright.cli import main
from tilewright.demo import examples
from tilewright.suites import compiling, sgemm

NAIVE = '''
import tilewright as tw

@tw.kernel
def naive(C, A, B, alpha, beta):
    """One element a thread."""
    i = tw.block_idx.y * 16 + tw.thread_idx.y
    j = tw.block_idx.x * 16 + tw.thread_idx.x
    if i < C.shape[0] and j < C.shape[1]:
        total = 0.0
        for k in range(A.shape[1] - SHORT):
            total += A[i, k] * B[k, j]
        C[i, j] = alpha * total + beta * C[i, j]

SHORT = 0

def matmul(C, A, B, alpha, beta):
    m, n = C.shape
    naive[(-(-n // 16), -(-m // 16)), (16, 16)](C, A, B, alpha, beta)

def matmul_again(C, A, B, alpha, beta):
    matmul(C, A, B, alpha, beta)

def helper(x):
    return x
'''


@pytest.fixture
def rungs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "examples" / "sgemm"
    folder.mkdir(parents=True)
    (folder / "01_naive.py").write_text(NAIVE)
    (folder / "02_half.py").write_text(NAIVE + "DTYPES = ('float16',)\n")
    (folder / "10_wrong.py").write_text(NAIVE.replace("SHORT = 0", "SHORT = 1").replace("matmul_again", "other"))
    (folder / "11_raises.py").write_text("def matmul(C, A, B, alpha, beta):\n    raise RuntimeError('not today')\n")
    (folder / "_shared.py").write_text("raise AssertionError")
    monkeypatch.setattr(sgemm, "examples_folder", lambda: tmp_path / "examples")
    return folder


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def test_usage_of_a_target_can_be_typed(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text("def add():\n    return sum(range(3))\n")
    target = f"{script}:add"
    result = call(target, "--no-such-option")
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert f"bench {target} [OPTIONS]" in words and f"bench {target} --help'" in words
    assert call(target, "--help").exit_code == 0


@pytest.mark.parametrize("option", ["--grid", "--block", "--arg"])
def test_options_of_kernels_are_refused_for_functions(option: str, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("def add():\n    return sum(range(3))\n")
    result = call(f"{tmp_path / 'sums.py'}:add", option, "3", "--backend", "sim")
    assert result.exit_code == 2
    assert "add is not a kernel: it takes no --grid, --block or --arg" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("function", "kind"), [("def work():\n    yield 1", "generator"), ("async def work():\n    return 1", "coroutine")]
)
@pytest.mark.filterwarnings("error")
def test_what_runs_later_is_not_measured(function: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(function + "\n")
    result = call(f"{tmp_path / 'later.py'}:work", "--backend", "sim")
    assert result.exit_code == 1
    assert f"a call of work does no work: it returns a {kind}, which runs later" in result.output


def test_a_rung_is_checked_and_counted(rungs: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = call("sgemm", "--rungs", "1", "--size", "20x36x24", "--backend", "sim", "-o", str(file))
    assert result.exit_code == 0, result.output
    assert "01 naive" in result.output and "01 naive, again" in result.output and "normal" in result.output
    data = json.loads(file.read_text())
    row = data["rows"][0]
    assert data["passed"] and data["settings"]["data"] == "random, standard normal"
    assert row["size"] == "20 x 36 x 24" and row["error"] <= 1 and row["failure"] is None
    # Two warps a row pair: the counts follow from the program. 20 x 36 threads store one float each, and read one.
    assert row["operations"]["float32"] >= 2 * 20 * 36 * 24
    assert row["kernels"][0]["grid"] == [3, 2, 1] and row["kernels"][0]["block"] == [16, 16, 1]
    assert row["registers"] > 8 and row["bank_conflicts"] == 0
    assert set(data["machine"]) == {"date", "gpu", "cpu", "versions"}
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == [], "no temporary file stays"


def test_wrong_and_failing_rungs_are_told_and_the_others_go_on(rungs: Path) -> None:
    result = call("sgemm", "--rungs", "10-11,1", "--size", "33", "--backend", "sim")
    assert result.exit_code == 1
    assert "10 wrong: wrong: the greatest error is" in result.output
    assert "11 raises: RuntimeError: not today" in result.output
    assert "01 naive" in result.output


def test_rungs_take_what_element_types_they_name(rungs: Path) -> None:
    result = call("sgemm", "--rungs", "1,2", "--dtype", "float16", "--size", "16", "--backend", "sim")
    assert result.exit_code == 0, result.output
    assert "left out, because they do not take float16: 01 naive" in result.output
    result = call("sgemm", "--rungs", "1", "--dtype", "bfloat16", "--size", "16", "--backend", "sim")
    assert result.exit_code == 1 and "none of these rungs takes bfloat16" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rungs", "3"], "rung 3 does not exist; the rungs are 1, 2, 10, 11"),
        (["--rungs", "1-"], "rungs are numbers and ranges such as 1-12"),
        (["--rungs", "5-3"], "rungs are numbers and ranges"),
        (["--size", "big"], "a size is N or MxNxK"),
        (["--size", "1000000"], "GiB of this machine are free"),
        (["--dtype", "int3"], "'int3' is not one of float32"),
        (["--backend", "cuda"], "no GPU can be used here"),
        (["-o", "/nonexistent/x.json"], "the folder /nonexistent, to write x.json to, does not exist"),
        (["-o", "/proc/x.json"], "cannot be written"),
        (["--plot", "x.gif"], "a plot is one of .svg, .png, .pdf"),
    ],
)
def test_bad_input(rungs: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime import driver

    monkeypatch.setattr(driver, "why_unavailable", lambda: "no driver")
    result = call("sgemm", *arguments, *([] if "--backend" in arguments else ["--backend", "sim"]))
    assert result.exit_code not in (0, 130) and message in result.output, result.output
    assert "Traceback" not in result.output


def test_json_to_stdout_is_json_alone(rungs: Path) -> None:
    for arguments in ("--size 8 --backend sim --json", "--json --size 8 --backend sim"):
        result = CliRunner().invoke(main, f"bench sgemm --rungs 1 {arguments}".split())
        assert json.loads(result.stdout)["rows"][0]["name"] == "01 naive"
        assert result.stderr == ""


def test_a_plot_is_drawn(rungs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plot.svg"
    result = call("sgemm", "--rungs", "1", "--size", "8", "--backend", "sim", "--plot", str(file))
    assert result.exit_code == 0, result.output
    assert file.read_text().lstrip().startswith("<?xml")


def test_no_rungs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgemm, "examples_folder", lambda: tmp_path)
    result = call("sgemm", "--backend", "sim")
    assert result.exit_code == 1 and "has no rungs" in result.output


def test_transpose_is_checked_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    result = call("transpose", "--size", "128", "--backend", "sim", "-o", str(file))
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["padded"]["bank_conflicts"] == rows["swizzled, 16 bytes"]["bank_conflicts"] == 0
    # A tile stored transposed: each of 32 lanes hits one bank, 31 passes too many for each of 128 x 128 / 32 warps.
    assert rows["tile stored transposed"]["bank_conflicts"] == 31 * 128 * 128 // 32
    assert rows["padded"]["touched_bytes"] == 2 * 4 * 128 * 128
    assert call("transpose", "--size", "100", "--backend", "sim").exit_code == 1


@pytest.mark.parametrize("files", [("01_copy.py", "03_matmul.py"), pytest.param((), marks=pytest.mark.slow)])
def test_compile_needs_no_gpu(
    files: tuple[str, ...], tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two examples in the suite, of all of them in the slow tests."""
    if files:
        every = compiling.example_files
        monkeypatch.setattr(compiling, "example_files", lambda folder: [x for x in every(folder) if x.name in files])
    file = tmp_path / "c.json"
    assert call("compile", "--arch", "sm_80", "-o", str(file)).exit_code == 0
    rows = json.loads(file.read_text())["rows"]
    assert {row["name"] for row in rows} >= {"01_copy:copy_tiles", "03_matmul:matmul_row_major"}
    assert all(row["cached_ms"] < row["nvrtc_ms"] for row in rows)
    assert not cache_folder.exists(), "the user's cache is left alone"
    assert "no architecture is called 'sm_1'" in call("compile", "--arch", "sm_1").output


def test_launch_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime import driver

    monkeypatch.setattr(driver, "why_unavailable", lambda: "no driver")
    result = call("launch")
    assert result.exit_code == 1 and "no GPU can be used here" in result.output


FILE = """
import numpy as np
import tilewright as tw

@tw.kernel
def double(dst, src):
    i = tw.block_idx.x * 32 + tw.thread_idx.x
    dst[i] = 2 * src[i]

def example_double():
    v = tw.spec("float32", (64,))
    return 2, 32, (v, v)

x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
calls = []

def work():
    calls.append(1)
    double[2, 32](y, x)

def candidates():
    return {"first": work, "second": lambda: double[1, 32](y, x)}

def needs(a):
    pass

def fails():
    raise ValueError("no")
"""


def test_functions_and_kernels_of_a_file(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out.json"
    file.write_text(FILE)

    def rows(name: str, *more: str) -> list[dict]:
        result = call(f"{file}:{name}", "--backend", "sim", "-o", str(out), *more)
        assert result.exit_code == 0, result.output
        return json.loads(out.read_text())["rows"]

    (kernel,) = rows("double")
    assert kernel["global_bytes"] == 2 * 4 * 64 and kernel["kernels"][0]["grid"] == [2, 1, 1]
    (smaller,) = rows("double", "--grid", "1", "--arg", "src=float32[32]", "--arg", "dst=float32[32]")
    assert smaller["global_bytes"] == 2 * 4 * 32
    (work,) = rows("work")
    assert work["global_bytes"] == 2 * 4 * 64
    assert {row["name"]: row["global_bytes"] for row in rows("candidates")} == {"first": 512, "second": 256}
    assert call(f"{file}:needs").exit_code == 1 and "needs a value for a" in call(f"{file}:needs").output
    assert call(f"{file}:nothing").exit_code == 2
    assert call(f"{file.with_name('no.py')}:nothing").exit_code == 2
    failing = call(f"{file}:fails", "--backend", "sim")
    assert failing.exit_code == 1 and "fails: ValueError: no (mine.py:" in failing.output
    assert "neither FILE:FUNCTION nor one of compile, launch, multi, sgemm" in call("frobnicate").output


def test_cases_of_a_file_are_checked() -> None:
    result = call(f"{examples.examples_folder() / '01_copy.py'}:cases", "--backend", "sim")
    assert result.exit_code == 0 and "copy, element loops (512 x 512 float32)" in result.output


def test_ctrl_c_prints_what_is_known_and_writes_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "slow.py", tmp_path / "out.json"
    file.write_text(
        FILE
        + "import time\ndef slow():\n    return {'quick': work, 'endless': lambda: (print('ready', flush=True), time.sleep(60))}\n"
    )
    out.write_text("what was there")
    command = [sys.executable, "-m", "tilewright", "bench", f"{file}:slow", "--backend", "sim", "-o", str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # What a shell starts in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "quick" in stdout and "stopped" in stderr and "Traceback" not in stderr
    assert out.read_text() == "what was there"
