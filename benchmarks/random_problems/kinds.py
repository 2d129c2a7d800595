"""Kinds of problems: what problems have in common that share their kernels. Sizes and numbers are drawn for each."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from benchmarks.random_problems.epilogues import EPILOGUES
from benchmarks.random_problems.layouts import Lay, Random
from benchmarks.random_problems.subjects import FP8, HALVES, SUBJECTS, Subject, Types

_FITS = ("odd", "2", "4", "8", "16", "whole", "1")
_FIT_SHARES = (0.3, 0.06, 0.06, 0.08, 0.3, 0.15, 0.05)
_BATCHES = ("both", "both", "inner", "a only", "b only", "cross", "one a", "one b")
ALSO: tuple[Any, ...] = (
    (("sum", -1),),
    (("sum", -2), ("amax", -1)),
    (("max", -2), "float32"),
    ("bfloat16",),
    (("min", -1), ("sum", -2), ("amax", -2)),
    (("scale", -1),),
)


@dataclass(frozen=True)
class Kind:
    """Everything of a problem but sizes, numbers, and which of a few configurations computes it.

    `fits` say what divides M, N and K (`layouts.FITS`). `batch` says which operands have modes of a batch. `c` and
    `bias` are their types and forms: "full", "row", "column", "one", and for c "out": beta times what `out` holds.
    `scales` is one of the subject's; `weights` are bits, group, type of the scales, and zeros; `ragged` which mode of a
    grouped product is, of so many `groups`.
    """

    family: str
    number: int
    a: str
    b: str
    out: str
    precision: str | None
    fits: tuple[str, str, str]
    lays: tuple[Lay, Lay, Lay, Lay]  # of A, B, the result, and what is added
    batch: str | None = None
    alpha: float = 1
    c: tuple[str, str] | None = None
    bias: tuple[str, str] | None = None
    epilogue: str | None = None
    also: tuple[Any, ...] = ()
    scales: str | None = None
    weights: tuple[int, int, str, str] | None = None
    ragged: str | None = None
    groups: int = 1
    gives_out: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether accumulators are integers."""
        return self.a in ("int8", "uint8")

    def __str__(self) -> str:
        said = {name: value for name, value in asdict(self).items() if value not in (None, (), False)}
        lays = [f"{x.contiguous} {x.alignment}{'' if x.batch == 'outer' else f' batch {x.batch}'}" for x in self.lays]
        return ", ".join(f"{name} {lays if name == 'lays' else value}" for name, value in said.items())


def seeded(*parts: Any) -> Random:
    """Return a generator for a seed and names, the same in every process."""
    return np.random.default_rng([zlib.crc32(str(part).encode()) for part in parts])


def _pick(random: Random, choices: Any, shares: Any = None) -> Any:
    return choices[int(random.choice(len(choices), p=shares))]


def _lay(random: Random, *, is_out: bool) -> Lay:
    """Draw how a matrix lies."""
    contiguous = _pick(random, ("last", "first", "none"), (0.8, 0.17, 0.03) if is_out else (0.5, 0.46, 0.04))
    alignment = _pick(random, ("wide", "element", "middle"), (0.65, 0.25, 0.1))
    return Lay(contiguous, alignment)


def draw_kind(family: str, number: int, seed: int) -> Kind:
    """Return the kind of a number of a family."""
    subject, random = SUBJECTS[family], seeded("kind", seed, family, number)
    types: Types = subject.types[number % len(subject.types)]  # each in turn
    fits = tuple(_pick(random, _FITS, _FIT_SHARES) for _ in range(3))
    if random.random() < 0.04 and subject.own in (None, "multistage", "grouped"):
        fits = (*fits[:2], "0")
    a, b, out, addend = (_lay(random, is_out=n > 1) for n in range(4))
    if types.a in (*FP8, "int8", "uint8") and random.random() < 0.75:  # as tensor cores read 8 bits
        a, b = Lay("last", a.alignment), Lay("first", b.alignment)
    if subject.own == "streaming":  # few rows, and the layouts that the family is for
        fits = ("odd" if fits[0] == "whole" else fits[0], *fits[1:])
        b, out = Lay("first"), Lay("last", out.alignment)
    if subject.own == "gemv":
        fits = ("odd" if fits[0] == "whole" else fits[0], *fits[1:])
    if subject.own == "tiny":  # those of 128 and more are not
        fits = tuple("16" if x == "whole" else x for x in fits)
    kind = {
        "family": family, "number": number, "a": types.a, "b": types.b, "out": _pick(random, types.outs),
        "precision": types.precision, "fits": fits,
    }  # fmt: skip
    if subject.form == "product":
        return Kind(**kind, **_product(random, subject, types, (a, b, out, addend), kind["out"]))
    if subject.form == "weights":
        return Kind(**kind, **_with_weights(random, (a, b, out, addend), kind["out"]))
    return Kind(**kind, **_grouped(random, subject, family, (a, b, out, addend)))


