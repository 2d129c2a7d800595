"""CONST arrays at a launch: their memory and strides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import float32
from tilewright.runtime.arrays import describe
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.constants import Placed, bring


@pytest.mark.parametrize("layout", [Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR, (5, 1)])
def test_the_host_has_the_declared_strides(layout: Any) -> None:
    data = np.arange(12).reshape(3, 4)
    array = Array(Role.CONST, "float32", layout=layout, data=data, name="w")
    held = bring(array, None, "cpu")
    assert held.dtype == np.float32 and tuple(step // 4 for step in held.strides) == array.strides
    np.testing.assert_array_equal(held, data)


def test_a_launch_sees_the_strides_of_memory_of_the_driver() -> None:
    memory: Any = SimpleNamespace(pointer=256, dtype=float32, ordinal=1)
    info = describe(Placed(memory, (3, 4), (1, 3)))
    assert info is not None
    assert (info.pointer, info.shape, info.strides, info.dtype, info.device) == (256, (3, 4), (1, 3), float32, 1)
