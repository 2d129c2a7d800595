"""Ways by which a kernel's code comes to an object that changes, and kernels that change one by any of them.

`as_if_ours` gives this file a second time, as if it stood in the package: what kernels of the package carry is to be
the same as what a user's do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import linecache
import operator
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

Reach = Callable[[], Any]  # returns the object
LOAD = tw.atoms.SM90_TMA_LOAD
STAGES = 3


def as_if_ours() -> types.ModuleType:
    """Return this module as if it were one of tilewright.kernels."""
    name, text = "tilewright.kernels._made_for_tests", Path(__file__).read_text()
    file = str(Path(tw.__file__).parent / "kernels" / "_made_for_tests.py")
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, file, "exec"), vars(module))
    return module


# --- ways -----------------------------------------------------------------------------------------------


class Holder:
    """An object that holds a function, and comes to what it returns in several ways."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach
        self.kept = reach()

    def method(self) -> Any:
        return self.reach()

    @property
    def found(self) -> Any:
        return self.kept

    def __call__(self) -> Any:
        return self.kept

    bound = functools.partialmethod(method)


class Slots:
    """The same, without a dict."""

    __slots__ = ("kept",)

    def __init__(self, kept: Any) -> None:
        self.kept = kept


@dataclasses.dataclass(frozen=True)
class Frozen:
    """The same, as a value."""

    kept: Any


def nested(reach: Reach) -> Reach:
    def inner() -> Any:
        return reach()

    return inner


def traced(reach: Reach) -> Reach:
    @tw.function
    def inner() -> Any:
        return reach()

    return inner


def two_deep(reach: Reach) -> Reach:
    def outer() -> Any:
        def inner() -> Any:
            return reach()

        return inner()

    return outer


def default(reach: Reach) -> Reach:
    def inner(kept: Any = reach(), *, again: Any = None) -> Any:
        return kept

    return inner


def attribute_of_a_function(reach: Reach) -> Reach:
    @tw.function
    def inner() -> Any:
        return inner.kept  # type: ignore[attr-defined]

    inner.kept = reach()  # type: ignore[attr-defined]
    return inner


def attribute_of_an_object(reach: Reach) -> Reach:
    found = types.SimpleNamespace(reach=reach)
    return lambda: found.reach()


def cached(reach: Reach) -> Reach:
    inner = functools.lru_cache(4)(lambda: [reach()])
    inner()
    return lambda: inner()[0]


def on_a_ring(reach: Reach) -> Reach:
    ring: Any = tw.pipeline(1, consumers=1, bytes=16)
    ring.kept = reach()
    return lambda: ring.kept


def in_an_array(reach: Reach) -> Reach:
    kept = np.array([reach(), None], object)
    return lambda: kept[0]


def in_a_view(reach: Reach) -> Reach:
    values = {"a": reach()}.values()
    return lambda: next(iter(values))


def as_a_key(reach: Reach) -> Reach:
    table = {Slots(reach()): 0}
    return lambda: next(iter(table)).kept


def called_by_name(reach: Reach) -> Reach:
    call = operator.methodcaller("method")
    kept = Holder(reach)
    return lambda: call(kept)


def in_a_call(reach: Reach) -> Reach:
    call = operator.methodcaller("__getitem__", 0)
    return lambda: call((reach(),))


def in_a_context(reach: Reach) -> Reach:
    held = contextlib.nullcontext(reach())
    return lambda: held.__enter__()


def in_an_error(reach: Reach) -> Reach:
    kept = ValueError(reach())
    return lambda: kept.args[0]


WAYS: dict[str, Callable[[Reach], Reach]] = {
    "nested": nested,
    "traced": traced,
    "two deep": two_deep,
    "default": default,
    "lambda": lambda reach: lambda: reach(),
    "partial": lambda reach: functools.partial(lambda kept: kept, reach()),
    "partial of a function": lambda reach: functools.partial(reach),
    "attribute of a function": attribute_of_a_function,
    "attribute of an object": attribute_of_an_object,
    "method": lambda reach: Holder(reach).method,
    "partial method": lambda reach: Holder(reach).bound,
    "property": lambda reach: lambda held=Holder(reach): held.found,
    "called object": lambda reach: Holder(reach),
    "slots": lambda reach: lambda held=Slots(reach()): held.kept,
    "dataclass": lambda reach: lambda held=Frozen(reach()): held.kept,
    "list": lambda reach: lambda held=[reach()]: held[0],
    "tuple": lambda reach: lambda held=(0, (reach(),)): held[1][0],
    "dict": lambda reach: lambda held={"a": reach()}: held["a"],
    "deque": lambda reach: lambda held=deque([reach()]): held[0],
    "frozen dict": lambda reach: types.MappingProxyType({"a": reach}).__getitem__("a"),
    "dict proxy": lambda reach: lambda held=types.MappingProxyType({"a": reach()}): held["a"],
    "comprehension": lambda reach: lambda: [each for each in (reach(),)][0],  # noqa: C416
    "generator": lambda reach: lambda: next(each for each in (reach(),)),
    "static method": lambda reach: staticmethod(reach),  # type: ignore[dict-item, return-value]
    "weak reference": lambda reach: lambda held=[reach()], to=weakref.ref(reach()): to(),
    "cache": cached,
    "object of the package": on_a_ring,
    "array of objects": in_an_array,
    "view": in_a_view,
    "key": as_a_key,
    "call by name": called_by_name,
    "call with arguments": in_a_call,
    "context": in_a_context,
    "error": in_an_error,
}  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------------


