"""Which names a piece of a function assigns, may read before it assigns them, and reads at all."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

Statements = Sequence[ast.stmt]

_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that the nodes assign in their own scope, in order of first assignment."""
    names: dict[str, None] = {}
    for node in nodes:
        _collect_assigned(node, names)
    return list(names)


def _collect_assigned(node: ast.AST, names: dict[str, None]) -> None:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        names[node.name] = None
        return
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names[node.id] = None
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names.update((alias.asname or alias.name.split(".")[0], None) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        _collect_assigned(child, names)


def assigned_in_blocks(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that loops and branches assign: those that may have no value behind them."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, *_SCOPES)):
            continue
        if isinstance(node, (ast.If, ast.For, ast.While)):
            found.update(assigned([node]))
        else:
            found |= assigned_in_blocks(ast.iter_child_nodes(node))
    return found


def read(nodes: Iterable[ast.AST]) -> set[str]:
    """Return all names that the nodes read, nested scopes included."""
    return {
        n.id
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Load, ast.Del))
    }


def captured(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that functions defined among the nodes read: when, nobody can say."""
    inner = (n for node in nodes for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.Lambda)))
    return read(inner)


def exposed(statements: Statements) -> set[str]:
    """Return the names that the statements may read before they assign them."""
    return _flow(statements, set())[0]


def live_before(statement: ast.stmt, live: set[str]) -> set[str]:
    """Return the names that may be read from a statement on, when `live` may be read after it."""
    found, defined = _flow([statement], set())
    return found | (live - defined)


def _flow(statements: Statements, defined: set[str]) -> tuple[set[str], set[str]]:
    """Return (names read while perhaps not assigned, names surely assigned afterwards)."""
    found: set[str] = set()
    defined = set(defined)
    for statement in statements:
        if isinstance(statement, ast.If):
            found |= read([statement.test]) - defined
            left, after_left = _flow(statement.body, defined)
            right, after_right = _flow(statement.orelse, defined)
            found |= left | right
            defined = after_left & after_right
        elif isinstance(statement, ast.For):
            found |= read([statement.iter]) - defined
            inner, _ = _flow(statement.body, defined | set(assigned([statement.target])))
            found |= inner
        elif isinstance(statement, ast.While):
            found |= read([statement.test]) - defined
            inner, _ = _flow(statement.body, defined)
            found |= inner
        elif isinstance(statement, ast.AugAssign):
            names = set(assigned([statement.target]))
            found |= (read([statement]) | names) - defined
            defined |= names
        elif isinstance(statement, ast.With):
            found |= read([item.context_expr for item in statement.items]) - defined
            inner, defined = _flow(statement.body, defined | set(assigned(statement.items)))
            found |= inner
        else:
            found |= read([statement]) - defined
            defined |= set(assigned([statement]))
    return found, defined
