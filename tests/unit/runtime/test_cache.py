from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from pathlib import Path

import pytest

from tilewright.errors import TilewrightWarning
from tilewright.runtime import nvrtc
from tilewright.runtime.cache import DiskCache, default_cache, default_folder
from tilewright.runtime.compiler_log import Resources
from tilewright.runtime.entries import cache_key
from tilewright.runtime.nvrtc import CompiledModule

MODULE = CompiledModule("k", "sm_80", b"\x7fELF" + bytes(range(256)), "a log\nof two lines", Resources(32, 4, 8))


class Compiler:
    """A stand-in for NVRTC that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: str, **options: object) -> CompiledModule:
        self.calls += 1
        return MODULE


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    stand_in = Compiler()
    monkeypatch.setattr(nvrtc, "compile_cuda", stand_in)
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "some compiler")
    return stand_in


def compile_in(folder: Path) -> CompiledModule:
    """Compile with a new cache, as a new process does."""
    return DiskCache(folder).compile("source", name="k", arch="sm_80")


def only_file(folder: Path) -> Path:
    (file,) = folder.rglob("*.cubin")
    return file


def test_the_second_process_finds_it(compiler: Compiler, tmp_path: Path) -> None:
    assert compile_in(tmp_path) == MODULE
    assert compile_in(tmp_path) == MODULE
    assert compiler.calls == 1


def test_the_same_process_reads_no_file(compiler: Compiler, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    first = cache.compile("source", name="k", arch="sm_80")
    only_file(tmp_path).unlink()
    assert cache.compile("source", name="k", arch="sm_80") is first
    assert compiler.calls == 1


@pytest.mark.parametrize("length", [0, 3, 20, 44, 60, 100, -1])
def test_a_half_written_entry_is_rebuilt(compiler: Compiler, tmp_path: Path, length: int) -> None:
    compile_in(tmp_path)
    file = only_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    assert compile_in(tmp_path) == MODULE
    assert compiler.calls == 2
    assert file.read_bytes() == whole


@pytest.mark.parametrize("position", [0, 9, 41, 50, -1])
def test_a_damaged_entry_is_rebuilt(compiler: Compiler, tmp_path: Path, position: int) -> None:
    compile_in(tmp_path)
    file = only_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[position] ^= 0x40
    file.write_bytes(data)
    assert compile_in(tmp_path) == MODULE
    assert compiler.calls == 2
    assert DiskCache(tmp_path).entries()[0].name == "k"


def test_garbage_is_rebuilt(compiler: Compiler, tmp_path: Path) -> None:
    compile_in(tmp_path)
    only_file(tmp_path).write_bytes(os.urandom(1000))
    assert DiskCache(tmp_path).entries()[0].name == ""
    assert compile_in(tmp_path) == MODULE


def test_a_damaged_entry_is_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("ab" * 32, MODULE)
    only_file(tmp_path).write_bytes(b"TWCUBIN1")
    assert cache.load("ab" * 32) is None
    assert not list(tmp_path.rglob("*.cubin"))


def test_a_folder_that_cannot_be_written_costs_one_warning(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(TilewrightWarning, match="cannot be used") as caught:
        assert cache.compile("one", name="k", arch="sm_80") == MODULE
        assert cache.compile("two", name="k", arch="sm_80") == MODULE
    assert len(caught) == 1
    assert "TILEWRIGHT_CACHE_DIR" in str(caught[0].message)
    assert (cache.size(), cache.entries(), cache.clear()) == (0, [], 0)


def test_a_full_disk_leaves_nothing_behind(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(TilewrightWarning, match="No space left"):
        compile_in(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_warning_when_all_is_well(compiler: Compiler, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_in(tmp_path / "new" / "folder")


def test_size_entries_and_clear(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("ab" * 32, MODULE)
    cache.store("cd" * 32, MODULE)
    (tmp_path / "ab" / "left.part").write_bytes(b"by a writer that died")
    (tmp_path / "ab" / "notes.txt").write_text("the user's own")
    assert [(entry.name, entry.arch) for entry in cache.entries()] == [("k", "sm_80")] * 2
    assert cache.size() == sum(path.stat().st_size for path in tmp_path.rglob("*.cubin"))
    assert cache.clear() == 2
    assert cache.size() == 0
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.txt"]


def test_the_key_tells_apart_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "13.5")
    keys = {
        cache_key("s", "k", "sm_80", ()),
        cache_key("t", "k", "sm_80", ()),
        cache_key("s", "l", "sm_80", ()),
        cache_key("s", "k", "sm_90", ()),
        cache_key("s", "k", "sm_80", ("-G",)),
        cache_key("s", "k", "sm_80", ("-G", "-x")),
        cache_key("s", "k", "sm_80", ("-G-x",)),
    }
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "13.6")
    keys.add(cache_key("s", "k", "sm_80", ()))
    assert len(keys) == 8


def test_threads_compile_once(compiler: Compiler, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    threads = [threading.Thread(target=lambda: cache.compile("source", name="k", arch="sm_80")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.calls == 1


def race(folder: str, barrier: object, results: object) -> None:
    """Write and read one entry again and again, in step with another process."""
    for n in range(50):
        key = f"{n:02x}" * 32
        barrier.wait(30)  # type: ignore[attr-defined]
        cache = DiskCache(Path(folder))
        cache.store(key, MODULE)
        results.put(cache.load(key) == MODULE)  # type: ignore[attr-defined]


def test_two_processes_race(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=race, args=(str(tmp_path), barrier, results)) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside pytest's own threads
        for process in processes:
            process.start()
    good = [results.get(timeout=60) for _ in range(100)]
    for process in processes:
        process.join(30)
    assert all(good)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(DiskCache(tmp_path).entries()) == 50
    assert not list(tmp_path.rglob("*.part"))


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "chosen"))
    assert default_folder() == tmp_path / "chosen"
    assert default_cache().folder == tmp_path / "chosen"
    assert default_cache() is default_cache()
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_folder() == tmp_path / "xdg" / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "tilewright"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_folder() == tmp_path / "Library" / "Caches" / "tilewright"


def test_really_compile_twice(tmp_path: Path) -> None:
    try:
        nvrtc.nvrtc_version()
    except nvrtc.CompileError:
        pytest.skip("needs NVRTC")
    source = 'extern "C" __global__ void k(float* a) { a[0] = 3.0f; }'
    first = DiskCache(tmp_path).compile(source, name="k", arch="sm_80")
    second = DiskCache(tmp_path).compile(source, name="k", arch="sm_80")
    assert first == second
    assert second.resources.registers > 0
