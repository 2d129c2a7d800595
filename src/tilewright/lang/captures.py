"""The plain values that a kernel reads from its globals and closure: when one changes, the kernel is traced anew."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from tilewright.dtypes import DType
from tilewright.layout import Layout

# What a trace builds in as a constant. Modules, functions and objects are taken to stay what they are.
_PLAIN = (bool, int, float, str, tuple, DType, Layout)


class Captures:
    """Watches one function's captured constants."""

    def __init__(self, function: types.FunctionType) -> None:
        self._globals = function.__globals__
        self._cells = tuple(function.__closure__ or ())
        self._names = tuple(dict.fromkeys(_global_names(function.__code__)))
        self._seen: list[Any] | None = None

    def changed(self) -> bool:
        """Say whether a constant differs from what it was at the last call."""
        if self._seen is not None and not self._names and not self._cells:
            return False
        now = self._values()
        before, self._seen = self._seen, now
        if before is None:
            return False
        return any(a is not b and (type(a) is not type(b) or a != b) for a, b in zip(before, now, strict=True))

    def _values(self) -> list[Any]:
        values = [self._globals.get(name) for name in self._names]
        for cell in self._cells:
            try:
                values.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                values.append(None)
        return [v if isinstance(v, _PLAIN) else None for v in values]


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
