"""The matrix instructions of AMD's waves: what they compute on the simulator, who holds what, and clang's builtins."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.harness import Array
from tests.conformance.test_mma_atoms import addends, products, random_tile

import tilewright as tw
from tilewright.arch import Arch
from tilewright.atoms.arithmetic import truncate_tf32
from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import MMAAtom
from tilewright.instructions.mfma import NAMES
from tilewright.runtime.clang import find_clang

ATOMS: list[MMAAtom] = [getattr(tw.atoms, name) for name in NAMES]
AMD = ("gfx908", "gfx90a", "gfx942")
each = pytest.mark.parametrize("atom", ATOMS, ids=str)


# --- who holds what ------------------------------------------------------------------------------------------------


@each
def test_lanes_hold_each_element_once(atom: MMAAtom) -> None:
    m, n, k = atom.shape_mnk
    for layout, size in ((atom.layout_a, m * k), (atom.layout_b, n * k)):
        assert sorted(positions(layout).ravel().tolist()) == list(range(size))
    held = positions(atom.layout_c) + atom.first_row
    rows = range(atom.first_row, atom.first_row + atom.rows)
    assert sorted(held.ravel().tolist()) == sorted(row + m * column for row in rows for column in range(n))


@each
def test_layouts_by_the_words_of_the_manual(atom: MMAAtom) -> None:
    m, _, k = atom.shape_mnk
    small, width = atom.rows, int(atom.layout_a[1].size)
    assert (small, k) in {(16, 4 * width), (32, 2 * width), (16, width), (32, width)}
    is_double = atom.dtype_d is tw.float64
    a, c = positions(atom.layout_a), positions(atom.layout_c)
    for lane in range(64):
        for j in range(width):
            row, depth = (lane, j) if atom.block[1] > 1 else (lane % small, width * (lane // small) + j)
            assert a[lane, j] == row + m * depth
        for i in range(c.shape[1]):
            column_block, value = divmod(i, small * small // 64)
            row = 4 * (lane // 16) + value if small == 16 else 8 * (value // 4) + 4 * (lane // 32) + value % 4
            row = 4 * value + lane // 16 if is_double else row
            assert c[lane, i] == row + m * (small * column_block + lane % small)


# What AMD's matrix instruction calculator prints of some elements: the matrix, its row and column, the register, the lane
# and the byte of the register. B is K x N there.
PRINTED = {
    "16x16x32": [
        ("A", 0, 3, 0, 0, 3), ("A", 9, 4, 1, 9, 0), ("A", 1, 13, 1, 17, 1), ("A", 7, 31, 1, 55, 3),
        ("B", 8, 2, 0, 18, 0), ("B", 7, 15, 1, 15, 3), ("C", 4, 0, 0, 16, 0), ("C", 9, 15, 1, 47, 0),
    ],
    "32x32x16": [
        ("A", 0, 7, 1, 0, 3), ("A", 9, 12, 1, 41, 0), ("A", 4, 8, 0, 36, 0), ("B", 8, 31, 0, 63, 0),
        ("B", 5, 3, 1, 3, 1), ("C", 4, 0, 0, 32, 0), ("C", 7, 31, 3, 63, 0), ("C", 9, 2, 5, 2, 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("types", ["FP8FP8", "FP8BF8", "BF8FP8", "BF8BF8"])
@pytest.mark.parametrize("shape", PRINTED)
def test_bytes_lie_where_the_calculator_says(shape: str, types: str) -> None:
    atom: MMAAtom = getattr(tw.atoms, f"GFX942_{shape}_F32{types}F32_MFMA")
    m, n, _ = atom.shape_mnk
    for matrix, row, column, register, lane, byte in PRINTED[shape]:
        layout, registers = (
            getattr(atom, f"layout_{matrix.lower()}"),
            getattr(atom, f"registers_{matrix.lower()}"),
        )
        element = {"A": row + m * column, "B": column + n * row, "C": row + m * column}[matrix]
        assert positions(layout)[lane, register * registers.lanes + byte] == element


def test_the_blocks_of_a_tile_are_its_rows() -> None:
    for name in (n for n in NAMES if n.endswith("_0")):
        family = [getattr(tw.atoms, name[:-1] + str(i)) for i in range(getattr(tw.atoms, name).block[1])]
        assert [atom.first_row for atom in family] == list(range(0, 64, 64 // len(family)))
        assert {atom.modifiers[0] for atom in family} == {len(family).bit_length() - 1}
        assert [atom.modifiers[1] for atom in family] == list(range(len(family)))


# --- what they compute ---------------------------------------------------------------------------------------------


def multiply(
    atom: MMAAtom, a: Array, b: Array, c: Array, arch: str = "gfx908", places: tuple[int, ...] = (1, 1, 1)
) -> Array:
    """Return D of a kernel on the simulator; what the kernel does not write stays C."""
    mma = tw.make_tiled_mma(atom, places)
    d = c[None].copy()
    products.configure(arch=arch)[1, mma.size](*(tw.static(x) for x in (d, a, b, c)), (mma,))
    return d[0]


def by_definition(atom: MMAAtom, a: Array, b: Array, c: Array, i: int, j: int) -> float:
    """Return an element of D by exact arithmetic, rounded to D's type after each k."""
    total = Fraction(c[i, j].item())
    for x, y in zip(a[i].tolist(), b[j].tolist(), strict=True):
        total = rounded(total + Fraction(x) * Fraction(y)) if atom.dtype_d.is_float else total + x * y
    if atom.dtype_d.is_float:
        return float(total)
    return float((int(total) + 2**31) % 2**32 - 2**31)


