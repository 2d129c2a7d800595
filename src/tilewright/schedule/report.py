"""What a scheduled kernel is made of: fragments, loads, stores and multiplications, counted in its IR."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

from tilewright.compile import Lowered
from tilewright.instructions.matrix_copies import LoadMatrix
from tilewright.instructions.mma import WarpProduct
from tilewright.instructions.wgmma import Wgmma, WgmmaOfRegisters
from tilewright.ir.core import Block, Buffer, Op, Value, lanes_of
from tilewright.ir.ops import Constant, For, If, Load, Store
from tilewright.layout.tuples import tuple_size
from tilewright.passes.structured_ops import trip_count
from tilewright.schedule.plan_state import Tensorization
from tilewright.tiled import TiledMMA

PRODUCTS = (WarpProduct, Wgmma, WgmmaOfRegisters)


@dataclass(frozen=True)
class Report:
    """The counts of `plan.report()`.

    Loads, stores and multiplications are those of one iteration of each loop around them. `fragments_*` count the
    fragments that exist, each as large as one tile of the MMA shape; `loads_*` and `stores_c` fragments read and
    stored; `mma` multiplications of the whole MMA shape (of one block of it), `instructions` those of the hardware.
    `k_trips` is how often the loop over K runs, None where only the launch knows or nothing is tensorized; `grid` is
    None where only the launch knows. `registers` and `spills` are the compiler's, None without a compiler.

    Counts are attributes, and items: `report.mma`, `report["mma"]`, `dict(report)`.
    """

    fragments_a: int
    fragments_b: int
    fragments_c: int
    loads_a: int
    loads_b: int
    loads_c: int
    stores_c: int
    mma: int
    instructions: int
    k_trips: int | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int]
    shared_bytes: int
    registers: int | None
    spills: bool | None

    def __getitem__(self, name: str) -> Any:  # Any: as each count
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the counts, in order."""
        return tuple(field.name for field in fields(self))

    def as_json(self) -> dict[str, Any]:  # Any: numbers, and lists of them
        """Return the counts as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:>13}  {value}" for name, value in asdict(self).items())


@dataclass(frozen=True)
class Operands:
    """What tells the operands of a kernel's matrix instructions apart in its IR.

    `roles` says which operand a buffer of registers holds; `k_indices` are the indices of the loops over K.
    """

    tile: Tensorization | None
    roles: Mapping[Buffer, str]
    k_indices: Collection[Value]


def report_of(
    lowered: Lowered,
    operands: Operands,
    grid: tuple[int, int, int] | None,
    block: tuple[int, int, int],
    resources: Any,  # Any: what the compiler reports; None without a compiler
) -> Report:
    """Count what a kernel is made of."""
    counts = _Counts(operands)
    counts.walk(lowered.kernel.body, 1)
    return Report(
        **counts.fragments(),
        mma=counts.multiplications // counts.per_shape,
        instructions=counts.multiplications,
        k_trips=counts.trips,
        grid=grid,
        block=block,
        shared_bytes=lowered.kernel.shared_bytes,
        registers=None if resources is None else resources.registers,
        spills=None if resources is None else resources.spills,
    )


class _Counts:
    """Counts ops of a kernel; unrolled loops and groups of passes count as often as they run, others once."""

    def __init__(self, operands: Operands) -> None:
        self.roles, self.k_indices, tile = operands.roles, operands.k_indices, operands.tile
        self.size = {"A": 1, "B": 1, "C": 1}
        self.per_shape = 1
        if tile is not None:
            mma = tile.recipe.mmas[0]
            m, n, k = tile.shape.m, tile.shape.n, tile.shape.k
            first, second = (n, m) if tile.recipe.transposed else (m, n)
            left, right = ("B", "A") if tile.recipe.transposed else ("A", "B")
            self.size[left] = _values(mma, (first, k), "A")
            self.size[right] = _values(mma, (second, k), "B")
            self.size["C"] = _values(mma, (first, second), "C")
            beside = mma.size // mma.atom.threads  # atoms that the warp runs in one instruction
            self.per_shape = first * second * k // (prod(mma.atom.shape_mnk) * beside)
        self.loaded = {"A": 0, "B": 0, "C": 0}
        self.stored = 0
        self.multiplications = 0
        self.trips: int | None = None if tile is None else 1
        self.seen: dict[Buffer, None] = {}
        self.users: dict[Value, list[Op]] = {}

    def fragments(self) -> dict[str, int]:
        """Return the counts of fragments, by the names of the report."""
        held = {role: sum(b.size or 0 for b in self.seen if self.roles[b] == role) for role in "ABC"}
        counts = {f"fragments_{role.lower()}": held[role] // self.size[role] for role in "ABC"}
        counts |= {f"loads_{role.lower()}": self.loaded[role] // self.size[role] for role in "ABC"}
        return {**counts, "stores_c": self.stored // self.size["C"]}

    def walk(self, block: Block, times: int) -> None:
        """Count a block that runs so many times."""
        for op in block.ops:
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        for op in block.ops:
            if isinstance(op, For):
                trips = trip_count(op)
                is_written_out = op.unroll in (0, 1)  # unrolled, or the groups of a tile's passes
                inner = times * (trips if is_written_out and trips is not None else 1)
                before = self.multiplications
                self.walk(op.body, inner)
                if self.multiplications > before and op.unroll != 0 and op.body.arguments[0] in self.k_indices:
                    self.trips = None if self.trips is None or trips is None else self.trips * trips
                continue
            if isinstance(op, If):
                self.walk_sides(op, times)
            else:
                for nested in op.blocks:
                    self.walk(nested, times)
            self.count(op, times)

    def walk_sides(self, op: If, times: int) -> None:
        """Count the side of a branch that loads or stores more: both do the same to whole tiles and to others."""
        before = dict(self.loaded), self.stored
        sides = []
        for side in op.blocks:
            self.loaded, self.stored = dict(before[0]), before[1]
            self.walk(side, times)
            sides.append((self.loaded, self.stored))
        self.loaded = {role: max(loaded[role] for loaded, _ in sides) for role in before[0]}
        self.stored = max(stored for _, stored in sides)

    def count(self, op: Op, times: int) -> None:
        """Count one op."""
        if isinstance(op, PRODUCTS):
            self.multiplications += times
        elif isinstance(op, Store):
            role = self.roles.get(op.buffer)
            if role is not None:
                self.seen[op.buffer] = None
                if self._comes_from_memory(op.value):
                    self.loaded[role] += times * lanes_of(op.value)
        elif isinstance(op, Load) and op.buffer in self.roles:
            self.seen[op.buffer] = None
            if self.roles[op.buffer] == "C" and self._goes_to_memory(op.result):
                self.stored += times * lanes_of(op.result)

    def _comes_from_memory(self, value: Value) -> bool:
        """Whether a value was loaded, from elsewhere than fragments of C, rather than computed or set."""
        op = value.definition
        if op is None or isinstance(op, (*PRODUCTS, Constant)):
            return False
        if isinstance(op, LoadMatrix):
            return True
        if isinstance(op, Load):
            return op.buffer not in self.roles
        return any(self._comes_from_memory(x) for x in op.operands)

    def _goes_to_memory(self, value: Value) -> bool:
        """Whether a value, perhaps converted, is stored elsewhere than in fragments."""
        for op in self.users.get(value, ()):
            if isinstance(op, Store):
                if op.buffer not in self.roles and op.value is value:
                    return True
            elif not isinstance(op, PRODUCTS) and any(self._goes_to_memory(result) for result in op.results):
                return True
        return False


def _values(mma: TiledMMA, extents: tuple[int, int], operand: Any) -> int:  # Any: "A", "B" or "C"
    """Return how many values each thread holds of a tile."""
    values = tuple_size(mma.partition_shape(extents, operand))
    assert isinstance(values, int), extents
    return values
