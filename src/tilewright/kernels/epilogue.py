"""The epilogue of a tile: scaling, addends, a function of the user's, and the way through shared to global memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from tilewright.atoms import UniversalCopy
from tilewright.dtypes import DType
from tilewright.errors import LanguageError
from tilewright.kernels._places_kernel import Place
from tilewright.kernels.problem import Further, Problem
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.tiled import TiledCopy, make_tiled_copy
from tilewright.trace.host_numbers import NumberUse
from tilewright.trace.scalar import Scalar

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ElementEpilogue:
    """D = function(alpha * scales... * accumulators + beta * C + bias, further elements...), rounded once.

    The operands arrive in this order: as many scales as `scales` says, C, bias, those of the function, where `further`
    results go, and then the `numbers` that the function uses. Where the function drops elements, `places` is the mode
    of D that the columns of the result are. Where it takes the accumulators of pairs (`is_gated`), those of the scales,
    C and bias that are `doubled` are two operands.
    """

    has_c: bool
    has_bias: bool
    function: Callable[..., Any] | None  # Any: device numbers
    numbers: tuple[NumberUse, ...] = field(default=(), kw_only=True)
    scales: int = field(default=0, kw_only=True)
    further: tuple[Further, ...] = field(default=(), kw_only=True)
    places: Literal["M", "N"] | None = field(default=None, kw_only=True)
    is_gated: bool = field(default=False, kw_only=True)
    doubled: tuple[bool, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, problem: Problem) -> ElementEpilogue:
        """Return the epilogue of a problem, whose numbers are not known yet."""
        function: Any = problem.epilogue  # Any: hashable and called, which no type says
        return ElementEpilogue(
            problem.has_c, problem.has_bias, function,
            scales=len(problem.scales), further=problem.further, places=problem.places,
            is_gated=problem.is_gated, doubled=problem.doubled,
        )  # fmt: skip

    @property
    def transposed(self) -> Self:
        """The epilogue of a kernel that computes the transpose of D."""
        places: dict[str | None, Literal["M", "N"]] = {"M": "N", "N": "M"}
        return replace(self, further=tuple(x.transposed for x in self.further), places=places.get(self.places))

    def bind(self, numbers: Sequence[Scalar]) -> Self:
        """Return the plan for a kernel that was given these numbers."""
        function: Any = self.function  # Any: an ElementFunction, which has them compiled in or takes them
        if not numbers:
            return self
        return replace(self, function=function.bind(self.numbers, numbers))

    def apply(
        self, total: Any, alpha: Any, beta: Any, elements: list[Any], place: Place | None = None
    ) -> Any:  # Any: device numbers
        """Return the result for one element of D, from its accumulator and the operands' elements there."""
        return self.apply_all(total, alpha, beta, elements, place)[0]

    def apply_all(
        self, total: Any, alpha: Any, beta: Any, elements: list[Any], place: Place | None = None
    ) -> tuple[Any, ...]:
        """Return the result for one element of D, at a place, and the values of further results.

        Where it is gated, `total` is the tuple of both accumulators.
        """
        count = self.scales + self.has_c + self.has_bias
        if self.is_gated:
            pair = _of_each(elements, self.doubled)
            total = tuple([self._before(x, alpha, beta, own) for x, own in zip(total, pair, strict=True)])
            count += sum(self.doubled)
        else:
            total = self._before(total, alpha, beta, elements[:count])
        rest = elements[count:]
        where = {} if self.places is None else {"place": place, "mode": self.places}
        found = total if self.function is None else self.function(total, *rest, **where)
        values = found if isinstance(found, tuple) else (found,) * (1 + len(self.further))
        if len(values) != 1 + len(self.further):
            raise LanguageError(
                f"the epilogue returns {len(values)} values, and the product has {1 + len(self.further)} results",
                help="one for each: out, and behind it those of also="
                if self.further
                else "also= asks for more results",
            )
        return values

    def _before(self, total: Any, alpha: Any, beta: Any, elements: Sequence[Any]) -> Any:
        """Return what an accumulator is when the function takes it."""
        rest = list(elements[self.scales :])
        total = alpha * total
        for scale in elements[: self.scales]:
            total = total * scale
        if self.has_c:
            total = beta * rest.pop(0).to(total.dtype) + total
        return total + rest.pop(0).to(total.dtype) if self.has_bias else total

    def further_values(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the values of further results, as they are stored or reduced."""
        found = zip(values[1:], self.further, strict=True)
        return [(abs(value) if x.operation in ("amax", "scale") else value).to(x.dtype) for value, x in found]

    @property
    def scale(self) -> int | None:
        """The place among further results of the scales by which D is divided."""
        return next((n for n, x in enumerate(self.further) if x.operation == "scale"), None)

    def where_stored(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the operands that are read, and those to which further results go."""
        read = len(operands) - len(self.further)
        return list(operands[:read]), list(operands[read:])


def _of_each(elements: Sequence[Any], doubled: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """Return the first operands' elements as each of a pair of accumulators has them."""
    first: list[Any] = []
    second: list[Any] = []
    place = 0
    for twice in doubled:
        first.append(elements[place])
        place += twice
        second.append(elements[place])
        place += 1
    return first, second


@dataclass(frozen=True)
class EpiloguePlan(ElementEpilogue):
    """The epilogue of a tile of D that passes through shared memory.

    `smem` holds the block's part of D, in elements of `staged`: results in D's type, or accumulators where operands are
    still to be added. Accumulators of pairs have two such `buffers`.
    """

    staged: DType
    smem: Layout | ComposedLayout
    store: TiledCopy
    guard_rows: bool
    guard_columns: bool
    buffers: int = 1


def plan_epilogue(problem: Problem, tile: tuple[int, int], threads: int) -> EpiloguePlan:
    """Plan the way of a tile of D through shared memory to global memory."""
    rows, columns = tile
    width = _store_width(problem, columns, rows, threads)
    beside = min(columns // width, threads)
    atom = UniversalCopy(width * problem.d.dtype.bits)
    # Padded by 8 elements, rows that a warp writes at once begin in different banks; 16 keep bytes aligned to 16.
    is_staged = bool(problem.operands or problem.further or problem.places)
    staged = problem.accumulator if is_staged else problem.d.dtype
    row = columns + (16 if staged.bits == 8 else 8)
    function: Any = problem.epilogue  # Any: hashable and called, which no type says
    return EpiloguePlan(
        problem.has_c,
        problem.has_bias,
        function,
        staged,
        _without_conflicts(Layout((rows, columns), (row, 1)), width * staged.bytes, staged),
        make_tiled_copy(atom, Layout((threads // beside, beside), (beside, 1)), Layout((1, width))),
        guard_rows=problem.m % rows != 0,
        guard_columns=problem.n % columns != 0,
        buffers=1 + (is_staged and problem.is_gated),
        scales=len(problem.scales),
        further=problem.further,
        places=problem.places,
        is_gated=problem.is_gated,
        doubled=problem.doubled,
    )


def _without_conflicts(smem: Layout, read: int, staged: DType) -> Layout | ComposedLayout:
    """Return a layout that threads side by side read without conflicts, `read` bytes each.

    Those who read 32 bytes, 16 at a time, meet in banks: the swizzle sends every other four to their other 16 first.
    """
    if read != 32:
        return smem
    return ComposedLayout(Swizzle(1, (16 // staged.bytes).bit_length() - 1, 3), 0, smem)


def _store_width(problem: Problem, columns: int, rows: int, threads: int) -> int:
    """Return how many elements of D one store writes, and how many of each operand go with it: 16 bytes at most."""
    d = problem.d
    widest = max(x.bytes for x in (d.dtype, *problem.operands, *(x.dtype for x in problem.further)))
    width = max(min(d.alignment // d.dtype.bytes, 16 // widest), 1) if d.major == "MN" else 1
    while width > 1:
        beside = min(columns // width, threads)
        if threads % beside == 0 and rows % (threads // beside) == 0:
            break
        width //= 2
    return width