class Position:
    """A ring's position, as a user may write it."""

    def __init__(self) -> None:
        self.stage: Any = 0

    def advance(self) -> None:
        self.stage = tw.where(self.stage == STAGES - 1, 0, self.stage + 1)


@tw.function
def repeat(step, n):
    for _ in range(n):
        step()


def numbered(step):
    """Yield numbers, with a step before each."""
    for number in (0, 1, 2, 3):
        step()
        yield number


CONTROLS: dict[str, Callable[[int], int]] = {  # how often each of them steps
    "for": lambda n: n,
    "while": lambda n: n,
    "if": lambda n: n > 1,
    "else": lambda n: 1 + (n <= 1),
    "for and if": lambda n: (n + 1) // 2,
    "two loops": lambda n: 2 * n,
    "helper": lambda n: n,
    "break": lambda n: min(n, 5),
    "expression": lambda n: n > 1,
    "and": lambda n: n > 1,
    "map": lambda n: n,
    "generator": lambda n: min(n + 1, 4),
}


@tw.kernel
def steps_by(out, n, kind: tw.constexpr, ways: tw.constexpr, control: tw.constexpr):
    """Advance a position by one of CONTROLS; nothing but the ways leads to it."""
    ring = tw.pipeline(STAGES, consumers=1, bytes=16)
    state = Position() if kind == "position" else getattr(ring, kind)()
    reach = lambda: state  # noqa: E731
    for way in ways:
        reach = WAYS[way](reach)

    def step(number=0):
        reach().advance()
        return number

    if control == "for":
        for _ in range(n):
            step()
    elif control == "while":
        i = tw.int32(0)
        while i < n:
            step()
            i += 1
    elif control == "if":
        if n > 1:
            step()
    elif control == "else":
        step()
        if n > 1:
            pass
        else:
            step()
    elif control == "for and if":
        for i in range(n):
            if i % 2 == 0:
                step()
    elif control == "two loops":
        for _ in range(n):
            for _ in range(2):
                step()
    elif control == "helper":
        repeat(step, n)
    elif control == "break":
        for i in range(5):
            if i == n:
                break
            step()
    elif control == "expression":
        out[0] = step() if n > 1 else 1
    elif control == "and":
        out[0] = (n > 1) and step() == 0
    elif control == "map":
        for _ in map(step, range(n)):
            pass
    else:
        left = tw.int32(n)
        for _ in numbered(step):
            if left == 0:
                break
            left -= 1
    out[0] = state.stage


@tw.kernel
def draws(out, n):
    """Read a random generator of Python in an inner function, which nothing can carry."""
    numbers = random.Random(3)

    def draw():
        return numbers.randint(0, 9)

    for _ in range(n):
        out[0] = draw()


@tw.kernel
def waits(out, n):
    """Advance a state in the condition of a loop."""
    state = tw.pipeline(STAGES, consumers=1, bytes=16).consumer()

    def more():
        state.advance()
        return state.stage < n

    while more():
        pass


@tw.kernel
def rows_by_inner_functions(out, x, stages: tw.constexpr):
    """Write twice the rows of x: a warp brings them, and one reads; both name their states in inner functions alone."""
    smem = tw.shared(tw.float32, tw.Layout((32, stages), (1, 32)))
    ring = tw.pipeline(stages, consumers=1, bytes=128)
    tw.sync_threads()
    if tw.warp_id() == 1:
        if tw.elect_one():
            filling = ring.producer()

            def bring(i):
                with filling.fill() as (stage, full):
                    tw.copy(LOAD, tw.local_tile(tw.guarded(x)[i, :], (32,), (0,)), smem[:, stage], barrier=full)

            for i in range(x.shape[0]):
                bring(i)
    else:
        reading = ring.consumer()

        @tw.function
        def use(i):
            with reading.read() as stage:
                out[i, tw.lane_id()] = smem[tw.lane_id(), stage] * 2.0

        for i in range(x.shape[0]):
            use(i)
