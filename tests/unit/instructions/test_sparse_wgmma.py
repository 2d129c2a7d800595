"""wgmma with a sparse A: layouts and names as CUTLASS has them, machine code, refusals, and what the checkers find."""

from __future__ import annotations

import re
from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.test_sparse_wgmma_atoms import FAMILIES, QUICK, product, random_metadata

import tilewright as tw
from tilewright.atoms.fragments import positions
from tilewright.draw.mma_pictures import mma_drawing
from tilewright.instructions.sparse_wgmma import NAMES

SS = tw.atoms.GMMA_64x16x32_F32F16F16_SS
RS = tw.atoms.GMMA_64x16x32_F32F16F16_RS
TF32 = tw.atoms.GMMA_64x16x16_F32TF32TF32_SS_TN
BYTES = tw.atoms.GMMA_64x16x64_S32S8S8_SS_TN


# --- the atoms -------------------------------------------------------------------------------------------


def test_the_list_is_cutlass() -> None:
    assert len(NAMES) == len(set(NAMES)) == 1056
    for name in (
        "GMMA_64x8x32_F16F16F16_SS", "GMMA_64x256x32_F32BF16BF16_RS", "GMMA_64x200x16_F32TF32TF32_SS_TN",
        "GMMA_64x176x64_S32U8S8_RS_TN_SATURATE", "GMMA_64x248x64_F16E5M2E4M3_RS_TN",
    ):  # fmt: skip
        assert name in NAMES and getattr(tw.atoms, name).name == name


