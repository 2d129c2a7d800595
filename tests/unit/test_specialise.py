"""Calls whose arrays share memory, and the conditions of a launch, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.specialise import Overlaps

START = {"out": 0, "x": 1, "y": 2}


@tw.kernel
def shift(out, x, y):
    i = tw.thread_idx.x
    out[i] = x[i] + y[i]


@tw.kernel
def in_place(out, x, y):
    i = tw.thread_idx.x
    out[i] += 1
    x[i] += 1
    y[i] += 1


def overlaps(kernel, out, x, y):
    spec = tw.spec("float32", 1)
    pointers, layouts = zip(*((pointer, layout) for pointer, *layout in (out, x, y)), strict=True)
    return Overlaps(kernel.lower(spec, spec, spec), START).found(pointers, layouts)


def array(pointer, shape=(8,), strides=(1,)):
    return pointer, shape, strides


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (array(1000), True),
        (array(1028), True),
        (array(1032), False),
        (array(972), True),
        (array(968), False),
        (array(1060, strides=(-1,)), False),
        (array(1059, strides=(-1,)), True),
        (array(1000, (0,)), False),
        (array(900, (2, 2), (1, 25)), True),
        (array(900, (2, 2), (1, 10)), False),
    ],
)
def test_read_array_that_shares_memory_with_a_written_one(x, expected):
    assert overlaps(shift, array(1000), x, array(5000)) is expected
    assert overlaps(shift, array(1000), array(5000), x) is expected


def test_only_read_and_written_arrays_matter():
    assert not overlaps(shift, array(1000), array(5000), array(5000))
    assert not overlaps(in_place, array(1000), array(1000), array(1000))
    spec = tw.spec("float32", 1)
    assert Overlaps(in_place.lower(spec, spec, spec), START).pairs((((8,), (1,)),) * 3) == ()


def test_machine_code_for_shared_memory_makes_no_promise():
    spec = tw.spec("float32", 1)
    lowered = shift.lower(spec, spec, spec, block=32)
    assert lowered.cuda.text.count("__restrict__") == 2
    assert lowered.aliased_module.cubin
    assert lowered.aliased_module.cubin != lowered.module.cubin


def test_kernel_in_place_and_on_shifted_views():
    x = np.arange(9, dtype=np.float32)
    shift[1, 8](x[:8], x[:8], x[:8])
    assert x.tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 8]
    x = np.arange(9, dtype=np.float32)
    with tw.simulate(raise_errors=False) as run:
        shift[1, 8](x[1:], x[:8], x[:8])  # here all threads read before one writes; on a GPU that is left open
    assert {f.kind for f in run.findings} == {"race"}
    assert x.tolist() == [0, 0, 2, 4, 6, 8, 10, 12, 14]


def test_in_place_loads_again_after_a_store():
    @tw.kernel
    def twice(out, x):
        i = tw.thread_idx.x
        out[i] = x[i] + 1
        out[i] = x[i] + 1

    x = np.zeros(4, np.float32)
    twice[1, 4](x, x)
    assert x.tolist() == [2] * 4


def test_conditions_read_what_they_need():
    @tw.kernel
    def tile(x, n):
        tw.local_tile(x, (32, 4), (0, 0))[tw.thread_idx.x, 0] = n

    lowered = tile.lower(tw.spec("float32", (66, 4), (4, 1)), 1.0, block=32)
    assert [(p.argument, p.part) for p in lowered.checked] == [("x", ("shape", 0))]
