"""The kernels of examples/kernels that scan, count, select and gather, on both backends against NumPy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, Simulator, assert_same_bits
from tests.helpers.machine_code import opcodes

import tilewright as tw
from tilewright.demo.examples import Case, examples_folder, load_example
from tilewright.demo.runner import greatest_difference

FOLDER = examples_folder() / "kernels"
PREFIX_SUM, HISTOGRAM, TOP, EMBEDDING = (
    load_example(FOLDER / f"{name}.py") for name in ("prefix_sum", "histogram", "argmax_topk", "embedding")
)
SIZES = (1, 31, 4097, 100_003)
FLOATS = (tw.float32, tw.float16, tw.bfloat16)


# --- prefix sum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("size", [0, *SIZES, PREFIX_SUM.TILE, 32 * PREFIX_SUM.TILE, 33 * PREFIX_SUM.TILE + 1])
@pytest.mark.spread(4)
def test_prefix_sum(backend: Backend, size: int, dtype: Any) -> None:
    # Small integers, so that every order of additions gives the same floats.
    x = np.random.default_rng(size).integers(-9, 10, size).astype(dtype)
    y = backend.put(np.full_like(x, 77))
    PREFIX_SUM.launch(y, backend.put(x))
    assert_same_bits(backend.get(y), x.cumsum(dtype=dtype))


def test_prefix_sum_wraps(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, 20_001).astype(np.int32)
    y = backend.put(np.zeros_like(x))
    PREFIX_SUM.launch(y, backend.put(x))
    assert_same_bits(backend.get(y), x.cumsum(dtype=np.int32))


@pytest.mark.parametrize(("offset", "step"), [(1, 1), (3, 2)])
def test_prefix_sum_of_views(backend: Backend, offset: int, step: int) -> None:
    """Memory that wide accesses cannot be used on."""
    size = 7001
    memory = np.random.default_rng(0).integers(-9, 10, offset + step * size).astype(np.float32)
    x = backend.strided(backend.put(memory), (size,), (step,), offset)
    y = backend.put(np.zeros(size + 1, np.float32))
    PREFIX_SUM.launch(backend.strided(y, (size,), (1,), 1), x)
    assert_same_bits(backend.get(y)[1:], memory[offset::step][:size].cumsum(dtype=np.float32))


def test_prefix_sum_has_the_same_bits_every_time(backend: Backend) -> None:
    """The order of additions depends on how many blocks there are, and not on which of them comes first."""
    x = np.random.default_rng(0).standard_normal(40 * PREFIX_SUM.TILE + 5).astype(np.float32)
    expected = np.zeros_like(x)
    with tw.simulate(check=False):
        PREFIX_SUM.launch(expected, Simulator().put(x), blocks=12)
    for _ in range(1 if backend.name == "sim" else 20):
        y = backend.put(np.full_like(x, np.nan))
        PREFIX_SUM.launch(y, backend.put(x), blocks=12)
        assert_same_bits(backend.get(y), expected)
    np.testing.assert_allclose(expected, x.cumsum(dtype=np.float64), atol=1e-3)


def test_prefix_sum_takes_a_workspace(backend: Backend) -> None:
    x = np.arange(9000, dtype=np.int32)
    y, status = backend.put(np.zeros_like(x)), backend.zeros(PREFIX_SUM.workspace_shape(x.size), np.int64)
    PREFIX_SUM.launch(y, backend.put(x), status)
    assert_same_bits(backend.get(y), x.cumsum(dtype=np.int32))


# --- histogram -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 15, 16, *SIZES])
@pytest.mark.parametrize("offset", [0, 3])
def test_histogram(backend: Backend, size: int, offset: int) -> None:
    memory = np.random.default_rng(size).integers(0, 256, size + offset).astype(np.uint8)
    counts = backend.put(np.full(256, -1, np.int32))
    HISTOGRAM.launch(counts, backend.strided(backend.put(memory), (size,), (1,), offset))
    assert_same_bits(backend.get(counts), np.bincount(memory[offset:], minlength=256).astype(np.int32))


# --- argmax and top-k ------------------------------------------------------------------------------------


def ordered(x: Array) -> Array:
    """Return the indices of each row in the order of torch's sort: NaN first, equal elements by their index."""
    wide = x.astype(np.int64 if x.dtype == np.int32 else np.float64)
    is_nan = np.isnan(wide)
    number = np.where(is_nan, 0, wide)
    return np.stack([np.lexsort((-row, ~nan)) for row, nan in zip(number, is_nan, strict=True)])


