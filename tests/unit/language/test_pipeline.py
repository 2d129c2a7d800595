"""tw.pipeline: every round finds its tile, and no wait is longer or shorter than it has to be."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import compiles, lowered

import tilewright as tw
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncWait
from tilewright.language.pipeline import Pipeline

THREADS = 64  # two warps, so that barriers matter
COPY = tw.make_tiled_copy(tw.atoms.CpAsync(32), (THREADS, 1), (1, 1))


@tw.kernel
def reverse_tiles(out, x, pipe: tw.constexpr):
    """out[:, k] = x[::-1, k], each thread reading what another has copied."""
    i, tiles = tw.thread_idx.x, tw.size(x.shape[1])
    smem = tw.shared(x.dtype, (THREADS, 1, pipe.stages))
    copier = COPY.get_slice(i)
    source = copier.partition_S(tw.local_tile(x, (THREADS, 1), (0, None)))
    target = copier.partition_D(smem)
    for k in tw.static_range(pipe.ahead):
        tw.copy(COPY, source[:, :, :, k], target[:, :, :, k], pred=k < tiles)
        pipe.commit()
    for k in range(tiles):
        pipe.wait()
        coming = k + pipe.ahead
        tw.copy(COPY, source[:, :, :, coming], target[:, :, :, pipe.write_stage(k)], pred=coming < tiles)
        pipe.commit()
        out[i, k] = smem[THREADS - 1 - i, 0, pipe.read_stage(k)]


@tw.kernel
def reverse_tiles_early(out, x, pipe: tw.constexpr):
    """The same, with each tile read one round early, as fragments are: the wait follows the commit."""
    i, tiles = tw.thread_idx.x, tw.size(x.shape[1])
    smem = tw.shared(x.dtype, (THREADS, 1, pipe.stages))
    copier = COPY.get_slice(i)
    source = copier.partition_S(tw.local_tile(x, (THREADS, 1), (0, None)))
    target = copier.partition_D(smem)
    for k in tw.static_range(pipe.ahead):
        tw.copy(COPY, source[:, :, :, k], target[:, :, :, k], pred=k < tiles)
        pipe.commit()
    pipe.wait()
    value = smem[THREADS - 1 - i, 0, 0]
    for k in range(tiles):
        coming = k + pipe.ahead
        tw.copy(COPY, source[:, :, :, coming], target[:, :, :, pipe.write_stage(k)], pred=coming < tiles)
        pipe.commit()
        out[i, k] = value
        pipe.wait()
        value = smem[THREADS - 1 - i, 0, pipe.read_stage(k + 1)]
    pipe.drain()


KERNELS = pytest.mark.parametrize("kernel", [reverse_tiles, reverse_tiles_early], ids=["late", "early"])
STAGES = pytest.mark.parametrize("stages", [2, 3, 4, 5])


class Impatient(Pipeline):
    """Waits for one tile too few."""

    def wait(self) -> None:
        tw.cp_async_wait(self.stages - 1)
        tw.sync_threads()


class Lagging(Pipeline):
    """Reads one stage behind."""

    def read_stage(self, k):
        return (k + self.ahead) % self.stages


class Greedy(Pipeline):
    """Fills the stage that this round reads."""

    def write_stage(self, k):
        return k % self.stages


def is_right(kernel: tw.Kernel, pipe: Pipeline, tiles: int = 7) -> bool:
    """Say whether every tile arrives reversed, with nothing for the simulator to complain about."""
    x = np.asfortranarray(np.arange(THREADS * tiles, dtype=np.float32).reshape(THREADS, tiles) + 1)
    out = np.zeros_like(x)
    try:
        kernel[1, THREADS](out, x, pipe)
    except tw.CheckError:
        return False
    return np.array_equal(out, x[::-1])


@KERNELS
@STAGES
@pytest.mark.parametrize("tiles", [1, 2, 3, 7])
@pytest.mark.spread(4)
def test_each_round_finds_its_tile(kernel: tw.Kernel, stages: int, tiles: int) -> None:
    assert is_right(kernel, tw.pipeline(stages=stages), tiles)


@KERNELS
@STAGES
@pytest.mark.parametrize("wrong", [Impatient, Lagging, Greedy])
def test_one_off_is_found(kernel: tw.Kernel, stages: int, wrong: type[Pipeline]) -> None:
    assert not is_right(kernel, wrong(stages))


@STAGES
def test_wait_leaves_all_but_the_oldest_under_way(stages: int) -> None:
    matrix = tw.spec(tw.float32, (THREADS, 64), stride=(1, THREADS))
    ops = lowered(reverse_tiles, matrix, matrix, tw.pipeline(stages), block=THREADS)
    assert [op.pending for op in ops if isinstance(op, AsyncWait)] == [stages - 2]
    assert sum(isinstance(op, Barrier) for op in ops) == 1
    compiles(reverse_tiles, matrix, matrix, tw.pipeline(stages), block=THREADS)


@STAGES
def test_stages_go_round(stages: int) -> None:
    pipe = tw.pipeline(stages)
    assert pipe.ahead == stages - 1
    assert [pipe.read_stage(k) for k in range(2 * stages)] == [*range(stages), *range(stages)]
    for k in range(20):
        assert pipe.write_stage(k) == pipe.read_stage(k + pipe.ahead)
        assert pipe.write_stage(k + 1) == pipe.read_stage(k), "filled in the round after it was read"


@pytest.mark.parametrize("stages", [1, 0, 2.0, None])
def test_fewer_than_two_stages_are_refused(stages: object) -> None:
    with pytest.raises(tw.LanguageError, match="at least 2 stages"):
        tw.pipeline(stages)
