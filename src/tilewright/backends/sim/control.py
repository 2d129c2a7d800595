"""Handlers of branches and loops, and of what a thread says to the person who wrote it: prints and assertions.

A condition that is the same in all threads branches for real. Otherwise both sides run under masks, a side
without active threads not at all, and what differs is merged. Loops run until no thread is left in them.

Numbers are printed as the CUDA backend prints them: integers in decimal, floats as C's %g, bools as True and
False. Blocks and threads print in order; a GPU interleaves warps as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Step, Steps
from tilewright.backends.sim.endless import Watch
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Frame, Lanes, Mask, both, fill, merge, without
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Assert, For, If, Print, While


def _run(block: Steps, frame: Frame) -> None:
    for step in block.steps:
        step(frame)


def _run_masked(block: Steps, frame: Frame, mask: Mask) -> None:
    outer, frame.mask = frame.mask, mask
    for step in block.steps:
        step(frame)
    frame.mask = outer


def move(values: list[Lanes], sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy slots, all of them read before any is written."""
    for target, value in zip(targets, [values[s] for s in sources], strict=True):
        values[target] = value


def _advance(values: list[Lanes], block: Steps, carried: Sequence[int], alive: Mask) -> None:
    """Put what a body yields into the carried slots, in the threads that ran it."""
    if alive is None:
        move(values, block.yields, carried)
        return
    new = [values[s] for s in block.yields]
    for slot, value in zip(carried, new, strict=True):
        values[slot] = merge(alive, value, values[slot])


def branch(op: If, compiler: Compiler) -> Step:
    """Run one of two blocks in each thread."""
    condition, results = compiler.slot(op.condition), compiler.slots(op.results)
    then, otherwise = compiler.block(op.then), compiler.block(op.otherwise)

    def run(frame: Frame) -> None:
        values = frame.values
        chosen = values[condition]
        if not isinstance(chosen, np.ndarray):
            side = then if chosen else otherwise
            _run(side, frame)
            move(values, side.yields, results)
            return
        yes, no = both(frame.mask, chosen), without(frame.mask, chosen)
        assert yes is not None
        if not yes.any() or not no.any():
            side = then if yes.any() else otherwise
            _run(side, frame)
            move(values, side.yields, results)
            return
        _run_masked(then, frame, yes)
        _run_masked(otherwise, frame, no)
        for result, a, b in zip(results, then.yields, otherwise.yields, strict=True):
            values[result] = merge(chosen, values[a], values[b])

    return run


def for_loop(op: For, compiler: Compiler) -> Step:
    """Run a body for each index."""
    start, stop, step = compiler.slots((op.start, op.stop, op.step))
    init, results = compiler.slots(op.init), compiler.slots(op.results)
    body = compiler.block(op.body)
    index, *carried = body.arguments
    kind = op.start.dtype.numpy.type
    check = index_check(op, compiler)

    def run(frame: Frame) -> None:
        values = frame.values
        bounds = values[start], values[stop], values[step]
        move(values, init, carried)
        if check is not None:
            check(frame)
        if any(isinstance(b, np.ndarray) for b in bounds):
            diverging(frame, *bounds)
        else:
            for i in range(int(bounds[0]), int(bounds[1]), int(bounds[2])) if bounds[2] else ():
                values[index] = kind(i)
                for each in body.steps:
                    each(frame)
                move(values, body.yields, carried)
        move(values, carried, results)

    def diverging(frame: Frame, first: Lanes, last: Lanes, by: Lanes) -> None:
        values, outer = frame.values, frame.mask
        counts = trip_counts(first, last, by)
        active = counts if outer is None else np.where(outer, counts, -1)
        most = int(active.max())
        least = int(active.min() if outer is None else np.where(outer, counts, most).min())
        for n in range(most):
            alive = None if n < least else counts > n
            values[index] = first + by * kind(n)
            _run_masked(body, frame, both(outer, alive))
            _advance(values, body, carried, alive)

    return run


