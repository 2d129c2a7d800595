"""Every matrix instruction of a warp, on random tiles through its declared layouts, against its NumPy definition."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend

import tilewright as tw
from tilewright.arch import Arch
from tilewright.atoms.mma import MMAAtom
from tilewright.instructions.mma import NAMES

# Atoms that take the same arrays run in one kernel, which is compiled once.
GROUPS: dict[str, list[MMAAtom]] = defaultdict(list)
for _name in NAMES:
    _atom: MMAAtom = getattr(tw.atoms, _name)
    _words = _atom.in_words()
    _types = "".join(str(t) for t in (_words.dtype_d, _words.dtype_a, _words.dtype_b, _words.dtype_c))
    GROUPS[f"{'x'.join(map(str, _atom.shape_mnk))} {_types} {_atom.arch}"].append(_atom)


@tw.kernel
def products(D, A, B, C, mmas: tw.constexpr):
    """D[i] = A B^T + C by the i-th tiled mma, each thread's part of the tile in registers."""
    for number, mma in enumerate(mmas):
        thread = mma.get_slice(tw.thread_idx.x)
        a, b = thread.partition_A(A), thread.partition_B(B)
        c, d = thread.partition_C(C), thread.partition_D(D[number, None, None])
        ra, rb, rc = thread.make_fragment_A(a), thread.make_fragment_B(b), thread.make_fragment_C(c)
        tw.copy(a, ra)
        tw.copy(b, rb)
        tw.copy(c, rc)
        if mma.atom.layout_d is None:
            tw.gemm(mma, rc, ra, rb, rc)
            tw.copy(rc, d)
        else:  # D is of another type than C, and held by other threads
            rd = thread.make_fragment_D(d)
            tw.gemm(mma, rd, ra, rb, rc)
            tw.copy(rd, d)


def random_tile(rng: np.random.Generator, shape: tuple[int, ...], dtype: tw.DType) -> Array:
    dtype = dtype.storage
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(dtype.lowest, dtype.highest, shape, dtype=dtype.numpy, endpoint=True)


def addends(rng: np.random.Generator, shape: tuple[int, ...], dtype: tw.DType) -> Array:
    """Return values of C; of integers a good part near the ends of the range, where sums wrap or saturate."""
    c = random_tile(rng, shape, dtype)
    if not dtype.is_float:
        c[rng.random(shape) < 0.25] = dtype.highest
        c[rng.random(shape) < 0.25] = dtype.lowest
    return c


def skip_without(backend: Backend, arch: str) -> None:
    if backend.name == "cuda":
        import torch

        if torch.cuda.get_device_capability() < Arch.parse(arch).capability:
            pytest.skip(f"needs {arch}")


def assert_near(actual: Array, expected: Array, bound: Array, what: object) -> None:
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    worst = np.unravel_index(int(np.argmax(difference - bound)), difference.shape)
    assert difference[worst] <= bound[worst], (
        f"{what}: at {worst} got {actual[worst]!r}, expected {expected[worst]!r} within {bound[worst]:.3g}"
    )


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.spread(6)
def test_instructions(backend: Backend, group: str) -> None:
    atoms = GROUPS[group]
    skip_without(backend, atoms[0].arch)
    rng = np.random.default_rng(0)
    # A warp of quad pairs needs four of their atoms; the others are one warp.
    places = (2, 2, 1) if atoms[0].threads == 8 else (1, 1, 1)
    words = [atom.in_words() for atom in atoms]
    mmas = tuple(tw.make_tiled_mma(atom, places) for atom in words)
    m, n, k = mmas[0].shape_mnk
    a, b = random_tile(rng, (m, k), words[0].dtype_a), random_tile(rng, (n, k), words[0].dtype_b)
    c = addends(rng, (m, n), words[0].dtype_c)
    D = backend.zeros((len(atoms), m, n), words[0].dtype_d)
    products[1, mmas[0].size](*(tw.static(x) for x in (D, *map(backend.put, (a, b, c)))), mmas)
    found = backend.get(D)
    for number, atom in enumerate(words):
        expected = atom.reference(a, b, c)
        bound = atom.error_bound(a, b, c)
        if backend.name == "sim":
            bound = np.zeros_like(bound)
        assert_near(found[number], expected, bound, atom)


TILED = [
    ("SM80_16x8x8_F32TF32TF32F32_TN", (2, 2, 1), (32, 32, 8)),
    ("SM80_16x8x16_F32BF16BF16F32_TN", (2, 1, 1), None),
    ("SM80_16x8x16_F16F16F16F16_TN", (1, 2, 1), (16, 32, 16)),
    ("SM80_16x8x32_S32S8S8S32_TN", (2, 2, 1), None),
    ("SM80_8x8x4_F64F64F64F64_TN", (2, 2, 1), (32, 32, 4)),
    ("SM70_8x8x4_F32F16F16F32_NT", (2, 2, 1), None),
]


