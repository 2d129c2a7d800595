"""Epilogues of pairs of columns: by all families, both arrangements and any layout, against float64; what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.dropout import dropped
from tests.helpers.one_family import only
from tests.helpers.slow import examples, rest_is_slow

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels._hopper_kernel import matmul_warpgroups
from tilewright.kernels.functions import ElementFunction, captured
from tilewright.kernels.further import Further
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import THREADS, HopperConfiguration, plan_for
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem
from tilewright.kernels.winners import _key

BF16 = ml_dtypes.bfloat16
H200 = Machine.of(Arch.parse("sm_90a"))
PAIRS = ("halves", "interleaved")
PAIR = st.sampled_from(PAIRS)


def swish(gate: Any, up: Any) -> Any:
    return gate / (1 + tw.exp(-gate)) * up


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32).astype(dtype)


def split(product: np.ndarray, pairs: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both columns of each pair."""
    n = product.shape[-1] // 2
    return (product[..., :n], product[..., n:]) if pairs == "halves" else (product[..., ::2], product[..., 1::2])


def swished(product: np.ndarray, pairs: str) -> np.ndarray:
    gate, up = split(product, pairs)
    found: np.ndarray = gate / (1 + np.exp(-gate)) * up
    return found


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: np.ndarray = a.astype(np.float64) @ b.astype(np.float64)
    return found


def near(found: np.ndarray, expected: np.ndarray, slack: float = 1e-5) -> None:
    assert found.shape == expected.shape
    assert abs(found.astype(np.float64) - expected).max(initial=0) <= slack * max(abs(expected).max(initial=0), 1)


# --- the law -----------------------------------------------------------------------------------------------------------

EXTENT = st.integers(1, 70)
LAYOUTS = ["rows", "columns", "padded rows", "padded columns", "every other"]


def laid_out(b: np.ndarray, layout: str) -> np.ndarray:
    """Return the matrices with other strides."""
    *batch, k, columns = b.shape
    if layout == "rows":
        return b
    shape = {"columns": (columns, k), "padded rows": (k, columns + 3), "padded columns": (columns, k + 5)}
    held = np.zeros((*batch, *shape.get(layout, (k, 2 * columns))), b.dtype)
    view = held.swapaxes(-1, -2) if "columns" in layout else held
    view = view[..., ::2] if layout == "every other" else view[..., :k, :columns]
    view[...] = b
    return view


@examples(3, 14)
@given(
    m=EXTENT,
    n=EXTENT,
    k=st.integers(0, 40),
    batch=st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((2,), (2,))]),
    layout=st.sampled_from(LAYOUTS),
    columns=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
    pairs=PAIR,
)
def test_a_result_is_a_function_of_two_columns(m, n, k, batch, layout, columns, dtype, pairs) -> None:
    a = numbers(*batch[0], m, k, dtype=dtype)
    b = laid_out(numbers(*batch[1], k, 2 * n, dtype=dtype), layout)
    x = exact(a, b) + 0.5
    out = np.empty((*x.shape[:-2], n, m), np.float32).swapaxes(-1, -2) if columns else None
    half = np.full(1, 0.5, np.float32)
    found = tw.matmul(a, b, out=out, bias=half, epilogue=tw.gated(swish, pairs), out_dtype=tw.float32)
    near(found, swished(x, pairs))


@pytest.mark.parametrize("pairs", PAIRS)
def test_vectors_and_empty_results(pairs: Any) -> None:
    a, b = numbers(24), numbers(24, 14)
    near(tw.matmul(a, b, epilogue=tw.gated(swish, pairs)), swished(exact(a, b), pairs))
    assert tw.matmul(numbers(0, 24), b, epilogue=tw.gated(swish, pairs)).shape == (0, 7)
    assert tw.matmul(numbers(5, 24), b[:, :0], epilogue=tw.gated(swish, pairs)).shape == (5, 0)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("shape", [(40, 35, 24), (5, 130, 72)], ids=str)
@pytest.mark.spread(4)
def test_what_is_added_and_multiplied_before(pairs: Any, shape: tuple[int, int, int]) -> None:
    """c, bias and scales have the columns of the product; what the function captures has those of the result."""
    m, n, k = shape
    a, b = numbers(m, k), numbers(2 * n, k).T
    c, bias, rows, columns = numbers(m, 2 * n), numbers(2 * n), numbers(m, 1), numbers(1, 2 * n)
    residual, gain = numbers(m, n), numbers(n)
    found = tw.matmul(
        a, b, alpha=0.5, beta=2, c=c, bias=bias, scale_a=rows, scale_b=columns,
        epilogue=tw.gated(lambda gate, up: swish(gate, up) * gain + residual, pairs),
    )  # fmt: skip
    x = 0.5 * rows * columns * exact(a, b) + 2 * c + bias
    near(found, swished(x, pairs) * gain + residual, 1e-4)
    near(tw.matmul(a, b, scale_a=2.0, scale_b=rows[:1], epilogue=tw.gated(swish, pairs)),
         swished(2 * rows[0] * exact(a, b), pairs), 1e-4)  # fmt: skip


