"""tw.pipeline with consumers: states go round the ring, and stages are handed over in time."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.language.pipeline import Pipeline, Ring

LOAD = tw.atoms.SM90_TMA_LOAD


@tw.kernel
def rows(out, x, stages: tw.constexpr, consumers: tw.constexpr, behind: tw.constexpr):
    """Every consumer warp writes each row of x times its number."""
    smem = tw.shared(tw.float32, tw.Layout((32, stages), (1, 32)))
    ring = tw.pipeline(stages, consumers=consumers, bytes=128)
    tw.sync_threads()
    n = x.shape[0]
    if tw.warp_id() == consumers:
        if tw.elect_one():
            state = ring.producer()
            for i in range(n):
                with state.fill() as (stage, full):
                    row = tw.local_tile(tw.guarded(x)[i, :], (32,), (0,))
                    tw.copy(LOAD, row, smem[:, stage], barrier=full)
    else:
        state = ring.consumer(behind)
        for i in range(n):
            with state.read() as stage:
                out[i, tw.warp_id(), tw.lane_id()] = smem[tw.lane_id(), stage] * tw.warp_id().to(tw.float32)
        state.release()


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.spread(4)
def test_every_row_arrives(stages: int, consumers: int, behind: int) -> None:
    if behind and stages == 1:
        pytest.skip("the only stage is given back a tile too late, by design")
    x = np.arange(11 * 32, dtype=np.float32).reshape(11, 32)
    out = np.zeros((11, consumers, 32), np.float32)
    rows[1, 32 * (consumers + 1)](out, x, stages, consumers, behind)
    assert (out == x[:, None, :] * np.arange(consumers)[None, :, None]).all()


def test_one_stage_behind_is_a_deadlock() -> None:
    with pytest.raises(tw.CheckError, match="deadlock"):
        rows[1, 64](np.zeros((3, 1, 32), np.float32), np.zeros((3, 32), np.float32), 1, 1, 1)


@tw.kernel
def halves(out, x, announced: tw.constexpr):
    """Odd rows have only their first half copied to a stage; what is announced of them is `announced` bytes."""
    smem = tw.shared(tw.float32, tw.Layout((32, 2), (1, 32)))
    ring = tw.pipeline(2, consumers=1, bytes=128)
    tw.sync_threads()
    n = x.shape[0]
    if tw.warp_id() == 1:
        if tw.elect_one():
            state = ring.producer()
            for i in range(n):
                with state.fill(tw.where(i % 2 == 1, announced, 128)) as (stage, full):
                    row = tw.guarded(x)[i, :]
                    if i % 2 == 1:
                        tw.copy(LOAD, tw.local_tile(row, (16,), (0,)), smem[:16, stage], barrier=full)
                    else:
                        tw.copy(LOAD, tw.local_tile(row, (32,), (0,)), smem[:, stage], barrier=full)
    else:
        state = ring.consumer()
        for i in range(n):
            with state.read() as stage:
                out[i, tw.lane_id()] = smem[tw.where(i % 2 == 1, tw.lane_id() % 16, tw.lane_id()), stage]


def test_a_stage_is_filled_in_part() -> None:
    x, out = np.arange(5 * 32, dtype=np.float32).reshape(5, 32), np.zeros((5, 32), np.float32)
    halves[1, 64](out, x, 64)
    wanted = x.copy()
    wanted[1::2, 16:] = x[1::2, :16]
    assert (out == wanted).all()
    with pytest.raises(tw.CheckError, match="deadlock"):
        halves[1, 64](out, x, 128)


@pytest.mark.parametrize("bytes", [-1, 129, True, 64.0, "64"])
def test_what_is_announced_is_no_more_than_a_stage(bytes):
    @tw.kernel
    def k(x):
        with tw.pipeline(2, consumers=1, bytes=128).producer().fill(bytes):
            pass

    with pytest.raises(tw.LanguageError, match=r"state\.fill announces 0 to 128 bytes, not"):
        k[1, 32](np.zeros(4, np.float32))


@tw.kernel
def neighbours(out, x, stages: tw.constexpr, late: tw.constexpr):
    """out[i] = x[i] + x[i + 1]: two rows are held at a time, and overlap without being nested."""
    smem = tw.shared(tw.float32, tw.Layout((32, stages), (1, 32)))
    ring = tw.pipeline(stages, consumers=1, bytes=128)
    tw.sync_threads()
    n = x.shape[0]
    if tw.warp_id() == 1:
        if tw.elect_one():
            state = ring.producer()
            for i in range(n):
                with state.fill() as (stage, full):
                    tw.copy(LOAD, tw.local_tile(tw.guarded(x)[i, :], (32,), (0,)), smem[:, stage], barrier=full)
    else:
        state = ring.consumer()
        held = state.acquire()
        for i in range(n - 1):
            following = state.acquire()
            if not late:
                out[i, tw.lane_id()] = smem[tw.lane_id(), held] + smem[tw.lane_id(), following]
            state.give_back(held)
            if late:
                out[i, tw.lane_id()] = smem[tw.lane_id(), held] + smem[tw.lane_id(), following]
            held = following
        state.give_back(held)


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_are_held_as_long_as_the_kernel_says(stages: int) -> None:
    x = np.random.default_rng(0).standard_normal((7, 32), np.float32)
    out = np.zeros((6, 32), np.float32)
    neighbours[1, 64](out, x, stages, False)
    assert np.array_equal(out, x[:-1] + x[1:])
    with pytest.raises(tw.CheckError, match="race"):
        neighbours[1, 64](out, x, stages, True)  # read when it has been given back


def test_a_state_goes_on_in_the_next_loop() -> None:
    @tw.kernel
    def kernel(out, x):
        smem = tw.shared(tw.float32, tw.Layout((32, 3), (1, 32)))
        ring = tw.pipeline(3, consumers=1, bytes=128)
        tw.sync_threads()
        tiles = x.shape[0] // 2
        if tw.warp_id() == 1:
            if tw.elect_one():
                state = ring.producer()
                for half in range(2):
                    for i in range(tiles):
                        with state.fill() as (stage, full):
                            row = tw.local_tile(tw.guarded(x)[half * tiles + i, :], (32,), (0,))
                            tw.copy(LOAD, row, smem[:, stage], barrier=full)
        else:
            state = ring.consumer()
            for i in range(tiles):
                with state.read() as stage:
                    out[i, tw.lane_id()] = smem[tw.lane_id(), stage]
            for i in range(tiles):
                with state.read() as stage:
                    out[tiles + i, tw.lane_id()] = smem[tw.lane_id(), stage]

    x = np.arange(10 * 32, dtype=np.float32).reshape(10, 32)
    out = np.zeros_like(x)
    kernel[1, 64](out, x)
    assert (out == x).all()


@tw.kernel
def by_turns(out, x, stages: tw.constexpr, run, without: tw.constexpr = ""):
    """Two warps read `run` rows each in turns, and go past those of the other one; `without` leaves a part out."""
    smem = tw.shared(tw.float32, tw.Layout((32, stages), (1, 32)))
    ring, turns = tw.pipeline(stages, consumers=1, bytes=128), tw.mbarrier(1, stages=2)
    tw.sync_threads()
    n, warp = x.shape[0], tw.warp_id()
    if warp == 2:
        if tw.elect_one():
            state = ring.producer()
            for i in range(n):
                with state.fill() as (stage, full):
                    tw.copy(LOAD, tw.local_tile(tw.guarded(x)[i, :], (32,), (0,)), smem[:, stage], barrier=full)
    else:
        state = ring.consumer()
        state.advance(warp * run)
        parity = 1 - warp
        for first in range(warp * run, n, 2 * run):
            if without != "order":
                turns[warp].wait(parity)
            for i in range(first, first + run):
                with state.read() as stage:
                    out[i, tw.lane_id()] = smem[tw.lane_id(), stage]
            if tw.elect_one():
                turns[1 - warp].arrive()
            if without != "advance":
                state.advance(run)
            parity = parity ^ 1


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("run", [1, 2, 4, 7])
@pytest.mark.spread(4)
def test_states_go_past_tiles_of_others(stages: int, run: int) -> None:
    x = np.arange(5 * run * 32, dtype=np.float32).reshape(5 * run, 32)
    out = np.zeros_like(x)
    by_turns[1, 96](out, x, stages, run)
    assert (out == x).all()


@pytest.mark.parametrize(("without", "run"), [("order", 4), ("advance", 3)])
def test_what_going_past_needs(without: str, run: int) -> None:
    """Without an order a wait comes two phases early, and passes: the parity is that of the phase before the last."""
    x = np.zeros((12, 32), np.float32)
    with pytest.raises(tw.CheckError):
        by_turns[1, 96](np.zeros_like(x), x, 2, run, without)


@pytest.mark.parametrize("count", [-1, True])
def test_a_state_goes_forward(count: int) -> None:
    @tw.kernel
    def kernel(out):
        tw.pipeline(2, consumers=1, bytes=4).consumer().advance(count)

    with pytest.raises(tw.LanguageError, match="a state goes on by 0 stages or more, not"):
        kernel.lower(tw.spec("int32", (1,)), block=32)


def test_wrong_bytes_are_found() -> None:
    @tw.kernel
    def kernel(out, x, size: tw.constexpr):
        smem, ring = tw.shared(tw.float32, 32), tw.pipeline(1, consumers=1, bytes=size)
        tw.sync_threads()
        if tw.warp_id() == 1:
            if tw.elect_one():
                with ring.producer().fill() as (_, full):
                    tw.copy(LOAD, tw.local_tile(tw.guarded(x)[0, :], (32,), (0,)), smem, barrier=full)
        else:
            with ring.consumer().read():
                out[tw.lane_id()] = smem[tw.lane_id()]

    x = np.ones((1, 32), np.float32)
    kernel[1, 64](np.zeros(32, np.float32), x, 128)
    for size in (64, 256):
        with pytest.raises(tw.CheckError, match="bytes"):
            kernel[1, 64](np.zeros(32, np.float32), x, size)


def test_which_of_the_two() -> None:
    assert isinstance(tw.pipeline(3), Pipeline)

    @tw.kernel
    def kernel(out):
        ring = tw.pipeline(2, consumers=4, bytes=64)
        assert isinstance(ring, Ring) and repr(ring) == "pipeline(stages=2, consumers=4, bytes=64)"
        out[0] = 1

    kernel.lower(tw.spec("int32", (1,)), block=32)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"consumers": 0, "bytes": 4}, "consumers is at least 1"),
        ({"consumers": 1}, "bytes is at least 1 and known while tracing, not None"),
        ({"bytes": 4}, "consumers is at least 1 and known while tracing, not None"),
        ({"consumers": 1, "bytes": True}, "bytes is at least 1"),
    ],
)
def test_refusals(given: dict[str, int], text: str) -> None:
    @tw.kernel
    def kernel(out):
        tw.pipeline(2, **given)

    with pytest.raises(tw.LanguageError, match=text):
        kernel.lower(tw.spec("int32", (1,)), block=32)


def test_a_consumer_is_at_most_one_tile_behind() -> None:
    @tw.kernel
    def kernel(out):
        tw.pipeline(2, consumers=1, bytes=4).consumer(2)

    with pytest.raises(tw.LanguageError, match="at once .0. or one tile behind .1., not 2"):
        kernel.lower(tw.spec("int32", (1,)), block=32)
