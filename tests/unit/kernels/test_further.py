"""Results beside a product's: of all shapes and families, against NumPy; what is refused; what is compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.one_family import only
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels._hopper_kernel import matmul_warpgroups
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import THREADS, HopperConfiguration, plan_for
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.problem import Further, Operand, Problem

H200 = Machine.of(Arch.parse("sm_90a"))
ALSO = [("sum", -2), ("max", -1), ("amax", -1), ("min", -2), tw.float32, ("sum", -1), ("amax", -2)]


def several(x: Any) -> tuple[Any, ...]:
    return tw.maximum(x, 0), x, 2 * x, x - 1, x, x, x * x, x


def expected(x: np.ndarray) -> list[np.ndarray]:
    """Return what NumPy makes of the sums of products, in float64."""
    return [
        np.maximum(x, 0), x.sum(-2), (2 * x).max(-1), abs(x - 1).max(-1), x.min(-2), x, (x * x).sum(-1), abs(x).max(-2),
    ]  # fmt: skip


def numbers(*shape: int, dtype: tw.DType = tw.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32).astype(dtype.numpy)


def check(found: tuple[Any, ...], x: np.ndarray, slack: float) -> None:
    assert isinstance(found, tuple)
    for ours, known in zip(found, expected(x), strict=True):
        assert ours.shape == known.shape
        assert (abs(ours.astype(np.float64) - known) <= slack * max(abs(known).max(), 1)).all()


SHAPES = [(70, 50, 33), (128, 128, 64), (5, 200, 17), (300, 260, 40), (1, 1, 1), (64, 1, 8), (1, 300, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "slack"), [(tw.float32, 1e-5), (tw.float64, 1e-7), (tw.bfloat16, 1e-2)], ids=str)
@pytest.mark.spread(8)
def test_values(shape: tuple[int, int, int], dtype: tw.DType, slack: float) -> None:
    m, n, k = shape
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype)
    found = tw.matmul(a, b, epilogue=several, also=ALSO)
    check(found, a.astype(np.float64) @ b.astype(np.float64), slack)
    wide = np.float64 if dtype is tw.float64 else np.float32
    assert [x.dtype for x in found[1:]] == [np.float32 if x is tw.float32 else wide for x in ALSO]


@pytest.mark.parametrize("layout", ["rows", "columns of D", "batches", "batches of one row", "shared b", "strides"])
@pytest.mark.spread(3)
def test_layouts_and_batches(layout: str) -> None:
    a, b, out = numbers(40, 24), numbers(24, 36), None
    if layout == "columns of D":
        out = np.empty((36, 40), np.float32).T
    elif layout == "batches":
        a, b = numbers(2, 1, 40, 24), numbers(3, 24, 36)
    elif layout == "batches of one row":
        a, b = numbers(3, 1, 24), numbers(3, 24, 36)
    elif layout == "shared b":
        a = numbers(3, 40, 24)
    elif layout == "strides":
        a, b = numbers(24, 80).T[::2], numbers(48, 36)[::-2]
    found = tw.matmul(a, b, out=out, epilogue=several, also=ALSO)
    assert out is None or found[0] is out
    check(found, a.astype(np.float64) @ b.astype(np.float64), 1e-5)


def test_without_a_function_all_results_have_the_same_values() -> None:
    a, b, bias, c = numbers(40, 24), numbers(24, 36), numbers(36), numbers(40, 36)
    y, sums, rounded = tw.matmul(a, b, bias=bias, c=c, beta=2, alpha=0.5, also=[("sum", -2), tw.float16])
    x = 0.5 * (a @ b) + 2 * c + bias
    np.testing.assert_allclose(y, x, atol=1e-5)
    np.testing.assert_allclose(sums, x.sum(0), atol=1e-4)
    assert rounded.dtype == np.float16 and abs(rounded - x).max() < 0.02
    one = tw.matmul(a, b, also=("amax", -1))
    np.testing.assert_allclose(one[1], abs(a @ b).max(-1), rtol=1e-5)


def test_values_are_those_before_rounding() -> None:
    a, b = numbers(16, 16), numbers(16, 16)
    y, most = tw.matmul(a, b, out_dtype=tw.float8_e4m3fn, epilogue=lambda x: (x / 8, x), also=[("amax", -1)])
    assert y.dtype == tw.float8_e4m3fn.numpy
    np.testing.assert_allclose(most, abs(a @ b).max(-1), rtol=1e-5)


def check_scales(y: np.ndarray, scales: np.ndarray, x: np.ndarray, largest: float = 448.0, slack: float = 1e-5) -> None:
    """Check that each block of 128 columns of a row is divided by its greatest value over the type's greatest."""
    blocks = -(-x.shape[-1] // 128)
    wide = np.zeros((*x.shape[:-1], blocks * 128))
    wide[..., : x.shape[-1]] = x
    most = abs(wide.reshape(*x.shape[:-1], blocks, 128)).max(-1)
    assert scales.shape == most.shape and scales.dtype == np.float32
    np.testing.assert_allclose(scales, np.where(most > 0, most / largest, 1), rtol=slack)
    spread = np.repeat(scales.astype(np.float64), 128, -1)[..., : x.shape[-1]]
    bits = 3 if largest == 448 else 2
    assert (abs(y.astype(np.float64) * spread - x) <= abs(x) * 2.0 ** -(bits + 1) * 1.01 + spread * 2.0**-9).all()


@pytest.mark.parametrize("shape", [(70, 300, 40), (128, 128, 64), (5, 17, 8), (130, 256, 8), (1, 1, 1)], ids=str)
@pytest.mark.spread(4)
def test_scales_that_are_computed_on_the_way(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = numbers(m, k), numbers(k, n)
    x = a.astype(np.float64) @ b
    x[0] = 0
    a[0] = 0
    y, scales = tw.matmul(a, b, out_dtype=tw.float8_e4m3fn, also=("scale", -1))
    check_scales(y, scales, x)
    y, sums, scales = tw.matmul(
        a, b, out_dtype=tw.float8_e5m2, epilogue=lambda s: tw.maximum(s, 0), also=[("sum", -2), ("scale", -1)]
    )
    check_scales(y, scales, np.maximum(x, 0), 57344.0)
    np.testing.assert_allclose(sums, np.maximum(x, 0).sum(0), atol=1e-4)


def test_scales_of_the_smallest_numbers_are_not_subnormal() -> None:
    """Where the inverse of a scale would be infinite, 0 would become NaN."""
    x = np.array([[1e-38, 5e-39, 0], [1e-43, 0, 0], [0, 2.0**-126 * 448, -(2.0**-127)]], np.float32)
    y, scales = tw.matmul(x, np.eye(3, dtype=np.float32), out_dtype=tw.float8_e4m3fn, also=("scale", -1))
    assert np.array_equal(scales, np.full((3, 1), 2.0**-126, np.float32))
    assert np.array_equal(y.astype(np.float64), [[0.875, 0.4375, 0], [0, 0, 0], [0, 448, -0.5]])


def test_scales_of_a_result_of_one_column_and_of_one_that_is_contiguous_along_columns() -> None:
    """Where the elements of a column are contiguous, other products compute D^T, which has scales of columns."""
    for n in (1, 130):
        a, b = numbers(6, 8), numbers(8, n)
        out = np.zeros((n, 6), tw.float8_e4m3fn.numpy).T
        y, scales = tw.matmul(a, b, out=out, also=("scale", -1))
        assert y is out
        check_scales(y, scales, a.astype(np.float64) @ b)


def test_a_quantised_result_is_an_operand_of_the_next_product() -> None:
    a, b, c = numbers(40, 24), numbers(24, 256), numbers(16, 256)
    y, scales = tw.matmul(a, b, out_dtype=tw.float8_e4m3fn, also=("scale", -1))
    found = tw.matmul(y, c.astype(tw.float8_e4m3fn.numpy).T, scale_a=scales, out_dtype=tw.float32)
    expected = (a @ b) @ c.T
    assert abs(found - expected).max() < 0.1 * abs(expected).max()


def test_integers() -> None:
    a, b = (np.random.default_rng(n).integers(-9, 9, (20, 20)).astype(np.int8) for n in range(2))
    x = a.astype(int) @ b.astype(int)
    y, sums, most = tw.matmul(a, b, also=[("sum", -2), ("max", -1)])
    assert (y == x).all() and (sums == x.sum(0)).all() and (most == x.max(-1)).all() and sums.dtype == np.int32
    y, most = tw.matmul(a, b, out_dtype=tw.float32, epilogue=lambda s: s.to(tw.float32) * 0.5, also=[("amax", -1)])
    assert most.dtype == np.float32 and (most == abs(x).max(-1) / 2).all()


def test_arrays_and_numbers_that_the_function_captures() -> None:
    a, b, gate = numbers(40, 24), numbers(24, 36), numbers(40, 36)
    x = (a @ b).astype(np.float64)
    for factor in (3.0, 5.0):
        y, sums = tw.matmul(a, b, epilogue=lambda s: (s * gate, s * factor), also=[("sum", -1)])
        np.testing.assert_allclose(y, x * gate, atol=1e-4)
        np.testing.assert_allclose(sums, factor * x.sum(-1), atol=1e-3)


def test_nothing() -> None:
    y, sums, most = tw.matmul(numbers(0, 4), numbers(4, 3), also=[("sum", -2), ("amax", -2)])
    assert y.shape == (0, 3) and sums.tolist() == most.tolist() == [0, 0, 0]
    assert tw.matmul(numbers(0, 4), numbers(4, 3), also=("sum", -1))[1].shape == (0,)
    y, sums = tw.matmul(numbers(2, 0), numbers(0, 3), also=("sum", -2))
    assert (y == 0).all() and (sums == 0).all()
    with pytest.raises(tw.ArgumentError, match="no element"):
        tw.matmul(numbers(0, 4), numbers(4, 3), also=("max", -2))


def test_asking_for_none_gives_the_product_alone() -> None:
    a = np.eye(2, dtype=np.float32)
    assert np.array_equal(tw.matmul(a, a, also=[]), a) and np.array_equal(tw.matmul(a, a, also=()), a)


def test_prepared_and_explained() -> None:
    a, b = numbers(40, 24), numbers(24, 36)
    product = tw.matmul.prepare(a, b, also=[("sum", -2)])
    a[0] += 1
    y, sums = product()
    np.testing.assert_allclose(y, a @ b, atol=1e-5)
    np.testing.assert_allclose(sums, (a @ b).sum(0), atol=1e-4)
    told = json.loads(tw.matmul.explain(a, b, also=[("sum", -2), tw.float16]).to_json())["problem"]
    assert told["further"] == ["sum over M in float32", "float16"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: tw.matmul(a, a, also=("mean", -1)), "also asks for"),
        (lambda a: tw.matmul(a, a, also=[("sum", 0)]), "also asks for"),
        (lambda a: tw.matmul(a, a, also="what"), "also asks for 'what'"),
        (lambda a: tw.matmul(a, a, also=np.ones(3)), r"also asks for array\(\[1"),
        (lambda a: tw.matmul(a, a, also=[tw.tfloat32]), "not a type of an array"),
        (lambda a: tw.matmul(a[0], a, also=("sum", -1)), "is a vector"),
        (lambda a: tw.matmul(a, a, also=("scale", -1)), "the result is float32"),
        (lambda a: tw.matmul(a, a, out_dtype=tw.float8_e5m2, also=("scale", -2)), "scales along -1"),
        (lambda a: tw.matmul(a, a, epilogue=lambda x: (x, x)), "returns 2 values, and the product has 1"),
        (lambda a: tw.matmul(a, a, epilogue=lambda x: (x, x), also=[tw.float16] * 2), "has 3 results"),
        (lambda a: tw.matmul(a, a, epilogue=lambda x: (x, None), also=[tw.float16]), "returns a NoneType"),
    ],
)
def test_what_is_refused(call: Callable[[np.ndarray], object], message: str) -> None:
    with pytest.raises((tw.ArgumentError, tw.LanguageError), match=message):
        call(numbers(4, 4))


