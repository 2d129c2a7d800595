"""The whole way of a tuning on a GPU, with a driver that knows one kernel and has a clock of its own.

NVRTC compiles for real, and the store and the cache are files; only what the device would do is played.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.device import Device, Parameters, installed

import tilewright as tw
from tilewright.bench import do_bench
from tilewright.recording import record_launches
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.memory import DeviceArray
from tilewright.suites.report import resources_of
from tilewright.tune.autotuner import Autotuned

THREADS = 128


@tw.kernel
def fill_with(dst, value, PER: tw.constexpr):
    """Write `value` to all elements."""
    first = (tw.block_idx.x * THREADS + tw.thread_idx.x) * PER
    for n in tw.static_range(PER):
        if first + n < dst.size:
            dst[first + n] = value


class Filler(Device):
    """Fills arrays when `fill_with` is launched, in 1 ms and 1 ms more for each block."""

    def __init__(self) -> None:
        super().__init__({"fill_with": self.fill})
        self.wrong: set[int] = set()  # grids for which it computes something else
        self.fatal: set[int] = set()  # grids that bring it down

    def fill(self, parameters: Parameters, blocks: int) -> float:
        parameters.array(0, parameters.integer(1))[...] = parameters.real(2) + (blocks in self.wrong)
        self.down = self.down or blocks in self.fatal
        return 1 + blocks


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all tests, which run the same kernels."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, compiled: Path) -> Iterator[Filler]:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(compiled))
    for results in compiled.glob("tuning.sqlite*"):  # each test tunes
        results.unlink()
    with installed(Filler(), monkeypatch) as filler:
        fill_with.forget()  # what other tests compiled is loaded on their device
        yield filler


SIZE = 128 * 64
CONFIGS = [tw.Config(PER=p, block=THREADS) for p in (1, 2, 4, 8)]


def blocks(meta: dict[str, Any]) -> int:
    return -(-meta["dst"].shape[0] // (THREADS * meta["PER"]))


def tuned(**settings: Any) -> Autotuned:
    chosen: dict[str, Any] = {"configs": CONFIGS, "key": ["dst"], "progress": False, "workers": 2, **settings}
    return tw.autotune(**chosen)(fill_with)


def array(size: int = SIZE) -> DeviceArray:
    return DeviceArray.from_numpy(np.full(size, 5, np.float32))


def test_the_fastest_wins_and_is_remembered(device: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(cache_folder))
    dst = array()
    tuned()[blocks, None](dst, 3.0)
    assert (dst.numpy() == 3).all()
    assert device.launches[-1][0][0] == SIZE // THREADS // 8, "the fewest blocks take the least time"
    assert len(DiskCache(cache_folder).entries()) == 4
    assert (cache_folder / "tuning.sqlite").is_file()
    # Another process: a new object with the same source. It finds the winner and launches once.
    before = len(device.launches)
    again = tuned()
    again[blocks, None](array(), 4.0)
    assert len(device.launches) == before + 1 and again.best_config(dst, 4.0) == CONFIGS[3]
    assert again.tune(dst, 1.0, grid=blocks).source == "stored"
    assert again.tune(dst, 1.0, grid=blocks, force=True).source == "measured"
    # Another shape of the key is another result, and so is another list of candidates.
    assert tuned().best_config(array(256), 1.0) is None
    assert tuned(configs=CONFIGS[:2]).best_config(dst, 1.0) is None
    assert tuned().best_config(dst, 1.0) == CONFIGS[3]


def test_times_are_the_devices_and_arrays_stay(device: Filler) -> None:
    dst = array()
    found = tuned(store=None).tune(dst, 3.0, grid=blocks)
    assert (dst.numpy() == 5).all()
    assert [t.milliseconds for t in found.trials] == [1 + SIZE // THREADS // p for p in (1, 2, 4, 8)]
    assert do_bench(lambda: fill_with[4, THREADS](dst, 1.0, 1)) == 5


def test_a_wrong_candidate_does_not_win(device: Filler) -> None:
    device.wrong = {SIZE // THREADS // 8}
    found = tuned(store=None).tune(array(), 3.0, grid=blocks)
    assert [t.status for t in found.trials] == ["ok", "ok", "ok", "wrong"] and found.best == CONFIGS[2]


def test_a_candidate_that_brings_the_device_down_is_named(device: Filler) -> None:
    device.fatal = {SIZE // THREADS // 4}
    with pytest.raises(tw.TuningError, match="candidate PER=4, block=128 of fill_with has brought the device down"):
        tuned().tune(array(), 3.0, grid=blocks)
    device.down = False
    assert tuned().best_config(array(), 3.0) is None, "nothing was stored"


def test_a_store_that_cannot_be_used_is_told_before_anything_runs(device: Filler, tmp_path: Path) -> None:
    """A tuning that was asked for ends there; a call, for which nobody waits, tunes for its process alone."""
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"nothing like a database " * 100)
    (tmp_path / "file").write_text("")
    newer, dst = tmp_path / "newer.sqlite", array()
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    ways = ((damaged, "is damaged"), (tmp_path / "file" / "t.sqlite", "cannot be written"), (newer, "has version 99"))
    for path, message in ways:
        before = path.read_bytes() if path.is_file() else None
        device.launches.clear()
        with pytest.raises(tw.TuningError, match=message):
            tuned(store=path).tune(dst, 3.0, grid=blocks)
        assert device.launches == []
        call = tuned(store=path)
        with pytest.warns(tw.TilewrightWarning, match=f"{message}.*; what fill_with finds is kept in this process"):
            call[blocks, None](dst, 3.0)
        assert len(device.launches) > 4 and device.launches[-1][0][0] == SIZE // THREADS // 8
        assert (path.read_bytes() if path.is_file() else None) == before


def test_what_was_launched_is_seen_with_its_resources(device: Filler) -> None:
    dst = array()
    with record_launches() as launches:
        fill_with[4, THREADS](dst, 1.0, 1)
    (kernel,) = resources_of(launches)
    assert kernel["grid"] == (4, 1, 1) and kernel["blocks_per_multiprocessor"] == 3
    assert kernel["occupancy"] == 3 * THREADS / 2048 and kernel["registers"] > 0
    assert launches[0].written["dst"] is dst and launches[0].function is not None
