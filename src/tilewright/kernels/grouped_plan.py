"""What the kernels of grouped products know at compile time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from tilewright.dtypes import DType
from tilewright.kernels.hopper_plan import HopperPlan
from tilewright.kernels.multistage_plan import Plan
from tilewright.kernels.problem import Operand
from tilewright.schedulers import Groups

Ragged = Literal["M", "K", "none"]


@dataclass(frozen=True)
class GroupedPlan:
    """Which mode is ragged, in which order tiles come, and a tile's plan.

    For lists of matrices: element types of D, A and B, their unit modes and least alignments. For the Hopper kernel:
    the contiguous modes of A and B, and how many buffers each consumer has for results that leave by TMA.
    """

    ragged: Ragged
    scheduler: Groups
    plan: Plan | HopperPlan
    dtypes: tuple[DType, ...] = ()
    units: tuple[int | None, ...] = ()
    alignments: tuple[int, ...] = ()
    majors: tuple[str, ...] = ()
    buffers: int = 1

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))


def listed_plan(
    plan: Plan | HopperPlan, d: Operand, a: Operand, b: Operand, scheduler: Groups | None = None
) -> GroupedPlan:
    """Return what a kernel for lists knows, of matrices that lie so."""
    operands = d, a, b
    units = tuple({"MN": 1 if x is d else 0, "K": 1, "none": None}[x.major] for x in operands)
    dtypes, alignments = tuple(x.dtype for x in operands), tuple(x.alignment for x in operands)
    return GroupedPlan("none", scheduler or Groups(), plan, dtypes, units, alignments, (a.major, b.major))
