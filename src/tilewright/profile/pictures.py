"""The pictures of a report, as SVG text: bank maps, the roofline, timelines. Colours come from the page's style."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.figures import Event, Pattern, SharedBuffer, Timeline
from tilewright.profile.bounds import Bounds
from tilewright.profile.facts import quantity
from tilewright.profile.shapes import box, line, names, overview, svg, text
from tilewright.transactions import BANKS, WORD, phases_of

Array = np.ndarray[Any, np.dtype[Any]]


# --- bank maps -----------------------------------------------------------------------------------------------------

_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 24, 16, 64, 26


def bank_map(buffer: SharedBuffer, pattern: Pattern, elements: Array) -> str:
    """Return the map of one request: a column a bank, a row a wavefront, in each cell the lanes that it serves."""
    addresses = buffer.offset + elements * buffer.element_bytes
    active = pattern.elements >= 0
    parts = [
        text(_LEFT + _CELL_WIDTH * (bank + 0.5), 20, str(bank), "axis" if bank % 8 == 0 else "axis minor", "middle")
        for bank in range(BANKS)
    ]
    parts.append(text(4, 20, "bank", "axis minor"))
    row = 0
    for number, lanes in enumerate(phases_of(addresses, active, pattern.width, pattern.kind)):
        stacks = _stacks(addresses, lanes, pattern)
        depth = max(len(stack) for stack in stacks.values())
        for bank, stack in stacks.items():
            for level, (word, users) in enumerate(stack):
                x, y = _LEFT + _CELL_WIDTH * bank, _TOP + _CELL_HEIGHT * (row + level)
                title = f"bank {bank}, byte {word * WORD}, lanes {', '.join(map(str, users))}"
                parts.append(box(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, "hot" if level else "cool", title))
                label = str(users[0]) if len(users) == 1 else f"{users[0]}+"
                parts.append(text(x + _CELL_WIDTH / 2, y + 12, label, "cell", "middle"))
        parts.append(text(4, _TOP + _CELL_HEIGHT * (row + 0.8), f"phase {number}", "axis minor"))
        row += depth
        y = _TOP + _CELL_HEIGHT * row
        parts.append(f'<line x1="0" x2="{_LEFT + _CELL_WIDTH * BANKS}" y1="{y}" y2="{y}" class="rule"/>')
    label = f"{row} wavefronts of one request of {pattern.width} bytes a lane to {buffer.name}, by bank"
    return svg(_LEFT + _CELL_WIDTH * BANKS, _TOP + _CELL_HEIGHT * row + 4, label, parts, "banks")


def _stacks(addresses: Array, lanes: list[int], pattern: Pattern) -> dict[int, list[tuple[int, list[int]]]]:
    """Return for each bank the words that a phase takes of it, in order, each with its lanes."""
    words: dict[int, list[int]] = {}
    if pattern.kind == "atomic":  # each lane's update is a pass of its own
        stacks: dict[int, list[tuple[int, list[int]]]] = {}
        for lane in lanes:
            word = int(addresses[lane]) // WORD
            stacks.setdefault(word % BANKS, []).append((word, [lane]))
        return stacks
    for lane in lanes:
        first = int(addresses[lane]) // WORD
        for word in range(first, first + max(pattern.width // WORD, 1)):
            words.setdefault(word, []).append(lane)
    result: dict[int, list[tuple[int, list[int]]]] = {}
    for word, users in words.items():
        result.setdefault(word % BANKS, []).append((word, users))
    return result


# --- roofline ------------------------------------------------------------------------------------------------------

# As wide as a telephone: there the letters have their own size, and larger screens enlarge the plot.
_PLOT_WIDTH, _PLOT_HEIGHT, _MARGIN, _BELOW = 366, 260, 44, 46
_ABOVE, _RIGHT = 16, 18
_LINE_OF_TEXT = 13
_UNIT = " arithmetic"  # how the limits of units are called
_POINT = 6  # its radius
_ALIKE = 0.95  # a unit's roof that is this share of the mix's, or more, has no line of its own


@dataclass(frozen=True)
class _Axes:
    """Two axes in powers of ten: operations for each byte, and operations a second."""

    low_x: int
    high_x: int
    low_y: int
    high_y: int

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low_x) / (self.high_x - self.low_x)
        return _MARGIN + share * (_PLOT_WIDTH - _MARGIN - _RIGHT)

    def y(self, value: float) -> float:
        share = (self.high_y - math.log10(value)) / (self.high_y - self.low_y)
        return _ABOVE + share * (_PLOT_HEIGHT - _BELOW - _ABOVE)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
        return line(self.x(x1), self.y(y1), self.x(x2), self.y(y2), kind)

    def grid(self) -> list[str]:
        left, right, floor, top = 10.0**self.low_x, 10.0**self.high_x, 10.0**self.low_y, 10.0**self.high_y
        parts = []
        for value in (10.0**power for power in range(self.low_x, self.high_x + 1)):
            parts.append(self.line(value, top, value, floor, "grid"))
            parts.append(text(self.x(value), self.y(floor) + 16, f"{value:g}", "axis", "middle"))
        for value in (10.0**power for power in range(self.low_y, self.high_y + 1)):
            parts.append(self.line(left, value, right, value, "grid"))
            parts.append(text(_MARGIN - 6, self.y(value) + 4, quantity(value, ""), "axis", "end"))
        middle = (_PLOT_WIDTH + _MARGIN) / 2
        parts.append(text(middle, _PLOT_HEIGHT - 8, "operations for each byte of DRAM", "axis", "middle"))
        return parts


def roofline(bounds: Bounds) -> str:
    """Return the roofline plot: operations a second over operations a byte of DRAM, both in powers of ten.

    The point is as high as all limits together allow, which may be below the roof; a ring then marks the roof above it.
    """
    found = {limit.name: limit.rate for limit in bounds.limits if limit.name.endswith(_UNIT)}
    peaks = {name.removesuffix(_UNIT): rate for name, rate in found.items()}
    if not peaks and not bounds.flops:
        peaks = {"float32": bounds.gpu.rates["float32"]}
    has_point = bounds.why_no_point is None
    intensity = bounds.intensity if has_point else 1.0
    tops = [*peaks.values(), *([bounds.peak] if math.isfinite(bounds.peak) else [])]
    top = max(tops, default=bounds.gpu.rates["float32"])
    axes = _axes(top, bounds.gpu.bandwidth, intensity, bounds.reachable if has_point else top)
    roof = bounds.peak if math.isfinite(bounds.peak) else None
    parts = [*axes.grid(), *_roofs(axes, peaks, roof, bounds.gpu.bandwidth)]
    label = f"Roofline of {bounds.gpu.title}"
    if not has_point:
        return svg(_PLOT_WIDTH, _PLOT_HEIGHT, f"{label}: {bounds.why_no_point}", parts, "roofline")
    x, y, above = axes.x(intensity), axes.y(bounds.reachable), axes.y(bounds.attainable)
    parts.append(line(x, above, x, axes.y(10.0**axes.low_y), "drop"))
    if has_ring(bounds):
        parts.append(
            f'<circle cx="{x:g}" cy="{above:g}" r="{4 if y - above > _POINT + 4 else _POINT + 3}" class="ring"/>'
        )
    parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{_POINT}" class="point"/>')
    label += f": {bounds.intensity:.3g} operations a byte, at most {quantity(bounds.reachable, 'flop/s')}"
    if has_ring(bounds) and bounds.longest is not None:
        label += f", by {bounds.longest.name}; the roof is at {quantity(bounds.attainable, 'flop/s')}"
    return svg(_PLOT_WIDTH, _PLOT_HEIGHT, label, parts, "roofline")


def has_ring(bounds: Bounds) -> bool:
    """Say whether the plot has a ring on the roof: a limit that the roof does not show holds the launch below it."""
    return bounds.why_no_point is None and bounds.reachable < 0.995 * bounds.attainable


def _axes(top: float, bandwidth: float, intensity: float, lowest: float) -> _Axes:
    place = math.log10(intensity)
    low_x = min(-2, math.floor(place))
    high_x = max(math.ceil(math.log10(top / bandwidth)) + 1, math.ceil(place))
    high_y = math.ceil(math.log10(top))
    low_y = min(high_y - 4, math.floor(math.log10(bandwidth) + low_x + 1), math.floor(math.log10(lowest)))
    return _Axes(low_x, high_x, low_y, high_y)


def _roofs(axes: _Axes, peaks: dict[str, float], peak: float | None, bandwidth: float) -> list[str]:
    """Draw the slope of DRAM and the roof of the launch's mix of units; each unit's own roof is dashed."""
    right = 10.0**axes.high_x
    begin = max(10.0**axes.low_x, 10.0**axes.low_y / bandwidth)
    end = min(right, (peak or 10.0**axes.high_y) / bandwidth)
    parts = [axes.line(begin, begin * bandwidth, end, end * bandwidth, "roof")]
    slope = f"DRAM {quantity(bandwidth, 'B/s')}"
    parts.append(text(axes.x(10 * begin) + 8, axes.y(10 * begin * bandwidth) + 16, slope, "note"))
    named = {f"{unit} {quantity(rate, 'flop/s')}": rate for unit, rate in peaks.items()}
    if peak is not None:
        parts.append(axes.line(peak / bandwidth, peak, right, peak, "roof"))
        if len(peaks) > 1:
            named = {name: rate for name, rate in named.items() if rate < _ALIKE * peak}
            named[f"this mix {quantity(peak, 'flop/s')}"] = peak
    below = 0.0  # where the last label stands: those of roofs that are close to one another go below it
    for name, rate in sorted(named.items(), key=lambda item: -item[1]):
        if rate != peak:
            parts.append(axes.line(rate / bandwidth, rate, right, rate, "roof unit"))
        below = max(axes.y(rate) - 5, below + _LINE_OF_TEXT)
        parts.append(text(axes.x(right) - 2, below, name, "note", "end"))
    return parts


# --- timelines -----------------------------------------------------------------------------------------------------

_WARP_HEIGHT, _ASYNC_HEIGHT, _MOST_LANES, _MARGIN_ABOVE = 14, 12, 16, 8
_NAMES_WIDTH = 64
KINDS = {
    "global load": "k-global", "global store": "k-global", "global atomic": "k-global",
    "shared load": "k-shared", "shared store": "k-shared", "shared atomic": "k-shared",
    "ldmatrix": "k-shared", "stmatrix": "k-shared",
    "cp.async": "k-async", "tma load": "k-async", "tma store": "k-async", "tma reduce": "k-async", "commit": "k-async",
    "wait": "k-wait", "mbarrier wait": "k-wait", "barrier": "k-barrier", "named barrier": "k-barrier",
    "mma": "k-mma", "compute": "k-compute",
}  # fmt: skip
LEGEND = {
    "k-global": "global memory", "k-shared": "shared memory", "k-async": "copies", "k-wait": "wait",
    "k-barrier": "barrier", "k-mma": "mma", "k-compute": "arithmetic", "k-other": "other",
}  # fmt: skip


def kind_of(event: Event) -> str:
    """Return the colour of an event."""
    return KINDS.get(event.kind, "k-other")


def timeline(found: Timeline) -> str:
    """Return a block's timeline: a row a warp, left to right in the simulator's order, asynchronous work below.

    An event is wider the more instructions it stands for, but much less than in proportion, and arithmetic is a thin
    band: what moves data and what waits is not lost between hundreds of index computations.
    """
    events = found.events
    edges = _edges(events)
    right, height = edges[-1], _WARP_HEIGHT * found.warps
    parts = []
    for event, left, end in zip(events, edges, edges[1:], strict=False):
        title = f"{event.kind} x {event.count}" + ("" if event.line is None else f", line {event.line}")
        kind = kind_of(event)
        for first, count in _runs(event.warps):
            y, width = _MARGIN_ABOVE + _WARP_HEIGHT * first, max(end - left - 0.5, 0.5)
            if kind == "k-compute":
                for warp in range(count):
                    parts.append(box(left, y + _WARP_HEIGHT * (warp + 0.5) - 1.5, width, 3, kind, title))
            else:
                parts.append(box(left, y + 1, width, _WARP_HEIGHT * count - 2, kind, title))
    for warp in range(1, found.warps):
        y = _MARGIN_ABOVE + _WARP_HEIGHT * warp
        parts.append(line(0, y, right, y, "between"))
    below = _MARGIN_ABOVE + height + 18
    groups = _landings([event for event in events if event.is_async])
    rows = 0
    if groups:
        parts.append(text(0, below - 4, "under way, from issue to the wait", "axis"))
        rows = _under_way(parts, groups, found, edges, below)
    label = f"Timeline of block {found.block}: {len(events)} events of {found.warps} warps"
    return svg(max(right + 8, 240), below + _ASYNC_HEIGHT * rows - 6 * (not rows), label, parts, "timeline")


def timeline_names(found: Timeline) -> str:
    """Return the names of a timeline's rows, which stand beside it."""
    rows = [(_MARGIN_ABOVE + _WARP_HEIGHT * (warp + 0.8), f"warp {warp}") for warp in range(found.warps)]
    return names(rows, _NAMES_WIDTH, _MARGIN_ABOVE + _WARP_HEIGHT * found.warps)


