"""State that a loop or branch changes is carried, however its code comes to it, in kernels of users and in ours."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import ways_to_state

import tilewright as tw

MODULES = {"user's": ways_to_state, "ours": ways_to_state.as_if_ours()}
OWNERS = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


def assert_steps(module: ModuleType, kind: str, ways: tuple[str, ...], control: str) -> None:
    """Run a kernel of a module, for several numbers of steps."""
    for n in (0, 1, 2, 4, 5):
        out = np.full(1, -1, np.int32)
        module.steps_by[1, 1](out, n, kind, ways, control)
        assert out[0] == ways_to_state.CONTROLS[control](n) % ways_to_state.STAGES, n


@OWNERS
@pytest.mark.parametrize("way", ways_to_state.WAYS)
def test_each_way(module: ModuleType, way: str) -> None:
    assert_steps(module, "consumer", (way,), "for")


@OWNERS
@pytest.mark.parametrize("kind", ["producer", "consumer", "position"])
@pytest.mark.parametrize("control", ways_to_state.CONTROLS)
def test_each_control(module: ModuleType, kind: str, control: str) -> None:
    assert_steps(module, kind, ("nested",), control)


@given(
    st.sampled_from(list(MODULES)),
    st.sampled_from(["consumer", "position"]),
    st.lists(st.sampled_from(list(ways_to_state.WAYS)), max_size=4).map(tuple),
    st.sampled_from(list(ways_to_state.CONTROLS)),
)
@settings(max_examples=40)
def test_ways_behind_ways(owner: str, kind: str, ways: tuple[str, ...], control: str) -> None:
    assert_steps(MODULES[owner], kind, ways, control)


@OWNERS
def test_the_text_begins_before_the_loop(module: ModuleType) -> None:
    for way in ("nested", "traced", "two deep"):
        lowered = module.steps_by.lower(tw.spec("int32", 1), 3, "consumer", (way,), "for", arch="sm_90a", block=32)
        before, loop = lowered.source.text.split("for (")
        assert "int state_stage = 0;" in before
        assert re.search(r"\n +state_stage = state_stage == 2 \? 0 : state_stage \+ 1;", loop), loop
        assert "int state_stage" not in loop


@OWNERS
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_ring_that_inner_functions_fill_and_read(module: ModuleType, stages: int) -> None:
    """The simulator finds a wait that is missing where a loop does not carry the states."""
    x = np.arange(7 * 32, dtype=np.float32).reshape(7, 32)
    out = np.zeros((7, 32), np.float32)
    module.rows_by_inner_functions[1, 64](out, x, stages)
    assert (out == 2 * x).all()


@OWNERS
@pytest.mark.parametrize(
    ("kernel", "message"),
    [("draws", "a random generator that exists before, 'numbers', is read or changed in a loop on the device"),
     ("waits", "'state.stage' changes in the condition of a loop on the device")],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused(module: ModuleType, kernel: str, message: str) -> None:
    with pytest.raises(tw.LanguageError, match=message) as caught:
        getattr(module, kernel).lower(tw.spec("int32", 1), 3, arch="sm_90a", block=32)
    assert "help: " in str(caught.value)
