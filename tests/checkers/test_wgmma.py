"""Products of warpgroups under the checkers: each fence, commit and wait is missed where it was needed, and only there."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.slow import covering

import tilewright as tw

ATOM = tw.atoms.SM90_64x32x16_F32F16F16_SS
FROM_REGISTERS = tw.atoms.SM90_64x32x16_F32F16F16_RS
A_LAYOUT = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (64, 16))
B_LAYOUT = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (32, 16))
STEPS = 4


@tw.kernel
def in_turns(D, A, B, mma: tw.constexpr, without: tw.constexpr):
    """D = A B^T, a step of K at a time through one buffer; `without` leaves parts of it out."""
    sA, sB = tw.shared(A.dtype, A_LAYOUT), tw.shared(B.dtype, B_LAYOUT)
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    tD = thread.partition_C(D)
    acc = thread.make_fragment_C(tD)
    if "clear" not in without:
        tw.clear(acc)
    for step in range(STEPS):
        for k in tw.static_range(16):
            if i < 64:
                sA[i, k] = A[i, 16 * step + k]
            if i < 32:
                sB[i, k] = B[i, 16 * step + k]
        if "proxy" not in without:
            tw.fence_proxy_async()
        if "barrier" not in without:
            tw.sync_threads()
        if "fence" not in without:
            tw.wgmma_fence()
        tw.gemm(mma, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate="zero" not in without or step > 0)
        if "commit" not in without:
            tw.wgmma_commit()
        if "wait" not in without:
            tw.wgmma_wait(0)
        if "second" not in without:
            tw.sync_threads()
    if "late" in without:
        tw.wgmma_commit()
        tw.wgmma_wait(0)
    tw.copy(acc, tD)


def kinds(kernel: tw.Kernel, *arguments: object, block: int = 128) -> set[str]:
    with tw.simulate(raise_errors=False) as run:
        kernel[1, block](*(tw.static(x) if isinstance(x, np.ndarray) else x for x in arguments))
    return {f.kind for f in run.findings}


def operands(k: int = 16 * STEPS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (n, k)).astype(np.float16) for n in (64, 32))
    return np.zeros((64, 32), np.float32), a, b


@pytest.mark.parametrize(
    ("without", "found"),
    [
        ((), set()),
        (("clear", "zero"), set()),  # the first product needs no clear
        (("clear",), {"uninitialised-read"}),
        (("barrier",), {"race"}),
        (("proxy",), {"missing-fence"}),
        (("fence",), {"missing-fence"}),
        (("commit",), {"race", "missing-wait"}),
        (("wait",), {"race", "missing-wait"}),
        (("wait", "late"), {"race"}),
        (("second",), set()),  # the wait of a thread is for the products of its whole warpgroup
    ],
    ids=lambda given: "-".join(sorted(given)) or "nothing",
)
def test_what_is_left_out_is_found(without: tuple[str, ...], found: set[str]) -> None:
    d, a, b = operands()
    assert kinds(in_turns, d, a, b, tw.make_tiled_mma(ATOM), without) == found
    if not found:
        assert np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@tw.kernel
def ring(D, A, B, mma: tw.constexpr, stages: tw.constexpr, pending: tw.constexpr, fences: tw.constexpr):
    """D = A B^T through a ring of stages, with `pending` groups of products under way while the next stage is filled."""
    lA = tw.shared(A.dtype, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (64, 16, stages)))
    lB = tw.shared(B.dtype, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (32, 16, stages)))
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    tD, tA, tB = thread.partition_C(D), thread.partition_A(lA), thread.partition_B(lB)
    acc = thread.make_fragment_C(tD)
    tw.wgmma_fence()
    for step in range(A.shape[1] // 16):
        stage = step % stages
        for k in tw.static_range(16):
            if i < 64:
                lA[i, k, stage] = A[i, 16 * step + k]
            if i < 32:
                lB[i, k, stage] = B[i, 16 * step + k]
        tw.fence_proxy_async()
        tw.sync_threads()
        if fences:
            tw.wgmma_fence()
        tw.gemm(mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=step > 0)
        tw.wgmma_commit()
        tw.wgmma_wait(pending)
    tw.wgmma_wait(0)
    tw.copy(acc, tD)


@pytest.mark.parametrize(("stages", "pending", "fences"), covering([2, 3, 4], [0, 1, 2, 3], [True, False]))
@pytest.mark.spread(4)
def test_a_ring_may_have_as_many_groups_under_way_as_it_has_stages_to_spare(
    stages: int, pending: int, fences: bool
) -> None:
    """A stage is filled again `stages` steps later, behind a wait that leaves `pending` of the products since then.

    Products of one shape that sum up in the same registers need no fence between them.
    """
    d, a, b = operands(16 * 8)
    found = kinds(ring, d, a, b, tw.make_tiled_mma(ATOM), stages, pending, fences)
    assert ("needless-wait" in found) is (pending == 0)  # the one behind the loop
    found -= {"needless-wait"}
    enough = pending <= stages - 1
    assert (found == set()) is enough, (found, enough)
    assert found <= {"race"}
    assert np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@tw.kernel
def registers(D, A, B, mma: tw.constexpr, what: tw.constexpr):
    """D = A B^T with A in registers; `what` says what is done to it, and where."""
    sB = tw.shared(B.dtype, B_LAYOUT)
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    for k in tw.static_range(16):
        if i < 32:
            sB[i, k] = B[i, k]
    tw.fence_proxy_async()
    tw.sync_threads()
    gA = thread.partition_A(A)
    rA = thread.make_fragment_A(gA)
    tD = thread.partition_C(D)
    acc = thread.make_fragment_C(tD)
    if what == "early fence":
        tw.wgmma_fence()
    tw.copy(gA, rA)
    if what != "early fence":
        tw.wgmma_fence()
    tw.gemm(mma, rA, thread.partition_B(sB), acc, accumulate=False)
    tw.wgmma_commit()
    if what == "write A":
        rA[0] = 1
    if what == "read A":
        D[0, 0] = rA[0].to(tw.float32)
        tw.sync_threads()
    if what == "read C":
        tw.device_print(acc[1])
    if what == "write C":
        acc[1] = 0
    if what == "another":
        other = thread.make_fragment_C(tD)
        tw.clear(other)
    tw.wgmma_wait(0)
    rA[0] = 2
    if what == "again":
        tw.gemm(mma, rA, thread.partition_B(sB), acc, accumulate=False)
        tw.wgmma_commit()
        tw.wgmma_wait(0)
    tw.copy(acc, tD)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("", set()), ("read A", {"race"}), ("another", set()),
        ("write A", {"missing-wait"}), ("read C", {"missing-wait"}), ("write C", {"missing-wait"}),
        ("early fence", {"missing-fence"}), ("again", {"missing-fence"}),
    ],
)  # fmt: skip
@pytest.mark.spread(3)
def test_registers_under_way(what: str, found: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    d, a, b = operands(16)
    assert kinds(registers, d, a, b, tw.make_tiled_mma(FROM_REGISTERS), what) == found


@tw.kernel
def steps_of_a(D, A, B, mma: tw.constexpr, word: tw.constexpr):
    """D = A B^T with A of two steps of K in registers, one element of which changes before the wait."""
    sB = tw.shared(B.dtype, tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (32, 32)))
    i = tw.thread_idx.x
    thread = mma.get_slice(i)
    for k in range(32):
        if i < 32:
            sB[i, k] = B[i, k]
    tw.fence_proxy_async()
    tw.sync_threads()
    rA = thread.make_fragment_A(thread.partition_A(A))
    spare = tw.registers(tw.float16, 16)
    tw.copy(thread.partition_A(A), rA)
    tD = thread.partition_C(D)
    acc = thread.make_fragment_C(tD)
    tw.wgmma_fence()
    tw.gemm(mma, rA, thread.partition_B(sB), acc, accumulate=False)
    tw.wgmma_commit()
    if word is None:
        spare[0] = 0
    else:
        rA[word % 8, 0, word // 8] = 0
    tw.wgmma_wait(0)
    tw.copy(acc, tD)


@pytest.mark.parametrize("word", [None, 0, 7, 8, 15])
def test_every_step_of_a_in_registers_is_in_use(word: int | None) -> None:
    d, a, b = operands(32)
    found = kinds(steps_of_a, d, a, b, tw.make_tiled_mma(FROM_REGISTERS), word)
    assert found == (set() if word is None else {"missing-wait"})


@tw.kernel
def apart(D, A, B, mma: tw.constexpr, threads: tw.constexpr):
    """The product of the warpgroups that a branch lets through."""
    sA, sB = tw.shared(A.dtype, A_LAYOUT), tw.shared(B.dtype, B_LAYOUT)
    if tw.thread_idx.x == 0:
        tw.fill(sA, 1)
        tw.fill(sB, 1)
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x < threads:
        thread = mma.get_slice(tw.thread_idx.x % 128)
        acc = thread.make_fragment_C(thread.partition_C(D))
        tw.wgmma_fence()
        tw.gemm(mma, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate=False)
        tw.wgmma_commit()
        tw.wgmma_wait(0)


def test_a_branch_may_not_divide_a_warpgroup() -> None:
    d, a, b = operands(16)
    mma = tw.make_tiled_mma(ATOM)
    with tw.simulate(raise_errors=False):
        apart[1, 256](*map(tw.static, (d, a, b)), mma, 128)
    for threads in (64, 129, 255):
        with pytest.raises(tw.LanguageError, match="only some threads of a warpgroup run"):
            apart[1, 256](*map(tw.static, (d, a, b)), mma, threads)
    assert kinds(apart, d, a, b, mma, 1000, block=192) == {"warp-divergence"}


@tw.kernel
def two_groups(D, A, B, mma: tw.constexpr, early: tw.constexpr):
    """Each warpgroup multiplies its own half; what one has not waited for, the other may not overwrite."""
    sA, sB = tw.shared(A.dtype, A_LAYOUT), tw.shared(B.dtype, B_LAYOUT)
    i, group = tw.thread_idx.x % 128, tw.warpgroup_id()
    done = tw.named_barrier(1, 256)
    if group == 0:
        for k in tw.static_range(16):
            if i < 64:
                sA[i, k] = A[i, k]
            if i < 32:
                sB[i, k] = B[i, k]
        tw.fence_proxy_async()
    tw.sync_threads()
    if group == 0:
        thread = mma.get_slice(i)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        tw.wgmma_fence()
        tw.gemm(mma, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate=False)
        tw.wgmma_commit()
        if early:
            done.sync()
        tw.wgmma_wait(0)
        if not early:
            done.sync()
        tw.copy(acc, tD)
    else:
        done.sync()
        sA[i % 64, i // 64] = 0


def test_another_warpgroup_may_overwrite_operands_behind_the_wait_and_a_barrier() -> None:
    d, a, b = operands(16)
    mma = tw.make_tiled_mma(ATOM)
    assert kinds(two_groups, d, a, b, mma, False, block=256) == set()
    assert np.array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)
    assert kinds(two_groups, d, a, b, mma, True, block=256) == {"race"}


@tw.kernel
def uneven(D, A, B, mma: tw.constexpr, what: tw.constexpr):
    """Products of which threads of a warpgroup say different things."""
    sA, sB = tw.shared(A.dtype, A_LAYOUT), tw.shared(B.dtype, tw.tile_to_shape(B_LAYOUT, (32, 16, 2)))
    i = tw.thread_idx.x
    if i == 0:
        tw.fill(sA, 1)
        tw.fill(sB, 1)
    tw.fence_proxy_async()
    tw.sync_threads()
    thread = mma.get_slice(i % 128)
    acc = thread.make_fragment_C(thread.partition_C(D))
    tw.clear(acc)
    tile = thread.partition_B(sB[:, :, i // (64 if what == "tile" else 128) % 2])
    tw.wgmma_fence()
    tw.gemm(mma, thread.partition_A(sA), tile, acc, accumulate=i < 130 if what == "bool" else i < 128)
    tw.wgmma_commit()
    tw.wgmma_wait(0)


@pytest.mark.parametrize(("what", "found"), [("", set()), ("tile", {"warp-divergence"}), ("bool", {"warp-divergence"})])
def test_a_warpgroup_says_one_thing(what: str, found: set[str]) -> None:
    d, a, b = operands(16)
    assert kinds(uneven, d, a, b, tw.make_tiled_mma(ATOM), what, block=256) == found
