"""Random numbers: known answers, the same bits on both backends, bounds, and the statistics of large samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits, blocks

import tilewright as tw

MASK = 2**32 - 1


def philox(counter: tuple[int, ...], key: tuple[int, ...], rounds: int = 10) -> tuple[int, ...]:
    """Philox 4x32 in Python's integers, written from the paper."""
    a, b, c, d = counter
    k, l = key  # noqa: E741
    for _ in range(rounds):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k, second & MASK, first >> 32 ^ d ^ l, first & MASK
        k, l = k + 0x9E3779B9 & MASK, l + 0xBB67AE85 & MASK  # noqa: E741
    return a, b, c, d


def stream(seed: int, offset: int) -> tuple[int, ...]:
    seed, offset = seed % 2**64, offset % 2**64
    return philox((offset & MASK, offset >> 32, 0, 0), (seed & MASK, seed >> 32))


# Random123's known answers for philox4x32-10 (its file kat_vectors): counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@tw.kernel
def words(out, seeds, counters):
    i = tw.thread_idx.x
    found = tw.philox(seeds[i], tuple(counters[i, n] for n in tw.static_range(4)))
    for n, word in enumerate(found):
        out[i, n] = word


@tw.kernel
def words_of_constants(out, seed: tw.constexpr, counter: tw.constexpr):
    for n, word in enumerate(tw.philox(seed, counter)):
        out[n] = word


def test_known_answers(backend: Backend) -> None:
    for counter, key, result in KNOWN:
        assert philox(counter, key) == result
    seeds = np.array([key[0] | key[1] << 32 for _, key, _ in KNOWN], np.uint64)
    counters = np.array([counter for counter, _, _ in KNOWN], np.uint32)
    out = backend.zeros((3, 4), tw.uint32)
    words[1, 3](out, backend.put(seeds), backend.put(counters))
    assert backend.get(out).tolist() == [list(result) for _, _, result in KNOWN]
    for counter, key, result in KNOWN:
        out = backend.zeros(4, tw.uint32)
        words_of_constants[1, 1](out, key[0] | key[1] << 32, counter)
        assert tuple(backend.get(out).tolist()) == result


@tw.kernel
def integers(out, seed, offsets):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < offsets.shape[0]:
        for n, word in enumerate(tw.randint4x(seed, offsets[i])):
            out[i, n] = word
        out[i, 4] = tw.randint(seed, offsets[i])


@pytest.mark.parametrize("dtype", [tw.int8, tw.int32, tw.uint32, tw.int64, tw.uint64], ids=str)
def test_seeds_and_offsets_count_by_their_value(backend: Backend, dtype: tw.DType) -> None:
    random = np.random.default_rng(1)
    some = random.integers(dtype.lowest, dtype.highest, 20, dtype.numpy, endpoint=True)
    offsets = np.array([0, 1, 5, 100, dtype.highest, dtype.lowest, *some], dtype.numpy)
    seeds = [dtype.numpy.type(s) for s in (0, 7, dtype.highest, dtype.lowest)] + [-1, 123456789012345]
    for seed in seeds:
        out = backend.zeros((offsets.size, 5), tw.uint32)
        integers[1, 64](out, seed, backend.put(offsets))
        expected = [stream(int(seed), offset) for offset in offsets.tolist()]
        assert backend.get(out).tolist() == [[*found, found[0]] for found in expected]


@tw.kernel
def sample(uniform, four, normal, four_normal, seed):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < uniform.shape[0]:
        uniform[i] = tw.rand(seed, i)
        normal[i] = tw.randn(seed, i)
        for n, x in enumerate(tw.rand4x(seed, i)):
            four[i, n] = x
        for n, x in enumerate(tw.randn4x(seed, i)):
            four_normal[i, n] = x


def samples(backend: Backend, count: int, seed: Any) -> list[Array]:
    out = [backend.zeros(shape, tw.float32) for shape in (count, (count, 4), count, (count, 4))]
    sample[blocks(count), 128](*out, seed)
    return [backend.get(x) for x in out]


