"""The examples that tune on a cluster, on this machine: where Dask is installed, and where Ray is."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "tuning_on_a_cluster"


@pytest.mark.slow  # a cluster takes seconds to start
@pytest.mark.parametrize(("name", "module"), [("dask_workers", "distributed"), ("ray_workers", "ray")])
def test_example_runs(name: str, module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "6 candidates at 2 workers, simulated; the best: " in done.stdout, done.stdout + done.stderr


def test_every_example_has_its_row() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {"dask_workers", "ray_workers"}
