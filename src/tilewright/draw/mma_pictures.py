"""Pictures of tiled matrix products: A to the left of C, B above it, each element with the thread that holds it.

A product of several warps is drawn twice, each time small enough to read: which warps hold each block of A, B and C,
and the elements of the first warp's first block with their lanes and values. Its other blocks repeat that. An operand
that the instruction reads from shared memory, whole for each thread, has no elements of a lane to be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tilewright.atoms.mma import OperandPlace
from tilewright.draw.layout_pictures import LIMIT, Limit, axis_of, frame_of, single_grid
from tilewright.draw.model import HUES, Axis, Cell, Drawing, Grid, tint
from tilewright.draw.thread_pictures import KEY, holder_notes, thread_cells
from tilewright.layout import Layout
from tilewright.layout.layouts import static_offsets
from tilewright.layout.tuples import show
from tilewright.tiled import TiledMMA

CellAt = Callable[[Any], Cell]
_TINTS = 4


def mma_drawing(mma: TiledMMA, limit: Limit = LIMIT, whole: bool = False) -> Drawing:
    """Draw a tiled matrix product as it is written on paper: A to the left of C, B above it.

    B is stored (N,K) and drawn transposed, K down and N across, so that an element of C is where the row of A and
    the column of B that make it meet. Heavier lines are the ends of atoms, and of the atoms side by side.

    A product of several warps is drawn as a summary by warp, and the first warp's block in full; with `whole`, all
    elements are drawn, a hue for each warp and a tint for each quarter of its lanes.
    """
    warp = 64 if mma.atom.name.startswith("GFX") else 32
    title = f"{mma.atom}: {mma.size} threads, tile {show(mma.shape_mnk)}"
    operands = _operands(mma)
    if max(mma.thread_numbers) >= warp and not whole:
        drawing = _by_warps(mma, operands, warp, limit)
        if drawing is not None:
            return drawing.titled(title)
    several = max(mma.thread_numbers) >= warp
    cells = {name: each.cell_by_warp(warp) if several else each.cell for name, each in operands.items()}
    m, n, k = mma.shape_mnk
    axes = _mma_axis(mma, 0, limit[0]), _mma_axis(mma, 1, limit[1]), _mma_axis(mma, 2, min(limit))
    titles = {"A": f"A (M,K) = ({m},{k})", "B": f"B (N,K) = ({n},{k})", "C": f"C (M,N) = ({m},{n})"}
    titles["D"] = f"D (M,N) = ({m},{n})"
    shared = max(operands[name].shared for name in "ABC")
    notes = (*holder_notes(shared), *_notes(mma))
    key = f"the warp mod {len(HUES)}, in {_TINTS} tints by lane" if several else KEY
    return Drawing(_product(cells, titles, axes), title, notes, key)


@dataclass(frozen=True)
class _Operand:
    """One of A, B, C and D: the cell of an element, how many threads hold one, and the threads themselves."""

    cell: CellAt
    shared: int
    holders: Callable[[Any], tuple[int, ...]]

    def cell_by_warp(self, warp: int) -> CellAt:
        """Return the cell of an element in the hue of its warp and a tint of its lane."""

        def coloured(coord: Any) -> Cell:
            cell, threads = self.cell(coord), self.holders(coord)
            if not threads:
                return cell
            number, lane = divmod(threads[0], warp)
            return replace(cell, fill=tint(HUES[number % len(HUES)], lane * _TINTS // warp))

        return coloured


def _operands(mma: TiledMMA, warp: int | None = None) -> dict[str, _Operand]:
    """Return what the threads hold of each operand; with `warp`, the threads of the first warp of that size."""
    m, n, k = mma.shape_mnk
    threads = [t for t in mma.thread_numbers if warp is None or t < warp]
    found = {
        "A": _operand(threads, mma.layout_a_tv, (m, k), 0),
        "B": _operand(threads, mma.layout_b_tv, (n, k), 0),
        "C": _operand(threads, mma.layout_c_tv, (m, n), mma.offset_c),
    }
    if mma.atom.layout_d is not None:
        found["D"] = _operand(threads, mma.layout_d_tv, (m, n), mma.offset_c)
    return found


def _operand(threads: Sequence[int], layout_tv: Layout, shape: tuple[int, int], first: int) -> _Operand:
    cell, shared = thread_cells(layout_tv, shape, first, threads)
    held: dict[int, list[int]] = {}
    values = static_offsets(layout_tv[1])
    for thread in threads:
        begin = first + layout_tv[0](thread)
        for offset in values:
            places = held.setdefault(begin + offset, [])
            if not places or places[-1] != thread:
                places.append(thread)
    return _Operand(cell, shared, lambda coord: tuple(held.get(coord[0] + coord[1] * shape[0], ())))


def _product(cells: dict[str, CellAt], titles: dict[str, str], axes: tuple[Axis, Axis, Axis]) -> tuple[Any, ...]:
    """Return the grids of a product, B above C and A to its left, where these are drawn; D right of C if it differs."""
    m_axis, n_axis, k_axis = axes
    frame = frame_of((m_axis.extent, n_axis.extent))
    b = cells.get("B")
    grid_a = single_grid(frame, cells["A"], titles["A"], m_axis, k_axis) if "A" in cells else None
    grid_b = single_grid(frame, lambda p: b((p[1], p[0])), titles["B"], k_axis, n_axis) if b is not None else None
    above: tuple[Grid | None, ...] = (None, grid_b)
    below: tuple[Grid | None, ...] = (grid_a, single_grid(frame, cells["C"], titles["C"], m_axis, n_axis))
    if "D" in cells:
        above, below = (*above, None), (*below, single_grid(frame, cells["D"], titles["D"], m_axis, n_axis))
    return (above, below) if b is not None else (below,)


# --- several warps -------------------------------------------------------------------------------------------------


def _by_warps(mma: TiledMMA, operands: dict[str, _Operand], warp: int, limit: Limit) -> Drawing | None:
    """Return the summary by warp and the first warp's block; None where no block holds all lanes of that warp."""
    m, n, k = mma.shape_mnk
    modes = {"A": (0, 2), "B": (1, 2), "C": (0, 1), "D": (0, 1)}
    extents = (m, n, k)
    warps = {
        name: [
            [tuple(dict.fromkeys(t // warp for t in each.holders((i, j)))) for j in range(extents[modes[name][1]])]
            for i in range(extents[modes[name][0]])
        ]
        for name, each in operands.items()
    }
    blocks = list(extents)
    for name, rows in warps.items():
        columns = [list(column) for column in zip(*rows, strict=True)]
        for side, lines in ((modes[name][0], rows), (modes[name][1], columns)):
            for i in range(1, len(lines)):
                if lines[i] != lines[i - 1]:
                    blocks[side] = gcd(blocks[side], i)
    full = [_extent_in_full(mma, mode, blocks[mode], warp) for mode in range(3)]
    c = operands["C"]
    lanes = {t for i in range(full[0]) for j in range(full[1]) for t in c.holders((i, j)) if t < warp}
    if not lanes.issuperset(t for t in mma.thread_numbers if t < warp):
        return None
    named = [_block_axis("MNK"[mode], extents[mode], blocks[mode], limit[mode % 2]) for mode in range(3)]
    summary = _product(
        {name: _warp_cells(found, blocks, modes[name]) for name, found in warps.items()},
        {name: f"{name}, by warp" for name in operands},
        (named[0], named[1], named[2]),
    )
    axes = [axis_of(full[mode], "MNK"[mode], limit[mode % 2]) for mode in range(3)]
    places = {"A": mma.atom.a_place, "B": mma.atom.b_place}
    from_shared = [name for name, place in places.items() if place is OperandPlace.DESCRIPTOR]
    own = {name: each for name, each in _operands(mma, warp).items() if name not in from_shared}
    detail = _product(
        {name: each.cell for name, each in own.items()},
        {name: f"{name}, first warp" for name in own},
        (axes[0], axes[1], axes[2]),
    )
    shared = max(each.shared for each in own.values())
    count = len({t // warp for t in mma.thread_numbers})
    notes = (
        f"above: which of the {count} warps (W) hold each block of A, B and C; +n: and n more warps",
        f"below: what the first warp holds in the first rows and columns; {holder_notes(shared)[0]}",
        *[f"{' and '.join(from_shared)}: read from shared memory, through descriptors"] * bool(from_shared),
        *_notes(mma),
    )
    return Drawing((*summary, *detail), "", notes, f"above the warp mod {len(HUES)}, below {KEY}")


def _extent_in_full(mma: TiledMMA, mode: int, block: int, warp: int) -> int:
    """Return how far the block in full goes: one atom of one warp, or the block that a warp holds of something else."""
    atom = mma.atom.shape_mnk[mode]
    if mma.atom.threads == warp:
        return atom
    return min(block, atom) if mma.atom.threads > warp else block


def _warp_cells(warps: list[list[tuple[int, ...]]], blocks: list[int], modes: tuple[int, int]) -> CellAt:
    def cell(coord: Any) -> Cell:
        held = warps[coord[0] * blocks[modes[0]]][coord[1] * blocks[modes[1]]]
        if not held:
            return Cell(("-",), faded=True)
        others = f"+{len(held) - 1}" if len(held) > 1 else ""
        return Cell((f"W{held[0]}{others}",), HUES[held[0] % len(HUES)])

    return cell


def _block_axis(name: str, extent: int, block: int, most: int) -> Axis:
    """Return the axis of the blocks of a mode, each named by its first and last index."""
    shown = min(extent // block, most)
    headers = tuple([f"{i * block}-{(i + 1) * block - 1}" if block > 1 else str(i) for i in range(shown)])
    return Axis(name, extent // block, shown, (headers,))


def _notes(mma: TiledMMA) -> tuple[str, ...]:
    """Return the notes: on a sparse A, and on threads whose numbers are left out by lanes that do not adjoin."""
    kept = mma.tile_of("A")[1]
    notes = () if kept == mma.tile_size(2) else (f"A has {kept} of {mma.tile_size(2)} elements along K, those kept",)
    span = int(mma.layout_c_tv[0].size)  # type: ignore[arg-type]  # static
    missing = sorted(set(range(span)) - set(mma.thread_numbers))
    if not missing:
        return notes
    runs = [missing[:1]]
    for number in missing[1:]:
        if number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return (*notes, f"threads {', '.join(ranges)} hold copies")


def _mma_axis(mma: TiledMMA, mode: int, most: int) -> Axis:
    """Make the axis of M, N or K, ruled at atoms unless a permutation takes those apart."""
    extent, atom = mma.tile_size(mode), mma.atom.shape_mnk[mode]
    covered = atom * int(mma.atom_layout[mode].size)  # type: ignore[arg-type]  # static, checked by TiledMMA
    nested = (atom, covered // atom, extent // covered)
    axis = axis_of(extent if isinstance(mma.permutation(mode), Layout) else nested, "MNK"[mode], most)
    return replace(axis, headers=axis.headers[:1])
