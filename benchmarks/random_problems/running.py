"""A problem from its number: drawn, computed and judged. What the backends need around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest import mock

from benchmarks.random_problems.groups import GroupedCase
from benchmarks.random_problems.kinds import draw_kind
from benchmarks.random_problems.memory import Memory
from benchmarks.random_problems.problems import IN_SIMULATOR, ON_GPU, Limits, draw
from benchmarks.random_problems.products import ProductCase
from benchmarks.random_problems.subjects import SUBJECTS
from benchmarks.random_problems.trials import SHARED, Case, NotTaken, Trial, tried

from tilewright.kernels import dispatch, grouped, matmul

T = TypeVar("T")

ATTEMPTS = 5  # to draw a problem that the family takes
_MULTIPROCESSORS = 3  # in the simulator, so that small problems have more tiles than blocks


@dataclass(frozen=True)
class Draw:
    """What problems follow from, beside their family and number: a seed, kinds a family, limits, and the backend.

    Each is computed twice, and `repeats` times more.
    """

    backend: str
    seed: int = 0
    kinds: int = 24
    is_small: bool = False
    repeats: int = 0

    @property
    def limits(self) -> Limits:
        return IN_SIMULATOR if self.is_small or self.backend in ("sim", "cpu") else ON_GPU


def cases(family: str, number: int, how: Draw, memory: Memory) -> Iterator[Case]:
    """Yield the problem of a number of a family, and others in its place if no configuration takes it."""
    kind = draw_kind(family, number % how.kinds, how.seed)
    turn = number // how.kinds % SHARED
    for attempt in range(ATTEMPTS):
        index = number + attempt * 1_000_003
        if SUBJECTS[family].form in ("ragged", "list"):
            yield GroupedCase(kind, how.seed, index, turn, memory, how.limits)
        else:
            yield ProductCase(draw(kind, how.seed, index, memory, how.limits), turn, memory)


def first_taken(family: str, number: int, how: Draw, memory: Memory, act: Callable[[Case], T]) -> T:
    """Do something with the first problem that a configuration takes; raise `NotTaken` for none."""
    with few_multiprocessors(how.backend):
        for case in cases(family, number, how, memory):
            with contextlib.suppress(NotTaken):
                case.choose()
                return act(case)
    raise NotTaken(f"no configuration takes any of {ATTEMPTS} problems")


def run(family: str, number: int, how: Draw, memory: Memory) -> Trial:
    """Compute a problem and judge it."""
    return first_taken(family, number, how, memory, lambda case: tried(case, memory, how.repeats))


@contextlib.contextmanager
def few_multiprocessors(backend: str) -> Iterator[None]:
    """Give the simulator's GPU few multiprocessors, on every other backend change nothing."""
    if backend not in ("sim", "cpu"):
        yield
        return

    known = dispatch.machine_of

    def machine_of(device: Any) -> Any:
        found = known(device)
        return replace(found, gpu=replace(found.gpu, multiprocessors=_MULTIPROCESSORS))

    with contextlib.ExitStack() as stack:
        for module in (dispatch, matmul, grouped):
            stack.enter_context(mock.patch.object(module, "machine_of", machine_of))
        yield
