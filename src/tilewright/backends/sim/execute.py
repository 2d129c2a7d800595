"""Running a kernel: arguments in, chunks of blocks through the compiled program, findings out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.backends.sim.checks import AccessChecker
from tilewright.backends.sim.findings import Collector
from tilewright.backends.sim.finite import watching
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.measure import Meter
from tilewright.backends.sim.options import Options, current
from tilewright.backends.sim.overflow import OverflowWatch
from tilewright.backends.sim.program import Program, meaning
from tilewright.backends.sim.races import RaceChecker
from tilewright.backends.sim.rollback import Outputs, is_wanted
from tilewright.backends.sim.values import Array, Lanes
from tilewright.backends.sim.waits import WaitChecker
from tilewright.errors import ArgumentError
from tilewright.figures import Compiled, add_launch
from tilewright.ir.core import Buffer, Kernel, Parameter, Value

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
) -> None:
    """Run a kernel over `grid` blocks of `block` threads.

    A pointer's argument is a NumPy array, used in place with its own strides: element index 0 is the
    array's first element, and indices count elements. A scalar's argument is a number. `options` override those of
    the `simulate` statement around the call. `arch` and `compile` are what a profile says of the machine code: the
    target's name, and a function that returns the compiler's figures. `copies` are the names of arguments whose arrays
    the caller drops where this raises.

    Raises `CheckError`, with its `findings`, where the kernel is wrong.
    """
    run = current()
    options = options or run.options
    collector = Collector(options.raise_errors)
    arrays, scalars = _bind(kernel, arguments)
    if 0 in grid or 0 in block:
        return
    machine = Machine(kernel, grid, block, arrays, collector)
    if options.check:
        machine.observers = (AccessChecker(machine), RaceChecker(kernel, machine), WaitChecker(kernel, machine))
    outputs = Outputs(kernel, machine.storages, is_wanted(options.rollback), options.check, copies)
    meter = Meter(machine, kernel, options.profile_blocks) if options.profile else None
    if meter is not None:
        machine.observers += (meter,)
    watched = OverflowWatch(kernel, machine, scalars).watching(meaning) if options.check else meaning
    program = Program(kernel, machine, scalars, watching(watched) if options.check and options.nan else watched)
    try:
        with np.errstate(all="ignore"):
            for first in range(0, machine.total_blocks, machine.chunk):
                machine.begin(first, min(machine.chunk, machine.total_blocks - first))
                program.run()
        for observer in machine.observers:
            observer.end()
        collector.finish()
    except BaseException as error:  # an interrupt by the user too
        outputs.fail(error)
        raise
    finally:
        run.findings.extend(collector.findings)
        if meter is not None:
            add_launch(run.launches, meter.launch(arch, compile))


def _bind(
    kernel: Kernel, arguments: Mapping[Parameter, Array | int | float | bool]
) -> tuple[dict[Buffer, Array], dict[Value, Lanes]]:
    """Sort the arguments into arrays by buffer and NumPy scalars by value."""
    written = {buffer for op in kernel.body.walk() for buffer in op.buffers_written}
    arrays: dict[Buffer, Array] = {}
    scalars: dict[Value, Lanes] = {}
    for parameter in kernel.parameters:
        target, given = parameter.target, arguments[parameter]
        if isinstance(target, Value):
            scalars[target] = target.dtype.numpy.type(given)
            continue
        if not isinstance(given, np.ndarray):
            raise ArgumentError(f"argument {parameter.name} must be a NumPy array, and is {type(given).__name__}")
        if target in written and not given.flags.writeable:
            raise ArgumentError(f"argument {parameter.name} is written by the kernel, and its array is read-only")
        arrays[target] = given
    return arrays, scalars
