"""Random kernels, run by Python itself and by the simulator: the same text has to mean the same."""

from __future__ import annotations

import itertools
import linecache

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning")

VARIABLES = ("a", "b", "c")
_numbers = itertools.count()


class Writer:
    """Writes the text of one kernel: integers, loops, branches and jumps; every variable has a value from the start."""

    def __init__(self, draw: st.DrawFn, result: str) -> None:
        self.draw = draw
        self.result = result  # what a return hands back
        self.lines: list[str] = []
        self.names = list(VARIABLES)
        self.counter = itertools.count()

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def pick(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def expression(self, depth: int = 2) -> str:
        if depth == 0 or self.integer(0, 3) == 0:
            return self.pick(*self.names, "p", "q", str(self.integer(-3, 9)))
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        form = self.pick("({a} + {b})", "({a} - {b})", "(({a} * {b}) & 255)", "min({a}, {b})", "max({a}, {b}, 1)",
                         "({a} if {c} else {b})", "({a} ^ {b})", "abs({a})", "int({c})")  # fmt: skip
        return form.format(a=a, b=b, c=self.condition(depth - 1) if "{c}" in form else "")

    def condition(self, depth: int = 1) -> str:
        a, b = self.expression(depth), self.expression(depth)
        form = self.pick("{a} < {b}", "{a} == {b}", "{a} != {b} < 5", "({c} and {a} > 2)", "({c} or {a} < {b})",
                         "not {a} > {b}", "{a} in (1, {b})", "0 <= {a} < {b} < 40", "{a} & 1")  # fmt: skip
        return form.format(a=a, b=b, c=self.condition(0) if "{c}" in form else "")

    def block(self, indent: int, depth: int, loop: bool) -> None:
        for _ in range(self.integer(1, 3)):
            self.statement(indent, depth, loop)

    def statement(self, indent: int, depth: int, loop: bool) -> None:
        kinds = ["assign", "assign", "augment", "store", "swap"]
        if depth:
            kinds += ["if", "if", "for", "for", "while", "static", "jump"]
        getattr(self, f"_{self.pick(*kinds)}")("    " * indent, indent, depth, loop)

    def _assign(self, pad: str, *_: object) -> None:
        self.lines.append(f"{pad}{self.pick(*VARIABLES)} = {self.expression()} & 1023")

    def _augment(self, pad: str, *_: object) -> None:
        self.lines.append(f"{pad}{self.pick(*VARIABLES)} {self.pick('+=', '-=', '^=')} {self.expression()} & 63")

    def _store(self, pad: str, *_: object) -> None:
        self.lines.append(f"{pad}out[{self.expression(1)} & 7] += {self.expression(1)} & 31")

    def _swap(self, pad: str, *_: object) -> None:
        self.lines.append(f"{pad}a, b = b, a")

    def _if(self, pad: str, indent: int, depth: int, loop: bool) -> None:
        self.lines.append(f"{pad}if {self.condition()}:")
        self.block(indent + 1, depth - 1, loop)
        for _ in range(self.integer(0, 1)):
            self.lines.append(f"{pad}elif {self.condition()}:")
            self.block(indent + 1, depth - 1, loop)
        if self.integer(0, 1):
            self.lines.append(f"{pad}else:")
            self.block(indent + 1, depth - 1, loop)

    def _for(self, pad: str, indent: int, depth: int, _: bool) -> None:
        index = f"i{next(self.counter)}"
        bounds = self.pick("({e}) & 3", "1, 4", "3, ({e}) & 3, -1", "({e}) & 1, 5, 2", "4")
        self.lines.append(f"{pad}for {index} in range({bounds.format(e=self.expression(1))}):")
        self.names.append(index)
        self.block(indent + 1, depth - 1, True)
        self.names.remove(index)

    def _static(self, pad: str, indent: int, depth: int, _: bool) -> None:
        index = f"i{next(self.counter)}"
        self.lines.append(f"{pad}for {index} in (2, 0, 1):")
        if self.integer(0, 1):  # a jump that Python decides
            self.lines.append(f"{pad}    if {index} == {self.pick('0', '1', '2')}:")
            self.lines.append(f"{pad}        {self.pick('break', 'continue', self.result)}")
        self.names.append(index)
        self.block(indent + 1, depth - 1, False)
        self.names.remove(index)

    def _while(self, pad: str, indent: int, depth: int, _: bool) -> None:
        turns = f"w{next(self.counter)}"
        test = self.pick("{w} < ({e}) & 3", "{w} < 3 and {c}", "True")
        self.lines.append(f"{pad}{turns} = 0")
        self.lines.append(f"{pad}while {test.format(w=turns, e=self.expression(1), c=self.condition(0))}:")
        self.lines.append(f"{pad}    {turns} += 1")
        if test == "True":
            self.lines.append(f"{pad}    if {turns} > (p & 3):")
            self.lines.append(f"{pad}        break")
        self.block(indent + 1, depth - 1, True)

    def _jump(self, pad: str, indent: int, depth: int, loop: bool) -> None:
        jump = self.pick("break", "continue", self.result) if loop else "pass" if pad != "    " * 1 else self.result
        self.lines.append(f"{pad}if {self.condition()}:")
        self.lines.append(f"{pad}    {jump}")


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Return the text of a kernel and of a helper function that it calls."""
    helper = Writer(draw, "return a - b")
    helper.lines += ["def helper(out, a, b, p, q):", "    c = 0"]
    helper.block(1, 2, False)
    helper.lines.append("    return a + c")
    kernel = Writer(draw, "return")
    kernel.lines += ["def kernel(out, p, q):", f"    a, b, c = {kernel.pick('0', 'p')}, {kernel.pick('1', 'q')}, 5"]
    kernel.block(1, 3, False)
    kernel.lines += [
        "    d = helper(out, a & 15, b & 15, p, c & 15)",
        "    out[8], out[9], out[10], out[11] = a, b, c, d",
    ]
    return "\n".join([*helper.lines, "", *kernel.lines, ""])


def compiled(text: str) -> dict:
    name = f"<ipython-input-language-{next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    variables = {"__name__": "random_kernels", "tw": tw}
    exec(compile(text, name, "exec", dont_inherit=True), variables)
    return variables


@examples(13, 150, suppress_health_check=list(HealthCheck))
@given(programs(), st.lists(st.tuples(st.integers(0, 9), st.integers(-4, 20)), min_size=1, max_size=3))
def test_kernel_means_what_python_means(text: str, inputs: list[tuple[int, int]]) -> None:
    plain = compiled(text)
    device = compiled(text)
    device["helper"] = tw.function(device["helper"])
    kernel = tw.kernel(device["kernel"])
    for p, q in inputs:
        expected = np.zeros(12, np.int64)
        plain["kernel"](expected, p, q)
        found = np.zeros(12, np.int32)
        try:
            kernel[1, 1](found, p, q)
        except tw.LanguageError as error:
            # Only this is known to have no device form: leaving an unrolled loop on a device value.
            assert "unrolled while tracing" in str(error), text
            return
        assert found.tolist() == expected.tolist(), text
