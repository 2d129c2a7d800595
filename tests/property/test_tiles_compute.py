"""Operations on whole tensors against NumPy on the same numbers: shapes, layouts, element types, and what is fused."""

from __future__ import annotations

import itertools
import operator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.layout import make_ordered_layout
from tilewright.layout.tuples import product_each

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8, np.float64)
# Of numbers that are small integers every result is exact, so that neither the order of sums nor fusing counts.
BINARY = {
    "add": (operator.add, operator.add),
    "sub": (operator.sub, operator.sub),
    "mul": (operator.mul, operator.mul),
    "minimum": (tw.minimum, np.minimum),
    "maximum": (tw.maximum, np.maximum),
    "lt": (operator.lt, operator.lt),
    "eq": (operator.eq, operator.eq),
    "chosen": (lambda a, b: tw.where(a < b, a, b), lambda a, b: np.where(a < b, a, b)),
    "chain": (lambda a, b: tw.maximum(a * b + a, b) - a, lambda a, b: np.maximum(a * b + a, b) - a),
}


@tw.kernel
def combined(out, x, z, a_layout: tw.constexpr, b_layout: tw.constexpr, function: tw.constexpr):
    a, b = tw.registers(x.dtype, a_layout), tw.registers(z.dtype, b_layout)
    for i in range(a.size):
        a[i] = x[i]
    for i in range(b.size):
        b[i] = z[i]
    result = function(a, b)
    for i in range(result.size):
        out[i] = result[i]


def orders(shape: tuple[int, ...]) -> st.SearchStrategy[tw.Layout]:
    """Layouts of a shape: compact in any order, some with gaps, some swizzled."""

    @st.composite
    def draw(draw: st.DrawFn) -> tw.Layout:
        order = draw(st.permutations(range(len(shape))))
        layout = make_ordered_layout(shape, tuple(order))
        kind = draw(st.sampled_from(("compact", "gaps", "swizzled")))
        if kind == "gaps":
            return tw.Layout(shape, tuple(2 * d for d in layout.stride))
        if kind == "swizzled" and layout.size % 16 == 0:
            return tw.composition(tw.Swizzle(1, 1, 2), layout)
        return layout

    return draw()


@st.composite
def operands(draw: st.DrawFn) -> tuple[tw.Layout, tw.Layout]:
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 4, 3)), min_size=1, max_size=3)))
    other = tuple(draw(st.sampled_from((1, n))) for n in shape)
    a, b = draw(orders(shape)), draw(orders(other))
    return (a, b) if draw(st.booleans()) else (b, a)


@examples(13, 60)
@given(layouts=operands(), dtype=st.sampled_from(DTYPES), name=st.sampled_from(sorted(BINARY)), seed=st.integers(0, 99))
def test_binary_operations_are_numpys(layouts: tuple[tw.Layout, tw.Layout], dtype: type, name: str, seed: int) -> None:
    device, host = BINARY[name]
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(1, 5, product_each(t.shape)).astype(dtype) for t in layouts]
    expected = np.asarray(host(*arrays))
    out = np.zeros(expected.size, expected.dtype if expected.dtype != np.bool_ else np.bool_)
    flat = [a.reshape(-1, order="F") for a in arrays]
    combined[1, 1](out, *flat, *layouts, device)
    np.testing.assert_array_equal(out, expected.reshape(-1, order="F"))
    tensors = [tw.tensor(np.asfortranarray(a)) for a in arrays]
    if name not in ("minimum", "maximum", "chosen", "chain"):
        np.testing.assert_array_equal(device(*tensors).to_numpy(), expected)


# --- programs: what may share a loop, and what may not ---------------------------------------------------

SHAPE = (4, 6)
PARTS = (
    (slice(None), slice(None)),
    (slice(None, None, -1), slice(None)),
    (slice(None), slice(None, None, -1)),
    (slice(0, 2), slice(None)),
    (slice(2, 4), slice(None)),
    (slice(1, 3), slice(None)),
    (slice(0, 1), slice(None)),
    (slice(None), slice(2, 3)),
    (slice(None), slice(0, 6, 2)),
)
STEPS = {
    "add": (operator.add, operator.add),
    "sub": (operator.sub, operator.sub),
    "mul": (operator.mul, operator.mul),
    "max": (tw.maximum, np.fmax),
    "where": (lambda a, b: tw.where(a > b, a - b, b), lambda a, b: np.where(a > b, a - b, b)),
    "number": (lambda a, b: a * 3 - 1, lambda a, b: a * a.dtype.type(3) - a.dtype.type(1)),
}


