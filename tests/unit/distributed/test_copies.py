"""What copy engines send in a kernel's place: which bytes and flags, in which order, and the kernels beside them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.distributed.test_exchanged import COOPERATIVE, PING_PONG, only, program

import tilewright as tw
from tilewright.distributed import copies, products
from tilewright.distributed._exchange_kernels import push, tell
from tilewright.kernels.exchanged import MOST_PARTS, Exchange, scattered_launch
from tilewright.runtime.copies import Copy


class Memory(tw.distributed.ExchangeBuffer):
    """A buffer of several ranks, all in this process: what the peers of one rank have is NumPy's too."""

    def __init__(self, rank: int, size: int, shape: tuple[int, ...], dtype: object) -> None:
        class Of:
            def __init__(self) -> None:
                self.rank, self.size = rank, size

            def symmetric(self, extents: Any, element: Any) -> Any:
                arrays = [np.zeros(extents, tw.dtype(element).numpy) for _ in range(size)]
                return type("Arrays", (), {"peers": arrays})

        super().__init__(Of(), shape, dtype)


class Copier:
    """Does what a stream for copies is told, and keeps the order of all that it does."""

    ordinal = 0

    def __init__(self) -> None:
        self.done: list[Any] = []

    def follow(self, stream: int) -> None:
        self.done.append(("follow", stream))

    def lead(self, stream: int) -> None:
        self.done.append(("lead", stream))

    def put(self, copies: Any) -> None:
        for copy in copies:
            self.done.append(copy)
            if copy.ready:
                assert ctypes.c_int32.from_address(copy.ready).value >= copy.number
            for row in range(0, copy.rows * copy.pitch, copy.pitch):
                ctypes.memmove(copy.target + row, copy.source + row, copy.bytes)
            ctypes.c_int32.from_address(copy.flag).value = copy.number


def exchange_of(buffer: Any, step: int) -> Exchange:
    with buffer:
        found: Exchange = buffer.exchange(step)
    return found


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 4), st.integers(0, 3), st.booleans())
def test_every_reader_gets_all_parts_and_is_told(parts: int, last: int, ranks: int, rank: int, is_staged: bool) -> None:
    """Of one array to all, and of an array for each, whose parts are ready one after another."""
    parts, rank = min(parts, MOST_PARTS), rank % ranks
    count = 16 * (parts - 1) + last
    buffer, copier = Memory(rank, ranks, (count,), tw.float32), Copier()
    source = np.random.default_rng(0).standard_normal((ranks - 1 if is_staged else 1, count), np.float32)
    sender = copies.Sender(copier, lambda ordinal: 7 + ordinal, (1, 4 * count), (1, 64), source if is_staged else None)  # type: ignore[arg-type]
    for call in range(3):
        source += call
        exchange = exchange_of(buffer, -1)
        sender.learn(exchange)

        def launch(exchange: Exchange = exchange) -> bool:
            copier.done.append("launch")
            exchange.sent[:, :parts] = exchange.number
            return True

        copier.done.clear()
        assert sender.beside(launch, 0 if is_staged else source.ctypes.data, exchange.number)
        kinds = ["copies" if isinstance(x, Copy) else x for x in copier.done]
        sent, launched = ["copies"] * (parts * (ranks - 1)), ["launch"]
        order = [*launched, *sent] if is_staged else [*sent, *launched]
        assert kinds == [("follow", 7), *order, ("lead", 7)]
        for n, (slot, flags) in enumerate(zip(exchange.slots, exchange.flags, strict=True)):
            assert np.array_equal(slot, source[n if is_staged else 0])
            assert (flags[rank, :parts] == exchange.number).all()
            assert not flags[rank, parts:].any() and not np.delete(flags, rank, 0).any()


class Ranks:
    """The ranks of a group, all in this process, which make what is symmetric in one order."""

    def __init__(self, size: int) -> None:
        self.size, self.made = size, list[Any]()

    def buffer(self, rank: int, shape: tuple[int, ...], dtype: object) -> Any:
        asked = iter(range(100))

        def symmetric(extents: Any, element: Any) -> Any:
            number = next(asked)
            if number == len(self.made):
                arrays = [np.zeros(extents, tw.dtype(element).numpy) for _ in range(self.size)]
                self.made.append(type("Arrays", (), {"peers": arrays}))
            return self.made[number]

        group = type("One", (), {"rank": rank, "size": self.size, "symmetric": staticmethod(symmetric)})
        return tw.distributed.ExchangeBuffer(group, shape, dtype)  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(3, 5), st.integers(1, 20), st.integers(1, 20))
