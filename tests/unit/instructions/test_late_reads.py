"""Reads of a stage behind products that are under way: a fence keeps the stage from being filled again before them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.helpers.machine_code import reads_under_way

import tilewright as tw
from tilewright.runtime.libraries import find_program
from tilewright.runtime.nvrtc import compile_cuda

STEPS = 5
MMA = tw.make_tiled_mma(tw.atoms.SM90_64x16x16_F32BF16BF16_SS)
SMEM = (
    tw.tile_to_shape(tw.atoms.GMMA_K_INTER(tw.bfloat16), (64, 16)),
    tw.tile_to_shape(tw.atoms.GMMA_K_INTER(tw.bfloat16), (16, 16)),
)


def multiply(tA, tB, part):
    tw.wgmma_fence()
    tw.gemm(MMA, tA, tB, part, accumulate=False)


def begin(tA, tB, part):
    multiply(tA, tB, part)
    tw.wgmma_commit()


@tw.function
def scales_of(sS, stage, row):
    return [sS[row + 8 * half, stage] for half in range(2)]


@tw.function
def wait_and_release(how, state, stage, tA, tB, part):
    """Wait for the products and release the stage, as `how` says."""
    if how == "far":
        tw.wgmma_wait(0)
        begin(tA, tB, part)
    if how == "perhaps" and stage == 0:
        multiply(tA, tB, part)
    if how in ("between", "perhaps", "empty"):
        tw.wgmma_commit()
    if how == "own":
        tw.fence_proxy_async()
    if how == "any":
        tw.threadfence("cta")
    if how != "waited":
        tw.wgmma_wait(0)
    if how == "branch":
        if stage == 0:
            state.give_back(stage)
        else:
            state.give_back(stage)
    elif how != "next":
        state.give_back(stage)


@tw.kernel
def scaled(C, A, B, S, how: tw.constexpr):
    """Compute C[m, n] = sum over k of S[k, m] * (A B^T)[m, n], reading S[k] from a ring of two stages."""
    sA, sB = (tw.shared(tw.bfloat16, layout) for layout in SMEM)
    sS, other = tw.shared(tw.float32, tw.Layout((64, 2))), tw.shared(tw.float32, tw.Layout((64, 2)))
    ring, tid = tw.pipeline(2, consumers=4, bytes=256), tw.thread_idx.x
    for i in range(tid, 64 * 16, 256):
        sA[i // 16, i % 16] = A[i // 16, i % 16]
    if tid < 256:
        sB[tid // 16, tid % 16] = B[tid // 16, tid % 16]
    for i in range(tid, 128, 256):
        other[i % 64, i // 64] = 1
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        if tid == 0:
            state = ring.producer()
            for k in range(STEPS):
                with state.fill() as (stage, full):
                    tw.copy(
                        tw.atoms.SM90_BULK_COPY_G2S, tw.local_tile(S, (1, 64), (k, 0))[0, :], sS[:, stage], barrier=full
                    )
    else:
        state, thread = ring.consumer(), MMA.get_slice(tid - 128)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        part, acc = (tw.registers(tw.float32, MMA.partition_shape((64, 16), "C")) for _ in range(2))
        tw.clear(acc)
        sums, row = tw.accumulator_rows(MMA, acc), (tid - 128) // 32 * 16 + tw.lane_id() // 4
        for k in tw.range(STEPS, unroll=1):
            if how == "next" and k > 0:
                state.give_back((k - 1) % 2)
            stage = state.acquire()
            if how == "before":
                scales = scales_of(sS, stage, row)
            multiply(tA, tB, part)
            if how != "between":
                tw.wgmma_commit()
            if how == "waited":
                tw.wgmma_wait(0)
            if how != "before":
                scales = scales_of(other if how == "elsewhere" else sS, stage, row)
            wait_and_release(how, state, stage, tA, tB, part)
            found = tw.accumulator_rows(MMA, part)
            for half in tw.static_range(2):
                sums[half, :] = tw.fma(found[half, :], scales[half], sums[half, :])
        out = thread.partition_C(C)
        for i in tw.static_range(tw.size(acc)):
            out[i] = acc[i]


# How a stage is read, and the fences that are there then. "far" and "before" have
# products behind the read that are waited for; those of "between" were begun before it, "perhaps" in every other step,
# and "empty" has a group of none.
WAYS = {
    "behind": 1, "waited": 1, "between": 1, "perhaps": 1, "empty": 1, "branch": 2, "next": 1, "own": 0, "any": 0,
    "far": 0, "before": 0, "elsewhere": 0,
}  # fmt: skip


@pytest.mark.parametrize(("how", "fences"), WAYS.items())
def test_a_fence_waits_for_reads_that_products_hold_up(how: str, fences: int) -> None:
    random = np.random.default_rng(3)
    A, B = (random.integers(-3, 4, (rows, 16)).astype(tw.bfloat16.numpy) for rows in (64, 16))
    S, C = random.integers(-3, 4, (STEPS, 64)).astype(np.float32), np.full((64, 16), np.nan, np.float32)
    scaled[1, 256](C, A, B, S, how)
    scales = np.full(64, STEPS) if how == "elsewhere" else S.sum(0)
    np.testing.assert_array_equal(C, scales[:, None] * (A.astype(np.float32) @ B.astype(np.float32).T))
    code = scaled.lower(C, A, B, S, how, arch="sm_90a", block=256).cuda.text
    assert code.count(" fence_reads();") == fences


@tw.kernel
def ahead(C, S):
    """Read each stage at the end of the step before; C is not computed by what products give."""
    sA, sB = (tw.shared(tw.bfloat16, layout) for layout in SMEM)
    sS, ring, tid = tw.shared(tw.float32, tw.Layout((64, 2))), tw.pipeline(2, consumers=4, bytes=256), tw.thread_idx.x
    for i in range(tid, 1024, 256):
        sA[i // 16, i % 16] = 0
        if i < 256:
            sB[i // 16, i % 16] = 0
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        if tid == 0:
            state = ring.producer()
            for k in range(STEPS):
                with state.fill() as (stage, full):
                    source = tw.local_tile(S, (1, 64), (k, 0))[0, :]
                    tw.copy(tw.atoms.SM90_BULK_COPY_G2S, source, sS[:, stage], barrier=full)
    else:
        state, thread, total = ring.consumer(), MMA.get_slice(tid - 128), tw.float32(0)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        part = tw.registers(tw.float32, MMA.partition_shape((64, 16), "C"))
        stage = state.acquire()
        scale = sS[tid % 64, stage]
        for _ in tw.range(STEPS - 1, unroll=1):
            begin(tA, tB, part)
            tw.wgmma_wait(0)
            state.give_back(stage)
            total += scale + part[0]
            stage = state.acquire()
            scale = sS[tid % 64, stage]
        if tid < 192:
            C[tid % 64] = total + scale


def test_before_a_loop_there_is_one_fence() -> None:
    """In the loop products come behind each read; what was read before it is waited for once, and not in each step."""
    S, C = np.random.default_rng(3).integers(-3, 4, (STEPS, 64)).astype(np.float32), np.zeros(64, np.float32)
    ahead[1, 256](C, S)
    np.testing.assert_array_equal(C, S.sum(0))
    code = ahead.lower(C, S, arch="sm_90a", block=256).cuda.text.split("set_registers")[-1]
    _, _, consumer = code.partition("} else {")
    before, _, loop = consumer.partition("for (int i")
    assert " fence_reads();" in before and " fence_reads();" not in loop


def test_the_fence_stands_before_the_warp_meets() -> None:
    """One lane arrives for all, so each lane has to have its fence before."""
    arrays = np.zeros((64, 16), np.float32), *(np.zeros((rows, 16), tw.bfloat16.numpy) for rows in (64, 16))
    code = scaled.lower(*arrays, np.zeros((STEPS, 64), np.float32), "behind", arch="sm_90a", block=256).cuda.text
    lines = [line.strip() for line in code.split("wgmma_wait<0>();")[-1].splitlines()]
    fence, meets = lines.index("fence_reads();"), lines.index("__syncwarp();")
    arrives = next(n for n, line in enumerate(lines) if line.startswith("mbarrier_arrive("))
    assert fence < meets < arrives


@needs_nvrtc
def test_no_read_is_under_way_where_the_stage_is_released(tmp_path: Path) -> None:
    """Machine code waits for reads where their results are used, and there it is too late, if no fence waits before."""
    if find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    arrays = np.zeros((64, 16), np.float32), *(np.zeros((rows, 16), tw.bfloat16.numpy) for rows in (64, 16))
    lowered = scaled.lower(*arrays, np.zeros((STEPS, 64), np.float32), "behind", arch="sm_90a", block=256)
    assert set(reads_under_way(lowered.module.cubin, tmp_path)) == {0}
    before, _, after = lowered.cuda.text.rpartition(" fence_reads();")
    late = compile_cuda(before + after, name="scaled", arch="sm_90a")
    assert max(reads_under_way(late.cubin, tmp_path)) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("k", [75, 512])
def test_scales_of_packed_weights_are_read_before_their_stage_is_filled_again(k: int) -> None:
    """512 x 2863 in tiles of 64 x 128: without the fence 8 of 100 launches had tiles with other scales on an H200."""
    torch = pytest.importorskip("torch")
    from tilewright.kernels import winners

    random = np.random.default_rng(1)
    codes, zeros = random.integers(0, 16, (k, 2863), np.uint8), random.integers(0, 17, (-(-k // 256), 2863))
    scales = random.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    x = torch.randn(1536, 80 if k == 75 else k, device="cuda", dtype=torch.float16)[:, :k]
    weights = tw.quantized(codes, scales, zeros.astype(np.int16), bits=4, group=256)
    arrays = {
        name: torch.from_numpy(np.asarray(getattr(weights, name))).cuda() for name in ("packed", "scales", "zeros")
    }
    weights, out = (
        type(weights)(**arrays, format=weights.format, order=weights.order),
        torch.empty(1536, 2863, device="cuda"),
    )
    (candidate,) = (
        c
        for c in tw.matmul.explain(x, weights, out=out).candidates
        if c.family.name == "weight warpgroups"
        and c.configuration.tile[:2] == (64, 128)
        and c.configuration.splits == 1
    )
    with winners.forcing(candidate):
        tw.matmul(x, weights, out=out)
        first, wrong = out.clone(), torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(2000):
            tw.matmul(x, weights, out=out)
            wrong += (out != first).any()
    assert int(wrong) == 0
