"""`tw.attention` on both backends, against float64: masks, windows, shared heads, ragged batches, any strides."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, Gpu

import tilewright as tw
from tilewright.kernels.attention import by_tiles, by_warpgroups, gradients_on_hopper, read_problem
from tilewright.kernels.operands import read
from tilewright.runtime.views import View

ALL = 1 << 30
PLACES = (None, None, None)  # of sequences
SLOW = pytest.mark.slow
BF16 = np.dtype(ml_dtypes.bfloat16)
UNITS = {np.dtype(np.float16): 2.0**-10, BF16: 2.0**-7, np.dtype(np.float32): 2.0**-20, np.dtype(np.float64): 2.0**-49}


def normal(*shapes: tuple[int, ...], dtype: Any) -> list[Array]:
    random = np.random.default_rng(sum(map(sum, shapes)))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@dataclasses.dataclass(frozen=True)
class Known:
    """What float64 gives: result, log(sum(exp(scores))), and the gradients of q, k and v."""

    out: Array
    lse: Array
    gradients: tuple[Array, Array, Array]


def known(
    q: Array, k: Array, v: Array, grad: Array | None = None, *, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, scale: float | None = None,
) -> Known:  # fmt: skip
    """Compute attention by the formula, of (batch, heads, tokens, head)."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    tokens, keys = q.shape[2], k.shape[2]
    apart = np.arange(keys) - np.arange(tokens)[:, None] - (keys - tokens)
    left, right = (ALL if side is None else side for side in window or (None, None))
    seen = (apart >= -left) & (apart <= (0 if causal else right))
    scores = np.where(seen, q @ wide_k.swapaxes(2, 3) * factor, -np.inf)
    top = scores.max(3, keepdims=True, initial=-1e300)
    weights = np.exp(scores - top)
    total = weights.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    out = shares @ wide_v
    if grad is None:
        return Known(out, lse, (q, k, v))
    g = grad.astype(np.float64)
    slopes = shares * (g @ wide_v.swapaxes(2, 3) - (g * out).sum(3, keepdims=True)) * factor
    together = (*k.shape[:2], group)
    dk, dv = (x.reshape(*together, *x.shape[2:]).sum(2) for x in (slopes.swapaxes(2, 3) @ q, shares.swapaxes(2, 3) @ g))
    return Known(out, lse, (slopes @ wide_k, dk, dv))


def assert_close(found: Array, expected: Array, dtype: Any, slack: float = 4) -> None:
    """Weights are rounded to the element type, and the result, a mean of rows of v by them, once more."""
    limit = slack * UNITS[np.dtype(dtype)] * max(np.abs(expected).max(initial=0), 1e-3)
    assert found.shape == expected.shape and found.dtype == dtype
    assert (np.abs(found.astype(np.float64) - expected) <= limit).all()


CASES = [
    pytest.param(np.float64, (1, 1, 1, 3, 5, 7, 2), {}, id="float64"),
    pytest.param(np.float32, (2, 4, 2, 12, 16, 12, 20), {}, id="float32-shared-heads"),
    pytest.param(
        np.float32, (1, 2, 1, 30, 20, 16, 16), {"causal": True, "scale": -0.5}, id="float32-rows-without-keys"
    ),
    pytest.param(np.float16, (1, 2, 1, 70, 70, 40, 24), {}, id="float16", marks=SLOW),
    pytest.param(np.float16, (2, 6, 2, 1, 20, 16, 16), {"causal": True}, id="one-token"),
    pytest.param(np.float16, (1, 2, 1, 1, 20, 16, 16), {"window": (5, 0)}, id="one-token-window", marks=SLOW),
    pytest.param(BF16, (1, 2, 1, 70, 130, 64, 64), {"causal": True}, id="bfloat16-causal"),
    pytest.param(BF16, (1, 1, 1, 130, 70, 32, 32), {"window": (9, 3)}, id="window", marks=SLOW),
    pytest.param(
        BF16, (1, 1, 1, 150, 150, 16, 16), {"window": (70, None), "causal": True}, id="causal-window", marks=SLOW
    ),
    pytest.param(np.float16, (1, 1, 1, 40, 70, 200, 256), {"causal": True}, id="long-heads", marks=SLOW),
    pytest.param(np.float32, (1, 2, 1, 70, 90, 40, 24), {"causal": True}, id="float32-tiles", marks=SLOW),
]


def arrays(case: tuple[int, ...], dtype: Any) -> list[Array]:
    batch, heads, shared, tokens, keys, head, value_head = case
    of_keys = [(batch, shared, keys, n) for n in (head, value_head)]
    return normal((batch, heads, tokens, head), *of_keys, (batch, heads, tokens, value_head), dtype=dtype)


