"""`tw.grouped_matmul` against a loop of products in NumPy: ragged modes, lists, what is empty, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import grouped
from tilewright.kernels._grouped_kernel import grouped_tiles
from tilewright.kernels.grouped import GroupedPlan
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.multistage_plan import plan_for
from tilewright.kernels.problem import Operand, Problem
from tilewright.schedulers import Groups

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def laid_out(x: Array, order: int, pad: int) -> Array:
    """Return the same elements in rows or in columns, with room behind each."""
    x = x if order == 0 else x.swapaxes(-1, -2)
    room = np.zeros((*x.shape[:-1], x.shape[-1] + pad), x.dtype)
    room[..., : x.shape[-1]] = x
    room = room[..., : x.shape[-1]]
    return room if order == 0 else room.swapaxes(-1, -2)


def expected(mode: str, a: Array, b: Array, ends: list[int]) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    total = {"M": a.shape[0], "K": a.shape[-1], "N": b.shape[-1]}[mode]
    begins = [0, *ends[:-1]]
    if mode == "K":
        return np.stack([a[:, i:j] @ b[i:j] for i, j in zip(begins, ends, strict=True)])
    found = np.zeros((total, b.shape[-1]) if mode == "M" else (a.shape[1], total))
    for group, (i, j) in enumerate(zip(begins, ends, strict=True)):
        if mode == "M":
            found[i:j] = a[i:j] @ b[group]
        else:
            found[:, i:j] = a[group] @ b[:, i:j]
    return found


@examples(3, 60)
@given(
    mode=st.sampled_from("MKN"), total=st.integers(0, 200), m=st.integers(1, 80), k=st.integers(0, 80),
    cuts=st.lists(st.integers(0, 200), min_size=1, max_size=5), seed=st.integers(0, 9),
    dtype=st.sampled_from([np.float16, BF16, np.float32]), orders=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    pads=st.tuples(st.sampled_from([0, 8, 3]), st.sampled_from([0, 8, 1])), ends_type=st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_ragged_modes(
    mode: str,
    total: int,
    m: int,
    k: int,
    cuts: list[int],
    seed: int,
    dtype: Any,
    orders: Any,
    pads: Any,
    ends_type: Any,
) -> None:
    ends = sorted(min(cut, total) for cut in cuts)
    groups = len(ends)
    shapes = {"M": ((total, k), (groups, k, m)), "K": ((m, total), (total, k)), "N": ((groups, m, k), (k, total))}[mode]
    a, b = (
        laid_out(whole(seed + i, shape, dtype), order, pad)
        for i, (shape, order, pad) in enumerate(zip(shapes, orders, pads, strict=True))
    )
    found = tw.grouped_matmul(a, b, np.array(ends, ends_type), out_dtype=tw.float32)
    assert found.dtype == np.float32 and np.array_equal(found, expected(mode, a, b, ends))


def test_gradients_are_grouped_products() -> None:
    x, w, dy = whole(0, (50, 24), np.float16), whole(1, (3, 24, 16), np.float16), whole(2, (50, 16), np.float16)
    offsets = np.array([20, 20, 50], np.int32)
    dx = tw.grouped_matmul(dy, w.swapaxes(1, 2), offsets)
    dw = tw.grouped_matmul(x.T, dy, offsets)
    assert np.array_equal(dx, expected("M", dy, w.swapaxes(1, 2), [20, 20, 50]))
    assert np.array_equal(dw, expected("K", x.T, dy, [20, 20, 50]))
    assert dx.dtype == dw.dtype == np.float16


@pytest.mark.parametrize("mode", "MKN")
@pytest.mark.parametrize("ends", [[-5, 10, 4, 10**6], [70, 60, 0, 0]], ids=str)
@pytest.mark.spread(4)
def test_offsets_on_a_device_stay_inside(monkeypatch: pytest.MonkeyPatch, mode: str, ends: list[int]) -> None:
    """What the host would refuse: below the one before it an offset counts as that one, past the end as the end."""
    monkeypatch.setattr(grouped, "_check_offsets", lambda offsets, total: None)
    total, m, k = 64, 20, 24
    held = np.minimum(np.maximum.accumulate(np.maximum(ends, 0)), total).tolist()
    shapes = {"M": ((total, k), (4, k, m)), "K": ((m, total), (total, k)), "N": ((4, m, k), (k, total))}[mode]
    a, b = (whole(i, shape, np.float16) for i, shape in enumerate(shapes))
    found = tw.grouped_matmul(a, b, np.array(ends, np.int32), out_dtype=tw.float32)
    assert np.array_equal(found, expected(mode, a, b, held))


def test_no_groups_and_no_k() -> None:
    none = np.zeros(0, np.int32)
    assert not tw.grouped_matmul(whole(0, (5, 8), np.float16), np.zeros((0, 8, 3), np.float16), none).any()
    assert tw.grouped_matmul(whole(0, (5, 8), np.float16), whole(0, (8, 3), np.float16), none).shape == (0, 5, 3)
    assert not tw.grouped_matmul(np.zeros((0, 5, 8), np.float16), whole(0, (8, 3), np.float16), none).any()
    found = tw.grouped_matmul(np.zeros((4, 0), np.float16), np.zeros((2, 0, 3), np.float16), np.array([1, 4], np.int32))
    assert found.shape == (4, 3) and not found.any()


@examples(2, 30)
@given(
    extents=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70)), max_size=4),
    dtype=st.sampled_from([np.float16, np.float32]), orders=st.lists(st.integers(0, 1), min_size=8, max_size=8),
)  # fmt: skip
def test_lists_of_any_shapes(extents: list[Any], dtype: Any, orders: list[int]) -> None:
    a = [laid_out(whole(i, (m, k), dtype), orders[i], 8 * (i % 2)) for i, (m, _, k) in enumerate(extents)]
    b = [laid_out(whole(i, (k, n), dtype), orders[i + 4], 3 * (i % 2)) for i, (_, n, k) in enumerate(extents)]
    found = tw.grouped_matmul(a, b, out_dtype=tw.float32)
    assert len(found) == len(extents)
    for x, y, out in zip(a, b, found, strict=True):
        assert np.array_equal(out, x.astype(np.float64) @ y.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.spread(2)
def test_lists_of_results_that_are_contiguous_along_rows(dtype: Any) -> None:
    """Their stride of 1 is no whole vector, whatever divides the other one."""
    a, b = [whole(1, (40, 24), dtype), whole(2, (5, 8), dtype)], [whole(3, (24, 9), dtype), whole(4, (8, 16), dtype)]
    out = [np.full((n, 64), np.nan, dtype)[:, :m].T for m, n in ((40, 9), (5, 16))]
    assert tw.grouped_matmul(a, b, out=out)[0] is out[0]
    for x, y, found in zip(a, b, out, strict=True):
        assert np.array_equal(found, (x.astype(np.float64) @ y.astype(np.float64)).astype(dtype))


def test_out_is_written_in_place() -> None:
    a, b = [whole(0, (9, 16), np.float16)] * 2, [whole(1, (16, 12), np.float16)] * 2
    room = np.full((2, 20, 12), np.nan, np.float32)
    out = [room[0, :9], np.full((12, 9), np.nan, np.float32).T]
    assert tw.grouped_matmul(a, b, out=out)[0] is out[0]
    assert all(np.array_equal(x, a[0].astype(np.float64) @ b[0]) for x in out) and np.isnan(room[0, 9:]).all()
    ragged = np.full((9, 12), np.nan, np.float32)
    found = tw.grouped_matmul(a[0], b[0][None], np.array([4], np.int32), out=ragged)
    assert found is ragged and np.array_equal(ragged[:4], a[0][:4].astype(np.float64) @ b[0]) and not ragged[4:].any()


@pytest.mark.parametrize("mode", "MN")
@pytest.mark.parametrize("ends", [[3, 3, 150], [0, 0, 0], []], ids=str)
@pytest.mark.spread(4)
def test_results_of_no_group_are_left_alone(mode: str, ends: list[int]) -> None:
    total, m, k, groups = 200, 20, 24, len(ends)
    shapes = {"M": ((total, k), (groups, k, m)), "N": ((groups, m, k), (k, total))}[mode]
    a, b = (whole(i, shape, np.float16) for i, shape in enumerate(shapes))
    out = np.full((total, m) if mode == "M" else (m, total), 77, np.float32)
    tw.grouped_matmul(a, b, np.array(ends, np.int32), out=out, fill=False)
    inside = expected(mode, a, b, ends) if ends else np.zeros(out.shape)
    rest = np.s_[max(ends, default=0) :] if mode == "M" else np.s_[:, max(ends, default=0) :]
    inside[rest] = 77
    assert np.array_equal(out, inside)


def test_fill_is_true_or_false() -> None:
    with pytest.raises(tw.ArgumentError, match="grouped_matmul: fill is True or False, got 1"):
        tw.grouped_matmul(A, B, E, fill=1)  # type: ignore[arg-type]


A, B, E = np.zeros((6, 8), np.float16), np.zeros((2, 8, 4), np.float16), np.array([2, 6], np.int32)
OUT, SQUARE = np.zeros((6, 4), np.float16), np.zeros((8, 8), np.float16)
ROOM = np.zeros(24, np.float16)
ROOM.view(np.int32)[:2] = 2, 6
REFUSED = [
    (lambda: tw.grouped_matmul(A, B, E.astype(np.float32)), "offsets is a vector of int32 or int64, got float32"),
    (lambda: tw.grouped_matmul(A, B, E[::-1]), r"offsets\[1\] is 2, and the group begins at 6"),
    (lambda: tw.grouped_matmul(A, B, E + 1), r"offsets\[1\] is 7, and there are 6 rows"),
    (lambda: tw.grouped_matmul(A, B, E[:1]), "there are 2 matrices and 1 offsets"),
    (lambda: tw.grouped_matmul(A[:, :7], B, E), "have no product: a has 7 columns and b has 8 rows"),
    (lambda: tw.grouped_matmul(B, B, E), "a and b have 3 and 3 modes"),
    (lambda: tw.grouped_matmul(A, B), "a is a ndarray; without offsets a, b and out are lists"),
    (lambda: tw.grouped_matmul([A], [B[0], B[1]]), "there are 1 matrices a and 2 b"),
    (lambda: tw.grouped_matmul([A], [B[0]], out=[]), "there are 1 matrices a and 1 b and 0 out"),
    (lambda: tw.grouped_matmul([A], [B[0]], fill="no"), "fill is True or False, got 'no'"),  # type: ignore[arg-type]
    (lambda: tw.grouped_matmul([A], [B]), r"b\[0\] is a matrix, got the shape \(2, 8, 4\)"),
    (lambda: tw.grouped_matmul([A], [B[0, :7]]), r"the shapes \(6, 8\) and \(7, 4\) of product 0 do not fit"),
    (lambda: tw.grouped_matmul(A.astype(np.int8), B.astype(np.int8), E), "a is int8, and grouped products are of 16"),
    (lambda: tw.grouped_matmul(A, B, E, out=np.zeros((6, 5), np.float16)), r"out has the shape \(6, 5\)"),
    (lambda: tw.grouped_matmul(A, B, E, out=A[:, :4]), "out shares memory with a"),
    (
        lambda: tw.grouped_matmul(A.astype(np.float32), B.astype(np.float32), E, precision="tf32x3"),
        "precision='tf32x3' is for tw.matmul",
    ),
    (lambda: tw.grouped_matmul([A, A], [B[0]] * 2, out=[OUT, OUT]), r"out\[1\] shares memory with out\[0\]"),
    (lambda: tw.grouped_matmul([A, A], [B[0]] * 2, out=[OUT[::-1], OUT]), r"out\[.\] shares memory with out\[.\]"),
    (
        lambda: tw.grouped_matmul([A, SQUARE], [B[0], SQUARE], out=[SQUARE[:6, :4], np.ones_like(SQUARE)]),
        r"out\[0\] sh",
    ),
    (
        lambda: tw.grouped_matmul([A, A], [B[0], SQUARE], out=[SQUARE[2:, 4:], np.ones((6, 8), np.float16)]),
        r"with b\[1\]",
    ),
    (lambda: tw.grouped_matmul(A, B, ROOM.view(np.int32)[:2], out=ROOM.reshape(6, 4)), "shares memory with offsets"),
    (lambda: tw.grouped_matmul("x", B, E), "a is a str, and grouped_matmul takes arrays"),
    (lambda: tw.grouped_matmul(A, B, E, out_dtype="x"), "out_dtype is not an element type"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(tw.ArgumentError, match=message):
        call()


def test_results_may_alternate_in_memory_and_operands_be_shared() -> None:
    room, b = np.zeros((6, 8), np.float16), whole(1, (8, 4), np.float16)
    a = whole(0, (6, 8), np.float16)
    tw.grouped_matmul([a, a], [b, b], out=[room[:, :4], room[:, 4:]])
    assert np.array_equal(room, np.hstack([a @ b] * 2))


def compiled(arch: str, dtype: tw.DType, ragged: str, rest: int) -> Any:
    """Yield each configuration for ragged rows or K, and what it takes; `rest`: extents that nothing divides."""
    total, k, n, groups = 4096, 2048 + rest, 4096 + rest, 8
    align = dtype.bytes if rest else 16
    x, others = Operand(dtype, "MN" if ragged == "K" else "K", align), Operand(dtype, "MN", align)
    d = tw.spec(dtype, (total, n, 1), stride=(n, 1, 0))
    a, b = tw.spec(dtype, (total, k, 1), stride=(k, 1, 0)), tw.spec(dtype, (n, k, groups), stride=(1, n, n * k))
    extents = (1, n, k)
    if ragged == "K":
        d, a = tw.spec(dtype, (k, n, groups), stride=(n, 1, n * k)), tw.spec(dtype, (k, total, 1), stride=(1, k, 0))
        b, extents = tw.spec(dtype, (n, total, 1), stride=(1, n, 0)), (k, n, 1)
    target = Arch.parse(arch)
    problem = Problem(*extents, 1, x, others, others, dtype, tw.float32)
    for candidate in Multistage().candidates(problem, Machine.of(target)):
        if candidate.rejection or candidate.configuration.splits > 1:
            continue
        plan = plan_for(problem, candidate.configuration, target)
        if grouped._rejection(plan, target) is None:
            launcher = grouped_tiles.configure(min_blocks=1)[132, plan.threads]
            launched = GroupedPlan(ragged, Groups(), plan)  # type: ignore[arg-type]
            yield candidate.configuration, launcher.resources(d, a, b, tw.spec(tw.int32, (8,)), launched, arch=arch)


@pytest.mark.slow  # compiles each configuration: two minutes
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [tw.bfloat16, tw.float32], ids=str)
@pytest.mark.parametrize("ragged", ["M", "K"])
@pytest.mark.parametrize("rest", [0, 3])
def test_nothing_spills(arch: str, dtype: tw.DType, ragged: str, rest: int) -> None:
    # One tile for rows between whole vectors is a register short, which costs it 4 bytes a loop; without it there would
    # be one configuration for such rows.
    short = 8 if (arch, dtype, ragged, rest) == ("sm_80", tw.bfloat16, "M", 3) else 0
    for configuration, resources in compiled(arch, dtype, ragged, rest):
        allowed = short if configuration.tile == (64, 64, 64) else 0
        assert resources.local_bytes <= allowed and bool(resources.spills) <= bool(allowed), (configuration, resources)


def test_a_kernel_compiles_without_spills() -> None:
    _, resources = next(iter(compiled("sm_90a", tw.bfloat16, "M", 0)))
    assert not resources.spills and resources.local_bytes == 0
