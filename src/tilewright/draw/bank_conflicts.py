"""How shared memory serves one access of a warp: 32 banks of 4 bytes, and what makes it take longer.

The model: a word of 4 bytes lies in bank `address // 4 % 32`. Accesses of up to 4 bytes a lane are served for the
whole warp at once, those of 8 bytes for each half of it, those of 16 bytes for each quarter. In one such phase a bank
delivers one word at a time, to all lanes that want it; each further word in the same bank costs one more pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import LayoutError

BANKS = 32
BANK_BYTES = 4
WARP = 32
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
    _check(addresses, width)
    together = lanes_at_once(width)
    passes = phases = 0
    worst = (0, 0)
    colliding: set[int] = set()
    for first in range(0, len(addresses), together):
        words = {w for a in addresses[first : first + together] if a is not None for w in words_of(a, width)}
        by_bank: dict[int, list[int]] = {}
        for word in words:
            by_bank.setdefault(word % BANKS, []).append(word)
        most = max(by_bank, key=lambda bank: len(by_bank[bank]), default=0)
        count = len(by_bank.get(most, ()))
        passes, phases = passes + count, phases + (count > 0)
        worst = max(worst, (most, count), key=lambda pair: pair[1])
        colliding.update(w for held in by_bank.values() if len(held) > 1 for w in held)
    return Traffic(passes, phases, worst, frozenset(colliding))


def lanes_at_once(width: int) -> int:
    """Return how many lanes one phase serves: as many as 32 words of 4 bytes are enough for.

    >>> lanes_at_once(2), lanes_at_once(4), lanes_at_once(8), lanes_at_once(16)
    (32, 32, 16, 8)
    """
    return WARP * BANK_BYTES // max(width, BANK_BYTES)


def words_of(address: int, width: int) -> range:
    """Return the words of 4 bytes that an access touches.

    >>> list(words_of(8, 8))
    [2, 3]
    """
    return range(address // BANK_BYTES, (address + width - 1) // BANK_BYTES + 1)


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
