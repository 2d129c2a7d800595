"""Symmetric memory of an operation: for each rank a slot of what every other one sends, and flags that tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol  # Any: arrays of NumPy, CuPy or PyTorch

from tilewright.arguments import given, integer
from tilewright.distributed._exchange_kernels import await_ranks, tell
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.kernels.exchanged import MOST_PARTS, Exchange, travels_in_ring
from tilewright.runtime.plan import Signature

_ALIGNMENT = 256  # bytes, of a slot: kernels are the same for all slots
_MOST = 2**31 - 1  # calls


class _Symmetric(Protocol):
    """One array of each rank, in the order of ranks."""

    peers: Sequence[Any]


class Group(Protocol):
    """The ranks that compute together, as one of them sees them.

    `symmetric` returns zeroed memory on every rank that all ranks can access; when it returns, all have allocated
    theirs.
    """

    rank: int
    size: int

    def symmetric(self, shape: Any, dtype: Any) -> _Symmetric:
        """Return an array of each rank, of the same shape and type. All ranks call this."""


class ExchangeBuffer:
    """Symmetric memory for one operation at a time: `shape` is the shape of the data that one rank sends to another.

    Every rank has two slots for each rank, which calls use alternately: before a slot is written again, its writer has
    waited, in the call between, for the signal that its reader sends after the last read. Flags hold the number of a
    call, one for each part that is sent, so that they need no reset; after 2**31 - 1 calls a new buffer must be made.
    All ranks make their buffers, and call the operations on them, in the same order, and each rank makes its launches
    on one stream.

    Raises `ArgumentError` for invalid shapes and groups.
    """

    def __init__(self, group: Group, shape: tuple[int, ...], dtype: object) -> None:
        for name in ("rank", "size", "symmetric"):
            if not hasattr(group, name):
                raise ArgumentError(
                    f"ExchangeBuffer: group has no {name}, got {given(group)}",
                    help="pass what tw.simulate(ranks=...).run gives to its function, or an object with rank, size and "
                    "symmetric(shape, dtype)",
                )
        if not isinstance(shape, tuple):
            raise ArgumentError(f"ExchangeBuffer: shape is a tuple of integers, got {given(shape)}")
        self.shape: tuple[int, ...] = tuple([integer("ExchangeBuffer", "an extent", n, minimum=1) for n in shape])
        self.dtype: DType = as_dtype(dtype)
        self.rank: int = group.rank
        self.size: int = group.size
        self.calls: int = 0
        self.met: dict[str, Signature] = {}  # kinds of calls that can be repeated, by the operation; see products.py
        self.senders: dict[Any, Any] = {}  # copy engines that send for a kernel; see copies.py
        self._is_used = False
        self._count = prod(self.shape)
        rows, columns = self.shape if len(self.shape) == 2 else (0, 0)
        self.in_ring: bool = travels_in_ring(rows, columns, self.dtype.bytes, self.size)
        self._pitch = -(-self._count * self.dtype.bytes // _ALIGNMENT) * _ALIGNMENT // self.dtype.bytes
        self._slots = group.symmetric((2, self.size, self._pitch), self.dtype).peers
        self._flags = list(group.symmetric((self.size, MOST_PARTS), "int32").peers)
        self._counters, self._sent = (
            group.symmetric((max(self.size - 1, 1), MOST_PARTS), "int32").peers[self.rank] for _ in range(2)
        )

    def ring(self, step: int) -> int:
        """Return the rank that is a number of steps after this one in the ring."""
        return (self.rank + step) % self.size

    def slot(self, reader: int, sender: int) -> Any:
        """Return the slot of this call in the memory of one rank, for what another sends, as an array of one mode."""
        return self._slots[reader][self.calls % 2, sender][: self._count]

    def slots(self) -> Any:
        """Return all slots of this call in the rank's own memory, (rank, element)."""
        return self._slots[self.rank][self.calls % 2][:, : self._count]

    def tell(self, ranks: Sequence[int], slot: int | None = None) -> None:
        """Signal to ranks, when it completes, the work that this one has launched for them, in a slot of theirs."""
        if ranks:
            tell[1, 1]([self._flags[rank] for rank in ranks], self.rank if slot is None else slot, self.calls)

    def wait(self, first: int, count: int = 1, parts: int = 1) -> None:
        """Let later launches wait for the work that `count` ranks from `first` on have launched for this one.

        Another rank may tell of each of its `parts` when that is sent.
        """
        await_ranks[1, 1](self._flags[self.rank], first, count, parts, self.calls)

    def exchange(self, step: int, *, in_ring: bool = False) -> Exchange:
        """Return the memory and the number of this call, for a kernel that sends and waits by itself.

        It sends to the rank that is `step` after this one in the ring first, and then on in that direction. With
        `in_ring` all goes to the rank before this one, which passes it on: what the rank `step` after its owner knows
        lies in the slot of that owner.
        """
        steps = range(1, self.size)
        if in_ring:
            places = [(self.ring(-1), self.ring(n + step)) for n in steps]
        else:
            places = [(self.ring(step * n), self.rank) for n in steps]
        return Exchange(
            self.rank,
            self.size,
            self.calls,
            in_ring,
            self.slots(),
            [self.slot(*place) for place in places],
            [row for _, row in places],
            [self._flags[reader] for reader, _ in places],
            self._flags[self.rank],
            self._counters,
            self._sent,
        )

    def __enter__(self) -> None:
        if self._is_used:
            raise ArgumentError(
                "an ExchangeBuffer is used by two operations at once, or one that used it failed",
                help="make a buffer for each operation, and a new one on all ranks after an error",
            )
        if self.calls == _MOST:
            raise ArgumentError("an ExchangeBuffer was used 2**31 - 1 times", help="make a new one on all ranks")
        self._is_used = True
        self.calls += 1

    def __exit__(self, *error: object) -> None:
        # After an error ranks may have made different numbers of calls: the others would take old data for new.
        self._is_used = error[0] is not None
