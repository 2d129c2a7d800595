"""Handlers of the matrix instructions of a warp: fragments gathered to tiles, computed by the atom, handed back.

A fragment is each thread's registers. Seen as elements it is (blocks, warps, lanes, values); the atom's
thread-value layouts say which of these is which element of the tile, and the atom's own reference does the rest, for
all warps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.atoms.arithmetic import round_tf32
from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import MMAAtom, Registers, unpack
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.divergence import demand_whole_warps
from tilewright.backends.sim.observers import Access, AccessKind
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d, both, fill, without
from tilewright.dtypes import DType
from tilewright.ir.ops import LoadMatrix, Mma, RoundToTfloat32, StoreMatrix, TransposeMatrix
from tilewright.layout import Layout, complement

_ROW_BYTES = 16  # of a matrix of 8 x 8 elements of 16 bits
_ROWS = 8
_WHAT = "a matrix instruction"
MATRIX_LANES = 32  # of the warps that have ldmatrix and its like


# --- warps -----------------------------------------------------------------------------------------------


def _by_warps(value: Array, warp: int = MATRIX_LANES) -> Array:
    """Return an array (blocks, threads, ...) as (blocks, warps, lanes, ...), zeros where a last warp is partial."""
    blocks, threads, *rest = value.shape
    missing = -threads % warp
    if missing:
        value = np.concatenate([value, np.zeros((blocks, missing, *rest), value.dtype)], axis=1)
    return value.reshape(blocks, -1, warp, *rest)


def _by_threads(value: Array, threads: int) -> Array:
    """Return an array (blocks, warps, lanes, ...) as (blocks, threads, ...)."""
    return value.reshape(value.shape[0], -1, *value.shape[3:])[:, :threads]


# --- mma -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fragment:
    """One operand: how registers become a tile (rows, columns) and back."""

    dtype: DType
    registers: Registers
    warp: int
    lanes: Array  # (groups of the warp, threads of the atom) -> lane
    table: Array  # (thread, value) -> place in the column-major tile
    shape: tuple[int, int]

    def tile(self, registers: Sequence[Lanes], threads: int) -> Array:
        """Return the tiles (blocks, warps, groups, rows, columns) of all threads' registers."""
        held = np.stack(np.broadcast_arrays(*[at_least_2d(r) for r in registers]), axis=-1)
        held = np.ascontiguousarray(np.broadcast_to(held, (held.shape[0], threads, held.shape[-1])))
        values = unpack(held, self.dtype) if self.dtype.bits < 8 else held.view(self.dtype.numpy)
        by_group = _by_warps(values, self.warp)[:, :, self.lanes, :]
        rows, columns = self.shape
        flat = np.zeros((*by_group.shape[:3], rows * columns), by_group.dtype)
        flat[..., self.table] = by_group
        tiles: Array = flat.reshape(*flat.shape[:3], columns, rows).swapaxes(-1, -2)
        return tiles

    def spread(self, tiles: Array, threads: int) -> Array:
        """Return the registers (blocks, threads, registers) of tiles."""
        flat = tiles.swapaxes(-1, -2).reshape(*tiles.shape[:3], -1)
        blocks, warps = flat.shape[:2]
        values = np.empty((blocks, warps, self.warp, self.table.shape[1]), tiles.dtype)
        values[:, :, self.lanes, :] = flat[..., self.table]
        return _by_threads(values, threads).view(self.registers.dtype.numpy)


def _fragments(atom: MMAAtom, warp: int) -> tuple[_Fragment, _Fragment, _Fragment, _Fragment]:
    """Return what becomes of the registers of A, B, C and D."""
    m, n, k = atom.shape_mnk
    own = positions(Layout((atom.thr_id.shape, 1), (atom.thr_id.stride, 0)))[:, 0]
    rest = complement(atom.thr_id, warp)
    others = positions(Layout((rest.shape, 1), (rest.stride, 0)))[:, 0]
    lanes = others[:, None] + own[None, :]
    table_c = positions(atom.layout_c) + atom.first_row
    return (
        _Fragment(atom.dtype_a.storage, atom.registers_a, warp, lanes, positions(atom.layout_a), (m, k)),
        _Fragment(atom.dtype_b.storage, atom.registers_b, warp, lanes, positions(atom.layout_b), (n, k)),
        _Fragment(atom.dtype_c, atom.registers_c, warp, lanes, table_c, (m, n)),
        _Fragment(atom.dtype_d, atom.registers_d, warp, lanes, table_c, (m, n)),
    )


def mma(op: Mma, compiler: Compiler) -> Step:
    """Compute D = A * B + C in every warp."""
    machine, atom = compiler.machine, op.atom
    a, b, c, d = _fragments(atom, machine.warp)
    slots_a, slots_b, slots_c = compiler.slots(op.a), compiler.slots(op.b), compiler.slots(op.c)
    results, threads = compiler.slots(op.results), machine.threads

    def run(frame: Frame) -> None:
        values = frame.values
        demand_whole_warps(op, _WHAT, frame.mask, machine, full=True)
        computed = atom.reference(
            a.tile([values[s] for s in slots_a], threads),
            b.tile([values[s] for s in slots_b], threads),
            c.tile([values[s] for s in slots_c], threads),
        )
        registers = d.spread(computed, threads)
        for number, result in enumerate(results):
            values[result] = np.ascontiguousarray(registers[..., number])

    return run


