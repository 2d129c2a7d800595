"""`tw.pipeline`: tiles in several stages of shared memory, filled by asynchronous copies ahead of their use."""

from __future__ import annotations

from typing import Any, overload

from tilewright.arguments import shown
from tilewright.errors import LanguageError
from tilewright.instructions.barrier import sync_threads
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.trace.scalar import Scalar


class Pipeline:
    """A ring of `stages` tiles in shared memory: one is read while the others are filled.

    Tile k lives in stage k % stages. `ahead` = stages - 1 tiles are begun before the loop; round k begins tile
    k + ahead, in the stage that round k - 1 has read. Each tile is one group of asynchronous copies, closed by
    `commit`, and a group is committed even where no tile is left, so that counting groups is counting tiles::

        pipe = tw.pipeline(stages=3)
        for k in tw.static_range(pipe.ahead):
            tw.copy(copier, gmem[:, k], smem[:, k], pred=k < tiles)
            pipe.commit()
        for k in range(tiles):
            pipe.wait()  # tile k is there, and tile k - 1 has been read
            tw.copy(copier, gmem[:, k + pipe.ahead], smem[:, pipe.write_stage(k)], pred=k + pipe.ahead < tiles)
            pipe.commit()
            use(smem[:, pipe.read_stage(k)])

    With three stages, the groups that were committed before each `wait`, and the stages that a round reads and fills::

        round  committed  wait leaves    reads     fills
        0      0 1        1              stage 0   stage 2 with tile 2
        1      0 1 2      2              stage 1   stage 0 with tile 3
        2      0 1 2 3    3              stage 2   stage 1 with tile 4

    A loop that takes fragments of the next tile before it is done with this one waits later, after the commit: then
    `wait` makes tile k + 1 ready, for there is one more group.

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
        """How many tiles are begun before the first is used."""
        return self.stages - 1

    def commit(self) -> None:
        """Close the group of copies that fills one stage."""
        cp_async_commit()

    def wait(self) -> None:
        """Wait for the oldest pending tile, in all threads; they have then also read the tile before it.

        After `ahead` commits and one for each round, the newest stages - 2 groups may still be pending.
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
        """Return the stage of tile k, which round k reads: k % stages."""
        return k % self.stages

    @overload
    def write_stage(self, k: int) -> int: ...
    @overload
    def write_stage(self, k: Scalar) -> Scalar: ...
    def write_stage(self, k: Any) -> Any:
        """Return the stage of tile k + ahead, which round k fills: (k + ahead) % stages."""
        return (k + self.ahead) % self.stages

    def __repr__(self) -> str:
        return f"pipeline(stages={self.stages})"
