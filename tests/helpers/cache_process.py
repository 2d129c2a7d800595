"""A process of its own that compiles through the cache: with a stand-in compiler, as another user where that is asked.

The compiler's machine code is the source itself, so what was run can be told from what should have been.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import tilewright as tw

NOBODY = 65534
PACKAGE = Path(tw.__file__).resolve().parents[1]

COMPILER = """
import sys, json, warnings
from tilewright.runtime import nvrtc
from tilewright.runtime.compiler_log import Resources
from tilewright.runtime.nvrtc import CompiledModule

calls = 0

def compile_cuda(source, *, name, arch, **options):
    global calls
    calls += 1
    return CompiledModule(name, "sm_80", source.encode(), "a log", Resources(registers=len(source)))

nvrtc.compile_cuda = compile_cuda
nvrtc.compiler_identity = lambda: "a stand-in"
"""

# Imported and run once before the user changes: another user may not be able to read the interpreter's modules.
_BECOME = f"""{COMPILER}
import os, pwd, tempfile
from pathlib import Path
from tilewright.runtime.cache import DiskCache

with tempfile.TemporaryDirectory() as warm, warnings.catch_warnings(record=True):
    DiskCache(Path(warm)).compile("one", name="k", arch="sm_80")
os.setgroups([])
os.setgid(USER)
os.setuid(USER)
"""

SCRIPT = f"""{COMPILER}
from tilewright.runtime.cache import default_cache

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for source in ("one", "two", "one", "three"):
        module = default_cache().compile(source, name="k", arch="sm_80")
        assert module.cubin == source.encode(), module
    problem = default_cache().problem()
print(json.dumps({{
    "calls": calls, "warnings": [str(w.message) for w in caught], "folder": str(default_cache().folder), "problem": problem
}}))
"""
SOURCES = 3  # that the script compiles


@dataclass(frozen=True)
class Outcome:
    """What one process did: how often it called the compiler, its warnings, the folder and what is said of it."""

    calls: int
    warnings: list[str]
    folder: str
    problem: str | None


def environment(**changes: str | None) -> dict[str, str]:
    """Return this process's environment for a child, with changes; None removes a variable."""
    path = os.pathsep.join([str(PACKAGE), *(p for p in sys.path if p)])
    everything = {**os.environ, "PYTHONPATH": path, **changes}
    if "PYTHONPYCACHEPREFIX" not in everything:
        everything["PYTHONDONTWRITEBYTECODE"] = "1"
    return {name: value for name, value in everything.items() if value is not None}


def compile_in_process(
    changes: Mapping[str, str | None], *, user: int | None = None, umask: int = -1, cwd: Path | None = None
) -> Outcome:
    """Compile three kernels, one of them twice, in a process with these variables changed."""
    done = run_python(SCRIPT, changes, user=user, umask=umask, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def run_python(
    script: str,
    changes: Mapping[str, str | None],
    *arguments: str,
    user: int | None = None,
    umask: int = -1,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, as another user where one is named."""
    if user is not None:
        script = _BECOME.replace("USER", str(user)) + script
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=100, check=False, umask=umask, cwd=cwd or "/",
        env=environment(**changes),
    )  # fmt: skip


def demand_another_user() -> None:
    """Skip the test unless this process may become another user."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs root")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that all users can enter, unlike pytest's; like /tmp, all may write to it and none remove others' files."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-test-"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
