"""Trials of `tw.matmul`: a problem by a candidate that is forced, twice, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.random_problems.bounds import ROOM, Verdict, arithmetic_of
from benchmarks.random_problems.epilogues import EPILOGUES
from benchmarks.random_problems.memory import Held, Memory, pool
from benchmarks.random_problems.problems import BLOCK, Product
from benchmarks.random_problems.subjects import SUBJECTS
from benchmarks.random_problems.trials import NotTaken, rank

import tilewright as tw
from tilewright.kernels import winners
from tilewright.kernels.matmul import forget_plans


def candidate_of(product: Product, turn: int) -> Any:
    """Return the candidate that computes a problem; raise `NotTaken` where the family has none."""
    kind, subject = product.kind, SUBJECTS[product.kind.family]
    explained = tw.matmul.explain(product.a, product.b, out=product.given, **product.options)
    if explained.choice is None:
        raise NotTaken("the result is empty")
    if subject.own is None:
        return explained.choice
    own = [candidate for candidate in explained.candidates if subject.has(candidate)]
    if not own:
        raise NotTaken(f"none of {len(explained.candidates)} candidates")
    salt = kind.family, kind.number, turn
    return min(own, key=lambda candidate: rank(winners.text_of(candidate), salt))


class ProductCase:
    """A product by a candidate that is forced."""

    def __init__(self, product: Product, turn: int, memory: Memory) -> None:
        self.product, self.turn, self.memory = product, turn, memory
        self.candidate: Any = None
        self.configuration = ""
        self.held: dict[str, Held] = product.held
        self.outs: list[Held] = [] if product.out is None else [product.out]
        self._added: Any = None

    @property
    def reads_results(self) -> bool:
        return self.product.kind.c is not None and self.product.kind.c[1] == "out"

    def choose(self) -> None:
        self.candidate = candidate_of(self.product, self.turn)
        self.configuration = winners.text_of(self.candidate)
        forget_plans()  # calls met before would repeat what another configuration did

    def __str__(self) -> str:
        return str(self.product)

    def poison(self, byte: int) -> None:
        product, out = self.product, self.product.out
        if out is None or not self.memory.fills:
            return
        self.memory.fill(out, byte)
        if product.kind.c is not None and product.kind.c[1] == "out":
            numbers = pool(out.dtype, "whole" if product.kind.is_whole else product.style)
            host = np.resize(numbers, product.shape).view(f"i{out.dtype.bytes}")
            out.bits[...] = self.memory.put(host)
            self._added = self.memory.wide(self.memory.copied(out.array))  # of float64 the same array

    def call(self) -> list[Any]:
        product = self.product
        with winners.forcing(self.candidate):
            found = tw.matmul(product.a, product.b, out=product.given, **product.options)
        return list(found) if isinstance(found, tuple) else [found]

    def judge(self, found: list[Any], verdict: Verdict) -> None:
        judge(self.product, self.memory, found, self._added, verdict)


def judge(product: Product, memory: Memory, found: list[Any], addend: Any, verdict: Verdict) -> None:
    """Compare the results of a problem with float64."""
    kind, xp = product.kind, memory.xp
    with np.errstate(all="ignore"):
        x, error = _accumulators(product, memory, addend)
        values, errors = [x], [error]
        unit = arithmetic_of(kind).unit
        if kind.epilogue is not None:
            epilogue = EPILOGUES[kind.epilogue]
            given = [memory.wide(product.held[name].array) if name in product.held else 0 for name in ("row", "column")]
            values = list(epilogue.values(xp, x, *given, product.gain, product.kept))
            # Eight roundings of all that is added, and of the exponential.
            finite = xp.where(xp.isfinite(x), abs(x), xp.zeros_like(x))  # what is dropped is 0, whatever it was
            sizes = epilogue.errors(xp, finite, *given, product.gain, product.kept)
            beside = abs(given[0])
            errors = [
                e + 8 * unit * (size + abs(y) + beside) + 1e-37 * (unit > 2.0**-50)
                for e, size, y in zip(
                    epilogue.errors(xp, error, *given, product.gain, product.kept), sizes, values, strict=True
                )
            ]
        if kind.is_whole:
            values = [wrapped(xp, y) for y in values]
            errors = [e * 0 for e in errors]
        judge_further(product, memory, found, values, errors, verdict)
        dtype = tw.dtype(found[0].dtype)
        if ("scale", -1) not in kind.also:
            verdict.compare("the result", memory, found[0], values[0], errors[0], dtype)


def wrapped(xp: Any, x: Any) -> Any:
    """Return whole numbers as int32 holds them."""
    return x - 2.0**32 * xp.floor((x + 2.0**31) / 2.0**32)


def _accumulators(product: Product, memory: Memory, addend: Any) -> tuple[Any, Any]:
    """Return alpha times the sums and what is added, and how far that may be."""
    kind, xp, held = product.kind, memory.xp, product.held
    arithmetic, k = arithmetic_of(kind), product.extents[2]
    a = _scaled(memory, memory.wide(held["a"].array), held.get("scale_a"), kind.scales)
    b = product.full
    if b is None:
        b = _scaled(memory, memory.wide(held["b"].array), held.get("scale_b"), kind.scales)
    alpha, beta = kind.alpha, product.options.get("beta", 0)
    x, terms = alpha * xp.matmul(a, b), abs(alpha) * xp.matmul(abs(a), abs(b))
    is_exact = product.style == "whole" and not product.specials
    total = terms
    for factor, name in ((beta, "c"), (1, "bias")):
        array = memory.wide(held[name].array) if name in held else addend if name == "c" else None
        if array is not None:
            x, total = x + factor * array, total + abs(factor) * abs(array)
    if kind.is_whole:
        x = wrapped(xp, x)
    rounded = 6 * arithmetic.unit * total * (not kind.is_whole)
    error = arithmetic.share(k) * terms + rounded
    if is_exact:  # whole numbers, and factors that are powers of two
        error = xp.where(total < arithmetic.exact / ROOM, xp.zeros_like(error), error)
    return x, xp.where(xp.isfinite(x), error, xp.zeros_like(x))


def _scaled(memory: Memory, x: Any, scale: Any, form: str | None) -> Any:
    """Return an operand (rows by K or K by columns) times its scales."""
    if scale is None:
        return x
    factors = memory.wide(scale.array)
    if form in ("one", "rows", "columns", "both"):
        return x * factors
    for axis in (-2, -1):
        if factors.shape[axis] != x.shape[axis]:
            factors = memory.repeated(factors, BLOCK, axis)
            factors = factors[: x.shape[-2]] if axis == -2 else factors[:, : x.shape[-1]]
    return x * factors


def judge_further(
    product: Product, memory: Memory, found: list[Any], values: list[Any], errors: list[Any], verdict: Verdict
) -> None:
    """Compare what was asked for beside the result."""
    xp, unit = memory.xp, arithmetic_of(product.kind).unit
    for n, asked in enumerate(product.kind.also, 1):
        y, e = (each[n if len(values) > 1 else 0] for each in (values, errors))
        dtype, what = tw.dtype(found[n].dtype), f"also[{n - 1}], {asked}"
        if not isinstance(asked, tuple):
            verdict.compare(what, memory, found[n], y, e, dtype)
            continue
        operation, axis = asked
        if operation == "scale":
            _judge_scales(product, memory, found, y, e, verdict)
        elif operation == "sum":
            limit = xp.sum(e, axis) + (y.shape[axis] + 1) * unit * xp.sum(abs(y), axis)
            verdict.compare(what, memory, found[n], xp.sum(y, axis), limit, dtype)
        else:
            reduce = xp.amin if operation == "min" else xp.amax
            verdict.compare(what, memory, found[n], reduce(abs(y) if operation == "amax" else y, axis),
                            xp.amax(e, axis), dtype)  # fmt: skip


def _judge_scales(product: Product, memory: Memory, found: list[Any], y: Any, e: Any, verdict: Verdict) -> None:
    """Compare scales of 128 columns of a row each, and the result times them."""
    xp, (got, scales) = memory.xp, (memory.wide(x) for x in found[:2])
    largest = 448.0 if product.kind.out == "float8_e4m3fn" else 57344.0
    columns, blocks = y.shape[-1], -(-y.shape[-1] // BLOCK)
    wide = [memory.wide(memory.put(np.zeros((*y.shape[:-1], blocks * BLOCK)))) for _ in range(2)]
    for full, part in zip(wide, (abs(y), e), strict=True):
        full[..., :columns] = part
    most, slack = (xp.amax(x.reshape((*y.shape[:-1], blocks, BLOCK)), -1) for x in wide)
    exact = xp.where(most > 0, most / largest, xp.ones_like(most))
    verdict.compare("also[0], scales", memory, found[1], exact, slack / largest + 4 * 2.0**-24 * exact, tw.float32)
    spread = memory.repeated(scales, BLOCK, -1)[..., :columns]
    info = (2.0**-3, 2.0**-9) if largest == 448.0 else (2.0**-2, 2.0**-16)
    error, limit = abs(got * spread - y), 1.01 * (e + abs(y) * info[0] / 2 + spread * info[1])
    if not bool((error <= limit).all()):
        verdict.says("the result times its scales is not what was rounded")
