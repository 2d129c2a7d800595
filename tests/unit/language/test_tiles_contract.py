"""a * b + c over fragments is one multiply-add an element, as over numbers, wherever the operands were computed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.helpers.machine_code import opcodes

import tilewright as tw

ROWS, COLUMNS = 4, 8


def fused(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c rounded once: products of float32 are exact in float64, and so are these sums."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def of_reduction(t, u, s):
    return t * s - t.reduce("max")


def of_rows(t, u, s):
    top = t.reduce("max", 1, keep=True)
    return t * s - top * s


def of_rows_after(t, u, s):
    top = t.reduce("max", 1, keep=True)
    return t * s - top


def of_another_reduction(t, u, s):
    return -(t * s) + u.reduce("max", 1, keep=True)


def addend_first(t, u, s):
    product = t * s
    return u.reduce("max") + product


def updated(t, u, s):
    r = +t
    r *= s
    r += u
    return r


def behind_a_branch(t, u, s):
    product = t * s
    top = u[0, 0]
    if s > 0:
        top = u[1, 1]
    return product - top


def of_the_warp(t, u, s):
    return t * s - tw.reduce(t, "max", group="warp")


def of_the_block(t, u, s):
    return tw.reduce(u, "max") - t * s


def behind_barriers(t, u, s):
    product = t * s
    smem = tw.shared(tw.float32, 1)
    smem[0] = u[1, 1]
    tw.sync_threads()
    return product - smem[0]


EXPRESSIONS: dict[str, tuple[Any, Any]] = {
    "of_reduction": (of_reduction, lambda t, u, s: fused(t, s, -t.max())),
    "of_rows": (of_rows, lambda t, u, s: fused(t, s, -(t.max(1, keepdims=True) * s))),
    "of_rows_after": (of_rows_after, lambda t, u, s: fused(t, s, -t.max(1, keepdims=True))),
    "of_another_reduction": (of_another_reduction, lambda t, u, s: fused(-t, s, u.max(1, keepdims=True))),
    "addend_first": (addend_first, lambda t, u, s: fused(t, s, u.max())),
    "updated": (updated, lambda t, u, s: fused(t, s, u)),
    "of_the_warp": (of_the_warp, lambda t, u, s: fused(t, s, -t.max())),
    "of_the_block": (of_the_block, lambda t, u, s: fused(-t, s, u.max())),
    "behind_barriers": (behind_barriers, lambda t, u, s: fused(t, s, -u[1, 1])),
    "behind_a_branch": (tw.function(behind_a_branch), lambda t, u, s: fused(t, s, -u[1, 1])),
}


@tw.kernel
def compute(y, x, z, s: tw.float32, function: tw.constexpr):
    y[...] = function(+x, +z, s)


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.spread(3)
def test_a_product_and_a_sum_are_rounded_once(name: str) -> None:
    function, expected = EXPRESSIONS[name]
    random = np.random.default_rng(2)
    t, u = (random.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    y, s = np.zeros_like(t), np.float32(1.1)
    compute[1, 1](tw.static(y), tw.static(t), tw.static(u), s, function)
    np.testing.assert_array_equal(y, expected(t, u, s))


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.spread(6)
def test_the_machine_multiplies_and_adds_at_once(name: str) -> None:
    matrix = tw.static(tw.spec(tw.float32, (ROWS, COLUMNS)))
    args = (matrix, matrix, matrix, 1.0, EXPRESSIONS[name][0])
    counts = Counter(op.split(".")[0] for op in opcodes(compute.sass(*args, block=1, arch="sm_90a")))
    assert counts["FFMA"] == ROWS * COLUMNS
    assert counts["FADD"] == 0 and counts["FMUL"] <= ROWS  # of_rows multiplies the greatest of each row


def test_a_product_with_two_uses_is_rounded_by_itself() -> None:
    @tw.kernel
    def kernel(y, p, x, s: tw.float32):
        t = +x
        product = t * s
        y[...] = product - t.reduce("max")
        p[...] = product

    t = np.random.default_rng(3).uniform(-1, 1, 8).astype(np.float32)
    y, p, s = np.zeros_like(t), np.zeros_like(t), np.float32(1.1)
    kernel[1, 1](tw.static(y), tw.static(p), tw.static(t), s)
    np.testing.assert_array_equal(p, t * s)
    np.testing.assert_array_equal(y, t * s - t.max())


def test_loops_do_not_pass_what_shares_their_registers() -> None:
    """The operands of a product change, and its result is read and seen as bits, before the sum."""

    @tw.kernel
    def changed(y, x, how: tw.constexpr):
        t = +x
        product = t * 2.0
        first = tw.float32(0)
        if how == "operand":
            for i in range(8):
                t[i] = 100.0 + t[0]
            first = t[7]
        elif how == "result":
            for i in range(8):
                product[i] = product[i] + 1.0
            first = product[7]
        elif how == "bits":
            bits = product.recast(tw.uint32)
            for i in range(8):
                bits[i] = bits[i] ^ (1 << 31)
        elif how == "bits of an operation":
            bits = product.recast(tw.uint32)
            bits ^= 1 << 31
        y[...] = product + t.reduce("add") + first

    x = np.arange(8, dtype=np.float32)
    for how, expected in {
        "operand": 2 * x + (100 + 200 * 7) + 200,  # element 0 is read in each iteration, after it was changed
        "result": (2 * x + 1) + 28 + 15,
        "bits": -2 * x + 28,
        "bits of an operation": -2 * x + 28,
    }.items():
        y = np.zeros(8, np.float32)
        changed[1, 1](tw.static(y), tw.static(x), how)
        np.testing.assert_array_equal(y, expected, err_msg=how)


def test_what_an_iteration_writes_twice_is_stored_once() -> None:
    @tw.kernel
    def kernel(y, x):
        r = +x
        r *= 2
        r += 1
        y[...] = r

    text = kernel.source(*[tw.static(tw.spec(tw.float32, (8,)))] * 2, block=1)
    assert text.count("fmaf(") == 1
    assert " * 2" not in text


def test_a_loop_that_gets_more_indices_computes_what_it_did() -> None:
    """What a fast function has computed stays approximate, and the line of each operation stays its own."""

    @tw.function(fastmath=True)
    def fast(t, s):
        return (t / 3.0) * s

    @tw.kernel
    def kernel(y, x, s: tw.float32):
        t = +x
        top = t.reduce("max", 1, keep=True)
        y[...] = fast(t, s) - top

    matrix = tw.static(tw.spec(tw.float32, (ROWS, COLUMNS)))
    text = kernel.source(matrix, matrix, 1.0, block=1)
    assert text.count("fmaf(") == 1 and text.count("__fdividef(") == 1, text
