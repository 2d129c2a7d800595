"""Rewrites a kernel's Python: loops, branches and logic become calls that decide now or build device control.

    for i in range(n):          def for__in__kernel(item):
        acc += x[i]                 nonlocal i, acc
                         ->         i = named("i", item)
                                    acc += x[i]; acc = named("acc", acc)
                                for_loop(builtin(range)(n), for__in__kernel, ("acc",))

A block assigns the variables of the function around it, as in Python, so that closures see what it assigns; the called
function reads and sets them through the cells of the block's closure (`trace.variables`). Everything else stays plain
Python, with its line numbers, so that errors and debuggers show the user's source.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload
from weakref import WeakValueDictionary

from tilewright.arguments import shown
from tilewright.errors import ArgumentError, LanguageError
from tilewright.frames import is_entry
from tilewright.frontend import hooks
from tilewright.frontend.expressions import NONLOCAL, ExpressionRewriter, refused_construct
from tilewright.frontend.jumps import JumpRemover
from tilewright.frontend.sources import codes_in, parse, remember
from tilewright.frontend.syntax import (
    CONTROL,
    FACTORY,
    ITEM,
    assigned,
    assigned_in_blocks,
    at,
    call,
    captured,
    changed,
    definition,
    exposed,
    lambda_,
    live_before,
    name,
    nonlocals,
    owned,
    strings,
    unbound,
    without_nonlocals,
)
from tilewright.source import SourceLocation
from tilewright.trace.heap import memory
from tilewright.trace.tracer import INNER, tracing

F = TypeVar("F", bound=Callable[..., Any])
Node = TypeVar("Node", bound=ast.AST)


def rewrite(function: types.FunctionType) -> types.FunctionType:
    """Return a function like the given one with its control flow made traceable, over the same closure.

    Raises `LanguageError` when the source cannot be read, or for Python that has no meaning on a device.
    """
    code = function.__code__
    rewritten = _FunctionRewriter(code.co_filename).function(parse(function))
    # Under another name, so that its own name means in it what it means around it: a global, say.
    rewritten.name = f"{FACTORY}{INNER}{rewritten.name}"
    # A function around it gives the free variables a scope to come from, and the control functions too: the globals
    # stay the user's own dictionary, with nothing of ours in it, so that a kernel sees what is assigned there later.
    factory = definition(FACTORY, [*code.co_freevars, CONTROL], [rewritten, ast.Return(name(rewritten.name))])
    module = ast.fix_missing_locations(ast.Module([factory], []))
    compiled = compile(module, code.co_filename, "exec", dont_inherit=True)
    inner = _find_code(_find_code(compiled, FACTORY), rewritten.name)
    made = f"{FACTORY}.<locals>.{rewritten.name}"
    inner = _as_the_user_named_it(inner, made, getattr(code, "co_qualname", function.__qualname__))
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) | {CONTROL: types.CellType(hooks)}
    closure = tuple(cells[variable] for variable in inner.co_freevars)
    result = types.FunctionType(inner, function.__globals__, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    _made.update((id(each), each) for each in codes_in(inner))
    return result


# The code of functions that stand in rewritten ones, and so are rewritten too; by identity: equal code is not theirs.
_made: WeakValueDictionary[int, types.CodeType] = WeakValueDictionary()


def is_rewritten(function: types.FunctionType) -> bool:
    """Return whether a function stands in one that was rewritten: then its control flow is traceable as it is."""
    return _made.get(id(function.__code__)) is function.__code__


def _as_the_user_named_it(code: types.CodeType, made: str, qualified: str) -> types.CodeType:
    """Return code under the name of the user's function that it is a part of, and so the codes in it.

    Python's messages and tracebacks call a function by it. `made` begins the qualified names of what was compiled, and
    `qualified` is what the user's function has in its place.
    """

    def renamed(constant: object) -> object:
        if isinstance(constant, types.CodeType):
            return _as_the_user_named_it(constant, made, qualified)
        # Python 3.10 has the qualified names of the functions in a code as constants of it.
        return in_words(constant) if isinstance(constant, str) and constant.startswith(made) else constant

    def in_words(text: str) -> str:
        owners = [part for part in text.removeprefix(made).split(".<locals>.") if part and INNER not in part]
        return ".<locals>.".join([qualified, *owners])

    constants = tuple(renamed(constant) for constant in code.co_consts)
    code = code.replace(co_name=code.co_name.rsplit(INNER, 1)[-1], co_consts=constants)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=in_words(code.co_qualname))
    return code


def _find_code(code: types.CodeType, name: str) -> types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


@overload
def function(target: F) -> F: ...


@overload
def function(*, fastmath: bool | None = None) -> Callable[[F], F]: ...


def function(target: Any = ..., *, fastmath: bool | None = None) -> Any:
    """Make a helper function whose loops and branches on device values become device control flow.

    A plain helper runs as Python while tracing; a helper with `for i in range(n)` or `if` on device values needs this
    decorator. It may be called from kernels and from other helpers; outside of a kernel it is the plain function.

    >>> import tilewright as tw
    >>> @tw.function
    ... def clamp(x, low, high):
    ...     if x < low:
    ...         return low
    ...     return high if x > high else x
    >>> clamp(7, 0, 5)
    5

    `@tw.function(fastmath=True)` uses approximate arithmetic, as `@tw.kernel(fastmath=True)` does, and `fastmath=False`
    exact arithmetic; by default a function does as its caller.

    Raises `LanguageError` for an object that is not a function, and at the first trace for Python that a device cannot
    run.
    """
    if fastmath is not None and not isinstance(fastmath, bool):
        raise ArgumentError(f"fastmath= of @tw.function is True, False or None, got {shown(fastmath)}")
    if target is ...:
        return lambda found: _traceable(found, fastmath)
    return _traceable(target, fastmath)


def _traceable(target: F, fastmath: bool | None) -> F:
    """Return the function that traces a rewritten one inside of kernels."""
    if not isinstance(target, types.FunctionType):
        raise LanguageError(
            f"@tw.function takes a function, got {type(target).__name__}",
            help="put @staticmethod or @classmethod above @tw.function, not below it",
        )
    remember(target)
    made_in = tracing()
    rewritten: list[tuple[tuple[object, ...], types.FunctionType]] = []  # with what it was made of

    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = tracing()
        if tracer is None:
            return target(*args, **kwargs)
        parts = target.__code__, target.__defaults__, target.__kwdefaults__
        if not rewritten or any(a is not b for a, b in zip(rewritten[0][0], parts, strict=True)):
            rewritten[:] = [(parts, target if is_rewritten(target) else rewrite(target))]
        function = rewritten[0][1]
        if function is not target and made_in is not tracer:  # else its variables are the kernel's
            memory(tracer).note_closure(function)
        with tracer.computing(fastmath=fastmath):
            return function(*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = target.__name__, target.__qualname__, target.__doc__
    call.__module__ = target.__module__
    call.__wrapped__ = target  # type: ignore[attr-defined]
    is_entry(call)  # arguments that do not fit are the fault of who calls the function
    return call  # type: ignore[return-value]


class _FunctionRewriter:
    """Rewrites one function; nested functions get a rewriter of their own.

    `uncertain` are variables of the functions around it that may have no value where they are read, `outer` all
    variables of the rewritten functions around it.
    """

    def __init__(self, file: str, uncertain: frozenset[str] = frozenset(), outer: frozenset[str] = frozenset()) -> None:
        self.file = file
        self.uncertain = uncertain
        self.outer = outer
        self.name = ""
        self._first = ""  # parameter
        self._captured: set[str] = set()
        self._stop_flags: dict[ast.stmt, str] = {}

    def refuse(self, node: ast.AST, what: str, help: str) -> LanguageError:
        """Return the error for a construct that a kernel cannot have."""
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        end_column = getattr(node, "end_col_offset", None) if line == end else None
        place = SourceLocation(self.file, line, self.name, getattr(node, "col_offset", None), end_column)
        return LanguageError(f"{what} is not possible in a kernel", location=place, help=help)

    def function(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """Rewrite a definition in place, without its decorators."""
        self.name = function.name
        function.decorator_list = []
        shared = self._shared(function)
        jumps = JumpRemover(self.refuse)
        body = jumps.function_body(function.body)
        self._stop_flags = jumps.stop_flags
        self._captured = captured(body) | set(shared)  # used by others, at a time that is not known
        in_blocks = assigned_in_blocks(body)
        self.uncertain |= in_blocks
        own = set(assigned(body)) - set(shared)
        arguments = function.args
        self._first = next((each.arg for each in (*arguments.posonlyargs, *arguments.args)), "")
        self.outer |= set(assigned(body)) | {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
        function.body = [
            *([ast.Nonlocal(shared)] if shared else []),
            *unbound(sorted(in_blocks & own)),
            *self._statements(body, self._captured),
        ] or [ast.Pass()]
        for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            argument.annotation = None  # evaluated already, where the user's def stands
        function.returns = None
        return function

    def _shared(self, function: ast.FunctionDef) -> list[str]:
        """Return the variables that a nested function shares by `nonlocal`, and take the statements out."""
        for statement in nonlocals(function.body):
            if not self.outer.issuperset(statement.names):
                raise self.refuse(statement, *NONLOCAL)
        shared = sorted({variable for statement in nonlocals(function.body) for variable in statement.names})
        function.body = without_nonlocals(function.body)
        return shared

    def _statements(self, statements: Sequence[ast.stmt], live: set[str]) -> list[ast.stmt]:
        """Rewrite a list of statements; `live` are the names that may be read after it."""
        result: list[list[ast.stmt]] = []
        for statement in reversed(statements):
            before = live_before(statement, live) | self._captured
            result.append(self._statement(statement, live))
            live = before
        return [s for group in reversed(result) for s in group]

    def _statement(self, statement: ast.stmt, live: set[str]) -> list[ast.stmt]:
        refused = refused_construct(statement)
        if refused is not None:
            raise self.refuse(statement, *refused)
        if isinstance(statement, ast.For):
            return self._for(statement, live)
        if isinstance(statement, ast.While):
            return self._while(statement, live)
        if isinstance(statement, ast.If):
            return self._if(statement, live)
        if isinstance(statement, ast.With):
            statement.items = [self._expression(item) for item in statement.items]
            statement.body = self._statements(statement.body, live)
            return [statement]
        if isinstance(statement, ast.FunctionDef):
            return [self._nested(statement)]
        if isinstance(statement, ast.Assert):
            message = self._expression(statement.msg) if statement.msg else ast.Constant("assertion failed")
            checked = call("assertion", self._expression(statement.test), lambda_(message))
            return [at(ast.Expr(checked), statement)]
        return [*self._checked_target(statement), *_named(self._expression(statement))]

    def _checked_target(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return what checks that the variable of `x += y` has a value."""
        target = statement.target if isinstance(statement, ast.AugAssign) else None
        if not isinstance(target, ast.Name) or target.id not in self.uncertain:
            return []
        checked = at(call("value_of", name(target.id)), target)
        return [at(ast.Assign([ast.Name(target.id, ast.Store())], checked), statement)]

    def _nested(self, function: ast.FunctionDef) -> ast.FunctionDef:
        """Rewrite a function inside the function. Its defaults and decorators belong to the outer one."""
        decorators = [self._expression(d) for d in function.decorator_list]
        _FunctionRewriter(self.file, self.uncertain - owned(function), self.outer).function(function)
        function.args.defaults = [self._expression(d) for d in function.args.defaults]
        function.args.kw_defaults = [d and self._expression(d) for d in function.args.kw_defaults]
        function.decorator_list = decorators
        return function

    def _for(self, loop: ast.For, live: set[str]) -> list[ast.stmt]:
        body = [at(ast.Assign([loop.target], name(ITEM)), loop.target), *loop.body]
        names, flag = self._carried(body, loop, live)
        inner = self._block("for", body, loop, live | exposed(body) | set(names), [ITEM])
        iterable = self._expression(loop.iter)
        looped = call("for_loop", iterable, name(inner.name), strings(names), flag)
        return [inner, at(ast.Expr(looped), loop)]

    def _while(self, loop: ast.While, live: set[str]) -> list[ast.stmt]:
        test_first: list[ast.stmt] = [at(ast.Expr(loop.test), loop.test), *loop.body]
        names, flag = self._carried(test_first, loop, live)
        inner = self._block("while", loop.body, loop, live | exposed(test_first) | set(names))
        holds = at(ast.Return(self._expression(loop.test, deferred=True)), loop.test)
        test = at(definition(f"test{INNER}{self.name}", [], [holds]), loop)
        looped = call("while_loop", name(test.name), name(inner.name), strings(names), flag)
        return [test, inner, at(ast.Expr(looped), loop)]

    def _if(self, branch: ast.If, live: set[str]) -> list[ast.stmt]:
        read_first = exposed(branch.body) | exposed(branch.orelse)
        all_assigned = changed([*branch.body, *branch.orelse])
        parameters = [n for n in all_assigned if n in live or n in read_first]
        results = [n for n in all_assigned if n in live]
        test = self._expression(branch.test)
        sides = [
            self._block(kind, side, branch, live) for kind, side in (("then", branch.body), ("else", branch.orelse))
        ]
        functions = [name(side.name) for side in sides]
        branched = call("if_statement", test, *functions, strings(parameters), strings(results))
        return [*sides, at(ast.Expr(branched), branch)]

    def _carried(
        self, body: Sequence[ast.stmt], loop: ast.For | ast.While, live: set[str]
    ) -> tuple[list[str], ast.expr]:
        """Return the variables that a loop carries, and its stop flag as an expression."""
        needed = live | exposed(body)
        names = [n for n in changed(body) if n in needed]
        flag = self._stop_flags.get(loop)
        if flag is None:
            return names, ast.Constant(None)
        return [n for n in names if n != flag] + [flag], ast.Constant(flag)

    def _block(
        self, kind: str, body: Sequence[ast.stmt], place: ast.stmt, live: set[str], parameters: Sequence[str] = ()
    ) -> ast.FunctionDef:
        """Make the function of a block, which assigns the variables of the function around it."""
        names = assigned(body)
        shared = [at(ast.Nonlocal(names), place)] if names else []
        rewritten = self._statements(body, live) or [at(ast.Pass(), place)]
        return at(definition(f"{kind}{INNER}{self.name}", parameters, [*shared, *rewritten]), place)

    def _expression(self, node: Node, *, deferred: bool = False) -> Node:
        """Rewrite the operators and builtins of an expression (or a simple statement)."""
        return ExpressionRewriter(self.refuse, self.uncertain, self._first, deferred=deferred).visit(node)  # type: ignore[no-any-return]


