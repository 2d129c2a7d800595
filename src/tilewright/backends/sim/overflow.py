"""The checker of address arithmetic: signed sums, products and shifts that do not fit, on their way to an index.

The simulator wraps, as the hardware does; in CUDA C++ such a result is undefined. Which ops can overflow follows from
the ranges of the launch (`Ranges`, from its sizes and numbers): mostly none, and then nothing is wrapped. The others
also compute exactly, and record in which threads a result is wrong; what is computed of wrong values is wrong. An
access by such a thread is reported. A wrong value that a loop or branch yields is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Meaning, Step
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, both
from tilewright.ir import facts as rules
from tilewright.ir.core import Buffer, Kernel, Op, Space, TensorMap, Value, VectorType
from tilewright.ir.evaluate import facts_of
from tilewright.ir.facts import Facts, exactly
from tilewright.ir.ops import Binary, Cast, Constant, For, If, Select, Special, While, yielded

ARITHMETIC = ("add", "sub", "mul", "shl")


class Ranges:
    """The ranges of integer values in one launch: exact sizes and numbers, and bounds for what is computed of them."""

    def __init__(self, kernel: Kernel, machine: Machine, numbers: Mapping[Value, Lanes]) -> None:
        self._machine = machine
        self._known = {v: exactly(int(n)) for v, n in numbers.items() if not v.dtype.is_float}
        self._loops = {op.body.arguments[0]: op for op in kernel.body.walk() if isinstance(op, For)}

    def of(self, value: Value) -> Facts:
        """Return the range of a value, reduced to its type."""
        known = self._known.get(value)
        if known is None:
            exact = self.exact(value)
            known = self._known[value] = rules.wrap(exact, value.dtype).meet(facts_of(value))
        return known

    def may_overflow(self, value: Value) -> bool:
        """Return whether the exact result of the op that defines a value may lie outside its type."""
        exact = self.exact(value)
        return exact.low < value.dtype.lowest or exact.high > value.dtype.highest

    def exact(self, value: Value) -> Facts:
        """Return the range of the exact result of the op that defines a value."""
        op = value.definition
        if isinstance(op, Constant):
            return exactly(int(op.value))
        if isinstance(op, Special):
            group, axis = op.name.split(".")
            extents = self._machine.block if group.startswith(("thread", "block_dim")) else self._machine.grid
            extent = extents["xyz".index(axis)]
            return exactly(extent) if group.endswith("dim") else Facts(0, extent - 1)
        if isinstance(op, Binary) and op.kind in ARITHMETIC:
            return self._arithmetic(op)
        if isinstance(op, Binary) and op.kind in ("div", "rem", "min", "max") and value.dtype.is_integer:
            return self._bounded(op)
        if isinstance(op, Cast) and is_whole(op.x):
            return self.of(op.x)
        if isinstance(op, Select):
            return self.of(op.on_true).join(self.of(op.on_false))
        loop = self._loops.get(value)
        if loop is not None:
            bounds = self.of(loop.start).join(self.of(loop.stop))
            return Facts(bounds.low, bounds.high)
        return facts_of(value)

    def _arithmetic(self, op: Binary) -> Facts:
        a, b = self.of(op.lhs), self.of(op.rhs)
        if op.kind == "add":
            return rules.add(a, b)
        if op.kind == "sub":
            return rules.subtract(a, b)
        if op.kind == "mul":
            return rules.multiply(a, b)
        low, high = max(b.low, 0), min(b.high, op.result.dtype.bits - 1)
        if low > high:
            return exactly(0)
        shifted = rules.multiply(a, Facts(1 << low, 1 << high))
        return shifted if (low, high) == (b.low, b.high) else shifted.join(exactly(0))

    def _bounded(self, op: Binary) -> Facts:
        a, b = self.of(op.lhs), self.of(op.rhs)
        if op.kind in ("min", "max"):
            choose = min if op.kind == "min" else max
            return Facts(choose(a.low, b.low), choose(a.high, b.high))
        if b.low <= 0:
            return facts_of(op.result)
        if op.kind == "div":
            corners = [_quotient(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return Facts(min(corners), max(corners))
        most = b.high - 1
        return Facts(max(-most, min(a.low, 0)), min(most, max(a.high, 0)))


def _quotient(a: int, b: int) -> int:
    """Return the quotient rounded towards zero."""
    return -(-a // b) if a < 0 else a // b


def is_whole(value: Value) -> bool:
    """Return whether a value is one integer."""
    return not isinstance(value.type, VectorType) and value.dtype.is_integer


class OverflowWatch:
    """Wraps the handlers of ops whose results may overflow, and of the accesses that use them."""

    def __init__(self, kernel: Kernel, machine: Machine, numbers: Mapping[Value, Lanes]) -> None:
        self._machine = machine
        ranges = Ranges(kernel, machine, numbers)
        carried = dict(_carried(kernel))
        pending = [index for op in kernel.body.walk() for _, index in _accesses(op)]
        slices: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in slices or not is_whole(value):
                continue
            slices.add(value)
            pending += carried.get(value, ())
            pending += _sources(value)
        self._suspects = {v for v in slices if _is_signed_arithmetic(v) and ranges.may_overflow(v)}
        self._tainted = _closure(slices, self._suspects)
        self._carried = {v for argument in slices for v in carried.get(argument, ()) if v in self._tainted}
        # In which threads a value is wrong, and the op that went wrong first.
        self._wrong: dict[Value, tuple[Array, Op]] = {}

    def watching(self, meaning: Meaning) -> Meaning:
        """Return the meaning of ops to run the kernel with."""
        if not self._suspects:
            return meaning

        def compile(op: Op, compiler: Compiler) -> Step:
            step = meaning(op, compiler)
            if len(op.results) == 1 and op.result in self._tainted:
                return self._computing(op, step, compiler)
            used = [(buffer, v) for buffer, v in _accesses(op) if v in self._tainted]
            return self._accessing(op, step, used) if used else step

        return compile

    def _computing(self, op: Op, step: Step, compiler: Compiler) -> Step:
        value, wrong = op.result, self._wrong
        slots = compiler.slots(op.operands) if isinstance(op, Binary) and value in self._suspects else ()
        sources = [v for v in op.operands if v in self._tainted]

        def run(frame: Frame) -> None:
            step(frame)
            wrong.pop(value, None)
            for source in sources if wrong else ():
                if source in wrong:
                    self._spoil(value, *wrong[source])
            if slots:
                assert isinstance(op, Binary)
                bad = _overflows(op, frame.values[slots[0]], frame.values[slots[1]])
                if bad is not None:
                    self._spoil(value, bad, op)
            if value in wrong and value in self._carried:
                self._report(op, wrong[value], frame.mask, "leaves its loop or branch")

        return run

    def _spoil(self, value: Value, where: Array, op: Op) -> None:
        before = self._wrong.get(value)
        self._wrong[value] = (where, op) if before is None else (before[0] | where, before[1])

    def _accessing(self, op: Op, step: Step, used: list[tuple[Buffer | None, Value]]) -> Step:
        def run(frame: Frame) -> None:
            for buffer, value in used:
                if value in self._wrong:
                    name = "memory" if buffer is None else buffer.name
                    self._report(op, self._wrong[value], frame.mask, f"is an index of {name}", buffer)
            step(frame)

        return run

    def _report(self, op: Op, wrong: tuple[Array, Op], mask: Mask, use: str, buffer: Buffer | None = None) -> None:
        machine, (where, origin) = self._machine, wrong
        found = both(mask, where)
        assert found is not None
        if not found.any():
            return
        full = np.broadcast_to(found, (machine.blocks, machine.threads))
        row, thread = (int(n) for n in np.argwhere(full)[0])
        dtype = origin.result.dtype
        notes = []
        if origin is not op and origin.location is not None and origin.location != op.location:
            notes = ["computed here:", *[f"  {line}" for line in origin.location.excerpt()]]
        fault = Fault(
            op,
            "integer-overflow",
            f"integer overflow: a value that does not fit into {dtype} {use}",
            machine.block_coordinate(row),
            machine.thread_coordinate(thread),
            None if buffer is None else buffer.name,
            notes=notes,
            help="compute it in 64 bits: convert an operand first, x.to(tw.int64)",
            count=int(full.sum()),
            other=origin,
        )
        machine.collector.report(fault)


def _overflows(op: Binary, a: Lanes, b: Lanes) -> Array | None:
    """Return the threads in which the exact result does not fit, None if there are none."""
    x, y = at_least_2d(a), at_least_2d(b)
    dtype = op.result.dtype
    if op.kind == "shl":  # a shift by any other amount is defined: it gives 0
        inside = (y >= 0) & (y < dtype.bits)
        x, y = np.where(inside, x, 0), np.where(inside, y, 0)
    if dtype.bits == 64:
        bad = _wide_overflows(op.kind, x, y)
    else:
        x, y = x.astype(np.int64), y.astype(np.int64)
        exact = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "shl": np.left_shift}[op.kind](x, y)
        bad = (exact < dtype.lowest) | (exact > dtype.highest)
    return np.asarray(bad) if bad.any() else None


def _wide_overflows(kind: str, x: Array, y: Array) -> Array:
    """Return where a 64-bit result does not fit: float64 tells as long as it is not close."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    exact = a * 2.0**b if kind == "shl" else {"add": a + b, "sub": a - b, "mul": a * b}[kind]
    return np.asarray(np.abs(exact) > 2.0**63)


