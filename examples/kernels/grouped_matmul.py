"""Multiply many pairs of matrices by one launch, outs[g] = xs[g] weights[g]^T: the layers of a mixture of experts.

Each expert gets its own number of tokens, from none to many, so that its product has its own number of tiles. With one
launch for each expert, most of the GPU would be idle at the end of each launch. Here the tiles of all products are
numbered in one sequence, with a block for each tile. `starts` says with which tile each product begins, and a block
looks for the product of its tile: its threads count together how many products begin at this tile or before.

The matrices are anywhere in memory: the kernel gets arrays of their addresses (`tw.addresses`), and makes tensors there
(`tw.pointer`, `tw.make_tensor`). Only the numbers of rows are read on the GPU; the other two extents are those of all
products, and compiled in. The tiles are guarded, so that nothing else is said of products whose rows no tile divides.

A block multiplies as in examples/tensorcore/03_multistage.py: cp.async fills a ring of stages, ldmatrix brings 16 of K
at a time into registers, and mma.sync adds up in float32. Tiles that use the same weights are next to one another, so
that weights come from memory once. With few rows a product is bound by reading weights: tiles of 64 rows, and two
blocks at a time on a multiprocessor.

The arrays have rows without gaps and begin at multiples of 16 bytes, and K is a multiple of 8.

Run it: `tilewright demo examples/kernels/grouped_matmul.py`, or `python examples/kernels/grouped_matmul.py`
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe
from tilewright.runtime.memory import DeviceArray


@dataclass(frozen=True)
class Plan:
    """Everything that the kernel knows at compile time."""

    dtype: tw.DType  # of xs and weights
    out_dtype: tw.DType
    n: int
    k: int
    tile: tuple[int, int, int]
    stages: int
    smem_x: tw.ComposedLayout  # (rows, K, stages)
    smem_w: tw.ComposedLayout  # (N, K, stages)
    fill: tw.TiledCopy  # global to shared memory
    load_x: tw.TiledCopy  # shared memory to fragments
    load_w: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def grouped_matmul(outs, xs, weights, rows, starts, plan: tw.constexpr):
    """Compute one tile of the product that begins at its number or before."""
    tid, number = tw.thread_idx.x, tw.block_idx.x
    begun = tw.int32(0)
    for i in range(tid, starts.size, THREADS):
        begun += starts[i] <= number
    g = tw.reduce(begun) - 1

    tiles_m = tw.ceil_div(rows[g], plan.tile[0])
    m, n = (number - starts[g]) % tiles_m, (number - starts[g]) // tiles_m
    x, w, out = (
        tw.make_tensor(tw.pointer(at[g], dtype, align=16), tw.Layout(shape, (shape[1], 1)))
        for at, dtype, shape in (
            (xs, plan.dtype, (rows[g], plan.k)),
            (weights, plan.dtype, (plan.n, plan.k)),
            (outs, plan.out_dtype, (rows[g], plan.n)),
        )
    )
    acc = multiply(x, w, m, n, plan)
    out_tile = tw.local_tile(out, plan.tile[:2], (m, n), guard=True)
    tw.copy(acc.to(out.dtype), plan.mma.get_slice(tid).partition_C(out_tile))


@tw.function
def multiply(x, w, m, n, plan):
    """Return the accumulator of a tile: tiles of x and w go through a ring of stages."""
    tid, pipe = tw.thread_idx.x, tw.pipeline(plan.stages)
    filler, thread = plan.fill.get_slice(tid), plan.mma.get_slice(tid)
    sX, sW = tw.shared(x.dtype, plan.smem_x), tw.shared(w.dtype, plan.smem_w)
    (rows, columns, depth), tiles_k = plan.tile, tw.ceil_div(plan.k, plan.tile[2])

    def fill(k, stage):
        if k < tiles_k:
            for matrix, smem, shape, place in ((x, sX, (rows, depth), m), (w, sW, (columns, depth), n)):
                tile = tw.local_tile(matrix, shape, (place, k), guard=True)
                tw.copy(plan.fill, filler.partition_S(tile), filler.partition_D(smem[:, :, stage]))
        pipe.commit()

    rX, rW = thread.partition_fragment_A(sX[:, :, 0]), thread.partition_fragment_B(sW[:, :, 0])
    acc = tw.registers(tw.float32, plan.mma.partition_shape((rows, columns), "C"))
    loader_x, loader_w = plan.load_x.get_slice(tid), plan.load_w.get_slice(tid)
    tw.clear(acc)
    for k in tw.static_range(pipe.ahead):
        fill(k, k)
    for k in tw.range(tiles_k, unroll=1):
        pipe.wait()
        fill(k + pipe.ahead, pipe.write_stage(k))
        stage = pipe.read_stage(k)
        for i in tw.static_range(depth // 16):
            tw.copy(plan.load_x, loader_x.partition_S(sX)[:, :, i, stage], loader_x.retile_D(rX)[:, :, i])
            tw.copy(plan.load_w, loader_w.partition_S(sW)[:, :, i, stage], loader_w.retile_D(rW)[:, :, i])
            tw.gemm(plan.mma, acc, rX[:, :, i], rW[:, :, i], acc)
    return acc


THREADS = 256
MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(dtype: tw.DType, out_dtype: tw.DType, n: int, k: int, few_rows: bool) -> Plan:
    """Return the plan for element types, the extents N and K, and products of about 64 rows or of more."""
    rows, columns, stages = (64, 128, 4) if few_rows else (128, 256, 3)
    mma = tw.make_tiled_mma(MMA_OF[dtype], (2, 4, 1), (32, 64, 16))
    # A row of 64 elements is all 32 banks; its parts of 16 bytes change places with the row's number.
    swizzled = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((8, 64), (64, 1)))
    threads = tw.Layout((THREADS // 8, 8), (8, 1))
    return Plan(
        dtype,
        out_dtype,
        n,
        k,
        (rows, columns, 64),
        stages,
        tw.tile_to_shape(swizzled, (rows, 64, stages)),
        tw.tile_to_shape(swizzled, (columns, 64, stages)),
        tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), threads, tw.Layout((1, 8))),
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        mma,
    )


class Products:
    """The arguments of a launch, to be prepared once where lists of arrays are multiplied again and again."""

    def __init__(self, outs: list, xs: list, weights: list):
        self.rows = np.array([x.shape[0] for x in xs], np.int32)
        n, k = weights[0].shape
        for g, (out, x, w) in enumerate(zip(outs, xs, weights, strict=True)):
            shapes, expected = (out.shape, x.shape, w.shape), ((x.shape[0], n), (x.shape[0], k), (n, k))
            if tuple(map(tuple, shapes)) != expected or k % 8:
                raise tw.ArgumentError(
                    f"product {g}: expected outs, xs and weights of {expected}, K a multiple of 8, got {shapes}"
                )
            for info in map(describe, (out, x, w)):
                if info.size and (info.pointer % 16 or (info.strides != (info.shape[1], 1) and info.shape[0] > 1)):
                    raise tw.ArgumentError(
                        f"product {g}: expected rows without gaps from a multiple of 16 bytes on, got strides of"
                        f" {info.strides} elements from {info.pointer:#x} on"
                    )
        self.plan = plan_for(describe(xs[0]).dtype, describe(outs[0]).dtype, n, k, self.rows.mean() <= 96)
        tiles = -(-self.rows // self.plan.tile[0]) * tw.ceil_div(n, self.plan.tile[1])
        starts = np.concatenate([[0], np.cumsum(tiles)]).astype(np.int32)
        self.tiles = int(starts[-1])
        device = describe(xs[0]).device
        rows, starts = (
            a if device == "cpu" else DeviceArray.from_numpy(a, ordinal=device) for a in (self.rows, starts)
        )
        self.arguments = (*(tw.addresses(arrays) for arrays in (outs, xs, weights)), rows, starts, self.plan)

    def launch(self) -> None:
        """Compute all products."""
        grouped_matmul[self.tiles, THREADS](*self.arguments)


def launch(outs: list, xs: list, weights: list) -> None:
    """Compute outs[g] = xs[g] weights[g]^T for float16 or bfloat16 xs (rows of their own, K) and weights (N, K)."""
    Products(outs, xs, weights).launch()


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: few rows and many, uneven ones, and products without any."""
    if quick:
        return [_case([3, 0, 70, 1, 0], 136, 72, backend), _case([300, 0, 129], 264, 72, backend)]
    return [
        _case([0, 17, 33, 250, 64, 1, 120, 27], 14336, 4096, backend),
        _case([1024, 100, 2048, 24, 1000, 1001, 1995, 1000], 14336, 4096, backend),
    ]


