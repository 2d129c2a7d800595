"""Copy atoms as data: one load or store of one thread, one asynchronous copy, or a warp's copy of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.atoms.cache import CacheHints, hints_or_none
from tilewright.dtypes import DType
from tilewright.errors import LanguageError, LayoutError
from tilewright.layout import Layout, upcast


@dataclass(frozen=True)
class CopyAtom:
    """One copy instruction.

    `layout_src` and `layout_dst` map (thread, value) to a position in the data that the instruction moves; the two
    together say which value of which thread goes where. Values are bits where `bits` is given and elements of any
    type where it is None; `src_tv(dtype)` and `dst_tv(dtype)` give them in elements. `layout_ref` is the side that
    tiled copies are described by. `arch` is the first target that has the instruction ("" for all).

    >>> from tilewright.dtypes import float32
    >>> atom = UniversalCopy(128)
    >>> print(atom.src_tv(float32), atom.values(float32))
    (1,4):(0,1) 4
    """

    name: str
    arch: str
    bits: int | None
    thr_id: Layout
    layout_src: Layout
    layout_dst: Layout
    layout_ref: Layout | None = None
    hints: CacheHints | None = None  # of accesses to global memory

    @property
    def is_asynchronous(self) -> bool:
        """True where what the instruction copies is there only after a wait."""
        return False

    def copy_together(self, src: Any, dst: Any) -> None:  # Any: tensors of a kernel, which stand above atoms
        """Emit the copy of partitions of a tiled copy, for an instruction that several threads carry out together."""
        raise LanguageError(
            f"tw.copy: {self.name} is carried out by {self.threads} threads together and names no instruction"
        )

    def check(self, copy: Any, width: int) -> None:  # Any: the copy that is being lowered, see language.copying
        """Refuse what the instruction cannot do, with the hardware's reason; ordinary accesses do everything."""

    def move(self, copy: Any, places: list[Any], width: int, guard: Any) -> None:  # Any: as above, and numbers
        """Emit the copy of `width` elements from and to `places`, where and as far as `guard` says."""
        copy.load_and_store(places, width, guard)

    @property
    def threads(self) -> int:
        """The number of threads that carry the instruction out together."""
        count = self.thr_id.size
        assert isinstance(count, int), self.thr_id
        return count

    def values(self, dtype: DType) -> int:
        """Return the number of elements that each thread holds on the reference side."""
        count = self.ref_tv(dtype)[1].size
        assert isinstance(count, int), self.layout_src
        return count

    def src_tv(self, dtype: DType) -> Layout:
        """Return the thread-value layout of the source in elements."""
        return self._in_elements(self.layout_src, dtype)

    def dst_tv(self, dtype: DType) -> Layout:
        """Return the thread-value layout of the destination in elements."""
        return self._in_elements(self.layout_dst, dtype)

    def ref_tv(self, dtype: DType) -> Layout:
        """Return the thread-value layout of the reference side in elements."""
        return self._in_elements(self.layout_src if self.layout_ref is None else self.layout_ref, dtype)

    def _in_elements(self, layout: Layout, dtype: DType) -> Layout:
        if self.bits is None:
            return layout
        if self.bits % dtype.bits:
            raise LayoutError(
                f"{self.name} moves {self.bits} bits, no whole number of {dtype} elements of {dtype.bits} bits",
                help=f"use an atom of {dtype.bits} bits or a multiple",
            )
        found: Layout = upcast(layout, dtype.bits)
        return found

    def __str__(self) -> str:
        return self.name


def bits_of(width: int | DType | None) -> int | None:
    """Return the bits of a width, which may be given as an element type."""
    return width.bits if isinstance(width, DType) else width


def one_thread(bits: int | None) -> Layout:
    """Return the thread-value layout of an access by one thread: of so many bits, or of one element."""
    return Layout((1, 1 if bits is None else bits), (0, 0 if bits is None else 1))


def UniversalCopy(
    width: int | DType | None = None,
    cache: str | None = None,
    *,
    policy: str | None = None,
    prefetch: int | None = None,
) -> CopyAtom:
    """Make the atom of an ordinary load and store by one thread, of `width` bits or one element of a type.

    Without a width it moves one element of whatever type the tensors have. `cache`, `policy` and `prefetch` are hints
    to the caches for the access to global memory, see `CacheHints`: `cache="cs"` for data that is used once,
    `cache="L1::no_allocate"`, `policy="evict_last"` for data that other blocks will ask L2 for (sm_80 and later).
    Loads of arrays that the kernel does not write then take the read-only way (`ld.global.nc`).

    >>> UniversalCopy(64).name, UniversalCopy(128, cache="cs").name
    ('UniversalCopy(64)', "UniversalCopy(128, cache='cs')")

    Raises `LayoutError` for a width that memory accesses do not have, and for hints that PTX does not have. Source:
    CuTe `UniversalCopy`; PTX ISA, "ld", "st".
    """
    bits = bits_of(width)
    if bits is not None and bits not in (8, 16, 32, 64, 128):
        raise LayoutError(f"a load or store moves 8, 16, 32, 64 or 128 bits, not {bits}")
    layout = one_thread(bits)
    hints = hints_or_none(cache, policy, prefetch)
    given = [str(part) for part in (bits, hints) if part is not None]
    return CopyAtom(f"UniversalCopy({', '.join(given)})", "", bits, Layout(1), layout, layout, hints=hints)
