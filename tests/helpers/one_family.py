"""Calls of `tw.matmul` that take one configuration of one family, wherever they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tilewright.arch import Arch
from tilewright.kernels import choice
from tilewright.kernels.family import Candidate, KernelLaunch
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_parts import HopperParts
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.matmul import _signature
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Configuration, Problem


class OneHopper(Hopper):
    """The Hopper family with one configuration for every problem, by at most so many blocks, in the simulator too."""

    is_simulated = True

    def __init__(self, configuration: HopperConfiguration, blocks: int) -> None:
        self.configuration, self.blocks = configuration, blocks
        self.launched: list[Problem] = []

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        return [self.configuration] if super().configurations(problem, arch) else []

    def candidates(self, problem: Problem, machine: Machine) -> list[Candidate]:
        found = super().candidates(problem, machine)
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
