"""Guarded tiles: the text that comes out, what is asked of them and refused, and how they go through loops and slices."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from tests.helpers.machine_code import fall_through, opcodes

import tilewright as tw
from tilewright.demo import Case, collect_cases, run_case
from tilewright.demo.examples import examples_folder, load_example

Array = np.ndarray[Any, Any]
KERNELS = examples_folder() / "kernels"
FILES = [KERNELS / f"{name}.py" for name in ("elementwise", "vector_add", "stencil")]
ELEMENTWISE = load_example(FILES[0])


# --- the examples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", collect_cases(FILES, "sim", quick=True), ids=lambda case: f"{case.name} {case.size}")
def test_examples(case: Case) -> None:
    report = run_case(case, "sim")
    assert report.passed, report.failure


def elementwise(guard: bool, shape: tuple[int, int], *, is_static: bool = False) -> tuple[Any, ...]:
    matrix: Any = tw.spec(tw.float16, shape)
    if is_static:
        matrix = tw.static(matrix)
    return matrix, matrix, 0.5, 0.25, ELEMENTWISE.TILES, guard


def test_static_extents_that_the_tile_divides_cost_nothing() -> None:
    kernel = ELEMENTWISE.multiply_add[(32, 256), 256]
    texts = [kernel.source(*elementwise(guard, (8192, 8192), is_static=True)) for guard in (False, True)]
    assert texts[0] == texts[1]
    overhanging = kernel.source(*elementwise(True, (8192, 8190), is_static=True))
    assert "if (" in overhanging


def test_inside_a_block_runs_the_accesses_of_the_kernel_without_a_guard() -> None:
    """A block whose tile is inside takes two branches, compares four numbers, and is the same elsewhere."""
    kernel = ELEMENTWISE.multiply_add[(32, 256), 256]
    without, guarded = (kernel.sass(*elementwise(guard, (8192, 8192)), arch="sm_90a") for guard in (False, True))
    fast = fall_through(guarded, taken=(True, True))
    plain = opcodes(without)[: opcodes(without).index("EXIT") + 1]
    for wide in ("LDG.E.128", "STG.E.128"):
        assert [sum(op.startswith(wide) for op in ops) for ops in (plain, fast)] == [4, 4]
    assert not any(op.startswith(("LDG.E.U", "STG.E.U", "LDL", "STL")) for op in opcodes(guarded))
    assert len(fast) <= len(plain) + 32, (len(plain), len(fast))  # 115 and 137 by NVRTC 12.9


def test_rows_of_whole_vectors_are_accessed_by_vectors_at_the_edge_too() -> None:
    text = ELEMENTWISE.multiply_add[(32, 256), 256].source(*elementwise(True, (8191, 8184)))
    accesses = re.findall(r"\*\(const (\w+)\*\)&x", text)
    assert accesses == ["uint4", "uint4"]  # inside, and under a predicate
    assert "x[" not in re.sub(r"\*\(const uint4\*\)&x\[", "", text)


def test_vectors_that_end_inside_go_by_elements_there_alone() -> None:
    vector = tw.spec(tw.float32, (1003,))
    text = load_example(FILES[1]).vector_add[1, 256].source(vector, vector, vector)
    assert text.count("*(const float4*)&x[") == 2
    assert len(re.findall(r"(?<!\*\)&)x\[", text)) == 3


def test_cp_async_counts_the_bytes_that_are_there() -> None:
    copy = tw.make_tiled_copy(tw.atoms.CpAsync(128), tw.Layout((8, 8), (8, 1)), tw.Layout((1, 8)))

    @tw.kernel
    def load(y, x, fill: tw.constexpr):
        smem = tw.shared(x.dtype, tw.row_major(copy.tile_shape))
        thread = copy.get_slice(tw.thread_idx.x)
        tile = tw.local_tile(x, copy.tile_shape, (tw.block_idx.y, tw.block_idx.x), guard=True, fill=fill)
        tw.copy(copy, thread.partition_S(tile), thread.partition_D(smem))
        tw.cp_async_wait()
        y[0] = smem[0, 0]

    x, y = tw.spec(tw.float16, (100, 101), (104, 1)), tw.spec(tw.float16, (1,))
    text = load[(2, 13), 64].source(y, x, 0)
    assert "cp_async_ca_16_some_of_8(" in text and "cp_async_ca_16(" in text
    filled = load[(2, 13), 64].source(y, x, 1.0)  # the instruction fills with zeros only
    assert "some_of" not in filled and "zero_fill" not in filled and "cp_async_ca_16(" in filled


# --- views ---------------------------------------------------------------------------------------------


@tw.kernel
def walk(y, x):
    """Copy x to y in tiles of 4, each assigned to the variable of the one before."""
    source = tw.local_tile(x, (4,), (0,), guard=True, fill=9)
    target = tw.local_tile(y, (4,), (0,), guard=True)
    for i in range(3):
        held = tw.fragment_like(source)
        tw.copy(source, held)
        tw.copy(held, target)
        source = tw.local_tile(x, (4,), (i + 1,), guard=True, fill=9)
        target = tw.local_tile(y, (4,), (i + 1,), guard=True)
    if x.shape[0] > 5:
        last = tw.local_tile(x, (4,), (1,), guard=True, fill=9)
    else:
        last = tw.local_tile(x, (4,), (0,), guard=True, fill=9)
    y[0] = last[3]


@pytest.mark.parametrize("n", [3, 6, 10, 12, 20])
def test_loops_and_branches_carry_guards(n: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    y = np.zeros(n + 4, np.float32)
    walk[1, 1](y[:n], x)
    expected = np.zeros(n + 4)
    expected[: min(n, 12)] = x[:12]
    expected[0] = np.concatenate([x, np.full(9, 9)])[7 if n > 5 else 3]
    assert np.array_equal(y, expected)


def test_loops_may_carry_a_guarded_tile_to_before_the_tensor() -> None:
    @tw.kernel
    def backwards(out, x):
        tile = tw.local_tile(x, (4,), (1,), guard=True, fill=9)
        for i in range(4):
            held = tw.fragment_like(tile)
            tw.copy(tile, held)
            tw.copy(held, out[i, None])
            tile = tw.local_tile(x, (4,), (-i,), guard=True, fill=9)

    x, out = np.arange(7, dtype=np.float32), np.zeros((4, 4), np.float32)
    backwards[1, 1](tw.static(out), x[1:])
    padded = np.pad(x[1:], 16, constant_values=9)
    assert np.array_equal(out, [padded[16 + 4 * i : 20 + 4 * i] for i in (1, 0, -1, -2)])


@pytest.mark.parametrize("first", [0, 4])
def test_fragments_tell_elements_at_one_place_apart(first: int) -> None:
    """Rows that are one row in memory are in one register of a fragment, but not where some are outside."""

    @tw.kernel
    def read(out, x, index: tw.constexpr):
        tile = tw.local_tile(x, (4, 4), (index, 2), guard=True, fill=-1)
        held = tw.fragment_like(tile)
        tw.copy(tile, held)
        tw.copy(held, out)

    x = np.broadcast_to(np.arange(1, 11, dtype=np.float32), (6, 10))
    out = np.zeros((4, 4), np.float32)
    read[1, 1](tw.static(out), x, first // 4)
    assert np.array_equal(out, np.pad(x, 8, constant_values=-1)[8 + first : 12 + first, 16:20])


@pytest.mark.parametrize(
    ("tiler", "order"),
    [(4, [0, 1, 2, 3]), ((4,), [0, 1, 2, 3]), ((tw.Layout((2, 2), (2, 1)),), [0, 2, 1, 3])],
    ids=["extent", "shape", "layout"],
)
@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.spread(4)
def test_tiles_of_vectors_outside(n: int, tiler: Any, order: list[int], is_static: bool) -> None:
    @tw.kernel
    def read(out, x, index):
        tile = tw.local_tile(x, tiler, index[0], guard=True, fill=-1)
        for k in range(4):
            out[k] = tile[k]

    x = np.arange(1, n + 1, dtype=np.float32)
    for index in (-1, 0, 1, 2):
        out = np.zeros(4, np.float32)
        read[1, 1](out, tw.static(x) if is_static else x, np.array([index], np.int32))
        padded = np.pad(x, 16, constant_values=-1)[16 + 4 * index : 20 + 4 * index]
        assert np.array_equal(out, padded[order])


@pytest.mark.parametrize("index", [-2, -1, 0, 1, 2, 5])
@pytest.mark.parametrize("shape", [(3, 5), (4, 8), (1, 1), (8, 8)], ids=str)
@pytest.mark.spread(4)
def test_tiles_of_static_extents_outside(shape: tuple[int, int], index: int) -> None:
    """A mode of one tile has another one behind it, which lies outside."""

    @tw.kernel
    def read(out, x, index):
        tile = tw.local_tile(x, (4, 8), (index[0], 0), guard=True, fill=-1)
        tw.copy(tile, out)

    x = np.arange(1, shape[0] * shape[1] + 1, dtype=np.float32).reshape(shape)
    out = np.zeros((4, 8), np.float32)
    read[1, 1](tw.static(out), tw.static(x), np.array([index], np.int32))
    padded = np.pad(x, 32, constant_values=-1)
    assert np.array_equal(out, padded[32 + 4 * index : 36 + 4 * index, 32:40])


@tw.kernel
def any_view(out, x, view: tw.constexpr, coord: tw.constexpr):
    part = view(tw.guarded(x, fill=-1))
    out[0] = part[coord]
    out[1] = tw.where(part.inside(coord), 1, 0)


VIEWS = {
    "zipped_divide": (lambda t: tw.zipped_divide(t, (4, 4)), ((2, 1), (1, 2)), (6, 9)),
    "flat_divide": (lambda t: tw.flat_divide(t, (4, 4)), (3, 3, 1, 2), (7, 11)),
    "transposed": (lambda t: t.T, (8, 5), (5, 8)),
    "a slice": (lambda t: t[:, 9], (3,), (3, 9)),
    "a row before": (lambda t: tw.domain_offset((-1, 0), t), (0, 3), (-1, 3)),
    "a tile of a tile": (lambda t: tw.local_tile(tw.local_tile(t, (4, 8), (1, 1)), (2, 4), (0, 0)), (1, 3), (5, 11)),
    "a whole mode": (lambda t: tw.local_tile(t, (None, 8), (0, 1)), (3, 1), (3, 9)),
    "by a layout": (lambda t: tw.local_tile(t, (tw.Layout((2, 2), (2, 1)), 4), (1, 2)), ((1, 1), 1), (7, 9)),
    "composed": (lambda t: t.compose((tw.Layout(3, 3), tw.Layout(4, 4))), (1, 3), (3, 12)),
    "grouped": (lambda t: tw.group(tw.flat_divide(t, (4, 4)), 1, 3), (2, (1, 1), 2), (6, 9)),
}


@pytest.mark.parametrize("shape", [(34, 66), (20, 30), (5, 100)], ids=str)
@pytest.mark.parametrize("corner", [(0, 0), (-1, -1), (3, -40), (-40, 2), (17, 64)], ids=str)
@pytest.mark.spread(4)
def test_tiles_of_tiles_that_overhang(corner: tuple[int, int], shape: tuple[int, int]) -> None:
    """A tile of 18 x 34 in parts of 8 x 32: what is outside of the tile, or of the tensor, is not copied."""
    threads = tw.Layout((8, 32), (32, 1))

    @tw.kernel
    def load(out, x, corner):
        tile = tw.local_tile(tw.domain_offset((corner[0], corner[1]), tw.guarded(x, fill=-1)), (18, 34), (0, 0))
        smem = tw.shared(x.dtype, tw.row_major((18, 34)))
        parts = [
            tw.local_partition(t, threads, tw.thread_idx.x, guard=True, fill=fill)
            for t, fill in ((tile, -1), (smem, 0))
        ]
        tw.copy(*parts)
        tw.cp_async_wait()
        tw.sync_threads()
        for i in range(tw.thread_idx.x, 18 * 34, 256):
            out[i // 34, i % 34] = smem[i // 34, i % 34]

    x = np.arange(1, shape[0] * shape[1] + 1, dtype=np.float32).reshape(shape)
    out = np.zeros((18, 34), np.float32)
    load[1, 256](out, x, np.array(corner, np.int32))
    padded = np.pad(x, 100, constant_values=-1)
    row, column = (100 + c for c in corner)
    assert np.array_equal(out, padded[row : row + 18, column : column + 34])


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shape", [(8, 12), (7, 10), (5, 8), (3, 13)], ids=str)
def test_views_know_where_they_are(name: str, shape: tuple[int, int]) -> None:
    view, coord, (row, column) = VIEWS[name]
    x = np.arange(1, shape[0] * shape[1] + 1, dtype=np.float32).reshape(shape)
    is_inside = 0 <= row < shape[0] and 0 <= column < shape[1]
    expected = x[row, column] if is_inside else -1
    out = np.zeros(2, np.float32)
    any_view[1, 1](out, x, view, coord)
    assert out.tolist() == [expected, is_inside]
    host = view(tw.guarded(tw.tensor(x), fill=-1))
    if not is_inside and name in ("zipped_divide", "flat_divide", "grouped"):
        return  # static extents have no such tile, which is an error
    assert (host[coord], host.inside(coord)) == (expected, is_inside)


@pytest.mark.parametrize("operand", "ABC")
def test_partitions_of_products_know_where_they_are(operand: str) -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (2, 2, 1))
    x = np.arange(1, 50 * 41 + 1, dtype=np.float32).reshape(50, 41)
    tile = tw.local_tile(tw.tensor(x), (64, 64), (0, 0), guard=True, fill=-1)
    seen: set[float] = set()
    for thread in range(mma.size):
        part = getattr(mma.get_slice(thread), f"partition_{operand}")(tile)
        seen |= set(np.asarray(part).ravel().tolist())
    assert seen == {*x.ravel().tolist(), -1.0}


@pytest.mark.parametrize("n", [0, 2, 4])
def test_predicates(n: int) -> None:
    """Where a predicate does not hold, registers get zeros and global memory nothing."""

    @tw.kernel
    def kernel(out, x, n: tw.int32):
        tile = tw.local_tile(x, (16,), (0,), guard=True, fill=5)
        held = tw.fragment_like(tile)
        tw.copy(tile, held, pred=n > 3)
        tw.copy(held, tw.local_tile(out, (16,), (0,), guard=True), pred=n > 1)

    out = np.full(12, 9, np.float32)
    kernel[1, 1](out, np.arange(8, dtype=np.float32), n)
    expected = {0: [9] * 12, 2: [0] * 12, 4: [*range(8), 5, 5, 5, 5]}
    assert out.tolist() == expected[n]


def test_slices_that_there_are_not_are_refused() -> None:
    copy = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((8, 8)), tw.Layout((1, 1)))

    @tw.kernel
    def kernel(x, some: tw.constexpr):
        part = copy.get_slice(tw.thread_idx.x).partition_S(tw.local_tile(x, (8, 8), (0, 0), guard=True))
        pred = tw.thread_idx.x < 64 if some else None
        tw.copy(part, tw.fragment_like(part), pred=pred)

    x = np.zeros((5, 5), np.float32)
    kernel[1, 128](x, True)
    with pytest.raises(tw.LanguageError, match="some of them take slices that do not exist"):
        kernel[1, 128](x, False)


def copy_rows(x: Any, y: Any) -> None:
    tiles = [tw.local_tile(t, (2, None), (tw.block_idx.x, 0), guard=True) for t in (x, y)]
    tw.copy(*tiles)


def copy_all_rows(x: Any, y: Any) -> None:
    tiles = [tw.local_tile(t, (2, None), (tw.block_idx.x, None), guard=True) for t in (x, y)]
    tw.copy(*tiles)


def copy_parts(x: Any, y: Any) -> None:
    tw.copy(*[tw.local_partition(t, (2, 4), tw.block_idx.x, guard=True) for t in (x, y)])


def copy_tiles_of_any_size(x: Any, y: Any) -> None:
    extent = tw.grid_dim.x - 5  # known on the device only
    tw.copy(*[tw.local_tile(tw.guarded(t)[:, 1], (extent,), (tw.block_idx.x,)) for t in (x, y)])


@pytest.mark.parametrize("how", [copy_rows, copy_all_rows, copy_parts])
@pytest.mark.parametrize("shape", [(5, 7), (4, 8), (1, 1), (9, 3)], ids=str)
def test_extents_that_only_the_launch_knows(shape: tuple[int, int], how: Any) -> None:
    @tw.kernel
    def kernel(y, x, how: tw.constexpr):
        how(x, y)

    x = np.arange(1, shape[0] * shape[1] + 1, dtype=np.float32).reshape(shape)
    whole = np.full((shape[0] + 2, shape[1] + 3), 200, np.float32)
    kernel[8, 1](whole[: shape[0], : shape[1]], x, how)
    expected = np.full_like(whole, 200)
    expected[: shape[0], : shape[1]] = x
    assert np.array_equal(whole, expected)


@pytest.mark.parametrize("n", [6, 7, 3])
def test_tiles_whose_extent_only_the_device_knows(n: int) -> None:
    @tw.kernel
    def kernel(y, x):
        copy_tiles_of_any_size(x, y)

    x = np.arange(1, 4 * n + 1, dtype=np.float32).reshape(n, 4)
    y = np.zeros((n + 4, 4), np.float32)
    kernel[8, 1](y[:n], x)
    assert np.array_equal(y[:n, 1], x[:, 1]) and np.count_nonzero(y) == n


@pytest.mark.parametrize("shape", [(5, 6, 3), (4, 4, 1)], ids=str)
def test_modes_that_are_not_tiled_know_their_end(shape: tuple[int, int, int]) -> None:
    @tw.kernel
    def kernel(y, x):
        parts = [tw.local_tile(t, (4, 4), (tw.block_idx.x, tw.block_idx.y), guard=True) for t in (x, y)]
        for k in range(x.shape[2] + 2):  # two more than there are
            held = tw.fragment_like(parts[0][:, :, k])
            tw.copy(parts[0][:, :, k], held)
            tw.copy(held, parts[1][:, :, k])

    x = np.random.default_rng(0).integers(1, 99, shape).astype(np.float32)
    y = np.full((*shape[:2], shape[2] + 3), 200, np.float32)
    kernel[(-(-shape[0] // 4), -(-shape[1] // 4)), 1](y[:, :, : shape[2]], x)
    assert np.array_equal(y[:, :, : shape[2]], x) and (y[:, :, shape[2] :] == 200).all()


def test_host_tiles() -> None:
    x = np.arange(15).reshape(3, 5)
    tile = tw.local_tile(tw.tensor(x), (2, 4), (1, 1), guard=True, fill=7)
    assert np.array_equal(np.asarray(tile), [[14, 7, 7, 7], [7, 7, 7, 7]])
    assert tile.residue == (1, 1)
    tile[:, :] = 3
    assert x[2].tolist() == [10, 11, 12, 13, 3] and x[0].tolist() == [0, 1, 2, 3, 4]
    again = pickle.loads(pickle.dumps(tile))
    assert np.array_equal(np.asarray(again), np.asarray(tile))
    assert (tw.tensor(x).residue, tw.tensor(x).inside((2, 4))) == ((3, 5), True)


def test_offsets_beyond_32_bits() -> None:
    @tw.kernel
    def last(y, x):
        tile = tw.local_tile(x, (4, 16), (0, tw.block_idx.x), guard=True)
        held = tw.fragment_like(tile)
        tw.copy(tile, held)
        y[0] = held[3, 15]

    text = last[1, 1].source(tw.spec(tw.int8, (1,)), tw.spec(tw.int8, (3, 1 << 31)))
    assert re.search(r"(long long|\(long long\)).*blockIdx\.x", text)
    assert last[1, 1].ptx(tw.spec(tw.int8, (1,)), tw.spec(tw.int8, (3, 1 << 31)), arch="sm_80")


def test_grids_of_whole_tiles() -> None:
    """Where the tiles of static extents go without a guard, a launch cannot have more blocks than tiles."""

    @tw.kernel
    def double(y, x):
        part = [tw.local_tile(t, (4,), (tw.block_idx.x,), guard=True) for t in (x, y)]
        held = tw.fragment_like(part[0])
        tw.copy(part[0], held)
        tw.axpby(1, held, 1, held)
        tw.copy(held, part[1])

    for n, blocks in ((8, 2), (7, 3), (8, 1)):
        x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        double[blocks, 1](tw.static(y), tw.static(x))
        assert np.array_equal(y[: 4 * blocks], 2 * x[: 4 * blocks])
    with pytest.raises(tw.ArgumentError, match="the grid has 3 blocks along x, and mode 0 of x has 2 tiles"):
        double[3, 1](tw.static(np.zeros(8, np.float32)), tw.static(np.zeros(8, np.float32)))


# --- what is refused -----------------------------------------------------------------------------------


def nothing(x: Any) -> Any:
    return x


REFUSED = {
    "atomics": (lambda t, x: tw.atomic_add(t, (0,), 1), "is guarded: some elements of the tile may lie outside"),
    "counts": (lambda t, x: tw.copy(t, tw.fragment_like(t), count=3), "takes neither count="),
    "predicates": (
        lambda t, x: tw.copy(t, tw.fragment_like(t), pred=tw.fragment_like(t, tw.bool_)),
        "nor a tensor as pred=",
    ),
    "swizzles": (
        lambda t, x: t.compose(tw.composition(tw.Swizzle(1, 0, 2), tw.Layout(8))),
        "a guarded tile cannot be seen through",
    ),
    "kept tiles": (
        lambda t, x: tw.local_tile(x, (8,), (None,), guard=True).residue,
        "has no single number of elements",
    ),
    "no element": (lambda t, x: t.inside((None,)), "names no single element"),
    "tiles of tiles": (
        lambda t, x: tw.copy(tw.local_tile(t, (3,), (0,)), tw.registers(tw.float32, 3)),
        "is 8, and the tile of 3 does not divide it",
    ),
    "fills": (lambda t, x: tw.guarded(x, fill="nan"), "must be a number of float32"),
    "fills of another kind": (
        lambda t, x: tw.guarded(tw.registers(tw.int32, 4), fill=tw.float32(tw.thread_idx.x)),
        "is a float32, and is not converted to int32 implicitly",
    ),
    "two fills": (lambda t, x: tw.guarded(t, fill=1), "reads as 0 already, and not as 1"),
    "large fills": (lambda t, x: tw.guarded(x, fill=1e300), "which float32 does not have"),
    "layouts": (lambda t, x: tw.local_tile(tw.Layout(8), (4,), (0,), guard=True), "a layout has no elements to guard"),
    "coordinates": (lambda t, x: tw.guarded(tw.identity_tensor((8,))), "an identity tensor has no elements"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    action, message = REFUSED[name]

    @tw.kernel
    def kernel(x, do: tw.constexpr):
        do(tw.local_tile(x, (8,), (0,), guard=True), x)

    with pytest.raises(tw.TilewrightError, match=re.escape(message)) as caught:
        kernel[1, 32](np.zeros(20, np.float32), action)
    assert caught.value.help


def test_warp_copies_take_no_guarded_tiles() -> None:
    copy = tw.make_tiled_copy(tw.atoms.SM75_U32x4_LDSM_N, tw.Layout((16, 2)), tw.Layout((1, 8)))

    @tw.kernel
    def kernel(x):
        smem = tw.shared(tw.float16, tw.row_major((20, 16)))
        thread = copy.get_slice(tw.thread_idx.x)
        part = thread.partition_S(tw.local_tile(smem, (16, 16), (1, 0), guard=True))
        tw.copy(copy, part, tw.fragment_like(part))

    with pytest.raises(tw.LanguageError, match="does not take a guarded tile: a whole warp executes it"):
        kernel[1, 32](np.zeros(20, np.float32))
