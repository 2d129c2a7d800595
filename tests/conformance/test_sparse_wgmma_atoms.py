"""Every wgmma with a sparse A, on random tiles and random metadata, against its NumPy definition."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend
from tests.conformance.test_mma_atoms import addends, assert_near, random_tile
from tests.conformance.test_wgmma_atoms import skip_elsewhere

import tilewright as tw
from tilewright.atoms.mma import OperandPlace
from tilewright.instructions.sparse_wgmma import NAMES, SparseAtom

FAMILIES: dict[str, list[str]] = defaultdict(list)
for _name in NAMES:
    FAMILIES[re.sub(r"64x\d+", "64xN", _name)].append(_name)
# A family of each width of elements and place of A in the quick suite, all in the slow one; another N in each.
QUICK = [
    f"GMMA_64x{shape}"
    for shape in (
        "8x32_F32BF16BF16_SS", "48x32_F16F16F16_RS", "24x16_F32TF32TF32_SS_TN", "16x16_F32TF32TF32_RS_TN",
        "40x64_F32E4M3E5M2_SS_TN", "16x64_S32S8U8_RS_TN_SATURATE",
    )
]  # fmt: skip


@tw.kernel
def product(D, A, B, C, E, mma: tw.constexpr, layout_a: tw.constexpr, layout_b: tw.constexpr):
    """D = A B^T + C for the kept elements of A and their metadata E."""
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    sA, sB = tw.shared(A.dtype, layout_a), tw.shared(B.dtype, layout_b)
    for t_from, t_to in ((A, sA), (B, sB)):
        for k in range(t_from.shape[1]):
            for row in range(i, t_from.shape[0], mma.size):
                t_to[row, k] = t_from[row, k]
    tw.fence_proxy_async()
    tw.sync_threads()
    if mma.atom.a_place is OperandPlace.REGISTERS:
        gA = thread.partition_A(A)
        tA = thread.make_fragment_A(gA)
        tw.copy(gA, tA)
    else:
        tA = thread.partition_A(sA)
    gE = thread.partition_E(E)
    words = thread.make_fragment_E(gE)
    tw.copy(gE, words)
    tC, tD = thread.partition_C(C), thread.partition_C(D)
    acc = thread.make_fragment_C(tC)
    tw.copy(tC, acc)
    tw.wgmma_fence()
    tw.gemm(mma, tA, thread.partition_B(sB), acc, metadata=words)
    tw.wgmma_commit()
    tw.wgmma_wait(0)
    tw.copy(acc, tD)


def random_metadata(rng: np.random.Generator, atom: SparseAtom, shape: tuple[int, int]) -> Array:
    """Return words of all patterns that have a meaning, the places of the kept ones in either order."""
    patterns = [p for p in range(16) if p & 3 != p >> 2] if atom.neighbours == 4 else [0b0100, 0b1110]
    bits = rng.choice(patterns, (*shape, 4))
    return (bits << 4 * np.arange(4)).sum(axis=2).astype(np.uint16)


def run(
    backend: Backend, atom: SparseAtom, kinds: tuple[str, str] = ("SW64", "SW64"),
    places: tuple[int, int, int] = (1, 1, 1), steps: int = 2, tiles: tuple[int, int] = (1, 1),
) -> None:  # fmt: skip
    skip_elsewhere(backend)
    mma = tw.make_tiled_mma(atom, places)
    m, n, k = tiles[0] * mma.tile_size(0), tiles[1] * mma.tile_size(1), steps * mma.tile_size(2)
    rng = np.random.default_rng(0)
    kept, b = random_tile(rng, (m, k // 2), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    c, e = addends(rng, (m, n), atom.dtype_c), random_metadata(rng, atom, (m, k // (4 * atom.neighbours)))
    D = backend.zeros((m, n), atom.dtype_d)
    shared = [
        tw.tile_to_shape(getattr(tw.atoms, f"GMMA_{major}_{kind}")(array.dtype), array.shape)
        for major, kind, array in zip(atom.majors, kinds, (kept, b), strict=True)
    ]
    product[1, mma.size](*(tw.static(x) for x in (D, *map(backend.put, (kept, b, c, e)))), mma, *shared)
    a, expected, step = atom.expand(kept, e), c, atom.shape_mnk[2]
    for first in range(0, k, step):
        expected = atom.reference(a[:, first : first + step], b[:, first : first + step], expected)
    bound = atom.error_bound(a, b, c)
    assert_near(backend.get(D), expected, np.zeros_like(bound) if backend.name == "sim" else bound, atom)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.spread(4)
def test_instructions(backend: Backend, name: str) -> None:
    run(backend, getattr(tw.atoms, name))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_instructions(backend: Backend, family: str) -> None:
    for name in FAMILIES[family]:
        run(backend, getattr(tw.atoms, name))


@pytest.mark.parametrize("name", ["GMMA_64x16x32_F32F16F16_SS", "GMMA_64x16x16_F32TF32TF32_RS_TN"])
def test_the_other_lanes_hold_metadata(backend: Backend, name: str) -> None:
    run(backend, getattr(tw.atoms, name).with_selector(1).with_signs(-1, 1))


@pytest.mark.parametrize("majors", [("MN", "K"), ("K", "MN"), ("MN", "MN")], ids="".join)
@pytest.mark.spread(2)
def test_majors(backend: Backend, majors: tuple[str, str]) -> None:
    run(backend, tw.atoms.GMMA_64x64x32_F32BF16BF16_SS.with_majors(*majors), ("SW64", "SW64"))


@pytest.mark.parametrize("kinds", [("SW128", "SW128"), ("SW32", "SW64"), ("INTER", "INTER")], ids="".join)
@pytest.mark.spread(2)
def test_layouts_of_operands(backend: Backend, kinds: tuple[str, str]) -> None:
    run(backend, tw.atoms.GMMA_64x32x32_F32BF16BF16_SS, kinds, steps=4, tiles=(2, 1))
    run(backend, tw.atoms.GMMA_64x16x64_S32U8S8_SS_TN, kinds, steps=4)


def test_several_warpgroups_and_tiles(backend: Backend) -> None:
    run(backend, tw.atoms.GMMA_64x16x64_F32E5M2E5M2_SS_TN, places=(2, 1, 1), tiles=(2, 2))
    run(backend, tw.atoms.GMMA_64x16x32_F32F16F16_RS, places=(1, 2, 1), steps=3, tiles=(2, 1), kinds=("SW32", "SW64"))