def rounded(x: Fraction) -> Fraction:
    """Round to float32, ties to even, by integers alone."""
    if x == 0:
        return x
    exponent = 0
    magnitude = abs(x)
    while magnitude >= 2**24:
        magnitude, exponent = magnitude / 2, exponent + 1
    while magnitude < 2**23 and exponent > -149:
        magnitude, exponent = magnitude * 2, exponent - 1
    return (1 if x > 0 else -1) * Fraction(round(magnitude)) * Fraction(2) ** exponent


@each
@pytest.mark.parametrize("arch", AMD)
@pytest.mark.spread(6)
def test_the_simulator_computes_the_definition(atom: MMAAtom, arch: str) -> None:
    rng = np.random.default_rng(3)
    m, n, k = atom.shape_mnk
    a, b = random_tile(rng, (m, k), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    c = addends(rng, (m, n), atom.dtype_c)
    if not atom.runs_on(Arch.parse(arch)):
        with pytest.raises(tw.LanguageError, match=f"no longer has {atom.name}|{atom.name} needs {atom.arch} or later"):
            multiply(atom, a, b, c, arch)
        return
    d = multiply(atom, a, b, c, arch)
    if atom.dtype_d is tw.float64:  # in any order: see the error bound
        exact = [
            [sum(Fraction(x) * Fraction(y) for x, y in zip(p.tolist(), q.tolist(), strict=True)) for q in b] for p in a
        ]
        assert (np.abs(d - (np.array(exact, np.float64) + c)) <= atom.error_bound(a, b, c)).all()
        return
    if atom.dtype_a is tw.tfloat32:
        a, b = truncate_tf32(a), truncate_tf32(b)
    a, b = (x.astype(np.float64) if atom.dtype_d.is_float else x for x in (a, b))
    for i, j in zip(rng.integers(0, m, 40).tolist(), rng.integers(0, n, 40).tolist(), strict=True):
        inside = atom.first_row <= i < atom.first_row + atom.rows
        assert float(d[i, j]) == (by_definition(atom, a, b, c, i, j) if inside else float(c[i, j])), (i, j)


def test_each_sum_is_rounded_once() -> None:
    """A sum just below the middle of two float32, which rounding to float64 first would put into the middle."""
    atom = tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA
    a, b, c = (np.zeros(s, np.float32) for s in ((16, 4), (16, 4), (16, 16)))
    c[:] = 1 + 2.0**-23
    a[0, 0], b[0, 0] = 2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23  # their product is 2**-24 - 2**-70
    assert atom.reference(a, b, c)[0, 0] == np.float32(1 + 2.0**-23)


@each
def test_error_bound_holds_for_other_orders(atom: MMAAtom) -> None:
    rng = np.random.default_rng(4)
    m, n, k = atom.shape_mnk
    a, b = random_tile(rng, (m, k), atom.dtype_a), random_tile(rng, (n, k), atom.dtype_b)
    c = addends(rng, (m, n), atom.dtype_c)
    difference = atom.reference(a, b, c).astype(np.float64) - atom.reference(a[:, ::-1], b[:, ::-1], c)
    assert (np.abs(difference) <= atom.error_bound(a, b, c)).all()


@pytest.mark.parametrize("places", [(2, 1, 1), (1, 2, 1), (2, 2, 1)])
def test_several_waves_and_atoms(places: tuple[int, ...]) -> None:
    atom = tw.atoms.GFX908_32x32x8_F32F16F16F32_MFMA
    rng = np.random.default_rng(5)
    m, n = 64 * places[0], 32 * places[1]
    a, b = (rng.integers(-4, 5, (extent, 24)).astype(np.float16) for extent in (m, n))
    c = rng.integers(-9, 9, (m, n)).astype(np.float32)
    d = multiply(atom, a, b, c, places=places)
    assert np.array_equal(d, a.astype(np.float32) @ b.T.astype(np.float32) + c)


# --- clang's builtins ----------------------------------------------------------------------------------------------


def hip_of(atom: MMAAtom) -> str:
    """Return a kernel that calls the builtin, with operands of the types and lengths that the atom tells."""
    elements = {tw.float32: "float", tw.float16: "_Float16", tw.bfloat16: "short", tw.int8: "char", tw.int32: "int",
                tw.float64: "double", tw.tfloat32: "float"}  # fmt: skip
    width, sums = int(atom.layout_a[1].size), int(atom.layout_c[1].size)
    accumulator = elements[atom.dtype_d]
    operand = elements.get(atom.dtype_a)
    if atom.dtype_a.bits == 8:
        operand, width = ("int", width // 4) if width == 4 else ("long", 1)
    vector = f"__attribute__((ext_vector_type({width})))" if width > 1 else ""
    modifiers = ", ".join(map(str, atom.modifiers))
    return f"""
typedef {accumulator} C __attribute__((ext_vector_type({sums})));
typedef {operand} A {vector};
extern "C" __attribute__((global)) void product(C* d, const A* a, const A* b, const C* c) {{
    *d = {atom.builtin}(*a, *b, *c, {modifiers});
}}"""


@pytest.mark.parametrize("arch", AMD)
def test_clang_takes_the_builtins(arch: str, tmp_path: Path) -> None:
    """All atoms of a target in one translation unit: every name, type, count and modifier is what clang wants."""
    clang, atoms = find_clang(arch), [atom for atom in ATOMS if atom.runs_on(Arch.parse(arch))]
    if clang is None:
        pytest.skip(f"needs a clang that knows {arch}")
    source = tmp_path / "atoms.hip"
    texts = [f"namespace n{i} {{{hip_of(atom).replace('product', f'product{i}')}\n}}" for i, atom in enumerate(atoms)]
    source.write_text("\n".join(texts))
    options = ("-x", "hip", "--cuda-device-only", f"--offload-arch={arch}", "-nogpuinc", "-nogpulib", "-O1", "-S")
    out = tmp_path / "atoms.s"
    done = subprocess.run(
        [str(clang), *options, str(source), "-o", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assembly = out.read_text()
    for i, atom in enumerate(atoms):
        code = assembly[assembly.index(f"product{i}:") :]
        line = next(text for text in code.splitlines() if "v_mfma" in text)
        if arch != "gfx942" or atom.arch == "gfx942":  # where v_mfma_f32_32x32x1_2b_f32 is that of gfx908
            assert f"v_{atom.builtin.removeprefix('__builtin_amdgcn_')} " in line
        cbsz, abid, _ = atom.modifiers
        assert (f"cbsz:{cbsz}" in line) == (cbsz > 0) and (f"abid:{abid}" in line) == (abid > 0)


# --- a product by way of shared memory -----------------------------------------------------------------------------


@tw.kernel
def product_of_tiles(C, A, B, mmas: tw.constexpr):
    """C = A B^T of one 64 x 64 tile by one wave: K in steps of 16 through shared memory, all mmas of a tile in turn."""
    padded = tw.Layout((64, 16), (17, 1))
    a_tile, b_tile = tw.shared(A.dtype, padded), tw.shared(B.dtype, padded)
    lane = tw.thread_idx.x
    parts = tuple(mma.get_slice(lane) for mma in mmas)
    sums = tuple(part.partition_fragment_C(C) for part in parts)
    for each in sums:
        tw.clear(each)
    for k in range(2):
        for source, tile in ((A, a_tile), (B, b_tile)):
            step = tw.local_tile(source, (64, 16), (0, k))
            lanes = tw.Layout((4, 16), (16, 1))
            tw.copy(tw.local_partition(step, lanes, lane), tw.local_partition(tile, lanes, lane))
        tw.sync_threads()
        for mma, part, each in zip(mmas, parts, sums, strict=True):
            tw.gemm(mma, each, part.partition_A(a_tile), part.partition_B(b_tile), each)
        tw.sync_threads()
    for part, each in zip(parts, sums, strict=True):
        tw.copy(each, part.partition_C(C))


FAMILIES = {
    "16x16x4": ["GFX908_16x16x4_F32F32F32F32_MFMA"],
    "32x32x2": ["GFX908_32x32x2_F32F32F32F32_MFMA"],
    "two blocks": [f"GFX908_64x64x1_F32F32F32F32_MFMA_B2_{i}" for i in range(2)],
    "four blocks": [f"GFX908_64x64x1_F32F32F32F32_MFMA_B4_{i}" for i in range(4)],
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.spread(2)
def test_a_product_through_shared_memory(family: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((64, 32)).astype(np.float32) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    mmas = tuple(tw.make_tiled_mma(getattr(tw.atoms, name)) for name in FAMILIES[family])
    launcher = product_of_tiles.configure(arch="gfx908")[1, 64]
    launcher(*(tw.static(x) for x in (c, a, b)), mmas)
    # One sum after the other in order of k, whichever instruction it is.
    whole = tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA
    assert np.array_equal(c, whole.reference(a, b, np.zeros((64, 64), np.float32)))


def test_the_measurements_of_a_wave() -> None:
    a = np.zeros((64, 32), np.float32)
    mmas = (tw.make_tiled_mma(tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA),)
    launcher = product_of_tiles.configure(arch="gfx908")[1, 64]
    profile = launcher.analyze(*(tw.static(x) for x in (np.zeros((64, 64), np.float32), a, a)), mmas)
    lines = [line for launch in profile.launches for line in launch.lines]
    assert sum(line.operations["tensor float32"] for line in lines) == 2 * 64 * 64 * 32
    assert sum(line.instructions["mma"] for line in lines) == 4 * 4 * 8


def test_a_barrier_of_the_wave_orders_its_64_lanes() -> None:
    """Lanes 0 and 63 are of one wave, so its barrier orders them on gfx908 and not on sm_90a."""

    @tw.kernel
    def reverse(out, x):
        tile = tw.shared(tw.int32, 64)
        tile[tw.thread_idx.x] = x[tw.thread_idx.x]
        tw.sync_warp()
        out[tw.thread_idx.x] = tile[63 - tw.thread_idx.x]

    x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    reverse.configure(arch="gfx908")[1, 64](out, x)
    assert np.array_equal(out, x[::-1])
    with pytest.raises(tw.CheckError, match="race"):
        reverse[1, 64](out, x)
