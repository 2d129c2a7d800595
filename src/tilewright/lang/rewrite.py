"""Rewrites a kernel's Python: loops, branches and logic become calls that decide now or build device control.

    for i in range(n):          def for__in__kernel(item, acc):
        acc += x[i]                 i = named("i", item)
                                    acc += x[i]; acc = named("acc", acc)
                         ->         return (acc,)
                                (acc,) = for_loop(builtin(range)(n), for__in__kernel, ("acc",), locals())

Everything else stays plain Python, with its line numbers, so that errors and debuggers show the user's source.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Sequence
from typing import Any

from tilewright.errors import LanguageError
from tilewright.lang import control
from tilewright.lang.jumps import JumpRemover
from tilewright.lang.liveness import assigned, exposed, read
from tilewright.lang.names import CONTROL, FACTORY, ITEM, RESULT
from tilewright.lang.tracer import INNER
from tilewright.source import SourceLocation

_REFUSED: dict[str, tuple[str, str]] = {
    "Try": ("try", "check the condition with if"),
    "TryStar": ("try", "check the condition with if"),
    "Match": ("match", "use if and elif"),
    "Global": ("global", "return the value, or keep it in a tensor"),
    "Nonlocal": ("nonlocal", "return the value, or keep it in a tensor"),
    "Yield": ("yield", "a kernel hands values on by storing them"),
    "YieldFrom": ("yield", "a kernel hands values on by storing them"),
    "Await": ("await", "a kernel runs on the device and has nothing to await"),
    "AsyncFor": ("async for", "use for"),
    "AsyncWith": ("async with", "use with"),
    "AsyncFunctionDef": ("async def", "use def"),
    "ClassDef": ("a class definition", "define it outside of the kernel"),
    "Raise": ("raise", "use tw.device_assert, or raise in a plain helper function while tracing"),
}


def rewrite(function: types.FunctionType) -> types.FunctionType:
    """Return a function like the given one with its control flow made traceable, over the same closure.

    Raises `LanguageError` when the source cannot be read, or for Python that has no meaning on a device.
    """
    tree, file, first_line = _parse(function)
    ast.increment_lineno(tree, first_line - 1)
    definition = _definition(tree, function.__name__)
    rewritten = _FunctionRewriter(file).function(definition)
    free = function.__code__.co_freevars
    factory = ast.FunctionDef(
        name=FACTORY, args=_arguments(free), decorator_list=[], returns=None, type_params=[],
        body=[rewritten, ast.Return(ast.Name(rewritten.name, ast.Load()))],
    )  # fmt: skip
    module = ast.fix_missing_locations(ast.Module([factory], []))
    code = compile(module, file, "exec", dont_inherit=True)
    inner = _find_code(_find_code(code, FACTORY), rewritten.name)
    # The control functions are found under a name of ours among the user's globals, which must stay the user's own
    # dictionary: a kernel sees globals that are assigned after its definition.
    names = function.__globals__
    names.setdefault(CONTROL, control)
    cells = dict(zip(free, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in inner.co_freevars)
    result = types.FunctionType(inner, names, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def _parse(function: types.FunctionType) -> tuple[ast.Module, str, int]:
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    try:
        linecache.checkcache(file)
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
        return ast.parse(source), function.__code__.co_filename, first_line
    except SyntaxError:
        raise LanguageError(
            f"{function.__name__!r} does not stand in its source as a def statement of its own",
            help="a kernel is written with def, not as a lambda",
        ) from None


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise LanguageError(f"{name!r} is not a def statement", help="a kernel is written with def, not as a lambda")


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
    )


def _find_code(code: types.CodeType, name: str) -> types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


class _FunctionRewriter:
    """Rewrites one function; nested functions get a rewriter of their own."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.name = ""

    def refuse(self, node: ast.AST, what: str, help: str) -> LanguageError:
        line = getattr(node, "lineno", 0)
        place = SourceLocation(self.file, line, self.name, getattr(node, "col_offset", None), None)
        return LanguageError(f"{what} is not possible in a kernel", location=place, help=help)

    def function(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        """Rewrite a definition in place, without its decorators."""
        self.name = definition.name
        definition.decorator_list = []
        jumps = JumpRemover(self.refuse)
        body = jumps.function_body(definition.body)
        if jumps.returns_value:
            place = definition.body[-1]
            final = ast.Return(ast.Name(RESULT, ast.Load()))
            body.append(ast.fix_missing_locations(ast.copy_location(final, place)))
        self.stop_flags = jumps.stop_flags
        definition.body = self.statements(body, set()) or [ast.Pass()]
        for argument in [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]:
            argument.annotation = None  # evaluated already, where the user's def stands
        definition.returns = None
        definition.args.defaults = [ast.Constant(None) for _ in definition.args.defaults]
        definition.args.kw_defaults = [None if d is None else ast.Constant(None) for d in definition.args.kw_defaults]
        return definition

    def statements(self, statements: Sequence[ast.stmt], live: set[str]) -> list[ast.stmt]:
        """Rewrite a list of statements; `live` are the names that may be read after it."""
        result: list[list[ast.stmt]] = []
        for statement in reversed(statements):
            result.append(self.statement(statement, live))
            live = live | read([statement])
        return [s for group in reversed(result) for s in group]

    def statement(self, statement: ast.stmt, live: set[str]) -> list[ast.stmt]:
        refused = _REFUSED.get(type(statement).__name__)
        if refused is not None:
            raise self.refuse(statement, *refused)
        if isinstance(statement, ast.For):
            return self._for(statement, live)
        if isinstance(statement, ast.While):
            return self._while(statement, live)
        if isinstance(statement, ast.If):
            return self._if(statement, live)
        if isinstance(statement, ast.With):
            statement.items = [self.expression(item) for item in statement.items]
            statement.body = self.statements(statement.body, live)
            return [statement]
        if isinstance(statement, ast.FunctionDef):
            return [_FunctionRewriter(self.file).function(statement)]
        if isinstance(statement, ast.Assert):
            message = self.expression(statement.msg) if statement.msg else ast.Constant("assertion failed")
            call = _call("assertion", self.expression(statement.test), _lambda(message))
            return [_at(ast.Expr(call), statement)]
        return _named(self.expression(statement))

    def _for(self, loop: ast.For, live: set[str]) -> list[ast.stmt]:
        body = [_at(ast.Assign([loop.target], ast.Name(ITEM, ast.Load())), loop.target), *loop.body]
        live_in_loop = live | read(loop.body)
        names, flag = self._carried(body, loop, live)
        inner = self._block_function("for", [ITEM, *names], self.statements(body, live_in_loop), names, loop)
        call = _call("for_loop", self.expression(loop.iter), _name(inner.name), _strings(names), _locals(), flag)
        return [inner, self._assign_state(names, call, loop)]

    def _while(self, loop: ast.While, live: set[str]) -> list[ast.stmt]:
        live_in_loop = live | read([loop.test, *loop.body])
        test_first: list[ast.stmt] = [_at(ast.Expr(loop.test), loop.test), *loop.body]
        names, flag = self._carried(test_first, loop, live)
        inner = self._block_function("while", names, self.statements(loop.body, live_in_loop), names, loop)
        test = ast.FunctionDef(
            name=f"test{INNER}{self.name}", args=_arguments(names), decorator_list=[], returns=None, type_params=[],
            body=[_at(ast.Return(self.expression(loop.test)), loop.test)],
        )  # fmt: skip
        call = _call("while_loop", _name(test.name), _name(inner.name), _strings(names), _locals(), flag)
        return [_at(test, loop), inner, self._assign_state(names, call, loop)]

    def _if(self, branch: ast.If, live: set[str]) -> list[ast.stmt]:
        sides = (branch.body, branch.orelse)
        needed = live | exposed(branch.body) | exposed(branch.orelse)
        names = [name for name in assigned([*branch.body, *branch.orelse]) if name in needed]
        functions = [
            self._block_function(kind, names, self.statements(side, live), names, branch)
            for kind, side in zip(("then", "else"), sides, strict=True)
        ]
        test = self.expression(branch.test)
        call = _call("if_statement", test, *[_name(f.name) for f in functions], _strings(names), _locals())
        return [*functions, self._assign_state(names, call, branch)]

    def _carried(self, body: Sequence[ast.stmt], loop: ast.For | ast.While, live: set[str]) -> tuple[list[str], ast.expr]:
        """Return the variables that a loop carries, and its stop flag as an expression."""
        needed = live | exposed(body)
        names = [name for name in assigned(body) if name in needed]
        flag = self.stop_flags.get(loop)
        if flag is None:
            return names, ast.Constant(None)
        return [n for n in names if n != flag] + [flag], ast.Constant(flag)

    def _block_function(
        self, kind: str, parameters: Sequence[str], body: list[ast.stmt], names: Sequence[str], place: ast.stmt
    ) -> ast.FunctionDef:
        """Make the function of a block: from the carried variables to the carried variables."""
        state = ast.Tuple([_name(name) for name in names], ast.Load())
        # A variable that this side leaves unassigned comes back as it came in.
        function = ast.FunctionDef(
            name=f"{kind}{INNER}{self.name}", args=_arguments(parameters), decorator_list=[], returns=None, type_params=[],
            body=[*body, _at(ast.Return(state), body[-1] if body else place)],
        )  # fmt: skip
        return _at(function, place)

    def _assign_state(self, names: Sequence[str], call: ast.expr, place: ast.stmt) -> ast.stmt:
        if not names:
            return _at(ast.Expr(call), place)
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
        return _at(ast.Assign([target], call), place)

    def expression(self, node: Any) -> Any:
        """Rewrite the operators and builtins of an expression (or a simple statement)."""
        return _ExpressionRewriter(self).visit(node)


class _ExpressionRewriter(ast.NodeTransformer):
    def __init__(self, owner: _FunctionRewriter) -> None:
        self.owner = owner

    def visit(self, node: ast.AST) -> Any:
        refused = _REFUSED.get(type(node).__name__)
        if refused is not None:
            raise self.owner.refuse(node, *refused)
        return super().visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        function = "and_" if isinstance(node.op, ast.And) else "or_"
        values = [self.visit(value) for value in node.values]
        result = values[-1]
        for value in reversed(values[:-1]):
            result = _at(_call(function, value, _lambda(result)), node)
        return result  # type: ignore[no-any-return]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _at(_call("not_", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return _at(_call("if_expression", node.test, _lambda(node.body), _lambda(node.orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        links = [
            ast.Tuple([_comparison(op), _lambda(operand)], ast.Load())
            for op, operand in zip(node.ops, node.comparators, strict=True)
        ]
        return _at(_call("compare_chain", node.left, ast.List(links, ast.Load())), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTIN_NAMES:
            node.func = _at(_call("builtin", node.func), node.func)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node


_BUILTIN_NAMES = frozenset({"range", "min", "max", "int", "float", "bool"})


def _comparison(op: ast.cmpop) -> ast.expr:
    body = ast.Compare(_name("a"), [op], [_name("b")])
    return ast.Lambda(_arguments(["a", "b"]), body)


def _named(statement: ast.stmt) -> list[ast.stmt]:
    """Tell device values the names of the variables they are assigned to."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            if not target.id.startswith(CONTROL):
                statement.value = _at(_call("named", ast.Constant(target.id), statement.value), statement.value)
        elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in target.elts):
            names = [ast.Constant(e.id if isinstance(e, ast.Name) else None) for e in target.elts]
            call = _call("named_all", ast.Tuple(names, ast.Load()), statement.value)  # type: ignore[arg-type]
            statement.value = _at(call, statement.value)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
        call = _call("annotated", ast.Constant(statement.target.id), statement.value, statement.annotation)
        return [_at(ast.Assign([statement.target], call), statement)]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        call = _call("named", ast.Constant(name), _name(name))
        return [statement, _at(ast.Assign([ast.Name(name, ast.Store())], call), statement)]
    return [statement]


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _strings(names: Sequence[str]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _locals() -> ast.Call:
    return ast.Call(ast.Attribute(ast.Attribute(_name(CONTROL), "builtins", ast.Load()), "locals", ast.Load()), [], [])


def _lambda(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(_arguments([]), body)


def _call(function: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_name(CONTROL), function, ast.Load()), list(arguments), [])


def _at(node: Any, place: ast.AST) -> Any:
    """Give new nodes the place of the source they stand for; of a loop or branch that is its first line.

    One line, because Python reports a method call that spans lines at the line where its name ends.
    """
    ast.copy_location(node, place)
    if getattr(place, "end_lineno", None) != getattr(place, "lineno", None):
        header = getattr(place, "test", None) or getattr(place, "iter", None) or node
        node.end_lineno = node.lineno
        same_line = header is not node and header.end_lineno == node.lineno
        node.end_col_offset = header.end_col_offset if same_line else node.col_offset + 1
    return ast.fix_missing_locations(node)
