"""What can be said of a kernel's speed from its trace alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arguments import instance
from tilewright.backends.sim.predict import predict
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_all
from tilewright.launch import Kernel, Launcher
from tilewright.profile.conflicts import conflicts_of
from tilewright.remarks import Remark


def check(
    kernel: object,
    signature: Sequence[Any] | Mapping[str, Any] = (),  # Any: what a kernel takes, or tw.spec in an array's place
    *,
    block: Any = None,
    arch: str | None = None,
) -> list[Remark]:
    """Return remarks on a kernel's speed that follow from its trace, without running it.

    `signature` holds the arguments, in order or by name: arrays or `tw.spec(dtype, shape)` in their place, numbers, and
    compile-time arguments. The block is that of `kernel[grid, block]`, or `block`; the target is `arch`, else that of
    `kernel.configure(arch=...)`, else sm_90a. Each remark has `.kind`, `.file`, `.line`, `.message` and `.suggestion`:

    "bank-conflict"    shared-memory accesses whose offsets depend on the thread's index alone take more
                       wavefronts than they need; with a layout that fixes it
    "narrow-copy"      a `tw.copy` moves fewer bytes per access than it could, and why
    "wide-number"      a NumPy float64, such as `np.sqrt(2)`, widens arithmetic of narrower floats to float64

    What depends on data, on the block's index or on extents known only at launch is not reported; profile a run for
    that.

    >>> import tilewright as tw
    >>> @tw.kernel
    ... def column(x):
    ...     smem = tw.shared(tw.float32, tw.Layout((32, 32), (32, 1)))
    ...     smem[tw.thread_idx.x, 0] = x[tw.thread_idx.x]
    ...     tw.sync_threads()
    ...     x[tw.thread_idx.x] = smem[31 - tw.thread_idx.x, 0]
    >>> store, load = tw.check(column, (tw.spec(tw.float32, (32,)),), block=32)
    >>> store.kind, store.suggestion.expression
    ('bank-conflict', 'tw.composition(tw.Swizzle(5, 0, 5), tw.Layout((32, 32), (32, 1)))')

    Raises `ArgumentError` for a signature that the kernel does not accept, and `LanguageError` where tracing it fails.
    """
    if isinstance(kernel, Launcher):
        if block is not None:
            raise ArgumentError("tw.check: the block was given twice, in kernel[grid, block] and as block=")
        block = kernel.block
        kernel = kernel.kernel
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"tw.check takes a kernel, got {type(kernel).__name__}", help="decorate the function with @tw.kernel"
        )
    kinds = (list, tuple, Mapping)
    instance("tw.check", "signature", signature, kinds, "a list of arguments, or a dict of them by name")
    named = dict(signature) if isinstance(signature, Mapping) else {}
    positional = () if isinstance(signature, Mapping) else tuple(signature)
    lowered = kernel.lower(*positional, arch=arch, block=block, **named)
    remarks = [r for conflict in conflicts_of(predict(lowered.kernel)) for r in conflict.remarks()]
    return sorted([*remarks, *lowered.kernel.remarks], key=lambda r: (r.file or "", r.line or 0, r.kind))


hiding_all(globals(), ("check",))
