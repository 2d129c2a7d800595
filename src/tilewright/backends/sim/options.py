"""How kernels are simulated, and `simulate`, which sets it for the calls inside a `with` statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.backends.sim.findings import Finding
from tilewright.errors import ArgumentError
from tilewright.profile.gpus import DEFAULT_GPU
from tilewright.profile.model import Profile

if TYPE_CHECKING:
    from tilewright.profile.report import Report


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
    """What the simulations inside one `simulate` gave: their findings, in order, and what was measured."""

    options: Options
    findings: list[Finding] = field(default_factory=list)
    profile: Profile = field(default_factory=Profile)

    def report(self, gpu: str = DEFAULT_GPU) -> Report:
        """Return the report of what was measured, with bounds for a GPU: print it, or `.save("report.html")` it.

        Raises `ArgumentError` where nothing was measured, and for a GPU that is not in the table.
        """
        if not self.options.profile:
            raise ArgumentError(
                "nothing was measured in this run", help="write: with tw.simulate(profile=True) as run: ..."
            )
        return self.profile.report(gpu)


_current: ContextVar[Run | None] = ContextVar("tilewright_simulation", default=None)


def current() -> Run:
    """Return the run that the innermost `simulate` began, or one with the default options."""
    return _current.get() or Run(Options())


@contextmanager
def simulate(
    *,
    check: bool = True,
    profile: bool = False,
    raise_errors: bool = True,
    nan: bool = False,
    profile_blocks: int | None = None,
    rollback: bool | None = None,
) -> Iterator[Run]:
    """Set how the simulator runs the kernels called inside, and collect what it finds.

    With `check=False` nothing is checked: faster, and only for kernels known to be right. A wrong kernel runs on to its
    end: a load out of bounds gives 0, a wrong store is dropped, and everything found stands in `run.findings`. Then
    the launch raises `CheckError`, or nothing with `raise_errors=False`. `nan=True` also reports operations that
    make NaN or infinity of finite operands. What is found, and by which rules, is written in docs/simulator.md.

    With `rollback=True` a launch that raises leaves every array that the kernel writes as it was before, bit for bit;
    without it they may hold part of the results, which the error says. None takes it from the `simulate` around this
    one, or else from TILEWRIGHT_SIM_ROLLBACK=1.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def sum_of_neighbours(y, x):
    ...     tile = tw.shared(x.dtype, 64)
    ...     tile[tw.thread_idx.x] = x[tw.thread_idx.x]
    ...     y[tw.thread_idx.x] = tile[tw.thread_idx.x] + tile[(tw.thread_idx.x + 1) % 64]
    >>> with tw.simulate(raise_errors=False) as run:
    ...     sum_of_neighbours[1, 64](np.zeros(64), np.ones(64))
    >>> [(finding.kind, finding.buffer, finding.count) for finding in run.findings]
    [('race', 'tile', 64)]

    With `profile=True` the run measures what each line costs: `run.profile` holds wavefronts of shared memory,
    sectors of global memory, instructions and bytes, `run.report()` the tables. `profile_blocks` limits it to a sample
    of about so many blocks of a launch, whose figures are scaled. What is measured inside an inner `simulate` counts
    for the outer one too, where that measures.

    >>> @tw.kernel
    ... def strided(y, x):
    ...     y[tw.thread_idx.x] = x[2 * tw.thread_idx.x]
    >>> with tw.simulate(profile=True) as run:
    ...     strided[1, 32](np.zeros(32, np.float32), np.zeros(64, np.float32))
    >>> run.profile.global_sectors, run.profile.global_sectors_ideal
    (12, 8)
    """
    outer = _current.get()
    if outer is not None and outer.options.profile:
        profile, profile_blocks = True, outer.options.profile_blocks if profile_blocks is None else profile_blocks
    if outer is not None and rollback is None:
        rollback = outer.options.rollback
    run = Run(Options(check, raise_errors, nan, profile, profile_blocks, rollback))
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)
        if outer is not None and outer.options.profile:
            outer.profile.launches.extend(run.profile.launches)
