"""Attention by warpgroups on Hopper: which calls it takes, and its tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.layout import ComposedLayout, Layout, tile_to_shape
from tilewright.runtime.views import View
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy_C, make_tiled_mma

Layouts = tuple[ComposedLayout, ...]

WARPGROUP = 128
HEADS = (64, 128, 192, 256)
FEWEST = 40  # elements of a head: mma.sync has smaller tiles for 32 and less
_TYPES = {bfloat16: "F32BF16BF16", float16: "F32F16F16"}
NARROW = 64  # rows of a tile of one consumer
CACHED = 1 << 26  # bytes of tokens or keys that are taken together, near what the L2 cache keeps
# Tokens and keys up to which tiles of mma.sync took less time on an H200, by the head.
_SHORT = {64: 32, 128: 64}
_FEW_KEYS = 1024  # up to which several small blocks of a multiprocessor take less time than a large one
# By the head: keys, and stages of Q and of K and V.
_NARROW_TILES = {64: (160, 1, 10), 128: (128, 1, 6), 192: (96, 1, 5), 256: (64, 1, 5)}
_MOST_STAGES = 12  # of smaller tiles of K and V
_MOST_SCALE = 64.0  # of scores in units of log 2: the least score times it is finite


@dataclass(frozen=True)
class HopperAttentionPlan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time.

    `has_left` and `has_right` say on which sides of the key beside it a token sees a number of keys only. Parts of keys
    (`is_in_parts`) have results of their own in float32.
    """

    rows: int  # of Q in a tile: 64 for each consumer
    keys: int  # in a tile of K and V
    head: int  # elements of a head in shared memory
    depth: int  # those of Q and K that are multiplied: the others are zeros
    value_head: int  # those of V
    has_left: bool
    has_right: bool
    smem_q: ComposedLayout  # (rows, head, stages)
    smem_kv: ComposedLayout  # (keys, head, stages)
    scores: TiledMMA  # S = Q K^T
    output: TiledMMA  # O += P V
    write: TiledCopy  # a consumer's fragments of O to shared memory
    registers: tuple[int, int]  # of the producer and of a consumer
    is_in_parts: bool
    blocks: int = 1  # of a multiprocessor

    @property
    def consumers(self) -> int:
        """How many warpgroups multiply."""
        return self.rows // 64

    @property
    def is_lazy(self) -> bool:
        """Whether sums are scaled only where scores grow by much: a branch, which spills registers of long heads."""
        return self.head < 256

    @property
    def threads(self) -> int:
        """The threads of a block: those of the producer too."""
        return WARPGROUP * (1 + self.consumers)


def filled(elements: int) -> int:
    """Return the elements of tiles: TMA fills heads up with zeros."""
    return next(head for head in HEADS if elements <= head)


