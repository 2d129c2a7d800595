"""Build and load compiled code of this package: C and C++, which are compiled where there is a compiler.

The launcher is the C in the folder `native`; `replays` says what it does. `tilewright.torch` has C++ of its own. A
thread waits for the compiler while the program goes on, and the result is kept in the cache of compiled kernels under
the hash of what it depends on: the sources, Python's ABI, the compiler and what it is told. Until it is there, and
where it cannot be made, Python does the same in more time. A variable of the environment says which is used, for the
launcher TILEWRIGHT_LAUNCHER: "python", "compiled" (each process waits for it, and it is an error where there is none),
or "auto", which is the rule.
"""

from __future__ import annotations

import bz2
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any  # Any: the module, which is not Python's

from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime.folders import find_folder, make_folder, read_private, reason, remove

VARIABLE = "TILEWRIGHT_LAUNCHER"
SUFFIX = ".so"

_PACKAGE = Path(__file__).parents[1]
_CHOICES = ("auto", "compiled", "python")
_FLAGS = ("-O2", "-fPIC", "-shared", "-w")
_DIGEST_BYTES = 32  # of the file, behind it: a loader looks at what the headers name, and a file may be cut short
_MAX_BYTES = 1 << 24
_SECONDS, _SECONDS_AT_END = 120, 4  # that a compiler has, and that it has where the program ends meanwhile


@dataclass
class _State:
    """What this process knows: the module, or why there is none. A child of a fork inherits no thread."""

    module: Any = None
    refusal: str | None = None
    thread: threading.Thread | None = None
    process: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Extension:
    """A module that is compiled on the user's machine: its name, its sources, and how it is made.

    Of `sources`, files of the package, the first is compiled. `compilers` are the variable that names a compiler, and
    names to look for. `given` returns what it is told beside flags. `what` and `begins` are words for messages.
    """

    name: str
    variable: str
    what: str
    begins: str
    sources: tuple[str, ...]
    language: str
    compilers: tuple[str, ...]
    given: Callable[[], tuple[str, ...]]
    state: _State = field(default_factory=_State)

    def module(self) -> Any:
        """Return the module, or None while it is built and where there is none.

        The first call looks for it and starts the build. Where the variable is "compiled" it waits, and raises
        `DeviceError` where there is none. Raises `ArgumentError` for another value of the variable.
        """
        state = self.state
        if state.module is not None or state.refusal is not None:
            return state.module
        if state.thread is not None and state.process == os.getpid():
            return None
        return self._find()

    def loaded(self) -> Any:
        """Return the module where it is loaded already, else None."""
        return self.state.module

    def is_settled(self) -> bool:
        """Say whether `module` gives from now on what it gives now."""
        return self.state.module is not None or self.state.refusal is not None

    def forget(self) -> None:
        """Look for the module anew, under the environment as it is."""
        thread = self.state.thread
        if thread is not None and thread.is_alive() and self.state.process == os.getpid():
            thread.join()
        self.state = _State()

    def wait(self) -> Any:
        """Return the module once it is built, None where it cannot be."""
        found = self.module()
        thread = self.state.thread
        if found is None and thread is not None:
            thread.join()
        return self.state.module

    def report(self) -> str:
        """Return which one is used and why, in one line; nothing is built."""
        why = self.state.refusal or self.why_not(self._choice())
        if why is not None:
            return f"Python's ({why})"
        path = self._path()
        if os.path.exists(path):  # False for what cannot be a path, too
            return f"compiled ({path})"
        return f"compiled, once {self._compiler()} has built it: that begins with {self.begins}"

    def _choice(self) -> str:
        chosen = os.environ.get(self.variable) or "auto"
        if chosen not in _CHOICES:
            raise ArgumentError(f"{self.variable} is {chosen!r}; expected one of {', '.join(_CHOICES)}")
        return chosen

    def _find(self) -> Any:
        if self.state.process != os.getpid():
            self.state = _State()  # with a lock of its own: another thread of the parent may have held that
        chosen, state = self._choice(), self.state
        with state.lock:
            if state.thread is not None or self.is_settled():
                return state.module
            why = self.why_not(chosen)
            if why is not None:
                state.refusal = why
            elif not self._load(state) and chosen == "compiled":
                self._make(state)
            elif state.module is None:
                thread = threading.Thread(target=self._make, args=(state,), name=self.name)
                try:
                    thread.start()
                    state.thread = thread
                except RuntimeError as error:  # the interpreter is about to end
                    state.refusal = str(error)
        if chosen == "compiled" and state.refusal is not None:
            raise DeviceError(
                f"{self.variable} asks for {self.what}, and there is none: {state.refusal}",
                help=f"{self.variable}=auto does without it where it cannot be built",
            )
        return state.module

    def why_not(self, chosen: str) -> str | None:
        """Return why there is none, as far as that is known without building it."""
        if chosen == "python":
            return f"{self.variable} is set to it"
        if not sys.platform.startswith("linux"):
            return "the compiled one is for Linux"
        if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            return "the compiled one is for CPython with its lock"
        if not (_headers() / "Python.h").exists():
            return f"there is no Python.h in {_headers()}"
        if self._compiler() is None:
            variable, *names, last = self.compilers
            return f"there is no {self.language} compiler: neither {variable} nor {', '.join(names)} or {last}"
        if not all(name in _packed() or (_PACKAGE / name).exists() for name in self.sources):
            return f"its source is not in {_PACKAGE}"
        return find_folder().refusal

    def _compiler(self) -> str | None:
        """Return the path of the compiler."""
        names = (os.environ.get(self.compilers[0], ""), *self.compilers[1:])
        return next((path for path in map(shutil.which, filter(None, names)) if path is not None), None)

    def _path(self) -> Path:
        """Return where the module is kept: a file of the cache, beside the kernels."""
        compiler = os.path.realpath(self._compiler() or "")
        key = _key(self.sources, self.given(), compiler, os.stat(compiler).st_mtime_ns)
        return find_folder().path / key[:2] / f"{key}{SUFFIX}"

    def _load(self, state: _State) -> bool:
        """Load what the cache has; return whether it had something whole."""
        try:
            path = self._path()
            data = read_private(path, _MAX_BYTES)
            if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
                return False
        except (OSError, ValueError):  # not there, or nothing that only this user can have written
            return False
        loader = importlib.machinery.ExtensionFileLoader(self.name, os.fspath(path))
        spec = importlib.util.spec_from_file_location(self.name, path, loader=loader)
        assert spec is not None
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except (ImportError, OSError) as error:  # a folder of which nothing is executed, an older C library
            state.refusal = f"it cannot be loaded: {str(error).splitlines()[0]}"
            return True
        state.module = module
        return True

    def _make(self, state: _State) -> None:
        """Build the module and load it, or say in the state why that cannot be done."""
        try:
            why = self.build(self._path())
        except (OSError, ValueError) as error:
            why = reason(error)
        if why is None and not self._load(state):
            why = f"{self._path()} was built, and cannot be read"
        if why is not None:
            state.refusal = why

    def build(self, path: Path) -> str | None:
        """Compile to a file beside its place and move it there in one step; return why it does not compile."""
        make_folder(path.parent.parent)
        make_folder(path.parent, follow=False)
        handle, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
        os.close(handle)
        folder = Path(tempfile.mkdtemp())
        try:
            files = [folder / Path(source).name for source in self.sources]
            for file, source in zip(files, self.sources, strict=True):
                file.write_bytes(source_text(source))
            # In the folder, whose name is another one each time and would be in the file.
            told = (*_FLAGS, f"-I{_headers()}", files[0].name, "-o", os.path.abspath(name), *self.given())
            why = _compile([os.path.abspath(self._compiler() or ""), *told], folder)
            if why is not None:
                return why
            data = Path(name).read_bytes()
            with open(name, "ab") as made:
                made.write(hashlib.sha256(data).digest())
            os.replace(name, path)
            return None
        finally:
            remove(Path(name))
            shutil.rmtree(folder, ignore_errors=True)


