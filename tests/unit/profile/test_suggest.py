"""Suggested layouts: never worse, what is promised of them is true, and vectors stay whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.unit.profile import oracle

import tilewright as tw
from tilewright.figures import Pattern, SharedBuffer
from tilewright.profile.conflicts import _candidates, conflicts_of, suggest

THREADS = tw.Layout((8, 32), (32, 1))


@tw.kernel
def transpose(dst, src, layout: tw.constexpr):
    smem = tw.shared(src.dtype, layout)
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(src, THREADS, tid), tw.local_partition(smem, THREADS, tid))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(tw.local_partition(smem.T, THREADS, tid), tw.local_partition(dst, THREADS, tid))


def run(layout: Any, dtype: Any) -> Any:
    src = np.arange(32 * 32).reshape(32, 32).astype(dtype)
    dst = np.zeros_like(src)
    with tw.simulate(profile=True) as run:
        transpose[1, 256](tw.static(dst), tw.static(src), layout)
    np.testing.assert_array_equal(dst, src.T)
    return run


LAYOUTS = {
    "columns": tw.Layout((32, 32), (1, 32)),
    "rows": tw.Layout((32, 32), (32, 1)),
    "rows with holes": tw.Layout((32, 32), (34, 1)),
    "tiles of 8 x 8": tw.Layout(((8, 4), (8, 4)), ((1, 64), (8, 256))),
    "a swizzle of too few bits": tw.composition(tw.Swizzle(2, 0, 5), tw.Layout((32, 32), (32, 1))),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_suggested_layout_runs_without_conflicts(name: str, dtype: Any) -> None:
    before = run(LAYOUTS[name], dtype)
    (conflict,) = conflicts_of(before.profile.launches[0].buffers)
    found = conflict.suggestion
    assert found is not None and found.removes
    assert found.before == before.profile.shared_wavefronts and found.ideal == before.profile.shared_wavefronts_ideal
    layout = eval(found.expression, {"tw": tw})
    assert layout == found.layout
    after = run(layout, dtype).profile
    assert after.shared_wavefronts == found.after == after.shared_wavefronts_ideal
    assert (
        tw.cosize(layout) * np.dtype(dtype).itemsize
        == tw.cosize(LAYOUTS[name]) * np.dtype(dtype).itemsize + found.extra_bytes
    )


def test_the_remark_names_the_line_and_the_layout() -> None:
    report = run(LAYOUTS["columns"], np.float32).report()
    (remark,) = [remark for remark in report.remarks if remark.kind == "bank-conflict"]
    assert remark.file == __file__ and remark in report.profile.remarks
    assert remark.message in report
    assert "tw.composition(tw.Swizzle(5, 0, 5), tw.Layout((32, 32), (1, 32)))" in remark.message


def test_no_conflict_no_suggestion() -> None:
    profile = run(tw.Layout((32, 32), (33, 1)), np.float32).profile
    assert conflicts_of(profile.launches[0].buffers) == []
    assert suggest(profile.launches[0].buffers[0]) is None


def oracle_cost(buffer: SharedBuffer, place: Any = None) -> int:
    cost = 0
    for p in buffer.patterns:
        moved = p.elements if place is None else place(p.elements)
        lanes = [int(m) * buffer.element_bytes if e >= 0 else None for e, m in zip(p.elements, moved, strict=True)]
        cost += p.times * oracle.wavefronts(lanes, p.width, p.kind)[0]
    return cost


@st.composite
def buffers(draw: st.DrawFn) -> SharedBuffer:
    """Accesses along rows and columns of some tile, in vectors, with idle lanes."""
    element = draw(st.sampled_from([2, 4, 8]))
    rows, columns = draw(st.sampled_from([(32, 32), (16, 64), (64, 8), (24, 40)]))
    layout = draw(st.sampled_from([tw.Layout((rows, columns), (columns, 1)), tw.Layout((rows, columns), (1, rows))]))
    patterns = []
    for _ in range(draw(st.integers(1, 3))):
        vector = draw(st.sampled_from([1, 2, 4])) if element < 8 else draw(st.sampled_from([1, 2]))
        step = draw(st.sampled_from([1, columns // vector or 1, 2, 3]))
        start = draw(st.integers(0, 7))
        units = (start + step * np.arange(32)) % (rows * columns // vector)
        idle = np.arange(32) < draw(st.sampled_from([0, 0, 16, 25]))
        kind = draw(st.sampled_from(["load", "store", "copy", "matrix"])) if vector * element == 16 else "load"
        patterns.append(
            Pattern(None, kind, vector * element, np.where(idle, -1, units * vector), draw(st.integers(1, 9)))
        )
    return SharedBuffer("s", "x", element, rows * columns, 0, layout, None, patterns)


@examples(10, 60)
@given(buffers())
def test_a_suggestion_is_never_worse_and_keeps_its_word(buffer: SharedBuffer) -> None:
    before, ideal = buffer.cost()
    assert before == oracle_cost(buffer)
    found = suggest(buffer)
    if before == ideal:
        assert found is None
        return
    if found is None:
        return
    assert found.before == before and ideal <= found.after < before
    assert found.after == oracle_cost(buffer, found.place)
    assert found.removes == (found.after == found.ideal)
    every = np.arange(buffer.size)
    moved = found.place(every)
    assert len(set(moved.tolist())) == buffer.size and moved.min() >= 0 and moved.max() < tw.cosize(found.layout)
    vector = max(p.width for p in buffer.patterns) // buffer.element_bytes
    starts = moved[::vector]
    assert (starts % vector == 0).all() and all((moved[k::vector] == starts + k).all() for k in range(vector))
    assert found.kind != "swizzle" or found.extra_bytes == 0
    # The place of each coordinate in the new layout is where the map says.
    assert buffer.layout is not None
    for coordinate in range(0, buffer.size, 37):
        assert found.layout(coordinate) == moved[buffer.layout(coordinate)]


MORE_LAYOUTS = [
    *LAYOUTS.values(),
    tw.Layout((3, 2), (2, 3)),  # modes that run past each other
    tw.Layout((4, 6, 2), (2, 8, 1)),
    tw.composition(tw.Swizzle(3, 2, 3), tw.Layout((64, 32), (32, 1))),
]


@pytest.mark.parametrize(
    ("layout", "width", "step"),
    [  # in the suite with one of the widths each, and at some coordinates
        pytest.param(layout, width, step, marks=() if step > 1 and n % 2 == m else pytest.mark.slow)
        for n, layout in enumerate(MORE_LAYOUTS)
        for m, width in enumerate((4, 8))
        for step in (37, 1)
    ],
)
@pytest.mark.spread(3)
def test_a_candidate_is_the_layout_that_its_map_says(layout: Any, width: int, step: int) -> None:
    """All coordinates of small layouts, and one in `step` of the others'."""
    pattern = Pattern(None, "load", width, np.arange(32), 1)
    buffer = SharedBuffer("s", "float32", 4, tw.cosize(layout), 0, layout, None, [pattern])
    coordinates = range(0, tw.size(layout), step if tw.size(layout) > 48 else 1)
    old = np.array([layout(c) for c in coordinates])
    tried = list(_candidates(layout, buffer))
    assert tried
    for candidate, kind, place in tried:
        assert kind != "swizzle" or tw.cosize(candidate) <= tw.cosize(candidate.inner)
        assert [candidate(c) for c in coordinates] == place(old).tolist()
