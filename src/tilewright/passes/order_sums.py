"""Order the terms of addresses by the loops they change in, so that what stays the same is added once, outside.

    for (k = 0; k < n; k += 1)                        base = row + warp * 4096
        for (l = 0; l < 4; l += 1)                    for (k = 0; k < n; k += 1)
            a[row + k * 512 + (warp + l) * 4096]  ->      for (l = 0; l < 4; l += 1)
                                                              a[base + k * 512 + l * 4096]

Only sums are taken whose invariant terms are scattered: nested in a product with what changes, or on both sides of it.
The compiler does not fix them, since it may not reorder sums that could overflow; on an H200 the addresses of a
multistage matrix product kept its registers full and its reads of shared memory late, at 3 to 8 % of its time.
Taking terms apart and adding them in another order is exact modulo the type. Constants come last, where they are part
of the instruction that uses the address.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.fold import constant_of
from tilewright.ir.ops import Binary, For, While, constant


@dataclass(frozen=True)
class _Term:
    """factor * value, which changes in the loop that is nested so deep, itself counted."""

    value: Value
    factor: int
    depth: int


@dataclass(frozen=True)
class _Sum:
    """Terms and a constant; scattered where terms that stay the same in a loop are apart, with others between."""

    terms: tuple[_Term, ...]
    constant: int = 0
    is_scattered: bool = False

    def __add__(self, other: _Sum) -> _Sum:
        ours, theirs = ({term.depth for term in each.terms} for each in (self, other))
        apart = bool(ours and theirs) and max(min(ours), min(theirs)) < max(*ours, *theirs)
        return _Sum(
            self.terms + other.terms,
            self.constant + other.constant,
            self.is_scattered or other.is_scattered or apart,
        )

    def __mul__(self, factor: int) -> _Sum:
        terms = tuple(_Term(term.value, term.factor * factor, term.depth) for term in self.terms)
        return _Sum(terms, self.constant * factor, self.is_scattered)


def order_sums(kernel: Kernel) -> None:
    """Add up integers in loops so that terms which do not change there come first."""
    _Ordering(kernel).block(kernel.body, 0)


class _Ordering:
    def __init__(self, kernel: Kernel) -> None:
        self.uses = Counter(value for op in kernel.body.walk() for value in op.operands)
        self.depths: dict[Value, int] = {}

    def block(self, block: Block, depth: int) -> None:
        """Order the sums of a block inside of so many loops, and of those nested in it."""
        self.depths.update(dict.fromkeys(block.arguments, depth))
        inside = set(block.ops)
        parts = {
            value.definition for op in block.ops if _adds(op) for value in op.operands if self._is_part(value, inside)
        }
        builder = Builder(Block())
        replaced: dict[Value, Value] = {}
        consumed: set[Op] = set()
        for op in block.ops:
            op.substitute(replaced)
            self.depths.update(dict.fromkeys(op.results, self._depth_of(op, depth)))
            for inner in op.blocks:
                inner.substitute(replaced)
                self.block(inner, depth + isinstance(op, (For, While)))
            found = self._sum_of(op, inside) if depth and _adds(op) and op not in parts else None
            if found is not None and found.is_scattered:
                builder.locate = lambda op=op: op.location  # type: ignore[misc]  # bound now
                replaced[op.results[0]] = self._rebuilt(found, op.results[0], builder)
                consumed |= self._parts_of(op, inside)
            else:
                builder.block.ops.append(op)
        block.ops = [op for op in builder.block.ops if op not in consumed]

    def _depth_of(self, op: Op, depth: int) -> int:
        """Return in how many loops a result changes; the op itself may be in more."""
        if op.is_pure:
            return max((self.depths.get(value, 0) for value in op.operands), default=0)
        return depth

    def _is_part(self, value: Value, inside: set[Op]) -> bool:
        """Whether a value is nothing but a part of one greater sum, in the same block."""
        op = value.definition
        return op is not None and op in inside and _adds(op) and self.uses[value] == 1 and value.name is None

    def _parts_of(self, op: Op, inside: set[Op]) -> set[Op]:
        found: set[Op] = set()
        for value in op.operands:
            if self._is_part(value, inside):
                assert value.definition is not None, value
                found |= {value.definition} | self._parts_of(value.definition, inside)
        return found

    def _sum_of(self, op: Op, inside: set[Op]) -> _Sum:
        assert isinstance(op, Binary), op
        one, two = (self._side(value, inside) for value in (op.lhs, op.rhs))
        if op.kind == "mul":
            return one * two.constant
        return one + two * (-1 if op.kind == "sub" else 1)

    def _side(self, value: Value, inside: set[Op]) -> _Sum:
        number = constant_of(value)
        if type(number) is int:
            return _Sum((), number)
        if self._is_part(value, inside):
            assert value.definition is not None, value
            return self._sum_of(value.definition, inside)
        return _Sum((_Term(value, 1, self.depths.get(value, 0)),))

    def _rebuilt(self, found: _Sum, old: Value, builder: Builder) -> Value:
        """Return the sum of the terms, the outermost first and the constant last."""
        type = old.type
        assert isinstance(type, DType), old
        total = constant(0, type)
        for term in sorted(found.terms, key=lambda term: term.depth):
            value = builder.pure(Binary("mul", term.value, constant(abs(term.factor), type)), type)
            total = builder.pure(Binary("add" if term.factor > 0 else "sub", total, value), type)
        total = builder.pure(Binary("add", total, constant(found.constant, type)), type)
        total.name = total.name or old.name
        self.depths[total] = self.depths[old]
        return total


def _adds(op: Op) -> bool:
    """Whether an op is taken apart: a sum or difference of integers, or a product with a constant."""
    if not isinstance(op, Binary) or not isinstance(op.result.type, DType) or not op.result.type.is_integer:
        return False
    return op.kind in ("add", "sub") or (op.kind == "mul" and type(constant_of(op.rhs)) is int)
