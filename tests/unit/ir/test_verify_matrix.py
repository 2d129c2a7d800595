"""The verifier's rules for matrix instructions."""

from __future__ import annotations

import pytest
from tests.unit.backends.kernels import Draft

import tilewright as tw
from tilewright.errors import InternalError
from tilewright.instructions.matrix_copies import LoadMatrix, StoreMatrix, TransposeMatrix
from tilewright.instructions.mma import Mma
from tilewright.ir.core import Value
from tilewright.ir.ops import constant
from tilewright.ir.printer import to_text
from tilewright.ir.verify import verify

ATOM = tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN


def words(count: int) -> tuple[Value, ...]:
    return (constant(0, tw.uint32),) * count


def floats(count: int) -> tuple[Value, ...]:
    return (constant(0, tw.float32),) * count


def test_a_right_product_verifies_and_prints() -> None:
    d = Draft()
    d.emit(Mma(ATOM, words(4), words(2), floats(4)), *(tw.float32,) * 4)
    verify(d.kernel)
    assert "mma atom=SM80_16x8x8_F32TF32TF32F32_TN 0 0 0 0 0 0 0.0" in to_text(d.kernel)


@pytest.mark.parametrize(
    ("a", "b", "results", "what"),
    [
        (words(2), words(2), 4, "takes 4 uint32 for a"),
        (floats(4), words(2), 4, "takes 4 uint32 for a"),
        (words(4), words(4), 4, "takes 2 uint32 for b"),
        (words(4), words(2), 2, "takes 4 float32 for d"),
    ],
)
def test_wrong_registers(a: tuple[Value, ...], b: tuple[Value, ...], results: int, what: str) -> None:
    d = Draft()
    d.emit(Mma(ATOM, a, b, floats(4)), *(tw.float32,) * results)
    with pytest.raises(InternalError, match=what):
        verify(d.kernel)


def test_wrong_matrices() -> None:
    d = Draft()
    smem = d.shared("smem", 256, tw.float16)
    d.emit(LoadMatrix(smem, True, constant(0, tw.int32)), tw.uint32, tw.uint32)
    d.emit(StoreMatrix(smem, False, constant(0, tw.int32), words(4)))
    d.emit(TransposeMatrix(words(1)[0]), tw.uint32)
    verify(d.kernel)
    for wrong, what in (
        (lambda: d.emit(LoadMatrix(smem, False, constant(0, tw.int32)), *(tw.uint32,) * 3), "1, 2 or 4 matrices"),
        (lambda: d.emit(LoadMatrix(smem, False, constant(0, tw.int32)), tw.float32), "1, 2 or 4 matrices"),
        (lambda: d.emit(LoadMatrix(d.pointer("g"), False, constant(0, tw.int32)), tw.uint32), "not shared memory"),
    ):
        wrong()
        with pytest.raises(InternalError, match=what):
            verify(d.kernel)
        d.kernel.body.ops.pop()
