"""Whole kernels under the meter: figures worked out by hand, by line and in sum."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.unit.profile import oracle

import tilewright as tw
from tilewright.backends.sim import counting, measure
from tilewright.backends.sim.counting import operations_of
from tilewright.errors import ArgumentError
from tilewright.figures import Line
from tilewright.instructions.mma import Mma
from tilewright.ir import ops
from tilewright.ir.core import Op
from tilewright.profile import Profile

THREADS = tw.Layout((8, 32), (32, 1))


def line_with(kernel: object, text: str) -> int:
    """The number of the kernel's only line that holds the text."""
    lines, first = inspect.getsourcelines(kernel.__wrapped__)  # type: ignore[attr-defined]
    (found,) = [first + k for k, line in enumerate(lines) if text in line]
    return found


def at(profile: Profile, kernel: object, text: str) -> Line:
    wanted = line_with(kernel, text)
    (found,) = [line for line in profile.by_line() if line.line == wanted]
    assert found.file == __file__
    return found


def profiled(call: Callable[[], object], **options: object) -> Profile:
    with tw.simulate(profile=True, **options) as run:  # type: ignore[arg-type]
        call()
    return run.profile


def figures(line: Line) -> tuple[int, int, int, int]:
    return line.shared_wavefronts, line.shared_wavefronts_ideal, line.global_sectors, line.global_sectors_ideal


@tw.kernel
def naive(dst, src):
    i, j = tw.thread_idx.x, tw.thread_idx.y + 8 * tw.block_idx.x
    dst[i, j] = src[j, i]  # the transpose


def test_a_naive_transpose_writes_a_sector_for_each_element() -> None:
    src, dst = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    profile = profiled(lambda: naive[4, (32, 8)](dst, src))
    line = at(profile, naive, "# the transpose")
    # 32 requests read 4 sectors each and write one sector a lane.
    assert figures(line) == (0, 0, 32 * 4 + 32 * 32, 32 * 4 + 32 * 4)
    assert line.global_requests == 64 and line.global_bytes == 2 * 4096
    assert line.sectors_per_request == 18 and line.sector_use == pytest.approx(8192 / (32 * 1152))
    assert profile.launches[0].touched_bytes == 2 * 4096  # each sector once, however often it is asked for


@tw.kernel
def tiled(dst, src, layout: tw.constexpr):
    smem = tw.shared(src.dtype, layout)
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(src, THREADS, tid), tw.local_partition(smem, THREADS, tid))  # fill
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(tw.local_partition(smem.T, THREADS, tid), tw.local_partition(dst, THREADS, tid))  # drain


def tile(layout: object) -> Profile:
    src, dst = np.random.default_rng(0).random((32, 32), np.float32), np.zeros((32, 32), np.float32)
    profile = profiled(lambda: tiled[1, 256](tw.static(dst), tw.static(src), layout))
    np.testing.assert_array_equal(dst, src.T)
    return profile


def test_a_tile_stored_transposed_hits_one_bank_32_times() -> None:
    profile = tile(tw.Layout((32, 32), (1, 32)))
    assert figures(at(profile, tiled, "# fill")) == (32 * 32, 32, 128, 128)
    assert figures(at(profile, tiled, "# drain")) == (32, 32, 128, 128)
    assert (profile.shared_wavefronts, profile.shared_wavefronts_ideal) == (33 * 32, 64)
    assert (profile.global_sectors, profile.global_sectors_ideal) == (256, 256)


def test_a_padded_tile_has_no_conflict() -> None:
    profile = tile(tw.Layout((32, 32), (33, 1)))
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal == 64


def test_barriers_and_waits_are_counted_for_each_warp() -> None:
    profile = tile(tw.Layout((32, 32), (33, 1)))
    assert at(profile, tiled, "sync_threads").barriers == 8 == profile.launches[0].total.barriers
    instructions = profile.launches[0].total.instructions
    assert (instructions["wait"], instructions["cp.async"], instructions["global store"]) == (8, 32, 32)


