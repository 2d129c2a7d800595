"""A kernel with every kind of control flow, shared memory, atomics, shuffles and mixed types, for its text."""

from __future__ import annotations

from typing import Any

import tilewright as tw


@tw.function
def clamp(x, low, high):
    """Keep a number between two others."""
    if x < low:
        return low
    return high if x > high else x


@tw.kernel
def histogram_of_steps(counts, longest, mean, x, limit, bins: tw.constexpr):
    """Count the steps of a sequence from each element, by way of shared memory; find the longest and the mean."""
    smem = tw.shared(tw.int32, (bins,))
    tid = tw.thread_idx.x
    for i in range(tid, bins, tw.block_dim.x):
        smem[i] = 0
    tw.sync_threads()

    total = 0.0
    for i in range(tw.block_idx.x * tw.block_dim.x + tid, x.size, tw.grid_dim.x * tw.block_dim.x):
        n, steps = x[i], 0
        while n > 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
            if steps >= limit:
                break
        if steps == 0:
            continue
        tw.atomic_add(smem, clamp(steps, 0, bins - 1), 1)
        tw.atomic_max(longest, 0, steps)
        total += tw.sqrt(steps.to(tw.float32))

    for distance in (16, 8, 4, 2, 1):
        total += tw.shuffle_down(total, distance)
    if tid % 32 == 0 and total > 0:
        tw.atomic_add(mean, 0, total / x.size)
    tw.sync_threads()
    for i in range(tid, bins, tw.block_dim.x):
        if smem[i] != 0:
            tw.atomic_add(counts, i, smem[i].to(tw.int64))


def example_histogram_of_steps() -> tuple[Any, Any, tuple[Any, ...]]:
    """Return grid, block and arguments."""
    vector = tw.spec(tw.int32, 1)
    return 4, 128, (tw.spec(tw.int64, 1), vector, tw.spec(tw.float32, 1), vector, 100, 64)


@tw.kernel(fastmath=True)
def noisy_scores(out, packed, weights, scale, seed):
    """Dot products of packed bytes by exponentials and random numbers: instructions by name, and PTX of one's own."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    total = 0
    for k in range(weights.shape[0]):
        total = tw.dp4a(packed[k, i], weights[k], total)
    score = tw.exp(total * scale) / (1.0 + tw.ex2_approx(scale, ftz=True))
    noise = tw.rand(seed, i) + tw.popcount(tw.match_any(total)).to(tw.float32)
    words = tw.byte_permute(packed[0, i], weights[0], 0x5410) ^ tw.mul_hi(tw.randint(seed, i), 10)
    highest = tw.inline_ptx("bfind.u32 %0, %1;", words, meaning=None, result=tw.uint32)
    out[i] = score * noise + highest.to(tw.float32)


def example_noisy_scores() -> tuple[Any, Any, tuple[Any, ...]]:
    """Return grid, block and arguments."""
    matrix, vector = tw.spec(tw.int32, (64, 4096)), tw.spec(tw.int32, (64,))
    return 16, 256, (tw.spec(tw.float32, (4096,)), matrix, vector, 0.125, 7)
