"""Random products of every family against float64, on both backends, by `benchmarks.random_problems`; and that itself.

`python -m benchmarks.random_problems` runs many more, and keeps the kernels of a kind together.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.random_problems import pool, sanitizing
from benchmarks.random_problems.ahead import Compiler
from benchmarks.random_problems.bounds import Verdict
from benchmarks.random_problems.kinds import draw_kind
from benchmarks.random_problems.layouts import Lay
from benchmarks.random_problems.memory import Held, Memory, memory_of
from benchmarks.random_problems.report import Report
from benchmarks.random_problems.running import Draw, run
from benchmarks.random_problems.subjects import SUBJECTS
from benchmarks.random_problems.trials import NotTaken, tried
from tests.helpers.slow import scaled

import tilewright as tw
from tilewright.runtime.cache import default_cache

IN_SIMULATOR, ON_GPU = Draw("sim", seed=20, kinds=1000), Draw("cuda", seed=20, kinds=4)
QUICK = {  # a problem of each family whose kernel is traced and run in less than a second
    "hopper": 2, "hopper tf32": 0, "hopper int8": 3, "hopper fp8": 4, "hopper fp8 blocks": 0, "hopper in parts": 4,
    "split K": 4, "multistage": 3, "multistage in parts": 3, "multistage blocks": 1, "simt": 3, "float64": 4,
    "streaming": 2, "gemv": 0, "tiny": 0, "weight streaming": 1, "weight tiles": 2, "weight warpgroups": 0, "grouped": 0,
    "grouped hopper": 0, "lists": 0, "chosen": 0,
}  # fmt: skip


# Families of which the tests beside this one, or those of kernels, simulate most products anyway.
SIMULATED = {
    "hopper",
    "hopper tf32",
    "multistage",
    "streaming",
    "gemv",
    "weight tiles",
    "grouped",
    "grouped hopper",
    "simt",
}


def in_simulator() -> list[Any]:
    """Return a problem of each family that other tests simulate less, and more that are slow."""
    rest = [(name, n) for name in SUBJECTS for n in range(scaled(8)) if QUICK[name] != n]
    rest += [(name, QUICK[name]) for name in QUICK if name in SIMULATED]
    quick = [(name, n) for name, n in QUICK.items() if name not in SIMULATED]
    return [*quick, *(pytest.param(name, n, marks=pytest.mark.slow) for name, n in rest)]


@pytest.mark.parametrize(("family", "number"), in_simulator())
@pytest.mark.spread(2)
def test_random_products_in_the_simulator(family: str, number: int) -> None:
    try:
        trial = run(family, number, IN_SIMULATOR, Memory())
    except NotTaken as exception:  # those of the seed that no configuration of the family is for
        pytest.skip(str(exception))
    assert trial.verdict.wrong is None, trial


@pytest.mark.gpu
@pytest.mark.parametrize("family", list(SUBJECTS))
def test_random_products_on_gpu(family: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    memory = memory_of("cuda")
    for number in range(20):
        trial = run(family, number, ON_GPU, memory)
        assert trial.verdict.wrong is None, (number, trial)


@pytest.mark.parametrize("family", list(SUBJECTS))
def test_problems_follow_from_their_numbers(family: str) -> None:
    assert [draw_kind(family, n, 5) for n in range(4)] == [draw_kind(family, n, 5) for n in range(4)]
    assert len({str(draw_kind(family, n, 5)) for n in range(12)}) > 8
    assert len({draw_kind(family, n, 5).a for n in range(24)} - {SUBJECTS[family].types[0].a}) >= (
        len({types.a for types in SUBJECTS[family].types}) > 1
    )


# --- what is found ---------------------------------------------------------------------------------------------------


class Doubled:
    """y = 2 x by NumPy, and what goes wrong with it."""

    configuration = "NumPy"

    def __init__(self, memory: Memory, fault: str) -> None:
        self.memory, self.fault, self.calls = memory, fault, 0
        random = np.random.default_rng(0)
        placed = Lay("last", "element").place((5, 7), 4, random)
        self.held: dict[str, Held] = {"x": memory.numbers(tw.float32, placed, "normal", 3)}
        self.outs = [memory.hold(tw.float32, placed)]

    def choose(self) -> None:
        pass

    def poison(self, byte: int) -> None:
        self.memory.fill(self.outs[0], byte)

    def call(self) -> list[Any]:
        out, x = self.outs[0], self.held["x"]
        out.array[...] = 2 * x.array
        beside = memory_of("sim").band // 4
        if self.fault == "an element that is missing":
            out.bits[4, 6] = -1
        elif self.fault == "a write before":
            out.allocation[beside] = 0
        elif self.fault == "a write between rows":
            out.allocation[beside + 1 + 7] = 0
        elif self.fault == "a read behind":
            out.array[4, 6] += x.allocation.view(np.float32)[-beside]
        elif self.fault == "a write to x":
            x.allocation[0] = 7
        elif self.fault == "other bits":
            out.bits[0, 0] += self.calls
        self.calls += 1
        return [out.array]

    def judge(self, found: list[Any], verdict: Verdict) -> None:
        exact = 2 * self.memory.wide(self.held["x"].array)
        verdict.compare("y", self.memory, found[0], exact, 0 * exact, tw.float32)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("none", None),
        ("an element that is missing", "y: 1 of 35 elements are wrong, first (4, 6): got nan"),
        ("a write before", "elements beside the result were written"),
        ("a write between rows", "elements beside the result were written"),
        ("a read behind", "y: 1 of 35 elements are wrong, first (4, 6): got nan"),
        ("a write to x", "x is read only, and was written to"),
        ("other bits", "two runs differ in bits"),
    ],
)
def test_faults_are_found(fault: str, wrong: str | None) -> None:
    memory = Memory()
    found = tried(Doubled(memory, fault), memory).verdict.wrong
    assert found == wrong or (found is not None and wrong is not None and found.startswith(wrong))


def test_what_is_not_finite_has_its_place() -> None:
    def verdict_of(got: list[float], exact: list[float], dtype: tw.DType = tw.float16) -> str | None:
        verdict, x = Verdict(), np.array(exact)
        verdict.compare("y", Memory(), np.array(got).astype(dtype.numpy), x, np.zeros_like(x), dtype)
        return verdict.wrong

    inf, nan = np.inf, np.nan
    assert verdict_of([nan, inf, -inf, inf, 1], [nan, inf, -inf, 1e6, 1]) is None
    for got, exact in ((inf, nan), (nan, inf), (-inf, inf), (inf, 1), (nan, 1), (65504, inf), (-inf, 1e6)):
        assert verdict_of([got], [exact]) is not None, (got, exact)


# --- processes -------------------------------------------------------------------------------------------------------

STAND_IN = """
import json, os, sys, time
for line in sys.stdin:
    task = json.loads(line)
    if task["number"] == 3:
        os._exit(9)
    if task["number"] == 5:
        time.sleep(60)
    print(json.dumps({**task, "seconds": 0.0, "worst": 0.5, "configuration": "one"}), flush=True)