def timeline_overview(found: Timeline) -> str:
    """Return a timeline in one glance."""
    edges = _edges(found.events)
    spans = [(a, b, kind_of(event), event.warps) for event, a, b in zip(found.events, edges, edges[1:], strict=False)]
    label = f"All {len(found.events)} events of block {found.block} that are shown"
    return overview(spans, found.warps, edges[-1], label)


def _edges(events: list[Event]) -> list[float]:
    """Return where each event begins, and where the last ends."""
    edges = [0.0]
    for event in events:
        least = 4 if kind_of(event) == "k-compute" else 7
        edges.append(edges[-1] + least + 2 * math.log2(event.count))
    return edges


def _landings(events: list[Event]) -> list[list[Event]]:
    """Return asynchronous work in groups: what is of one kind, follows one another, and is waited for together."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and groups[-1][0].landed == event.landed and kind_of(groups[-1][0]) == kind_of(event):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _under_way(parts: list[str], groups: list[list[Event]], found: Timeline, edges: list[float], top: float) -> int:
    """Draw each group from its first issue to where it lands, in the first row that is free; return the rows."""
    steps = [event.step for event in found.events]
    free: list[float] = []
    left_out = 0
    for group in groups:
        first, landed = group[0], group[0].landed
        left = edges[bisect_left(steps, first.step)]
        right = edges[-1] if landed is None else max(edges[bisect_left(steps, landed)], left + 2)
        row = next((k for k, until in enumerate(free) if until <= left), len(free))
        if row >= _MOST_LANES:
            left_out += len(group)
            continue
        free[row : row + 1] = [right]
        count, kind = sum(event.count for event in group), kind_of(first)
        what = ("product" if kind == "k-mma" else "copy") if count == 1 else "products" if kind == "k-mma" else "copies"
        never = "not waited for in what is shown" if found.is_cut else "never waited for"
        end = never if landed is None else f"waited for at step {landed}"
        lines = sorted({event.line for event in group if event.line is not None})
        where = f"line {', '.join(map(str, lines))}, " if lines else ""
        title = f"{count} {what}, {where}issued from step {first.step} on, {end}"
        y = top + _ASYNC_HEIGHT * row
        parts.append(box(left, y, right - left, _ASYNC_HEIGHT - 2, kind, title))
        if right - left > 6.8 * len(f"{count} {what}"):
            parts.append(text(left + 4, y + 8.5, f"{count} {what}", "cell"))
    rows = len(free)
    if left_out:
        parts.append(text(0, top + _ASYNC_HEIGHT * rows + 9, f"{left_out} more are not shown", "axis"))
    return rows + bool(left_out)


def _runs(bits: int) -> list[tuple[int, int]]:
    """Return the runs of set bits: first and number."""
    found: list[tuple[int, int]] = []
    for place in range(bits.bit_length()):
        if bits >> place & 1:
            if found and sum(found[-1]) == place:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((place, 1))
    return found
