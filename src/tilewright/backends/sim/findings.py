"""What a run found to be wrong with a kernel, the error that carries it, and how an element of memory is called."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.errors import CheckError, TilewrightError
from tilewright.ir.core import Op
from tilewright.layout import ComposedLayout, Layout
from tilewright.layout.tuples import show, tuple_size
from tilewright.notebook import MessageShown
from tilewright.source import Located, SourceLocation

Dim3 = tuple[int, int, int]
_Key: TypeAlias = "tuple[object, ...]"

MOST_A_LINE = 8  # findings of one kind on one line that are kept


@dataclass(frozen=True)
class Finding(Located, MessageShown):
    """One fault at one source line.

    `kind` is one of the words in docs/simulator.md: "race", "out-of-bounds", "missing-wait" and so on.
    `buffer`, `index` and `coordinate` name the first element concerned, `block` and `thread` who was the
    first there, and `count` how many threads were concerned in all. `other` is the line of the other side of a race.
    `seed` is the first of the seeds whose order of agents shows it, None where the order without a seed does.
    `message` is the whole text.
    """

    kind: str
    message: str
    location: SourceLocation | None
    buffer: str | None
    index: int | None
    coordinate: tuple[int, ...] | None
    block: Dim3
    thread: Dim3 | None
    count: int
    other: SourceLocation | None = None
    seed: int | None = None

    @property
    def rank(self) -> int | None:
        """The rank whose launch was the first there, where several ranks launch (`tw.simulate(ranks=)`)."""
        return getattr(self.block, "rank", None)

    def to_dict(self) -> dict[str, object]:
        """Return the finding as what JSON can hold."""
        return {
            "kind": self.kind,
            "file": self.file,
            "line": self.line,
            "message": self.message,
            "buffer": self.buffer,
            "index": self.index,
            "coordinate": None if self.coordinate is None else list(self.coordinate),
            "block": list(self.block),
            "thread": None if self.thread is None else list(self.thread),
            "count": self.count,
            "other": None if self.other is None else {"file": self.other.file, "line": self.other.line},
            "seed": self.seed,
            **({} if self.rank is None else {"rank": self.rank}),
        }

    def to_json(self) -> str:
        """Return the finding as JSON text."""
        return json.dumps(self.to_dict())


@dataclass
class Fault:
    """A finding in the making: what the first offending thread did, and how many did the same so far.

    `other` is the op on the other side of a race, `role` what is said before who did it. `seeds` are those whose order
    of agents shows it, where the order without a seed does not.
    """

    op: Op
    kind: str
    summary: str
    block: Dim3
    thread: Dim3 | None = None
    buffer: str | None = None
    index: int | None = None
    coordinate: tuple[int, ...] | None = None
    notes: Sequence[str] = ()
    help: str | None = None
    count: int = field(default=1)
    other: Op | None = None
    role: str = ""
    is_warning: bool = False  # found, and not raised
    seeds: list[int] = field(default_factory=list)

    def details(self) -> list[str]:
        """Return the lines below the summary."""
        who = f"{self.role}block {self.block}" + ("" if self.thread is None else f", thread {self.thread}")
        others = self.count - 1
        if others:
            who += f", and {others} more"
        return [*self.notes, who, *([_of_seeds(self.seeds)] if self.seeds else [])]

    def finding(self) -> Finding:
        """Return the finished finding."""
        message = TilewrightError(self.summary, details=self.details(), location=self.op.location, help=self.help)
        return Finding(
            self.kind,
            str(message),
            self.op.location,
            self.buffer,
            self.index,
            self.coordinate,
            self.block,
            self.thread,
            self.count,
            None if self.other is None else self.other.location,
            self.seeds[0] if self.seeds else None,
        )


def _of_seeds(seeds: Sequence[int]) -> str:
    again = f"tw.simulate(schedules=1, seed={seeds[0]}) shows it again"
    if len(seeds) == 1:
        return f"only in the order of agents of seed {seeds[0]}; {again}"
    return f"only in other orders of agents, those of seed {seeds[0]} and {len(seeds) - 1} more; {again}"


class Collector:
    """Gathers the faults of a launch.

    Faults of one kind by ops of one class on one line, in one buffer and with the same other line, are one finding
    with a count; of a kind and line the first `MOST_A_LINE` findings are kept.
    """

    def __init__(self, raise_errors: bool) -> None:
        self.raise_errors = raise_errors
        self._faults: dict[_Key, Fault] = {}
        self._kept: Counter[tuple[object, str]] = Counter()

    def report(self, fault: Fault) -> None:
        """Add a fault, or add its count to an earlier one like it."""
        if self.count_again(fault.op, fault.kind, fault.buffer, fault.count, fault.other):
            return
        place = place_of(fault.op), fault.kind
        self._kept[place] += 1
        if self._kept[place] <= MOST_A_LINE:
            self._faults[_key(fault.op, fault.kind, fault.buffer, fault.other)] = fault

    def count_again(self, op: Op, kind: str, buffer: str | None, count: int, other: Op | None = None) -> bool:
        """Add to the count of a known fault; return whether there is one, or nothing more is wanted of the line."""
        known = self._faults.get(_key(op, kind, buffer, other))
        if known is not None:
            known.count += count
        return known is not None or self._kept[place_of(op), kind] >= MOST_A_LINE

    def add_order(self, other: Collector, seed: int) -> None:
        """Take over what was found in the order of agents that a seed gives, unless it is known without a seed."""
        for key, fault in other._faults.items():
            known = self._faults.get(key)
            if known is None:
                fault.seeds.append(seed)
                self._faults[key] = fault
            elif known.seeds:
                known.seeds.append(seed)

    @property
    def has_errors(self) -> bool:
        """Whether something was found that is not only a warning."""
        return any(not fault.is_warning for fault in self._faults.values())

    def error(self, fault: Fault) -> CheckError:
        """Add a fault after which the run cannot go on, and return the error to raise."""
        self._faults.setdefault(_key(fault.op, fault.kind, fault.buffer, fault.other), fault)
        return _error(next(iter(self._faults.values())), self.findings)

    def finish(self) -> None:
        """Raise what was found, if errors are to be raised."""
        errors = [fault for fault in self._faults.values() if not fault.is_warning]
        if self.raise_errors and errors:
            raise _error(errors[0], self.findings)

    @property
    def warnings(self) -> list[Finding]:
        """What was found that is not raised."""
        return [fault.finding() for fault in self._faults.values() if fault.is_warning]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in the order in which they were made."""
        return tuple(fault.finding() for fault in self._faults.values())


