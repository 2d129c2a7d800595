"""Products over several ranks: what they compute, in every order, what they refuse, and that each part is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import Rank
from tilewright.distributed import buffers, products

M, N, K = 8, 8, 16  # of a rank


def numbers(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)  # every sum of them is exact


def gathered(rank: Rank, calls: int, dtype: Any = np.float32, m: int = M) -> list[np.ndarray]:
    buffer = tw.distributed.ExchangeBuffer(rank, (m, K), dtype)
    w = numbers(99, (K, N), dtype)
    outs = [np.empty((rank.size * m, N), dtype) for _ in range(calls)]
    for call, out in enumerate(outs):
        tw.distributed.all_gather_matmul(numbers(100 * call + rank.rank, (m, K), dtype), w, out, buffer)
    return outs


def scattered(rank: Rank, calls: int, dtype: Any = np.float32, m: int = M) -> list[np.ndarray]:
    buffer = tw.distributed.ExchangeBuffer(rank, (m, N), np.float32)
    outs = [np.empty((m, N), dtype) for _ in range(calls)]
    for call, out in enumerate(outs):
        x, w = numbers(100 * call + rank.rank, (rank.size * m, K), dtype), numbers(rank.rank, (K, N), dtype)
        tw.distributed.matmul_reduce_scatter(x, w, out, buffer)
    return outs


def reduced(rank: Rank, calls: int, dtype: Any = np.float32, m: int = M) -> list[np.ndarray]:
    buffer = tw.distributed.ExchangeBuffer(rank, (m, N), np.float32)
    results = tw.distributed.ExchangeBuffer(rank, (m, N), dtype)
    outs = [np.empty((rank.size * m, N), dtype) for _ in range(calls)]
    for call, out in enumerate(outs):
        x, w = numbers(100 * call + rank.rank, (rank.size * m, K), dtype), numbers(rank.rank, (K, N), dtype)
        tw.distributed.matmul_all_reduce(x, w, out, buffer, results)
    return outs


def expected_gathered(size: int, call: int, rank: int, m: int = M) -> np.ndarray:
    x = np.concatenate([numbers(100 * call + r, (m, K)) for r in range(size)])
    return x.astype(np.float64) @ numbers(99, (K, N)).astype(np.float64)


def expected_reduced(size: int, call: int, rank: int, m: int = M) -> np.ndarray:
    every = [
        numbers(100 * call + r, (size * m, K)).astype(np.float64) @ numbers(r, (K, N)).astype(np.float64)
        for r in range(size)
    ]
    return np.sum(every, axis=0)


def expected_scattered(size: int, call: int, rank: int, m: int = M) -> np.ndarray:
    return expected_reduced(size, call, rank, m)[rank * m : (rank + 1) * m]


OPERATIONS = [(gathered, expected_gathered), (scattered, expected_scattered), (reduced, expected_reduced)]


def demand(operation: Any, expected: Any, size: int, calls: int, dtype: Any, m: int = M, schedules: int = 0) -> None:
    found = tw.simulate(ranks=size, schedules=schedules).run(lambda rank: operation(rank, calls, dtype, m))
    for rank in range(size):
        for call in range(calls):
            np.testing.assert_array_equal(found[rank][call].astype(np.float64), expected(size, call, rank, m))


@pytest.mark.parametrize(("operation", "expected"), OPERATIONS, ids=["gather", "scatter", "all"])
def test_two_ranks_compute_the_whole_product(operation: Any, expected: Any) -> None:
    demand(operation, expected, 2, 2, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "expected"), OPERATIONS, ids=["gather", "scatter", "all"])
@pytest.mark.parametrize(
    ("size", "calls", "dtype", "m"), [(1, 2, np.float32, 8), (3, 3, np.float32, 5), (4, 1, np.float16, 7)]
)
def test_other_groups_types_and_extents(
    operation: Any, expected: Any, size: int, calls: int, dtype: Any, m: int
) -> None:
    demand(operation, expected, size, calls, dtype, m)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "expected"), OPERATIONS, ids=["gather", "scatter", "all"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_results_hold_in_other_orders_of_agents(operation: Any, expected: Any, size: int) -> None:
    demand(operation, expected, size, 3, np.float32, schedules=4)


@pytest.mark.parametrize(("m", "k", "dtype"), [(3, 5, np.float32), (1, 3, np.float16), (7, 9, np.float64)], ids=str)
@pytest.mark.spread(3)
def test_rows_are_sent_whatever_their_length(m: int, k: int, dtype: Any) -> None:
    def main(rank: Rank) -> bool:
        x, w = numbers(rank.rank, (m, k), dtype), numbers(9, (k, 4), dtype)
        buffer, out = tw.distributed.ExchangeBuffer(rank, (m, k), dtype), np.empty((2 * m, 4), dtype)
        tw.distributed.all_gather_matmul(x, w, out, buffer)
        return np.array_equal(out, np.concatenate([numbers(n, (m, k), dtype) for n in range(2)]) @ w)

    assert all(tw.simulate(ranks=2).run(main))


# --- what is left out is found -----------------------------------------------------------------------------


@tw.kernel
def tell_relaxed(flags, rank, number):
    for flag in flags:
        for part in range(flag.shape[1]):
            tw.store(flag, (rank, part), number, sem="relaxed", scope="sys")


@tw.kernel
def tell_one_gpu(flags, rank, number):
    for flag in flags:
        for part in range(flag.shape[1]):
            tw.store(flag, (rank, part), number, sem="release", scope="gpu")


@tw.kernel
def await_relaxed(flag, first, count, parts, number):
    for n in range(count):
        for part in range(parts):
            while tw.load(flag, ((first + n) % flag.shape[0], part), sem="relaxed", scope="sys") < number:
                pass


@tw.kernel
def await_one_gpu(flag, first, count, parts, number):
    for n in range(count):
        for part in range(parts):
            while tw.load(flag, ((first + n) % flag.shape[0], part), sem="acquire", scope="gpu") < number:
                pass


def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers.ExchangeBuffer, "wait", lambda self, first, count=1, parts=1: None)


def with_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        buffers.ExchangeBuffer, "slot", lambda self, reader, sender: self._slots[reader][0, sender][: self._count]
    )
    monkeypatch.setattr(buffers.ExchangeBuffer, "slots", lambda self: self._slots[self.rank][0][:, : self._count])


def without_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers.ExchangeBuffer, "tell", lambda self, ranks, slot=None: None)


def replaced(name: str, kernel: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(buffers, name, kernel)


WEAKENED = {
    "tell is relaxed": (replaced("tell", tell_relaxed), "race"),
    "tell reaches one GPU": (replaced("tell", tell_one_gpu), "race"),
    "wait is relaxed": (replaced("await_ranks", await_relaxed), "race"),
    "wait reaches one GPU": (replaced("await_ranks", await_one_gpu), "race"),
    "no waits": (without_waits, "race"),
    "no tells": (without_tells, "deadlock"),
    "one slot": (with_one_slot, "race"),
}


@pytest.mark.parametrize("operation", [gathered, pytest.param(scattered, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weakened", WEAKENED)
@pytest.mark.spread(3)
def test_each_part_of_the_exchange_is_needed(operation: Any, weakened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken, kind = WEAKENED[weakened]
    weaken(monkeypatch)
    with tw.simulate(ranks=2, raise_errors=False) as run:
        run.run(lambda rank: operation(rank, 2))
    assert kind in {finding.kind for finding in run.findings}, run.findings


# --- what is refused ---------------------------------------------------------------------------------------


def refused(main: Callable[[Rank], object], match: str, ranks: int = 2) -> None:
    with pytest.raises(tw.errors.ArgumentError, match=match):
        tw.simulate(ranks=ranks).run(main)


def test_calls_that_do_not_fit_their_buffer_are_refused() -> None:
    x, w, out = np.zeros((M, K), np.float32), np.zeros((K, N), np.float32), np.zeros((2 * M, N), np.float32)

    def call(x: Any = x, w: Any = w, out: Any = out, shape: Any = (M, K), dtype: Any = np.float32) -> Any:
        def main(rank: Rank) -> None:
            products.all_gather_matmul(x, w, out, tw.distributed.ExchangeBuffer(rank, shape, dtype))

        return main

    refused(call(shape=(M, K + 1)), r"the buffer is for shape \(8, 17\) of float32")
    refused(call(dtype=np.float16), r"of float16, and what is sent has shape \(8, 16\) of float32")
    refused(call(w=np.zeros((K + 1, N), np.float32)), "x has 16 columns, and w 17 rows")
    refused(call(out=out[:-1]), r"out has shape \(15, 8\), and the result \(16, 8\)")
    refused(call(x=np.zeros((K, M), np.float32).T), "takes whole rows one after another")
    refused(call(shape=4), "shape is a tuple of integers, got int 4")
    refused(call(shape=(0, 4)), "an extent is at least 1, got 0")
    refused(lambda rank: products.all_gather_matmul(x, w, out, rank), "buffer is an ExchangeBuffer, got Rank")  # type: ignore[arg-type]
    with pytest.raises(tw.errors.ArgumentError, match="group has no rank, got int 3"):
        tw.distributed.ExchangeBuffer(3, (1,), np.float32)  # type: ignore[arg-type]


def test_rows_that_the_ranks_do_not_divide_are_refused() -> None:
    def main(rank: Rank) -> None:
        buffer = tw.distributed.ExchangeBuffer(rank, (M, N), np.float32)
        x, w = np.zeros((2 * M + 1, K), np.float32), np.zeros((K, N), np.float32)
        tw.distributed.matmul_reduce_scatter(x, w, np.zeros((M, N), np.float32), buffer)

    refused(main, "x has 17 rows, which 2 ranks do not divide")


def test_a_residual_of_another_shape_is_refused() -> None:
    def main(rank: Rank) -> None:
        buffer = tw.distributed.ExchangeBuffer(rank, (M, N), np.float32)
        x, w, out = (np.zeros(shape, np.float32) for shape in ((2 * M, K), (K, N), (M, N)))
        tw.distributed.matmul_reduce_scatter(x, w, out, buffer, np.zeros((2 * M, N), np.float32))

    refused(main, rf"residual is \({2 * M}, {N}\) of float32, and out \({M}, {N}\) of float32")


def test_ranks_of_different_shapes_are_refused() -> None:
    refused(
        lambda rank: tw.distributed.ExchangeBuffer(rank, (M + 64 * rank.rank, K), np.float32),
        "the ranks do not come to the same place",
    )


def test_one_buffer_for_two_operations_at_once_is_refused() -> None:
    def main(rank: Rank) -> None:
        buffer = tw.distributed.ExchangeBuffer(rank, (M, N), np.float32)
        x, w = np.zeros((2 * M, K), np.float32), np.zeros((K, N), np.float32)
        tw.distributed.matmul_all_reduce(x, w, np.zeros((2 * M, N), np.float32), buffer, buffer)

    refused(main, "used by two operations at once")


def test_what_no_product_takes_is_refused_before_anything_is_sent() -> None:
    def main(rank: Rank) -> int:
        buffer = tw.distributed.ExchangeBuffer(rank, (M, K), np.float32)
        x, w, out = (np.ones(shape, np.float32) for shape in ((M, K), (K, N), (2 * M, N)))
        locked = out.view()
        locked.flags.writeable = False
        for others, match in (((w.astype(np.float64), out), "b is float64"), ((w, locked), "out is read-only")):
            if rank.rank == 0:
                with pytest.raises(tw.errors.ArgumentError, match=match):
                    products.all_gather_matmul(x, *others, buffer)
        products.all_gather_matmul(x, w, out, buffer)  # the other rank waits for this call
        return buffer.calls

    assert tw.simulate(ranks=2).run(main) == [1, 1]


def test_a_buffer_whose_operation_failed_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank has sent, and would be one call ahead of the others, which would take old rows for new ones."""
    monkeypatch.setattr(products, "matmul", lambda *args, **keywords: 1 / 0)

    def main(rank: Rank) -> None:
        buffer = tw.distributed.ExchangeBuffer(rank, (M, K), np.float32)
        given = [np.ones(shape, np.float32) for shape in ((M, K), (K, N), (2 * M, N))]
        with pytest.raises(ZeroDivisionError):
            products.all_gather_matmul(*given, buffer)
        products.all_gather_matmul(*given, buffer)

    refused(main, "or one that used it failed")
