"""Running a kernel: arguments in, chunks of blocks through the compiled program, findings out.

`Options` says how kernels are simulated, and `running` collects what the simulations inside a `with` statement gave.
`Outputs` keeps what the arrays that a kernel writes held before a launch, and puts it back where the launch fails.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tilewright.backends.sim.accumulators import RegisterChecker
from tilewright.backends.sim.aliases import Reachable, reachable
from tilewright.backends.sim.checks import AccessChecker
from tilewright.backends.sim.clusters import demand_whole_groups
from tilewright.backends.sim.copies import WaitChecker
from tilewright.backends.sim.findings import Collector, Finding
from tilewright.backends.sim.finite import watching
from tilewright.backends.sim.groups import RankLaunch, current_rank
from tilewright.backends.sim.interleaving import Interleaving
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.measure import Meter
from tilewright.backends.sim.overflow import OverflowWatch
from tilewright.backends.sim.predecessors import Predecessors, forget_launches
from tilewright.backends.sim.program import Program, meaning
from tilewright.backends.sim.races import RaceChecker
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.backends.sim.unwritten import report_unwritten
from tilewright.backends.sim.values import Array, Lanes
from tilewright.backends.sim.varied import Varied
from tilewright.errors import ROLLBACK_VARIABLE, ArgumentError, CheckError, describe_outputs
from tilewright.figures import Compiled, Launch, add_launch
from tilewright.frames import warn_at, with_stack
from tilewright.ir.core import Buffer, Kernel, Parameter, Space, TensorMap, Value
from tilewright.ir.effects import Completion
from tilewright.ir.maps import MapValues
from tilewright.ir.ops import AddressOf, Point


@dataclass(frozen=True)
class Options:
    """`check` turns the checkers on; `raise_errors` makes findings an error once a launch is over.

    `nan` also looks for NaN and infinity that appear where operands are finite. `profile` measures what each line
    costs, in all blocks or in a sample of about `profile_blocks`. `unwritten` also tells of outputs that are written
    only as far as the grid reaches. `rollback` puts the arrays of a launch that raises
    back; None leaves it to the environment. `schedules` is in how many more orders of agents each launch is run, those
    of the seeds from `seed` on; `progress` is called with the number of each before it runs.
    """

    check: bool = True
    raise_errors: bool = True
    nan: bool = False
    profile: bool = False
    profile_blocks: int | None = None
    rollback: bool | None = None
    unwritten: bool = True
    schedules: int = 0
    seed: int = 0
    progress: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Run:
    """What the simulations inside one `with` gave, in order: findings, and launches where they were measured."""

    options: Options
    findings: list[Finding] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)  # names of the kernels that ran, measured or not
    notes: list[str] = field(default_factory=list)  # what is worth saying of a launch and is not a finding


AnyRun = TypeVar("AnyRun", bound=Run)

_current: ContextVar[Run | None] = ContextVar("tilewright_simulation", default=None)


def current() -> Run:
    """Return the run that is under way, or one with the default options."""
    return _current.get() or Run(Options())


# Who is told how many of the blocks of a kernel are done.
Teller = Callable[[str, int, int], None]
teller: ContextVar[Teller | None] = ContextVar("tilewright_teller", default=None)


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


def is_wanted(option: bool | None) -> bool:
    """Say whether arrays are put back: by the option of `simulate`, or without one by the environment.

    Raises `ArgumentError` where the variable is neither 1 nor 0.
    """
    if option is not None:
        return option
    value = os.environ.get(ROLLBACK_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ArgumentError(
            f"the environment variable {ROLLBACK_VARIABLE} is {value!r}",
            help="1 puts arrays back where a launch fails, 0 does not",
        )
    return value == "1"


class Outputs:
    """The arrays that a launch writes, with what they hold now if `keep`.

    `copies` are the names of arguments whose arrays are copies that the caller does not see where the launch fails.
    """

    def __init__(
        self,
        kernel: Kernel,
        storages: Mapping[Buffer, Storage],
        keep: bool,
        is_checked: bool,
        copies: frozenset[str],
        addresses: Sequence[Reachable] = (),
    ) -> None:
        written = dict.fromkeys(buffer.root for op in kernel.body.walk() for buffer in op.buffers_written)
        named = [(p.argument, p.target) for p in kernel.parameters if isinstance(p.target, Buffer)]
        outputs = [(name, buffer) for name, buffer in named if buffer in written and buffer.space is Space.GLOBAL]
        # A write by an address may reach any array.
        by_address = any(buffer.is_pointed for buffer in written)
        reached = [each for each in addresses if by_address and each.array.flags.writeable]
        self.names: tuple[str, ...] = tuple(
            dict.fromkeys([name for name, _ in outputs] + [each.name for each in reached])
        )
        self.are_kept: bool = keep or all(name in copies for name in self.names)
        self._saved: list[_Saved | _SavedArray] = [
            _Saved(storages[buffer], is_checked) for name, buffer in outputs if keep and name not in copies
        ]
        self._saved += [_SavedArray(each.array) for each in reached if keep and each.name not in copies]

    def fail(self, error: BaseException) -> None:
        """Put the arrays back if they were kept, and let the error say what they hold."""
        for saved in self._saved:
            saved.restore()
        if not self.names:
            return
        if isinstance(error, CheckError):
            error.outputs, error.rolled_back = self.names, self.are_kept
        elif hasattr(error, "add_note"):  # Python 3.10 has no notes
            error.add_note(describe_outputs(self.names, self.are_kept))


class _Saved:
    """The memory of one array, bit for bit.

    A store that is checked reaches the array's own elements only. One that is not may hit the gaps between its rows,
    where it has some, so these are kept too.
    """

    def __init__(self, storage: Storage, is_checked: bool) -> None:
        assert isinstance(storage, GlobalStorage), storage
        # Other types than integers may change on the way: NaN of some kinds, and 8-bit floats.
        self._memory: Array = storage.flat.view(f"u{storage.flat.itemsize}")
        self._own = storage.present if is_checked else None
        self._before: Array = self._memory.copy() if self._own is None else self._memory[self._own]

    def restore(self) -> None:
        if self._own is None:
            np.copyto(self._memory, self._before)
        else:
            self._memory[self._own] = self._before


class _SavedArray:
    """The elements of an array that a kernel may write by its address, bit for bit."""

    def __init__(self, array: Array) -> None:
        self._elements: Array = array.view(f"u{array.itemsize}")
        self._before = self._elements.copy()

    def restore(self) -> None:
        np.copyto(self._elements, self._before)


Dim3 = tuple[int, int, int]


def execute(
    kernel: Kernel,
    grid: Dim3,
    block: Dim3,
    arguments: Mapping[Parameter, Array | int | float | bool],
    *,
    options: Options | None = None,
    arch: str = "",
    compile: Callable[[], Compiled] | None = None,
    copies: frozenset[str] = frozenset(),
    addresses: Sequence[Reachable] = (),
    sized: Mapping[Buffer, tuple[int, int]] | None = None,
    described: Callable[[], tuple[tuple[str, str], ...]] = tuple,
    maps: Mapping[TensorMap, MapValues] | None = None,
    remembers: bool = False,
) -> None:
    """Run a kernel over `grid` blocks of `block` threads.

    A pointer's argument is a NumPy array, used in place with its own strides: element index 0 is the
    array's first element, and indices count elements. A scalar's argument is a number. `options` override those of
    the `simulate` statement around the call. `arch` and `compile` are what a profile says of the machine code: the
    target's name, and a function that returns the compiler's figures. `copies` are the names of arguments whose arrays
    the caller drops where this raises. `addresses` are the arrays that the kernel may reach by their addresses; without
    any, and with a kernel that has pointers, these are its arguments. `sized` has the place and the number of elements
    of the shared buffers whose size the launch knows. `described` returns what a profile says of the arguments: the
    name of each and a short text. With `remembers` the elements that the launch reaches are remembered for those after
    it, else its arrays.

    Raises `CheckError`, with its `findings`, where the kernel is wrong.
    """
    rank = current_rank()
    if rank is not None:
        rank.launch(RankLaunch(kernel, grid, block, arguments, addresses, sized, maps or {}))
        return
    run = current()
    run.launched.append(kernel.name)
    options = options or run.options
    collector = Collector(options.raise_errors)
    arrays, scalars = bind(kernel, arguments)
    if 0 in grid or 0 in block:
        return
    if not addresses and any(isinstance(op, (Point, AddressOf)) for op in kernel.body.walk()):
        addresses = [reachable(array, buffer.name) for buffer, array in arrays.items()]
    demand_whole_groups(kernel, block[0] * block[1] * block[2])

    def prepare(collector: Collector, interleaving: Interleaving | None) -> tuple[Machine, RaceChecker | None]:
        machine = Machine(kernel, grid, block, arrays, collector, addresses, sized, maps, interleaving)
        return machine, watch(kernel, machine) if options.check else None

    def complete(machine: Machine) -> None:
        watched = OverflowWatch(kernel, machine, scalars).watching(meaning) if options.check else meaning
        program = Program(kernel, machine, scalars, watching(watched) if options.check and options.nan else watched)
        with watched_to_the_end(machine), np.errstate(all="ignore"):
            for first in range(0, machine.total_blocks, machine.chunk):
                if (tell := teller.get()) is not None:
                    tell(kernel.name, first, machine.total_blocks)
                machine.begin(first, min(machine.chunk, machine.total_blocks - first))
                program.run()

    machine, races = prepare(collector, None)
    before = None if races is None else Predecessors(kernel, machine, races.order, arrays, remembers)
    if before is None:
        forget_launches()
    elif remembers or kernel.dependent_launch:
        machine.observers += (before,)
    outputs = Outputs(kernel, machine.storages, is_wanted(options.rollback), options.check, copies, addresses)
    meter = Meter(machine, kernel, options.profile_blocks) if options.profile else None
    if meter is not None:
        machine.observers += (meter,)
    varied = Varied(kernel, collector, machine.storages, addresses) if options.schedules else None
    try:
        complete(machine)
        if before is not None:
            before.remember()
        if races is not None and options.unwritten:
            report_unwritten(kernel, machine, races.regions, scalars)
        if varied is not None:
            run.notes.extend(varied.run(options, lambda *how: complete(prepare(*how)[0])))
        collector.finish()
        if outer_run() is None:
            for finding in collector.warnings:
                warn_at(finding.message)
    except BaseException as error:  # an interrupt by the user too
        outputs.fail(error)
        raise
    finally:
        run.findings.extend(collector.findings)
        if meter is not None:
            add_launch(run.launches, meter.launch(arch, compile, described()))


with_stack(execute)


def watch(kernel: Kernel, machine: Machine) -> RaceChecker:
    """Give a machine the observers that check a launch; return the one that finds races."""
    races = RaceChecker(kernel, machine)
    machine.observers = (AccessChecker(machine), races, WaitChecker(kernel, machine))
    if any(op.effects.asynchronous is Completion.WARPGROUP for op in kernel.body.walk()):
        machine.observers += (RegisterChecker(kernel, machine),)
    return races


@contextmanager
def watched_to_the_end(machine: Machine) -> Iterator[None]:
    """Tell the observers when a launch is over, and take them from the machine.

    They know the machine: with it they would stay, and the notes on all its memory, until garbage is collected.
    """
    try:
        yield
        for observer in machine.observers:
            observer.end()
    finally:
        machine.observers = ()


def bind(
    kernel: Kernel, arguments: Mapping[Parameter, Array | int | float | bool]
) -> tuple[dict[Buffer, Array], dict[Value, Lanes]]:
    """Sort the arguments into arrays by buffer and NumPy scalars by value."""
    written = {buffer.root for op in kernel.body.walk() for buffer in op.buffers_written}
    arrays: dict[Buffer, Array] = {}
    scalars: dict[Value, Lanes] = {}
    for parameter in kernel.parameters:
        target, given = parameter.target, arguments[parameter]
        if isinstance(target, Value):
            with np.errstate(over="ignore"):
                scalars[target] = value = target.dtype.numpy.type(given)
            if target.dtype.is_float and math.isinf(value) and not math.isinf(given):
                raise ArgumentError(f"argument {parameter.name} is {given}, which does not fit into {target.dtype}")
            continue
        if not isinstance(given, np.ndarray):
            raise ArgumentError(f"argument {parameter.name} must be a NumPy array, and is {type(given).__name__}")
        if target in written and not given.flags.writeable:
            raise ArgumentError(f"argument {parameter.name} is written by the kernel, and its array is read-only")
        arrays[target] = given
    return arrays, scalars
