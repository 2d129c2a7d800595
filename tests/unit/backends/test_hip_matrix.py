"""Matrix instructions of AMD's waves: the builtin's operands made of registers, and back."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.backends.kernels import AMD, Draft, compile_text

import tilewright as tw
from tilewright import dtypes as t
from tilewright.atoms.arithmetic import round_tf32
from tilewright.errors import LanguageError
from tilewright.instructions.mfma import NAMES, Mfma, MFMAAtom
from tilewright.instructions.mma import Mma
from tilewright.ir.ops import RoundToTfloat32
from tilewright.runtime.clang import find_clang

WAVE = tw.Layout(64)


def atom(
    builtin: str, shape: tuple[int, int, int], inner: t.DType, outer: t.DType, values: int, results: int
) -> MFMAAtom:
    """Return an atom of a wave whose lanes hold `values` elements of A and of B, and `results` of C."""
    lanes = 16 if shape[0] == 16 else 32
    a = tw.Layout(((lanes, 64 // lanes), values), ((1, lanes * values), lanes))
    c = tw.Layout((64, results), (1, 64))
    return MFMAAtom(
        builtin, "gfx908", shape, outer, inner, inner, outer, WAVE, a, a, c, builtin=f"__builtin_amdgcn_{builtin}"
    )


ATOMS = (
    atom("mfma_f32_16x16x4f32", (16, 16, 4), t.float32, t.float32, 1, 4),
    atom("mfma_f32_32x32x2f32", (32, 32, 2), t.float32, t.float32, 1, 16),
    atom("mfma_f32_32x32x1f32", (32, 32, 2), t.float32, t.float32, 1, 32),
    atom("mfma_f32_16x16x16f16", (16, 16, 16), t.float16, t.float32, 4, 4),
    atom("mfma_f32_32x32x8f16", (32, 32, 8), t.float16, t.float32, 4, 16),
    atom("mfma_f32_16x16x8bf16", (16, 16, 8), t.bfloat16, t.float32, 2, 4),
    atom("mfma_f32_32x32x4bf16", (32, 32, 4), t.bfloat16, t.float32, 2, 16),
    atom("mfma_i32_16x16x16i8", (16, 16, 16), t.int8, t.int32, 4, 4),
    atom("mfma_i32_32x32x8i8", (32, 32, 8), t.int8, t.int32, 4, 16),
)
NEWER = (
    atom("mfma_f64_16x16x4f64", (16, 16, 4), t.float64, t.float64, 1, 4),
    atom("mfma_f32_16x16x16bf16_1k", (16, 16, 16), t.bfloat16, t.float32, 4, 4),
)
each = pytest.mark.parametrize("atom", ATOMS, ids=lambda a: a.name)


def product(atom: MFMAAtom) -> Draft:
    """Return a kernel that multiplies registers of each operand that lie behind one another in memory."""
    d = Draft("product", (64, 1, 1))
    lane = d.special("thread_idx.x", "lane")
    groups = []
    for name, registers in (("a", atom.registers_a), ("b", atom.registers_b), ("c", atom.registers_c)):
        buffer = d.pointer(name, registers.dtype)
        start = d.mul(lane, registers.count)
        groups.append(tuple(d.load(buffer, d.add(start, i)) for i in range(registers.count)))
    results = d.emit(
        (Mfma if isinstance(atom, MFMAAtom) else Mma)(atom, *groups), *[atom.registers_d.dtype] * atom.registers_d.count
    )
    out = d.pointer("d", atom.registers_d.dtype)
    for i, result in enumerate(results):
        d.store(out, d.add(d.mul(lane, atom.registers_d.count), i), result)
    return d


def instruction(atom: MFMAAtom) -> str:
    return f"v_{atom.name} "


@each
@pytest.mark.parametrize("arch", AMD)
@pytest.mark.spread(4)
def test_one_call_is_one_instruction(atom: MFMAAtom, arch: str) -> None:
    module = compile_text(product(atom).source(arch), arch)
    assert module.log == "" and module.assembly.count(instruction(atom)) == 1
    assert not module.resources.spills


@pytest.mark.parametrize("atom", NEWER, ids=lambda a: a.name)
def test_instructions_of_gfx90a(atom: MFMAAtom) -> None:
    assert instruction(atom) in compile_text(product(atom).source("gfx90a"), "gfx90a").assembly


@each
@pytest.mark.spread(3)
def test_registers_are_moved_and_never_changed(atom: MFMAAtom) -> None:
    """Operands reach the instruction as they were loaded: no conversion and no packing stands between."""
    text = compile_text(product(atom).source("gfx908"), "gfx908").assembly
    code = text[text.index("; %bb.0:") : text.index("s_endpgm")]
    assert "_cvt_" not in code and "v_perm" not in code and "v_and_or" not in code


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.spread(4)
def test_every_atom_is_one_instruction(name: str) -> None:
    """With the block of A that stands for all, where an atom has one."""
    atom = getattr(tw.atoms, name)
    cbsz, abid, _ = atom.modifiers
    if find_clang(atom.arch) is None:
        pytest.skip(f"needs a clang that knows {atom.arch}")
    module = compile_text(product(atom).source(atom.arch), atom.arch)
    (line,) = [x for x in module.assembly.split("\n") if "v_mfma" in x]
    assert module.log == "" and atom.builtin.rpartition("amdgcn_")[2] in line
    assert re.findall(r"(cbsz|abid):(\d)", line) == [(w, str(n)) for w, n in (("cbsz", cbsz), ("abid", abid)) if n]


def test_modifiers_are_the_last_operands() -> None:
    """CBSZ 2 lets one of A's four blocks, number ABID, stand for all; each is a function of its own."""
    plain = atom("mfma_f32_16x16x1f32", (64, 64, 1), t.float32, t.float32, 1, 16)
    for block in (0, 3):
        d = product(replace(plain, modifiers=(2, block, 0)))
        name = "mfma_f32_16x16x1f32_cbsz2" + ("_abid3" if block else "")
        assert f"void {name}(\n" in d.text("gfx908") and f"\n{name}(\n" in d.body("gfx908")
        assert f"__builtin_amdgcn_mfma_f32_16x16x1f32(a, b, c, 2, {block}, 0);" in d.text("gfx908")
        line = next(x for x in compile_text(d.source("gfx908"), "gfx908").assembly.split("\n") if "v_mfma" in x)
        assert "cbsz:2" in line and ("abid:3" in line) == (block == 3)
    assert "(a, b, c, 0, 0, 0);" in product(plain).text("gfx908")