@pytest.mark.parametrize("pairs", PAIRS)
def test_further_results_and_dropout(pairs: Any) -> None:
    a, b, drop = numbers(40, 24), numbers(24, 70), tw.dropout(0.3, 5)
    y, gate, up, sums, most = tw.matmul(
        a,
        b,
        epilogue=tw.gated(lambda gate, up: (drop(swish(gate, up)), gate, up, up, gate), pairs),
        also=[tw.float32, tw.float32, ("sum", -2), ("amax", -1)],
    )
    known = split(exact(a, b), pairs)
    near(y, dropped(swished(exact(a, b), pairs), 0.3, 5))
    near(gate, known[0])
    near(up, known[1])
    near(sums, known[1].sum(0))
    near(most, abs(known[0]).max(-1))


@pytest.mark.parametrize("dtype", [tw.float32, tw.float16, tw.float8_e4m3fn], ids=str)
def test_a_quantised_result(dtype: tw.DType) -> None:
    a, b = numbers(37, 48).astype(dtype.numpy), numbers(400, 48).astype(dtype.numpy).T
    y, scales = tw.matmul(a, b, epilogue=tw.gated(swish), out_dtype=tw.float8_e4m3fn, also=("scale", -1))
    x = swished(exact(a, b), "halves")
    assert scales.shape == (37, 2)
    near(scales[:, 1], abs(x[:, 128:]).max(-1) / 448, 1e-6)
    spread = np.repeat(scales, 128, -1)[:, :200]
    assert (abs(y.astype(np.float64) * spread - x) <= abs(x) * 2.0**-4 * 1.01 + spread * 2.0**-9).all()


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("is_gated", [False, True])
def test_every_target_quantises_what_it_multiplies(arch: str, is_gated: bool) -> None:
    for dtype in (tw.float16, tw.bfloat16, tw.float8_e4m3fn, tw.float32):
        a, b = tw.spec(dtype, (40, 64)), tw.spec(dtype, (64, 256), (1, 64))
        for precision in ("tf32", "ieee") if dtype is tw.float32 else (None,):
            options: dict[str, Any] = {"epilogue": tw.gated(swish)} if is_gated else {}
            found = tw.matmul.explain(
                a, b, arch=arch, out_dtype=tw.float8_e4m3fn, also=("scale", -1), precision=precision, **options
            )
            assert found.choice is not None


def test_integers_and_8_bit_floats() -> None:
    a, b = numbers(20, 48) * 3, numbers(44, 48) * 3
    product = tw.gated(lambda gate, up: tw.maximum(gate, 0) * up)
    found = tw.matmul(a.astype(np.int8), b.astype(np.int8).T, epilogue=product)
    x = a.astype(np.int8).astype(np.int64) @ b.astype(np.int8).T.astype(np.int64)
    np.testing.assert_array_equal(found, np.maximum(x[:, :22], 0) * x[:, 22:])
    small = tw.float8_e4m3fn.numpy
    found = tw.matmul(a.astype(small), b.astype(small).T, epilogue=product, out_dtype=tw.float32)
    x = exact(a.astype(small), b.astype(small).T)
    near(found, np.maximum(x[:, :22], 0) * x[:, 22:])


def test_numbers_compile_nothing_new_and_pairs_do() -> None:
    def function(limit: float, pairs: Any = "halves") -> Any:
        return captured(tw.gated(lambda gate, up: tw.minimum(gate, limit) * up, pairs)).function

    assert function(1.0) is function(2.0) and function(1.0) is not function(1.0, "interleaved")
    a, b = numbers(8, 8), numbers(8, 8)
    x = split(exact(a, b), "halves")
    for limit in (0.5, -0.5):
        found = tw.matmul(a, b, epilogue=tw.gated(lambda gate, up, limit=limit: tw.minimum(gate, limit) * up))
        near(found, np.minimum(x[0], limit) * x[1])


