"""Associative operations of collectives, and the values that they combine: numbers, tuples of them, fragments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import shown
from tilewright.dtypes import DType, bool_, int32
from tilewright.errors import LanguageError
from tilewright.tensors import Tensor
from tilewright.tensors.associative import NAMED, on_type
from tilewright.trace.elementwise import in_registers
from tilewright.trace.engine import BufferEngine
from tilewright.trace.heap import keeping_state
from tilewright.trace.memory import fragment_like
from tilewright.trace.reductions import operation
from tilewright.trace.scalar import Scalar, as_scalar, is_number, is_numpy_number

# --- values ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """What one thread brings to a collective, taken apart: numbers, or fragments of equally many elements.

    `elements[n]` is element n of the thread, as a number of each leaf; `rebuild` makes of leaves what the user gave.
    """

    leaves: tuple[Scalar | Tensor, ...]
    elements: list[list[Scalar]]
    rebuild: Callable[[Sequence[Any]], Any]

    @classmethod
    def of(cls, x: Any, what: str) -> Values:
        """Take a user's value apart. Raises `LanguageError` for anything but numbers, tuples of them, and fragments."""
        leaves: list[Any] = []
        rebuild = _taken_apart(x, what, leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors:
            return cls(tuple(leaves), [leaves], rebuild)
        if len(tensors) < len(leaves) or len({tensor.size for tensor in tensors}) > 1:
            raise LanguageError(
                f"{what}: a tuple holds numbers, or fragments of the same number of elements",
                details=[tensor.title for tensor in tensors],
                help="write the numbers to fragments too, or combine the elements of the fragments first",
            )
        count = tensors[0].size
        assert isinstance(count, int), tensors[0].title
        return cls(tuple(leaves), [[tensor[n] for tensor in tensors] for n in range(count)], rebuild)

    @property
    def is_fragment(self) -> bool:
        return isinstance(self.leaves[0], Tensor)

    def like(self, elements: Sequence[Sequence[Scalar]]) -> Any:
        """Return elements as what the user gave: numbers, or new fragments of the same shapes."""
        if not self.is_fragment:
            return self.rebuild(elements[0])
        made = []
        for place, leaf in enumerate(self.leaves):
            fragment = fragment_like(leaf, elements[0][place].dtype)
            for n, values in enumerate(elements):
                fragment[n] = values[place]
            made.append(fragment)
        return self.rebuild(made)


def _taken_apart(x: Any, what: str, leaves: list[Any]) -> Callable[[Sequence[Any]], Any]:
    """Append the leaves of a value, and return the function that puts others in their place."""
    if isinstance(x, (tuple, list)) and x:
        first = len(leaves)
        parts = []
        for item in x:
            start = len(leaves) - first
            rebuild = _taken_apart(item, what, leaves)
            parts.append((start, len(leaves) - first, rebuild))
        make: Any = getattr(type(x), "_make", type(x))
        return lambda given: make([rebuild(given[start:end]) for start, end, rebuild in parts])
    if isinstance(x, Tensor):
        if not isinstance(x.engine, BufferEngine) or not isinstance(x.size, int):
            raise LanguageError(
                f"{what} takes tensors of a kernel whose size is known while tracing, not {x.title}",
                help="copy the thread's part of it into a fragment: tw.fragment_like",
            )
        leaves.append(in_registers(x, keep_repeats=False))
    elif isinstance(x, Scalar) or is_number(x) or is_numpy_number(x):
        leaves.append(as_scalar(x))
    else:
        raise LanguageError(f"{what} takes numbers, fragments, and tuples of them, not {shown(x)}")
    return lambda given: given[0]


# --- operations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """An associative operation on values taken apart: by name, then leaf by leaf, or a function of the user.

    What has a name commutes, bit for bit; of a function that is not known, and its order is kept.
    """

    name: str | None
    function: Callable[[Any, Any], Any] | None
    rebuild: Callable[[Sequence[Any]], Any]
    what: str

    @classmethod
    def of(cls, op: Any, values: Values, what: str) -> Operation:
        """Return the operation that a user names or gives."""
        if callable(op):
            return cls(None, keeping_state(op, what), values.rebuild, what)
        if not isinstance(op, str) or op not in NAMED:
            raise LanguageError(
                f"{what}: op is one of {', '.join(NAMED)}, or an associative function of two values, not {shown(op)}"
            )
        return cls(op, None, values.rebuild, what)

    @property
    def commutes(self) -> bool:
        return self.name is not None

    @property
    def is_idempotent(self) -> bool:
        """Whether a value may take part more than once."""
        return self.name is not None and NAMED[self.name].is_idempotent

    def prepared(self, values: Sequence[Scalar]) -> list[Scalar]:
        """Return values in the types that the operation gives: sums of bools are int32."""
        if self.name in ("add", "mul"):
            return [x.to(int32) if x.dtype is bool_ else x for x in values]
        return list(values)

    def neutral(self, types: Sequence[DType]) -> list[Scalar] | None:
        """Return what an exclusive scan begins with, None where a function does not say it."""
        if self.name is None:
            return None
        return [as_scalar(NAMED[on_type(self.name, type.kind)].neutral(type), type) for type in types]

    def unchanging(self, types: Sequence[DType]) -> list[Scalar]:
        """Return what leaves every value as it is, to the bit: -0.0 for sums of floats, NaN for their extremes."""
        assert self.name is not None, self.function
        floats = {"add": -0.0, "min": float("nan"), "max": float("nan")}
        return [
            as_scalar(floats[self.name], type)
            if type.is_float and self.name in floats
            else as_scalar(NAMED[on_type(self.name, type.kind)].neutral(type), type)
            for type in types
        ]

    def in_types(self, x: Any, types: Sequence[DType], name: str) -> list[Scalar]:
        """Return the leaves of a user's value in the types of the values that are combined."""
        numbers: list[Any] = []
        _numbers_of(x, numbers)
        if len(numbers) != len(types):
            raise LanguageError(f"{self.what}: {name} has {len(numbers)} numbers, and the values have {len(types)}")
        return [as_scalar(number, type) for number, type in zip(numbers, types, strict=True)]

    def __call__(self, a: Sequence[Scalar], b: Sequence[Scalar]) -> list[Scalar]:
        """Combine two values, the first of the lower threads."""
        types = [x.dtype for x in a]
        if self.name is not None:
            functions = [operation(self.name, type) for type in types]
            return [as_scalar(f(x, y), type) for f, x, y, type in zip(functions, a, b, types, strict=True)]
        assert self.function is not None
        return self._checked(self.function(self.rebuild(a), self.rebuild(b)), types)

    def _checked(self, result: Any, types: Sequence[DType]) -> list[Scalar]:
        """Return the leaves of what the user's function gave, which has to be of the form of what it got."""
        leaves: list[Any] = []
        numbers: list[Any] = []
        _numbers_of(result, numbers)
        if len(numbers) == len(types):
            for number, type in zip(numbers, types, strict=True):
                fits = is_number(number) or (isinstance(number, Scalar) and number.dtype is type)
                if fits:
                    leaves.append(as_scalar(number, type))
        if len(leaves) < len(types):
            raise LanguageError(
                f"{self.what}: op gets two values of {_listed(types)} and returns {_listed(numbers)}",
                help="an operation returns what it takes: as many numbers, of the same types; convert the values "
                "before, or the result with .to(type)",
            )
        return leaves


def _numbers_of(x: Any, found: list[Any]) -> None:
    if isinstance(x, (tuple, list)):
        for item in x:
            _numbers_of(item, found)
    else:
        found.append(x)


def _listed(items: Sequence[Any]) -> str:
    texts = [str(x.dtype if isinstance(x, Scalar) else x if isinstance(x, DType) else shown(x)) for x in items]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def tree(operation: Operation, values: Sequence[Sequence[Scalar]]) -> list[Scalar]:
    """Combine values of one thread: neighbours first, then pairs of them; what has no neighbour goes on as it is."""
    level = [list(value) for value in values]
    while len(level) > 1:
        pairs = [operation(level[n], level[n + 1]) for n in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]
