"""Weights of 4 and 8 bits: packing, readers of other arrangements, and products against the definition in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels.weights import CHUNK, pack_codes, pack_groups, unpack_codes, unpack_groups

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16
GROUPS = (32, 64, 128, 256, -1)


def repeated(values: Array, group: int, k: int) -> Array:
    """Return the scale or zero of each row of K."""
    return np.repeat(values.astype(np.float64), k if group == -1 else group, 0)[:k]


def random_weights(seed: int, k: int, n: int, bits: int, group: int, *, signed: bool, zeros: str, scale: Any) -> Any:
    """Return codes, scales and zeros whose products with small whole numbers are exact, and what they stand for."""
    random = np.random.default_rng(seed)
    low = -(2 ** (bits - 1)) if signed else 0
    codes = random.integers(low, low + 2**bits, (k, n)).astype(np.int8 if signed else np.uint8)
    groups = (min(k, 1) if group == -1 else -(-k // group), n)
    scales = random.choice([0.5, 1, 2, -1], groups).astype(scale)
    zero = None if zeros == "none" else random.integers(low, low + 2**bits + 1, groups)
    if zeros == "one" and zero is not None:
        zero[...] = low + 3
    full = codes.astype(np.float64) - (0 if zero is None else repeated(zero, group, k))
    return codes, scales, zero, full * repeated(scales, group, k)


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


@examples(5, 60)
@given(st.integers(0, 99), st.integers(0, 300), st.integers(0, 40), st.sampled_from([4, 8]), st.sampled_from(GROUPS))
def test_codes_come_back_from_their_places(seed: int, k: int, n: int, bits: int, group: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (k, n)).astype(np.uint8)
    span = CHUNK if group == -1 else group
    packed = pack_codes(codes, bits)
    assert packed.flags.c_contiguous and packed.shape == (-(-n // 16), max(-(-k // CHUNK), 1), 64 * bits)
    assert np.array_equal(unpack_codes(packed, bits, k, n), codes)
    values = np.random.default_rng(seed).integers(0, 99, (-(-k // span), n))
    assert np.array_equal(unpack_groups(pack_groups(values, -(-k // span) + 3), k, n, span), values)


def test_a_lane_finds_its_share_where_the_layout_says() -> None:
    """The table of weights.py, read by hand for some places."""
    codes = np.random.default_rng(0).integers(0, 16, (256, 32)).astype(np.uint8)
    words = pack_codes(codes, 4).view(np.uint32)
    row, column = 128 + 16 * 5 + 8 * 1 + 2 * 3 + 1, 16 + 8 + 6  # step 5 of lane 4 * 6 + 3, in the upper half
    lane, j = 27, 2
    assert words[1, 1, 128 + 4 * lane + j] >> (4 * (2 * 1 + 1) + 16) & 15 == codes[row, column]
    codes = np.random.default_rng(0).integers(0, 256, (128, 16)).astype(np.uint8)
    words = pack_codes(codes, 8).view(np.uint32)
    row, column = 16 * 6 + 8 * 0 + 2 * 2 + 1, 5  # step 6, the second of vectors, of lane 4 * 5 + 2
    assert words[0, 0, 128 + 4 * 22 + 2] >> 16 & 255 == codes[row, column]


@examples(3, 60)
@given(
    data=st.data(), m=st.integers(1, 20), n=st.integers(1, 40), k=st.integers(1, 300), bits=st.sampled_from([4, 8]),
    group=st.sampled_from(GROUPS), signed=st.booleans(), zeros=st.sampled_from(["none", "one", "each"]),
    scale=st.sampled_from([np.float16, BF16, np.float32]), dtype=st.sampled_from([np.float16, BF16]),
)  # fmt: skip
def test_product_is_that_of_the_dequantised_weights(
    data: st.DataObject, m: int, n: int, k: int, bits: int, group: int, signed: bool, zeros: str, scale: Any, dtype: Any
) -> None:
    codes, scales, zero, full = random_weights(m, k, n, bits, group, signed=signed, zeros=zeros, scale=scale)
    weights = tw.quantized(codes, scales, zero, bits=bits, group=group)
    assert weights.shape == (k, n)
    assert np.array_equal(weights.dequantised(), full)
    assert np.array_equal(weights.codes(), codes.astype(np.int64) + (2 ** (bits - 1) if signed else 0))
    memory = whole(k, (m, k + data.draw(st.integers(0, 8))), dtype)
    x = memory[:, :k] if data.draw(st.booleans()) else np.asfortranarray(memory[:, :k])
    assert np.array_equal(tw.matmul(x, weights, out_dtype=tw.float32), x.astype(np.float64) @ full)


CASES = [(4, 128, 3), (8, 32, 13), (4, 64, 33), (8, -1, 130)]


@pytest.mark.parametrize(
    ("case", "part"),
    [pytest.param(case, n, marks=[pytest.mark.slow] * (n > 0)) for case in range(4) for n in range(5)],
)
@pytest.mark.spread(4)
def test_every_candidate_computes_the_same(monkeypatch: pytest.MonkeyPatch, case: int, part: int) -> None:
    """Legal configurations, on extents that no tile divides: a fifth in the suite, the others in the slow tests."""
    bits, group, m = CASES[case]
    k, n, dtype = 264, 70, (np.float16, BF16)[case % 2]
    codes, scales, zero, full = random_weights(case, k, n, bits, group, signed=False, zeros="each", scale=np.float16)
    weights, x = tw.quantized(codes, scales, zero, bits=bits, group=group), whole(case, (m, k), dtype)
    legal = [c for c in tw.matmul.explain(x, weights, arch="sm_90a").candidates if c.rejection is None]
    legal = [c for c in legal if c.family.is_simulated]  # test_weight_warpgroups.py has the others
    assert {c.family.name for c in legal} == {"weight streaming", "weight tiles"}
    for chosen in legal[(case + part) % 5 :: 5]:
        monkeypatch.setattr(dispatch, "fastest", lambda *_, c=chosen: c)
        entry._signature.cache_clear()
        assert np.array_equal(tw.matmul(x, weights, out_dtype=tw.float32), x.astype(np.float64) @ full), chosen
    entry._signature.cache_clear()


@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=["float16", "bfloat16"])
def test_fractions_are_exact_up_to_float32_sums(dtype: Any) -> None:
    """Weights are not rounded to x's type: scale * sum of x (q - zero) in float32, rounded once at the end."""
    random = np.random.default_rng(1)
    weights = tw.quantize(random.standard_normal((512, 48)).astype(np.float32), group=64)
    x = random.standard_normal((5, 512)).astype(dtype)
    exact = x.astype(np.float64) @ weights.dequantised().astype(np.float64)
    bound = np.abs(x).astype(np.float64) @ np.abs(weights.dequantised()).astype(np.float64)
    wide = tw.matmul(x, weights, out_dtype=tw.float32)
    assert (np.abs(wide - exact) <= 64 * 2.0**-23 * bound).all()
    assert np.array_equal(tw.matmul(x, weights), wide.astype(dtype))