def test_a_prepared_product_and_an_explanation() -> None:
    a, b = numbers(8, 16), numbers(16, 12)
    product = tw.matmul.prepare(a, b, epilogue=tw.gated(swish))
    a *= 2
    near(product(), swished(exact(a, b), "halves"))
    found = tw.matmul.explain(a, b, epilogue=tw.gated(swish, "interleaved"))
    assert "8 x 6 x 16" in str(found) and "swish of pairs, interleaved" in str(found)
    assert found.problem.flops == 2 * 8 * 12 * 16
    other = tw.matmul.explain(a, b, epilogue=tw.gated(swish))
    assert _key(found.problem) != _key(other.problem)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: tw.gated(3), "takes a function of two accumulators, got int"),
        (lambda a, b: tw.gated(swish, "thirds"), "'halves', 'interleaved', got 'thirds'"),
        (lambda a, b: tw.gated(swish)(a, b), "pass it as epilogue="),
        (lambda a, b: tw.matmul(a, b, epilogue=lambda acc: tw.gated(swish)(acc, acc)), "pass it as epilogue="),
        (lambda a, b: tw.matmul(a, b, epilogue=tw.gated(lambda gate: gate)), "two accumulators of a pair"),
        (lambda a, b: tw.matmul(a, b[:, 1:], epilogue=tw.gated(swish)), "b has 7 columns"),
        (lambda a, b: tw.matmul(a, b[:, 0], epilogue=tw.gated(swish)), "b is a vector"),
        (lambda a, b: tw.matmul(a, b, bias=b[0, :4], epilogue=tw.gated(swish)), r"the product's \(8, 8\)"),
        (
            lambda a, b: tw.matmul(a, b, out=a, beta=1, epilogue=tw.gated(swish)),
            "beta is 1, and there is neither c nor out",
        ),
        (lambda a, b: tw.matmul(a, b, precision="tf32x3", epilogue=tw.gated(swish)), "no accumulators of pairs"),
        (lambda a, b: tw.matmul(a, tw.quantize(b.astype(np.float16)), epilogue=tw.gated(swish)), "quantised weights"),
        (
            lambda a, b: tw.matmul(
                a.astype(tw.float8_e4m3fn.numpy),
                b.astype(tw.float8_e4m3fn.numpy),
                scale_a=np.ones((8, 1), np.float32),
                scale_b=np.ones((1, 4), np.float32),
                epilogue=tw.gated(swish),
            ),
            "scale_b has the shape",
        ),
    ],
)
def test_what_is_refused(call: Callable[[np.ndarray, np.ndarray], object], message: str) -> None:
    with pytest.raises((tw.ArgumentError, tw.LanguageError), match=message):
        call(numbers(8, 8), numbers(8, 8))


def test_scales_of_blocks_are_refused() -> None:
    x, w = (numbers(rows, 256).astype(tw.float8_e4m3fn.numpy) for rows in (8, 16))
    scales = np.ones((8, 2), np.float32), np.ones((2, 16), np.float32)
    with pytest.raises(tw.ArgumentError, match="scales of blocks are not for pairs"):
        tw.matmul(x, w.T, scale_a=scales[0], scale_b=scales[1], epilogue=tw.gated(swish))


