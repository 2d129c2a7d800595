"""Entries that are not what was looked for: of another key, of another user, of another kind, or wrong inside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import struct
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos import processes
from tests.helpers.cache_process import NOBODY

from tilewright.errors import CompileError, TilewrightWarning
from tilewright.runtime import cache as cache_module
from tilewright.runtime import nvrtc
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.compiler_log import AmdResources, Resources
from tilewright.runtime.entries import cache_key, pack, unpack
from tilewright.runtime.nvrtc import CompiledModule

needs_posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners and modes of files")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")

SOURCES = ("three", "five")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled. The machine code is the source, so what is returned can be told apart."""
    compiled: list[str] = []

    def compile_cuda(source: str, *, name: str, arch: object, **options: object) -> CompiledModule:
        compiled.append(source)
        return CompiledModule(name, str(arch), source.encode(), "a log", Resources(registers=40))

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "a stand-in")
    return compiled


def key_of(source: str, name: str = "k", arch: str = "sm_80") -> str:
    return cache_key(source, name, arch, ())


def path_of(folder: Path, source: str, name: str = "k", arch: str = "sm_80") -> Path:
    key = key_of(source, name, arch)
    return folder / key[:2] / f"{key}.cubin"


def compile_all(folder: Path, *, name: str = "k", arch: str = "sm_80") -> list[str]:
    """Compile as a new process does, check the machine code, and return the warnings."""
    cache_module._warned.clear()
    cache = DiskCache(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for source in SOURCES:
            assert cache.compile(source, name=name, arch=arch).cubin == source.encode()
    assert all(issubclass(w.category, TilewrightWarning) for w in caught)
    return [str(w.message) for w in caught]


def copy(one: Path, other: Path) -> None:
    shutil.copy2(one, other)


def swap(one: Path, other: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def link(one: Path, other: Path) -> None:
    other.unlink()
    os.link(one, other)


@pytest.mark.parametrize("put", [copy, swap, link])
def test_an_entry_in_the_place_of_another_is_not_run(
    calls: list[str], tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    compile_all(tmp_path)
    put(path_of(tmp_path, "three"), path_of(tmp_path, "five"))
    assert compile_all(tmp_path) == []
    assert calls.count("five") == 2
    assert compile_all(tmp_path) == []
    assert len(calls) <= 4, "it was put right"


def test_an_entry_of_another_kernel_or_architecture_is_not_run(calls: list[str], tmp_path: Path) -> None:
    """Even under its own key: what the key is made of may be wrong, or a collision be made."""
    compile_all(tmp_path)
    key = key_of("three")
    for wrong in (
        CompiledModule("other", "sm_80", b"three", "", Resources()),
        CompiledModule("k", "sm_90", b"three", "", Resources()),
    ):
        path_of(tmp_path, "three").write_bytes(pack(key, wrong))
        assert DiskCache(tmp_path).load(key) == wrong
        assert compile_all(tmp_path) == []
        assert DiskCache(tmp_path).load(key, name="k", arch="sm_80") is not None
    assert calls.count("three") == 3


def test_each_flipped_byte_and_each_length_is_found(tmp_path: Path) -> None:
    key = "ab" * 32
    whole = pack(key, CompiledModule("k", "sm_80", b"\x7fELF code", "log", Resources(1)))
    assert unpack(whole, key) is not None
    for position in range(len(whole)):
        for bit in (0x01, 0x80):
            data = bytearray(whole)
            data[position] ^= bit
            assert unpack(bytes(data), key) is None, (position, bit)
        assert unpack(whole[:position], key) is None, position
    assert unpack(whole + b"\0", key) is None
    assert unpack(whole, "ac" * 32) is None


def sealed(metadata: bytes, code: bytes = b"code", length: int | None = None) -> bytes:
    """An entry with any metadata and a right checksum."""
    rest = struct.pack("<I", len(metadata) if length is None else length) + metadata + code
    return b"TWCUBIN2" + hashlib.sha256(rest).digest() + rest


def test_wrong_contents_with_a_right_checksum_are_refused() -> None:
    key = "ab" * 32
    good = json.loads(pack(key, CompiledModule("k", "sm_80", b"code", "", Resources()))[44:-4])
    assert unpack(sealed(json.dumps(good).encode()), key) is not None
    changes: list[object] = [
        [],
        None,
        1,
        "text",
        {},
        {**good, "more": 1},
        {k: v for k, v in good.items() if k != "log"},
    ]
    for name in good:
        changes += [{**good, name: value} for value in (None, 1, True, 1.5, [], {}, "no such arch", "\ud800")]
    for name in good["resources"]:
        changes += [
            {**good, "resources": {**good["resources"], name: value}} for value in (None, "1", 1.0, True, [], -1)
        ]
    changes.append({**good, "resources": {**good["resources"], "more": 1}})
    changes.append({**good, "arch": "gfx90a"})  # whose resources have other names
    accepted = [changed for changed in changes if unpack(sealed(json.dumps(changed).encode()), key) is not None]
    assert all(
        set(changed) == set(good) and changed["key"] == key for changed in accepted
    )  # a name or a log may be any
    assert all(
        isinstance(changed["log"], str) and changed["arch"] == "sm_80" and changed["resources"] == good["resources"]
        for changed in accepted
    )
    deep = b"[" * 200_000 + b"]" * 200_000
    for metadata in (b"", b"{", b"\xff\xfe", b"1" * 10_000, deep, b'{"a": NaN}'):
        assert unpack(sealed(metadata), key) is None
    for length in (0, 1, 1 << 20, (1 << 32) - 1):
        assert unpack(sealed(json.dumps(good).encode(), length=length), key) is None
    assert unpack(sealed(json.dumps(good).encode(), code=b""), key) is None, "no machine code"


def test_resources_of_amd_are_kept() -> None:
    module = CompiledModule("k", "gfx90a", b"code", "log", AmdResources(3, vector_registers=7), "text")
    assert unpack(pack("cd" * 32, module), "cd" * 32) == module


def test_a_compiler_that_returns_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nothing = CompiledModule("k", "sm_80", b"", "a log", Resources())
    monkeypatch.setattr(nvrtc, "compile_cuda", lambda *args, **options: nothing)
    with pytest.raises(CompileError, match="no machine code for kernel 'k' and sm_80"):
        DiskCache(tmp_path).compile("source", name="k", arch="sm_80")
    assert not list(tmp_path.rglob("*.cubin"))


def test_an_entry_of_the_form_before_is_neither_run_nor_in_the_way(calls: list[str], tmp_path: Path) -> None:
    compile_all(tmp_path)
    path = path_of(tmp_path, "three")
    path.write_bytes(b"TWCUBIN1" + path.read_bytes()[8:])
    assert compile_all(tmp_path) == []
    assert calls.count("three") == 2


def test_too_large_an_entry_is_not_read(calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_all(tmp_path)
    path = path_of(tmp_path, "three")
    os.truncate(path, 1 << 40)  # of zeros that take no space
    assert DiskCache(tmp_path).entries()
    assert compile_all(tmp_path) == []
    assert calls.count("three") == 2 and path.stat().st_size < 10_000
    monkeypatch.setattr(cache_module, "MAX_BYTES", 100)
    (message,) = compile_all(tmp_path / "other")
    assert "more than 100" in message


def in_time(function: Callable[[], list[str]]) -> list[str]:
    """Return what a function returns; fail if it waits for ever."""
    answers: list[list[str]] = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()
    thread.join(60)
    assert answers, "it did not return"
    return answers[0]


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has to be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
        os.rename("s", path.name)
    finally:
        os.chdir(here)


def make_full_folder(path: Path) -> None:
    path.mkdir(0o700)
    (path / "file").write_text("in it")


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_link_to_the_entry(path: Path) -> None:
    data = pack(path.stem, CompiledModule("k", "sm_80", b"evil", "", Resources()))
    elsewhere = path.parent.parent.parent / "elsewhere.cubin"
    elsewhere.write_bytes(data)
    elsewhere.chmod(0o600)
    path.symlink_to(elsewhere)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@needs_posix
@pytest.mark.parametrize(
    "make",
    [make_fifo, make_socket, make_full_folder, Path.mkdir, make_link_to_itself, make_link_to_the_entry, make_device],
)
def test_another_kind_of_file_in_the_place_of_an_entry(
    calls: list[str], tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "cache"
    compile_all(folder)
    path = path_of(folder, "three")
    path.unlink()
    make(path)
    messages = in_time(lambda: compile_all(folder))
    assert len(messages) == 1 and path.name in messages[0], messages
    assert "its kernel is compiled again" in messages[0]
    assert calls.count("three") == 2
    assert in_time(lambda: [entry.key for entry in DiskCache(folder).entries()])
    if not path.is_dir() or path.is_symlink():
        assert compile_all(folder) == [], "what is not a folder was replaced"
        assert calls.count("three") == 2
    else:
        assert len(compile_all(folder)) == 1, "a folder stays, and is told in each process"


def own_by_another(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


def open_to_group(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


def open_to_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


FOREIGN = [pytest.param(own_by_another, marks=needs_root), open_to_group, open_to_all]


@needs_posix
@pytest.mark.parametrize("change", FOREIGN)
def test_an_entry_that_others_can_have_written_is_not_run(
    calls: list[str], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    compile_all(tmp_path)
    for source in SOURCES:
        change(path_of(tmp_path, source))
    messages = compile_all(tmp_path)
    assert len(messages) == 1 and any(why in messages[0] for why in ("others can write", f"belongs to user {NOBODY}"))
    assert len(calls) == 4
    assert compile_all(tmp_path) == [] and len(calls) == 4, "own entries have replaced them"


@needs_posix
@pytest.mark.parametrize("change", FOREIGN)
@pytest.mark.parametrize("which", ["folder", "part"])
def test_a_folder_that_others_can_write_is_not_used(
    calls: list[str], tmp_path: Path, change: Callable[[Path], None], which: str
) -> None:
    folder = tmp_path / "cache"
    compile_all(folder)
    for changed in [folder] if which == "folder" else [path_of(folder, source).parent for source in SOURCES]:
        change(changed)
    files = {path: path.read_bytes() for path in folder.rglob("*.cubin")}
    (message,) = compile_all(folder)
    assert "cannot be used" in message and "TILEWRIGHT_CACHE_DIR" in message
    assert len(calls) == 4
    assert {path: path.read_bytes() for path in folder.rglob("*.cubin")} == files, "neither read nor written"
    assert DiskCache(folder).entries() == [] and DiskCache(folder).clear() == 0


@needs_posix
def test_a_linked_folder_within_the_cache_is_not_entered(calls: list[str], tmp_path: Path) -> None:
    folder, own = tmp_path / "cache", tmp_path / "own"
    compile_all(folder)
    part = path_of(folder, "three").parent
    shutil.copytree(part, own)
    shutil.rmtree(part)
    part.symlink_to(own)
    files = sorted(own.iterdir())
    (message,) = compile_all(folder)
    assert "symbolic link" in message
    DiskCache(folder).clear()
    assert sorted(own.iterdir()) == files, "what a link leads to is not cleared"


@needs_posix
def test_the_cache_may_be_linked_to_as_a_whole(calls: list[str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    assert compile_all(tmp_path / "cache") == [] == compile_all(tmp_path / "cache")
    assert len(calls) == 2


@needs_posix
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077])
def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        assert compile_all(tmp_path / "a" / "cache") == []
    finally:
        os.umask(before)
    for path in (tmp_path / "a" / "cache").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_child_does_not_wait_for_a_lock_of_its_parents_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    cache, started, go_on = DiskCache(tmp_path), threading.Event(), threading.Event()
    quick = nvrtc.compile_cuda

    def slow(source: str, **options: object) -> CompiledModule:
        started.set()
        assert go_on.wait(60)
        return quick(source, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nvrtc, "compile_cuda", slow)
    thread = threading.Thread(target=lambda: cache.compile("three", name="k", arch="sm_80"))
    thread.start()
    assert started.wait(60)

    def compile_in_the_child() -> None:
        monkeypatch.setattr(nvrtc, "compile_cuda", quick)
        assert cache.compile("three", name="k", arch="sm_80").cubin == b"three"

    statuses = processes.wait([processes.start(compile_in_the_child)], seconds=60)
    go_on.set()
    thread.join(60)
    assert statuses == [0]