def rows_of(kind: str, shape: tuple[int, int], dtype: tw.DType) -> Array:
    random = np.random.default_rng(shape[1])
    lowest: Any = -np.inf if dtype.is_float else dtype.lowest
    match kind:
        case "any":
            x = random.integers(-1000, 1000, shape)
        case "equal":
            x = random.integers(-1, 2, shape)
        case "ascending":
            x = np.broadcast_to(np.arange(shape[1]), shape)
        case "lowest":
            x = np.full(shape, lowest)
        case "special":
            x = random.choice(np.array([0.0, -0.0, -1.5, 2.0, np.inf, lowest, np.nan, -np.nan]), shape)
    return np.asarray(x).astype(dtype.numpy)


CASES = [("any", dtype) for dtype in (*FLOATS, tw.int32)] + [("special", dtype) for dtype in FLOATS]
CASES += [(kind, dtype) for kind in ("equal", "lowest", "ascending") for dtype in (tw.float32, tw.int32)]


@pytest.mark.parametrize("shape", [(2, 1), (3, 31), (2, 4097)], ids=str)
@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
@pytest.mark.spread(6)
def test_argmax_and_top_k(backend: Backend, kind: str, dtype: tw.DType, shape: tuple[int, int]) -> None:
    x = rows_of(kind, shape, dtype)
    given, expected = backend.put(x), ordered(x)
    values, indices = backend.zeros(shape[0], dtype), backend.zeros(shape[0], np.int64)
    TOP.launch_argmax(values, indices, given)
    assert_same_bits(backend.get(indices), expected[:, 0])
    assert_same_bits(backend.get(values), np.take_along_axis(x, expected[:, :1], 1)[:, 0])
    for k in sorted({min(7, shape[1]), min(32, shape[1])}):
        values, indices = backend.zeros((shape[0], k), dtype), backend.zeros((shape[0], k), np.int32)
        TOP.launch(values, indices, given, k)
        assert_same_bits(backend.get(indices), expected[:, :k].astype(np.int32))
        assert_same_bits(backend.get(values), np.take_along_axis(x, expected[:, :k], 1))


def test_top_k_of_a_long_row(backend: Backend) -> None:
    x = rows_of("any", (1, 100_003), tw.float32)
    values, indices = backend.zeros((1, 32), np.float32), backend.zeros((1, 32), np.int64)
    with tw.simulate(check=False):
        TOP.launch(values, indices, backend.put(x), 32)
    assert_same_bits(backend.get(indices), ordered(x)[:, :32])


@pytest.mark.parametrize("k", [0, 9, 33])
def test_top_k_refuses_what_a_row_does_not_have(k: int) -> None:
    x = np.zeros((2, 8 if k == 9 else 64), np.float32)
    with pytest.raises(tw.ArgumentError, match=f"k is {k}: expected 1 to 32"):
        TOP.launch(np.zeros((2, k), np.float32), np.zeros((2, k), np.int32), x, k)


# --- embedding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 40, 1030])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.spread(4)
def test_embedding(backend: Backend, dtype: tw.DType, columns: int, index: Any) -> None:
    """Ids repeat, and some are outside of the table; the third row gets no gradient."""
    random = np.random.default_rng(columns)
    table = random.integers(-8, 9, (20, columns)).astype(dtype.numpy)
    ids = random.integers(-2, 22, 61).astype(index)
    known = (ids >= 0) & (ids < 20)
    out = backend.put(np.full((61, columns), 7).astype(dtype.numpy))
    EMBEDDING.launch(out, backend.put(table), backend.put(ids))
    expected = np.where(known[:, None], table[np.clip(ids, 0, 19)], dtype.numpy.type(0))
    assert_same_bits(backend.get(out), expected)

    known &= ids != 2
    sums = np.ones((20, columns), np.float32)
    np.add.at(sums, ids[known], expected[known].astype(np.float32))
    for held in (dtype, tw.float32):
        dtable = backend.put(np.ones((20, columns), held.numpy))
        EMBEDDING.launch_gradient(dtable, out, backend.put(ids), padding=2)
        assert_same_bits(backend.get(dtable), sums.astype(held.numpy))


