"""Dropout: set elements to zero at random, and scale the others so that the mean stays.

A random number is a function of a seed and an offset (Philox, see `tw.rand`), so no mask is stored: the backward pass
is the same kernel on the gradient, with the same seed. Each thread takes eight neighbours by one access of 16 bytes,
and two calls of `tw.rand4x` give their eight numbers: the generator makes four at a time, and one call for each element
would throw three of them away.

Run it: `python examples/kernels/dropout.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

THREADS = 256
EACH = 8  # elements of a thread: 16 bytes of bfloat16


@tw.kernel
def dropout(y, x, p, seed):
    """Write x to y with each element zero with probability p, the others divided by 1 - p; x and y have one mode."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    values = tw.registers(x.dtype, EACH)
    tw.copy(tw.local_tile(x, (EACH,), i), values)
    for n, uniform in enumerate([*tw.rand4x(seed, 2 * i), *tw.rand4x(seed, 2 * i + 1)]):
        values[n] = tw.where(uniform >= p, values[n] * (1 / (1 - p)), 0)
    tw.copy(values, tw.local_tile(y, (EACH,), i))


def launch(y, x, p: float, seed: int) -> None:
    """Drop elements of an array whose number of elements is a multiple of 2048."""
    count = int(np.prod(x.shape))
    dropout[count // (THREADS * EACH), THREADS](y.reshape(count), x.reshape(count), p, seed)


def uniform(seed: int, offsets: np.ndarray) -> np.ndarray:
    """Return the numbers of `tw.rand4x` for offsets below 2 ** 32, one after the other: Philox 4x32-10 in NumPy."""
    words = [offsets.astype(np.uint64), *[np.zeros(offsets.size, np.uint64)] * 3]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [b >> half ^ words[1] ^ np.uint64(key[0]), b & low, a >> half ^ words[3] ^ np.uint64(key[1]), a & low]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return ((np.stack(words, axis=-1) >> np.uint64(8)) * 2.0**-24).astype(np.float32).reshape(-1)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both shapes that normalisations and activations have in a transformer."""
    shapes = [(64, 512)] if quick else [(16384, 4096), (8192, 16384)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    p, seed, size = 0.25, 2024, shape[0] * shape[1]
    # NumPy takes its time for random numbers: the first and the last rows are checked.
    rows = np.r_[: min(shape[0], 64), max(shape[0] - 64, min(shape[0], 64)) : shape[0]]

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        host = random.standard_normal(shape, dtype=np.float32).astype(tw.bfloat16.numpy)
        x, y = put(host, backend), put(np.full_like(host, 7), backend)
        offsets = (rows[:, None] * (shape[1] // 4) + np.arange(shape[1] // 4)).reshape(-1)
        kept = uniform(seed, offsets).reshape(rows.size, shape[1]) >= np.float32(p)
        scale = np.float32(1) / (np.float32(1) - np.float32(p))
        expected = np.where(kept, host[rows].astype(np.float32) * scale, 0).astype(host.dtype).astype(np.float32)
        library = _torch_dropout(x, p) if hasattr(x, "data_ptr") else None
        return Trial(
            lambda: launch(y, x, p, seed),
            lambda: fetch(y.float() if hasattr(y, "float") else y)[rows].astype(np.float32),
            expected,
            limit=0.0,
            library=library,
        )

    return Case("dropout", f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=2 * 2 * size)


def _torch_dropout(x, p: float):
    import torch

    return lambda: torch.nn.functional.dropout(x, p)


def example_dropout():
    """Return grid, block and arguments for `tilewright show examples/kernels/dropout.py:dropout`."""
    size = 16384 * 4096
    vector = tw.spec(tw.bfloat16, (size,))
    return size // (THREADS * EACH), THREADS, (vector, vector, 0.25, 2024)


if __name__ == "__main__":
    main(cases)
