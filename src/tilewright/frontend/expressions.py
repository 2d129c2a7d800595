"""Rewrites expressions: `and`, `or`, `not`, `a if c else b`, chained comparisons, `in`, and some builtins.

Python asks an object for its truth now; a device value has none before the kernel runs. What may run later or
not at all becomes a lambda: `a and b` is `and_(a, lambda: b)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tilewright.errors import LanguageError
from tilewright.frontend.syntax import at, call, hook, lambda_, name, owned, parameters

Refuse = Callable[[ast.AST, str, str], LanguageError]

# Legal in a function inside of the kernel, for the kernel's own variables.
NONLOCAL = ("nonlocal", "return the value, or keep it in a tensor")

_REFUSED: dict[str, tuple[str, str]] = {
    "Try": ("try", "check the condition with if"),
    "TryStar": ("try", "check the condition with if"),
    "Match": ("match", "use if and elif"),
    "Global": ("global", "return the value, or keep it in a tensor"),
    "Nonlocal": NONLOCAL,
    "Delete": ("del", "leave the variable: an unused one costs nothing"),
    "Yield": ("yield", "a kernel stores its values; an __iter__ returns map(function, range(...))"),
    "YieldFrom": ("yield", "a kernel stores its values; an __iter__ returns map(function, range(...))"),
    "Await": ("await", "a kernel runs on the device and has nothing to await"),
    "AsyncFor": ("async for", "use for"),
    "AsyncWith": ("async with", "use with"),
    "AsyncFunctionDef": ("async def", "use def"),
    "ClassDef": ("a class definition", "define it outside of the kernel"),
    "Raise": ("raise", "use tw.device_assert, or raise in a plain helper function while tracing"),
}

# Builtins that mean something else on device values.
_BUILTINS = frozenset(
    {
        "range",
        "min",
        "max",
        "int",
        "float",
        "bool",
        "round",
        "any",
        "all",
        "print",
        "enumerate",
        "iter",
        "map",
        "zip",
        "reversed",
    }
)


def refused_construct(node: ast.AST) -> tuple[str, str] | None:
    """Return what to call a construct that a kernel cannot have and what to write in its place, or None."""
    if isinstance(node, ast.Delete) and not any(isinstance(target, ast.Name) for target in node.targets):
        return None  # items and attributes
    return _REFUSED.get(type(node).__name__)


class ExpressionRewriter(ast.NodeTransformer):
    """Rewrites one expression or simple statement.

    `uncertain` are the variables that may have no value; `deferred` says that the expression itself is put off;
    `first` is the function's first parameter, "" where there is none.
    """

    def __init__(self, refuse: Refuse, uncertain: frozenset[str], first: str, *, deferred: bool = False) -> None:
        self.refuse = refuse
        self.first: str = first
        self.uncertain: frozenset[str] = uncertain
        self.deferred: bool = deferred

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node, or refuse it."""
        refused = refused_construct(node)
        if refused is not None:
            raise self.refuse(node, *refused)
        return super().visit(node)

    def _later(self, node: ast.expr) -> ast.Lambda:
        """Rewrite an expression that may run later or not at all."""
        outer, self.deferred = self.deferred, True
        try:
            return at(lambda_(self.visit(node)), node)
        finally:
            self.deferred = outer

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Turn `x` into value_of(x), where it may have no value."""
        if isinstance(node.ctx, ast.Load) and node.id in self.uncertain:
            return at(call("value_of", name(node.id)), node)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        """Refuse := where its variable would belong to a function of ours."""
        if self.deferred:
            raise self.refuse(
                node, "an assignment (:=) in a condition that may not be computed", "assign on a line of its own"
            )
        node.value = self.visit(node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Turn `a and b` into and_(a, lambda: b)."""
        function = "and_" if isinstance(node.op, ast.And) else "or_"
        first, *others = node.values
        result: ast.expr | None = None
        for value in reversed(others):
            right = self._later(value)
            # a and b and c is a and (b and c)
            result = right if result is None else at(lambda_(at(call(function, right.body, result), node)), node)
        assert result is not None, ast.dump(node)
        return at(call(function, self.visit(first), result), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Turn `not a` into not_(a)."""
        self.generic_visit(node)
        return at(call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Turn `a if c else b` into if_expression(c, lambda: a, lambda: b)."""
        test = self.visit(node.test)
        return at(call("if_expression", test, self._later(node.body), self._later(node.orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Turn `a < b < c` into compare_chain(a, [(<, lambda: b), (<, lambda: c)]), `a in b` into contains(a, b)."""
        if len(node.ops) == 1:
            self.generic_visit(node)
            if isinstance(node.ops[0], (ast.In, ast.NotIn)):
                inside = at(call("contains", node.left, node.comparators[0]), node)
                return inside if isinstance(node.ops[0], ast.In) else at(call("not_", inside), node)
            if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and _is_truth(node.comparators[0]):
                node.left = at(call("object_of", node.left), node)
            return node
        links: list[ast.expr] = [
            ast.Tuple([_comparison(op), self._later(operand)], ast.Load())
            for op, operand in zip(node.ops, node.comparators, strict=True)
        ]
        return at(call("compare_chain", self.visit(node.left), ast.List(links, ast.Load())), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Turn `range(n)` into builtin(range)(n), `super()` into what it is short for: blocks have no parameters."""
        self.generic_visit(node)
        if self.first and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            node.args = [at(name(variable), node) for variable in ("__class__", self.first)]
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            node.func = at(ast.Call(hook("builtin"), [node.func], []), node.func)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        """Rewrite the body, which runs when the function is called."""
        outer, self.uncertain, self.first = (self.uncertain, self.first), self.uncertain - owned(node), ""
        node.body = self._later(node.body).body
        self.uncertain, self.first = outer
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        node.args.kw_defaults = [d and self.visit(d) for d in node.args.kw_defaults]
        return node


def _is_truth(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _comparison(op: ast.cmpop) -> ast.Lambda:
    a, b = name("a"), name("b")
    body: ast.expr = ast.Compare(a, [op], [b])
    if isinstance(op, (ast.In, ast.NotIn)):
        body = call("contains", a, b) if isinstance(op, ast.In) else call("not_", call("contains", a, b))
    return ast.Lambda(parameters(["a", "b"]), body)
