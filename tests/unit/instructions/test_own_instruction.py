"""An instruction that is written in this file alone: tracing, passes, text, machine code, simulator and profile take it.

The threads of a warp read a tile of 32 words from shared memory, its 4 rows as columns, and arrive at an mbarrier: who
waits there may write the tile again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.printer import bind_results, declare_results, print_call
from tilewright.backends.sim.machine import Access, AccessKind, demand_whole_warps
from tilewright.backends.sim.values import Frame, fill
from tilewright.dtypes import int32, uint32
from tilewright.errors import CheckError, InternalError
from tilewright.instructions.mbarrier import MBarrier
from tilewright.ir.core import Buffer, Op, Space, Value
from tilewright.ir.effects import Effects, Order, Scope, attribute, operand, reads, updates
from tilewright.ir.instruction import Instruction
from tilewright.ir.verify import verify
from tilewright.passes.pipeline import PASSES
from tilewright.runtime.disassemble import disassemble
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

ROWS, COLUMNS = 4, 8


@dataclass(eq=False)
class TakeTile(Instruction):
    """result = tile[index + 8 * (lane % 4) + lane / 4] of each lane; then each thread arrives at barrier[stage]."""

    tile: Buffer = reads("index")
    barrier: Buffer = updates("stage")
    index: Value = operand()
    stage: Value = operand()

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False, order=Order.RELEASE)
    COUNTED: ClassVar[str | None] = "take tile"
    RESERVED: ClassVar[str] = "take_tile"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("mbarrier", "meet with tw.sync_threads()")

    def verify(self, expect: Any) -> None:
        expect(self.tile.space is Space.SHARED, "the tile lies in shared memory")
        expect(self.result.type is uint32, "gives a uint32")

    def simulate(self, compiler: Compiler) -> Step:
        index, stage, result = compiler.slots((self.index, self.stage, self.result))
        machine, storage = compiler.machine, compiler.machine.storages[self.tile]
        mbarriers = compiler.mbarriers(self.barrier)
        lane = np.arange(machine.threads)[None, :] % machine.warp
        place = COLUMNS * (lane % ROWS) + lane // ROWS

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "take_tile", frame.mask, machine, full=True)
            at = fill(frame.values[index], machine.blocks, machine.threads) + place
            machine.observe(Access(self, AccessKind.LOAD, storage, at, 1, frame.mask))
            frame.values[result] = storage.load(at, 1, frame.mask)
            mbarriers.arrive(self, frame.values[stage], np.int32(1), frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(_TAKE)
        results = declare_results(printer, self, "word")
        places = [address(printer, self.tile, self.index), address(printer, self.barrier, self.stage)]
        print_call(printer, self, "take_tile", [results, [p.text for p in places]])
        bind_results(printer, self, results)


_TAKE = """\
__device__ __forceinline__ void take_tile(unsigned int& word, const void* tile, unsigned long long* barrier) {
    unsigned int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    const unsigned int from = (unsigned int)__cvta_generic_to_shared(tile) + 4 * (8 * (lane % 4) + lane / 4);
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(barrier);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(at) : "memory");
}"""


def take_tile(tile: Any, barrier: MBarrier) -> Scalar:
    """Emit the instruction, as a function of the language would."""
    zero = as_scalar(0, int32).value
    engine = tile.engine
    op = TakeTile(engine.buffer, barrier.memory(), engine.index(0), zero)
    return Scalar(current("take_tile").emit(op, uint32)[0])


@tw.kernel
def hand_over(out, x, rounds: tw.constexpr, waits: tw.constexpr):
    """Warp 0 writes a tile each round, and warp 1 takes it; warp 0 waits until it has been taken."""
    tile, full, empty = tw.shared(tw.uint32, 32), tw.mbarrier(32), tw.mbarrier(32)
    tw.sync_threads()
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        for r in range(rounds):
            if waits:
                empty.wait(1 - r % 2)
            tile[lane] = x[32 * r + lane]
            full.arrive()
    else:
        for r in range(rounds):
            full.wait(r % 2)
            out[32 * r + lane] = take_tile(tile, empty)


@tw.kernel
def overwrite(out, x, waits: tw.constexpr):
    """Warp 0 writes a tile that warp 1 takes, and writes it again: when it has been taken, or at any time."""
    tile, full, empty = tw.shared(tw.uint32, 32), tw.mbarrier(32), tw.mbarrier(32)
    tw.sync_threads()
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        tile[lane] = x[lane]
        full.arrive()
        if waits:
            empty.wait(0)
        tile[lane] = x[32 + lane]
        out[32 + lane] = tile[lane]
    else:
        full.wait(0)
        out[lane] = take_tile(tile, empty)


def arrays(rounds: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(100, 100 + 32 * rounds, dtype=np.uint32)
    return np.zeros_like(x), x


def lowered(waits: bool = True) -> Any:
    return hand_over.lower(tw.spec(tw.uint32, (96,)), tw.spec(tw.uint32, (96,)), 3, waits, arch="sm_90a", block=64)


def taken(kernel: Any) -> Op:
    (op,) = [op for op in kernel.body.walk() if isinstance(op, TakeTile)]
    return op


def test_it_runs_and_gives_what_it_says() -> None:
    out, x = arrays()
    hand_over[1, 64](out, x, 3, True)
    assert np.array_equal(out.reshape(3, COLUMNS, ROWS), x.reshape(3, ROWS, COLUMNS).swapaxes(1, 2))


def test_passes_keep_it_and_the_verifier_takes_it() -> None:
    kernel = lowered().kernel
    verify(kernel)
    assert taken(kernel).effects.order is Order.RELEASE
    for run in PASSES:  # a second time: nothing of it may go
        run(kernel)
        verify(kernel)
        taken(kernel)


def test_the_verifier_refuses_a_wrong_one() -> None:
    kernel = lowered().kernel
    taken(kernel).tile.space = Space.REGISTER
    with pytest.raises(InternalError, match="TakeTile at .*the tile lies in shared memory"):
        verify(kernel)


def test_the_text_has_it_and_the_compiler_takes_it() -> None:
    made = lowered()
    assert "take_tile(word, tile, &empty" in made.cuda.text or "take_tile(word, tile, empty" in made.cuda.text
    assert made.module.resources.spills == 0
    assert "SYNCS" in disassemble(made.module.cubin)


def test_amd_refuses_it() -> None:
    specs = (tw.spec(tw.uint32, (96,)), tw.spec(tw.uint32, (96,)))
    with pytest.raises(tw.LanguageError, match="gfx90a"):
        _ = hand_over.lower(*specs, 3, True, arch="gfx90a", block=64).source


def test_the_race_checker_sees_its_read_and_its_arrival() -> None:
    out, x = arrays()
    overwrite[1, 64](out, x, True)
    assert np.array_equal(out[32:64], x[32:64])
    with pytest.raises(CheckError, match="race: load of tile"):
        overwrite[1, 64](out, x, False)


def test_the_profile_counts_it() -> None:
    out, x = arrays()
    with tw.simulate(profile=True) as run:
        hand_over[1, 64](out, x, 3, True)
    (launch,) = run.profile.launches
    lines = [line for line in launch.lines if line.instructions["take tile"]]
    assert [line.instructions["take tile"] for line in lines] == [3]
    # Rows become columns: the four lanes of a column are 8 words apart, so that no two lanes share a bank.
    assert lines[0].shared_wavefronts >= 3


def test_an_instruction_that_forgets_something_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Silent", (Instruction,), {"COUNTED": None, "cuda": lambda self, printer: None})()
    with pytest.raises(AssertionError, match="COUNTED"):
        type("Uncounted", (Instruction,), {"cuda": lambda s, p: None, "simulate": lambda s, c: None})

    @dataclass(eq=False)
    class Undeclared(Op):
        buffer: Buffer = attribute()

    with pytest.raises(AssertionError, match="how are the buffers"):
        _ = Undeclared(None).is_removable  # type: ignore[arg-type]
