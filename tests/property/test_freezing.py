"""Keys of values: equal for the same type and bits, and for nothing else that Python calls equal."""

from __future__ import annotations

import copy
import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.freezing import freeze, needs_freezing, same


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: object
    columns: object = 8
    note: object = dataclasses.field(default="", compare=False)


def nan(payload: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))[0]


# Values that are equal, or print alike, and mean different kernels.
CONFUSABLE = (
    *(0, 0.0, -0.0, False, 0j, -0j, 1, 1.0, True, 1 + 0j, "1", b"1", None, nan(1), nan(2), 2**53, float(2**53)),
    *(np.float32(0), np.float32(-0.0), np.float64(0), np.int32(1), np.int64(1), np.bool_(True), np.float16(1)),
)
leaves = st.sampled_from(CONFUSABLE)
values = st.recursive(
    leaves,
    lambda x: st.lists(x, max_size=3).map(tuple) | st.builds(Tile, x, x) | st.frozensets(x, max_size=2),
    max_leaves=6,
)


def spelled(value: object) -> object:
    """Return a value as text from which nothing is missing."""
    if isinstance(value, (tuple, frozenset)):
        parts = [spelled(part) for part in value]
        return type(value).__name__, parts if isinstance(value, tuple) else sorted(parts, key=repr)
    if isinstance(value, Tile):
        return "Tile", spelled(value.rows), spelled(value.columns)
    bits = struct.pack("<d", value).hex() if isinstance(value, float) else ""
    return type(value).__module__, type(value).__name__, repr(value), bits


@given(values, values)
def test_keys_are_equal_for_the_same_type_and_bits_only(a: object, b: object) -> None:
    expected = spelled(a) == spelled(b)
    assert (freeze(a) == freeze(b)) is expected
    assert same(a, b) is (expected or a is b)
    if expected:
        assert hash(freeze(a)) == hash(freeze(b))


@given(values)
def test_a_copy_is_the_same(value: object) -> None:
    assert same(value, copy.deepcopy(value)) and freeze(value) == freeze(copy.deepcopy(value))


@given(values, values)
def test_what_needs_no_key_is_told_apart_by_equality(a: object, b: object) -> None:
    if type(a) is type(b) and not needs_freezing(a):
        assert (a == b) is (freeze(a) == freeze(b))


def test_a_field_that_does_not_compare() -> None:
    assert freeze(Tile(1, 2, "a")) == freeze(Tile(1, 2, "b"))  # equal objects share what was compiled
    assert not same(Tile(1, 2, "a"), Tile(1, 2, "b"))  # but a kernel may have read it


def test_objects_are_the_same_as_themselves_only() -> None:
    class Always:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    a, b = Always(), Always()
    assert same((a,), (a,)) and not same((a,), (b,)) and not same([1], [1])
    assert same(tw.Layout(4), tw.Layout(4), (tw.Layout,)) and not same(tw.Layout(4), tw.Layout(4))


@tw.kernel
def reads_a_global(x):
    x[tw.thread_idx.x] = tw.float32(VALUE[0]) if isinstance(VALUE, tuple) else _number(VALUE)


def _number(value):
    return tw.float64(value) if isinstance(value, np.float64) else value


VALUE: object = 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1, 2), (1.0, 2)),
        ((0.0, (1,)), (-0.0, (1,))),
        ((Tile(0.0),), (Tile(-0.0),)),
        (Tile(1), Tile(True)),
        (np.float32(0.0), np.float32(-0.0)),
        (nan(1), nan(2)),
        (None, 1),
        (tw.float32, tw.float64),
        ((np.int32(1),), (np.int64(1),)),
    ],
    ids=repr,
)
def test_a_changed_global_is_noticed(first: object, second: object) -> None:
    """As a global and as a variable of a closure; an equal copy is no change."""
    traces: list[object] = []

    def make(value: object):
        def change(new: object) -> None:
            nonlocal value
            value = new

        @tw.kernel
        def kernel(x):
            traces.append(value)
            x[tw.thread_idx.x] = x[tw.thread_idx.x] + 1

        return kernel, change

    x = np.zeros(32, np.float32)
    kernel, change = make(first)
    kernel[1, 32](x)
    kernel[1, 32](x)
    assert len(traces) == 1
    change(copy.deepcopy(first))
    kernel[1, 32](x)
    assert len(traces) == 1 or first is None
    change(second)
    kernel[1, 32](x)
    assert len(traces) == 2 and traces[1] is second
    change(copy.deepcopy(first))
    kernel[1, 32](x)
    assert len(traces) == 3


def test_the_sign_of_a_global_zero_reaches_the_kernel() -> None:
    global VALUE
    x = np.ones(32, np.float32)
    for VALUE in (0.0, -0.0, (0.0,), (-0.0,)):
        reads_a_global[1, 32](x)
        expected = VALUE[0] if isinstance(VALUE, tuple) else VALUE
        assert np.signbit(x[0]) == np.signbit(expected)


def test_a_field_of_a_compile_time_argument_counts_by_its_bits() -> None:
    @tw.kernel
    def fill(x, tile: tw.constexpr):
        x[tw.thread_idx.x] = tile.rows

    x = np.ones(32, np.float32)
    for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
        fill[1, 32](x, Tile(zero))
        assert np.signbit(x[0]) == np.signbit(zero)
