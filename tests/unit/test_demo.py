"""The runner of the examples, with cases made up here."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.helpers.wheel import hatch_build

from tilewright import cli
from tilewright.demo import Case, Trial, collect_cases, example_files, fetch, main, put, run_case, run_cases, with_parts
from tilewright.demo.arrays import _Transposed
from tilewright.demo.examples import examples_folder, load_example
from tilewright.demo.runner import as_json, failures, format_seconds, greatest_difference
from tilewright.errors import ArgumentError

EXAMPLES = Path(__file__).parents[2] / "examples"


def double(offset: float = 0.0, limit: float = 0.0) -> Case:
    """A case whose kernel doubles its input, and is wrong by `offset`."""

    def prepare() -> Trial:
        x = np.arange(8, dtype=np.float32)
        out = np.zeros_like(x)

        def launch() -> None:
            out[:] = 2 * x + np.float32(offset)

        return Trial(launch, lambda: out, expected=2 * x, limit=limit)

    return Case("double", "8 float32", prepare, bytes_moved=64)


def test_case_that_is_right_passes_with_its_time_and_rate() -> None:
    report = run_case(double(), "sim")
    assert report.passed
    assert report.error == 0.0
    assert report.seconds is not None and report.seconds > 0
    assert replace(report, seconds=64e-9).rate == pytest.approx((1.0, "GB/s"))
    assert replace(report, seconds=1.0, flops=2 * 10**9).rate == (2.0, "GFLOP/s")
    assert replace(report, seconds=1.0, library_seconds=0.5).ratio == 0.5


def test_case_beyond_its_limit_fails_and_says_by_how_much() -> None:
    report = run_case(double(offset=0.5, limit=0.25), "sim")
    assert not report.passed
    assert failures([report]) == ["double (8 float32): the greatest error is 0.5, the limit 0.25"]
    assert run_case(double(offset=0.5, limit=0.5), "sim").passed


def test_case_that_raises_fails_with_the_error() -> None:
    def prepare() -> Trial:
        raise ValueError("no data")

    assert run_case(Case("broken", "-", prepare), "sim").failure == "ValueError: no data"


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.inf], [math.inf], 0.0),
        ([math.nan], [1.0], math.inf),
        ([math.inf], [1.0], math.inf),
        ([-math.inf], [math.inf], math.inf),
        ([1.0], [1.0, 2.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_greatest_difference(actual: list[float], expected: list[float], difference: float) -> None:
    assert greatest_difference(np.array(actual), np.array(expected)) == difference


def test_greatest_difference_of_large_integers_is_exact() -> None:
    a = np.array([2**62, 0], dtype=np.int64)
    assert greatest_difference(a, a + np.array([1, 0])) == 1
    assert greatest_difference(-a, a) == 2.0**63
    unsigned = np.array([1, 2**64 - 1], dtype=np.uint64)
    assert greatest_difference(unsigned, unsigned) == 0
    assert greatest_difference(np.array([True]), np.array([False])) == 1
    assert greatest_difference(np.array([1.5]), np.array([1])) == 0.5
    assert greatest_difference(np.array([0], np.uint8), np.array([255], np.uint8)) == 255


def test_json_is_strict_even_where_the_error_has_no_number() -> None:
    report = run_case(double(offset=math.nan), "sim")
    data = json.loads(json.dumps(as_json([report], "sim"), allow_nan=False))
    assert data["passed"] is False
    assert data["cases"][0]["max_error"] == "infinite"


def test_put_copies_and_keeps_strides() -> None:
    x = np.asfortranarray(np.ones((3, 4), np.float32))
    y = put(x, "sim")
    assert y.strides == x.strides and not np.shares_memory(x, y)
    assert fetch(y) is y


def test_transposed_array_of_our_own_has_the_strides_of_numpy() -> None:
    class Base:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        @property
        def __cuda_array_interface__(self) -> dict[str, object]:
            interface = self.array.__array_interface__
            return {"shape": self.array.shape, "typestr": interface["typestr"], "strides": None}

        def numpy(self) -> np.ndarray:
            return self.array

    for shape in [(3,), (3, 4), (2, 3, 4)]:
        base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        transposed = _Transposed(Base(base))
        assert transposed.__cuda_array_interface__["shape"] == base.T.shape
        assert transposed.__cuda_array_interface__["strides"] == base.T.strides
        assert np.array_equal(fetch(transposed), base.T)


def test_files_that_fail_become_cases_that_fail(tmp_path: Path) -> None:
    (tmp_path / "01_good.py").write_text("def cases(backend, quick):\n    return []\n")
    (tmp_path / "02_bad.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "03_worse.py").write_text("def cases(backend, quick):\n    raise RuntimeError('in cases')\n")
    (tmp_path / "_helper.py").write_text("raise SystemExit\n")
    files = example_files(tmp_path)
    assert [path.name for path in files] == ["01_good.py", "02_bad.py", "03_worse.py"]
    reports, interrupted = run_cases(collect_cases(files, "sim", quick=True), "sim")
    assert not interrupted
    assert [(report.name, report.failure) for report in reports] == [
        ("02_bad", "RuntimeError: at import"),
        ("03_worse", "RuntimeError: in cases"),
    ]


def test_folders_beside_the_files_come_behind_them(tmp_path: Path) -> None:
    for name in ("02_b.py", "01_a.py", "part/03_c.py", "__pycache__/04_d.py", ".hidden/05_e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    files = with_parts(example_files(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["01_a.py", "02_b.py", "part/03_c.py"]
    assert with_parts([]) == []


def test_programs_are_no_cases(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "01_case.py").write_text(
        'def f(): ...\n\ndef cases(b, q): ...\nif __name__ == "__main__": f()\n'
    )
    (tmp_path / "part" / "program.py").write_text('import torch\n\nif __name__ == "__main__":\n    print()\n')
    (tmp_path / "00.py").write_text("")
    assert [path.name for path in with_parts(example_files(tmp_path))] == ["00.py", "01_case.py"]


def test_the_demo_needs_nothing_that_an_installation_lacks() -> None:
    needed = set(sys.stdlib_module_names) | {"tilewright", "numpy", "ml_dtypes", "rich", "click"}
    for path in with_parts(example_files()):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= needed, path.name


@pytest.mark.parametrize(("offset", "status"), [(0.0, 0), (1.0, 1)])
def test_main_of_an_example_exits_with_the_outcome(
    offset: float, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def cases(backend: str, quick: bool) -> list[Case]:
        asked.append((backend, quick))
        return [double(offset)]

    with pytest.raises(SystemExit) as exit:
        main(cases, ["--backend", "sim"])
    assert exit.value.code == status
    assert asked == [("sim", True)]
    output = capsys.readouterr()
    assert "double" in output.out and "8 float32" in output.out
    assert ("the greatest error is 1" in output.err) == bool(status)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (2.0, "2 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (0.0, "0 us")]
)
def test_format_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package as pip installs it: its examples are in an archive, none lie beside it."""
    package = tmp_path / "lib" / "site" / "tilewright"
    package.mkdir(parents=True)
    files = [(name, (EXAMPLES / name).read_bytes()) for name in ("01_copy.py", "_tour.py")]
    (package / "examples.bz2").write_bytes(hatch_build().packed(files))
    monkeypatch.setattr("tilewright.source.__file__", str(package / "source.py"))
    examples_folder.cache_clear()
    yield package
    examples_folder.cache_clear()


