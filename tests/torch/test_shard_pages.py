"""The page on models over several GPUs, and its examples: what it types into a shell prints what it shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)
from tests.helpers.pages import DOCS, ROOT, Session, blocks_of, shell_of_this_python  # noqa: E402  # after the skip


@pytest.mark.slow  # each command starts processes that import torch
def test_commands_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**shell_of_this_python(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    runner = tmp_path / "bin" / "torchrun"
    runner.write_text('#!/bin/sh\nexec python -m torch.distributed.run --standalone "$@" 2>errors || cat errors\n')
    runner.chmod(0o755)
    blocks = [*blocks_of((DOCS / "how_to" / "shard_a_model.md").read_text(encoding="utf-8"))]
    session = Session("shard_a_model", folder, environment, available=frozenset({"PyTorch"}))
    monkeypatch.chdir(folder)
    assert session.run([block for block in blocks if block.language == "python"]) == 1
    commands = [block for block in blocks if block.language == "sh"]
    assert sum(block.text.count("$ ") for block in commands) == 5
    for block in commands:
        session.type(block.text, f"line {block.line}")
