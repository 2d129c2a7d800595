"""Doctests of what needs a library that is not installed are not collected, nor helpers that import it."""

from __future__ import annotations

import importlib.util

_MISSING = [name for name in ("jax", "torch") if importlib.util.find_spec(name) is None]
collect_ignore_glob = [f"src/tilewright/{name}{inside}" for name in _MISSING for inside in ("", "/*")]
if "torch" in _MISSING:
    collect_ignore_glob += [f"tests/helpers/{name}.py" for name in ("driven_operators", "operators_in_c")]