@tw.kernel
def program(out, x, layouts: tw.constexpr, steps: tw.constexpr):
    tensors = [tw.registers(x.dtype, layout) for layout in layouts]
    for n in tw.static_range(3):
        tensors[n][...] = x[n, ...]
    for kind, name, a, first, b, second in steps:
        left, right = tensors[a][PARTS[first]], tensors[b][PARTS[second]]
        if kind == "new":
            tensors[b] = STEPS[name][0](tensors[a], right)
        elif kind == "update":
            left += right
        elif kind == "assign":
            left[...] = right
        elif kind == "element":
            tensors[a][first % 4, second % 6] = tensors[b][second % 4, first % 6] + 1
        elif kind == "memory":
            out[a, :, :] = tensors[b]
            tensors[a][...] = x[a, ...] + out[a, :, :]
        elif kind == "reduce":
            tensors[b][...] = tensors[a] + tensors[b].reduce("max", 1, keep=True)
    for n in tw.static_range(3):
        out[n, ...] = tensors[n]


def run_by_numpy(x: np.ndarray, steps: tuple) -> np.ndarray:
    tensors = [x[n].copy() for n in range(3)]
    for kind, name, a, first, b, second in steps:
        left, right = tensors[a][PARTS[first]], tensors[b][PARTS[second]].copy()
        if kind == "new":
            tensors[b] = np.asarray(STEPS[name][1](tensors[a], right)).astype(x.dtype)
        elif kind == "update":
            left += right
        elif kind == "assign":
            left[...] = right
        elif kind == "element":
            tensors[a][first % 4, second % 6] = tensors[b][second % 4, first % 6] + x.dtype.type(1)
        elif kind == "memory":
            tensors[a][...] = x[a] + tensors[b]
        elif kind == "reduce":
            tensors[b] = tensors[a] + np.fmax.reduce(tensors[b], axis=1, keepdims=True)
    return np.stack(tensors)


def extent(part: int) -> tuple[int, ...]:
    return np.empty(SHAPE)[PARTS[part]].shape


@st.composite
def one_step(draw: st.DrawFn) -> tuple:
    kind = draw(st.sampled_from(("new", "new", "new", "update", "update", "assign", "element", "memory", "reduce")))
    a, b = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    whole = kind == "new"
    first = 0 if whole else draw(st.integers(0, len(PARTS) - 1))
    fitting = [n for n in range(len(PARTS)) if all(q in (1, p) for p, q in zip(extent(first), extent(n), strict=True))]
    return kind, draw(st.sampled_from(sorted(STEPS))), a, first, b, draw(st.sampled_from(fitting))


@examples(6, 25)
@given(
    steps=st.lists(one_step(), min_size=2, max_size=8).map(tuple),
    layouts=st.tuples(orders(SHAPE), orders(SHAPE), orders(SHAPE)),
    dtype=st.sampled_from((np.uint32, np.float16, ml_dtypes.bfloat16)),  # unsigned: sums that wrap are defined
)
def test_operations_in_any_order_are_numpys(steps: tuple, layouts: tuple, dtype: type) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (3, *SHAPE)).astype(dtype)
    out = np.zeros_like(x)
    with np.errstate(all="ignore"):
        expected = run_by_numpy(x, steps)
        program[1, 1](tw.static(out), tw.static(x), layouts, steps)
    np.testing.assert_array_equal(out, expected)


# --- the order of a reduction --------------------------------------------------------------------------


@tw.kernel
def reduced(out, x, layout: tw.constexpr, op: tw.constexpr, mode: tw.constexpr):
    r = tw.registers(x.dtype, layout)
    for i in range(r.size):
        r[i] = x[i]
    result = r.reduce(op, mode, keep=True)
    for i in range(result.size):
        out[i] = result[i]


def documented_order(values: list, function: object) -> object:
    """The order that `Tensor.reduce` documents, written down a second time."""
    n = len(values)
    runs = max(r for r in (1, 2, 4) if n % r == 0 and (r == 1 or n // r >= 2))
    totals = []
    for k in range(runs):
        run = values[k * n // runs : (k + 1) * n // runs]
        total = run[0]
        for value in run[1:]:
            total = function(total, value)
        totals.append(total)
    if runs == 4:
        totals = [function(totals[0], totals[1]), function(totals[2], totals[3])]
    return totals[0] if len(totals) == 1 else function(totals[0], totals[1])


@examples(8, 40)
@given(
    shape=st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=3).map(tuple),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_sums_are_rounded_in_the_documented_order(shape: tuple[int, ...], data: st.DataObject, seed: int) -> None:
    layout = data.draw(orders(shape))
    modes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))))
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    kept = tuple(1 if k in modes else n for k, n in enumerate(shape))
    out = np.zeros(int(np.prod(kept)), np.float32)
    reduced[1, 1](out, x.reshape(-1, order="F"), layout, "add", modes)
    rest = [k for k in range(len(shape)) if k not in modes]
    rows = x.transpose([*rest, *reversed(modes)]).reshape([shape[k] for k in rest] + [-1])
    expected = np.zeros([shape[k] for k in rest], np.float32)
    for place in np.ndindex(*expected.shape):
        expected[place] = documented_order(list(rows[place]), lambda a, b: np.float32(a + b))
    np.testing.assert_array_equal(out, expected.reshape(-1, order="F"))
    on_host = tw.tensor(np.asfortranarray(x)).reduce("add", modes, keep=True).to_numpy()
    np.testing.assert_array_equal(on_host.reshape(-1, order="F"), out)


