"""The groups of products that warpgroups commit and wait for, counted."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.values import Array, Mask


class ProductGroups:
    """How many groups of products each warpgroup has committed, and how many of these are surely over.

    Both are arrays (blocks, warpgroups). The group that is open has the number `committed` + 1. `registers` is how many
    of them each warpgroup has chosen to have, 0 where it has not. `is_useful` says whether the last wait ended a group,
    and `is_useless` whether all groups that it was for had ended before.
    """

    def __init__(self, threads: int, size: int) -> None:
        self.threads = threads
        self.size = size
        self.count: int = threads // size  # warpgroups that are whole
        self.is_useful: bool = False
        self.is_useless: bool = False
        self.begin(0)

    def begin(self, blocks: int) -> None:
        """Begin with nothing committed, in so many blocks."""
        shape = blocks, self.count
        self.committed: Array = np.zeros(shape, np.int64)
        self.completed: Array = np.zeros(shape, np.int64)
        self.registers: Array = np.zeros(shape, np.int64)

    def active(self, mask: Mask) -> Array:
        """Return the warpgroups of which threads are in a mask: (blocks, warpgroups)."""
        shape = self.committed.shape
        if mask is None:
            return np.ones(shape, np.bool_)
        whole = np.broadcast_to(mask, (mask.shape[0], self.threads))[:, : self.count * self.size]
        found = whole.reshape(mask.shape[0], self.count, self.size).any(axis=2)
        return np.broadcast_to(found, shape)

    def commit(self, mask: Mask) -> None:
        """Close the open group of the warpgroups of a mask."""
        self.committed = self.committed + self.active(mask)

    def wait(self, pending: int, mask: Mask) -> None:
        """Let all but the newest groups be over, in the warpgroups of a mask."""
        active, over = self.active(mask), self.committed - pending
        self.is_useful = bool((active & (over > self.completed)).any())
        self.is_useless = not self.is_useful and bool((active & (over > 0)).any())
        self.completed = np.where(active, np.maximum(self.completed, over), self.completed)
