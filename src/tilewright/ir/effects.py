"""How an op declares its parts and its effects: with its class, and listed nowhere else.

An op is a dataclass. Each field is declared as an operand, a tuple of operands, a block, an attribute or a buffer with
its use (`reads`, `writes`, `updates`, `begins` or `names`, with the field that holds the index); walking, substitution,
comparing, printing and the effects on memory are derived from these roles and written nowhere else.

`Effects` says what an op does besides computing its results: which threads come together, what becomes visible to whom,
whether a thread may have to stop, and what is asynchronous until when.

Passes, verifier, uniformity, placement of shared memory, printers, race checker and profile derive what they need from
these two.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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
    GRID = 5


# The groups of whole warps that a block has several of: how many warps each has. A group is aligned to its size.
WARPS_OF = {Scope.WARP: 1, Scope.WARPGROUP: 4}


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
    BULK_GROUP = "bulk groups of the thread"
    BARRIER = "bytes or arrivals at an mbarrier"
    WARPGROUP = "groups of the warpgroup"


class Proxy(enum.Enum):
    """The way by which an op reaches memory.

    What was written by one way is seen by the other behind a fence between the two: threads that wrote ordinarily run
    a proxy fence before they let those know who start asynchronous work on the data. The completion of such work is a
    fence itself.
    """

    GENERIC = "generic"  # loads, stores, atomic updates, cp.async
    ASYNC = "async"  # bulk copies, and matrix instructions that read shared memory


@dataclass(frozen=True)
class Effects:
    """What an op does besides its results and its accesses to buffers.

    - `together`: the threads that run the op in step, each time. A branch that divides them is an error of the kernel;
      with `refused_apart` it is refused while tracing where that can be known, else it is left to the simulator.
    - `removable`: nothing is missed when it is gone and its results are not read or what it writes.
    - `varies`: the result differs between the threads of a warp, whatever the operands are.
    - `order`, `waits`: see there.
    - `asynchronous`: its accesses take place later; how their completion is learnt.
    - `proxy`: the way by which it reaches global and shared memory. `fences_proxy`: it is a fence behind which the
      async proxy sees what the thread wrote by the generic one, to the space of that name ("shared" or "global").
    - `scope`: it is a strong access of memory, or a fence, and how far that reaches: one of `MEMORY_SCOPES`. Then
      `order` is that of a single thread, which meets nobody. None for all other ops.
    - `commits`: it closes a group of such work. `completes`: it waits for such work, all but the `pending` newest
      groups, or all, committed or not, where that is None. `follows`: its own access takes place when such work, issued
      by the thread before, is done.
    - `registers`: how many registers the threads have from there on; the kernel is alone on its multiprocessor then.
    - `keeps_reads`: reads of the buffers that it names stay behind it, also reads of what no thread writes; those of
      all global memory where it names none.
    - `awaits_grids`: it waits for the launches before this one.
    - `reaches_blocks`: it takes shared memory of another block of the cluster where it reaches memory asynchronously.
    - `fences_itself`: what it writes is visible to whoever passes a barrier of the cluster at which the thread arrives
      later, also where that arrival orders nothing else.
    """

    together: Scope = Scope.THREAD
    removable: bool = True
    refused_apart: bool = False
    varies: bool = False
    order: Order = Order.NONE
    scope: str | None = None
    waits: Waits = Waits.NOBODY
    asynchronous: Completion | None = None
    proxy: Proxy = Proxy.GENERIC
    fences_proxy: str | None = None
    commits: Completion | None = None
    completes: Completion | None = None
    follows: Completion | None = None
    pending: int | None = None
    registers: int | None = None
    keeps_reads: bool = False
    awaits_grids: bool = False
    reaches_blocks: bool = False
    fences_itself: bool = False


NO_EFFECTS = Effects()
# It acts on the world outside of memory, or shapes the program, and stays where it is.
STAYS = Effects(removable=False)


# The threads that a strong access or a fence orders memory for, from the smallest set to the largest, as PTX has them.
MEMORY_SCOPES = ("cta", "cluster", "gpu", "sys")
# What a strong access orders, by its semantics in PTX.
_ORDERS = {
    "relaxed": Order.NONE,
    "volatile": Order.NONE,
    "acquire": Order.ACQUIRE,
    "release": Order.RELEASE,
    "acq_rel": Order.BOTH,
}


@functools.cache
def strong(sem: str, scope: str) -> Effects:
    """Return the effects of a strong access with PTX semantics; one that orders others is not removable."""
    return Effects(removable=_ORDERS[sem] is Order.NONE, order=_ORDERS[sem], scope=scope)


OPERAND, OPERANDS, BLOCK, ATTRIBUTE = "operand", "operands", "block", "attribute"


def operand() -> Any:  # Any: stands for the field's declared type, as dataclasses.field does
    """Declare a field that holds one value the op reads."""
    return dataclasses.field(metadata={"role": OPERAND})


def operands() -> Any:  # Any: as above
    """Declare a field that holds a tuple of values the op reads."""
    return dataclasses.field(metadata={"role": OPERANDS})


def block() -> Any:  # Any: as above
    """Declare a field that holds a nested block of ops."""
    return dataclasses.field(metadata={"role": BLOCK})


AS_ATTRIBUTE = {"role": ATTRIBUTE}  # the metadata of an attribute that only a keyword gives


def attribute(default: Any = dataclasses.MISSING) -> Any:  # Any: as above
    """Declare a field that holds compile-time data: a name, a number. Buffers are declared by how they are used."""
    return dataclasses.field(default=default, metadata=AS_ATTRIBUTE)


# How many elements an access has, or how many lanes of a warp make one: a function of the op. Any: of its own class.
Count = Callable[[Any], int]


def reads(index: str | None, elements: Count | None = None, lanes: Count | None = None, *, rows: bool = False) -> Any:
    """Declare a buffer that the op reads, at the index in the field of that name; one element where none are given.

    Without an index the op itself knows which elements.
    """
    return _buffer(UseDeclaration("", Use.READ, index, elements, lanes, rows))


def writes(
    index: str | None,
    elements: Count | None = None,
    lanes: Count | None = None,
    *,
    rows: bool = False,
    past_l1: Callable[[Any], bool] | None = None,
    lasting: bool = False,
) -> Any:  # Any: as above
    """Declare a buffer that the op writes, as `reads`; with `lasting` its bytes stay its own until the kernel ends."""
    return _buffer(UseDeclaration("", Use.WRITE, index, elements, lanes, rows, past_l1, lasting))


def updates(index: str | None, elements: Count | None = None) -> Any:  # Any: as above
    """Declare a buffer that the op reads and writes indivisibly, at the index in the field of that name."""
    return _buffer(UseDeclaration("", Use.UPDATE, index, elements))


def begins() -> Any:  # Any: as above
    """Declare a buffer whose life the op begins, with undefined contents."""
    return _buffer(UseDeclaration("", Use.BEGIN))


def names() -> Any:  # Any: as above
    """Declare a buffer that the op names, and neither reads nor writes."""
    return _buffer(UseDeclaration("", Use.NAME))


def _buffer(declaration: UseDeclaration) -> Any:  # Any: as above
    # The name of the field is known when the class is complete.
    return dataclasses.field(metadata={"role": ATTRIBUTE, "use": declaration})


class Roles(NamedTuple):
    """The names of an op class's fields by role, each in the order of declaration, and its uses of buffers.

    `values` returns what an op has in the fields `operand`. `pure` is `Op.is_pure` where it is the same for all ops of
    the class, None where their effects depend on attributes.
    """

    operand: tuple[str, ...]
    operands: tuple[str, ...]
    block: tuple[str, ...]
    attribute: tuple[str, ...]
    uses: tuple[UseDeclaration, ...]
    values: Callable[[Any], tuple[Any, ...]]  # Any: an op, and values, which are above this file
    pure: bool | None


class _Known(dict[type, Roles]):
    def __missing__(self, op_class: type) -> Roles:
        roles = self[op_class] = _roles(op_class)
        return roles


ROLES = (
    _Known()
)  # of each op class: every op is asked dozens of times on its way, and a call would double what it takes


def roles_of(op_class: type) -> Roles:
    """Return the field names of an op class by role."""
    return ROLES[op_class]


def _roles(op_class: type) -> Roles:
    fields = dataclasses.fields(op_class)
    uses = tuple(dataclasses.replace(f.metadata["use"], field=f.name) for f in fields if "use" in f.metadata)
    operand, operands, block, attribute = (
        tuple(f.name for f in fields if f.metadata.get("role") == role)
        for role in (OPERAND, OPERANDS, BLOCK, ATTRIBUTE)
    )
    undeclared = [f.name for f in fields if f.type == "Buffer" and "use" not in f.metadata]
    assert not undeclared, f"{op_class.__name__}: how are the buffers {undeclared} used?"
    indices = {u.index for u in uses if u.index is not None}
    assert indices <= set(operand), f"{op_class.__name__}: no operands of the names {indices}"
    pure: bool | None = not uses and not block and getattr(op_class, "EFFECTS", NO_EFFECTS) == NO_EFFECTS
    if sum("effects" in vars(each) for each in op_class.__mro__) > 1:  # not only those of `Op`
        pure = None
    return Roles(operand, operands, block, attribute, uses, _getter(operand), pure)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what returns the fields of these names as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda op: (getattr(op, names[0]),)) if names else (lambda op: ())
