"""Imports run one way, those inside functions included: no modules import each other in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PACKAGE.rglob("*.py")}
FACES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def imports_of(source: str, modules: set[str]) -> set[str]:
    """Return the modules that a source imports anywhere but for types alone; what a package re-exports is left out."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in source and "TYPE_CHECKING" in ast.dump(node.test)
        for child in node.body
        for inner in ast.walk(child)
    }
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or {node.module}
    return found & modules


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, pending = set(), list(graph[start])
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += graph[name]
        reached[start] = seen
    found: list[set[str]] = []
    for name in graph:
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def test_no_circle() -> None:
    known = set(MODULES) - FACES
    graph = {name: imports_of(MODULES[name].read_text(), known) - {name} for name in known}
    assert [sorted(circle) for circle in circles(graph)] == []


@pytest.mark.parametrize("statement", ["from tilewright.b import x", "def f():\n    from tilewright import b"])
def test_a_circle_is_found(statement: str) -> None:
    modules = {"tilewright.a", "tilewright.b", "tilewright.c"}
    sources = {"tilewright.a": statement, "tilewright.b": "from tilewright.a import y", "tilewright.c": statement}
    assert circles({name: imports_of(source, modules) for name, source in sources.items()}) == [
        {"tilewright.a", "tilewright.b"}
    ]


@pytest.mark.parametrize("room", ["ir", "passes"])
def test_what_lowers_kernels_knows_of_no_measurement(room: str) -> None:
    heavy = {name for name in MODULES if name.startswith(("tilewright.profile", "tilewright.figures"))}
    for name, path in MODULES.items():
        if name.startswith(f"tilewright.{room}."):
            assert not imports_of(path.read_text(), set(MODULES)) & heavy, name
