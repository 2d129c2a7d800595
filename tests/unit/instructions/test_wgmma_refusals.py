"""What tw.gemm refuses of a warpgroup's operands, with the reason and what would do; and what it takes."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw

SS, RS = tw.atoms.SM90_64x64x16_F32F16F16_SS, tw.atoms.SM90_64x64x16_F32F16F16_RS
SW128, SW64, MN128 = (
    getattr(tw.atoms, f"GMMA_{kind}")(tw.float16) for kind in ("K_SW128", "K_SW64", "MN_SW128")
)  # fmt: skip
GOOD = tw.tile_to_shape(SW128, (64, 64))


@tw.kernel
def multiply(body: tw.constexpr):
    body(tw.thread_idx.x)


def said(body: Any, threads: int = 128, arch: str | None = None) -> str:
    """Return what is said of a kernel, nothing where it is taken."""
    try:
        multiply.lower(body, arch=arch or "sm_90a", block=threads)
    except tw.TilewrightError as error:
        return str(error)
    return ""


def product(
    layout_a: Any, layout_b: Any = GOOD, atom: Any = SS, view: Any = None, dtype: Any = tw.float16, alignment: int = 16
) -> str:
    """Return what is said of a product of two tiles in shared memory; `view` takes a part of A."""

    def body(i: Any) -> None:
        thread = tw.make_tiled_mma(atom).get_slice(i)
        sA, sB = tw.shared(dtype, layout_a, alignment=alignment), tw.shared(dtype, layout_b)
        tA, tB = thread.partition_A(sA if view is None else view(sA)), thread.partition_B(sB)
        acc = tw.registers(tw.float32, tw.make_tiled_mma(atom).partition_shape((64, 64), "C"))
        tw.gemm(tw.make_tiled_mma(atom), tA[:, :, 0], tB[:, :, 0], acc)

    return said(body)


def test_canonical_layouts_are_taken() -> None:
    assert product(GOOD) == ""
    assert product(tw.tile_to_shape(SW64, (64, 32)), tw.tile_to_shape(MN128, (64, 32)), SS.with_majors("K", "MN")) == ""
    assert product(tw.Layout(((8, 8), (8, 8)), ((8, 512), (1, 64)))) == ""  # INTER, written by hand


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (tw.row_major((64, 64)), "eight rows must be 8 elements apart"),
        (tw.Layout((64, 64)), "8 neighbours along K"),
        (
            tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((64, 64), (72, 1))),
            "eight rows must be 64 elements apart",
        ),
        (tw.ComposedLayout(tw.Swizzle(2, 3, 4), 0, tw.Layout((64, 64), (64, 1))), "not by Sw<2,3,4>"),
    ],
)
def test_other_layouts_are_refused_with_what_would_do(layout: Any, words: str) -> None:
    message = product(layout)
    assert "no descriptor of SM90_64x64x16_F32F16F16_SS describes A" in message and words in message
    assert "tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.float16), shape)" in message
    assert "tw.gemm(" in message  # the line


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ((96, 64), (64, 64), ("A has 96 elements along M", "takes 64 at a time", "multiple of 64")),
        ((64, 64), (40, 64), ("B has 40 elements along N", "takes 64 at a time", "the atom with N = 8, 40")),
        ((64, 64), (32, 64), ("B has 32 elements along N", "the atom with N = 8, 16, 32")),
        ((64, 24), (64, 24), ("A has 24 elements along K", "takes 16 at a time")),
    ],
    ids=["M", "N", "small N", "K"],
)
def test_shared_memory_that_is_not_whole_tiles_is_refused(a: Any, b: Any, words: tuple[str, ...]) -> None:
    """The instruction would read beyond it."""
    inter = tw.atoms.GMMA_K_INTER(tw.float16)
    message = product(tw.tile_to_shape(inter, a), tw.tile_to_shape(inter, b))
    assert all(each in message for each in words), message
    assert "thread.partition_" in message  # the line


def test_an_atom_of_another_n_is_named_with_those_that_there_are() -> None:
    with pytest.raises(
        AttributeError, match="there is SM90_64x_x16_F32F16F16_SS with 8, 16, 24, .*256 in place of the 20"
    ):
        tw.atoms.SM90_64x20x16_F32F16F16_SS
    with pytest.raises(AttributeError, match="has no atom 'nothing'$"):
        tw.atoms.nothing


def test_the_other_major_is_named() -> None:
    mn = tw.tile_to_shape(MN128, (64, 64))
    assert "atom.with_majors('MN', 'K')" in product(mn)
    assert product(mn, atom=SS.with_majors("MN", "K")) == ""
    assert "atom.with_majors('K', 'K')" in product(GOOD, atom=SS.with_majors("MN", "K"))
    tf32 = tw.atoms.SM90_64x64x8_F32TF32TF32_SS_TN
    good = tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.float32), (64, 32))
    message = product(tw.tile_to_shape(tw.atoms.GMMA_MN_SW128(tw.float32), (64, 32)), good, tf32, dtype=tw.float32)
    assert "float32 has to be K-major: transpose the tile while it is copied" in message


def test_tiles_begin_where_patterns_do() -> None:
    shifted = tw.tile_to_shape(SW128, (128, 64))
    assert product(shifted, view=lambda s: s[8:72, :]) == ""
    for first in (1, 4):
        assert "behind the beginning of a line" in product(shifted, view=lambda s, n=first: s[n : n + 64, :])
    wide = tw.tile_to_shape(SW128, (64, 128))
    assert product(wide, view=lambda s: s[:, 16:32]) == ""
    staged = tw.tile_to_shape(SW128, (64, 128, 3))  # whole patterns before the tile, of a stage that the device counts
    assert product(staged, view=lambda s: s[:, 80:96, tw.block_idx.x % 3]) == ""
    assert "the chunks of a line along K must adjoin" in product(wide, view=lambda s: s[:, 56:72])
    assert "behind the beginning of a line" in product(wide, view=lambda s: s[:, 4:20])


def test_shared_memory_is_aligned_to_the_pattern() -> None:
    def body(i: Any) -> None:
        thread = tw.make_tiled_mma(SS).get_slice(i)
        first = tw.shared(tw.uint8, 40)
        first[i % 40] = 0
        sA, sB = tw.shared(tw.float16, GOOD), tw.shared(tw.float16, GOOD)
        acc = tw.registers(tw.float32, tw.make_tiled_mma(SS).partition_shape((64, 64), "C"))
        tw.gemm(tw.make_tiled_mma(SS), thread.partition_A(sA), thread.partition_B(sB), acc)
        tw.device_assert(first[0] == 0)

    text = multiply.lower(body, arch="sm_90a", block=128).cuda.text
    assert text.count("__align__(1024)") == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda t, s, r: (r, t.partition_B(s)),
            "reads A from shared memory through a descriptor, and it lies in register",
        ),
        (
            lambda t, s, r: (t.partition_A(s), r),
            "reads B from shared memory through a descriptor, and it lies in register",
        ),
        (lambda t, s, r: (s, t.partition_B(s)), "tiles of 64 x 16|steps of K|modes"),
    ],
)
def test_operands_elsewhere(make: Any, words: str) -> None:
    import re

    def body(i: Any) -> None:
        mma = tw.make_tiled_mma(SS)
        thread = mma.get_slice(i)
        smem = tw.shared(tw.float16, GOOD)
        a, b = make(thread, smem, tw.registers(tw.float16, (8, 1, 4)))
        tw.gemm(mma, a, b, tw.registers(tw.float32, mma.partition_shape((64, 64), "C")))

    assert re.search(words, said(body))


def test_accumulators() -> None:
    def with_sum(make: Any, **more: Any) -> str:
        def body(i: Any) -> None:
            mma = tw.make_tiled_mma(SS)
            thread = mma.get_slice(i)
            smem = tw.shared(tw.float16, GOOD)
            tw.gemm(mma, *make(thread.partition_A(smem), thread.partition_B(smem), mma), **more)

        return said(body)

    def registers(mma: Any) -> Any:
        return tw.registers(tw.float32, mma.partition_shape((64, 64), "C"))

    assert with_sum(lambda a, b, m: (a, b, registers(m))) == ""
    assert with_sum(lambda a, b, m: (a, b, registers(m)), accumulate=False) == ""
    assert "c and d are one tensor" in with_sum(lambda a, b, m: (registers(m), a, b, registers(m)))
    transposed = tw.Layout(((2, 2, 8), 1, 1), ((2, 1, 4), 0, 0))
    assert "values a thread in order" in with_sum(lambda a, b, m: (a, b, tw.registers(tw.float32, transposed)))


def test_other_atoms_always_add() -> None:
    def body(i: Any) -> None:
        a, b, c = (tw.registers(tw.float32, n) for n in (2, 2, (2, 2)))
        tw.fill(a, 1)
        tw.fill(b, 1)
        tw.clear(c)
        tw.gemm(a, b, c, accumulate=False)

    assert "accumulate= is for atoms of a warpgroup" in said(body)


def test_waits_targets_and_blocks() -> None:
    for pending in (-1, 8, True, 1.0):
        assert "takes the number of groups left pending, 0 to 7" in said(lambda i, n=pending: tw.wgmma_wait(n))
    for word in (tw.wgmma_fence, tw.wgmma_commit, tw.wgmma_wait):
        assert "needs sm_90a, and the target is sm_90" in said(lambda i, w=word: w(), arch="sm_90")
        assert "done by 128 lanes together" in said(lambda i, w=word: w(), threads=96)
