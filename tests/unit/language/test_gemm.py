"""tw.gemm of plain tensors: the ranks say what is multiplied, by a multiply-add of the tensors' types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

# What is multiplied, as in numpy.einsum, with the extents of each letter.
RANKS = ["v,v->v", "m,n->mn", "mk,nk->mn", "vm,vn->vmn", "vmk,vnk->vmn", "vm,v->vm", "v,vn->vn"]
EXTENTS = {"v": 2, "m": 3, "n": 5, "k": 4}
TYPES = [
    (np.float32, np.float32, np.float32),
    (np.float64, np.float64, np.float64),
    (np.float16, np.float16, np.float32),
    (np.float16, np.float16, np.float16),
    (np.int8, np.int8, np.int32),
    (np.int32, np.int32, np.int32),
]


def tensors(rule: str, types: tuple[Any, Any, Any]) -> list[Any]:
    """Return a, b and c of a rule, of few bits, so that every sum is exact."""
    letters = rule.replace("->", ",").split(",")
    draw = np.random.default_rng(1)
    return [draw.integers(-3, 4, [EXTENTS[x] for x in each]).astype(t) for each, t in zip(letters, types, strict=True)]


@tw.kernel
def in_registers(C, A, B):
    a, b, c = tw.fragment_like(A), tw.fragment_like(B), tw.fragment_like(C)
    tw.copy(A, a)
    tw.copy(B, b)
    tw.copy(C, c)
    tw.gemm(a, b, c)
    tw.copy(c, C)


@tw.kernel
def in_shared_memory(D, C, A, B):
    a, b = tw.shared(A.dtype, A.shape), tw.shared(B.dtype, tw.row_major(B.shape))
    c, d = tw.fragment_like(C), tw.fragment_like(D)
    tw.copy(A, a)
    tw.copy(B, b)
    tw.copy(C, c)
    tw.cp_async_wait()
    tw.gemm(d, a, b, c)
    tw.copy(d, D)


@tw.kernel
def in_global_memory(C, A, B, atom: tw.constexpr):
    tw.gemm(atom, A, B, C)


@pytest.mark.parametrize("rule", RANKS)
@pytest.mark.parametrize("types", TYPES, ids=lambda t: "-".join(x.__name__ for x in t))
@pytest.mark.spread(4)
def test_ranks_say_what_is_multiplied(rule: str, types: tuple[Any, Any, Any]) -> None:
    a, b, c = tensors(rule, types)
    expected = np.einsum(rule, a.astype(np.float64), b.astype(np.float64)) + c
    found = c.copy()
    in_registers[1, 1](*(tw.static(x) for x in (found, a, b)))
    assert (found == expected).all()
    found = np.zeros_like(c)
    in_shared_memory[1, 1](*(tw.static(x) for x in (found, c, a, b)))
    assert (found == expected).all()
    found = c.copy()
    atom = tw.atoms.UniversalFMA(tw.dtype(types[2]), tw.dtype(types[0]))
    in_global_memory[1, 1](*(tw.static(x) for x in (found, a, b)), atom)
    assert (found == expected).all()


def test_operands_of_any_layout() -> None:
    """Swizzled and broadcast operands, and a result in row-major order."""
    swizzled = tw.composition(tw.Swizzle(2, 0, 3), tw.Layout((8, 8)))

    @tw.kernel
    def kernel(C, A, b):
        a = tw.shared(A.dtype, swizzled)
        tw.copy(A, a)
        tw.cp_async_wait()
        column = tw.make_tensor(b.engine, tw.Layout((4, 8), (0, 1)))  # every row the same
        c = tw.registers(C.dtype, tw.Layout((8, 4), (4, 1)))
        tw.clear(c)
        tw.gemm(a, column, c)
        tw.copy(c, C)

    draw = np.random.default_rng(2)
    a, b = draw.integers(-3, 4, (8, 8)).astype(np.float32), draw.integers(-3, 4, 8).astype(np.float32)
    c = np.zeros((8, 4), np.float32)
    kernel[1, 1](*(tw.static(x) for x in (c, np.asfortranarray(a), b)))
    assert (c == (a @ b)[:, None]).all()


@tw.kernel
def tiles_of_threads(C, A, B):
    """A matmul as in the first tutorial of CuTe: each thread has a part of the tile, and gemm gets it from there."""
    threads = tw.Layout((4, 4))
    tC = tw.local_partition(C, threads, tw.thread_idx.x)
    tA = tw.local_partition(A, threads, tw.thread_idx.x, proj=(1, None))
    tB = tw.local_partition(B, threads, tw.thread_idx.x, proj=(None, 1))
    acc = tw.fragment_like(tC)
    tw.clear(acc)
    tw.gemm(tA, tB, acc)
    tw.copy(acc, tC)


def test_partitions_of_a_tile() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.integers(-3, 4, (8, 6)).astype(np.float32), draw.integers(-3, 4, (12, 6)).astype(np.float32)
    c = np.full((8, 12), np.nan, np.float32)
    tiles_of_threads[1, 16](*(tw.static(x) for x in (c, a, b)))
    assert (c == a @ b.T).all()


REFUSED: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "extents of M": (((3, 4), (5, 4), (4, 5)), ["(V, 3, 5)"]),
    "extents of K": (((3, 4), (5, 6), (3, 5)), ["a has 4 steps of K and b has 6"]),
    "extents of V": (((2, 3), (3, 5), (2, 3, 5)), ["a 2, b 3", "mode V"]),
    "vectors of different length": (((4,), (5,), (4,)), ["a 4, b 5"]),
    "a matrix and a vector": (((3, 4), (4,), (3,)), ["c has modes"]),
    "four modes": (((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)), ["(V, M, K)"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    shapes, words = REFUSED[name]
    a, b, c = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(tw.LanguageError) as caught:
        in_registers[1, 1](*(tw.static(x) for x in (c, a, b)))
    for word in words:
        assert word in str(caught.value), str(caught.value)
