"""Calls of `tw.matmul` and `tw.grouped_matmul` that take one configuration of one family, wherever they run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import choice, grouped
from tilewright.kernels.family import Candidate, KernelLaunch
from tilewright.kernels.grouped_hopper import GroupedHopper, GroupedPlan, RaggedProblem
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_parts import HopperParts
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.matmul import _signature
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Configuration, Problem
from tilewright.launch import Launcher


class OneHopper(Hopper):
    """The Hopper family with one configuration for every problem, by at most so many blocks, in the simulator too."""

    is_simulated, fits = True, False

    def __init__(self, configuration: HopperConfiguration, blocks: int) -> None:
        self.configuration, self.blocks = configuration, blocks
        self.launched: list[Problem] = []

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        return [self.configuration] if super().configurations(problem, arch) else []

    def candidates(self, problem: Problem, machine: Machine, *, lazily: bool = False) -> list[Candidate]:
        found = super().candidates(problem, machine, lazily=lazily)
        return [replace(c, configuration=replace(c.configuration, blocks=self.blocks)) for c in found]

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        self.launched.append(problem)
        return super().launch(problem, configuration, arch)


class OneHopperParts(OneHopper, HopperParts):
    """The same of the family of float32 in parts."""


@contextmanager
def only(configuration: HopperConfiguration, blocks: int, family: type[OneHopper] = OneHopper) -> Iterator[OneHopper]:
    """Have `tw.matmul` take one configuration of the Hopper family, or of the one in parts."""
    one = family(configuration, blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "FAMILIES", (one,))
        _signature.cache_clear()
        try:
            yield one
        finally:
            _signature.cache_clear()


class OneGroupedHopper(GroupedHopper):
    """The Hopper family of grouped products with one configuration, in the simulator too."""

    is_simulated = True

    def __init__(self, configuration: HopperConfiguration) -> None:
        self.configuration = configuration
        self.launched: list[RaggedProblem] = []

    def configurations(self, problem: RaggedProblem, machine: Machine) -> Sequence[HopperConfiguration]:
        return [self.configuration] if super().configurations(problem, machine) else []

    def launch(self, problem: RaggedProblem, c: HopperConfiguration, arch: Arch) -> tuple[Launcher, GroupedPlan]:
        self.launched.append(problem)
        return super().launch(problem, c, arch)


@contextmanager
def only_grouped(configuration: HopperConfiguration) -> Iterator[OneGroupedHopper]:
    """Have `tw.grouped_matmul` take one configuration of its Hopper family, where that takes the problem.

    Calls on a GPU that were met before would repeat what another configuration did: here every call looks anew.
    """
    family = OneGroupedHopper(configuration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped, "HOPPER", family)
        patch.setattr(tw, "grouped_matmul", inspect.unwrap(tw.grouped_matmul))
        yield family
