"""wgmma with a sparse A: products of a warpgroup that leave out zeros of A, under CUTLASS's names.

Of each four neighbours of A along K two are kept, whichever; the other two count as zeros. Of tf32 one of two is kept.
A tile of A has half as many elements along K as one of B: `GMMA_64x128x32_F32BF16BF16_SS` takes 64 x 16 of A and
128 x 32 of B. The rest is as with a dense A, see `wgmma`: majors, signs, A from shared memory (SS) or registers (RS).

Which elements are kept say words of 16 bits, the metadata, four bits for each group of neighbours, the first group in
the lowest bits:

    2 of 4      the places of the kept ones, 0 to 3, two bits each, the first one's in the lower two
    1 of 2      0b0100 where the first is kept, 0b1110 where the second is

So a word stands for 16 elements of a row along K, of tf32 for 8. `atom.compress(matrix)` makes both of a matrix with
zeros, and `atom.expand(kept, metadata)` the matrix again. A thread passes two words (V, rest M, rest K), which
`thread.partition_E` finds in a tensor (M, words):

    16, 32 bits     row r, and row r + 8    lanes 4 r + 2 s and the next one, for two words of K; s is the selector
    8 bits          two neighbours          lanes 4 r to 4 r + 3: rows r and r + 8, and then the next two words

`atom.with_selector(1)` lets the upper two of each four lanes hold them (s). Here all four do: the others repeat them.

Source: PTX ISA, "wgmma.mma_async.sp", "Sparse matrix storage"; CUTLASS, include/cute/arch/mma_sm90_gmma_sparse.hpp,
mma_sm90_gmma_sparse_ext.hpp and include/cute/atom/mma_traits_sm90_gmma_sparse.hpp (ELayout).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import OperandPlace, Registers
from tilewright.backends.cpp.memory import element
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Access, AccessKind
from tilewright.backends.sim.storage import RegisterStorage
from tilewright.backends.sim.values import Array, Frame, at_least_2d, both
from tilewright.dtypes import uint32
from tilewright.errors import ArgumentError, LanguageError, LayoutError
from tilewright.instructions.warpgroup_atoms import NAMES as DENSE
from tilewright.instructions.warpgroup_atoms import ROWS, THREADS, WarpgroupMMAAtom, make_atom, words_of
from tilewright.instructions.wgmma import RegisterMMAAtom, SharedMMAAtom, Wgmma, WgmmaOfRegisters, begin_products
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.effects import attribute, operand, reads
from tilewright.layout import Layout
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler

_BITS = 4  # of the metadata of a group of neighbours
_GROUPS = 4  # that a word describes
_OF_TF32 = (0b0100, 0b1110)  # the first of two is kept, the second is


def _sparse_name(dense: str) -> str:
    """Return the name of the atom that reads a sparse A in as many bytes as a dense one does: K doubles."""
    return re.sub(r"SM90_(64x\d+)x(\d+)", lambda found: f"GMMA_{found[1]}x{2 * int(found[2])}", dense)


_DENSE = {_sparse_name(dense): dense for dense in DENSE}
NAMES = tuple(_DENSE)


# --- the atoms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SparseAtom(WarpgroupMMAAtom):
    """A wgmma whose A has one kept element of two, or two of four.

    >>> atom = sparse_mma("GMMA_64x8x32_F32F16F16_SS")
    >>> print(atom.shape_mnk, atom.layout_a, atom.layout_b, atom.layout_e)
    (64, 8, 32) (128,(64,16)):(0,(1,64)) (128,(8,32)):(0,(1,8)) ((2,2,8,4),2):((64,0,1,16),8)
    """

    @property
    def neighbours(self) -> int:
        """Of how many neighbours along K half are kept: 4, or 2 of tf32."""
        return 2 if self.dtype_a.storage.bits == 32 else 4

    @property
    def products(self) -> int:
        """The number of products that the instruction computes: those of kept elements."""
        return super().products // 2

    def extent(self, operand: str, mode: int) -> int:
        """Return the extent of the tile in mode 0 (M), 1 (N) or 2 (K): A counts kept elements, E words of metadata."""
        of_all = self.shape_mnk[mode]
        if mode != 2 or operand not in ("A", "E"):
            return of_all
        return of_all // 2 if operand == "A" else of_all // (_GROUPS * self.neighbours)

    def with_selector(self, selector: int) -> WarpgroupMMAAtom:
        """Return the atom that takes metadata from lanes 0 and 1 of each four (0), or from lanes 2 and 3 (1).

        Raises `LayoutError` for other numbers, and for elements of 8 bits, where all four lanes have metadata.
        """
        if selector not in (0, 1) or (selector and self.dtype_a.bits == 8):
            raise LayoutError(
                f"{self.name}.with_selector: the selector is {'0' if self.dtype_a.bits == 8 else '0 or 1'}, not "
                f"{selector!r}",
                help="it says which lanes of each four hold the metadata",
            )
        return self._renamed(selector=selector)

    def _renamed(self, **changes: Any) -> WarpgroupMMAAtom:
        atom = super()._renamed(**changes)
        return replace(atom, name=f"{atom.name}.with_selector({atom.selector})") if atom.selector else atom

    def compress(self, matrix: Any) -> tuple[Array, Array]:  # Any: what NumPy makes an array of
        """Return the kept elements (rows, K / 2) of a matrix with zeros, and its metadata (rows, words) of uint16.

        >>> atom = sparse_mma("GMMA_64x8x32_F32F16F16_SS")
        >>> kept, metadata = atom.compress([[0, 5, 0, 7] + [1, 0, 0, 0] + 8 * [0]])
        >>> kept, [f"{word:04x}" for word in metadata[0]]
        (array([[5., 7., 1., 0., 0., 0., 0., 0.]], dtype=float16), ['444d'])

        Raises `ArgumentError` where more elements of a group are not zero than are kept, or a row is not whole words.
        """
        dense = np.asarray(matrix)
        n, word = self.neighbours, self.neighbours * _GROUPS
        if dense.ndim != 2 or dense.shape[1] % word:
            raise ArgumentError(
                f"compress takes a matrix (rows, K) with K a multiple of {word}, got the shape {dense.shape}"
            )
        groups = dense.astype(self.dtype_a.storage.numpy).reshape(len(dense), -1, n)
        many = np.argwhere((groups != 0).sum(axis=2) > n // 2)
        if len(many):
            row, group = (int(i) for i in many[0])
            raise ArgumentError(
                f"{self.name} keeps {n // 2} of {n} neighbours along K, and row {row} has more at {n * group} to "
                f"{n * group + n - 1}: {groups[row, group]}",
                details=[f"{len(many)} groups of {groups.shape[0] * groups.shape[1]} have too many"],
                help="set the smallest of each group to zero before",
            )
        places = np.sort(np.argsort(groups == 0, axis=2, kind="stable")[..., : n // 2], axis=2)
        kept = np.take_along_axis(groups, places, axis=2).reshape(len(dense), -1)
        bits = places[..., 0] | places[..., 1] << 2 if n == 4 else np.asarray(_OF_TF32)[places[..., 0]]
        shifts = _BITS * np.arange(_GROUPS)
        return kept, (bits.reshape(len(dense), -1, _GROUPS) << shifts).sum(axis=2).astype(np.uint16)

    def expand(self, kept: Array, metadata: Array) -> Array:
        """Return the matrix (rows, K) of its kept elements and its metadata; further axes may come first.

        Law: `expand(*compress(matrix))` is the matrix.
        """
        n, bits = self.neighbours, _groups_of(metadata)
        groups = kept.reshape(*kept.shape[:-1], bits.shape[-1], n // 2)
        places = np.stack([bits & 3, bits >> 2], axis=-1) if n == 4 else (bits & 3)[..., None] >> 1
        shape = np.broadcast_shapes(groups.shape[:-1], places.shape[:-1])
        found = np.zeros((*shape, n), kept.dtype)
        values, at = (np.broadcast_to(x, (*shape, n // 2)) for x in (groups, places))
        np.put_along_axis(found, at.astype(np.intp), values, axis=-1)
        return found.reshape(*shape[:-1], -1)

    def is_defined(self, metadata: Array) -> Array:
        """Return where words of metadata have a meaning: two places differ, and of tf32 are one of two patterns."""
        bits = _groups_of(metadata).reshape(*metadata.shape, _GROUPS)
        good = np.asarray((bits & 3) != (bits >> 2) if self.neighbours == 4 else np.isin(bits, _OF_TF32))
        found: Array = np.all(good, axis=-1)
        return found

    def begin(self, d: Tensor, a: Tensor, b: Tensor, accumulate: Any, metadata: Any = None) -> None:
        """Emit loops over K, M and N with one instruction inside; D is there after a wait."""
        words = Metadata(self, metadata)
        begin_products(
            self, d, a, b, accumulate, (SparseWgmma, SparseWgmmaOfRegisters),
            lambda m, k: (words.buffer, words.index(m, k)),
        )  # fmt: skip


def _groups_of(metadata: Array) -> Array:
    """Return the four bits of each group of neighbours."""
    found = metadata[..., None].astype(np.uint16) >> (_BITS * np.arange(_GROUPS)).astype(np.uint16) & 0xF
    return found.reshape(*metadata.shape[:-1], -1)


@dataclass(frozen=True)
class SparseSharedAtom(SparseAtom, SharedMMAAtom):
    """A sparse wgmma that takes A from shared memory."""


@dataclass(frozen=True)
class SparseRegisterAtom(SparseAtom, RegisterMMAAtom):
    """A sparse wgmma that takes A from registers."""

    a_place: ClassVar[OperandPlace] = OperandPlace.REGISTERS

    @property
    def registers_a(self) -> Registers:
        """How a thread passes its part of A: as words of 32 bits."""
        return words_of(self.dtype_a, self.layout_a)


@cache
def sparse_mma(name: str) -> SparseAtom:
    """Return the atom of a name in `NAMES`.

    >>> sparse_mma("GMMA_64x16x64_S32S8U8_RS_TN").instruction
    'wgmma.mma_async.sp.sync.aligned.m64n16k64.s32.s8.u8'
    """
    half = make_atom(_DENSE[name], SparseSharedAtom, SparseRegisterAtom)
    assert isinstance(half, SparseAtom), half
    _, n, k = half.shape_mnk
    instruction = half.instruction.replace("mma_async.", "mma_async.sp.").replace(f"n{n}k{k}", f"n{n}k{2 * k}")
    if half.dtype_a.bits == 8:
        layout_e = Layout(((2, 2, 8, 4), 2), ((8, 2 * ROWS, 1, 16), ROWS))
    else:
        layout_e = Layout(((2, 2, 8, 4), 2), ((ROWS, 0, 1, 16), 8))
    return replace(
        half, name=name, shape_mnk=(ROWS, n, 2 * k), layout_b=Layout((THREADS, (n, 2 * k)), (0, (1, n))),
        instruction=instruction, selector=0, layout_e=layout_e,
    )  # fmt: skip


# --- the ops ---------------------------------------------------------------------------------------------


class Metadata:
    """A fragment (V, M, K) of two words of 16 bits, passed as one of 32."""

    def __init__(self, atom: SparseAtom, tensor: Tensor) -> None:
        layout: Any = tensor.layout
        is_fragment = isinstance(layout, Layout) and layout.is_static and tensor.engine.buffer.space is Space.REGISTER
        if is_fragment:
            offsets = [layout((v, m, k)) for m in range(layout[1].size) for k in range(layout[2].size) for v in (0, 1)]
            is_fragment = layout[0].size == 2 and all(
                low % 2 == 0 and high == low + 1 for low, high in zip(offsets[::2], offsets[1::2], strict=True)
            )
        if not is_fragment:
            raise LanguageError(
                f"metadata of {atom} are two neighbouring words in registers for each tile, not {tensor.title}",
                help="make them with thread.make_fragment_E(thread.partition_E(words)), and copy the words there",
            )
        seen = tensor.recast(uint32)
        self.buffer: Buffer = seen.engine.buffer
        self._engine = seen.engine
        self._layout = seen.layout

    def index(self, m: Any, k: Any) -> Value:  # Any: integers of host or device
        """Return the word of a tile."""
        return self._engine.index(self._layout((0, m, k)))  # type: ignore[no-any-return]


class _WithMetadata:
    """What both ops have besides: the word of metadata, read as A is."""

    atom: SparseAtom
    metadata: Buffer
    metadata_index: Value

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        super().verify(expect)  # type: ignore[misc]  # of the op
        is_word = self.metadata.space is Space.REGISTER and self.metadata.dtype is uint32
        expect(is_word, "metadata is in registers, in words")

    def read_a(self, compiler: Compiler) -> Callable[[Frame, Array], Array]:
        """Return what expands the tiles of A by the metadata in the lanes that the selector names."""
        read_kept = super().read_a(compiler)  # type: ignore[misc]  # of the op
        machine, atom, index = compiler.machine, self.atom, compiler.slot(self.metadata_index)
        storage = machine.storages[self.metadata]
        assert atom.layout_e is not None, atom
        chosen = np.full(THREADS, True) if atom.dtype_a.bits == 8 else np.arange(THREADS) % 4 // 2 == atom.selector
        table, columns = positions(atom.layout_e)[chosen], atom.extent("E", 2)
        holds = np.resize(chosen, machine.threads)[None, :]

        def read(frame: Frame, groups: Array) -> Array:
            at = np.int32(int(frame.values[index]))
            if machine.observers:
                mask = both(frame.mask, holds)
                machine.observe(Access(self, AccessKind.OPERAND_READ, storage, at, 1, mask))  # type: ignore[arg-type]
            held = at_least_2d(storage.load(at, 1, frame.mask))
            held = np.broadcast_to(held, (len(held), machine.threads))[:, : machine.products.count * THREADS]
            words = np.ascontiguousarray(held).view(np.uint16).reshape(len(held), -1, THREADS, 2)[:, groups]
            metadata = np.empty((*words.shape[:2], columns * ROWS), np.uint16)
            metadata[..., table] = words[:, :, chosen]
            metadata = metadata.reshape(*words.shape[:2], columns, ROWS).swapaxes(-1, -2)
            if machine.observers:
                self._demand_meaning(compiler, frame, groups, metadata)
            found: Array = atom.expand(read_kept(frame, groups), metadata)
            return found

        return read

    def _demand_meaning(self, compiler: Compiler, frame: Frame, groups: Array, metadata: Array) -> None:
        """Report words without a meaning, in warpgroups that take part."""
        machine = compiler.machine
        active = machine.products.active(frame.mask)[:, groups]
        wrong = ~self.atom.is_defined(metadata) & active[..., None, None]
        if not wrong.any():
            return
        whole = np.broadcast_to(metadata, wrong.shape)
        block, group, row, word = (int(n) for n in np.argwhere(wrong)[0])
        fault = Fault(
            self, "sparse-metadata",  # type: ignore[arg-type]  # an op
            f"the metadata of row {row} has a word without a meaning: 0x{int(whole[block, group, row, word]):04x}",
            machine.block_coordinate(block), machine.thread_coordinate(int(groups[group]) * THREADS),
            help="two of four neighbours have different places, and of tf32 the four bits are 0b0100 or 0b1110; "
            "atom.compress(matrix) makes such words",
            count=int(wrong.sum()),
        )  # fmt: skip
        machine.collector.report(fault)

    def registers_of_a(self, compiler: Compiler) -> list[tuple[RegisterStorage, int, int]]:
        storage = compiler.machine.storages[self.metadata]
        assert isinstance(storage, RegisterStorage), self.metadata
        read = super().registers_of_a(compiler)  # type: ignore[misc]  # of the op
        return [*read, (storage, compiler.slot(self.metadata_index), 1)]

    def text_of_metadata(self, printer: Printer) -> list[str]:
        return [element(printer, self.metadata, self.metadata_index).text]


@dataclass(eq=False)
class SparseWgmma(_WithMetadata, Wgmma):
    """D = A * B + D, with the kept elements of a sparse A in shared memory."""

    metadata: Buffer = reads("metadata_index")
    metadata_index: Value = operand()
    atom: SparseAtom = attribute()


@dataclass(eq=False)
class SparseWgmmaOfRegisters(_WithMetadata, WgmmaOfRegisters):
    """D = A * B + D, with the kept elements of a sparse A in registers."""

    metadata: Buffer = reads("metadata_index")
    metadata_index: Value = operand()
    atom: SparseAtom = attribute()