@tw.kernel
def wide(dst, src):
    smem = tw.shared(tw.float32, 512)
    tid = tw.thread_idx.x
    values = tw.registers(tw.float32, 4)
    tw.copy(tw.local_tile(src, 4, tid), values)  # 16 bytes of global memory
    tw.copy(values, tw.local_tile(smem, 4, tid))  # 16 bytes of shared memory
    tw.sync_threads()
    dst[tid] = smem[4 * tid]  # stride 4


def test_16_bytes_a_lane_are_four_wavefronts_and_no_conflict() -> None:
    src, dst = np.zeros(512, np.float32), np.zeros(128, np.float32)
    profile = profiled(lambda: wide[1, 128](tw.static(dst), tw.static(src)))
    assert figures(at(profile, wide, "# 16 bytes of global")) == (0, 0, 64, 64)
    assert figures(at(profile, wide, "# 16 bytes of shared")) == (16, 16, 0, 0)
    assert figures(at(profile, wide, "# stride 4")) == (16, 4, 16, 16)


@tw.kernel
def guarded(x, n):
    tid = tw.thread_idx.x
    if tid < n:
        x[tid] = 2.0 * x[tid] + 1.0  # guarded


def test_only_active_warps_and_threads_count() -> None:
    x = np.zeros(96, np.float32)
    profile = profiled(lambda: guarded[1, 96](x, 40))
    line = at(profile, guarded, "# guarded")
    assert line.instructions["global load"] == line.instructions["global store"] == 2  # warps 0 and 1
    assert line.global_sectors == 2 * (4 + 1) and line.global_bytes == 2 * 160
    assert profile.launches[0].total.operations["float32"] == 80


@tw.kernel
def looped(x, n):
    total = tw.float32(0)
    for k in range(n):
        total = tw.fma(total, x[k], x[k])  # the body
    x[tw.thread_idx.x] = total


def test_a_loop_counts_each_iteration_and_its_branch() -> None:
    profile = profiled(lambda: looped[2, 64](np.zeros(64, np.float32), 5), raise_errors=False)
    assert at(profile, looped, "# the body").instructions["fma"] == 5 * 4
    assert at(profile, looped, "# the body").operations["float32"] == 2 * 5 * 128
    assert at(profile, looped, "for k").instructions["branch"] == 4 + 5 * 4


@tw.kernel
def votes(counts, where: tw.constexpr, former: tw.constexpr, only: tw.constexpr, update: tw.constexpr):
    smem = tw.shared(counts.dtype, 64)
    lane = tw.thread_idx.x
    smem[lane] = counts[lane]
    tw.sync_threads()
    if lane < only:
        old = update(smem, where(lane, counts), counts[lane])  # in shared memory
        if former:
            counts[lane] = old
    tw.atomic_add(counts, lane, smem[lane])  # one each


def same(lane: object, counts: object) -> object:
    return 3


def told(lane: object, counts: object) -> object:
    return counts[lane]  # type: ignore[index]  # zeros, which nothing but the data tell


def block(lane: object, counts: object) -> object:
    return tw.block_idx.x


ONE_LANE = [
    # What the compiler makes of it in SASS of sm_90a: REDUX and one lane's ATOMS, a scan and one lane's, or all lanes'.
    (np.int32, same, False, 32, tw.atomic_add, (1, 1)),
    (np.uint32, same, False, 32, tw.atomic_max, (1, 1)),
    (np.int32, block, False, 32, tw.atomic_min, (1, 1)),
    (np.int32, same, False, 5, tw.atomic_add, (1, 1)),
    (np.int32, same, True, 32, tw.atomic_add, (1, 1)),
    (np.int32, same, True, 5, tw.atomic_add, (5, 5)),
    (np.int32, same, True, 32, tw.atomic_max, (32, 32)),
    (np.int32, told, False, 32, tw.atomic_add, (32, 32)),
    (np.float32, same, False, 32, tw.atomic_add, (32, 32)),
    (np.int64, same, False, 32, tw.atomic_add, (32, 32)),
]