@pytest.mark.parametrize(("dtype", "case", "options"), CASES)
@pytest.mark.spread(2)
def test_results_and_gradients(backend: Backend, dtype: Any, case: tuple[int, ...], options: dict[str, Any]) -> None:
    q, k, v, grad = arrays(case, dtype)
    expected = known(q, k, v, grad, **options)
    out = backend.put(np.full_like(expected.out, np.nan, dtype=dtype))
    placed = [backend.put(x) for x in (q, k, v)]
    found, lse = tw.attention(*placed, out=out, statistics=True, **options)
    assert found is out
    # Tokens before heads, as projections have them.
    before = [np.full(np.swapaxes(x, 1, 2).shape, np.nan, dtype) for x in (q, k, v)]
    places = {name: backend.put(x).swapaxes(1, 2) for name, x in zip(("dq", "dk", "dv"), before, strict=True)}
    gradients = tw.attention_backward(backend.put(grad), *placed, out, lse, **options, **places)
    assert all(ours is place for ours, place in zip(gradients, places.values(), strict=True))
    for ours, of_formula in zip(gradients, expected.gradients, strict=True):
        assert_close(backend.get(ours), of_formula, dtype)
    assert_close(backend.get(out), expected.out, dtype)
    kind = np.float64 if dtype == np.float64 else np.float32
    assert_close(np.nan_to_num(backend.get(lse), neginf=-1), np.nan_to_num(expected.lse, neginf=-1), kind)


HEADS = [
    pytest.param(np.float16, (2, 4, 2, 33, 40, 24, 16), {"window": (20, 5), "scale": 0.5}, id="shared-heads"),
    pytest.param(BF16, (1, 2, 1, 200, 60, 64, 64), {"window": (9, 3)}, id="more-tokens", marks=SLOW),
    pytest.param(BF16, (1, 2, 1, 20, 210, 64, 64), {"causal": True}, id="more-keys", marks=SLOW),
    pytest.param(
        np.float16, (1, 1, 1, 256, 256, 32, 64), {"causal": True, "window": (40, 0)}, id="two-products", marks=SLOW
    ),
    pytest.param(BF16, (1, 2, 1, 128, 100, 128, 80), {}, id="long-heads", marks=SLOW),
]


