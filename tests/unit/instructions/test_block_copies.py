"""Bulk copies between blocks of a cluster: values, PTX, and what is refused while tracing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

S2S = tw.atoms.SM90_BULK_COPY_S2S
T = 64
SPEC = tw.spec(tw.int32, (T,))


@tw.kernel(cluster=4)
def around(out, x, layout: tw.constexpr):
    """Send rows of a tile to the next block of the cluster, into another layout and in two stages."""
    mine, i, rank = tw.shared(x.dtype, tw.row_major((2, T))), tw.thread_idx.x, tw.block_rank_in_cluster()
    theirs, full = tw.shared(x.dtype, layout), tw.mbarrier(1, stages=2)
    for k in tw.static_range(2):
        mine[k, i] = x[2 * tw.block_idx.x + k, i]
    tw.fence_proxy_async()
    tw.cluster_sync()
    if i == 0:
        for k in tw.static_range(2):
            to = (rank + 1 + k) % 4
            full[k].arrive_expect_tx(T * x.dtype.bytes)
            tw.copy(S2S, mine[k, :], theirs.at_rank(to)[k, :], barrier=full[k].at_rank(to))
    for k in tw.static_range(2):
        full[k].wait(0)
        out[2 * tw.block_idx.x + k, i] = theirs[k, i]
    tw.cluster_sync()


@pytest.mark.parametrize("dtype", ["uint8", "float16", "int32", "float64"])
def test_runs_to_other_blocks(dtype: str) -> None:
    x = (np.arange(16 * T) % 251).reshape(16, T).astype(tw.dtype(dtype).numpy)
    out = np.zeros_like(x)
    around[8, T](out, x, tw.Layout((2, T), (T + 16, 1)))
    blocks, expected = x.reshape(2, 4, 2, T), np.zeros((2, 4, 2, T), x.dtype)
    for k in range(2):
        expected[:, :, k] = np.roll(blocks[:, :, k], 1 + k, axis=1)
    assert (out.reshape(expected.shape) == expected).all()


def test_ptx() -> None:
    spec = tw.static(tw.spec(tw.int32, (16, T)))
    ptx = around[8, T].ptx(spec, spec, tw.row_major((2, T)), arch="sm_90a")
    for text in ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "cvta.to.shared::cluster.u64",
                 "mapa.shared::cluster.u32", "mbarrier.try_wait.parity.acquire.cluster.shared.b64",
                 "fence.proxy.async.shared::cta;"):  # fmt: skip
        assert text in ptx, text
    assert around[8, T].resources(spec, spec, tw.row_major((2, T)), arch="sm_90a").spills == 0


def sent(**options: Any) -> Any:
    """Return a kernel that sends something; `options` say what is wrong about it."""

    def send(out, x):
        mine, theirs, full = tw.shared(tw.int32, T), tw.shared(tw.int32, T), tw.mbarrier(1, stages=2)
        tw.cluster_sync()
        if tw.thread_idx.x == 0:
            src = options.get("src", lambda a, b: a)(mine, theirs)
            dst = options.get("dst", lambda a, b: b.at_rank(1))(mine, theirs)
            barrier = options.get("barrier", lambda f: f[0].at_rank(1))(full)
            more = {"mask": 3} if "mask" in options else {}
            tw.copy(options.get("atom", lambda: S2S)(), src, dst, barrier=barrier, **more)

    return send


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dst": lambda a, b: b}, "copies from shared memory of this block to that of another one, not from a block to the same one"),
        ({"src": lambda a, b: a.at_rank(1)}, "not from another block to another one"),
        ({"barrier": lambda f: None}, "tells an mbarrier of the block that gets the bytes"),
        ({"barrier": lambda f: f[0]}, "tells an mbarrier of the block that gets the bytes"),
        ({"barrier": lambda f: f[0].at_rank(0)}, "brings bytes to the block of rank 1 and tells the mbarrier of that of rank 0"),
        ({"src": lambda a, b: a[0:3], "dst": lambda a, b: b.at_rank(1)[0:3]}, "a run has 3 int32: 12 bytes"),
        ({"src": lambda a, b: a[1:5], "dst": lambda a, b: b.at_rank(1)[0:4]}, "begin at multiples of 16 bytes"),
        ({"src": lambda a, b: a[0:8:2], "dst": lambda a, b: b.at_rank(1)[0:4]}, "contiguous on both sides"),
        ({"mask": 1}, "has no mask"),
        ({"atom": lambda: S2S.with_policy("evict_first")}, "reaches no cache, and has no policy"),
    ],
)  # fmt: skip
def test_refusals(options: dict[str, Any], message: str) -> None:
    kernel = tw.kernel(sent(**options)).configure(cluster=2)
    with pytest.raises(tw.LanguageError) as caught:
        kernel.source(SPEC, SPEC, block=T, arch="sm_90a")
    assert message in str(caught.value)


def test_other_bulk_copies_take_no_memory_of_other_blocks() -> None:
    @tw.kernel(cluster=2)
    def load(out, x):
        mine, full = tw.shared(tw.int32, T), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tw.copy(tw.atoms.SM90_BULK_COPY_G2S, tw.local_tile(x, T, 0), mine.at_rank(1), barrier=full)

    with pytest.raises(tw.LanguageError, match="SM90_BULK_COPY_S2S copies to it"):
        load.source(tw.static(SPEC), tw.static(SPEC), block=T, arch="sm_90a")


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_older_targets(arch: str) -> None:
    @tw.kernel
    def send(out, x):
        mine, full = tw.shared(tw.int32, T), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tw.copy(S2S, mine, mine, barrier=full)

    with pytest.raises(tw.LanguageError) as caught:
        send.source(SPEC, SPEC, block=T, arch=arch)
    assert "needs sm_90 or later" in str(caught.value) or "it needs sm_90" in str(caught.value)
