"""Takes break, continue and early return out of a function, so that only structured control is left.

    if c:                        if c:
        A                            A
        continue        ->       else:
    B                                B

What follows a statement that may jump moves into the branches that do not jump. A break also sets a flag, which
the loop asks for after each turn. A returned value is assigned to a variable that the function returns at its end.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from tilewright.errors import LanguageError
from tilewright.lang.names import RESULT, STOP

Refuse = Callable[[ast.AST, str, str], LanguageError]


class JumpRemover:
    """Rewrites one function's body. `stop_flags` tells each loop's flag, by the loop node."""

    def __init__(self, refuse: Refuse) -> None:
        self.refuse = refuse
        self.stop_flags: dict[ast.stmt, str] = {}
        self.returns_value = False

    def function_body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the body without early returns; a value is left in the variable `RESULT`."""
        return self._lower(list(statements), None, in_function=True)

    def _lower(self, statements: list[ast.stmt], flag: str | None, *, in_function: bool) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
                return done + self._jump(statement, flag, in_function)
            if isinstance(statement, ast.If):
                if _may_jump([statement]):
                    return [*done, self._branch(statement, rest, flag, in_function)]
                statement.body = self._lower(statement.body, flag, in_function=in_function)
                statement.orelse = self._lower(statement.orelse, flag, in_function=in_function)
            elif isinstance(statement, (ast.For, ast.While)):
                self._loop(statement)
            elif isinstance(statement, ast.With):
                if _may_jump(statement.body):
                    raise self.refuse(statement, "a jump out of a with block", "end the block before the jump")
                statement.body = self._lower(statement.body, flag, in_function=in_function)
            done.append(statement)
        return done

    def _jump(self, statement: ast.stmt, flag: str | None, in_function: bool) -> list[ast.stmt]:
        if isinstance(statement, ast.Return):
            if not in_function:
                raise self.refuse(statement, "return inside a loop", "leave the loop with break, and return after it")
            if statement.value is None:
                return []
            self.returns_value = True
            return [_assign(RESULT, statement.value, statement)]
        if isinstance(statement, ast.Break):
            assert flag is not None
            return [_assign(flag, ast.Constant(True), statement)]
        return []

    def _branch(self, statement: ast.If, rest: list[ast.stmt], flag: str | None, in_function: bool) -> ast.If:
        sides = []
        for side in (statement.body, statement.orelse):
            follows = [] if side and _always_jumps(side) else rest
            sides.append(self._lower([*side, *follows], flag, in_function=in_function))
        statement.body = sides[0] or [ast.copy_location(ast.Pass(), statement)]
        statement.orelse = sides[1]
        return statement

    def _loop(self, loop: ast.For | ast.While) -> None:
        if loop.orelse:
            raise self.refuse(loop, "else after a loop", "use a variable that says whether the loop was left")
        flag = None
        if _breaks(loop.body):
            flag = self.stop_flags[loop] = f"{STOP}{len(self.stop_flags)}"
        loop.body = self._lower(loop.body, flag, in_function=False) or [ast.copy_location(ast.Pass(), loop)]


def _assign(name: str, value: ast.expr, place: ast.stmt) -> ast.stmt:
    statement = ast.Assign([ast.Name(name, ast.Store())], value)
    return ast.fix_missing_locations(ast.copy_location(statement, place))


def _may_jump(statements: Sequence[ast.stmt]) -> bool:
    """Say whether the statements may leave their list by a jump of their own level."""
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            return True
        if isinstance(statement, ast.If) and (_may_jump(statement.body) or _may_jump(statement.orelse)):
            return True
        if isinstance(statement, ast.With) and _may_jump(statement.body):
            return True
    return False


def _always_jumps(statements: Sequence[ast.stmt]) -> bool:
    last = statements[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _always_jumps(last.body) and _always_jumps(last.orelse)
    return isinstance(last, (ast.Return, ast.Break, ast.Continue))


def _breaks(statements: Sequence[ast.stmt]) -> bool:
    """Say whether a break of this loop is among the statements."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.If) and (_breaks(statement.body) or _breaks(statement.orelse)):
            return True
        if isinstance(statement, ast.With) and _breaks(statement.body):
            return True
    return False
