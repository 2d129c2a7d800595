"""Names for C++: legal, unique where they are visible, and as close to the user's as can be.

`suggest` names values that the user did not name, from what they are and what they are used for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.backends.cpp.inlining import Structure
from tilewright.dtypes import bool_
from tilewright.ir.core import Op, Value, VectorType
from tilewright.ir.ops import (
    Atomic,
    Binary,
    Cast,
    Constant,
    Load,
    Special,
)

# Words of the language, and the names that NVRTC declares and generated code may use. A variable of such a
# name would hide the function from the lines below it, so it gets an underscore.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while xor xor_eq
"""
_PREDECLARED = """
    NAN INFINITY NULL assert dim3 linux unix printf warpSize threadIdx blockIdx blockDim gridDim memcpy
    half bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz vec
    abs acos acosf asin asinf atan atan2 atan2f atanf cbrt cbrtf ceil ceilf copysign copysignf cos cosf cosh coshf
    erf erff exp exp2 exp2f expf expm1 expm1f fabs fabsf floor floorf fma fmaf fmax fmaxf fmin fminf fmod fmodf
    isfinite isinf isnan log log10 log10f log1p log1pf log2 log2f logf max min pow powf rint rintf rsqrt
    rsqrtf sin sinf sinh sinhf sqrt sqrtf tan tanf tanh tanhf trunc truncf
"""
# What NVRTC and clang declare beyond that: a variable may hide it, a kernel may not be called so.
_WITH_FLOATS = """
    acosh asinh atanh cospi cyl_bessel_i0 cyl_bessel_i1 erfc erfcinv erfcx erfinv exp10 fdim fdivide frexp hypot ilogb
    j0 j1 jn ldexp lgamma llrint llround logb lrint lround modf nan nearbyint nextafter norm norm3d norm4d normcdf
    normcdfinv rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d round scalbln scalbn sincos sincospi sinpi
    tgamma y0 y1 yn
"""
# Further names that a kernel may not have: functions and types of other signatures, those of earlier releases of CUDA,
# and words of PTX and the function behind printf, on which as entry points ptxas and NVRTC fail (the last by a crash).
_OTHERS = """
    main malloc free std size_t ptrdiff_t clock clock_t clock64 memset labs llabs signbit alloca
    llmin llmax umin umax ullmin ullmax
    libraryPropertyType MAJOR_VERSION MINOR_VERSION PATCH_LEVEL texture surface textureReference surfaceReference
    WARP_SZ function_name inlined_at vprintf
"""
_DECLARED = frozenset(
    [*_OTHERS.split(), *(name + end for name in _WITH_FLOATS.split() for end in ("", "f"))],
)
KEYWORDS = frozenset(_KEYWORDS.split())
RESERVED = KEYWORDS | frozenset(_PREDECLARED.split())
# The families of names that the functions of prelude.py take, and those of CUDA's headers, which hold macros.
_FAMILIES = re.compile(
    r"atomic\w*|to_\w+|shift_(left|right)|bit_cast"
    r"|assertion_failed"
    r"|(make_)?(u?(char|short|int|long|longlong)|float|double)[1-4](_(16|32)a)?"
    r"|cuda[A-Z]\w*|CUDA\w*|CU_\w*|CUuuid|NV_\w*|va_(list|start|arg|copy|end)"
)
_LONGEST = 200  # letters; files are named after kernels, and file systems take 255 bytes


def is_reserved(name: str) -> bool:
    """Return whether a name means something to the compiler or to generated code, so that no variable may have it.

    >>> is_reserved("and"), is_reserved("make_float4"), is_reserved("va_list"), is_reserved("acc")
    (True, True, True, False)
    """
    return name in RESERVED or _FAMILIES.fullmatch(name) is not None


def legal(name: str) -> str:
    """Return a C++ identifier close to a Python name: letters are spelled in ASCII, other signs become `_`.

    >>> legal("acc"), legal("α"), legal("é"), legal("float"), legal("<lambda>"), legal("__x"), legal("self.ring.stage")
    ('acc', 'alpha', 'e', 'float_', 'lambda', 'x', 'ring_stage')
    """
    ascii_only = "".join(c if c.isascii() else _spell(c) for c in name.removeprefix("self."))
    word = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_]", "_", ascii_only)).strip("_") or "value"
    if word[0].isdigit():
        word = f"n{word}"
    word = word[:_LONGEST]
    return f"{word}_" if is_reserved(word) else word


