"""Launches of several ranks as one: the same kernel, each rank with its own arrays and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from tilewright.backends.sim.aliases import Reachable, reachable
from tilewright.backends.sim.clusters import demand_whole_groups
from tilewright.backends.sim.compiler import Meaning
from tilewright.backends.sim.execute import Options, bind, current, is_wanted, watch, watched_to_the_end
from tilewright.backends.sim.findings import Collector
from tilewright.backends.sim.finite import watching
from tilewright.backends.sim.groups import Group, Rank, RankLaunch
from tilewright.backends.sim.histories import Histories, HistoryChecker
from tilewright.backends.sim.interleaving import Interleaving
from tilewright.backends.sim.machine import RESIDENT_THREADS, Machine
from tilewright.backends.sim.overflow import OverflowWatch
from tilewright.backends.sim.program import Program, meaning
from tilewright.backends.sim.ranked import RankArguments
from tilewright.backends.sim.spinning import find_spins
from tilewright.backends.sim.values import Array
from tilewright.backends.sim.varied import Varied
from tilewright.errors import ArgumentError, CheckError
from tilewright.ir.core import Buffer, Kernel
from tilewright.ir.effects import Scope

Result = TypeVar("Result")


def run_ranks(size: int, main: Callable[[Rank], Result]) -> list[Result]:
    """Call `main` with each of so many ranks, their launches simulated together; return what the calls return."""
    histories = Histories(size)

    def perform(numbers: Sequence[int], launches: Sequence[RankLaunch], known: Sequence[Reachable]) -> None:
        _Joint(numbers, launches, histories, known).run()

    group = Group(size, perform, lambda kernel: bool(find_spins(kernel)), histories.meet)
    return group.run(main)


class _Joint:
    """One kernel launched by some of the ranks of a group."""

    def __init__(
        self, numbers: Sequence[int], launches: Sequence[RankLaunch], histories: Histories, known: Sequence[Reachable]
    ) -> None:
        self._first = first = launches[0]
        self._kernel: Kernel = first.kernel
        self._histories = histories
        for number, launch in zip(numbers, launches, strict=True):
            _demand_same(self._kernel, numbers[0], first, number, launch)
        _demand_fit(self._kernel, first, len(launches))
        bound = [bind(launch.kernel, launch.arguments) for launch in launches]
        arrays = {buffer: [each[0][buffer] for each in bound] for buffer in bound[0][0]}
        scalars = {value: [each[1][value] for each in bound] for value in bound[0][1]}
        self._ranks = RankArguments(tuple(numbers), arrays, scalars, [launch.maps for launch in launches])
        self._addresses = [*known, *[each for launch in launches for each in launch.addresses]]
        self._addresses += _named(self._kernel, numbers, arrays)
        histories.begin(each.array for each in self._addresses)

    def run(self) -> None:
        """Run the launch; raise `CheckError` for what is wrong with it, if errors are to be raised."""
        run = current()
        options = run.options
        run.launched.append(self._kernel.name)
        if 0 in self._first.grid or 0 in self._first.block:
            return
        collector = Collector(options.raise_errors)
        machine, history = self._prepare(options, collector, None)
        saved = [(each, each.array.copy()) for each in self._addresses] if is_wanted(options.rollback) else []
        varied = Varied(self._kernel, collector, {}, self._addresses) if options.schedules else None
        try:
            self._complete(machine, options)
            if varied is not None:
                run.notes.extend(
                    varied.run(options, lambda *how: self._complete(self._prepare(options, *how)[0], options))
                )
            if history is not None:
                history.remember()
            collector.finish()
        except BaseException as error:
            for each, before in saved:
                each.array[...] = before
            if isinstance(error, CheckError):
                error.outputs = tuple(dict.fromkeys(each.name for each in self._addresses))
                error.rolled_back = bool(saved)
            raise
        finally:
            run.findings.extend(collector.findings)

    def _prepare(
        self, options: Options, collector: Collector, interleaving: Interleaving | None
    ) -> tuple[Machine, HistoryChecker | None]:
        first = self._first
        machine = Machine(
            self._kernel, first.grid, first.block, {}, collector, self._addresses, first.sized, None, interleaving,
            self._ranks,
        )  # fmt: skip
        if not options.check:
            return machine, None
        history = HistoryChecker(machine, watch(self._kernel, machine), self._histories, self._kernel.name)
        machine.observers += (history,)
        return machine, history

    def _complete(self, machine: Machine, options: Options) -> None:
        scalars = {v: self._ranks.scalar(v, machine.blocks_of_rank) for v in self._ranks.scalars}
        handlers: Meaning = meaning
        if options.check:
            alike = {v: n for v, n in scalars.items() if np.ndim(n) == 0}
            watched = OverflowWatch(self._kernel, machine, alike).watching(meaning)
            handlers = watching(watched) if options.nan else watched
        program = Program(self._kernel, machine, scalars, handlers)
        with watched_to_the_end(machine), np.errstate(all="ignore"):
            machine.begin(0, machine.total_blocks)
            program.run()


def _named(kernel: Kernel, numbers: Sequence[int], arrays: dict[Buffer, list[Array]]) -> list[Reachable]:
    """Return the arguments of the ranks under their names."""
    argument: dict[Any, str] = {p.target: p.name for p in kernel.parameters}
    return [
        reachable(array, f"{argument[buffer]} of rank {number}")
        for buffer, of_ranks in arrays.items()
        for number, array in zip(numbers, of_ranks, strict=True)
    ]


def _demand_fit(kernel: Kernel, launch: RankLaunch, ranks: int) -> None:
    """Raise `ArgumentError` for launches that the simulator does not run for several ranks."""
    threads, blocks = prod(launch.block), prod(launch.grid)
    most = RESIDENT_THREADS // max(threads, 1)
    if ranks * blocks > most:
        raise ArgumentError(
            f"kernel {kernel.name!r} is launched by {ranks} ranks with {blocks} blocks each; of blocks of {threads} "
            f"threads the simulator runs {most} at once, and those of all ranks do",
            help="launch fewer blocks, or try the program with smaller arrays or fewer ranks",
        )
    if any(map.corners for map in kernel.tensor_maps):
        raise ArgumentError(
            f"kernel {kernel.name!r} copies pixels by TMA (im2col), which the simulator does not run for several ranks",
            help="try the kernel outside of tw.simulate(ranks=)",
        )
    if any(op.effects.together is Scope.GRID for op in kernel.body.walk()):
        raise ArgumentError(
            f"kernel {kernel.name!r} meets at a barrier of the grid (tw.sync_grid), which the simulator does not run "
            "for several ranks",
            help="let blocks wait for flags in memory, or split the kernel in two",
        )
    demand_whole_groups(kernel, threads)


def _demand_same(kernel: Kernel, number: int, first: RankLaunch, other: int, launch: RankLaunch) -> None:
    """Raise `ArgumentError` for grids, blocks and sizes of shared memory that differ between ranks."""
    for what, a, b in (
        ("a grid", first.grid, launch.grid),
        ("blocks", first.block, launch.block),
        ("shared memory", first.sized, launch.sized),
    ):
        if a != b:
            raise ArgumentError(
                f"rank {number} launches {kernel.name!r} with {what} of {a}, and rank {other} with {b}",
                help="launch the same grid on all ranks",
            )
