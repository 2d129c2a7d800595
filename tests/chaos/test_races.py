"""Many at once: threads and forks on one cache, tuners on one store, and others that clear or lock meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
import time
import warnings
from pathlib import Path

import pytest
from tests.chaos.processes import compile_all, forget, kill, needs_fork, start, wait
from tests.helpers.slow import slow

from tilewright.errors import TilewrightWarning
from tilewright.runtime import result_store as store_module
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.result_rows import Place, Winner, pending_files
from tilewright.runtime.result_store import Store

pytestmark = needs_fork
SOURCES = [f"source {n} " + "x" * (20_000 * n) for n in range(8)]


@pytest.mark.parametrize("rounds", [3, slow(100)])
def test_threads_and_forks_on_one_cache(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    """Threads compile all kernels in random order; meanwhile the process forks, and each child does the same."""

    def compile_in_threads(cache: DiskCache, seed: int) -> None:
        failures: list[BaseException] = []

        def work(own: random.Random) -> None:
            try:
                for source in own.sample(SOURCES, len(SOURCES)):
                    assert cache.compile(source, name="k", arch="sm_80").cubin == source.encode()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(random.Random(seed + n),), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures and not any(thread.is_alive() for thread in threads), failures

    for n in range(rounds):
        cache, seed = DiskCache(tmp_path / str(n)), chance.randrange(1 << 30)
        background = threading.Thread(target=compile_in_threads, args=(cache, seed))
        background.start()
        children = []
        for child in range(4):
            time.sleep(chance.uniform(0, 0.003))
            children.append(start(lambda child=child: compile_in_threads(cache, seed + 100 * (child + 1))))
        background.join(60)
        assert wait(children) == [0] * 4 and not background.is_alive()
        assert sorted(len(e.key) for e in DiskCache(cache.folder).entries()) == [64] * len(SOURCES)
        assert compile_all(DiskCache(cache.folder), SOURCES) == []


@pytest.mark.parametrize("seconds", [1.0, slow(20.0)])
def test_a_cache_that_is_cleared_and_removed_meanwhile(tmp_path: Path, chance: random.Random, seconds: float) -> None:
    folder = tmp_path / "cache"

    def compile_for_a_while() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            # A folder may be gone thrice in a row: that is said, and is no error.
            assert len(compile_all(DiskCache(folder), SOURCES)) <= 1

    def remove_for_ever() -> None:
        while True:
            chance.choice([lambda: DiskCache(folder).clear(), lambda: shutil.rmtree(folder, ignore_errors=True)])()
            time.sleep(chance.uniform(0, 0.01))

    remover = start(remove_for_ever)
    try:
        assert wait([start(compile_for_a_while) for _ in range(3)], seconds + 60) == [0] * 3
    finally:
        kill(remover)
    compile_all(DiskCache(folder), SOURCES)
    assert all(entry.name == "k" for entry in DiskCache(folder).entries())


@pytest.mark.parametrize("results", [12, slow(200)])
def test_tuners_on_one_store(
    tmp_path: Path, chance: random.Random, results: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds in the end what it has put, though another process holds the lock for longer than they wait."""
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.02)
    path = tmp_path / "tuning.sqlite"

    def place(writer: int, n: int) -> Place:
        return Place("GPU", "d", str(writer), str(n))

    def tune(writer: int) -> None:
        warnings.simplefilter("ignore", TilewrightWarning)
        for n in range(results):
            store = Store(path)
            store.check_writable()
            winner = Winner(f"BM={writer}.{n}", float(n))
            store.put(place(writer, n), winner, name="f", trials=[])
            # None where the lock was held for longer than reading waits; never what another has put.
            assert store.find(place(writer, n)) in (None, winner)
            before = chance.randrange(n + 1)
            assert store.find(place(writer, before)) in (None, Winner(f"BM={writer}.{before}", float(before)))
            shared = Place("GPU", "d", "all", str(n % 3))
            store.put(shared, winner, name="f", trials=[])

    def hold_the_lock() -> None:
        while True:
            connection = sqlite3.connect(path, isolation_level=None, timeout=60)
            connection.execute(chance.choice(["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"]))
            time.sleep(chance.uniform(0, 0.06))
            connection.close()
            time.sleep(chance.uniform(0, 0.03))

    Store(path).check_writable()
    locker = start(hold_the_lock)
    try:
        assert wait([start(lambda writer=writer: tune(writer)) for writer in range(3)], 300) == [0] * 3
    finally:
        kill(locker)
    forget()
    store = Store(path)
    store_module._WAIT_SECONDS = 10.0
    store.check_writable()
    assert pending_files(path) == [], "all was taken in"
    for writer in range(3):
        for n in range(results):
            assert store.find(place(writer, n)) == Winner(f"BM={writer}.{n}", float(n)), (writer, n)
    assert all(store.find(Place("GPU", "d", "all", str(n))) is not None for n in range(3))
    assert os.listdir(tmp_path) == ["tuning.sqlite"]
