"""Python's syntax trees: what is read of a user's function, and the small trees that replace its statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

# Names that the rewriter adds to a function; no user's variable begins like them.
CONTROL = "__tilewright"
RETURNED = "__tilewright_returned"
STOP = "__tilewright_stop"
SKIP = "__tilewright_skip"
ITEM = "__tilewright_item"
FACTORY = "__tilewright_factory"

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


def unbound(names: Sequence[str]) -> list[ast.stmt]:
    """Make names variables of a function without giving them a value."""
    if not names:
        return []
    assignment = ast.Assign([ast.Name(n, ast.Store()) for n in names], ast.Constant(None))
    return [ast.If(ast.Constant(False), [assignment], [])]


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
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        for each in _around(node):
            _collect_assigned(each, names)
        return
    if isinstance(node, _SCOPES):  # := in a comprehension assigns a variable of the function
        walrus = (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        names.update((target.id, None) for target in walrus)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        names[node.id] = None
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names.update((alias.asname or alias.name.split(".")[0], None) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        _collect_assigned(child, names)


def _around(function: ast.FunctionDef | ast.Lambda) -> list[ast.expr]:
    """Return the defaults and decorators of a function, which are computed where it is defined."""
    given = function.args
    return [*given.defaults, *filter(None, given.kw_defaults), *getattr(function, "decorator_list", ())]


def changed(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the names that the nodes assign, and those that functions defined among them share by `nonlocal`."""
    return [*dict.fromkeys((*assigned(nodes), *_shared_inside(nodes)))]


def _shared_inside(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        shared = _shared_inside(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef):
            declared = [n for statement in nonlocals(node.body) for n in statement.names]
            shared = iter([n for n in (*declared, *shared) if n not in owned(node)])
        yield from shared


def assigned_in_blocks(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that loops and branches assign: those that may have no value after them."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, *_SCOPES)):
            continue
        if isinstance(node, (ast.If, ast.For, ast.While)):
            found.update(changed([node]))
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
    """Return the names that functions and generators defined among the nodes use, at a time that is not known.

    Not their own variables: a parameter of the name of a loop's index would have the loop carry the index.
    """
    inner = (
        n for node in nodes for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp))
    )
    return set().union(*map(_free, inner))


def _free(scope: ast.FunctionDef | ast.Lambda | ast.GeneratorExp) -> set[str]:
    """Return the names that a function or generator uses, without those that are surely its own."""
    names = read([scope]).union(*(n.names for n in ast.walk(scope) if isinstance(n, ast.Nonlocal)))
    return names if isinstance(scope, ast.GeneratorExp) else (names - owned(scope)) | read(_around(scope))


def owned(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Return the names that are surely a function's own: its parameters, and what it assigns and does not share."""
    given = function.args
    own = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if a}
    if isinstance(function, ast.FunctionDef):
        own.update(set(assigned(function.body)).difference(*(each.names for each in nonlocals(function.body))))
    return own


def nonlocals(statements: Sequence[ast.stmt]) -> list[ast.Nonlocal]:
    """Return the `nonlocal` statements of a function's body, without those of functions in it."""
    found: list[ast.Nonlocal] = []
    for statement in statements:
        if isinstance(statement, ast.Nonlocal):
            found.append(statement)
        elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            for field in ("body", "orelse"):
                found += nonlocals(getattr(statement, field, []))
    return found


def without_nonlocals(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a function's body without its own `nonlocal` statements, changed in place."""
    for statement in statements:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            statement.body = without_nonlocals(statement.body)
            if not isinstance(statement, ast.With):
                statement.orelse = without_nonlocals(statement.orelse)
    kept = [s for s in statements if not isinstance(s, ast.Nonlocal)]
    return kept if kept or not statements else [ast.copy_location(ast.Pass(), statements[0])]


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
