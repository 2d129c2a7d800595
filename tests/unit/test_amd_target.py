"""`kernel.configure(arch=...)`: the target of simulated launches, and what a wave of 64 lanes does together."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.draw.printing import text


@tw.kernel
def gathered(out, votes, x, width: tw.constexpr):
    i = tw.thread_idx.x
    out[0, i] = tw.shuffle_xor(x[i], width - 1, width)
    out[1, i] = tw.shuffle(x[i], 5, width)
    out[2, i] = tw.lane_id()
    out[3, i] = tw.warp_id()
    votes[i] = tw.ballot(x[i] % 3 == 0)


@pytest.mark.parametrize("width", [64, 32, 8])
def test_lanes_count_to_64(width):
    x = np.arange(128, dtype=np.int32) * 7
    out, votes = np.zeros((4, 128), np.int32), np.zeros(128, np.uint64)
    gathered.configure(arch="gfx90a")[1, 128](out, votes, x, width)
    i = np.arange(128)
    assert np.array_equal(out[0], x[i ^ (width - 1)])
    assert np.array_equal(out[1], x[i // width * width + 5])
    assert np.array_equal(out[2], i % 64) and np.array_equal(out[3], i // 64)
    bits = [sum(1 << lane for lane in range(64) if x[64 * warp + lane] % 3 == 0) for warp in range(2)]
    assert votes.tolist() == [bits[0]] * 64 + [bits[1]] * 64


def test_other_targets_keep_their_own_code():
    out, votes, x = np.zeros((4, 64), np.int32), np.zeros(64, np.uint64), np.arange(64, dtype=np.int32)
    for arch, size in (("gfx908", 64), (None, 32), ("sm_80", 32), ("gfx908", 64)):
        gathered.configure(arch=arch)[1, 64](out, votes, x, 32)
        assert out[2].max() == size - 1


def test_a_width_of_64_is_refused_where_warps_have_32():
    arguments = tw.spec("int32", (4, 128)), tw.spec("uint64", 1), tw.spec("int32", 1)
    with pytest.raises(tw.LanguageError, match="a power of two up to 32, got 64"):
        gathered.lower(*arguments, 64)
    with pytest.raises(tw.LanguageError, match="a power of two up to 64, got 128"):
        gathered.configure(arch="gfx908").lower(*arguments, 128)


def test_a_shuffle_wants_whole_groups_of_64():
    out, votes, x = np.zeros((4, 96), np.int32), np.zeros(96, np.uint64), np.zeros(96, np.int32)
    with pytest.raises(tw.LanguageError, match="done by 64 lanes together, and the block of 96"):
        gathered.configure(arch="gfx908")[1, 96](out, votes, x, 64)


@tw.kernel
def some_lanes(out):
    if tw.lane_id() < 40:
        out[tw.thread_idx.x] = tw.vote_all(out[tw.thread_idx.x] == 0)


def test_a_vote_wants_the_whole_wave():
    with pytest.raises(tw.CheckError, match="reached by 40 of its 64 threads"):
        some_lanes.configure(arch="gfx908")[1, 64](np.zeros(64, np.int32))


@tw.kernel
def multiply(C, A, B, mma: tw.constexpr):
    part = mma.get_slice(tw.thread_idx.x)
    c = part.partition_fragment_C(C)
    tw.clear(c)
    a, b = part.partition_fragment_A(A), part.partition_fragment_B(B)
    tw.copy(part.partition_A(A), a)
    tw.copy(part.partition_B(B), b)
    tw.gemm(mma, c, a, b, c)
    tw.copy(c, part.partition_C(C))


def tiles():
    return tuple(tw.static(np.zeros(shape, np.float32)) for shape in ((16, 16), (16, 4), (16, 4)))


def test_matrix_instructions_belong_to_their_vendor():
    mma = tw.make_tiled_mma(tw.atoms.GFX908_16x16x4_F32F32F32F32_MFMA)
    with pytest.raises(tw.LanguageError, match="needs gfx908 or later, and the target is sm_90a"):
        multiply[1, 64](*tiles(), mma)
    with pytest.raises(tw.LanguageError, match="TiledMMA of 64 threads is used in a block of 96"):
        multiply.configure(arch="gfx908")[1, 96](*tiles(), mma)
    nvidia = tw.make_tiled_mma(tw.atoms.SM80_16x8x4_F32TF32TF32F32_TN)
    with pytest.raises(tw.LanguageError, match="needs sm_80 or later, and the target is gfx908"):
        multiply.configure(arch="gfx908")[1, 32](*tiles(), nvidia)


def test_shared_memory_is_the_targets():
    @tw.kernel
    def large(out):
        tile = tw.shared(tw.float32, 20000)
        tile[tw.thread_idx.x] = 1.0
        out[tw.thread_idx.x] = tile[tw.thread_idx.x]

    large[1, 64](np.zeros(64, np.float32))
    with pytest.raises(tw.LanguageError, match="a block of gfx908 has 65536"):
        large.configure(arch="gfx908")[1, 64](np.zeros(64, np.float32))


def test_named_barriers_are_not_there():
    @tw.kernel
    def meet(out):
        tw.named_barrier(1, 64).sync()
        out[tw.thread_idx.x] = 1

    with pytest.raises(tw.LanguageError, match="gfx908 has one barrier"):
        meet.configure(arch="gfx908")[1, 64](np.zeros(64, np.int32))


def test_an_amd_target_refuses_arrays_on_a_gpu(monkeypatch):
    @tw.kernel
    def fill(out):
        out[tw.thread_idx.x] = 1

    monkeypatch.delenv("TILEWRIGHT_BACKEND", raising=False)
    monkeypatch.setattr("tilewright.specialise.common_device", lambda infos, names: 0)
    with pytest.raises(tw.DeviceError, match="configured for gfx908, and its arrays live on an NVIDIA GPU"):
        fill.configure(arch="gfx908")[1, 64](np.zeros(64, np.int32))


def test_unknown_targets():
    with pytest.raises(tw.ArgumentError, match="no architecture is called 'gfx1'"):
        gathered.configure(arch="gfx1")


def test_check_follows_the_configured_target():
    @tw.kernel
    def column(x):
        tile = tw.shared(tw.float32, tw.Layout((64, 32), (32, 1)))
        tile[tw.thread_idx.x, 0] = x[tw.thread_idx.x]
        tw.sync_threads()
        x[tw.thread_idx.x] = tile[63 - tw.thread_idx.x, 0]

    remarks = tw.check(column.configure(arch="gfx908"), (tw.spec(tw.float32, (64,)),), block=64)
    assert [r.kind for r in remarks] == ["bank-conflict"] * 2
    profile = column.configure(arch="gfx908")[1, 64].analyze(np.zeros(64, np.float32))
    assert profile.shared_wavefronts == 2 * 64 and profile.launches[0].arch == "gfx908"


@pytest.mark.parametrize("name", ["GFX908_32x32x2_F32F32F32F32_MFMA", "GFX908_64x64x1_F32F32F32F32_MFMA_B4_2"])
def test_drawings_of_atoms(name):
    mma = tw.make_tiled_mma(getattr(tw.atoms, name))
    assert mma.offset_c == mma.atom.first_row
    assert "T63" in text(mma, limit=(64, 64))
