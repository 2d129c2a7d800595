"""Each check in both directions: it fires on what is wrong and is silent on what is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.backends.sim_kernels import Sketch

from tilewright.backends.sim import Finding
from tilewright.dtypes import bool_, float32, int32
from tilewright.errors import CheckError
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.ops import Assert, Atomic
from tilewright.profile import simulate


def findings(write: Callable[[Sketch], None], grid: int = 2, block: int = 32) -> list[Finding]:
    """Return what is found while the kernel runs on, after checking that it is an error by default."""
    sketch = Sketch()
    write(sketch)
    with simulate(raise_errors=False) as run:
        sketch.run_inside(grid, block)
    if run.findings:
        again = Sketch()
        write(again)
        with pytest.raises(CheckError) as caught:
            again.run_inside(grid, block)
        assert caught.value.findings[0].kind == run.findings[0].kind  # type: ignore[attr-defined]
        assert caught.value.findings[0].line == run.findings[0].line  # type: ignore[attr-defined]
    return run.findings


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, [str(f) for f in found]
    return found[0]


# --- out of bounds -------------------------------------------------------------------------------------


def test_a_global_load_out_of_bounds() -> None:
    source = np.arange(60, dtype=np.int32).reshape(6, 10)
    out = np.full(64, -1, np.int32)

    def write(sketch: Sketch) -> None:
        src, dst = sketch.array("src", source, int32), sketch.array("dst", out, int32)
        sketch.line = 7
        value = sketch.load(src, sketch.global_thread())
        sketch.line = 8
        sketch.store(dst, sketch.global_thread(), value)

    found = only(findings(write))
    assert (found.kind, found.file, found.line) == ("out-of-bounds", "sketch.py", 7)
    assert (found.buffer, found.index, found.coordinate) == ("src", 60, (6, 0))
    assert (found.block, found.thread, found.count) == ((1, 0, 0), (28, 0, 0), 4)
    assert found.message.splitlines() == [
        "out of bounds: load src[60], which has shape (6, 10), strides (10, 1)",
        "  that is coordinate (6, 0) of 6x10 elements",
        "  block (1, 0, 0), thread (28, 0, 0), and 3 more",
        "  sketch.py:7, in kernel:",
        "  help: guard the access with a predicate, or check the tile against the shape",
    ]
    assert out.tolist() == [*range(60), 0, 0, 0, 0]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_global_store_out_of_bounds_writes_nothing(lanes: int) -> None:
    base = np.zeros(160, np.float32)
    view = base[16 : 16 + 60 * lanes : 1][: 60 if lanes == 1 else 120]

    def write(sketch: Sketch) -> None:
        dst, src = sketch.array("dst", view, float32), sketch.array("src", np.ones(512, np.float32), float32)
        index = sketch.mul(sketch.binary("sub", sketch.global_thread(), 1), lanes)
        value = sketch.load(src, sketch.mul(sketch.global_thread(), lanes), lanes)
        sketch.store(dst, index, value)

    found = only(findings(write))
    assert (found.kind, found.index, found.thread) == ("out-of-bounds", -lanes, (0, 0, 0))
    assert view.all()
    assert base.sum() == view.size


def test_gaps_between_the_rows_of_a_view_are_out_of_bounds() -> None:
    base = np.zeros((4, 16), np.float32)
    view = base[:, :10]

    def write(sketch: Sketch) -> None:
        dst = sketch.array("dst", view, float32)
        with sketch.when(sketch.compare("lt", sketch.global_thread(), 58)):
            sketch.store(dst, sketch.global_thread(), 1.0)

    found = only(findings(write))
    assert (found.index, found.coordinate, found.count) == (10, (0, 10), 18)
    assert (base[:, :10] == 1).all()
    assert (base[:, 10:] == 0).all()


@pytest.mark.parametrize("view", [np.s_[::-1], np.s_[::3], np.s_[10:30]])
def test_views_are_silent_inside(view: slice) -> None:
    array = np.zeros(64, np.int32)[view]

    def write(sketch: Sketch) -> None:
        dst, thread = sketch.array("dst", array, int32), sketch.global_thread()
        with sketch.when(sketch.compare("lt", thread, len(array))):
            sketch.store(dst, sketch.mul(thread, array.strides[0] // 4), thread)

    assert findings(write) == []
    assert array.tolist() == list(range(len(array)))


def test_an_empty_array_has_no_elements() -> None:
    def write(sketch: Sketch) -> None:
        sketch.store(sketch.array("dst", np.zeros((0, 4), np.int32), int32), sketch.thread(), 1)

    assert "has no elements" in only(findings(write)).message


@pytest.mark.parametrize("space", ["shared", "registers"])
@pytest.mark.parametrize("uniform", [False, True])
def test_buffers_out_of_bounds(space: str, uniform: bool) -> None:
    def write(sketch: Sketch, size: int = 16) -> None:
        tile = getattr(sketch, space)("tile", int32, size)
        index = sketch.scalar("index", 16, int32) if uniform else sketch.thread()
        with sketch.when(sketch.compare("lt", sketch.thread(), 1 if uniform else 32)):
            sketch.store(tile, index, 1)

    found = only(findings(write))
    assert (found.kind, found.buffer, found.index) == ("out-of-bounds", "tile", 16)
    assert found.thread == ((0, 0, 0) if uniform else (16, 0, 0))
    assert "tile[16], which has 16 elements" in found.message
    assert findings(lambda sketch: write(sketch, 32)) == []


def test_masked_accesses_are_checked_where_they_happen_only() -> None:
    def write(sketch: Sketch, limit: int) -> None:
        dst = sketch.array("dst", np.zeros(40, np.int32), int32)
        with sketch.when(sketch.compare("lt", sketch.global_thread(), limit)):
            value = sketch.load(dst, sketch.global_thread())
            sketch.store(dst, sketch.global_thread(), value)
            sketch.emit(Atomic("add", dst, sketch.global_thread(), value), int32)

    assert findings(lambda sketch: write(sketch, 40)) == []
    assert [f.count for f in findings(lambda sketch: write(sketch, 43))] == [3, 3, 3]


def test_unchecked_the_array_still_is_all_that_is_touched() -> None:
    for index in (64, 10**6, -(10**6)):
        base = np.zeros(64, np.int32)
        sketch = Sketch()
        sketch.store(sketch.array("dst", base[:32], int32), sketch.add(sketch.thread(), index), 1)
        with pytest.raises(CheckError, match="an access to dst reaches beyond it"):
            sketch.run(check=False)
        assert not base.any()


def test_unchecked_copies_that_land_outside() -> None:
    sketch = Sketch()
    src, tile = sketch.array("src", np.ones(32, np.float32), float32), sketch.shared("tile", float32, 32)
    far = sketch.add(sketch.thread(), 10**6)
    sketch.do(AsyncCopy(tile, src, 1, "ca", far, sketch.thread(), sketch.value(True, bool_)))
    sketch.do(AsyncWait(None))
    with pytest.raises(CheckError, match="an access to tile reaches beyond it"):
        sketch.run(check=False)


# --- uninitialised reads -------------------------------------------------------------------------------


def test_registers_read_before_they_are_written() -> None:
    def write(sketch: Sketch, stored: int) -> None:
        part = sketch.registers("part", float32, 2)
        with sketch.when(sketch.compare("lt", sketch.thread(), stored)):
            sketch.store(part, 1, 1.0)
        sketch.load(part, 1)

    found = only(findings(lambda sketch: write(sketch, 20)))
    assert (found.kind, found.buffer, found.index) == ("uninitialised-read", "part", 1)
    assert (found.thread, found.count) == ((20, 0, 0), 24)
    assert findings(lambda sketch: write(sketch, 32)) == []


def test_registers_with_an_index_by_thread() -> None:
    def write(sketch: Sketch, shift: int) -> None:
        part = sketch.registers("part", int32, 33)
        thread = sketch.thread()
        sketch.store(part, thread, 5)
        sketch.load(part, sketch.add(thread, shift))

    assert findings(lambda sketch: write(sketch, 0)) == []
    assert only(findings(lambda sketch: write(sketch, 1))).count == 64


@pytest.mark.parametrize("lanes", [1, 4])
def test_shared_memory_read_before_it_is_written(lanes: int) -> None:
    def write(sketch: Sketch, stored: int, *, by_block: bool = False) -> None:
        tile = sketch.shared("tile", float32, 32 * lanes)
        bound = sketch.scalar("stored", stored, int32)
        if by_block:
            bound = sketch.add(bound, sketch.special("block_idx.x"))
        with sketch.when(sketch.compare("lt", sketch.thread(), bound)):
            for n in range(lanes):
                sketch.store(tile, sketch.add(sketch.mul(sketch.thread(), lanes), n), 1.0)
        sketch.do(Barrier("block"))
        sketch.load(tile, sketch.mul(sketch.binary("sub", 31, sketch.thread()), lanes), lanes)

    found = only(findings(lambda sketch: write(sketch, 30)))
    assert (found.kind, found.buffer, found.index) == ("uninitialised-read", "tile", 31 * lanes)
    assert (found.thread, found.count) == ((0, 0, 0), 4)
    assert findings(lambda sketch: write(sketch, 32)) == []
    found = only(findings(lambda sketch: write(sketch, 31, by_block=True)))
    assert (found.block, found.count) == ((0, 0, 0), 1)


def test_indices_that_differ_by_block() -> None:
    def write(sketch: Sketch, stride: int) -> None:
        tile = sketch.shared("tile", int32, 8)
        block = sketch.special("block_idx.x")
        with sketch.when(sketch.compare("eq", sketch.thread(), 0)):
            sketch.store(tile, sketch.mul(block, 2), block)
            sketch.load(tile, sketch.mul(block, stride))

    assert findings(lambda sketch: write(sketch, 2)) == []
    assert only(findings(lambda sketch: write(sketch, 1))).block == (1, 0, 0)


def test_a_read_that_differs_by_block_of_what_all_blocks_wrote() -> None:
    def write(sketch: Sketch, stored: int) -> None:
        tile = sketch.shared("tile", int32, 32)
        with sketch.when(sketch.compare("lt", sketch.thread(), stored)):
            sketch.store(tile, sketch.thread(), 1)
        sketch.do(Barrier("block"))
        sketch.load(tile, sketch.binary("rem", sketch.global_thread(), 31))

    assert findings(lambda sketch: write(sketch, 32)) == []
    found = only(findings(lambda sketch: write(sketch, 30)))
    assert (found.index, found.block, found.thread, found.count) == (30, (0, 0, 0), (30, 0, 0), 2)


def test_a_new_life_of_a_shared_buffer_is_uninitialised() -> None:
    def write(sketch: Sketch, overlap: int) -> None:
        first = sketch.shared("first", int32, 32, offset=0)
        sketch.store(first, sketch.thread(), 1)
        sketch.load(first, sketch.thread())
        second = sketch.shared("second", int32, 32, offset=overlap)
        sketch.store(second, sketch.thread(), 1)
        sketch.load(first, sketch.thread())
        sketch.shared("third", int32, 32, offset=overlap)
        sketch.load(first, sketch.thread())

    assert findings(lambda sketch: write(sketch, 128)) == []
    assert only(findings(lambda sketch: write(sketch, 0))).count == 64


def test_an_asynchronous_copy_that_nobody_waits_for() -> None:
    def write(sketch: Sketch, *, wait: bool) -> None:
        src, tile = sketch.array("src", np.ones(32, np.float32), float32), sketch.shared("tile", float32, 32)
        thread = sketch.thread()
        sketch.do(AsyncCopy(tile, src, 1, "ca", thread, thread, sketch.value(True, bool_)))
        sketch.do(AsyncCommit())
        if wait:
            sketch.do(AsyncWait(0))
        sketch.load(tile, thread)

    assert findings(lambda sketch: write(sketch, wait=True)) == []
    assert only(findings(lambda sketch: write(sketch, wait=False))).kind == "missing-wait"


# --- alignment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["global", "shared"])
def test_misaligned_vectors(space: str) -> None:
    array = np.arange(160, dtype=np.float32)

    def write(sketch: Sketch, shift: int) -> None:
        memory = sketch.array("memory", array, float32)
        if space == "shared":
            memory = sketch.shared("memory", float32, 160)
            for n in range(5):
                sketch.store(memory, sketch.add(sketch.thread(), 32 * n), 1.0)
            sketch.do(Barrier("block"))
        index = sketch.add(sketch.mul(sketch.thread(), 4), shift)
        sketch.load(memory, index, 4)

    assert findings(lambda sketch: write(sketch, 4)) == []
    found = only(findings(lambda sketch: write(sketch, 2)))
    assert (found.kind, found.index, found.count) == ("misaligned", 2, 64)
    assert "memory[2:6] takes 16 bytes at once, from an address that is not a multiple of 16" in found.message


def test_a_misaligned_store_writes_nothing() -> None:
    array = np.zeros(256, np.float32)

    def write(sketch: Sketch) -> None:
        memory = sketch.array("memory", array, float32)
        ones = sketch.load(sketch.array("ones", np.ones(8, np.float32), float32), 0, 4)
        sketch.store(memory, sketch.mul(sketch.thread(), 6), ones)  # every other thread is right

    found = only(findings(write, grid=1))
    assert (found.kind, found.index, found.thread, found.count) == ("misaligned", 6, (1, 0, 0), 16)
    assert array.tolist() == [float(n % 12 < 4 and n < 192) for n in range(256)]


def test_alignment_is_that_of_the_address() -> None:
    base = np.arange(66, dtype=np.float32)

    def write(sketch: Sketch, shift: int) -> None:
        sketch.load(sketch.array("memory", base[1:], float32), sketch.add(sketch.mul(sketch.thread(), 2), shift), 2)

    assert findings(lambda sketch: write(sketch, 1)) == []
    assert only(findings(lambda sketch: write(sketch, 0))).kind == "misaligned"


def test_misaligned_and_outside_asynchronous_copies() -> None:
    def write(sketch: Sketch, source_shift: int, shift: int, size: int = 136) -> None:
        src, tile = sketch.array("src", np.ones(size, np.float32), float32), sketch.shared("tile", float32, 136)
        index = sketch.mul(sketch.thread(), 4)
        places = sketch.add(index, shift), sketch.add(index, source_shift)
        sketch.do(AsyncCopy(tile, src, 4, "cg", *places, sketch.value(True, bool_)))
        sketch.do(AsyncWait(None))

    assert findings(lambda sketch: write(sketch, 4, 8)) == []
    assert only(findings(lambda sketch: write(sketch, 2, 0))).kind == "misaligned"
    assert only(findings(lambda sketch: write(sketch, 0, 1))).buffer == "tile"
    assert only(findings(lambda sketch: write(sketch, 0, 12))).kind == "out-of-bounds"
    found = only(findings(lambda sketch: write(sketch, 0, 0, 127)))
    assert (found.kind, found.buffer, found.thread, found.count) == ("out-of-bounds", "src", (31, 0, 0), 2)


# --- barriers and assertions ---------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["block", "warp"])
def test_a_barrier_that_some_threads_do_not_reach(scope: str) -> None:
    def write(sketch: Sketch, name: str, limit: int) -> None:
        with sketch.when(sketch.compare("lt", sketch.special(name), limit)):
            sketch.do(Barrier(scope))

    found = only(findings(lambda sketch: write(sketch, "thread_idx.x", 40), block=64))
    assert (found.kind, found.block, found.thread) == ("barrier-divergence", (0, 0, 0), (40, 0, 0))
    counts = "40 of its 64" if scope == "block" else "8 of its 32"
    assert f"a barrier of the {scope} is reached by {counts} threads" in found.message
    whole_warps = findings(lambda sketch: write(sketch, "thread_idx.x", 32), block=64)
    assert [f.kind for f in whole_warps] == (["barrier-divergence"] if scope == "block" else [])
    assert findings(lambda sketch: write(sketch, "block_idx.x", 1), block=64) == []
    assert findings(lambda sketch: write(sketch, "thread_idx.x", 64), block=64) == []


def test_a_warp_that_is_not_full_may_meet_at_a_barrier() -> None:
    def write(sketch: Sketch) -> None:
        with sketch.when(sketch.compare("ge", sketch.thread(), 32)):
            sketch.do(Barrier("warp"))

    assert findings(write, block=40) == []


def test_a_barrier_in_a_loop_that_threads_leave_one_by_one() -> None:
    def write(sketch: Sketch) -> None:
        with sketch.loop(sketch.thread()):
            sketch.do(Barrier("block"))

    assert only(findings(write)).kind == "barrier-divergence"


def test_assertions() -> None:
    def write(sketch: Sketch, limit: int) -> None:
        sketch.line = 12
        with sketch.when(sketch.compare("gt", sketch.thread(), 3)):
            sketch.do(Assert(sketch.compare("lt", sketch.thread(), limit), "thread is small"))

    assert findings(lambda sketch: write(sketch, 32)) == []
    found = only(findings(lambda sketch: write(sketch, 2)))
    assert (found.kind, found.line, found.thread, found.count) == ("assertion", 12, (4, 0, 0), 56)
    assert found.message.startswith("assertion failed: thread is small\n")


def test_a_failed_assertion_is_an_error_unchecked_too() -> None:
    sketch = Sketch()
    sketch.do(Assert(sketch.compare("lt", sketch.thread(), 5), "thread is small"))
    with pytest.raises(CheckError, match="thread is small"):
        sketch.run(check=False)


# --- the interface -------------------------------------------------------------------------------------


def test_findings_of_one_line_are_counted_and_lines_kept_apart() -> None:
    def write(sketch: Sketch) -> None:
        dst = sketch.array("dst", np.zeros(4, np.int32), int32)
        with sketch.loop(3):
            sketch.line = 5
            sketch.store(dst, sketch.add(sketch.thread(), 4), 1)
            sketch.line = 6
            sketch.load(dst, -1)

    assert [(f.line, f.count) for f in findings(write)] == [(5, 192), (6, 192)]


def test_simulate_nests_and_ends() -> None:
    def run() -> None:
        sketch = Sketch()
        sketch.load(sketch.registers("part", int32, 1), 0)
        sketch.run_inside()

    with simulate(raise_errors=False) as outer:
        run()
        with simulate(check=False) as inner:
            run()
        with simulate() as raising, pytest.raises(CheckError):
            run()
        run()
    assert [len(r.findings) for r in (outer, inner, raising)] == [2, 0, 1]
    with pytest.raises(CheckError, match="uninitialised read: load part"):
        run()
