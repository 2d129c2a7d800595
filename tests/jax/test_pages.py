"""The page on JAX: its programs run on CPU arrays, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax")
from tests.helpers.pages import DOCS, Session, blocks_of  # after the skip


def test_programs_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [*blocks_of((DOCS / "how_to" / "jax.md").read_text(encoding="utf-8"))]
    session = Session("jax", tmp_path, available=frozenset({"JAX"}))
    assert session.run([block for block in blocks if block.language in ("python", "text")]) == 4
