"""wgmma's atoms and descriptors, compared with the formulas of the PTX ISA, which are written here once more."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.atoms.fragments import positions
from tilewright.instructions.descriptors import NAMES as LAYOUTS
from tilewright.instructions.descriptors import SharedDescriptor, describe
from tilewright.instructions.wgmma import NAMES

CHOSEN = [name for n, name in enumerate(NAMES) if n % 31 == 0]


@pytest.mark.parametrize("n", [8, 24, 64, 256])
def test_accumulators_lie_as_the_isa_says(n: int) -> None:
    """PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": row and column of each register of each thread."""
    atom = getattr(tw.atoms, f"SM90_64x{n}x16_F32BF16BF16_SS")
    table = positions(atom.layout_c)
    assert table.shape == (128, n // 2)
    for thread, i in product(range(128), range(n // 2)):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
        column = 8 * (i // 4) + lane % 4 * 2 + i % 2
        assert table[thread, i] == row + 64 * column


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [("x16_F16F16F16_RS", 2), ("x8_F32TF32TF32_RS_TN", 1), ("x32_F32E4M3E5M2_RS_TN", 4), ("x32_S32U8S8_RS_TN", 4)],
)
def test_a_in_registers_lies_as_the_isa_says(name: str, neighbours: int) -> None:
    """Four registers: row g or g + 8, then the same for the upper half of K; neighbours along K in one register."""
    atom = getattr(tw.atoms, f"SM90_64x16{name}")
    table, k = positions(atom.layout_a), atom.shape_mnk[2]
    assert (atom.registers_a.count, atom.registers_a.lanes) == (4, neighbours)
    for thread, i in product(range(128), range(4 * neighbours)):
        warp, lane = divmod(thread, 32)
        register, j = divmod(i, neighbours)
        row = 16 * warp + lane // 4 + 8 * (register % 2)
        column = k // 2 * (register // 2) + lane % 4 * neighbours + j
        assert table[thread, i] == row + 64 * column


def test_operands_in_shared_memory_are_seen_whole() -> None:
    atom = tw.atoms.SM90_64x96x16_F32F16F16_SS
    assert str(atom.layout_a) == "(128,(64,16)):(0,(1,64))"
    assert str(atom.layout_b) == "(128,(96,16)):(0,(1,96))"


def test_the_list_is_cutlass() -> None:
    assert len(NAMES) == len(set(NAMES)) == 32 * (6 + 2 + 16) + 18 * 16
    every = set(NAMES)
    for name in (
        "SM90_64x8x16_F16F16F16_SS", "SM90_64x256x16_F32BF16BF16_RS", "SM90_64x200x8_F32TF32TF32_SS_TN",
        "SM90_64x176x32_S32U8S8_RS_TN_SATURATE", "SM90_64x24x32_S32S8S8_SS_TN", "SM90_64x248x32_F16E5M2E4M3_RS_TN",
    ):  # fmt: skip
        assert name in every
    for name in ("SM90_64x40x32_S32S8S8_SS_TN", "SM90_64x264x16_F32F16F16_SS", "SM90_64x16x16_F16BF16BF16_SS"):
        assert name not in every


@pytest.mark.parametrize("name", CHOSEN)
def test_atoms_follow_from_their_names(name: str) -> None:
    atom = getattr(tw.atoms, name)
    assert atom.name == name and atom.threads == 128
    m, n, k = atom.shape_mnk
    assert (m, k * atom.dtype_a.storage.bits) == (64, 256) and f"m{m}n{n}k{k}" in atom.instruction
    assert sorted(positions(atom.layout_c).ravel().tolist()) == list(range(64 * n))
    assert [arch for arch in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_120") if atom.runs_on(Arch.parse(arch))] == [
        "sm_90a"
    ]


def test_majors_and_signs() -> None:
    atom = tw.atoms.SM90_64x32x16_F32F16F16_SS
    turned = atom.with_majors("MN", "K").with_signs(b=-1)
    assert turned.majors == ("MN", "K") and turned.signs == (1, -1)
    assert turned.with_majors("K", "K").with_signs() == atom
    a, b, c = np.ones((64, 16), np.float16), np.full((32, 16), 2, np.float16), np.ones((64, 32), np.float32)
    assert (turned.reference(a, b, c) == -31).all()
    assert tw.atoms.SM90_64x32x16_F32F16F16_RS.with_majors("K", "MN").majors == ("K", "MN")
    for call, words in (
        (lambda: atom.with_majors("M", "K"), "the major of A is 'K' or 'MN'"),
        (lambda: tw.atoms.SM90_64x32x8_F32TF32TF32_SS_TN.with_majors("K", "MN"), "elements have 32 bits"),
        (lambda: tw.atoms.SM90_64x32x32_S32S8S8_SS_TN.with_majors("MN", "K"), "elements have 8 bits"),
        (lambda: tw.atoms.SM90_64x32x16_F32F16F16_RS.with_majors("MN", "K"), "takes A from registers"),
        (lambda: atom.with_signs(a=2), "signs are 1 or -1"),
        (lambda: tw.atoms.SM90_64x32x32_S32S8S8_SS_TN.with_signs(a=-1), "negates floats only"),
    ):
        with pytest.raises(tw.LayoutError, match=words):
            call()


# --- descriptors -----------------------------------------------------------------------------------------


def bytes_of(kind: str) -> int:
    return {"SW128": 128, "SW64": 64, "SW32": 32, "INTER": 16}[kind]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [tw.int8, tw.bfloat16, tw.float32, tw.float64], ids=str)
def test_canonical_layouts_are_those_of_the_isa(name: str, dtype: tw.DType) -> None:
    """A line of the pattern is along K or along M; its chunks of 16 bytes are XORed with the number of the line."""
    layout = getattr(tw.atoms, name)(dtype)
    _, major, kind = name.split("_")
    line, size = bytes_of(kind), dtype.bytes
    for i, j in product(range(8), range(line // size)):
        plain = i * line + j * size
        chunk = (plain >> 7 & line // 16 - 1) << 4  # eight lines of 128 bytes, or more lines in each 128
        expected = plain ^ chunk
        coordinate = (i, j) if major == "K" else (j, i)
        assert layout(coordinate) * size == expected


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [tw.int8, tw.float16, tw.float32], ids=str)
@pytest.mark.parametrize("shape", [(64, 2), (128, 4), (192, 1)])
@pytest.mark.parametrize("order", [None, (1, 0)])
@pytest.mark.spread(6)
def test_a_descriptor_finds_every_element(
    name: str, dtype: tw.DType, shape: tuple[int, int], order: tuple[int, int] | None
) -> None:
    """The law of `describe`, for the first instruction's tile of tiles that repeat a pattern in either order."""
    pattern = getattr(tw.atoms, name)(dtype)
    rows, k = shape[0], shape[1] * max(pattern[1].size, 32 // dtype.bytes)
    if rows % pattern[0].size:
        pytest.skip("the pattern does not divide the rows")
    tiled = tw.tile_to_shape(pattern, (rows, k), order)
    inner, swizzle = (tiled.inner, tiled.outer) if isinstance(tiled, tw.ComposedLayout) else (tiled, None)
    one = tw.composition(inner, (rows, 32 // dtype.bytes))
    major = "MN" if "_MN_" in name else "K"
    found = describe(one, swizzle, dtype, major)
    for start in (0, 3 * found.pattern, 40 * 1024):
        places = found.swizzled(start + found.places(rows, 32 // dtype.bytes, dtype.bytes))
        expected = np.array([[tiled((i, j)) for j in range(32 // dtype.bytes)] for i in range(rows)])
        assert np.array_equal(places, start + expected * dtype.bytes)


def test_the_bits_of_a_descriptor() -> None:
    """PTX ISA, "Matrix Descriptor Format"."""
    found = SharedDescriptor("MN", 64, 2048, 512).bits(0x12340)
    assert found & 0x3FFF == 0x1234
    assert found >> 16 & 0x3FFF == 2048 // 16
    assert found >> 32 & 0x3FFF == 512 // 16
    assert found >> 49 & 7 == 0  # the pattern is aligned: no base offset
    assert [SharedDescriptor("K", line, 16, 0).bits() >> 62 for line in (16, 128, 64, 32)] == [0, 1, 2, 3]
    assert not found >> 14 & 3 and not found >> 30 & 3 and not found >> 46 & 7


@pytest.mark.parametrize(
    ("layout", "swizzle", "major", "words"),
    [
        (tw.Layout((64, 16), (1, 64)), None, "K", "8 neighbours along K .16 bytes. must adjoin"),
        (tw.Layout((64, 16), (64, 1)), None, "K", "eight rows must be 8 elements apart"),
        (tw.Layout((64, 16), (64, 1)), tw.Swizzle(3, 4, 3), "K", "not by Sw<3,4,3>"),
        (tw.Layout((64, 16), (64, 1)), tw.Swizzle(3, 3, 4), "K", "not by Sw<3,3,4>"),
        (tw.Layout((64, 16), (32, 1)), tw.Swizzle(3, 3, 3), "K", "eight rows must be 64 elements apart"),
        (tw.Layout((64, (8, 2)), (64, (1, 16))), tw.Swizzle(3, 3, 3), "K", "chunks of a line along K must adjoin"),
        (tw.Layout(((8, 8), 16), ((64, 520), 1)), tw.Swizzle(3, 3, 3), "K", "multiple of 1024 bytes"),
        (tw.Layout(((8, 8), 16), ((64, 1 << 17), 1)), tw.Swizzle(3, 3, 3), "K", "below 262144"),
        (tw.Layout(((8, 2, 4), 16), ((64, 512, 2048), 1)), tw.Swizzle(3, 3, 3), "K", "do not fall into runs of 8 at one distance"),
        (tw.Layout((32, 16), (1, 64)), tw.Swizzle(3, 3, 3), "MN", "do not fall into runs of 64"),
        (tw.Layout((64, 16), (64, 1)), tw.Swizzle(3, 3, 3), "MN", "64 neighbours along M or N"),
        (tw.Layout((64, 16), (2, 128)), tw.Swizzle(3, 3, 3), "MN", "64 neighbours along M or N"),
        (tw.Layout((64, 16), (1, 128)), tw.Swizzle(3, 3, 3), "MN", "eight k must be 64 elements apart"),
        (tw.Layout((64, 16), (-8, 1)), None, "K", "eight rows must be 8"),
    ],
)  # fmt: skip
def test_what_no_descriptor_describes(layout: tw.Layout, swizzle: tw.Swizzle, major: str, words: str) -> None:
    with pytest.raises(tw.LayoutError, match=words):
        describe(layout, swizzle, tw.bfloat16, major)  # type: ignore[arg-type]
