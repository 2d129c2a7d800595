"""`tw.pipeline`: tiles in several stages of shared memory, filled by asynchronous copies ahead of their use.

pipeline(stages)                             all threads fill and use the stages, in rounds: cp.async
pipeline(stages, consumers=w, bytes=n)       one thread fills them while w warps use them: mbarriers, bulk copies
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, ClassVar, overload

from tilewright.arguments import shown
from tilewright.dtypes import int32
from tilewright.errors import LanguageError
from tilewright.instructions.barrier import sync_threads, sync_warp
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.instructions.mbarrier import MBarrier
from tilewright.instructions.vote import elect_one
from tilewright.trace.control import branch, loop
from tilewright.trace.scalar import Scalar, as_scalar, select
from tilewright.trace.threads import lane_id
from tilewright.trace.tracer import current


def pipeline(
    stages: int, *, consumers: int | None = None, bytes: int | None = None, blocks: int = 1
) -> Any:  # Any: one of two classes
    """Return a ring of stages in shared memory: `Pipeline(stages)`, or `Ring(stages, consumers, bytes, blocks)`.

    Without `consumers` all threads of the block fill and use the stages (see `Pipeline`). With it, one thread fills
    them by bulk copies, and `consumers` warps use them (see `Ring`). `blocks` is the number of blocks of a cluster that
    fill each other's stages.
    """
    if consumers is None and bytes is None and blocks == 1:
        return Pipeline(stages)
    return Ring(stages, consumers, bytes, blocks)


class Pipeline:
    """A ring of `stages` tiles in shared memory: one is read while the others are filled.

    Tile k is in stage k % stages. The copies of `ahead` = stages - 1 tiles start before the loop; iteration k starts
    tile k + ahead, in the stage that iteration k - 1 has read. Each tile is one group of asynchronous copies, closed by
    `commit`; a group is committed even if no tile is left, so that the number of groups is the number of tiles::

        pipe = tw.pipeline(stages=3)
        for k in tw.static_range(pipe.ahead):
            tw.copy(copier, gmem[:, k], smem[:, k], pred=k < tiles)
            pipe.commit()
        for k in range(tiles):
            pipe.wait()  # tile k is there, and tile k - 1 has been read
            tw.copy(copier, gmem[:, k + pipe.ahead], smem[:, pipe.write_stage(k)], pred=k + pipe.ahead < tiles)
            pipe.commit()
            use(smem[:, pipe.read_stage(k)])

    With three stages, the groups committed before each `wait`, and the stages that iteration k reads and fills::

        round  committed  wait leaves    reads     fills
        0      0 1        1              stage 0   stage 2 with tile 2
        1      0 1 2      2              stage 1   stage 0 with tile 3
        2      0 1 2 3    3              stage 2   stage 1 with tile 4

    A loop that loads fragments of the next tile before it has finished this one calls `wait` after the commit: there is
    one more group then, and `wait` makes tile k + 1 ready.

    Raises `LanguageError` for fewer than two stages. Source: CUTLASS, the multistage mainloop of SM80.
    """

    def __init__(self, stages: int) -> None:
        number: object = stages  # a device value can come, too
        if not isinstance(number, int) or number < 2:
            raise LanguageError(
                f"tw.pipeline takes at least 2 stages, known while tracing, not {shown(number)}",
                help="with one stage there is nothing to overlap: tw.copy, tw.cp_async_wait(), tw.sync_threads()",
            )
        self.stages = stages

    @property
    def ahead(self) -> int:
        """The number of tiles whose copies start before the first is used."""
        return self.stages - 1

    def commit(self) -> None:
        """Close the group of copies that fills one stage."""
        cp_async_commit()

    def wait(self) -> None:
        """Wait for the oldest pending tile, in all threads; they have then also read the tile before it.

        After `ahead` commits and one for each iteration, the newest stages - 2 groups may still be pending.
        """
        cp_async_wait(self.stages - 2)
        sync_threads()

    def drain(self) -> None:
        """Wait for all copies, in all threads: the stages may then be used for something else."""
        cp_async_wait(0)
        sync_threads()

    @overload
    def read_stage(self, k: int) -> int: ...
    @overload
    def read_stage(self, k: Scalar) -> Scalar: ...
    def read_stage(self, k: Any) -> Any:
        """Return the stage of tile k, which iteration k reads: k % stages."""
        return k % self.stages

    @overload
    def write_stage(self, k: int) -> int: ...
    @overload
    def write_stage(self, k: Scalar) -> Scalar: ...
    def write_stage(self, k: Any) -> Any:
        """Return the stage of tile k + ahead, which iteration k fills: (k + ahead) % stages."""
        return (k + self.ahead) % self.stages

    def __repr__(self) -> str:
        return f"pipeline(stages={self.stages})"


class Ring:
    """A ring of `stages` tiles in shared memory between one thread that fills them and `consumers` warps.

    Each stage has two mbarriers. `full` counts the `bytes` that bulk copies bring to the stage; a warp waits for it
    before it reads. `empty` counts the warps that have read; the producer waits for it before it fills the stage again.
    A position in the ring is a state, which device loops carry::

        ring = tw.pipeline(stages=4, consumers=2, bytes=tile_bytes)
        tw.sync_threads()                                 # the mbarriers are initialised
        if tw.warp_id() == 2:
            if tw.elect_one():
                state = ring.producer()
                for k in range(tiles):
                    with state.fill() as (stage, full):   # waits until the stage is empty, announces the bytes
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gmem[:, k], smem[:, stage], barrier=full)
        else:
            state = ring.consumer()
            for k in range(tiles):
                with state.read() as stage:               # waits until the stage is full
                    use(smem[:, stage])                   # at the end, the warp releases the stage

    The parities that both sides wait for, in a ring of three stages::

        tile           0  1  2  3  4  5
        stage          0  1  2  0  1  2
        empty, parity  1  1  1  0  0  0      1 passes at once on a new mbarrier
        full, parity   0  0  0  1  1  1

    In a cluster whose `blocks` multicast to each other, each has a ring of its own, and a producer fills the same stage
    in all of them. `bytes` are those that a stage of one block receives, `consumers` the warps of one block. A warp
    then releases a stage to all blocks; a consumer that is one tile behind, for matrix instructions, uses relaxed
    arrivals. Call `tw.cluster_sync()` instead of `tw.sync_threads()`. Before a block exits, all that others send to it
    must have come: let its producer `drain` the ring.

    Raises `LanguageError` for numbers that are not known while tracing, or below 1, and for blocks that are not all of
    the cluster. Source: CUTLASS, PipelineTmaAsync and PipelineState.
    """

    def __init__(self, stages: int, consumers: int | None, bytes: int | None, blocks: int = 1) -> None:
        for what, given in (("stages", stages), ("consumers", consumers), ("bytes", bytes), ("blocks", blocks)):
            number: object = given  # a device value can come, too
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise LanguageError(
                    f"tw.pipeline: {what} is at least 1 and known while tracing, not {shown(number)}",
                    help="a ring of roles takes the number of stages, the number of warps that read a stage, and the "
                    "bytes that the copies of a stage bring: tw.pipeline(4, consumers=2, bytes=16384)",
                )
        assert consumers is not None and bytes is not None
        cluster = math.prod(current("tw.pipeline").cluster_shape)
        if blocks not in (1, cluster):
            raise LanguageError(
                f"tw.pipeline: all {cluster} blocks of the cluster send to each other, or none, and blocks is {blocks}",
                help=f"launch with clusters, @tw.kernel(cluster={blocks}), or leave blocks= out",
            )
        self.stages = stages
        self.consumers = consumers
        self.bytes = bytes
        self.blocks = blocks
        self.full: MBarrier = MBarrier(1, stages)
        self.empty: MBarrier = MBarrier(consumers * blocks, stages)
        self.full.buffer.name, self.empty.buffer.name = "full", "empty"

    def producer(self) -> ProducerState:
        """Return the state of the thread that fills the stages, before the first tile."""
        return ProducerState(self)

    def consumer(self, behind: int = 0, *, relaxed: bool | None = None) -> ConsumerState:
        """Return the state of a warp that reads the stages, before the first tile.

        With `behind` = 1 a warp releases the stage before the one that it has read, for matrix instructions that are
        still running when the next tile starts. It releases its last stage by `state.release()`.

        `relaxed` states that only wgmma reads the stages, and was waited for: arrivals at the mbarriers of other blocks
        then need no fence, which takes a microsecond (with tiles of 128 x 128 in a cluster of two, half of the time).
        By default those of a consumer that is one tile behind are relaxed.
        """
        if behind not in (0, 1):
            raise LanguageError(f"a consumer gives stages back at once (0) or one tile behind (1), not {shown(behind)}")
        return ConsumerState(self, behind, behind == 1 if relaxed is None else relaxed)

    def __repr__(self) -> str:
        return f"pipeline(stages={self.stages}, consumers={self.consumers}, bytes={self.bytes})"


class _State:
    """Which stage is next, and the parity of the phase in which it is filled."""

    __tilewright_state__: ClassVar[bool] = True

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.stage: Any = 0  # Any: an integer of host or device
        self.phase: Any = 0

    @property
    def leaves(self) -> dict[str, tuple[int, int]]:
        """The numbers that loops carry, one with the other, and the least and the greatest that each is."""
        stage = {} if self.ring.stages == 1 else {"stage": (0, self.ring.stages - 1)}
        return {**stage, "phase": (0, 1)}

    def advance(self, count: Any = 1) -> None:  # Any: an integer of host or device
        """Advance by `count` stages: to the next one, or past tiles that another thread fills or reads.

        Two consumers that read tiles alternately skip each other's: `state.advance(k_tiles)`. A wait distinguishes the
        phases of a stage by their parity, so it must not come two phases early: let the other consumer arrive at an
        mbarrier when it has read its tiles, and wait for that before the next read. Source: CUTLASS,
        PipelineState::advance.
        """
        if isinstance(count, int) and (isinstance(count, bool) or count < 0):
            raise LanguageError(f"a state goes on by 0 stages or more, not {shown(count)}")
        if not (isinstance(count, int) and count == 1):
            following = self.stage + count
            self.stage, self.phase = following % self.ring.stages, self.phase ^ following // self.ring.stages % 2
            return
        following = self.stage + 1
        is_over = following == self.ring.stages
        if isinstance(is_over, bool):
            self.stage, self.phase = (0, self.phase ^ 1) if is_over else (following, self.phase)
        else:
            self.stage, self.phase = select(is_over, 0, following), select(is_over, self.phase ^ 1, self.phase)


class ProducerState(_State):
    """The position in a ring of the thread that fills its stages."""

    def fill(self, bytes: Any = None) -> ProducerState | Filling:  # Any: an integer of host or device
        """Wait for an empty stage and announce its bytes: `with state.fill() as (stage, full):` copies to it.

        They are the ring's, or fewer `bytes` where not all of the stage is filled.
        """
        if bytes is None:
            return self
        most = self.ring.bytes
        is_known = not isinstance(bytes, bool) and isinstance(bytes, Integral) and 0 <= int(bytes) <= most
        if not (is_known or (isinstance(bytes, Scalar) and bytes.dtype.is_integer)):
            raise LanguageError(f"state.fill announces 0 to {most} bytes, not {shown(bytes)}")
        return Filling(self, bytes)

    def begin(self, bytes: Any) -> tuple[Any, MBarrier]:  # Any: integers of host or device
        """Wait until the next stage is empty, and announce what comes to it."""
        self.ring.empty[self.stage].wait(self.phase ^ 1)
        full = self.ring.full[self.stage]
        full.arrive_expect_tx(bytes)
        return self.stage, full

    def __enter__(self) -> tuple[Any, MBarrier]:
        return self.begin(self.ring.bytes)

    def __exit__(self, *error: object) -> None:
        self.advance()

    def drain(self) -> None:
        """Wait until consumers have released all stages, those in other blocks of the cluster too.

        Then nothing is under way to this block's mbarriers any more, nor from it to stages of other blocks, and it may
        exit. A `tw.cluster_sync()` there instead orders all memory for the whole GPU: about half a microsecond.
        Consumers must have released what they read last. Source: CUTLASS, PipelineTmaAsync::producer_tail.
        """

        def wait(stage: Scalar) -> None:
            self.ring.empty[stage].wait(select(stage < self.stage, self.phase, self.phase ^ 1))

        loop(0, self.ring.stages, 1, wait, unroll=1, name="stage")


class Filling:
    """The next stage of a producer, to which fewer bytes come than the ring's."""

    def __init__(self, state: ProducerState, bytes: Any) -> None:
        self.state = state
        self.bytes = bytes

    def __enter__(self) -> tuple[Any, MBarrier]:
        return self.state.begin(self.bytes)

    def __exit__(self, *error: object) -> None:
        self.state.advance()

    def __repr__(self) -> str:
        return f"state.fill({self.bytes})"


