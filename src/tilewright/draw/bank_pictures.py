"""Pictures of shared memory: the bank of each element, and what an access of a warp does to the banks.

How shared memory serves one access of a warp: 32 banks of 4 bytes, and what makes it take longer. The model is that of
the measurements (`tilewright.transactions`), for a plain load or store. `Traffic` says which words conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arguments import instance, integer
from tilewright.draw.layout_pictures import LIMIT, Limit, frame_of
from tilewright.draw.model import ALARM, CALM, PAPER, Cell, Drawing, categorical, tint
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, is_static
from tilewright.tensors import Tensor
from tilewright.transactions import BANKS, WARP, WORD, Array, phases_of, wavefronts

_WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Traffic:
    """The cost of one access: its passes, the fewest possible for that many bytes, and the words that collide.

    `worst` is the bank with most words in one phase and their number; `colliding` are all words of banks that have
    more than one word in the same phase.
    """

    passes: int
    least: int
    worst: tuple[int, int]
    colliding: frozenset[int]

    @property
    def is_free(self) -> bool:
        """True when no bank must deliver two words in one phase."""
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
                f"lane {lane} accesses {width} bytes at byte {address}, which is not a multiple of {width}",
                help="vectors are aligned to their own width; use a narrower access or another layout",
            )


def banks(
    layout: Any,  # Any: a layout or tensor
    dtype: Any = None,  # Any: whatever names an element type
    access: Any = None,  # Any: see below
    width: int | None = None,
    limit: Limit = LIMIT,
) -> Drawing:
    """Draw the shared-memory bank of each element, and mark the bank conflicts of one access of a warp.

    `dtype` is the element type (a tensor brings its own; float32 by default). `access` gives for each lane the index or
    coordinate of the element where it starts (None: the lane does nothing), as a sequence or as a layout from lanes to
    indices; `width` is the number of bytes a lane moves, one element by default. Elements that are touched show their
    lane; a heavy outline marks those whose bank must deliver several words.

    >>> from tilewright.layout import Layout
    >>> tile = Layout((32, 32), (32, 1))
    >>> banks(tile, "float32", access=Layout(32, 32)).notes[0]  # along a row
    'access of 4 bytes by 32 lanes: 1 pass, no bank conflict'
    >>> banks(tile, "float32", access=Layout(32, 1)).notes[0]  # down a column
    'access of 4 bytes by 32 lanes: 32 passes where 1 would do: bank 0 holds 32 words at once'

    Raises `LayoutError` for a layout of coordinates, and when an access is not aligned to its width or has more than 32
    lanes.
    """
    if isinstance(layout, Tensor):
        layout, dtype = layout.layout, layout.dtype if dtype is None else dtype
    if not isinstance(layout, (Layout, ComposedLayout)):
        layout = Layout(layout)
    if not is_static(layout):
        raise LayoutError(f"the banks of {layout} cannot be drawn: a leaf is dynamic", help="draw a static layout")
    if layout.size and not isinstance(layout(0), int):
        raise LayoutError(
            f"the banks of {layout} cannot be drawn: it leads to coordinates, which are in no bank",
            help="draw a layout whose strides are numbers",
        )
    element = as_dtype("float32" if dtype is None else dtype).bytes
    title = f"banks of {layout}, elements of {element} byte{'s' if element > 1 else ''}"
    frame = frame_of(layout.shape, limit, title)
    if access is None:
        grids = frame.grids(lambda c: _bank_cell(layout(c) * element, element))
        note = f"the bank of each element, of {BANKS} banks of {WORD} bytes"
        return Drawing(grids, title, (*frame.notes, note), "the bank")
    width = element if width is None else width
    starts = [None if c is None else layout(c) * element for c in _lanes(access)]
    found = traffic(starts, width)
    touched = _touched(starts, width, element)
    phases = phase_of_lanes(starts, width)
    grids = frame.grids(lambda c: _access_cell(layout(c) * element, element, touched, found, phases))
    lanes = sum(start is not None for start in starts)
    notes = (
        f"access of {width} byte{'s' if width > 1 else ''} by {lanes} lanes: {found}",
        "L: the lane that touches the element, b: its bank" + ("" if found.is_free else "; outlined: a bank conflict"),
    )
    key = "orange for conflicts; a tint for the lanes of each phase, which are served together"
    return Drawing(grids, title, frame.notes + notes, key if len(set(phases.values())) > 1 else "")


def _lanes(access: Any) -> list[Any]:  # Any: a layout or tensor of indices, or a sequence of coordinates
    if isinstance(access, (Layout, ComposedLayout, Tensor)):
        count = access.size
        if not isinstance(count, int) or not is_static(access if not isinstance(access, Tensor) else access.layout):
            raise LayoutError(f"an access has to be static, not {access}")
        at = access if not isinstance(access, Tensor) else access.__getitem__
        return [at(lane) for lane in range(count)]
    if isinstance(access, Iterable):
        return list(access)
    raise LayoutError(f"an access is a sequence of indices, a layout or a tensor, not {access!r}")


def _touched(starts: list[int | None], width: int, element: int) -> dict[int, list[int]]:
    """Return the lanes that touch each element, by the element's byte address."""
    found: dict[int, list[int]] = {}
    for lane, start in enumerate(starts):
        if start is not None:
            for address in range(start // element * element, start + width, element):
                found.setdefault(address, []).append(lane)
    return found


def _bank_name(address: int, element: int) -> str:
    """Return the bank of an element, or the first and last where it is wider than a word."""
    words = words_of(address, element)
    first, last = words[0] % BANKS, words[-1] % BANKS
    return str(first) if first == last else f"{first}-{last}"


def _bank_cell(address: int, element: int) -> Cell:
    return Cell((_bank_name(address, element),), categorical(address // WORD % BANKS))


def _access_cell(
    address: int, element: int, touched: dict[int, list[int]], found: Traffic, phases: dict[int, int]
) -> Cell:
    bank = f"b{_bank_name(address, element)}"
    lanes = touched.get(address)
    if lanes is None:
        return Cell((bank,), PAPER, faded=True)
    others = f"+{len(lanes) - 1}" if len(lanes) > 1 else ""
    conflict = any(word in found.colliding for word in words_of(address, element))
    return Cell((f"L{lanes[0]}{others}", bank), tint(ALARM if conflict else CALM, phases[lanes[0]]), mark=conflict)
