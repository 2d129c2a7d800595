"""The page on PyTorch: its programs run on CPU tensors, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.helpers.pages import DOCS, Session, blocks_of  # after the skip


def test_programs_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [*blocks_of((DOCS / "how_to" / "pytorch_and_jax.md").read_text(encoding="utf-8"))]
    session = Session("pytorch_and_jax", tmp_path, available=frozenset({"PyTorch"}))
    assert session.run([block for block in blocks if block.language in ("python", "text")]) == 5