def test_in_the_ring_each_rank_passes_on_what_has_come(m: int, n: int, ranks: int, height: int, width: int) -> None:
    """All parts of all ranks come everywhere, from one neighbour, in pieces of the matrices and in the order of parts."""
    part = max(height, -(-m // 2)), max(width, -(-n // 4))
    group = Ranks(ranks)
    buffers = [group.buffer(rank, (m, n), tw.float32) for rank in range(ranks)]
    sources = np.random.default_rng(0).standard_normal((ranks, m, n), np.float32)
    queues = []
    for rank, buffer in enumerate(buffers):
        with buffer:
            exchange = buffer.exchange(-1, in_ring=True)
        places = copies.places_of(exchange, (m, 4 * n), (part[0], 4 * part[1]), is_staged=False)
        base = sources[rank].ctypes.data
        queues.append([Copy(to, base * moves + begin, *rest, exchange.number) for to, begin, moves, rest in places])
    while any(queues):
        ready = [q for q in queues if q and (not q[0].ready or ctypes.c_int32.from_address(q[0].ready).value >= 1)]
        assert ready, "ranks wait for each other"
        for queue in ready:
            Copier().put([queue.pop(0)])
    for rank, buffer in enumerate(buffers):
        for owner in range(ranks):
            if owner != rank:
                found = buffer._slots[rank][1, owner][: m * n].reshape(m, n)
                assert np.array_equal(found, sources[owner])
                count = -(-m // part[0]) * -(-n // part[1])
                assert (buffer._flags[rank][owner, :count] == 1).all()


def test_a_launch_that_was_not_made_sends_no_sums() -> None:
    """Nothing would ever end the wait for them."""
    buffer, copier = Memory(0, 2, (32,), tw.float32), Copier()
    sender = copies.Sender(copier, lambda ordinal: 0, (1, 128), (1, 64), np.zeros((1, 32), np.float32))  # type: ignore[arg-type]
    sender.learn(exchange_of(buffer, 1))
    assert not sender.beside(lambda: False, 0, 1)
    assert copier.done == [("follow", 0), ("lead", 0)]


def test_arrays_of_the_simulator_and_small_parts_are_the_kernels() -> None:
    buffer = Memory(0, 2, (2048, 1024), tw.float32)
    with buffer:
        assert copies.sender_for(buffer, np.zeros((2048, 1024), np.float32), (1024, 1024)) is None


class Pushes:
    """Sends by launches, where no copy engine is: before the kernel."""

    staging = None

    def __init__(self, buffer: Any, array: Any) -> None:
        self.buffer, self.array = buffer, array

    def beside(self, launch: Any, source: int, number: int) -> bool:
        exchange = self.buffer.exchange(-1)
        push[2, 128](list(exchange.slots), self.array.reshape(-1))
        tell[1, 1](list(exchange.flags), exchange.rank, number)
        return bool(launch())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_kernel_that_sends_nothing_multiplies_what_comes(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "sender_for", lambda buffer, array, part: Pushes(buffer, array))
    with only(PING_PONG) as kernel:
        assert all(tw.simulate(ranks=ranks).run(lambda rank: program(rank, 70, 72, 72, 2)))
    assert kernel.launched


@pytest.mark.parametrize(
    "configuration", [pytest.param(COOPERATIVE, marks=pytest.mark.slow), replace(PING_PONG, blocks=3)], ids=str
)
def test_a_kernel_stages_what_is_sent(configuration: Any) -> None:
    """The sums for others lie in the order of the ring, and are told of; the rank's own have what has come."""
    ranks, rank, (m, n, k) = 3, 1, (140, 72, 72)
    buffer = Memory(rank, ranks, (m, n), tw.float32)
    exchange = exchange_of(buffer, 1)
    random = np.random.default_rng(0)
    x, w = random.integers(-3, 4, (ranks * m, k)), random.integers(-3, 4, (k, n))
    come = random.integers(-9, 9, (ranks, m, n))
    come[rank] = 0
    exchange.arrived[...] = come.reshape(ranks, -1)
    exchange.told[...] = exchange.number
    staging, out = np.full((ranks - 1, m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    with only(configuration, "SCATTERED"), tw.simulate():
        a, b = (array.astype(np.float16) for array in (x, w))
        launch = scattered_launch(a, b, out, (m, n), exchange, staging=staging)
        assert launch is not None
        launcher, args = launch
        launcher(*args)
    whole = (x @ w).reshape(ranks, m, n)
    assert np.array_equal(staging[0], whole[2]) and np.array_equal(staging[1], whole[0])
    assert np.array_equal(out, whole[rank] + come.sum(0))
    assert (exchange.sent[:, 0] == exchange.number).all() and not exchange.sent[:, 1:].any()
    assert not exchange.counters.any() and not any(slot.any() for slot in exchange.slots)


def test_a_kernel_stages_sums_with_what_has_come() -> None:
    """In the ring, for the rank before: each rank's rows are in the slot behind its own."""
    ranks, rank, (m, n, k) = 3, 1, (140, 136, 72)
    buffer = Memory(rank, ranks, (m, n), tw.float32)
    with buffer:
        exchange = buffer.exchange(1, in_ring=True)
    random = np.random.default_rng(0)
    x, w, come = (
        random.integers(-3, 4, (ranks * m, k)),
        random.integers(-3, 4, (k, n)),
        random.integers(-9, 9, (3, m, n)),
    )
    exchange.arrived[...] = come.reshape(ranks, -1)
    exchange.told[...] = exchange.number
    staging, out = np.full((ranks - 1, m, n), np.nan, np.float32), np.full((m, n), np.nan, np.float32)
    with only(COOPERATIVE, "SCATTERED"), tw.simulate():
        a, b = (array.astype(np.float16) for array in (x, w))
        launch = scattered_launch(a, b, out, (128, 128), exchange, staging=staging)
        assert launch is not None
        launcher, args = launch
        launcher(*args)
    whole = (x @ w).reshape(ranks, m, n)
    assert np.array_equal(staging[0], whole[2]) and np.array_equal(staging[1], whole[0] + come[1])
    assert np.array_equal(out, whole[1] + come[2])
    assert (exchange.sent[:, :4] == exchange.number).all() and not exchange.sent[:, 4:].any()
    places = copies.places_of(exchange, (m, 4 * n), (128, 512), is_staged=True)
    assert [rest[1:2] for *_, rest in places] == [(128,), (128,), (12,), (12,)] * 2
    assert exchange.rows == [0, 1] and not exchange.counters.any()
