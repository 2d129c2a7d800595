"""Stream-K of the Hopper family: who has which K of which tile, what is computed, and where it is chosen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.one_family import only
from tests.helpers.slow import examples
from tests.unit.kernels.test_hopper import H200, legal, problem_of

import tilewright as tw
from tilewright.kernels import _hopper_kernel
from tilewright.kernels._hopper_kernel import StreamWorks
from tilewright.kernels.further import Further
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import HopperConfiguration, StreamConfiguration, plan_for
from tilewright.kernels.stream_k import slots_of

Array = np.ndarray[Any, Any]
SMALL = StreamConfiguration((128, 16, 64), (8, 1), 2, 2)


# --- laws ----------------------------------------------------------------------------------------------------


@examples(30, 500)
@given(
    extents=st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3)),
    k_tiles=st.integers(1, 100),
    blocks=st.integers(1, 132),
)
def test_every_step_once(extents: tuple[int, int, int], k_tiles: int, blocks: int) -> None:
    """Whole waves are whole tiles; each step of the rest is in one piece, and each piece has a slot of its own.

    Blocks that share have stretches of equal length, and those of a tile follow one another in the order of K.
    """
    rows, columns, batch = extents
    plan = plan_for(problem_of("bf16", 512, 512, 512, batch=2), SMALL, H200.arch)
    matrix = rows * 128, columns * 16, batch
    works = [StreamWorks(plan, matrix, k_tiles, block, blocks) for block in range(blocks)]
    tiles = rows * columns * batch
    left, slots = slots_of(tiles, k_tiles, blocks)
    steps, pieces = defaultdict(list), defaultdict(list)
    lengths = []
    for one in works:
        found = list(one)
        for row, column, matrix_of, piece in found:
            assert 0 <= piece.first < piece.last <= k_tiles
            steps[row, column, matrix_of].extend(range(piece.first, piece.last))
            if piece.is_shared:
                pieces[row, column, matrix_of].append((piece.first, piece.slot))
            else:
                assert (piece.first, piece.last) == (0, k_tiles)
        assert sum(not piece.is_shared for *_, piece in found) == tiles // blocks
        lengths.append(sum(piece.last - piece.first for *_, piece in found if piece.is_shared))
    assert len(steps) == tiles and all(sorted(ks) == list(range(k_tiles)) for ks in steps.values())
    assert len(pieces) == left
    used = [slot for each in pieces.values() for _, slot in each]
    assert len(set(used)) == len(used) and all(0 <= slot < slots for slot in used)
    busy = [length for length in lengths if length]
    assert not busy or max(busy) - min(busy) <= 1
    # What `add_pieces` reads of a tile is what was written, in the order of K.
    for number in range(left):
        place = works[0].tile(works[0].begin + number)
        first, last = (works[0].shared.block_at(k) for k in (number * k_tiles, (number + 1) * k_tiles - 1))
        assert [slot for _, slot in sorted(pieces[place])] == [number + b for b in range(first, last + 1)]


# --- results -------------------------------------------------------------------------------------------------


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pieces of one tile of K, which are quick to simulate."""
    monkeypatch.setattr(_hopper_kernel, "LEAST_PIECE", 1)


def check(configuration: HopperConfiguration, blocks: int, a: Array, b: Array, expected: Array, **more: Any) -> None:
    """Compare a product with what is expected, exactly, and see that pieces were added up."""
    with only(configuration, blocks), tw.simulate(profile=True) as run:
        found = tw.matmul(a, b, **more)
    assert [launch.kernel for launch in run.launches][-2:] == ["matmul_warpgroups", "add_pieces"]
    assert np.array_equal(found.astype(np.float64), expected)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize(
    ("blocks", "cluster", "extents"),
    [
        (7, 1, (250, 30, 200)),  # no whole wave; K ends within a tile
        (3, 1, (250, 24, 328)),  # a wave of three tiles, and one in three pieces
        (6, 2, (300, 30, 200)),  # clusters, one row of tiles beyond D
    ],
    ids=str,
)
@pytest.mark.spread(2)
def test_products(blocks: int, cluster: int, extents: tuple[int, int, int]) -> None:
    m, n, k = extents
    a, b = whole(1, (m, k), ml_dtypes.bfloat16), whole(2, (n, k), ml_dtypes.bfloat16).T
    expected = a.astype(np.float64) @ b.astype(np.float64)
    check(replace(SMALL, cluster=cluster), blocks, a, b, expected, out_dtype=tw.float32)


