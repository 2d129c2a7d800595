"""Where NaN and infinity begin: ops whose float operands are finite in a thread, and whose result is not.

It costs a look at every float, so it is done only where `simulate(nan=True)` asks for it: the steps of the ops that
compute floats are wrapped. Values in threads that a mask leaves out count for nothing.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Meaning, Step
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d, both
from tilewright.dtypes import DType
from tilewright.ir.core import Op, Value
from tilewright.ir.effects import WARPS_OF
from tilewright.ir.instruction import Instruction, TypedValues
from tilewright.ir.ops import Binary, Cast, Fma, Unary

_COMPUTING = (Unary, Binary, Fma, Cast)


def watching(meaning: Meaning) -> Meaning:
    """Return the meaning of ops that also reports where values stop being finite."""

    def compile(op: Op, compiler: Compiler) -> Step:
        step = meaning(op, compiler)
        found = _floats(op)
        if found is None or not found[1]:
            return step
        operands, results = found
        sources = [(compiler.slot(v), dtype) for v, dtype in operands]
        targets = [(compiler.slot(v), dtype) for v, dtype in results]

        def run(frame: Frame) -> None:
            step(frame)
            values = frame.values
            if not all(_finite(values[slot], dtype).all() for slot, dtype in targets):
                given = [_elements(values[slot], dtype) for slot, dtype in sources]
                _look(op, compiler, frame, given, [_elements(values[slot], dtype) for slot, dtype in targets])

        return run

    return compile


def _floats(op: Op) -> tuple[TypedValues, TypedValues] | None:
    """Return operands and results that hold floats, with the types of what is in them; None for other ops."""
    if isinstance(op, Instruction):
        return op.floats()
    if not isinstance(op, _COMPUTING):
        return None
    sides = [(v, v.dtype) for v in op.operands if _is_float(v)], [(v, v.dtype) for v in op.results if _is_float(v)]
    return sides


def _is_float(value: Value) -> bool:
    return value.dtype.is_float


def _elements(value: Lanes, dtype: DType) -> Array:
    """Return what a register holds: (blocks, threads, elements)."""
    array = np.ascontiguousarray(at_least_2d(value))
    if array.ndim == 3:  # the lanes of a vector
        return array
    return array[..., None] if array.dtype == dtype.numpy else array[..., None].view(dtype.numpy)


def _finite(value: Lanes, dtype: DType) -> Array:
    """Return where all that a register holds is finite, with its two axes."""
    return _are_finite(_elements(value, dtype))


def _are_finite(elements: Array) -> Array:
    wide = elements.astype(np.float32) if elements.dtype.itemsize < 4 else elements
    return np.asarray(np.isfinite(wide).all(axis=-1))


def _look(op: Op, compiler: Compiler, frame: Frame, operands: list[Array], results: list[Array]) -> None:
    """Report the active threads whose operands are all finite, and a result is not."""
    machine = compiler.machine
    shape = machine.blocks, machine.threads
    were, begin = np.ones(shape, np.bool_), np.zeros(shape, np.bool_)
    for operand in operands:
        were &= _are_finite(operand)
    warps = WARPS_OF.get(op.effects.together, 0)
    if warps:  # a result comes from the operands of the whole group
        size = warps * machine.warp
        whole = np.logical_and.reduceat(were, np.arange(0, machine.threads, size), axis=1)
        were = np.repeat(whole, size, axis=1)[:, : machine.threads]
    for result in results:
        begin |= ~_are_finite(result)
    found = both(frame.mask, begin & were)
    assert found is not None
    if not found.any():
        return
    row, thread = (int(n) for n in np.argwhere(found)[0])
    value = next(v for r in results for v in _at(r, row, thread) if not np.isfinite(v))
    given = ", ".join(f"{v:g}" for operand in operands for v in _at(operand, row, thread)) or "an integer"
    fault = Fault(
        op,
        "not-finite",
        f"not finite: {_verb(op)} gives {value:g} of finite operands",
        machine.block_coordinate(row),
        machine.thread_coordinate(thread),
        notes=() if warps else (f"the operands: {given}",),
        help="keep operands in the function's domain and results in the type's range, or leave out what is not used",
        count=int(found.sum()),
    )
    machine.collector.report(fault)


def _at(elements: Array, row: int, thread: int) -> list[float]:
    """Return what one thread holds."""
    held = elements[row if len(elements) > 1 else 0, thread if elements.shape[1] > 1 else 0]
    return [float(v) for v in held]


def _verb(op: Op) -> str:
    if isinstance(op, (Unary, Binary)):
        return op.kind
    if isinstance(op, Cast):
        return f"the conversion to {op.result.dtype}"
    if isinstance(op, Instruction) and op.CALLED is not None:
        return op.CALLED
    return "a multiply-add" if isinstance(op, Fma) else "a matrix instruction"
