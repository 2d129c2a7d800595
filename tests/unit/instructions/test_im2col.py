"""Tiles of pixels and of elements apart by TMA: text, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.test_im2col import CASES, STORED, SWIZZLED, every, fold, shared_pixels, unfold

import tilewright as tw

LOAD, PIXELS = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_LOAD_IM2COL


@pytest.mark.parametrize(("shape", "filter", "options"), [CASES[0], CASES[1], CASES[4]], ids=["3d", "4d", "5d"])
def test_the_text(shape: tuple[int, ...], filter: tuple[int, ...], options: dict[str, object]) -> None:
    arguments = tw.spec("float32", (9, 64, 32)), tw.spec("float32", shape), filter, tuple(options.items()), SWIZZLED
    rank = len(shape)
    ptx = unfold[(1, 1), 32].ptx(*arguments, arch="sm_90a")
    assert f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [" in ptx
    assert f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col [" in ptx
    line = next(line for line in ptx.splitlines() if f"tensor.{rank}d.shared" in line)
    coordinates, offsets = line.split("{")[-2].split("}")[0], line.split("{")[-1].split("}")[0]
    assert (coordinates.count(",") + 1, offsets.count(",") + 1) == (rank, rank - 2)
    assert offsets.strip().startswith("%rs")  # of 16 bits
    assert unfold[(1, 1), 32].resources(*arguments, arch="sm_90a").spills == 0


# --- what is refused ---------------------------------------------------------------------------------------


def lowered(body: object, shape: tuple[int, ...] = (2, 8, 8, 32), **options: str) -> None:
    @tw.kernel
    def kernel(x):
        smem, full = tw.shared(x.dtype, tw.row_major((16, 16))), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            body(x, smem, full)  # type: ignore[operator]

    kernel.lower(tw.spec("float32", shape), block=32, **options)


def piece(x: object, **options: object) -> tw.Tensor:
    return tw.local_tile(tw.im2col(x, 3, **options)[1, 1], (16, 16), (0, 0))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x, smem, full: tw.copy(PIXELS, tw.local_tile(x, (1, 1, 16, 16), (0, 0, 0, 0), guard=True), smem, barrier=full),
         "copies tiles of pixels"),
        (lambda x, smem, full: tw.copy(LOAD, piece(x), smem, barrier=full), "this is one of pixels"),
        (lambda x, smem, full: tw.copy(piece(x), smem), "which only a bulk copy reads"),
        (lambda x, smem, full: piece(x)[0, 0], "which only a bulk copy reads"),
        (lambda x, smem, full: tw.copy(PIXELS, piece(x), smem), "give it as barrier="),
        (lambda x, smem, full: tw.prefetch(PIXELS, piece(x)), "by the tensor map of its copy"),
        (lambda x, smem, full: tw.im2col(x, 0), "filter is an int of at least 1, or 2 of them, got 0"),
        (lambda x, smem, full: tw.im2col(x, (3, 3, 3)), "filter is an int of at least 1"),
        (lambda x, smem, full: tw.im2col(x, 3, padding=-1), "padding is an int of at least 0"),
        (lambda x, smem, full: tw.im2col(x, 3, stride=9), "strides of up to 8"),
        (lambda x, smem, full: tw.im2col(x, 3, dilation=70), "corners from -128 to 127"),
        (lambda x, smem, full: tw.im2col(x, 3)[0], "has 2 indices, got 1"),
        (lambda x, smem, full: tw.im2col(x, 3)[0, 3], "position 3 of a filter of 3"),
        (lambda x, smem, full: tw.im2col(tw.guarded(x), 3), "unguarded"),
        (lambda x, smem, full: tw.im2col(smem, 3), "a tensor of global memory"),
        (lambda x, smem, full: tw.im2col(x[0, 0, :, :], 3), "x has 3 to 5 modes"),
        (lambda x, smem, full: tw.copy(PIXELS, piece(x, fill=1), smem, barrier=full), "with 0, or a float type with NaN"),
    ],
)  # fmt: skip
def test_uses_that_are_refused(body: object, text: str) -> None:
    with pytest.raises(tw.LanguageError, match=text):
        lowered(body)


MULTICAST, STORE = tw.atoms.SM90_TMA_LOAD_IM2COL_MULTICAST, tw.atoms.SM90_TMA_STORE_IM2COL


@pytest.mark.parametrize(("shape", "filter", "options"), STORED[:1] + STORED[2:], ids=["3d", "4d", "5d"])
def test_the_text_of_stores(shape: tuple[int, ...], filter: tuple[int, ...], options: dict[str, object]) -> None:
    given = tw.spec("float32", shape), tw.spec("float32", (64, 32)), filter, tuple(options.items()), SWIZZLED
    ptx, rank = fold[(1, 1), 32].ptx(*given, arch="sm_90a"), len(shape)
    line = next(line for line in ptx.splitlines() if "im2col_no_offs" in line)
    assert f"cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group [" in line
    assert line.split("{")[1].split("}")[0].count(",") + 1 == rank
    assert fold[(1, 1), 32].resources(*given, arch="sm_90a").spills == 0


def test_the_text_of_loads_for_a_cluster() -> None:
    given = tw.spec("float32", (8, 16, 16)), tw.spec("float32", (2, 5, 6, 16)), (3, 3), SWIZZLED
    ptx = shared_pixels[8, 32].ptx(*given, arch="sm_90a")
    line = next(line for line in ptx.splitlines() if "im2col" in line)
    assert "im2col.mbarrier::complete_tx::bytes.multicast::cluster [" in line
    assert line.rstrip("; ").split(",")[-1].strip().startswith("%rs")  # the mask comes last
    assert line.count("%rs") == 3
    assert shared_pixels[8, 32].resources(*given, arch="sm_90a").spills == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x, smem, full: tw.copy(STORE, smem, piece(x)), "stores pixels without offsets of a filter"),
        (lambda x, smem, full: tw.copy(STORE, smem, tw.local_tile(tw.im2col(x, 1)[tw.thread_idx.x, 0], (16, 16), (0, 0))),
         "stores pixels without offsets of a filter"),
        (lambda x, smem, full: tw.copy(STORE, smem, tw.local_tile(tw.im2col(x, 1, stride=(2, 1))[0, 0], (16, 16), (0, 0))),
         "stores adjacent pixels, and these are 2 and 1 apart"),
        (lambda x, smem, full: tw.copy(STORE, smem, tw.local_tile(tw.im2col(x, 3, padding=(0, 1))[0, 0], (16, 16), (0, 0))),
         r"padding=\(0, 1\) begins outside of it"),
        (lambda x, smem, full: tw.copy(STORE, piece(x), smem), "copies from shared to global memory"),
        (lambda x, smem, full: tw.copy(STORE, smem, piece(x), barrier=full), "tells no mbarrier"),
        (lambda x, smem, full: tw.copy(STORE, smem, tw.local_tile(tw.guarded(x[0, 0, :, :]), (8, 16), (0, 0))), "copies tiles of pixels"),
        (lambda x, smem, full: tw.prefetch(STORE, piece(x), smem), "reads shared memory"),
        (lambda x, smem, full: tw.copy(MULTICAST, piece(x), smem, barrier=full), "is told by mask="),
        (lambda x, smem, full: tw.copy(MULTICAST, piece(x), smem, barrier=full, mask=2), "goes to blocks 0 to 0 of the cluster"),
        (lambda x, smem, full: tw.copy(PIXELS, piece(x), smem, barrier=full, mask=1), "goes to one block, and has no mask"),
    ],
)  # fmt: skip
def test_stores_and_multicasts_that_are_refused(body: object, text: str) -> None:
    with pytest.raises(tw.LanguageError, match=text):
        lowered(body)


def test_channels_that_end_between_16_bytes_are_not_stored() -> None:
    """As rows of boxes: a GPU would write what lies behind the last channel."""
    x, out = np.ones((64, 32), np.float32), np.zeros((2, 5, 6, 24), np.float32)
    with pytest.raises(tw.ArgumentError, match="'out': a store by TMA writes whole 16 bytes .* rows have 22 elements"):
        fold[(4, 2), 32](out[..., :22], x, (1, 1), (), SWIZZLED)


def test_images_that_no_filter_fits_into() -> None:
    x, out = np.ones((1, 2, 4, 16), np.float32), np.zeros((9, 16, 16), np.float32)
    with pytest.raises(tw.ArgumentError, match="the filter has no position along a mode of extent 2"):
        unfold[(1, 1), 32](out, x, (3, 3), (), tw.row_major((16, 16)))


# --- elements apart ----------------------------------------------------------------------------------------


def test_stores_of_elements_apart_are_refused() -> None:
    spec = tw.spec("float32", (16, 16, 16))
    with pytest.raises(tw.LanguageError, match="stores boxes of adjacent elements, and this tile has every 3th"):
        every.lower(spec, spec, (2, 3), True, block=32)