@pytest.mark.parametrize(("dtype", "case", "options"), HEADS)
@pytest.mark.parametrize("family", ["heads", pytest.param("tiles", marks=SLOW)])
def test_gradients_of_whole_heads(
    backend: Backend, dtype: Any, case: tuple[int, ...], options: dict[str, Any], family: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of some keys, whose last rows hold what overflows as a weight, and of lse; tiles compute the same."""
    q, k, v, grad = arrays(case, dtype)
    q[..., 0], k[..., 0] = -40, 40  # all scores are low
    lengths = np.full(q.shape[:1], k.shape[2] - k.shape[2] // 4)
    k[:, :, lengths[0] :], v[:, :, lengths[0] :] = np.nan, np.inf
    seen = [x[:, :, : lengths[0]] for x in (k, v)]
    expected = known(q, *seen, grad, **options)
    placed, at = [backend.put(x) for x in (q, k, v)], {"key_lengths": backend.put(lengths)}
    out, lse = tw.attention(*placed, statistics=True, **options, **at)
    kernels = "tilewright.kernels.attention"
    if family == "tiles":
        monkeypatch.setattr(f"{kernels}.heads_plan", lambda *_: None)
        monkeypatch.setattr(f"{kernels}.family_of", lambda *_: "tiles")
    else:
        monkeypatch.setattr(f"{kernels}.multiprocessors_of", lambda _: 0)  # of a GPU, few heads go to other kernels
        monkeypatch.setattr(f"{kernels}._gradients_by_tiles", None)
        monkeypatch.setattr(f"{kernels}.gradients_on_hopper", None)
    slope = np.zeros(q.shape[:3], np.float32)
    gradients = tw.attention_backward(
        backend.put(grad), *placed, out, lse, **options, **at, lse_grad=backend.put(slope)
    )
    for first, ours, of_formula in zip((1, 1, 0), gradients, expected.gradients, strict=True):
        found, behind = np.split(backend.get(ours), [of_formula.shape[2]], 2)
        assert_close(found[..., first:], of_formula[..., first:], dtype)  # the element that is alike sums rounding
        assert not behind.any()


@pytest.mark.parametrize("dtype", [np.float16, pytest.param(np.float32, marks=SLOW)])
def test_gradients_of_keys_that_nothing_sees_are_zeros(backend: Backend, dtype: Any) -> None:
    """Also where one of a token is infinite, as of scaled losses: 0 times that is NaN."""
    q, k, v, grad = arrays((1, 1, 1, 20, 30, 16, 16), dtype)
    grad[0, 0, 3, 5] = np.inf
    placed, at = [backend.put(x) for x in (q, k, v)], {"key_lengths": backend.put(np.array([20]))}
    out, lse = tw.attention(*placed, statistics=True, **at)
    _, dk, dv = tw.attention_backward(backend.put(grad), *placed, out, lse, **at)
    for seen, behind in (np.split(backend.get(x), [20], 2) for x in (dk, dv)):
        assert not np.isfinite(seen).all() and not behind.any()


@pytest.mark.parametrize("dtype", [np.float16, pytest.param(np.float32, marks=SLOW)])
def test_ragged_batches_with_empty_sequences(backend: Backend, dtype: Any) -> None:
    starts, key_starts = np.array([0, 5, 5, 70, 75], np.int32), np.array([0, 9, 12, 12, 60], np.int64)
    q, k, v = normal((75, 4, 20), (60, 2, 20), (60, 2, 12), dtype=dtype)
    k[12], v[12] = 100, np.inf  # of another sequence than most
    grad = normal((75, 4, 12), dtype=dtype)[0]
    options = {"offsets": backend.put(starts), "key_offsets": backend.put(key_starts), "causal": True}
    placed = [backend.put(x) for x in (q, k, v)]
    out, lse = tw.attention(*placed, statistics=True, **options)
    results = [out, *tw.attention_backward(backend.put(grad), *placed, out, lse, **options)]
    found, dq, dk, dv = map(backend.get, results)
    for n in range(3):  # the last one has the infinity
        t, s = slice(starts[n], starts[n + 1]), slice(key_starts[n], key_starts[n + 1])
        one = known(*(x.swapaxes(0, 1)[None] for x in (q[t], k[s], v[s], grad[t])), causal=True)
        for ours, of_formula in zip((found[t], dq[t], dk[s], dv[s]), (one.out, *one.gradients), strict=True):
            assert_close(ours.swapaxes(0, 1)[None], of_formula, dtype)
        assert (np.isneginf(backend.get(lse)[:, t]) == np.isneginf(one.lse[0])).all()


def test_numbers_of_keys_and_strides(backend: Backend) -> None:
    """Keys behind a batch's number are not read, whatever is there; modes lie in any order, and backwards."""
    lengths = np.array([7, 0, 15])
    q, k, v = normal((3, 6, 2, 8), (2, 15, 8, 3), (3, 2, 8, 15), dtype=np.float32)
    q, k, v = q.transpose(0, 2, 1, 3), k.transpose(3, 0, 1, 2), v.transpose(0, 1, 3, 2)
    k[0, :, 7:], v[0, :, 7:], k[1], v[1] = (np.nan,) * 4
    if backend.name == "sim":
        placed = [q, k, v[..., ::-1]]
    else:
        placed = [backend.put(np.ascontiguousarray(x)) for x in (q, k, v[..., ::-1])]
    grad = normal(q.shape, dtype=np.float32)[0]
    options = {"key_lengths": backend.put(lengths), "causal": True}
    out, lse = tw.attention(*placed, statistics=True, **options)
    results = [out, *tw.attention_backward(backend.put(grad), *placed, out, lse, **options)]
    found, dq, dk, dv = map(backend.get, results)
    assert not any(x[n, :, length:].any() for x in (dk, dv) for n, length in enumerate(lengths))
    for n, length in enumerate(lengths):
        each = slice(n, n + 1)
        one = known(q[each], k[each, :, :length], v[each, :, :length, ::-1], grad[each], causal=True)
        ours = (found[each], dq[each], dk[each, :, :length], dv[each, :, :length])
        for result, of_formula in zip(ours, (one.out, *one.gradients), strict=True):
            assert_close(result, of_formula, np.float32)


def test_arrays_without_elements(backend: Backend) -> None:
    q, k, v = (backend.put(x) for x in normal((2, 2, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8), dtype=np.float32))
    none = tw.attention(q, k[:, :, :0], v[:, :, :0])
    assert not backend.get(none).any() and none.shape == (2, 2, 3, 8)
    assert tw.attention(q[:, :, :0], k, v).shape == (2, 2, 0, 8)
    assert tw.attention(q[:0], k[:0], v[:0]).shape == (0, 2, 3, 8)
    for q_part, k_part, v_part in ((q, k[:, :, :0], v[:, :, :0]), (q[:, :, :0], k, v), (q[:0], k[:0], v[:0])):
        out, lse = tw.attention(q_part, k_part, v_part, statistics=True)
        for given, gradient in zip(
            (q_part, k_part, v_part), tw.attention_backward(out, q_part, k_part, v_part, out, lse), strict=True
        ):
            assert gradient.shape == given.shape and not backend.get(gradient).any()


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-6), (np.float16, 0.05)])
def test_a_gradient_of_the_sums(backend: Backend, dtype: Any, error: float) -> None:
    """The gradient of lse is that of a sum of scores, weighted by the shares: found by differences of float64."""
    q, k, v = normal((1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 4), dtype=dtype)
    grad, slope = normal((1, 1, 3, 4), (1, 1, 3), dtype=dtype)

    def loss(q: Array) -> float:
        one = known(q, k, v)
        return float((one.out * grad).sum() + (one.lse * slope).sum())

    kind = np.float64 if dtype == np.float64 else np.float32
    placed = [backend.put(x) for x in (q, k, v)]
    out, lse = tw.attention(*placed, statistics=True)
    dq, _, _ = tw.attention_backward(backend.put(grad), *placed, out, lse, lse_grad=backend.put(slope.astype(kind)))
    step = 1e-6 * normal(q.shape, dtype=np.float64)[0]
    wide = q.astype(np.float64)
    assert (backend.get(dq) * step).sum() == pytest.approx((loss(wide + step) - loss(wide - step)) / 2, rel=error)


