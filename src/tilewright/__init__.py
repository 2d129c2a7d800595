"""Tilewright: GPU kernels written as tiles and layouts, without index arithmetic.

`import tilewright as tw` gives every public name. Names are imported when they are first used (PEP 562), so
that the import itself stays fast and `tilewright.layout` works without NumPy or a compiler.
"""

from __future__ import annotations

import importlib
import sys

from tilewright._version import __version__ as __version__

# Where each public name lives. A name added here belongs in __init__.pyi too, for type checkers; a test compares
# the two.
_EXPORTS: dict[str, tuple[str, ...]] = {
    "dtypes": (
        *("DType", "dtype", "promote", "bool_"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "tfloat32"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    ),
    "errors": (
        *("TilewrightError", "LayoutError", "LanguageError", "ArgumentError", "CompileError", "DeviceError"),
        *("CheckError", "ScheduleError", "TuningError", "InternalError", "TilewrightWarning"),
    ),
    "layout": (
        *("Layout", "Swizzle", "ComposedLayout", "make_layout", "row_major", "col_major", "tile_to_shape"),
        *("size", "cosize", "rank", "depth", "ceil_div", "select", "group", "append", "prepend"),
        *("coalesce", "composition", "complement", "right_inverse", "left_inverse", "max_common_vector"),
        *("logical_divide", "zipped_divide", "tiled_divide", "flat_divide"),
        *("logical_product", "zipped_product", "tiled_product", "flat_product", "blocked_product", "raked_product"),
    ),
    "tensors": (
        *("Tensor", "tensor", "make_tensor", "identity_tensor"),
        *("local_tile", "local_partition", "domain_offset", "guarded"),
    ),
    "tiled": (
        *("TiledCopy", "make_tiled_copy", "make_tiled_copy_A", "make_tiled_copy_B", "make_tiled_copy_C"),
        *("make_tiled_copy_S", "make_tiled_copy_D", "make_tiled_copy_C_atom", "make_cotiled_copy"),
        *("TiledMMA", "make_tiled_mma"),
    ),
    "language": (
        *("constexpr", "function", "range", "static_range"),
        *("thread_idx", "block_idx", "block_dim", "grid_dim", "lane_id", "warp_id", "warpgroup_id"),
        *("cluster_dim", "cluster_idx", "block_idx_in_cluster", "block_rank_in_cluster"),
        *("cluster_sync", "cluster_arrive", "cluster_wait"),
        *("wgmma_fence", "wgmma_commit", "wgmma_wait", "set_registers"),
        *("pointer", "shared_union"),
        *("shared", "registers", "fragment_like", "make_fragment_like", "make_tensor_like"),
        *("sync_threads", "sync_warp", "cp_async_commit", "cp_async_wait", "tma_store_commit", "tma_store_wait"),
        *("pipeline", "named_barrier", "mbarrier", "elect_one"),
        *("copy", "gemm", "fill", "clear", "axpby", "inside", "where", "fma", "minimum", "maximum"),
        *("atomic_add", "atomic_max", "atomic_min", "shuffle", "shuffle_up", "shuffle_down", "shuffle_xor"),
        *("vote_any", "vote_all", "ballot", "redux"),
        *("reduce", "scan", "argmax", "argmin", "broadcast", "sort", "topk"),
        *("accumulator_rows", "as_operand_a", "reduce_rows"),
        *("copy", "gemm", "fill", "clear", "axpby", "where", "fma", "minimum", "maximum"),
        *(
            "atomic_add",
            "atomic_max",
            "atomic_min",
            "atomic_and",
            "atomic_or",
            "atomic_xor",
            "atomic_exch",
            "atomic_cas",
        ),
        *(
            "load",
            "store",
            "threadfence",
            "fence_proxy_async",
            "sync_grid",
            "prefetch",
            "prefetch_tensor_map",
            "im2col",
        ),
        *("grid_dependency_wait", "launch_dependents", "make_tensor_map"),
        *("shuffle", "shuffle_up", "shuffle_down", "shuffle_xor"),
        *("vote_any", "vote_all", "ballot"),
        *("match_any", "match_all", "inline_ptx"),
        *("device_assert", "device_print"),
        *("abs", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "erf"),
        *("floor", "ceil", "trunc", "round", "fmod", "copysign", "isnan", "isinf", "isfinite", "popcount", "clz"),
        *("mul_hi", "dp4a", "dp2a", "sad", "byte_permute", "lop3", "funnel_shift_left", "funnel_shift_right"),
        *("ffs", "brev", "bfe", "bfi"),
        *("ex2_approx", "lg2_approx", "rcp_approx", "rsqrt_approx", "sqrt_approx", "sin_approx", "cos_approx"),
        *("tanh_approx", "div_approx"),
        *("philox", "rand", "rand4x", "randn", "randn4x", "randint", "randint4x"),
    ),
    "products": ("matmul",),
    "kernels.dropout": ("dropout",),
    "kernels.pairs": ("gated",),
    "kernels.attention": ("attention", "attention_backward"),
    "kernels.losses": ("cross_entropy", "cross_entropy_backward"),
    "kernels.permute": ("permute",),
    "kernels.rotary": ("rope",),
    "kernels.rows": ("softmax", "log_softmax", "rms_norm", "layer_norm"),
    "kernels.row_gradients": (
        *("softmax_backward", "log_softmax_backward", "rms_norm_backward", "layer_norm_backward"),
    ),
    "kernels.grouped": ("grouped_matmul",),
    "kernels.quantized": ("quantized", "quantize"),
    "launch": ("kernel", "Kernel"),
    "ahead": ("Package",),
    "runtime.specs": ("spec", "static"),
    "runtime.pointers": ("addresses",),
    "tune": ("autotune", "Config", "Space"),
    "profile": ("simulate",),
    "analysis": ("check",),
    "draw": ("print_typst",),
}

# Submodules that users reach as attributes, without an import of their own.
_SUBMODULES = ("atoms", "bench", "distributed", "draw", "layout", "schedule", "schedulers")

# Those that need a library which Tilewright does not. They are not in `__all__`: `from tilewright import *` would need
# the library too, and `torch` would then be another module than before.
_OPTIONAL = {"jax": "JAX", "torch": "PyTorch"}

_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_SUBMODULES, *_MODULE_OF]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"tilewright.{_MODULE_OF[name]}"), name)
    elif name in _OPTIONAL:
        value = _optional(name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"tilewright.{name}")
    else:
        from tilewright.frames import hide_frames

        try:
            # With both, Python looks for a public name that is spelt alike.
            raise AttributeError(
                f"module 'tilewright' has no attribute {name!r}", name=name, obj=sys.modules["tilewright"]
            )
        except AttributeError as error:
            hide_frames(error)
            raise
    globals()[name] = value
    return value


def _optional(name: str) -> object:
    """Import a submodule that needs a library of the same name."""
    try:
        return importlib.import_module(f"tilewright.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModuleNotFoundError(
            f"tw.{name} needs {_OPTIONAL[name]}, which is not installed: pip install {name}", name=name
        ) from None


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
