"""Every wgmma, on random tiles in shared memory through its descriptors and layouts, against its NumPy definition."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.conformance.test_mma_atoms import addends, assert_near, random_tile

import tilewright as tw
from tilewright.atoms.mma import OperandPlace
from tilewright.instructions.wgmma import NAMES, WarpgroupMMAAtom

FAMILIES: dict[str, list[str]] = defaultdict(list)
for _name in NAMES:
    FAMILIES[re.sub(r"64x\d+", "64xN", _name)].append(_name)
# Of each family one N in the quick suite, another one in each; all in the slow one.
QUICK = [names[5 * n % len(names)] for n, names in enumerate(FAMILIES.values())]


@tw.kernel
def product(D, A, B, C, mma: tw.constexpr, layout_a: tw.constexpr, layout_b: tw.constexpr):
    """D = A B^T + C by one tiled mma of warpgroups: B in shared memory, and A there or in registers."""
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    sA, sB = tw.shared(A.dtype, layout_a), tw.shared(B.dtype, layout_b)
    for t_from, t_to in ((A, sA), (B, sB)):
        for k in range(A.shape[1]):
            for row in range(i, t_from.shape[0], mma.size):
                t_to[row, k] = t_from[row, k]
    tw.fence_proxy_async()
    tw.sync_threads()
    if mma.atom.a_place is OperandPlace.REGISTERS:
        gA = thread.partition_A(A)
        tA = thread.make_fragment_A(gA)
        tw.copy(gA, tA)
    else:
        tA = thread.partition_fragment_A(sA)
    tC, tD = thread.partition_C(C), thread.partition_C(D)
    acc = thread.make_fragment_C(tC)
    tw.copy(tC, acc)
    tw.wgmma_fence()
    tw.gemm(mma, tA, thread.partition_fragment_B(sB), acc)
    tw.wgmma_commit()
    tw.wgmma_wait(0)
    tw.copy(acc, tD)


def skip_elsewhere(backend: Backend) -> None:
    if backend.name == "cuda":
        import torch

        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs sm_90a")


def run(
    backend: Backend, atom: WarpgroupMMAAtom, layouts: tuple[str, str], places: tuple[int, int, int] = (1, 1, 1),
    steps: int = 4, tiles: tuple[int, int] = (1, 1),
) -> None:  # fmt: skip
    skip_elsewhere(backend)
    mma = tw.make_tiled_mma(atom, places)
    m, n, k = tiles[0] * mma.tile_size(0), tiles[1] * mma.tile_size(1), steps * mma.tile_size(2)
    rng = np.random.default_rng(0)
    a, b = random_tile(rng, (m, k), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    c = addends(rng, (m, n), atom.dtype_c)
    D = backend.zeros((m, n), atom.dtype_d)
    shared = [
        tw.tile_to_shape(getattr(tw.atoms, f"GMMA_{major}_{kind}")(x.storage), (rows, k))
        for major, kind, x, rows in zip(
            atom.majors, layouts, (atom.dtype_a, atom.dtype_b), (m, n), strict=True
        )
    ]  # fmt: skip
    product[1, mma.size](*(tw.static(x) for x in (D, *map(backend.put, (a, b, c)))), mma, *shared)
    expected, step = c, atom.shape_mnk[2]
    for first in range(0, k, step):
        expected = atom.reference(a[:, first : first + step], b[:, first : first + step], expected)
    bound = atom.error_bound(a, b, c)
    assert_near(backend.get(D), expected, np.zeros_like(bound) if backend.name == "sim" else bound, atom)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.spread(6)
def test_instructions(backend: Backend, name: str) -> None:
    run(backend, getattr(tw.atoms, name), ("SW128", "SW128"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_instructions(backend: Backend, family: str) -> None:
    for name in FAMILIES[family]:
        run(backend, getattr(tw.atoms, name), ("SW128", "SW128"))


KINDS = ("SW128", "SW64", "SW32", "INTER")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "K"), ("K", "MN"), ("MN", "MN")], ids="".join)
@pytest.mark.spread(4)
def test_layouts_of_operands(backend: Backend, kind: str, majors: tuple[str, str]) -> None:
    """A in one layout and B in the next one, both swizzled or not, of several tiles along M, N and K."""
    atom = tw.atoms.SM90_64x64x16_F32BF16BF16_SS.with_majors(*majors)
    other = KINDS[KINDS.index(kind) - 1]
    run(backend, atom, (kind, other), steps=4, tiles=(2, 2))


@pytest.mark.parametrize("name", ["SM90_64x32x8_F32TF32TF32_SS_TN", "SM90_64x32x32_S32U8S8_SS_TN"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.spread(4)
def test_layouts_of_other_types(backend: Backend, name: str, kind: str) -> None:
    run(backend, getattr(tw.atoms, name), (kind, kind), steps=8, tiles=(1, 3))


@pytest.mark.parametrize("places", [(2, 1, 1), (1, 2, 1), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("end", ["SS", "RS"])
def test_several_warpgroups(backend: Backend, places: tuple[int, int, int], end: str) -> None:
    run(backend, getattr(tw.atoms, f"SM90_64x48x16_F32F16F16_{end}"), ("SW128", "SW64"), places, tiles=(2, 1))


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)], ids=str)
def test_signs(backend: Backend, signs: tuple[int, int]) -> None:
    run(backend, tw.atoms.SM90_64x16x16_F16F16F16_RS.with_signs(*signs), ("SW128", "SW128"))
