"""Collectives in one line against the same written by hand: time on one GPU, and instructions.

    python -m benchmarks.collectives [--json FILE]
    python -m benchmarks.collectives --instructions      # no GPU is needed

A kernel repeats its collective in a loop, on values in registers, so that nothing else takes time; the row softmax is a
whole kernel. By hand is what an author would write: shuffles by a tree, one value of each warp in shared memory, two
halves of it in turn, one barrier. Candidates are interleaved, and their results compared. The ratio is the time by
hand over the time in one line, so that 1 and more is no slower.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import tilewright as tw

ROUNDS = 2000
BLOCKS = 132 * 8

# --- reduce ----------------------------------------------------------------------------------------------


@tw.kernel
def warp_sum(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        value = tw.reduce(value, "add", "warp") * 0.03125 + k
    out[i] = value


@tw.kernel
def warp_sum_by_hand(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        for n in tw.static_range(5):
            value += tw.shuffle_xor(value, 16 >> n)
        value = value * 0.03125 + k
    out[i] = value


@tw.kernel
def block_sum(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        value = tw.reduce(value) * 0.001 + k
    out[i] = value


@tw.kernel
def block_sum_by_hand(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    lane, warp, warps = tw.lane_id(), tw.warp_id(), tw.block_dim.x // 32
    partial = tw.shared(tw.float32, (warps, 2))
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        for n in tw.static_range(5):
            value += tw.shuffle_xor(value, 16 >> n)
        if lane == 0:
            partial[warp, k % 2] = value
        tw.sync_threads()
        value = partial[lane % warps, k % 2]
        for n in tw.static_range(warps.bit_length() - 1):
            value += tw.shuffle_xor(value, 1 << n, warps)
        value = value * 0.001 + k
    out[i] = value


# --- scan ------------------------------------------------------------------------------------------------


@tw.kernel
def block_scan(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        value = tw.scan(value) * 0.001 + k
    out[i] = value


@tw.kernel
def block_scan_by_hand(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    lane, warp, warps = tw.lane_id(), tw.warp_id(), tw.block_dim.x // 32
    totals = tw.shared(tw.float32, (warps, 2))
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        for n in tw.static_range(5):
            below = tw.shuffle_up(value, 1 << n)
            if lane >= 1 << n:
                value += below
        if lane == 31:
            totals[warp, k % 2] = value
        tw.sync_threads()
        before = totals[lane % warps, k % 2]
        for n in tw.static_range(warps.bit_length() - 1):
            below = tw.shuffle_up(before, 1 << n, warps)
            if lane % warps >= 1 << n:
                before += below
        before = tw.shuffle(before, tw.maximum(warp - 1, 0))
        if warp > 0:
            value += before
        value = value * 0.001 + k
    out[i] = value


# --- argmax ----------------------------------------------------------------------------------------------


@tw.kernel
def block_argmax(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        best, place = tw.argmax(value)
        value = value + best * 0.5 - (place + k)
    out[i] = value


@tw.kernel
def block_argmax_by_hand(out, x, rounds):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    lane, warp, warps = tw.lane_id(), tw.warp_id(), tw.block_dim.x // 32
    values, places = tw.shared(tw.float32, (warps, 2)), tw.shared(tw.int32, (warps, 2))
    value = x[i]
    for k in tw.range(rounds, unroll=1):
        best, place = value, tw.int32(tw.thread_idx.x)
        for n in tw.static_range(5):
            other, there = tw.shuffle_xor(best, 16 >> n), tw.shuffle_xor(place, 16 >> n)
            is_better = (other > best) | ((other == best) & (there < place))
            best, place = tw.where(is_better, other, best), tw.where(is_better, there, place)
        if lane == 0:
            values[warp, k % 2], places[warp, k % 2] = best, place
        tw.sync_threads()
        best, place = values[lane % warps, k % 2], places[lane % warps, k % 2]
        for n in tw.static_range(warps.bit_length() - 1):
            other, there = tw.shuffle_xor(best, 1 << n, warps), tw.shuffle_xor(place, 1 << n, warps)
            is_better = (other > best) | ((other == best) & (there < place))
            best, place = tw.where(is_better, other, best), tw.where(is_better, there, place)
        value = value + best * 0.5 - (place + k)
    out[i] = value


# --- softmax of rows -------------------------------------------------------------------------------------

COLUMNS = 4096
THREADS = 256
SLICE = COLUMNS // THREADS


@tw.kernel
def softmax(out, x):
    """One row a block, in registers, by two collectives."""
    source = x[tw.block_idx.x, :].compose(tw.Layout((8, THREADS, SLICE // 8), (1, 8, 8 * THREADS)))
    target = out[tw.block_idx.x, :].compose(tw.Layout((8, THREADS, SLICE // 8), (1, 8, 8 * THREADS)))
    narrow = tw.fragment_like(source[:, 0, :])
    tw.copy(source[:, tw.thread_idx.x, :], narrow)
    row = narrow.to(tw.float32)
    most = tw.reduce(row, "max")
    for n in tw.static_range(SLICE):
        row[n] = tw.exp(row[n] - most)
    total = tw.reduce(row)
    for n in tw.static_range(SLICE):
        narrow[n] = row[n] / total
    tw.copy(narrow, target[:, tw.thread_idx.x, :])


@tw.kernel
def softmax_by_hand(out, x):
    source = x[tw.block_idx.x, :].compose(tw.Layout((8, THREADS, SLICE // 8), (1, 8, 8 * THREADS)))
    target = out[tw.block_idx.x, :].compose(tw.Layout((8, THREADS, SLICE // 8), (1, 8, 8 * THREADS)))
    lane, warp, warps = tw.lane_id(), tw.warp_id(), THREADS // 32
    maxima, totals = tw.shared(tw.float32, warps), tw.shared(tw.float32, warps)
    narrow = tw.fragment_like(source[:, 0, :])
    tw.copy(source[:, tw.thread_idx.x, :], narrow)
    row = narrow.to(tw.float32)
    most = row[0]
    for n in tw.static_range(1, SLICE):
        most = tw.maximum(most, row[n])
    for n in tw.static_range(5):
        most = tw.maximum(most, tw.shuffle_xor(most, 16 >> n))
    if lane == 0:
        maxima[warp] = most
    tw.sync_threads()
    most = maxima[lane % warps]
    for n in tw.static_range(warps.bit_length() - 1):
        most = tw.maximum(most, tw.shuffle_xor(most, 1 << n, warps))
    total = tw.float32(0)
    for n in tw.static_range(SLICE):
        row[n] = tw.exp(row[n] - most)
        total += row[n]
    for n in tw.static_range(5):
        total += tw.shuffle_xor(total, 16 >> n)
    if lane == 0:
        totals[warp] = total
    tw.sync_threads()
    total = totals[lane % warps]
    for n in tw.static_range(warps.bit_length() - 1):
        total += tw.shuffle_xor(total, 1 << n, warps)
    for n in tw.static_range(SLICE):
        narrow[n] = row[n] / total
    tw.copy(narrow, target[:, tw.thread_idx.x, :])


PAIRS: dict[str, tuple[tw.Kernel, tw.Kernel, tuple[int, ...]]] = {
    "warp sum": (warp_sum, warp_sum_by_hand, (256,)),
    "block sum": (block_sum, block_sum_by_hand, (128, 256, 512, 1024)),
    "block scan": (block_scan, block_scan_by_hand, (128, 256, 512, 1024)),
    "block argmax": (block_argmax, block_argmax_by_hand, (128, 256, 512, 1024)),
}

# --- measuring -------------------------------------------------------------------------------------------


def loops() -> dict[str, Any]:
    """Measure each collective in a loop, in blocks of several sizes."""
    import torch
    from benchmarks.timing import interleaved

    results: dict[str, Any] = {}
    for name, (line, hand, sizes) in PAIRS.items():
        for threads in sizes:
            blocks = BLOCKS * 256 // threads
            x = torch.randn(blocks * threads, device="cuda")
            out, other = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
            line[blocks, threads](out, x, 3)
            hand[blocks, threads](other, x, 3)
            assert torch.allclose(out, other, rtol=1e-4, atol=1e-3), (name, threads)
            found = interleaved(
                {
                    "one line": lambda: line[blocks, threads](out, x, ROUNDS),  # noqa: B023  # called at once
                    "by hand": lambda: hand[blocks, threads](other, x, ROUNDS),  # noqa: B023
                }
            )
            results[f"{name}, {threads} threads"] = _with_ratio(found)
    return results


def softmaxes(rows: int = 16384) -> dict[str, Any]:
    """Measure the softmax of the rows of a bfloat16 matrix, and a copy of it."""
    import torch
    from benchmarks.timing import interleaved

    x = torch.randn(rows, COLUMNS, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    expected = torch.softmax(x.float(), dim=1)
    for kernel in (softmax, softmax_by_hand):
        out.fill_(float("nan"))
        kernel[rows, THREADS](out, x)
        assert torch.allclose(out.float(), expected, rtol=1e-2, atol=1e-5), kernel
    found = interleaved(
        {
            "one line": lambda: softmax[rows, THREADS](out, x),
            "by hand": lambda: softmax_by_hand[rows, THREADS](out, x),
            "copy": lambda: out.copy_(x),
        }
    )
    return {f"softmax of {rows} x {COLUMNS} bfloat16": _with_ratio(found)}


def _with_ratio(found: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {**found, "ratio": found["by hand"]["seconds"] / found["one line"]["seconds"]}


def instructions(arch: str = "sm_90a") -> dict[str, dict[str, int]]:
    """Count the instructions of each kernel's machine code, without the padding."""
    numbers = (tw.spec("float32", 1), tw.spec("float32", 1), ROUNDS)
    rows = (tw.spec("bfloat16", 2), tw.spec("bfloat16", 2))
    counts = {}
    for name, (line, hand, sizes) in PAIRS.items():
        for threads in sizes:
            counts[f"{name}, {threads} threads"] = {
                "one line": _count(line[1, threads].sass(*numbers, arch=arch)),
                "by hand": _count(hand[1, threads].sass(*numbers, arch=arch)),
            }
    counts["softmax"] = {
        "one line": _count(softmax[1, THREADS].sass(*rows, arch=arch)),
        "by hand": _count(softmax_by_hand[1, THREADS].sass(*rows, arch=arch)),
    }
    return counts


def _count(sass: str) -> int:
    from tests.helpers.machine_code import opcodes

    found = Counter(opcodes(sass))
    return sum(found.values()) - found["NOP"]


def main() -> None:
    """Measure or count, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of measuring")
    options = parser.parse_args()
    if options.instructions:
        for name, counts in instructions().items():
            print(f"{name:32} {counts}")
        return
    from benchmarks.timing import machine

    results: dict[str, Any] = {"machine": machine(), **loops(), **softmaxes(), "instructions": instructions()}
    for name, figures in results.items():
        if "ratio" in figures:
            shown = {k: f"{v['seconds'] * 1e6:.1f} us" for k, v in figures.items() if k != "ratio"}
            print(f"{name:40} {figures['ratio']:.3f} {shown}")
    results["machine_after"] = machine()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
