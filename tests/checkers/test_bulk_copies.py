"""Bulk copies under the race checker: each wait, fence, announcement and commit taken out is found, and only then."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE
G2S, S2G = tw.atoms.SM90_BULK_COPY_G2S, tw.atoms.SM90_BULK_COPY_S2G
ATOMS = pytest.mark.parametrize("atoms", [(LOAD, STORE), (G2S, S2G)], ids=["boxes", "runs"])
TILE = (16, 32)
BYTES = 16 * 32 * 4


def run(kernel: object, blocks: int = 2, threads: int = 64) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(blocks * 16 * 32, dtype=np.float32).reshape(blocks * 16, 32)
    out = np.zeros_like(x)
    kernel[blocks, threads](out, x)  # type: ignore[index]
    return out, x


def kinds_of(kernel: object, **options: int) -> set[str]:
    """Return the kinds of findings of a run."""
    with tw.simulate(raise_errors=False) as found:
        run(kernel, **options)
    return {finding.kind for finding in found.findings}


def load(without: str = "", atom: tw.atoms.CopyAtom = LOAD) -> object:
    guard = atom is LOAD

    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
        if without != "sync":
            tw.sync_threads()
        if tw.thread_idx.x == 0:
            if without == "announcement":
                full.arrive()
            elif without != "arrival" or x[0, 0] > 1e9:
                full.arrive_expect_tx(BYTES - 512 if without == "bytes" else BYTES)
            tw.copy(atom, tw.local_tile(x, TILE, (tw.block_idx.x, 0), guard=guard), smem, barrier=full)
        if without != "wait":
            full.wait(0)
        for i in range(16):
            if tw.thread_idx.x < 32:
                out[tw.block_idx.x * 16 + i, tw.thread_idx.x] = smem[i, tw.thread_idx.x]

    return kernel


def test_bytes_that_differ_are_told_with_both_lines() -> None:
    kernel = load("bytes")
    with tw.simulate(raise_errors=False) as found:
        run(kernel)
    (finding,) = found.findings
    assert finding.kind == "deadlock" and "512 bytes have come that were not announced" in finding.message
    assert finding.location is not None and "full.wait(0)" in finding.location.text
    assert finding.other is not None and "arrive_expect_tx" in finding.other.text
    assert "its bytes were announced by" in finding.message and "announce what the copies" in finding.message


@ATOMS
def test_a_load_that_is_waited_for_is_silent(atoms: tuple[tw.atoms.CopyAtom, ...]) -> None:
    out, x = run(load(atom=atoms[0]))
    assert (out == x).all()


@ATOMS
@pytest.mark.parametrize(
    ("without", "kind"),
    [
        ("wait", "missing-wait"),
        ("announcement", "missing-wait"),
        ("bytes", "deadlock"),
        ("arrival", "deadlock"),
        ("sync", "race"),
    ],
)
def test_what_is_taken_out_of_a_load_is_found(without: str, kind: str, atoms: tuple[tw.atoms.CopyAtom, ...]) -> None:
    assert kind in kinds_of(load(without, atoms[0]))


def test_a_deadlock_says_how_many_bytes_are_missing() -> None:
    @tw.kernel
    def kernel(out, x):
        full = tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(2048)
            if x[0, 0] > 1e9:
                smem = tw.shared(tw.float32, tw.row_major(TILE))
                tw.copy(LOAD, tw.local_tile(x, TILE, (0, 0), guard=True), smem, barrier=full)
        full.wait(0)

    with pytest.raises(tw.CheckError, match="phase 0 .parity 0.: 1 of 1 arrivals have come, and 2048 bytes that were"):
        run(kernel)


def test_bytes_that_differ_at_the_end() -> None:
    @tw.kernel
    def kernel(out, x, size: tw.constexpr):
        smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(BYTES)
            tw.copy(LOAD, tw.local_tile(x, TILE, (tw.block_idx.x, 0), guard=True), smem, barrier=full)
            full.wait(0)
            full.expect_tx(size)
        tw.sync_threads()
        for i in range(16):
            if tw.thread_idx.x < 32:
                out[tw.block_idx.x * 16 + i, tw.thread_idx.x] = smem[i, tw.thread_idx.x]

    x = np.ones((16, 32), np.float32)
    kernel[1, 32](np.zeros_like(x), x, 0)
    with pytest.raises(tw.CheckError, match="phase 1: 64 bytes that were announced have not come"):
        kernel[1, 32](np.zeros_like(x), x, 64)


def test_another_barrier_does_not_tell_of_a_copy() -> None:
    """What arrives at one stage is not known to who waits for another, whichever came first."""

    def make(first: int, second: int) -> object:
        @tw.kernel
        def kernel(out, x):
            smem = tw.shared(tw.float32, tw.Layout((16, 32, 2), (32, 1, 512)))
            full = tw.mbarrier(1, stages=2)
            tw.sync_threads()
            if tw.thread_idx.x == 0:
                for s in tw.static_range(2):
                    full[s].arrive_expect_tx(BYTES)
                    tw.copy(LOAD, tw.local_tile(x, TILE, (s, 0), guard=True), smem[:, :, s], barrier=full[s])
            if tw.warp_id() == 0:
                full[0].wait(0)
                full[1].wait(0)
            else:
                full[first].wait(0)
                full[second].wait(0)
                out[0, tw.lane_id()] = smem[0, tw.lane_id(), 0] + smem[0, tw.lane_id(), 1]

        return kernel

    assert kinds_of(make(0, 1), blocks=2) <= {"overlapping-writes"}
    for same in (0, 1):
        assert kinds_of(make(same, same), blocks=2) & {"race", "missing-wait"}


def store(without: str = "", atom: tw.atoms.CopyAtom = STORE) -> object:
    guard = atom is STORE

    @tw.kernel
    def kernel(out, x):
        smem = tw.shared(tw.float32, tw.row_major(TILE))
        lane = tw.thread_idx.x % 32
        for i in range(tw.thread_idx.x // 32, 16, 2):
            smem[i, lane] = x[tw.block_idx.x * 16 + i, lane]
        if without != "fence":
            tw.fence_proxy_async()
        if without != "sync":
            tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.copy(atom, smem, tw.local_tile(out, TILE, (tw.block_idx.x, 0), guard=guard))
            if without != "commit":
                tw.tma_store_commit()
            if without != "wait":
                tw.tma_store_wait(0)

    return kernel


@ATOMS
def test_a_store_is_silent(atoms: tuple[tw.atoms.CopyAtom, ...]) -> None:
    out, x = run(store(atom=atoms[1]))
    assert (out == x).all()


@ATOMS
@pytest.mark.parametrize(
    ("without", "kind"),
    [("fence", "missing-fence"), ("sync", "race"), ("commit", "missing-wait"), ("wait", "missing-wait")],
)
def test_what_is_taken_out_of_a_store_is_found(without: str, kind: str, atoms: tuple[tw.atoms.CopyAtom, ...]) -> None:
    assert kind in kinds_of(store(without, atoms[1]))


def test_runs_beyond_their_array_are_found() -> None:
    """A run that begins outside, one that reaches over the end, and one that covers what lies between rows."""
    whole = np.zeros((24, 36), np.float32)
    for x, out in ((whole[:16, :32], np.zeros((32, 32), np.float32)), (np.ones((32, 32), np.float32), whole[:16, :32]),
                   (np.ones((32, 28), np.float32), np.zeros((32, 32), np.float32)), (whole[:, :28], np.zeros((32, 32), np.float32))):  # fmt: skip
        with tw.simulate(raise_errors=False) as found:
            load(atom=G2S)[2, 64](out, x)  # type: ignore[index]
        kinds = {finding.kind for finding in found.findings}
        assert "out-of-bounds" in kinds
        assert kinds <= {"out-of-bounds", "missing-wait", "uninitialised-read"}


def reuse(without: str = "") -> object:
    @tw.kernel
    def kernel(out, x):
        smem, lane = tw.shared(tw.float32, 32), tw.lane_id()
        for k in range(4):
            if tw.warp_id() == 0:
                smem[lane] = x[tw.block_idx.x * 16 + k, lane]
            if without != "fence":
                tw.fence_proxy_async()
            if without != "first":
                tw.sync_threads()
            if tw.thread_idx.x == 0:
                row = tw.guarded(out)[tw.block_idx.x * 16 + k, :]
                tw.copy(STORE, smem, tw.local_tile(row, (32,), (0,)))
                tw.tma_store_commit()
                if without != "wait":
                    tw.tma_store_wait(0)
            if without != "second":
                tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.tma_store_wait(0)

    return kernel


def test_a_source_is_written_again_when_it_has_been_read() -> None:
    out, x = run(reuse())
    assert all((out[b * 16 + k] == x[b * 16 + k]).all() for b in range(2) for k in range(4))


@pytest.mark.parametrize(
    ("without", "kinds"),
    [("fence", {"missing-fence"}), ("first", {"race"}), ("second", {"race", "missing-wait"}), ("wait", {"race", "missing-wait"})],
)  # fmt: skip
def test_what_is_taken_out_of_a_reuse_is_found(without: str, kinds: set[str]) -> None:
    assert kinds_of(reuse(without)) & kinds


def test_a_fence_behind_the_barrier_is_not_one_of_the_writers() -> None:
    @tw.kernel
    def kernel(out, x):
        smem = tw.shared(tw.float32, 64)
        smem[tw.thread_idx.x] = x[0, tw.thread_idx.x % 32]
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.fence_proxy_async()
            tw.copy(STORE, smem, tw.local_tile(tw.guarded(out)[tw.block_idx.x, :], (64,), (0,)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    assert kinds_of(kernel) == {"missing-fence"}


def test_a_thread_reads_what_it_stored_once_that_is_written() -> None:
    def make(read: bool) -> object:
        @tw.kernel
        def kernel(out, x):
            smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
            tw.sync_threads()
            if tw.thread_idx.x == 0:
                full.arrive_expect_tx(BYTES)
                tw.copy(LOAD, tw.local_tile(x, TILE, (tw.block_idx.x, 0), guard=True), smem, barrier=full)
                full.wait(0)
                tw.copy(STORE, smem, tw.local_tile(out, TILE, (tw.block_idx.x, 0), guard=True))
                tw.tma_store_commit()
                tw.tma_store_wait(0, read=read)
                out[tw.block_idx.x * 16, 0] = out[tw.block_idx.x * 16, 1]

        return kernel

    out, x = run(make(False))
    assert out[16, 0] == x[16, 1] and (out[:, 1:] == x[:, 1:]).all()
    assert "missing-wait" in kinds_of(make(True))


def test_stages_of_a_ring_are_read_before_they_are_filled_again() -> None:
    def make(without: str) -> object:
        @tw.kernel
        def kernel(out, x):
            smem = tw.shared(tw.float32, tw.Layout((32, 2), (1, 32)))
            full, empty = tw.mbarrier(1, stages=2), tw.mbarrier(32, stages=2)
            tw.sync_threads()
            if tw.warp_id() == 0:
                if tw.elect_one():
                    for k in range(6):
                        if without != "empty":
                            empty[k % 2].wait((k // 2 + 1) % 2)
                        full[k % 2].arrive_expect_tx(128)
                        row = tw.guarded(x)[tw.block_idx.x * 16 + k, :]
                        tw.copy(LOAD, tw.local_tile(row, (32,), (0,)), smem[:, k % 2], barrier=full[k % 2])
            else:
                for k in range(6):
                    full[k % 2].wait(k // 2 % 2)
                    out[tw.block_idx.x * 16 + k, tw.lane_id()] = smem[tw.lane_id(), k % 2]
                    if without != "release":
                        empty[k % 2].arrive()

        return kernel

    out, x = run(make(""))
    assert all((out[b * 16 + k] == x[b * 16 + k]).all() for b in range(2) for k in range(6))
    assert kinds_of(make("empty")) & {"race", "missing-wait", "deadlock"}
    assert kinds_of(make("release")) == {"deadlock"}


@pytest.mark.parametrize(
    ("space", "kinds"), [("global", set()), ("shared", {"missing-fence"}), ("", {"missing-fence"})]
)
def test_global_writes_need_a_fence_of_their_own(space: str, kinds: set[str]) -> None:
    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
        lane, first = tw.thread_idx.x, tw.block_idx.x * 16
        for i in range(16):
            if lane < 32:
                x[first + i, lane] = x[first + i, lane] + 1.0
        if space:
            tw.fence_proxy_async(space)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(BYTES)
            tw.copy(LOAD, tw.local_tile(x, TILE, (tw.block_idx.x, 0), guard=True), smem, barrier=full)
        full.wait(0)
        for i in range(16):
            if lane < 32:
                out[first + i, lane] = smem[i, lane]

    assert kinds_of(kernel) == kinds


def test_many_blocks_in_chunks_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that use other stages, and blocks that do not take part, have records of their own."""
    monkeypatch.setattr("tilewright.backends.sim.machine.CHUNK_THREADS", 64 * 5)

    def make(without: bool) -> object:
        @tw.kernel
        def kernel(out, x):
            smem = tw.shared(tw.float32, tw.Layout((16, 32, 3), (32, 1, 512)))
            full = tw.mbarrier(1, stages=3)
            tw.sync_threads()
            block, stage = tw.block_idx.x, tw.block_idx.x % 3
            if block % 4 != 3:
                if tw.thread_idx.x == 0:
                    full[stage].arrive_expect_tx(BYTES)
                    tile = tw.local_tile(x, TILE, (block, 0), guard=True)
                    tw.copy(LOAD, tile, smem[:, :, stage], barrier=full[stage])
                if not without or block != 10:
                    full[stage].wait(0)
                for i in range(tw.thread_idx.x // 32, 16, 2):
                    out[block * 16 + i, tw.thread_idx.x % 32] = smem[i, tw.thread_idx.x % 32, stage]

        return kernel

    out, x = run(make(False), blocks=13)
    expected = np.array(x)
    for block in (3, 7, 11):
        expected[block * 16 : block * 16 + 16] = 0
    assert (out == expected).all()
    with tw.simulate(raise_errors=False) as found:
        run(make(True), blocks=13)
    assert {(f.kind, f.block) for f in found.findings} == {("missing-wait", (10, 0, 0))}


def test_copies_share_no_bytes_with_what_threads_wrote_before() -> None:
    """Two tensors whose lives a barrier separates, the second of which TMA fills."""

    @tw.kernel
    def kernel(out, x):
        first, lane = tw.shared(tw.float32, tw.row_major(TILE)), tw.thread_idx.x % 32
        first[0, lane] = 1.0
        tw.sync_threads()
        value = first[0, 31 - lane]
        full = tw.mbarrier(1)
        tw.sync_threads()
        second = tw.shared(tw.float32, tw.row_major(TILE))
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(BYTES)
            tw.copy(LOAD, tw.local_tile(x, TILE, (tw.block_idx.x, 0), guard=True), second, barrier=full)
        full.wait(0)
        for i in range(16):
            if tw.thread_idx.x < 32:
                out[tw.block_idx.x * 16 + i, lane] = second[i, lane] * value

    out, x = run(kernel, threads=32)
    assert (out == x).all()


def in_place(atom: tw.atoms.CopyAtom, wrong: str) -> tw.Kernel:
    """Return a kernel whose threads write to where a load of another thread has read."""

    @tw.kernel
    def update(x):
        smem, i, row = tw.shared(tw.int32, tw.row_major((1, 64))), tw.thread_idx.x, tw.block_idx.x
        full, other = tw.mbarrier(1), tw.mbarrier(1)
        tw.sync_threads()
        if i == 0:
            full.arrive_expect_tx(256)
            other.arrive()
            tw.copy(atom, tw.local_tile(x, (1, 64), (row, 0), guard=atom is LOAD), smem, barrier=full)
        if wrong == "another barrier":
            other.wait(0)
        elif wrong == "one warp only":
            if i < 32:
                full.wait(0)
        else:
            full.wait(0)
        x[row ^ 1 if wrong == "another block" else row, i] = 7
        full.wait(0)

    return update


@ATOMS
@pytest.mark.parametrize("wrong", ["", "another barrier", "one warp only", "another block"])
def test_who_has_waited_for_a_load_may_write_where_it_read(wrong: str, atoms: tuple[tw.atoms.CopyAtom, ...]) -> None:
    with tw.simulate(raise_errors=False) as found:
        in_place(atoms[0], wrong)[2, 64](tw.static(np.zeros((2, 64), np.int32)))
    assert bool(found.findings) == bool(wrong)
    for finding in found.findings:
        assert finding.kind in ("race", "missing-wait"), finding
        sides = {finding.location.text.strip()[:7], finding.other.text.strip()[:7]}  # type: ignore[union-attr]
        assert sides == {"x[row ^", "tw.copy"}, finding


@tw.kernel
def bring_from(dst, src, first: tw.int32):
    """Bring eight elements of a row from `first` on, and store them there."""
    tile, full = tw.shared(src.dtype, tw.Layout((8, 8), (8, 1)), alignment=128), tw.mbarrier(1)
    box = tw.local_tile(tw.domain_offset((0, first), tw.guarded(src)), (8, 8), (0, 0))
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(64 * src.dtype.bytes)
        tw.copy(tw.atoms.SM90_TMA_LOAD, box, tile, barrier=full)
    full.wait(0)
    if tw.thread_idx.x == 0:
        out = tw.local_tile(tw.domain_offset((0, first), tw.guarded(dst)), (8, 8), (0, 0))
        tw.copy(tw.atoms.SM90_TMA_STORE, tile, out)
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize(("dtype", "whole"), [(np.float32, 4), (np.float16, 8)])
def test_boxes_begin_at_multiples_of_16_bytes(dtype, whole):
    """Where they do not, an H200 says that the instruction is illegal, and so it does of stores before the array."""
    for first in (0, whole, -whole, 1, whole - 1, whole + 2, -1):
        src, dst = np.arange(32 * 64).reshape(32, 64).astype(dtype), np.zeros((32, 64), dtype)
        with tw.simulate(raise_errors=False) as run:
            bring_from[1, 32](dst, src, first)
        kinds = [finding.kind for finding in run.findings]
        expected = ["misaligned"] * 2 * (first % whole != 0) + ["out-of-bounds"] * (first < 0)
        assert kinds == expected, (first, run.findings)
        if first % whole:
            assert f"begins at element {first} of its contiguous mode" in str(run.findings[0])