def test_the_call_of_a_builtin() -> None:
    text = product(ATOMS[3]).text("gfx908")
    assert (
        """\
// D = A * B + C by a wave: 16 x 16 x 16.
__device__ __forceinline__ void mfma_f32_16x16x16f16(
    float& d0, float& d1, float& d2, float& d3,
    unsigned int a0, unsigned int a1,
    unsigned int b0, unsigned int b1,
    float c0, float c1, float c2, float c3) {
    typedef float Accumulators __attribute__((ext_vector_type(4)));
    typedef _Float16 Operand __attribute__((ext_vector_type(4)));
    const Accumulators c = {c0, c1, c2, c3};
    const Operand a = __builtin_bit_cast(Operand, make_uint2(a0, a1));
    const Operand b = __builtin_bit_cast(Operand, make_uint2(b0, b1));
    const Accumulators d = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
    d0 = d[0];
    d1 = d[1];
    d2 = d[2];
    d3 = d[3];
}
"""
        in text
    )


def test_instructions_of_nvidia_are_refused() -> None:
    d = product(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN)
    with pytest.raises(LanguageError) as caught:
        d.text("gfx908")
    assert str(caught.value) == (
        "SM80_16x8x8_F32TF32TF32F32_TN is an instruction of NVIDIA's GPUs, and the target is gfx908\n"
        "  help: take a MFMA atom of tw.atoms"
    )


