"""Scales of blocks of K in tw.matmul, as 8-bit models have them: which element each multiplies, in every family."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.one_family import only
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.matmul import _signature
from tilewright.kernels.multistage import Multistage

Array = np.ndarray[Any, Any]
FP8, OTHER = tw.float8_e4m3fn.numpy, tw.float8_e5m2.numpy
BLOCK = 128


def small(seed: int, shape: tuple[int, ...], dtype: Any = FP8) -> Array:
    """Return small whole numbers, which every type holds exactly."""
    found: Array = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32).astype(dtype)
    return found


def powers(seed: int, *shape: int) -> Array:
    """Return powers of two, so that scaled whole numbers stay exact."""
    found: Array = np.exp2(np.random.default_rng(seed).integers(-3, 4, shape)).astype(np.float32)
    return found


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def spread(scale: Array, shape: tuple[int, ...]) -> Array:
    """Return a scale for each element of an array of a shape."""
    for axis in (-2, -1):
        if scale.shape[axis] not in (1, shape[axis]):
            scale = np.take(np.repeat(scale, BLOCK, axis), range(shape[axis]), axis)
    return np.broadcast_to(scale, np.broadcast_shapes(scale.shape, shape))


def exact(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
    found: Array = (a.astype(float) * spread(scale_a, a.shape)) @ (b.astype(float) * spread(scale_b, b.shape))
    return found


@pytest.mark.parametrize("rows_b", [1, BLOCK], ids=["each column", "blocks of columns"])
@pytest.mark.parametrize("rows_a", [1, BLOCK], ids=["each row", "blocks of rows"])
@pytest.mark.parametrize("transposed", [False, True], ids=["D", "D^T"])
@pytest.mark.spread(2)
def test_blocks_of_both(rows_a: int, rows_b: int, transposed: bool) -> None:
    """Blocks that end early along every mode; scales of any strides; where D lies by columns D^T is computed."""
    m, n, k = 150, 264, 300
    a, b = small(1, (m, k)), small(2, (n, k), OTHER).T
    scale_a = powers(3, blocks(k), -(-m // rows_a)).T
    scale_b = powers(4, blocks(k), 2 * -(-n // rows_b))[::-1, ::2]
    bias = small(5, (n,), np.float32)
    out = np.full((n, m), np.nan, np.float32).T if transposed else np.full((m, n), np.nan, np.float32)
    tw.matmul(a, b, out=out, scale_a=scale_a, scale_b=scale_b, alpha=2, bias=bias, epilogue=lambda acc: acc - 1)
    assert np.array_equal(out, 2 * exact(a, b, scale_a, scale_b) + bias - 1)


@pytest.mark.parametrize(
    ("scale_a", "scale_b"),
    [((40, 2), None), (None, (2, 1)), ((40, 2), (1, 24)), ((1, 2), (2, 24)), ((40, 1), (2, 1)), ((), (2, 24))],
    ids=str,
)
@pytest.mark.spread(3)
def test_blocks_beside_other_scales(scale_a: Any, scale_b: Any) -> None:
    """Blocks of one operand, and of the other one scale, or one of each row or column, or none."""
    a, b = small(1, (40, 200)), small(2, (200, 24))
    given = {"scale_a": scale_a, "scale_b": scale_b}
    scales = {name: powers(n, *shape) for n, (name, shape) in enumerate(given.items()) if shape is not None}
    whole = {name: x.reshape(1, 1) if x.ndim == 0 else x for name, x in scales.items()}
    one = np.ones((1, 1), np.float32)
    expected = exact(a, b, whole.get("scale_a", one), whole.get("scale_b", one))
    assert np.array_equal(tw.matmul(a, b, out_dtype=tw.float32, **scales), expected)


@pytest.mark.parametrize(
    "dtype", [pytest.param(np.float16, id="f16", marks=pytest.mark.slow), pytest.param(np.float32, id="f32")]
)
def test_other_types(dtype: Any) -> None:
    """Whatever is summed up in float32 may have blocks."""
    a, b = small(1, (20, 260), dtype), small(2, (260, 24), dtype)
    scale_a, scale_b = powers(3, 20, 3), powers(4, 3, 1)
    expected = exact(a, b, scale_a, scale_b)
    assert np.array_equal(tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32), expected)


@pytest.mark.parametrize("rows", [1, BLOCK], ids=["each row", "blocks of rows"])
@pytest.mark.spread(2)
def test_batch(rows: int) -> None:
    """Batch modes that become rows, modes that do not, and those for which the host launches anew."""
    a, b = small(1, (2, 3, 140, 256)), small(2, (256, 16))
    scale_a, scale_b = powers(3, 2, 3, -(-140 // rows), 2), powers(4, 2, 16)
    found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))
    b, scale_b = small(2, (3, 256, 16)), powers(4, 2, 1, 2, 1)
    found = tw.matmul(a, b, scale_a=scale_a[:1], scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a[:1], scale_b))


def test_blocks_end_with_their_matrix() -> None:
    """Rows of a batch are no rows of one matrix where a block would reach into the next, whatever strides say."""
    a, b = small(1, (3, 140, 256)), small(2, (256, 16))
    scale_a = np.lib.stride_tricks.as_strided(powers(3, 3 * 140, 2), (3, 2, 2), (140 * 8, 8, 4))
    found = tw.matmul(a, b, scale_a=scale_a, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a, np.ones((1, 1))))


def test_vectors() -> None:
    a, b = small(1, (256,)), small(2, (256, 24))
    scale_a, scale_b = powers(3, 2), powers(4, 2, 24)
    found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a[None], b, scale_a[None], scale_b)[0])
    found = tw.matmul(b.T, a, scale_a=scale_b.T, scale_b=scale_a, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a[None], b, scale_a[None], scale_b)[0])


def test_no_k_and_what_is_not_finite() -> None:
    """A scale counts where its block is, and of no blocks the result is 0."""
    nothing = tw.matmul(small(1, (4, 0)), small(2, (0, 3)), scale_a=powers(3, 4, 0), out_dtype=tw.float32)
    assert np.array_equal(nothing, np.zeros((4, 3)))
    scale = np.array([[np.nan, 1], [1, np.inf], [0, 0]], np.float32)
    found = tw.matmul(np.ones((3, 256), np.float16), np.ones((256, 2), np.float16), scale_a=scale)
    assert np.isnan(found[0]).all() and np.isposinf(found[1]).all() and not found[2].any()


def test_a_second_call_reads_new_scales() -> None:
    """Calls of one kind are packed once; what they read is not."""
    a, b = small(1, (20, 256)), small(2, (256, 24))
    for seed in range(4):
        scale_a, scale_b = powers(seed, 20, 2), powers(9 + seed, 2, 1)
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
        assert np.array_equal(found, exact(a, b, scale_a, scale_b))


def test_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of splits are scaled block by block before they are added, and by other scales after it."""
    of = Multistage.configurations
    _signature.cache_clear()
    monkeypatch.setattr(
        Multistage, "configurations", lambda *args: [replace(c, splits=3) for c in of(*args) if c.splits == 1]
    )
    a, b = small(1, (20, 700)), small(2, (700, 24))
    scale_a, scale_b, bias = powers(3, 20, 6), powers(4, 1, 24), small(5, (24,), np.float32)
    for _ in range(2):
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=tw.float32)
        assert np.array_equal(found, exact(a, b, scale_a, scale_b) + bias)
    _signature.cache_clear()


