"""`tensor.reduce`: elements combined by an associative function, in an order that depends on their number alone.

The n elements, the first mode fastest, are cut into 4, 2 or 1 equal runs: the largest of these numbers that leaves runs
of two elements or more. Each run is combined from its first element to its last, and the runs are combined in pairs:

    n = 8:    ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7))
    n = 12:   (((x0 + x1) + x2) + ((x3 + x4) + x5)) + (((x6 + x7) + x8) + ((x9 + x10) + x11))

Four sums advance side by side, because one alone would wait for each of its additions. The order of the elements is
kept, so that the function need not be commutative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.dtypes import DType, bool_, int32
from tilewright.errors import LanguageError
from tilewright.ir.core import Block
from tilewright.layout import Layout, coalesce, make_layout
from tilewright.layout.layouts import modes_of
from tilewright.tensors import Tensor
from tilewright.tensors.associative import BITWISE, on_type
from tilewright.tensors.host import run_count
from tilewright.trace.control import loop
from tilewright.trace.elementwise import compute, in_registers
from tilewright.trace.heap import keeping_state
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar, bitwise
from tilewright.trace.tracer import current
from tilewright.trace.walks import common_walk, each_step, place


def operation(name: str, type: DType) -> Callable[[Any, Any], Any]:
    """Return the function of two numbers of a type that a name stands for."""
    kind = on_type(name, type.kind)
    return partial(bitwise if kind in BITWISE else arithmetic, kind)


def reduce(tensor: Tensor, op: Any, modes: tuple[int, ...], shape: Any, init: Any) -> Any:  # Any: see `Tensor.reduce`
    """Return the elements combined over modes: a fragment of a shape, or one number where that is None."""
    tracer = current("reduce")
    source = in_registers(tensor)
    if source.dtype is bool_ and op in ("add", "mul"):
        source = source.to(int32)
    if not isinstance(source.layout, Layout):
        source = compute("reduce", lambda x: x, (source,))
    function = operation(op, source.dtype) if isinstance(op, str) else keeping_state(op, "reduce")
    assert isinstance(source.layout, Layout), source
    parts = modes_of(source.layout)
    along = coalesce(make_layout(*[parts[k] for k in modes]))
    if shape is None:
        return _total(source, 0, along, function, init)
    kept = [layout if k not in modes else Layout(1, 0) for k, layout in enumerate(parts)]
    with tracer.inside(Block()):
        element = _total(source, 0, along, function, init).dtype
    layout = Layout(shape)
    target = Tensor(source.engine.fragment(layout, element), layout)
    walk = common_walk((Tensor(source.engine, make_layout(*kept)), target), "reduce")

    def step(steps: tuple[Any, ...]) -> None:
        target.engine.store(place(target, steps[1]), _total(source, steps[0], along, function, init))

    each_step(walk, step)
    return target


def _total(source: Tensor, start: Any, along: Layout, function: Callable[[Any, Any], Any], init: Any) -> Scalar:
    """Return the elements at `start` plus the offsets of a layout, combined."""
    count = along.size
    assert isinstance(count, int), along
    runs = run_count(count)
    length = count // runs

    def element(n: Any) -> Scalar:
        loaded: Scalar = source.engine.load(start + along(n))
        return loaded

    def body(i: Scalar, *totals: Scalar) -> list[Scalar]:
        return [_combined(function, total, element(i + k * length)) for k, total in enumerate(totals)]

    totals: Sequence[Scalar] = [element(k * length) for k in range(runs)]
    for total in totals:
        total.value.name = total.value.name or "total"
    if length > 1:
        totals = loop(1, length, 1, body, totals, name="i")
    while len(totals) > 1:
        totals = [_combined(function, a, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    if init is None:
        return totals[0]
    first = init if isinstance(init, Scalar) else as_scalar(init, totals[0].dtype)
    return _combined(function, first.to(totals[0].dtype), totals[0])


def _combined(function: Callable[[Any, Any], Any], a: Scalar, b: Scalar) -> Scalar:
    value = function(a, b)
    result = value if isinstance(value, Scalar) else as_scalar(value, a.dtype)
    if result.dtype is not a.dtype:
        raise LanguageError(
            f"reduce: the function gives {result.dtype} of two {a.dtype}",
            help=f"convert its result: .to({a.dtype!r}), or the tensor before: t.to({result.dtype!r})",
        )
    return result
