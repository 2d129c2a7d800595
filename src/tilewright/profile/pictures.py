"""The pictures of a report, as SVG text: bank maps, the roofline, timelines. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from tilewright.figures import Event, Pattern, SharedBuffer, Timeline
from tilewright.profile.bounds import Bounds
from tilewright.profile.text import quantity
from tilewright.transactions import BANKS, WORD, phases_of

Array = np.ndarray[Any, np.dtype[Any]]


def svg(width: float, height: float, label: str, parts: Iterable[str], kind: str = "") -> str:
    """Return an SVG element with a label for those who do not see it."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'class="picture {kind}" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}">{inside}</rect>'


# --- bank maps -----------------------------------------------------------------------------------------------------

_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP = 24, 16, 64, 22


def bank_map(buffer: SharedBuffer, pattern: Pattern, elements: Array) -> str:
    """Return the map of one request: a column a bank, a row a wavefront, in each cell the lanes that it serves."""
    addresses = buffer.offset + elements * buffer.element_bytes
    active = pattern.elements >= 0
    parts = [_text(_LEFT + _CELL_WIDTH * (bank + 0.5), 14, str(bank), "axis", "middle") for bank in range(BANKS)]
    parts.append(_text(4, 14, "bank", "axis"))
    row = 0
    for number, lanes in enumerate(phases_of(addresses, active, pattern.width, pattern.kind)):
        stacks = _stacks(addresses, lanes, pattern)
        depth = max(len(stack) for stack in stacks.values())
        for bank, stack in stacks.items():
            for level, (word, users) in enumerate(stack):
                x, y = _LEFT + _CELL_WIDTH * bank, _TOP + _CELL_HEIGHT * (row + level)
                title = f"bank {bank}, byte {word * WORD}, lanes {', '.join(map(str, users))}"
                parts.append(_box(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, "hot" if level else "cool", title))
                label = str(users[0]) if len(users) == 1 else f"{users[0]}+"
                parts.append(_text(x + _CELL_WIDTH / 2, y + 12, label, "cell", "middle"))
        parts.append(_text(4, _TOP + _CELL_HEIGHT * (row + 0.8), f"phase {number}", "axis"))
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

_PLOT_WIDTH, _PLOT_HEIGHT, _MARGIN = 580, 310, 56
_ABOVE, _RIGHT = 22, 28
_UNIT = " arithmetic"  # how the limits of units are called


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
        return _ABOVE + share * (_PLOT_HEIGHT - _MARGIN - _ABOVE)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
        return _line(self.x(x1), self.y(y1), self.x(x2), self.y(y2), kind)

    def grid(self) -> list[str]:
        left, right, floor, top = 10.0**self.low_x, 10.0**self.high_x, 10.0**self.low_y, 10.0**self.high_y
        parts = []
        for value in (10.0**power for power in range(self.low_x, self.high_x + 1)):
            parts.append(self.line(value, top, value, floor, "grid"))
            parts.append(_text(self.x(value), self.y(floor) + 16, f"{value:g}", "axis", "middle"))
        for value in (10.0**power for power in range(self.low_y, self.high_y + 1)):
            parts.append(self.line(left, value, right, value, "grid"))
            parts.append(_text(_MARGIN - 6, self.y(value) + 4, quantity(value, ""), "axis", "end"))
        middle = (_PLOT_WIDTH + _MARGIN) / 2
        parts.append(_text(middle, _PLOT_HEIGHT - 8, "operations for each byte of DRAM", "axis", "middle"))
        return parts


def roofline(bounds: Bounds) -> str:
    """Return the roofline plot: operations a second over operations a byte of DRAM, both in powers of ten."""
    found = {limit.name: limit.rate for limit in bounds.limits if limit.name.endswith(_UNIT)}
    peaks = {name.removesuffix(_UNIT): rate for name, rate in found.items()} or {"float32": bounds.gpu.rates["float32"]}
    intensity = bounds.intensity if math.isfinite(bounds.intensity) and bounds.intensity else 1.0
    axes = _axes(max(peaks.values()), bounds.gpu.bandwidth, intensity)
    parts = [*axes.grid(), *_roofs(axes, peaks, bounds.gpu.bandwidth)]
    label = f"Roofline of {bounds.gpu.title}"
    if bounds.attainable and math.isfinite(bounds.intensity):
        height = max(bounds.attainable, 10.0**axes.low_y)
        parts.append(axes.line(intensity, height, intensity, 10.0**axes.low_y, "drop"))
        parts.append(f'<circle cx="{axes.x(intensity):g}" cy="{axes.y(height):g}" r="6" class="point"/>')
        label += f": {bounds.intensity:.3g} operations a byte, at most {quantity(bounds.attainable, 'flop/s')}"
    return svg(_PLOT_WIDTH, _PLOT_HEIGHT, label, parts, "roofline")