# --- families ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
@pytest.mark.spread(4)
def test_each_tile_of_multistage(dtype: Any, pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, residual = numbers(131, 72, dtype=dtype), numbers(2 * 133, 72, dtype=dtype).T, numbers(131, 133)
    options: dict[str, Any] = {
        "epilogue": tw.gated(lambda gate, up: swish(gate, up) + residual, pairs),
        "out_dtype": tw.float32,
    }
    found = tw.matmul.explain(a, b, **options, arch="sm_80").candidates
    legal = {c.configuration: c for c in found if c.rejection is None and c.family.name == "multistage"}
    assert len(legal) >= 6 and all(c.configuration.splits == 1 for c in legal.values())
    for c in [*legal.values()][::3]:
        monkeypatch.setattr(dispatch, "fastest", lambda *_, c=c: c)
        entry._signature.cache_clear()
        near(tw.matmul(a, b, **options), swished(exact(a, b), pairs) + residual)
    entry._signature.cache_clear()


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("m", [1, 13])
@pytest.mark.spread(4)
def test_streaming(m: int, pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = numbers(2, m, 392, dtype=BF16), numbers(2, 2 * 27, 392, dtype=BF16).swapaxes(-1, -2), numbers(2 * 27)
    drop = tw.dropout(0.3, 3)
    options: dict[str, Any] = {
        "bias": bias,
        "epilogue": tw.gated(lambda gate, up: drop(swish(gate, up)), pairs),
        "out_dtype": tw.float32,
    }
    found = tw.matmul.explain(a, b, **options, arch="sm_80").candidates
    legal = [c for c in found if c.rejection is None and c.family.name == "streaming"]
    for c in (legal[0], legal[-1]):
        monkeypatch.setattr(dispatch, "fastest", lambda *_, c=c: c)
        entry._signature.cache_clear()
        near(tw.matmul(a, b, **options), dropped(swished(exact(a, b) + bias, pairs), 0.3, 3))
    entry._signature.cache_clear()


TILES = {
    "cooperative": HopperConfiguration((128, 64, 64), (8, 1), 4),
    "narrow": HopperConfiguration((128, 16, 64), (8, 1), 4),
    "wide": HopperConfiguration((128, 192, 64), (8, 1), 3),
    "two waves": HopperConfiguration((256, 64, 64), (8, 1), 3),
    "cluster": HopperConfiguration((128, 128, 64), (8, 1), 4, cluster=2),
    "ping-pong": HopperConfiguration((64, 128, 64), (8, 1), 4, is_ping_pong=True),
    "transposed": HopperConfiguration((16, 256, 64), (1, 8), 4, is_swapped=True),
    "transposed ping-pong": HopperConfiguration((8, 128, 64), (1, 8), 4, is_ping_pong=True, is_swapped=True),
    "transposed, alternating": HopperConfiguration((16, 128, 64), (1, 8), 4, is_swapped=True),
    "transposed, alternating, ping-pong": HopperConfiguration(
        (16, 64, 64), (1, 8), 4, is_ping_pong=True, is_swapped=True
    ),
    "splits in a cluster": HopperConfiguration((128, 64, 64), (8, 1), 3, splits=2, adds_in_cluster=True),
    "transposed, splits in a cluster": HopperConfiguration(
        (16, 256, 64), (1, 8), 4, splits=2, adds_in_cluster=True, is_swapped=True
    ),
}


@pytest.mark.parametrize("layout", ["rows, halves", "rows, interleaved", "columns, halves", "columns, interleaved"])
@pytest.mark.parametrize("name", rest_is_slow(TILES, "wide", "two waves", "ping-pong", "transposed, alternating"))
@pytest.mark.spread(9)
def test_warpgroups(name: str, layout: str) -> None:
    """Rows of b are read in place, and columns too if they are halves; neighbours along a row are packed."""
    m, n = (7, 140) if "transposed" in name else (140, 7) if name == "narrow" else (150, 168)
    n += 4 * ("alternating" in name)  # which are of 8 rows each
    by, pairs = layout.split(", ")
    a, b = numbers(2, m, 136, dtype=BF16), laid_out(numbers(2, 136, 2 * n, dtype=BF16), by)
    bias, residual, drop = numbers(2 * n), numbers(m, n), tw.dropout(0.3, 3)
    out, splits = tw.float32 if name == "two waves" else tw.bfloat16, "splits" in name  # those have no more results

    def function(gate: Any, up: Any) -> Any:
        y = drop(swish(gate, up)) + residual
        return y if splits else (y, up)

    if "alternating" in name and layout == "rows, halves":
        with only(TILES[name], 3), pytest.raises(tw.ArgumentError, match="no kernel multiplies") as refused:
            tw.matmul(a, b, epilogue=tw.gated(swish))
        assert "rows of pairs alternate by 8" in str(refused.value)
        return
    with only(TILES[name], 132 if splits else 3) as family:
        epilogue, also = tw.gated(function, pairs), () if splits else ("sum", -1)  # type: ignore[arg-type]
        found = tw.matmul(a, b, bias=bias, epilogue=epilogue, out_dtype=out, also=also)
        y, sums = (found, None) if splits else found
    assert family.launched and (family.launched[0].b.major == "MN") == (layout == "rows, halves" and n % 8 == 0)
    x = exact(a, b) + bias
    near(y, dropped(swished(x, pairs), 0.3, 3) + residual, 1e-5 if out is tw.float32 else 4e-3)
    if sums is not None:
        near(sums, split(x, pairs)[1].sum(-1))


@pytest.mark.parametrize("name", ["cooperative", "transposed", "transposed, alternating"])
def test_warpgroups_with_8_bit_floats_and_scales(name: str) -> None:
    """The sums of 128 elements of K are promoted, those of D^T in two waves."""
    m, n, small = 7 if "transposed" in name else 130, 144, tw.float8_e4m3fn.numpy
    tile = replace(TILES[name], tile=(*TILES[name].tile[:2], 128), stages=3)
    a, b = numbers(m, 400, dtype=small), numbers(2 * n, 400, dtype=small).T
    rows, columns = abs(numbers(m, 1)), abs(numbers(1, 2 * n))
    with only(tile, 3) as family:
        y = tw.matmul(a, b, scale_a=rows, scale_b=columns, epilogue=tw.gated(swish), out_dtype=tw.float32)
    assert [x.doubled for x in family.launched] == [(False, True)]
    near(y, swished(rows * columns * exact(a, b), "halves"), 1e-4)


# --- what is compiled --------------------------------------------------------------------------------------------------


def problem(m: int, n: int, **more: Any) -> Problem:
    a, b, d = (Operand(tw.bfloat16, major, 16) for major in ("K", "K", "MN"))
    function = captured(tw.gated(swish)).function
    return Problem(m, n, 4096, 1, a, b, d, tw.bfloat16, tw.float32, epilogue=function, is_gated=True, **more)


MORE: dict[str, dict[str, Any]] = {
    "alone": {},
    "bias": {"bias": tw.bfloat16, "doubled": (True,)},
    "c": {"c": tw.bfloat16, "doubled": (True,)},
    "two more": {"further": (Further(tw.bfloat16), Further(tw.bfloat16))},
}


def compiled() -> Iterator[object]:
    """Yield each configuration with what may stand beside it."""
    for name, more in MORE.items():
        seen = set()
        for m, n in ((4096, 4096), (5, 4096), (60, 4096), (4096, 12)):
            for c in Hopper().candidates(problem(m, n, **more), H200):
                assert isinstance(c.configuration, HopperConfiguration) and c.rejection is None, c
                kind = replace(c.configuration, stages=4, splits=min(c.configuration.splits, 2), group=8)
                if kind not in seen:
                    seen.add(kind)
                    yield pytest.param(name, kind, id=f"{name}, {kind}")


@pytest.mark.parametrize(("name", "configuration"), list(compiled()))
@pytest.mark.spread(80)
def test_nothing_spills(name: str, configuration: HopperConfiguration) -> None:
    """Neither are sums of all columns written, by whatever configuration."""
    assert configuration.splits == 1 or configuration.adds_in_cluster
    asked = problem(4093, 4088, **MORE[name])
    assert isinstance(asked.epilogue, ElementFunction)
    plan, one = plan_for(asked, configuration, H200.arch), np.float32(1)
    a, d = (tw.spec(tw.bfloat16, (4093, columns, 1), stride=(4096, 1, 0)) for columns in (4091, 4088))
    b = tw.spec(tw.bfloat16, (4088, 4091, 2, 1), stride=(4096, 1, 4088 * 4096, 0))
    row = tw.spec(tw.bfloat16, (4093, 4088, 1), stride=(0, 1, 0))
    operands = {"bias": [row, row], "c": [d, d], "two more": [d, d]}.get(name, [])
    kernel = matmul_warpgroups.numbered(len(operands)).configure(min_blocks=1)
    if configuration.cluster_size > 1:
        kernel = kernel.configure(cluster=configuration.cluster_size)
    found = kernel[132, THREADS].resources(d, a, b, one, one, plan, *operands, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


# --- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("by", ["rows", "columns"])
@pytest.mark.parametrize(
    "shape", [(1, 4096, 1024), (8, 1000, 520), (70, 50, 33), (1000, 2000, 512), (4096, 1500, 256)], ids=str
)
def test_on_a_gpu(shape: tuple[int, int, int], by: str, dtype: str, pairs: Any) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = shape
    kind = getattr(torch, dtype)
    a = torch.randn(m, k, device="cuda").to(kind)
    b = (
        torch.randn(2 * n, k, device="cuda").to(kind).T
        if by == "rows"
        else torch.randn(k, 2 * n, device="cuda").to(kind)
    )
    bias = torch.randn(2 * n, device="cuda")
    found = tw.matmul(a, b, bias=bias, epilogue=tw.gated(swish, pairs), out_dtype=tw.float64)
    x = (a.double() @ b.double() + bias.double()).cpu().numpy()
    near(found.cpu().numpy(), swished(x, pairs), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("pairs", PAIRS)
def test_every_configuration_on_a_gpu(pairs: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    a, w = torch.randn(1000, 520, device="cuda").bfloat16(), torch.randn(2 * 1208, 520, device="cuda").bfloat16()
    for rows in (5, 60, 1000):
        x = (a[:rows].double() @ w.T.double()).cpu().numpy()
        for c in Hopper().candidates(replace(problem(rows, 1208), k=520), H200):
            assert isinstance(c.configuration, HopperConfiguration)
            with only(c.configuration, 132) as family:
                found = tw.matmul(a[:rows], w.T, epilogue=tw.gated(swish, pairs))
            if family.launched:
                near(found.double().cpu().numpy(), swished(x, pairs), 1e-2)
