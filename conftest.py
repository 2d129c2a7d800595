"""Doctests of what needs a library that is not installed are not collected."""

from __future__ import annotations

import importlib.util

_MISSING = [name for name in ("jax", "torch") if importlib.util.find_spec(name) is None]
collect_ignore_glob = [f"src/tilewright/{name}{inside}" for name in _MISSING for inside in ("", "/*")]
