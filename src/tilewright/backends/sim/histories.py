"""What launches of several ranks before the one that runs did, as far as ranks do not know of it.

A rank's launches run one after another, and nothing orders them with those of another rank but what kernels wait for:
flags in memory, acquired at system scope. At the end of a launch this keeps, for each rank, which accesses of other
ranks it does not know to be over, and for each flag, which accesses its value does not tell of. A thread of a later
launch knows of them once it has heard from the rank that made them, or from a rank or a flag that knew. To the clocks
of a launch a flag of an earlier one is a block behind all others, from which whoever acquires the flag hears.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.clocks import Cell, Clock
from tilewright.backends.sim.findings import Fault, name_place
from tilewright.backends.sim.machine import Access, AccessKind, Arrival, BulkAccess, Machine, Observer
from tilewright.backends.sim.order import AGENT
from tilewright.backends.sim.predecessors import owner_of
from tilewright.backends.sim.race_reports import READS
from tilewright.backends.sim.races import RaceChecker
from tilewright.backends.sim.shadow import WHO, Region, event_of
from tilewright.backends.sim.storage import Storage
from tilewright.backends.sim.values import Array, at_least_2d
from tilewright.ir.core import Op

_HELP = (
    "let the other rank tell this one when it is done, by a flag of which the kernel waits before this line "
    '(tw.store with sem="release", tw.load with sem="acquire", both with scope="sys"), or let all ranks meet between '
    "the launches: rank.barrier()"
)
# Of an earlier access and a later one: whether they race. Strong accesses race with ordinary ones only.
_RACES = {
    "write": ("read", "write", "strong read", "strong write"),
    "strong write": ("read", "write"),
    "read": ("write", "strong write"),
    "strong read": ("write",),
}
_WORDS = {"write": "wrote", "strong write": "wrote", "read": "read", "strong read": "read"}


@dataclass(frozen=True, eq=False)
class Unknown:
    """Accesses of one op by rank `source`, of which `holder`, a rank or a flag, does not know that they are over.

    `addresses` are those of cells of `width` bytes, in ascending order.
    """

    holder: int
    source: int
    kind: str
    op: Op
    kernel: str
    addresses: Array
    width: int


@dataclass
class Histories:
    """What the ranks of a group do not know of each other's launches so far."""

    size: int  # how many ranks there are
    unknown: list[Unknown] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)  # the addresses of those that tell of earlier launches
    # By its address: whose memory launches reached, and where it ends.
    owners: dict[int, tuple[weakref.ref[Array], int]] = field(default_factory=dict)

    def begin(self, arrays: Iterable[Array]) -> None:
        """Forget what was done to arrays that Python has freed, before a launch reaches these: they may lie there."""
        for low, (owner, high) in list(self.owners.items()):
            if owner() is None:
                del self.owners[low]
                self._forget(low, high)
        for array in arrays:
            owner = owner_of(array)
            memory = owner() if isinstance(owner, weakref.ref) else None
            if isinstance(memory, np.ndarray):
                low = memory.__array_interface__["data"][0]
                self.owners[low] = owner, low + memory.nbytes

    def _forget(self, low: int, high: int) -> None:
        self.flags = [_NOWHERE if low <= flag < high else flag for flag in self.flags]
        for n, each in enumerate(self.unknown):
            if each.addresses[0] < high and low <= each.addresses[-1]:
                left = each.addresses[(each.addresses < low) | (each.addresses >= high)]
                self.unknown[n] = replace(each, addresses=left)
        self.unknown = [each for each in self.unknown if each.addresses.size]

    def meet(self) -> None:
        """Let every rank know of all launches: all have waited for all."""
        self.unknown.clear()
        self.flags.clear()


_FLAG = 1 << 20  # the holder that the first flag is; ranks are fewer
_NOWHERE = -1  # the address of a flag that tells of nothing any more