@pytest.mark.parametrize("name", NAMES[::67])
def test_atoms_follow_from_their_names(name: str) -> None:
    atom = getattr(tw.atoms, name)
    m, n, k = atom.shape_mnk
    assert (m, k * atom.dtype_b.storage.bits) == (64, 512) and f".sp.sync.aligned.m{m}n{n}k{k}" in atom.instruction
    assert (atom.extent("A", 2), atom.extent("B", 2)) == (k // 2, k)
    assert sorted(set(positions(atom.layout_a).ravel().tolist())) == list(range(64 * k // 2))
    assert sorted(positions(atom.layout_b)[0].tolist()) == list(range(n * k))


def test_metadata_lies_as_the_isa_says() -> None:
    """The row and the first element of K of each half of each lane's word, of CUTLASS's ELayout_64x32, 64x16, 64x64."""
    for atom, step in ((SS, 16), (TF32, 8), (BYTES, 16)):
        table = positions(atom.layout_e)
        for thread, half in pairs(range(128), range(2)):
            warp, lane = divmod(thread, 32)
            row = 16 * warp + lane // 4
            if atom is BYTES:
                row, k = row + 8 * (lane % 2), 32 * (lane // 2 % 2) + 16 * half
            else:
                row, k = row + 8 * half, step * (lane % 2)
            assert table[thread, half] == row + 64 * (k // step), (atom, thread, half)


def test_selectors() -> None:
    other = SS.with_majors("MN", "K").with_selector(1)
    assert other.name == "GMMA_64x16x32_F32F16F16_SS.with_majors('MN', 'K').with_selector(1)"
    assert other.with_majors("K", "K").with_selector(0) == SS
    for atom, selector, words in ((SS, 2, "0 or 1, not 2"), (BYTES, 1, "is 0, not 1")):
        with pytest.raises(tw.LayoutError, match=words):
            atom.with_selector(selector)


@given(st.integers(0, 10**6), st.sampled_from([SS, TF32, BYTES]))
def test_a_matrix_comes_back(seed: int, atom: Any) -> None:
    """Whatever is zero, of groups with at most as many others as are kept; and all metadata has a meaning."""
    rng = np.random.default_rng(seed)
    n = atom.neighbours
    dense = rng.integers(-3, 4, (3, 4 * n * 2)).astype(atom.dtype_a.storage.numpy)
    groups = dense.reshape(3, -1, n)
    groups[np.argsort(rng.random(groups.shape), axis=2) < n // 2] = 0
    kept, metadata = atom.compress(dense)
    assert kept.shape == (3, 4 * n) and metadata.shape == (3, 2) and metadata.dtype == np.uint16
    assert atom.is_defined(metadata).all()
    assert np.array_equal(atom.expand(kept, metadata), dense)


def test_too_many_are_refused() -> None:
    matrix = np.zeros((2, 32), np.float16)
    matrix[1, 4:7] = 1
    with pytest.raises(tw.TilewrightError, match=r"keeps 2 of 4 neighbours along K, and row 1 has more at 4 to 7"):
        SS.compress(matrix)
    with pytest.raises(tw.TilewrightError, match="K a multiple of 16"):
        SS.compress(matrix[:, :24])
    with pytest.raises(tw.TilewrightError, match="keeps 1 of 2 neighbours"):
        TF32.compress(np.ones((1, 8)))


def test_pictures_say_that_a_is_half() -> None:
    for atom, note in ((SS, True), (tw.atoms.SM90_64x16x16_F32F16F16_SS, False)):
        notes = mma_drawing(tw.make_tiled_mma(atom)).notes
        assert ("A has 16 of 32 elements along K, those kept" in notes) is note


# --- machine code ----------------------------------------------------------------------------------------


def compiled(atom: Any) -> Any:
    m, n, k = atom.shape_mnk
    types = [t.storage for t in (atom.dtype_d, atom.dtype_a, atom.dtype_b, atom.dtype_c)]
    shapes = ((m, n), (m, k), (n, 2 * k), (m, n))
    arrays = [tw.static(np.zeros(shape, t.numpy)) for shape, t in zip(shapes, types, strict=True)]
    words = tw.static(np.zeros((m, 2 * k // (4 * atom.neighbours)), np.uint16))
    layouts = [
        tw.tile_to_shape(getattr(tw.atoms, f"GMMA_{major}_SW{64 if major == 'K' or rows % 64 == 0 else 32}")(t), shape)
        for major, t, shape, rows in zip(atom.majors, types[1:3], shapes[1:3], (m, n), strict=True)
    ]
    return product.lower(*arrays, words, tw.make_tiled_mma(atom), *layouts, arch="sm_90a", block=128)


def demand_clean(atom: Any) -> None:
    module = compiled(atom).module
    assert module.cubin
    assert not re.search(r"C75\d\d", module.log), (atom, module.log)
    assert not module.resources.spills and not module.resources.stack_bytes, (atom, module.resources)


@pytest.mark.parametrize("name", QUICK[1:5:2])
def test_instructions_compile(name: str) -> None:
    demand_clean(getattr(tw.atoms, name))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_families_compile(family: str) -> None:
    """Every fifth N, another one in each family: the text of the others differs in numbers only."""
    for name in FAMILIES[family][list(FAMILIES).index(family) % 5 :: 5]:
        demand_clean(getattr(tw.atoms, name))


def test_the_text_of_an_instruction() -> None:
    atom = tw.atoms.GMMA_64x8x32_F32BF16BF16_SS.with_majors("MN", "K").with_signs(b=-1).with_selector(1)
    demand_clean(atom)
    text = compiled(atom).cuda.text
    assert (
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, %6, 1, p, 1, -1, 1, 0;"
        in text
    )
    assert "setp.ne.b32 p, %7, 0;" in text and '"r"(metadata), "r"((int)adds)' in text


# --- refusals and findings -------------------------------------------------------------------------------


def same(words: Any) -> Any:
    return words


@tw.kernel
def multiply(D, E, atom: tw.constexpr = SS, change: tw.constexpr = same, late: tw.constexpr = same):
    """D = A B^T of ones by one instruction; `change` and `late` do something to metadata before, and before the wait."""
    mma = tw.make_tiled_mma(atom)
    thread = mma.get_slice(tw.thread_idx.x)
    sA = tw.shared(tw.float16, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (64, 16)))
    sB = tw.shared(tw.float16, tw.tile_to_shape(tw.atoms.GMMA_K_SW64(tw.float16), (16, 32)))
    if tw.thread_idx.x == 0:
        tw.fill(sA, 1)
        tw.fill(sB, 1)
    tw.fence_proxy_async()
    tw.sync_threads()
    acc = thread.partition_fragment_C(D)
    words = thread.make_fragment_E(thread.partition_E(E))
    tw.copy(thread.partition_E(E), words)
    words = change(words)
    tw.wgmma_fence()
    tw.gemm(mma, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate=False, metadata=words)
    tw.wgmma_commit()
    late(words)
    tw.wgmma_wait(0)
    overwrite(words)


def overwrite(words: Any) -> None:
    words[1] = 0


@tw.kernel
def attempt(D, E, what: tw.constexpr):
    what(D, E)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: None, "takes a sparse a, and metadata that says which of its elements are kept"),
        (lambda e: e.recast(tw.uint32), "metadata is uint16 with modes"),
        (lambda e: tw.registers(tw.uint16, (2, 1, 2)), r"\(V, M, K\) as a, here \(V, 1, 1\)"),
        (lambda e: tw.shared(tw.uint16, (2, 1, 1)), "two neighbouring words in registers for each tile"),
        (lambda e: tw.registers(tw.uint16, tw.Layout((2, 1, 1), (2, 1, 1))), "two neighbouring words in registers"),
        (lambda e: 0x4444, "a tensor"),
    ],
)
def test_metadata_is_demanded(change: Any, words: str) -> None:
    arrays = [tw.static(np.zeros((64, n), t)) for n, t in ((16, np.float32), (2, np.uint16))]
    with pytest.raises(tw.TilewrightError, match=words):
        multiply.lower(*arrays, SS, change, arch="sm_90a", block=128)


def test_a_dense_operand_has_no_metadata() -> None:
    dense = tw.make_tiled_mma(tw.atoms.SM90_64x16x16_F32F16F16_SS)

    def what(D: Any, E: Any) -> None:
        with pytest.raises(tw.LayoutError, match="has no metadata: its A is dense"):
            dense.get_slice(0).partition_E(E)
        sA, sB = (tw.shared(tw.float16, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (r, 16))) for r in (64, 16))
        thread, words = dense.get_slice(tw.thread_idx.x), tw.registers(tw.uint16, (2, 1, 1))
        acc = thread.partition_fragment_C(D)
        with pytest.raises(tw.LanguageError, match="metadata= is for atoms with a sparse a"):
            tw.gemm(dense, thread.partition_A(sA), thread.partition_B(sB), acc, metadata=words)

    arrays = [tw.static(np.zeros((64, n), t)) for n, t in ((16, np.float32), (2, np.uint16))]
    attempt.lower(*arrays, what, arch="sm_90a", block=128)


def test_b_has_no_lines_that_are_shorter_than_a_row() -> None:
    """A row of B is 64 bytes for one instruction; along K the hardware stays in a line."""

    def what(D: Any, E: Any) -> None:
        mma = tw.make_tiled_mma(SS)
        thread = mma.get_slice(tw.thread_idx.x)
        sA, sB = (
            tw.shared(tw.float16, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), shape))
            for shape in ((64, 16), (16, 32))
        )
        words = thread.make_fragment_E(thread.partition_E(E))
        tw.gemm(mma, thread.partition_A(sA), thread.partition_B(sB), thread.partition_fragment_C(D), metadata=words)

    arrays = [tw.static(np.zeros((64, n), t)) for n, t in ((16, np.float32), (2, np.uint16))]
    with pytest.raises(tw.LanguageError, match="describes B") as caught:
        attempt.lower(*arrays, what, arch="sm_90a", block=128)
    help = str(caught.value).partition("help: ")[2]
    assert "GMMA_K_SW64" in help and "GMMA_K_SW32" not in help


def findings(words: np.ndarray, *given: Any) -> set[str]:
    with tw.simulate(raise_errors=False) as run:
        multiply[1, 128](tw.static(np.zeros((64, 16), np.float32)), tw.static(words), *given)
    return {finding.kind for finding in run.findings}


def test_metadata_has_to_have_a_meaning() -> None:
    words = random_metadata(np.random.default_rng(0), SS, (64, 2))
    assert findings(words) == set()
    for wrong in (0x0, 0x5, 0xA, 0xF):
        bad = words.copy()
        bad[37, 1] = bad[37, 1] & 0xF0FF | wrong << 8
        assert findings(bad) == {"sparse-metadata"}


def test_metadata_is_read_until_the_wait() -> None:
    words = random_metadata(np.random.default_rng(0), SS, (64, 2))
    assert findings(words, SS, same, overwrite) == {"missing-wait"}


@pytest.mark.parametrize("selector", [0, 1])
def test_only_the_lanes_of_the_selector_need_metadata(selector: int) -> None:
    words = random_metadata(np.random.default_rng(0), SS, (64, 2))

    def in_lanes(half: int) -> Any:
        @tw.function
        def some(all_of_it):
            only = tw.registers(tw.uint16, (2, 1, 1))
            if tw.lane_id() % 4 // 2 == half:
                only[0] = all_of_it[0]
                only[1] = all_of_it[1]
            return only

        return some

    atom = SS.with_selector(selector)
    assert findings(words, atom, in_lanes(selector)) == set()
    assert "uninitialised-read" in findings(words, atom, in_lanes(1 - selector))
