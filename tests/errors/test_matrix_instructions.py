"""What tw.gemm and tw.copy refuse of atoms of a warp: while tracing, with the layouts and what would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import LanguageError

MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN)
LDSM = tw.atoms.SM75_U32x4_LDSM_N
COPY_A = tw.make_tiled_copy_A(LDSM, MMA)


@tw.kernel
def attempt(x, what: tw.constexpr):
    what(x)


def refusal(what: Any, dtype: Any = tw.float16, **options: Any) -> str:
    with pytest.raises(LanguageError) as caught:
        attempt.source(tw.static(tw.spec(dtype, (16, 16))), what, block=32, **options)
    return str(caught.value)


def gemm_on(a: Any, b: Any, c: Any) -> Any:
    return lambda x: tw.gemm(MMA, tw.registers(*c), tw.registers(*a), tw.registers(*b), tw.registers(*c))


A, B, C = (tw.float16, (8, 1, 1)), (tw.float16, (4, 1, 1)), (tw.float32, (4, 1, 1))


def test_fragments_of_the_wrong_shape() -> None:
    text = refusal(gemm_on((tw.float16, (4, 1, 1)), B, C))
    assert "A of SM80_16x8x16_F32F16F16F32_TN has 8 values a thread, and the fragment's first mode has 4" in text
    assert "register float16 (4,1,1)" in text
    assert "a has 2 steps of K and b has 1" in refusal(gemm_on((tw.float16, (8, 1, 2)), B, C))


def test_fragments_of_the_wrong_type() -> None:
    text = refusal(gemm_on((tw.bfloat16, (8, 1, 1)), B, C))
    assert "a is bfloat16, and SM80_16x8x16_F32F16F16F32_TN takes float16" in text


def test_an_atom_without_an_instruction() -> None:
    mma = tw.make_tiled_mma(replace(MMA.atom, instruction="", name="mine"))

    def what(x: Any) -> None:
        tw.gemm(mma, *(tw.registers(*fragment) for fragment in (C, A, B, C)))

    assert "mine is 16 x 8 x 16 and names no instruction" in refusal(what)


def test_narrow_integers_come_in_words() -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x64_S32S4S4S32_TN)

    def what(x: Any) -> None:
        a, b, c = (tw.registers(t, (4, 1, 1)) for t in (tw.uint32, tw.uint32, tw.int32))
        tw.gemm(mma, c, a, b, c)

    assert "help: use tw.atoms.<name>.in_words() on tensors of uint32" in refusal(what)


def test_accumulators_live_in_registers() -> None:
    def what(x: Any) -> None:
        c = tw.shared(tw.float32, (4, 1, 1))
        tw.gemm(MMA, c, tw.registers(*A), tw.registers(*B), c)

    text = refusal(what)
    assert "C of SM80_16x8x16_F32F16F16F32_TN lives in registers, with a static layout, not in shared float32" in text


def load(layout: Any, dtype: Any = tw.float16, copy: Any = COPY_A) -> Any:
    def what(x: Any) -> None:
        smem = tw.shared(dtype, layout)
        thread = copy.get_slice(tw.thread_idx.x)
        fragment = tw.registers(dtype, tw.Layout((8, 1, 1)))
        tw.copy(copy, thread.partition_S(smem), thread.retile_D(fragment))

    return what


def test_rows_that_are_not_aligned() -> None:
    text = refusal(load(tw.Layout((16, 16), (20, 1))))
    assert "SM75_U32x4_LDSM_N takes rows of 16 adjacent bytes, aligned to 16: 8 float16" in text
    assert "the 8 values of a row are aligned to 8 bytes only" in text
    assert "from shared float16" in text and "to register float16" in text


def test_rows_that_are_not_contiguous() -> None:
    text = refusal(load(tw.Layout((16, 16), (1, 16))))
    assert "the 8 values of a row lie at 8:16" in text
    assert "or use the transposing atom" in text


def test_the_wrong_memory_and_the_wrong_type() -> None:
    def from_global(x: Any) -> None:
        thread = COPY_A.get_slice(tw.thread_idx.x)
        tw.copy(COPY_A, thread.partition_S(x), thread.retile_D(tw.registers(tw.float16, tw.Layout((8, 1, 1)))))

    assert "SM75_U32x4_LDSM_N copies from shared to register memory" in refusal(from_global)

    def transposed_words(x: Any) -> None:
        row, registers = tw.shared(tw.float32, (4,)), tw.registers(tw.float32, (1,))
        tw.copy(tw.atoms.SM75_U16x2_LDSM_T, row, registers)

    assert "SM75_U16x2_LDSM_T moves elements of 16 bits, not float32" in refusal(transposed_words)


def test_no_predicate() -> None:
    def what(x: Any) -> None:
        tw.copy(LDSM, tw.shared(tw.float16, (8,)), tw.registers(tw.float16, (8,)), pred=True)

    assert "SM75_U32x4_LDSM_N takes neither pred nor count: a whole warp executes it" in refusal(what)
