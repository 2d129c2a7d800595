"""Matrices as kernels of several products take them: descriptions of arrays, by modes in the order of the kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any  # Any: arrays of any library

import numpy as np

from tilewright.arch import VECTOR_BYTES
from tilewright.kernels.problem import Operand
from tilewright.runtime.arrays import ALIGNMENT, ArrayInfo, adapter_for
from tilewright.runtime.views import View, view_class


@dataclass(frozen=True)
class Matrix:
    """A matrix, or one for each group: extents and strides of its two modes and of groups (0 where it has none)."""

    info: ArrayInfo
    array: Any
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]

    @property
    def transposed(self) -> Matrix:
        (m, n, g), (m_step, n_step, step) = self.shape, self.strides
        return replace(self, shape=(n, m, g), strides=(n_step, m_step, step))

    def operand(self, ragged: int | None) -> Operand:
        """Return how it lies; along the ragged mode groups begin anywhere."""
        size = self.info.dtype.bytes
        unit = next((mode for mode in (1, 0) if self.strides[mode] == 1), None)
        across = [step * size for mode, step in enumerate(self.strides) if mode != unit]
        alignment = ALIGNMENT[int(np.gcd.reduce([self.info.pointer % VECTOR_BYTES, VECTOR_BYTES, *across])) % 16]
        if unit is not None and unit == ragged:
            alignment = min(alignment, size)
        return Operand(self.info.dtype, "none" if unit is None else ("MN", "K")[unit], alignment)

    def mapped(self) -> Operand:
        """Return how it lies for a tensor map, whose tiles begin anywhere; its steps go forward."""
        found = self.operand(None)
        forward = all(step > 0 or extent == 1 for extent, step in zip(self.shape, self.strides, strict=True))
        return found if forward else replace(found, major="none")

    def mapped_result(self) -> Operand:
        """Return how a result lies for a tensor map."""
        return _of_result(self.mapped())

    def view(self) -> View:
        adapter = adapter_for(self.array)
        assert adapter is not None
        i = self.info
        owner = self.array if i.owner is None else i.owner
        kind = view_class(adapter)
        return kind(i.pointer, self.shape, self.strides, i.dtype, i.device, i.writable, owner, i.stream)


def matrix_of(info: ArrayInfo, array: Any) -> Matrix:
    """Return an array of two or three modes, groups first, with groups last."""
    *groups, rows, columns = info.shape
    *steps, down, across = info.strides
    group, step = (groups[0], steps[0]) if groups else (1, 0)
    return Matrix(info, array, (rows, columns, group), (down, across, step))


def result_operand(d: Matrix, ragged: int | None) -> Operand:
    """Return how a result lies: contiguous along N or along neither mode."""
    return _of_result(d.operand(ragged))


def _of_result(found: Operand) -> Operand:
    """Return how a result lies. Along M it is contiguous for nobody: then its stride of 1 counts as any other."""
    if found.major == "MN":
        return replace(found, major="none", alignment=min(found.alignment, found.dtype.bytes))
    return replace(found, major="MN" if found.major == "K" else "none")
