"""Splits of K: the results of whole sums, in a fixed order; where the choice takes them; and what they add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.kernels.test_matmul import exact, whole

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels.matmul import _signature
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.problem import Operand, Problem
from tilewright.runtime.memory import DeviceArray

Array = np.ndarray[Any, Any]
NAN = np.float32("nan")


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return what makes all products take so many splits of K, however short it is."""
    configurations = Multistage.configurations

    def take(splits: int) -> None:
        _signature.cache_clear()  # kinds of calls that were planned
        monkeypatch.setattr(
            Multistage,
            "configurations",
            lambda *args: [replace(c, splits=splits) for c in configurations(*args) if c.splits == 1],
        )

    yield take
    _signature.cache_clear()


@pytest.mark.parametrize(
    ("splits", "dtypes", "precision"),
    [
        (2, (np.float32, np.float32), None),
        (13, (np.float32, np.float32), "tf32x3"),
        (8, (np.uint8, np.int8), None),
        (17, (np.float64, np.float64), None),
    ],
    ids=str,
)
@pytest.mark.spread(2)
def test_splits_add_up(cut: Callable[[int], None], splits: int, dtypes: Any, precision: str | None) -> None:
    """Of edges in all modes, batches, any strides; with more splits than K has steps; with all that is added after."""
    cut(splits)
    a, b = whole(1, (3, 150, 37), dtypes[0]).swapaxes(1, 2), whole(2, (150, 83), dtypes[1])
    c, bias = whole(3, (37, 83), np.int8), whole(4, (83,), np.int32)
    out = np.zeros((3, 83, 37), np.int32 if dtypes[1] is np.int8 else np.float64).swapaxes(1, 2)
    found = tw.matmul(a, b, precision=precision, out=out, alpha=3, c=c, beta=-2, bias=bias)
    assert found is out and np.array_equal(out, 3 * exact(a, b) - 2 * c.astype(np.float64) + bias)


def test_an_epilogue_sees_whole_sums(cut: Callable[[int], None]) -> None:
    cut(4)
    a, b = whole(1, (20, 90), np.float32), whole(2, (90, 30), np.float32)
    scale, shift = np.arange(30, dtype=np.float32), 2.5
    found = tw.matmul(a, b, epilogue=lambda acc: tw.maximum(acc * scale, 0) + shift, out_dtype=np.float32)
    assert np.array_equal(found, np.maximum(exact(a, b) * scale, 0) + shift)


def test_beta_of_zero_reads_nothing_and_out_may_be_c(cut: Callable[[int], None]) -> None:
    cut(3)
    a, b = whole(1, (20, 60), np.float32), whole(2, (60, 30), np.float32)
    out = np.full((20, 30), NAN)
    assert np.array_equal(tw.matmul(a, b, out=out, beta=0), exact(a, b))
    assert np.array_equal(tw.matmul(a, b, out=out, beta=2), 3 * exact(a, b))
    a[3, 59], b[59, 4] = np.inf, 0
    found = tw.matmul(a, b)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(found, exact(a, b), equal_nan=True)


@pytest.mark.parametrize("splits", [5, 19, 150])
@pytest.mark.spread(3)
def test_the_order_of_additions(cut: Callable[[int], None], splits: int) -> None:
    """Splits of whole steps of K; w, w + ways, ... are added first, and these sums then in the order of w.

    Of 150 splits a thread adds more than it loads at once; most have nothing to sum up.
    """
    cut(splits)
    random = np.random.default_rng(splits)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((9, 300), (300, 10)))
    choice = tw.matmul.explain(a, b).choice
    assert choice is not None and choice.configuration.splits == splits
    depth = choice.configuration.tile[2]
    each = math.ceil(math.ceil(300 / depth) / splits) * depth
    sums = []
    for s in range(splits):
        total = np.zeros((9, 10), np.float32)
        for k in range(s * each, min((s + 1) * each, 300)):
            total = (total + a[:, k, None].astype(np.float64) * b[None, k]).astype(np.float32)
        sums.append(total)
    ways = next(w for w in (2, 4, 8, 16) if w >= min(splits, 16))
    added = [sum(sums[w + ways :: ways], start=sums[w]) if w < splits else 0 * sums[0] for w in range(ways)]
    assert np.array_equal(tw.matmul(a, b), sum(added[1:], start=added[0]))


@pytest.mark.parametrize(
    ("extents", "dtype", "precision"),
    [
        ((256, 256, 65536), tw.bfloat16, None),
        ((512, 512, 16384), tw.bfloat16, None),
        ((64, 64, 262144), tw.float32, None),
        ((100, 100, 1000000), tw.float32, "ieee"),
        ((64, 4096, 4096), tw.float32, None),
        ((64, 64, 262144), tw.float32, "tf32x3"),
        ((128, 128, 20000), tw.int8, None),
    ],
    ids=str,
)
def test_a_long_k_is_cut(extents: tuple[int, int, int], dtype: tw.DType, precision: str | None) -> None:
    m, n, k = extents
    found = tw.matmul.explain(tw.spec(dtype, (m, k)), tw.spec(dtype, (k, n)), precision=precision, arch="sm_90a")
    assert found.choice is not None and found.choice.prediction is not None
    assert found.choice.configuration.splits > 1 and f"{found.choice.configuration.splits} splits" in str(
        found.choice.configuration
    )
    whole = [c.prediction.us for c in found.candidates if c.configuration.splits == 1 and c.prediction]
    assert found.choice.prediction.us < 0.7 * min(whole)
    assert found.choice.prediction.adding_us > 0
    described = found.to_dict()["candidates"][found.candidates.index(found.choice)]
    assert described["splits"] == found.choice.configuration.splits and described["adding_us"] > 0


def test_a_short_k_and_many_tiles_are_not() -> None:
    for extents in ((64, 64, 64), (8192, 8192, 8192), (4096, 4096, 1 << 20)):
        m, n, k = extents
        found = tw.matmul.explain(tw.spec(tw.bfloat16, (m, k)), tw.spec(tw.bfloat16, (k, n)), arch="sm_90a")
        assert all(c.configuration.splits == 1 for c in found.candidates), extents


def test_no_split_is_without_work() -> None:
    random = np.random.default_rng(0)
    family, arch, operand = Multistage(), Arch.parse("sm_90a"), Operand(tw.float16, "K", 16)
    for _ in range(200):
        m, n, k = (int(2 ** random.uniform(0, log)) for log in (11, 11, 22))
        problem = Problem(m, n, k, 1, operand, operand, operand, tw.float16, tw.float32)
        for c in family.configurations(problem, arch):
            steps = -(-k // c.tile[2])
            assert c.splits == 1 or (c.splits - 1) * -(-steps // c.splits) < steps


@pytest.mark.gpu
def test_the_same_bits_every_time_on_a_gpu() -> None:
    random = np.random.default_rng(0)
    for m, n, k in ((64, 64, 262144), (256, 256, 65536), (33, 70, 99999)):
        a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        device_a, device_b, out = DeviceArray.from_numpy(a), DeviceArray.from_numpy(b), DeviceArray((m, n))
        product, size = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
        for precision in ("ieee", "tf32x3"):
            choice = tw.matmul.explain(device_a, device_b, precision=precision).choice
            assert choice is not None and choice.configuration.splits > 1
            first = tw.matmul(device_a, device_b, out=out, precision=precision).numpy()
            assert (np.abs(first - product) <= (k / 8 + 40) * 2.0**-24 * size).all()
            for _ in range(20):
                assert np.array_equal(tw.matmul(device_a, device_b, out=out, precision=precision).numpy(), first)
