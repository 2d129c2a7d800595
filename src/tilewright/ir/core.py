"""What the IR is made of: types, values, buffers, blocks, and the base of all ops.

Values are scalars or short vectors, each defined once. Memory is reached only through buffers, by element
index. Control is structured: loops and branches are ops with nested blocks. Identity is identity of objects:
two values are the same when they are the same object.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.dtypes import DType
from tilewright.ir.effects import NO_EFFECTS, ROLES, BufferUse, Effects
from tilewright.ir.facts import Facts
from tilewright.layout import ComposedLayout, Layout
from tilewright.remarks import Remark
from tilewright.source import SourceLocation


@dataclass(frozen=True)
class VectorType:
    """A short vector of one element type, held in registers: 2, 4, 8 or 16 lanes, 16 bytes at most."""

    element: DType
    lanes: int

    @property
    def bytes(self) -> int:
        return self.element.bytes * self.lanes

    def __str__(self) -> str:
        return f"{self.element}x{self.lanes}"


Type = DType | VectorType


class Value:
    """A scalar or vector that one op defines, or that a block or the kernel takes as an argument.

    `name` is the user's variable where there is one, `facts` what is known of an integer, `definition` the
    op that defines the value (None for arguments).
    """

    __slots__ = ("definition", "facts", "name", "type")

    def __init__(self, type: Type, name: str | None = None, facts: Facts | None = None) -> None:
        self.type: Type = type
        self.name: str | None = name
        self.facts: Facts | None = facts
        self.definition: Op | None = None

    @property
    def dtype(self) -> DType:
        """The scalar's type, or a vector's element type."""
        return self.type.element if isinstance(self.type, VectorType) else self.type

    def __repr__(self) -> str:
        return f"<{self.name or 'value'}: {self.type}>"


def lanes_of(value: Value) -> int:
    """Return the number of elements of a scalar (1) or vector."""
    return value.type.lanes if isinstance(value.type, VectorType) else 1


class Space(enum.Enum):
    """Where a buffer lives."""

    GLOBAL = "global"
    SHARED = "shared"
    REGISTER = "register"


@dataclass(eq=False)
class Buffer:
    """A piece of memory of one element type, addressed by element index.

    `size` is in elements and None for a global buffer, whose extent only the launch knows. `alignment` is
    what the base address is a multiple of, in bytes. `offset` is a shared buffer's place in the block's
    shared memory, in bytes, set when memory is placed. `layout` is the layout that the user declared it with; ops
    count elements and do not need it, but advice does.

    A buffer with a `base` has no bytes of its own: it shows those of the base, from the first on, as elements of its
    type. `is_member` says that it shares them with others on purpose, each of which is written before it is read;
    without it, it sees what was written through the base. `is_pointed` says that its address is a value (`Point`), so
    that an access may reach what any global buffer holds. `is_remote` says that it is the memory that its base has in
    another block of the cluster (`AtRank`).
    """

    name: str
    dtype: DType
    space: Space
    size: int | None
    alignment: int
    location: SourceLocation | None = None
    offset: int | None = None
    layout: Layout | ComposedLayout | None = None
    base: Buffer | None = None
    is_member: bool = False
    is_pointed: bool = False
    is_remote: bool = False

    @property
    def root(self) -> Buffer:
        """The buffer whose bytes these are: itself, or what its bases begin with."""
        return self if self.base is None else self.base.root

    @property
    def family(self) -> Buffer:
        """The first of the buffers that see what this one sees: its root, or a member of shared bytes."""
        return self if self.base is None or self.is_member else self.base.family

    @property
    def bytes(self) -> int:
        """The size in bytes, of a buffer whose size is known."""
        assert self.size is not None, self.name
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Block:
    """A list of ops that run in order, with arguments that the enclosing op supplies."""

    ops: list[Op] = field(default_factory=list)
    arguments: tuple[Value, ...] = ()

    def walk(self) -> Iterator[Op]:
        """Yield every op of the block and of the blocks nested in it, outer ops first."""
        pending: list[Block | Iterator[Op]] = [iter(self.ops)]  # one generator, however deep the blocks are nested
        while pending:
            top = pending.pop()
            ops = iter(top.ops) if isinstance(top, Block) else top
            for op in ops:
                yield op
                if ROLES[type(op)].block:
                    pending += (ops, *reversed(op.blocks))
                    break

    def substitute(self, mapping: Mapping[Value, Value]) -> None:
        """Replace operands in place, in the block's ops and in those of the blocks nested in it."""
        if mapping:
            for op in self.walk():
                op.substitute(mapping)