def test_embedding_compares_all_bits_of_an_id(backend: Backend) -> None:
    ids = np.array([2**32 + 3, 3 - 2**32, 2**31, 2**40, 5], np.int64)
    table, out = np.ones((9, 40), np.float32), backend.put(np.full((5, 40), 7, np.float32))
    EMBEDDING.launch(out, backend.put(table), backend.put(ids))
    assert backend.get(out)[:, 0].tolist() == [0, 0, 0, 0, 1]
    dtable = backend.zeros((9, 40), np.float32)
    EMBEDDING.launch_gradient(dtable, backend.put(np.ones((5, 40), np.float32)), backend.put(ids))
    assert np.flatnonzero(backend.get(dtable).sum(1)).tolist() == [5]


@pytest.mark.parametrize("columns", [40, 41])
def test_gradient_of_a_table_with_gaps(backend: Backend, columns: int) -> None:
    """Rows of 16-bit elements that begin anywhere: pairs would not be aligned."""
    memory = backend.zeros(9 * 43, np.float16)
    dtable = backend.strided(memory, (9, columns), (43, 1))
    EMBEDDING.launch_gradient(
        dtable, backend.put(np.ones((5, columns), np.float16)), backend.put(np.arange(5, dtype=np.int32))
    )
    assert backend.get(memory).sum() == 5 * columns


# --- the demo's cases --------------------------------------------------------------------------------------

QUICK = [case for each in (PREFIX_SUM, HISTOGRAM, TOP, EMBEDDING) for case in each.cases("sim", True)]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.name}, {case.size}".replace(" ", "-"))
def test_case(case: Case) -> None:
    trial = case.prepare()
    assert greatest_difference(trial.result(), trial.expected) > trial.limit  # before the launch
    trial.launch()
    assert greatest_difference(trial.result(), trial.expected) <= trial.limit


# --- what synchronises -----------------------------------------------------------------------------------

PLAIN = """
def plain_load(t, coord):
    return t[coord]


def plain_store(t, coord, value):
    t[coord] = value


PUBLISHED ="""


def changed(tmp_path: Path, name: str, old: str, new: str, place: int = 0) -> ModuleType:
    """Load an example in which one occurrence of a text is another."""
    parts = (FOLDER / f"{name}.py").read_text().split(old)
    assert len(parts) > place + 1, (name, old)
    path = tmp_path / f"{name}_changed.py"
    path.write_text(old.join(parts[: place + 1]) + new + old.join(parts[place + 1 :]))
    return load_example(path)


def findings(launch: Any) -> set[str]:
    with tw.simulate(raise_errors=False) as run:
        launch()
    return {f.kind for f in run.findings}


def scan_long(module: ModuleType) -> None:
    """Scan by a few blocks, each of which goes through several tiles."""
    x = np.ones(34 * module.TILE, np.int32)
    module.launch(np.zeros_like(x), x, blocks=5)


@pytest.mark.parametrize(("tiles", "blocks"), [(100, 1), (257, 37), (64, 64), (101, 100)])
@pytest.mark.spread(3)
def test_prefix_sum_by_so_many_blocks(backend: Backend, tiles: int, blocks: int, tmp_path: Path) -> None:
    """Tiles of 128 elements, so that the simulator sees many."""
    module = changed(tmp_path, "prefix_sum", "VECTORS, EACH = 512, 4, 4", "VECTORS, EACH = 32, 1, 4")
    x = np.random.default_rng(0).integers(-9, 10, 128 * tiles - 3).astype(np.float32)
    y = backend.put(np.full_like(x, np.nan))
    module.launch(y, backend.put(x), blocks=blocks)
    assert_same_bits(backend.get(y), x.cumsum(dtype=np.float32))


@pytest.mark.parametrize("name", ["load", "store"])
def test_prefix_sum_needs_strong_accesses(name: str, tmp_path: Path) -> None:
    module = changed(tmp_path, "prefix_sum", f"tw.{name}(", f"plain_{name}(")
    path = Path(module.__file__ or "")
    path.write_text(path.read_text().replace("\nPUBLISHED =", PLAIN))
    module = load_example(path)
    assert findings(lambda: scan_long(module)) & {"race", "overlapping-writes", "deadlock"}


@pytest.mark.parametrize("place", [0, 1])
def test_histogram_needs_its_barriers(place: int, tmp_path: Path) -> None:
    module = changed(tmp_path, "histogram", "    tw.sync_threads()\n", "", place)
    x = np.random.default_rng(0).integers(0, 256, 9000).astype(np.uint8)
    assert "race" in findings(lambda: module.launch(np.zeros(256, np.int32), x))