def _compile(command: list[str], folder: Path) -> str | None:
    """Run a compiler in a folder; return why it made nothing. A program that has ended does not wait for it long."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        umask=0o077,
        start_new_session=True,  # a group, which ends as a whole: a compiler starts others
    )
    begun = time.monotonic()
    while True:
        try:
            _, said = process.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            passed, has_ended = time.monotonic() - begun, not threading.main_thread().is_alive()
            if passed > (_SECONDS_AT_END if has_ended else _SECONDS):
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
                return f"{command[0]} did not end within {passed:.0f} seconds"
    lines = [line for line in said.splitlines() if "error" in line] or [f"status {process.returncode}"]
    return f"{command[0]} does not compile it: {lines[0]}" if process.returncode else None


def packed_files(file: Path) -> dict[str, bytes]:
    """Return the files that a wheel holds in one, in which they take less: words for bytes, then names and texts."""
    if not file.exists():
        return {}
    head, _, text = bz2.decompress(file.read_bytes()).partition(b"\0")
    if words := head.splitlines():
        text = re.sub(b"[\x80-\xff]", lambda code: words[code[0][0] - 128], text)
    parts = text.split(b"\0")
    return {name.decode(): text for name, text in zip(parts[::2], parts[1::2], strict=True)}


@cache
def _packed() -> dict[str, bytes]:
    return packed_files(_PACKAGE / "sources.bz2")


def source_text(name: str) -> bytes:
    """Return a file of C or C++ of this package."""
    return _packed().get(name) or (_PACKAGE / name).read_bytes()


def _headers() -> Path:
    return Path(sysconfig.get_path("include"))


@cache
def _key(sources: tuple[str, ...], given: tuple[str, ...], compiler: str, changed: int) -> str:
    parts = [*map(source_text, sources), repr((_FLAGS, given)).encode()]
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    parts.append(f"{abi} {sys.hexversion >> 16:x} {compiler} {changed}".encode())
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


LAUNCHER = Extension(
    "tilewright_launcher",
    VARIABLE,
    "the compiled launcher",
    "the first launch on a GPU",
    ("runtime/native/launcher.c", "runtime/native/calls.h", "runtime/native/form.h"),
    "C",
    ("CC", "cc", "gcc", "clang"),
    tuple,
)
launcher: Callable[[], Any] = LAUNCHER.module
loaded: Callable[[], Any] = LAUNCHER.loaded
is_settled: Callable[[], bool] = LAUNCHER.is_settled
forget: Callable[[], None] = LAUNCHER.forget
wait: Callable[[], Any] = LAUNCHER.wait
report: Callable[[], str] = LAUNCHER.report
