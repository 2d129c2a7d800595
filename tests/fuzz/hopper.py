"""Generates kernels of Hopper's asynchronous units: boxes by TMA, products by wgmma, both against NumPy.

A kernel of copies loads tiles of 1 to 5 modes to shared memory, changes each element, and stores or reduces them; tiles
overhang or lie outside. A kernel of products fills a ring of stages by TMA, multiplies by any of the wgmma atoms, and
stores by threads or by TMA. Numbers are small integers, whose sums are exact in every order, or, of products with
float32 sums, of any size within a bound.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from tests.conformance.harness import Array, Backend
from tests.property.test_language import compiled

import tilewright as tw
from tilewright.atoms.mma import OperandPlace
from tilewright.instructions.wgmma import NAMES, WarpgroupMMAAtom

LOAD = "tw.atoms.SM90_TMA_LOAD"
STORE = "tw.atoms.SM90_TMA_STORE"
_FLOATS, _WIDE = (tw.float16, tw.bfloat16), (tw.int32, tw.uint32, tw.int64, tw.uint64)
# PTX ISA, "cp.reduce.async.bulk": the element types of each operation.
REDUCED: dict[str, tuple[tw.DType, ...]] = {
    "add": (*_FLOATS, tw.float32, tw.float64, tw.int32, tw.uint32, tw.uint64),
    "min": (*_FLOATS, *_WIDE),
    "max": (*_FLOATS, *_WIDE),
    "and": _WIDE,
    "or": _WIDE,
    "xor": _WIDE,
}
COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
COPIED = (tw.uint8, tw.int8, tw.uint16, tw.int16, *_WIDE, *_FLOATS, tw.float32, tw.float64)
MOST_BOXES = 64  # that one copy moves
SPANS = {"INTER": 16, "SW32": 32, "SW64": 64, "SW128": 128}  # bytes of a row of the canonical layouts
FAMILIES: dict[str, list[str]] = {}
for _name in NAMES:
    FAMILIES.setdefault(re.sub(r"64x\d+", "64xN", _name), []).append(_name)


@dataclass(frozen=True)
class Operand:
    """An array argument: its type and shape as the kernel sees it, and what it holds."""

    name: str
    dtype: tw.DType
    shape: tuple[int, ...]
    values: Array
    is_turned: bool = False  # of two modes, whose first one is contiguous
    is_static: bool = False

    def put(self, backend: Backend) -> tuple[Any, Any]:
        """Return what the backend holds, and what the kernel is given."""
        held = backend.put(np.ascontiguousarray(self.values.T) if self.is_turned else self.values)
        seen = held.T if self.is_turned else held
        return held, tw.static(seen) if self.is_static else seen


@dataclass(frozen=True)
class HopperProgram:
    """The text of a kernel named `kernel`, its launch, and what it leaves in its first argument."""

    text: str
    grid: int | tuple[int, ...]
    block: int
    operands: tuple[Operand, ...]
    expected: Array = field(repr=False)
    limit: Array | None = field(default=None, repr=False)  # how far a result may lie apart; None: not at all

    def run(self, backend: Backend) -> list[Array]:
        """Run on a backend, all of the simulator's checks on, and return what the kernel wrote."""
        given = [each.put(backend) for each in self.operands]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tw.TilewrightWarning)
            compiled(self.text)["kernel"][self.grid, self.block](*[seen for _, seen in given])
        return [backend.get(given[0][0])]

    def meaning(self) -> list[Array]:
        """Return what NumPy says."""
        return [self.expected]

    def compile(self, arch: str = "sm_90a") -> str:
        """Compile to machine code, which needs no GPU; return what ptxas serialises or ignores, empty for nothing."""
        from tests.conformance.harness import Simulator

        given = [each.put(Simulator())[1] for each in self.operands]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tw.TilewrightWarning)
            lowered = compiled(self.text)["kernel"].lower(*given, arch=arch, block=self.block)
            assert lowered.module.cubin
            log: str = lowered.module.log
        return "\n".join(line for line in log.splitlines() if re.search(r"C75\d\d", line))

    def assert_agree(self, names: tuple[str, str], first: Sequence[Array], second: Sequence[Array]) -> None:
        """Compare two runs, element by element."""
        x, y = first[0], second[0]
        if self.limit is None:
            bad = ~((x == y) | (_is_nan(x) & _is_nan(y)))
        else:
            bad = ~(np.abs(x.astype(np.float64) - y.astype(np.float64)) <= self.limit)
        if bad.any():
            where = tuple(int(n) for n in np.argwhere(bad)[0])
            raise AssertionError(
                f"{self.operands[0].name}{list(where)} is {x[where]!r} by {names[0]} and {y[where]!r} by {names[1]}; "
                f"{int(bad.sum())} of {bad.size} elements differ\n{self}"
            )

    def __str__(self) -> str:
        listed = "\n".join(f"    {x.name}: {x.dtype}{list(x.shape)}, turned {x.is_turned}, static {x.is_static}"
                           for x in self.operands)  # fmt: skip
        return f"grid {self.grid}, block {self.block}\n{listed}\n{self.text}"