def test_whole_waves_alone_are_one_launch() -> None:
    a, b = whole(1, (130, 72), np.float16), whole(2, (72, 24), np.float16)
    with only(SMALL, 2), tw.simulate(profile=True) as run:
        assert np.array_equal(tw.matmul(a, b), a.astype(np.float64) @ b.astype(np.float64))
    assert [launch.kernel for launch in run.launches][-1] == "matmul_warpgroups"


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.float8_e4m3fn], ids=lambda x: x.__name__)
@pytest.mark.spread(3)
def test_element_types(dtype: Any) -> None:
    """Of tf32, of bytes with sums of int32, and of 8-bit floats, whose sums are promoted."""
    size = np.dtype(dtype).itemsize
    a, b = whole(1, (140, 5 * 128 // size), dtype), whole(2, (5 * 128 // size, 24), dtype)
    configuration = replace(SMALL, tile=(128, 16, 128 // size))
    more = {"precision": "tf32"} if dtype is np.float32 else {}
    out = tw.int32 if dtype is np.int8 else tw.float32
    check(configuration, 3, a, b, a.astype(np.float64) @ b.astype(np.float64), out_dtype=out, **more)


@pytest.mark.usefixtures("short_pieces")
def test_epilogues_see_whole_sums() -> None:
    """Of all that is added and multiplied, batches and strides included, on whole tiles and on pieces alike."""
    a, b = whole(1, (3, 140, 200), np.float16), whole(2, (200, 27), np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    c, bias = whole(3, (140, 27), np.float16), whole(4, (27,), np.float32)
    expected = 3 * exact - 2 * c.astype(np.float64) + bias
    check(SMALL, 5, a, b, expected, alpha=3, c=c, beta=-2, bias=bias, out_dtype=tw.float32)
    scale, shift = np.arange(27, dtype=np.float32), 2.5
    expected = np.maximum(exact * scale, 0) + shift
    check(SMALL, 5, a, b, expected, epilogue=lambda acc: tw.maximum(acc * scale, 0) + shift, out_dtype=tw.float32)


@pytest.mark.usefixtures("short_pieces")
def test_a_result_is_the_same_every_time() -> None:
    """Of numbers that are rounded, whichever block comes first; and close to the sum in float64."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((rows, 512), np.float32).astype(np.float16) for rows in (120, 16))
    found = []
    for seed in (0, 1):
        with only(SMALL, 3), tw.simulate(seed=seed):
            found.append(tw.matmul(a, b.T, out_dtype=tw.float32))
    assert found[0].tobytes() == found[1].tobytes()
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    assert np.abs(found[0] - exact).max() < 1e-4


# --- choice --------------------------------------------------------------------------------------------------


def test_it_is_chosen_where_waves_are_badly_filled() -> None:
    """And not where another tile fills them, or K is short; predictions grow with K."""
    for extents, is_chosen in {
        (1280, 5120, 8192): True,
        (1792, 2560, 8192): False,  # 126 of 256 x 144
        (1536, 3072, 16384): False,  # 128 tiles of 192 x 192
        (2048, 2048, 8192): False,
        (8192, 8192, 8192): False,
        (1280, 5120, 512): False,
    }.items():
        best = min(legal(problem_of("bf16", *extents)), key=lambda c: c.prediction.us if c.prediction else 0)
        assert isinstance(best.configuration, StreamConfiguration) is is_chosen, (extents, str(best.configuration))


def test_it_is_proposed_where_splits_are() -> None:
    """Further results and pairs need whole sums in one block."""
    problem = problem_of("bf16", 1280, 5120, 8192)

    def streams(problem: Any) -> bool:
        return any(isinstance(c.configuration, StreamConfiguration) for c in Hopper().candidates(problem, H200))

    assert streams(problem) and streams(replace(problem, c=tw.bfloat16, bias=tw.float32))
    assert not streams(replace(problem, further=(Further(tw.float32, "sum", "N"),)))
    assert not streams(replace(problem, is_gated=True))
    assert not streams(replace(problem, k=512))


def test_a_find_names_it() -> None:
    """The text by which finds are kept tells it from the same tile without, whose text stays what it was."""
    texts = [repr(kind((128, 256, 64), (8, 1), 4)) for kind in (HopperConfiguration, StreamConfiguration)]
    assert texts[0] != texts[1] and "streams" not in texts[0]
    assert str(SMALL).endswith("stream-K")