def test_uniform_numbers_have_the_same_bits_everywhere(backend: Backend) -> None:
    uniform, four, _, _ = samples(backend, 1000, 11)
    expected = np.array([stream(11, i) for i in range(1000)], np.uint32) >> np.uint32(8)
    assert_same_bits(four, expected.astype(np.float32) * np.float32(2.0**-24))
    assert_same_bits(uniform, four[:, 0])


def test_normal_numbers(backend: Backend) -> None:
    _, _, normal, four = samples(backend, 2000, np.int64(-5))
    a, b, c, d = np.array([stream(-5, i) for i in range(2000)], np.float64).T
    for first, u, v in ((0, a, b), (2, c, d)):
        distance = np.sqrt(-2 * np.log(u * 2.0**-32 + 2.0**-33))
        for n, wave in enumerate((np.cos, np.sin)):
            # A uniform number is rounded to float32: near 1, where the logarithm vanishes, that is its own size.
            limit = 1e-5 + np.where(distance < 0.02, 1e-3, 0)
            assert (np.abs(four[:, first + n] - distance * wave(2 * math.pi * v * 2.0**-32)) < limit).all()
    assert_same_bits(normal, four[:, 0])


def test_statistics(backend: Backend) -> None:
    """Means, deviations and shares are within five standard errors, and neighbours are not correlated."""
    count = 1 << 16
    uniform, four, normal, four_normal = samples(backend, count, 2024)
    for x in (uniform, *four.T):
        assert x.min() >= 0 and x.max() < 1
        assert abs(x.mean() - 0.5) < 5 * math.sqrt(1 / 12 / count)
        share = np.histogram(x, 64, (0, 1))[0]
        assert ((share - count / 64) ** 2 / (count / 64)).sum() < 63 + 5 * math.sqrt(2 * 63)
        assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / math.sqrt(count)
    for x in (normal, *four_normal.T):
        assert abs(x.mean()) < 5 / math.sqrt(count) and abs(x.var() - 1) < 5 * math.sqrt(2 / count)
        for bound, within in ((1, 0.682689), (2, 0.954500), (3, 0.997300)):
            assert abs((np.abs(x) < bound).mean() - within) < 5 * math.sqrt(within * (1 - within) / count)
    assert abs(np.corrcoef(four.T) - np.eye(4)).max() < 5 / math.sqrt(count)
    assert abs(np.corrcoef(four_normal.T) - np.eye(4)).max() < 5 / math.sqrt(count)


@tw.kernel
def bounded(out, seed, low, high):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = tw.randint(seed, i, low, high)


@tw.kernel
def bounded_by_constants(out, seed, low: tw.constexpr, high: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = tw.randint(seed, i, low, high)


RANGES = [(0, 10), (-5, 6), (3, 4), (-(2**31), 2**31 - 1), (-1, 2**31 - 1), (0, 2**31 - 1)]


@pytest.mark.parametrize(("low", "high"), [*RANGES, (0, 2**32 - 1), (2**31, 2**32 - 1)])
def test_bounds(backend: Backend, low: int, high: int) -> None:
    dtype = tw.uint32 if high > 2**31 else tw.int32
    out = backend.zeros(500, dtype)
    bounded_by_constants[4, 128](out, 9, low, high)
    found = backend.get(out)
    drawn = [stream(9, i) for i in range(500)]
    assert found.tolist() == [low + ((a << 32 | b) * (high - low) >> 64) for a, b, _, _ in drawn]
    if (low, high) in RANGES:
        bounded[4, 128](out, 9, np.int32(low), np.int32(high))
        assert_same_bits(backend.get(out), found)


def test_each_number_of_a_range_is_as_likely(backend: Backend) -> None:
    out = backend.zeros(60_000, tw.int32)
    bounded[blocks(60_000), 128](out, 1, 0, 6)
    share = np.bincount(backend.get(out), minlength=6)
    assert ((share - 10_000) ** 2 / 10_000).sum() < 5 + 5 * math.sqrt(10)