HOPPER = {
    "two warpgroups": ((128, 192, 128), {}),
    "clusters, pairs of tiles and one": ((128, 128, 128), {"cluster": 2}),
    "pairs of tiles": ((128, 128, 128), {}),
    "three consumers": ((192, 128, 128), {}),
    "rows of two instructions": ((256, 128, 128), {}),
    "few rows": ((16, 128, 128), {"is_swapped": True}),
    "few columns": ((128, 16, 128), {}),
    "splits": ((128, 64, 128), {"splits": 2}),
    "splits in a cluster": ((128, 64, 128), {"splits": 2, "adds_in_cluster": True}),
}


def warps(tile: tuple[int, int, int]) -> int:
    """Return how many multiply: of tiles of 192 rows three warpgroups."""
    return 12 if tile[0] == 192 else 8


@pytest.mark.parametrize("rows_b", [1, BLOCK], ids=["each column", "blocks of columns"])
@pytest.mark.parametrize(
    "name",
    rest_is_slow(
        HOPPER,
        "clusters, pairs of tiles and one",
        "pairs of tiles",
        "rows of two instructions",
        "few columns",
        "splits",
    ),
)
@pytest.mark.spread(3)
def test_hopper(name: str, rows_b: int) -> None:
    """Roles, TMA and promoted sums, by rows of D and by columns; under every check of the simulator."""
    tile, further = HOPPER[name]
    m, n, k = (
        (9 if name == "few rows" else 140),
        (9 if name == "few columns" else 200),
        512 if "splits" in name or name == "pairs of tiles" else 300,
    )
    k += -k % 16
    a, b = small(1, (m, k)), small(2, (n, k)).T
    scale_a, scale_b = powers(3, m, blocks(k)), powers(4, blocks(k), -(-n // rows_b))
    bias = small(5, (n,), np.float32)
    with only(HopperConfiguration(tile, (warps(tile), 1), 3, **further), 2) as family:
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=tw.float32)
    assert len(family.launched) == 1
    assert np.array_equal(found, exact(a, b, scale_a, scale_b) + bias)


@pytest.mark.parametrize("rows_b", [1, BLOCK], ids=["each column", "blocks of columns"])
@pytest.mark.parametrize("name", rest_is_slow(HOPPER, "two warpgroups", "three consumers", "few rows"))
@pytest.mark.spread(2)
def test_scales_by_tma(name: str, rows_b: int) -> None:
    """TMA brings scales that are contiguous along rows or columns, and aligned, where the plan takes them so."""
    tile, further = HOPPER[name]
    m, n, k = 9 if "rows" in name else 100, 9 if name == "few columns" else 200, 400
    a, b = small(1, (m, k)), small(2, (n, k)).T
    scale_a, scale_b = powers(3, blocks(k), m + -m % 4)[:, :m].T, powers(4, blocks(k), -(-n // rows_b))
    with only(HopperConfiguration(tile, (warps(tile), 1), 3, **further), 1) as family:
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert [x.boxed for x in family.launched[0].blocks] == [True, rows_b == 1 and n % 4 == 0]
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))


@pytest.mark.parametrize("k", [33, 66])
@pytest.mark.parametrize(
    ("tile", "is_swapped"),
    [pytest.param((192, 128), False, id="rows", marks=pytest.mark.slow), pytest.param((8, 128), True, id="D^T")],
)
@pytest.mark.spread(2)
def test_lanes_turn_to_further_scales(tile: tuple[int, int], is_swapped: bool, k: int) -> None:
    """Of more tiles of K than lanes, also where the last two or one, which D^T adds alone, begin with the next."""
    a, b = small(1, (5, k * BLOCK)), small(2, (132, k * BLOCK)).T
    scale_a, scale_b = powers(3, k, 8)[:, :5].T, powers(4, k, 2)
    configuration = HopperConfiguration((*tile, 128), (warps((*tile, 128)), 1), 3, is_swapped=is_swapped)
    with only(configuration, 1):
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))


