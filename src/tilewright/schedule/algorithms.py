"""Accera's module of heuristics for `plan.auto`."""

from __future__ import annotations

from tilewright.schedule.heuristics import NoneCacheHeuristics

__all__ = ["NoneCacheHeuristics"]
