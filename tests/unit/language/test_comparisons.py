"""Comparisons of coordinates in kernels: conditions that are computed on the device, for predicates."""

from __future__ import annotations

import itertools

import numpy as np

import tilewright as tw
from tilewright.layout import colex_geq, colex_less, elem_leq, elem_less, increment, lex_gtr, lex_less

FUNCTIONS = (elem_less, elem_leq, lex_less, lex_gtr, colex_less, colex_geq)


@tw.kernel
def compare(out, m, n):
    i, j = tw.thread_idx.x % 4, tw.thread_idx.x // 4
    for number, function in enumerate(FUNCTIONS):
        out[number, tw.thread_idx.x] = tw.where(function((i, j), (m, n)), 1, 0)
        out[len(FUNCTIONS) + number, tw.thread_idx.x] = tw.where(function((i, (2, j)), (m, (2, n))), 1, 0)


def test_comparisons_are_conditions_of_the_device() -> None:
    for m, n in ((2, 3), (0, 0), (3, 1)):
        out = np.full((2 * len(FUNCTIONS), 16), -1, np.int32)
        compare[1, 16](out, m, n)
        for thread, (number, function) in itertools.product(range(16), enumerate(FUNCTIONS)):
            i, j = thread % 4, thread // 4
            assert out[number, thread] == function((i, j), (m, n))
            assert out[len(FUNCTIONS) + number, thread] == function((i, (2, j)), (m, (2, n)))


@tw.kernel
def guarded_copy(dest, src, m, n):
    """Copy the part of a tile that lies inside of (m, n), as in CuTe's page on predication."""
    where = tw.local_partition(tw.identity_tensor((8, 8)), tw.Layout((4, 4)), tw.thread_idx.x)
    to, part = (tw.local_partition(t, tw.Layout((4, 4)), tw.thread_idx.x) for t in (dest, src))
    for k in tw.static_range(tw.size(part.shape)):
        if elem_less(where[k], (m, n)):
            to[k] = part[k]


def test_a_predicate_by_coordinates() -> None:
    src, dest = np.arange(64, dtype=np.float32).reshape(8, 8), np.full((8, 8), -1, np.float32)
    guarded_copy[1, 16](tw.static(dest), tw.static(src), 5, 3)
    expected = np.full((8, 8), -1, np.float32)
    expected[:5, :3] = src[:5, :3]
    assert (dest == expected).all()


@tw.kernel
def next_coordinates(out):
    i, j = increment((tw.thread_idx.x % 3, tw.thread_idx.x // 3), (3, 4))
    out[0, tw.thread_idx.x], out[1, tw.thread_idx.x] = i, j


def test_increment_of_dynamic_coordinates() -> None:
    out = np.zeros((2, 12), np.int32)
    next_coordinates[1, 12](out)
    assert [tuple(c) for c in out.T.tolist()] == [increment((t % 3, t // 3), (3, 4)) for t in range(12)]
