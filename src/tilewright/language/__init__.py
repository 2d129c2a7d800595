"""The kernel language: what may be called inside a kernel, and how a kernel's Python becomes IR."""

from tilewright.frames import hiding_all
from tilewright.frontend.rewrite import function
from tilewright.instructions.approximate import (
    cos_approx,
    div_approx,
    ex2_approx,
    lg2_approx,
    rcp_approx,
    rsqrt_approx,
    sin_approx,
    sqrt_approx,
    tanh_approx,
)
from tilewright.instructions.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exch,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
)
from tilewright.instructions.barrier import named_barrier, sync_threads, sync_warp
from tilewright.instructions.bits import (
    bfe,
    bfi,
    brev,
    byte_permute,
    ffs,
    funnel_shift_left,
    funnel_shift_right,
    lop3,
)
from tilewright.instructions.bulk_groups import tma_store_commit, tma_store_wait
from tilewright.instructions.cluster import (
    block_idx_in_cluster,
    block_rank_in_cluster,
    cluster_arrive,
    cluster_dim,
    cluster_idx,
    cluster_sync,
    cluster_wait,
)
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.instructions.grid_barrier import sync_grid
from tilewright.instructions.grid_dependency import grid_dependency_wait, launch_dependents
from tilewright.instructions.inline_ptx import inline_ptx
from tilewright.instructions.made_maps import make_tensor_map
from tilewright.instructions.match import match_all, match_any
from tilewright.instructions.mbarrier import MBarrier as mbarrier  # a word of kernels, like range
from tilewright.instructions.ordered_access import load, store, threadfence
from tilewright.instructions.products import dp2a, dp4a, mul_hi, sad
from tilewright.instructions.proxy_fence import fence_proxy_async
from tilewright.instructions.redux import redux
from tilewright.instructions.register_budget import set_registers
from tilewright.instructions.shuffle import shuffle, shuffle_down, shuffle_up, shuffle_xor
from tilewright.instructions.tensor_prefetch import prefetch, prefetch_tensor_map
from tilewright.instructions.vote import ballot, elect_one, vote_all, vote_any
from tilewright.instructions.wgmma import wgmma_commit, wgmma_fence, wgmma_wait
from tilewright.language.accumulators import accumulator_rows, as_operand_a, reduce_rows
from tilewright.language.collectives import argmax, argmin, broadcast, reduce, scan
from tilewright.language.copying import axpby, clear, copy, fill, inside
from tilewright.language.gemm import gemm
from tilewright.language.pipeline import pipeline
from tilewright.language.random import (
    philox,
    rand,
    rand4x,
    randint,
    randint4x,
    randn,
    randn4x,
)
from tilewright.language.sorting import sort, topk
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
    fragment_like,
    make_fragment_like,
    make_tensor_like,
    registers,
    shared,
)
from tilewright.trace.parameters import constexpr
from tilewright.trace.pixels import im2col
from tilewright.trace.pointers import pointer, shared_union
from tilewright.trace.threads import block_dim, block_idx, grid_dim, lane_id, thread_idx, warp_id, warpgroup_id

__all__ = [
    "abs", "accumulator_rows", "acos", "argmax", "argmin", "as_operand_a", "asin", "atan", "atan2", "atomic_add",
    "atomic_and", "atomic_cas", "atomic_exch", "atomic_max", "atomic_min", "atomic_or", "atomic_xor", "axpby",
    "ballot", "bfe", "bfi", "block_dim", "block_idx", "block_idx_in_cluster", "block_rank_in_cluster", "brev",
    "broadcast", "byte_permute", "cbrt", "ceil", "clear", "cluster_arrive", "cluster_dim", "cluster_idx",
    "cluster_sync", "cluster_wait", "clz", "constexpr", "copy", "copysign", "cos", "cos_approx", "cosh",
    "cp_async_commit", "cp_async_wait", "device_assert", "device_print", "div_approx", "dp2a", "dp4a", "elect_one",
    "erf", "ex2_approx", "exp", "exp2", "expm1", "fence_proxy_async", "ffs", "fill", "floor", "fma", "fmod",
    "fragment_like", "function", "funnel_shift_left", "funnel_shift_right", "gemm", "grid_dependency_wait",
    "grid_dim", "im2col", "inline_ptx", "inside", "isfinite", "isinf", "isnan", "lane_id", "launch_dependents",
    "lg2_approx", "load", "log", "log10", "log1p", "log2", "lop3", "make_fragment_like", "make_tensor_like",
    "make_tensor_map", "match_all", "match_any", "maximum", "mbarrier", "minimum", "mul_hi", "named_barrier",
    "philox", "pipeline", "pointer", "popcount", "pow", "prefetch", "prefetch_tensor_map", "rand", "rand4x",
    "randint", "randint4x", "randn", "randn4x", "range", "rcp_approx", "reduce", "reduce_rows", "redux",
    "registers", "round", "rsqrt", "rsqrt_approx", "sad", "scan", "set_registers", "shared", "shared_union",
    "shuffle", "shuffle_down", "shuffle_up", "shuffle_xor", "sin", "sin_approx", "sinh", "sort", "sqrt",
    "sqrt_approx", "static_range", "store", "sync_grid", "sync_threads", "sync_warp", "tan", "tanh", "tanh_approx",
    "thread_idx", "threadfence", "tma_store_commit", "tma_store_wait", "topk", "trunc", "vote_all", "vote_any",
    "warp_id", "warpgroup_id", "wgmma_commit", "wgmma_fence", "wgmma_wait", "where",
]  # fmt: skip

hiding_all(globals(), __all__)
