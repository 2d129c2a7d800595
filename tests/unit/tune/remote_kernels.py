"""Kernels, hooks and references that workers find here by name."""

from __future__ import annotations

import multiprocessing
import os

import tilewright as tw


@tw.kernel
def scale(out, x, factor, BLOCK: tw.constexpr, OFF: tw.constexpr = 0):
    i = tw.block_idx.x * BLOCK + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = x[i] * factor + OFF


def blocks(meta) -> int:
    return -(-meta["x"].shape[0] // meta["BLOCK"])


def reference(out, x, factor) -> None:
    out[...] = x * factor


def die(meta) -> None:
    if multiprocessing.parent_process() is not None:  # never the process that tests
        os._exit(3)


def launch(out, x, factor, BLOCK) -> None:
    scale[blocks({"x": x, "BLOCK": BLOCK}), BLOCK](out, x, factor, BLOCK)


CONFIGS = [tw.Config(BLOCK=b, OFF=off, block=b) for off in (0, 1) for b in (32, 64)]


def scaled(accumulator, scale):
    return accumulator * scale


def fatal(accumulator):
    die({})
    return accumulator