class ConsumerState(_State):
    """The position in a ring of a warp that reads its stages.

    `with state.read() as stage:` reads a stage and releases one. Where the uses of several stages overlap without being
    nested, `stage = state.acquire()` and `state.give_back(stage)` do the same in two calls.
    """

    def __init__(self, ring: Ring, behind: int, relaxed: bool) -> None:
        super().__init__(ring)
        self.behind = behind
        self.relaxed = relaxed
        self.last: Any = -1  # the stage that was read last and is not given back, behind by one tile

    @property
    def leaves(self) -> dict[str, tuple[int, int]]:
        """The numbers that loops carry, and the least and the greatest that each is."""
        last = {"last": (-1, self.ring.stages - 1)} if self.behind else {}
        return {**super().leaves, **last}

    def acquire(self) -> Any:
        """Wait for a full stage, return it, and advance to the next; `give_back(stage)` releases it."""
        stage = self.stage
        self.ring.full[stage].wait(self.phase)
        self.advance()
        return stage

    def give_back(self, stage: Any) -> None:
        """Release a stage to the producer, by one lane, when all lanes of the warp have read it.

        In a ring that blocks of a cluster fill together, one lane arrives for each block.
        """
        sync_warp()
        empty, blocks = self.ring.empty[stage], self.ring.blocks
        if blocks == 1:
            branch(elect_one(), empty.arrive)
        else:
            lane = as_scalar(lane_id(), int32)
            branch(lane < blocks, lambda: empty.at_rank(lane).arrive(relaxed=self.relaxed))

    def read(self) -> ConsumerState:
        """Wait for a full stage: `with state.read() as stage:` uses it, and releases a stage at its end."""
        return self

    def __enter__(self) -> Any:
        self.ring.full[self.stage].wait(self.phase)
        return self.stage

    def __exit__(self, *error: object) -> None:
        if self.behind == 0:
            self.give_back(self.stage)
        else:
            last = self.last
            branch(last >= 0, lambda: self.give_back(last))
            self.last = self.stage
        self.advance()

    def release(self) -> None:
        """Release the stage that was read last, by a consumer that is one tile behind."""
        last = self.last
        branch(last >= 0, lambda: self.give_back(last))
        self.last = -1