@tw.kernel
def product_of_tiles(c, a, b, mma: tw.constexpr):
    """C = A * B^T for 32 x 32 tiles of C, 16 of K a step."""
    x, y = tw.block_idx.x, tw.block_idx.y
    thread = mma.get_slice(tw.thread_idx.x)
    t_c = thread.partition_C(tw.local_tile(c, (32, 32), (x, y)))
    acc = thread.make_fragment_C(t_c)
    tw.clear(acc)
    for k in range(a.shape[1] // 16):
        t_a = thread.partition_A(tw.local_tile(a, (32, 16), (x, k)))
        t_b = thread.partition_B(tw.local_tile(b, (32, 16), (y, k)))
        f_a, f_b = thread.make_fragment_A(t_a), thread.make_fragment_B(t_b)
        tw.copy(t_a, f_a)
        tw.copy(t_b, f_b)
        tw.gemm(mma, acc, f_a, f_b, acc)
    tw.copy(acc, t_c)


@pytest.mark.parametrize("arch", AMD)
def test_a_kernel_by_tiles(arch: str) -> None:
    """2 x 2 tiles of C and 4 steps of K: 16 instructions, whose accumulators take a register each."""
    mma = tw.make_tiled_mma(tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA, (1, 1, 1))
    arrays = [tw.spec(t.float32, (64, 64)) for _ in range(3)]
    launch = product_of_tiles[(2, 2), 64]
    text = launch.source(*arrays, mma, arch=arch)
    assert text.count("mfma_f32_16x16x4f32(\n") == 2  # its definition and a call in unrolled loops
    if find_clang() is None:
        pytest.skip("needs clang")
    assert launch.sass(*arrays, mma, arch=arch).count("v_mfma_f32_16x16x4f32 ") == 16
    found = launch.resources(*arrays, mma, arch=arch)
    assert found.accumulation_registers >= 16 and not found.spills and found.local_bytes == 0


def test_the_kernel_by_tiles_computes_the_product() -> None:
    """On the simulator, as every kernel for this target does."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (64, 64)).astype(np.float32) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    mma = tw.make_tiled_mma(tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA, (1, 1, 1))
    product_of_tiles.configure(arch="gfx908")[(2, 2), 64](c, a, b, mma)
    assert np.array_equal(c, a @ b.T)


def test_xf32_leaves_no_lower_bits_to_the_instruction() -> None:
    xf32 = tw.atoms.GFX942_16x16x8_F32TF32TF32F32_MFMA
    text = product(xf32).text("gfx942")
    assert all(f"{x} = __uint_as_float(__float_as_uint({x}) & 0xFFFFE000u);" in text for x in ("a0", "a1", "b0", "b1"))


def test_rounding_to_xf32() -> None:
    """The text of the rounding, in NumPy's words, is the simulator's: ties away from zero, infinities and NaN as they are."""
    d = Draft("rounds", (64, 1, 1))
    x, y = d.pointer("x", t.float32), d.pointer("y", t.float32)
    (rounded,) = d.emit(RoundToTfloat32(d.load(x, 0)), t.float32)
    d.store(y, 0, rounded)
    text = d.text("gfx942")
    assert "(bits + 0x1000u) & 0xFFFFE000u" in text and "(bits & 0x7F800000u) == 0x7F800000u ? bits : rounded" in text
    with pytest.raises(LanguageError, match=r"gfx90a has no cvt\.rna\.tf32"):
        d.text("gfx90a")
    bits = np.concatenate([np.arange(0, 2**32, 65521, dtype=np.uint64), [0x7F800000, 0xFF800001, 0x7F7FFFFF]])
    values = bits.astype(np.uint32).view(np.float32)
    special = (values.view(np.uint32) & np.uint32(0x7F800000)) == 0x7F800000
    by_text = np.where(
        special, values.view(np.uint32), (values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    )
    np.testing.assert_array_equal(by_text, round_tf32(values).view(np.uint32))
