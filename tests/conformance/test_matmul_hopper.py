"""The Hopper family of `tw.matmul`: every branch of its kernel on both backends, in the simulator under all checks.

Operands are small integers, so that sums are exact in every order and results of float32 are compared to the bit;
those of 16 bits are the rounded exact ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.helpers.one_family import only
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.kernels import hopper
from tilewright.kernels.hopper_plan import HopperConfiguration, StreamConfiguration

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
KIND = {"bf16": BF16, "f16": np.float16, "tf32": np.float32, "e4m3": E4M3, "e5m2": E5M2, "s8": np.int8, "u8": np.uint8}


@dataclass(frozen=True)
class Case:
    """A product (M, N, K), how it is cut up, and by how many blocks; `majors` are those of A and B."""

    extents: tuple[int, int, int]
    tile: tuple[int, int, int]
    blocks: int
    types: tuple[str, str] = ("bf16", "bf16")
    majors: str = "KK"
    out: Any = None
    batch: tuple[int, ...] = ()
    stages: int = 3
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> HopperConfiguration:
        more = dict(self.more)
        kind = StreamConfiguration if more.pop("streams", False) else HopperConfiguration
        return kind(self.tile, more.pop("warps", (8, 1)), self.stages, 2, **more)


PING_PONG, SWAPPED, CLUSTER = {"is_ping_pong": True}, {"is_swapped": True}, {"cluster": 2}
IN_CLUSTER, STREAM, ALONE = {"adds_in_cluster": True}, {"streams": True}, {"warps": (4, 1)}
THREE, BESIDE = {"warps": (12, 1)}, {"cluster_n": 2}
CASES = {
    "one tile, few steps": Case((128, 256, 64), (128, 256, 64), 1),
    "edges, more tiles than blocks": Case((200, 264, 200), (128, 128, 64), 2),
    "two rows of instructions": Case((200, 136, 72), (256, 128, 64), 1, majors="MK"),
    "M and N contiguous": Case((136, 264, 200), (128, 128, 64), 2, majors="MM"),
    "one element": Case((1, 1, 1), (128, 64, 64), 1),
    "a batch": Case((72, 72, 72), (128, 64, 64), 2, batch=(3,)),
    "ping-pong": Case((136, 264, 136), (64, 128, 64), 2, more=PING_PONG),
    "ping-pong, one tile": Case((64, 64, 72), (64, 64, 64), 1, more=PING_PONG),
    "ping-pong, parts of 16 columns": Case((70, 224, 72), (64, 112, 64), 2, more=PING_PONG),
    "ping-pong, float32, N contiguous": Case((72, 136, 136), (64, 64, 64), 1, majors="KM", out=np.float32, more=PING_PONG),
    "cluster": Case((300, 136, 136), (128, 128, 64), 2, more=CLUSTER),
    "cluster, N contiguous": Case((130, 256, 136), (128, 128, 64), 4, majors="KM", more=CLUSTER),
    "cluster, ping-pong": Case((200, 264, 72), (64, 128, 64), 2, more=CLUSTER | PING_PONG),
    "swapped": Case((5, 264, 136), (8, 128, 64), 2, more=SWAPPED),
    "swapped, ping-pong, M contiguous": Case((24, 136, 136), (32, 64, 64), 1, majors="MK", more=SWAPPED | PING_PONG),
    "swapped, few contiguous rows": Case((5, 136, 136), (16, 128, 64), 1, majors="MK", more=SWAPPED),
    "few contiguous columns": Case((136, 7, 136), (128, 16, 64), 1, majors="KM"),
    "three consumers": Case((200, 264, 136), (192, 192, 64), 2, majors="KM", more=THREE),
    "three consumers, float32": Case((70, 136, 72), (192, 192, 64), 1, out=np.float32, more=THREE),
    "three consumers, odd rows": Case((193, 131, 72), (192, 192, 64), 2, more=THREE),
    "splits": Case((130, 136, 600), (128, 128, 64), 3, more={"splits": 3}),
    "splits, swapped, a batch": Case((3, 136, 520), (8, 128, 64), 4, batch=(2,), more={"splits": 4} | SWAPPED),
    "splits in a cluster": Case((130, 136, 600), (128, 128, 64), 1, more={"splits": 2} | IN_CLUSTER),
    "splits in a cluster, swapped": Case((5, 136, 520), (8, 128, 64), 1, more={"splits": 4} | SWAPPED | IN_CLUSTER),
    "splits in a cluster, a part each": Case((40, 136, 520), (64, 128, 64), 1, more={"splits": 4} | SWAPPED | IN_CLUSTER),
    "splits in a cluster, two of three finish": Case((40, 136, 520), (64, 128, 64), 1, batch=(2,), more={"splits": 3} | SWAPPED | IN_CLUSTER),
    "splits in a cluster, e4m3": Case((72, 72, 600), (128, 64, 128), 1, ("e4m3", "e4m3"), more={"splits": 2} | IN_CLUSTER),
    "splits in a cluster, two consumers, two of three finish": Case((130, 64, 520), (128, 64, 64), 1, more={"splits": 3} | IN_CLUSTER),
    "splits in a cluster, five, e4m3": Case((40, 136, 1400), (40, 128, 128), 1, ("e4m3", "e4m3"), more={"splits": 5} | SWAPPED | IN_CLUSTER),
    "splits in a cluster, eight": Case((60, 64, 1100), (64, 64, 64), 1, more={"splits": 8} | SWAPPED | ALONE | IN_CLUSTER),
    "splits in a cluster, eight, one finishes": Case((60, 24, 520), (64, 32, 64), 1, out=np.float32, more={"splits": 8} | ALONE | IN_CLUSTER),
    "splits in a cluster, larger than stages": Case((130, 96, 520), (128, 96, 64), 1, stages=2, more={"splits": 2} | IN_CLUSTER),
    "splits in a cluster, s8": Case((72, 144, 600), (80, 128, 128), 1, ("s8", "u8"), more={"splits": 3} | SWAPPED | IN_CLUSTER),
    "one consumer": Case((60, 136, 520), (64, 64, 64), 1, more={"splits": 2} | ALONE | IN_CLUSTER),
    "one consumer, swapped": Case((37, 136, 520), (40, 64, 64), 1, more={"splits": 3} | ALONE | SWAPPED | IN_CLUSTER),
    "one consumer, wide": Case((100, 72, 520), (104, 64, 128), 1, batch=(2,), more={"splits": 2} | ALONE | SWAPPED | IN_CLUSTER),
    "one consumer, M contiguous": Case((24, 72, 520), (32, 64, 64), 1, majors="MK", more={"splits": 2} | ALONE | SWAPPED | IN_CLUSTER),
    "transposed": Case((150, 264, 136), (72, 128, 64), 2, more=SWAPPED),
    "transposed, ping-pong": Case((200, 264, 136), (104, 128, 64), 2, more=SWAPPED | PING_PONG),
    "transposed, three consumers, f16": Case((150, 200, 136), (144, 192, 64), 1, ("f16", "f16"), more=SWAPPED | THREE),
    "transposed, cluster": Case((150, 512, 136), (80, 128, 64), 4, more=SWAPPED | CLUSTER),
    "transposed, one consumer, a batch": Case((100, 72, 136), (104, 64, 64), 1, batch=(3,), more=SWAPPED | ALONE),
    "transposed, N contiguous": Case((150, 264, 136), (144, 256, 64), 1, majors="KM", more=SWAPPED),
    "transposed, splits in a cluster": Case((70, 136, 520), (72, 128, 64), 1, more={"splits": 3} | SWAPPED | IN_CLUSTER),
    "transposed, e4m3": Case((100, 144, 272), (104, 128, 128), 1, ("e4m3", "e4m3"), out=BF16, more=SWAPPED),
    "side by side": Case((150, 264, 136), (128, 80, 64), 2, more=BESIDE),
    "side by side, M contiguous, more tiles than blocks": Case((300, 264, 136), (128, 64, 64), 2, majors="MK", more=BESIDE),
    "2 x 2, one consumer, D^T": Case((300, 264, 136), (64, 64, 64), 4, more=SWAPPED | ALONE | CLUSTER | BESIDE),
    "four side by side, ping-pong, D^T": Case((200, 520, 136), (72, 128, 64), 4, more=SWAPPED | PING_PONG | {"cluster_n": 4}),
    "swapped, wide, float32": Case((150, 264, 136), (144, 256, 64), 1, out=np.float32, more=SWAPPED),
    "swapped, wide, odd rows": Case((150, 203, 72), (72, 128, 64), 2, more=SWAPPED),
    "one consumer, 160 columns": Case((130, 152, 136), (64, 160, 64), 2, more=ALONE),
    "swapped, 24 columns": Case((20, 136, 136), (24, 64, 64), 1, more=SWAPPED | PING_PONG),
    "swapped, 120 columns, e4m3": Case((117, 144, 272), (120, 128, 128), 1, ("e4m3", "e4m3"), more=SWAPPED),
    "56 columns, tf32": Case((136, 52, 72), (128, 56, 32), 1, ("tf32", "tf32")),
    "stream-K": Case((300, 70, 1100), (128, 64, 64), 4, more=STREAM),
    "stream-K, N contiguous, a batch": Case((130, 40, 1048), (128, 64, 64), 3, majors="KM", batch=(4,), more=STREAM),
    "stream-K, cluster": Case((500, 136, 1032), (128, 128, 64), 6, more=STREAM | CLUSTER),
    "stream-K, e4m3": Case((140, 136, 2056), (128, 128, 128), 3, ("e4m3", "e4m3"), more=STREAM),
    "f16": Case((130, 72, 72), (128, 64, 64), 1, ("f16", "f16")),
    "tf32": Case((130, 68, 68), (128, 64, 32), 1, ("tf32", "tf32")),
    "tf32, splits": Case((130, 68, 132), (128, 64, 32), 1, ("tf32", "tf32"), more={"splits": 2}),
    "e4m3 x e5m2": Case((130, 72, 272), (128, 64, 128), 1, ("e4m3", "e5m2")),
    "cluster, e4m3": Case((140, 136, 272), (128, 64, 128), 2, ("e4m3", "e4m3"), more=CLUSTER),
    "s8 x u8": Case((130, 72, 272), (128, 64, 128), 1, ("s8", "u8")),
    "u8, swapped": Case((3, 144, 144), (8, 128, 128), 1, ("u8", "s8"), more=SWAPPED),
    "float64 results": Case((72, 72, 72), (128, 64, 64), 1, out=np.float64),
    "bf16 results of odd rows": Case((67, 131, 72), (128, 64, 64), 1),
    "odd rows, more tiles than blocks": Case((300, 267, 72), (128, 128, 64), 2),
    "odd rows, ping-pong": Case((200, 203, 72), (64, 64, 64), 2, more=PING_PONG),
    "odd rows, ping-pong, float32": Case((130, 135, 72), (64, 64, 64), 1, out=np.float32, more=PING_PONG),
    "odd rows, cluster": Case((300, 135, 72), (128, 64, 64), 2, more=CLUSTER),
    "odd rows, splits in a cluster": Case((130, 71, 520), (128, 64, 64), 1, more={"splits": 2} | IN_CLUSTER),
    "rows of an even number": Case((130, 70, 72), (128, 64, 64), 2),
}  # fmt: skip


def integers(random: np.random.Generator, *shape: int, dtype: Any) -> np.ndarray:
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return random.integers(low, 5, shape).astype(dtype)


def put(backend: Backend, array: np.ndarray, major: str) -> Any:
    """Put matrices with one mode contiguous, and rows that begin at multiples of 16 bytes."""
    turned = np.swapaxes(array, -1, -2) if major == "M" else array
    *batch, rows, columns = turned.shape
    wide = -(-columns * turned.itemsize // 16) * 16 // turned.itemsize
    filled = np.zeros((*batch, rows, wide), turned.dtype)
    filled[..., :columns] = turned
    found = backend.put(filled)[..., :columns]
    return found.swapaxes(-1, -2) if major == "M" else found


def operands(case: Case) -> tuple[np.ndarray, np.ndarray]:
    random, (m, n, k) = np.random.default_rng(0), case.extents
    a, b = (KIND[name] for name in case.types)
    return integers(random, *case.batch, m, k, dtype=a), integers(random, *case.batch, n, k, dtype=b)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ np.swapaxes(b.astype(np.float64), -1, -2)


def same(actual: np.ndarray, exact: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.astype(np.float64), exact.astype(actual.dtype).astype(np.float64))


def compute(backend: Backend, case: Case, a: np.ndarray, b: np.ndarray, **options: Any) -> np.ndarray:
    """Return the product by the case's configuration; in the simulator without any finding."""
    if case.types[0] == "tf32":
        options["precision"] = "tf32"
    if case.out is not None:
        options["out_dtype"] = tw.dtype(case.out)
    x, y = put(backend, a, case.majors[0]), put(backend, b, case.majors[1])
    with only(case.configuration, case.blocks) as family:
        if backend.name != "sim":
            result = tw.matmul(x, y.swapaxes(-1, -2), **options)
        else:
            with tw.simulate(raise_errors=False) as run:
                result = tw.matmul(x, y.swapaxes(-1, -2), **options)
            assert not run.findings, run.findings
    assert family.launched, "another family computed it"
    return backend.get(result)


