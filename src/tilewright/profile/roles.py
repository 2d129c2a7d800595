"""The roles of a block's warps: which phase of which stage each waits for, for how long, as rows of a picture.

Warps of a warpgroup that wait at the same places are one role, and a thread that waits alone is one. Lengths are steps
of the simulator's order, in which one role runs at a time: they tell who depends on whom, and not how long a GPU takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from tilewright.figures import Activity, Timeline, Wait
from tilewright.profile.shapes import box, line, names, overview, svg, text

_WARPS = 4  # of a warpgroup


@dataclass(frozen=True)
class Role:
    """Warps that do the same: their name, the first of them, all of them as bits, and the waits of one of them."""

    name: str
    warps: int
    waits: tuple[Wait, ...]

    @property
    def stalled(self) -> tuple[Wait, ...]:
        """The waits that began before their phase was over."""
        return tuple(wait for wait in self.waits if wait.steps)

    @property
    def steps(self) -> int:
        """The steps for which it waited."""
        return sum(wait.steps for wait in self.waits)

    def by_stage(self) -> list[tuple[str, int, int, int]]:
        """Return for each stage of each barrier its waits, those that stalled, and the steps of these; longest first.

        The name says which: "full[2]", "named barrier 1".
        """
        found: dict[str, list[Wait]] = {}
        for wait in self.waits:
            found.setdefault(place_of(wait), []).append(wait)
        rows = [
            (name, len(waits), sum(wait.steps > 0 for wait in waits), sum(wait.steps for wait in waits))
            for name, waits in found.items()
        ]
        return sorted(rows, key=lambda row: (-row[3], row[0]))


def place_of(wait: Wait) -> str:
    """Return the barrier that a wait is for, with its stage."""
    return f"{wait.barrier} {wait.stage}" if wait.barrier.endswith("barrier") else f"{wait.barrier}[{wait.stage}]"


def roles_of(timeline: Timeline) -> list[Role]:
    """Return the roles of a block in the order of their threads; none where none waits at such barriers."""
    by_unit: dict[tuple[int, int | None], list[Wait]] = {}
    for wait in timeline.waits:
        by_unit.setdefault((wait.warp, wait.thread), []).append(wait)
    found: list[tuple[tuple[int, int], Role]] = []
    alike: dict[object, list[int]] = {}
    for (warp, thread), waits in by_unit.items():
        if thread is not None:
            found.append(((warp, 0), Role(f"thread {thread}", 1 << warp, tuple(waits))))
            continue
        key = warp // _WARPS, *((w.barrier, w.stage, w.phase, w.line, w.begin, w.over, w.end) for w in waits)
        alike.setdefault(key, []).append(warp)
    for warps in alike.values():
        bits = sum(1 << warp for warp in warps)
        found.append(((min(warps), 1), Role(_name(warps), bits, tuple(by_unit[warps[0], None]))))
    return [role for _, role in sorted(found, key=lambda each: each[0])]


def _name(warps: Sequence[int]) -> str:
    ordered = sorted(warps)
    group, first = divmod(ordered[0], _WARPS)
    if len(ordered) == _WARPS and first == 0:
        return f"warpgroup {group}"
    if len(ordered) == 1:
        return f"warp {ordered[0]}"
    is_run = ordered[-1] - ordered[0] == len(ordered) - 1
    return f"warps {ordered[0]} to {ordered[-1]}" if is_run else f"warps {', '.join(map(str, ordered))}"


def sentence(role: Role) -> str:
    """Return what a role waits for, in words."""
    stalled = role.stalled
    if not stalled:
        return f"{len(role.waits)} waits, all for phases that were over"
    words = f"{len(role.waits)} waits, {len(stalled)} before the phase was over, for {role.steps} steps"
    places = [f"{name} {steps}" for name, _, _, steps in role.by_stage() if steps]
    return f"{words}: {', '.join(places[:4])}" + (", ..." if len(places) > 4 else "")


def data(timeline: Timeline) -> dict[str, object]:
    """Return the roles of a block for JSON: each wait with its phase and its steps."""
    return {
        "block": list(timeline.block),
        "steps": timeline.steps,
        "is_cut": timeline.is_waits_cut,
        "roles": [
            {
                "name": role.name,
                "waits": [
                    {
                        "barrier": wait.barrier,
                        "stage": wait.stage,
                        "phase": wait.phase,
                        "line": wait.line,
                        "begin": wait.begin,
                        "over": wait.over,
                        "end": wait.end,
                    }
                    for wait in role.waits
                ],
            }
            for role in roles_of(timeline)
        ],
    }


# --- the picture ---------------------------------------------------------------------------------------------------

_NAMES_WIDTH, _TOP, _ROW, _BAR = 92, 8, 40, 20
_APART = 90  # of labels below
# What the classes of instructions of the row above are, by colour; all others are the last.
_KINDS = {
    "mma": "k-mma", "tma load": "k-async", "tma store": "k-async", "tma reduce": "k-async", "cp.async": "k-async",
    "stmatrix": "k-shared", "ldmatrix": "k-shared", "shared load": "k-shared", "shared store": "k-shared",
    "global load": "k-global", "global store": "k-global", "compute": "k-compute",
}  # fmt: skip
LEGEND = {
    "k-async": "copies", "k-mma": "products", "k-shared": "shared memory", "k-global": "global memory",
    "k-compute": "arithmetic", "k-other": "other", "k-wait": "waits for a phase",
}  # fmt: skip


def picture(timeline: Timeline) -> str:
    """Return the rows of a block's roles: above what each did at its steps, below the phases that it waited for.

    Arithmetic takes little room, and many steps alike less than as many times the room of one: what moves data and what
    waits is not lost between index computations. So the marks below are not at one distance.
    """
    roles, axis = roles_of(timeline), _Axis(timeline.activity)
    parts = list(axis.marks(_TOP + _ROW * len(roles)))
    for number, role in enumerate(roles):
        top = _TOP + _ROW * number
        for first, end, kind, what in _pieces(timeline.activity, role.warps):
            left = axis.at(first)
            is_thin = kind == "k-compute"
            y, height = (top + _BAR / 2 - 2, 4) if is_thin else (top, _BAR)
            parts.append(box(left, y, max(axis.at(end) - left - 0.3, 0.7), height, kind, f"{role.name}: {what}"))
        parts += _waits(role, top + _BAR + 2, axis)
        if number:
            parts.append(line(0, top - 4, axis.width, top - 4, "grid"))
    label = f"What the {len(roles)} roles of block {timeline.block} did and waited for, in {timeline.steps} steps"
    return svg(axis.width + 12, _TOP + _ROW * len(roles) + 24, label, parts, "roles")


def role_names(timeline: Timeline) -> str:
    """Return the names of the rows of the picture, which stand beside it."""
    roles = roles_of(timeline)
    rows = [(_TOP + _ROW * number + 14, role.name) for number, role in enumerate(roles)]
    return names(rows, _NAMES_WIDTH, _TOP + _ROW * len(roles))


def role_overview(timeline: Timeline) -> str:
    """Return the picture in one glance; where a role does nothing else, it shows its waits."""
    roles, axis = roles_of(timeline), _Axis(timeline.activity)
    spans = []
    for number, role in enumerate(roles):
        pieces = [(first, end, kind) for first, end, kind, _ in _pieces(timeline.activity, role.warps)]
        waits = [(wait.begin, wait.over, "k-wait") for wait in role.stalled]
        spans += [(axis.at(first), axis.at(end), kind, 1 << number) for first, end, kind in (*pieces, *waits)]
    return overview(spans, len(roles), axis.width, f"All of what the roles of block {timeline.block} did")


class _Axis:
    """Where steps stand: pieces of activity one after another, longer ones wider, but less than in proportion."""

    def __init__(self, activity: Sequence[Activity]) -> None:
        self._steps, self._places = [0.0], [0.0]
        for each in activity:
            count = each.end - each.begin
            width = 1.5 + log2(count) if each.kind == "compute" else 4 + 2 * log2(count)
            if each.begin > self._steps[-1]:
                self._steps.append(each.begin)
                self._places.append(self._places[-1])
            self._steps.append(each.end)
            self._places.append(self._places[-1] + width)

    @property
    def width(self) -> float:
        """The place of the last step."""
        return self._places[-1]

    def at(self, step: float) -> float:
        """Return where a step begins."""
        return float(np.interp(step, self._steps, self._places))

    def marks(self, bottom: float) -> Iterator[str]:
        """Yield marks at steps, far enough apart for their numbers."""
        last = float("-inf")
        for step, place in zip(self._steps, self._places, strict=True):
            if place - last < _APART:
                continue
            last = place
            yield line(place, _TOP - 4, place, bottom, "grid")
            anchor = "middle" if place else "start"
            yield text(place, bottom + 14, f"{step:.0f}" if step else "step 0", "axis", anchor)


def _pieces(activity: Sequence[Activity], warps: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield what some warps did, as first and last step, colour and title; neighbours that are alike joined."""
    first, end, kind, names = 0, 0, "", [""]
    for each in activity:
        if not each.warps & warps:
            continue
        colour = _KINDS.get(each.kind, "k-other")
        if colour == kind and each.begin == end:
            end = each.end
            names += [] if each.kind in names else [each.kind]
            continue
        if kind:
            yield first, end, kind, f"{', '.join(names)}, steps {first} to {end}"
        first, end, kind, names = each.begin, each.end, colour, [each.kind]
    if kind:
        yield first, end, kind, f"{', '.join(names)}, steps {first} to {end}"


def _waits(role: Role, top: float, axis: _Axis) -> Iterator[str]:
    for wait in role.stalled:
        place, left, right = place_of(wait), axis.at(wait.begin), axis.at(wait.over)
        where = "" if wait.line is None else f", line {wait.line}"
        title = f"{place}, phase {wait.phase}: steps {wait.begin} to {wait.over}{where}"
        yield box(left, top, max(right - left - 0.5, 1), _ROW - _BAR - 8, "k-wait", title)
        label = f"{place}, {wait.phase}"
        if right - left > 6.8 * len(label) + 4:
            yield text(left + 3, top + 10, label, "cell")
