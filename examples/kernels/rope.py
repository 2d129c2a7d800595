"""Rotary position embedding: turn pairs of elements of each head by angles that depend on the token.

    y[t, h, a] = x[t, h, a] * cos[t, i] - x[t, h, b] * sin[t, i]
    y[t, h, b] = x[t, h, b] * cos[t, i] + x[t, h, a] * sin[t, i]

Pair i of a head of d elements is (a, b) = (i, i + d/2) in the convention of halves (GPT-NeoX, Llama in Hugging Face's
form), and (2i, 2i + 1) in the interleaved one (GPT-J, Llama as published). In the kernel that is a layout: both see a
head as a matrix (pairs, 2). A thread takes as many rows of it as make accesses of 16 bytes, which neighbouring threads
have side by side: of 16-bit elements eight pairs, eight neighbours in each half, or four pairs, eight neighbours.

A block takes one token. A thread keeps its cosines and sines in registers and goes from head to head with them.

Run it: `python examples/kernels/rope.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

THREADS = 256  # of a block, at most


@tw.kernel
def rope(y, x, cos, sin, pairs: tw.constexpr, each: tw.constexpr):
    """Turn a token of x (tokens, heads, head) by its row of cos and sin (tokens, pairs), `each` pairs a thread."""
    token, angles = tw.block_idx.x, tw.Layout((pairs.shape[0], 1))
    c, s = (part(t[token, :], angles, each).to(tw.float32) for t in (cos, sin))
    for head in tw.range(tw.thread_idx.y, x.shape[1], tw.block_dim.y, unroll=2):
        x_part, y_part = (part(t[token, head, :], pairs, each) for t in (x, y))
        v, turned = x_part.to(tw.float32), tw.fragment_like(y_part)
        turned[:, 0] = v[:, 0] * c[:, 0] - v[:, 1] * s[:, 0]
        turned[:, 1] = v[:, 1] * c[:, 0] + v[:, 0] * s[:, 0]
        tw.copy(turned, y_part)


@tw.function
def part(vector, layout, rows):
    """Return a thread's rows of a vector that is seen as a matrix."""
    return tw.local_tile(tw.composition(vector, layout), (rows, None), (tw.thread_idx.x, 0), guard=True)


def launch(y, x, cos, sin, interleaved: bool = False) -> None:
    """Turn x (tokens, heads, head) into y by cos and sin (tokens, head / 2)."""
    tokens, heads, head = x.shape
    if head % 2:
        raise ValueError(f"rope: heads are of an even number of elements, got {head}")
    half = head // 2
    vector = 16 // describe(x).dtype.bytes
    pairs, each = (tw.Layout((half, 2), (2, 1)), vector // 2) if interleaved else (tw.Layout((half, 2)), vector)
    across = tw.ceil_div(half, each)
    rope[tokens, (across, max(1, min(heads, THREADS // across)))](y, x, cos, sin, pairs, each)


def reference(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Return what the kernel writes, in float64."""
    x, c, s = (t.astype(np.float64) for t in (x, cos[:, None, :], sin[:, None, :]))
    half = x.shape[2] // 2
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pairs = np.stack([first * c - second * s, second * c + first * s], axis=-1 if interleaved else -2)
    return pairs.reshape(x.shape)


def angles(tokens: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and sines (tokens, half): of pair i the token's number times 10000^(-i / half)."""
    at = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both conventions, and heads that the vectors do not divide."""
    shapes = [(5, 4, 128), (3, 5, 20)] if quick else [(16384, 32, 128), (8192, 128, 128), (4001, 5, 84)]
    return [_case(shape, interleaved, backend) for shape in shapes for interleaved in (False, True)]


def _case(shape: tuple[int, int, int], interleaved: bool, backend: Backend) -> Case:
    tokens, heads, head = shape

    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(np.float16)
        cos, sin = angles(tokens, head // 2)
        expected = reference(host, cos, sin, interleaved)
        x, y, cos, sin = (put(t, backend) for t in (host, np.full_like(host, np.nan), cos, sin))
        return Trial(lambda: launch(y, x, cos, sin, interleaved), lambda: fetch(y), expected, limit=0.005)

    size = 2 * 2 * tokens * heads * head + 2 * 4 * tokens * head // 2
    kind = "interleaved" if interleaved else "halves"
    return Case(f"rope, {kind}", f"{tokens} x {heads} x {head} float16", prepare, bytes_moved=size)


def example_rope():
    """Return grid, block and arguments for `tilewright show examples/kernels/rope.py:rope`."""
    x, table = tw.spec(tw.bfloat16, (16384, 32, 128)), tw.spec(tw.float32, (16384, 64))
    return 16384, (8, 32), (x, x, table, table, tw.Layout((64, 2)), 8)


if __name__ == "__main__":
    main(cases)