@dataclass(eq=False)
class Op:
    """The base of all ops. Subclasses declare fields by role, how they use buffers, and their other effects.

    `EFFECTS` are those of the class; where they depend on an attribute, the class overrides `effects`. `RESULTS` is
    how many results an op of the class has, None where that differs.
    """

    results: tuple[Value, ...] = field(default=(), kw_only=True)
    location: SourceLocation | None = field(default=None, kw_only=True)

    EFFECTS: ClassVar[Effects] = NO_EFFECTS
    RESULTS: ClassVar[int | None] = None

    @property
    def effects(self) -> Effects:
        """What the op does besides its results and its accesses to buffers."""
        return self.EFFECTS

    @property
    def is_pure(self) -> bool:
        """True where the results depend on the operands alone, and computing them is all that the op does."""
        roles = ROLES[type(self)]
        if roles.pure is not None:
            return roles.pure
        return not roles.uses and not roles.block and self.effects == NO_EFFECTS

    @property
    def is_removable(self) -> bool:
        """True where the op may be removed when its results are not read."""
        return self.effects.removable and not any(u.use.is_write for u in ROLES[type(self)].uses)

    @property
    def uses(self) -> list[BufferUse]:
        """How the op uses buffers, in the order of declaration (nested blocks not included)."""
        declared = ROLES[type(self)].uses
        if not declared:
            return []
        return [
            BufferUse(
                getattr(self, u.field),
                u.use,
                getattr(self, u.index) if u.index is not None else None,
                u.elements(self) if u.elements is not None else 1,
                u.lanes(self) if u.lanes is not None else None,
                u,
            )
            for u in declared
        ]

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers that the op names (nested blocks not included)."""
        return [getattr(self, u.field) for u in ROLES[type(self)].uses]

    @property
    def buffers_read(self) -> list[Buffer]:
        """The buffers whose contents the op depends on."""
        return [getattr(self, u.field) for u in ROLES[type(self)].uses if u.use.is_read]

    @property
    def buffers_written(self) -> list[Buffer]:
        """The buffers whose contents the op changes. To begin a life is to change."""
        return [getattr(self, u.field) for u in ROLES[type(self)].uses if u.use.is_write]

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        """Call `expect(holds, what)` for what must hold of the op's types and attributes; see `verify`."""

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, self
        return self.results[0]

    @property
    def operands(self) -> tuple[Value, ...]:
        """All values the op reads: single operands first, then tuples (nested blocks not included)."""
        roles = ROLES[type(self)]
        found: tuple[Value, ...] = roles.values(self)
        for name in roles.operands:
            found += getattr(self, name)
        return found

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The nested blocks, in the order of declaration."""
        names = ROLES[type(self)].block
        return tuple([getattr(self, name) for name in names]) if names else ()  # almost always ()

    @property
    def attributes(self) -> dict[str, object]:
        """The compile-time data by field name."""
        return {name: getattr(self, name) for name in ROLES[type(self)].attribute}

    def walk(self) -> Iterator[Op]:
        """Yield the op, and every op of the blocks nested in it."""
        yield self
        for block in self.blocks:
            yield from block.walk()

    def substitute(self, mapping: Mapping[Value, Value]) -> None:
        """Replace operands in place by what `mapping` gives for them (nested blocks not included)."""
        if not mapping:
            return
        roles = ROLES[type(self)]
        for name in roles.operand:
            old = getattr(self, name)
            if old in mapping:
                setattr(self, name, mapping[old])
        for name in roles.operands:
            setattr(self, name, tuple([mapping.get(v, v) for v in getattr(self, name)]))

    def __post_init__(self) -> None:
        for value in self.results:
            value.definition = self


@dataclass(frozen=True, eq=False)
class Parameter:
    """One machine argument of a kernel: a pointer, or a scalar that comes from a Python argument.

    `argument` is the Python parameter's name and `part` says what of it is passed: "pointer", "value",
    or ("shape", mode) and ("stride", mode) of an array, modes counted from 0.
    """

    argument: str
    part: str | tuple[str, int]
    target: Value | Buffer

    @property
    def name(self) -> str:
        return self.target.name or self.argument


@dataclass(frozen=True, eq=False)
class Requirement:
    """Something that must hold at launch for the kernel to be right, over scalar parameters only.

    `condition` is a bool value computed by pure ops from parameters; `message` names the argument, with `{value}`
    where the value of `shown` is.
    """

    condition: Value
    message: str
    help: str
    location: SourceLocation | None
    shown: Value | None = None


@dataclass(frozen=True, eq=False)
class GridLimit:
    """How many blocks a launch may have along an axis of the grid (0 to 2), because the kernel takes them for tiles."""

    axis: int
    blocks: int
    what: str
    location: SourceLocation | None


@dataclass(frozen=True, eq=False)
class LaunchSized:
    """A shared buffer whose size the launch knows: what it computes from parameters, as the values of a `Requirement`.

    `place` is where the buffer begins, in bytes from the end of the buffers of static sizes.
    """

    buffer: Buffer
    elements: Value
    place: Value


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A parameter that the host encodes from an array's pointer, extents and strides: how bulk copies reach the array.

    `start` is the element of `buffer` where the described tensor begins, `extents` and `strides` (in elements) are its
    modes from the contiguous one on: what the host computes from parameters, as the values of a `Requirement`. `box` is
    how much one copy moves along each mode; in shared memory it is compact in that order, and swizzled over rows of
    `swizzle` bytes (0: not at all). `nan` says that elements outside read as NaN in place of 0, `is_bits` that the
    hardware shall take integers for unsigned ones. Along each mode it moves every `steps`-th element.

    With `corners` it is a map of pixels (im2col): modes are channels, space and images, the box is some channels of
    some pixels, and these are those at every `steps`-th coordinate of space from the first of `corners` to the second,
    which is counted from the last coordinate. A copy reads what its offsets say beside each pixel.

    With an `element` type it is the pattern of maps that threads make in `buffer`, which holds 128 bytes for each: the
    type, the box and the rest stay, place, extents and strides are replaced.
    """

    name: str
    buffer: Buffer
    start: Value
    extents: tuple[Value, ...]
    strides: tuple[Value, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    nan: bool = False
    is_bits: bool = False
    location: SourceLocation | None = None
    steps: tuple[int, ...] = ()  # none: all are 1
    corners: tuple[tuple[int, int], ...] = ()
    element: DType | None = None

    @property
    def dtype(self) -> DType:
        """The element type that is copied."""
        return self.buffer.dtype if self.element is None else self.element

    @property
    def is_pattern(self) -> bool:
        """Whether threads make maps of it: what it describes is only how boxes look."""
        return self.element is not None

    @property
    def rank(self) -> int:
        """The number of modes."""
        return len(self.extents)

    @property
    def coordinates(self) -> int:
        """How many numbers say where a copy reads: a coordinate for each mode, and the offsets of pixels."""
        return self.rank + len(self.corners)

    def pixels(self, mode: int, extent: int) -> int:
        """Return how many pixels there are along a mode of space of an extent."""
        low, high = self.corners[mode - 1]
        return (extent - 1 + high - low) // self.steps[mode] + 1

    @property
    def values(self) -> tuple[Value, ...]:
        """What the host computes."""
        return (self.start, *self.extents, *self.strides)

    @property
    def elements(self) -> int:
        """The elements of a box."""
        return math.prod(self.box)

    @property
    def bytes(self) -> int:
        """The bytes that one copy brings, those of elements outside included."""
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Kernel:
    """A whole kernel: parameters, body, and what a launch must know.

    `block` is the static number of threads (x, y, z), or None where the kernel was traced without it;
    `min_blocks` how many blocks a multiprocessor shall hold at once, 0 where the compiler decides.
    `shared_bytes` is set when shared memory is placed. `copies_to_shared` says that it was written with
    `tw.copy` from global to shared memory, which is asynchronous where it can be. `remarks` say what the trace
    found that could be faster. `warp_size` is how many threads a warp of the target has. `cooperative` says that all
    blocks of a launch have to be on the GPU at once, `cluster` how many form a cluster along x, y and z;
    `dependent_launch` that a launch may begin before the one before it has ended. `launch_sized`
    is the shared memory behind `shared_bytes`. `tensor_maps` come behind the parameters. `untaken_roles` are barriers
    at which threads would meet others in branches that no thread of the block takes, with the places of these branches.
    """

    name: str
    parameters: tuple[Parameter, ...]
    body: Block
    block: tuple[int, int, int] | None = None
    requirements: tuple[Requirement, ...] = ()
    grid_limits: tuple[GridLimit, ...] = ()
    shared_bytes: int = 0
    location: SourceLocation | None = None
    min_blocks: int = 0
    copies_to_shared: bool = False
    remarks: tuple[Remark, ...] = ()
    warp_size: int = 32
    cooperative: bool = False
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent_launch: bool = False
    launch_sized: tuple[LaunchSized, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    untaken_roles: tuple[tuple[Hashable, SourceLocation | None], ...] = ()

    @property
    def launch_sized_start(self) -> int:
        """Where the shared memory begins whose size the launch knows."""
        alignment = max((sized.buffer.alignment for sized in self.launch_sized), default=1)
        return -(-self.shared_bytes // alignment) * alignment

    def buffers(self) -> list[Buffer]:
        """Return the buffers that the ops of the kernel name, in order of first use."""
        found: dict[Buffer, None] = {p.target: None for p in self.parameters if isinstance(p.target, Buffer)}
        for op in self.body.walk():
            for use in ROLES[type(op)].uses:
                found[getattr(op, use.field)] = None
        return list(found)
