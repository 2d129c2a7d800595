"""Takes break, continue and early return out of a function, so that only structured control is left.

    if c:                        if c:              if c:                        skip = False
        A                            A                  A                        if c:
        continue        ->       else:                  if d:           ->           A
    B                                B                      continue                 if d:
                                                    B                                    skip = True
                                                                                 if not skip:
                                                                                     B

What follows a branch of which one side always jumps moves into the other side; what follows any other branch that
may jump is guarded by a flag. A break also sets a flag, which the loop tests after each iteration. A returned value is
assigned to a variable that the function returns at its end; a return inside a loop sets a flag of its own and breaks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from tilewright.errors import LanguageError
from tilewright.frontend.syntax import RETURNED, SKIP, STOP
from tilewright.trace.carry import RESULT

Refuse = Callable[[ast.AST, str, str], LanguageError]
Loop = ast.For | ast.While
_JUMPS = (ast.Return, ast.Break, ast.Continue)


class JumpRemover:
    """Rewrites one function's body. `stop_flags` tells each loop's flag, by the loop node."""

    def __init__(self, refuse: Refuse) -> None:
        self.refuse = refuse
        self.stop_flags: dict[ast.stmt, str] = {}
        self._returns_value = False
        self._skips = 0

    def function_body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the body with one return at its end, and none elsewhere."""
        body = list(statements)
        self._returns_value = any(r.value is not None for r in _returns(body))
        if self._returns_value and not _always_jumps(body):  # the end returns None, as in Python
            body.append(ast.copy_location(ast.Return(ast.Constant(None)), body[-1]))
        first, last = body[0], body[-1]
        loops = [s for s in ast.walk(ast.Module(body, [])) if isinstance(s, Loop)]
        for loop in loops:
            _assign_in_body(loop)
        returns_in_loop = any(any(_returns(loop.body)) for loop in loops)
        result = self._lower(body, None, ())
        if returns_in_loop:
            result.insert(0, _assign(RETURNED, ast.Constant(False), first))
        if self._returns_value:
            final = ast.Return(ast.Name(RESULT, ast.Load()))
            result.append(ast.fix_missing_locations(ast.copy_location(final, last)))
        return result

    def _lower(self, statements: list[ast.stmt], flag: str | None, skips: tuple[str, ...]) -> list[ast.stmt]:
        """Rewrite a list of statements.

        `flag` is that of the loop around them, `skips` the flags that a jump sets so that what follows is left out.
        """
        done: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, _JUMPS):
                return done + self._jump(statement, flag, skips)
            if isinstance(statement, ast.If):
                if _may_jump([statement]):
                    return done + self._branch(statement, rest, flag, skips)
                statement.body = self._lower(statement.body, flag, skips)
                statement.orelse = self._lower(statement.orelse, flag, skips)
            elif isinstance(statement, Loop):
                returns = any(_returns(statement.body))
                self._loop(statement, returns)
                if returns:
                    return [*done, statement, *self._after_returning_loop(statement, rest, flag, skips)]
            elif isinstance(statement, ast.With):
                if _may_jump(statement.body):
                    raise self.refuse(statement, "a jump out of a with block", "end the block before the jump")
                statement.body = self._lower(statement.body, flag, skips)
            done.append(statement)
        return done

    def _jump(self, statement: ast.stmt, flag: str | None, skips: tuple[str, ...]) -> list[ast.stmt]:
        result = [_assign(skip, ast.Constant(True), statement) for skip in skips]
        if isinstance(statement, ast.Return):
            if self._returns_value:
                result.append(_assign(RESULT, statement.value or ast.Constant(None), statement))
            if flag is not None:
                result.append(_assign(RETURNED, ast.Constant(True), statement))
        if flag is not None and not isinstance(statement, ast.Continue):
            result.append(_assign(flag, ast.Constant(True), statement))
        return result

    def _branch(self, branch: ast.If, rest: list[ast.stmt], flag: str | None, skips: tuple[str, ...]) -> list[ast.stmt]:
        """Rewrite a branch that may jump, and what follows it."""
        sides = (branch.body, branch.orelse)
        falls = [not (side and _always_jumps(side)) for side in sides]
        if all(falls) and rest:
            skip = f"{SKIP}{self._skips}"
            self._skips += 1
            branch.body, branch.orelse = (self._lower(side, flag, (*skips, skip)) for side in sides)
            guard = ast.If(ast.UnaryOp(ast.Not(), ast.Name(skip, ast.Load())), self._lower(rest, flag, skips), [])
            before = _assign(skip, ast.Constant(False), _first_line(branch))
            return [before, branch, ast.fix_missing_locations(ast.copy_location(guard, _first_line(branch)))]
        lowered = [
            self._lower([*side, *(rest if f else [])], flag, skips) for side, f in zip(sides, falls, strict=True)
        ]
        branch.body = lowered[0] or [ast.copy_location(ast.Pass(), branch)]
        branch.orelse = lowered[1]
        return [branch]

    def _loop(self, loop: Loop, returns: bool) -> None:
        if loop.orelse:
            raise self.refuse(loop, "else after a loop", "use a variable that says whether the loop was left")
        flag = None
        if returns or _breaks(loop.body):
            flag = self.stop_flags[loop] = f"{STOP}{len(self.stop_flags)}"
        loop.body = self._lower(loop.body, flag, ()) or [ast.copy_location(ast.Pass(), loop)]

    def _after_returning_loop(
        self, loop: Loop, rest: list[ast.stmt], flag: str | None, skips: tuple[str, ...]
    ) -> list[ast.stmt]:
        """Return what follows a loop that may return: only where it did not, and else the loop around ends too."""
        place = _first_line(loop)
        leave = [_assign(name, ast.Constant(True), place) for name in (*skips, *([] if flag is None else [flag]))]
        follows = self._lower(rest, flag, skips)
        if not leave and not follows:
            return []
        branch = ast.If(ast.Name(RETURNED, ast.Load()), leave or [ast.Pass()], follows)
        return [ast.fix_missing_locations(ast.copy_location(branch, place))]


