"""Matrix instructions as they are compiled: every atom's PTX, and kernels' machine code, for each target."""

from __future__ import annotations

import re

import pytest
from tests.conformance.test_matrix_copies import ROWS, store_fragment, through_matrices
from tests.conformance.test_mma_atoms import from_shared_memory, products
from tests.unit.backends.kernels import Draft, compile_text

import tilewright as tw
from tilewright.arch import Arch
from tilewright.atoms.mma import MMAAtom, Registers
from tilewright.errors import LanguageError
from tilewright.instructions.mma import NAMES, Mma
from tilewright.ir.core import Value

ATOMS: list[MMAAtom] = [getattr(tw.atoms, name) for name in NAMES]


def draft_of(atoms: list[MMAAtom]) -> Draft:
    """A kernel that carries out every atom once, on registers that come from memory."""
    d = Draft("all_atoms", (32, 1, 1))
    buffers = {t: d.pointer(f"x_{t}", t) for t in (tw.uint32, tw.int32, tw.float32, tw.float64)}
    tid = d.special("thread_idx.x", "tid")
    place = 0

    def loaded(registers: Registers) -> tuple[Value, ...]:
        return tuple(d.load(buffers[registers.dtype], d.add(tid, 32 * i)) for i in range(registers.count))

    for atom in atoms:
        operands = (loaded(r) for r in (atom.registers_a, atom.registers_b, atom.registers_c))
        out = atom.registers_d
        for result in d.emit(Mma(atom, *operands), *(out.dtype,) * out.count):
            d.store(buffers[out.dtype], d.add(tid, 4096 + 32 * place), result)
            place += 1
    return d


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_every_atom_of_a_target_compiles(arch: str) -> None:
    atoms = [a for a in ATOMS if Arch.parse(a.arch).number <= Arch.parse(arch).number]
    source = draft_of(atoms).source(arch)
    assert all(f'"{a.instruction} {{' in source.text for a in atoms)
    compile_text(source, arch)


def test_an_atom_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(LanguageError, match=r"_F64F64F64F64_TN needs sm_90 or later, and the target is sm_80"):
        draft_of([tw.atoms.SM90_16x8x4_F64F64F64F64_TN]).source("sm_80")
    mma = tw.make_tiled_mma(tw.atoms.SM90_16x8x4_F64F64F64F64_TN)
    a, b, c = (tw.static(tw.spec(tw.float64, s)) for s in ((16, 4), (8, 4), (16, 8)))
    with pytest.raises(LanguageError, match=r"needs sm_90 or later, and the target is sm_80") as caught:
        from_shared_memory.source(c, a, b, mma, block=32, arch="sm_80")
    assert "tw.gemm(mma, acc" in str(caught.value)


MACHINE_CODE = {
    "SM80_16x8x8_F32TF32TF32F32_TN": "HMMA.1688.F32.TF32",
    "SM80_16x8x16_F32BF16BF16F32_TN": "HMMA.16816.F32.BF16",
    "SM80_16x8x32_S32S8S8S32_TN": "IMMA.16832.S8.S8",
}


def opcodes(sass: str) -> set[str]:
    return set(re.findall(r"\b(?:[HID]MMA|LDSM|STSM|STL|LDL)[.\w]*", sass))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", MACHINE_CODE)
@pytest.mark.spread(3)
def test_a_single_tile_kernel(name: str, arch: str) -> None:
    """Fragments stay in registers, and the product is the instruction."""
    atom = getattr(tw.atoms, name)
    m, n, k = atom.shape_mnk
    a, b = (tw.static(tw.spec(atom.dtype_a.storage, (rows, 2 * k))) for rows in (m, n))
    c = tw.static(tw.spec(atom.dtype_d, (m, n)))
    found = opcodes(from_shared_memory.sass(c, a, b, tw.make_tiled_mma(atom), block=32, arch=arch))
    assert found == {MACHINE_CODE[name]}


def test_ldmatrix_and_stmatrix_in_machine_code() -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (2, 2, 1), (32, 32, 16))
    x4 = tw.atoms.SM75_U32x4_LDSM_N
    operands = (tw.static(tw.spec(tw.float16, (64, 32))),) * 2
    arguments = (tw.static(tw.spec(tw.float32, (64, 64))), *operands, tw.make_tiled_copy_A(x4, mma))
    arguments = (*arguments, tw.make_tiled_copy_B(x4, mma), ROWS, ROWS, mma)
    assert opcodes(through_matrices.sass(*arguments, block=128, arch="sm_80")) == {"LDSM.16.M88.4", "HMMA.16816.F32"}
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F16F16F16F16_TN, (1, 1, 1), (32, 16, 16))
    copy = tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, mma)
    tile = tw.static(tw.spec(tw.float16, (32, 16)))
    layout = tw.Layout((32, 16), (24, 1))
    assert opcodes(store_fragment.sass(tile, tile, copy, mma, layout, block=32)) == {"STSM.16.M88.4"}
    with pytest.raises(LanguageError, match=r"SM90_U32x4_STSM_N needs sm_90 or later, and the target is sm_80"):
        store_fragment.source(tile, tile, copy, mma, layout, block=32, arch="sm_80")


def test_the_text_reads_like_a_persons() -> None:
    atom = tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN
    mma = tw.make_tiled_mma(atom, (2, 2, 1))
    a, b = (tw.static(tw.spec(tw.bfloat16, (64, 32))) for _ in range(2))
    c = tw.static(tw.spec(tw.float32, (64, 64)))
    d = tw.static(tw.spec(tw.float32, (1, 64, 64)))
    text = products.source(d, a, b, c, (mma,), block=128)
    assert EXCERPT in text, text


EXCERPT = """\
            #pragma unroll
            for (int i = 0; i < 4; i += 1) {
                const int n = m == 0 ? i : 3 - i;
                const int index_1 = n * 8 + k * 4;
                const int index_2 = m * 4 + n * 8;
                float d0, d1, d2, d3;
                mma_m16n8k16_row_col_f32_bf16_bf16_f32(
                    d0, d1, d2, d3,
                    *(const unsigned int*)&ra[index], *(const unsigned int*)&ra[index + 2],
                    *(const unsigned int*)&ra[index + 4], *(const unsigned int*)&ra[index + 6],
                    *(const unsigned int*)&rb[index_1], *(const unsigned int*)&rb[index_1 + 2],
                    rc[index_2], rc[index_2 + 1], rc[index_2 + 2], rc[index_2 + 3]);
                rc[index_2] = d0;
"""
