"""The Hopper family of `tw.grouped_matmul` on both backends, in the simulator under all checks.

Operands are small integers, so that sums are exact in every order and results of float32 are compared to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.conformance.test_matmul_hopper import PING_PONG, integers, put, same
from tests.helpers.one_family import only_grouped
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.kernels import grouped
from tilewright.kernels.hopper_plan import HopperConfiguration

BF16 = ml_dtypes.bfloat16
ENDS = [0, 37, 37, 180]


@dataclass(frozen=True)
class Case:
    """Ragged `mode` of (total, M or N, K); `majors` are those of a and b as arrays: "M" has its first mode contiguous."""

    mode: str
    extents: tuple[int, int, int]
    tile: tuple[int, int, int]
    ends: tuple[int, ...] = tuple(ENDS)
    majors: str = "KK"
    dtype: Any = BF16
    out: Any = np.float32
    blocks: int = 2
    stages: int = 3
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> HopperConfiguration:
        return HopperConfiguration(self.tile, (8, 1), self.stages, 2, blocks=self.blocks, **self.more)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        (total, m, k), groups = self.extents, len(self.ends)
        return {"M": ((total, k), (groups, k, m)), "K": ((m, total), (total, k)), "N": ((groups, m, k), (k, total))}[
            self.mode
        ]


COOPERATIVE, ALTERNATING = (128, 64, 64), (64, 64, 64)
CASES = {
    "rows": Case("M", (200, 136, 136), COOPERATIVE),
    "rows, weights along K": Case("M", (200, 136, 136), COOPERATIVE, majors="KM", out=BF16),
    "rows, ping-pong": Case("M", (200, 136, 136), ALTERNATING, majors="KM", more=PING_PONG),
    "rows, ping-pong of two instructions": Case("M", (460, 72, 136), COOPERATIVE, (30, 230, 450), majors="KM", more=PING_PONG),
    "rows, one after another": Case("M", (200, 72, 72), COOPERATIVE, tuple(range(1, 41))),
    "rows, about halves of tiles": Case("M", (590, 72, 72), COOPERATIVE, (65, 128, 192, 192, 319, 447, 576, 577), majors="KM", out=BF16),
    "rows, all of one": Case("M", (256, 136, 72), COOPERATIVE, (256,), dtype=np.float16),
    "rows, two rows of instructions": Case("M", (300, 136, 72), (256, 128, 64), (40, 40, 300)),
    "rows, results of odd rows": Case("M", (100, 67, 72), COOPERATIVE, (33, 90), majors="KM"),
    "rows, results of odd rows, ping-pong": Case("M", (460, 67, 136), COOPERATIVE, (30, 230, 450), majors="KM", out=BF16, more=PING_PONG),
    "columns": Case("N", (200, 136, 136), COOPERATIVE, majors="KM"),
    "K": Case("K", (200, 136, 136), COOPERATIVE, majors="MK"),
    "K, results of 16 bits": Case("K", (200, 136, 136), COOPERATIVE, majors="MK", out=BF16),
    "K, ping-pong": Case("K", (200, 136, 136), ALTERNATING, majors="MK", more=PING_PONG),
    "K, one after another": Case("K", (200, 72, 72), COOPERATIVE, (*range(1, 20), 190), majors="MK"),
}  # fmt: skip


def expected(case: Case, a: np.ndarray, b: np.ndarray, ends: Any) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    (total, m, _), begins = case.extents, [0, *ends[:-1]]
    if case.mode == "K":
        return np.stack([a[:, i:j] @ b[i:j] for i, j in zip(begins, ends, strict=True)])
    found = np.zeros((total, m) if case.mode == "M" else (m, total))
    for group, (i, j) in enumerate(zip(begins, ends, strict=True)):
        if case.mode == "M":
            found[i:j] = a[i:j] @ b[group]
        else:
            found[:, i:j] = a[group] @ b[:, i:j]
    return found


def operands(case: Case) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (integers(random, *shape, dtype=case.dtype) for shape in case.shapes)
    return a, b


def compute(backend: Backend, case: Case, a: np.ndarray, b: np.ndarray, ends: Any, **options: Any) -> np.ndarray:
    """Return the products by the case's configuration; in the simulator without any finding."""
    x, y = put(backend, a, case.majors[0]), put(backend, b, case.majors[1])
    offsets = backend.put(np.array(ends, np.int32))
    with only_grouped(case.configuration) as family:
        if backend.name != "sim":
            result = tw.grouped_matmul(x, y, offsets, out_dtype=tw.dtype(case.out), **options)
        else:
            with tw.simulate(raise_errors=False) as run:
                result = tw.grouped_matmul(x, y, offsets, out_dtype=tw.dtype(case.out), **options)
            assert not run.findings, run.findings
    assert family.launched, "another family computed it"
    return backend.get(result)


QUICK = (
    "rows, ping-pong of two instructions", "rows, about halves of tiles", "rows, results of odd rows", "columns", "K, ping-pong",
)  # fmt: skip


