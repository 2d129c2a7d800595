"""Scales as arguments of tw.matmul: what they multiply, in which order, in every family; what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.one_family import only

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.matmul import _signature
from tilewright.kernels.multistage import Multistage

Array = np.ndarray[Any, Any]
FP8 = tw.float8_e4m3fn.numpy


def small(seed: int, shape: tuple[int, ...], dtype: Any = FP8) -> Array:
    """Return small whole numbers, which every type holds exactly."""
    found: Array = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32).astype(dtype)
    return found


def powers(seed: int, shape: tuple[int, ...]) -> Array:
    """Return powers of two, so that scaled whole numbers stay exact."""
    found: Array = np.exp2(np.random.default_rng(seed).integers(-3, 4, shape)).astype(np.float32)
    return found


def exact(a: Array, b: Array) -> Array:
    found: Array = a.astype(np.float64) @ b.astype(np.float64)
    return found


@pytest.mark.parametrize("columns_first", [False, True], ids=["rows of D", "D^T"])
@pytest.mark.parametrize("dtype", [FP8, np.float16], ids=["fp8", "f16"])
@pytest.mark.spread(4)
def test_rows_and_columns(dtype: Any, columns_first: bool) -> None:
    """Scales of other strides, negative ones too, multiply the product and neither c nor bias; then the epilogue."""
    a, b = small(1, (37, 48), dtype), small(2, (29, 48), dtype).T
    scale_a, scale_b = powers(3, (74, 2))[::2, 1:], -powers(4, (29,))[::-1]
    c, bias = small(5, (37, 29), np.float32), small(6, (29,), np.float32)
    gain = powers(7, (29,))
    out = np.zeros((29, 37), np.float32).T if columns_first else np.zeros((37, 29), np.float32)
    tw.matmul(
        a,
        b,
        out=out,
        scale_a=scale_a,
        scale_b=scale_b,
        alpha=2,
        c=c,
        beta=3,
        bias=bias,
        epilogue=lambda acc: acc * gain,
    )
    expected = (2.0 * scale_a * scale_b * exact(a, b) + 3 * c + bias) * gain
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("scale", [0.5, np.float32(0.5), np.array(0.5, np.float32), np.full((1, 1), 0.5, np.float32)])
@pytest.mark.spread(2)
def test_one_scale(scale: Any) -> None:
    """A number, or an array of one element of whatever rank, which fits vectors as well."""
    a, b = small(1, (5, 16)), small(2, (16, 3))
    assert np.array_equal(tw.matmul(a, b, scale_b=scale, out_dtype=tw.float32), 0.5 * exact(a, b))
    assert np.array_equal(tw.matmul(a[0], b, scale_a=scale, out_dtype=tw.float32), 0.5 * exact(a[0], b))


def test_a_matrix_keeps_its_scales_beside_a_vector() -> None:
    """One for each row or column of the matrix, in the shape that it has beside a matrix."""
    x, b, scales = small(1, (16,)), small(2, (2, 16, 3)), powers(3, (2, 1, 3))
    expected = scales[:, 0] * exact(x, b)
    assert np.array_equal(tw.matmul(x, b, scale_b=scales, out_dtype=tw.float32), expected)
    found = tw.matmul(b.swapaxes(1, 2), x, scale_a=scales.swapaxes(1, 2), out_dtype=tw.float32)
    assert np.array_equal(found, expected)
    assert np.array_equal(tw.matmul(x, b[0], scale_b=scales[0, 0], out_dtype=tw.float32), expected[0])


def test_batch() -> None:
    a, b = small(1, (3, 18, 32)), small(2, (3, 32, 20))
    scale_a, scale_b = powers(3, (3, 18, 1)), powers(4, (1, 20))
    found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=tw.float32)
    assert np.array_equal(found, scale_a * scale_b * exact(a, b))


def test_no_k_and_what_is_not_finite() -> None:
    """Scales are data: of no k they give 0, and NaN and infinity go where they are."""
    nothing = tw.matmul(small(1, (4, 0)), small(2, (0, 3)), scale_a=powers(3, (4, 1)), out_dtype=tw.float32)
    assert np.array_equal(nothing, np.zeros((4, 3)))
    scale = np.array([[np.nan], [np.inf], [0]], np.float32)
    found = tw.matmul(np.ones((3, 8), np.float16), np.ones((8, 2), np.float16), scale_a=scale)
    assert np.isnan(found[0]).all() and np.isposinf(found[1]).all() and not found[2].any()


def test_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of splits are scaled once, after they are added."""
    of = Multistage.configurations
    _signature.cache_clear()
    monkeypatch.setattr(
        Multistage, "configurations", lambda *args: [replace(c, splits=3) for c in of(*args) if c.splits == 1]
    )
    a, b = small(1, (20, 200)), small(2, (200, 24))
    scale_a, scale_b = powers(3, (20, 1)), powers(4, (1, 24))
    found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=np.ones(24, np.float32), out_dtype=tw.float32)
    _signature.cache_clear()
    assert np.array_equal(found, scale_a * scale_b * exact(a, b) + 1)