def place_of(op: Op) -> object:
    """Return what stands for the line of an op: all ops of one line, called from the same lines."""
    place = op.location
    if place is None:
        return op
    return place.file, place.line, place.inlined_at


def _key(op: Op, kind: str, buffer: str | None, other: Op | None) -> _Key:
    return place_of(op), type(op), kind, buffer, None if other is None else (type(other), place_of(other))


_MOST_COORDINATES = 1 << 17  # of a layout that is searched for an offset


def name_place(storage: Storage, index: int) -> tuple[str, tuple[int, ...] | None]:
    """Return the name of an element for a message, and its coordinate if there is one.

    `index` is the element's, in memory reached by an address its place in the address space. Global arrays are seen as
    the caller's array, tensors in shared memory by the layout that they were made with.
    """
    buffer = storage.buffer
    if isinstance(storage, PointedStorage):
        found = storage.space.name_of(index)
        return buffer.name if found is None else f"{buffer.name}, element {found[1]} of {found[0]},", None
    name = f"{buffer.name or 'shared memory'}[{index}]"
    coordinate = storage.coordinate(index) if isinstance(storage, GlobalStorage) else _in_layout(buffer.layout, index)
    if coordinate is None or len(coordinate) < 2:
        return name, coordinate
    return f"{name}, coordinate {show(coordinate)},", coordinate


def _in_layout(layout: Layout | ComposedLayout | None, index: int) -> tuple[int, ...] | None:
    """Return the coordinate at which a layout has an offset, one number for each mode."""
    if layout is None:
        return None
    modes = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    extents = [size for mode in modes if isinstance(size := tuple_size(mode), int)]
    if math.prod(extents) > _MOST_COORDINATES:
        return None
    for number in range(math.prod(extents)):
        if layout(number) == index:
            found = []
            for extent in extents:
                number, place = divmod(number, extent)
                found.append(place)
            return tuple(found)
    return None


def _error(fault: Fault, findings: tuple[Finding, ...]) -> CheckError:
    error = CheckError(fault.summary, details=fault.details(), location=fault.op.location, help=fault.help)
    error.findings = findings
    return error
