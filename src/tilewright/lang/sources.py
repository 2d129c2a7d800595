"""From a function to the syntax tree of its definition, with the lines and columns of its file."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from typing import Any

from tilewright.errors import LanguageError


def parse(function: types.FunctionType) -> ast.FunctionDef:
    """Return the definition of a function; its nodes have the places of the file.

    Raises `LanguageError` when the source cannot be read, or is no def statement.
    """
    try:
        linecache.checkcache(inspect.getsourcefile(function) or function.__code__.co_filename)
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise LanguageError(
            f"the source of {function.__name__!r} cannot be read, and a kernel is made from its source",
            help="define the kernel in a file or in a notebook cell, not through exec or the interactive prompt",
        ) from None
    source = "".join(lines)
    if lines and lines[0][:1].isspace():  # a method or a nested function: give its indentation something to stand in
        source, first_line = "if True:\n" + source, first_line - 1
    try:
        tree = ast.parse(source)
    except SyntaxError:
        raise _no_definition(function) from None
    ast.increment_lineno(tree, first_line - 1)
    found = next((n for n in ast.walk(tree) if _defines(n, function.__name__)), None)
    if not isinstance(found, ast.FunctionDef):
        raise _no_definition(function)
    owner = _class_name(function)
    return found if owner is None else _Mangler(owner).visit(found)


def _defines(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _no_definition(function: types.FunctionType) -> LanguageError:
    code = function.__code__
    return LanguageError(
        f"{function.__name__!r} at {code.co_filename}:{code.co_firstlineno} is not a def statement of its own",
        help="a kernel is written with def: not as a lambda, and not as async def",
    )


def _class_name(function: types.FunctionType) -> str | None:
    """Return the name of the class that a method was defined in."""
    parts = function.__qualname__.split(".")
    return parts[-2] if len(parts) > 1 and parts[-2] != "<locals>" else None


class _Mangler(ast.NodeTransformer):
    """Writes a class's private names (`self.__tile`) as Python does, because the rewritten method stands outside."""

    def __init__(self, owner: str) -> None:
        self.prefix = f"_{owner.lstrip('_')}"

    def mangled(self, name: str) -> str:
        return self.prefix + name if name.startswith("__") and not name.endswith("__") else name

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = self.mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.attr = self.mangled(node.attr)
        return self.generic_visit(node)
