"""Instructions of other kinds that are written in this file alone: pure ones, of a block, with several results.

See `test_own_instruction` for one that the threads of a warp run, with memory and a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.printer import bind_results, declare_results, print_call
from tilewright.backends.sim.machine import Access, AccessKind, demand_whole_warps
from tilewright.backends.sim.values import fill
from tilewright.dtypes import bool_, int32, uint32
from tilewright.ir.core import Buffer, Value, VectorType
from tilewright.ir.effects import Completion, Effects, Order, Scope, Waits, attribute, operand, updates, writes
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Extract
from tilewright.ir.verify import verify
from tilewright.passes.pipeline import PASSES
from tilewright.passes.place_shared_memory import place_shared_memory
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

ALL = np.arange(32, dtype=np.int32)


# --- pure, with two results of different types -----------------------------------------------------------


@dataclass(eq=False)
class WideProduct(Instruction):
    """low, high = the 64 bits of a * b, or of -a * b where `sign` has its sign bit set."""

    a: Value = operand()
    b: Value = operand()
    sign: float = attribute()

    RESULTS: ClassVar[int | None] = 2
    EFFECTS: ClassVar[Effects] = Effects()  # equal to the default, and another object
    COUNTED: ClassVar[str | None] = "wide product"
    RESERVED: ClassVar[str] = "wide_product"

    def simulate(self, compiler: Compiler) -> Step:
        a, b, low, high = compiler.slots((self.a, self.b, *self.results))

        def run(frame: Any) -> None:
            product = np.asarray(frame.values[a]).astype(np.int64) * np.asarray(frame.values[b])
            product = -product if np.signbit(self.sign) else product
            frame.values[low] = (product & 0xFFFFFFFF).astype(np.uint32)
            frame.values[high] = (product >> 32).astype(np.int32)

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(
            "__device__ void wide_product(unsigned int& low, int& high, long long a, int b) {\n"
            "    low = (unsigned int)(a * b);\n    high = (int)((a * b) >> 32);\n}"
        )
        names = declare_results(printer, self, "part")
        sign = "-(long long)" if np.signbit(self.sign) else ""
        a, b = (exact(printer, v).text for v in (self.a, self.b))
        print_call(printer, self, "wide_product", [names, [f"{sign}({a})", b]])
        bind_results(printer, self, names)

    def hip(self, printer: Printer) -> None:
        self.cuda(printer)


def wide_product(a: Any, b: Any, sign: float = 0.0) -> tuple[Scalar, ...]:
    op = WideProduct(as_scalar(a, int32).value, as_scalar(b, int32).value, sign)
    return tuple(Scalar(v) for v in current("wide_product").emit(op, uint32, int32))


@tw.kernel
def products(low, high, x, y):
    i = tw.thread_idx.x
    (a, b), (c, d) = wide_product(x[i], y[i]), wide_product(x[i], y[i])
    e, f = wide_product(x[i], y[i], -0.0)
    wide_product(i, i)
    if i < 16:
        low[i], high[i] = a + c, f
    else:
        low[i], high[i] = e, b + d


def factors() -> tuple[np.ndarray, ...]:
    return np.zeros(32, np.uint32), np.zeros(32, np.int32), (ALL - 16) * np.int32(1000003), ALL * np.int32(77777)


def test_a_pure_one_is_removed_and_merged_by_all_its_results_and_by_the_bits_of_its_attributes() -> None:
    kernel = products.lower(*factors(), arch="sm_90", block=32).kernel
    verify(kernel)
    assert [op.sign for op in kernel.body.walk() if isinstance(op, WideProduct)] == [0.0, -0.0]
    assert all(op.is_pure for op in kernel.body.walk() if isinstance(op, WideProduct))


def test_results_of_several_types_are_declared_each_by_its_type() -> None:
    low, high, x, y = factors()
    products[1, 32](low, high, x, y)
    exact, first = x.astype(np.int64) * y, ALL < 16
    halves = [((p & 0xFFFFFFFF).astype(np.uint32), (p >> 32).astype(np.int32)) for p in (exact, -exact)]
    assert np.array_equal(low, np.where(first, 2 * halves[0][0], halves[1][0]))
    assert np.array_equal(high, np.where(first, halves[1][1], 2 * halves[0][1]))
    assert products.lower(*factors(), arch="sm_90", block=32).module.cubin
    assert "wide_product(" in products.lower(*factors(), arch="gfx90a", block=64).source.text


# --- whose effects depend on an attribute ----------------------------------------------------------------


@dataclass(eq=False)
class Increment(Instruction):
    """result = x + 1; where it `acts`, for all to see. Its C++ is statements, not an expression."""

    x: Value = operand()
    acts: bool = attribute(False)

    RESULTS: ClassVar[int | None] = 1
    COUNTED: ClassVar[str | None] = None

    @property
    def effects(self) -> Effects:
        return Effects(removable=not self.acts)

    def simulate(self, compiler: Compiler) -> Step:
        x, result = compiler.slots((self.x, self.result))

        def run(frame: Any) -> None:
            frame.values[result] = frame.values[x] + np.int32(1)

        return run

    def cuda(self, printer: Printer) -> None:
        names = declare_results(printer, self, "more")
        printer.statement(f'asm("add.s32 %0, %1, 1;" : "=r"({names[0]}) : "r"({exact(printer, self.x).text}));', self)
        bind_results(printer, self, names)


def increment(x: Any, acts: bool) -> Scalar:
    return Scalar(current("increment").emit(Increment(as_scalar(x, int32).value, acts), int32)[0])


@tw.kernel
def increments(out, x):
    i = tw.thread_idx.x
    increment(x[i], True)
    increment(x[i], True)
    increment(x[i], False)
    out[i] = increment(x[i], False) + increment(x[i], False)


def test_effects_of_an_attribute_count_in_passes_and_text() -> None:
    out = np.zeros_like(ALL)
    increments[1, 32](out, ALL)
    assert np.array_equal(out, 2 * ALL + 2)
    lowered = increments.lower(out, ALL, arch="sm_90", block=32)
    assert sorted(op.acts for op in lowered.kernel.body.walk() if isinstance(op, Increment)) == [False, True, True]
    assert lowered.cuda.text.count("add.s32") == 3
    assert lowered.module.cubin


@tw.kernel
def requires(out, n):
    increment(n, False).assume_multiple(4, "requires")
    out[tw.thread_idx.x] = 0


def test_a_launch_is_not_asked_to_compute_one() -> None:
    out = np.ones(32, np.int32)
    requires[1, 32](out, np.int32(3))  # what only the device computes is left to the simulator's checks
    assert not out.any()


# --- of the whole block, with a vector among its results -------------------------------------------------


@dataclass(eq=False)
class BlockCount(Instruction):
    """count, (any, all) = of the predicates of the whole block, which meets here."""

    predicate: Value = operand()

    RESULTS: ClassVar[int | None] = 2
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.BLOCK, removable=False, refused_apart=True, order=Order.BOTH, waits=Waits.ALL
    )
    COUNTED: ClassVar[str | None] = "barrier"
    RESERVED: ClassVar[str] = "block_count"

    def simulate(self, compiler: Compiler) -> Step:
        predicate, count, both = compiler.slots((self.predicate, *self.results))
        machine = compiler.machine

        def run(frame: Any) -> None:
            for observer in machine.observers:
                observer.barrier(self, frame.mask)
            given = fill(frame.values[predicate], machine.blocks, machine.threads)
            frame.values[count] = given.sum(axis=1, keepdims=True, dtype=np.int32)
            ends = [given.any(axis=1, keepdims=True), given.all(axis=1, keepdims=True)]
            frame.values[both] = np.stack(ends, axis=-1).astype(np.int32)

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(
            "__device__ void block_count(int& count, int2& both, bool predicate) {\n"
            "    count = __syncthreads_count(predicate);\n"
            "    both = make_int2(count > 0, count == blockDim.x * blockDim.y * blockDim.z);\n}"
        )
        names = declare_results(printer, self, "found")
        print_call(printer, self, "block_count", [names, [exact(printer, self.predicate).text]])
        bind_results(printer, self, names)


def block_count(predicate: Any) -> tuple[Scalar, ...]:
    tracer = current("block_count")
    count, both = tracer.emit(BlockCount(as_scalar(predicate, bool_).value), int32, VectorType(int32, 2))
    return Scalar(count), *(Scalar(tracer.pure(Extract(both, n), int32)) for n in range(2))


@tw.kernel
def counts(out, x):
    early, i = tw.shared(tw.int32, 64), tw.thread_idx.x
    early[i] = x[i]
    count, some, every = block_count(x[i] > 3)
    late = tw.shared(tw.int32, 64)
    late[i] = early[63 - i]
    tw.sync_threads()
    out[i] = late[63 - i] + 1000 * count + 100000 * some + 1000000 * every


@tw.kernel
def counts_of_some(out, x):
    if tw.thread_idx.x < 32:
        out[tw.thread_idx.x] = block_count(x[0] > 3)[0]


def test_one_of_the_whole_block() -> None:
    x = np.arange(64, dtype=np.int32)
    out = np.zeros_like(x)
    with tw.simulate(profile=True) as run:
        counts[1, 64](out, x)
    assert np.array_equal(out, x + 160000)
    assert run.profile.launches
    lowered = counts.lower(out, x, arch="sm_90", block=64)
    for each in PASSES:
        each(lowered.kernel)
        verify(lowered.kernel)
    assert lowered.module.cubin


def test_a_refusal_names_the_instruction_that_is_in_a_branch() -> None:
    with pytest.raises(tw.LanguageError) as caught:
        counts_of_some[1, 64](np.zeros(64, np.int32), np.zeros(64, np.int32))
    assert str(caught.value).startswith("BlockCount is in a branch that only some threads of the block may run")


# --- of a warpgroup --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Together(Instruction):
    """Let the threads of a warpgroup meet."""

    CALLED: ClassVar[str | None] = "together"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.WARPGROUP, removable=False, refused_apart=True, order=Order.BOTH
    )
    COUNTED: ClassVar[str | None] = None

    def simulate(self, compiler: Compiler) -> Step:
        machine = compiler.machine

        def run(frame: Any) -> None:
            demand_whole_warps(self, "a meeting", frame.mask, machine, full=True)
            for observer in machine.observers:
                observer.barrier(self, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        printer.statement("__syncwarp();", self)


@tw.kernel
def meets(out, part: tw.constexpr):
    if tw.thread_idx.x // part == 0:
        current("together").emit(Together())
    out[tw.thread_idx.x] = 1


def test_a_branch_may_divide_the_block_and_not_a_warpgroup() -> None:
    out = np.zeros(256, np.int32)
    meets[1, 256](out, 128)
    assert out.all()
    for part in (32, 64, 127, 192):
        with pytest.raises(tw.LanguageError, match="together is in a branch that only some threads of a warpgroup run"):
            meets[1, 256](out, part)


@tw.kernel
def meets_where(out, flags):
    if flags[tw.thread_idx.x] > 0:
        current("together").emit(Together())
    out[tw.thread_idx.x] = 1


def test_what_part_of_a_warpgroup_reaches_is_found() -> None:
    flags = np.zeros(256, np.int32)
    for first, last, found in ((0, 128, ""), (128, 256, ""), (0, 256, ""), (0, 96, "96 of its 128"), (64, 192, "64")):
        flags[:] = 0
        flags[first:last] = 1
        with tw.simulate(raise_errors=False) as run:
            meets_where[1, 256](np.zeros(256, np.int32), flags)
        told = [f for f in run.findings if f.kind == "warp-divergence"]
        assert [f"of the warpgroup is reached by {found}" in f.message for f in told] == ([True] if found else [])


@tw.kernel
def hands_on(out, meet: tw.constexpr, far: tw.constexpr):
    """Each thread reads what a thread `far` lanes on wrote, of its warpgroup but for the last."""
    tile, i = tw.shared(tw.int32, 256), tw.thread_idx.x
    tile[i] = i
    if meet:
        current("together").emit(Together())
    out[i] = tile[i // 128 * 128 + (i + far) % 128] if far < 128 else tile[(i + far) % 256]


def test_threads_of_a_warpgroup_that_meet_are_ordered_and_others_are_not() -> None:
    for meet, far, races in ((True, 40, False), (True, 100, False), (False, 40, True), (True, 128, True)):
        with tw.simulate(raise_errors=False) as run:
            hands_on[1, 256](np.zeros(256, np.int32), meet, far)
        assert any(f.kind == "race" for f in run.findings) is races, (meet, far)


@tw.kernel
def comes_late(out, x):
    """Warp 1 comes to the meeting of its warpgroup when the other warpgroup has had its own."""
    ready = tw.mbarrier(128)
    tw.sync_threads()
    if tw.warp_id() == 1:
        ready.wait(0)
    current("together").emit(Together())
    if tw.warpgroup_id() == 1:
        ready.arrive()
    out[tw.thread_idx.x] = x[tw.thread_idx.x]


def test_a_warpgroup_waits_for_the_warps_that_are_behind() -> None:
    out, x = np.zeros(256, np.int32), np.arange(256, dtype=np.int32)
    comes_late[1, 256](out, x)
    assert np.array_equal(out, x)


@tw.kernel
def numbers(out):
    out[tw.thread_idx.x] = tw.warpgroup_id()


def test_the_number_of_a_warpgroup() -> None:
    out = np.zeros(384, np.int32)
    numbers[1, 384](out)
    assert np.array_equal(out, np.arange(384) // 128)
    out = np.zeros(256, np.int32)
    with pytest.raises(tw.LanguageError, match="no warpgroups"):
        numbers.lower(out, arch="gfx90a", block=256)


# --- asynchronous, completing at an mbarrier -------------------------------------------------------------


@dataclass(eq=False)
class Deliver(Instruction):
    """Write 4 * `words` bytes of zeros to `tile` and the first to `copy`, at some time; then arrive at the barrier."""

    tile: Buffer = writes("index", elements=lambda op: op.words)
    copy: Buffer = writes("index")
    barrier: Buffer = updates("index")
    index: Value = operand()
    words: int = attribute()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(asynchronous=Completion.BARRIER)
    COUNTED: ClassVar[str | None] = "deliver"

    def simulate(self, compiler: Compiler) -> Step:
        machine, index = compiler.machine, compiler.slot(self.index)
        targets = [(machine.storages[b], n) for b, n in ((self.tile, self.words), (self.copy, 1))]
        mbarriers = compiler.mbarriers(self.barrier)

        def run(frame: Any) -> None:
            at = frame.values[index]
            for storage, lanes in targets:
                machine.observe(Access(self, AccessKind.STORE, storage, at, lanes, frame.mask))
                zeros = np.zeros((1, 1, lanes) if lanes > 1 else (1, 1), np.int32)
                storage.store(at, zeros, lanes, frame.mask)
            mbarriers.arrive(self, at, np.int32(1), frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        places = [address(printer, b, self.index).text for b in (self.tile, self.copy, self.barrier)]
        printer.prelude.need("__device__ void deliver(int* tile, int* copy, unsigned long long* barrier) {}")
        printer.statement(f"deliver({', '.join(places)});", self)


@tw.kernel
def delivers(out, copies):
    tile, full = tw.shared(tw.int32, 64), tw.mbarrier(1)
    i = tw.thread_idx.x
    tw.sync_threads()
    if i == 0:
        current("deliver").emit(
            Deliver(tile.engine.buffer, copies.engine.buffer, full.memory(), as_scalar(0, int32).value, 4)
        )
    full.wait(0)
    if i < 4:
        out[i] = tile[i]
    tw.cp_async_wait()
    tw.sync_threads()
    later = tw.shared(tw.int32, 64)
    later[i] = i
    tw.sync_threads()
    out[i] = later[31 - i]


def test_bytes_that_arrive_at_an_mbarrier_stay_in_use() -> None:
    lowered = delivers.lower(np.zeros(32, np.int32), np.zeros(32, np.int32), arch="sm_90", block=32)
    place_shared_memory(lowered.kernel)
    (op,) = [op for op in lowered.kernel.body.walk() if isinstance(op, Deliver)]
    assert lowered.kernel.shared_bytes == 2 * 256 + 8
    assert "int* copies" in lowered.cuda.text
    assert "const int* copies" not in lowered.cuda.text
    assert set(lowered.written) == {"out", "copies"}
    assert op in list(lowered.kernel.body.walk())
    out, copies = np.full(32, 9, np.int32), np.full(32, 9, np.int32)
    with tw.simulate(raise_errors=False):
        delivers[1, 32](out, copies)
    assert np.array_equal(out, ALL[::-1])
    assert copies[0] == 0
