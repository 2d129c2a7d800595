"""What the threads of a warp do together: shuffles, votes and elections. All threads of the warp must take part.

A shuffle reads lanes of its group, all of which must exist; a vote and an election ask those that do.
"""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import bool_, int32, uint32, uint64
from tilewright.errors import LanguageError
from tilewright.ir.ops import Elect, Shuffle, Vote
from tilewright.lang.control import truth
from tilewright.lang.scalar import Scalar, as_scalar
from tilewright.lang.targets import demand_whole_warps
from tilewright.lang.tracer import current


def _shuffle(kind: str, value: Any, lane: Any, width: int | None) -> Scalar:
    tracer = current("a shuffle")
    lanes = tracer.arch.warp_size
    width = lanes if width is None else width
    if width not in [1 << n for n in range(lanes.bit_length())]:
        raise LanguageError(f"the width of a shuffle is a power of two up to {lanes}, got {width}")
    demand_whole_warps(tracer, "a shuffle", width)
    source = as_scalar(value)
    result = tracer.emit(Shuffle(kind, source.value, as_scalar(lane, int32).value, width), source.dtype)
    return Scalar(result[0])


def shuffle(value: Any, lane: Any, width: int | None = None) -> Scalar:
    """Return the value that lane number `lane` of the group of `width` lanes (the warp) has: shfl.sync.idx."""
    return _shuffle("idx", value, lane, width)


def shuffle_up(value: Any, delta: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane `delta` below; the lowest lanes of a group keep their own (shfl.sync.up)."""
    return _shuffle("up", value, delta, width)


def shuffle_down(value: Any, delta: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane `delta` above; the highest lanes of a group keep their own (shfl.sync.down)."""
    return _shuffle("down", value, delta, width)


def shuffle_xor(value: Any, mask: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane whose number differs by the bits of `mask` (shfl.sync.bfly)."""
    return _shuffle("xor", value, mask, width)


def _vote(kind: str, predicate: Any) -> Scalar:
    holds = as_scalar(truth(predicate), bool_)
    tracer = current("a vote")
    bits = uint64 if tracer.arch.warp_size == 64 else uint32
    return Scalar(tracer.emit(Vote(kind, holds.value), bits if kind == "ballot" else bool_)[0])


def vote_any(predicate: Any) -> Scalar:
    """Return whether the predicate holds in any lane of the warp."""
    return _vote("any", predicate)


def vote_all(predicate: Any) -> Scalar:
    """Return whether the predicate holds in all lanes of the warp."""
    return _vote("all", predicate)


def ballot(predicate: Any) -> Scalar:
    """Return the lanes in which the predicate holds, as the bits of a uint32, or of a uint64 for the 64 of AMD's."""
    return _vote("ballot", predicate)


def elect_one() -> Scalar:
    """Return true in one thread of the warp, the same each time, and false in the others (PTX elect.sync).

    Which one is the hardware's choice; before sm_90, and on the simulator where all take part, it is lane 0. Like a
    vote it waits for all threads of the warp.
    """
    return Scalar(current("tw.elect_one").emit(Elect(), bool_)[0])