# --- the Hopper family -----------------------------------------------------------------------------------------------

TILES = {
    "cooperative": HopperConfiguration((128, 64, 64), (8, 1), 4),
    "cluster": HopperConfiguration((128, 64, 64), (8, 1), 4, cluster=2),
    "ping-pong": HopperConfiguration((64, 64, 64), (8, 1), 4, is_ping_pong=True),
    "transposed": HopperConfiguration((16, 128, 64), (1, 8), 4, is_swapped=True),
}


@pytest.mark.parametrize("name", rest_is_slow(TILES, "cooperative", "transposed"))
@pytest.mark.parametrize("shape", [(150, 100, 136), (12, 140, 136)], ids=str)
@pytest.mark.spread(3)
def test_warpgroups(name: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = numbers(2, m, k, dtype=tw.bfloat16), numbers(2, k, n + 4, dtype=tw.bfloat16)[:, :, :n]
    gate = numbers(m, n)
    with only(TILES[name], 3) as family:
        found = tw.matmul(a, b, epilogue=lambda x: several(x + gate), also=ALSO, out_dtype=tw.float32)
    assert family.launched
    check(found, a.astype(np.float64) @ b.astype(np.float64) + gate, 1e-4)


@pytest.mark.parametrize("name", rest_is_slow(["cooperative", "cluster", "ping-pong"], "ping-pong"))
def test_scales_by_warpgroups(name: str) -> None:
    m, n, _ = TILES[name].tile
    configuration = replace(TILES[name], tile=(m, 2 * n if n == 64 else n, 64), stages=3)
    a, b = numbers(2, 150, 72, dtype=tw.bfloat16), numbers(2, 72, 304, dtype=tw.bfloat16)
    with only(configuration, 3) as family:
        y, sums, scales = tw.matmul(a, b, out_dtype=tw.float8_e4m3fn, also=[("sum", -2), ("scale", -1)])
    x = a.astype(np.float64) @ b.astype(np.float64)
    assert family.launched
    check_scales(y, scales, x)
    np.testing.assert_allclose(sums, x.sum(-2), atol=1e-3)


def problem(m: int, n: int, further: tuple[Further, ...]) -> Problem:
    a, b, d = (Operand(tw.bfloat16, major, 16) for major in ("K", "K", "MN"))
    return Problem(m, n, 4096, 1, a, b, d, tw.bfloat16, tw.float32, further=further)


def compiled() -> list[HopperConfiguration]:
    """Return a configuration of each tile that is proposed."""
    found = {}
    for m, n in ((4096, 4096), (5, 4096), (4096, 12)):
        for c in Hopper().candidates(problem(m, n, (Further(tw.float32, "sum", "M"),)), H200):
            if c.rejection is None and isinstance(c.configuration, HopperConfiguration):
                key = replace(c.configuration, stages=4, group=8)
                found[key.tile, key.is_ping_pong, key.is_swapped, key.cluster_size > 1] = key
    return list(found.values())


FURTHER: dict[str, tuple[Further, ...]] = {
    "bias gradient": (Further(tw.float32, "sum", "M"),),
    "amax of rows": (Further(tw.float32, "amax", "N"),),
    "two outputs": (Further(tw.bfloat16),),
    "all": (Further(tw.float32, "sum", "M"), Further(tw.float32, "amax", "N"), Further(tw.bfloat16)),
}


@pytest.mark.parametrize("configuration", compiled(), ids=str)
@pytest.mark.parametrize("name", rest_is_slow(FURTHER, "amax of rows", "all"))
@pytest.mark.spread(32)
def test_nothing_spills(name: str, configuration: HopperConfiguration) -> None:
    further = FURTHER[name]
    plan = plan_for(problem(4093, 4096, further), configuration, H200.arch)
    a, b = (tw.spec(tw.bfloat16, (rows, 4091, 1), stride=(4096, 1, 0)) for rows in (4093, 4096))
    d = tw.spec(tw.bfloat16, (4093, 4096, 1), stride=(4096, 1, 0))
    parts = tw.spec(tw.float32, (4096, 256, 1), stride=(1, 4096, 0))
    kernel = matmul_warpgroups.numbered(len(further)).configure(min_blocks=1)
    if configuration.cluster_size > 1:
        kernel = kernel.configure(cluster=configuration.cluster_size)
    one = np.float32(1)
    rest = [d if x.operation is None else parts for x in further]
    found = kernel[132, THREADS].resources(d, a, b, one, one, plan, *rest, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


def test_other_families_are_not_asked() -> None:
    reduced = problem(4096, 4096, (Further(tw.float32, "sum", "M"),))
    for family in (Hopper(), Multistage()):
        candidates = family.candidates(reduced, H200)
        assert candidates and all(c.configuration.splits == 1 for c in candidates)


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 2000, 512), (4096, 3000, 256), (8, 4096, 1024)], ids=str)
def test_on_a_gpu(shape: tuple[int, int, int], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a, b = (torch.randn(*extents, device="cuda").to(getattr(torch, dtype)) for extents in ((m, k), (k, n)))
    found = tw.matmul(a, b, epilogue=several, also=ALSO)
    again = tw.matmul(a, b, epilogue=several, also=ALSO)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    slack = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-4, "float64": 1e-6}[dtype]
    check(
        tuple(x.float().cpu().numpy() if x.dtype is torch.bfloat16 else x.cpu().numpy() for x in found),
        a.double().cpu().numpy() @ b.double().cpu().numpy(),
        slack,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1000, 2000, 512), (130, 300, 64), (4096, 4096, 1024)], ids=str)
def test_scales_on_a_gpu(shape: tuple[int, int, int]) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = shape
    a, b = (torch.randn(*extents, device="cuda").bfloat16() for extents in ((m, k), (k, n)))
    y, scales = tw.matmul(a, b, out_dtype=tw.float8_e4m3fn, also=("scale", -1))
    check_scales(
        y.float().cpu().numpy(), scales.cpu().numpy(), a.double().cpu().numpy() @ b.double().cpu().numpy(), slack=1e-4
    )


@pytest.mark.gpu
def test_every_configuration_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    a, b = torch.randn(2, 1000, 520, device="cuda").bfloat16(), torch.randn(2, 520, 1208, device="cuda").bfloat16()
    exact = a.double().cpu().numpy() @ b.double().cpu().numpy()
    for configuration in compiled():
        with only(configuration, 132) as family:
            found = tw.matmul(a, b, epilogue=several, also=ALSO, out_dtype=tw.float32)
        if family.launched:
            check(tuple(x.cpu().numpy() for x in found), exact, 1e-4)
