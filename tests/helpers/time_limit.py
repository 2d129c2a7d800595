"""The limit of time of each test, kept by one thread: pytest-timeout starts and joins a thread for every test.

That takes half a millisecond of each of 15,000 tests, and several where other programs run. What happens to a test that
takes longer is pytest-timeout's: the process says where it hangs, and ends.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pytest_timeout import Settings, timeout_timer

_EVERY = 1.0  # seconds: how exactly limits are kept


class TimeLimit:
    """A plugin that looks once a second whether the test that runs has taken longer than it may."""

    def __init__(self) -> None:
        self._running: tuple[float, pytest.Item, Settings] | None = None  # until when, and what
        self._thread: threading.Thread | None = None

    @pytest.hookimpl(optionalhook=True)  # there is no such hook with -p no:timeout
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Settings) -> bool | None:
        """Begin to count; leave a test that asks for a signal to pytest-timeout."""
        if settings.method != "thread":
            return None
        self._running = time.monotonic() + settings.timeout, item, settings
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="time limit", daemon=True)
            self._thread.start()
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(
        self, item: Any
    ) -> bool | None:  # Any: pytest-timeout hands on what failed, of any kind
        """Stop counting."""
        found, self._running = self._running, None
        return True if found else None

    def _watch(self) -> None:
        while True:
            time.sleep(_EVERY)
            running = self._running
            if running is not None and time.monotonic() > running[0]:
                self._running = None  # it goes on where a debugger has stopped it
                timeout_timer(running[1], running[2])
