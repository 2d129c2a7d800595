"""Matrix multiply-add atoms: one instruction D = A * B + C of one thread or a group, as data."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.arch import Arch
from tilewright.atoms.fragments import WORD, operand
from tilewright.dtypes import DType, float16, float32, float64, int32, uint32
from tilewright.errors import LanguageError, LayoutError
from tilewright.layout import Layout
from tilewright.layout.display import Displayed

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class OperandPlace(enum.Enum):
    """Where a matrix instruction takes an operand from."""

    REGISTERS = "a fragment in the registers of its threads"
    DESCRIPTOR = "shared memory, through a descriptor"


@dataclass(frozen=True)
class Registers:
    """How a thread passes its part of an operand: `count` registers of a type, each with `lanes` elements.

    Elements narrower than a register lie in it in the order of the values, the first in the lowest bits.
    """

    dtype: DType
    count: int
    lanes: int


@dataclass(frozen=True)
class MMAAtom(Displayed):
    """One matrix multiply-add instruction: D[m, n] = sum over k of A[m, k] * B[n, k], plus C[m, n].

    `layout_a`, `layout_b` and `layout_c` map (thread, value) to the element of the column-major (M,K), (N,K) and (M,N)
    tile that this value of this thread holds; D is held as C is, unless there is a `layout_d`. `thr_id` maps the
    threads of the atom to thread numbers. `arch` is the first target that has the instruction ("" for all). `a_place`
    and `b_place` say where the instruction takes A and B from; `is_asynchronous`, that D is available only after a
    wait.

    >>> import tilewright as tw
    >>> atom = tw.atoms.UniversalFMA(tw.float32)
    >>> atom.shape_mnk, atom.threads, str(atom.layout_c)
    ((1, 1, 1), 1, '(1,1):(0,0)')
    """

    name: str
    arch: str
    shape_mnk: tuple[int, int, int]
    dtype_d: DType
    dtype_a: DType
    dtype_b: DType
    dtype_c: DType
    thr_id: Layout
    layout_a: Layout
    layout_b: Layout
    layout_c: Layout
    # A function of the instruction's own arithmetic, where it is not `multiply_add`'s: (atom, a, b, c) -> d.
    arithmetic: Callable[[MMAAtom, Array, Array, Array], Array] | None = field(default=None, compare=False, repr=False)
    # Of an atom over words of narrow integers: the atom over the integers themselves.
    elements: MMAAtom | None = field(default=None, compare=False, repr=False)
    # Where the threads hold D, if not as they hold C: an accumulator of another type may be spread in another way.
    layout_d: Layout | None = None
    # Of an atom whose A is sparse: where threads hold what says which elements are kept, in words of 16 bits.
    layout_e: Layout | None = None

    a_place: ClassVar[OperandPlace] = OperandPlace.REGISTERS
    b_place: ClassVar[OperandPlace] = OperandPlace.REGISTERS
    is_asynchronous: ClassVar[bool] = False

    def multiply(self, d: Any, a: Any, b: Any, c: Any) -> None:  # Any: tensors of a kernel, a layer above atoms
        """Emit d = a b + c for fragments with the modes (V, M, K), (V, N, K) and (V, M, N)."""
        raise LanguageError(
            f"tw.gemm: {self.name} is {' x '.join(map(str, self.shape_mnk))} and names no instruction",
            help="take an atom of an instruction, or tw.atoms.UniversalFMA",
        )

    def begin(  # Any: as above; a bool of host or device; a tensor or None
        self, d: Any, a: Any, b: Any, accumulate: Any, metadata: Any = None
    ) -> None:
        """Emit the asynchronous products d = a b, plus d where `accumulate` holds, of an atom that is asynchronous.

        `metadata` says which elements a sparse a has kept.
        """
        raise LanguageError(f"tw.gemm: {self.name} is not asynchronous")

    def extent(self, operand: str, mode: int) -> int:
        """Return the extent of the tile in mode 0 (M), 1 (N) or 2 (K), counted in elements of an operand.

        They differ along K, where A is sparse: A counts the elements that are kept, and E words of metadata.
        """
        return self.shape_mnk[mode]

    @property
    def threads(self) -> int:
        """The number of threads that carry the instruction out together."""
        count = self.thr_id.size
        assert isinstance(count, int), self.thr_id
        return count

    @property
    def layout_of_d(self) -> Layout:
        """The thread-value layout of D: `layout_d`, or that of C."""
        return self.layout_c if self.layout_d is None else self.layout_d

    @property
    def row_block(self) -> tuple[int, int]:
        """Which block of C's rows the instruction computes, and of how many: the first of one, that is all rows.

        Where there are several, D is C but for the rows of the block, and `layout_c` counts from the first of these as
        if the block were the first one.
        """
        return 0, 1

    @property
    def rows(self) -> int:
        """The number of rows of C that the instruction computes."""
        return self.shape_mnk[0] // self.row_block[1]

    @property
    def first_row(self) -> int:
        """The first row of C that the instruction computes."""
        return self.row_block[0] * self.rows

    @property
    def products(self) -> int:
        """The number of multiply-accumulates that the instruction computes: rows * N * K."""
        return self.rows * self.shape_mnk[1] * self.shape_mnk[2]

    @property
    def registers_a(self) -> Registers:
        """How a thread passes its part of A."""
        return _registers(self.dtype_a, self.layout_a, (float64,))

    @property
    def registers_b(self) -> Registers:
        """How a thread passes its part of B."""
        return _registers(self.dtype_b, self.layout_b, (float64,))

    @property
    def registers_c(self) -> Registers:
        """How a thread passes its part of C."""
        return _registers(self.dtype_c, self.layout_c, (float64, float32, int32))

    @property
    def registers_d(self) -> Registers:
        """How a thread receives its part of D."""
        return _registers(self.dtype_d, self.layout_of_d, (float64, float32, int32))

    def in_words(self) -> MMAAtom:
        """Return the atom over 32-bit words of A and B, which is how tensors hold integers of fewer than 8 bits.

        A word holds neighbours along K, the first in the lowest bits; K counts words then. An atom of wider elements is
        returned as it is.

        Law: the element k of A is element k % n of the word k // n, for n elements a word.
        """
        if self.dtype_a.bits >= 8:
            return self
        packing = WORD // self.dtype_a.bits
        m, n, k = self.shape_mnk
        return replace(
            self,
            name=f"{self.name}.in_words()",
            shape_mnk=(m, n, k // packing),
            dtype_a=uint32,
            dtype_b=uint32,
            layout_a=operand(m, k // packing, WORD),
            layout_b=operand(n, k // packing, WORD),
            arithmetic=_multiply_words,
            elements=self,
        )

    def sizes_of_n(self, extent: int) -> list[int]:
        """Return the N of the atoms like this one that divide an extent, of families in which N may be chosen."""
        return []

    def runs_on(self, arch: Arch) -> bool:
        """Return whether a target has the instruction; one without an arch runs on all."""
        return not self.arch or arch.has_instructions_of(Arch.parse(self.arch))

    def reference(self, a: Array, b: Array, c: Array) -> Array:
        """Compute the instruction in NumPy: A is (M,K), B is (N,K), C and D are (M,N); further axes may come first.

        >>> import numpy as np
        >>> import tilewright as tw
        >>> tw.atoms.UniversalFMA(tw.float32).reference(np.full((1, 1), 2.0), np.full((1, 1), 3.0), np.ones((1, 1)))
        array([[7.]], dtype=float32)
        """
        compute = self.arithmetic or multiply_add
        if self.row_block[1] == 1:
            return compute(self, a, b, c)
        import numpy as np

        rows = slice(self.first_row, self.first_row + self.rows)
        front = np.broadcast_shapes(*(x.shape[:-2] for x in (a, b, c)))
        d = np.array(np.broadcast_to(c, (*front, *c.shape[-2:])), self.dtype_d.numpy)
        d[..., rows, :] = compute(self, a[..., rows, :], b, d[..., rows, :])
        return d

    def error_bound(self, a: Array, b: Array, c: Array) -> Array:
        """Return how far a GPU's D may lie from `reference(a, b, c)`, element by element; K may be several atoms' long.

        With S the sum of |a * b| over k and of |c|: each step on the way loses at most one unit in the last place that
        is kept of each of its addends, and no addend or sum exceeds S.

        - integers and bits: 0.
        - float64: every k is a fused multiply-add, which rounds by 2**-53 at most: 2 * K * 2**-53 * S for both sides.
        - float32 accumulators: 2**-23 of the largest addend is kept, of K addends and one sum a step:
          2 * K * 2**-23 * S. Of products of 8-bit floats some GPUs keep fewer bits: 2**-13.
        - float16 accumulators: each step, of four k at least, is rounded to float16.
        """
        import numpy as np

        k = a.shape[-1]
        if not self.dtype_d.is_float:
            return np.zeros(np.broadcast_shapes(c.shape, (*a.shape[:-1], b.shape[-2])))
        products = np.abs(a).astype(np.float64) @ np.swapaxes(np.abs(b), -1, -2).astype(np.float64)
        sums = products + np.abs(c).astype(np.float64)
        if self.dtype_d is float16:
            relative, absolute = max(k // 4, 1) * 2.0**-10, 2.0**-24
        elif self.dtype_d is float64:
            relative, absolute = 2 * k * 2.0**-53, 0.0
        else:
            relative, absolute = 2 * k * (2.0**-13 if self.dtype_a.bits == 8 else 2.0**-23), 2.0**-149
        bound: Array = relative * sums + absolute
        return bound

    def __str__(self) -> str:
        return self.name


def _registers(dtype: DType, layout: Layout, own: tuple[DType, ...]) -> Registers:
    """Return the registers for the values of a layout: of the type itself if that is among `own`, else words."""
    values = layout[1].size
    assert isinstance(values, int), layout
    if dtype in own:
        return Registers(dtype, values, 1)
    lanes = max(WORD // dtype.bits, 1)
    if values % lanes or dtype.bits > WORD:
        raise LayoutError(f"{values} values of {dtype} fill no whole registers of {WORD} bits")
    return Registers(uint32, values // lanes, lanes)


def _multiply_words(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    elements = atom.elements
    assert elements is not None, atom
    return elements.reference(unpack(a, elements.dtype_a), unpack(b, elements.dtype_b), c)


def unpack(words: Array, dtype: DType) -> Array:
    """Return the narrow integers in 32-bit words along the last axis, the lowest bits first.

    >>> import numpy as np
    >>> from tilewright.dtypes import int4
    >>> unpack(np.array([0xFEDCBA98], np.uint32), int4)
    array([-8, -7, -6, -5, -4, -3, -2, -1], dtype=int8)
    """
    import numpy as np

    shifts = np.arange(0, WORD, dtype.bits, dtype=np.uint32)
    values = (words[..., None] >> shifts) & np.uint32((1 << dtype.bits) - 1)
    found = values.astype(dtype.numpy).reshape(*words.shape[:-1], -1)
    if dtype.kind == "int":
        found = (found ^ (1 << (dtype.bits - 1))) - (1 << (dtype.bits - 1))
    result: Array = found.astype(dtype.numpy)
    return result


def multiply_add(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C: products exact, sums in a wider type, rounded to D's type at the end.

    For a single product in float32 this is a fused multiply-add but for double rounding in about one case in 2**29.
    """
    import numpy as np

    # Products of integers of up to 16 bits are exact in float64, and so are sums of fewer than 2**21 of them.
    exact = atom.dtype_d.is_float or max(atom.dtype_a.bits, atom.dtype_b.bits) <= 16
    wide = np.float64 if exact else np.int64
    with np.errstate(all="ignore"):
        product = a.astype(wide) @ np.swapaxes(b, -1, -2).astype(wide)
        if not atom.dtype_d.is_float:
            product = product.astype(np.int64)
        rounded: Array = (product + c.astype(product.dtype)).astype(atom.dtype_d.numpy)
    return rounded
