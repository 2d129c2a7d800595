"""What MoYe.jl's own tests state of arrays, copies and products, as kernels: inputs and expected values counted from 0.

Its tests of layouts and tuples are in tests/unit/layout/test_moye_cases.py; its tutorials' kernels, which its tests run
too (host/copy_async.jl, device/matmul.jl), in docs/coming_from_moye_and_cute.md, which a test runs. What has no
counterpart: allocations on the heap of Julia, garbage collection, and the types of engines.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend
from tests.conformance.test_mma_atoms import skip_without

import tilewright as tw
import tilewright.layout as L
from tilewright.layout import Layout

# --- array.jl, engine.jl, broadcast.jl, device/memory.jl, device/pointer.jl ---------------------------------------------


@tw.kernel
def arrays(out, x):
    """Assertions about fragments while the kernel is traced, and sums of what they hold."""
    a = tw.registers(tw.float32, (2, 3))
    assert tw.registers(tw.float32, tw.row_major((2, 3))).layout == tw.row_major((2, 3))
    assert a[:, 0].shape == (2,) and a[:, :].shape == (2, 3)
    tw.fill(a, 1.0)
    copied = tw.make_tensor_like(a)
    assert copied.layout == a.layout and copied.space == a.space == "register"
    tw.copy(a, copied)
    out[0] = a.reduce("add")
    out[1] = copied.reduce("add")
    assert tw.append(a, rank=3).layout == Layout((2, 3, 1), (1, 2, 0))
    assert tw.prepend(a, rank=3).layout == Layout((1, 2, 3), (0, 1, 2))

    b = tw.registers(tw.float32, (3, 2))
    tw.fill(b, 2.0)
    doubled, more = tw.make_tensor_like(b), tw.make_tensor_like(b)
    tw.copy(b + b, doubled)
    tw.copy(b + 1, more)
    assert (b + b).layout.shape == (b + 1).layout.shape == (3, 2) and (b + b).dtype is tw.float32
    out[2] = doubled.reduce("add")
    out[3] = more.reduce("add")
    c = tw.registers(tw.float32, Layout((3,), (2,)))
    tw.fill(c, 0.5)
    assert (b + tw.append(c)).shape == (3, 2)  # (3,1), because the first mode is not guessed
    added = tw.make_tensor_like(b)
    tw.copy(b + tw.append(c), added)
    out[4] = added.reduce("add")

    shared = tw.shared(tw.int32, 3)
    assert (x.space, shared.space) == ("global", "shared")
    wide = tw.make_tensor(x.engine, Layout((8, 16)))
    like = tw.make_fragment_like(wide[:, 0])
    assert like.layout == Layout((8,)) and like.size == 8


def test_arrays(backend: Backend) -> None:
    out = backend.zeros(5, tw.float32)
    arrays[1, 1](out, tw.static(backend.put(np.zeros(128, np.float32))))
    assert backend.get(out).tolist() == [6, 6, 24, 18, 15]


@tw.kernel
def doubled_on_the_device(out):
    a = tw.registers(tw.float64, (3, 2))
    tw.fill(a, 1.0)
    tw.copy(a * 2, a)
    out[0] = a.reduce("add")


def test_broadcast_on_the_device(backend: Backend) -> None:
    out = backend.zeros(1, tw.float64)
    doubled_on_the_device[1, 1](out)
    assert backend.get(out)[0] == 12


def test_recasts() -> None:
    numbers = tw.tensor(np.arange(1, 13, dtype=np.int64))
    four_by_three = tw.make_tensor(numbers.engine, Layout((4, 3)))
    halves = four_by_three.recast(tw.int32)
    assert halves.layout == Layout((8, 3)) and halves[0, 0] == 1 and halves[1, 0] == 0 and halves[2, 2] == 10
    assert L.recast(Layout((4, 3)), 64, 128) == Layout((2, 3))

    @tw.kernel
    def recast(out):
        x = tw.registers(tw.float32, (4, 3))
        tw.clear(x)
        wide, narrow = x.recast(tw.float64), x.recast(tw.float16)
        assert wide.dtype is tw.float64 and wide.layout == Layout((2, 3))
        assert narrow.dtype is tw.float16 and narrow.layout == Layout((8, 3))
        x[1, 2] = 3.0
        assert wide.recast(tw.float32).layout == x.layout
        out[0] = wide.recast(tw.float32)[1, 2]
        out[1] = narrow.recast(tw.float32)[1, 2]

    out = np.zeros(2, np.float32)
    recast[1, 1](out)
    assert out.tolist() == [3, 3]


# --- tiling.jl, tiled_mma.jl, host/tiling_matmul.jl ---------------------------------------------------------------------


def test_a_tile_of_every_column() -> None:
    a = tw.make_tensor(tw.tensor(np.arange(1, 49)).engine, Layout((6, 8)))
    tile = tw.local_tile(a, (3, 2), (0, None))
    assert tile.rank == 3
    assert [int(tile[i, j, 1]) for j in range(2) for i in range(3)] == [13, 14, 15, 19, 20, 21]


def test_sizes_of_a_tiled_product() -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F16F16F16F16_TN, (3, 5, 1))
    assert [mma.tile_size(mode) for mode in range(3)] == [48, 40, 8]
    thread = mma.get_slice(0)
    a, b, c = (tw.make_tensor(tw.tensor(np.zeros(m * n, np.float16)).engine, Layout((m, n)))
               for m, n in ((336, 8), (360, 8), (336, 360)))  # fmt: skip
    parts = thread.partition_A(a), thread.partition_B(b), thread.partition_C(c)
    assert [tuple(L.size(part.layout[mode]) for mode in (1, 2)) for part in parts] == [(7, 1), (9, 1), (7, 9)]

    @tw.kernel
    def fragments(a, b, c):
        part = mma.get_slice(tw.thread_idx.x)
        for name, x in (("A", a), ("B", b), ("C", c)):
            cut = getattr(part, f"partition_{name}")(x)
            assert getattr(part, f"partition_fragment_{name}")(x).shape == cut.shape
            assert getattr(part, f"make_fragment_{name}")(cut).shape == cut.shape

    arguments = [tw.static(np.zeros(shape, np.float16)) for shape in ((48, 8), (80, 8), (48, 80))]
    fragments.lower(*arguments, block=mma.size, arch="sm_80")


@tw.kernel
def multiply_parts(C, A, B, threads: tw.constexpr):
    tid = tw.thread_idx.x
    a, b = tw.local_partition(A, threads, tid, proj=(1, None)), tw.local_partition(B, threads, tid, proj=(None, 1))
    c = tw.local_partition(C, threads, tid)
    for k in range(a.shape[1]):
        for m in range(c.shape[0]):
            for n in range(c.shape[1]):
                c[m, n] += a[m, k] * b[n, k]


def test_a_product_by_partitions(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (extent, 8)).astype(np.float32) for extent in (16, 16))
    c = backend.zeros((16, 16), tw.float32)
    multiply_parts[1, 16](c, backend.put(a), backend.put(b), Layout((4, 4)))
    assert np.array_equal(backend.get(c), a @ b.T)


# --- copy.jl, device/tiled_copy.jl --------------------------------------------------------------------------------------


@tw.kernel
def copy_whole(y, x, vector: tw.constexpr):
    source, target = (tw.make_tensor(t.engine, Layout((4, 2))) for t in (x, y))
    tw.copy(tw.atoms.UniversalCopy(vector), source, target)


@tw.kernel
def copy_parts(y, x, threads: tw.constexpr):
    source, target = (tw.make_tensor(t.engine, Layout((6, 6))) for t in (x, y))
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(source, threads, tid), tw.local_partition(target, threads, tid))


@pytest.mark.parametrize("vector", [32, 128])
def test_vectorised_copies(backend: Backend, vector: int) -> None:
    x, y = backend.put(np.arange(1, 9, dtype=np.int32)), backend.put(np.arange(9, 17, dtype=np.int32))
    copy_whole[1, 1](y, x, vector)
    assert np.array_equal(backend.get(y), np.arange(1, 9))


def test_copies_by_parts(backend: Backend) -> None:
    x, y = backend.put(np.arange(1, 37, dtype=np.int32)), backend.zeros(36, tw.int32)
    copy_parts[1, 6](y, x, Layout((2, 3)))
    assert np.array_equal(backend.get(y), np.arange(1, 37))


@tw.kernel
def through_shared_memory(out, x, copy: tw.constexpr, layout: tw.constexpr):
    smem, tid = tw.shared(x.dtype, layout), tw.thread_idx.x
    source, target = (tw.make_tensor(t.engine, layout) for t in (x, out))
    for i in range(tid, smem.size, copy.size):
        smem[i] = source[i]
    tw.sync_threads()
    thread = copy.get_slice(tid)
    part, to = thread.partition_S(smem), thread.partition_D(target)
    held = tw.registers(x.dtype, to.shape)
    tw.copy(copy, part, held)
    tw.copy(held, to)


SQUARE = Layout((32, 32), (1, 32)), Layout((16, 2)), Layout((2, 4))
FLAT = Layout((32, (2, 4)), (2, (1, 64))), Layout((32, 1)), Layout((1, 8))
ATOMS = [tw.atoms.UniversalCopy(16), tw.atoms.SM75_U32x1_LDSM_N, tw.atoms.SM75_U32x2_LDSM_N, tw.atoms.SM75_U32x4_LDSM_N]


def filled(layout: Layout) -> Array:
    return np.arange(1, int(layout.cosize) + 1, dtype=np.uint16)


@pytest.mark.parametrize("shapes", [SQUARE, FLAT], ids=["32x32", "32x8"])
@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_tiled_copies(backend: Backend, atom: Any, shapes: tuple[Layout, Layout, Layout]) -> None:
    skip_without(backend, "sm_75")  # ldmatrix
    layout, threads, values = shapes
    x = filled(layout)
    out = backend.zeros(x.size, tw.uint16)
    through_shared_memory[1, 32](out, backend.put(x), tw.make_tiled_copy(atom, threads, values), layout)
    assert np.array_equal(backend.get(out), x)


# --- device/mmaop.jl, device/mmatraits.jl, device/ldmatrix.jl -----------------------------------------------------------

MAJORS = ("TT", "NT", "TN", "NN")
EIGHT_BITS = [
    f"{shape}_S32{a}{b}S32_TN{end}"
    for shape in ("8x8x16", "16x8x16", "16x8x32")
    for a, b in itertools.product(("S8", "U8"), repeat=2)
    for end in ("", "_SATURATE")
]
# The names of MoYe.jl's instructions behind MMAOP_, and the registers of A, B and C; it writes B1 for U1.
OPERATIONS: dict[str, tuple[int, int, int]] = {
    "8x8x4_F64F64F64F64_TN": (1, 1, 2),
    "16x8x4_F32TF32TF32F32_TN": (2, 1, 4),
    "16x8x8_F32TF32TF32F32_TN": (4, 2, 4),
    "16x8x16_F32BF16BF16F32_TN": (4, 2, 4),
    "16x8x8_F32BF16BF16F32_TN": (2, 1, 4),
    **{f"8x8x4_F16F16F16F16_{majors}": (2, 2, 4) for majors in MAJORS},
    **{f"8x8x4_F32F16F16F16_{majors}": (2, 2, 4) for majors in MAJORS},
    **{f"8x8x4_F32F16F16F32_{majors}": (2, 2, 8) for majors in MAJORS},
    "16x8x8_F16F16F16F16_TN": (2, 1, 2),
    "16x8x8_F32F16F16F32_TN": (2, 1, 4),
    "16x8x16_F16F16F16F16_TN": (4, 2, 2),
    "16x8x16_F32F16F16F32_TN": (4, 2, 4),
    **{
        name: {"8x8x16": (1, 1, 2), "16x8x16": (2, 1, 4), "16x8x32": (4, 2, 4)}[name.split("_")[0]]
        for name in EIGHT_BITS
    },
    **{f"8x8x128_S32B1B1S32_TN_{op}POPC": (1, 1, 2) for op in ("XOR", "AND")},
    **{f"16x8x128_S32B1B1S32_TN_{op}POPC": (2, 1, 4) for op in ("XOR", "AND")},
    **{f"16x8x256_S32B1B1S32_TN_{op}POPC": (4, 2, 4) for op in ("XOR", "AND")},
}


def atom_of(name: str) -> Any:
    first = "SM70" if name.startswith("8x8x4_F") and "F64" not in name else "SM80"
    return getattr(tw.atoms, f"{first}_{name.replace('B1B1', 'U1U1')}")


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_instruction_is_an_atom(name: str) -> None:
    atom = atom_of(name)
    assert tuple(x.count for x in (atom.registers_a, atom.registers_b, atom.registers_c)) == OPERATIONS[name]
    words = atom.instruction.split(".")
    m, n, k = name.split("_")[0].split("x")
    assert f"m{m}n{n}k{k}" in words
    row = {"T": "row", "N": "col"}, {"N": "col", "T": "row"}
    a, b = name.split("_")[2]
    assert words[words.index(f"m{m}n{n}k{k}") + 1 :][:2] == [row[0][a], row[1][b]]
    assert ("satfinite" in words) == name.endswith("SATURATE")
    assert ("xor" in words, "and" in words) == ("XORPOPC" in name, "ANDPOPC" in name)


def test_there_are_as_many_instructions() -> None:
    assert len(OPERATIONS) == 51


LDMATRIX = {
    "U32x1_N": "x1", "U32x2_N": "x2", "U32x4_N": "x4", "U16x2_T": "x1.trans", "U16x4_T": "x2.trans", "U16x8_T": "x4.trans",
}  # fmt: skip


@pytest.mark.parametrize("name", LDMATRIX)
def test_every_ldmatrix_is_an_atom(name: str) -> None:
    shape, major = name.split("_")
    atom = getattr(tw.atoms, f"SM75_{shape}_LDSM_{major}")
    layout = Layout((32, 32), (1, 32) if major == "N" else (32, 1))
    copy = tw.make_tiled_copy(
        atom, *((Layout((16, 2)), Layout((2, 4))) if major == "N" else (Layout((4, 8)), Layout((8, 1))))
    )
    x = tw.static(tw.spec(tw.uint16, (1024,)))
    text = through_shared_memory.source(x, x, copy, layout, block=32, arch="sm_80")
    count, _, transposed = LDMATRIX[name].partition(".")
    assert f"ldmatrix.sync.aligned.m8n8.{count}{'.trans' if transposed else ''}.shared.b16" in text


@tw.kernel
def product_by_hand(C, A, B):
    """16 x 8 x 16 by ldmatrix and mma.sync on views of 16 bytes and of 4, without a tiled copy."""
    smem_a, smem_b = tw.shared(tw.float16, Layout((16, 16), (16, 1))), tw.shared(tw.float16, Layout((16, 8), (1, 16)))
    threads, tid = Layout((16, 2)), tw.thread_idx.x
    for source, target in ((A, smem_a), (B, smem_b)):
        part, to = tw.local_partition(source, threads, tid), tw.local_partition(target, threads, tid)
        for i in tw.static_range(part.size):
            to[i] = part[i]
    tw.sync_threads()
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F16F16F16F16_TN)
    thread = mma.get_slice(tid)
    a, b = thread.partition_fragment_A(smem_a), thread.partition_fragment_B(smem_b.T)
    c = thread.make_fragment_C(thread.partition_C(C))
    tw.clear(c)
    for copy, source, fragment in (
        (tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma), smem_a, a),
        (tw.make_tiled_copy_B(tw.atoms.SM75_U32x2_LDSM_N, mma), smem_b.T, b),
    ):
        lane = copy.get_slice(tid)
        tw.copy(copy, lane.partition_S(source), lane.retile_D(fragment))
    tw.gemm(mma, c, a, b, c)
    # As MoYe.jl's test stores: pairs of columns, in the row of four lanes and eight below.
    words, held = C.recast(tw.uint32), c.recast(tw.uint32)
    row, column = tid // 4, tid % 4
    words[row, column] = held[0]
    words[row + 8, column] = held[1]


def test_a_product_of_one_instruction(backend: Backend) -> None:
    skip_without(backend, "sm_80")
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (16, 16)).astype(np.float16), rng.integers(-4, 5, (16, 8)).astype(np.float16)
    c = backend.zeros((16, 8), tw.float16)
    product_by_hand[1, 32](*(tw.static(x) for x in (c, backend.put(a), backend.put(b))))
    assert np.array_equal(backend.get(c).astype(np.float32), a.astype(np.float32) @ b.astype(np.float32))
