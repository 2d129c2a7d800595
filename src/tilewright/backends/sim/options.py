"""How kernels are simulated, and `simulate`, which sets it for the calls inside a `with` statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from tilewright.backends.sim.findings import Finding


@dataclass(frozen=True)
class Options:
    """`check` turns the checkers on; `raise_errors` makes the first finding an error, else the run goes on."""

    check: bool = True
    raise_errors: bool = True


@dataclass(frozen=True)
class Run:
    """What the simulations inside one `simulate` gave: their findings, in order."""

    options: Options
    findings: list[Finding] = field(default_factory=list)


_current: ContextVar[Run | None] = ContextVar("tilewright_simulation", default=None)


def current() -> Run:
    """Return the run that the innermost `simulate` began, or one with the default options."""
    return _current.get() or Run(Options())


@contextmanager
def simulate(*, check: bool = True, raise_errors: bool = True) -> Iterator[Run]:
    """Set how the simulator runs the kernels called inside, and collect what it finds.

    With `check=False` nothing is checked: faster, and only for kernels known to be right. With
    `raise_errors=False` a wrong kernel runs on: a load out of bounds gives 0, a wrong store is dropped, and
    everything found stands in `run.findings`.
    """
    run = Run(Options(check=check, raise_errors=raise_errors))
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)