def _named(statement: ast.stmt) -> list[ast.stmt]:
    """Tell device values the names of the variables and attributes they are assigned to."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        if (variable := _name_of(target)) is not None:
            if not variable.startswith(CONTROL):
                statement.value = at(call("named", ast.Constant(variable), statement.value), statement.value)
        elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in target.elts):
            names: list[ast.expr] = [ast.Constant(_name_of(e)) for e in target.elts]
            named = call("named_all", ast.Tuple(names, ast.Load()), statement.value)
            statement.value = at(named, statement.value)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        if statement.value is None:  # says nothing to a kernel, and a block may not annotate what is not its own
            return [at(ast.Pass(), statement)]
        named = call("annotated", ast.Constant(statement.target.id), statement.value, statement.annotation)
        return [at(ast.Assign([statement.target], named), statement)]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        variable = statement.target.id
        named = call("named", ast.Constant(variable), name(variable))
        return [statement, at(ast.Assign([ast.Name(variable, ast.Store())], named), statement)]
    return [statement]


def _name_of(target: ast.expr) -> str | None:
    """Return what a value is called that is assigned to `name` or to `something.name`."""
    if isinstance(target, ast.Attribute):
        return target.attr.lstrip("_") or None
    return target.id if isinstance(target, ast.Name) else None