"""


def test_a_process_that_ends_or_hangs_is_the_failure_of_its_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "command_of", lambda how: [sys.executable, "-c", STAND_IN])
    how = Draw("sim", kinds=8)
    report = Report(how, ["hopper"], 8)
    tasks = pool.shared_out(["hopper"], range(8), 8, 1)
    pool.compute(how, tasks, report.tell, seconds=60, patience=3)
    report.write(tmp_path / "report.json", {})
    family = json.loads((tmp_path / "report.json").read_text())["families"]["hopper"]
    assert (family["problems"], family["configurations"]["one"], family["worst"]) == (8, 6, 0.5)
    failures = {each["number"]: each for each in family["failures"]}
    assert {n: each["wrong"] for n, each in failures.items()} == {
        3: "the process ended with status 9",
        5: "no answer within 3 s",
    }
    assert failures[3]["repeat"].endswith("--backend sim --seed 0 --kinds 8 --family 'hopper' --only 3")
    assert failures[3]["repeat"] in capsys.readouterr().out


def test_kinds_stay_together_and_all_have_their_turn() -> None:
    found = pool.shared_out(["simt", "lists"], range(40), 5, 3)
    assert sorted(task for mine in found for task in mine) == sorted(
        (f, n) for f in ("simt", "lists") for n in range(40)
    )
    owners = [{(family, number % 5) for family, number in mine} for mine in found]
    assert sum(map(len, owners)) == 10
    assert all(
        {(f, n % 5) for f, n in mine[: 2 * len(kinds)]} == kinds for mine, kinds in zip(found, owners, strict=True)
    )


SANITIZER = """#!{python}
import subprocess, sys
log, rest = sys.argv[4], sys.argv[5:]
given = sys.stdin.read()
bad = '"number": 2}}' in given
open(log, "w").write("========= Invalid __global__ read of size 4 bytes\\n" * bad + f"========= ERROR SUMMARY: {{int(bad)}} errors")
sys.exit(subprocess.run([sys.executable, "-c", {stand_in!r}], input=given, text=True).returncode)
"""


def test_problems_under_a_sanitizer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER.format(python=sys.executable, stand_in=STAND_IN))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "found.json"
    assert sanitizing.sanitize(["simt"], [0, 1], Draw("cuda"), ["memcheck"], path, 60) == 0
    assert json.loads(path.read_text())[0]["findings"] == 0
    assert sanitizing.sanitize(["simt"], [1, 2], Draw("cuda"), ["memcheck"], path, 60) == 1
    (found,) = json.loads(path.read_text())
    assert found["findings"] == 1 and "Invalid __global__ read" in found["log"][0]
    assert [each["numbers"] for each in found["by number"]] == [[2]]
    assert "memcheck   simt" in capsys.readouterr().out


def test_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same problem finds all of them in the store, and one that shares its kind and configuration most of them."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    how = Draw("ahead", seed=20, kinds=4)
    assert Compiler().compile("simt", 0, how) > 0
    kept = {entry.key for entry in default_cache().entries()}
    assert kept and all(entry.arch == "sm_90a" for entry in default_cache().entries())
    assert Compiler().compile("simt", 0, how) > 0
    assert {entry.key for entry in default_cache().entries()} == kept


@pytest.mark.slow
def test_the_command() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.random_problems",
        "--backend",
        "sim",
        "--family",
        "streaming",
        "--only",
    ]
    done = subprocess.run([*command, "0"], capture_output=True, text=True, env=pool.environment(), cwd=pool.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 problems, 1 configurations, 0 not taken" in done.stdout
