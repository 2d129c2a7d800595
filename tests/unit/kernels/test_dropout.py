"""Dropout in epilogues: the mask is a function of seed, row and column in every family; p's frequency; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.dropout import dropped, kept, philox
from tests.helpers.one_family import OneHopperParts, only
from tests.helpers.slow import examples, rest_is_slow

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels._hopper_kernel import matmul_warpgroups
from tilewright.kernels.family import Candidate
from tilewright.kernels.functions import ElementFunction, captured
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import THREADS, HopperConfiguration, StreamConfiguration, plan_for
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem

BF16 = ml_dtypes.bfloat16
H200 = Machine.of(Arch.parse("sm_90a"))
P, SEED = 0.3, 0x9E3779B97F4A7C15


def small(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return small whole numbers, of which sums of products are exact and seldom 0."""
    found: np.ndarray = np.random.default_rng(sum(shape)).integers(1, 5, shape).astype(dtype)
    return found


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: np.ndarray = a.astype(np.float64) @ b.astype(np.float64)
    return found


def same(found: np.ndarray, x: np.ndarray, p: float = P, seed: int = SEED) -> None:
    """Check a result of float32 to its last bits, and its zeros exactly."""
    expected = dropped(x, p, seed)
    np.testing.assert_array_equal(found == 0, expected == 0)
    np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_the_oracle_is_philox() -> None:
    """Random123's known answer for the counter and key of zeros."""
    words = philox(0, np.zeros(1, int), np.zeros(1, int))[:, 0].tolist()
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


# --- the law -----------------------------------------------------------------------------------------------------------

EXTENT = st.integers(1, 70)


@examples(4, 30)
@given(
    m=EXTENT,
    n=EXTENT,
    k=st.integers(0, 20),
    batch=st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((1,), (2, 2))]),
    layout=st.sampled_from(["rows", "columns", "padded", "every other"]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
    seed=st.integers(-(2**63), 2**64 - 1),
    p=st.floats(0, 1),
)
def test_the_mask_is_of_seed_row_and_column_alone(m, n, k, batch, layout, dtype, seed, p) -> None:
    a, b = small(*batch[0], m, k, dtype=dtype), small(*batch[1], k, n, dtype=dtype)
    x = exact(a, b) + 1
    out = np.empty(x.shape, np.float32)
    if layout == "columns":
        out = np.empty((*x.shape[:-2], n, m), np.float32).swapaxes(-1, -2)
    elif layout == "padded":
        out = np.empty((*x.shape[:-2], m + 3, n + 5), np.float32)[..., 1 : m + 1, 2 : n + 2]
    elif layout == "every other":
        out = np.empty((*x.shape[:-2], m, 2 * n), np.float32)[..., ::2]
    same(tw.matmul(a, b, out=out, bias=np.ones(1, np.float32), epilogue=tw.dropout(p, seed)), x, p, seed)


