"""What changes inside of captured objects is seen: containers, attributes, classes, modules, and what they hold."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import linecache
import sys
import types
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw

PRELUDE = """
class Scaled:
    scale = 3.0
    table = {"a": [1, 2]}

class Sub(Scaled):
    pass

class Config:
    base = 3

    def __init__(self):
        self.tile, self._hidden = 4, 5
        self.inner = types.SimpleNamespace(values=[6])

    @property
    def hidden(self):
        return self._hidden + Scaled.scale

    def first(self):
        return self.inner.values[0]

    def __getitem__(self, key):
        return self.inner.values[key]

    @staticmethod
    def static():
        return S[0]

    @classmethod
    def of_class(cls):
        return cls.base

class Plain:
    def first(self):
        return 1

class Slots:
    __slots__ = ("a",)

@dataclasses.dataclass
class Data:
    v: float = 1.0
    items: list = dataclasses.field(default_factory=lambda: [1])

def handed_on(c):
    return c.tile

def by_name(c):
    return getattr(c, "tile")

@tw.function
def in_a_helper(n):
    if n > 0:
        return S[0]
    return 0

S = [2.0]
config, sub, slots, data, plain = Config(), Sub(), Slots(), Data(), Plain()
slots.a = 1
user = types.ModuleType("module_of_a_user")
user.TILE, user.deep = 7, config
sys.modules["module_of_a_user"] = user
W, D, Z, Q, T = np.array([1.0, 2.0]), {"x": {"y": [1]}}, {1, 2}, collections.deque([1]), (1, [2])
applied = functools.partial(lambda c, n: c.tile + n, config, n=2)
method = config.first
B, M = array.array("f", [1.0, 2.0]), memoryview(bytearray([1, 2]))
weak = weakref.ref(config)
UD, UL = collections.UserDict(a=1), collections.UserList([1])
chained, proxied = collections.ChainMap({}, UD), types.MappingProxyType(D)

def with_default(n, held=[1], *, other={"a": 2}):
    return held[0] + other["a"]

def imports():
    import module_of_a_user as module
    from module_of_a_user import deep as inner
    return module.TILE + inner.tile