@pytest.mark.parametrize("swapped", [False, True], ids=["D", "D^T"])
def test_hopper(swapped: bool) -> None:
    """Roles, TMA and promoted sums; D^T for few rows, which makes columns of rows."""
    a, b = small(1, (9 if swapped else 130, 256)), small(2, (140, 256)).T
    scale_a, scale_b, bias = powers(3, (len(a), 1)), powers(4, (1, 140)), small(5, (140,), np.float32)
    tile = (16, 128, 128) if swapped else (128, 128, 128)
    with only(HopperConfiguration(tile, (8, 1), 3, is_swapped=swapped), 2) as family:
        found = tw.matmul(a, b, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=tw.float32)
    assert len(family.launched) == 1
    assert np.array_equal(found, scale_a * scale_b * exact(a, b) + bias)


def test_explain_shows_scales_and_leaves_hopper_in() -> None:
    a, b = tw.spec(tw.float8_e4m3fn, (4096, 4096)), tw.spec(tw.float8_e4m3fn, (4096, 4096), (1, 4096))
    rows, columns = tw.spec(tw.float32, (4096, 1)), tw.spec(tw.float32, (1, 4096))
    found = tw.matmul.explain(a, b, scale_a=rows, scale_b=columns, arch="sm_90a")
    assert "plus 2 scales" in str(found)
    assert found.to_dict()["problem"]["scales"] == ["float32", "float32"]
    assert found.choice is not None and found.choice.family.name == "hopper"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale_a": np.ones(4, np.float32)}, r"scale_a has the shape (4,), which does not fit"),
        ({"scale_a": np.ones((3, 1), np.float32)}, r"scale_a has the shape (3, 1)"),
        ({"scale_a": np.ones((4, 2), np.float32)}, r"scale_a has the shape (4, 2)"),
        ({"scale_b": np.ones((16, 1), np.float32)}, r"scale_b has the shape (16, 1)"),
        ({"scale_b": np.ones((4, 6), np.float32)}, r"scale_b has the shape (4, 6)"),
        ({"scale_b": np.ones((1, 6), np.float16)}, r"scale_b is float16, and scales are float32"),
        ({"scale_a": "one"}, r"scale_a is a str"),
    ],
)
def test_scales_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        tw.matmul(small(1, (4, 16)), small(2, (16, 6)), **arguments)


def test_products_without_scales() -> None:
    """Accumulators of other types; vectors, whose result has no such mode; weights that have scales themselves."""
    one = np.ones((4, 1), np.float32)
    for dtype in (np.int8, np.float64):
        with pytest.raises(ArgumentError, match="scale_a is a factor of float32 accumulators"):
            tw.matmul(np.ones((4, 8), dtype), np.ones((8, 2), dtype), scale_a=one)
    with pytest.raises(ArgumentError, match="does not fit a result of the shape"):
        tw.matmul(small(1, (4, 16)), small(2, (16,)), scale_b=np.ones((1, 4), np.float32))
