"""The store: what is written is found, by many processes at once, and a bad file is told."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store

PLACE = Place("GPU", "580 (CUDA 13.0)", "abc", "n=4")


def put(store: Store, place: Place = PLACE, config: str = "BM=1", ms: float = 0.5) -> None:
    store.put(place, Winner(config, ms), name="matmul", trials=[{"config": {"BM": 1}}])


def test_what_is_put_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "tuning.sqlite")
    assert store.find(PLACE) is None
    put(store)
    assert Store(store.path).find(PLACE) == Winner("BM=1", 0.5)
    put(store, config="BM=2", ms=0.25)
    assert store.find(PLACE) == Winner("BM=2", 0.25)


@pytest.mark.parametrize("part", ["device", "driver", "kernel", "key"])
def test_another_place_is_another_result(tmp_path: Path, part: str) -> None:
    store = Store(tmp_path / "tuning.sqlite")
    put(store)
    other = Place(**{**vars(PLACE), part: "other"})
    assert store.find(other) is None


def test_the_default_follows_the_environment(cache_folder: Path) -> None:
    assert Store().path == cache_folder / "tuning.sqlite"


def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    for content in (b"this is no database at all, but it is long enough " * 40, _torn(tmp_path)):
        path.write_bytes(content)
        for act in (lambda: Store(path).find(PLACE), Store(path).check_writable, lambda: put(Store(path))):
            with pytest.raises(tw.TuningError, match=r"tuning\.sqlite is damaged") as error:
                act()
            assert "remove the file" in str(error.value)
        assert path.read_bytes() == content


def _torn(folder: Path) -> bytes:
    """A database whose pages are overwritten behind an intact header."""
    store = Store(folder / "whole.sqlite")
    put(store)
    data = bytearray(store.path.read_bytes())
    data[100:] = b"\x5a" * (len(data) - 100)
    return bytes(data)


def test_a_store_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "tuning.sqlite", Path("/proc/none/tuning.sqlite"), tmp_path):
        with pytest.raises(tw.TuningError, match="cannot be written") as error:
            Store(path).check_writable()
        assert "store=None" in str(error.value)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "tuning.sqlite")
    store.find(PLACE)
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store
store = Store(Path(sys.argv[1]))
for n in range(15):
    store.put(Place("GPU", "d", sys.argv[2], str(n)), Winner(f"BM={n}", n), name="f", trials=[])
"""


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    store = Store(path)
    for writer in range(3):
        for n in range(15):
            assert store.find(Place("GPU", "d", str(writer), str(n))) == Winner(f"BM={n}", float(n))


def test_a_killed_writer_leaves_the_store_intact(tmp_path: Path) -> None:
    path = tmp_path / "tuning.sqlite"
    put(Store(path))
    endless = WRITER.replace("range(15)", "iter(int, 1)").replace("str(n)", "'k'")
    for _ in range(2):
        writer = subprocess.Popen([sys.executable, "-c", endless, str(path), "w"])
        deadline = time.monotonic() + 30
        while Store(path).find(Place("GPU", "d", "w", "k")) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        assert Store(path).find(PLACE) == Winner("BM=1", 0.5)
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
