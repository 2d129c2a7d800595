"""Processes killed at random moments, while they write to the cache and to the tuning store."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos.processes import compile_all, kill, needs_fork, start
from tests.helpers.cache_process import environment
from tests.helpers.slow import scaled, slow

from tilewright.runtime.cache import DiskCache
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store

pytestmark = needs_fork
# Large, so that a writer is killed within a write often enough; the ends tell them apart.
SOURCES = [f"{n} " + "x" * (300_000 * (n + 1)) + f" {n}" for n in range(4)]


@pytest.mark.parametrize("kills", [15, slow(300)])
def test_writers_of_the_cache(tmp_path: Path, chance: random.Random, kills: int) -> None:
    folder = tmp_path / "cache"

    def write_for_ever() -> None:
        order = list(SOURCES)
        while True:
            chance.shuffle(order)
            for source in order:
                cache = DiskCache(folder)
                assert cache.compile(source, name="k", arch="sm_80").cubin == source.encode()
                cache.clear() if chance.random() < 0.3 else None

    for _ in range(kills):
        chance.random()  # so that no two children draw the same
        children = [start(write_for_ever) for _ in range(2)]
        time.sleep(chance.uniform(0, 0.05))
        for child in children:
            kill(child)
        assert all(entry.name == "k" for entry in DiskCache(folder).entries()), "an entry is whole, or is not there"
        assert compile_all(DiskCache(folder), SOURCES) == []
    DiskCache(folder).clear()
    assert not [path for path in folder.rglob("*") if path.is_file()], "what they left is cleared"


@pytest.mark.parametrize("kills", [15, slow(300)])
def test_writers_of_the_store(tmp_path: Path, chance: random.Random, kills: int) -> None:
    path = tmp_path / "tuning.sqlite"
    base = Place("GPU", "d", "k", "before")
    Store(path).put(base, Winner("BM=0", 1.0), name="f", trials=[])

    def write_for_ever(writer: int) -> None:
        n = 0
        while True:
            trials = [{"config": {"BM": n}, "text": "x" * chance.randrange(20_000)}]
            Store(path).put(
                Place("GPU", "d", str(writer), str(n % 7)), Winner(f"BM={n % 7}", 1.0), name="f", trials=trials
            )
            n += 1

    for _ in range(kills):
        chance.random()
        children = [start(lambda writer=writer: write_for_ever(writer)) for writer in range(2)]
        time.sleep(chance.uniform(0, 0.05))
        for child in children:
            kill(child)
        assert Store(path).find(base) == Winner("BM=0", 1.0)
        for writer in range(2):
            for n in range(7):
                assert Store(path).find(Place("GPU", "d", str(writer), str(n))) in (None, Winner(f"BM={n}", 1.0))
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


_COMPILER = """
import sys
from tilewright.runtime.cache import default_cache
n = 0
while True:
    source = 'extern "C" __global__ void k(float* a) { a[%d] = 3.0f; }' % n
    print(default_cache().compile(source, name="k", arch="sm_80").resources.registers, flush=True)
    n = (n + 1) % 5
    default_cache()._memory.clear()
    if n == 0:
        default_cache().clear()
"""


@pytest.mark.slow
def test_real_compilers(tmp_path: Path, chance: random.Random) -> None:
    """NVRTC in processes of their own, killed at any moment from their start on."""
    try:
        from tilewright.runtime.nvrtc import nvrtc_version

        nvrtc_version()
    except Exception:
        pytest.skip("needs NVRTC")
    folder = tmp_path / "cache"
    for _ in range(scaled(25)):
        process = subprocess.Popen(
            [sys.executable, "-c", _COMPILER],
            env=environment(TILEWRIGHT_CACHE_DIR=str(folder)), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        time.sleep(chance.uniform(0.05, 1.5))
        process.kill()
        _, errors = process.communicate()
        assert errors == b""
        assert all(entry.name == "k" for entry in DiskCache(folder).entries())
    assert os.path.isdir(folder)
