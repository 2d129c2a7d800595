"""Bank conflicts: the lines where they arise, and layouts without them, found by trying layouts on the accesses.

Candidates are swizzles on top of the layout's own offsets, and paddings: some elements more after each run of a
stride; then the same with the modes in another order. Only those count that leave side by side and aligned what a
vector access takes at once. Each is tried on all patterns that were recorded; a suggestion's figures are what that
gave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.figures import SharedBuffer
from tilewright.layout import ComposedLayout, Layout, Swizzle, col_major, composition, cosize, row_major, size
from tilewright.layout.layouts import flat_modes
from tilewright.layout.tuples import map_leaves
from tilewright.remarks import Place, Remark, Suggestion
from tilewright.source import SourceLocation

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_BITS = 5  # of a swizzle: 32 banks
_LEAST_GAIN = 0.1  # of the wavefronts that conflicts cost: what gains less is not worth a change
_TRIAL = 256  # patterns on which candidates are tried first


@dataclass
class LineCost:
    """The wavefronts of one line's accesses to one buffer."""

    location: SourceLocation | None
    wavefronts: int = 0
    ideal: int = 0
    requests: int = 0
    worst: int = 0
    kinds: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Conflict:
    """A buffer with bank conflicts: the lines where they arise, the most expensive first, and the fix."""

    buffer: SharedBuffer
    lines: tuple[LineCost, ...]
    suggestion: Suggestion | None

    def remarks(self) -> list[Remark]:
        """Return one remark for each line."""
        return [_remark(self, line) for line in self.lines]


def conflicts_of(buffers: list[SharedBuffer]) -> list[Conflict]:
    """Return the buffers that have bank conflicts, in the order given."""
    found = []
    for buffer in buffers:
        took, least = buffer.cost()
        if took > least:
            found.append(Conflict(buffer, tuple(_costly_lines(buffer)), suggest(buffer)))
    return found


def _costly_lines(buffer: SharedBuffer) -> list[LineCost]:
    lines: dict[tuple[str | None, int | None], LineCost] = {}
    for pattern, took, least in buffer.each_cost():
        line = lines.setdefault(place_of(pattern.location), LineCost(pattern.location))
        line.wavefronts += took * pattern.times
        line.ideal += least * pattern.times
        line.requests += pattern.times
        line.worst = max(line.worst, took)
        line.kinds.add(pattern.kind)
    costly = [line for line in lines.values() if line.wavefronts > line.ideal]
    return sorted(costly, key=lambda line: line.ideal - line.wavefronts)


def place_of(location: SourceLocation | None) -> tuple[str | None, int | None]:
    """Return the file and line of a place, which make a line's figures one."""
    return (None, None) if location is None else (location.file, location.line)


def _remark(conflict: Conflict, line: LineCost) -> Remark:
    buffer, found = conflict.buffer, conflict.suggestion
    name = buffer.name or "shared memory"
    text = [
        f"bank conflict: {line.requests} requests to {name} take {line.wavefronts} wavefronts, "
        f"and {line.ideal} would do; the worst takes {line.worst}"
        + ("" if buffer.is_complete else " (of a sample: the requests differ from block to block)")
    ]
    if line.location is not None:
        text += [f"  {part}" for part in line.location.excerpt()]
    if found is None:
        text.append("  no swizzle or padding that was tried is better")
    else:
        where = f" (declared at {buffer.location})" if buffer.location is not None else ""
        text.append(f"  help: give {name}{where} the layout {found}")
    return Remark("bank-conflict", "\n".join(text), line.location, found)


def suggest(buffer: SharedBuffer) -> Suggestion | None:
    """Return the best layout for a buffer, None where it has no conflict or nothing found is better.

    The first candidate without conflicts wins: swizzles, which take no memory, fewest bits first, then paddings, the
    least first. Law: `after` <= `before`, and it is what the recorded accesses take with the layout in use.
    """
    before, ideal = buffer.cost()
    layout = buffer.layout if buffer.layout is not None else Layout(buffer.size)
    if before == ideal:
        return None
    best: Suggestion | None = None
    enough = before - max(1, round(_LEAST_GAIN * (before - ideal)))
    trial = buffer.heaviest(_TRIAL)
    least_trial, _ = trial.cost()
    for candidate, kind, place in _candidates(layout, buffer):
        if not _keeps_vectors(trial, place):
            continue
        on_trial, _ = trial.cost(place)
        if on_trial >= least_trial and trial is not buffer:
            continue
        after, _ = buffer.cost(place)
        if after <= enough and (best is None or after < best.after) and _keeps_vectors(buffer, place):
            extra = max(_cosize(candidate) - buffer.size, 0) * buffer.element_bytes
            best = Suggestion(expression(candidate), candidate, kind, before, after, ideal, extra, place)
            least_trial = on_trial
            if after == ideal:
                break
    return best