class HistoryChecker(Observer):
    """Compares a launch with those before it, and says what the ranks do not know of when it is over."""

    def __init__(self, machine: Machine, races: RaceChecker, histories: Histories, kernel: str) -> None:
        assert machine.ranks is not None
        self._machine, self._races, self._histories, self._kernel = machine, races, histories, kernel
        self._numbers = machine.ranks.numbers
        self._clusters = machine.blocks_of_rank // machine.cluster_size  # of each rank
        # By holder, source and kind: which of the accesses that are unknown reached a byte, counted from 1. They are
        # drawn, each over those before it, when somebody asks, which of most flags nobody does.
        self._maps: dict[tuple[int, int, str], Array] = {}
        self._undrawn: dict[tuple[int, int, str], list[tuple[int, Unknown]]] = {}
        for number, each in enumerate(histories.unknown, 1):
            self._undrawn.setdefault((each.holder, each.source, each.kind), []).append((number, each))
        self.left: list[Unknown] = []
        self._flags: list[int] = []  # of this launch and those before it

    def begin(self, machine: Machine) -> None:
        """Let flags hand on what they told of in earlier launches."""
        clocks, space = self._races.clocks, machine.addresses
        region = next((r for r in self._races.regions.values() if r.is_global), None)
        if clocks is None or region is None or not self._histories.flags:
            return
        addresses = np.array(self._histories.flags)
        for number in np.flatnonzero(space.covered(addresses, 1)).tolist():
            place = int(space.places(addresses[number : number + 1])[0])
            region.sync[place] = Cell({clocks.everybody: clocks.beyond(self._races.together.blocks + number)})

    def _informants(self, clock: Clock | None) -> set[int]:
        """Return the ranks and flags from which has heard who knows as much as a clock."""
        clocks = self._races.clocks
        if clocks is None or clock is None:
            return set()
        blocks, running = clocks.heard_of(clock), self._races.together.blocks
        ranks = np.array(self._numbers)[np.minimum(blocks // self._clusters, len(self._numbers) - 1)]
        return set(np.where(blocks < running, ranks, blocks - running + _FLAG).tolist())

    def _drawn(self, key: tuple[int, int, str]) -> Array | None:
        """Return the map of a holder, source and kind, None where no such access is unknown."""
        space = self._machine.addresses
        for number, unknown in self._undrawn.get(key, ()):
            bytes = (unknown.addresses[:, None] + np.arange(unknown.width)).reshape(-1)
            bytes = bytes[space.covered(bytes, 1)]
            if bytes.size:
                if key not in self._maps:
                    self._maps[key] = np.zeros(space.size, np.int32)
                self._maps[key][space.places(bytes)] = number
        self._undrawn[key] = []
        return self._maps.get(key)

    # --- comparing -------------------------------------------------------------------------------------------

    def access(self, access: Access) -> Array | None:
        storage = access.storage
        if not self._undrawn or not isinstance(storage, PointedStorage) or access.kind is AccessKind.COPY_LAND:
            return None
        shape = self._machine.blocks, self._machine.threads
        rows, threads = np.nonzero(np.broadcast_to(np.True_ if access.mask is None else access.mask, shape))
        places = np.broadcast_to(at_least_2d(storage.places(access.index)), shape)[rows, threads]
        lanes = np.arange(access.lanes) * storage.flat.itemsize
        strong = access.kind is AccessKind.ATOMIC or access.op.effects.scope is not None
        kind = ("strong " if strong else "") + ("read" if access.kind in READS else "write")
        self._compare(access.op, kind, storage, rows, threads, places[:, None] + lanes)
        return None

    def start_bulk(self, access: BulkAccess) -> bool:
        storage = access.storage
        if self._undrawn and isinstance(storage, PointedStorage):
            there = np.ones(access.index.shape, np.bool_) if access.there is None else access.there
            places = np.where(there, access.index * storage.flat.itemsize, -1)
            kind = "read" if access.kind in READS else "write"
            self._compare(access.op, kind, storage, access.rows, access.threads, places)
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        """Do nothing: a bulk access counts where it starts."""

    def _compare(self, op: Op, kind: str, storage: Storage, rows: Array, threads: Array, places: Array) -> None:
        """Report accesses of threads to places (threads, elements), -1 for none, that meet what their ranks ignore."""
        holders = np.array(self._numbers)[rows // self._machine.blocks_of_rank]
        here = set(holders.tolist())
        for holder, source, early in list(self._undrawn):
            if holder not in here or kind not in _RACES[early]:
                continue
            drawn = self._drawn((holder, source, early))
            if drawn is None:
                continue
            mine = np.flatnonzero(holders == holder)
            found = np.where(places[mine] >= 0, drawn.take(places[mine], mode="clip"), 0)
            for number in np.unique(found[found > 0]).tolist():
                at, element = np.nonzero(found == number)
                bad = [
                    n for n, e in zip(mine[at].tolist(), element.tolist(), strict=True)
                    if not self._knows(int(rows[n]), int(threads[n]), source, early, int(places[n, e]))
                ]  # fmt: skip
                if bad:
                    first = bad[0]
                    place = int(places[first][np.isin(places[first], places[mine][found == number])][0])
                    who = int(rows[first]), int(threads[first])
                    self._report(op, kind, storage, who, place, self._histories.unknown[number - 1], len(set(bad)))

    def _knows(self, row: int, thread: int, source: int, kind: str, place: int) -> bool:
        """Say whether a thread has heard from a rank that knows of the accesses of another at a place."""
        clocks = self._races.clocks
        if clocks is None:
            return False
        row, thread = (int(n) for n in self._races.together.place(np.array(row), np.array(thread)))
        informants = self._informants(clocks.known_to(row, thread))
        return any(self._told_by(informant, source, kind, place) for informant in informants)

    def _told_by(self, informant: int, source: int, kind: str, place: int) -> bool:
        if informant == source:
            return True
        drawn = self._drawn((informant, source, kind))
        return drawn is None or not drawn[place]

    def _report(
        self, op: Op, kind: str, storage: Storage, who: tuple[int, int], place: int, unknown: Unknown, count: int
    ) -> None:
        machine = self._machine
        name, _ = name_place(storage, place)
        done = _WORDS[unknown.kind]
        notes = [f"the line of {unknown.kernel} that {done} it:"]
        if unknown.op.location is not None:
            notes += [f"  {line}" for line in unknown.op.location.excerpt()]
        what = "load of" if kind.endswith("read") else "store to"
        fault = Fault(
            op, "race",
            f"race: {what} {name.rstrip(',')}, which rank {unknown.source} {done} in an earlier launch of "
            f"{unknown.kernel!r}, and nothing orders the two",
            machine.block_coordinate(who[0]), machine.thread_coordinate(who[1]), storage.buffer.name, place, None,
            notes, _HELP, count, other=unknown.op,
        )  # fmt: skip
        machine.collector.report(fault)

    # --- keeping ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Find out what each rank does not know of, now that the blocks are over."""
        clocks, size, histories = self._races.clocks, self._clusters, self._histories
        known: dict[int, Clock | None] = dict.fromkeys(
            range(histories.size)
        )  # ranks that launch something else: nothing
        for n, number in enumerate(self._numbers):
            known[number] = None if clocks is None else clocks.known_to_blocks(range(n * size, n * size + size))
        self.left, self._flags = [], list(histories.flags)
        regions = [r for r in dict.fromkeys(self._races.regions.values()) if r.is_global]
        told = self._told(regions)
        for region in regions:
            self._forget_overwritten(region, told)
        for address, clock in told.items():
            if address not in self._flags:
                self._flags.append(address)
            known[_FLAG + self._flags.index(address)] = clock
        for number in range(len(self._flags)):
            known.setdefault(_FLAG + number, None)
        ignored: dict[int, dict[tuple[int, str], list[Unknown]]] = {}
        for each in histories.unknown:
            ignored.setdefault(each.holder, {}).setdefault((each.source, each.kind), []).append(each)
        for holder in known:
            informants = self._informants(known[holder]) or {holder}
            first = holder if holder < _FLAG else min(informants)
            others = [(informant, ignored.get(informant, {})) for informant in informants - {first}]
            for about, accesses in ignored.get(first, {}).items():
                self._inherit(accesses, holder, [(n, of.get(about, [])) for n, of in others])
        for region in regions:
            for kind, cells, words, is_barrier in _accesses_of(region):
                self._keep(region, kind, cells, words, is_barrier, known)

    def _told(self, regions: list[Region]) -> dict[int, Clock]:
        """Return what flags of this launch hand on to all threads, by address."""
        clocks, space, found = self._races.clocks, self._machine.addresses, {}
        for region in regions if clocks is not None else ():
            for place, cell in region.sync.items():
                assert clocks is not None
                if clocks.everybody in cell.groups:
                    address = int(space.addresses_of_places(np.array([place]))[0])
                    found[address] = cell.groups[clocks.everybody]
        return found

    def _forget_overwritten(self, region: Region, told: dict[int, Clock]) -> None:
        """Let flags of earlier launches tell of nothing that this one has written without handing anything on."""
        if region.cells.atomics is None:
            return
        written = region.addresses(region.cells.atomics.kept()[0])
        for number, address in enumerate(self._flags):
            if address not in told and ((written <= address) & (address < written + region.cell_bytes)).any():
                self._flags[number] = _NOWHERE

    def _inherit(self, accesses: list[Unknown], holder: int, informants: list[tuple[int, list[Unknown]]]) -> None:
        """Keep what a holder still does not know of earlier accesses, of one source and kind, that others know of.

        Each of the informants comes with the accesses of this source and kind that it does not know of itself.
        """
        if any(informant == accesses[0].source or not ignored for informant, ignored in informants):
            return
        rest = [np.concatenate([each.addresses for each in ignored]) for _, ignored in informants]
        for each in accesses:
            left = each.addresses
            for addresses in rest:
                left = left[np.isin(left, addresses)]
            if left.size:
                same = left is each.addresses and holder == each.holder
                self.left.append(each if same else replace(each, holder=holder, addresses=left))

    def _keep(
        self, region: Region, kind: str, cells: Array, words: Array, is_barrier: bool, known: dict[int, Clock | None]
    ) -> None:
        races, clocks = self._races, self._races.clocks
        words, which = np.unique(words, return_inverse=True)  # an event of a thread has many cells
        events, who = event_of(words), words & WHO
        rows, others = np.divmod(who, races.bulk.count if is_barrier else races.together.threads)
        if is_barrier:
            others = AGENT + races.together.threads + others
        places = rows // self._clusters
        ranks = np.array(self._numbers)[places]
        keys, key_of = np.unique(events * len(self._numbers) + places, return_inverse=True)
        # What an op did in all of its iterations is one: they are thousands of events.
        groups: dict[tuple[Op, int], int] = {}
        group_of_key = [
            groups.setdefault((races.op_of(event), self._numbers[place]), len(groups))
            for event, place in (divmod(key, len(self._numbers)) for key in keys.tolist())
        ]
        group_of, addresses = np.array(group_of_key)[key_of.reshape(-1)][which], region.addresses(cells)
        order = np.lexsort((addresses, group_of))  # once for all holders, who then only choose among them
        which, group_of, addresses = which[order], group_of[order], addresses[order]
        starts = np.r_[True, group_of[1:] != group_of[:-1]]
        is_first = starts | np.r_[True, addresses[1:] != addresses[:-1]]
        firsts = np.flatnonzero(is_first)
        group_of, addresses = group_of[firsts], addresses[firsts]
        found: dict[bytes, list[tuple[tuple[Op, int], Array]]] = {}  # by the events that a holder does not know of
        for number, clock in known.items():
            bad = ranks != number
            if clocks is not None and bad.any():
                bad &= ~clocks.covered_by(clock, rows, others, events)
            pattern = bad.tobytes()
            if pattern not in found:
                chosen = bad[which]
                if firsts.size < chosen.size:  # several readers of a place: it is unknown where one of them is
                    chosen = np.logical_or.reduceat(chosen, firsts)
                at = np.flatnonzero(chosen)
                of, where = group_of[at], addresses[at]
                cuts = np.searchsorted(of, np.arange(len(groups) + 1))
                pieces = zip(groups, cuts.tolist(), cuts[1:].tolist(), strict=False)
                found[pattern] = [(group, where[begin:end]) for group, begin, end in pieces if begin < end]
            for (op, source), where in found[pattern]:
                self.left.append(Unknown(number, source, kind, op, self._kernel, where, region.cell_bytes))

    def remember(self) -> None:
        """Let launches that follow be compared with what the ranks do not know of."""
        self._histories.unknown, self._histories.flags = _merged(self.left), self._flags


def _accesses_of(region: Region) -> list[tuple[str, Array, Array, bool]]:
    """Return the accesses that a region has kept: kind, cells, words, and whether these name mbarriers."""
    cells = region.cells
    at = np.flatnonzero(cells.writes)
    found = [("write", at, cells.writes[at], False)]
    for kind, marks in (("read", cells.reads), ("strong write", cells.atomics), ("strong read", cells.strong_reads)):
        if marks is not None:
            found.append((kind, *marks.kept(), False))
    if cells.bulk_reads is not None:
        found.append(("read", *cells.bulk_reads.kept(), True))
    return [each for each in found if each[1].size]


def _merged(unknown: list[Unknown]) -> list[Unknown]:
    """Return the accesses with those of one op, by one rank, unknown to one other, as one."""
    groups: dict[tuple[int, int, str, Op, int], list[Unknown]] = {}
    for each in unknown:
        groups.setdefault((each.holder, each.source, each.kind, each.op, each.width), []).append(each)
    return [
        replace(first, addresses=np.unique(np.concatenate([each.addresses for each in (first, *others)])))
        if others
        else first
        for first, *others in groups.values()
    ]
