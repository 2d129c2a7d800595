"""What the documents for maintainers say of files and ops is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilewright
import tilewright.instructions
from tilewright.backends.sim.program import HANDLERS
from tilewright.ir.core import Op
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Constant, Yield

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tilewright.__file__).parent
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/reliability.md")


def is_there(name: str) -> bool:
    """Say whether a file or folder is there: by its path, or by the end of its path inside the package."""
    if name.startswith("~") or "*" in name or "<" in name:
        return True
    return any((root / name).exists() for root in (ROOT, PACKAGE, ROOT / "docs")) or any(
        path for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob(name.rstrip("/"))
    )


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:py|md|toml|yaml)|(?:[\w.]+/)+)`", text))
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_each_op_of_the_core_has_one_handler() -> None:
    def below(kind: type[Op]) -> set[type[Op]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    concrete = {op for op in below(Op) if not op.__subclasses__() and op.__module__.startswith("tilewright.")}
    # Constants fill slots once, and a yield belongs to the loop or branch around it.
    assert {op for op in concrete if not issubclass(op, Instruction)} == {*HANDLERS, Constant, Yield}
