"""Lists, tuples, dicts, NamedTuples and dataclasses of arrays and numbers as arguments, on both backends."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw

N = 64


class Affine(NamedTuple):
    weight: Any
    bias: Any
    scale: float


@dataclasses.dataclass(frozen=True)
class Layer:
    affine: Affine
    more: list[Any]
    mode: str
    rows: int
    dtype: Any = tw.float32
    layout: Any = None

    def double(self, x: Any) -> Any:
        return x * 2 if self.mode == "double" else x


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: Any
    y: Any


@tw.kernel
def apply(out, layer, extra):
    i = tw.thread_idx.x
    acc = layer.affine.weight[i] * layer.affine.scale + layer.affine.bias[i]
    for x in layer.more:
        acc += x[i]
    if i < layer.rows:
        out[i] = layer.double(acc).to(layer.dtype) + extra["pair"][0] * extra["pair"][1]


def arrays(backend, count, seed=0):
    made = [np.random.default_rng(seed + k).random(N, np.float32) for k in range(count)]
    return made, [backend.put(array) for array in made]


@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("mode", ["double", "once"])
def test_the_kernel_sees_the_same_structure(backend, more, mode):
    host, given = arrays(backend, 2 + more)
    out = backend.zeros(N, tw.float32)
    layer = Layer(Affine(given[0], given[1], 1.5), given[2:], mode, N - 3)
    apply[1, N](out, layer, {"pair": (2, 3)})
    expected = host[0] * np.float32(1.5) + host[1]
    for array in host[2:]:
        expected = expected + array
    expected = (expected * 2 if mode == "double" else expected) + 6
    expected[N - 3 :] = 0
    np.testing.assert_allclose(backend.get(out), expected, rtol=1e-6)


@tw.kernel
def total(out, parts):
    i = tw.thread_idx.x
    acc = tw.float32(0)
    for name, part in parts.items():
        acc += part.x[i] if name != "skip" else part.y
    out[i] = acc


def test_calls_that_differ_in_kind_only_are_told_apart(backend):
    """The same launcher takes structures of other lengths, keys, orders and types, one after another."""
    host, given = arrays(backend, 3)
    calls = [
        ({"a": Slotted(given[0], 1)}, host[0]),
        ({"a": Slotted(given[0], 1), "b": Slotted(given[1], 1)}, host[0] + host[1]),
        ({"a": Slotted(given[0], 1), "skip": Slotted(given[1], 7)}, host[0] + 7),
        ({"skip": Slotted(given[0], 7), "a": Slotted(given[1], 1)}, np.float32(7) + host[1]),
        ({"skip": Slotted(given[0], 2.5), "a": Slotted(given[1], 1)}, np.float32(2.5) + host[1]),
        ({}, np.zeros(N, np.float32)),
    ]
    launcher = total[1, N]
    for parts, expected in calls * 2:
        out = backend.zeros(N, tw.float32)
        launcher(out, parts)
        np.testing.assert_allclose(backend.get(out), expected, rtol=1e-6)


@tw.kernel
def keys(out, table):
    for key in table:
        out[0] = 10 if type(key) is bool else 20


def test_keys_that_are_equal_and_not_the_same(backend):
    for table, expected in [({1: 0}, 20), ({True: 0}, 10), ({1: 0}, 20)]:
        out = backend.zeros(1, tw.int32)
        keys[1, 1](out, table)
        assert backend.get(out)[0] == expected


@tw.kernel
def choose(out, options):
    out[0] = options[0] if options[1] == "first" else options[2]


def test_constants_are_a_part_of_the_identity(backend):
    for options, expected in [((1, "first", 2), 1), ((1, "second", 2), 2), ((5, "first", 6), 5), ((5, None, 6), 6)]:
        out = backend.zeros(1, tw.int32)
        choose[1, 1](out, options)
        assert backend.get(out)[0] == expected


@tw.kernel
def largest(out, values):
    out[0] = values[0]


def test_ints_of_a_structure_that_need_64_bits(backend):
    for value in (7, 2**40, -(2**31), 2**31, 7):
        out = backend.zeros(1, tw.int64)
        largest[1, 1](out, [value])
        assert backend.get(out)[0] == value


@tw.kernel
def gathered(out, *operands):
    i = tw.thread_idx.x
    acc = tw.float32(0)
    for pair in operands:
        acc += pair[0][i] * pair[1]
    out[i] = acc


def test_structures_among_any_number_of_operands(backend):
    host, given = arrays(backend, 3)
    out = backend.zeros(N, tw.float32)
    gathered[1, N](out, (given[0], 2.0), (given[1], 3.0), [given[2], 4])
    np.testing.assert_allclose(backend.get(out), host[0] * 2 + host[1] * 3 + host[2] * 4, rtol=1e-6)


@tw.kernel
def compile_time(out, config: tw.constexpr):
    assert isinstance(config[0], int)
    for k in tw.static_range(config[0]):
        out[k] = config[1]


def test_an_annotated_structure_stays_compile_time(backend):
    out = backend.zeros(4, tw.float32)
    compile_time[1, 1](out, (3, 2.5))
    np.testing.assert_array_equal(backend.get(out), [2.5, 2.5, 2.5, 0])


@tw.kernel
def guarded(pair):
    i = tw.thread_idx.x
    tile = tw.local_tile(pair.weight, (32,), (0,))
    tile[i] = pair.bias


def test_a_condition_of_the_launch_names_the_leaf(backend):
    with pytest.raises(tw.ArgumentError, match=r"pair\.weight\.shape\[0\] is 33"):
        guarded[1, 32](Affine(backend.zeros(33, tw.float32), 1.0, 2.0))


def test_prepared_launches_keep_the_arrays_of_a_list_that_changes(backend):
    host, given = arrays(backend, 2)
    out = backend.zeros(N, tw.float32)
    operands = [(given.pop(0), 2.0), (given.pop(0), 3.0)]
    launch = pairs[1, N].prepare(out, operands)
    operands.clear()
    gc.collect()
    others = [backend.put(np.full(N, 7, np.float32)) for _ in range(8)]  # would take the memory that was given up
    launch()
    np.testing.assert_allclose(backend.get(out), host[0] * 2 + host[1] * 3, rtol=1e-6)
    assert len(others) == 8


@tw.kernel
def pairs(out, operands):
    i = tw.thread_idx.x
    acc = tw.float32(0)
    for x, scale in operands:
        acc += x[i] * scale
    out[i] = acc


def test_an_output_in_a_structure(backend):
    host, given = arrays(backend, 2)

    @tw.kernel
    def add(io):
        io["out"][tw.thread_idx.x] = io["in"][0][tw.thread_idx.x] + io["in"][1][tw.thread_idx.x]

    out = backend.zeros(N, tw.float32)
    add[1, N]({"out": out, "in": given})
    np.testing.assert_array_equal(backend.get(out), host[0] + host[1])
    # An array that is read and written: the text that promises no aliasing must not be taken.
    add[1, N]({"out": given[0], "in": given})
    np.testing.assert_array_equal(backend.get(given[0]), host[0] + host[1])
