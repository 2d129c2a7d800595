"""How shared memory serves one access of a warp: 32 banks of 4 bytes, and what makes it take longer.

The model is that of the measurements (`tilewright.transactions`), for a plain load or store. Here it is told which
words stand in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arguments import instance, integer
from tilewright.errors import LayoutError
from tilewright.transactions import BANKS, WARP, WORD, Array, phases_of, wavefronts

_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Traffic:
    """What one access costs: its passes, the fewest that so many bytes can take, and the words that collide.

    `worst` is the bank with most words in one phase and their number; `colliding` are all words of banks that have
    more than one word in the same phase.
    """

    passes: int
    least: int
    worst: tuple[int, int]
    colliding: frozenset[int]

    @property
    def is_free(self) -> bool:
        """True when no bank has to deliver two words in one phase."""
        return not self.colliding

    def __str__(self) -> str:
        if self.is_free:
            return f"{self.passes} passes, no bank conflict" if self.passes != 1 else "1 pass, no bank conflict"
        bank, words = self.worst
        return f"{self.passes} passes where {self.least} would do: bank {bank} holds {words} words at once"


def traffic(addresses: Sequence[int | None], width: int) -> Traffic:
    """Count the passes of an access in which lane i touches `width` bytes from `addresses[i]`; None does nothing.

    >>> traffic([4 * lane for lane in range(32)], 4).passes
    1
    >>> traffic([128 * lane for lane in range(32)], 4).passes
    32

    Raises `LayoutError` for a width or alignment that no instruction has, and for more lanes than a warp's.
    """
    instance("draw.traffic", "addresses", addresses, (list, tuple), "a list with an address or None for each lane")
    for address in addresses:
        if address is not None:
            integer("draw.traffic", "an address", address)
    integer("draw.traffic", "width", width)
    _check(addresses, width)
    starts, active = _whole_warp(addresses)
    took, least = wavefronts(starts[None, :], active[None, :], width)
    worst = (0, 0)
    colliding: set[int] = set()
    for phase in phases_of(starts, active, width, "load"):
        by_bank: dict[int, list[int]] = {}
        for word in sorted({word for lane in phase for word in words_of(int(starts[lane]), width)}):
            by_bank.setdefault(word % BANKS, []).append(word)
        most = max(by_bank, key=lambda bank: len(by_bank[bank]))
        worst = max(worst, (most, len(by_bank[most])), key=lambda pair: pair[1])
        colliding.update(w for held in by_bank.values() if len(held) > 1 for w in held)
    return Traffic(int(took[0]), int(least[0]), worst, frozenset(colliding))


def phase_of_lanes(addresses: Sequence[int | None], width: int) -> dict[int, int]:
    """Return for each lane that does something the phase that serves it, counted from 0.

    >>> phases = phase_of_lanes([16 * lane for lane in range(32)], 16)
    >>> phases[0], phases[7], phases[8], phases[31]
    (0, 0, 1, 3)
    """
    phases = phases_of(*_whole_warp(addresses), width, "load")
    return {lane: count for count, phase in enumerate(phases) for lane in phase}


def words_of(address: int, width: int) -> range:
    """Return the words of 4 bytes that an access touches.

    >>> list(words_of(8, 8))
    [2, 3]
    """
    return range(address // WORD, (address + width - 1) // WORD + 1)


def _whole_warp(addresses: Sequence[int | None]) -> tuple[Array, Array]:
    """Return the addresses of all lanes, 0 for idle ones, and which lanes do something."""
    starts = np.zeros(WARP, np.int64)
    active = np.zeros(WARP, np.bool_)
    for lane, address in enumerate(addresses):
        if address is not None:
            starts[lane], active[lane] = address, True
    return starts, active


def _check(addresses: Sequence[int | None], width: int) -> None:
    if width not in _WIDTHS:
        raise LayoutError(f"an access is 1, 2, 4, 8 or 16 bytes wide, not {width}")
    if len(addresses) > WARP:
        raise LayoutError(f"one access is of one warp, {WARP} lanes, not {len(addresses)}")
    for lane, address in enumerate(addresses):
        if address is not None and (address < 0 or address % width):
            raise LayoutError(
                f"lane {lane} accesses {width} bytes at byte {address}, which is no multiple of {width}",
                help="vectors are aligned to their own width; use a narrower access or another layout",
            )
