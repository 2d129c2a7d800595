"""Run kernels on the simulator with settings, and measure: `simulate` for the calls inside it, `analyze` for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from tilewright.arch import DEFAULT_GPU, VECTOR_BYTES
from tilewright.arguments import function, integer
from tilewright.backends import sim
from tilewright.errors import ArgumentError
from tilewright.profile.inline import run_as_inline
from tilewright.profile.report import Profile, Report
from tilewright.runtime.arrays import ArraySpec, Static, adapter_for, describe
from tilewright.runtime.plan import named_leaves
from tilewright.structures import structure_of

Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False)
class Run(sim.Run):
    """The results of the simulations inside one `simulate`: their findings, in order, and the measurements."""

    ranks: int = 1  # how many `run` runs

    def run(self, main: Callable[[sim.Rank], Result]) -> list[Result]:
        """Call `main(rank)` for each rank, their launches simulated together, and return what the calls return.

        `rank.rank` is its number and `rank.size` the number of ranks; `rank.symmetric(shape, dtype)` makes a buffer
        that all ranks can access, and `rank.barrier()` waits for all. `main` is what each process of `torchrun` would
        run.

        Raises `CheckError` if a kernel is wrong, `ArgumentError` if the ranks launch different kernels, and whatever
        `main` raises.
        """
        function("run", "main", main)
        if sim.current_rank() is not None:
            raise ArgumentError(
                "a rank runs ranks of its own", help="call tw.simulate(ranks=...).run outside of the function of a rank"
            )
        return sim.run_ranks(self.ranks, main)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{finding.kind} at {finding.location}" for finding in self.findings)
        return f"Run({', '.join(self.launched) or 'no kernel'}; {kinds or 'no findings'})"

    def _repr_html_(self) -> str:
        launches = self.profile.report().launches if self.options.profile else ()
        return run_as_inline(self.findings, self.launched, launches)

    @cached_property
    def profile(self) -> Profile:
        """What was measured, launch by launch."""
        return Profile(self.launches)

    def report(self, gpu: str = DEFAULT_GPU) -> Report:
        """Return the report of the measurements, with bounds for a GPU: print it, or `.save("report.html")` it.

        Raises `ArgumentError` if nothing was measured, and for a GPU that is not in the table.
        """
        if not self.options.profile:
            raise ArgumentError(
                "nothing was measured in this run", help="write: with tw.simulate(profile=True) as run: ..."
            )
        return self.profile.report(gpu)


@dataclass
class Simulation(AbstractContextManager[Run]):
    """The result of `simulate`: inside a `with` kernels run with its options; `run` is `Run.run`, without a `with`."""

    begin: Callable[[], AbstractContextManager[Run]]

    def __post_init__(self) -> None:
        self._open: list[AbstractContextManager[Run]] = []

    def __enter__(self) -> Run:
        opened = self.begin()
        run = opened.__enter__()
        self._open.append(opened)
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._open.pop().__exit__(kind, error, trace)

    def run(self, main: Callable[[sim.Rank], Result]) -> list[Result]:
        """Run `main` with each rank, as `Run.run`, and return what the calls return."""
        with self as run:
            return run.run(main)


def simulate(
    *,
    ranks: int = 1,
    check: bool = True,
    profile: bool = False,
    raise_errors: bool = True,
    nan: bool = False,
    profile_blocks: int | None = None,
    rollback: bool | None = None,
    unwritten: bool = True,
    schedules: int = 0,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Configure the simulator for the kernels launched inside, and collect its findings.

    With `check=False` nothing is checked: this is faster, and only for kernels known to be correct. With checks, a
    wrong kernel still runs to its end: a load out of bounds gives 0, an invalid store is dropped, and all findings are
    in `run.findings`. Then the launch raises `CheckError`, unless `raise_errors=False`. `nan=True` also reports
    operations that produce NaN or infinity from finite operands. If a grid is too small and writes only the beginning
    of an output, that is reported but not raised: in `run.findings`, or as a warning outside of `simulate`;
    `unwritten=False` turns it off. docs/simulator.md lists the findings and their rules.

    With `schedules=50` every launch is repeated in 50 other orders of its blocks, warps and lanes, drawn from the seeds
    `seed` to `seed + 49`; the same seed gives the same order. Findings that only such a run shows have its seed in
    their `seed`, and a result that depends on the order is a warning (`order-dependent`). The arrays hold the results
    of the order without a seed. `progress` is called before each of these runs, with its number.

    With `rollback=True` a launch that raises restores every array that the kernel writes, bit for bit; without it they
    may hold part of the results, and the error says so. None takes the setting of the enclosing `simulate`, or else of
    TILEWRIGHT_SIM_ROLLBACK=1.

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

    With `profile=True` the run measures the cost of each line: `run.profile` holds wavefronts of shared memory, sectors
    of global memory, instructions and bytes, and `run.report()` gives tables. `profile_blocks` limits this to a sample
    of about that many blocks per launch, whose figures are scaled up. An inner `simulate` also counts towards an outer
    one that profiles.

    >>> @tw.kernel
    ... def strided(y, x):
    ...     y[tw.thread_idx.x] = x[2 * tw.thread_idx.x]
    >>> with tw.simulate(profile=True) as run:
    ...     strided[1, 32](np.zeros(32, np.float32), np.zeros(64, np.float32))
    >>> run.profile.global_sectors, run.profile.global_sectors_ideal
    (12, 8)

    With `ranks=4` the launches of four ranks, which on GPUs are four processes, are simulated together:
    `tw.simulate(ranks=4).run(main)` calls `main(rank)` for each (see `Run.run`). Races between ranks are reported with
    the rank.

    >>> @tw.kernel
    ... def greet(peers, rank, size):
    ...     tw.store(peers[0], rank, rank + 1, sem="release", scope="sys")
    ...     tw.store(peers[1], rank, rank + 1, sem="release", scope="sys")
    >>> def main(rank):
    ...     buffer = rank.symmetric(2, tw.int32)
    ...     greet[1, 1](buffer.peers, rank.rank, rank.size)
    ...     rank.barrier()
    ...     return buffer.local.tolist()
    >>> tw.simulate(ranks=2).run(main)
    [[1, 2], [1, 2]]
    """
    integer("tw.simulate", "ranks", ranks, minimum=1, maximum=_MOST_RANKS)
    if profile_blocks is not None:
        integer("tw.simulate", "profile_blocks", profile_blocks, minimum=1)
    if ranks > 1 and profile:
        raise ArgumentError("tw.simulate: profile=True measures launches of one GPU", help="leave ranks= out")
    options = check, profile, raise_errors, nan, profile_blocks, rollback, unwritten, schedules, seed, progress
    return Simulation(lambda: _simulating(ranks, *options))