QUICK = (
    "edges, more tiles than blocks", "a batch", "M and N contiguous", "ping-pong", "cluster", "swapped", "splits, swapped, a batch",
    "transposed", "side by side", "splits in a cluster, a part each", "splits in a cluster, two of three finish", "tf32", "e4m3 x e5m2", "s8 x u8",
    "stream-K, N contiguous, a batch",
)  # fmt: skip


@pytest.mark.parametrize("name", rest_is_slow(CASES, *QUICK))
@pytest.mark.spread(8)
def test_products(backend: Backend, name: str) -> None:
    case = CASES[name]
    a, b = operands(case)
    same(compute(backend, case, a, b), product(a, b))


@pytest.mark.parametrize("name", ["swapped, a part stays in L2", pytest.param("splits", marks=pytest.mark.slow)])
def test_a_part_stays_in_the_second_level_cache(backend: Backend, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of matrices that are larger than what L2 may keep of them: some of the loads say that they leave first."""
    case = CASES.get(name) or Case((5, 264, 520), (8, 128, 64), 2, more=SWAPPED)
    for share in ("_FITS", "_KEPT"):
        monkeypatch.setattr(hopper, share, 0.001)
    a, b = operands(case)
    same(compute(backend, case, a, b), product(a, b))


WITH_OPERANDS = {
    "cooperative": Case((140, 136, 72), (128, 64, 64), 2),
    "ping-pong": Case((72, 136, 72), (64, 64, 64), 1, more=PING_PONG),
    "swapped": Case((5, 136, 72), (8, 128, 64), 1, more=SWAPPED),
    "transposed": Case((75, 136, 72), (80, 128, 64), 1, more=SWAPPED),
    "splits": Case((70, 72, 264), (128, 64, 64), 2, more={"splits": 2}),
    "splits in a cluster": Case((70, 72, 264), (128, 64, 64), 1, more={"splits": 2} | IN_CLUSTER),
    "stream-K": Case((260, 71, 1032), (128, 64, 64), 4, more=STREAM),
    "rows of odd length": Case((67, 71, 72), (128, 64, 64), 1),
}


@pytest.mark.parametrize("name", rest_is_slow(WITH_OPERANDS, "splits", "rows of odd length"))
@pytest.mark.spread(2)
def test_epilogues(backend: Backend, name: str) -> None:
    """alpha, beta and C, a bias, and a function with an array of its own and a number that is passed."""
    case, random = WITH_OPERANDS[name], np.random.default_rng(1)
    (m, n, _), (a, b) = case.extents, operands(case)
    c = integers(random, m, n, dtype=np.float32)
    bias, gain = integers(random, n, dtype=BF16), integers(random, m, 1, dtype=np.float32)
    there = backend.put(gain)
    for scale in (0.5, 2.0):  # the same kernel
        found = compute(backend, case, a, b, alpha=2, beta=-1, c=backend.put(c), bias=backend.put(bias),
                        epilogue=lambda acc: tw.maximum(acc * scale, 0) * there, out_dtype=tw.float32)  # fmt: skip
        total = 2 * product(a, b) - c + bias.astype(np.float64)
        same(found, np.maximum(total * scale, 0) * gain)


@pytest.mark.parametrize("name", rest_is_slow(["cooperative", "ping-pong", "splits"], "ping-pong"))
def test_the_result_may_be_what_is_added(backend: Backend, name: str) -> None:
    case = WITH_OPERANDS[name]
    (m, n, _), (a, b) = case.extents, operands(case)
    c = integers(np.random.default_rng(1), m, n, dtype=np.float32)
    there = backend.put(c)
    same(compute(backend, case, a, b, out=there, beta=3), product(a, b) + 3.0 * c)
    same(backend.get(there), product(a, b) + 3.0 * c)


def test_integers_scaled_by_integers(backend: Backend) -> None:
    case = CASES["s8 x u8"]
    a, b = operands(case)
    bias = integers(np.random.default_rng(1), case.extents[1], dtype=np.int32)
    same(compute(backend, case, a, b, alpha=-3, bias=backend.put(bias)), -3 * product(a, b) + bias)


@pytest.mark.parametrize("shared", ["a", "b"])
@pytest.mark.spread(2)
def test_one_matrix_for_the_whole_batch(backend: Backend, shared: str) -> None:
    """Its tensor map has a batch of one: a mode of stride 0 is none that TMA knows."""
    case = Case((72, 72, 136), (128, 64, 64), 2, batch=(3,), majors="KM")
    a, b = operands(case)
    a, b = (a[:1], b) if shared == "a" else (a, b[:1])
    same(compute(backend, case, a, b), product(a, b))


def test_rows_that_coincide(backend: Backend) -> None:
    """Where all rows of A are one, a tensor map would have a stride of 0 along them: they are packed first."""
    case = Case((72, 72, 72), (128, 64, 64), 1)
    a, b = operands(case)
    row = backend.put(a[:1])
    repeated = np.broadcast_to(row, a.shape) if backend.name == "sim" else row.expand(a.shape)
    with only(case.configuration, 1) as family:
        assert tw.matmul.explain(repeated, backend.put(b).swapaxes(-1, -2)).packed == (True, False)
        found = backend.get(tw.matmul(repeated, backend.put(b).swapaxes(-1, -2)))
    assert family.launched
    same(found, product(np.broadcast_to(a[:1], a.shape), b))


@pytest.mark.parametrize("mode", [0, 1])
def test_steps_backwards(mode: int) -> None:
    """A tensor map has none: such operands are packed, and such results are stored from registers."""
    case = Case((72, 72, 72), (128, 64, 64), 2, batch=(2,))
    a, b = operands(case)
    out = np.zeros((2, 72, 72), np.float32)
    with only(case.configuration, 2) as family:
        tw.matmul(np.flip(a, mode), b.swapaxes(-1, -2), out=np.flip(out, mode))
    assert family.launched
    same(np.flip(out, mode), product(np.flip(a, mode), b))


@pytest.mark.parametrize("name", rest_is_slow(WITH_OPERANDS, "swapped"))
def test_results_of_any_layout(backend: Backend, name: str) -> None:
    """Every other column, columns from the second on, and a transposed array; what lies beside them stays."""
    case = WITH_OPERANDS[name]
    (m, n, _), (a, b) = case.extents, operands(case)
    for view in (lambda x: x[:, ::2], lambda x: x[:, 1 : n + 1], lambda x: x.swapaxes(0, 1)[1 : m + 1]):
        wide = backend.put(np.full((2 * max(m, n), 2 * max(m, n)), 77, np.float32))
        out = view(wide)[:m, :n]
        same(compute(backend, case, a, b, out=out), product(a, b))
        same(backend.get(out), product(a, b))
        assert (backend.get(wide) == 77).sum() >= wide.shape[0] * wide.shape[1] - m * n


def test_no_k_is_for_another_family() -> None:
    """A tensor map has no extent of 0."""
    found = tw.matmul.explain(tw.spec(tw.bfloat16, (64, 0)), tw.spec(tw.bfloat16, (0, 64)))
    assert {candidate.family.name for candidate in found.candidates} == {"multistage"}


def test_nan_and_infinity(backend: Backend) -> None:
    """As IEEE has them, and nowhere else: zeros beyond the edges do not meet them."""
    case = Case((70, 72, 72), (128, 64, 64), 1)
    a, b = (x.astype(np.float32) for x in operands(case))
    a[3, 5], a[7, 9], b[11, 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = a @ b.T
    found = compute(backend, case, a.astype(BF16), b.astype(BF16)).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
