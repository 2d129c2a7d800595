"""How kernels are simulated, and what the simulations inside a `with` statement gave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.backends.sim.findings import Finding
from tilewright.figures import Launch


@dataclass(frozen=True)
class Options:
    """`check` turns the checkers on; `raise_errors` makes findings an error once a launch is over.

    `nan` also looks for NaN and infinity that appear where operands are finite. `profile` measures what each line
    costs, in all blocks or in a sample of about `profile_blocks`. `rollback` puts the arrays of a launch that raises
    back; None leaves it to the environment.
    """

    check: bool = True
    raise_errors: bool = True
    nan: bool = False
    profile: bool = False
    profile_blocks: int | None = None
    rollback: bool | None = None


@dataclass(frozen=True)
class Run:
    """What the simulations inside one `with` gave, in order: findings, and launches where they were measured."""

    options: Options
    findings: list[Finding] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)


AnyRun = TypeVar("AnyRun", bound=Run)

_current: ContextVar[Run | None] = ContextVar("tilewright_simulation", default=None)


def current() -> Run:
    """Return the run that is under way, or one with the default options."""
    return _current.get() or Run(Options())


def outer_run() -> Run | None:
    """Return the run that is under way, None where there is none."""
    return _current.get()


@contextmanager
def running(run: AnyRun) -> Iterator[AnyRun]:
    """Let the simulations inside go by a run's options, and collect what they give in it."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)
