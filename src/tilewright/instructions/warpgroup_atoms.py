"""The wgmma atoms: their names, and the layouts and instructions that follow from them. See `wgmma`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.atoms.arithmetic import multiply_add_saturating, multiply_add_tf32
from tilewright.atoms.mma import MMAAtom, OperandPlace, Registers, multiply_add
from tilewright.dtypes import DType, uint32, uint64
from tilewright.errors import LayoutError
from tilewright.instructions.descriptors import Major
from tilewright.layout import Layout

if TYPE_CHECKING:
    from tilewright.backends.sim.values import Array

THREADS = 128
ROWS = 64

# CuTe's abbreviation of a type, its PTX name and the element type.
_TYPES: dict[str, tuple[str, DType]] = {
    "F16": ("f16", t.float16),
    "BF16": ("bf16", t.bfloat16),
    "TF32": ("tf32", t.tfloat32),
    "F32": ("f32", t.float32),
    "E4M3": ("e4m3", t.float8_e4m3fn),
    "E5M2": ("e5m2", t.float8_e5m2),
    "S32": ("s32", t.int32),
    "S8": ("s8", t.int8),
    "U8": ("u8", t.uint8),
}


def _listed() -> Iterator[str]:
    """Yield all names, by types and then by N."""
    every = range(8, 257, 8)
    of_bytes = [n for n in every if n <= 32 or n % 16 == 0]
    for types in ("F16F16F16", "F32F16F16", "F32BF16BF16"):
        yield from (f"SM90_64x{n}x16_{types}_{places}" for places in ("SS", "RS") for n in every)
    yield from (f"SM90_64x{n}x8_F32TF32TF32_{places}_TN" for places in ("SS", "RS") for n in every)
    for d in ("F16", "F32"):
        for types in (f"{d}{a}{b}" for a in ("E4M3", "E5M2") for b in ("E4M3", "E5M2")):
            yield from (f"SM90_64x{n}x32_{types}_{places}_TN" for places in ("SS", "RS") for n in every)
    for types in (f"S32{a}8{b}8" for a in "SU" for b in "SU"):
        for end in ("", "_SATURATE"):
            yield from (f"SM90_64x{n}x32_{types}_{places}_TN{end}" for places in ("SS", "RS") for n in of_bytes)


NAMES = tuple(_listed())


@dataclass(frozen=True)
class WarpgroupMMAAtom(MMAAtom):
    """A wgmma as an atom. `majors` are those of A and B; `signs` are 1 or -1, by which A and B are multiplied."""

    instruction: str = ""
    majors: tuple[Major, Major] = ("K", "K")
    signs: tuple[int, int] = (1, 1)
    selector: int | None = None  # of a sparse A: which threads hold its metadata
    product: Any = field(default=multiply_add, compare=False, repr=False)  # Any: a function as `arithmetic` is

    a_place: ClassVar[OperandPlace] = OperandPlace.DESCRIPTOR
    b_place: ClassVar[OperandPlace] = OperandPlace.DESCRIPTOR
    is_asynchronous: ClassVar[bool] = True

    def with_majors(self, a: Major, b: Major) -> WarpgroupMMAAtom:
        """Return the atom that takes A and B with K contiguous ("K"), or with M or N contiguous ("MN").

        >>> import tilewright as tw
        >>> tw.atoms.SM90_64x128x16_F32BF16BF16_SS.with_majors("MN", "K").name
        "SM90_64x128x16_F32BF16BF16_SS.with_majors('MN', 'K')"

        Raises `LayoutError` where the instruction has no such form: for types of other than 16 bits, and for A in
        registers.
        """
        for name, major in (("A", a), ("B", b)):
            if major not in ("K", "MN"):
                raise LayoutError(f"{self.name}.with_majors: the major of {name} is 'K' or 'MN', not {major!r}")
        if (a, b) != ("K", "K") and self.dtype_a.bits != 16:
            raise LayoutError(
                f"{self.name} takes K-major operands only, not ({a!r}, {b!r}): elements have {self.dtype_a.bits} bits",
                help="wgmma transposes elements of 16 bits; let K be contiguous in shared memory",
            )
        if a != "K" and self.a_place is OperandPlace.REGISTERS:
            raise LayoutError(
                f"{self.name} takes A from registers, where it has no major: with_majors('K', {b!r})",
                help="the layout of a fragment says which elements a thread holds",
            )
        return self._renamed(majors=(a, b))

    def with_signs(self, a: int = 1, b: int = 1) -> WarpgroupMMAAtom:
        """Return the atom that computes D = (a A) (b B) + D for signs a and b, 1 or -1 (PTX imm-scale-a, imm-scale-b).

        Raises `LayoutError` for other numbers, and for integers, whose instruction has no signs.
        """
        if not {a, b} <= {1, -1}:
            raise LayoutError(f"{self.name}.with_signs: signs are 1 or -1, not ({a!r}, {b!r})")
        if (a, b) != (1, 1) and not self.dtype_d.is_float:
            raise LayoutError(f"{self.name} multiplies integers, and wgmma negates floats only")
        return self._renamed(signs=(a, b))

    def _renamed(self, **changes: Any) -> WarpgroupMMAAtom:
        atom = replace(self, **changes)
        name = self.name.split(".")[0]
        name += "" if atom.majors == ("K", "K") else f".with_majors{atom.majors}"
        name += "" if atom.signs == (1, 1) else f".with_signs{atom.signs}"
        return replace(atom, name=name)

    def sizes_of_n(self, extent: int) -> list[int]:
        """Return the N of the atoms like this one that divide an extent."""
        name, n = self.name.split(".")[0], self.shape_mnk[1]
        sizes = range(8, 257, 8)
        return [each for each in sizes if extent % each == 0 and name.replace(f"64x{n}x", f"64x{each}x") in NAMES]

    def runs_on(self, arch: Arch) -> bool:
        """Return whether a target has the instruction: sm_90a, and none before or after it."""
        return arch.name == self.arch

    @property
    def registers_a(self) -> Registers:
        """How a thread passes its part of A: as the one descriptor of all of it."""
        return Registers(uint64, 1, 1)

    @property
    def registers_b(self) -> Registers:
        """How a thread passes its part of B: as the one descriptor of all of it."""
        return Registers(uint64, 1, 1)


def words_of(dtype: DType, layout: Layout) -> Registers:
    """Return how a thread passes a fragment of A: as words of 32 bits."""
    lanes, values = max(32 // dtype.bits, 1), layout[1].size
    assert isinstance(values, int), layout
    return Registers(uint32, values // lanes, lanes)


_NAME = re.compile(r"SM90_64x(\d+)x(\d+)_(\w+?)_([SR])S(?:_TN)?(?:_(SATURATE))?")
_TYPE = re.compile("|".join(sorted(_TYPES, key=len, reverse=True)))


def make_atom(name: str, shared: type[WarpgroupMMAAtom], registers: type[WarpgroupMMAAtom]) -> WarpgroupMMAAtom:
    """Return the atom of a name in `NAMES`, of one class where A is in shared memory and of another where it is not."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    n, k = int(match[1]), int(match[2])
    (d, dtype_d), (a, dtype_a), (b, dtype_b) = (_TYPES[found] for found in _TYPE.findall(match[3]))
    kind = shared if match[4] == "S" else registers
    saturates = ".satfinite" if match[5] else ""
    product = multiply_add_saturating if saturates else multiply_add_tf32 if dtype_a is t.tfloat32 else multiply_add
    return kind(
        name, "sm_90a", (ROWS, n, k), dtype_d, dtype_a, dtype_b, dtype_d, Layout(THREADS),
        _whole(ROWS, k) if match[4] == "S" else _spread(k, max(32 // dtype_a.bits, 1)),
        _whole(n, k), _spread(n, 2), _multiply, product=product,
        instruction=f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{saturates}.{d}.{a}.{b}",
    )  # fmt: skip


def _whole(rows: int, k: int) -> Layout:
    """Return the layout of an operand that every thread sees whole."""
    return Layout((THREADS, (rows, k)), (0, (1, rows)))


def _spread(columns: int, neighbours: int) -> Layout:
    """Return the layout of registers: a lane has `neighbours` columns, four lanes a row, of 64 rows by four warps."""
    step = 4 * neighbours
    values = [(neighbours, ROWS), (2, 8), (columns // step, step * ROWS)]
    kept = [mode for mode in values if mode[0] > 1]
    shape, stride = (tuple(mode[i] for mode in kept) for i in (0, 1))
    return Layout(((4, 8, 4), shape), ((neighbours * ROWS, 1, 16), stride))


def _multiply(atom: MMAAtom, a: Array, b: Array, c: Array) -> Array:
    """Compute the product with the signs of A and B; `product` says how sums are rounded."""
    assert isinstance(atom, WarpgroupMMAAtom), atom
    if atom.signs[0] * atom.signs[1] < 0:
        a = np.negative(a)
    found: Array = atom.product(atom, a, b, c)
    return found