@pytest.mark.parametrize(("left", "right"), [((7, 5), (5,)), ((3, 7, 5), (5,)), ((2, 5), (3, 5, 1)), ((5,), (2, 5, 9))])
@pytest.mark.spread(2)
def test_vectors_have_one_row_or_one_column(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = small(*left), small(*right)
    found = tw.matmul(a, b, epilogue=tw.dropout(0.5, 3))
    np.testing.assert_array_equal(found != 0, kept(found.shape, 0.5, 3, has_columns=len(right) > 1))


def test_a_part_of_a_product_has_its_part_of_the_mask() -> None:
    a, b, drop = small(40, 8), small(8, 100), tw.dropout(0.5, 11)
    np.testing.assert_array_equal(tw.matmul(a[:17], b[:, :37], epilogue=drop), tw.matmul(a, b, epilogue=drop)[:17, :37])


@pytest.mark.slow
def test_how_many_are_dropped() -> None:
    """Within five deviations of p, over all and over each bit's half, word and lane; neighbours know nothing of it."""
    ones = np.ones((256, 8), np.float16), np.ones((8, 256), np.float16)
    for p in (0.1, 0.5, 0.9):
        zeros = tw.matmul(*ones, epilogue=tw.dropout(p, 2026)) == 0
        for part in (zeros, *(zeros[:, i::32] for i in range(32)), *(zeros[i::64] for i in range(64))):
            assert abs(part.mean() - p) < 5 * (p * (1 - p) / part.size) ** 0.5
        for one, other in ((zeros[1:], zeros[:-1]), (zeros[:, 1:], zeros[:, :-1]), (zeros[:, 8:], zeros[:, :-8])):
            assert abs((one & other).mean() - p * p) < 5 * (p * p * (1 - p * p) / one.size) ** 0.5
        others = tw.matmul(*ones, epilogue=tw.dropout(p, 2027)) == 0
        assert abs((zeros & others).mean() - p * p) < 5 * (p * p * (1 - p * p) / zeros.size) ** 0.5


@pytest.mark.parametrize("p", [0.0, 2.0**-18, 2.0**-16, 1 - 2.0**-16, 1 - 2.0**-18, 1.0])
def test_the_least_and_the_greatest_probabilities(p: float) -> None:
    a, b = small(300, 8), small(8, 300)
    same(tw.matmul(a, b, epilogue=tw.dropout(p, 5)), exact(a, b), p, 5)


# --- in functions ------------------------------------------------------------------------------------------------------


def test_with_other_functions_addends_and_further_results() -> None:
    a, b, bias, residual = small(40, 24) - 3, small(24, 36), small(36), small(40, 36)
    x, drop, factor = exact(a, b) + bias, tw.dropout(P, SEED), 2.0
    y, sums, kept_by = tw.matmul(
        a,
        b,
        bias=bias,
        epilogue=lambda acc: (drop(tw.maximum(acc, 0) * factor) + residual, drop(acc), drop(1.0)),
        also=[("sum", -2), tw.float32],
    )
    np.testing.assert_allclose(y, dropped(np.maximum(x, 0) * 2, P, SEED) + residual, rtol=1e-6)
    np.testing.assert_allclose(sums, dropped(x, P, SEED).sum(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(kept_by != 0, kept(x.shape, P, SEED))


def test_two_seeds_in_a_function_with_branches() -> None:
    a, b = small(40, 24) - 3, small(24, 36)
    first, second = tw.dropout(0.5, 1), tw.dropout(0.25, 2)

    def function(acc):
        if acc > 0:
            acc = first(acc)
        else:
            acc = second(acc)
        return acc

    x = exact(a, b)
    expected = np.where(x > 0, dropped(x, 0.5, 1), dropped(x, 0.25, 2))
    np.testing.assert_allclose(tw.matmul(a, b, epilogue=function), expected, rtol=1e-6)


def test_what_is_not_finite_is_dropped_too() -> None:
    a, b = small(40, 24), small(24, 36)
    a[:20], b[0] = np.nan, np.inf
    found = tw.matmul(a, b, epilogue=tw.dropout(0.5, 1))
    np.testing.assert_array_equal(found == 0, ~kept(found.shape, 0.5, 1))


def test_seeds_and_probabilities_compile_nothing_new() -> None:
    a, b = small(8, 8), small(8, 8)
    found = {captured(tw.dropout(p, seed)).function for p, seed in ((0.1, 0), (0.9, 2**64 - 1), (0.5, -1), (1, 7))}
    assert len(found) == 1
    results = [tw.matmul(a, b, epilogue=tw.dropout(0.5, seed)) for seed in (1, 2, 1)]
    assert np.array_equal(results[0], results[2]) and not np.array_equal(results[0], results[1])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint32])
@pytest.mark.spread(3)
def test_a_seed_in_memory(dtype: Any) -> None:
    a, b, seed = small(33, 8), small(8, 47), np.array(12345, dtype)
    drop = tw.dropout(P, seed)
    same(tw.matmul(a, b, epilogue=drop), exact(a, b), P, 12345)
    product = tw.matmul.prepare(a, b, epilogue=drop)
    seed[...] = 99
    same(product(), exact(a, b), P, 99)


def test_integers_are_dropped_as_floats() -> None:
    a, b, drop = small(20, 20, dtype=np.int8), small(20, 20, dtype=np.int8), tw.dropout(0.5, 4)
    found = tw.matmul(a, b, epilogue=lambda s: drop(s.to(tw.float32)), out_dtype=tw.float32)
    same(found, exact(a, b), 0.5, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: tw.dropout(1.5, 0), "a probability, from 0 to 1, got 1.5"),
        (lambda a: tw.dropout(-0.1, 0), "p"),
        (lambda a: tw.dropout(float("nan"), 0), "p"),
        (lambda a: tw.dropout("half", 0), "p"),
        (lambda a: tw.dropout(0.5, 1.0), "seed is an integer"),
        (lambda a: tw.dropout(0.5, None), "seed is an integer"),
        (lambda a: tw.dropout(0.5, True), "seed is an integer"),
        (lambda a: tw.dropout(0.5, 2**64), "64 bits"),
        (lambda a: tw.dropout(0.5, a), "float32 of the shape"),
        (lambda a: tw.dropout(0.5, np.zeros(2, np.int64)), "int64 of the shape"),
        (lambda a: tw.dropout(0.5, 1)(a), "not an epilogue of tw.matmul"),
    ],
)
def test_what_is_refused(call: Callable[[np.ndarray], object], message: str) -> None:
    with pytest.raises((tw.ArgumentError, tw.LanguageError), match=message):
        call(np.zeros((4, 4), np.float32))