def _product(random: Random, subject: Subject, types: Types, lays: Any, out: str) -> dict[str, Any]:
    is_whole = types.a in ("int8", "uint8")
    found: dict[str, Any] = {
        "batch": _pick(random, _BATCHES) if random.random() < 0.3 or subject.own == "tiny" else None
    }
    for name, side in (("one a", 0), ("one b", 1)):
        if found["batch"] == name:
            lays = tuple(Lay(x.contiguous, x.alignment, "one") if n == side else x for n, x in enumerate(lays))
    if found["batch"] == "inner":
        lays = tuple(Lay(x.contiguous, x.alignment, "inner") if n < 3 else x for n, x in enumerate(lays))
    found |= _beside(random, is_whole, out, may_be_out=True)
    if subject.scales:
        found["scales"] = _pick(random, subject.scales)
    if subject.has_further and random.random() < 0.25 and not is_whole:
        found["also"] = _pick(random, ALSO)
        if ("scale", -1) in found["also"] and out not in FP8:
            found["also"] = ALSO[0]
        if ("scale", -1) in found["also"]:
            lays = (lays[0], lays[1], Lay("last", lays[2].alignment), lays[3])
        if len(found["also"]) == 2 and random.random() < 0.5:
            found["epilogue"] = "three"
    found["gives_out"] = bool(random.random() < 0.9)
    return {"lays": lays, **found}


def _beside(random: Random, is_whole: bool, out: str, *, may_be_out: bool) -> dict[str, Any]:
    """Draw alpha, what is added, and an epilogue."""
    found: dict[str, Any] = {}
    kinds = ("int32", "int8") if is_whole else ("float32", *HALVES)
    if random.random() < 0.4:
        found["alpha"] = 2 if is_whole else _pick(random, (0.75, -1, 0.5))
    if random.random() < 0.3:
        form = _pick(random, ("full", "row", "out") if may_be_out and out not in FP8 else ("full", "row"))
        if not (is_whole and form == "out" and out != "int32"):
            found["c"] = (out if form == "out" else _pick(random, kinds), form)
    if random.random() < 0.4:
        found["bias"] = (_pick(random, kinds), _pick(random, ("row", "column", "full", "one"), (0.5, 0.2, 0.15, 0.15)))
    if random.random() < 0.4:
        single = [name for name, x in EPILOGUES.items() if x.results == 1 and (x.takes_integers or not is_whole)]
        found["epilogue"] = _pick(random, single)
    return found


def _with_weights(random: Random, lays: Any, out: str) -> dict[str, Any]:
    bits, group = _pick(random, (4, 4, 8)), _pick(random, (128, 128, 32, 64, 256, -1))
    zeros = _pick(random, ("each", "one", "none"))
    found = _beside(random, False, out, may_be_out=True)
    found["gives_out"] = bool(random.random() < 0.9)
    found["batch"] = "a only" if random.random() < 0.2 else None
    x = Lay("last" if random.random() < 0.8 else "first", lays[0].alignment)
    return {"lays": (x, *lays[1:]), "weights": (bits, group, _pick(random, (*HALVES, "float32")), zeros), **found}


def _grouped(random: Random, subject: Subject, family: str, lays: Any) -> dict[str, Any]:
    ragged = None if subject.form == "list" else _pick(random, ("M", "K", "N"))
    if family == "grouped hopper":  # as TMA reads: 16 bytes, and groups begin along the other mode than the contiguous
        a, b = (Lay(_pick(random, ("last", "first"))) for _ in range(2))
        if ragged == "K":
            a, b = Lay("first"), Lay("last")
        elif ragged == "M":
            a = Lay("last")
        else:
            b = Lay("first")
        lays = (a, b, *lays[2:])
    groups = int(random.integers(1, 10))
    return {"lays": lays, "ragged": ragged, "groups": groups, "gives_out": bool(random.random() < 0.8)}
