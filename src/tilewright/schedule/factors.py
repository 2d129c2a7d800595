"""The factors of the sum in a tile: which element, or which computed value, is A, and which is B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Load
from tilewright.schedule.loop_nest import Access, Statement
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.recipes import accumulator_for, shapes_for
from tilewright.schedule.values import Apply, Convert, Expression

_CONVERTED = (
    ", which a warp multiplies as they are, without rounding products; a warpgroup (sm_90a) takes an A that is "
    "converted, or computed, in registers"
)
_SUMS = "they compute C[..] += A[..] * B[..], of elements of three arrays"


class NoProductError(ScheduleError):
    """The statement of a tile is not a sum, so that none of its values is one of a matrix product."""


@dataclass(frozen=True)
class Factors:
    """A and B of C += A * B: the accesses, and the types that an instruction multiplies.

    `computed` is the value of A where it is not an element as it is in memory: each thread computes it, from `a` and
    what else it reads, in the registers from which a warpgroup multiplies.
    """

    a: Access
    b: Access
    types: tuple[DType, DType]
    computed: Expression | None = None


def factors_of_sum(statement: Statement, tile: tuple[Index, Index, Index], shape: MMAShape, arch: Arch) -> Factors:
    """Return what moves with M, and what moves with N. Raises `ScheduleError` where no instruction multiplies them."""
    if statement.reduction is None:
        raise NoProductError(
            f"no matrix instruction computes {statement}, which adds nothing up",
            location=statement.location,
            help=_SUMS,
        )
    operator, value = statement.reduction
    product = _product(value, statement.store.array.element_type) if operator == "+" else None
    values = [_widened(x) for x in product.arguments] if product is not None else []
    if len(values) != 2 or not (shape.is_of_warpgroup or all(isinstance(x, Load) for x in values)):
        raise ScheduleError(
            f"no matrix instruction computes {statement}",
            location=statement.location,
            help=_SUMS + (_CONVERTED if any(_converts(x) for x in (value, *value.operands)) else ""),
        )
    sides: dict[str, Expression] = {}
    for value in values:
        side = _side(statement, value, tile, sides)
        sides[side] = value
    a, b = sides["A"], sides["B"]
    if not isinstance(b, Load):
        raise ScheduleError(
            f"{shape.name} reads B from shared memory as it is there, and B is {b}",
            location=statement.location,
            help="a warpgroup takes A from registers, where it can be computed: let the rows of the sums move with "
            "this factor, and the columns with the other; or compute an array of it first",
        )
    of_b, access_b = b.array.element_type, Access(statement, b.array, b.place, False)
    if isinstance(a, Load):
        access_a, of_a = Access(statement, a.array, a.place, False), a.array.element_type
        if shape.is_of_warpgroup and not _are_multiplied(arch, of_a, of_b) and is_exact(of_a, of_b):
            return Factors(access_a, access_b, (of_b, of_b), Convert(a, of_b))
        _refuse_mixed_types(arch, access_a, access_b, shape)
        return Factors(access_a, access_b, (of_a, of_b))
    return Factors(_main(statement, a, tile), access_b, (_rounded_to(statement, a, of_b, shape), of_b), a)


def _converts(value: Expression) -> bool:
    """Whether a value is a conversion that may change it."""
    return isinstance(value, Convert) and not isinstance(_widened(value), Load)


def _product(value: Expression, output: DType) -> Apply | None:
    """Return the product that is added up, without conversions that change nothing of the sum."""
    while isinstance(value, Convert):
        wide = value.dtype.bits >= (32 if value.dtype.is_float else min(output.bits, 32))
        if not wide or value.dtype.is_float != output.is_float:
            return None
        value = value.value
    return value if isinstance(value, Apply) and value.name == "*" else None


def _widened(value: Expression) -> Expression:
    """Return an element without conversions that leave it as it is, which an instruction makes by itself."""
    inner = value
    while isinstance(inner, Convert):
        inner = inner.value
    if not isinstance(inner, Load):
        return value
    at = value
    while isinstance(at, Convert):
        if not is_exact(inner.element_type, at.dtype):
            return value
        at = at.value
    return inner


def is_exact(type: DType, other: DType) -> bool:
    """Return whether every number of a type is one of another.

    >>> is_exact(dtypes.uint8, dtypes.bfloat16), is_exact(dtypes.bfloat16, dtypes.float16)
    (True, False)
    """
    if type is other or other is dtypes.tfloat32:  # instructions round float32 to it by themselves
        return type is other or type is dtypes.float32 or is_exact(type, dtypes.float16)
    if not other.is_float:
        return not type.is_float and other.lowest <= type.lowest and type.highest <= other.highest
    wide: Any = ml_dtypes.finfo(other.numpy)  # type: ignore[no-untyped-call]  # of ml_dtypes
    if not type.is_float:
        # The least number of a signed type is a power of two.
        return type.highest.bit_length() <= wide.nmant + 1 and type.highest <= int(float(wide.max))
    narrow: Any = ml_dtypes.finfo(type.storage.numpy)  # type: ignore[no-untyped-call]
    return bool(
        narrow.nmant <= wide.nmant
        and float(narrow.max) <= float(wide.max)
        and float(narrow.smallest_subnormal) >= float(wide.smallest_subnormal)
    )


def _side(
    statement: Statement, value: Expression, tile: tuple[Index, Index, Index], sides: dict[str, Expression]
) -> str:
    """Return which factor a value is, by what it moves with. Raises `ScheduleError` where it is neither."""
    m, n, k = tile
    loads = list(value.loads())
    moves = {symbol for load in loads for mode in load.place for symbol in mode.symbols()}
    why = None
    if m in moves and n in moves:
        why = f"it moves with both {m} and {n}"
    elif m not in moves and n not in moves:
        why = f"it moves with neither {m} nor {n}"
    elif k not in moves:
        why = f"it does not move with {k}, the loop of K"
    side = "A" if m in moves else "B"
    if why is None and side in sides:
        why = f"{_named(statement, sides[side])} moves with {m if side == 'A' else n} as well"
    if why is not None:
        raise ScheduleError(
            f"no matrix instruction can serve {'the ' if isinstance(value, Load) else ''}{_named(statement, value)}: "
            f"{why}",
            location=statement.location,
            help=f"one factor has to move with {m} and {k}, the other with {n} and {k}",
        )
    return side


def _named(statement: Statement, value: Expression) -> str:
    if isinstance(value, Load):
        return str(Access(statement, value.array, value.place, False))
    return str(value)


def _main(statement: Statement, value: Expression, tile: tuple[Index, Index, Index]) -> Access:
    """Return the element from which A is computed: the first that moves with M and with K."""
    m, _, k = tile
    for load in value.loads():
        if {m, k} <= {symbol for mode in load.place for symbol in mode.symbols()}:
            return Access(statement, load.array, load.place, False)
    raise ScheduleError(
        f"no matrix instruction can serve {value}: no element of it moves with both {m} and {k}",
        location=statement.location,
        help=f"A is computed from an array that moves with {m} and {k}",
    )


def _rounded_to(statement: Statement, value: Expression, of_b: DType, shape: MMAShape) -> DType:
    """Return the type that a computed A has. Raises `ScheduleError` where the statement does not say it."""
    if isinstance(value, Convert):
        return value.dtype.storage
    if of_b is dtypes.float32:  # multiplied as tf32, as elements of memory are
        return of_b
    raise ScheduleError(
        f"A is {value}, which is not rounded before it is multiplied, and {shape.name} multiplies {of_b}",
        location=statement.location,
        help=f"say where it is rounded: cast({value}, tw.{of_b})",
    )


def _are_multiplied(arch: Arch, of_a: DType, of_b: DType) -> bool:
    """Whether some instruction of a target multiplies elements of two types."""
    sums = accumulator_for((of_a, of_b), dtypes.float32 if of_a.is_float else dtypes.int32)
    return of_a is of_b or bool(shapes_for(arch, (of_a, of_b), sums))


def _refuse_mixed_types(arch: Arch, a: Access, b: Access, shape: MMAShape) -> None:
    """Raise `ScheduleError` where A and B differ in type, and no instruction of the target multiplies such two."""
    types = a.array.element_type, b.array.element_type
    if _are_multiplied(arch, *types):
        return
    of_two = (
        "two are multiplied by those of gfx942, float8_e4m3fnuz and float8_e5m2fnuz, and of warpgroups (sm_90a), "
        "float8_e4m3fn and float8_e5m2, or int8 and uint8"
    )
    if shape.is_of_warpgroup and is_exact(types[1], types[0]):
        of_two = (
            "a warpgroup takes A from registers, where each thread converts it, and B from memory: let the rows of the "
            f"sums move with {b.array.name}, and the columns with {a.array.name}"
        )
    elif shape.is_of_warpgroup:
        of_two = (
            f"say how A is rounded, and each thread converts it in registers: cast({Load(a.array, a.place)}, "
            f"tw.{types[1]}); a factor that is converted is A, which moves with the rows of the sums"
        )
    raise ScheduleError(
        f"{a.array.name} is of {types[0]} and {b.array.name} of {types[1]}; a matrix instruction multiplies one type",
        location=a.statement.location,
        help=of_two,
    )
