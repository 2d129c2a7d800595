"""Takes break, continue and early return out of a function, so that only structured control is left.

    if c:                        if c:
        A                            A
        continue        ->       else:
    B                                B

What follows a statement that may jump moves into the branches that do not jump. A break also sets a flag, which
the loop asks for after each turn. A returned value is assigned to a variable that the function returns at its end;
a return inside a loop sets a second flag and breaks, and what follows the loop asks for that flag.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from tilewright.errors import LanguageError
from tilewright.lang.names import RESULT, RETURNED, STOP

Refuse = Callable[[ast.AST, str, str], LanguageError]
Loop = ast.For | ast.While
_JUMPS = (ast.Return, ast.Break, ast.Continue)


class JumpRemover:
    """Rewrites one function's body. `stop_flags` tells each loop's flag, by the loop node."""

    def __init__(self, refuse: Refuse) -> None:
        self.refuse = refuse
        self.stop_flags: dict[ast.stmt, str] = {}
        self._returns_value = False
        self._returning: set[ast.AST] = set()  # the loops with a return inside

    def function_body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the body with one return at its end, and none elsewhere."""
        body = list(statements)
        returns = list(_returns(body))
        self._returns_value = any(r.value is not None for r in returns)
        if self._returns_value and not _always_jumps(body):  # the end returns None, as in Python
            body.append(ast.copy_location(ast.Return(ast.Constant(None)), body[-1]))
        last = body[-1]
        loops = (s for s in ast.walk(ast.Module(body, [])) if isinstance(s, Loop))
        self._returning = {loop for loop in loops if any(_returns(loop.body))}
        result = self._lower(body, None)
        if self._returning:
            result.insert(0, _assign(RETURNED, ast.Constant(False), body[0]))
        if self._returns_value:
            final = ast.Return(ast.Name(RESULT, ast.Load()))
            result.append(ast.fix_missing_locations(ast.copy_location(final, last)))
        return result

    def _lower(self, statements: list[ast.stmt], flag: str | None) -> list[ast.stmt]:
        """Rewrite a list of statements; `flag` is that of the loop around them."""
        done: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, _JUMPS):
                return done + self._jump(statement, flag)
            if isinstance(statement, ast.If):
                if self._may_jump([statement]):
                    return [*done, self._branch(statement, rest, flag)]
                statement.body = self._lower(statement.body, flag)
                statement.orelse = self._lower(statement.orelse, flag)
            elif isinstance(statement, Loop):
                self._loop(statement)
                if statement in self._returning:
                    return [*done, statement, *self._after_returning_loop(statement, rest, flag)]
            elif isinstance(statement, ast.With):
                if self._may_jump(statement.body):
                    raise self.refuse(statement, "a jump out of a with block", "end the block before the jump")
                statement.body = self._lower(statement.body, flag)
            done.append(statement)
        return done

    def _jump(self, statement: ast.stmt, flag: str | None) -> list[ast.stmt]:
        if isinstance(statement, ast.Continue):
            return []
        result = []
        if isinstance(statement, ast.Return):
            if self._returns_value:
                result.append(_assign(RESULT, statement.value or ast.Constant(None), statement))
            if flag is None:
                return result
            result.append(_assign(RETURNED, ast.Constant(True), statement))
        assert flag is not None, ast.dump(statement)
        return [*result, _assign(flag, ast.Constant(True), statement)]

    def _branch(self, statement: ast.If, rest: list[ast.stmt], flag: str | None) -> ast.If:
        sides = []
        for side in (statement.body, statement.orelse):
            follows = [] if side and _always_jumps(side) else rest
            sides.append(self._lower([*side, *follows], flag))
        statement.body = sides[0] or [ast.copy_location(ast.Pass(), statement)]
        statement.orelse = sides[1]
        return statement

    def _loop(self, loop: Loop) -> None:
        if loop.orelse:
            raise self.refuse(loop, "else after a loop", "use a variable that says whether the loop was left")
        flag = None
        if _breaks(loop.body) or loop in self._returning:
            flag = self.stop_flags[loop] = f"{STOP}{len(self.stop_flags)}"
        loop.body = self._lower(loop.body, flag) or [ast.copy_location(ast.Pass(), loop)]

    def _after_returning_loop(self, loop: Loop, rest: list[ast.stmt], flag: str | None) -> list[ast.stmt]:
        """Return what follows a loop that may return: only where it did not, and else the loop around ends too."""
        leave = [] if flag is None else [_assign(flag, ast.Constant(True), loop)]
        follows = self._lower(rest, flag)
        if not leave and not follows:
            return []
        test = ast.Name(RETURNED, ast.Load())
        branch = ast.If(test, leave or [ast.Pass()], follows)
        place = ast.copy_location(ast.Pass(), loop)
        place.end_lineno, place.end_col_offset = loop.lineno, loop.col_offset + 1
        return [ast.fix_missing_locations(ast.copy_location(branch, place))]

    def _may_jump(self, statements: Sequence[ast.stmt]) -> bool:
        """Say whether the statements may leave their list: by a jump, or by a return inside a loop."""
        return any(
            isinstance(s, _JUMPS) or s in self._returning or self._may_jump(_blocks(s, (ast.If, ast.With)))
            for s in statements
        )


def _assign(name: str, value: ast.expr, place: ast.stmt) -> ast.stmt:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(statement, place))


def _blocks(statement: ast.stmt, kinds: tuple[type[ast.stmt], ...]) -> list[ast.stmt]:
    """Return the statements directly inside a statement of one of these kinds."""
    if not isinstance(statement, kinds):
        return []
    return [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]


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