_MOST_RANKS = 64


@contextmanager
def _simulating(
    ranks: int,
    check: bool,
    profile: bool,
    raise_errors: bool,
    nan: bool,
    profile_blocks: int | None,
    rollback: bool | None,
    unwritten: bool,
    schedules: int,
    seed: int,
    progress: Callable[[int], None] | None,
) -> Iterator[Run]:
    outer = sim.outer_run()
    if outer is not None and not schedules:
        schedules, seed, progress = outer.options.schedules, outer.options.seed, outer.options.progress
    whole = {"schedules": schedules, "seed": seed}
    for name, number in whole.items():
        if type(number) is not int or number < 0:
            raise ArgumentError(f"tw.simulate: {name} is {number!r}", help=f"{name} is a whole number from 0 on")
    if outer is not None and outer.options.profile:
        profile, profile_blocks = True, outer.options.profile_blocks if profile_blocks is None else profile_blocks
    if outer is not None and rollback is None:
        rollback = outer.options.rollback
    of_orders = (schedules, seed, progress)
    run = Run(
        sim.Options(check, raise_errors, nan, profile, profile_blocks, rollback, unwritten, *of_orders), ranks=ranks
    )
    try:
        with sim.running(run):
            yield run
    finally:
        if outer is not None and outer.options.profile:
            outer.launches.extend(run.launches)


def analyze(
    launch: Any,  # Any: a launcher, whose module imports this one
    args: Sequence[Any],  # Any: kernel arguments
    kwargs: Mapping[str, Any],
) -> Profile:
    """Run a kernel in the simulator and return its profile; the arguments are unchanged afterwards.

    A `tw.spec` is replaced by an array of zeros. Arrays on a GPU are copied. Raises `CheckError` if the kernel is
    wrong.
    """
    names = list(kwargs)
    declared = [*launch.kernel.__signature__.parameters][launch.kernel.bound :]
    called = [declared[n] if n < len(declared) else f"argument {n}" for n in range(len(args))] + names
    given = [_on_host(value, name=name) for name, value in zip(called, (*args, *kwargs.values()), strict=True)]
    positional, named = given[: len(args)], dict(zip(names, given[len(args) :], strict=True))
    with _unchanged(given), simulate(profile=True) as run:
        launch(*positional, **named)
    return run.profile


def with_data(value: Any) -> Any:  # Any: a kernel argument
    """Return an argument with arrays in place of specs: normal numbers, the same each time, where they are floats."""
    return _on_host(value, np.random.default_rng(0))


def _on_host(value: Any, random: np.random.Generator | None = None, *, name: str = "") -> Any:
    """Return an argument that the simulator takes: arrays of a GPU copied, specs as zeros, the rest as it is."""
    if isinstance(value, Static):
        return replace(value, array=_on_host(value.array, random, name=name))
    if isinstance(value, ArraySpec):
        array = _zeros(value)
        if random is not None and value.info.dtype.is_float:
            array[...] = np.asarray(random.standard_normal(array.shape, np.float32)).astype(array.dtype)
        return array
    structure = None if adapter_for(value) is not None else structure_of(value)
    if structure is not None:
        before = structure.parts(value)
        parts = [_on_host(part, random, name=structure.path(name, n)) for n, part in enumerate(before)]
        # One that holds no array of a GPU may be a compile-time argument: it stays the object that it is.
        return value if all(a is b for a, b in zip(parts, before, strict=True)) else structure.make(parts)
    info = describe(value, name)
    if info is None or not info.is_cuda:
        return value
    from tilewright.runtime.memory import copy_to_host

    return copy_to_host(info)[0]


def _zeros(spec: ArraySpec) -> Array:
    """Return zeros with the shape, strides and alignment of a spec."""
    info = spec.info
    item = info.dtype.bytes
    before = -info.lowest_offset * item
    start = before + (info.pointer - before) % VECTOR_BYTES  # NumPy's memory begins at a multiple of that
    memory = np.zeros(start + info.span * item, np.uint8)
    strides = tuple(stride * item for stride in info.strides)
    array: Array = np.ndarray(info.shape, info.dtype.numpy, memory, start, strides)
    return array


@contextmanager
def _unchanged(values: Sequence[Any]) -> Iterator[None]:
    """Put back what the arrays held."""
    saved = []
    leaves = [leaf for value in values for leaf in named_leaves("", value).values()]
    for value in leaves:
        info = describe(value.array if isinstance(value, Static) else value)
        if info is not None and info.writable:
            array = info.host()
            saved.append((array, array.copy()))
    try:
        yield
    finally:
        for array, before in saved:
            array[...] = before
