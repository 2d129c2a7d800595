"""Generated code calls values what the kernel's author calls them."""

from __future__ import annotations

import re

import tilewright as tw


class Running:
    """What a kernel keeps between steps, as its author may write it."""

    @tw.function
    def __init__(self, x, n):
        self.weight = tw.thread_idx.x * n + x[0]
        self._sums, self.other = tw.registers(tw.float32, (n,)), x
        tw.clear(self._sums)

    @tw.function
    def add(self):
        for i in tw.static_range(tw.size(self._sums)):
            self._sums[i] += self.weight


@tw.kernel
def kernel(y, x, n: tw.constexpr):
    running = Running(x, n)
    running.add()
    y[tw.thread_idx.x] = running._sums[0]


def test_values_have_the_names_of_attributes() -> None:
    """But an argument keeps its own, whatever attribute it is kept in."""
    vector = tw.spec(tw.float32, (32,))
    text = kernel.source(vector, vector, 4, block=32)
    code = re.sub("//.*", "", text)
    assert "const float weight = " in code and "float sums[4];" in code and "sums[3] += weight;" in code
    assert "x[0]" in code and "other" not in code