def entry_name(name: str, taken: frozenset[str] = frozenset()) -> str:
    """Return the name of a kernel: legal, not taken, and of no function or type that the compiler declares.

    >>> entry_name("norm"), entry_name("matmul")
    ('norm_', 'matmul')
    """
    word = legal(name)
    while word in _DECLARED or word in taken:
        word += "_"
    return word


def _spell(character: str) -> str:
    return unicodedata.name(character, "_").split(" WITH ")[0].split()[-1].lower()


class Names:
    """The names in use, scope by scope. A name may be taken again once the scope that holds it has ended."""

    def __init__(self, reserved: frozenset[str] = frozenset(), taken: str = "") -> None:
        # Each scope: its names, with the highest number that each has been given there.
        self._scopes: list[dict[str, int]] = [dict.fromkeys(reserved, 0)]
        # What the functions of instructions are called, as a regular expression.
        self._taken = re.compile(taken) if taken else None
        self.given: set[str] = set()  # all names that are in the text, of whichever scope

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Hold the names that are declared in a pair of braces."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()

    def reserve(self, name: str) -> None:
        """Take a name that is visible everywhere."""
        self._scopes[0].setdefault(name, 0)
        self.given.add(name)

    def declare(self, *candidates: str) -> str:
        """Take the first candidate that is free here, or the last one with a number, and return it."""
        names = [self._free(legal(c)) for c in candidates]
        for name in names:
            if self._take(name):
                return name
        last, stem = names[-1], names[-1].rstrip("_")  # names with __ are the compiler's
        number = max(scope.get(last, 0) for scope in self._scopes) + 1
        while not self._take(f"{stem}_{number}"):
            number += 1
        self._scopes[-1][last] = number
        return f"{stem}_{number}"

    def _free(self, word: str) -> str:
        return f"{word}_" if self._taken is not None and self._taken.fullmatch(word) else word

    def _take(self, name: str) -> bool:
        if any(name in scope for scope in self._scopes):
            return False
        self._scopes[-1].setdefault(name, 0)
        self.given.add(name)
        return True


_FARTHEST = 32  # values that are looked at to find what an offset is for


def suggest(value: Value, structure: Structure) -> str:
    """Return the user's name for a value, or one that says something about it."""
    op = value.definition
    if value.name:
        return value.name
    if isinstance(op, Load):
        return f"{op.buffer.name}_{'vector' if isinstance(value.type, VectorType) else 'value'}"
    if isinstance(op, Atomic):
        return f"old_{op.buffer.name}"
    if isinstance(op, Special):
        return _register(op)
    if isinstance(value.type, VectorType):
        return "vector"
    if value.type is bool_:
        return "condition"
    if value.type.is_float:
        return "x"
    return _part(op) or _place(value, structure) or "n"


def _register(op: Special) -> str:
    """Return bx for block_idx.x, ty for thread_idx.y, and block_dim_x in full."""
    group, axis = op.name.split(".")
    return f"{group[0]}{axis}" if group.endswith("idx") else f"{group}_{axis}"


def _part(op: Op | None) -> str | None:
    """Return tid_div_32 or tid_mod_32 for a quotient or remainder of something with a name."""
    if not (isinstance(op, Binary) and op.kind in ("div", "rem") and isinstance(op.rhs.definition, Constant)):
        return None
    whole = op.lhs.definition
    base = op.lhs.name or (_register(whole) if isinstance(whole, Special) else None)
    divisor = op.rhs.definition.value
    return f"{base}_{'div' if op.kind == 'div' else 'mod'}_{divisor}" if base and divisor > 0 else None


def _place(value: Value, structure: Structure) -> str | None:
    """Return index for what a buffer is indexed by, and offset or A_offset for a part of that."""
    readers = structure.readers.get(value, [])
    if any(_indexed_by(value, reader) for reader in readers):
        return "index"
    buffers = _indexed(value, structure)
    if not buffers:
        return None
    return f"{next(iter(buffers))}_offset" if len(buffers) == 1 else "offset"


def _indexed(value: Value, structure: Structure) -> dict[str, None]:
    """Return the names of the buffers whose indices a value is a part of, looking a few ops ahead."""
    found: dict[str, None] = {}
    parts = [value]
    for part in parts:  # grows meanwhile
        for reader in structure.readers.get(part, []):
            found.update(_indexed_by(part, reader))
            if isinstance(reader, (Binary, Cast)) and reader.result not in parts and len(parts) < _FARTHEST:
                parts.append(reader.result)
    return found


def _indexed_by(value: Value, op: Op) -> dict[str, None]:
    return {use.buffer.name: None for use in op.uses if use.index is value}
