"""Gradients of attention where a block holds whole heads: which calls it takes, and its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.kernels.attention_plan import AttentionPlan, filling, instruction_of, padded_head, plan_of
from tilewright.layout import Layout
from tilewright.tiled import TiledCopy, make_tiled_copy_A

MOST = 256  # tokens and keys
_MOST_HEAD = 128
_REGISTERS = 1 << 16  # of a multiprocessor
_OTHER_REGISTERS, _FEWEST = 90, 64  # of a thread, beside sums: what it wants, and what it has where more blocks fit
_RESERVED = 1024  # bytes of shared memory that each block takes beside its own


@dataclass(frozen=True)
class HeadsPlan(AttentionPlan):
    """The tiles of a head of keys, whose tokens are taken `columns` at a time; `part` of them are in one product dQ."""

    part: int
    smem_w: Layout  # (rows, part)
    load_w: TiledCopy
    hold1: TiledCopy  # rows of results between shared memory and global memory
    hold2: TiledCopy
    blocks: int  # of a multiprocessor

    @property
    def beside(self) -> int:
        """The threads that hold a row of the result."""
        rows: int = self.hold2.tiler[0]
        return self.threads // rows


@lru_cache(maxsize=256)
def heads_plan(
    dtype: DType, head: int, value_head: int, vector: int, longest: int, arch: Arch, pieces: int | None = None
) -> HeadsPlan | None:
    """Return the plan for so many tokens and keys, or None where a block cannot hold them.

    >>> from tilewright.dtypes import bfloat16
    >>> plan = heads_plan(bfloat16, 64, 64, 16, 197, Arch.parse("sm_90a"))
    >>> plan.rows, plan.part, plan.threads
    (208, 208, 416)

    A warp has `pieces` of 16 keys: few, for the latency of others to be hidden, where shared memory allows it.
    """
    if longest > MOST or max(head, value_head) > _MOST_HEAD or instruction_of(dtype, arch).threads == 1:
        return None
    sizes = padded_head("q and k", head), padded_head("v", value_head)
    pad = VECTOR_BYTES // dtype.bytes
    for each in (pieces,) if pieces else (1, 2):
        warps = -(-longest // (16 * each))
        rows, sums = 16 * each * warps, each * sum(sizes) // 2  # registers
        part = rows // each
        columns = 32 if part % 32 == 0 else 16
        plan = plan_of(dtype, sizes, (rows, columns, rows // columns), vector, arch, True, warps)
        size = plan.shared_bytes(True) + rows * (part + pad) * dtype.bytes + 8 * rows
        if sums <= 128 and 32 * warps * (sums + _OTHER_REGISTERS) <= _REGISTERS and size <= arch.shared_bytes_optin:
            blocks = min(arch.shared_bytes_optin // (size + _RESERVED), _REGISTERS // (32 * warps * (sums + _FEWEST)))
            holds = [filling(dtype, part, size, vector, plan.threads, None) for size in sizes]
            return HeadsPlan(
                **vars(plan), part=part, smem_w=Layout((rows, part), (part + pad, 1)),
                load_w=make_tiled_copy_A(atoms.SM75_U16x8_LDSM_T, plan.mma), hold1=holds[0], hold2=holds[1],
                blocks=max(blocks, 1),
            )  # fmt: skip
    return None
