"""Small syntax trees: what the rewriter puts in place of the user's statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import TypeVar

from tilewright.lang.names import CONTROL

Node = TypeVar("Node", bound=ast.AST)


def name(identifier: str) -> ast.Name:
    """Read a variable."""
    return ast.Name(identifier, ast.Load())


def strings(values: Sequence[str]) -> ast.Tuple:
    """Make a tuple of string constants."""
    return ast.Tuple([ast.Constant(value) for value in values], ast.Load())


def hook(function: str) -> ast.Attribute:
    """Name one of the functions that rewritten code calls."""
    return ast.Attribute(name(CONTROL), function, ast.Load())


def call(function: str, *arguments: ast.expr) -> ast.Call:
    """Call one of the functions that rewritten code calls."""
    return ast.Call(hook(function), list(arguments), [])


def variables() -> ast.Call:
    """Call locals(), whatever the user may have named so."""
    return call("locals")


def parameters(names: Sequence[str]) -> ast.arguments:
    """Make a list of plain parameters."""
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(n) for n in names],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[],
    )


def lambda_(body: ast.expr) -> ast.Lambda:
    """Put off an expression."""
    return ast.Lambda(parameters([]), body)


def definition(title: str, names: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """Define a function of plain parameters."""
    result = ast.FunctionDef(name=title, args=parameters(names), body=body, decorator_list=[], returns=None)
    if sys.version_info >= (3, 12):
        result.type_params = []
    return result


def at(node: Node, place: ast.AST) -> Node:
    """Give new nodes the place of the source they stand for; of a loop or branch that is its first line.

    One line, because Python reports a method call that spans lines at the line where its name ends.
    """
    ast.copy_location(node, place)
    if getattr(place, "end_lineno", None) != getattr(place, "lineno", None):
        header = getattr(place, "test", None) or getattr(place, "iter", None)
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        same_line = header is not None and header.end_lineno == line
        vars(node).update(end_lineno=line, end_col_offset=header.end_col_offset if same_line and header else column + 1)
    return ast.fix_missing_locations(node)