def _accesses(op: Op) -> Iterator[tuple[Buffer | None, Value]]:
    """Yield the indices by which an op reaches memory that threads share, with the buffers."""
    for use in op.uses:
        if use.index is not None and use.buffer.space is not Space.REGISTER:
            yield use.buffer, use.index
    box = getattr(op, "map", None)
    if isinstance(box, TensorMap):  # a bulk copy reaches memory by coordinates
        for value in getattr(op, "coordinates", ()):
            yield box.buffer, value


def _sources(value: Value) -> tuple[Value, ...]:
    """Return the values of which an index is computed, as far as a wrong one makes it wrong."""
    op = value.definition
    if isinstance(op, Select):
        return op.on_true, op.on_false
    if isinstance(op, (Binary, Cast)):
        return op.operands
    return ()


def _is_signed_arithmetic(value: Value) -> bool:
    op = value.definition
    return isinstance(op, Binary) and op.kind in ARITHMETIC and value.dtype.lowest < 0


def _carried(kernel: Kernel) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Yield each value that a loop carries or a branch gives, with what it can come from."""
    for op in kernel.body.walk():
        if isinstance(op, For):
            yield op.body.arguments[0], (op.start, op.step)
            yield from _pairs(op.body.arguments[1:], op.init, yielded(op.body))
            yield from _pairs(op.results, yielded(op.body))
        elif isinstance(op, While):
            yield from _pairs(op.body.arguments, op.init, yielded(op.body))
            yield from _pairs(op.condition.arguments, op.init, yielded(op.body))
            yield from _pairs(op.results, yielded(op.body))
        elif isinstance(op, If):
            yield from _pairs(op.results, yielded(op.then), yielded(op.otherwise))


def _pairs(targets: tuple[Value, ...], *sources: tuple[Value, ...]) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    yield from zip(targets, zip(*sources, strict=True), strict=True)


def _closure(slices: set[Value], suspects: set[Value]) -> set[Value]:
    """Return the values of slices that suspects are among, or are computed of."""
    tainted = set(suspects)
    grows = True
    while grows:
        more = {v for v in slices - tainted if tainted.intersection(_sources(v))}
        tainted |= more
        grows = bool(more)
    return tainted