def _first_line(statement: ast.stmt) -> ast.stmt:
    """Return a statement that stands where another begins, for what is put beside it."""
    place = ast.copy_location(ast.Pass(), statement)
    place.end_lineno, place.end_col_offset = statement.lineno, statement.col_offset + 1
    return place


def _assign_in_body(loop: ast.stmt) -> None:
    """Turn `while (x := f()) > 0` into `while True`, which a first `if not (x := f()) > 0: break` leaves."""
    if isinstance(loop, ast.While) and any(isinstance(n, ast.NamedExpr) for n in ast.walk(loop.test)):
        leave = ast.If(ast.UnaryOp(ast.Not(), loop.test), [ast.Break()], [])
        loop.body.insert(0, ast.fix_missing_locations(ast.copy_location(leave, loop.test)))
        loop.test = ast.copy_location(ast.Constant(True), loop.test)


def _assign(name: str, value: ast.expr, place: ast.stmt) -> ast.stmt:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(statement, place))


def _blocks(statement: ast.stmt, kinds: tuple[type[ast.stmt], ...]) -> list[ast.stmt]:
    """Return the statements directly inside a statement of one of these kinds."""
    if not isinstance(statement, kinds):
        return []
    return [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]


def _may_jump(statements: Sequence[ast.stmt]) -> bool:
    """Say whether the statements may leave their list: by a jump, or by a return inside a loop."""
    return any(
        isinstance(s, _JUMPS)
        or _may_jump(_blocks(s, (ast.If, ast.With)))
        or (isinstance(s, Loop) and any(_returns(s.body)))
        for s in statements
    )


def _returns(statements: Sequence[ast.stmt]) -> Iterator[ast.Return]:
    for statement in statements:
        if isinstance(statement, ast.Return):
            yield statement
        yield from _returns(_blocks(statement, (ast.If, ast.With, ast.For, ast.While)))


def _always_jumps(statements: Sequence[ast.stmt]) -> bool:
    last = statements[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _always_jumps(last.body) and _always_jumps(last.orelse)
    return isinstance(last, _JUMPS)


def _breaks(statements: Sequence[ast.stmt]) -> bool:
    """Say whether a break of this loop is among the statements."""
    return any(isinstance(s, ast.Break) or _breaks(_blocks(s, (ast.If, ast.With))) for s in statements)
