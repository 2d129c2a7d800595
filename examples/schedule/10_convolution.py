"""Convolve images on tensor cores: a product over channels, summed over the taps of a filter.

    Y[b, y, x, o] = sum over dy, dx, c of X[b, y + dy, x + dx, c] * W[dy, dx, c, o]

Images lie as (batch, row, column, channel). For one tap the columns of an output row, the channels o and the channels c
are M, N and K of a matrix product: X moves with x and c, W with c and o, Y with x and o. So (x, o, c) are tensorized,
and dy and dx are further loops of the sum: the fragments of Y are kept while all three run. Nothing is copied into a
matrix of patches; x + dx is an affine place like any other.

What a cache holds follows from the loops inside of its index:

- X is cached outside of dy and dx: a block brings its rows and columns with the border that the taps reach over, once
  for each step of channels, and reads every element of them up to nine times.
- W is cached at the same place: all taps of some channels, for the 4 warps of the block, which take a row each.

Boxes of such extents have no swizzle, so `layout` gives them strides: pixels 24 elements apart rather than 16, so that
the eight rows that ldmatrix reads at once lie in different banks.

Extents are any number: beyond the ends of X and W the caches hold zeros, and Y is not stored. `on_threads` is the same
nest on threads alone; it has a nest of its own set Y to zero where instructions have SET.

Run it: `python examples/schedule/10_convolution.py`
"""

import math
from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.schedule import Array, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target, fuse

TAPS = 3


def convolution(batch: int, rows: int, columns: int, inputs: int, outputs: int) -> tuple[Nest, Array, Array, Array]:
    """Return the nest, X, W and Y; `rows` and `columns` are those of Y."""
    X = Array(Role.INPUT, tw.float16, (batch, rows + TAPS - 1, columns + TAPS - 1, inputs))
    W = Array(Role.INPUT, tw.float16, (TAPS, TAPS, inputs, outputs))
    Y = Array(Role.OUTPUT, tw.float32, (batch, rows, columns, outputs))
    nest = Nest((batch, rows, columns, outputs, inputs, TAPS, TAPS))
    b, y, x, o, c, dy, dx = nest.get_indices()

    @nest.iteration_logic
    def _():
        Y[b, y, x, o] += X[b, y + dy, x + dx, c] * W[dy, dx, c, o]

    return nest, X, W, Y


def packed(*extents: int) -> tuple[int, ...]:
    """Return the strides of a row-major array of these extents; a box may take less of them than there is."""
    return tuple(math.prod(extents[mode + 1 :]) for mode in range(len(extents)))


def on_tensor_cores(*extents: int) -> Plan:
    """Return the plan with matrix instructions: a warp for each of 4 rows, 32 columns and 32 channels."""
    nest, X, W, Y = convolution(*extents)
    schedule, target, shape = nest.create_schedule(), Target(), MMAShape.M16N16K16
    m, n, k = target.tensor_core_info.compute_tensor_splits(shape)
    b, y, x, o, c, dy, dx = schedule.get_indices()
    y_warp, x_tile, o_tile = schedule.tile({y: 4, x: 32, o: 32})
    xx, oo, cc = schedule.tile({x_tile: m, o_tile: n, c: k})
    schedule.reorder(b, y, x, o, y_warp, c, dy, dx, x_tile, o_tile, xx, oo, cc)
    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({(b, y): unit.BLOCK_Z, x: unit.BLOCK_Y, o: unit.BLOCK_X, y_warp: unit.WARP_Y})
    plan.cache(X, index=dy, double_buffer=True, layout=packed(1, 4 + TAPS - 1, 32 + TAPS - 1, k + 8))
    plan.cache(W, index=dy, double_buffer=True, layout=packed(TAPS, TAPS, k, 32 + 8))
    plan.cache(Y, index=c, location=Location.MMA_FRAGMENT)
    plan.tensorize((xx, oo, cc), shape, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan


def on_threads(*extents: int) -> Plan:
    """Return the plan without: 4 columns and 32 channels a block, one element of Y a thread, sums in registers."""
    nest, _, _, Y = convolution(*extents)
    zero = Nest(Y.shape)
    b, y, x, o = zero.get_indices()

    @zero.iteration_logic
    def _():
        Y[b, y, x, o] = 0.0

    target = Target()
    schedule = fuse(zero.create_schedule(), nest.create_schedule(), partial=4)
    b, y, x, o, f, c, dy, dx = schedule.get_indices()
    xx, oo = schedule.tile({x: 4, o: 32})
    schedule.reorder(b, y, x, o, xx, oo, f, dy, dx, c)
    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({(b, y): unit.BLOCK_Z, x: unit.BLOCK_Y, o: unit.BLOCK_X, xx: unit.THREAD_Y, oo: unit.THREAD_X})
    plan.cache(Y, index=f, location=Location.PRIVATE)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return both plans, each with extents that it takes: batch, rows, columns, channels of X, channels of Y."""
    tiled, odd = ((2, 3, 32, 32, 32), (1, 3, 7, 5, 34)) if quick else ((32, 55, 64, 128, 128), (8, 55, 57, 61, 67))
    return [
        _case("convolution on tensor cores", on_tensor_cores, tiled, backend),
        _case("convolution on threads", on_threads, odd, backend),
    ]


def _case(name: str, make: Callable[..., Plan], extents: tuple[int, ...], backend: Backend) -> Case:
    batch, rows, columns, inputs, outputs = extents
    terms = TAPS * TAPS * inputs

    def prepare() -> Trial:
        kernel = make(*extents).build("convolution")
        random = np.random.default_rng(0)
        x = random.standard_normal((batch, rows + TAPS - 1, columns + TAPS - 1, inputs), np.float32).astype(np.float16)
        w = random.standard_normal((TAPS, TAPS, inputs, outputs), np.float32).astype(np.float16)
        X, W = put(x, backend), put(w, backend)
        Y = put(np.full((batch, rows, columns, outputs), np.nan, np.float32), backend)
        expected = sum(
            x[:, dy : dy + rows, dx : dx + columns].astype(np.float64) @ w[dy, dx].astype(np.float64)
            for dy in range(TAPS)
            for dx in range(TAPS)
        )
        limit = terms * 2.0**-23 * terms**0.5 * 16  # rounding of the sums
        return Trial(lambda: kernel(X, W, Y), lambda: fetch(Y), expected, limit)

    return Case(name, " x ".join(map(str, extents)), prepare, flops=2 * batch * rows * columns * outputs * terms)


if __name__ == "__main__":
    main(cases)
