"""Which elements dropout keeps, in NumPy: written from the documentation of `tw.dropout` and from Philox's paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MASK = np.uint64(0xFFFFFFFF)


def philox(seed: int, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the four words of each counter (low, high, 0, 0) along a new first mode, by ten rounds."""
    half, (a, b) = np.uint64(32), np.broadcast_arrays(low.astype(np.uint64), high.astype(np.uint64))
    c = d = np.zeros_like(a)
    k, l = seed % 2**32, seed % 2**64 >> 32  # noqa: E741
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = second >> half ^ b ^ np.uint64(k), second & MASK, first >> half ^ d ^ np.uint64(l), first & MASK
        k, l = (k + 0x9E3779B9) % 2**32, (l + 0xBB67AE85) % 2**32  # noqa: E741
    return np.stack((a, b, c, d))


def kept(shape: tuple[int, ...], p: float, seed: int, *, has_columns: bool = True) -> np.ndarray[Any, Any]:
    """Return for each element of a result whether it is kept; a result of a matrix and a vector has no columns."""
    columns = shape[-1] if has_columns else 1
    row, column = np.arange(math.prod(shape) // max(columns, 1))[:, None], np.arange(columns)
    g, w, q, h = column // 32, column // 8 % 4, column // 2 % 4, column % 2
    words = philox(seed, 4 * g + q, row)
    word = np.take_along_axis(words, np.broadcast_to(w, words.shape[1:])[None], 0)[0]
    bits = word >> (16 * h).astype(np.uint64) & np.uint64(0xFFFF)
    return (bits >= np.uint64(round(p * 2**16))).reshape(shape)


def dropped(x: np.ndarray[Any, Any], p: float, seed: int) -> np.ndarray[Any, Any]:
    """Return an array after dropout, in float64."""
    threshold = round(p * 2**16)
    scale = 2**16 / (2**16 - threshold) if threshold < 2**16 else 0
    return np.where(kept(x.shape, p, seed), x.astype(np.float64) * scale, 0)
