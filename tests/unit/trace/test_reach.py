"""What a kernel's functions reach of Python's state, and what they must not reach."""

from __future__ import annotations

import collections
import queue
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from threading import current_thread

import pytest

from tilewright.trace.reach import Memory, Walk, is_user_type


def reached(value: object) -> list[object]:
    """Return what can change of a value."""
    walk = Walk(Memory())
    walk.visit(value, "x", True)
    walk.run()
    return [found.object for found in walk.found.values()]


@pytest.fixture
def work() -> Iterator[collections.deque[int]]:
    """What another thread of the process works with."""
    items, end = collections.deque([1, 2]), threading.Event()
    thread = threading.Thread(target=lambda items, end: end.wait(), args=(items, end))
    thread.start()
    yield items
    end.set()
    thread.join()


class Watched(threading.Event):
    """A user's class of one of Python's."""

    seen: list[int] = []  # data of a class that changes is what is tried


@pytest.mark.parametrize(
    "make",
    [
        threading.Event, threading.Condition, threading.Semaphore, queue.Queue, Watched,
        lambda: threading.Thread(target=print), lambda: current_thread, lambda: (lambda: current_thread().name),
    ],
    ids=["event", "condition", "semaphore", "queue", "subclass", "thread", "function", "caller"],
)  # fmt: skip
def test_other_threads_are_out_of_reach(make, work: collections.deque[int]) -> None:
    assert not any(found is work for found in reached(make()))


def test_what_the_user_put_there_is_reached() -> None:
    items, thread_items = [1], [2]
    waiting: queue.Queue[list[int]] = queue.Queue()
    waiting.put(items)
    assert any(found is items for found in reached(waiting))
    assert any(found is thread_items for found in reached(threading.Thread(target=print, args=(thread_items,))))
    assert any(found is Watched for found in reached(Watched()))


def test_a_users_module_by_the_name_of_one_of_pythons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("this")  # a name of Python's library
    module.__file__ = str(tmp_path / "this.py")
    exec("class State:\n    items = [1]\n", vars(module))
    monkeypatch.setitem(sys.modules, "this", module)
    assert is_user_type(module.State) and module.State in reached(module.State())


def test_cells_of_helpers_that_are_gone_give_their_numbers_to_no_other() -> None:
    """A function that is made while tracing may go away, and a variable of the kernel must not be taken for its own."""

    def made(value: int) -> types.FunctionType:
        def helper() -> int:
            return value

        return helper  # type: ignore[return-value]

    memory, helpers = Memory(), [made(number) for number in range(1000)]
    for helper in helpers:
        memory.note_closure(helper)
    helpers.clear()
    del helper
    cells = [cell for number in range(1000) for cell in made(number).__closure__ or ()]
    assert not any(id(cell) in memory.outside_cells for cell in cells)
