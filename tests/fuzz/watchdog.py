"""A watchdog that counts steps and memory, not seconds: what it stops does not depend on the machine's load."""

import sys
import tracemalloc
from contextlib import contextmanager


class TooMuchError(BaseException):
    """More steps or memory than allowed. No `except Exception` catches it."""


@contextmanager
def watched(steps, memory):
    """Stop what runs inside after so many events (calls and returns, those of C among them) or bytes."""
    left = steps

    def count(frame, event, argument):
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMuchError(f"more than {steps} steps, in {frame.f_code.co_name} of {frame.f_code.co_filename}")

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    if peak > memory:
        raise TooMuchError(f"{peak} bytes at once, more than {memory}")
