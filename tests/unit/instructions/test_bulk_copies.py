"""Bulk copies of runs, prefetches and cache policies: values, text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE
G2S, S2G = tw.atoms.SM90_BULK_COPY_G2S, tw.atoms.SM90_BULK_COPY_S2G


@tw.kernel
def through_shared(out, x, shape: tw.constexpr, layout: tw.constexpr, load: tw.constexpr, store: tw.constexpr):
    """Copy tiles to shared memory and from there to `out`."""
    smem, full = tw.shared(x.dtype, layout), tw.mbarrier(1)
    tw.sync_threads()
    where = (tw.block_idx.x, *[0 for _ in shape[1:]])
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(layout) * x.dtype.bytes)
        tw.prefetch(load, tw.local_tile(x, shape, where))
        tw.copy(load, tw.local_tile(x, shape, where), smem, barrier=full)
        full.wait(0)
        tw.copy(store, smem, tw.local_tile(out, shape, where))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(tw.dtype(dtype).numpy)


@pytest.mark.parametrize(
    ("dtype", "shape", "layout"),
    [
        ("uint8", (48,), tw.Layout(48)),
        ("float16", (3, 40), tw.row_major((3, 40))),  # rows of the array are longer than those in shared memory
        ("float32", (2, 4), tw.row_major((2, 4))),  # the shortest run
        ("float64", (4, 6), tw.Layout((4, 6), (10, 1))),
        ("int32", (2, 3, 8), tw.row_major((2, 3, 8))),
    ],
)
def test_runs_there_and_back(dtype: str, shape: tuple[int, ...], layout: tw.Layout) -> None:
    x = numbers((2 * shape[0], *shape[1:]), dtype)
    if len(shape) == 2:
        x = numbers((2 * shape[0], shape[1] + 16), dtype)[:, : shape[1]]  # a view with longer rows
    out = np.zeros(x.shape, x.dtype)
    through_shared[2, 32](out, x, shape, layout, G2S, S2G)
    assert (out == x).all()


def test_one_copy_for_what_is_contiguous_on_both_sides() -> None:
    spec = tw.static(tw.spec("float32", (8, 64)))
    text = through_shared.source(spec, spec, (4, 64), tw.row_major((4, 64)), G2S, S2G, block=32, arch="sm_90a")
    assert "bulk_load(smem, &x[" in text and ", 1024, full);" in text
    assert "for" not in text.partition('extern "C"')[2].replace("before", "")


def test_policies_and_prefetches_in_ptx() -> None:
    spec = tw.spec("float32", (8, 64))
    ptx = through_shared[2, 32].ptx(
        spec, spec, (4, 64), tw.row_major((4, 64)), G2S.with_policy("evict_first"), S2G.with_policy("evict_last"),
        arch="sm_90a",
    )  # fmt: skip
    for text in (
        "createpolicy.fractional.L2::evict_first.b64",
        "cp.async.bulk.prefetch.L2.global.L2::cache_hint [",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [",
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [",
    ):
        assert text in ptx, text


def test_tensor_copies_with_policies_and_prefetches() -> None:
    reduce = tw.atoms.SM90_TMA_REDUCE_ADD.with_policy("evict_normal")

    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(tw.float32, tw.row_major((16, 32))), tw.mbarrier(1)
        tw.sync_threads()
        tile, target = (tw.local_tile(t, (16, 32), (tw.block_idx.x, 0), guard=True) for t in (x, out))
        if tw.warp_id() == 1 and tw.elect_one():
            tw.prefetch_tensor_map(LOAD, tile, smem)
            tw.prefetch(LOAD.with_policy("evict_last"), tile, smem)
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(2048)
            tw.copy(LOAD.with_policy("evict_first"), tile, smem, barrier=full)
            full.wait(0)
            tw.copy(STORE.with_policy("evict_unchanged"), smem, target)
            tw.copy(reduce, smem, target)
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    x = numbers((32, 32), "float32")
    spec = tw.spec("float32", (32, 32))
    text = kernel.source(spec, spec, block=64, arch="sm_90a")
    assert text.count("prefetch_tensor_map(&x_map);") == 1  # by the thread that says so, and not as a block begins
    assert text.index("prefetch_tensor_map(&out_map);") < text.index("prefetch_tensor_map(&x_map);")
    ptx = kernel[2, 64].ptx(spec, spec, arch="sm_90a")
    for part in (
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint",
    ):
        assert part in ptx, part
    assert kernel[2, 64].resources(spec, spec, arch="sm_90a").spills == 0
    with tw.simulate(raise_errors=False):  # a store and a reduction of one group meet
        kernel[2, 64](np.zeros_like(x), x)


# --- what is refused ---------------------------------------------------------------------------------------


def lowered(body: object, shape: tuple[int, ...] = (64, 64), dtype: str = "float32", **options: str) -> None:
    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(x.dtype, tw.row_major((16, 32))), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            body(out, x, smem, full)  # type: ignore[operator]

    spec = tw.spec(dtype, shape)
    kernel.lower(spec, spec, block=32, **options)


def tile(x: object, shape: tuple[int, ...] = (16, 32), **options: object) -> tw.Tensor:
    return tw.local_tile(x, shape, (0, 0), **options)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda out, x, smem, full: tw.copy(G2S, tile(x), smem), "give it as barrier="),
        (lambda out, x, smem, full: tw.copy(S2G, smem, tile(out), barrier=full), "tells no mbarrier"),
        (lambda out, x, smem, full: tw.copy(G2S, smem, tile(x), barrier=full), "copies from global to shared memory"),
        (lambda out, x, smem, full: tw.copy(G2S, tile(x, guard=True), smem, barrier=full), "a part may lie outside"),
        (lambda out, x, smem, full: tw.copy(G2S, tile(x), smem, barrier=full, count=3), "neither pred nor count"),
        (
            lambda out, x, smem, full: tw.copy(G2S, tile(x, (16, 3)), smem[:, 0:3], barrier=full),
            "a multiple of 16 bytes, and a run has 3 float32: 12 bytes",
        ),
        (lambda out, x, smem, full: tw.copy(S2G, smem[:, 1:5], tile(out, (16, 4))), "known to begin at a multiple of 4"),
        (lambda out, x, smem, full: tw.copy(G2S.with_policy("first"), tile(x), smem, barrier=full), "a policy is one of"),
        (lambda out, x, smem, full: tw.prefetch(S2G, tile(x)), "reads shared memory"),
        (lambda out, x, smem, full: tw.prefetch(STORE, tile(x), smem), "reads shared memory"),
        (lambda out, x, smem, full: tw.prefetch(LOAD, tile(x, guard=True)), "give both"),
        (lambda out, x, smem, full: tw.prefetch(G2S, smem), "brings global memory to L2"),
        (lambda out, x, smem, full: tw.prefetch(tw.atoms.UniversalCopy(32), tile(x)), "the atom is that of a bulk load"),
        (lambda out, x, smem, full: tw.prefetch_tensor_map(G2S, tile(x), smem), "a copy by TMA|uses no tensor map"),
    ],
)  # fmt: skip
def test_uses_that_are_refused(body: object, text: str) -> None:
    with pytest.raises(tw.LanguageError, match=text):
        lowered(body)


def test_layouts_targets_and_rows_that_are_refused() -> None:
    swizzled = tw.ComposedLayout(tw.Swizzle(3, 2, 3), 0, tw.row_major((16, 32)))
    specs = tw.spec("float32", (64, 64)), tw.spec("float32", (64, 64))
    with pytest.raises(tw.LanguageError, match="swizzles them"):
        through_shared.lower(*specs, (16, 32), swizzled, G2S, S2G, block=32)
    with pytest.raises(tw.LanguageError, match="adjacent elements are"):
        through_shared.lower(*specs, (16, 32), tw.col_major((16, 32)), G2S, S2G, block=32)
    with pytest.raises(tw.LanguageError, match="elements of 4 bytes apart"):
        odd = tw.static(tw.spec("float32", (64, 66)))
        through_shared.lower(odd, odd, (16, 32), tw.row_major((16, 32)), G2S, S2G, block=32)
    for arch in ("sm_80", "gfx90a"):
        with pytest.raises(tw.LanguageError, match=f"{arch}"):
            through_shared.lower(*specs, (16, 32), tw.row_major((16, 32)), G2S, S2G, block=32, arch=arch)
