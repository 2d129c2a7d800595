"""Disks that are full: a small file system of its own where root can mount one, limits of a process elsewhere."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.chaos.processes import compile_all, forget, needs_fork, start, wait
from tests.helpers.slow import slow

from tilewright.errors import TilewrightWarning, TuningError
from tilewright.runtime import nvrtc
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.entries import pack
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory with a limit; skips where none can be mounted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        pytest.skip("needs mount")
    if done.returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def sources(chance: random.Random) -> list[str]:
    return [f"{n} " + "x" * chance.randrange(100_000) for n in range(12)]


def left_behind(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".cubin"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
@pytest.mark.parametrize("rounds", [4, slow(200)])
def test_no_space_for_the_cache(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        limit = chance.choice([f"size={chance.randrange(4, 500)}k", f"nr_inodes={chance.randrange(2, 16)}"])
        with small_disk(tmp_path / "disk", limit) as disk:
            texts = sources(chance)
            warned = compile_all(DiskCache(disk / "cache"), texts)
            assert len(warned) <= 1 and all("No space left" in message for message in warned), (limit, warned)
            assert not left_behind(disk)
            assert all(entry.name == "k" for entry in DiskCache(disk / "cache").entries())
            again = compile_all(DiskCache(disk / "cache"), texts)
            assert bool(again) == bool(warned) and len(again) <= 1
            if warned:
                assert "No space left" in str(DiskCache(disk / "cache").problem()) or "size" in limit
            DiskCache(disk / "cache").clear()
            if limit.startswith("size") and int(limit[5:-1]) > 100:  # with space again, it works again
                assert compile_all(DiskCache(disk / "cache"), ["short"]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
@pytest.mark.parametrize("rounds", [3, slow(100)])
def test_no_space_for_the_store(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        with small_disk(tmp_path / "disk", f"size={4 * chance.randrange(6, 40)}k") as disk:
            forget()
            store, filler = Store(disk / "tuning.sqlite"), disk / "filler"
            known: dict[Place, Winner] = {}

            def put(n: int) -> None:
                place, winner = Place("GPU", "d", "k", str(n)), Winner(f"BM={n}", float(n))
                store.put(place, winner, name="f", trials=[{"text": "x" * chance.randrange(3000)}])
                known[place] = winner

            put(0)
            fill(filler)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TilewrightWarning)
                for n in range(1, 8):
                    put(n)
                assert all(store.find(place) == winner for place, winner in known.items()), "known in this process"
                filler.unlink()
                put(8)  # takes in what waits, as far as there is space
                assert all(store.find(place) == winner for place, winner in known.items())
                if not any(store_rows_wait()):
                    forget()
                    assert all(store.find(place) == winner for place, winner in known.items()), "and in the next one"


def store_rows_wait() -> list[object]:
    from tilewright.runtime import result_store as store_module

    return [row for rows in store_module._kept.values() for row in rows]


def fill(path: Path) -> None:
    """Take all space that is left."""
    with open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.skipif(sys.platform != "linux", reason="needs tmpfs")
def test_a_disk_without_space_is_told_before_a_tuning(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        store = Store(disk / "tuning.sqlite")
        store.check_writable()
        fill(disk / "filler")
        with pytest.raises(TuningError, match=r"cannot be written: .*(full|I/O)"):
            store.check_writable()


@needs_fork
@pytest.mark.parametrize("rounds", [4, slow(200)])
def test_files_of_limited_size(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    """RLIMIT_FSIZE, as batch systems set it: a write stops in the middle of a file."""
    import resource

    for n in range(rounds):
        texts, folder = sources(chance), tmp_path / str(n)
        modules = (nvrtc.compile_cuda(text, name="k", arch="sm_80") for text in texts)
        largest = max(len(pack("0" * 64, module)) for module in modules)
        limit = chance.choice([chance.randrange(1, 100_000), largest, largest - 1])

        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            warned = compile_all(DiskCache(folder), texts)
            assert len(warned) == (largest > limit), (limit, warned)
            assert not left_behind(folder)

        assert wait([start(work)]) == [0]
        assert compile_all(DiskCache(folder), texts) == []


@needs_fork
def test_no_more_open_files(tmp_path: Path) -> None:
    import resource

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        cache, taken = DiskCache(tmp_path / "cache"), []
        compile_all(cache, ["one"])
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        assert len(compile_all(DiskCache(tmp_path / "cache"), ["one", "two"])) == 1

    assert wait([start(work)]) == [0]
