"""Element types: one frozen object a type, with its NumPy and CUDA names and the promotion rule.

The promotion of two types is written here and nowhere else (`promote`). It is NumPy's, with one
difference: an integer and a float give the float's own type (int32 + float32 is float32), because NumPy's
float64 would turn a fast kernel into one sixty times slower without a word. C++, PyTorch and JAX do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

from tilewright.arguments import given
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_all

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["bool", "int", "uint", "float"]


@dataclass(frozen=True, eq=False)
class DType:
    """An element type of tensors and scalars.

    `bits` is the size in memory (8 for bool), `c_name` its name in generated CUDA C++. Calling a type converts. A
    device value, or a Python or NumPy number inside a kernel, becomes a device value of this type: `tw.uint32(0) - 1`
    wraps there, as every operation on device values does. Outside of a kernel a number becomes a NumPy number.

    >>> float32.bits, float32.bytes, str(float32), float32 == "float32"
    (32, 4, 'float32', True)
    >>> int32(3.7)
    np.int32(3)
    """

    name: str
    kind: Kind
    bits: int
    c_name: str

    @cached_property
    def bytes(self) -> int:
        """The size of one element in memory, in bytes."""
        assert self.bits % 8 == 0, self
        return self.bits // 8

    @property
    def storage(self) -> DType:
        """The type in which memory and registers hold the elements: float32 for tfloat32, else the type itself."""
        return float32 if self is tfloat32 else self

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def is_narrow_float(self) -> bool:
        """True of floats of fewer than 32 bits, which are computed with as float32."""
        return self.kind == "float" and self.bits < 32

    @cached_property
    def is_integer(self) -> bool:
        """True of signed and unsigned integers, not of bool."""
        return self.kind in ("int", "uint")

    @cached_property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @cached_property
    def lowest(self) -> int:
        """The least value of an integer type (or bool)."""
        assert not self.is_float, self
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @cached_property
    def highest(self) -> int:
        """The greatest value of an integer type (or bool)."""
        assert not self.is_float, self
        if self.kind == "bool":
            return 1
        return (1 << (self.bits - (self.kind == "int"))) - 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type with the same bits (of ml_dtypes where NumPy has none), or that holds a narrow integer."""
        return _numpy_dtype(self.name)

    def __call__(self, value: Any) -> Any:  # Any: a device scalar gives a device scalar, a number a NumPy scalar
        cast = getattr(value, "__tilewright_cast__", None)
        if cast is not None:
            return cast(self)
        if _device_number is not None and (number := _device_number(value, self)) is not None:
            return number
        import numpy as np

        try:
            numbers = np.asarray(value)
            if numbers.dtype.kind in "SUmM" or (numbers.dtype.kind == "O" and not isinstance(value, int)):
                raise TypeError
            return numbers.astype(self.numpy)[()]
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"{self!r} converts numbers in its range, got {given(value)}") from error

    def __eq__(self, other: object) -> bool:
        """Compare with an element type by any of its names, as `tw.dtype` takes them: `x.dtype == np.float32`."""
        if isinstance(other, DType):
            return self is other
        if isinstance(other, (str, type)) or "dtype" in [x.__name__ for x in type(other).__mro__]:
            with suppress(ArgumentError):
                return dtype(other) is self
        return NotImplemented

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:  # one object a type, also after unpickling
        return (_named, (self.name,))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tw.{'bool_' if self.name == 'bool' else self.name}"  # what a user writes


# Makes a device number of a Python or NumPy number where a kernel is being traced, and returns None elsewhere. The
# tracer is above this module: `trace.scalar` sets it.
_device_number: Callable[[Any, DType], Any] | None = None


def set_device_number(make: Callable[[Any, DType], Any]) -> None:
    """Set what a type makes of a number inside a kernel; it returns None outside of one."""
    global _device_number
    _device_number = make