def _keeps_vectors(buffer: SharedBuffer, place: Place) -> bool:
    """Say whether each access still finds its elements, side by side and aligned."""
    for _, width, elements, _ in buffer.groups:
        vector = max(width // buffer.element_bytes, 1)
        first = place(elements)
        if ((first < 0) & (elements >= 0)).any() or ((first % vector != 0) & (elements >= 0)).any():
            return False
        for k in range(1, vector):
            if ((place(np.where(elements >= 0, elements + k, -1)) != first + k) & (elements >= 0)).any():
                return False
    return True


def expression(layout: Layout | ComposedLayout) -> str:
    """Return the Python expression that makes a layout.

    >>> expression(composition(Swizzle(3, 0, 3), Layout((8, 8), (1, 8))))
    'tw.composition(tw.Swizzle(3, 0, 3), tw.Layout((8, 8), (1, 8)))'
    """
    if isinstance(layout, Layout):
        return f"tw.Layout({layout.shape!r}, {layout.stride!r})"
    outer = layout.outer
    assert isinstance(outer, Swizzle), layout
    return f"tw.composition(tw.Swizzle({outer.bits}, {outer.base}, {outer.shift}), {expression(layout.inner)})"


def _candidates(layout: Layout | ComposedLayout, buffer: SharedBuffer) -> Iterator[tuple[Any, str, Place]]:
    """Yield layouts with the map from the old place of an element to the new one.

    First the layout's own modes under swizzles and paddings, then the same shape with its modes in another order.
    """
    undo: Place = _same
    inner = layout
    if isinstance(inner, ComposedLayout):
        outer = inner.outer
        if not isinstance(outer, Swizzle) or not isinstance(inner.inner, Layout) or inner.offset != 0:
            return
        undo, inner = _swizzled(outer), inner.inner
        yield inner, "plain", undo  # without the swizzle that it has
    yield from _variants(inner, undo, buffer)
    for other in (col_major(inner.shape), row_major(inner.shape)):
        if other != inner:
            moved = _moved(layout, other)
            yield other, "order of modes", moved
            yield from _variants(other, moved, buffer)


def _variants(layout: Layout, before: Place, buffer: SharedBuffer) -> Iterator[tuple[Any, str, Place]]:
    """Yield swizzles and paddings of a layout; `before` maps to places in the layout itself."""
    vector = max(1, max(p.width for p in buffer.patterns) // buffer.element_bytes)
    for swizzle in _swizzles(vector, _cosize(layout)):
        yield composition(swizzle, layout), "swizzle", _after(_swizzled(swizzle), before)
    for run, extra in _paddings(layout, vector, buffer.element_bytes):
        padded = _padded(layout, run, extra)
        if padded is not None:
            yield padded, "padding", _after(_spread(run, extra), before)


def _moved(layout: Layout | ComposedLayout, other: Layout) -> Place:
    """Return the map from each coordinate's place in a layout to its place in another of the same shape."""
    count = size(layout)
    assert isinstance(count, int), layout
    table = np.full(_cosize(layout) + 1, -1, np.int64)  # the last stands for index -1, an idle lane
    coordinates = range(count)
    table[[layout(c) for c in coordinates]] = [other(c) for c in coordinates]
    return lambda elements: table[np.minimum(elements, len(table) - 1)]


def _swizzles(vector: int, count: int) -> Iterator[Swizzle]:
    """Yield swizzles that keep vectors together and stay inside the buffer, fewest bits first."""
    least = vector.bit_length() - 1
    for bits in range(1, _MOST_BITS + 1):
        for base in range(least, least + 6):
            # The buffer consists of whole blocks of the bits that change, so nothing leaves it.
            if count % (1 << (base + bits)):
                break
            for shift in range(bits, count.bit_length() - base):
                yield Swizzle(bits, base, shift)


def _paddings(layout: Layout, vector: int, element_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield runs of elements and what to add after each, the least first."""
    _, strides = flat_modes(layout)
    runs = sorted({d for d in strides if isinstance(d, int) and d > 1})
    most = max(vector, 128 // element_bytes // 2)
    for extra in range(vector, most + 1, vector):
        for run in reversed(runs):
            if run % vector == 0:
                yield run, extra


def _padded(layout: Layout, run: int, extra: int) -> Layout | None:
    """Return the layout with `extra` elements after each `run`, None where its modes do not end there."""
    modes = [(n, d) for n, d in zip(*flat_modes(layout), strict=True) if isinstance(n, int) and isinstance(d, int)]
    inside = sum((n - 1) * d for n, d in modes if d < run)
    if inside >= run or any(d % run for _, d in modes if d >= run):
        return None
    return Layout(layout.shape, map_leaves(lambda d: d + d // run * extra if d >= run else d, layout.stride))


def _cosize(layout: Layout | ComposedLayout) -> int:
    found = cosize(layout)
    assert isinstance(found, int), layout
    return found


def _same(elements: Array) -> Array:
    return elements


def _swizzled(swizzle: Swizzle) -> Place:
    def place(elements: Array) -> Array:
        read = elements & swizzle.source_mask
        moved = elements ^ (read >> swizzle.shift if swizzle.shift > 0 else read << -swizzle.shift)
        return np.where(elements >= 0, moved, elements)

    return place


def _spread(run: int, extra: int) -> Place:
    return lambda elements: elements + elements // run * extra


def _after(second: Place, first: Place) -> Place:
    return second if first is _same else lambda elements: second(first(elements))
