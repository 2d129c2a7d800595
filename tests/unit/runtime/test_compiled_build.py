"""How the compiled launcher is built and found, and what is done where it cannot be."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.shown_to_c import why_not_compiled
from tests.helpers.slow import rest_is_slow

from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime import compiled
from tilewright.runtime.cache import default_cache

needs_compiler = pytest.mark.skipif(
    why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}"
)


@pytest.fixture(autouse=True)
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, in which nothing is built yet."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    compiled.forget()
    yield
    monkeypatch.undo()
    compiled.forget()


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that compiles once a file is there."""
    path, go = tmp_path / "slow-cc", tmp_path / "go"
    path.write_text(f'#!/bin/sh\nwhile [ ! -e "{go}" ]; do sleep 0.02; done\nexec cc "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return go


@needs_compiler
def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    assert compiled.report().startswith("compiled, once ")
    assert compiled.wait() is not None
    (path,) = (tmp_path / "cache").glob("*/*.so")
    assert compiled.report() == f"compiled ({path})"
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    built = path.stat().st_mtime_ns
    compiled.forget()
    assert compiled.launcher() is not None  # at once
    assert path.stat().st_mtime_ns == built
    assert [each.suffix for each in path.parent.iterdir()] == [".so"]
    assert default_cache().entries() == []
    assert default_cache().clear() == 0  # it counts kernels
    assert not path.exists()


@needs_compiler
def test_nobody_waits_for_it(slow_compiler: Path) -> None:
    assert compiled.launcher() is None
    assert compiled.launcher() is None
    assert not compiled.is_settled()
    slow_compiler.touch()
    assert compiled.wait() is compiled.launcher() is not None
    assert compiled.is_settled()


@needs_compiler
def test_whoever_asks_for_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "compiled")
    assert compiled.launcher() is not None


@needs_compiler
@pytest.mark.parametrize("damage", rest_is_slow(["short", "changed", "empty", "writable"], "changed"))
def test_what_is_damaged_or_not_our_own_is_built_again(damage: str, tmp_path: Path) -> None:
    assert compiled.wait() is not None
    (path,) = (tmp_path / "cache").glob("*/*.so")
    whole = path.read_bytes()
    data = {"short": whole[:-100], "changed": whole[:-1] + bytes([whole[-1] ^ 1]), "empty": b"", "writable": whole}[
        damage
    ]
    path.unlink()  # the file that is loaded stays as it is
    path.write_bytes(data)
    path.chmod(0o666 if damage == "writable" else 0o600)
    compiled.forget()
    assert compiled.wait() is not None
    assert path.read_bytes() == whole
    assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "python")
    assert compiled.launcher() is None
    assert compiled.is_settled()
    assert compiled.report() == "Python's (TILEWRIGHT_LAUNCHER is set to it)"


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "fast")
    with pytest.raises(ArgumentError, match="TILEWRIGHT_LAUNCHER is 'fast'; expected one of auto, compiled, python"):
        compiled.launcher()


def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    return "there is no C compiler: neither CC nor cc, gcc or clang"


def no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(compiled, "_headers", lambda: tmp_path)
    return f"there is no Python.h in {tmp_path}"


def no_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    real = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED" or real(name))
    return "the compiled one is for CPython with its lock"


def no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    return f"{tmp_path / 'file'}: it is not a folder"


def broken_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    path = tmp_path / "broken-cc"
    path.write_text("#!/bin/sh\necho 'launcher.c:1: error: no' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return f"{path} does not compile it: launcher.c:1: error: no"


@needs_compiler
@pytest.mark.parametrize("lacking", [no_compiler, no_headers, no_lock, no_folder, broken_compiler])
def test_it_is_done_without(lacking: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    why = lacking(monkeypatch, tmp_path)
    assert compiled.wait() is None
    assert compiled.is_settled()
    assert compiled.report() == f"Python's ({why})"
    assert not list(tmp_path.glob("cache/*/*"))
    compiled.forget()
    monkeypatch.setenv(compiled.VARIABLE, "compiled")
    with pytest.raises(DeviceError, match="asks for the compiled launcher, and there is none") as caught:
        compiled.launcher()
    assert why in str(caught.value)


@needs_compiler
def test_processes_that_build_at_once_all_have_it(tmp_path: Path) -> None:
    text = "from tilewright.runtime import compiled; print(compiled.wait().Calls.__name__)"
    processes = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in processes] == ["Calls", "Calls"]
    assert len(list(tmp_path.glob("cache/*/*"))) == 1


@needs_compiler
def test_threads_that_ask_at_once_build_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    build = compiled.LAUNCHER.build
    monkeypatch.setattr(compiled.LAUNCHER, "build", lambda path: (built.append(path), build(path))[1])
    threads = [threading.Thread(target=compiled.launcher) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled.wait() is not None
    assert len(built) == 1


@needs_compiler
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_builds_what_its_parent_had_not_yet(slow_compiler: Path) -> None:
    assert compiled.launcher() is None
    child = os.fork()
    if child == 0:
        slow_compiler.touch()
        os._exit(0 if compiled.wait() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compiled.wait() is not None
