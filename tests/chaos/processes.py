"""Children of the test's own process: quick to start, and killed at any moment."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence

import pytest

from tilewright.runtime import cache as cache_module
from tilewright.runtime import result_store as store_module
from tilewright.runtime.cache import DiskCache

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def start(work: Callable[[], object]) -> int:
    """Run `work` in a child and return its number; the child ends with status 1 where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside pytest's own threads
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        forget()
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def forget() -> None:
    """Be a process that has neither warned nor kept anything."""
    cache_module._warned.clear()
    store_module._kept.clear()
    store_module._warned.clear()


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def wait(children: Sequence[int], seconds: float = 120) -> list[int]:
    """Return how the children ended, 0 where all was well; one that has not ended by then is killed, and is -9."""
    deadline, statuses = time.monotonic() + seconds, []
    for child in children:
        status = (0, 0)
        while status[0] == 0 and time.monotonic() < deadline:
            status = os.waitpid(child, os.WNOHANG)
            if status[0] == 0:
                time.sleep(0.005)
        if status[0] == 0:
            kill(child)
            statuses.append(-signal.SIGKILL)
        else:
            statuses.append(os.waitstatus_to_exitcode(status[1]))
    return statuses


def compile_all(cache: DiskCache, sources: Sequence[str]) -> list[str]:
    """Compile as a process that has just begun, check each machine code, and return the warnings."""
    cache_module._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for source in sources:
            assert cache.compile(source, name="k", arch="sm_80").cubin == source.encode()
    return [str(w.message) for w in caught]
