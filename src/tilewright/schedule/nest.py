"""`Nest`: perfectly nested loops over a box, and what is done at each of its points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilewright.arguments import function
from tilewright.errors import ScheduleError
from tilewright.frames import hiding_frames, warn_at
from tilewright.pickling import with_own_containers
from tilewright.schedule.affine import Affine, Dimension, Index, Position, Size
from tilewright.schedule.arrays import Load, Role, Store, record
from tilewright.schedule.calls import Call, Step, with_calls
from tilewright.schedule.delayed import depends, has_order, transformed
from tilewright.schedule.elements import element_text
from tilewright.schedule.loop_nest import Loop, LoopNest, Part, Statement
from tilewright.schedule.naming import assigned_names, calling_frame
from tilewright.schedule.parameters import Delayed
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.targets import Target


class Nest:
    """The loops `for i in range(shape[0]): for j in range(shape[1]): ...` around a logic that is declared once.

    >>> import tilewright as tw
    >>> from tilewright.schedule import Array, Nest, Role
    >>> A = Array(Role.INPUT, tw.float32, (16, 8), name="A")
    >>> B = Array(Role.INPUT, tw.float32, (8, 4), name="B")
    >>> C = Array(Role.INPUT_OUTPUT, tw.float32, (16, 4), name="C")
    >>> nest = Nest(shape=(16, 4, 8))
    >>> i, j, k = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _():
    ...     C[i, j] += A[i, k] * B[k, j]
    >>> print(nest.create_schedule())
    for i in range(16):
        for j in range(4):
            for k in range(8):
                C[i, j] += A[i, k] * B[k, j]

    The shape has an int or a `Dimension` for each loop. Values of a statement are computed in the widest type that
    takes part: that of the array which is written or of one that is read, float32 at least where a float is among them.
    What is compared or converted by `cast` has a type of its own.
    The store converts to the array's type.

    Source: Accera, `Nest`.
    """

    def __init__(self, shape: Sequence[Size]) -> None:
        if not isinstance(shape, (tuple, list)):
            raise ScheduleError(
                f"a nest has the shape {shape!r}", help="give each loop its extent: Nest(shape=(16, 10))"
            )
        self.shape: tuple[Size, ...] = tuple(_extent(extent) for extent in shape)
        self.indices: tuple[Index, ...] = tuple(Index(f"i{n}") for n in range(len(self.shape)))
        self._steps: list[Step] = []

    def __copy__(self) -> Nest:
        found: Nest = with_own_containers(self)
        return found

    def get_shape(self) -> tuple[Size, ...]:
        """Return the extents of the loops."""
        return self.shape

    def get_indices(self) -> tuple[Index, ...] | Index:
        """Return the indices of the loops, outermost first; for a nest of one loop the index itself.

        They get the names of the variables that they are assigned to.
        """
        for index, name in zip(self.indices, assigned_names(calling_frame()), strict=False):
            index.name = name
        return self.indices if len(self.indices) > 1 else self.indices[0]

    @hiding_frames
    def iteration_logic(self, logic: Callable[[], Any]) -> Callable[[], Any]:  # Any: what the user's function returns
        """Declare what happens at each point: `@nest.iteration_logic` on a function without parameters.

        The function runs once, on indices that represent all points. Statements of several functions follow one
        another. Raises `ScheduleError` where the function stores nothing, writes a CONST array, or indexes by other
        than affine expressions of this nest's indices. Writing an INPUT array gives a warning.
        """
        function("Nest.iteration_logic", "logic", logic)
        stores = record(logic, dict(zip(self.indices, self.shape, strict=True)))
        if not stores:
            raise ScheduleError("the logic of the nest stores nothing", help="write C[i, j] = ... or C[i, j] += ...")
        for store in stores:
            if isinstance(store, Call):
                self._steps.append(store)
                continue
            statement = Statement(len(self.statements), store)
            _refuse_read_only(store)
            if not depends(statement):
                self._settle(store)
                _refuse_foreign(statement, self.indices)
            self._steps.append(statement)
        return logic

    def _settle(self, store: Store) -> None:
        """Give arrays whose last extent was left open (inf) the one that the accesses need."""
        for element in (*store.value.loads(), store):
            memory = element.named.memory
            if element.named is memory and memory.is_open:
                memory.settle(_end(element.indices[-1], dict(zip(self.indices, self.shape, strict=True))))

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(step for step in self._steps if isinstance(step, Statement))

    def loop_nest(self) -> LoopNest:
        """Return the loops as they were declared. Raises `ScheduleError` if no logic was declared."""
        if not self._steps:
            raise ScheduleError("the nest has no logic", help="declare it: @nest.iteration_logic")
        return has_order(transformed(_loop_nest, self.indices, self.shape, tuple(self._steps)), self.indices)

    @hiding_frames
    def create_schedule(self) -> Schedule:
        """Return a schedule of the nest, whose loops can then be transformed."""
        return Schedule(self)

    def __str__(self) -> str:
        return self.loop_nest().text() if self._steps else f"{self!r}, without logic"

    def __repr__(self) -> str:
        return f"Nest({', '.join(map(str, self.shape))})"

    @hiding_frames
    def create_plan(self, target: Target | None = None) -> Plan:
        """Return a plan of the nest without transforms, for a target."""
        return self.create_schedule().create_plan(target)


def _refuse_foreign(statement: Statement, indices: tuple[Index, ...]) -> None:
    known = set(indices)
    for user, place in _places(statement):
        foreign = [s for s in place.symbols() if isinstance(s, Index) and s not in known]
        if foreign:
            raise ScheduleError(
                f"{user} uses {foreign[0]}, which is not an index of this nest",
                location=statement.location,
                help="use the indices that nest.get_indices() returns",
            )


def _refuse_read_only(store: Store) -> None:
    """Raise `ScheduleError` for a write of what cannot be written, and warn of that of an array declared as INPUT."""
    array, what = store.named, f"array {store.named.name} is {store.named.role.name} and is written"
    if array.role is Role.CONST or (array.role is Role.INPUT and not array.rank):
        raise ScheduleError(what, location=store.location, help="declare it with Role.INPUT_OUTPUT or Role.OUTPUT")
    if array.role is Role.INPUT:
        text = f"{what}: the caller's array changes (help: declare it with Role.INPUT_OUTPUT)"
        warn_at(text, store.location)


def _places(statement: Statement) -> Iterator[tuple[object, Affine]]:
    """Yield the affine expressions of a statement, each with what uses it: an access, or the statement."""
    tests = [guard.test for guard in statement.store.guards]
    elements: tuple[Load | Store, ...] = (*statement.elements, statement.store)
    for element in elements:
        user = f"{'write' if element is statement.store else 'read'} of {element_text(element.named, element.indices)}"
        # A view's place has the indices of its offsets too; one that waits for a parameter has no place yet.
        places = element.indices if depends(element.named) else (*element.indices, *element.place)
        yield from ((user, place) for place in places)
    left = [statement.store.value, *tests]
    while left:
        x = left.pop()
        if isinstance(x, Position):
            yield statement, x.place
        left += x.operands


def _loop_nest(indices: tuple[Index, ...], shape: tuple[Size, ...], steps: tuple[Step, ...]) -> LoopNest:
    shape = tuple(map(_extent, shape))
    statements = tuple(step for step in steps if isinstance(step, Statement))
    for statement in statements:
        _refuse_foreign(statement, indices)
    loops = tuple(Loop(index, _stop(extent)) for index, extent in zip(indices, shape, strict=True))
    if len(statements) < len(steps):
        return with_calls(indices, shape, loops, steps)
    places = {index: index.as_affine() for index in indices}
    return LoopNest(loops, (Part(indices, statements, places, shape),))


def _end(place: Affine, extents: Mapping[Any, Size]) -> int | None:  # Any: symbols
    """Return one more than the greatest value of an expression of a nest's indices, None where it is not known."""
    total = place.constant
    for symbol, factor in place.terms:
        extent = extents.get(symbol)
        if not isinstance(extent, int):
            return None
        total += max(factor, 0) * (extent - 1)
    return total + 1


def _extent(extent: object) -> Size:
    if isinstance(extent, Dimension):
        return extent
    if isinstance(extent, Delayed):
        return extent  # type: ignore[return-value]  # the extent that it stands for, once it has a value
    if hasattr(extent, "__index__") and extent.__index__() >= 1:
        return int(extent.__index__())
    raise ScheduleError(f"a loop has the extent {extent!r}", help="extents are whole numbers from 1, or Dimensions")


def _stop(extent: Size) -> Affine:
    return extent.as_affine() if isinstance(extent, Dimension) else Affine((), extent)