# --- families ----------------------------------------------------------------------------------------------------------


@contextmanager
def choosing(candidate: Candidate) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "fastest", lambda *_: candidate)
        entry._signature.cache_clear()
        yield
    entry._signature.cache_clear()


def by_families(a: Any, b: Any, names: set[str], most: int = 2) -> Iterator[tuple[Candidate, np.ndarray]]:
    """Yield results by candidates of each family: the first, the last, and some between, and one that splits K."""
    drop, bias = tw.dropout(P, SEED), np.ones(1, np.float32)
    options = {"out_dtype": tw.float32, "bias": bias, "epilogue": lambda acc: drop(acc) * 2}
    legal = [c for c in tw.matmul.explain(a, b, **options).candidates if c.rejection is None]
    for name in names:
        of_it = [c for c in legal if c.family.name == name]
        some = {c.configuration: c for c in [*of_it[:: max(len(of_it) // most, 1)], *of_it[-1:]]}
        splits = [c for c in of_it if c.configuration.splits > 1][:1]
        assert some, (name, {c.family.name for c in legal})
        for c in {**some, **{c.configuration: c for c in splits}}.values():
            with choosing(c):
                yield c, tw.matmul(a, b, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
@pytest.mark.slow
def test_multistage_and_splits(dtype: Any) -> None:
    k = 1100 if dtype is np.float16 else 300
    a, b = small(2, 37, k, dtype=dtype), small(2, k, 75, dtype=dtype)
    found = list(by_families(a, b, {"multistage"}))
    assert {c.configuration.splits > 1 for c, _ in found} == {True, False}
    for _, y in found:
        same(y, 2 * (exact(a, b) + 1))


def test_streaming() -> None:
    a, b = small(2, 5, 264, dtype=BF16), small(2, 40, 264, dtype=BF16).swapaxes(-1, -2)
    for _, y in by_families(a, b, {"streaming"}):
        same(y, 2 * (exact(a, b) + 1))


def test_tiny() -> None:
    for n in (40, 13):  # vectors of four, and elements
        a, b = small(3, 9, 20, dtype=BF16), small(3, n, 20, dtype=BF16).swapaxes(-1, -2)
        for _, y in by_families(a, b, {"tiny"}):
            same(y, 2 * (exact(a, b) + 1))


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.spread(2)
def test_packed_weights(layout: str) -> None:
    codes = small(264, 70).astype(np.uint8)
    weights = tw.quantized(codes, np.ones((3, 70), np.float16), bits=4, group=128)
    drop = tw.dropout(P, SEED)
    for m, names in ((3, {"weight streaming"}), (40, {"weight tiles", "weight warpgroups"})):
        x = small(m, 264, dtype=np.float16)
        out = np.empty((m, 70), np.float32) if layout == "rows" else np.empty((70, m), np.float32).T
        candidates = tw.matmul.explain(x, weights, out=out, epilogue=drop).candidates
        for name in names:
            chosen = next(c for c in candidates if c.family.name == name and c.rejection is None)
            with choosing(chosen):
                same(tw.matmul(x, weights, out=out, epilogue=drop), exact(x, codes))


TILES = {
    "cooperative": HopperConfiguration((128, 64, 64), (8, 1), 4),
    "narrow": HopperConfiguration((128, 16, 64), (8, 1), 4),
    "wide": HopperConfiguration((128, 192, 64), (8, 1), 3),
    "cluster": HopperConfiguration((128, 64, 64), (8, 1), 4, cluster=2),
    "ping-pong": HopperConfiguration((64, 64, 64), (8, 1), 4, is_ping_pong=True),
    "transposed": HopperConfiguration((16, 128, 64), (1, 8), 4, is_swapped=True),
    "splits": HopperConfiguration((128, 64, 64), (8, 1), 4, splits=2),
    "splits in a cluster": HopperConfiguration((128, 64, 64), (8, 1), 3, splits=2, adds_in_cluster=True),
    "one consumer": HopperConfiguration((32, 64, 64), (1, 4), 3, splits=2, adds_in_cluster=True, is_swapped=True),
    "stream-K": StreamConfiguration((128, 64, 64), (8, 1), 3),
}


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(
    "name", rest_is_slow(TILES, "wide", "ping-pong", "transposed", "splits in a cluster", "stream-K")
)
@pytest.mark.spread(4)
def test_warpgroups(name: str, layout: str) -> None:
    m, n = (12, 140) if name == "transposed" else (140, 12) if name == "narrow" else (150, 200)
    a, b, residual = small(2, m, 136, dtype=BF16), small(2, 136, n, dtype=BF16), small(m, n)
    out, drop = np.empty((2, m, n), np.float32), tw.dropout(P, SEED)
    if layout == "columns":
        out = np.empty((2, n, m), np.float32).swapaxes(-1, -2)
    with only(TILES[name], 3) as family:
        tw.matmul(a, b, out=out, epilogue=lambda acc: drop(acc) + residual)
    assert family.launched
    np.testing.assert_allclose(out, dropped(exact(a, b), P, SEED) + residual, rtol=1e-6)


def test_warpgroups_in_parts() -> None:
    a, b = small(150, 72), small(72, 140)
    with only(HopperConfiguration((128, 64, 32), (8, 1), 4), 3, OneHopperParts) as family:
        found = tw.matmul(a, b, precision="tf32x3", epilogue=tw.dropout(P, SEED))
    assert family.launched
    same(found, exact(a, b))


# --- what is compiled --------------------------------------------------------------------------------------------------


def problem(m: int, n: int) -> Problem:
    a, b, d = (Operand(tw.bfloat16, major, 16) for major in ("K", "K", "MN"))
    function = captured(tw.dropout(0.5, 1)).function
    return Problem(m, n, 4096, 1, a, b, d, tw.bfloat16, tw.float32, epilogue=function, places="N")


def compiled() -> list[HopperConfiguration]:
    """Return a configuration of each tile that is proposed."""
    found = {}
    for m, n in ((4096, 4096), (5, 4096), (4096, 12)):
        for c in Hopper().candidates(problem(m, n), H200):
            one = c.configuration
            if isinstance(one, HopperConfiguration) and c.rejection is None and one.splits == 1 and not one.streams:
                key = replace(one, stages=4, group=8)
                found[key.tile, key.is_ping_pong, key.is_swapped, key.cluster_size > 1] = key
    return list(found.values())


def arguments(configuration: HopperConfiguration) -> tuple[Any, tuple[Any, ...]]:
    """Return the Hopper kernel and its arguments for a bfloat16 product with dropout."""
    asked = problem(4093, 4096)
    assert isinstance(asked.epilogue, ElementFunction)
    plan, uses = plan_for(asked, configuration, H200.arch), asked.epilogue.uses(tw.float32, (), H200.arch)
    plan = replace(plan, epilogue=replace(plan.epilogue, numbers=uses))
    a, b, d = (tw.spec(tw.bfloat16, (rows, 4096, 1), stride=(4096, 1, 0)) for rows in (4093, 4096, 4093))
    kernel = matmul_warpgroups.numbered(len(uses)).configure(min_blocks=1)
    if configuration.cluster_size > 1:
        kernel = kernel.configure(cluster=configuration.cluster_size)
    one = np.float32(1)
    return kernel[132, THREADS], (d, a, b, one, one, plan, *(use.held.numpy.type(1) for use in uses))


@pytest.mark.parametrize("name", ["cooperative", "ping-pong", "narrow", "transposed"])
def test_a_call_of_philox_serves_eight_elements(name: str) -> None:
    """Of a thread's accumulators in tiles of 32 columns or more; two in narrower ones, and one where D^T is computed."""
    kernel, given = arguments(TILES[name])
    (m, n, _), groups = TILES[name].own_tile, 1 if name == "ping-pong" else 2
    calls = m * n // (128 * groups) // {"narrow": 2, "transposed": 1}.get(name, 8)
    assert kernel.source(*given, arch="sm_90a").count(" philox<10>(") == calls


@pytest.mark.parametrize("configuration", compiled(), ids=str)
@pytest.mark.spread(16)
def test_nothing_spills(configuration: HopperConfiguration) -> None:
    kernel, given = arguments(configuration)
    found = kernel.resources(*given, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


# --- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int8"])
@pytest.mark.parametrize(
    "shape", [(70, 50, 33), (1000, 2000, 512), (4096, 3000, 256), (8, 4096, 1024), (64, 64, 65536)], ids=str
)
def test_on_a_gpu(shape: tuple[int, int, int], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a, b = (torch.randint(1, 3, extents, device="cuda").to(getattr(torch, dtype)) for extents in ((m, k), (k, n)))
    drop = tw.dropout(P, SEED)
    found = tw.matmul(a, b, epilogue=lambda acc: drop(acc.to(tw.float32)), out_dtype=tw.float32)
    assert np.array_equal(found.cpu().numpy() != 0, kept((m, n), P, SEED))


@pytest.mark.gpu
def test_every_configuration_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    a, b = torch.ones(2, 1000, 520, device="cuda").bfloat16(), torch.ones(2, 520, 1208, device="cuda").bfloat16()
    for configuration in compiled():
        with only(configuration, 132) as family:
            found = tw.matmul(a, b, epilogue=tw.dropout(P, torch.tensor(7, device="cuda")))
        if family.launched:
            assert np.array_equal(found.cpu().float().numpy() != 0, kept((2, 1000, 1208), P, 7))
