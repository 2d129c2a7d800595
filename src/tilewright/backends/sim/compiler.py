"""What a handler needs to compile an op to a step: slots, nested blocks, and the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.backends.sim.barriers import Mbarriers, NamedBarriers
from tilewright.backends.sim.bulk import BulkGroups
from tilewright.backends.sim.clusters import ClusterBarriers
from tilewright.backends.sim.copies import CopyQueue
from tilewright.backends.sim.machine import Machine, Observer
from tilewright.backends.sim.values import Frame, Lanes
from tilewright.errors import InternalError
from tilewright.ir.core import Block, Buffer, Kernel, Op, Value
from tilewright.ir.ops import Constant, Yield

Step = Callable[[Frame], None]


@dataclass(frozen=True)
class Steps:
    """A compiled block: its steps, the slots of its arguments, and the slots of what it yields."""

    steps: tuple[Step, ...]
    arguments: tuple[int, ...]
    yields: tuple[int, ...]


# Any: each handler takes its own op class.
Handler: TypeAlias = "Callable[[Any, Compiler], Step]"
Handlers: TypeAlias = "Mapping[type[Op], Handler]"
# What compiles an op of any class to a step.
Meaning: TypeAlias = "Callable[[Op, Compiler], Step]"


class Compiler:
    """Compiles blocks for one machine.

    `initial` is the content of the slots when a chunk starts: constants and scalar arguments.
    """

    def __init__(
        self,
        machine: Machine,
        meaning: Meaning,
        kernel: Kernel,
    ) -> None:
        self.machine = machine
        self.copies: CopyQueue = CopyQueue(machine)
        self.bulk_groups: BulkGroups = BulkGroups(machine)
        self.named_barriers: NamedBarriers = NamedBarriers(machine)
        self.cluster_barriers: ClusterBarriers = ClusterBarriers(machine)
        self._mbarriers: dict[Buffer, Mbarriers] = {}
        self.initial: list[Lanes] = []
        self.meaning = meaning
        self._slots: dict[Value, int] = {}
        self._followers = [o for o in machine.observers if type(o).execute is not Observer.execute]
        self._used = {v for op in kernel.body.walk() for v in op.operands}

    def begin(self) -> None:
        """Forget what an earlier chunk left behind: copies under way, and barriers."""
        self.copies.clear()
        self.bulk_groups.clear()
        self.named_barriers.clear()
        self.cluster_barriers.clear()
        for mbarriers in self._mbarriers.values():
            mbarriers.clear()

    def finish(self) -> None:
        """Let bulk copies end with their blocks, and report those that somebody should have waited for."""
        self.bulk_groups.finish()
        for mbarriers in self._mbarriers.values():
            mbarriers.finish()

    def mbarriers(self, buffer: Buffer) -> Mbarriers:
        """Return the mbarriers in a buffer."""
        found = self._mbarriers.get(buffer)
        if found is None:
            found = self._mbarriers[buffer] = Mbarriers(buffer, self.machine, self.copies)
        return found

    @property
    def barrier_version(self) -> int:
        """A number that changes with each arrival at a barrier."""
        return (
            self.named_barriers.version
            + self.cluster_barriers.version
            + sum(m.version for m in self._mbarriers.values())
        )

    def hidden_slot(self) -> int:
        """Return the number of a new slot that belongs to no value of the IR."""
        self.initial.append(None)
        return len(self.initial) - 1

    def step(self, op: Op) -> Step:
        """Compile one op."""
        return self.announced(op, self.meaning(op, self))

    def announced(self, op: Op, step: Step) -> Step:
        """Return a step that first tells the observers of the op that it is about to run."""
        return self._announce(op, step) if self._followers else step

    def slot(self, value: Value) -> int:
        """Return the number of a value's slot."""
        found = self._slots.get(value)
        if found is None:
            found = self._slots[value] = len(self.initial)
            op = value.definition
            self.initial.append(value.dtype.numpy.type(op.value) if isinstance(op, Constant) else None)
        return found

    def slots(self, values: Sequence[Value]) -> tuple[int, ...]:
        """Return the numbers of several values' slots."""
        return tuple(self.slot(v) for v in values)

    def is_used(self, value: Value) -> bool:
        """Return whether any op reads a value."""
        return value in self._used

    def block(self, block: Block) -> Steps:
        """Compile a block's ops; its yield becomes the slots it names."""
        arguments = self.slots(block.arguments)
        steps: list[Step] = []
        yields: tuple[int, ...] = ()
        for op in block.ops:
            if isinstance(op, Yield):
                yields = self.slots(op.values)
                if self._followers:
                    steps.append(self._announce(op))
                continue
            steps.append(self.step(op))
        return Steps(tuple(steps), arguments, yields)

    def _announce(self, op: Op, then: Step | None = None) -> Step:
        """Return the step that tells the observers of an op which is about to run, and runs it."""
        followers = self._followers

        def run(frame: Frame) -> None:
            for observer in followers:
                observer.execute(op, frame.mask)
            if then is not None:
                then(frame)

        return run

    def missing(self, op: Op, what: str) -> InternalError:
        """Return the error for an op that has no meaning in its types."""
        return InternalError(f"the simulator has no {what}", location=op.location)
