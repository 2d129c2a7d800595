"""Layer norm of each row of a matrix, y = (x - mean) / sqrt(variance + eps) * weight + bias, and its gradients.

Forward: a row stays in registers from its sums to what is written. Sum and sum of squares are taken of x - first, the
distances from the row's first element, in one collective: mean(x^2) - mean(x)^2 itself loses everything where rows
are far from zero. It still loses digits where the first element is far from all others. Two collectives, with the
squares of x - mean, lose none and take 5 % longer. Elements outside of a row have no distance: `tw.inside` leaves them
out.

Backward: with x^ = (x - mean) * rstd and g = dy * weight,

    dx = rstd * (g - mean(g) - x^ * mean(g * x^)),    dweight = sum over rows of dy * x^,    dbias = sum of dy.

A block goes through many rows, and keeps its part of dweight and dbias in registers. At the end it adds them to one of
a few partial sums, of which each has a lock: taking it acquires, so that the block sees what the last owner has added,
and giving it back releases. `tw.sync_threads` hands both on between the thread that has the lock and the block. A
second kernel adds up the partial sums, and leaves zeros for the next launch. In the simulator, a lock that is taken or
given back without acquire and release is a race, found at the addition.

Rows may have any length; what the threads' registers do not hold (backward: of bfloat16 rows above 8192 elements) is
spilled.

Run it: `tilewright demo examples/kernels/layer_norm.py`, or `python examples/kernels/layer_norm.py`
"""

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@tw.kernel
def forward(y, mean, rstd, x, weight, bias, eps: tw.float32, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute a row for each thread number along y; `columns` is that of a row's tile, at least those of x."""
    at, thread = tw.block_idx.x * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    rows = tw.guarded(x)[at, ...], tw.guarded(y)[at, ...], tw.guarded(weight), tw.guarded(bias)
    x_part, y_part, w_part, b_part = (thread.partition_S(tw.local_tile(row, (columns,), 0)) for row in rows)
    held, first, w = +x_part, tw.guarded(x)[at, 0].to(tw.float32), +w_part
    apart = tw.where(tw.inside(x_part), held.to(tw.float32) - first, 0)
    sums = tw.reduce((apart.reduce("add"), (apart * apart).reduce("add")), "add", tiles.size)
    shift, squares = (s / x.shape[1] for s in sums)
    scale = tw.rsqrt(squares - shift * shift + eps)
    for i in tw.static_range(tw.size(apart.shape[1])):  # at once, all weights and biases would be in registers too
        y_part[:, i] = (apart[:, i] - shift) * scale * w[:, i].to(tw.float32) + b_part[:, i].to(tw.float32)
    if tw.thread_idx.x == 0:
        tw.guarded(mean)[at], tw.guarded(rstd)[at] = first + shift, scale


@tw.kernel
def backward(dx, partial, locks, dy, x, mean, rstd, weight, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute dx of every row, and add to partial[lock, 0 and 1] dweight and dbias of the rows of a block."""
    thread = tiles.get_slice(tw.thread_idx.x)

    def part(row):
        return thread.partition_S(tw.local_tile(row, (columns,), 0, guard=True))

    w = part(weight).to(tw.float32)
    dweight, dbias = (tw.fragment_like(w) for _ in "wb")
    tw.clear(dweight)
    tw.clear(dbias)
    for row in range(tw.block_idx.x, x.shape[0], tw.grid_dim.x):
        gradient = part(dy[row, ...]).to(tw.float32)  # 0 outside, as w is: nothing outside counts
        x_hat = (part(x[row, ...]).to(tw.float32) - mean[row]) * rstd[row]
        g = gradient * w
        shift, slope = (s / x.shape[1] for s in tw.reduce((g.reduce("add"), (g * x_hat).reduce("add"))))
        part(dx[row, ...])[...] = (g - (shift + x_hat * slope)) * rstd[row]
        dweight += gradient * x_hat
        dbias += gradient
    mine = tw.block_idx.x % locks.shape[0]
    if tw.thread_idx.x == 0:
        while tw.atomic_cas(locks, mine, 0, 1, sem="acquire") != 0:
            pass
    tw.sync_threads()
    for k, sums in enumerate((dweight, dbias)):
        total = part(partial[mine, k, ...])
        total += sums
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.store(locks, mine, 0, sem="release")


@tw.kernel
def add_partial(dweight, dbias, partial):
    """Add up the partial sums, one column a thread, and leave zeros."""
    column = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    for k, out in enumerate((dweight, dbias)):
        sums, total = tw.guarded(partial[:, k, :]), 0.0
        for lock in range(partial.shape[0]):
            total += sums[lock, column]
            sums[lock, column] = 0
        tw.guarded(out)[column] = total


LOCKS = 64  # partial sums of dweight and dbias
THREADS = 1024  # of a multiprocessor, at least: 64 registers each


@cache
def plan_for(dtype: tw.DType, columns: int, accesses: int):
    """Return the copy of a row, its threads, and the elements of its tile."""
    width = 16 // dtype.bytes
    threads = min(1024, 1 << (tw.ceil_div(columns, accesses * width) - 1).bit_length())
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    return tiles, threads, tw.ceil_div(columns, threads * width) * threads * width


def launch(y, mean, rstd, x, weight, bias, eps: float = 1e-5) -> None:
    """Compute layer norm of the rows of x, and for the gradients mean and rstd, float32 numbers of each row."""
    (rows, columns) = x.shape
    tiles, threads, held = plan_for(describe(x).dtype, columns, accesses=4)
    block = (threads, max(1, 128 // threads))
    kernel = forward.configure(min_blocks=THREADS // (block[0] * block[1]))
    kernel[tw.ceil_div(rows, block[1]), block](y, mean, rstd, x, weight, bias, eps, tiles, held)


def launch_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, partial, locks) -> None:
    """Compute the gradients of layer norm.

    `partial` is float32 of (locks, 2, columns), `locks` int32, LOCKS of them or as many as you like. Both hold zeros
    before the first launch, and again after each.
    """
    rows, columns = x.shape
    tiles, threads, held = plan_for(describe(x).dtype, columns, accesses=1)
    blocks = min(rows, 132 * THREADS // threads)  # what 132 multiprocessors hold at a time
    backward[blocks, threads](dx, partial, locks, dy, x, mean, rstd, weight, tiles, held)
    add_partial[tw.ceil_div(columns, 128), 128](dweight, dbias, partial)


def reference(x, weight, bias, dy, eps: float = 1e-5) -> dict[str, np.ndarray]:
    """Return all results in float64."""
    x, weight, bias, dy = (a.astype(np.float64) for a in (x, weight, bias, dy))
    mean = x.mean(1)
    rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(1) + eps)
    x_hat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    dx = (g - g.mean(1, keepdims=True) - x_hat * (g * x_hat).mean(1, keepdims=True)) * rstd[:, None]
    return {
        "y": x_hat * weight + bias,
        "mean": mean,
        "rstd": rstd,
        "dx": dx,
        "dweight": (dy * x_hat).sum(0),
        "dbias": dy.sum(0),
    }


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: a row in a block, and several short rows."""
    shapes = [(9, 1024), (37, 77)] if quick else [(4096, 4096), (2048, 16384)]
    return [_case(shape, backend, backwards) for shape in shapes for backwards in (False, True)]


def _case(shape: tuple[int, int], backend: Backend, backwards: bool) -> Case:
    (rows, columns), bfloat16 = shape, tw.bfloat16.numpy

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        host = [random.standard_normal(s, dtype=np.float32).astype(bfloat16) for s in (shape, columns, columns, shape)]
        expected = reference(*host)
        x, weight, bias, dy = (put(a, backend) for a in host)
        if backwards:
            mean, rstd = (put(expected[name].astype(np.float32), backend) for name in ("mean", "rstd"))
            partial, locks = (put(np.zeros(s, t), backend) for s, t in (((LOCKS, 2, columns), "f4"), (LOCKS, "i4")))
            out = [put(np.full(s, np.nan).astype(bfloat16), backend) for s in (shape, columns, columns)]
            run = lambda: launch_backward(*out, dy, x, mean, rstd, weight, partial, locks)  # noqa: E731
        else:
            out = [
                put(np.full(s, np.nan).astype(t), backend) for s, t in ((shape, bfloat16), (rows, "f4"), (rows, "f4"))
            ]
            run = lambda: launch(*out, x, weight, bias)  # noqa: E731
        names = ("dx", "dweight", "dbias") if backwards else ("y", "mean", "rstd")
        scales = [np.abs(expected[name]).max() for name in names]
        return Trial(
            run,
            lambda: np.concatenate([_host(a).ravel() / s for a, s in zip(out, scales, strict=True)]),
            np.concatenate([expected[name].ravel() / s for name, s in zip(names, scales, strict=True)]),
            limit=0.01,
        )

    name, arrays = ("layer norm, gradients", 6) if backwards else ("layer norm", 4)
    return Case(name, f"{rows} x {columns} bfloat16", prepare, bytes_moved=arrays * rows * columns)


def _host(a) -> np.ndarray:
    return fetch(a.float() if hasattr(a, "float") else a).astype(np.float64)


def example_forward():
    """Return grid, block and arguments for `tilewright show examples/kernels/layer_norm.py:forward`."""
    matrix, row, each = (
        tw.spec(tw.bfloat16, (16384, 4096)),
        tw.spec(tw.bfloat16, (4096,)),
        tw.spec(tw.float32, (16384,)),
    )
    tiles, threads, held = plan_for(tw.bfloat16, 4096, accesses=4)
    return 16384, (threads, 1), (matrix, each, each, matrix, row, row, 1e-5, tiles, held)


def example_backward():
    """Return grid, block and arguments for `tilewright show examples/kernels/layer_norm.py:backward`."""
    matrix, row, each = (
        tw.spec(tw.bfloat16, (16384, 4096)),
        tw.spec(tw.bfloat16, (4096,)),
        tw.spec(tw.float32, (16384,)),
    )
    partial, locks = tw.spec(tw.float32, (LOCKS, 2, 4096)), tw.spec(tw.int32, (LOCKS,))
    tiles, threads, held = plan_for(tw.bfloat16, 4096, accesses=1)
    return 264, threads, (matrix, partial, locks, matrix, matrix, each, each, row, tiles, held)


if __name__ == "__main__":
    main(cases)
