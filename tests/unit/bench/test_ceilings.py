"""The kernels behind the ceilings compute what they must, and compile to what they are meant to measure."""

from __future__ import annotations

import re

import numpy as np

import tilewright as tw
from tilewright.bench import ceilings
from tilewright.bench.ceilings import CHAINS, THREADS, TILE, UNROLLED


def test_copy_copies() -> None:
    source = np.random.default_rng(0).standard_normal(3 * TILE, dtype=np.float32)
    target = np.full_like(source, np.nan)
    ceilings.copy_stream[3, THREADS](target, source)
    assert np.array_equal(target, source)


def test_copy_moves_16_bytes_at_a_time() -> None:
    vector = tw.spec("float32", (TILE,))
    code = ceilings.copy_stream[1, THREADS].sass(vector, vector)
    assert len(re.findall(r"LDG\.E\.128", code)) == len(re.findall(r"STG\.E\.128", code)) == ceilings.VECTORS


def test_multiply_adds_iterate_the_map() -> None:
    turns, scale, offset = 2, 0.875, 0.25
    out = np.zeros(2 * THREADS, np.float32)
    ceilings.multiply_add[2, THREADS](out, np.array([scale, offset], np.float32), turns)
    x = np.arange(THREADS)[:, None] + np.arange(CHAINS, dtype=np.float64)
    steps = turns * UNROLLED
    exact = (x * scale**steps + offset * (1 - scale**steps) / (1 - scale)).sum(axis=1)
    assert np.allclose(out, np.tile(exact, 2), rtol=1e-5)


def test_the_loop_is_multiply_adds_on_registers() -> None:
    """Each is there once, none is folded away, and nothing spills."""
    arguments = tw.spec("float32", (THREADS,)), tw.spec("float32", (2,)), 8
    launcher = ceilings.multiply_add[1, THREADS]
    assert launcher.sass(*arguments).count("FFMA") == CHAINS * UNROLLED
    resources = launcher.resources(*arguments)
    assert not resources.spills and resources.local_bytes == 0


def test_a_ceiling_for_each_type_that_has_one() -> None:
    found = ceilings.Ceilings(4e12, 4e12, 6e13, 1980.0, 6.7e13, 500.0, {"bfloat16": 9e14})
    assert found.flops_of("float32") == 6e13
    assert found.flops_of("bfloat16") == 9e14
    assert found.flops_of("float8_e4m3fn") is None