def _axes(top: float, bandwidth: float, intensity: float) -> _Axes:
    place = math.log10(intensity)
    low_x = min(-2, math.floor(place))
    high_x = max(math.ceil(math.log10(top / bandwidth)) + 1, math.ceil(place))
    high_y = math.ceil(math.log10(top))
    return _Axes(low_x, high_x, min(high_y - 4, math.floor(math.log10(bandwidth) + low_x + 1)), high_y)


def _roofs(axes: _Axes, peaks: dict[str, float], bandwidth: float) -> list[str]:
    right, top = 10.0**axes.high_x, max(peaks.values())
    begin = max(10.0**axes.low_x, 10.0**axes.low_y / bandwidth)
    parts = [axes.line(begin, begin * bandwidth, top / bandwidth, top, "roof")]
    slope = f"DRAM {quantity(bandwidth, 'B/s')}"
    parts.append(_text(axes.x(begin) + 30, axes.y(begin * bandwidth) + 2, slope, "note"))
    for unit, peak in peaks.items():
        parts.append(axes.line(peak / bandwidth, peak, right, peak, "roof"))
        parts.append(_text(axes.x(right) - 4, axes.y(peak) - 5, f"{unit} {quantity(peak, 'flop/s')}", "note", "end"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'


# --- timelines -----------------------------------------------------------------------------------------------------

_WARP_HEIGHT, _ASYNC_HEIGHT, _MOST_LANES = 14, 9, 16
KINDS = {
    "global load": "k-global", "global store": "k-global", "global atomic": "k-global",
    "shared load": "k-shared", "shared store": "k-shared", "shared atomic": "k-shared",
    "ldmatrix": "k-shared", "stmatrix": "k-shared",
    "cp.async": "k-async", "commit": "k-async", "wait": "k-wait", "barrier": "k-barrier",
    "mma": "k-mma", "compute": "k-compute",
}  # fmt: skip
LEGEND = {
    "k-global": "global memory", "k-shared": "shared memory", "k-async": "cp.async", "k-wait": "wait",
    "k-barrier": "barrier", "k-mma": "mma", "k-compute": "arithmetic", "k-other": "other",
}  # fmt: skip


def timeline(found: Timeline) -> str:
    """Return a block's timeline: a row a warp, left to right in the simulator's order, asynchronous copies below."""
    events = found.events
    last = (events[-1].step + events[-1].count) if events else 1
    scale = max(min(6.0, 6000 / last), 1200 / max(last, 200))
    parts = [_text(4, _TOP + _WARP_HEIGHT * (warp + 0.8), f"warp {warp}", "axis") for warp in range(found.warps)]
    for number, event in enumerate(events):
        end = events[number + 1].step if number + 1 < len(events) else last
        title = f"{event.kind} x {event.count}" + ("" if event.line is None else f", line {event.line}")
        for first, count in _runs(event.warps):
            parts.append(
                _box(
                    _LEFT + scale * event.step, _TOP + _WARP_HEIGHT * first + 1, max(scale * (end - event.step), 1),
                    _WARP_HEIGHT * count - 2, KINDS.get(event.kind, "k-other"), title,
                )
            )  # fmt: skip
    below = _TOP + _WARP_HEIGHT * found.warps + 14
    copies = [event for event in events if event.is_async]
    rows = 0
    if copies:
        parts.append(_text(4, below - 3, "copies under way", "axis"))
        rows = _under_way(parts, copies, last, below, scale)
    label = f"Timeline of block {found.block}: {len(events)} events of {found.warps} warps"
    return svg(_LEFT + scale * last + 8, below + _ASYNC_HEIGHT * rows + 6, label, parts, "timeline")


def _under_way(parts: list[str], copies: list[Event], last: int, top: float, scale: float) -> int:
    """Draw from issue to landing, each in the first row that is free; return the number of rows."""
    free: list[int] = []
    for event in copies:
        end = last if event.landed is None else event.landed
        row = next((k for k, until in enumerate(free) if until <= event.step), len(free))
        if row >= _MOST_LANES:
            continue
        free[row : row + 1] = [end]
        landed = "never waited for" if event.landed is None else f"waited for at step {event.landed}"
        title = f"line {event.line}, issued at step {event.step}, {landed}"
        y = top + _ASYNC_HEIGHT * row
        parts.append(
            _box(_LEFT + scale * event.step, y, max(scale * (end - event.step), 1), _ASYNC_HEIGHT - 2, "k-async", title)
        )
    return len(free)


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
