"""Tiles of pixels (im2col) and of elements apart by TMA, on both backends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw

LOAD, PIXELS = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_LOAD_IM2COL


@tw.kernel
def unfold(out, x, filter: tw.constexpr, options: tw.constexpr, layout: tw.constexpr):
    """Write the matrix of pixels at each position of a filter, tile by tile."""
    cols, tile = tw.im2col(x, filter, **dict(options)), (16, 16)
    smem, full = tw.shared(x.dtype, layout), tw.mbarrier(1)
    tw.sync_threads()
    phase, number = 0, 0
    for position in itertools.product(*map(range, filter)):
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(16 * 16 * x.dtype.bytes)
            piece = tw.local_tile(cols[position], tile, (tw.block_idx.x, tw.block_idx.y))
            tw.prefetch(PIXELS, piece, smem)
            tw.copy(PIXELS, piece, smem, barrier=full)
        full.wait(phase)
        phase ^= 1
        for n in range(tw.thread_idx.x, 256, 32):
            out[number, tw.block_idx.x * 16 + n // 16, tw.block_idx.y * 16 + n % 16] = smem[n // 16, n % 16]
        tw.sync_threads()
        number += 1


def unfolded(x: np.ndarray, filter: tuple[int, ...], options: Mapping[str, object], fill: float = 0) -> np.ndarray:
    """Return what `unfold` writes, by indexing a padded array."""
    space = range(x.ndim - 2)
    stride, padding, dilation = (
        [given if isinstance(given := options.get(name, default), int) else given[d] for d in space]  # type: ignore[index]
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    counts = [(x.shape[1 + d] + 2 * padding[d] - (filter[d] - 1) * dilation[d] - 1) // stride[d] + 1 for d in space]
    padded = np.pad(x, [(0, 0), *[(p, p) for p in padding], (0, 0)], constant_values=fill)
    found = []
    for position in itertools.product(*map(range, filter)):
        first = [position[d] * dilation[d] for d in space]
        places = [slice(first[d], first[d] + (counts[d] - 1) * stride[d] + 1, stride[d]) for d in space]
        found.append(padded[(slice(None), *places)].reshape(-1, x.shape[-1]))
    return np.stack(found)


CASES = [
    ((3, 11, 16), (3,), {"dilation": 2, "padding": 2}),
    ((2, 5, 6, 32), (3, 3), {"padding": 1}),
    ((2, 7, 9, 24), (3, 2), {"stride": 2, "padding": (1, 0)}),  # channels overhang
    ((3, 8, 9, 16), (1, 1), {"stride": (2, 3)}),
    ((2, 4, 5, 6, 16), (2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 1, 0), "dilation": (2, 1, 1)}),
]
SWIZZLED = tw.ComposedLayout(tw.Swizzle(2, 2, 3), 0, tw.row_major((16, 16)))


def unfold_there(
    backend: Backend, x: np.ndarray, filter: tuple[int, ...], options: Mapping[str, object], layout: object
) -> np.ndarray:
    images = len(unfolded(x, filter, options)[0])
    tiles = -(-images // 16), -(-x.shape[-1] // 16)
    out = backend.put(np.full((int(np.prod(filter)), tiles[0] * 16, tiles[1] * 16), -1, x.dtype))
    unfold[tiles, 32](out, backend.put(x), filter, tuple(options.items()), layout)
    return backend.get(out)


@pytest.mark.parametrize(("shape", "filter", "options"), CASES)
@pytest.mark.spread(3)
def test_pixels_under_a_filter(
    backend: Backend, shape: tuple[int, ...], filter: tuple[int, ...], options: dict[str, object]
) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    expected = unfolded(x, filter, options)
    for layout in (tw.row_major((16, 16)), SWIZZLED):
        out = unfold_there(backend, x, filter, options, layout)
        assert (out[:, : expected.shape[1], : shape[-1]] == expected).all()
        assert not out[:, expected.shape[1] :].any() and not out[:, :, shape[-1] :].any()


def test_what_the_padding_reaches_reads_as_nan(backend: Backend) -> None:
    x = np.ones((1, 4, 4, 16), np.float32)
    expected = unfolded(x, (3, 3), {"padding": 1}, np.nan)
    out = unfold_there(backend, x, (3, 3), {"padding": 1, "fill": float("nan")}, tw.row_major((16, 16)))
    assert np.array_equal(out, expected, equal_nan=True)


@tw.kernel
def convolve(out, x, w, filter: tw.constexpr, padding: tw.constexpr):
    """Convolve by products of tiles: pixels of 16 by 16 channels with weights (positions, channels, 16)."""
    cols, channels = tw.im2col(x, filter, padding=padding), 16
    smem, full = tw.shared(x.dtype, tw.row_major((16, 16))), tw.mbarrier(1)
    tw.sync_threads()
    row, column = tw.thread_idx.x // 16, tw.thread_idx.x % 16
    total, phase = tw.int32(0), 0
    for number, position in enumerate(itertools.product(*map(range, filter))):
        for k in range(x.shape[-1] // channels):
            if tw.thread_idx.x == 0:
                full.arrive_expect_tx(16 * 16 * 4)
                piece = tw.local_tile(cols[position], (16, 16), (tw.block_idx.x, k))
                tw.copy(PIXELS, piece, smem, barrier=full)
            full.wait(phase)
            phase ^= 1
            for c in range(channels):
                total += smem[row, c] * w[number, k * channels + c, column]
            tw.sync_threads()
    out[tw.block_idx.x * 16 + row, column] = total


def test_a_convolution(backend: Backend) -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-5, 6, shape).astype(np.int32) for shape in ((2, 6, 7, 32), (9, 32, 16)))
    expected = np.einsum("pmc,pck->mk", unfolded(x, (3, 3), {"padding": 1}), w)
    out = backend.zeros((-(-len(expected) // 16) * 16, 16), tw.int32)
    convolve[len(expected) // 16 + (len(expected) % 16 > 0), 256](out, backend.put(x), backend.put(w), (3, 3), 1)
    assert (backend.get(out)[: len(expected)] == expected).all()


@tw.kernel(cluster=2)
def shared_pixels(out, x, filter: tw.constexpr, layout: tw.constexpr):
    """Let each block of a cluster bring half of the pixels of a tile to both."""
    cols, rank = tw.im2col(x, filter, padding=1), tw.block_rank_in_cluster()
    smem, full = tw.shared(x.dtype, layout), tw.mbarrier(1)
    tw.cluster_sync()
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(16 * 16 * x.dtype.bytes)
        half = tw.local_tile(cols[1, 0], (8, 16), (2 * tw.cluster_idx.x + rank, 0))
        ours = tw.local_tile(smem, (8, 16), (rank, 0))
        tw.copy(tw.atoms.SM90_TMA_LOAD_IM2COL_MULTICAST, half, ours, barrier=full, mask=0b11)
    full.wait(0)
    for n in range(tw.thread_idx.x, 256, 32):
        out[tw.block_idx.x, n // 16, n % 16] = smem[n // 16, n % 16]
    tw.cluster_sync()


@pytest.mark.parametrize("swizzled", [False, True])
def test_pixels_for_all_blocks_of_a_cluster(backend: Backend, swizzled: bool) -> None:
    x = np.arange(1, 1 + 2 * 5 * 6 * 16, dtype=np.float32).reshape(2, 5, 6, 16)
    expected = np.zeros((4, 2, 16, 16), np.float32)
    pixels = unfolded(x, (3, 3), {"padding": 1})[3]
    for tile in range(4):
        part = pixels[16 * tile : 16 * tile + 16]
        expected[tile, :, : len(part)] = part
    out = backend.zeros((8, 16, 16), tw.float32)
    shared_pixels[8, 32](out, backend.put(x), (3, 3), SWIZZLED if swizzled else tw.row_major((16, 16)))
    assert (backend.get(out) == expected.reshape(8, 16, 16)).all()


@tw.kernel
def fold(out, x, filter: tw.constexpr, options: tw.constexpr, layout: tw.constexpr):
    """Store tiles of pixels that lie under position 0 of a filter."""
    smem, tile = tw.shared(x.dtype, layout), (tw.block_idx.x, tw.block_idx.y)
    for n in range(tw.thread_idx.x, 256, 32):
        smem[n // 16, n % 16] = x[tile[0] * 16 + n // 16, tile[1] * 16 + n % 16]
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        pixels = tw.im2col(out, filter, **dict(options))[tuple([0 for _ in filter])]
        tw.copy(tw.atoms.SM90_TMA_STORE_IM2COL, smem, tw.local_tile(pixels, (16, 16), tile))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


STORED = [
    ((3, 11, 16), (1,), {}),
    ((2, 5, 6, 24), (1, 1), {}),  # channels and pixels overhang
    ((2, 5, 6, 16), (3, 2), {}),
    ((2, 3, 4, 5, 16), (2, 1, 1), {"dilation": (2, 1, 1)}),
]


@pytest.mark.parametrize(("shape", "filter", "options"), STORED)
@pytest.mark.parametrize("swizzled", [False, True])
def test_pixels_that_are_stored(
    backend: Backend, shape: tuple[int, ...], filter: tuple[int, ...], options: dict[str, object], swizzled: bool
) -> None:
    """What a load of the same tiles reads is where they were stored; all else stays."""
    count = len(unfolded(np.zeros(shape, np.float32), filter, options)[0])
    tiles = -(-count // 16), -(-shape[-1] // 16)
    x = np.arange(1, 1 + tiles[0] * tiles[1] * 256, dtype=np.float32).reshape(tiles[0] * 16, tiles[1] * 16)
    out = backend.put(np.full(shape, -1, np.float32))
    fold[tiles, 32](
        out, backend.put(x), filter, tuple(options.items()), SWIZZLED if swizzled else tw.row_major((16, 16))
    )
    found, given = backend.get(out), x[:count, : shape[-1]]
    read = unfolded(found, filter, options, fill=np.nan)[0]
    outside = np.isnan(read)
    assert (read[~outside] == given[~outside]).all() and (found != -1).sum() == (~outside).sum()


@tw.kernel
def every(out, x, steps: tw.constexpr, store: tw.constexpr):
    """Load tiles of (4, 8, 16) whose elements are `steps` apart along the first two modes."""
    smem, full = tw.shared(x.dtype, tw.row_major((4, 8, 16))), tw.mbarrier(1)
    tw.sync_threads()
    whole = tw.local_tile(x, (4 * steps[0], 8 * steps[1], 16), (tw.block_idx.x, tw.block_idx.y, 0), guard=True)
    tile = tw.composition(whole, (tw.Layout(4, steps[0]), tw.Layout(8, steps[1]), tw.Layout(16)))
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(4 * 8 * 16 * 4)
        tw.copy(LOAD, tile, smem, barrier=full)
        if store:
            tw.copy(tw.atoms.SM90_TMA_STORE, smem, tile)
    full.wait(0)
    for n in range(tw.thread_idx.x, 512, 32):
        out[tw.block_idx.x * 4 + n // 128, tw.block_idx.y * 8 + n // 16 % 8, n % 16] = smem[
            n // 128, n // 16 % 8, n % 16
        ]


@pytest.mark.parametrize(("steps", "boxes"), [((1, 1), 1), ((2, 3), 1), ((8, 1), 1), ((1, 8), 1), ((9, 2), 4)])
def test_elements_apart(backend: Backend, steps: tuple[int, int], boxes: int) -> None:
    x = np.arange(1, 1 + 21 * 30 * 16, dtype=np.float32).reshape(21, 30, 16)
    picked = x[:: steps[0], :: steps[1]]
    shape = (-(-picked.shape[0] // 4) * 4, -(-picked.shape[1] // 8) * 8, 16)
    out = backend.zeros(shape, tw.float32)
    every[(shape[0] // 4, shape[1] // 8), 32](out, backend.put(x), steps, False)
    found = backend.get(out)
    assert (found[: picked.shape[0], : picked.shape[1]] == picked).all()
    assert np.count_nonzero(found) == picked.size
    (map,) = every.lower(
        tw.spec("float32", shape), tw.spec("float32", x.shape), steps, False, block=32
    ).kernel.tensor_maps
    assert map.elements * boxes == 4 * 8 * 16
    assert [extent * step <= 256 and step <= 8 for extent, step in zip(map.box, map.steps or (1, 1, 1), strict=True)]
