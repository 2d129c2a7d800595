"""A launch that is over leaves no memory to the garbage collector: the notes on its arrays take many times their size."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import joint
from tilewright.errors import CheckError


@tw.kernel
def shifted(x: tw.Tensor, shift: int) -> None:
    words = tw.shared(tw.float32, (32,))
    words[tw.thread_idx.x] = x[tw.thread_idx.x]
    x[tw.thread_idx.x] = words[(tw.thread_idx.x + shift) % 32]


@tw.kernel
def given_on(peers: list[tw.Tensor], value: int) -> None:
    peers[0][tw.thread_idx.x + 32 * value] = value


@tw.kernel
def copied(x: tw.Tensor) -> None:
    words, full = tw.shared(tw.float32, tw.row_major((8, 32))), tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(1024)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(x, (8, 32), (0, 0), guard=True), words, barrier=full)
    full.wait(0)
    x[8, tw.thread_idx.x] = words[0, tw.thread_idx.x]


def launch() -> None:
    shifted[1, 32](np.zeros(32, np.float32), 0)


def launch_wrongly() -> None:
    with pytest.raises(CheckError):
        shifted[1, 32](np.zeros(32, np.float32), 1)


def launch_in_orders() -> None:
    with tw.simulate(schedules=2):
        launch()


def launch_profiled() -> None:
    with tw.simulate(profile=True):
        launch()


def launch_by_ranks() -> None:
    def main(rank: tw.Rank) -> None:
        given_on[1, 32](rank.symmetric((64,), np.float32).peers, rank.rank)

    with tw.simulate(ranks=2) as run:
        run.run(main)


def launch_of_bulk_copies() -> None:
    copied[1, 32](np.zeros((16, 32), np.float32))


@pytest.fixture
def made() -> Iterator[list[weakref.ref[object]]]:
    """What launches have made."""
    execute = import_module("tilewright.backends.sim.execute")  # the package has a function of this name
    kept: list[weakref.ref[object]] = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (execute, "Machine"), (joint, "Machine"), (execute, "RaceChecker"), (joint, "Histories"), (joint, "Group"),
        ):  # fmt: skip
            kind = getattr(module, name)

            def make(*arguments: object, kind: Callable[..., object] = kind, **named: object) -> object:
                found = kind(*arguments, **named)
                kept.append(weakref.ref(found))
                return found

            patch.setattr(module, name, make)
        yield kept


@pytest.mark.parametrize(
    "run",
    [launch, launch_wrongly, launch_in_orders, launch_profiled, launch_by_ranks, launch_of_bulk_copies],
    ids=lambda run: run.__name__,
)
def test_nothing_of_a_launch_stays(run: Callable[[], None], made: list[weakref.ref[object]]) -> None:
    run()  # traces
    gc.collect()
    gc.disable()
    try:
        run()
        assert len(made) > 1
        assert not [found for each in made if (found := each()) is not None]
    finally:
        gc.enable()
