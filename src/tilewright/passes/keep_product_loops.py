"""Keep loops around products of warpgroups with 16-bit sums from being unrolled by the compiler.

    for (k = 0; k < 3; k += 1) {               #pragma unroll 1
        wgmma into halves; wait            ->  for (k = 0; k < 3; k += 1) { ... }
    }

Where NVRTC unrolls such a loop, of few trips that it knows, no loop is left between the last product and what reads its
sums. ptxas then takes the two halves of a register, used alike behind the wait, together, moves that before the wait,
and runs all products one after the other for it (its advisory C7514). Behind a loop it does not.
"""

from __future__ import annotations

from tilewright.ir.core import Kernel, Op, Space
from tilewright.ir.effects import Completion
from tilewright.ir.ops import For


def keep_product_loops(kernel: Kernel) -> None:
    """Mark the loops that hold such products and that nobody chose to unroll."""
    for op in kernel.body.walk():
        if isinstance(op, For) and op.unroll is None and any(map(_sums_halves, op.body.walk())):
            op.unroll = 1


def _sums_halves(op: Op) -> bool:
    return op.effects.asynchronous is Completion.WARPGROUP and any(
        buffer.root.space is Space.REGISTER and buffer.root.dtype.bytes == 2 for buffer in op.buffers_written
    )
