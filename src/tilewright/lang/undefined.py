"""Variables that have no value: assigned in one branch only, or in a loop that may run no time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import LanguageError


@dataclass(frozen=True, eq=False)
class Undefined:
    """Stands for a variable that has no value here, and says why. Reading the variable is the error."""

    name: str
    reason: str


def value_of(x: Any) -> Any:  # Any: what a user's variable holds
    """Return the value of a variable. Raises `LanguageError` when it has none on some path to here."""
    if isinstance(x, Undefined):
        raise LanguageError(
            f"variable {x.name!r} may have no value here: {x.reason}",
            help=f"assign {x.name!r} before, so that it has a value on every path",
        )
    return x