@pytest.mark.parametrize(("dtype", "where", "former", "only", "update", "expected"), ONE_LANE)
def test_one_lane_updates_for_its_warp_where_the_compiler_makes_it_so(
    dtype: type, where: object, former: bool, only: int, update: object, expected: tuple[int, int]
) -> None:
    # Its threads race, which does not matter here.
    profile = profiled(lambda: votes[2, 32](np.zeros(32, dtype), where, former, only, update), check=False)
    line = at(profile, votes, "# in shared memory")
    assert figures(line)[:2] == (2 * expected[0], 2 * expected[1])
    assert figures(at(profile, votes, "# one each"))[2:] == (2 * 32 * np.dtype(dtype).itemsize // 32,) * 2


FILL = {
    cache: tw.make_tiled_copy(tw.atoms.CpAsync(128, cache=cache), tw.Layout((8, 4), (4, 1)), tw.Layout((1, 8)))
    for cache in ("global", "always")
}


@tw.kernel
def fill(out, src, layout: tw.constexpr, cache: tw.constexpr, step: tw.constexpr):
    smem = tw.shared(tw.float16, layout)
    tid = tw.thread_idx.x
    slice = FILL[cache].get_slice(tid)
    tile = tw.local_tile(src, (32, 32), (step * tw.block_idx.x, 0))
    tw.copy(FILL[cache], slice.partition_S(tile), slice.partition_D(smem))  # fill it
    tw.cp_async_wait()
    tw.sync_threads()
    out[tid] = smem[tid, 0]


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("pitch", [32, 40, 48, 56, 72])
@pytest.mark.spread(3)
def test_a_copy_past_l1_counts_the_pieces_that_it_writes(pitch: int, step: int) -> None:
    src, out = np.zeros((96, 32), np.float16), np.zeros(32, np.float16)
    for cache in FILL:
        with tw.simulate(profile=True, check=False) as run:  # all blocks write the same elements
            fill[3, 32](tw.static(out), tw.static(src), tw.Layout((32, 32), (pitch, 1)), cache, step)
        pieces = sum(
            len({(2 * pitch * row + 16 * part) // 32 for row in range(first, first + 8) for part in range(4)})
            for first in range(0, 32, 8)
        )
        assert figures(at(run.profile, fill, "# fill it"))[2:] == (
            3 * max(64, pieces if cache == "global" else 0),
            3 * 64,
        )
        assert pieces == (64 if pitch % 16 == 0 else 80)


MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (1, 1, 1))
LOAD_A = tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, MMA)


@tw.kernel
def matrices(out, src, layout: tw.constexpr):
    smem = tw.shared(tw.float16, layout)
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(src, (32, 1), tid), tw.local_partition(smem, (32, 1), tid))
    tw.cp_async_wait()
    tw.sync_threads()
    thread, loader = MMA.get_slice(tid), LOAD_A.get_slice(tid)
    fragment = thread.partition_fragment_A(smem)
    tw.copy(LOAD_A, loader.partition_S(smem), loader.retile_D(fragment))  # ldmatrix
    out[tid] = fragment[0]


def test_ldmatrix_of_unswizzled_rows_of_64_bytes_is_four_way() -> None:
    out, src = np.zeros(32, np.float16), np.zeros((32, 32), np.float16)
    plain = tw.Layout((32, 32), (32, 1))
    profile = profiled(lambda: matrices[1, 32](out, tw.static(src), plain))
    line = at(profile, matrices, "# ldmatrix")
    assert (line.shared_requests, line.shared_wavefronts, line.shared_wavefronts_ideal) == (4, 4 * 16, 4 * 4)
    assert line.instructions["ldmatrix"] == 4
    swizzled = tw.composition(tw.Swizzle(2, 3, 3), plain)
    line = at(profiled(lambda: matrices[1, 32](out, tw.static(src), swizzled)), matrices, "# ldmatrix")
    assert (line.shared_requests, line.shared_wavefronts, line.shared_wavefronts_ideal) == (4, 4 * 4, 4 * 4)


