"""Copy atoms as data: one load or store of one thread, one asynchronous copy, or a warp's copy of matrices.

`CacheHints` say what an access to global memory may tell the caches: operators, eviction priorities, prefetched bytes.
Hints change how fast data comes, never what comes: the simulator ignores them.

Source: PTX ISA, "Cache Operators", "Cache Eviction Priority Hints", "ld", "st", "cp.async", "createpolicy".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from tilewright.arguments import shown
from tilewright.dtypes import DType
from tilewright.errors import LanguageError, LayoutError
from tilewright.layout import Layout, upcast
from tilewright.layout.display import Displayed

# Cache operators of loads and of stores, and priorities of a line in L1, which both take.
LoadOperator = Literal["ca", "cg", "cs", "lu"]
StoreOperator = Literal["wb", "cg", "cs", "wt"]
L1Priority = Literal["L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"]
L2Policy = Literal["evict_normal", "evict_unchanged", "evict_first", "evict_last"]
LOADS: tuple[str, ...] = (*get_args(LoadOperator), *get_args(L1Priority))
STORES: tuple[str, ...] = (*get_args(StoreOperator), *get_args(L1Priority))
POLICIES: tuple[str, ...] = get_args(L2Policy)
PREFETCHES = (64, 128, 256)  # bytes


@dataclass(frozen=True)
class CacheHints:
    """The hints of one access.

    - `cache`: an operator ("ca" all levels, "cg" L2 only, "cs" streaming, "lu" last use; of stores "wb" write back,
      "wt" write through) or what becomes of the line in L1 ("L1::no_allocate", "L1::evict_first", ...);
    - `policy`: what becomes of the line in L2 ("evict_first", "evict_last", ...), by a cache policy;
    - `prefetch`: how many bytes around the address a load may bring to L2.

    >>> CacheHints("cs", prefetch=128).arch, CacheHints(policy="evict_last").arch
    ('sm_75', 'sm_80')

    Raises `LayoutError` for what PTX does not have.
    """

    cache: str | None = None
    policy: str | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        for what, given, legal in (
            ("cache", self.cache, tuple(dict.fromkeys((*LOADS, *STORES)))),
            ("policy", self.policy, POLICIES),
            ("prefetch", self.prefetch, PREFETCHES),
        ):
            hint: object = given  # an array would not say whether it is one of these
            if hint is not None and not (isinstance(hint, (str, int)) and hint in legal):
                raise LayoutError(
                    f"cache hints: {what} is {shown(hint)}, and it is one of {', '.join(map(repr, legal))}"
                )

    @property
    def arch(self) -> str:
        """The first target that has all of them."""
        if self.policy is not None or self.prefetch == 256:
            return "sm_80"
        return "sm_75" if self.prefetch is not None else ""

    @property
    def loads(self) -> bool:
        """True where a load can carry them."""
        return self.cache is None or self.cache in LOADS

    @property
    def stores(self) -> bool:
        """True where a store can carry them."""
        return self.prefetch is None and (self.cache is None or self.cache in STORES)

    def __str__(self) -> str:
        given = (("cache", self.cache), ("policy", self.policy), ("prefetch", self.prefetch))
        return ", ".join(f"{name}={value!r}" for name, value in given if value is not None)


def hints_or_none(cache: str | None, policy: str | None, prefetch: int | None) -> CacheHints | None:
    """Return the hints, or None where there is none."""
    return None if cache is None and policy is None and prefetch is None else CacheHints(cache, policy, prefetch)


@dataclass(frozen=True)
class CopyAtom(Displayed):
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
        """True if the copied data is available only after a wait."""
        return False

    @property
    def is_bulk(self) -> bool:
        """True if one thread starts the copy of a whole tile."""
        return False

    def copy_bulk(
        self, src: Any, dst: Any, barrier: Any, mask: Any = None
    ) -> None:  # Any: tensors, an mbarrier, a number
        """Emit the copy of a whole tile by one thread."""
        raise LanguageError(f"tw.copy: {self.name} copies no whole tiles")

    def copy_together(self, src: Any, dst: Any) -> None:  # Any: tensors of a kernel, a layer above atoms
        """Emit the copy of partitions of a tiled copy, for an instruction that several threads carry out together."""
        raise LanguageError(
            f"tw.copy: {self.name} is carried out by {self.threads} threads together and names no instruction"
        )

    def check(self, copy: Any, width: int) -> None:  # Any: the copy that is being lowered, see trace.vectors
        """Reject what the instruction cannot do, with the hardware's reason; ordinary accesses can do everything."""

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
                f"{self.name} moves {self.bits} bits, not a whole number of {dtype} elements of {dtype.bits} bits",
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
