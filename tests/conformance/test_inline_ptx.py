"""PTX of the user's own: what each backend computes is what the meaning says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits, edge_values

import tilewright as tw
from tilewright.atoms.arithmetic import round_tf32


@tw.kernel
def apply(out, text: tw.constexpr, meaning: tw.constexpr, *operands):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = tw.inline_ptx(text, [x[i] for x in operands], meaning, out.dtype)


def inputs(*types: Any) -> list[Array]:
    random = np.random.default_rng(1)
    return [random.choice(edge_values(dtype), 300) for dtype in types]


def highest_bit(x: Array) -> Array:
    lengths = np.array([int(v).bit_length() for v in x], np.int64)
    return (lengths - 1).astype(np.uint32)  # of 0, all bits are set


def half_sum(a: Array, b: Array) -> Array:
    return (a.astype(np.float32) + b.astype(np.float32)).astype(np.float16)


U, I = tw.uint32, tw.int32  # noqa: E741
CASES: list[tuple[str, Callable[..., Any], Any, tuple[Any, ...]]] = [
    ("bfind.u32 %0, %1;", highest_bit, U, (U,)),
    ("vabsdiff.s32.s32.s32 %0, %1, %2", lambda a, b: abs(a.astype(np.int64) - b).astype(np.int32), I, (I, I)),
    ("mad.hi.u32 %0, %1, %2, %3;", lambda a, b, c: (a.astype(np.uint64) * b >> np.uint64(32)).astype(U.numpy) + c, U, (U, U, U)),
    ("set.eq.u32.u32 %0, %1, %2;", lambda a, b: np.where(a == b, ~np.uint32(0), np.uint32(0)), U, (U, U)),
    ("{ .reg .pred p; setp.lt.s32 p, %1, %2; selp.u32 %0, 1, 0, p; }", lambda a, b: a < b, tw.bool_, (I, I)),
    ("shf.r.wrap.b32 %0, %1, %2, 8;", lambda a, b: a >> np.uint32(8) | b << np.uint32(24), U, (U, U)),
    ("add.f16 %0, %1, %2;", half_sum, tw.float16, (tw.float16, tw.float16)),
    ("copysign.f32 %0, %2, %1;", np.copysign, tw.float32, (tw.float32, tw.float32)),
    ("abs.f64 %0, %1;", abs, tw.float64, (tw.float64,)),
    ("xor.b64 %0, %1, %2;", lambda a, b: a ^ b, tw.int64, (tw.int64, tw.int64)),
    ("not.b16 %0, %1;", lambda a: ~a, tw.int16, (tw.int16,)),
    ("min.s32 %0, %1, %2;", np.minimum, tw.int8, (tw.int8, tw.int8)),
    ("add.u32 %0, %1, %2;", lambda a, b: a + b, tw.uint8, (tw.uint8, tw.uint8)),
    ("xor.b32 %0, %1, 1;", lambda a: ~a, tw.bool_, (tw.bool_,)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meaning", "result", "types"), CASES, ids=[case[0].split(" %")[0] for case in CASES])
def test_meanings(backend: Backend, text: str, meaning: Any, result: Any, types: tuple[Any, ...]) -> None:
    given = inputs(*types)
    out = backend.zeros(300, result)
    apply[3, 128](out, text, meaning, *[backend.put(x) for x in given])
    with np.errstate(all="ignore"):
        assert_same_bits(backend.get(out), meaning(*given), text, given)


def test_rounding_to_tfloat32(backend: Backend) -> None:
    x = np.random.default_rng(2).standard_normal(300).astype(np.float32)
    out = backend.zeros(300, U)
    meaning = lambda v: round_tf32(v).view(np.uint32)  # noqa: E731
    apply[3, 128](out, "cvt.rna.tf32.f32 %0, %1;", meaning, backend.put(x))
    assert_same_bits(backend.get(out), meaning(x))


@tw.kernel
def products(low, high, x, y):
    i = tw.thread_idx.x
    both = tw.inline_ptx(
        "{ .reg .b64 t; mul.wide.u32 t, %2, %3; mov.b64 {%0, %1}, t; }",
        (x[i], y[i]),
        lambda a, b: tuple((a.astype(np.uint64) * b >> np.uint64(n)).astype(np.uint32) for n in (0, 32)),
        (tw.uint32, tw.uint32),
    )
    low[i], high[i] = both


def test_several_results(backend: Backend) -> None:
    x, y = (v[:96] for v in inputs(U, U))
    low, high = backend.zeros(96, U), backend.zeros(96, U)
    products[1, 96](low, high, backend.put(x), backend.put(y))
    exact = x.astype(np.uint64) * y
    assert_same_bits(backend.get(low), exact.astype(np.uint32))
    assert_same_bits(backend.get(high), (exact >> np.uint64(32)).astype(np.uint32))


@tw.kernel
def reversed_warps(out, x, bound):
    i = tw.thread_idx.x
    if i < bound:
        out[i] = tw.inline_ptx(
            "shfl.sync.bfly.b32 %0, %1, 31, 31, 0xffffffff;", x[i], lambda v: v[:, ::-1], tw.uint32, together="warp"
        )


def test_a_whole_warp(backend: Backend) -> None:
    x = np.arange(96, dtype=np.uint32) * 7
    out = backend.zeros(96, U)
    reversed_warps[1, 96](out, backend.put(x), 64)
    found = backend.get(out).reshape(3, 32)
    assert_same_bits(found[:2], np.ascontiguousarray(x.reshape(3, 32)[:2, ::-1]))
    assert not found[2].any()


@tw.kernel
def counted(out, n):
    total = tw.uint32(0)
    for k in range(n):
        if k % 3 != 0:
            total = tw.inline_ptx("{ .reg .u32 t; add.u32 t, %1, %2; mov.u32 %0, t; }", (total, k), add, tw.uint32,
                                  volatile=True)  # fmt: skip
    out[tw.thread_idx.x] = total


def add(total, k):
    return total + k.astype(np.uint32)


def test_in_loops_and_branches(backend: Backend) -> None:
    out = backend.zeros(32, U)
    counted[1, 32](out, 10)
    assert backend.get(out).tolist() == [1 + 2 + 4 + 5 + 7 + 8] * 32