def test_gradient_needs_atomics(tmp_path: Path) -> None:
    module = changed(tmp_path, "embedding", "tw.atomic_add(dtable, (target, ", "add(dtable, (target, ")
    path = Path(module.__file__ or "")
    path.write_text(
        path.read_text().replace("\nWARPS =", "\ndef add(t, coord, value):\n    t[coord] += value\n\n\nWARPS =")
    )
    module = load_example(path)
    ids, dout = np.arange(40) % 3, np.ones((40, 8), np.float32)
    assert findings(lambda: module.launch_gradient(np.zeros((3, 8), np.float32), dout, ids))


# --- machine code ----------------------------------------------------------------------------------------


def code(kernel: Any, example: Any) -> list[str]:
    """Return the instructions of a kernel for the arguments of its example, which needs no local memory."""
    _, block, args = example()
    resources = kernel.resources(*args, block=block, arch="sm_90a")
    assert resources.local_bytes == 0, resources
    return opcodes(kernel.sass(*args, block=block, arch="sm_90a"))


def test_prefix_sum_fits_twice() -> None:
    _, block, args = PREFIX_SUM.example_prefix_sum()
    kernel = PREFIX_SUM.PERSISTENT
    assert kernel.resources(*args, block=block, arch="sm_90a").registers <= 64
    instructions = code(kernel, PREFIX_SUM.example_prefix_sum)
    wide = [x for x in instructions if x.startswith(("LDGSTS", "LDG.", "STG")) and ".128" not in x]
    assert not wide, wide
    assert instructions.count("BAR.SYNC.DEFER_BLOCKING") == 3


def test_histogram_increments_in_shared_memory() -> None:
    instructions = code(HISTOGRAM.histogram, HISTOGRAM.example_histogram)
    assert sum(x.startswith("ATOMS.POPC.INC") for x in instructions) >= HISTOGRAM.EACH
    assert "ATOMS.CAST.SPIN" not in instructions
    assert any(x.startswith("LDG.E.128") for x in instructions)


def test_rows_are_read_by_wide_accesses() -> None:
    for kernel, example in (
        (TOP.argmax, TOP.example_argmax),
        (TOP.topk, TOP.example_topk),
        (EMBEDDING.embedding, EMBEDDING.example_embedding),
    ):
        loads = [x for x in code(kernel, example) if x.startswith("LDG")]
        assert sum(".128" in x for x in loads) >= len(loads) - 1, loads  # the id, or the value that was found


def test_arrays_of_more_than_2_31_elements_have_offsets_of_64_bits() -> None:
    size = (1 << 32) + 5
    vector, status = tw.spec(tw.float32, (size,)), tw.spec(tw.int64, PREFIX_SUM.workspace_shape(size))
    matrix, few = tw.spec(tw.bfloat16, (70_000, 65_536)), tw.spec(tw.bfloat16, (70_000, 8))
    ids = tw.spec(tw.int32, (70_000,))
    for kernel, args, name in (
        (PREFIX_SUM.prefix_sum, (vector, vector, status, 264), "x"),
        (HISTOGRAM.histogram, (tw.spec(tw.int32, (256,)), tw.spec(tw.uint8, (size,))), "x"),
        (TOP.argmax, (tw.spec(tw.bfloat16, (70_000,)), ids, matrix), "x"),
        (TOP.topk, (few, tw.spec(tw.int32, (70_000, 8)), matrix, 8), "x"),
        (EMBEDDING.embedding, (matrix, matrix, ids), "table"),
        (EMBEDDING.embedding_gradient, (matrix, matrix, ids, -1, True), "dtable"),
    ):
        block = PREFIX_SUM.THREADS if kernel is PREFIX_SUM.prefix_sum else 256
        source = kernel.source(*args, block=block, arch="sm_90a")
        assert f"long long {name}_s" in source, source  # its extent or stride


@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16], ids=str)
@pytest.mark.spread(2)
def test_pairs_are_added_without_asking_for_the_kind_of_memory(dtype: tw.DType) -> None:
    _, block, args = EMBEDDING.example_embedding_gradient()
    args = tuple(tw.spec(dtype, x.shape) if getattr(x, "dtype", None) is tw.bfloat16 else x for x in args)
    instructions = code(EMBEDDING.embedding_gradient, lambda: (1, block, args))
    assert any(x.startswith("REDG.E.ADD") for x in instructions)
    assert not any(x.startswith(("QSPC", "ATOM.", "ATOMS")) for x in instructions)
