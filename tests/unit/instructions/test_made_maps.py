"""Tensor maps that threads make: what is found when something of them is missing, text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Simulator
from tests.conformance.test_made_maps import LOAD, TILE, transfer

import tilewright as tw

BYTES = TILE[0] * TILE[1] * 4


@tw.kernel
def load(out, xs, extents, room, how: tw.constexpr):
    """Load the first tile of matrix number block, by a map that warp 0 makes; `how` says what is wrong."""
    smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
    tw.sync_threads()
    g, warp = tw.block_idx.x, tw.warp_id()
    x = tw.guarded(
        tw.make_tensor(tw.pointer(xs[g], tw.float32, align=16), tw.Layout((extents[0], extents[1]), (extents[1], 1)))
    )
    if how == "all warps" or warp == 0:
        made = tw.make_tensor_map(tw.local_tile(x, TILE, (0, 0)), smem, room, 0 if how == "one slot" else g)
        if how == "all warps":
            if warp == 1 and tw.elect_one():
                full.arrive_expect_tx(BYTES)
                tw.copy(LOAD, tw.local_tile(made, TILE, (0, 0)), smem, barrier=full)
        else:
            if tw.lane_id() == 0:
                full.arrive_expect_tx(BYTES)
                tw.copy(LOAD, tw.local_tile(made, TILE, (0, 0)), smem, barrier=full)
    full.wait(0)
    out[g, tw.thread_idx.x] = smem[1, tw.thread_idx.x % 32]


def kinds(how: str, extents: tuple[int, int] = (16, 32), blocks: int = 2) -> set[str]:
    backend = Simulator()
    xs = [backend.put(np.full((16, 32), n + 1, np.float32)) for n in range(blocks)]
    out, room = backend.zeros((blocks, 64), tw.float32), backend.zeros(16 * blocks, tw.uint64)
    with tw.simulate(raise_errors=False) as found:
        load[blocks, 64](out, tw.addresses(xs), backend.put(np.array(extents, np.int32)), room, how)
    return {finding.kind for finding in found.findings}


@pytest.mark.parametrize(
    ("how", "extents", "expected"),
    [
        ("", (16, 32), set()),
        ("", (3, 32), set()),
        ("one slot", (16, 32), {"overlapping-writes"}),
        ("", (16, 30), {"misaligned"}),  # rows of 120 bytes
        ("", (0, 32), {"misaligned"}),
        ("", (17, 32), {"out-of-bounds"}),  # beyond the array
        ("all warps", (16, 32), {"overlapping-writes", "race"}),  # both write the map
    ],
)
def test_what_is_found(how: str, extents: tuple[int, int], expected: set[str]) -> None:
    found = kinds(how, extents)
    assert found & expected if expected else not found, found


@tw.kernel
def store(xs, columns, room, row: tw.constexpr):
    """Store ones by a map of 16 rows of so many columns, at a row."""
    smem = tw.shared(tw.float32, tw.row_major(TILE))
    for n in range(tw.thread_idx.x, TILE[0] * TILE[1], 32):
        smem[n // TILE[1], n % TILE[1]] = 1
    tw.fence_proxy_async()
    tw.sync_threads()
    x = tw.guarded(tw.make_tensor(tw.pointer(xs[0], tw.float32, align=16), tw.Layout((16, columns[0]), (64, 1))))
    made = tw.make_tensor_map(tw.local_tile(x, TILE, (0, 0)), smem, room)
    if tw.lane_id() == 0:
        for j in range(2):
            tw.copy(tw.atoms.SM90_TMA_STORE, smem, tw.local_tile(made, TILE, (row, j)))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize("columns", [29, 31, 32, 33, 36, 63, 64])
@pytest.mark.parametrize("row", [0, 1])
def test_stores_to_rows_that_end_between_16_bytes_are_found(columns: int, row: int) -> None:
    """A GPU writes whole 16 bytes; below the last row, and where rows end at 16 bytes, it writes nothing beside them."""
    backend = Simulator()
    x, room = backend.put(np.zeros((16, 64), np.float32)), backend.zeros(16, tw.uint64)
    with tw.simulate(raise_errors=False) as run:
        store[1, 32](tw.addresses([x]), backend.put(np.array([columns], np.int32)), room, row)
    found = [(finding.kind, finding.message) for finding in run.findings]
    if row or columns % 4 == 0:
        assert not found, found
        assert row or (x[:, :columns] == 1).all()
    else:
        assert [kind for kind, _ in found] == ["out-of-bounds"]
        assert "ends between 16 bytes, and a store by TMA writes all 16" in found[0][1]


def test_copies_by_a_warp_that_has_not_made_the_map_are_found() -> None:
    @tw.kernel
    def kernel(out, x, room, thread: tw.constexpr):
        smem, full = tw.shared(tw.float32, tw.row_major(TILE)), tw.mbarrier(1)
        tw.sync_threads()
        found = tw.guarded(x)
        if tw.warp_id() == 0:
            found = tw.make_tensor_map(tw.local_tile(found, TILE, (0, 0)), smem, room)
        if tw.thread_idx.x == thread:
            full.arrive_expect_tx(BYTES)
            tw.copy(LOAD, tw.local_tile(found, TILE, (0, 0)), smem, barrier=full)
        full.wait(0)
        out[tw.thread_idx.x] = smem[0, tw.thread_idx.x % 32]

    backend = Simulator()
    x, room = backend.put(np.ones((16, 32), np.float32)), backend.zeros(16, tw.uint64)
    kernel[1, 64](np.zeros(64, np.float32), x, room, 0)
    with pytest.raises(tw.CheckError, match="missing fence: a copy by a tensor map that its warp has not made"):
        kernel[1, 64](np.zeros(64, np.float32), x, room, 32)


def test_the_text() -> None:
    spec, ints = tw.spec("uint64", (4,)), tw.spec("int32", (4,))
    arguments = spec, spec, ints, ints, tw.spec("uint64", (128,)), tw.row_major(TILE), tw.float32, 1
    launcher = transfer[4, 64]
    ptx = launcher.ptx(*arguments, arch="sm_90a")
    for text in (
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [",
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [",
        "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [",
        "fence.proxy.tensormap::generic.acquire.gpu [",
    ):
        assert text in ptx, text
    assert launcher.resources(*arguments, arch="sm_90a").spills == 0
    (pattern,) = launcher.lower(*arguments).kernel.tensor_maps
    assert (pattern.dtype, pattern.box, pattern.bytes) == (tw.float32, (32, 16), BYTES)


# --- what is refused ---------------------------------------------------------------------------------------


def lowered(body: object, **options: str) -> None:
    @tw.kernel
    def kernel(x, room):
        smem, full = tw.shared(x.dtype, tw.row_major(TILE)), tw.mbarrier(1)
        tw.sync_threads()
        if tw.warp_id() == 0:
            body(x, room, smem, full)  # type: ignore[operator]

    kernel.lower(tw.spec("float32", (64, 64)), tw.spec("uint64", (64,)), block=64, **options)


def made(x: object, room: object, smem: object) -> tw.Tensor:
    return tw.make_tensor_map(tw.local_tile(tw.guarded(x), TILE, (0, 0)), smem, room)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x, room, smem, full: made(x, x, smem), "an array of uint64 with one mode"),
        (lambda x, room, smem, full: tw.make_tensor_map(x, smem, room), "it takes a guarded tile"),
        (lambda x, room, smem, full: made(made(x, room, smem).plain, room, smem[0, :]), "elements are not"),
        (lambda x, room, smem, full: tw.copy(LOAD, tw.local_tile(made(x, room, smem), (8, 32), (0, 0)), smem[0:8, :], barrier=full),
         "as the map was made"),
        (lambda x, room, smem, full: tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, smem, tw.local_tile(made(x, room, smem), TILE, (0, 0))),
         "no tensor map that threads have made"),
        (lambda x, room, smem, full: tw.prefetch(LOAD, tw.local_tile(made(x, room, smem), TILE, (0, 0)), smem),
         "prefetches by maps of the launch"),
    ],
)  # fmt: skip
def test_uses_that_are_refused(body: object, text: str) -> None:
    with pytest.raises(tw.LanguageError, match=text):
        lowered(lambda *given: body(*given) if "is started" not in text else None)  # type: ignore[operator]


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "gfx90a"])
def test_targets(arch: str) -> None:
    with pytest.raises(
        tw.LanguageError, match=f"needs sm_90a, and the target is {arch}|{arch} has no tensor maps; they need"
    ):
        lowered(lambda x, room, smem, full: made(x, room, smem), arch=arch)


def test_rooms_that_are_not_aligned() -> None:
    backend = Simulator()
    x = backend.put(np.ones((16, 32), np.float32))
    room = backend.zeros(64, tw.uint64)[1:17]
    with pytest.raises(tw.ArgumentError, match="'room': tensor maps that a kernel makes lie at multiples of 64 bytes"):
        load[1, 64](np.zeros((1, 64), np.float32), tw.addresses([x]), np.array([16, 32], np.int32), room, "")