def test_arguments_of_a_product_of_matrices_are_taken() -> None:
    codes, scales, zero, full = random_weights(0, 96, 24, 4, 32, signed=False, zeros="each", scale=np.float16)
    weights = tw.quantized(codes, scales, zero, group=32)
    x, c, bias = (whole(i, s, np.float32) for i, s in enumerate([(2, 3, 96), (2, 3, 24), (24,)]))
    x = x.astype(np.float16)
    gain = whole(5, (3, 1), np.float32)
    product = x.astype(np.float64) @ full
    found = tw.matmul(
        x, weights, alpha=2, beta=3, c=c, bias=bias, epilogue=lambda acc: acc * gain, out_dtype=tw.float32
    )
    assert np.array_equal(found, (2 * product + 3 * c + bias) * gain)
    out = np.empty((24, 6), np.float32).T  # contiguous along its columns
    assert tw.matmul(x.reshape(6, 96), weights, out=out, bias=bias) is out
    assert np.array_equal(out, product.reshape(6, 24) + bias)
    batch = np.broadcast_to(x[:, None], (2, 2, 3, 96)).swapaxes(0, 1)  # modes that do not join
    assert np.array_equal(tw.matmul(batch, weights, out_dtype=tw.float32), np.stack([product, product]))
    assert np.array_equal(tw.matmul(x[0, 0], weights, out_dtype=tw.float32), product[0, 0])


