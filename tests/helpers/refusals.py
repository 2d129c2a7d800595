"""Comparing whole texts of errors: what a test's body raises must read exactly as its decorator says."""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

WITH_COLUMNS = sys.version_info >= (3, 11)  # Python 3.10 knows lines, but no columns: carets mark the whole line


def refused(kind: type[BaseException], text: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Expect the decorated test to raise an error with this text; line numbers are written as N."""

    def decorate(body: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(body)
        def test() -> None:
            with pytest.raises(kind) as caught:
                body()
            assert normalised(full_text(caught.value)) == normalised(text)

        return test

    return decorate


def full_text(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def normalised(text: str) -> str:
    lines = [re.sub(r"(\w+\.py):\d+", r"\1:N", line).rstrip() for line in textwrap.dedent(text).strip().split("\n")]
    if not WITH_COLUMNS:
        lines = [line for line in lines if not re.fullmatch(r" *\^+", line)]
    return "\n".join(lines)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def unchanged(array: np.ndarray, call: Callable[[], Any]) -> None:
    """Run a call that raises, and let its error pass when the array is as it was."""
    before = array.copy()
    try:
        call()
    finally:
        assert np.array_equal(array, before), "something was written"