def multiplied(elements: int) -> int:
    """Return the elements of heads that an instruction adds up products of: 16 at a time."""
    return -(-elements // 16) * 16


def is_low(elements: int, tokens: int) -> bool:
    """Say whether tiles of 128 rows are worth it for heads of 64 elements: those of 192 would be mostly empty.

    >>> is_low(64, 197), is_low(64, 512), is_low(128, 197)
    (True, False, False)
    """
    return filled(elements) == 64 and 1.2 * 128 * -(-tokens // 128) < 192 * -(-tokens // 192)


def is_short(elements: int, tokens: int, keys: int) -> bool:
    """Say whether tiles of mma.sync take less time: one of tokens and one of keys, of few of both."""
    return max(tokens, keys) <= _SHORT.get(filled(elements), 0)


def is_small(elements: int, keys: int) -> bool:
    """Say whether sequences have so few keys that several small blocks of a multiprocessor serve them better.

    What a tile waits for at its begin and its end is hidden by others then; a large one brings keys in less often.
    """
    return filled(elements) == 64 and keys <= _FEW_KEYS


def keys_of(keys: int, most: int, is_masked: bool = False) -> int:
    """Return the keys of a tile, `most` at most, for so many keys of a sequence.

    A step takes as long as 8 keys beside its products, and nothing hides a part of the first one. Masks want what
    `most` is, if not all keys are few.

    >>> keys_of(197, 80), keys_of(384, 80), keys_of(197, 160), keys_of(1024, 160), keys_of(4096, 160)
    (80, 64, 112, 128, 160)
    """
    if keys > (128 if is_masked else _FEW_KEYS):
        return most
    return min(range(64, most + 1, 16), key=lambda each: -(-keys // each) * (each + 8) + 0.2 * each, default=most)


def heads_together(views: Sequence[View], grid: int) -> int:
    """Return how many heads a causal mask's tiles are taken of in turn: all, or a part whose keys L2 keeps.

    The part divides the grid into at most 6, so that blocks still get tiles of all lengths.
    """
    _, q, k, _ = views
    heads, of_head = q.shape[0] * q.shape[1], 2 * math.prod(k.shape) * k.dtype.bytes // (q.shape[0] * q.shape[1])
    parts = (grid // n for n in range(1, 7) if grid % n == 0)
    return min(heads, next((n for n in parts if min(n, heads) * of_head <= CACHED), heads))


@lru_cache(maxsize=64)
def hopper_plan(
    dtype: DType,
    elements: int,
    has_left: bool,
    has_right: bool,
    keys: int | None = None,
    *,
    is_low: bool = False,
    is_narrow: bool = False,
    is_in_parts: bool = False,
    values: int | None = None,
    is_cut: bool = False,
    is_small: bool = False,
) -> HopperAttentionPlan:
    """Return the plan for float16 or bfloat16 and up to 256 elements a head; `keys` is another tile of keys.

    `values` are the elements of a head of V, if they are fewer.

    A narrow one has 64 rows: for so few tokens it is the keys' way from memory that takes the time. A low one has 128
    for heads of 64 elements, too. Where sequences are cut out of arrays (`is_cut`), where they are takes registers:
    tiles have fewer keys, and of long heads 64 rows. A small one is one of three blocks of a multiprocessor.

    >>> plan = hopper_plan(bfloat16, 128, False, True)
    >>> plan.rows, plan.keys, plan.threads
    (128, 128, 384)
    """
    head, value_head = filled(elements), filled(values or elements)
    # What registers and shared memory hold; masks need registers too, and 160 keys are too coarse for the diagonal.
    is_masked = has_left or has_right
    rows, most, q_stages, stages = {
        64: (192, 96 if has_left and has_right else 112, 2, 8),
        128: (128, 128 if is_masked else 160, 2, 4),
        192: (128, 80 if is_masked and value_head == 192 else 112, 1, 4),
        256: (128, 80 if not is_masked else 48 if has_left and has_right else 64, 1, 4),
    }[head]
    if is_low and head == 64:
        rows, most = 128, 128 if is_masked else 160
    if is_small:
        rows, most, stages = NARROW, 64 if is_masked else 80, 7 if is_masked else 5
    elif is_narrow or (is_cut and head == 256):
        rows, most, q_stages, stages = NARROW, *_NARROW_TILES[head]
        if is_cut and is_in_parts:
            most -= 32 if head == 64 else 16
    elif is_cut:
        both = has_left and has_right
        if value_head == 192:
            most = 64 if both else 80
        else:
            most = (80 if both else 96) if head == 64 else 112 if both else min(most, 144)
    elif is_in_parts and head == 256:
        most = 48  # where they are stored takes registers too
    tile, consumers, types = keys or most, rows // 64, _TYPES[dtype]
    stages = max(min(stages * most // tile, _MOST_STAGES), 2)
    lines = atoms.GMMA_K_SW128(dtype)
    product = getattr(atoms, f"SM90_64x{value_head}x16_{types}_RS").with_majors("K", "MN")
    smem_q, smem_kv = tile_to_shape(lines, (rows, head, q_stages)), tile_to_shape(lines, (tile, head, stages))
    assert isinstance(smem_q, ComposedLayout) and isinstance(smem_kv, ComposedLayout)
    return HopperAttentionPlan(
        rows,
        tile,
        head,
        multiplied(elements),
        value_head,
        has_left,
        has_right,
        smem_q,
        smem_kv,
        make_tiled_mma(getattr(atoms, f"SM90_64x{tile}x16_{types}_SS"), (consumers, 1, 1)),
        make_tiled_mma(product, (consumers, 1, 1)),
        make_tiled_copy_C(atoms.SM90_U32x4_STSM_N, make_tiled_mma(product)),
        (24, 136) if is_small else (32, 160) if consumers == 3 else (24, 240),
        is_in_parts,
        3 if is_small else 1,
    )


@dataclass(frozen=True)
class HopperGradientPlan:
    """The tiles of all gradients: `rows` are keys, which stay, and `columns` tokens, which go by.

    A consumer has 64 keys of its own; of long heads both have the same 64, and a half of the head each (`is_divided`).
    """

    rows: int
    columns: int
    head: int
    value_head: int
    depths: tuple[int, int]  # elements of a head that S and dP add up products of
    smem_kv: Layouts  # K and V: (rows, head); if divided, both in one (rows, head, 2)
    smem_qg: Layouts  # Q and dO: (columns, head, stages); if divided, (columns, head, 2 stages)
    smem_w: ComposedLayout  # (rows, columns, stages), or P and W
    smem_tokens: ComposedLayout  # (columns, head)
    smem_numbers: Layout  # (columns, stages)
    smem_sums: Layout  # (rows of 256 values, 256, consumers), of a piece
    quads: Layout  # the same as (four values, thread, value, consumer)
    scores: TiledMMA  # S = K Q^T
    sums: TiledMMA  # dK += W Q
    value_sums: TiledMMA  # dV += P dO
    tokens: TiledMMA  # dQ = W^T K
    write: TiledCopy  # P and W to shared memory
    read: TiledCopy  # P from there
    write_tokens: TiledCopy  # dQ to shared memory
    parts: int  # products that dQ is divided into
    pieces: int  # that a consumer's dQ goes through shared memory in
    stages: int = 2
    consumers: int = 2
    registers: tuple[int, int] = (24, 240)  # of the producer, and warps that add, and of a consumer
    threads: int = 3 * WARPGROUP

    @property
    def is_divided(self) -> bool:
        """Whether one consumer computes P and the other one W."""
        return self.rows == 64

    @property
    def head_beside(self) -> int:
        """The elements of tiles of V and dO."""
        return self.head if self.is_divided else self.value_head

    @property
    def is_tight(self) -> bool:
        """Whether a consumer's registers hold dK and dV of its keys and one product, but not the next one."""
        return not self.is_divided and self.head > 128

    @property
    def writers(self) -> int:
        """How many consumers write to a stage of W, or to P."""
        return 1 if self.is_divided else self.consumers


def _both(heads: Sequence[tuple[Any, int]], rows: int, stages: tuple[int, ...], in_one: bool) -> Layouts:
    """Return the layouts of K and V, or Q and dO: (rows, head, stages) each, or one that has all stages of both."""
    if not in_one:
        return tuple(tile_to_shape(atom, (rows, head, *stages)) for atom, head in heads)
    atom, head = heads[0]
    return (tile_to_shape(atom, (rows, head, 2 * math.prod(stages))),)


@lru_cache(maxsize=64)
def hopper_gradient_plan(
    dtype: DType, elements: int, ordered: bool = True, values: int | None = None
) -> HopperGradientPlan:
    """Return the plan of all gradients, for heads of up to 256 elements; `values` are those of V, if they are fewer.

    Where blocks add in one order, a third stage of W lets consumers run apart, and takes longer; for long heads there
    is no room for it, or for two.

    >>> plan = hopper_gradient_plan(bfloat16, 128)
    >>> plan.rows, plan.columns, plan.threads
    (128, 64, 384)
    """
    values = values or elements
    head, value_head = filled(elements), filled(values)
    if head == 256 and value_head != 128:  # a half is of whole lines
        value_head = head
    # A consumer's registers hold dK and dV of 64 keys and 128 elements, and 32 numbers of dQ beside them; or of half of
    # 192 and 48; or of 192 and 128, and 48. Shared memory has room for 16 numbers of each thread beside two stages of
    # heads of 256.
    rows, columns, parts, pieces = {
        64: (128, 128, 1, 1),
        128: (128, 64, 1, 1),
        192: (64, 64, 1, 1),
        256: (64, 64, 2, 4),
    }[head]
    if head == 192 and value_head <= 128:
        rows = 128
    stages, types, lines = HopperGradientPlan.stages, _TYPES[dtype], atoms.GMMA_K_SW128(dtype)
    is_divided = rows == 64
    of_w = 2 if ordered or is_divided else 3
    if head > 128 and not is_divided:  # or there would be no room for all of dQ
        of_w = 1
    of_heads = atoms.GMMA_K_SW64(dtype) if head == 192 else lines  # half of a head is not whole lines of 64
    both = (of_heads, head), (lines, value_head)
    of_keys, of_tokens = _both(both, rows, (), is_divided), _both(both, columns, (stages,), is_divided)
    of_weights, of_sums = tile_to_shape(lines, (rows, columns, of_w)), tile_to_shape(of_heads, (columns, head))
    # Consumers share the head of dQ, or its tokens; and the keys of dK and dV, or their head.
    over, by_keys = (1, 2, 1) if columns == 64 else (2, 1, 1), (rows // 64, 1, 1)
    apart = (1, 2, 1) if is_divided else by_keys
    scores = make_tiled_mma(getattr(atoms, f"SM90_64x{columns}x16_{types}_SS"), by_keys)
    sums, value_sums = (
        make_tiled_mma(
            getattr(atoms, f"SM90_64x{n // apart[1]}x16_{types}_{kind}").with_majors("K", "MN"),
            apart,
        )
        for n, kind in ((head, "SS" if head > 128 else "RS"), (value_head, "SS" if is_divided else "RS"))
    )
    turned = getattr(atoms, f"SM90_64x{head // over[1] // parts}x16_{types}_SS").with_majors("MN", "MN")
    tokens = make_tiled_mma(turned, over)
    lines_of_sums = columns * head // 512 // pieces
    return HopperGradientPlan(
        rows,
        columns,
        head,
        value_head,
        (multiplied(elements), multiplied(values)),
        of_keys,
        of_tokens,
        of_weights,
        of_sums,
        Layout((columns, stages)),
        Layout((lines_of_sums, 256, 2), (256, 1, 256 * lines_of_sums)),
        Layout((lines_of_sums // 2, WARPGROUP, 4, 2), (512, 4, 1, 256 * lines_of_sums)),
        scores,
        sums,
        value_sums,
        tokens,
        make_tiled_copy_C(atoms.SM90_U32x4_STSM_N, scores),
        make_tiled_copy_C(atoms.SM75_U32x4_LDSM_N, scores),
        make_tiled_copy_C(atoms.SM90_U32x4_STSM_N, tokens),
        parts,
        pieces,
        registers=(40, 232) if is_divided else (24, 240),
    )


def why_not(views: Sequence[View], factor: float, arch: Arch) -> str | None:
    """Return why a call cannot be computed by warpgroups, or None if it can.

    `views` are out, q, k and v; `factor` is the scale in units of log 2.
    """
    out, q, _, v = views
    if arch.name != "sm_90a":
        return f"{arch.name} has no wgmma"
    if q.dtype not in _TYPES or out.dtype != q.dtype:
        return f"wgmma takes A of float16 or bfloat16 from registers, and q is {q.dtype}"
    heads = q.shape[3], v.shape[3]
    if not FEWEST <= min(heads) <= max(heads) <= HEADS[-1] or filled(heads[1]) > filled(heads[0]):
        return (
            f"heads have {heads[0]} and {heads[1]} elements, and tiles {FEWEST} to {HEADS[-1]}, no more of V than of K"
        )
    if any(head * q.dtype.bytes % VECTOR_BYTES for head in heads):
        return f"TMA stores whole {VECTOR_BYTES} bytes, and heads have {heads[0]} and {heads[1]} elements"
    if not 0 < factor <= _MOST_SCALE:
        return f"scores are scaled after their maximum is taken, and {factor} changes their order or overflows"
    for x in views:
        steps = [s for s, extent in zip(x.strides[:3], x.shape[:3], strict=True) if extent > 1]
        if x.strides[3] != 1 or x.pointer % VECTOR_BYTES or 0 in x.shape:
            return "TMA needs contiguous heads at multiples of 16 bytes, and an element at least"
        if any(s <= 0 or s * x.dtype.bytes % VECTOR_BYTES for s in steps):
            return "TMA needs strides that are positive multiples of 16 bytes"
    return None