log = []
"""

# An expression, and changes one after another: each is seen.
CHANGES: list[tuple[str, ...]] = [
    ("S[0]", "S[0] = 5.0", "S.insert(0, 4)", "S[:] = [9.0]", "S = [1.5]", "S[0] = 1", "S[0] = 0.0", "S[0] = -0.0"),
    ("S[0] / 2", "S[0] = 3", "S[0] = True"),
    ("in_a_helper(o[1] + 1)", "S[0] = 8"),
    ("Scaled.scale", "Scaled.scale = 9.0"),
    ("Scaled.table['a'][1]", "Scaled.table['a'][1] = 77", "Scaled.table['a'] = [1, 4]", "Scaled.table = {'a': [1, 6]}"),
    ("config.tile", "config.tile = 40", "config = Config()"),
    ("config.hidden", "config._hidden = 11", "Scaled.scale = 1.25"),
    ("config.first()", "config.inner.values[0] = 8", "config.inner = types.SimpleNamespace(values=[2])",
     "Config.first = lambda self: 99", "config.first = lambda: 98"),
    ("plain.first()", "plain.first = lambda: 98", "del plain.first"),
    ("config[0]", "config.inner.values[0] = 18"),
    ("config.static()", "S[0] = 3.25"),
    ("config.of_class()", "Config.base = 4"),
    ("user.TILE", "user.TILE = 8"),
    ("user.deep.tile", "config.tile = 41", "user.deep = Config()"),
    ("W[1]", "W[1] = 5.5", "W = np.array([1, 3])"),
    ("D['x']['y'][0]", "D['x']['y'][0] = 3", "D['x'] = {'y': [4]}", "D.update(x={'y': [5]})"),
    ("len(D)", "D['new'] = 1", "D.clear()"),
    ("len(Z)", "Z.add(9)", "Z.clear()"),
    ("Q[0]", "Q[0] = 3"),
    ("T[1][0]", "T[1][0] = 9"),
    ("B[1]", "B[1] = 5.5", "B.append(1.0); B[1] = 6.5"),
    ("M[1]", "M[1] = 5"),
    ("UD['a'] + UL[0]", "UD['a'] = 5", "UL[0] = 7"),
    ("with_default(1)", "with_default.__defaults__[0][0] = 5", "with_default.__kwdefaults__['other']['a'] = 5"),
    ("imports()", "user.TILE = 8", "user.deep.tile = 5"),
    ("slots.a", "slots.a = 4"),
    ("data.v", "data.v = 4.0"),
    ("data.items[0]", "data.items[0] = 4.0"),
    ("handed_on(config)", "config.tile = 55"),
    ("by_name(config)", "config.tile = 56"),
    ("(lambda c: c.tile)(config)", "config.tile = 57"),
    ("[c.tile for c in (config, config)][1]", "config.tile = 58"),
    ("applied()", "config.tile = 77", "applied.keywords['n'] = 3"),
    ("chained['a'] + proxied['x']['y'][0]", "UD['a'] = 5", "chained.maps[0]['a'] = 7", "D['x'] = {'y': [4]}"),
    ("weak().tile", "config.tile = 59"),
    ("globals()['S'][0]", "S[0] = 5.0", "S = [1.5]"),
    ("eval('S[0] + config.tile')", "S[0] = 5.0", "config.tile = 60"),
    ("method()", "config.inner.values[0] = 321"),
    ("sub.scale", "Scaled.scale = 2.0", "Sub.scale = 3.0", "sub.scale = 4.0", "del sub.scale", "del Sub.scale"),
    ("Sub.scale", "Sub.scale = 8.0", "del Sub.scale"),
    ("getattr(sub, 'option', 4)", "sub.option = 9", "sub.option = 10", "del sub.option"),
    ("3 if hasattr(user, 'late') else 2", "user.late = 1"),
]  # fmt: skip


def variables_of(expression: str) -> dict[str, Any]:
    """Return the globals of a module with the kernel `o[0] = expression`."""
    text = f"{PRELUDE}\n@tw.kernel\ndef kernel(o):\n    o[0] = {expression}\n    log.append(1)\n"
    file = f"<contents {expression}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "tw": tw, "np": np, "types": types, "sys": sys, "collections": collections, "functools": functools,
        "array": array, "weakref": weakref, "dataclasses": dataclasses, "__name__": __name__,
    }  # fmt: skip
    exec(compile(text, file, "exec", dont_inherit=True), names)
    return names


def launched(kernel: tw.Kernel, *args: Any) -> float:
    out = np.zeros(2, np.float64)
    kernel[1, 1](*args, out)
    return float(out[0])


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row[0])
def test_a_change_inside_of_what_is_captured(row: tuple[str, ...]) -> None:
    names = variables_of(row[0])
    kernel, log = names["kernel"], names["log"]
    expected = "o[0]" if "o[" in row[0] else row[0]
    launched(kernel)
    assert launched(kernel) == launched(kernel) and len(log) == 1
    for change in row[1:]:
        exec(change, names)
        traces = len(log)
        want = names["S"][0] if expected == "o[0]" else eval(expected, names)
        assert str(launched(kernel)) == str(float(want)), change
        assert launched(kernel) == want and len(log) == traces + 1, change


def test_equal_contents_do_not_trace_again() -> None:
    names = variables_of("S[0] + D['x']['y'][0] + config.tile + W[0]")
    launched(names["kernel"])
    for change in ("S[0] = float('2.0')", "D['x']['y'][:] = [int('1')]", "config.tile = int('4')", "W[0] = 1", "user.other = 3",
                   "config.unread = 3", "Scaled.scale = 12"):  # fmt: skip
        exec(change, names)
        launched(names["kernel"])
    assert len(names["log"]) == 1


class Method:
    scale = 1

    def __init__(self) -> None:
        self.tile, self.items, self.traces = 3, [1], 0

    @tw.kernel
    def kernel(self, o):
        o[0] = self.tile + self.items[0] + self.helper() + Method.scale

    def helper(self) -> float:
        self.traces += 1
        return getattr(self, "extra", 0)


def test_a_method_sees_changes_of_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Method(), Method()
    assert [launched(first.kernel), launched(second.kernel)] == [5, 5]
    first.tile = 10
    assert [launched(first.kernel), launched(second.kernel)] == [12, 5]
    first.items[0] = 5
    assert [launched(first.kernel), launched(second.kernel)] == [16, 5]
    second.items = [7]
    assert [launched(first.kernel), launched(second.kernel)] == [16, 11]
    monkeypatch.setattr(Method, "scale", 100)
    assert [launched(first.kernel), launched(second.kernel)] == [115, 110]
    monkeypatch.setattr(Method, "extra", 1000, raising=False)
    assert [launched(first.kernel), launched(second.kernel)] == [1115, 1110]
    launched(first.kernel), launched(second.kernel)
    traces = first.traces, second.traces
    for _ in range(3):
        launched(first.kernel), launched(second.kernel)
    assert (first.traces, second.traces) == traces


def test_what_traces_write_themselves_does_not_trace_again() -> None:
    count, memo, traces = [0], {}, []

    def numbered() -> int:
        count[0] += 1
        memo[count[0]] = len(memo)
        traces.append(count[0])
        return count[0]

    @tw.kernel
    def one(o):
        o[0] = numbered()

    @tw.kernel
    def two(o):
        o[0] = numbered() + 10

    for _ in range(4):
        launched(one), launched(two)
        two[1, 1](np.zeros(2, np.float32))
    assert len(traces) <= 4


def test_captures_of_constants_cost_what_they_cost() -> None:
    """No attribute of an installed module, and nothing inside of this package's objects, is compared."""
    layout, number = tw.Layout((2, 2)), 3

    @tw.kernel
    def kernel(o):
        o[0] = (
            number
            + layout.size
            + int(np.float32(1))
            + tw.thread_idx.x
            + len(sys.path[:0])
            + functools.reduce(max, (1,))
        )

    launched(kernel)
    assert sorted(str(w.value) for w in kernel.captures.watched) == ["(2,2):(1,2)", "3"]


def test_a_container_that_a_launch_cannot_compare_is_refused() -> None:
    table = list(range(5000))

    @tw.kernel
    def kernel(o):
        o[0] = table[7]

    with pytest.raises(tw.LanguageError, match=r"table, which the kernel captures, has 5000 items.* at most 4096"):
        launched(kernel)
    table[:] = table[:100]
    assert launched(kernel) == 7


def test_cycles_and_lazy_attributes() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> int:
            calls.append(name)
            return 5

    calls: list[str] = []
    ring: list[Any] = [1]
    ring.append(ring)
    lazy, node = Lazy(), types.SimpleNamespace(value=2)
    node.next = node

    @tw.kernel
    def kernel(o):
        o[0] = ring[1][1][0] + node.next.next.value + lazy.anything

    assert launched(kernel) == 8
    node.value = 7
    assert launched(kernel) == 13
    assert set(calls) == {"anything"}