@pytest.mark.parametrize(("name", "places", "permutations"), TILED, ids=[t[0] for t in TILED])
def test_tiles_of_several_atoms(
    backend: Backend, name: str, places: tuple[int, ...], permutations: tuple[int, ...] | None
) -> None:
    """Several warps, and several atoms of each in M, N and K, in the serpentine order of tw.gemm."""
    atom: MMAAtom = getattr(tw.atoms, name)
    skip_without(backend, atom.arch)
    rng = np.random.default_rng(1)
    mma = tw.make_tiled_mma(atom, places, permutations)
    m, n, k = (2 * mma.tile_size(0), 2 * mma.tile_size(1), 3 * mma.tile_size(2))
    a, b = random_tile(rng, (m, k), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    c = addends(rng, (m, n), atom.dtype_c)
    D = backend.zeros((1, m, n), atom.dtype_d)
    products[1, mma.size](*(tw.static(x) for x in (D, *map(backend.put, (a, b, c)))), (mma,))
    expected = atom.reference(a, b, c)
    assert_near(backend.get(D)[0], expected, atom.error_bound(a, b, c), name)


@tw.kernel
def from_shared_memory(C, A, B, mma: tw.constexpr):
    """One tile: global to shared memory, fragments from there, the product, and back."""
    sA, sB = tw.shared(A.dtype, A.shape), tw.shared(B.dtype, B.shape)
    tid = tw.thread_idx.x
    for t_from, t_to in ((A, sA), (B, sB)):
        tw.copy(tw.local_partition(t_from, (8, 4), tid), tw.local_partition(t_to, (8, 4), tid))
    tw.cp_async_wait()
    tw.sync_threads()
    thread = mma.get_slice(tid)
    tCgC = thread.partition_C(C)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)
    tw.gemm(mma, acc, thread.partition_A(sA), thread.partition_B(sB), acc)
    tw.copy(acc, tCgC)


@pytest.mark.parametrize("name", ["SM80_16x8x8_F32TF32TF32F32_TN", "SM80_16x8x16_F32F16F16F32_TN"])
def test_operands_in_shared_memory(backend: Backend, name: str) -> None:
    atom: MMAAtom = getattr(tw.atoms, name)
    skip_without(backend, atom.arch)
    rng = np.random.default_rng(2)
    m, n, k = (s * r for s, r in zip(atom.shape_mnk, (1, 1, 2), strict=True))
    a, b = random_tile(rng, (m, k), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    C = backend.zeros((m, n), atom.dtype_d)
    mma = tw.make_tiled_mma(atom)
    from_shared_memory[1, 32](*(tw.static(x) for x in (C, backend.put(a), backend.put(b))), mma)
    zeros = np.zeros((m, n), atom.dtype_c.numpy)
    assert_near(backend.get(C), atom.reference(a, b, zeros), atom.error_bound(a, b, zeros), name)


@tw.kernel
def add_to_another(D, A, B, C, mma: tw.constexpr):
    """D = A B^T + C with the sum in registers of its own."""
    thread = mma.get_slice(tw.thread_idx.x)
    a, b, c, d = thread.partition_A(A), thread.partition_B(B), thread.partition_C(C), thread.partition_C(D)
    ra, rb, rc, rd = (thread.make_fragment_A(a), thread.make_fragment_B(b), thread.make_fragment_C(c),
                      thread.make_fragment_C(d))  # fmt: skip
    tw.copy(a, ra)
    tw.copy(b, rb)
    tw.copy(c, rc)
    tw.gemm(mma, rd, ra, rb, rc)
    tw.copy(rd, d)


@pytest.mark.parametrize(
    "atom", [tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN, tw.atoms.UniversalFMA(tw.float32)], ids=["warp", "thread"]
)
def test_sums_in_other_registers(backend: Backend, atom: MMAAtom) -> None:
    """C is added once, however many steps K has, and stays as it is."""
    skip_without(backend, "sm_80")
    mma = tw.make_tiled_mma(atom, (1, 1, 1) if atom.threads > 1 else (16, 2, 1))
    rng = np.random.default_rng(3)
    # Few bits, so that every product and sum is exact.
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((32, 24), (16, 24), (32, 16)))
    D = backend.zeros((32, 16), tw.float32)
    add_to_another[1, mma.size](*(tw.static(x) for x in (D, *map(backend.put, (a, b, c)))), mma)
    assert (backend.get(D) == a @ b.T + c).all()
