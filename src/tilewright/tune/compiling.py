"""Compile the kernels of many candidates ahead, in parallel processes: NVRTC needs no GPU, and one holds a lock.

What they compile lands in the disk cache, where the launches find it. A kernel that does not compile is left to its
launch, which says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from tilewright.runtime.cache import default_cache
from tilewright.runtime.entries import cache_key

if TYPE_CHECKING:
    from typing_extensions import Self

_MAX_WORKERS = 16


@dataclass(frozen=True)
class Source:
    """CUDA C++ of one kernel and its target."""

    text: str
    name: str
    arch: str


class CompilePool:
    """Processes that compile, started when there is work for more than one."""

    def __init__(self, workers: int | None = None) -> None:
        self._wanted = min(_MAX_WORKERS, _cores() if workers is None else workers)
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.kill() if kind is not None else _close(process)
            process.wait()

    def compile(self, sources: Sequence[Source]) -> int:
        """Compile what the cache has not; return how many were compiled here, 0 where none or one is missing."""
        cache = default_cache()
        missing = []
        for source in dict.fromkeys(sources):
            key = cache_key(source.text, source.name, source.arch, ())
            if cache.load(key, name=source.name, arch=source.arch) is None:
                missing.append(source)
        if len(missing) < 2 or self._wanted < 2:
            return 0  # the launch does it as fast
        if cache.why_unusable() is not None:
            return 0  # what is compiled elsewhere would not be found here
        for _ in range(min(self._wanted, len(missing)) - len(self._all)):
            self._start()
        with ThreadPoolExecutor(len(self._all)) as threads:
            return sum(threads.map(self._compile, missing))

    def _start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._all.append(process)
        self._idle.put(process)

    def _compile(self, source: Source) -> bool:
        process = self._idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            print(
                json.dumps({"source": source.text, "name": source.name, "arch": source.arch}),
                file=process.stdin,
                flush=True,
            )
            answer = process.stdout.readline()
        except OSError:  # it has died; the launch compiles
            answer = ""
        finally:
            self._idle.put(process)
        return bool(answer) and json.loads(answer)["error"] is None


def _cores() -> int:
    with contextlib.suppress(AttributeError):  # macOS and Windows have no affinity
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _close(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        process.communicate()
