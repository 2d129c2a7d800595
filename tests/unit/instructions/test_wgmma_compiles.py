"""wgmma compiled to machine code for sm_90a: accumulators stay in their registers, and ptxas serialises nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.conformance.test_wgmma_atoms import FAMILIES, QUICK, product

import tilewright as tw


def compiled(name: str, atom: object = None):  # type: ignore[no-untyped-def]
    """Return the lowered product of one tile of two steps by an atom."""
    atom = atom or getattr(tw.atoms, name)
    m, n, k = atom.shape_mnk  # type: ignore[attr-defined]
    types = (atom.dtype_d, atom.dtype_a.storage, atom.dtype_b.storage, atom.dtype_d)  # type: ignore[attr-defined]
    shapes = ((m, n), (m, 2 * k), (n, 2 * k), (m, n))
    arrays = [tw.static(np.zeros(shape, t.numpy)) for shape, t in zip(shapes, types, strict=True)]
    layouts = [
        tw.tile_to_shape(getattr(tw.atoms, f"GMMA_{major}_SW{32 if rows % 64 else 64}")(t), (rows, 2 * k))
        for major, t, rows in zip(atom.majors, types[1:3], (m, n), strict=True)  # type: ignore[attr-defined]
    ]
    mma = tw.make_tiled_mma(atom)  # type: ignore[arg-type]
    return product.lower(*arrays, mma, *layouts, arch="sm_90a", block=128)


def demand_clean(name: str, atom: object = None) -> None:
    lowered = compiled(name, atom)
    module = lowered.module
    assert module.cubin
    assert not re.search(r"C75\d\d", module.log), (name, module.log)
    assert not module.resources.spills and not module.resources.stack_bytes, (name, module.resources)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.spread(4)
def test_instructions(name: str) -> None:
    demand_clean(name)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_instructions(family: str) -> None:
    for name in FAMILIES[family]:
        demand_clean(name)


def test_majors_and_signs() -> None:
    atom = tw.atoms.SM90_64x64x16_F32BF16BF16_SS.with_majors("MN", "MN").with_signs(-1, -1)
    demand_clean("", atom)
    text = compiled("", atom).cuda.text
    assert (
        "p, -1, -1, 1, 1;" in text and "wgmma_m64n64k16_f32_bf16_bf16_ss_a_major_mn_b_major_mn_minus_a_minus_b" in text
    )
    demand_clean("", tw.atoms.SM90_64x64x16_F32F16F16_RS.with_majors("K", "MN").with_signs(b=-1))


def test_too_few_registers_for_an_instruction_are_told() -> None:
    """A thread of 64 x 256 has 128 accumulators, and a multiprocessor of eight such blocks 64 registers for each."""
    lowered = compiled("SM90_64x256x16_F32BF16BF16_SS")
    lowered.kernel.min_blocks = 8
    with pytest.raises(tw.CompileError, match="Insufficient registers") as caught:
        _ = lowered.module
    assert "fewer blocks of a multiprocessor (`min_blocks`)" in str(caught.value) and caught.value.location is not None


def test_other_targets_have_no_wgmma() -> None:
    arrays = [tw.static(np.zeros(s, np.float32)) for s in ((64, 8), (64, 16), (8, 16), (64, 8))]
    atom = tw.atoms.SM90_64x8x8_F32TF32TF32_SS_TN
    layouts = [tw.tile_to_shape(tw.atoms.GMMA_K_SW64(tw.float32), (rows, 16)) for rows in (64, 8)]
    for arch in ("sm_80", "sm_90", "sm_100"):
        with pytest.raises(tw.LanguageError, match="sm_90a|async proxy"):
            product.lower(*arrays, tw.make_tiled_mma(atom), *layouts, arch=arch, block=128)
