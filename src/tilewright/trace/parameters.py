"""What a kernel is specialised on, argument by argument, and the stand-ins that its function is traced with."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.dtypes import ALL, FLOAT8, DType, int32, int64
from tilewright.errors import ArgumentError, LanguageError
from tilewright.ir.core import Buffer, Parameter, Space, Value
from tilewright.ir.facts import Facts, unknown
from tilewright.layout import Layout
from tilewright.source import SourceLocation
from tilewright.structures import Structure
from tilewright.tensors import Tensor
from tilewright.trace.engine import BufferEngine
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import Tracer


class constexpr:
    """Annotate a kernel parameter as a compile-time value: `layout: tw.constexpr`.

    Its value (a layout, tiled copy, element type, int, function, ...) must be hashable, and each value gets its own
    specialisation.
    """


@dataclass(frozen=True)
class Dynamic:
    """An extent or stride that only the launch knows; `divisor` divides it."""

    divisor: int = 1


@dataclass(frozen=True)
class ArrayType:
    """An array argument: static and dynamic extents and strides, in elements, and the pointer's alignment in bytes.

    `wide` arrays reach over more than 2**31 elements, and their offsets are computed in int64.
    """

    dtype: DType
    shape: tuple[int | Dynamic, ...]
    stride: tuple[int | Dynamic, ...]
    alignment: int
    wide: bool = False


@dataclass(frozen=True)
class ScalarType:
    """A number that only the launch knows."""

    dtype: DType


@dataclass(frozen=True, eq=False)
class ConstantValue:
    """A compile-time argument, passed to the function as it is."""

    value: Any  # Any: whatever the user gives


@dataclass(frozen=True, eq=False)
class StructureType:
    """A list, tuple, dict, NamedTuple or dataclass: its parts are arguments of their own."""

    structure: Structure
    parts: tuple[ArgumentType, ...]


ArgumentType: TypeAlias = "ArrayType | ScalarType | ConstantValue | StructureType"


def stand_ins(tracer: Tracer, arguments: Mapping[str, ArgumentType]) -> dict[str, Any]:
    """Return the values that the kernel's function is called with, and declare the machine parameters."""
    return {name: _stand_in(tracer, name, name, argument) for name, argument in arguments.items()}


def _stand_in(tracer: Tracer, argument: str, name: str, kind: ArgumentType) -> Any:
    """Return the value for an argument or a part of one: what users call it, and its name in generated code."""
    if isinstance(kind, ArrayType):
        return _array(tracer, argument, name, kind)
    if isinstance(kind, ScalarType):
        value = Value(kind.dtype, name, None if kind.dtype.is_float else unknown(kind.dtype))
        tracer.parameters.append(Parameter(argument, "value", value))
        return Scalar(value)
    if isinstance(kind, StructureType):
        structure = kind.structure
        return structure.make(
            [
                _stand_in(tracer, structure.path(argument, n), structure.identifier(name, n), part)
                for n, part in enumerate(kind.parts)
            ]
        )
    return kind.value


def _array(tracer: Tracer, argument: str, name: str, array: ArrayType) -> Tensor:
    if 0 in array.shape:
        raise ArgumentError(
            f"argument {argument!r} has shape {array.shape}, and the extents of a static layout are at least 1",
            help="pass it without tw.static, or do not launch for an empty array",
        )
    buffer = Buffer(name, array.dtype, Space.GLOBAL, None, array.alignment)
    tracer.parameters.append(Parameter(argument, "pointer", buffer))
    index_type = int64 if array.wide else int32
    names = argument, name
    shape = [_leaf(tracer, names, "shape", mode, extent, index_type) for mode, extent in enumerate(array.shape)]
    stride = [_leaf(tracer, names, "stride", mode, step, index_type) for mode, step in enumerate(array.stride)]
    engine = BufferEngine(buffer, index_type=index_type)
    return Tensor(engine, Layout(tuple(shape), tuple(stride)))


def _leaf(
    tracer: Tracer, names: tuple[str, str], part: str, mode: int, leaf: int | Dynamic, type: DType
) -> int | Scalar:
    if isinstance(leaf, int):
        return leaf
    # Extents are counts. Strides may be negative: NumPy's views have such.
    facts = Facts(0, type.highest, leaf.divisor) if part == "shape" else unknown(type, leaf.divisor)
    argument, name = names
    value = Value(type, f"{name}_{part}{mode}", facts)
    tracer.parameters.append(Parameter(argument, (part, mode), value))
    return Scalar(value)


# --- what the kernel's function declares ------------------------------------------------------------------


@dataclass(frozen=True)
class DeclaredParameter:
    """A parameter as the kernel's function declares it, with the type for numbers that are given to it."""

    name: str
    is_constexpr: bool
    dtype: DType | None = None


def variadic(signature: inspect.Signature) -> str | None:
    """Return the name of a parameter such as *operands, which stands for any number."""
    return next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)


def declared_parameters(
    function: types.FunctionType, signature: inspect.Signature, bound: int, further: int
) -> tuple[DeclaredParameter, ...]:
    """Return the parameters; one such as *operands becomes `further` of them: operands_0, operands_1 and so on."""
    result: list[DeclaredParameter] = []
    for n, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is parameter.VAR_KEYWORD:
            raise LanguageError(
                f"the parameters of a kernel come by position, and {parameter} stands for any that are named",
                location=definition_of(function),
                help=f"name each parameter, or take any number of them by position: *{parameter.name}",
            )
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else ""
        compile_time = annotation is constexpr or text.rpartition(".")[2] == "constexpr" or n < bound
        of_numbers = _declared_type(annotation, function)
        if parameter.kind is parameter.VAR_POSITIONAL:
            result += [DeclaredParameter(f"{parameter.name}_{i}", compile_time, of_numbers) for i in range(further)]
        else:
            result.append(DeclaredParameter(parameter.name, compile_time, of_numbers))
    names = [p.name for p in result]
    for name in names:
        if names.count(name) > 1:
            several = variadic(signature)
            raise LanguageError(
                f"the parameter {name!r} has the name that an argument of *{several} gets in generated code",
                location=definition_of(function),
                help=f"give {name!r} or *{several} another name",
            )
    return tuple(result)


def _declared_type(annotation: Any, function: types.FunctionType) -> DType | None:
    """Return the element type that an annotation is: as it is, or as text where the module puts annotations off."""
    if isinstance(annotation, str) and annotation.rpartition(".")[2] in _TYPES:
        with suppress(Exception):  # what is no type of ours says nothing to a kernel
            annotation = eval(annotation, function.__globals__)
    return annotation if isinstance(annotation, DType) else None


_TYPES = frozenset({*(element.name for element in (*ALL, *FLOAT8)), "bool_"})


def definition_of(function: types.FunctionType) -> SourceLocation:
    """Return the place of a function's definition."""
    code = function.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno, function.__name__)
