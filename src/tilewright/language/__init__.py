"""The kernel language: what may be called inside a kernel, and how a kernel's Python becomes IR."""

from __future__ import annotations

from tilewright.frontend.rewrite import function
from tilewright.instructions.barrier import named_barrier, sync_threads, sync_warp
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.instructions.mbarrier import MBarrier as mbarrier  # a word of kernels, like range
from tilewright.instructions.shuffle import shuffle, shuffle_down, shuffle_up, shuffle_xor
from tilewright.instructions.vote import ballot, elect_one, vote_all, vote_any
from tilewright.language.copying import axpby, clear, copy, fill
from tilewright.language.gemm import gemm
from tilewright.language.pipeline import Pipeline as pipeline  # a word of kernels, like range
from tilewright.trace.control import DeviceRange as range  # noqa: A004  # a kernel's range
from tilewright.trace.control import static_range
from tilewright.trace.debug import device_assert, device_print
from tilewright.trace.mathematics import (
    abs,  # noqa: A004  # the field's names, as in NumPy
    acos,
    asin,
    atan,
    atan2,
    cbrt,
    ceil,
    clz,
    copysign,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    fma,
    fmod,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    maximum,
    minimum,
    popcount,
    pow,  # noqa: A004
    round,  # noqa: A004
    rsqrt,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    where,
)
from tilewright.trace.memory import (
    atomic_add,
    atomic_max,
    atomic_min,
    fragment_like,
    registers,
    shared,
)
from tilewright.trace.parameters import constexpr
from tilewright.trace.pointers import pointer, shared_union
from tilewright.trace.threads import block_dim, block_idx, grid_dim, lane_id, thread_idx, warp_id

__all__ = [
    "abs", "acos", "asin", "atan", "atan2", "atomic_add", "atomic_max", "atomic_min", "axpby", "ballot", "block_dim",
    "block_idx", "cbrt", "ceil", "clear", "clz", "constexpr", "copy", "copysign", "cos", "cosh", "cp_async_commit",
    "cp_async_wait", "device_assert", "device_print", "elect_one", "erf", "exp", "exp2", "expm1", "fill", "floor",
    "fma", "fmod", "fragment_like", "function", "gemm", "grid_dim", "isfinite", "isinf", "isnan", "lane_id", "log",
    "log10", "log1p", "log2", "maximum", "mbarrier", "minimum", "named_barrier", "pipeline", "pointer", "popcount",
    "pow", "range", "registers", "round", "rsqrt", "shared", "shared_union", "shuffle", "shuffle_down", "shuffle_up",
    "shuffle_xor", "sin", "sinh", "sqrt", "static_range", "sync_threads", "sync_warp", "tan", "tanh", "thread_idx",
    "trunc", "vote_all", "vote_any", "warp_id", "where",
]  # fmt: skip
