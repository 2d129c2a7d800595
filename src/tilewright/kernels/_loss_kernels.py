"""Cross entropy of rows of logits, and its gradient; device code, traced into kernels.

With t the greatest logit and s the sum of exp(x - t), the loss of a row is log(s) - (x[label] - t). With label
smoothing e the label counts 1 - e, and every column e / columns, the label's too.
"""

from __future__ import annotations

import math

import tilewright as tw
from tilewright.kernels._row_kernels import LOWEST, exponential, long_parts, row_number, row_of, wide


@tw.kernel
def cross_entropy_rows(
    loss, top_out, total_out, logits, labels, ignored, smoothing,
    tiles: tw.constexpr, columns: tw.constexpr, is_smooth: tw.constexpr,
):  # fmt: skip
    """Compute losses of rows of any length, `columns` logits at a time, each read once; and t and s of each row."""
    at, kind, extent = row_number(), wide(logits.dtype), logits.shape[-1]
    row = row_of(logits, at, -math.inf)
    parts = long_parts(row, tiles, columns)
    top, total, plain = kind(LOWEST[kind]), kind(0), kind(0)
    for i in range(tw.ceil_div(extent, columns)):
        values = parts[..., i].to(kind)
        top, old = tw.maximum(top, values.reduce("max")), top
        total = total * exponential(old - top, logits.dtype) + exponential(values - top, logits.dtype).reduce("add")
        if is_smooth:
            plain = plain + tw.where(tw.inside(parts[..., i]), values, 0).reduce("add")
    greatest = tw.reduce(top, "max", tiles.size)
    total = tw.reduce(total * exponential(top - greatest, logits.dtype), "add", tiles.size)
    if is_smooth:
        plain = tw.reduce(plain, "add", tiles.size) / extent
    if tw.thread_idx.x == 0:
        label = tw.int64(tw.guarded(labels)[at])
        found = (label >= 0) & (label < extent)
        place = tw.where(found, label, 0)
        value = tw.log(total) - (row[place].to(kind) - greatest)
        if is_smooth:
            value = (1 - smoothing) * value + smoothing * (tw.log(total) - (plain - greatest))
        value = tw.where(found, value, math.nan)
        tw.guarded(loss)[at] = tw.where(label == ignored, 0, value)
        if top_out is not None:
            tw.guarded(top_out)[at], tw.guarded(total_out)[at] = greatest, total


@tw.kernel
def cross_entropy_gradient(
    gradient, grad, logits, labels, top, total, ignored, smoothing,
    tiles: tw.constexpr, columns: tw.constexpr, width: tw.constexpr,
):  # fmt: skip
    """Compute (softmax - what the label counts) * grad of `columns` columns of one row or several."""
    kind, extent = wide(logits.dtype), logits.shape[-1]
    parts = tw.ceil_div(extent, columns)
    group, part = tw.block_idx.x // parts, tw.block_idx.x % parts
    at, thread = group * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    source, target = (
        thread.partition_S(tw.local_tile(row_of(t, at, f), (columns,), part))
        for t, f in ((logits, -math.inf), (gradient, 0))
    )
    label, factor = tw.int64(tw.guarded(labels)[at]), tw.guarded(grad)[at].to(kind)
    found = (label >= 0) & (label < extent)
    factor = tw.where(label == ignored, 0, tw.where(found, factor, math.nan))
    values = exponential(source.to(kind) - tw.guarded(top)[at], gradient.dtype)
    values = values * (1 / tw.guarded(total, fill=1)[at]) - smoothing / extent
    # Where the label stands among the elements of this thread; far from them as a rule.
    place = tw.where(found, label - tw.int64(part) * columns - tw.thread_idx.x * width, -1).to(tw.int32)
    for i in tw.static_range(columns // (tiles.size * width)):
        for j in tw.static_range(width):
            values[j, i] = values[j, i] - tw.where(place == i * tiles.size * width + j, 1 - smoothing, 0)
    target[...] = tw.where(label == ignored, 0, values * factor)