def test_scales_that_tma_cannot_read() -> None:
    """Those that do not begin at 16 bytes, or lie apart by other steps, are loaded one by one."""
    a, b = small(1, (140, 256)), small(2, (64, 256)).T
    whole = powers(3, 2, 148)
    for scale, boxed in ((whole[:, 4:144].T, True), (whole[:, 1:141].T, False), (powers(3, 2, 140).T[:, ::-1], False)):
        with only(HopperConfiguration((128, 64, 128), (8, 1), 3), 2) as family:
            found = tw.matmul(a, b, scale_a=scale, out_dtype=tw.float32)
        assert [x.boxed for x in family.launched[0].blocks] == [boxed]
        assert np.array_equal(found, exact(a, b, scale, np.ones((1, 1))))


@pytest.mark.spread(4)
@pytest.mark.parametrize("k", [16, 256, 384, 512, 640])
@pytest.mark.parametrize("n", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_any_number_of_tiles_of_k(k: int, n: int) -> None:
    """Two sets of registers take tiles of K by turns, of one tile of D after another."""
    a, b = small(1, (100, k)), small(2, (200, k)).T
    scale_a, scale_b = powers(3, 100, blocks(k)), powers(4, blocks(k), 2)
    with only(HopperConfiguration((128, n, 128), (8, 1), 4), 1):
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
        plain = tw.matmul(a, b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))
    assert np.array_equal(plain, a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("n", [96, 160, 192])
@pytest.mark.spread(3)
def test_tiles_with_parts_of_two_blocks_of_columns(n: int) -> None:
    """Where they end in a tile differs from one to the next."""
    a, b = small(1, (70, 200)), small(2, (600, 208))[:, :200].T
    scale_a, scale_b = powers(3, 70, 2), powers(4, 2, 5)
    with only(HopperConfiguration((128, n, 128), (8, 1), 3), 2) as family:
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert len(family.launched) == 1
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))


def test_hopper_of_16_bits() -> None:
    """A tile of K is half of a block there, and blocks of rows serve as well."""
    a, b = small(1, (140, 320), np.float16), small(2, (320, 136), np.float16)
    scale_a, scale_b = powers(3, 2, 3), powers(4, 3, 136)
    with only(HopperConfiguration((128, 128, 64), (8, 1), 3), 2):
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, exact(a, b, scale_a, scale_b))


