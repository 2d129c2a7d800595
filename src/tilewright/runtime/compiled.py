"""Build and load the compiled launcher: C of this package, which is compiled where there is a compiler.

The C is in the folder `native`; `replays` says what it does. A thread waits for the compiler while the program goes on,
and the result is kept in the cache of compiled kernels under the hash of what it depends on: the C, Python's ABI, the
compiler. Until it is there, and where it cannot be made, Python's launcher does the same in more time.
TILEWRIGHT_LAUNCHER says which is used: "python", "compiled" (each process waits for it, and it is an error where there
is none), or "auto", which is the rule.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any  # Any: the module, which is not Python's

from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime.folders import find_folder, make_folder, read_private, reason, remove

VARIABLE = "TILEWRIGHT_LAUNCHER"
SUFFIX = ".so"

_CHOICES = ("auto", "compiled", "python")
_NAME = "tilewright_launcher"
_SOURCES = ("launcher.c", "calls.h", "form.h")
_FLAGS = ("-O2", "-fPIC", "-shared", "-w")
_DIGEST_BYTES = 32  # of the file, behind it: a loader looks at what the headers name, and a file may be cut short
_MAX_BYTES = 1 << 24
_SECONDS = 120


@dataclass
class _State:
    """What this process knows: the module, or why there is none. A child of a fork inherits no thread."""

    module: Any = None
    refusal: str | None = None
    thread: threading.Thread | None = None
    process: int = field(default_factory=os.getpid)


_state = _State()
_lock = threading.Lock()


def launcher() -> Any:
    """Return the module of the compiled launcher, or None while it is built and where there is none.

    The first call looks for it and starts the build. With TILEWRIGHT_LAUNCHER=compiled it waits, and raises
    `DeviceError` where there is none. Raises `ArgumentError` for another value of the variable.
    """
    state = _state
    if state.module is not None or state.refusal is not None:
        return state.module
    if state.thread is not None and state.process == os.getpid():
        return None
    return _find()


def loaded() -> Any:
    """Return the module where it is loaded already, else None."""
    return _state.module


def is_settled() -> bool:
    """Say whether `launcher` gives from now on what it gives now."""
    return _state.module is not None or _state.refusal is not None


def forget() -> None:
    """Look for the compiled launcher anew, under the environment as it is."""
    global _state
    thread = _state.thread
    if thread is not None and thread.is_alive() and _state.process == os.getpid():
        thread.join()
    _state = _State()


def wait() -> Any:
    """Return the module once it is built, None where it cannot be."""
    found = launcher()
    thread = _state.thread
    if found is None and thread is not None:
        thread.join()
    return _state.module


def report() -> str:
    """Return which launcher is used and why, in one line; nothing is built."""
    chosen = _choice()
    why = _state.refusal or _why_not(chosen)
    if why is not None:
        return f"Python's ({why})"
    path = _path()
    if os.path.exists(path):  # False for what cannot be a path, too
        return f"compiled ({path})"
    return f"compiled, once {_compiler()} has built it: that begins with the first launch on a GPU"


def _choice() -> str:
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in _CHOICES:
        raise ArgumentError(f"{VARIABLE} is {chosen!r}; expected one of {', '.join(_CHOICES)}")
    return chosen


def _find() -> Any:
    global _state, _lock
    if _state.process != os.getpid():
        _state, _lock = _State(), threading.Lock()  # another thread of the parent may have held it
    chosen = _choice()
    with _lock:
        state = _state
        if state.thread is not None or is_settled():
            return state.module
        why = _why_not(chosen)
        if why is not None:
            state.refusal = why
        elif not _load(state) and chosen == "compiled":
            _make(state)
        elif state.module is None:
            thread = threading.Thread(target=_make, args=(state,), name="tilewright launcher")
            try:
                thread.start()
                state.thread = thread
            except RuntimeError as error:  # the interpreter is about to end
                state.refusal = str(error)
    if chosen == "compiled" and state.refusal is not None:
        raise DeviceError(
            f"{VARIABLE} asks for the compiled launcher, and there is none: {state.refusal}",
            help=f"{VARIABLE}=auto does without it where it cannot be built",
        )
    return state.module


def _why_not(chosen: str) -> str | None:
    """Return why there is no compiled launcher, as far as that is known without building it."""
    if chosen == "python":
        return f"{VARIABLE} is set to it"
    if not sys.platform.startswith("linux"):
        return "the compiled one is for Linux"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the compiled one is for CPython with its lock"
    if not (_headers() / "Python.h").exists():
        return f"there is no Python.h in {_headers()}"
    if _compiler() is None:
        return "there is no C compiler: neither CC nor cc, gcc or clang"
    if not all((_folder() / name).exists() for name in _SOURCES):
        return f"its source is not in {_folder()}"
    return find_folder().refusal


def _headers() -> Path:
    return Path(sysconfig.get_path("include"))


def _folder() -> Path:
    return Path(__file__).with_name("native")


def _compiler() -> str | None:
    """Return the path of the C compiler."""
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((path for path in map(shutil.which, filter(None, names)) if path is not None), None)


def _path() -> Path:
    """Return where the launcher is kept: a file of the cache, beside the kernels."""
    compiler = os.path.realpath(_compiler() or "")
    key = _key(compiler, os.stat(compiler).st_mtime_ns)
    return find_folder().path / key[:2] / f"{key}{SUFFIX}"


@cache
def _key(compiler: str, changed: int) -> str:
    parts = [*((_folder() / name).read_bytes() for name in _SOURCES), repr(_FLAGS).encode()]
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    parts.append(f"{abi} {sys.hexversion >> 16:x} {compiler} {changed}".encode())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _load(state: _State) -> bool:
    """Load what the cache has; return whether it had something whole."""
    try:
        path = _path()
        data = read_private(path, _MAX_BYTES)
        if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
            return False
    except (OSError, ValueError):  # not there, or nothing that only this user can have written
        return False
    loader = importlib.machinery.ExtensionFileLoader(_NAME, os.fspath(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, OSError) as error:  # a folder of which nothing is executed, an older C library
        state.refusal = f"it cannot be loaded: {str(error).splitlines()[0]}"
        return True
    state.module = module
    return True


def _make(state: _State) -> None:
    """Build the launcher and load it, or say in the state why that cannot be done."""
    try:
        why = _build(_path())
    except (OSError, ValueError) as error:
        why = reason(error)
    if why is None and not _load(state):
        why = f"{_path()} was built, and cannot be read"
    if why is not None:
        state.refusal = why


def _build(path: Path) -> str | None:
    """Compile the launcher to a file beside its place and move it there in one step; return why it does not compile."""
    make_folder(path.parent.parent)
    make_folder(path.parent, follow=False)
    handle, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        command = [str(_compiler()), *_FLAGS, f"-I{_headers()}", str(_folder() / _SOURCES[0]), "-o", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, umask=0o077, check=False)
        except subprocess.TimeoutExpired:
            return f"{command[0]} did not end within {_SECONDS} seconds"
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"status {done.returncode}"]
            return f"{command[0]} does not compile it: {lines[0]}"
        data = Path(name).read_bytes()
        with open(name, "ab") as file:
            file.write(hashlib.sha256(data).digest())
        os.replace(name, path)
        return None
    finally:
        remove(Path(name))
