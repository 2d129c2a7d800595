"""Cross entropy of rows of logits, log(sum(exp(x))) - x[label], and its gradient, softmax(x) minus 1 at the label.

One block a row, of any length (vocabularies have 32,000 to 256,000 words), and nothing but the loss and the gradient is
stored. In a first pass each thread keeps the greatest logit that it has seen and the sum of exp(logit - greatest), and
scales the sum when a greater one comes. The second pass writes the gradient. It goes back from the end of the row,
which is still in the caches.

Rows with the label -100 do not count, as in PyTorch: their loss and gradient are 0. The gradient is that of the sum of
the losses. A label that the vocabulary does not have gives the loss infinity.

Run it: `tilewright demo examples/kernels/cross_entropy.py`, or `python examples/kernels/cross_entropy.py`
"""

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@tw.kernel(fastmath=True)
def cross_entropy(loss, gradient, logits, labels, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute a row in a block, `columns` logits at a time."""
    row, label = tw.block_idx.x, labels[tw.block_idx.x]
    x, g = tw.guarded(logits, fill=-float("inf"))[row, ...], tw.guarded(gradient)[row, ...]
    x_part, g_part = (tiles.get_slice(tw.thread_idx.x).partition_S(tw.zipped_divide(t, columns)) for t in (x, g))
    picked, top, total = x[label].to(tw.float32), LOWEST, 0.0
    for i in range(tw.ceil_div(x.shape[0], columns)):
        values = x_part[..., i].to(tw.float32)
        top, old = tw.maximum(top, values.reduce("max")), top
        total = total * exp(old - top) + exp(values - top).reduce("add")
    greatest = tw.reduce(top, "max")
    total = tw.reduce(total * exp(top - greatest), "add")
    factor = tw.where(label == IGNORED, 0, 1 / total)
    for i in range(tw.ceil_div(x.shape[0], columns) - 1, -1, -1):
        g_part[..., i] = exp(x_part[..., i].to(tw.float32) - greatest) * factor
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        loss[row] = tw.where(label == IGNORED, 0, greatest - picked + tw.log(total))
        if label != IGNORED:
            g[label] = exp(picked - greatest) * factor - 1


def exp(x):
    """Return e^x by one instruction; what is less than 2^-126 becomes 0."""
    return tw.ex2_approx(x * LOG2E, ftz=True)


IGNORED = -100
LOG2E = float(np.log2(np.e))
LOWEST = float(np.finfo(np.float32).min)  # not -inf, because -inf - -inf is NaN
ACCESSES = 4  # of 16 bytes, that a thread has under way


@cache
def plan_for(dtype: tw.DType, columns: int):
    """Return the copy of a part of a row, the threads of a block, and the elements of the part."""
    width = 16 // dtype.bytes
    threads = min(1024, max(32, 1 << (tw.ceil_div(columns, ACCESSES * width) - 1).bit_length()))
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    return tiles, threads, ACCESSES * threads * width


def launch(loss, gradient, logits, labels) -> None:
    """Compute the loss of each row, float32, and the gradient of the logits: float16, bfloat16 or float32."""
    rows, columns = logits.shape
    tiles, threads, held = plan_for(describe(logits).dtype, columns)
    cross_entropy[rows, threads](loss, gradient, logits, labels, tiles, held)


def reference(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and gradient in float64."""
    x, counts = logits.astype(np.float64), labels != IGNORED
    label = np.where(counts, labels, 0)[:, None]
    top = x.max(1, keepdims=True)
    total = np.exp(x - top).sum(1, keepdims=True)
    loss = np.log(total) + top - np.take_along_axis(x, label, 1)
    gradient = np.exp(x - top) / total - (np.arange(x.shape[1]) == label)
    return np.where(counts, loss[:, 0], 0), np.where(counts[:, None], gradient, 0)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: vocabularies of several sizes."""
    shapes = [(3, 1000), (2, 50257)] if quick else [(8192, 32000), (4096, 128256)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        host = random.standard_normal(shape, dtype=np.float32).astype(tw.bfloat16.numpy)
        label = random.integers(0, shape[1], shape[0])
        label[1] = IGNORED
        logits, labels, gradient = (put(a, backend) for a in (host, label, np.full_like(host, np.nan)))
        loss = put(np.full(shape[0], np.nan, np.float32), backend)

        def result() -> np.ndarray:
            rows = fetch(gradient.float() if hasattr(gradient, "float") else gradient)[:8].astype(np.float64)
            return np.concatenate([fetch(loss)[:8], rows.ravel()])

        losses, gradients = reference(host[:8], label[:8])
        return Trial(
            lambda: launch(loss, gradient, logits, labels),
            result,
            np.concatenate([losses, gradients.ravel()]),
            limit=0.005,
        )

    return Case("cross entropy", f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=4 * shape[0] * shape[1])


def example_cross_entropy():
    """Return grid, block and arguments for `tilewright show examples/kernels/cross_entropy.py:cross_entropy`."""
    matrix = tw.spec(tw.bfloat16, (8192, 32000))
    loss, labels = tw.spec(tw.float32, (8192,)), tw.spec(tw.int64, (8192,))
    tiles, threads, held = plan_for(tw.bfloat16, 32000)
    return 8192, threads, (loss, matrix, matrix, labels, tiles, held)


if __name__ == "__main__":
    main(cases)
