"""The tiles of attention by ordinary products: which instruction multiplies, and how tiles travel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import CopyAtom, MMAAtom, UniversalCopy, UniversalFMA
from tilewright.dtypes import DType, bfloat16, float16, float32, float64
from tilewright.errors import ArgumentError
from tilewright.instructions import cp_async
from tilewright.kernels.multistage_plan import instruction_for
from tilewright.layout import Layout
from tilewright.runtime.views import View
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

MOST_HEAD = 256
HEADS = (16, 32, 64, 96, 128, 192, MOST_HEAD)  # what heads are filled up to with zeros


@dataclass(frozen=True)
class AttentionPlan:
    """Tiles of `rows` by `columns`, how they are copied, and how they are multiplied.

    `smem_p` is where weights pass through shared memory, because their threads are not those that multiply by them.
    """

    dtype: DType
    rows: int
    columns: int
    head: int
    value_head: int
    stages: int
    mma: TiledMMA
    smem_a1: Layout  # (rows, head)
    smem_a2: Layout  # (rows, value_head), of gradients alone
    smem_b1: Layout  # (columns, head, stages)
    smem_b2: Layout  # (columns, value_head, stages)
    smem_p: Layout | None
    fill1: TiledCopy
    fill2: TiledCopy
    load_a: TiledCopy
    load_b: TiledCopy
    load_t: TiledCopy
    is_async: bool

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.mma.size

    def shared_bytes(self, is_backward: bool) -> int:
        """Return what a block takes of shared memory."""
        parts = [self.smem_a1, self.smem_b1, self.smem_b2]
        parts += [self.smem_a2] if is_backward else []
        if self.smem_p is not None:
            parts += [self.smem_p, self.smem_p] if is_backward else [self.smem_p]
        total = 0
        for layout in parts:
            count = layout.cosize
            assert isinstance(count, int), layout
            total += count * self.dtype.bytes
        return total


def alignment_of(views: Sequence[View]) -> int:
    """Return the bytes at which all rows begin, at most 16; those of an element where rows are not contiguous."""
    found = VECTOR_BYTES
    for x in views:
        size = x.dtype.bytes
        steps = [s * size for s, extent in zip(x.strides[:-1], x.shape[:-1], strict=True) if extent > 1]
        aligned = math.gcd(x.pointer, VECTOR_BYTES, *steps)
        found = min(found, aligned if x.strides[-1] == 1 or x.shape[-1] == 1 else size)
    return found


def padded_head(name: str, head: int) -> int:
    """Return the elements that a head is filled up to; raise `ArgumentError` for heads that are too long.

    >>> padded_head("q", 80)
    96
    """
    if head > MOST_HEAD:
        raise ArgumentError(
            f"heads of {name} have {head} elements, and attention takes up to {MOST_HEAD}",
            help="the accumulators of longer heads fill the registers; split the products: tw.matmul and tw.softmax",
        )
    return next(n for n in HEADS if n >= head)


@lru_cache(maxsize=1024)
def plan_for(
    dtype: DType, head: int, value_head: int, vector: int, longest: int, arch: Arch, is_backward: bool
) -> AttentionPlan:
    """Return the plan for heads of so many elements; `vector` is how many bytes one access may take.

    `longest` is the greater one of the numbers of tokens and keys: fewer than a tile need smaller ones.

    >>> plan = plan_for(bfloat16, 128, 128, 16, 4096, Arch.parse("sm_90a"), False)
    >>> plan.rows, plan.columns, plan.stages, plan.mma.atom.name
    (64, 64, 2, 'SM80_16x8x16_F32BF16BF16F32_TN')

    Raises `ArgumentError` where no tile fits into the target's shared memory.
    """
    sizes = padded_head("q and k", head), padded_head("v", value_head)
    smallest = None
    for rows, columns, stages in _tiles(dtype, longest, arch, is_backward):
        warps = rows // 16 if rows < 64 and instruction_of(dtype, arch).threads > 1 else None
        plan = plan_of(dtype, sizes, (rows, columns, stages), vector, arch, is_backward, warps)
        if plan.shared_bytes(is_backward) <= arch.shared_bytes_optin:
            return plan
        smallest = plan
    assert smallest is not None
    raise ArgumentError(
        f"attention of heads of {head} {dtype} takes {smallest.shared_bytes(is_backward)} bytes of shared memory, "
        f"and a block of {arch.name} has {arch.shared_bytes_optin}"
    )


def _tiles(dtype: DType, longest: int, arch: Arch, is_backward: bool) -> Iterator[tuple[int, int, int]]:
    """Return rows, columns and stages, the best first."""
    if instruction_of(dtype, arch).threads > 1:
        if longest <= 64 and not is_backward:  # small ones, of which a multiprocessor holds many
            yield (64, 32, 2) if longest > 32 else (32 if longest > 16 else 16, 16, 2)
        yield from ((64, 64, 2), (64, 32, 2), (64, 32, 1), (32, 32, 1))
        return
    if longest > 32 and dtype != float64:
        yield (64, 64, 2)
    if longest > 16:
        yield from ((32, 32, 2), (32, 32, 1))
    yield from ((16, 16, 2), (16, 16, 1))


def instruction_of(dtype: DType, arch: Arch) -> MMAAtom:
    """Return what multiplies elements of a type: multiply-adds where a target has no matrix instruction for it."""
    # The instruction of sm_75 has half the depth of those that tiles are loaded for.
    found = instruction_for(dtype, dtype, dtype, arch) if dtype in (float16, bfloat16) and arch.has_cp_async else None
    return found or UniversalFMA(float64 if dtype == float64 else float32, dtype)


def plan_of(
    dtype: DType,
    heads: tuple[int, int],
    tile: tuple[int, int, int],
    vector: int,
    arch: Arch,
    is_backward: bool,
    warps: int | None = None,
) -> AttentionPlan:
    """Return the plan of a tile; `warps` are those along its rows, if they are not 4."""
    rows, columns, stages = tile
    atom = instruction_of(dtype, arch)
    if atom.threads == 1:
        mma = make_tiled_mma(atom, Layout((16, 16), (16, 1)))
        load_a: CopyAtom = UniversalCopy(dtype.bits)
        load_b = load_t = load_a
        is_direct = False
    else:
        # Accumulators of long heads fill the registers: twice the warps share them, and weights pass through memory.
        is_direct = not is_backward or max(heads) <= 128
        along_n = 1 if is_direct else 2
        along_m = warps or 4
        mma = make_tiled_mma(atom, (along_m, along_n, 1), (16 * along_m, 16 * along_n, 16))
        heads = max(heads[0], 16 * along_n), max(heads[1], 16 * along_n)  # the warps along N multiply whole tiles
        load_a = load_b = atoms.SM75_U32x4_LDSM_N
        load_t = atoms.SM75_U16x8_LDSM_T
    # Rows are padded by 16 bytes, so that ldmatrix meets every bank once.
    pad, (head, value_head) = VECTOR_BYTES // dtype.bytes, heads
    strides = head + pad, value_head + pad
    filled = rows if warps and is_backward else min(rows, columns)
    fills = [filling(dtype, filled, size, vector, mma.size, arch) for size in heads]
    return AttentionPlan(
        dtype,
        rows,
        columns,
        head,
        value_head,
        stages,
        mma,
        Layout((rows, head), (strides[0], 1)),
        Layout((rows, value_head), (strides[1], 1)),
        Layout((columns, head, stages), (strides[0], 1, columns * strides[0])),
        Layout((columns, value_head, stages), (strides[1], 1, columns * strides[1])),
        None if is_direct else Layout((rows, columns), (columns + pad, 1)),
        fills[0],
        fills[1],
        make_tiled_copy_A(load_a, mma),
        make_tiled_copy_B(load_b, mma),
        make_tiled_copy_B(load_t, mma),
        arch.has_cp_async,
    )


def filling(dtype: DType, rows: int, head: int, vector: int, threads: int, arch: Arch | None) -> TiledCopy:
    """Return the copy of a tile of rows into shared memory, or from there where `arch` is None.

    It is as wide as alignment, tile and threads allow.
    """
    width = max(1, min(vector, VECTOR_BYTES) // dtype.bytes)
    while True:
        vectors = head // width
        beside = math.gcd(vectors & -vectors, threads)  # threads along a row
        if rows % (threads // beside) == 0 or width == 1:
            break
        width //= 2
    bits = width * dtype.bits
    atom = (arch and cp_async.atom_for(bits, arch)) or UniversalCopy(bits)
    return make_tiled_copy(atom, Layout((threads // beside, beside), (beside, 1)), Layout((1, width)))