def _is_nan(x: Array) -> Array:
    return np.asarray(x != x)


def write_hopper_program(random: Random) -> HopperProgram:
    """Return the kernel of a seed."""
    return _write_copies(random) if random.random() < 0.4 else _write_product(random)


def _integers(random: Random, dtype: tw.DType, shape: tuple[int, ...], low: int = -4, high: int = 5) -> Array:
    low = 0 if not dtype.is_float and not dtype.is_signed else low
    numbers = np.random.default_rng(random.getrandbits(32)).integers(low, high, shape)
    return numbers.astype(dtype.storage.numpy)


# --- copies ----------------------------------------------------------------------------------------------


def _write_copies(random: Random) -> HopperProgram:
    rank = random.randint(1, 5)
    reduces = random.choice([*REDUCED, *[""] * 6])
    dtype = random.choice(REDUCED[reduces] if reduces else COPIED)
    tile, layout = _tile(random, rank, dtype)
    _, other = _tile(random, rank, dtype, tile)
    shape, target = (_extents(random, tile, dtype) for _ in range(2))
    counts = [-(-max(a, b) // t) for a, b, t in zip(shape, target, tile, strict=True)]
    counts[0] += random.randint(0, 1)  # tiles that lie outside
    total, folds = math.prod(counts), bool(reduces) and random.random() < 0.3
    turns = random.choice([t for t in (1, 2, 3) if total % t == 0])
    threads = random.choice((32, 64, 128))
    is_in_place, by_threads = random.random() < 0.3, random.choice(("", "", "", "load", "store"))
    if reduces and by_threads == "store":
        by_threads = ""
    fill = float("nan") if dtype.is_float and not reduces and random.random() < 0.3 else 0
    change, changed = random.choice(
        [("v + v", lambda v: v + v), ("v", lambda v: v)]
        + ([] if dtype.is_float else [("v ^ 1", lambda v: v ^ v.dtype.type(1))])
    )
    where = ", ".join(f"tile // {math.prod(counts[:n])} % {counts[n]}" for n in range(rank)) + ","
    there = "0," + where.split(",", 1)[1] if folds else where
    at = ", ".join(f"n // {math.prod(tile[m + 1 :])} % {tile[m]}" for m in range(rank))
    inside = " and ".join(f"({w.strip()}) * {t} + n // {math.prod(tile[m + 1 :])} % {t} < {{0}}.shape[{m}]" for m, (w, t)
                          in enumerate(zip(where.rstrip(",").split(","), tile, strict=True)))  # fmt: skip
    reach = ", ".join(f"({w.strip()}) * {t} + n // {math.prod(tile[m + 1 :])} % {t}" for m, (w, t)
                      in enumerate(zip(where.rstrip(",").split(","), tile, strict=True)))  # fmt: skip
    size, bytes_ = math.prod(tile), math.prod(tile) * dtype.bytes
    if by_threads == "load":
        fill = 0
        load = [f"        for n in range(tid, {size}, {threads}):",
                f"            sx[{at}] = x[{reach}] if {inside.format('x')} else 0",
                "        tw.sync_threads()"]  # fmt: skip
    else:
        load = ["        if tid == 0:",
                f"            full.arrive_expect_tx({bytes_})",
                f"            tw.copy({LOAD}, tw.local_tile(tw.guarded(x, FILL), {tile}, ({where})), sx, barrier=full)",
                "        full.wait(turn % 2)"]  # fmt: skip
    work = [f"        for n in range(tid, {size}, {threads}):",
            f"            v = sx[{at}]",
            f"            {'sx' if is_in_place else 'sy'}[{at}] = {change}"]  # fmt: skip
    source = "sx" if is_in_place else "sy"
    if by_threads == "store":
        store = ["        tw.sync_threads()",
                 f"        for n in range(tid, {size}, {threads}):",
                 f"            if {inside.format('out')}:",
                 f"                out[{reach}] = {source}[{at}]",
                 "        tw.fence_proxy_async()",  # the next load writes where threads have written
                 "        tw.sync_threads()"]  # fmt: skip
    else:
        atom = f"tw.atoms.SM90_TMA_REDUCE_{reduces.upper()}" if reduces else STORE
        store = ["        tw.fence_proxy_async()",
                 "        tw.sync_threads()",
                 "        if tid == 0:",
                 f"            tw.copy({atom}, {source}, tw.local_tile(tw.guarded(out), {tile}, ({there})))",
                 "            tw.tma_store_commit()",
                 f"            tw.tma_store_wait(0{random.choice(('', ', read=False'))})",
                 "        tw.sync_threads()"]  # fmt: skip
    lines = [
        f"FILL = float({str(fill)!r})" if fill != fill else "FILL = 0",
        f"IN = {layout}",
        f"OUT = {other}",
        "@tw.kernel",
        "def kernel(out, x):",
        f"    sx = tw.shared(tw.{dtype.name}, IN)",
        *([] if is_in_place else [f"    sy = tw.shared(tw.{dtype.name}, OUT)"]),
        *([] if by_threads == "load" else ["    full = tw.mbarrier(1)"]),
        "    tid = tw.thread_idx.x",
        "    tw.sync_threads()",
        f"    for turn in range({turns}):",
        f"        tile = tw.block_idx.x * {turns} + turn",
        *load, *work, *store,
    ]  # fmt: skip
    x, before = _integers(random, dtype, shape), _integers(random, dtype, target)
    expected = before.copy()
    for number in range(total):
        place = [number // math.prod(counts[:n]) % counts[n] for n in range(rank)]
        part = np.full(tile, fill, x.dtype)
        _assign(part, x, place, tile, into=True)
        part = np.asarray(changed(part)).astype(x.dtype)
        to = [0, *place[1:]] if folds else place
        _assign(part, expected, to, tile, into=False, combine=COMBINE[reduces] if reduces else None)
    statics = [random.random() < 0.5 for _ in range(2)]
    operands = (
        Operand("out", dtype, target, before, is_static=statics[0]), Operand("x", dtype, shape, x, is_static=statics[1])
    )  # fmt: skip
    return HopperProgram("\n".join(lines) + "\n", total // turns, threads, operands, expected)


def _assign(
    part: Array, whole: Array, place: Sequence[int], tile: Sequence[int], *, into: bool,
    combine: Callable[[Array, Array], Array] | None = None,
) -> None:  # fmt: skip
    """Bring what lies inside of an array to or from a tile."""
    starts = [p * t for p, t in zip(place, tile, strict=True)]
    inside = tuple(slice(s, min(s + t, e)) for s, t, e in zip(starts, tile, whole.shape, strict=True))
    if any(s.start >= s.stop for s in inside):
        return
    here = tuple(slice(0, s.stop - s.start) for s in inside)
    if into:
        part[here] = whole[inside]
    else:
        whole[inside] = part[here] if combine is None else combine(whole[inside], part[here])


def _tile(random: Random, rank: int, dtype: tw.DType, tile: tuple[int, ...] = ()) -> tuple[tuple[int, ...], str]:
    """Return the shape of a tile, or the one given, and text of a layout of it in shared memory."""
    line = 16 // dtype.bytes or 1
    if not tile:
        outer = [random.choice((1, 2, 3, 4, 6)) for _ in range(rank - 1)]
        while math.prod(outer) > 48:
            outer[random.randrange(rank - 1)] = 1
        tile = (*outer, line * random.choice((1, 2, 2, 4, 4, 8)))
    span = tile[-1] * dtype.bytes
    order = list(range(rank - 1))
    random.shuffle(order)
    strides, step = [0] * rank, tile[-1]
    strides[-1] = 1
    for mode in order:
        strides[mode] = step
        step *= tile[mode]
    plain = f"tw.Layout({tile}, {tuple(strides)})"
    if span in (32, 64, 128) and random.random() < 0.6:
        bits, base = {32: 1, 64: 2, 128: 3}[span], 4 - (dtype.bytes.bit_length() - 1)
        return tile, f"tw.ComposedLayout(tw.Swizzle({bits}, {base}, 3), 0, {plain})"
    return tile, plain


def _extents(random: Random, tile: Sequence[int], dtype: tw.DType) -> tuple[int, ...]:
    """Return extents of an array of about one to three tiles, whose rows are multiples of 16 bytes."""
    most = 3 if len(tile) < 3 else 2
    extents = [max(1, random.randint(1, most) * t - random.choice((0, 0, 1, t // 2))) for t in tile]
    line = 16 // dtype.bytes or 1
    extents[-1] = -(-extents[-1] // line) * line
    return tuple(extents)


# --- products --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """How a product is computed."""

    atom: WarpgroupMMAAtom
    text: str  # of the atom
    groups: int  # warpgroups that multiply, one above the other
    tile: tuple[int, int, int]
    stages: int
    pending: int  # groups of products under way while the next stage is filled
    layouts: tuple[str, str]
    result: tw.DType
    clears: bool

    @property
    def stage_bytes(self) -> int:
        m, n, k = self.tile
        return k * (m * self.atom.dtype_a.storage.bytes + n * self.atom.dtype_b.storage.bytes)


def _write_product(random: Random) -> HopperProgram:
    plan = _plan(random)
    (m, n, k), atom = plan.tile, plan.atom
    line = 16 // min(atom.dtype_a.storage.bytes, atom.dtype_b.storage.bytes)
    extents = [max(1, t * random.randint(1, 2) - random.choice((0, 0, 0, 1, 8, t // 2))) for t in (m, n)]
    depth = max(line, (k * random.randint(1, 5) - random.choice((0, 0, k // 2))) // line * line)
    for mode, (major, dtype) in enumerate(zip(atom.majors, (atom.dtype_a, atom.dtype_b), strict=True)):
        if major == "MN":
            rows = 16 // dtype.storage.bytes
            extents[mode] = -(-extents[mode] // rows) * rows
    whole = atom.dtype_d is not tw.float32
    a_operand, b_operand = (
        _factor(random, name, dtype, (rows, depth), major == "MN", whole)
        for name, dtype, rows, major in zip(
            "AB", (atom.dtype_a, atom.dtype_b), extents, atom.majors, strict=True
        )
    )  # fmt: skip
    exact = a_operand[1] and b_operand[1]
    shape = extents[0], extents[1]
    by_tma = shape[1] * plan.result.bytes % 16 == 0 and n * plan.result.bytes % 16 == 0 and random.random() < 0.6
    adds = by_tma and plan.result in REDUCED["add"] and exact and random.random() < 0.3
    factor = random.choice((1, 1, 2))
    before = _integers(random, plan.result, shape)
    is_roles = random.random() < 0.5
    shares = is_roles and atom.majors[0] == "K" and random.random() < 0.5
    lines = [
        f"MMA = tw.make_tiled_mma({plan.text}, ({plan.groups}, 1, 1))",
        f"LA, LB = {plan.layouts[0]}, {plan.layouts[1]}",
        *_epilogue(random, plan, by_tma, adds, factor),
        "@tw.kernel(cluster=2)" if shares else "@tw.kernel",
        "def kernel(C, A, B):",
        "    sA, sB = tw.shared(A.dtype, LA), tw.shared(B.dtype, LB)",
        *([f"    sC = tw.shared(tw.{plan.result.name}, LC)"] if by_tma else ["    sC = None"]),
        f"    full = tw.mbarrier(1, stages={plan.stages})",
        *(_roles(random, plan, depth, shares) if is_roles else _in_step(plan, depth)),
    ]
    a, b = (each[0].values.astype(np.float64) for each in (a_operand, b_operand))
    a, b = a * atom.signs[0], b * atom.signs[1]
    product = (a @ b.T) * factor
    expected = product.astype(plan.result.numpy)
    limit = None
    if adds:
        expected = before + expected
    if not exact:
        sums = (np.abs(a) @ np.abs(b).T) * factor
        rounding = {2: 2.0**-7, 4: 2.0**-22}[plan.result.bytes]
        limit = (depth + 8) * 2.0**-22 * sums + np.abs(product) * rounding + 1e-30
    operands = (Operand("C", plan.result, shape, before), a_operand[0], b_operand[0])
    columns = -(-shape[1] // n)
    grid = (columns + (columns % 2 if shares else 0), -(-shape[0] // m))
    threads = 128 * (plan.groups + is_roles)
    return HopperProgram("\n".join(lines) + "\n", grid, threads, operands, expected, limit)


def _plan(random: Random) -> _Plan:
    family = random.choice(sorted(FAMILIES))
    if random.random() < 0.5:  # those of 16 bits have majors
        family = random.choice([each for each in sorted(FAMILIES) if "x16_" in each])
    name = random.choice([x for x in FAMILIES[family] if random.random() < 0.15] or FAMILIES[family][:4])
    atom, text = getattr(tw.atoms, name), f"tw.atoms.{name}"
    in_registers = atom.a_place is OperandPlace.REGISTERS
    if atom.dtype_a.bits == 16 and random.random() < 0.5:
        majors = ("K" if in_registers else random.choice(("K", "MN")), random.choice(("K", "MN")))
        atom, text = atom.with_majors(*majors), f"{text}.with_majors{majors}"
    if atom.dtype_d.is_float and random.random() < 0.2:
        signs = random.choice(((1, -1), (-1, 1), (-1, -1)))
        atom, text = atom.with_signs(*signs), f"{text}.with_signs{signs}"
    _, n, k = atom.shape_mnk
    groups = random.choice((1, 1, 2))
    tile = 64 * groups, n, k * random.choice((1, 1, 2, 2, 3, 4, 4))
    stages = random.randint(1, 4)
    while stages > 1 and stages * tile[2] * (tile[0] + n) * atom.dtype_a.storage.bytes > 120_000:
        stages -= 1
    pending = 0 if in_registers else random.randrange(stages)
    while (
        max(
            _boxes(major, dtype, rows, tile[2])
            for major, dtype, rows in zip(atom.majors, (atom.dtype_a, atom.dtype_b), tile[:2], strict=True)
        )
        > MOST_BOXES
    ):  # in one step of K there are fewer
        tile = *tile[:2], tile[2] - k
    layouts = tuple(
        _canonical(random, major, dtype, rows, tile[2], stages)
        for major, dtype, rows in zip(atom.majors, (atom.dtype_a, atom.dtype_b), tile[:2], strict=True)
    )
    sums = atom.dtype_d
    result = random.choice((sums, tw.float16, tw.bfloat16)) if sums is tw.float32 else sums
    return _Plan(atom, text, groups, tile, stages, pending, layouts, result, random.random() < 0.3)


def _boxes(major: str, dtype: tw.DType, rows: int, k: int) -> int:
    """Return how many boxes a tile takes at most, in the layout whose rows are longest: one for 8 of these."""
    along, across = (k, rows) if major == "K" else (rows, k)
    longest = max(span for span in SPANS.values() if along * dtype.storage.bytes % span == 0)
    return along * dtype.storage.bytes // longest * -(-across // 8)


def _canonical(random: Random, major: str, dtype: tw.DType, rows: int, k: int, stages: int) -> str:
    """Return text of a layout of which a descriptor can be made."""
    along = (k if major == "K" else rows) * dtype.storage.bytes
    across = (rows if major == "K" else k) // 8
    kinds = [kind for kind, span in SPANS.items() if along % span == 0 and along // span * across <= MOST_BOXES]
    kind = random.choice(kinds[-2:] if random.random() < 0.7 else kinds)
    order = random.choice(("", "", ", (1, 0, 2)"))
    return f"tw.tile_to_shape(tw.atoms.GMMA_{major}_{kind}(tw.{dtype.storage.name}), ({rows}, {k}, {stages}){order})"


def _factor(
    random: Random, name: str, dtype: tw.DType, shape: tuple[int, int], turned: bool, whole: bool
) -> tuple[Operand, bool]:
    """Return an operand, and whether it holds small integers, as it does where `whole`."""
    is_static = random.random() < 0.5
    if not whole and dtype.storage.bytes > 1 and random.random() < 0.4:
        numbers = np.random.default_rng(random.getrandbits(32))
        values = numbers.integers(-128, 129, shape) / 128 * 2.0 ** -numbers.integers(0, 8, shape)
        return Operand(name, dtype, shape, values.astype(dtype.storage.numpy), turned, is_static), False
    return Operand(name, dtype, shape, _integers(random, dtype, shape, -2, 3), turned, is_static), True


def _load(indent: str, plan: _Plan, step: str, shares: bool = False) -> list[str]:
    """Return the lines that load a stage; of blocks that share A, each loads half of it for both."""
    m, n, k = plan.tile
    if shares:
        stage, half = f"{step} % {plan.stages}", f"({m // 2}, {k})"
        return [
            f"{indent}full[{stage}].arrive_expect_tx({plan.stage_bytes})",
            f"{indent}gA = tw.local_tile(tw.guarded(A), {half}, (2 * tw.block_idx.y + tw.block_rank_in_cluster(), {step}))",
            f"{indent}part = tw.local_tile(sA[:, :, {stage}], {half}, (tw.block_rank_in_cluster(), 0))",
            f"{indent}tw.copy({LOAD}_MULTICAST, gA, part, barrier=full[{stage}], mask=3)",
            f"{indent}gB = tw.local_tile(tw.guarded(B), ({n}, {k}), (tw.block_idx.x, {step}))",
            f"{indent}tw.copy({LOAD}, gB, sB[:, :, {stage}], barrier=full[{stage}])",
        ]
    return [
        f"{indent}full[{step} % {plan.stages}].arrive_expect_tx({plan.stage_bytes})",
        f"{indent}tw.copy({LOAD}, tw.local_tile(tw.guarded(A), ({m}, {k}), (tw.block_idx.y, {step})), "
        f"sA[:, :, {step} % {plan.stages}], barrier=full[{step} % {plan.stages}])",
        f"{indent}tw.copy({LOAD}, tw.local_tile(tw.guarded(B), ({n}, {k}), (tw.block_idx.x, {step})), "
        f"sB[:, :, {step} % {plan.stages}], barrier=full[{step} % {plan.stages}])",
    ]


def _multiply(indent: str, plan: _Plan) -> list[str]:
    """Return the lines that multiply a stage and leave `pending` groups under way."""
    stage, b = f"step % {plan.stages}", "thread.partition_B(sB)[:, :, :, {}]"
    accumulate = "" if plan.clears else ", accumulate=step > 0"
    lines = [f"{indent}full[{stage}].wait(step // {plan.stages} % 2)"]
    if plan.atom.a_place is OperandPlace.REGISTERS:
        lines += [
            f"{indent}pA = thread.partition_A(sA[:, :, {stage}])",
            f"{indent}a = thread.make_fragment_A(pA)",
            f"{indent}tw.copy(pA, a)",
        ]
    else:
        lines += [f"{indent}a = thread.partition_A(sA)[:, :, :, {stage}]"]
    return [
        *lines,
        f"{indent}tw.wgmma_fence()",
        f"{indent}tw.gemm(MMA, a, {b.format(stage)}, acc{accumulate})",
        f"{indent}tw.wgmma_commit()",
        f"{indent}tw.wgmma_wait({plan.pending})",
    ]


def _begin(indent: str, plan: _Plan, tid: str) -> list[str]:
    m, n, _ = plan.tile
    return [
        f"{indent}thread = MMA.get_slice({tid})",
        f'{indent}acc = tw.registers(tw.{plan.atom.dtype_d.name}, MMA.partition_shape(({m}, {n}), "C"))',
        *([f"{indent}tw.clear(acc)"] if plan.clears else []),
    ]


def _in_step(plan: _Plan, depth: int) -> list[str]:
    """All threads multiply, and the first one copies ahead."""
    steps, ahead = -(-depth // plan.tile[2]), plan.stages - 1 - plan.pending
    return [
        "    tw.sync_threads()",
        *_begin("    ", plan, "tw.thread_idx.x"),
        "    if tw.thread_idx.x == 0:",
        f"        for step in range({min(ahead, steps)}):",
        *_load("            ", plan, "step"),
        f"    for step in range({steps}):",
        "        tw.sync_threads()",
        f"        if tw.thread_idx.x == 0 and step + {ahead} < {steps}:",
        *_load("            ", plan, f"(step + {ahead})"),
        *_multiply("        ", plan),
        "    tw.wgmma_wait(0)",
        "    store(C, acc, sC, thread, tw.thread_idx.x)",
    ]


def _roles(random: Random, plan: _Plan, depth: int, shares: bool) -> list[str]:
    """A warpgroup copies, the others multiply; each of these hands a stage back by one thread.

    Where two blocks share A, a stage is handed back to both.
    """
    steps, stages = -(-depth // plan.tile[2]), plan.stages
    budget = random.random() < 0.4 and plan.groups == 2
    last = f"(step - {plan.pending})" if plan.pending else "step"
    # Registers are filled by ordinary loads, of which a thread knows its own only.
    arrivals, who = (
        (128 * plan.groups, "")
        if plan.atom.a_place is OperandPlace.REGISTERS
        else (plan.groups, " and tw.thread_idx.x % 128 == 0")
    )
    return [
        f"    empty = tw.mbarrier({arrivals * (2 if shares else 1)}, stages={stages})",
        "    tw.cluster_sync()" if shares else "    tw.sync_threads()",
        "    if tw.warpgroup_id() == 0:",
        *(["        tw.set_registers(40)"] if budget else []),
        "        if tw.thread_idx.x == 0:",
        f"            for step in range({steps}):",
        f"                empty[step % {stages}].wait((step // {stages} + 1) % 2)",
        *_load("                ", plan, "step", shares),
        "    else:",
        *(["        tw.set_registers(232)"] if budget else []),
        *_begin("        ", plan, "tw.thread_idx.x - 128"),
        f"        for step in range({steps}):",
        *_multiply("            ", plan),
        f"            if {last} >= 0{who}:",
        *(
            [f"                empty[{last} % {stages}].at_rank({rank}).arrive()" for rank in range(2)]
            if shares
            else [f"                empty[{last} % {stages}].arrive()"]
        ),
        "        tw.wgmma_wait(0)",
        "        store(C, acc, sC, thread, tw.thread_idx.x - 128)",
        *(["    tw.cluster_sync()"] if shares else []),  # the other block arrives and copies here until then
    ]


def _epilogue(random: Random, plan: _Plan, by_tma: bool, adds: bool, factor: int) -> list[str]:
    (m, n, _), result = plan.tile, plan.result
    scaled = f"(acc[i] * {factor})" if factor != 1 else "acc[i]"
    lines = [
        "@tw.function",
        "def store(C, acc, sC, thread, tid):",
        f'    out = tw.registers(tw.{result.name}, MMA.partition_shape(({m}, {n}), "C"))',
        "    for i in tw.static_range(tw.size(out.shape)):",
        f"        out[i] = {scaled}.to(tw.{result.name})",
    ]
    if not by_tma:
        where = f"tw.local_tile(C, ({m}, {n}), (tw.block_idx.y, tw.block_idx.x), guard=True)"
        return [*lines, f"    tw.copy(out, thread.partition_C({where}))"]
    kinds = [kind for kind, span in SPANS.items() if n * result.bytes % span == 0 and kind != "INTER"]
    layout = f"tw.row_major(({m}, {n}))"
    if kinds and random.random() < 0.6:
        layout = f"tw.tile_to_shape(tw.atoms.GMMA_K_{random.choice(kinds)}(tw.{result.name}), ({m}, {n}))"
    atom = "tw.atoms.SM90_TMA_REDUCE_ADD" if adds else STORE
    return [
        f"LC = {layout}",
        *lines,
        "    tw.copy(out, thread.partition_C(sC))",
        "    tw.fence_proxy_async()",
        f"    tw.named_barrier(1, {128 * plan.groups}).sync()",
        "    if tid == 0:",
        f"        tw.copy({atom}, sC, tw.local_tile(tw.guarded(C), ({m}, {n}), (tw.block_idx.y, tw.block_idx.x)))",
        "        tw.tma_store_commit()",
        "        tw.tma_store_wait(0)",
    ]
