"""Dropout: set elements to zero at random, and scale the others so that the mean stays.

A random number is a function of a seed and an offset (Philox), so no mask is stored: the backward pass is the same
kernel on the gradient, with the same seed.

Each thread takes eight neighbours by one access of 16 bytes, and one call of the generator, whose 128 bits are a
number of 16 bits for each of them. So p is a multiple of 2^-16: the one nearest to what was asked for, and the scale is
that one's. Whether an element is kept follows from the seed and its place alone, not from type, shape or block.

What that costs on an H200: at 4.1 TB/s a copy moves 4.6 elements of 16 bits a clock and multiprocessor, which issues
128 instructions a clock, so that eight elements may take 222. They take 135, 57 of them the generator's. With 32 bits
for each element it would be 168, and with a call of the generator for each element 385.

Run it: `python examples/kernels/dropout.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

THREADS = 256
EACH = 8  # elements of a thread: 16 bytes of bfloat16


@tw.kernel
def dropout(y, x, threshold: tw.uint32, scale: tw.float32, seed):
    """Write x to y with each element zero with probability threshold / 2^16, the others times `scale`."""
    i = tw.block_idx.x * THREADS + tw.thread_idx.x
    x_part, y_part = (tw.local_tile(t, (EACH,), (i,), guard=True) for t in (x, y))
    y_part[...] = tw.where(random_halves(seed, i) >= threshold, x_part * scale, 0)


@tw.function
def random_halves(seed, offset):
    """Return eight random numbers of 16 bits as a fragment: the low half of a word of Philox, then the high one."""
    bits = tw.registers(tw.uint32, 4)
    for n, word in enumerate(tw.philox(seed, offset)):
        bits[n] = word
    return bits.recast(tw.uint16)


def launch(y, x, p: float, seed: int) -> None:
    """Drop elements of an array of any shape, whose elements follow one another in memory."""
    y, x = flat(y), flat(x)
    dropout[tw.ceil_div(x.shape[0], THREADS * EACH), THREADS](y, x, *rounded(p), seed)


def flat(array):
    """Return an array's elements as a vector over the same memory.

    Raises `ValueError` for one that is not row-major, or has gaps: what is written to a copy would be lost.
    """
    if not (array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous):
        raise ValueError("dropout takes row-major arrays without gaps: make a contiguous copy of this one")
    return array.reshape(-1)


def rounded(p: float) -> tuple[np.uint32, np.float32]:
    """Return the multiple of 2^-16 that is nearest to p, times 2^16, and the scale of what is kept."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be from 0 to 1, got {p}")
    threshold = round(p * 2**16)
    return np.uint32(threshold), np.float32(2**16 / (2**16 - threshold) if threshold < 2**16 else 0)


def reference_halves(seed: int, offsets: np.ndarray) -> np.ndarray:
    """Return the numbers of `random_halves` for offsets below 2 ** 32, one after the other: Philox 4x32-10 in NumPy."""
    words = [offsets.astype(np.uint64), *[np.zeros(offsets.size, np.uint64)] * 3]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [b >> half ^ words[1] ^ np.uint64(key[0]), b & low, a >> half ^ words[3] ^ np.uint64(key[1]), a & low]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    halves = [word >> np.uint64(shift) & np.uint64(0xFFFF) for word in words for shift in (0, 16)]
    return np.stack(halves, axis=-1).reshape(-1)


def reference(x: np.ndarray, p: float, seed: int, first: int = 0) -> np.ndarray:
    """Return what the kernel writes for part of an array, whose first element has number `first`, a multiple of 8."""
    threshold, scale = rounded(p)
    offsets = first // EACH + np.arange(-(-x.size // EACH))
    kept = reference_halves(seed, offsets)[: x.size].reshape(x.shape) >= threshold
    return np.where(kept, x.astype(np.float32) * scale, 0).astype(x.dtype)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both shapes that activations have in a transformer, and an odd one."""
    shapes = [(64, 512), (37, 41)] if quick else [(16384, 4096), (8192, 16384), (4001, 4099)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    p, seed, size = 0.25, 2024, shape[0] * shape[1]
    checked = min(size, 2**18)  # NumPy takes its time for random numbers: the first and the last elements are checked
    last = (size - checked) // EACH * EACH

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        host = random.standard_normal(shape, dtype=np.float32).astype(tw.bfloat16.numpy)
        x, y = put(host, backend), put(np.full_like(host, 7), backend)
        flat = host.reshape(-1)
        expected = np.concatenate([reference(flat[:checked], p, seed), reference(flat[last:], p, seed, last)])

        def result() -> np.ndarray:
            found = fetch(y.float() if hasattr(y, "float") else y).reshape(-1).astype(np.float32)
            return np.concatenate([found[:checked], found[last:]])

        library = _torch_dropout(x, p) if hasattr(x, "data_ptr") else None
        return Trial(lambda: launch(y, x, p, seed), result, expected.astype(np.float32), limit=0.0, library=library)

    return Case("dropout", f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=2 * 2 * size)


def _torch_dropout(x, p: float):
    import torch

    return lambda: torch.nn.functional.dropout(x, p)


def example_dropout():
    """Return grid, block and arguments for `tilewright show examples/kernels/dropout.py:dropout`."""
    size = 16384 * 4096
    vector = tw.spec(tw.bfloat16, (size,))
    return size // (THREADS * EACH), THREADS, (vector, vector, *rounded(0.25), 2024)


if __name__ == "__main__":
    main(cases)