def _case(rows: list[int], n: int, k: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        dtype = np.float16 if backend == "cuda" else ml_dtypes.bfloat16  # NumPy has no bfloat16 that goes to a GPU
        host_x = [random.standard_normal((m, k), dtype=np.float32).astype(dtype) for m in rows]
        host_w = [random.standard_normal((n, k), dtype=np.float32).astype(dtype) for _ in rows]
        xs, weights = ([put(a, backend) for a in arrays] for arrays in (host_x, host_w))
        outs = [put(np.full((m, n), np.nan, dtype), backend) for m in rows]
        products = Products(outs, xs, weights)
        checked = np.r_[: min(n, 256)]  # columns: in float32 on the host, all of them take long
        expected = np.concatenate(
            [x.astype(np.float32) @ w[checked].astype(np.float32).T for x, w in zip(host_x, host_w, strict=True)]
        )
        library = None
        if hasattr(xs[0], "data_ptr"):
            library = lambda: [x @ w.T for x, w in zip(xs, weights, strict=True)]  # noqa: E731
        return Trial(
            products.launch,
            lambda: np.concatenate([fetch(out)[:, checked].astype(np.float32) for out in outs]),
            expected,
            limit=6 * k**0.5 * float(ml_dtypes.finfo(dtype).eps) + k * 2.0**-23 * 32,
            library=library,
        )

    name = f"grouped product, {len(rows)} groups"
    return Case(name, f"{sum(rows)} x {n} x {k}", prepare, flops=2 * sum(rows) * n * k)


def example_grouped_matmul():
    """Return grid, block and arguments for `tilewright show examples/kernels/grouped_matmul.py:grouped_matmul`."""
    addresses, rows, starts = tw.spec(tw.uint64, (8,)), tw.spec(tw.int32, (8,)), tw.spec(tw.int32, (9,))
    plan = plan_for(tw.bfloat16, tw.bfloat16, 14336, 4096, few_rows=False)
    return 3584, THREADS, (addresses, addresses, addresses, rows, starts, plan)


if __name__ == "__main__":
    main(cases)
