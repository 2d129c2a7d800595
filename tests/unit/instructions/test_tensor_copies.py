"""Bulk copies of boxes by TMA: values for all types and swizzles, text, what is refused while tracing and launching."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE


def swizzled(bits: int, size: int, shape: tuple[int, ...]) -> tw.ComposedLayout:
    """Return rows with the hardware's swizzle of 16 bytes, for elements of so many bytes."""
    return tw.ComposedLayout(tw.Swizzle(bits, 4 - (size.bit_length() - 1), 3), 0, tw.row_major(shape))


@tw.kernel
def there_and_back(out, x, tile: tw.constexpr, layout: tw.constexpr):
    """Copy tiles to shared memory and from there to `out`."""
    smem = tw.shared(x.dtype, layout)
    full = tw.mbarrier(1)
    tw.sync_threads()
    where = (tw.block_idx.x, tw.block_idx.y, tw.block_idx.z)[: len(tile)]
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(layout) * x.dtype.bytes)
        tw.copy(LOAD, tw.local_tile(x, tile, where, guard=True), smem, barrier=full)
        full.wait(0)
        tw.copy(STORE, smem, tw.local_tile(out, tile, where, guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@tw.kernel
def spread(out, x, tile: tw.constexpr, layout: tw.constexpr, fill: tw.constexpr):
    """Write what a tile is in shared memory, coordinate by coordinate."""
    smem = tw.shared(x.dtype, layout)
    full = tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(layout) * x.dtype.bytes)
        tw.copy(LOAD, tw.local_tile(x, tile, (1, 1), guard=True, fill=fill), smem, barrier=full)
    full.wait(0)
    for i in range(tw.thread_idx.x, tile[0], 32):
        for j in range(tile[1]):
            out[i, j] = smem[i, j]


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(tw.dtype(dtype).numpy)


TYPES = ("uint8", "int8", "float8_e4m3fn", "uint16", "int16", "float16", "bfloat16", "uint32", "int32", "float32",
         "uint64", "int64", "float64")  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
@pytest.mark.spread(4)
def test_every_type_and_swizzle_there_and_back(dtype: str, bits: int) -> None:
    size = tw.dtype(dtype).bytes
    columns = max(16 << bits, 64) // size if bits == 0 else (16 << bits) // size
    layout = swizzled(bits, size, (16, columns)) if bits else tw.row_major((16, columns))
    x = numbers((40, 3 * columns + 16 // size), dtype)
    out = np.zeros_like(x)
    there_and_back[(3, 4), 32](out, x, (16, columns), layout)
    assert (out.view(np.uint8) == x.view(np.uint8)).all()
    spec = tw.spec(dtype, x.shape)
    assert there_and_back[(3, 4), 32].resources(spec, spec, (16, columns), layout, arch="sm_90a").spills == 0


@pytest.mark.parametrize(
    ("shape", "tile", "layout"),
    [
        ((100,), (32,), tw.Layout(32)),
        ((10, 12, 16), (4, 5, 8), tw.row_major((4, 5, 8))),
        ((10, 12, 16), (4, 5, 8), tw.Layout((4, 5, 8), (8, 32, 1))),  # the order of the other modes is free
        ((16, 300), (16, 256), tw.row_major((16, 256))),
        ((16, 600), (2, 512), tw.Layout((2, (256, 2)), (256, (1, 512)))),  # two boxes of 256
        ((300, 64), (300, 32), tw.row_major((300, 32))),  # two of 150
        ((64, 128), (64, 64), tw.Layout(((8, 8), (32, 2)), ((32, 256), (1, 2048)))),  # atoms of 8 rows
    ],
)
def test_boxes_of_every_rank(shape: tuple[int, ...], tile: tuple[int, ...], layout: tw.Layout) -> None:
    x = numbers(shape, "float32")
    out = np.zeros_like(x)
    there_and_back[tuple(-(-n // t) for n, t in zip(shape, tile, strict=True)), 32](out, x, tile, layout)
    assert (out == x).all()


def test_five_modes_and_chosen_indices() -> None:
    @tw.kernel
    def kernel(out, x, n):
        smem, full = tw.shared(tw.float32, tw.row_major((2, 8))), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(64)
            chosen = tw.guarded(x)[n, :, 1, 2, :]
            tw.copy(LOAD, tw.local_tile(chosen, (2, 8), (0, 0)), smem, barrier=full)
        full.wait(0)
        out[tw.thread_idx.x] = smem[tw.thread_idx.x // 8, tw.thread_idx.x % 8]

    x, out = numbers((3, 2, 2, 3, 8), "float32"), np.zeros(16, np.float32)
    kernel[1, 16](out, x, 2)
    assert (out == x[2, :, 1, 2, :].ravel()).all()
    assert "tma_load_5d" in kernel.source(out, x, 2, block=16, arch="sm_90a")


@pytest.mark.parametrize("fill", [0, float("nan")])
def test_what_lies_outside_reads_as_the_fill(fill: float) -> None:
    x, out = numbers((20, 24), "float32"), np.ones((16, 32), np.float32)
    spread[1, 32](out, x, (16, 32), swizzled(3, 4, (16, 32)), fill)
    expected = np.full((16, 32), fill, np.float32)
    assert np.array_equal(out, expected, equal_nan=True)  # tile (1, 1) begins at column 32
    out = np.ones((16, 16), np.float32)
    spread[1, 32](out, x, (16, 16), tw.row_major((16, 16)), fill)
    expected = np.full((16, 16), fill, np.float32)
    expected[:4, :8] = x[16:, 16:]
    assert np.array_equal(out, expected, equal_nan=True)


def test_columns_first() -> None:
    x = np.asfortranarray(numbers((40, 24), "float32"))
    out = np.zeros_like(x)
    there_and_back[(3, 2), 32](out, x, (16, 16), tw.col_major((16, 16)))
    assert (out == x).all()
    x, out = numbers((40, 32), "float32")[:, 4:28], np.zeros((40, 24), np.float32)  # a view with longer rows
    there_and_back[(3, 2), 32](out, x, (16, 16), tw.row_major((16, 16)))
    assert (out == x).all()


@pytest.mark.parametrize(
    ("kind", "dtype", "combine"),
    [("ADD", "float32", np.add), ("ADD", "bfloat16", np.add), ("MIN", "int32", np.minimum), ("MAX", "int64", np.maximum),
     ("AND", "uint32", np.bitwise_and), ("OR", "int32", np.bitwise_or), ("XOR", "uint64", np.bitwise_xor)],
)  # fmt: skip
@pytest.mark.spread(2)
def test_reductions(kind: str, dtype: str, combine: object) -> None:
    atom = getattr(tw.atoms, f"SM90_TMA_REDUCE_{kind}")

    @tw.kernel
    def kernel(out, x):
        smem = tw.shared(x.dtype, tw.row_major((4, 32)))
        for i in range(4):
            smem[i, tw.thread_idx.x] = x[i, tw.thread_idx.x]
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.copy(atom, smem, tw.local_tile(out, (4, 32), (0, 0), guard=True))
            tw.tma_store_commit()
            tw.tma_store_wait()

    x, out = numbers((4, 32), dtype), numbers((32, 3), dtype)
    out = np.ascontiguousarray(np.resize(out, (3, 32)))
    expected = combine(combine(out, x[:3]), x[:3])  # type: ignore[operator]  # two blocks, clipped at row 3
    kernel[2, 32](out, x)
    assert (out == expected).all()
    assert f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{kind.lower()}" in kernel[2, 32].ptx(
        tw.spec(dtype, (3, 32)), tw.spec(dtype, (4, 32)), arch="sm_90a"
    )


def test_the_text() -> None:
    spec = tw.spec("float16", (130, 200))
    text = there_and_back.source(spec, spec, (64, 64), swizzled(3, 2, (64, 64)), block=32, arch="sm_90a")
    for line in (
        "const __grid_constant__ CUtensorMap x_map",
        "prefetch_tensor_map(&out_map);",
        "__shared__ __align__(1024) half smem[4096];",
        "mbarrier_arrive_expect_tx(full, 8192);",
        "tma_load_2d(smem, &x_map, full, ",
        "tma_store_2d(&out_map, smem, ",
        "tma_store_wait_read<0>();",
    ):
        assert line in text, line


# --- what is refused ---------------------------------------------------------------------------------------


def refused(text: str, tile: tuple[int, ...] = (16, 32), layout: object = None, **options: object) -> None:
    dtype = str(options.pop("dtype", "float32"))
    shape = options.pop("shape", (64, 64))
    spec = tw.spec(dtype, shape)  # type: ignore[arg-type]
    layout = tw.row_major(tile) if layout is None else layout
    with pytest.raises(tw.LanguageError, match=text):
        there_and_back.lower(spec, spec, tile, layout, block=32, **options)


def test_layouts_that_boxes_do_not_have() -> None:
    refused("rows along the contiguous mode of the tensor: mode 1 is contiguous, and shared memory has its mode 0 first",
            layout=tw.col_major((16, 32)))  # fmt: skip
    refused("a multiple of 16 bytes, and a row of the box has 6 float32: 24 bytes", tile=(16, 6))
    refused("swizzles 16 bytes by 1, 2 or 3 bits", layout=swizzled(3, 2, (16, 32)))
    refused("swizzles 16 bytes", layout=tw.ComposedLayout(tw.Swizzle(3, 2, 4), 0, tw.row_major((16, 32))))
    refused("at multiples of 128 bytes", tile=(16, 4), layout=tw.Layout((16, 4), (8, 1)))
    refused("would move 512 boxes of 32 x 1", tile=(256, 64), layout=swizzled(3, 4, (256, 64)), shape=(512, 64))


def test_targets_and_tensors() -> None:
    refused("sm_80 has no bulk copies", arch="sm_80")
    refused("no bool", dtype="bool")

    @tw.kernel
    def kernel(x):
        smem, full = tw.shared(tw.float32, 32), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tw.copy(LOAD, tw.guarded(x)[0, 0, 0, 0, 0, :], smem, barrier=full)

    with pytest.raises(tw.LanguageError, match="copies tensors of 1 to 5 modes, not of 6"):
        kernel.lower(tw.static(tw.spec("float32", (2, 2, 2, 2, 2, 32))), block=32)


def lowered(body: object) -> None:
    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(tw.float32, tw.row_major((16, 32))), tw.mbarrier(1, stages=2)
        tw.sync_threads()
        body(out, x, smem, full)  # type: ignore[operator]

    spec = tw.spec("float32", (64, 64))
    kernel.lower(spec, spec, block=32)


def tile_of(x: object, **options: object) -> tw.Tensor:
    return tw.local_tile(x, (16, 32), (0, 0), **{"guard": True, **options})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda out, x, smem, full: tw.copy(LOAD, tile_of(x), smem, barrier=full[0]), "is started by one thread"),
        (lambda out, x, smem, full: tw.copy(LOAD, tile_of(x), smem), "give it as barrier="),
        (lambda out, x, smem, full: tw.copy(STORE, smem, tile_of(out), barrier=full[0]), "tells no mbarrier"),
        (lambda out, x, smem, full: tw.copy(LOAD, tile_of(x), smem, barrier=3), "the tw.mbarrier of one stage"),
        (lambda out, x, smem, full: tw.copy(tile_of(x), smem, barrier=full[0]), "this copy is none"),
        (lambda out, x, smem, full: tw.copy(LOAD, tile_of(x, guard=False), smem, barrier=full[0]), "a guarded tile"),
        (lambda out, x, smem, full: tw.copy(LOAD, smem, tile_of(x), barrier=full[0]), "from global to shared memory"),
        (lambda out, x, smem, full: tw.copy(LOAD, tile_of(x), smem, barrier=full[0], pred=True), "neither pred"),
        (
            lambda out, x, smem, full: tw.copy(LOAD, tile_of(x, fill=2), smem, barrier=full[0]),
            "with 0, or a float type",
        ),
        (
            lambda out, x, smem, full: tw.copy(
                LOAD, tw.local_tile(tw.guarded(x), (32, 32), (0, 0)), smem, barrier=full[0]
            ),
            "1024 elements are not 512",
        ),
        (lambda out, x, smem, full: full[0].arrive_expect_tx(1 << 20), "counts 0 to 1048575 bytes"),
        (lambda out, x, smem, full: full.expect_tx(4), "does not say of which"),
        (lambda out, x, smem, full: tw.tma_store_wait(-1), "the number of groups left pending"),
        (lambda out, x, smem, full: tw.tma_store_wait(0, read=3), "read is True or False"),
    ],
)
def test_uses_that_are_refused(body: object, text: str) -> None:
    def at_branch(*given: object) -> None:
        if "one thread" in text:
            body(*given)  # type: ignore[operator]
        else:
            if tw.thread_idx.x == 0:
                body(*given)  # type: ignore[operator]

    with pytest.raises(tw.LanguageError, match=text):
        lowered(tw.function(at_branch))


def test_arrays_that_no_map_describes() -> None:
    layout, tile = tw.row_major((16, 32)), (16, 32)
    x = numbers((32, 70), "float32")
    with pytest.raises(
        tw.ArgumentError, match="multiples of 16 bytes, below .* mode 1 has 70 elements of 4 bytes: 280"
    ):
        there_and_back[(2, 3), 32](np.zeros((32, 72), np.float32), x, tile, layout)
    x = numbers((32, 72), "float32")
    with pytest.raises(tw.ArgumentError, match="'x': TMA takes addresses that are multiples of 16"):
        there_and_back[(2, 2), 32](np.zeros((32, 64), np.float32), x[:, 1:65], tile, layout)


# --- rows that end between 16 bytes ------------------------------------------------------------------------


def padded(rows: int, columns: int, dtype: str) -> np.ndarray:
    """Return rows of any length that begin at multiples of 16 bytes."""
    each = 16 // tw.dtype(dtype).bytes
    return numbers((rows, -(-columns // each) * each), dtype)[:, :columns]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_rows_that_end_between_16_bytes_are_not_stored(dtype: str) -> None:
    """A GPU writes whole 16 bytes: launches are refused, and kernels where the extent is static; loads are not."""
    size = tw.dtype(dtype).bytes
    each, layout = 16 // size, tw.row_major((16, 64 // size))
    for columns in range(2 * each, 3 * each + 1):
        x, whole = padded(16, columns, dtype), np.zeros((16, 64 // size), tw.dtype(dtype).numpy)
        there_and_back[(1, 1), 32](whole, x, (16, 64 // size), layout)  # a map that loads only
        assert (whole[:, :columns].view(np.uint8) == np.ascontiguousarray(x).view(np.uint8)).all()
        out = np.zeros_like(padded(16, columns, dtype).base)[:, :columns]
        if columns % each == 0:
            there_and_back[(1, 1), 32](out, x, (16, 64 // size), layout)
            assert (out == x).all()
            continue
        text = f"writes whole 16 bytes at the end of a row, and rows have {columns} elements of {size} bytes"
        with pytest.raises(tw.ArgumentError, match=f"'out': a store by TMA {text}"):
            there_and_back[(1, 1), 32](out, x, (16, 64 // size), layout)
        with pytest.raises(tw.LanguageError, match=text):
            there_and_back.lower(tw.static(out), x, (16, 64 // size), layout, block=32, arch="sm_90a")


def test_a_condition_that_is_known_to_hold_is_none_of_the_launch() -> None:
    layout = tw.row_major((16, 32))
    for columns, count in ((64, 0), (62, 1)):
        spec, x = tw.spec("float16", (16, columns), (64, 1)), tw.spec("float16", (16, 64))
        found = there_and_back.lower(spec, x, (16, 32), layout, block=32, arch="sm_90a").kernel.requirements
        assert len(found) == count, found


def test_reductions_are_refused_as_stores_are() -> None:
    @tw.kernel
    def kernel(out, atom: tw.constexpr):
        smem = tw.shared(tw.int32, tw.row_major((4, 16)))
        for n in range(tw.thread_idx.x, 64, 32):
            smem[n // 16, n % 16] = n
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.copy(atom, smem, tw.local_tile(tw.guarded(out), (4, 16), (0, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    memory = np.zeros((4, 16), np.int32)
    for atom in (tw.atoms.SM90_TMA_REDUCE_ADD, tw.atoms.SM90_TMA_REDUCE_XOR):
        kernel[1, 32](memory[:, :12], atom)
        with pytest.raises(tw.ArgumentError, match="whole 16 bytes at the end of a row, and rows have 13 elements"):
            kernel[1, 32](memory[:, :13], atom)
        with pytest.raises(tw.ArgumentError, match="rows have 13 elements"):
            kernel[1, 32].prepare(memory[:, :13], atom)()
    assert not memory[:, 12:].any()


@pytest.mark.parametrize("row", [-16, -3, 0, 5, 64])
@pytest.mark.parametrize("is_sum", [False, True])
def test_stores_of_boxes_that_begin_before_their_tensor_are_found(row: int, is_sum: bool) -> None:
    """An H200 stops them as illegal instructions; behind the end it stores nothing, and loads bring zeros before."""

    @tw.kernel
    def store(out, row):
        smem = tw.shared(tw.float32, tw.row_major((16, 32)))
        tw.fill(smem[:, tw.thread_idx.x], 1)
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            moved = tw.domain_offset((row, 0), tw.guarded(out))
            atom = tw.atoms.SM90_TMA_REDUCE_ADD if is_sum else tw.atoms.SM90_TMA_STORE
            tw.copy(atom, smem, tw.local_tile(moved, (16, 32), (0, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    out = np.zeros((20, 32), np.float32)
    with tw.simulate(raise_errors=False) as run:
        store[1, 32](out, row)
    found = [(finding.kind, finding.message) for finding in run.findings]
    if row < 0:
        ((kind, message),) = found
        assert kind == "out-of-bounds" and f"begins before out, at {row} of mode 1 of its tensor map" in message
    else:
        assert not found and (out[row : row + 16] == 1).all() and not out[:row].any()