def test_examples_of_an_installed_package_are_unpacked(installed: Path) -> None:
    folder = examples_folder()
    assert folder == examples_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["01_copy.py", "_tour.py"]
    assert (folder / "_tour.py").read_bytes() == (EXAMPLES / "_tour.py").read_bytes()
    assert load_example(folder / "01_copy.py").cases("sim", True)


def test_an_installation_without_examples_says_so(installed: Path) -> None:
    (installed / "examples.bz2").unlink()
    with pytest.raises(ArgumentError, match="this installation of tilewright has no examples"):
        examples_folder()


def test_unpack_writes_the_examples(tmp_path: Path) -> None:
    new = tmp_path / "new"
    found = CliRunner().invoke(cli.main, ["demo", "--unpack", str(new)])
    assert (found.exit_code, found.output) == (0, f"wrote the examples to {new}\n")
    names = {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*.py")}
    assert {path.relative_to(new) for path in new.rglob("*.py")} == names
    again = CliRunner().invoke(cli.main, ["demo", "--unpack", str(new)])
    assert again.exit_code == 2
    assert f"cannot write into {new}" in again.output


def test_examples_of_a_folder_have_numbers_of_their_own() -> None:
    for folder in {path.parent for path in with_parts(example_files())}:
        numbers = [path.name.split("_")[0] for path in folder.glob("[0-9]*.py")]
        assert len(set(numbers)) == len(numbers), folder
