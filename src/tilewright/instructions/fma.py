"""fma: the multiply-add of one thread as the smallest matrix instruction, 1 x 1 x 1.

Source: PTX ISA, "fma"; CuTe `UniversalFMA`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.atoms.mma import MMAAtom
from tilewright.dtypes import DType
from tilewright.errors import LanguageError
from tilewright.layout import Layout, make_layout
from tilewright.layout.layouts import modes_of
from tilewright.tensors import Tensor
from tilewright.trace.mathematics import fma
from tilewright.trace.walks import common_walk, each_step, place


@dataclass(frozen=True)
class FMAAtom(MMAAtom):
    """The multiply-add of one thread: d = a * b + c, rounded once."""

    def multiply(self, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Emit loops over K, and over V, M and N inside, with one multiply-add in them; V is element-wise."""
        values = {name: t.layout[0].size for name, t in zip("abcd", (a, b, c, d), strict=True)}
        if len(set(values.values())) > 1:
            raise LanguageError(
                f"tw.gemm: {self.name} multiplies values of mode V one by one, and the tensors have different numbers "
                f"of them: {', '.join([f'{name} {n}' for name, n in values.items()])}",
                details=[f"{name}: {t.title}" for name, t in zip("abcd", (a, b, c, d), strict=True)],
                help="give tensors with the same mode V, or leave it out of all of them: (M, K), (N, K) and (M, N)",
            )
        steps = a.layout[2].size
        assert isinstance(steps, int), a  # fragments have static layouts
        for k in range(steps):
            _multiply(d, a[:, :, k], b[:, :, k], c if k == 0 else d)


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
    return FMAAtom(name, "", (1, 1, 1), d, a, b, c, Layout(1), one, one, one)


def _multiply(d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    """d[v, m, n] = a[v, m] * b[v, n] + c[v, m, n] for all v, m and n."""
    if a.layout[0].size == 1:  # no loop over V
        operands = [d[0, None, None], _along(a[0, None], b, a_is_first=True), _along(b[0, None], a, a_is_first=False),
                    c[0, None, None]]  # fmt: skip
    else:
        operands = [d, _along(a, b, a_is_first=True), _along(b, a, a_is_first=False), c]
    walk = common_walk(operands, "tw.gemm")

    def step(steps: tuple[Any, ...]) -> None:
        pd, pa, pb, pc = (place(t, s) for t, s in zip(operands, steps, strict=True))
        product = fma(operands[1].engine.load(pa), operands[2].engine.load(pb), operands[3].engine.load(pc))
        operands[0].engine.store(pd, product)

    each_step(walk, step)


def _along(tensor: Tensor, other: Tensor, *, a_is_first: bool) -> Tensor:
    """Return an operand, (M) or (V, M), as a tensor over M and N, standing still along the other operand's mode."""
    layout = tensor.layout
    assert isinstance(layout, Layout), tensor  # of registers, see language.gemm
    *values, own = modes_of(layout) if layout.rank > 1 else (layout,)
    still = Layout(other.layout[1].size, 0)
    return Tensor(tensor.engine, make_layout(*values, *((own, still) if a_is_first else (still, own))))
