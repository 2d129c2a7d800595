"""What is drawn for each family: element types, precisions, sizes; and which candidates are the family's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any  # Any: a candidate of any family

HALVES = ("float16", "bfloat16")
FP8 = ("float8_e4m3fn", "float8_e5m2")
BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Types:
    """Types of A and B, those that a result may have, and a precision."""

    a: str
    b: str
    outs: tuple[str, ...]
    precision: str | None = None


def _same(name: str, *outs: str, precision: str | None = None) -> Types:
    return Types(name, name, (name, *outs), precision)


_HALF = tuple(_same(x, "float32", "float32", HALVES[1 - n], "float8_e4m3fn") for n, x in enumerate(HALVES))
_TF32 = (_same("float32", "bfloat16", precision="tf32"),)
_WHOLE = tuple(Types(a, b, ("int32", "int32", "float32", "int64")) for a in BYTES for b in BYTES)
_EIGHT = tuple(Types(a, b, ("bfloat16", "float32", "float16", "float8_e4m3fn")) for a in FP8 for b in FP8)
_FAST = tuple(Types(x.a, x.b, x.outs, "fp8_fast") for x in _EIGHT[:2])
_IEEE = (_same("float32", "bfloat16"), _same("float32", precision="ieee"))
_DOUBLE = (_same("float64", "float32"),)
_PARTS = tuple(_same("float32", "bfloat16", precision=x) for x in ("tf32x3", "bf16x9", "bf16x6"))
_MANY = (*_HALF, *_TF32, *_IEEE, *_WHOLE[:2], *_EIGHT[:2], *_DOUBLE, *_PARTS[:2])


@dataclass(frozen=True)
class Subject:
    """A family as it is tried: `own` is its name in the library, None for whatever the model chooses.

    `splits` says that K is split, or is not. `form` is "product", "weights", "ragged" or "list". `scales` are the forms
    that scales of operands may have. `most` limits M, N and K on a GPU, `small` in the simulator, `least` everywhere.
    """

    own: str | None
    types: tuple[Types, ...]
    splits: bool | None = None
    form: str = "product"
    scales: tuple[str, ...] = ()
    has_further: bool = False
    most: tuple[int, int, int] = (8192, 8192, 32768)
    small: tuple[int, int, int] = (300, 300, 500)
    least: tuple[int, int, int] = (1, 1, 1)

    def has(self, candidate: Any) -> bool:
        """Say whether a candidate that can run is of this family."""
        if candidate.prediction is None or self.own not in (None, candidate.family.name, "split K"):
            return False
        return self.splits is None or (candidate.configuration.splits > 1) is self.splits


_LONG = (700, 700, 1 << 20)
_SMALL_LONG = (70, 70, 4000)
_WEIGHTS = (1000, 6000, 6000)

SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "hopper": Subject("hopper", _HALF, False, has_further=True),
        "hopper tf32": Subject("hopper", _TF32, False, has_further=True),
        "hopper int8": Subject("hopper", _WHOLE, False, most=(8192, 8192, 8192)),
        "hopper fp8": Subject("hopper", (*_EIGHT, *_FAST), False, scales=("one", "rows", "columns", "both")),
        "hopper fp8 blocks": Subject("hopper", _EIGHT, scales=("1", "128", "1 and 128", "128 and columns")),
        "hopper in parts": Subject("hopper in parts", _PARTS),
        "split K": Subject(
            "split K", (*_HALF, *_TF32, *_IEEE, *_DOUBLE, *_WHOLE[:2], *_PARTS[:1]), True,
            most=_LONG, small=_SMALL_LONG, least=(1, 1, 600),
        ),
        "multistage": Subject("multistage", (*_HALF, *_TF32, *_WHOLE, *_EIGHT), False, has_further=True),
        "multistage in parts": Subject("multistage", _PARTS, False),
        "multistage blocks": Subject("multistage", (*_EIGHT[:2], *_HALF), scales=("1", "128", "1 and 128")),
        "simt": Subject("multistage", _IEEE, False, has_further=True),
        "float64": Subject("multistage", _DOUBLE, False, has_further=True),
        "streaming": Subject("streaming", _HALF, most=(16, 16384, 16384), small=(16, 300, 900)),
        "gemv": Subject("gemv", (*_HALF, *_IEEE, *_DOUBLE, *_PARTS[:1]), most=(8, 60000, 16384), small=(8, 300, 900)),
        "tiny": Subject(
            "tiny", (*_HALF, *_TF32, *_WHOLE, *_IEEE[1:], *_DOUBLE), most=(64, 64, 128), small=(40, 40, 70)
        ),
        "weight streaming": Subject(
            "weight streaming", _HALF, form="weights", most=(16, *_WEIGHTS[1:]), small=(16, 200, 900)
        ),
        "weight tiles": Subject("weight tiles", _HALF, form="weights", most=_WEIGHTS, small=(100, 150, 600)),
        "weight warpgroups": Subject("weight warpgroups", _HALF, form="weights", most=_WEIGHTS, small=(100, 150, 600)),
        "grouped": Subject("grouped", (*_HALF, *_TF32, *_IEEE[:1], *_DOUBLE), form="ragged", small=(200, 100, 150)),
        "grouped hopper": Subject("grouped hopper", _HALF, form="ragged", small=(200, 200, 200)),
        "lists": Subject("grouped", (*_HALF, *_IEEE[:1], *_DOUBLE), form="list", small=(150, 100, 150)),
        "chosen": Subject(None, _MANY, has_further=True),
    }
)  # fmt: skip