# --- keys in parts --------------------------------------------------------------------------------------------------


def view_of(array: Any) -> View:
    """Return an array as kernels take it."""
    found = read("attention", "x", array)
    return found.view(found.shape, found.info.strides)


PARTS = [
    pytest.param("tiles", BF16, (1, 2, 1, 20, 300, 16, 16), {"causal": True}, 3, id="tiles"),
    pytest.param("tiles", np.float64, (2, 1, 1, 3, 20, 4, 6), {}, 5, id="parts-without-keys"),
    pytest.param("tiles", np.float32, (1, 1, 1, 40, 30, 8, 8), {"causal": True}, 2, id="rows-without-keys", marks=SLOW),
    pytest.param("tiles", np.float16, (1, 1, 1, 100, 200, 16, 16), {"window": (50, 3)}, 4, id="window", marks=SLOW),
    pytest.param("warpgroups", BF16, (1, 4, 2, 3, 100, 64, 64), {}, 4, id="warpgroups", marks=SLOW),
    pytest.param("warpgroups", BF16, (2, 1, 1, 70, 20, 64, 64), {"causal": True}, 3, id="warpgroups-without-keys"),
    pytest.param("warpgroups", BF16, (1, 1, 1, 200, 40, 64, 64), {"causal": True}, 1, id="low-tiles", marks=SLOW),
    pytest.param("warpgroups", BF16, (1, 1, 1, 270, 40, 64, 64), {"causal": True}, 1, id="high-tiles", marks=SLOW),
    pytest.param("warpgroups", BF16, (1, 2, 1, 90, 200, 88, 88), {"causal": True}, 5, id="wide", marks=SLOW),
    pytest.param("warpgroups", BF16, (1, 1, 1, 5, 90, 256, 256), {"window": (30, 1)}, 2, id="long-heads", marks=SLOW),
]


@pytest.mark.parametrize(("family", "dtype", "case", "options", "parts"), PARTS)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_keys_in_parts(
    backend: Backend, family: str, dtype: Any, case: tuple[int, ...], options: dict[str, Any], parts: int
) -> None:
    q, k, v, _ = arrays(case, dtype)
    expected = known(q, k, v, **options)
    kind = np.float64 if dtype == np.float64 else np.float32
    placed = [backend.put(x) for x in (q, k, v)]
    out = backend.put(np.full_like(expected.out, np.nan, dtype=dtype))
    lse = backend.put(np.full(q.shape[:3], np.nan, kind))
    problem = read_problem("attention", *placed, options.get("causal", False), options.get("window"), None, PLACES)
    views = [view_of(x) for x in (out, *placed)]
    if family == "tiles":
        by_tiles(problem, views, view_of(lse), parts=parts)
    else:
        by_warpgroups(problem, views, view_of(lse), blocks=3, keys=16, parts=parts)
    assert_close(backend.get(out), expected.out, dtype)
    assert_close(np.nan_to_num(backend.get(lse), neginf=-1), np.nan_to_num(expected.lse, neginf=-1), kind)


@pytest.mark.parametrize(
    ("tokens", "parts"), [pytest.param(4, 1, marks=SLOW), pytest.param(4, 3, marks=SLOW), (140, 1)]
)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_warpgroups_take_numbers_of_keys(backend: Backend, tokens: int, parts: int) -> None:
    """Keys and values behind a batch's number may be NaN: weights of 0 are not multiplied by them."""
    # Of a device, numbers behind the last key are those of all keys; on the host they are refused.
    behind = 400 if backend.name == "cuda" else 48
    lengths = np.array([37, 0, 48, behind, 16][: 5 if tokens < 64 else 2])
    q, k, v, _ = arrays((len(lengths), 2, 1, tokens, 48, 64, 64), BF16)
    for n, length in enumerate(lengths):
        k[n, :, length:], v[n, :, length:] = np.nan, np.nan
    placed, out = [backend.put(x) for x in (q, k, v)], backend.put(np.full_like(q, np.nan))
    problem = read_problem("attention", *placed, True, None, None, (None, None, backend.put(lengths)))
    by_warpgroups(problem, [view_of(x) for x in (out, *placed)], None, blocks=2, keys=32, parts=parts)
    for n, length in enumerate(lengths):
        one = known(q[n : n + 1], k[n : n + 1, :, :length], v[n : n + 1, :, :length], causal=True)
        assert_close(backend.get(out)[n : n + 1], one.out, BF16)