@pytest.mark.parametrize("name", rest_is_slow(CASES, *QUICK))
@pytest.mark.spread(2)
def test_ragged_products(backend: Backend, name: str) -> None:
    case = CASES[name]
    a, b = operands(case)
    same(compute(backend, case, a, b, case.ends), expected(case, a, b, case.ends))


def test_rows_of_twelve_vectors(backend: Backend) -> None:
    """The last rows of a group leave by stores of vectors, each by one thread: no power of two are in 96 columns."""
    case = Case("M", (40, 96, 24), (128, 96, 64), (24, 40), majors="KM", out=BF16)
    a, b = operands(case)
    same(compute(backend, case, a, b, case.ends), expected(case, a, b, case.ends))


@pytest.mark.parametrize("name", rest_is_slow(["rows", "columns", "K"], "K"))
def test_offsets_on_a_device_stay_inside(backend: Backend, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host would refuse: below the one before it an offset counts as that one, past the end as the end."""
    monkeypatch.setattr(grouped, "_check_offsets", lambda offsets, total: None)
    case = CASES[name]
    a, b = operands(case)
    held = [0, 70, 70, case.extents[0]]
    same(compute(backend, case, a, b, [-5, 70, 4, 10**6]), expected(case, a, b, held))


@pytest.mark.parametrize("name", rest_is_slow(["K", "K, ping-pong"], "K, ping-pong"))
def test_a_group_does_not_meet_the_next_one(backend: Backend, name: str) -> None:
    """Of the last tile of K the next group's part is 0 in both operands: what it multiplies may be NaN or infinite."""
    case = CASES[name]
    a, b = operands(case)
    begin, end = case.ends[0], case.ends[1]
    a[:, end:], b[end:] = np.nan, np.inf
    found = compute(backend, case, a, b, case.ends)
    same(found[1], a[:, begin:end].astype(np.float64) @ b[begin:end].astype(np.float64))
    assert not found[0].any() and not found[2].any()


@pytest.mark.parametrize("name", rest_is_slow(["rows", "rows, ping-pong of two instructions"], "rows"))
def test_a_group_is_all_that_is_written(backend: Backend, name: str) -> None:
    """Tiles that overhang a group leave the next one's rows alone, and what lies beside the results."""
    case = CASES[name]
    (total, n, _), (a, b) = case.extents, operands(case)
    wide = backend.put(np.full((total + 64, n + 24), 77, np.float32))
    out = wide[:total, :n]
    same(compute(backend, case, a, b, case.ends, out=out), expected(case, a, b, case.ends))
    left = backend.get(wide)
    assert (left[total:] == 77).all() and (left[:, n:] == 77).all()


@pytest.mark.parametrize("name", rest_is_slow(["rows", "rows, ping-pong", "columns"], "rows"))
def test_rows_of_no_group_are_left_alone(backend: Backend, name: str) -> None:
    case = CASES[name]
    a, b = operands(case)
    wanted = expected(case, a, b, case.ends)
    wanted[np.s_[:, case.ends[-1] :] if case.mode == "N" else np.s_[case.ends[-1] :]] = 77
    out = backend.put(np.full(wanted.shape, 77, np.float32))
    same(compute(backend, case, a, b, case.ends, out=out, fill=False), wanted)


@pytest.mark.parametrize(("mode", "majors"), [("M", "MK"), ("N", "KK"), ("K", "KM"), ("K", "KK"), ("K", "MM")])
@pytest.mark.spread(5)
def test_a_contiguous_mode_that_is_ragged_is_for_another_kernel(backend: Backend, mode: str, majors: str) -> None:
    """Boxes of TMA begin at multiples of 16 bytes along it, and groups anywhere: an H200 calls it an illegal instruction."""
    case = Case(mode, (60, 24, 136), COOPERATIVE, (7, 40), majors=majors)
    a, b = operands(case)
    x, y = put(backend, a, majors[0]), put(backend, b, majors[1])
    offsets = backend.put(np.array(case.ends, np.int32))
    with only_grouped(case.configuration) as family:
        found = backend.get(tw.grouped_matmul(x, y, offsets, out_dtype=tw.float32))
    assert not family.launched
    same(found, expected(case, a, b, case.ends))


def test_steps_that_no_tensor_map_has_are_for_another_kernel(backend: Backend) -> None:
    """Rows between 16 bytes, and backwards: the multistage kernel computes them."""
    case = Case("M", (60, 24, 136), COOPERATIVE, (7, 40))
    a, b = operands(case)
    odd = np.ascontiguousarray(a[:, :131])
    for x in (odd, np.flip(a, 0)) if backend.name == "sim" else (odd,):  # torch has no steps backwards
        w = np.ascontiguousarray(b[:, : x.shape[1]])
        given = x if backend.name == "sim" else backend.put(x)
        offsets = backend.put(np.array(case.ends, np.int32))
        with only_grouped(case.configuration) as family:
            found = backend.get(tw.grouped_matmul(given, backend.put(w), offsets, out_dtype=tw.float32))
        assert not family.launched
        same(found, expected(case, x, w, case.ends))
