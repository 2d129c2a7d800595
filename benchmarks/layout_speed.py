"""Time the layout algebra against `tensor-layouts`, call by call, in one run: `python -m benchmarks.layout_speed`.

Each line is one call with the same arguments on both sides, interleaved, the best of several rounds. The layouts
are those that kernels use: tiles of matrices, thread-value layouts, swizzled shared memory, and a few deep ones.
Exit status 1 when the geometric mean is below 2 or a call is slower.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import tensor_layouts as T
import tensor_layouts.layout_utils as U

import tilewright.layout as L

ROUNDS, SHORTEST = 7, 2e-3  # rounds a call, and the least seconds a round


def both(shape: Any, stride: Any = None) -> tuple[Any, Any]:
    return (L.Layout(shape), T.Layout(shape)) if stride is None else (L.Layout(shape, stride), T.Layout(shape, stride))


COL = both((128, 64))
ROW = both((128, 64), (64, 1))
PADDED = both((128, 64), (1, 130))
VECTOR = both(4096)
NESTED = both(((2, 4), (4, (2, 8))), ((1, 16), (2, (8, 64))))
DEEP = both((((2, 2), (2, 2)), ((4, 2), 8)), (((1, 4), (2, 8)), ((16, 64), 128)))
MERGE = both((2, (1, 6), 4, (2, 2)), (1, (6, 2), 12, (48, 96)))
ZEROS = both((4, 8, 2), (1, 0, 4))
BLOCK = both((8, 8), (8, 1))
TILER = both((4, 2))
STEP = both((4, 8), (8, 1))
THREADS = both((32, 8))
VALUES = both((2, 1))
TV = both(((4, 8), (2, 2)), ((32, 1), (16, 8)))
SWIZZLE = (L.Swizzle(3, 3, 3), T.Swizzle(3, 3, 3))
SWIZZLED = (L.composition(SWIZZLE[0], ROW[0]), T.compose(SWIZZLE[1], ROW[1]))

Call = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]
CALLS: list[Call] = [
    ("Layout(shape)", L.Layout, T.Layout, ((128, 64),)),
    ("Layout(shape, stride)", L.Layout, T.Layout, ((128, 64), (64, 1))),
    ("Layout(nested)", L.Layout, T.Layout, (((2, 4), (4, (2, 8))),)),
    ("layout(i)", lambda x: x(77), lambda x: x(77), (ROW,)),
    ("layout(i, j)", lambda x: x(3, 5), lambda x: x(3, 5), (ROW,)),
    ("layout(i), nested", lambda x: x(77), lambda x: x(77), (NESTED,)),
    ("layout((i, j)), nested", lambda x: x((3, 5)), lambda x: x((3, 5)), (NESTED,)),
    ("swizzled(i)", lambda x: x(77), lambda x: x(77), (SWIZZLED,)),
    ("size", L.size, T.size, (NESTED,)),
    ("cosize", L.cosize, T.cosize, (NESTED,)),
    ("rank", L.rank, T.rank, (NESTED,)),
    ("depth", L.depth, T.depth, (DEEP,)),
    ("==", lambda a, b: a == b, lambda a, b: a == b, (NESTED, DEEP)),
    ("hash", hash, hash, (NESTED,)),
    ("str", str, str, (NESTED,)),
    ("idx2crd", L.idx2crd, T.idx2crd, (77, ((2, 4), (4, 8)))),
    ("crd2idx", lambda c, s: L.crd2idx(c, s), lambda c, s: T.crd2idx(c, s), (((1, 2), (3, 4)), ((2, 4), (4, 8)))),
    ("flatten", L.flatten, T.flatten, (DEEP,)),
    ("coalesce, plain", L.coalesce, T.coalesce, (COL,)),
    ("coalesce, nested", L.coalesce, T.coalesce, (MERGE,)),
    ("coalesce, profile", L.coalesce, T.coalesce, (NESTED, (1, 1))),
    ("composition, reshape", L.composition, T.compose, (VECTOR, COL)),
    ("composition, strided", L.composition, T.compose, (ROW, STEP)),
    ("composition, nested", L.composition, T.compose, (DEEP, TILER)),
    ("composition, thread-value", L.composition, T.compose, (COL, TV)),
    ("composition, swizzle", L.composition, T.compose, (SWIZZLE, BLOCK)),
    ("complement, vector", L.complement, T.complement, (both(32, 4), 4096)),
    ("complement, tile", L.complement, T.complement, (both((8, 8), (1, 128)), 8192)),
    ("right_inverse", L.right_inverse, T.right_inverse, (ROW,)),
    ("right_inverse, nested", L.right_inverse, T.right_inverse, (TV,)),
    ("left_inverse", L.left_inverse, T.left_inverse, (ROW,)),
    ("nullspace", L.nullspace, T.nullspace, (ZEROS,)),
    ("max_common_vector", L.max_common_vector, T.max_common_vector, (COL, PADDED)),
    ("max_common_layout", L.max_common_layout, T.max_common_layout, (ROW, ROW)),
    ("logical_divide, tuple", L.logical_divide, T.logical_divide, (ROW, (32, 16))),
    ("logical_divide, layout", L.logical_divide, T.logical_divide, (VECTOR, both(32, 4))),
    ("zipped_divide", L.zipped_divide, T.zipped_divide, (ROW, (32, 16))),
    ("zipped_divide, swizzled", L.zipped_divide, T.zipped_divide, (SWIZZLED, (32, 16))),
    ("tiled_divide", L.tiled_divide, T.tiled_divide, (ROW, (32, 16))),
    ("flat_divide", L.flat_divide, T.flat_divide, (ROW, (32, 16))),
    ("logical_product", L.logical_product, T.logical_product, (BLOCK, TILER)),
    ("zipped_product", L.zipped_product, T.zipped_product, (BLOCK, TILER)),
    ("blocked_product", L.blocked_product, T.blocked_product, (BLOCK, TILER)),
    ("raked_product", L.raked_product, T.raked_product, (THREADS, VALUES)),
    ("tile_to_shape", L.tile_to_shape, U.tile_to_shape, (BLOCK, (128, 64))),
    ("make_ordered_layout", L.make_ordered_layout, U.make_ordered_layout, ((4, 8, 2), (2, 0, 1))),
    ("upcast", L.upcast, T.upcast, (COL, 4)),
    ("downcast", L.downcast, T.downcast, (COL, 4)),
    ("group", L.group, T.group, (DEEP, 0, 2)),
    ("append", L.append, T.append, (COL, BLOCK)),
    ("slice", lambda x: x(None, 3), lambda x: x(None, 3), (ROW,)),
    ("compatible", L.compatible, T.compatible, ((8, 64), ((2, 4), (4, (2, 8))))),
    ("congruent", L.congruent, T.congruent, (((2, 4), (4, 8)), ((1, 1), (1, 1)))),
]


def arguments(values: tuple[Any, ...], side: int) -> tuple[Any, ...]:
    """Return the arguments of one side; a pair made by `both` holds ours and theirs."""
    return tuple(v[side] if isinstance(v, tuple) and len(v) == 2 and _is_pair(v) else v for v in values)


def _is_pair(v: tuple[Any, ...]) -> bool:
    return type(v[0]).__module__.startswith("tilewright")


def seconds(function: Callable[..., Any], args: tuple[Any, ...], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        function(*args)
    return (time.perf_counter() - start) / times


def measure() -> list[tuple[str, float, float]]:
    """Return (name, our seconds, their seconds) of each call."""
    results = []
    for name, ours, theirs, values in CALLS:
        mine, its = arguments(values, 0), arguments(values, 1)
        times = max(int(SHORTEST / seconds(ours, mine, 20)), 10)
        pairs = [(seconds(ours, mine, times), seconds(theirs, its, max(times // 4, 5))) for _ in range(ROUNDS)]
        results.append((name, min(p[0] for p in pairs), min(p[1] for p in pairs)))
    return results


def main() -> int:
    results = measure()
    print(f"{'call':28} {'tilewright':>12} {'tensor-layouts':>15} {'ratio':>7}")
    for name, mine, its in results:
        print(f"{name:28} {mine * 1e6:9.2f} us {its * 1e6:12.2f} us {its / mine:6.1f}x")
    mean = math.exp(sum(math.log(its / mine) for _, mine, its in results) / len(results))
    slower = [name for name, mine, its in results if mine > its]
    print(f"{len(results)} calls, geometric mean {mean:.2f}x; slower: {', '.join(slower) or 'none'}")
    return 0 if mean >= 2 and not slower else 1


if __name__ == "__main__":
    sys.exit(main())