def round_to_tfloat32(op: RoundToTfloat32, compiler: Compiler) -> Step:
    """Round to the bits that a tensor core reads."""
    x, result = compiler.slot(op.x), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        given = frame.values[x]
        frame.values[result] = round_tf32(given).reshape(np.shape(given))[()]

    return run


# --- 8 x 8 matrices between shared memory and registers --------------------------------------------------


def _to_registers(rows: Array, transposed: bool) -> Array:
    """Return (blocks, warps, matrices, 32 lanes) of rows (blocks, warps, matrices, 8, 8 elements of 16 bits)."""
    if transposed:
        rows = rows.swapaxes(-1, -2)
    pairs = np.ascontiguousarray(rows).view(np.uint32)
    return pairs.reshape(*pairs.shape[:3], MATRIX_LANES)


def _to_rows(registers: Array, transposed: bool) -> Array:
    """Return the rows of matrices in registers: the inverse of `_to_registers`."""
    elements = np.ascontiguousarray(registers).view(np.uint16)
    rows = elements.reshape(*registers.shape[:3], _ROWS, _ROWS)
    return np.ascontiguousarray(rows.swapaxes(-1, -2) if transposed else rows)


def load_matrix(op: LoadMatrix, compiler: Compiler) -> Step:
    """Read matrices, 16 bytes a row, and hand every lane its two elements of each."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, results, count = compiler.slot(op.index), compiler.slots(op.results), len(op.results)
    elements, threads = _ROW_BYTES // op.buffer.dtype.bytes, machine.threads
    rows_of = machine.leading_lanes(count * _ROWS)

    def run(frame: Frame) -> None:
        values = frame.values
        demand_whole_warps(op, _WHAT, frame.mask, machine, full=True)
        at = fill(values[index], at_least_2d(values[index]).shape[0], threads)
        mask = both(frame.mask, rows_of)
        refused = machine.observe(Access(op, AccessKind.LOAD, storage, at, elements, mask))
        allowed = mask if refused is None else without(mask, refused)
        try:
            found = np.asarray(storage.load(at, elements, allowed))
        except IndexError as error:
            raise machine.outside(op, op.buffer, error) from None
        found = fill(found, found.shape[0], threads)
        lines = _by_warps(np.ascontiguousarray(found).view(np.uint16))[:, :, : count * _ROWS]
        registers = _to_registers(lines.reshape(*lines.shape[:2], count, _ROWS, _ROWS), op.transposed)
        for number, result in enumerate(results):
            values[result] = _by_threads(registers[:, :, number], threads)

    return run


def store_matrix(op: StoreMatrix, compiler: Compiler) -> Step:
    """Gather matrices from the lanes, and write 16 bytes a row."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, slots, count = compiler.slot(op.index), compiler.slots(op.values), len(op.values)
    elements, threads = _ROW_BYTES // op.buffer.dtype.bytes, machine.threads
    rows_of = machine.leading_lanes(count * _ROWS)

    def run(frame: Frame) -> None:
        values = frame.values
        demand_whole_warps(op, _WHAT, frame.mask, machine, full=True)
        at = fill(values[index], at_least_2d(values[index]).shape[0], threads)
        mask = both(frame.mask, rows_of)
        refused = machine.observe(Access(op, AccessKind.STORE, storage, at, elements, mask))
        if refused is not None:
            mask = without(mask, refused)
            if not mask.any():
                return
        held = np.broadcast_arrays(*[at_least_2d(values[s]) for s in slots])
        registers = np.stack([_by_warps(fill(h, h.shape[0], threads)) for h in held], axis=2)
        rows = _to_rows(registers, op.transposed)
        lines = np.zeros((*rows.shape[:2], MATRIX_LANES, _ROWS), np.uint16)
        lines[:, :, : count * _ROWS] = rows.reshape(*rows.shape[:2], count * _ROWS, _ROWS)
        given = np.ascontiguousarray(_by_threads(lines, threads)).view(op.buffer.dtype.numpy)
        try:
            storage.store(at, given, elements, mask)
        except IndexError as error:
            raise machine.outside(op, op.buffer, error) from None

    return run


def transpose_matrix(op: TransposeMatrix, compiler: Compiler) -> Step:
    """Transpose the 8 x 8 matrix that a warp holds."""
    machine, value, result = compiler.machine, compiler.slot(op.value), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        demand_whole_warps(op, _WHAT, frame.mask, machine, full=True)
        held = at_least_2d(frame.values[value])
        registers = _by_warps(fill(held, held.shape[0], machine.threads))[:, :, None]
        turned = _to_registers(_to_rows(registers, transposed=False), transposed=True)
        frame.values[result] = _by_threads(turned[:, :, 0], machine.threads)

    return run
