"""The examples and the demo, on the simulator: right, quick, and a failure is told."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner
from tests.helpers.declared_effects import declared_effects
from tests.helpers.work import calls_of

import tilewright as tw
from tilewright import demo
from tilewright.cli import main
from tilewright.demo import Case, collect_cases, example_files, put, run_case, with_parts
from tilewright.demo.examples import examples_folder, load_example


def example(name: str) -> ModuleType:
    return load_example(examples_folder() / name)


CASES = collect_cases(example_files(), "sim", quick=True)


def test_every_example_has_cases() -> None:
    assert [path.stem for path in example_files()] == ["01_copy", "02_transpose", "03_matmul"]
    for path in example_files():
        assert collect_cases([path], "sim", quick=True), path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(",", "").replace(" ", "-"))
@pytest.mark.spread(2)
def test_case(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure
    assert report.error is not None and report.error <= (report.limit or 0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(",", "").replace(" ", "-"))
def test_case_checks_its_kernel(case: Case) -> None:
    """The output holds no right answer before the launch, so a kernel that does nothing would fail."""
    trial = case.prepare()
    assert demo.runner.greatest_difference(trial.result(), trial.expected) > trial.limit


@pytest.mark.slow  # .ci/run runs the demo itself
def test_demo_passes() -> None:
    result = CliRunner().invoke(main, ["demo", "--all", "--backend", "sim"])
    assert result.exit_code == 0, result.output
    parts = [path for path in with_parts(example_files()) if path.parent.name == "tensorcore"]
    assert "06_f16_8x8x4" in [path.stem for path in parts]
    for case in (*CASES, *collect_cases(parts, "sim", quick=True)):
        assert case.name in result.output


BROKEN = {
    "01_wrong.py": """
import numpy as np
import tilewright as tw
from tilewright.demo import Case, Trial

@tw.kernel
def double(out, x):
    i = tw.thread_idx.x
    out[i] = {expression}

def cases(backend, quick):
    def prepare():
        x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
        return Trial(lambda: double[1, 8](out, x), lambda: out, 2 * x, limit=0.0)
    return [Case("double", "8 float32", prepare)]
"""
}


@pytest.mark.parametrize(
    ("expression", "status", "shown"),
    [
        ("2 * x[i]", 0, ""),
        ("2 * x[i] + (i == 3)", 1, "the greatest error is 1, the limit 0"),
        ("2 * x[i + 1]", 1, "out of bounds: load x[8]"),
        ("2 * y[i]", 1, "name 'y' is not defined"),
    ],
)
def test_demo_tells_of_a_broken_kernel(
    expression: str, status: int, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "01_wrong.py"
    path.write_text(BROKEN[path.name].replace("{expression}", expression))
    monkeypatch.setattr(demo, "example_files", lambda: [path])
    result = CliRunner().invoke(main, ["demo", "--all", "--backend", "sim"])
    assert result.exit_code == status, result.output
    assert ("FAILED" in result.output) == bool(status)
    assert shown in result.output


def test_example_is_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("01_copy.py")
    with pytest.raises(SystemExit) as exit:
        demo.main(module.cases, ["--backend", "sim"])
    assert exit.value.code == 0
    assert "copy, tw.copy, padded" in capsys.readouterr().out


# --- the figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True], ids=["padded", "16 bytes"])
def test_large_transpose_is_simulated_quickly(fast: bool) -> None:
    """2048 x 2048 unchecked: 19,000 calls of functions, 0.3 s."""
    module = example("02_transpose.py")
    src = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    dst = np.zeros_like(src)
    with tw.simulate(check=False):
        calls = calls_of(lambda: (module.launch_fast if fast else module.launch)(dst, src))
    assert np.array_equal(dst, src.T)
    assert calls <= 25_000


def test_matmul_is_simulated_quickly() -> None:
    """512 x 512 x 256 double-buffered, unchecked: 1.5 s."""
    module = example("03_matmul.py")
    random = np.random.default_rng(0)
    a, b = (put(np.asfortranarray(random.standard_normal((512, 256), dtype=np.float32)), "sim") for _ in range(2))
    c = np.zeros((512, 512), np.float32, order="F")
    with tw.simulate(check=False):
        calls = calls_of(lambda: module.double_buffered(c, a, b))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, atol=256 * 2.0**-23 * 4)
    assert calls <= 1_200_000  # 856,000
