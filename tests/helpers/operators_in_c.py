"""The calls of operators in C++, built once for all tests of a run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tilewright.runtime import compiled
from tilewright.torch.operators import Operator
from tilewright.torch.repeats import EXTENSION


def skip_without_compiler() -> None:
    """Skip a test where what it is about cannot be built."""
    why = EXTENSION.why_not("compiled") or compiled.LAUNCHER.why_not("compiled")
    if why is not None:
        pytest.skip(f"no calls of operators in C++: {why}")


def built() -> Any:
    """Return the module in C++; skip a test where it cannot be built."""
    skip_without_compiler()
    folder = Path(os.environ["TILEWRIGHT_CACHE_DIR"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder.with_name("operators.lock"), "w") as file:  # it takes twenty seconds of a core
        fcntl.flock(file, fcntl.LOCK_EX)
        found = EXTENSION.wait()
    assert found is not None and compiled.wait() is not None, EXTENSION.report()
    return found


def leave_to_python(monkeypatch: pytest.MonkeyPatch, *operators: Operator[Any, Any]) -> None:
    """Let Python make all calls of operators."""
    monkeypatch.setattr(Operator, "_learn", lambda self, given, kind: False)
    for each in operators:
        monkeypatch.setattr(each, "_calls", None)