bool_: DType = DType("bool", "bool", 8, "bool")
int8: DType = DType("int8", "int", 8, "signed char")
int16: DType = DType("int16", "int", 16, "short")
int32: DType = DType("int32", "int", 32, "int")
int64: DType = DType("int64", "int", 64, "long long")
uint8: DType = DType("uint8", "uint", 8, "unsigned char")
uint16: DType = DType("uint16", "uint", 16, "unsigned short")
uint32: DType = DType("uint32", "uint", 32, "unsigned int")
uint64: DType = DType("uint64", "uint", 64, "unsigned long long")
float16: DType = DType("float16", "float", 16, "half")
bfloat16: DType = DType("bfloat16", "float", 16, "bfloat16")
float32: DType = DType("float32", "float", 32, "float")
float64: DType = DType("float64", "float", 64, "double")
# Operands of matrix products, with 3 and 2 bits of fraction; computed with as float32 and rounded, saturating at the
# largest finite number as the GPU's conversions do. Those of AMD's gfx942 ("fnuz") have a bias that is greater by one,
# neither infinities nor a negative zero, whose bits 0x80 are their only NaN.
float8_e4m3fn: DType = DType("float8_e4m3fn", "float", 8, "float8_e4m3fn")
float8_e5m2: DType = DType("float8_e5m2", "float", 8, "float8_e5m2")
float8_e4m3fnuz: DType = DType("float8_e4m3fnuz", "float", 8, "float8_e4m3fnuz")
float8_e5m2fnuz: DType = DType("float8_e5m2fnuz", "float", 8, "float8_e5m2fnuz")
FLOAT8_NVIDIA = (float8_e4m3fn, float8_e5m2)
FLOAT8_AMD = (float8_e4m3fnuz, float8_e5m2fnuz)
FLOAT8 = FLOAT8_NVIDIA + FLOAT8_AMD
LARGEST_FLOAT8 = {float8_e4m3fn: 448.0, float8_e5m2: 57344.0, float8_e4m3fnuz: 240.0, float8_e5m2fnuz: 57344.0}

# What matrix instructions take of wider memory: tensors do not have these types. tfloat32 is what a tensor core reads
# of a float32, its upper 19 bits; `x.to(tw.tfloat32)` rounds a float32 to them and gives a float32. The narrow integers
# lie packed in 32-bit words.
tfloat32: DType = DType("tfloat32", "float", 32, "float")
int4: DType = DType("int4", "int", 4, "")
uint4: DType = DType("uint4", "uint", 4, "")
uint1: DType = DType("uint1", "uint", 1, "")
OPERANDS = (tfloat32, int4, uint4, uint1)

ALL = (bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64)
_BY_NAME = {t.name: t for t in (*ALL, *FLOAT8)}
_OPERAND_BY_NAME = {t.name: t for t in OPERANDS}
_HELD_AS = {"tfloat32": "float32", "int4": "int8", "uint4": "uint8", "uint1": "uint8"}


@cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(_HELD_AS.get(name, name))


def dtype(spec: object) -> DType:
    """Return the element type that `spec` names: a DType, its name, a NumPy or torch dtype, or bool/int/float.

    >>> dtype("float32"), dtype(float)
    (tw.float32, tw.float32)

    Raises `ArgumentError`, a TypeError, when no type has that name.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, type) and spec in (bool, int, float):
        return {bool: bool_, int: int32, float: float32}[spec]
    name = spec if isinstance(spec, str) else getattr(spec, "name", None) or getattr(spec, "__name__", None)
    if not isinstance(name, str):
        name = str(spec).removeprefix("torch.")
    found = _BY_NAME.get(name)
    if found is None:
        raise ArgumentError(f"no element type is called {spec!r}; there are {', '.join(_BY_NAME)}")
    return found


def _named(name: str) -> DType:
    return _OPERAND_BY_NAME.get(name) or _BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """Return the type in which an operation on an `a` and a `b` is computed.

    Equal types keep themselves; bool gives way to any other type; of two integers of one signedness the
    wider wins; a signed and an unsigned integer give the signed type that holds both (int64 at most); an
    integer and a float give the float; of two floats the wider wins, and float16 with bfloat16 gives
    float32. Python numbers have no type of their own and take that of the other operand.

    >>> promote(int32, float16), promote(int32, uint32), promote(float16, bfloat16)
    (tw.float16, tw.int64, tw.float32)

    Raises `ArgumentError` for anything but an element type.
    """
    for name, element in (("a", a), ("b", b)):
        if not isinstance(element, DType):
            raise ArgumentError(f"promote: {name} is an element type such as tw.float32, got {element!r}")
    if a is b or b is bool_:
        return a
    if a is bool_:
        return b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        if a.bits == b.bits:  # float16 with bfloat16
            return float32
        return a if a.bits > b.bits else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    bits = max(signed.bits, min(2 * unsigned.bits, 64))
    return _BY_NAME[f"int{bits}"]


hiding_all(globals(), ("DType", "dtype", "promote"))
