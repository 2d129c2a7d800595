"""Accera's module of heuristics for `plan.auto`."""

from tilewright.schedule.heuristics import NoneCacheHeuristics

__all__ = ["NoneCacheHeuristics"]
