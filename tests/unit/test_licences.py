"""The page on licences names every dependency, with the licence that its own metadata tells."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {
    cells[0]: cells
    for line in (ROOT / "docs" / "licences.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| package", "| ---"))
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
# What a row says, and how packages tell it.
TOLD = {
    "BSD-3-Clause and others": r"BSD-3-Clause",
    "NVIDIA's own": r"NVIDIA|Proprietary",
    "Matplotlib's own, as the PSF's": r"matplotlib|Python Software Foundation",
}


def declared() -> dict[str, str]:
    """Return each requirement of pyproject.toml and what asks for it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    build, rest = text.split("[project]", 1)
    dependencies, extras = rest.split("[project.optional-dependencies]", 1)
    groups = {"the build": re.findall(r"requires = \[(.*?)\]", build, re.DOTALL)[0]}
    groups["`tilewright`"] = re.findall(r"^dependencies = \[(.*?)^\]", dependencies, re.DOTALL | re.MULTILINE)[0]
    for name, listed in re.findall(
        r"^(\w+) = \[\n(.*?)^\]", extras.split("\n[project.", 1)[0], re.DOTALL | re.MULTILINE
    ):
        groups[f"`[{name}]`"] = listed
    found: dict[str, str] = {}
    for group, listed in groups.items():
        for requirement in re.findall(r'^\s*"([A-Za-z0-9_.-]+)|"([A-Za-z0-9_.-]+)[^"]*"\s*$', listed, re.MULTILINE):
            name = "".join(requirement)
            if name != "tilewright":
                found.setdefault(name, group)
    return found


def test_every_dependency_has_a_row_and_no_row_is_left_over() -> None:
    assert {name: row[1] for name, row in ROWS.items()} == declared()


@pytest.mark.parametrize("name", ROWS)
def test_the_row_says_what_the_package_says(name: str) -> None:
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    told = [metadata.get("License-Expression") or "", (metadata.get("License") or "")[:200]]
    told += [line for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    licence = ROWS[name][3]
    assert re.search(TOLD.get(licence, re.escape(licence)), " ".join(told)), (licence, told)


def test_the_licence_is_shipped() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license = "Apache-2.0"' in text
    assert 'license-files = ["LICENSE"]' in text
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").lstrip().startswith("Apache License")


def test_what_is_shipped_is_our_own() -> None:
    """No file of the package or the examples carries a notice of others, and none is of a kind that we do not write."""
    for folder in (ROOT / "src", ROOT / "examples"):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                is_known = path.suffix in (".py", ".pyi", ".c", ".h", ".cpp", ".json")
                assert is_known or path.name in ("py.typed", "CMakeLists.txt"), path
                assert not re.search(r"(?i)copyright|spdx-|all rights reserved", path.read_text(encoding="utf-8")), path