def test_a_function_need_not_be_commutative() -> None:
    # 2 x 2 matrices of one row each would do; "the second" and "the first" are associative and tell the order.
    for n in (1, 2, 3, 4, 5, 8, 12, 17):
        x, out = np.arange(n, dtype=np.int32) + 5, np.zeros(1, np.int32)
        reduced[1, 1](out, x, tw.Layout(n), lambda a, b: b, 0)
        assert out[0] == x[-1]
        reduced[1, 1](out, x, tw.Layout(n), lambda a, b: a, 0)
        assert out[0] == x[0]


# --- slices ----------------------------------------------------------------------------------------------

bounds = st.none() | st.integers(-9, 9)


@examples(50, 300)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    parts=st.tuples(*[st.builds(slice, bounds, bounds, st.sampled_from((None, 1, 2, 3, -1, -2)))] * 2),
    swizzled=st.booleans(),
)
def test_slices_are_pythons(shape: tuple[int, int], parts: tuple[slice, slice], swizzled: bool) -> None:
    layout = make_ordered_layout(shape, (1, 0))
    if swizzled:
        layout = tw.composition(tw.Swizzle(1, 0, 2), layout)
    t = tw.tensor(np.arange(100), layout)
    expected = t.to_numpy()[parts]
    if expected.size == 0:
        with pytest.raises(tw.LayoutError, match="has no elements"):
            t[parts]
        return
    np.testing.assert_array_equal(t[parts].to_numpy(), expected)
    changed = t.to_numpy().copy()
    changed[parts] += 100
    storage = np.arange(100)
    u = tw.tensor(storage, layout)
    u[parts] += 100
    np.testing.assert_array_equal(u.to_numpy(), changed)


@examples(50, 300)
@given(
    mode=st.sampled_from(("(4,2):(1,8)", "((2,2),3):((1,4),8)", "(2,(3,2)):(12,(1,6))", "(6,4):(4,1)", "12:3")),
    part=st.builds(slice, bounds, bounds, st.sampled_from((None, 1, 2, 3, 4, -1, -3))),
)
def test_a_mode_of_several_leaves_is_sliced_along_its_index(mode: str, part: slice) -> None:
    inner = tw.Layout.from_text(mode)
    t = tw.tensor(np.arange(300), tw.make_layout(inner, tw.Layout(2, 100)))
    indices = range(inner.size)[part]
    if not indices:
        with pytest.raises(tw.LayoutError, match="has no elements"):
            t[part, 1]
        return
    try:
        taken = t[part, 1]
    except tw.LayoutError as error:
        assert "is not a view" in str(error)
        offsets = [inner(i) for i in indices]
        steps = {b - a for a, b in itertools.pairwise(offsets)}
        assert len(steps) > 1, "regular steps are always a view"
        return
    assert [int(taken[i]) for i in range(len(indices))] == [inner(i) + 100 for i in indices]
    everywhere = range(2 * inner.size)[part]
    try:
        linear = t[part]  # a single slice goes over all modes, as a single index does
    except tw.LayoutError:
        return
    assert [int(linear[i]) for i in range(linear.size)] == [int(t[i]) for i in everywhere]


@tw.kernel
def device_slices(out, x, start: tw.int32, step: tw.constexpr):
    part = x[tw.thread_idx.x, start : start + 4 * step : step]
    assert part.size == 4
    for i in range(4):
        out[tw.thread_idx.x, i] = part[i]
    out[tw.thread_idx.x, 4:8] = part * 2
    out[tw.thread_idx.x, 8:12] = x[tw.thread_idx.x, start:][::step][0:4]


@examples(4, 15)
@given(start=st.integers(0, 15), step=st.sampled_from((1, 2, 3)), static=st.booleans())
def test_slices_from_a_device_value(start: int, step: int, static: bool) -> None:
    x, out = np.arange(8 * 32, dtype=np.float32).reshape(8, 32), np.zeros((8, 12), np.float32)
    device_slices[1, 8](tw.static(out) if static else out, x, start, step)
    taken = x[:, start : start + 4 * step : step]
    np.testing.assert_array_equal(out, np.concatenate([taken, taken * 2, taken], axis=1))
