"""Experts on several ranks: dispatch and combine against NumPy, in every order, what is refused, and what is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.helpers.slow import rest_is_slow
from tests.unit.distributed.test_distributed_products import WEAKENED

import tilewright as tw
from tilewright.backends.sim import Rank
from tilewright.distributed import ExpertBuffer, dispatch_grouped_matmul, experts, grouped_matmul_combine
from tilewright.kernels import grouped

Array = np.ndarray[Any, Any]
Counts = Sequence[Sequence[int]]  # of each rank: its rows for each expert
K, N, WIDTH = 16, 8, 12  # of a row that is sent, between the products, and of one that comes back


def whole(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)  # every sum of them is exact


@dataclass
class Layer:
    """Two products of each expert; `behind` rows of a rank belong to no expert."""

    counts: Counts
    experts: int
    capacity: int
    calls: int = 1
    k: int = K
    dtype: Any = np.float32
    offsets: Any = np.int32
    behind: int = 0

    def x(self, rank: int, call: int) -> Array:
        return whole(100 * call + rank, (sum(self.counts[rank]) + self.behind, self.k), self.dtype)

    def weights(self) -> tuple[Array, Array]:
        count = len(self.counts) * self.experts
        return whole(7, (count, self.k, N), self.dtype), whole(8, (count, N, WIDTH), self.dtype)

    def ends(self, rank: int) -> Array:
        return np.cumsum(self.counts[rank]).astype(self.offsets)

    def run(self, rank: Rank) -> list[tuple[Array, Array, Array]]:
        """Return what each call gives: the rows between the products, the ends of those that arrived, the result."""
        to = ExpertBuffer(rank, self.capacity, self.k, self.dtype, self.experts)
        back = ExpertBuffer(rank, self.capacity, WIDTH, self.dtype, self.experts)
        w1, w2 = (w[rank.rank * self.experts :][: self.experts] for w in self.weights())
        results = []
        for call in range(self.calls):
            x, ends = self.x(rank.rank, call), self.ends(rank.rank)
            hidden = np.full((rank.size, self.capacity, N), 77, self.dtype)
            arrived = np.empty((rank.size, self.experts), np.int32)
            assert dispatch_grouped_matmul(x, w1, ends, hidden, arrived, to) is hidden
            out = np.full((len(x), WIDTH), 55, self.dtype)
            assert grouped_matmul_combine(hidden, w2, arrived, ends, out, back) is out
            results.append((hidden, arrived, out))
        to.check()
        back.check()
        return results

    def demand(self, schedules: int = 0) -> None:
        """Run it on all ranks, and compare with NumPy."""
        size, (w1, w2) = len(self.counts), (w.astype(np.float64) for w in self.weights())
        found = tw.simulate(ranks=size, schedules=schedules).run(self.run)
        for call in range(self.calls):
            xs = [self.x(rank, call).astype(np.float64) for rank in range(size)]
            for rank in range(size):
                hidden, arrived, out = found[rank][call]
                expert = np.repeat(range(size * self.experts), self.counts[rank])
                rows = np.zeros((len(xs[rank]), WIDTH))
                for row, e in enumerate(expert):
                    rows[row] = xs[rank][row] @ w1[e] @ w2[e]
                np.testing.assert_array_equal(out.astype(np.float64), rows)
                own = np.array(self.counts)[:, rank * self.experts :][:, : self.experts]
                np.testing.assert_array_equal(arrived, np.cumsum(own, axis=1))
                for sender, count in enumerate(own.sum(1)):
                    assert (hidden[sender, count:] == 77).all()


RAGGED = {
    "some": Layer([[1, 2, 0, 3], [0, 4, 2, 1]], 2, 6, calls=2),
    "all for one rank, to the last place": Layer([[5, 0], [3, 0]], 1, 5),
    "none at all": Layer([[0, 0], [0, 0]], 1, 4),
    "a rank without rows": Layer([[0, 0, 0, 0], [2, 0, 0, 1]], 2, 4),
    "one rank": Layer([[2, 0, 3]], 3, 8, behind=2),
    "int64, odd width, rows behind the last": Layer([[1, 2], [4, 0]], 1, 5, k=15, offsets=np.int64, behind=3),
    "float16": Layer([[3, 1], [0, 2]], 1, 3, dtype=np.float16),
}
QUICK = ("int64, odd width, rows behind the last",)


@pytest.mark.parametrize("name", rest_is_slow(RAGGED, *QUICK))
def test_rows_go_to_their_experts_and_back(name: str) -> None:
    RAGGED[name].demand()


@pytest.mark.slow
def test_four_ranks() -> None:
    Layer([[1, 0, 2, 1], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], 1, 3).demand()


@pytest.mark.slow
def test_three_ranks_and_calls() -> None:
    Layer(np.random.default_rng(3).integers(0, 4, (3, 6)).tolist(), 2, 6, calls=3, k=24).demand()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["some", "int64, odd width, rows behind the last"])
def test_the_results_hold_in_other_orders_of_agents(name: str) -> None:
    RAGGED[name].demand(schedules=3)


@pytest.mark.slow
def test_one_buffer_serves_both_in_turn() -> None:
    counts, w = [[1, 2], [2, 0]], whole(3, (2, 8, 8))

    def main(rank: Rank) -> Array:
        buffer = ExpertBuffer(rank, 2, 8, np.float32, 1)
        x, ends = whole(rank.rank, (sum(counts[rank.rank]), 8)), np.cumsum(counts[rank.rank])
        for _ in range(2):
            hidden, arrived = np.zeros((2, 2, 8), np.float32), np.empty((2, 1), np.int32)
            dispatch_grouped_matmul(x, w[rank.rank :][:1], ends, hidden, arrived, buffer)
            x = grouped_matmul_combine(hidden, w[rank.rank :][:1], arrived, ends, np.empty_like(x), buffer)
        return x

    for rank, found in enumerate(tw.simulate(ranks=2).run(main)):
        experts_of_rows = np.repeat([0, 1], counts[rank])
        expected = [x @ np.linalg.matrix_power(w[e], 4) for x, e in zip(whole(rank, found.shape), experts_of_rows, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(found, expected)


# --- what is left out is found -----------------------------------------------------------------------------


def dispatches(rank: Rank) -> None:
    buffer = ExpertBuffer(rank, 3, 8, np.float32, 1)
    x, w, ends = whole(rank.rank, (4, 8)), whole(2, (1, 8, 4)), np.array([[1, 3], [2, 4]][rank.rank])
    for _ in range(2):
        dispatch_grouped_matmul(x, w, ends, np.empty((2, 3, 4), np.float32), np.empty((2, 1), np.int32), buffer)


def combines(rank: Rank) -> None:
    buffer = ExpertBuffer(rank, 3, 4, np.float32, 1)
    x, w, ends = whole(rank.rank, (2, 3, 8)), whole(2, (1, 8, 4)), np.array([[1, 3], [2, 4]][rank.rank])
    arrived = np.array([[1], [2]] if rank.rank == 0 else [[2], [2]], np.int32)
    for _ in range(2):
        grouped_matmul_combine(x, w, arrived, ends, np.empty((4, 4), np.float32), buffer)


def test_without_anything_left_out_nothing_is_found() -> None:
    for operation in (dispatches, combines):
        tw.simulate(ranks=2).run(operation)


@pytest.mark.parametrize("operation", [dispatches, pytest.param(combines, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weakened", rest_is_slow(WEAKENED, "tell is relaxed", "no tells"))
def test_each_part_of_the_exchange_is_needed(operation: Any, weakened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken, kind = WEAKENED[weakened]
    weaken(monkeypatch)
    # What a race leaves in memory may be no offsets.
    monkeypatch.setattr(grouped, "_check_offsets", lambda offsets, total: None)
    with tw.simulate(ranks=2, raise_errors=False) as run:
        run.run(operation)
    assert kind in {finding.kind for finding in run.findings}, run.findings


# --- offsets that only the device knows ----------------------------------------------------------------------


def on_device(
    monkeypatch: pytest.MonkeyPatch, ends: Sequence[Sequence[int]], rows: int, capacity: int, less: int = 0
) -> list[Any]:
    """Return result, error and ends of parts of each rank where the host reads no offsets, as on a GPU."""
    monkeypatch.setattr(experts, "_check_on_host", lambda *given: None)
    monkeypatch.setattr(grouped, "_check_offsets", lambda offsets, total: None)

    def main(rank: Rank) -> tuple[Array, str, Array]:
        to, back = (ExpertBuffer(rank, capacity, 8, np.float32, 1) for _ in range(2))
        x, w, offsets = np.ones((rows, 8), np.float32), np.eye(8, dtype=np.float32)[None], np.array(ends[rank.rank])
        hidden, arrived = np.zeros((2, capacity, 8), np.float32), np.empty((2, 1), np.int32)
        dispatch_grouped_matmul(x, w, offsets, hidden, arrived, to)
        out = np.full_like(x, 9)
        grouped_matmul_combine(hidden, (rank.rank + 1) * w, arrived - less, offsets, out, back)
        for buffer in (to, back):
            try:
                buffer.check()
            except tw.ArgumentError as error:
                return out[:, 0], str(error), arrived
        return out[:, 0], "", arrived

    found: list[Any] = tw.simulate(ranks=2).run(main)
    return found


def test_more_rows_than_the_capacity_are_found_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_device(monkeypatch, [[1, 6], [2, 3]], 6, 3)
    np.testing.assert_array_equal(found[0][0], [1, 2, 2, 2, np.nan, np.nan])
    np.testing.assert_array_equal(found[1][0], [1, 1, 2, 0, 0, 0])
    assert [arrived.tolist() for *_, arrived in found] == [[[1], [2]], [[3], [1]]]
    for _, error, _ in found:  # all ranks learn of it
        assert "rank 0 had 5 rows for one rank, and the capacity is 3" in error


@pytest.mark.parametrize(
    ("ends", "result"),
    [
        pytest.param([4, 2], [1, 1, 1, 1, 0, 0], marks=pytest.mark.slow),
        pytest.param([-3, 99], [2] * 6, marks=pytest.mark.slow),
        ([-3, 2**40 + 1], [2] * 6),
        pytest.param([2, -(2**40)], [1, 1, 0, 0, 0, 0], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_offsets_that_fall_or_run_past_the_end_are_bounded_on_the_device(
    ends: list[int], result: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = on_device(monkeypatch, [[1, 2], ends], 6, 6)
    np.testing.assert_array_equal(found[1][0], result)
    for _, error, _ in found:
        assert "rank 1 had offsets that decrease, or that are not between 0 and its rows" in error


def test_results_that_do_not_come_are_nan_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_device(monkeypatch, [[2, 4], [2, 4]], 4, 3, less=1)
    for out, error, _ in found:
        np.testing.assert_array_equal(out, [1, np.nan, 2, np.nan])
        assert "sent back another number of rows than it had got" in error


def test_many_experts_are_bounded_in_parts() -> None:
    """More offsets than a block has threads."""
    count, random = 700, np.random.default_rng(0)
    offsets = random.integers(-5, 900, 2 * count)
    ends, faults = np.zeros(2 * count, np.int32), [np.zeros((2, 3), np.int32) for _ in range(2)]
    experts.bound_offsets[1, experts.THREADS](ends, faults, faults[1], offsets, 800, count, 1)
    held = np.maximum.accumulate(np.clip(offsets, 0, 800))
    np.testing.assert_array_equal(ends, held)
    for fault in faults:
        np.testing.assert_array_equal(fault, [[0, 0, 0], [max(held[count - 1], held[-1] - held[count - 1]), 1, 0]])


# --- what is refused ---------------------------------------------------------------------------------------


def refused(main: Callable[[Rank], object], match: str) -> None:
    with pytest.raises(tw.ArgumentError, match=match):
        tw.simulate(ranks=2).run(main)


X, W, ENDS = np.zeros((4, 8), np.float32), np.zeros((1, 8, 6), np.float32), np.array([1, 4], np.int32)
OUT, ARRIVED = np.zeros((2, 3, 6), np.float32), np.zeros((2, 1), np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([1, 5])}, r"offsets\[1\] is 5, the expert's rows begin at 1, and there are 4"),
        ({"offsets": np.array([2, 1])}, r"offsets\[1\] is 1, the expert's rows begin at 2"),
        ({"offsets": np.array([-1, 1])}, r"offsets\[0\] is -1"),
        ({"offsets": np.array([4, 4])}, "there are 4 rows for rank 0, and the buffer's capacity is 3"),
        ({"offsets": np.array([1, 2, 4])}, r"the ends of 2 experts' rows, got int64 of shape \(3,\)"),
        ({"offsets": np.array([1.0, 4.0])}, "got float64 of shape"),
        ({"x": X[:, :7]}, r"x has shape \(4, 7\), and the buffer is for \(4, 8\)"),
        ({"x": X.astype(np.float16)}, "x is a matrix of float32, as the buffer, got float16"),
        ({"x": np.zeros((8, 4), np.float32).T}, "x has strides .*, and its rows are taken one after another"),
        ({"x": "x"}, "x is an array, got str 'x'"),
        ({"w": W[:, :7]}, r"w has shape \(1, 7, 6\), and the weights of the rank's experts \(1, 8, N\)"),
        ({"w": np.zeros((2, 8, 6), np.float32)}, r"w has shape \(2, 8, 6\)"),
        ({"out": OUT[:, :2]}, r"out has shape \(2, 2, 6\), and the buffer is for \(2, 3, 6\)"),
        ({"arrived": ARRIVED.astype(np.int64)}, "arrived is an array of int32, got int64"),
        ({"arrived": ARRIVED[:1]}, r"arrived has shape \(1, 1\)"),
        ({"w": W.astype(np.float16)}, "float32"),
        ({"out": OUT.astype(np.int32)}, "int32"),
        ({"buffer": lambda rank: rank}, "buffer is an ExpertBuffer, got Rank"),
        ({"buffer": lambda rank: tw.distributed.ExchangeBuffer(rank, (3, 8), np.float32)}, "is an ExpertBuffer, got Ex"),
    ],
    ids=range(19),
)  # fmt: skip
def test_calls_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    def main(rank: Rank) -> None:
        given: dict[str, Any] = {"x": X, "w": W, "offsets": ENDS, "out": OUT, "arrived": ARRIVED, **change}
        buffer = given.pop("buffer", lambda rank: ExpertBuffer(rank, 3, 8, np.float32, 1))(rank)
        try:
            dispatch_grouped_matmul(buffer=buffer, **given)
        finally:
            assert getattr(buffer, "calls", 0) == 0, "the exchange has begun"

    refused(main, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": OUT[:1]}, r"x has shape \(1, 3, 6\), and the buffer is for \(2, 3, 6\)"),
        ({"w": np.zeros((1, 6, 7), np.float32)}, r"w has shape \(1, 6, 7\), and the weights .* \(1, 6, 8\)"),
        ({"out": X[:, :4]}, r"out has shape \(4, 4\), and the buffer is for \(4, 8\)"),
        ({"offsets": ENDS[::-1]}, r"offsets\[1\] is 1"),
    ],
    ids=range(4),
)
def test_combines_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    def main(rank: Rank) -> None:
        given: dict[str, Any] = {"x": OUT, "w": np.zeros((1, 6, 8), np.float32), "out": X.copy(), **change}
        given = {"arrived": ARRIVED, "offsets": ENDS, **given}
        grouped_matmul_combine(buffer=ExpertBuffer(rank, 3, 8, np.float32, 1), **given)

    refused(main, f"grouped_matmul_combine: {message}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rank: ExpertBuffer(rank, 0, 8, np.float32, 1), "ExpertBuffer: capacity is at least 1, got 0"),
        (lambda rank: ExpertBuffer(rank, 4, 8, np.float32, 0), "experts is at least 1, got 0"),
        (lambda rank: ExpertBuffer(rank, 2**20, 2**12, np.float32, 1), r"capacity \* width is at most 2147483647"),
        (lambda rank: ExpertBuffer(rank, 4 + 64 * rank.rank, 8, np.float32, 1), "do not come to the same place"),
    ],
)
def test_buffers_that_cannot_be_are_refused(call: Any, message: str) -> None:
    refused(call, message)


def test_one_buffer_for_two_operations_at_once_is_refused() -> None:
    def main(rank: Rank) -> None:
        buffer = ExpertBuffer(rank, 3, 8, np.float32, 1)
        with buffer:
            dispatch_grouped_matmul(X, W, ENDS, OUT, ARRIVED, buffer)

    refused(main, "used by two operations at once")


# --- machine code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_compile_for_hopper(unit: int) -> None:
    rows, ends = tw.spec(tw.bfloat16, (4096 * 64,)), tw.spec(tw.int32, (16,))
    peers, told = [tw.spec(tw.int32, (2, 3))] * 2, [tw.spec(tw.int32, (8,))] * 2
    arrived = tw.spec(tw.int32, (2, 8))
    for kernel, arguments in (
        (experts.bound_offsets, (ends, peers, peers[0], tw.spec(tw.int64, (16,)), 64, 8, 1)),
        (experts.announce_ends, (told, ends, 64)),
        (experts.announce_counts, (told, arrived, 64)),
        (experts.copy_ends, (arrived, arrived)),
        (experts.send_rows, (rows, rows, ends, 1, 8, 4096, unit)),
        (experts.take_rows, (rows, rows, told[0], ends, peers[0], 1, 4096, unit)),
    ):
        found = kernel[64, experts.THREADS].resources(*arguments, arch="sm_90a")  # type: ignore[arg-type]
        assert not found.spills and found.local_bytes == 0, found
