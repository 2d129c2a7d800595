"""`tilewright bench multi` as a user calls it, by itself and under torchrun, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)

from tilewright.cli import main  # noqa: E402  # after the skip
from tilewright.suites import multi  # noqa: E402

COMMAND = ("bench", "multi", "--backend", "sim", "--size", "8x6x12", "-o")
WAYS = ("product alone", "communication alone", "one after the other", "tw.torch")
NAMES = [
    f"{what}: {way}" for what in ("all-gather, product 8 x 3 x 12", "product, reduce-scatter 8 x 6 x 6") for way in WAYS
]


@pytest.mark.slow  # each run starts processes that import torch
@pytest.mark.parametrize("starter", [(), ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")])
def test_two_ranks_are_checked(starter: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    command = [sys.executable, "-m", *starter, "tilewright", *COMMAND, str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tw.torch") == 2  # one rank prints
    data = json.loads(file.read_text())
    assert data["passed"] and data["settings"]["ranks"] == 2 and [row["name"] for row in data["rows"]] == NAMES
    for row in data["rows"]:
        assert ("error" in row) == (not row["name"].endswith("alone")) and "microseconds" not in row
        assert row.get("error", 0) < 1e-6


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a group of one, in this process."""
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)

    class Wrong:
        @staticmethod
        def all_gather_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x @ w + 1

        matmul_reduce_scatter = staticmethod(torch.matmul)

    monkeypatch.setattr(multi, "_ours", lambda: Wrong)
    result = CliRunner().invoke(main, ["bench", "multi", "--backend", "sim", "--size", "4"])
    assert result.exit_code == 1 and result.output.count("FAILED") == 1, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "3x4x4"), "3 x 4 x 4 is not divided by 2 ranks"),
        (("--size", "x"), "a size is N or MxNxK"),
        (("--ranks", "0"), "0 is not in the range"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, ["bench", "multi", "--backend", "sim", *arguments])
    assert result.exit_code != 0 and message in result.output, result.output
