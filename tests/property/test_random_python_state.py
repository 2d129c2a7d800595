"""Random kernels that keep their numbers in lists, dicts, objects and closures: the same in Python and on the device."""

from __future__ import annotations

import linecache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.property.test_language import Writer, compiled

import tilewright as tw

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")

PRELUDE = """
class Counter:
    def __init__(self, v):
        self.v = v
        self.parts = [v, 1]

    def step(self, by):
        self.v = (self.v + by) & 255
        self.parts[1] += by & 3
        return self.v

    @staticmethod
    def pair(a, b):
        return [a, b]


def bump(items, by=1):
    items[0] = (items[0] + by) & 255
    return items[0]


def make(start):
    held = start

    def add(by):
        nonlocal held
        held = (held + by) & 127
        return held

    return add
"""

START = """
    l, d, o = [a, b], {"k": c, "m": [1, 2]}, Counter(a)
    m, t, add = l, (l, d), make(b)
    look = lambda: a + l[1] + o.v
    def put(v):
        nonlocal c
        c = (c + v) & 63
        d["m"][0] = c
        return c
"""

END = """
    out[8], out[9], out[10], out[11] = a, b, c, l[0]
    out[12], out[13], out[14], out[15] = l[1], d["k"], d["m"][0], d["m"][1]
    out[16], out[17], out[18], out[19] = o.v, o.parts[0], o.parts[1], add(0)
    out[20], out[21] = look(), m[0]
"""


class StateWriter(Writer):
    """Writes kernels whose statements change Python state, and whose expressions read it or change it."""

    def expression(self, depth: int = 2) -> str:
        if self.integer(0, 2):
            return super().expression(depth)
        return self.pick("l[0]", "m[1]", 'd["k"]', "t[1]['m'][1]", "o.v", "o.parts[1]", "look()", "sum(l)",
                         "sum([v & 3 for v in l])", "put(1)", "bump(l, 2)", "add(1)", "max(l[0], o.v)")  # fmt: skip

    def _assign(self, pad: str, *_: object) -> None:
        e = self.expression()
        line = self.pick(
            "a = {e} & 255", "l[0] = {e} & 255", "t[0][1] = {e} & 255", 'd["k"] = {e} & 255', "o.v = {e} & 255",
            "o.step({e} & 7)", "bump(m, {e} & 3)", "put({e} & 3)", "add({e} & 3)", "l[:] = l[1], {e} & 255",
            "d['m'] = [{e} & 15, 3]", "o.parts = o.pair({e} & 7, o.v)", "l.append({e} & 7); l.pop(0)",
        )  # fmt: skip
        self.lines.append(pad + line.format(e=e))

    def _augment(self, pad: str, *_: object) -> None:
        place = self.pick("l[1]", "m[0]", 'd["k"]', 'd["m"][1]', "o.v", "o.parts[0]", "b")
        self.lines.append(f"{pad}{place} ^= {self.expression()} & 63")

    def _swap(self, pad: str, *_: object) -> None:
        self.lines.append(pad + self.pick("l[0], l[1] = l[1], l[0]", "a, o.v = o.v, a", 'd["k"], b = b, d["k"]'))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Return the text of a kernel."""
    writer = StateWriter(draw, "return")
    writer.lines += ["def kernel(out, p, q):", "    a, b, c = p, q, 5", START]
    writer.block(1, 2, False)
    return PRELUDE + "\n".join([*writer.lines, END])


@settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(programs(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=2))
def test_state_means_what_python_means(text: str, inputs: list[tuple[int, int]]) -> None:
    plain, device = compiled(text), compiled(text)
    kernel = tw.kernel(device["kernel"])
    for p, q in inputs:
        expected = np.zeros(22, np.int64)
        plain["kernel"](expected, p, q)
        found = np.zeros(22, np.int32)
        try:
            kernel[1, 1](found, p, q)
        except tw.LanguageError as error:
            # What the language refuses: a condition that changes state, and a change of a list of which there is a copy.
            known = "in the condition of a loop", "is changed in place later", "before the loop"
            assert any(each in str(error) for each in known), (text, str(error))
            return
        assert found.tolist() == expected.tolist(), text
    assert linecache.cache