def test_a_view_lies_where_it_lies_in_its_allocation() -> None:
    whole = np.zeros(72, np.float32)
    profile = profiled(lambda: guarded[1, 32](whole[8:40], 32))
    assert profile.global_sectors == 8
    profile = profiled(lambda: guarded[1, 32](whole[4:36], 32))
    assert profile.global_sectors == 10 and profile.global_sectors_ideal == 8


def test_a_sample_of_the_blocks_is_scaled() -> None:
    n = 1024 * 256
    x = np.zeros(n, np.float32)

    @tw.kernel
    def scale(x):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        x[i] = 2.0 * x[i]

    whole = profiled(lambda: scale[1024, 256](x))
    sample = profiled(lambda: scale[1024, 256](x), profile_blocks=256)
    for wrong in (0, -1, 1.5, "a", True):
        with pytest.raises(tw.ArgumentError, match="profile_blocks is"):
            tw.simulate(profile=True, profile_blocks=wrong)
    assert (whole.launches[0].measured_blocks, sample.launches[0].measured_blocks) == (1024, 256)
    assert not whole.launches[0].is_sampled and sample.launches[0].is_sampled
    assert sample.global_sectors == whole.global_sectors == 2 * n * 4 // 32
    assert sample.launches[0].touched_bytes == whole.launches[0].touched_bytes == 2 * n * 4


def test_an_inner_simulation_counts_for_the_outer_one() -> None:
    x = np.zeros(32, np.float32)
    with tw.simulate(profile=True) as outer:
        guarded[1, 32](x, 32)
        with tw.simulate() as inner:
            guarded[1, 32](x, 32)
    assert len(inner.profile.launches) == 1 and len(outer.profile.launches) == 2
    assert outer.profile.global_sectors == 2 * inner.profile.global_sectors == 16


def test_without_profile_nothing_is_measured() -> None:
    with tw.simulate() as run:
        guarded[1, 32](np.zeros(32, np.float32), 32)
    assert run.profile.launches == []
    with pytest.raises(ArgumentError, match="nothing was measured"):
        run.report()


# --- against the plain oracle -----------------------------------------------------------------------------------------


@tw.kernel
def scattered(out, x, places, starts, limit):
    smem = tw.shared(tw.float32, 1024)
    tid = tw.thread_idx.x
    for k in tw.static_range(16):
        smem[64 * k + tid] = 0.0
    tw.sync_threads()
    place = places[tid]
    if place >= limit:
        value = smem[place]  # shared
        start = starts[tw.block_idx.x]
        out[64 * tw.block_idx.x + tid] = value + x[place + start]  # global


