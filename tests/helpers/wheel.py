"""What goes into the wheel, and the part of its build that makes it small."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.helpers.scripts import load_script

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@cache
def hatch_build() -> ModuleType:
    """Return what rewrites the wheel."""
    return load_script(ROOT / "hatch_build.py")


@cache
def plain_wheel() -> dict[str, bytes]:
    """Return what the build backend puts into the wheel, but for the metadata: the package and the examples."""
    folders = {"tilewright/": ROOT / "src" / "tilewright", "tilewright/examples/": EXAMPLES}
    return {
        f"{prefix}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for prefix, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def unannotated(node: ast.AnnAssign) -> ast.Assign:
    """Return an assignment without its type."""
    return ast.copy_location(ast.Assign([node.target], node.value, lineno=node.lineno), node)


@cache
def private_uses() -> tuple[dict[str, set[str]], set[str]]:
    """Return what the modules do with private names."""
    return hatch_build().private_uses(plain_wheel())
