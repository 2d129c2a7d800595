"""Multiply batches of matrices: C[b] = A[b] B[b], on tensor cores, with the batch bound to BLOCK_Z.

The nest has a fourth loop, and nothing else about it is new: the loop over the batch is outermost, carries no sums, and
is bound as any other. The same logic with other accesses is another batched product:

- `batched`: A[b, i, k] * B[b, k, j].
- `shared_weights`: A[b, i, k] * W[k, j], one matrix for all of the batch. Caches follow from what is accessed, so the
  tile of W is the same for all blocks along z, which read it from the L2 cache.
- `by_heads`: A[i, b, k] * B[j, b, k], as attention has its scores Q K^T: (position, head, channel) lies in memory, the
  batch runs through heads in the middle, and k is the contiguous mode of both.

The size of the batch is a `Dimension`, known only when the kernel is launched: one kernel serves all batches.

Run it: `python examples/schedule/09_batched_matmul.py`
"""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.schedule import Array, Dimension, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target

Size = int | Dimension


def batched(batch: Size, m: int, n: int, k: int) -> Plan:
    """Return the plan of C[b] = A[b] B[b]."""
    A = Array(Role.INPUT, tw.float16, (batch, m, k))
    B = Array(Role.INPUT, tw.float16, (batch, k, n))
    C = Array(Role.OUTPUT, tw.float32, (batch, m, n))
    nest = Nest((batch, m, n, k))
    b, i, j, p = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[b, i, j] += A[b, i, p] * B[b, p, j]

    return on_tensor_cores(nest, A, B, C)


def shared_weights(batch: Size, m: int, n: int, k: int) -> Plan:
    """Return the plan of C[b] = A[b] W."""
    A = Array(Role.INPUT, tw.float16, (batch, m, k))
    W = Array(Role.INPUT, tw.float16, (k, n))
    C = Array(Role.OUTPUT, tw.float32, (batch, m, n))
    nest = Nest((batch, m, n, k))
    b, i, j, p = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[b, i, j] += A[b, i, p] * W[p, j]

    return on_tensor_cores(nest, A, W, C)


def by_heads(heads: Size, m: int, n: int, k: int) -> Plan:
    """Return the plan of C[h, i, j] = sum of Q[i, h, c] K[j, h, c] over the channels c."""
    Q = Array(Role.INPUT, tw.float16, (m, heads, k))
    K = Array(Role.INPUT, tw.float16, (n, heads, k))
    C = Array(Role.OUTPUT, tw.float32, (heads, m, n))
    nest = Nest((heads, m, n, k))
    h, i, j, c = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[h, i, j] += Q[i, h, c] * K[j, h, c]

    return on_tensor_cores(nest, Q, K, C)


def on_tensor_cores(nest: Nest, A: Array, B: Array, C: Array) -> Plan:
    """Return the plan: one matrix of the batch for each block along z, 64 x 64 of C a block and 32 x 32 a warp."""
    schedule, target, shape = nest.create_schedule(), Target(), MMAShape.M16N16K16
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape)
    b, i, j, k = schedule.get_indices()
    i_warp, j_warp, k_step = schedule.tile({i: 64, j: 64, k: 32})
    i_tile, j_tile = schedule.tile({i_warp: 32, j_warp: 32})
    ii, jj, kk = schedule.tile({i_tile: m, j_tile: n, k_step: depth})
    schedule.reorder(b, i, j, k, i_warp, j_warp, k_step, i_tile, j_tile, ii, jj, kk)
    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({b: unit.BLOCK_Z, i: unit.BLOCK_Y, j: unit.BLOCK_X, i_warp: unit.WARP_Y, j_warp: unit.WARP_X})
    for operand in (A, B):
        plan.cache(operand, index=k_step, pipeline_stages=3)
        plan.cache(operand, index=i_tile, location=Location.MMA_FRAGMENT, double_buffer=True)
    plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), shape, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the three products."""
    extents = (3, 64, 128, 64) if quick else (32, 1024, 1024, 128)
    return [
        _case("batch", batched, "bmk", "bkn", extents, backend),
        _case("batch, shared weights", shared_weights, "bmk", "kn", extents, backend),
        _case("batch of heads", by_heads, "mbk", "nbk", extents, backend),
    ]


def _case(
    name: str, make: Callable[..., Plan], modes_a: str, modes_b: str, extents: tuple[int, ...], backend: Backend
) -> Case:
    """Return a case; the letters of `modes_a` and `modes_b` are the modes of A and B."""
    batch, m, n, k = extents
    sizes = dict(zip("bmnk", extents, strict=True))

    def prepare() -> Trial:
        kernel = make(Dimension("batch"), m, n, k).build(make.__name__)
        random = np.random.default_rng(0)
        a, b = (
            random.standard_normal([sizes[x] for x in of], np.float32).astype(np.float16) for of in (modes_a, modes_b)
        )
        A, B, C = put(a, backend), put(b, backend), put(np.full((batch, m, n), np.nan, np.float32), backend)
        left, right = (
            np.einsum(f"{of}->{''.join(x for x in to if x in of)}", x.astype(np.float64))
            for of, to, x in zip((modes_a, modes_b), ("bmk", "bkn"), (a, b), strict=True)
        )
        expected = left @ right
        limit = k * 2.0**-23 * k**0.5 * 16  # rounding of the sums
        return Trial(lambda: kernel(A, B, C), lambda: fetch(C), expected, limit)

    return Case(name, f"{batch} x {m} x {n} x {k} float16", prepare, flops=2 * batch * m * n * k)


if __name__ == "__main__":
    main(cases)
