"""Which scales of blocks the accumulators of a thread need: one for rows or columns side by side that share a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.kernels.problem import Problem
from tilewright.tensors.construction import identity_tensor
from tilewright.tiled import TiledMMA


@dataclass(frozen=True)
class ScaleReads:
    """The scales that a thread reads for a step of K: of the blocks of its rows (`mode` 0) or columns (1) of a tile.

    `groups` has the number of the scale for each accumulator, and `firsts` how far behind the thread's first row or
    column those lie that tell the block of each scale. A block has `span` rows or columns. A tile has rows or columns
    of `held` blocks at most. Where they are `boxed`, TMA brings those of all rows or columns to each stage.
    """

    mode: int
    span: int
    groups: tuple[int, ...]
    firsts: tuple[int, ...]
    held: int
    boxed: bool = False


def scale_reads(
    problem: Problem, mma: TiledMMA, tile: tuple[int, int], is_swapped: bool = False
) -> tuple[ScaleReads, ...]:
    """Return what a kernel reads of each array of scales; with `is_swapped` its rows are columns of D."""
    return tuple(_reads(mma, tile, int((x.of == "B") is not is_swapped), x.rows) for x in problem.blocks)


@lru_cache(maxsize=256)
def _reads(mma: TiledMMA, tile: tuple[int, int], mode: int, span: int) -> ScaleReads:
    places = identity_tensor(tile)
    part = mma.get_slice(0).partition_C(places)
    count = part.layout.size
    assert isinstance(count, int), mma
    offsets = [part[i][mode] for i in range(count)]
    step = math.gcd(tile[mode], span)  # tiles begin at multiples of it
    firsts = [0] if step == 1 else sorted({mma.get_slice(n).partition_C(places)[0][mode] for n in range(mma.size)})
    blocks = [tuple((first + offset) // step for first in firsts) for offset in offsets]
    distinct = list(dict.fromkeys(blocks))
    groups = tuple(distinct.index(block) for block in blocks)
    of_thread = tuple(offsets[groups.index(n)] for n in range(len(distinct)))
    held = len(distinct) if span == 1 else max((s + max(of_thread)) // span for s in range(0, span, step)) + 1
    return ScaleReads(mode, span, groups, of_thread, held)
