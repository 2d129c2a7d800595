"""What a kernel may ask of its target and its launch: whole warps, and arithmetic that the target has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilewright.arch import Arch
from tilewright.dtypes import FLOAT8
from tilewright.errors import LanguageError
from tilewright.ir.core import Kernel, Op
from tilewright.ir.ops import Cast, CastPair

if TYPE_CHECKING:
    from tilewright.lang.tracer import Tracer

_FLOAT8_ARCH = 89  # PTX ISA, "cvt": .e4m3x2 and .e5m2x2 need sm_89


def demand_whole_warps(tracer: Tracer, what: str, lanes: int = 0) -> None:
    """Refuse what lanes, by default those of a warp, do together in a block whose last warp has no whole such group.

    Threads fill warps by their linear number, and the lanes behind the last thread do not exist: a matrix instruction
    of such a warp is undefined, and a shuffle may read a lane that holds nothing. Under a branch, which may leave that
    warp out, the simulator watches who comes.
    """
    if tracer.block_shape is None or tracer.branch_depth:
        return
    lanes = lanes or tracer.arch.warp_size
    threads = math.prod(tracer.block_shape)
    if threads % lanes == 0:
        return
    below = threads // lanes * lanes
    raise LanguageError(
        f"{what} is done by {lanes} lanes together, and the block of {threads} threads leaves "
        f"{threads - below} in its last group",
        details=[f"block: {' x '.join(map(str, tracer.block_shape))} threads"],
        help=f"launch blocks of a multiple of {lanes} threads: {below + lanes}" + (f" or {below}" if below else ""),
    )


def refuse_missing_arithmetic(kernel: Kernel, arch: Arch) -> None:
    """Raise `LanguageError` at a conversion from or to an 8-bit float that the target has no instruction for.

    Arithmetic on them converts to float32 and back, so there is no other op.
    """
    if arch.number >= _FLOAT8_ARCH:
        return
    for op in kernel.body.walk():
        if isinstance(op, (Cast, CastPair)) and (op.x.dtype in FLOAT8 or op.result.dtype in FLOAT8):
            raise _refusal(op, arch)


def _refusal(op: Op, arch: Arch) -> LanguageError:
    return LanguageError(
        f"arithmetic and conversion of 8-bit floats need sm_89 or later, and the target is {arch}",
        details=[f"{op.operands[0].dtype} to {op.result.dtype}"],
        location=op.location,
        help="copying them works everywhere; convert on the host, or keep the data in float16",
    )