RAGGED = [
    pytest.param([0, 5, 5, 75, 205], [0, 9, 40, 40, 130], {"causal": True}, 1, id="causal"),
    pytest.param([0, 3, 20, 21], [0, 100, 120, 120], {}, 3, id="narrow-parts", marks=SLOW),
    pytest.param([0, 192, 193], [0, 33, 65], {"window": (20, 3)}, 2, id="window-parts", marks=SLOW),
    pytest.param([0, 0, 400], [0, 7, 300], {}, 1, id="long", marks=SLOW),
]


@pytest.mark.parametrize(("starts", "key_starts", "options", "parts"), RAGGED)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_warpgroups_take_sequences_in_one_array(
    backend: Backend, starts: list[int], key_starts: list[int], options: dict[str, Any], parts: int
) -> None:
    """Some have no tokens or no keys; a tile's last rows are not written, and what follows may be NaN."""
    tokens, keys = starts[-1], key_starts[-1]
    q, k, v = normal((tokens, 2, 64), (keys, 1, 64), (keys, 1, 64), dtype=BF16)
    k[key_starts[1]], v[key_starts[1]] = np.nan, np.nan  # of the second sequence that has keys
    at = backend.put(np.array(starts, np.int32)), backend.put(np.array(key_starts, np.int64)), None
    placed = [backend.put(x) for x in (q, k, v)]
    out, lse = backend.put(np.full_like(q, 7)), backend.put(np.full((2, tokens), 7, np.float32))
    problem = read_problem("attention", *placed, options.get("causal", False), options.get("window"), None, at)
    result, numbers = read("attention", "out", out), read("attention", "lse", lse)
    views = [problem.heads(x) for x in (result, problem.q, problem.k, problem.v)]
    by_warpgroups(problem, views, problem.numbers(numbers), blocks=3, keys=32, parts=parts)
    found, found_lse = backend.get(out), backend.get(lse)
    spoiled = next(n for n in range(len(starts) - 1) if key_starts[n] == key_starts[1] < key_starts[n + 1])
    for n in range(len(starts) - 1):
        t, s = slice(starts[n], starts[n + 1]), slice(key_starts[n], key_starts[n + 1])
        if n == spoiled or starts[n] == starts[n + 1]:
            continue
        one = known(*(x.swapaxes(0, 1)[None] for x in (q[t], k[s], v[s])), **options)
        assert_close(found[t].swapaxes(0, 1)[None], one.out, BF16)
        assert_close(np.nan_to_num(found_lse[:, t][None], neginf=-1), np.nan_to_num(one.lse, neginf=-1), np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(("head", "tokens"), [(128, 1), (64, 3), (24, 1)])
@pytest.mark.parametrize("by", ["all", "lengths", "offsets"])
def test_many_keys_of_few_tokens(head: int, tokens: int, by: str) -> None:
    """Calls choose parts of keys; a second call of a kind is repeated from its pointers."""
    backend, keys = Gpu(), 5000
    for seed in range(2):
        q, k, v = normal((2, 4, tokens, head), (2, 2, keys, head), (2, 2, keys, head), dtype=np.float16)
        q, lengths = (q * (seed + 1)).astype(np.float16), np.array([keys, 4000 - seed], np.int32)
        placed, options = [backend.put(x) for x in (q, k, v)], {}
        if by == "lengths":
            options = {"key_lengths": backend.put(lengths)}
        elif by == "offsets":
            lengths[:] = keys
            placed = [backend.put(np.ascontiguousarray(np.concatenate(list(x.swapaxes(1, 2))))) for x in (q, k, v)]
            starts = (np.arange(3) * n for n in (tokens, keys))
            options = dict(
                zip(("offsets", "key_offsets"), (backend.put(x.astype(np.int32)) for x in starts), strict=True)
            )
        else:
            lengths[:] = keys
        out, lse = map(backend.get, tw.attention(*placed, statistics=True, **options))
        if by == "offsets":
            out, lse = out.reshape(2, tokens, 4, head).swapaxes(1, 2), lse.reshape(4, 2, tokens).swapaxes(0, 1)
        for n, length in enumerate(lengths):
            one = known(q[n : n + 1], k[n : n + 1, :, :length], v[n : n + 1, :, :length])
            assert_close(out[n : n + 1], one.out, np.float16)
            assert_close(lse[n : n + 1], one.lse, np.float32)


# --- by warpgroups --------------------------------------------------------------------------------------------------

WARPGROUPS = [
    pytest.param((1, 2, 1, 140, 60, 128), {"causal": True}, id="rows-without-keys", marks=SLOW),
    pytest.param((1, 3, 1, 200, 24, 64), {"causal": True, "window": (9, None), "scale": 3.0}, id="causal-window"),
    pytest.param((1, 1, 1, 200, 100, 64), {"window": (20, 4)}, id="window", marks=SLOW),
    pytest.param((2, 2, 1, 70, 50, 64), {}, id="shared-heads", marks=SLOW),
    pytest.param((1, 1, 1, 140, 200, 64), {"window": (30, None)}, id="left", marks=SLOW),
    pytest.param((1, 1, 1, 70, 90, 256), {"causal": True}, id="long-heads", marks=SLOW),
    pytest.param((1, 1, 1, 70, 90, 88), {"causal": True}, id="filled-up", marks=SLOW),
]


@pytest.mark.parametrize(("case", "options"), WARPGROUPS)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_warpgroups_compute_every_token(backend: Backend, case: tuple[int, ...], options: dict[str, Any]) -> None:
    """Small tiles of keys: many steps, and a ring that goes round; two blocks, which take turns; scores that grow."""
    q, k, v, grad = arrays((*case, case[-1]), BF16)
    expected = known(q, k, v, grad, **options)
    placed = [backend.put(x) for x in (q, k, v)]
    out, lse = backend.put(np.full_like(q, np.nan)), backend.put(np.full(q.shape[:3], np.nan, np.float32))
    causal, window, scale = options.get("causal", False), options.get("window"), options.get("scale")
    problem = read_problem("attention", *placed, causal, window, scale, PLACES)
    (target, *inputs), numbers = [view_of(x) for x in (out, *placed)], view_of(lse)
    by_warpgroups(problem, [target, *inputs], numbers, blocks=2, keys=16)
    assert_close(backend.get(out), expected.out, BF16)
    assert_close(np.nan_to_num(backend.get(lse), neginf=-1), np.nan_to_num(expected.lse, neginf=-1), np.float32)


GRADIENTS = [
    pytest.param((1, 2, 1, 70, 140, 64), {"causal": True}, True, id="shared-heads"),
    pytest.param((1, 1, 1, 200, 100, 128), {"causal": True}, True, id="rows-without-keys", marks=SLOW),
    pytest.param((2, 2, 2, 150, 150, 128), {"window": (40, 10)}, True, id="window", marks=SLOW),
    pytest.param((1, 1, 1, 300, 300, 64), {"window": (40, None)}, True, id="left", marks=SLOW),
    pytest.param((1, 2, 1, 100, 300, 128), {}, False, id="any-order", marks=SLOW),
    pytest.param((1, 2, 1, 140, 100, 256), {"causal": True}, True, id="long-heads", marks=SLOW),
    pytest.param((1, 1, 1, 100, 150, 200), {"window": (40, 10)}, False, id="filled-up", marks=SLOW),
]


@pytest.mark.parametrize(("case", "options", "ordered"), GRADIENTS)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_warpgroups_compute_all_gradients(
    backend: Backend, case: tuple[int, ...], options: dict[str, Any], ordered: bool
) -> None:
    """Several blocks add to the gradient of a token, in one order or in any, and heads that share keys add to theirs."""
    q, k, v, grad = arrays((*case, case[-1]), BF16)
    expected = known(q, k, v, grad, **options)
    out, lse = expected.out.astype(BF16), expected.lse.astype(np.float32)
    placed = [backend.put(x) for x in (q, k, v)]
    causal, window = options.get("causal", False), options.get("window")
    problem = read_problem("attention", *placed, causal, window, None, PLACES)
    made = [backend.put(np.full_like(x, np.nan)) for x in (q, k, v)]
    slope, result, numbers = (view_of(backend.put(x)) for x in (grad, out, lse))
    gradients_on_hopper(problem, [view_of(x) for x in made], (slope, result, numbers, None), ordered)
    for ours, of_formula in zip(made, expected.gradients, strict=True):
        assert_close(backend.get(ours), of_formula, BF16)


@pytest.mark.filterwarnings("ignore:needless wait")
def test_weights_behind_the_last_key_do_not_overflow(backend: Backend) -> None:
    """Where all scores are near -22, those of the zeros behind the keys would have weights of e^22: no float16."""
    q, k, v, grad = arrays((1, 1, 1, 70, 70, 64, 64), np.float16)
    q, k = (1 + q / 100).astype(np.float16), (k / 10 - 2.75).astype(np.float16)
    expected = known(q, k, v, grad)
    problem = read_problem("attention", *map(backend.put, (q, k, v)), False, None, None, PLACES)
    made = [backend.put(np.full_like(x, np.nan)) for x in (q, k, v)]
    given = grad, expected.out.astype(np.float16), expected.lse.astype(np.float32)
    gradients_on_hopper(problem, [view_of(x) for x in made], (*(view_of(backend.put(x)) for x in given), None), False)
    for ours, of_formula in zip(made, expected.gradients, strict=True):
        assert_close(backend.get(ours), of_formula, np.float16, slack=20)  # slopes of both signs, times keys of one


# Where sequences begin, heads, sequences that are NaN, and whether blocks add in one order.
SEQUENCES = [
    pytest.param([0, 5, 5, 75, 80, 150], [0, 9, 40, 80, 80, 170], (2, 1, 64), (0, 4), True, {"causal": True}),
    pytest.param([0, 5, 5, 75, 205], [0, 9, 40, 40, 170], (2, 1, 64), (3,), False, {}, marks=SLOW),
    pytest.param([0, 0, 70, 135, 136], [0, 3, 3, 203, 204], (2, 2, 128), (1,), True, {}, marks=SLOW),
    pytest.param([0, 70, 71, 200], [0, 130, 133, 200], (2, 1, 128), (1,), True, {"window": (20, 5)}, marks=SLOW),
    pytest.param([0, 70, 71, 150], [0, 99, 102, 180], (2, 1, 256), (1,), True, {"causal": True}, marks=SLOW),
    pytest.param([0, 70, 71, 150], [0, 99, 102, 180], (2, 1, 88), (1,), False, {"window": (20, None)}, marks=SLOW),
]


@pytest.mark.parametrize(("starts", "key_starts", "heads", "spoiled", "ordered", "options"), SEQUENCES)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_warpgroups_compute_gradients_of_sequences(
    backend: Backend, starts: list[int], key_starts: list[int], heads: tuple[int, int, int], spoiled: tuple[int, ...],
    ordered: bool, options: dict[str, Any],
) -> None:  # fmt: skip
    """Some have no tokens or no keys; some are NaN, which tiles of others read: it has no effect on these."""
    (tokens, keys), (of_tokens, shared, head) = (starts[-1], key_starts[-1]), heads
    of_keys = (keys, shared, head)
    q, k, v, grad = normal((tokens, of_tokens, head), of_keys, of_keys, (tokens, of_tokens, head), dtype=BF16)
    out, lse = np.full(q.shape, np.nan, BF16), np.full(q.shape[1::-1], np.nan, np.float32)
    parts = [(slice(*starts[n : n + 2]), slice(*key_starts[n : n + 2])) for n in range(len(starts) - 1)]
    for n in reversed(spoiled):
        t, s = parts.pop(n)
        q[t], grad[t], k[s], v[s] = (np.nan,) * 4
    expected = [known(*(x.swapaxes(0, 1)[None] for x in (q[t], k[s], v[s], grad[t])), **options) for t, s in parts]
    for (t, _), one in zip(parts, expected, strict=True):
        out[t], lse[:, t] = one.out[0].swapaxes(0, 1), one.lse[0]
    at = backend.put(np.array(starts, np.int32)), backend.put(np.array(key_starts, np.int64)), None
    causal, window = options.get("causal", False), options.get("window")
    problem = read_problem("attention", *map(backend.put, (q, k, v)), causal, window, None, at)
    made = [backend.put(np.full_like(x, 7)) for x in (q, k, v)]
    *views, slope, result = (problem.heads(read("attention", "x", x)) for x in (*made, *map(backend.put, (grad, out))))
    numbers = problem.numbers(read("attention", "lse", backend.put(lse)))
    gradients_on_hopper(problem, views, (slope, result, numbers, None), ordered)
    dq, dk, dv = map(backend.get, made)
    for (t, s), one in zip(parts, expected, strict=True):
        for ours, of_formula in zip((dq[t], dk[s], dv[s]), one.gradients, strict=True):
            assert_close(ours.swapaxes(0, 1)[None], of_formula, BF16)


@pytest.mark.parametrize(("head", "ordered"), [(64, True), pytest.param(128, False, marks=SLOW)])
@pytest.mark.filterwarnings("ignore:needless wait")
@pytest.mark.slow
def test_warpgroups_compute_gradients_with_numbers_of_keys(backend: Backend, head: int, ordered: bool) -> None:
    """Keys behind a batch's number may be NaN, and their gradients are 0."""
    lengths = np.array([37, 0, 150])
    q, k, v, grad = arrays((3, 1, 1, 70, 140, head, head), BF16)
    out, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    expected = []
    for n, length in enumerate(lengths):
        k[n, :, length:], v[n, :, length:] = np.nan, np.nan
        each = slice(n, n + 1)
        one = known(q[each], k[each, :, :length], v[each, :, :length], grad[each], causal=True)
        out[each], lse[each] = one.out, one.lse
        expected.append(one.gradients)
    at = backend.put(lengths.clip(0, 140))  # in host memory others are refused
    problem = read_problem("attention", *map(backend.put, (q, k, v)), True, None, None, (None, None, at))
    at[2] = 150
    made = [backend.put(np.full_like(x, np.nan)) for x in (q, k, v)]
    given = (*(view_of(backend.put(x)) for x in (grad, out, lse)), None)
    gradients_on_hopper(problem, [view_of(x) for x in made], given, ordered)
    dq, dk, dv = map(backend.get, made)
    for n, length in enumerate(lengths):
        each = slice(n, n + 1)
        assert not any(x[n, :, length:].any() for x in (dk, dv))
        for ours, of_formula in zip((dq[each], dk[each, :, :length], dv[each, :, :length]), expected[n], strict=True):
            assert_close(ours, of_formula, BF16)


@pytest.mark.parametrize(
    ("starts", "key_starts"),
    [
        ([0, 300, 40, 300], [0, 300, 40, 300]),  # tokens and keys of the first sequence are those of others too
        pytest.param([0, 150, 300, 300], [300, -9, 500, 130], marks=SLOW),
        pytest.param([290, 5, 250, 70], [0, 100, 200, 300], marks=SLOW),
        pytest.param([200, 240, 290, 290], [170, 180, 190, 250], marks=SLOW),  # nothing is written before and behind
    ],
)
@pytest.mark.filterwarnings("ignore:needless wait")
@pytest.mark.slow
def test_gradients_end_whatever_offsets_are(backend: Backend, starts: list[int], key_starts: list[int]) -> None:
    """Blocks wait for others that add before them: offsets that fall must not make them wait for none."""
    q, k, v, grad = normal(*((300, 1, 64),) * 4, dtype=BF16)
    first = [np.array([0, 300, 300, 300], np.int32)] * 2  # in host memory others are refused
    at = [backend.put(x) for x in first]
    problem = read_problem("attention", *map(backend.put, (q, k, v)), False, None, None, (*at, None))
    for x, numbers in zip(at, (starts, key_starts), strict=True):
        x[:] = x.new_tensor(numbers) if hasattr(x, "new_tensor") else numbers
    made = [backend.put(np.full_like(q, 7)) for _ in "qkv"]
    views = [problem.heads(read("attention", "x", x)) for x in (*made, *map(backend.put, (grad, np.zeros_like(q))))]
    lse = problem.numbers(read("attention", "lse", backend.put(np.zeros((1, 300), np.float32))))
    gradients_on_hopper(problem, views[:3], (*views[3:], lse, None), True)
    if sorted(starts) == starts and sorted(key_starts) == key_starts:
        for x, numbers in zip(map(backend.get, made), (starts, key_starts, key_starts), strict=True):
            assert (x[: numbers[0]] == 7).all() and (x[numbers[-1] :] == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("head", [64, 88, 128, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 20)}], ids=str)