def test_extents_of_zero() -> None:
    empty = tw.quantized(np.zeros((0, 5), np.uint8), np.zeros((0, 5), np.float16))
    found = tw.matmul(np.zeros((3, 0), np.float16), empty, bias=np.arange(5, dtype=np.float16))
    assert np.array_equal(found, np.tile(np.arange(5), (3, 1)))
    for x in (np.ones((3, 45), np.float16)[:, 1:1], np.ones((4, 3), np.float16).T[:, :0]):  # rows at odd addresses
        assert np.array_equal(tw.matmul(x, empty), np.zeros((3, 5)))
    none = tw.quantized(np.zeros((40, 0), np.uint8), np.zeros((1, 0), np.float16))
    assert tw.matmul(np.zeros((3, 40), np.float16), none).shape == (3, 0)
    weights = tw.quantized(np.zeros((40, 5), np.uint8), np.zeros((1, 5), np.float16))
    assert tw.matmul(np.zeros((0, 40), np.float16), weights).shape == (0, 5)


def test_padding_stays_out_of_results() -> None:
    """Rows of K past the last take no part, whatever the scale; an infinite scale is infinite in its group alone."""
    codes, scales = np.full((33, 3), 5, np.uint8), np.array([[1, np.inf, np.nan], [np.inf, 1, 1]], np.float16)
    found = tw.matmul(np.ones((2, 33), np.float16), tw.quantized(codes, scales, group=32), out_dtype=tw.float32)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(found[0], [np.inf, np.inf, np.nan], equal_nan=True)


# --- the arrangements of others, dequantised from the definitions of their formats, number by number -----------------


