"""Orders in which blocks that stay compute the tiles of a matrix: `tw.schedulers`.

A scheduler is an ordinary object that a kernel takes as a compile-time argument, or that its plan holds. Called in the
kernel it gives the tiles of this block, and a for statement over them is a loop of the device::

    tiles = plan.scheduler(m_tiles, n_tiles)
    for row, column in tiles:
        ...

On the host `scheduler.order(m_tiles, n_tiles, blocks)` lists what each block does, by the same code.
"""

from tilewright.frames import hiding_all
from tilewright.schedulers.counter import Counter
from tilewright.schedulers.groups import Groups, GroupTiles
from tilewright.schedulers.stream_k import Part, StreamK, StreamKTiles
from tilewright.schedulers.tiles import Grouped, Hilbert, Linear, Scheduler, Tiles

__all__ = [
    "Counter",
    "GroupTiles",
    "Grouped",
    "Groups",
    "Hilbert",
    "Linear",
    "Part",
    "Scheduler",
    "StreamK",
    "StreamKTiles",
    "Tiles",
]

hiding_all(globals(), __all__)