def test_many_sequences(head: int, options: dict[str, Any]) -> None:
    """Tiles as calls choose them; gradients in one order have the same bits."""
    pytest.importorskip("torch")
    backend = Gpu()
    starts = np.cumsum([0, 700, 1, 0, 128, 129, 1900, 64, 63, 333])
    q, k, v, grad = normal(*((starts[-1], n, head) for n in (4, 2, 2, 4)), dtype=BF16)
    placed, at = [backend.put(x) for x in (q, k, v)], {"offsets": backend.put(starts.astype(np.int32))}
    out, lse = tw.attention(*placed, statistics=True, **options, **at)
    slope = backend.put(grad)
    results = [
        tw.attention_backward(slope, *placed, out, lse, **options, **at, deterministic=order)
        for order in (True, True, False)
    ]
    for n in range(len(starts) - 1):
        t = slice(starts[n], starts[n + 1])
        one = known(*(x[t].swapaxes(0, 1)[None] for x in (q, k, v, grad)), **options)
        for gradients in results:
            for ours, of_formula in zip(gradients, one.gradients, strict=True):
                assert_close(backend.get(ours)[t].swapaxes(0, 1)[None], of_formula, BF16)
    assert all((backend.get(a) == backend.get(b)).all() for a, b in zip(*results[:2], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("head", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (300, 20)}, {"window": (300, None)}], ids=str)
@pytest.mark.parametrize(("tokens", "keys"), [(1000, 1000), (3000, 5001), (900, 300)])
def test_many_tiles(head: int, options: dict[str, Any], tokens: int, keys: int) -> None:
    """Tiles as calls choose them: too much for the simulator."""
    pytest.importorskip("torch")
    backend = Gpu()
    q, k, v, grad = arrays((2, 4, 2, tokens, keys, head, head), BF16)
    expected = known(q, k, v, grad, **options)
    placed = [backend.put(x) for x in (q, k, v)]
    out, lse = tw.attention(*placed, statistics=True, **options)
    assert_close(backend.get(out), expected.out, BF16)
    gradients = tw.attention_backward(backend.put(grad), *placed, out, lse, **options)
    again = tw.attention_backward(backend.put(grad), *placed, out, lse, **options)
    free = tw.attention_backward(backend.put(grad), *placed, out, lse, **options, deterministic=False)
    for ours, same, other, of_formula in zip(gradients, again, free, expected.gradients, strict=True):
        assert_close(backend.get(ours), of_formula, BF16)
        assert (backend.get(ours) == backend.get(same)).all()
        assert_close(backend.get(other), of_formula, BF16)
