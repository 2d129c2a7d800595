"""The pages on models over several GPUs, and their examples: what they type into a shell prints what they show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)
from tests.helpers.pages import DOCS, ROOT, Session, blocks_of, shell_of_this_python  # noqa: E402  # after the skip

# The page, its blocks that run without a shell, and its commands.
PAGES = [("shard_a_model", 1, 3), ("overlap_communication", 0, 2), ("distribute_experts", 0, 1)]

# On Python before 3.14 a program may be aborted after its last line, when a thread of gloo lets go of a tensor (PyTorch's
# pull request 179291). Such a run, and no other that fails, is repeated.
TORCHRUN = """#!/bin/sh
run() { python -m torch.distributed.run --standalone "$@" >printed 2>errors; }
run "$@" || { grep -q "terminate called without an active exception" errors && run "$@"; } || { cat printed errors; exit 1; }
cat printed
"""


@pytest.mark.slow  # each command starts processes that import torch
@pytest.mark.parametrize(("name", "programs", "commands"), PAGES)
def test_commands_print_what_the_page_shows(
    name: str, programs: int, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {**shell_of_this_python(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    runner = tmp_path / "bin" / "torchrun"
    runner.write_text(TORCHRUN)
    runner.chmod(0o755)
    blocks = [*blocks_of((DOCS / "how_to" / f"{name}.md").read_text(encoding="utf-8"))]
    session = Session(name, folder, environment, available=frozenset({"PyTorch"}))
    monkeypatch.chdir(folder)
    assert session.run([block for block in blocks if block.language == "python"]) == programs
    typed = [block for block in blocks if block.language == "sh"]
    assert sum(block.text.count("$ ") for block in typed) == commands
    for block in typed:
        session.type(block.text, f"line {block.line}")