@examples(5, 25)
@given(
    st.lists(st.integers(0, 1023), min_size=64, max_size=64),
    st.lists(st.sampled_from([0, 8, 64, 800, 3, 17]), min_size=3, max_size=3),
    st.sampled_from([0, 0, 300, 1000, 2000]),
)
def test_whole_kernels_agree_with_the_oracle(places: list[int], starts: list[int], limit: int) -> None:
    x, out = np.zeros(2048, np.float32), np.zeros(3 * 64, np.float32)
    tables = np.array(places, np.int32), np.array(starts, np.int32)
    profile = profiled(lambda: scattered[3, 64](out, x, *tables, limit), check=False)

    def lanes(warp: int, start: int, identity: bool = False) -> oracle.Lanes:
        mine = range(32 * warp, 32 * warp + 32)
        return [4 * ((i if identity else places[i]) + start) if places[i] >= limit else None for i in mine]

    loads = [oracle.sectors(lanes(w, s), 4) for w in (0, 1) for s in starts]
    stores = [oracle.sectors(lanes(w, 64 * b, identity=True), 4) for w in (0, 1) for b in range(3)]
    shared = [oracle.wavefronts(lanes(w, 0), 4) for w in (0, 1)]
    found = [line for line in profile.by_line() if line.line == line_with(scattered, "# global")]
    if found:
        assert found[0].global_sectors == sum(n for n, _ in loads) + sum(n for n, _ in stores)
        assert found[0].global_sectors_ideal == sum(n for _, n in loads) + sum(n for _, n in stores)
        line = at(profile, scattered, "# shared")
        assert line.shared_wavefronts == 3 * sum(n for n, _ in shared)
        assert line.shared_wavefronts_ideal == 3 * sum(n for _, n in shared)
    else:
        assert max(places) < limit
    touched = {a // 32 for w in (0, 1) for s in starts for a in lanes(w, s) if a is not None}
    written = {a // 32 for w in (0, 1) for b in range(3) for a in lanes(w, 64 * b, identity=True) if a is not None}
    rest = 256 // 32 + bool(touched)  # the tables; starts are read by those who go on
    assert profile.launches[0].touched_bytes == 32 * (len(touched) + len(written) + rest)


@pytest.mark.parametrize("pitch", [64, 66])
def test_blocks_that_are_alike_are_measured_once(pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 64 floats begin at sectors, rows of 66 do not: both ways give the same."""
    src, dst = np.zeros((64, pitch), np.float32)[:, :64], np.zeros((64, 64), np.float32)

    @tw.kernel
    def rows(dst, src):
        dst[tw.block_idx.x, tw.thread_idx.x] = src[tw.block_idx.x, tw.thread_idx.x]

    def figures_of() -> tuple[int, int, int]:
        profile = profiled(lambda: rows[64, 64](dst, src), check=False)
        return profile.global_sectors, profile.global_sectors_ideal, profile.launches[0].touched_bytes

    quick = figures_of()
    monkeypatch.setattr(measure, "_shifts", lambda access, size: None)
    assert figures_of() == quick


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("SM80_16x8x16_F32F16F16F32_TN", 2 * 16 * 8 * 16),
        ("SM70_8x8x4_F32F16F16F32_TN", 4 * 2 * 8 * 8 * 4),  # four groups of eight threads in a warp
    ],
)
def test_an_mma_counts_the_operations_of_a_warp(name: str, operations: int) -> None:
    op = Mma(getattr(tw.atoms, name), (), (), ())
    assert operations_of(op, 32) == ("tensor float16", operations, True)


@tw.kernel
def histogram(counts, x):
    smem = tw.shared(tw.int32, 256)
    tid = tw.thread_idx.x
    smem[tid] = 0
    tw.sync_threads()
    tw.atomic_add(smem, x[tw.block_idx.x * 256 + tid], 1)  # where data decide
    tw.sync_threads()
    tw.atomic_add(counts, tid, smem[tid])


def test_accesses_that_differ_from_block_to_block_are_kept_as_a_sample() -> None:
    x = np.random.default_rng(0).integers(0, 256, 16 * 256).astype(np.int32)
    profile = profiled(lambda: histogram[16, 256](np.zeros(256, np.int32), x))
    (buffer,) = profile.launches[0].buffers
    assert not buffer.is_complete
    line = at(profile, histogram, "# where data decide")
    requests = [[4 * int(n) for n in x[32 * w : 32 * w + 32]] for w in range(16 * 8)]
    assert line.shared_wavefronts == sum(oracle.wavefronts(lanes, 4, "atomic")[0] for lanes in requests)
    assert "of a sample" in profile.report()


@pytest.mark.parametrize(
    "op", [c for c in vars(ops).values() if isinstance(c, type) and issubclass(c, Op) and c is not Op]
)
def test_every_op_is_counted_in_a_class_or_declared_uncounted(op: type[Op]) -> None:
    assert (op in counting._CLASSES) != (op in counting._UNCOUNTED)