def trip_counts(start: Lanes, stop: Lanes, step: Lanes) -> Lanes:
    """Return how often each thread runs the body, computed without overflow for types below 64 bits.

    With a step of 0, which is a fault, it does not run.
    """
    start, stop, step = (np.asarray(x).astype(np.int64) for x in (start, stop, step))
    size = np.abs(step)
    distance = np.where(step > 0, stop - start, start - stop)
    return np.where(size > 0, np.maximum((distance + size - 1) // np.maximum(size, 1), 0), 0)


def index_check(op: For, compiler: Compiler) -> Step | None:
    """Return what reports threads whose index leaves its type behind the last iteration, or whose step is 0.

    C++ would go on with an index that wrapped. None where that cannot happen, and where nothing is checked.
    """
    machine, dtype, known = compiler.machine, op.start.dtype, facts_of(op.step)
    if not machine.observers or known.constant in (1, -1):
        return None
    slots = compiler.slots((op.start, op.stop, op.step))

    def check(frame: Frame) -> None:
        start, stop, step = (frame.values[s] for s in slots)
        if not isinstance(start, np.ndarray) and not isinstance(stop, np.ndarray) and not isinstance(step, np.ndarray):
            first, last, by = int(start), int(stop), int(step)
            size = max((last - first + by - (1 if by > 0 else -1)) // by, 0) if by else 0
            wrong = np.asarray(not dtype.lowest <= first + size * by <= dtype.highest)
            zero = np.asarray(not by)
        else:
            counts = trip_counts(start, stop, step)
            if dtype.bits == 64:
                wrong = np.abs(np.add(start, counts * np.asarray(step, np.float64))) > 2.0**63
            else:
                behind = np.asarray(start, np.int64) + counts * np.asarray(step, np.int64)
                wrong = (behind < dtype.lowest) | (behind > dtype.highest)
            zero = np.equal(step, 0)
        if wrong.any():
            summary = f"integer overflow: behind its last iteration, the index of this loop does not fit into {dtype}"
            help = "let it count in 64 bits: range(tw.int64(start), stop, step)"
            _report_loop(op, machine, frame.mask, wrong, "integer-overflow", summary, help)
        if zero.any():
            help = "make it at least 1, for example with max(step, 1)"
            _report_loop(op, machine, frame.mask, zero, "zero-step", "the step of this range is 0", help)

    return check


def _report_loop(op: For, machine: Machine, mask: Mask, where: np.ndarray, kind: str, summary: str, help: str) -> None:
    full = np.broadcast_to(where if mask is None else where & mask, (machine.blocks, machine.threads))
    if full.any():
        row, thread = (int(n) for n in np.argwhere(full)[0])
        at = machine.block_coordinate(row), machine.thread_coordinate(thread)
        machine.collector.report(Fault(op, kind, summary, *at, help=help, count=int(full.sum())))


def while_loop(op: While, compiler: Compiler) -> Step:
    """Run a body as long as the condition holds, in each thread."""
    init, results = compiler.slots(op.init), compiler.slots(op.results)
    condition, body = compiler.block(op.condition), compiler.block(op.body)
    carried, watch = body.arguments, Watch(op, compiler)
    (goes_on,) = condition.yields

    def run(frame: Frame) -> None:
        values, outer = frame.values, frame.mask
        alive: Mask = None  # of the threads of `outer`, those still in the loop
        move(values, init, carried)
        for iteration in count():
            mask = both(outer, alive)
            if condition.arguments:
                move(values, carried, condition.arguments)
            _run_masked(condition, frame, mask)
            more = values[goes_on]
            if not isinstance(more, np.ndarray):
                if not more:
                    break
            else:
                going = both(mask, more)
                assert going is not None
                if not going.any():
                    break
                stopped = without(mask, more)
                if stopped.any():
                    alive = going
                    mask = going
            stuck = watch.stuck(iteration, frame, mask)
            if stuck is not None:
                alive = mask = without(mask, stuck)
                if not mask.any():
                    break
            _run_masked(body, frame, mask)
            _advance(values, body, carried, alive)
        move(values, carried, results)

    return run


def print_values(op: Print, compiler: Compiler) -> Step:
    """Print one line for each active thread."""
    machine, slots = compiler.machine, compiler.slots(op.values)

    def run(frame: Frame) -> None:
        shape = machine.blocks, machine.threads
        active = np.broadcast_to(True if frame.mask is None else frame.mask, shape)
        columns = [fill(frame.values[s], *shape)[active] for s in slots]
        for row in range(int(active.sum())):
            words = [_word(column[row]) for column in columns] + [""]
            texts = [*op.texts, *[""] * (len(words) - len(op.texts))]
            _print("".join(t + w for t, w in zip(texts, words, strict=True)) + "\n")

    return run


def _print(line: str) -> None:
    """Print a line as a GPU does, which knows of no encoding: signs that the output's lacks are escaped."""
    try:
        print(line, end="")  # which says nothing where there is no standard output
    except UnicodeEncodeError as error:
        print(line.encode(error.encoding, "backslashreplace").decode(error.encoding), end="")


def _word(value: Lanes) -> str:
    if isinstance(value, np.bool_):
        return str(bool(value))
    return str(int(value)) if isinstance(value, np.integer) else f"{float(value):g}"


def check(op: Assert, compiler: Compiler) -> Step:
    """Report threads in which a condition does not hold."""
    machine, condition = compiler.machine, compiler.slot(op.condition)

    def run(frame: Frame) -> None:
        held = frame.values[condition]
        if np.all(held):
            return
        failed = both(frame.mask, np.logical_not(np.asarray(held).reshape(1, 1) if np.ndim(held) == 0 else held))
        assert failed is not None
        where = np.argwhere(np.broadcast_to(failed, (machine.blocks, machine.threads)))
        if len(where):
            block, thread = machine.block_coordinate(int(where[0][0])), machine.thread_coordinate(int(where[0][1]))
            summary = f"assertion failed: {op.message}"
            machine.collector.report(Fault(op, "assertion", summary, block, thread, count=len(where)))

    return run
