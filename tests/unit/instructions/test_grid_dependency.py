"""Launches that begin early: the driver's attribute, the text, and what is refused."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.admission import attributes_of


@tw.kernel
def waiting(out, x, hints: tw.constexpr):
    """Read a tensor that nobody in the kernel writes, behind the wait."""
    tw.launch_dependents()
    tw.grid_dependency_wait()
    fragment = tw.registers(tw.float32, (4,))
    tw.copy(hints, tw.local_tile(x, 4, tw.thread_idx.x), fragment)
    tw.copy(fragment, tw.local_tile(out, 4, tw.thread_idx.x))


SPECS = (tw.spec("float32", (128,)), tw.spec("float32", (128,)))
COPIES = tw.atoms.UniversalCopy(128), tw.atoms.UniversalCopy(128, cache="cs")


@pytest.mark.parametrize("hints", COPIES, ids=["plain", "hinted"])
def test_reads_stay_behind_the_wait(hints: tw.atoms.CopyAtom) -> None:
    """No read takes the way for what never changes, which compilers move."""
    text = waiting.source(*SPECS, hints, block=32, arch="sm_90a")
    assert "__restrict__" not in text
    ptx = waiting[1, 32].ptx(*SPECS, hints, arch="sm_90a")
    assert ".nc" not in ptx
    assert ptx.index("griddepcontrol.launch_dependents;") < ptx.index("griddepcontrol.wait;") < ptx.index("ld.global")


def test_the_option_is_an_attribute_of_the_launch() -> None:
    lowered = waiting.configure(dependent_launch=True).lower(*SPECS, COPIES[0], block=32)
    assert [(attribute.id, attribute.value) for attribute in attributes_of(lowered.kernel)] == [(6, (1,))]
    assert attributes_of(waiting.lower(*SPECS, COPIES[0], block=32).kernel) == ()
    assert lowered.source.text == waiting.source(*SPECS, COPIES[0], block=32)


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_targets_without_them(arch: str) -> None:
    for name, word in (("tw.launch_dependents", waiting), ("dependent_launch", nothing)):
        with pytest.raises(
            tw.TilewrightError, match=rf"{name}: {arch} has no launches that begin early; they need sm_90"
        ):
            word.lower(*SPECS, COPIES[0], block=32, arch=arch)
    with pytest.raises(tw.ArgumentError, match="they need sm_90 or later"):
        waiting.configure(dependent_launch=True, arch=arch)
    with pytest.raises(tw.ArgumentError, match="dependent_launch is 1; expected True or False"):
        waiting.configure(dependent_launch=1)


@tw.kernel(dependent_launch=True)
def nothing(out, x, hints: tw.constexpr):
    """Do nothing."""
