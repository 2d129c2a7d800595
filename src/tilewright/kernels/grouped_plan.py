"""What the kernels of grouped products know at compile time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.dtypes import DType
from tilewright.kernels.hopper_plan import HopperPlan
from tilewright.kernels.multistage_plan import Plan
from tilewright.pickling import hashed_once
from tilewright.schedulers import Groups

Ragged = Literal["M", "K", "none"]


@hashed_once
@dataclass(frozen=True)
class GroupedPlan:
    """Which mode is ragged, in which order tiles come, and a tile's plan.

    For lists of matrices: element types of D, A and B, their unit modes and least alignments. For the Hopper kernel:
    the contiguous modes of A and B, and whether it `skips` the rows that a tile has and its group has not. `fills` says
    whether results after the last offset become 0.
    """

    ragged: Ragged
    scheduler: Groups
    plan: Plan | HopperPlan
    dtypes: tuple[DType, ...] = ()
    units: tuple[int | None, ...] = ()
    alignments: tuple[int, ...] = ()
    majors: tuple[str, ...] = ()
    fills: bool = True
    skips: bool = False

    @property
    def rest(self) -> int:
        """How many groups follow those of the offsets: one of the rows that belong to none, where they become 0."""
        return 1 if self.ragged == "M" and self.fills else 0
