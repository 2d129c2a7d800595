"""The order of the scheduling layer's modules: no circle, imports in functions and for types alone counted."""

from __future__ import annotations

import ast
from pathlib import Path

import tilewright.schedule

PREFIX = "tilewright.schedule"
FOLDER = Path(tilewright.schedule.__file__).parent
MODULES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def imported(module: str) -> set[str]:
    """Return the modules of the package that a module imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {name.removeprefix(f"{PREFIX}.").partition(".")[0] for name in names if name.startswith(f"{PREFIX}.")}
    return found & MODULES


def test_the_modules_have_an_order():
    left = {module: imported(module) for module in MODULES}
    while left:
        free = {module for module, needs in left.items() if not needs & set(left)}
        assert free, f"these modules import each other: {sorted(left)}"
        left = {module: needs for module, needs in left.items() if module not in free}


def test_every_module_is_told_of_where_the_order_is():
    text = (FOLDER / "__init__.py").read_text(encoding="utf-8").partition("\nfrom ")[0]
    inner = {"sides", "simplex", "lattice_search"}  # parts of the Omega test
    assert {module for module in MODULES - inner if module not in text.replace(",", " ").split()} == set()