def test_sums_that_stay_in_tensor_cores() -> None:
    """precision="fp8_fast" takes whole tiles of the table and ping-pong, and scales of rows and columns."""
    a, b = small(1, (140, 256)), small(2, (130, 256)).T
    scale_a = powers(3, 140, 1)
    expected = exact(a, b, scale_a, np.ones((1, 1)))
    for configuration in (
        HopperConfiguration((128, 256, 128), (8, 1), 3),
        HopperConfiguration((64, 128, 128), (8, 1), 4, is_ping_pong=True),
    ):
        with only(configuration, 2) as family:
            found = tw.matmul(a, b, scale_a=scale_a, precision="fp8_fast", out_dtype=tw.float32)
        assert len(family.launched) == 1
        assert np.array_equal(found, expected)
    assert np.array_equal(tw.matmul(a, b, scale_a=scale_a, precision="fp8_fast", out_dtype=tw.float32), expected)


def test_explain_shows_blocks_and_sums() -> None:
    a, scale = tw.spec(tw.float8_e4m3fn, (4096, 4096)), tw.spec(tw.float32, (4096, 32))
    wide = tw.spec(tw.float32, (32, 32))
    found = tw.matmul.explain(a, a, scale_a=scale, scale_b=wide, arch="sm_90a")
    assert found.to_dict()["problem"]["blocks"] == ["A in blocks of 1 x 128", "B in blocks of 128 x 128"]
    assert "scales of A in blocks of 1 x 128, scales of B in blocks of 128 x 128" in str(found)
    assert found.choice is not None and found.choice.family.name == "hopper"
    fast, exactly = (tw.matmul.explain(a, a, precision=x, arch="sm_90a") for x in ("fp8_fast", None))
    assert "sums by tensor cores" in str(fast)
    assert fast.choice is not None and exactly.choice is not None
    assert fast.choice.prediction.us < exactly.choice.prediction.us
    assert found.problem.promotes and not fast.problem.promotes and exactly.problem.promotes


def test_steps_of_float32_lie_in_one_block() -> None:
    """A step of 25 of K would take part in two blocks, and be multiplied by the scales of the first."""
    a, b = tw.spec(tw.float32, (100, 100_000)), tw.spec(tw.float32, (100_000, 100))
    scales = {"scale_a": tw.spec(tw.float32, (100, 782)), "scale_b": tw.spec(tw.float32, (782, 100))}
    depths = {
        bool(given): {c.configuration.tile[2] for c in tw.matmul.explain(a, b, arch="sm_90a", **given).candidates}
        for given in ({}, scales)
    }
    assert 25 in depths[False] and depths[True] == {8, 16}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"scale_a": (40, 3)},
            r"scale_a has the shape \(40, 3\).*blocks of 128 elements of K have the shape \(40, 2\)",
        ),
        ({"scale_b": (24, 2)}, r"scale_b has the shape \(24, 2\).*have the shape \(2, 24\) or \(2, 1\)"),
        ({"scale_a": (3, 40, 2)}, r"scale_a has the shape \(3, 40, 2\)"),
        ({"scale_a": (40, 2), "precision": "fp8_fast"}, r"scale_a has a scale for each block of K"),
        ({"scale_a": (40, 2), "dtype": np.float32, "precision": "tf32x3"}, r"scale_a has a scale for each block of K"),
        ({"scale_a": (40, 2), "dtype": np.int8}, r"scale_a is a factor of float32 accumulators"),
        ({"scale_a": (40, 2), "of": np.float64}, r"scale_a is float64, and scales are float32"),
        ({"precision": "fp8_fast", "dtype": np.float16}, r"precision='fp8_fast' is for 8-bit floats"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], message: str) -> None:
    dtype, of = arguments.pop("dtype", FP8), arguments.pop("of", np.float32)
    given = {name: np.ones(x, of) if name.startswith("scale") else x for name, x in arguments.items()}
    with pytest.raises(ArgumentError) as caught:
        tw.matmul(small(1, (40, 200), dtype), small(2, (200, 24), dtype), **given)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


def test_scales_may_not_be_written() -> None:
    scale = np.ones((2, 2), np.float32)
    a = small(1, (2, 2 * BLOCK))
    with pytest.raises(ArgumentError, match="out shares memory with scale_a"):
        tw.matmul(a, a.T, out=scale, scale_a=scale)
