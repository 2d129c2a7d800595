"""A table that forgets what was not used for long, and costs nothing where an entry is found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps the `limit` entries that were used last, and at most twice as many.

    Entries live in two generations. What is used or added goes into the young one; when that holds `limit` entries, it
    becomes the old one, and what the old one still held is forgotten. An entry is therefore forgotten only after
    `limit` others were used. `on_turn` is called when the young generation becomes the old one: who keeps entries
    elsewhere drops them there. `young` is one dict for good, in which generated code may look first by itself.

    Any number of threads may use a table at once; two that add one key get the value of the first.

    >>> table = Recent(2)
    >>> for key in "abc": _ = table.add(key, key.upper())
    >>> table.get("a"), len(table)              # used again: "a" stays, and "b" is next to go
    ('A', 3)
    >>> _ = table.add("d", "D")
    >>> table.get("b"), sorted(table)
    (None, ['a', 'c', 'd'])
    """

    def __init__(self, limit: int, on_turn: Callable[[], None] | None = None) -> None:
        assert limit >= 1, limit
        self.limit = limit
        self._on_turn = on_turn
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None; it counts as used."""
        found = self.young.get(key)
        if found is None and self._old:
            with self._lock:
                found = self._old.pop(key, None)
                if found is not None:
                    self._put(key, found)
                else:  # another thread may have moved it
                    found = self.young.get(key)
        return found

    def add(self, key: K, value: V) -> V:
        """Remember a value, and return what is remembered: another thread's where that was first."""
        with self._lock:
            found = self.get(key)
            if found is not None:
                return found
            self._put(key, value)
            return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self.young.clear()
            self._old.clear()

    def _put(self, key: K, value: V) -> None:
        if len(self.young) >= self.limit:
            self._old = dict(self.young)
            self.young.clear()
            if self._on_turn is not None:
                self._on_turn()
        self.young[key] = value

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter([*self.young, *self._old])
