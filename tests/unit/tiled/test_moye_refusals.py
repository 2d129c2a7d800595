"""What MoYe.jl's tests of arrays refuse, or take where the library asks for more words."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.layout import Layout


def test_the_first_mode_is_not_guessed() -> None:
    """MoYe.jl adds (3,2) and (3); here the second is written as (3,1)."""

    @tw.kernel
    def added(out):
        b, c = tw.registers(tw.float32, (3, 2)), tw.registers(tw.float32, Layout((3,), (2,)))
        tw.fill(b, 1.0)
        tw.fill(c, 1.0)
        out[0] = (b + c).reduce("add")

    with pytest.raises(tw.TilewrightError, match=r"\(3,2\)"):
        added[1, 1](np.zeros(1, np.float32))


def test_fragments_have_static_shapes() -> None:
    """MoYe.jl has no method for a shape that is not static."""

    @tw.kernel
    def dynamic(x, n):
        tw.registers(tw.float32, (n, 3))

    with pytest.raises(tw.TilewrightError, match="static|dynamic"):
        dynamic[1, 1](np.zeros(1, np.float32), 2)
