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


def test_names_that_pages_and_messages_give_are_there() -> None:
    """`tw.name` in a page, in a message, or in a docstring is a name that users have."""
    missing = []
    for file in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *PACKAGE.rglob("*.py")]:
        if "examples" in file.parts:
            continue
        for name in set(re.findall(r"(?<![\w./])tw\.([a-z]\w*)(?![\w{])", file.read_text(encoding="utf-8"))):
            known = (*tilewright._OPTIONAL, "bool")  # what is there with a library, and how the type bool_ prints
            if name not in known and not hasattr(tilewright, name):
                missing.append(f"{file.name}: tw.{name}")
    assert missing == []


def test_the_page_of_the_language_names_what_kernels_use() -> None:
    text = (ROOT / "docs/language.md").read_text(encoding="utf-8")
    names = {name for name in tilewright.__all__ if name.islower() and not name.startswith("__")}
    homes = {name: getattr(getattr(tilewright, name), "__module__", None) or "" for name in names}
    in_kernels = {
        name
        for name, home in homes.items()
        if home.startswith(("tilewright.language", "tilewright.trace", "tilewright.instructions", "tilewright.tensors"))
    }
    assert len(in_kernels) > 80
    assert sorted(name for name in in_kernels if not re.search(rf"\b{name}\b", text)) == []


def test_the_page_of_the_simulator_names_every_kind_of_finding() -> None:
    folders = (PACKAGE / "backends" / "sim", PACKAGE / "instructions")
    text = "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.py"))
    kinds = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text)) | {"race", "misaligned", "deadlock", "assertion"}
    page = (ROOT / "docs/simulator.md").read_text(encoding="utf-8")
    table = page.partition("## What is found")[2].partition("\n## ")[0]
    named = {kind for row in re.findall(r"^\| (`[^|]*`) \|", table, re.M) for kind in re.findall(r"`([\w-]+)`", row)}
    assert named == kinds
