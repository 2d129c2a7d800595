"""Matrix multiply-add atoms: one instruction D = A * B + C of one thread or a group, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType
from tilewright.layout import Layout

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class MMAAtom:
    """One matrix multiply-add instruction: D[m, n] = sum over k of A[m, k] * B[n, k], plus C[m, n].

    `layout_a`, `layout_b` and `layout_c` map (thread, value) to the element of the column-major (M,K), (N,K) and (M,N)
    tile that this value of this thread holds. `thr_id` maps the threads of the atom to thread numbers. `instruction` is
    the text of the PTX instruction ("" for plain C++), `arch` the first target that has it ("" for all).

    >>> from tilewright.dtypes import float32
    >>> atom = UniversalFMA(float32)
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
    instruction: str = ""
    # A function of the instruction's own arithmetic, where it is not `multiply_add`'s: (atom, a, b, c) -> d.
    arithmetic: Callable[[MMAAtom, Array, Array, Array], Array] | None = field(default=None, compare=False, repr=False)

    @property
    def threads(self) -> int:
        """The number of threads that carry the instruction out together."""
        count = self.thr_id.size
        assert isinstance(count, int), self.thr_id
        return count

    def reference(self, a: Array, b: Array, c: Array) -> Array:
        """Compute the instruction in NumPy: A is (M,K), B is (N,K), C and D are (M,N).

        >>> import numpy as np
        >>> from tilewright.dtypes import float32
        >>> UniversalFMA(float32).reference(np.full((1, 1), 2.0), np.full((1, 1), 3.0), np.ones((1, 1)))
        array([[7.]], dtype=float32)
        """
        return (self.arithmetic or multiply_add)(self, a, b, c)

    def __str__(self) -> str:
        return self.name


def multiply_add(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute D = A * B^T + C: products exact, sums in a wider type, rounded to D's type at the end.

    For a single product in float32 this is a fused multiply-add but for double rounding in about one case in 2**29.
    """
    import numpy as np

    wide = np.float64 if atom.dtype_d.is_float else np.int64
    result = a.astype(wide) @ b.astype(wide).T + c.astype(wide)
    rounded: Array = result.astype(atom.dtype_d.numpy)
    return rounded


def UniversalFMA(d: DType, a: DType | None = None, b: DType | None = None, c: DType | None = None) -> MMAAtom:
    """Make the 1 x 1 x 1 atom of one thread: d = a * b + c, in types that may differ.

    `a` and `c` are of type `d` by default, `b` of type `a`.

    >>> from tilewright.dtypes import float16, float32
    >>> UniversalFMA(float32, float16).name
    'UniversalFMA(float32, float16, float16, float32)'

    Source: CuTe `UniversalFMA`.
    """
    a = d if a is None else a
    b = a if b is None else b
    c = d if c is None else c
    name = f"UniversalFMA({d})" if a is b is c is d else f"UniversalFMA({d}, {a}, {b}, {c})"
    one = Layout((1, 1))
    return MMAAtom(name, "", (1, 1, 1), d, a, b, c, Layout(1), one, one, one)