def gptq_reference(qweight: Array, qzeros: Array, scales: Array, g_idx: Array, bits: int, offset: int) -> Array:
    per, mask = 32 // bits, 2**bits - 1
    k, n = qweight.shape[0] * per, qweight.shape[1]
    found = np.empty((k, n))
    for row in range(k):
        for column in range(n):
            word = int(qweight[row // per, column]) & 0xFFFFFFFF
            zeros = int(qzeros[g_idx[row], column // per]) & 0xFFFFFFFF
            q, zero = word >> row % per * bits & mask, (zeros >> column % per * bits & mask) + offset
            found[row, column] = (q - zero) * float(scales[g_idx[row], column])
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("format", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("order", ["none", "in order", "act"])
@pytest.mark.spread(6)
def test_gptq(bits: int, format: str, order: str) -> None:
    random = np.random.default_rng(bits)
    k, n, group = 128, 24, 32
    words = lambda *shape: random.integers(-(2**31), 2**31, shape).astype(np.int32)  # noqa: E731
    qweight, qzeros = words(k * bits // 32, n), words(k // group, n * bits // 32)
    scales = random.choice([0.5, 1, 2], (k // group, n)).astype(np.float16)
    g_idx = np.arange(k, dtype=np.int32) // group
    if order == "act":
        random.shuffle(g_idx)
    weights = tw.quantized.from_gptq(
        qweight, qzeros, scales, None if order == "none" else g_idx, bits=bits, format=format
    )
    full = gptq_reference(qweight, qzeros, scales, g_idx, bits, 1 if format == "gptq" else 0)
    assert np.array_equal(weights.dequantised(), full)
    assert (weights.order is None) == (order != "act")
    x = whole(7, (3, k), np.float16)
    assert np.array_equal(tw.matmul(x, weights, out_dtype=tw.float32), x.astype(np.float64) @ full)


@pytest.mark.parametrize(("k", "group", "asked"), [(40, 32, None), (264, 64, None), (1000, 512, None), (768, 512, 512)])
def test_a_last_group_of_fewer_rows(k: int, group: int, asked: int | None) -> None:
    """The readers find the size of groups that do not divide K, or are told it; `g_idx` says it, too."""
    count = -(-k // group)
    q = np.random.default_rng(k).integers(0, 16, (k, 8))
    scales = np.exp2(np.arange(count))[:, None].astype(np.float16) * np.ones((1, 8), np.float16)
    rows = np.arange(k) // group
    full = (q - 8) * scales.astype(np.float64)[rows]
    places = 4 * np.arange(8)
    gptq = (q.reshape(-1, 8, 8) << places[:, None]).sum(1).astype(np.uint32).view(np.int32)
    awq = (q[:, [0, 2, 4, 6, 1, 3, 5, 7]] << places).sum(1)[:, None].astype(np.uint32).view(np.int32)
    eights = np.full((count, 1), 0x88888888, np.uint32).view(np.int32)
    for weights in (
        tw.quantized(q.astype(np.uint8), scales, np.full(scales.shape, 8), group=asked),
        tw.quantized.from_gptq(gptq, None, scales, group=asked),
        tw.quantized.from_gptq(gptq, None, scales, rows.astype(np.uint64)),
        tw.quantized.from_awq(awq, eights, scales, group=asked),
    ):
        assert weights.format.group == group and np.array_equal(weights.dequantised(), full)


def test_readers_take_matrices_without_elements() -> None:
    of = lambda *shape: np.zeros(shape, np.int32)  # noqa: E731
    assert tw.quantized.from_gptq(of(8, 0), of(2, 0), np.ones((2, 0), np.float16)).shape == (64, 0)
    assert tw.quantized.from_gptq(of(0, 8), of(0, 1), np.ones((0, 8), np.float16)).shape == (0, 8)
    assert tw.quantized.from_awq(of(0, 1), of(0, 1), np.ones((0, 8), np.float16)).shape == (0, 8)
    assert tw.quantized.from_awq(of(64, 0), of(2, 0), np.ones((2, 0), np.float16)).shape == (64, 0)


def test_gptq_without_zeros_is_symmetric() -> None:
    qweight = np.random.default_rng(0).integers(-(2**31), 2**31, (8, 3)).astype(np.int32)
    scales = np.ones((1, 3), np.float16)
    sevens = np.full((1, 1), 0x77777777, np.int32)
    found = tw.quantized.from_gptq(qweight, None, scales)
    assert found.zeros is None and found.format.zero == 8
    assert np.array_equal(found.dequantised(), tw.quantized.from_gptq(qweight, sevens, scales).dequantised())


def test_awq() -> None:
    random = np.random.default_rng(3)
    k, n, group = 96, 32, 32
    qweight = random.integers(-(2**31), 2**31, (k, n // 8)).astype(np.int32)
    qzeros = random.integers(-(2**31), 2**31, (k // group, n // 8)).astype(np.int32)
    scales = random.choice([0.5, 1, 2], (k // group, n)).astype(np.float16)
    full = np.empty((k, n))
    for row in range(k):
        for word in range(n // 8):
            for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                q, zero = (int(w) >> 4 * place & 15 for w in (qweight[row, word], qzeros[row // group, word]))
                full[row, 8 * word + column] = (q - zero) * float(scales[row // group, 8 * word + column])
    weights = tw.quantized.from_awq(qweight, qzeros, scales)
    assert np.array_equal(weights.dequantised(), full)
    x = whole(7, (3, k), BF16)
    assert np.array_equal(tw.matmul(x, weights, out_dtype=tw.float32), x.astype(np.float64) @ full)


# --- rounding floats -------------------------------------------------------------------------------------------------


@examples(4, 40)
@given(
    seed=st.integers(0, 99), k=st.integers(1, 200), n=st.integers(1, 9), bits=st.sampled_from([4, 8]),
    group=st.sampled_from(GROUPS), symmetric=st.booleans(), shift=st.sampled_from([0, 3, -3]),
    size=st.sampled_from([1e-3, 1, 100]), scale=st.sampled_from([None, tw.bfloat16, tw.float32]),
)  # fmt: skip
def test_rounded_weights_are_within_half_a_step(
    seed: int, k: int, n: int, bits: int, group: int, symmetric: bool, shift: int, size: float, scale: Any
) -> None:
    w = (size * (np.random.default_rng(seed).standard_normal((k, n)) + shift)).astype(np.float32)
    try:
        weights = tw.quantize(w, bits, group, symmetric=symmetric, scale_dtype=scale)
    except tw.ArgumentError:  # of float16, and for scales below its normal numbers alone
        weights = tw.quantize(w, bits, group, symmetric=symmetric, scale_dtype=tw.float32)
        assert scale is None and np.asarray(weights.scales).min() < 2.0**-14
        return
    step = repeated(unpack_groups(weights.scales, k, n, weights.format.group).astype(np.float64), group, k)
    eps = {None: 2.0**-11, tw.bfloat16: 2.0**-8, tw.float32: 2.0**-23}[scale]
    rounded = np.maximum(eps * step, 2.0**-25 if scale is None else 0)  # denormals of float16 are 2^-24 apart
    # Half a step, and what the rounded scale moves the outermost weight and the zero by.
    limit = step * (0.5 + (0.5 if not symmetric else 0)) + 2 ** (bits + 1) * rounded + 1e-6 * size
    assert (np.abs(weights.dequantised() - w) <= limit).all()


def test_groups_of_one_number_are_kept() -> None:
    for value in (0.0, 3.0, -3.0, 2.0**-24, 1e-30):
        w = np.full((64, 2), value, np.float32)
        for symmetric in (False, True):
            found = tw.quantize(w, group=32, symmetric=symmetric, scale_dtype=tw.float32).dequantised()
            assert np.allclose(found, w, rtol=1e-6, atol=0), (value, symmetric)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("dtype", "normal"), [(tw.float16, 2.0**-14), (tw.bfloat16, 2.0**-126)], ids=str)
def test_scales_that_are_too_small_are_refused(dtype: tw.DType, normal: float, symmetric: bool) -> None:
    """What is taken is within a step of the weights, and a scale below the normal numbers may be."""
    levels, refused = 127 if symmetric else 255, 0
    for scale in normal * 2.0 ** np.linspace(-12, 1, 100):
        w = (scale * np.linspace(0, levels, 64)).astype(np.float32)[:, None]
        try:
            found = tw.quantize(w, 8, symmetric=symmetric, scale_dtype=dtype).dequantised()
        except tw.ArgumentError as error:
            assert scale < normal and "too small for" in str(error) and "scale_dtype=tw.float32" in str(error)
            refused += 1
            continue
        assert np.abs(found - w).max() <= 1.01 * scale
    assert refused > 40
    nothing = np.zeros((64, 1), np.float32)
    assert not tw.quantize(nothing, symmetric=symmetric, scale_dtype=dtype).dequantised().any()


@pytest.mark.parametrize("symmetric", [False, True])
def test_groups_of_next_to_nothing_are_within_half_a_step_of_others(symmetric: bool) -> None:
    """As a layer has where a feature is dead: what they are off by is no more than rounding elsewhere."""
    w = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    w[:32, 1] *= np.float32(1e-9)
    found = tw.quantize(w, 8, 32, symmetric=symmetric, scale_dtype=tw.float16).dequantised()
    assert np.abs(found - w).max() <= 0.51 * np.ptp(w, axis=0).max() / (127 if symmetric else 255)


W, S = np.zeros((64, 4), np.uint8), np.ones((2, 4), np.float16)
BY_GROUPS = tw.quantized.from_gptq(np.zeros((8, 4), np.int32), None, np.ones((2, 4), np.float16), np.arange(64) % 2)
REFUSED = [
    (lambda: tw.quantized(W.astype(np.float32), S), "w is float32, and weights are whole numbers"),
    (lambda: tw.quantized(W + 16, S), "w has numbers from 16 to 16"),
    (lambda: tw.quantized(W[0], S), "w is a matrix"),
    (lambda: tw.quantized("w", S), "w is a str, and an array is expected"),
    (lambda: tw.quantized(W, S.astype(np.float64)), "scale is float64"),
    (lambda: tw.quantized(W, S[:, :3]), r"scale has the shape \(2, 3\)"),
    (lambda: tw.quantized(W, S, S[:1] * 8), r"zero has the shape \(1, 4\)"),
    (lambda: tw.quantized(W, S, S * 0.5), "zero has fractions"),
    (lambda: tw.quantized(W, S, S * 17), "zeros are from 17 to 17"),
    (lambda: tw.quantized(W, S, bits=3), "bits is 4 or 8, got 3"),
    (lambda: tw.quantized(W, S, group=48), "group is 32, 64, a multiple of 128, or -1 for all of K, got 48"),
    (lambda: tw.quantized(W, np.ones((3, 4), np.float16)), "3 groups of 64 rows of weights have no size that fits"),
    (lambda: tw.quantized(np.zeros((768, 4), np.uint8), S), "2 groups of 768 rows of weights may have 384 or 512 rows"),
    (lambda: tw.quantized.from_gptq(W, None, S), "qweight is uint8, and packed numbers are int32"),
    (lambda: tw.quantized.from_gptq(W.view(np.int32), None, S, format="other"), "format is 'gptq' or 'gptq_v2'"),
    (lambda: tw.quantized(W, S.astype(np.complex64)), "scale is complex64, which is not an element type"),
    (lambda: tw.quantized(W, S, group=128.0), "group is a number of rows, got 128.0"),
    (lambda: tw.quantized(W, S, group="128"), "group is a number of rows, got '128'"),
    (lambda: tw.quantized(W, S, bits=4.0), "bits is 4 or 8, got 4.0"),
    (lambda: tw.quantized(W, S, bits=np.array([4, 8])), "bits is 4 or 8, got array"),
    (lambda: tw.quantized(W.astype(np.int8), S, np.full(S.shape, 2**64 - 1, np.uint64)), "zero has numbers from 18446"),
    (lambda: tw.quantized(W, S, np.full(S.shape, 2**63 - 1)), "zero has numbers from 9223"),
    (lambda: tw.quantized(W, S, np.full(S.shape, np.inf)), "zero has numbers from inf"),
    (lambda: tw.quantized(W, S, np.full(S.shape, np.nan)), "zero has fractions"),
    (lambda: tw.quantized(W, S, np.full(S.shape, 3 + 1j)), "zero is complex128, which is not an element type"),
    (lambda: tw.quantize(np.ones((2, 2), np.complex64)), "w is complex64, which is not an element type"),
    (lambda: tw.matmul([1], BY_GROUPS), "a is a list, and its columns are taken"),
    (lambda: tw.quantize(np.ones((2, 2), np.float32), symmetric="no"), "symmetric is True or False, got 'no'"),
    (lambda: tw.quantize(W), "w is uint8, and tw.quantize rounds floats"),
    (lambda: tw.quantize(np.full((2, 2), np.nan, np.float32)), "w has numbers that are not finite"),
    (lambda: tw.quantize(np.full((2, 2), 1e9, np.float32)), "is beyond float16"),
    (lambda: tw.quantize(np.full((2, 2), 1e-9, np.float32), 8, symmetric=True), "7.87e-12 is too small for float16"),
    (lambda: tw.quantize(np.ones((2, 2), np.float32), scale_dtype=tw.int8), "scale_dtype is one of float16"),
    (lambda: tw.matmul(np.ones((2, 64), np.float32), tw.quantized(W, S)), "a is float32, and packed weights multiply"),
    (lambda: tw.matmul(np.ones((2, 63), np.float16), tw.quantized(W, S)), "have no product"),
    (
        lambda: tw.matmul(np.ones((2, 64), np.float16), tw.quantized(W, S), precision="tf32"),
        "precision='tf32', and a is",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=range(len(REFUSED)))
@pytest.mark.spread(4)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(tw.ArgumentError, match=message):
        call()


def test_a_prepared_product_does_not_keep_the_order_of_old_columns() -> None:
    """It would have a copy of x, whose columns are in the order of the weights."""
    x = whole(7, (3, 64), np.float16)
    with pytest.raises(tw.ArgumentError, match=r"pass a\[\.\.\., b\.order\] as a, and dataclasses\.replace"):
        tw.matmul.prepare(x, BY_GROUPS)
    product = tw.matmul.prepare(x[..., BY_GROUPS.order], replace(BY_GROUPS, order=None))
    assert np.array_equal(product(), x @ BY_GROUPS.dequantised())


@pytest.mark.slow
def test_tuning_takes_the_columns_before_it_prepares() -> None:
    x = whole(7, (3, 64), np.float16)
    assert tw.matmul.tune(x, BY_GROUPS, most=1, progress=False).source == "simulated"


def test_a_group_longer_than_k_takes_no_memory_for_what_is_not_there() -> None:
    weights = tw.quantized(W, S[:1], group=1 << 40)
    assert weights.format.group == 128 and np.array_equal(weights.dequantised(), W.astype(np.float32) * S[:1])
    assert tw.quantize(np.ones((40, 2), np.float32), group=1 << 40).shape == (40, 2)


def test_gptq_with_groups_of_unequal_size_is_refused() -> None:
    qweight = np.zeros((8, 4), np.int32)
    groups = np.array([0] * 40 + [1] * 24, np.int32)
    with pytest.raises(tw.ArgumentError, match="from 24 to 40 rows into a group"):
        tw.quantized.from_gptq(qweight, None, S, groups)


def test_explanations_name_the_weights() -> None:
    weights = tw.quantize(np.ones((256, 64), np.float32))
    found = tw.matmul.explain(tw.spec(tw.bfloat16, (4, 256)), weights, arch="sm_90a")
    assert found.choice is not None and "4-bit weights in groups of 128" in str(found)
    with pytest.raises(tw.ArgumentError, match="no kernel multiplies"):
        tw.matmul.explain(tw.spec(tw.float16, (4, 256)), weights, arch="sm_75").choice


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_at_the_ends_of_float32_are_rounded_as_any(symmetric: bool) -> None:
    """Neither a difference beyond float32 nor a scale below its least number loses a group."""
    for w in (np.array([[3e38], [-3e38], [1e38]], np.float32), np.array([[1e-45], [0], [-1e-45]], np.float32)):
        weights = tw.quantize(w, symmetric=symmetric, scale_dtype=tw.float32)
        step = np.maximum(np.ptp(w.astype(np.float64)) / (7 if symmetric else 15), 1.5e-45)
        assert np.abs(weights.dequantised().astype(np.float64) - w).max() <= step
    assert tw.quantize(np.zeros((64, 0), np.float32)).shape == (64, 0)


@pytest.mark.parametrize("out", [tw.float16, tw.bfloat16, tw.float32], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.spread(2)
def test_a_kernel_unpacks_what_numpy_unpacks(bits: int, out: tw.DType) -> None:
    """Law: rounded once, whatever ends early; rows that are packed by groups go back to their places."""
    random = np.random.default_rng(bits)
    for k, n, group, scale in ((300, 40, 64, tw.float32), (5, 3, 128, tw.float16), (256, 16, -1, tw.bfloat16)):
        for symmetric in (False, True):
            w = random.normal(size=(k, n)).astype(np.float32)
            weights = tw.quantize(w, bits, group, symmetric=symmetric, scale_dtype=scale)
            found = weights.to_matrix(out)
            assert found.dtype == out.numpy and np.array_equal(found, weights.dequantised().astype(out.numpy))
    qweight, g_idx = random.integers(-(2**31), 2**31, (64 * bits // 32, 8)).astype(np.int32), np.arange(64) % 2
    ordered = tw.quantized.from_gptq(qweight, None, np.array([[0.5] * 8, [0.25] * 8], np.float16), g_idx, bits=bits)
    assert ordered.order is not None and np.array_equal(ordered.to_matrix(tw.float32), ordered.dequantised())
    assert ordered.to_matrix().dtype == np.float16
    with pytest.raises(tw.ArgumentError, match="dtype is one of float16, bfloat16, float32"):
        ordered.to_matrix(tw.float64)
