"""What an op does besides computing its results, declared with its class and listed nowhere else.

A field that names a buffer says how the op uses it (see `fields`): `reads`, `writes`, `updates`, `begins` or `names`,
with the field that holds the index. `Effects` says the rest: which threads come together, what becomes visible to
whom, whether a thread may have to stop, and what is asynchronous until when. Passes, verifier, uniformity, placement
of shared memory, printers, race checker and profile derive what they need from these two.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.ir.core import Buffer, Value


class Use(enum.Enum):
    """What an op does to the contents of a buffer that it names."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"  # reads and writes, indivisibly
    BEGIN = "begin"  # the buffer's life begins, with undefined contents
    NAME = "name"  # neither read nor written

    @property
    def is_read(self) -> bool:
        """True where the op depends on the contents."""
        return self is Use.READ or self is Use.UPDATE

    @property
    def is_write(self) -> bool:
        """True where the op changes the contents; to begin a life is to change."""
        return self is Use.WRITE or self is Use.UPDATE or self is Use.BEGIN


@dataclass(frozen=True, slots=True)
class UseDeclaration:
    """How the ops of a class use the buffer in a field.

    An access of a thread begins at the element in the field `index` and has `elements(op)` of them. Only the first
    `lanes(op)` threads of each warp make one, None: all. `is_rows` says that the banks serve the access as the 16-byte
    rows of matrices. `is_lasting` says that the buffer is in use from there to the end of the kernel.
    """

    field: str
    use: Use
    index: str | None = None
    elements: Callable[[Any], int] | None = None  # Any: the op, of the class that declares it
    lanes: Callable[[Any], int] | None = None  # Any: as above
    is_rows: bool = False
    past_l1: Callable[[Any], bool] | None = None  # Any: as above
    is_lasting: bool = False


@dataclass(slots=True, eq=False)
class BufferUse:
    """One use of a buffer by one op: elements `index` up to `index + elements`, in the first `lanes` of each warp."""

    buffer: Buffer
    use: Use
    index: Value | None
    elements: int
    lanes: int | None
    declaration: UseDeclaration


class Scope(enum.IntEnum):
    """Threads that belong together, from the smallest group to the largest."""

    THREAD = 0
    WARP = 1
    WARPGROUP = 2
    BLOCK = 3
    CLUSTER = 4


class Order(enum.Flag):
    """What an op makes visible between threads.

    RELEASE: what the thread did before is visible to whoever acquires later. ACQUIRE: what others released is visible
    to what the thread does after.
    """

    NONE = 0
    RELEASE = 1
    ACQUIRE = 2
    BOTH = 3


class Waits(enum.Enum):
    """For whom a thread may have to stop at an op."""

    NOBODY = "nobody"
    ALL = "all threads of the block, which come to the same op"
    SOME = "threads that may be anywhere in the kernel"


class Completion(enum.Enum):
    """How it is learnt that asynchronous work is done: by the groups of the thread that issued it, or at a barrier."""

    GROUP = "groups of the thread"
    BARRIER = "bytes or arrivals at an mbarrier"
    WARPGROUP = "groups of the warpgroup"


@dataclass(frozen=True)
class Effects:
    """What an op does besides its results and its accesses to buffers.

    - `together`: the threads that run the op in step, each time. A branch that divides them is an error of the kernel;
      with `refused_apart` it is refused while tracing where that can be known, else it is left to the simulator.
    - `removable`: nothing is missed when it is gone and nobody reads its results or what it writes.
    - `varies`: the result differs between the threads of a warp, whatever the operands are.
    - `order`, `waits`: see there.
    - `asynchronous`: its accesses take place later; how their completion is learnt.
    - `commits`: it closes a group of such work. `completes`: it waits for such work, all but the `pending` newest
      groups, or all, committed or not, where that is None. `follows`: its own access takes place when such work, issued
      by the thread before, is done.
    """

    together: Scope = Scope.THREAD
    removable: bool = True
    refused_apart: bool = False
    varies: bool = False
    order: Order = Order.NONE
    waits: Waits = Waits.NOBODY
    asynchronous: Completion | None = None
    commits: Completion | None = None
    completes: Completion | None = None
    follows: Completion | None = None
    pending: int | None = None


NO_EFFECTS = Effects()
# It acts on the world outside of memory, or shapes the program, and stays where it is.
STAYS = Effects(removable=False)
