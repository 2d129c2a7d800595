"""Bulk copies by TMA on both backends: types, swizzles, ranks, edges, reductions, rings."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE


def swizzled(bits: int, size: int, shape: tuple[int, ...]) -> tw.ComposedLayout:
    return tw.ComposedLayout(tw.Swizzle(bits, 4 - (size.bit_length() - 1), 3), 0, tw.row_major(shape))


@tw.kernel
def through_threads(out, x, tile: tw.constexpr, layout: tw.constexpr, fill: tw.constexpr):
    """Load tiles by TMA and store them by threads, whole: what lies outside, too."""
    smem, full = tw.shared(x.dtype, layout), tw.mbarrier(1)
    tw.sync_threads()
    i, j = tw.block_idx.x, tw.block_idx.y
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(layout) * x.dtype.bytes)
        tw.copy(LOAD, tw.local_tile(x, tile, (i, j), guard=True, fill=fill), smem, barrier=full)
    full.wait(0)
    for n in range(tw.thread_idx.x, tile[0] * tile[1], 32):
        r, c = n // tile[1], n % tile[1]
        out[i * tile[0] + r, j * tile[1] + c] = smem[r, c]


@tw.kernel
def from_threads(out, x, tile: tw.constexpr, layout: tw.constexpr, atom: tw.constexpr):
    """Load tiles by threads and store or reduce them by TMA."""
    smem = tw.shared(x.dtype, layout)
    i, j = tw.block_idx.x, tw.block_idx.y
    for n in range(tw.thread_idx.x, tile[0] * tile[1], 32):
        r, c = n // tile[1], n % tile[1]
        smem[r, c] = x[i * tile[0] + r, j * tile[1] + c]
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.copy(atom, smem, tw.local_tile(out, tile, (i, j), guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 119).reshape(shape).astype(tw.dtype(dtype).numpy)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "int32", "float32", "int64", "float64"])
@pytest.mark.parametrize("bits", [0, 1, 2, 3])
@pytest.mark.spread(4)
def test_types_and_swizzles(backend: Backend, dtype: str, bits: int) -> None:
    size = tw.dtype(dtype).bytes
    columns = (16 << bits) // size
    layout = swizzled(bits, size, (16, columns)) if bits else tw.row_major((16, columns))
    x = numbers((40, 2 * columns + 16 // size), dtype)
    out, back = backend.zeros((48, 3 * columns), tw.dtype(dtype)), backend.zeros(x.shape, tw.dtype(dtype))
    through_threads[(3, 3), 32](out, backend.put(x), (16, columns), layout, 0)
    expected = np.zeros((48, 3 * columns), x.dtype)
    expected[: x.shape[0], : x.shape[1]] = x
    assert (backend.get(out) == expected).all()
    from_threads[(3, 3), 32](back, out, (16, columns), layout, STORE)
    assert (backend.get(back) == x).all()


def test_nan_outside(backend: Backend) -> None:
    x, out = numbers((20, 24), "float32"), backend.zeros((32, 32), tw.float32)
    through_threads[(2, 1), 32](out, backend.put(x), (16, 32), swizzled(3, 4, (16, 32)), float("nan"))
    expected = np.full((32, 32), np.nan, np.float32)
    expected[:20, :24] = x
    assert np.array_equal(backend.get(out), expected, equal_nan=True)


COMBINE = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
           "xor": np.bitwise_xor, "inc": lambda old, new: np.where(old >= new, 0, old + 1),
           "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1)}  # fmt: skip
FLOATS, INTEGERS = ("float16", "bfloat16"), ("int32", "uint32", "int64", "uint64")
# PTX ISA, "cp.reduce.async.bulk": the element types of each operation.
REDUCED = {
    "add": (*FLOATS, "float32", "float64", "int32", "uint32", "uint64"),
    "min": (*FLOATS, *INTEGERS),
    "max": (*FLOATS, *INTEGERS),
    "inc": ("uint32",),
    "dec": ("uint32",),
    "and": INTEGERS,
    "or": INTEGERS,
    "xor": INTEGERS,
}


@pytest.mark.parametrize(("kind", "dtype"), [(kind, dtype) for kind, types in REDUCED.items() for dtype in types])
@pytest.mark.spread(6)
def test_reductions(backend: Backend, kind: str, dtype: str) -> None:
    x, before = numbers((32, 32), dtype), numbers((19, 32), dtype)[::-1].copy()
    if dtype.startswith("int"):
        x -= 60
        before -= 50
    out = backend.put(before)
    atom = getattr(tw.atoms, f"SM90_TMA_REDUCE_{kind.upper()}")
    from_threads[(2, 1), 32](out, backend.put(x), (16, 32), tw.row_major((16, 32)), atom)
    assert (backend.get(out) == COMBINE[kind](before, x[:19])).all()


@pytest.mark.parametrize("kind", REDUCED)
def test_other_types_are_not_reduced(kind: str) -> None:
    for dtype in {"int8", "uint16", "float16", "float32", "float64", "int64", "int32"} - set(REDUCED[kind]):
        spec = tw.spec(dtype, (32, 32))
        atom = getattr(tw.atoms, f"SM90_TMA_REDUCE_{kind.upper()}")
        with pytest.raises(tw.LanguageError, match=f"reduces .*, not {dtype}"):
            from_threads.lower(spec, spec, (16, 32), tw.row_major((16, 32)), atom, block=32)


@tw.kernel
def by_runs(out, x, tile: tw.constexpr, load: tw.constexpr, store: tw.constexpr):
    """Copy tiles by runs, each to where the rows are turned round."""
    smem, full = tw.shared(x.dtype, tw.row_major(tile)), tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(smem.layout) * x.dtype.bytes)
        tw.prefetch(load, tw.local_tile(x, tile, (tw.block_idx.x, 0)))
        tw.copy(load, tw.local_tile(x, tile, (tw.block_idx.x, 0)), smem, barrier=full)
        full.wait(0)
        tw.copy(store, smem, tw.local_tile(out, tile, (tw.grid_dim.x - 1 - tw.block_idx.x, 0)))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize("policy", [None, "evict_first", "evict_last", "evict_normal", "evict_unchanged"])
@pytest.mark.parametrize(("dtype", "columns"), [("uint8", 48), ("float16", 8), ("float32", 100), ("float64", 1024)])
@pytest.mark.spread(4)
def test_runs(backend: Backend, dtype: str, columns: int, policy: str | None) -> None:
    atoms = [tw.atoms.SM90_BULK_COPY_G2S, tw.atoms.SM90_BULK_COPY_S2G]
    if policy is not None:
        atoms = [atom.with_policy(policy) for atom in atoms]
    x, out = numbers((12, columns), dtype), backend.zeros((12, columns), tw.dtype(dtype))
    by_runs[3, 32](out, backend.put(x), (4, columns), *atoms)
    assert (backend.get(out) == x.reshape(3, 4, columns)[::-1].reshape(12, columns)).all()


@tw.kernel
def with_policies(out, x, load: tw.constexpr, store: tw.constexpr):
    """Prefetch, load and store tiles by TMA, the map fetched by a thread of another warp."""
    smem, full = tw.shared(x.dtype, tw.row_major((16, 32))), tw.mbarrier(1)
    tw.sync_threads()
    tile = tw.local_tile(x, (16, 32), (tw.block_idx.x, 0), guard=True)
    if tw.thread_idx.x == 32:
        tw.prefetch_tensor_map(load, tile, smem)
        tw.prefetch(load, tile, smem)
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(2048)
        tw.copy(load, tile, smem, barrier=full)
        full.wait(0)
        tw.copy(store, smem, tw.local_tile(out, (16, 32), (tw.block_idx.x, 0), guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize("policy", ["evict_first", "evict_last", "evict_normal", "evict_unchanged"])
@pytest.mark.parametrize("kind", ["STORE", "REDUCE_ADD"])
def test_policies_of_tensor_copies(backend: Backend, kind: str, policy: str) -> None:
    x, out = numbers((40, 32), "float32"), backend.zeros((40, 32), tw.float32)
    store = getattr(tw.atoms, f"SM90_TMA_{kind}")
    with_policies[3, 64](out, backend.put(x), LOAD.with_policy(policy), store.with_policy(policy))
    assert (backend.get(out) == x).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks(backend: Backend, rank: int) -> None:
    shape, tile = (5, 3, 6, 4, 24)[-rank:], (2, 3, 4, 1, 16)[-rank:]

    @tw.kernel
    def kernel(out, x):
        smem, full = tw.shared(tw.float32, tw.row_major(tile)), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            phase = 0
            for n in range(tw.ceil_div(shape[0], tile[0])):
                where = (n, *[tw.block_idx.x % 1 for _ in tile[1:]])
                full.arrive_expect_tx(tw.size(smem.layout) * 4)
                tw.copy(LOAD, tw.local_tile(x, tile, where, guard=True), smem, barrier=full)
                full.wait(phase)
                phase ^= 1
                tw.copy(STORE, smem, tw.local_tile(out, tile, where, guard=True))
                tw.tma_store_commit()
                tw.tma_store_wait(0)

    x, out = numbers(shape, "float32"), backend.zeros(shape, tw.float32)
    kernel[1, 32](out, backend.put(x))
    expected = np.zeros(shape, np.float32)
    inside = (slice(None), *[slice(0, n) for n in tile[1:]])
    expected[inside] = x[inside]
    assert (backend.get(out) == expected).all()


def test_the_stride_of_one_row_counts_for_nothing(backend: Backend) -> None:
    """Of a mode with one element a map gets a stride that it takes; of two it does not."""
    memory = backend.put(numbers((300,), "float32"))
    out = backend.put(np.full((16, 16), -1, np.float32))
    through_threads[1, 32](out, backend.strided(memory, (1, 64), (3, 1)), (16, 16), tw.row_major((16, 16)), 0)
    found = backend.get(out)
    assert (found[0] == np.arange(16)).all() and not found[1:].any()
    with pytest.raises(tw.ArgumentError, match="multiples of 16 bytes"):
        through_threads[1, 32](out, backend.strided(memory, (2, 64), (3, 1)), (16, 16), tw.row_major((16, 16)), 0)


def test_launches_with_other_arrays_get_maps_of_their_own(backend: Backend) -> None:
    tile, layout = (16, 32), tw.row_major((16, 32))
    for n, columns in ((1, 32), (2, 32), (3, 64), (1, 32)):
        x, out = n * numbers((16, columns), "float32"), backend.zeros((16, columns), tw.float32)
        through_threads[(1, columns // 32), 32](out, backend.put(x), tile, layout, 0)
        assert (backend.get(out) == x).all()
    x, out = numbers((16, 32), "float32"), backend.zeros((16, 32), tw.float32)
    launch = through_threads[(1, 1), 32].prepare(out, backend.put(x), tile, layout, 0)
    for _ in range(2):
        launch()
    assert (backend.get(out) == x).all()


HOPPER = {path.stem: load_example(path) for path in sorted((examples_folder() / "hopper").glob("0[13]*.py"))}


@pytest.mark.parametrize("shape", [(64, 64), (100, 132), (64, 260)])
def test_copy_and_transpose(backend: Backend, shape: tuple[int, int]) -> None:
    x, example = numbers(shape, "float32"), HOPPER["01_tma_copy"]
    out = backend.zeros(shape, tw.float32)
    example.launch_copy(out, backend.put(x))
    assert (backend.get(out) == x).all()
    turned = backend.zeros(shape[::-1], tw.float32)
    example.launch_transpose(turned, backend.put(x))
    assert (backend.get(turned) == x.T).all()


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("extents", [(128, 128, 64), (128, 136, 320), (72, 128, 200)])
@pytest.mark.spread(4)
def test_ring(backend: Backend, stages: int, extents: tuple[int, int, int]) -> None:
    m, n, k = extents
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    out = backend.zeros((m, n), tw.float32)
    HOPPER["03_ring"].matmul(out, backend.put(a), backend.put(b), stages)
    assert (backend.get(out) == a.astype(np.float32) @ b.astype(np.float32).T).all()
