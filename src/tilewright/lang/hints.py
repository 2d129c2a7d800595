"""Which access of a copy carries the cache hints of its atom."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.atoms import CopyAtom
from tilewright.atoms.copy import LOADS, STORES, CacheHints
from tilewright.errors import LanguageError
from tilewright.ir.core import Space
from tilewright.lang.tracer import Tracer
from tilewright.tensors import Tensor


def split_hints(
    tracer: Tracer, atom: CopyAtom | None, src: Tensor, dst: Tensor
) -> tuple[CacheHints | None, CacheHints | None]:
    """Return the hints of a copy's load and of its store: those that each can carry, on global memory.

    Raises `LanguageError` where neither can, and where the target lacks them.
    """
    if atom is None or atom.hints is None:
        return None, None
    hints = atom.hints
    if hints.arch and tracer.arch.number < Arch.parse(hints.arch).number:
        raise LanguageError(
            f"tw.copy: {atom.name} needs {hints.arch} or later, and the target is {tracer.arch.name}",
            details=[f"from {src.title}", f"to {dst.title}"],
            help="leave out policy= and prefetch=; cache= works everywhere"
            if not atom.is_asynchronous
            else "leave out policy= and prefetch=",
        )
    of_load = hints if hints.loads and _is_global(src) else None
    of_store = hints if hints.stores and _is_global(dst) else None
    if of_load is None and of_store is None:
        raise LanguageError(
            f"tw.copy: {atom.name} has cache hints that neither side can carry",
            details=[f"from {src.title}", f"to {dst.title}"],
            help=f"hints are for global memory: a load takes cache= {', '.join(LOADS)} and prefetch=, "
            f"a store cache= {', '.join(STORES)}",
        )
    return of_load, of_store


def _is_global(tensor: Tensor) -> bool:
    found: bool = tensor.engine.buffer.space is Space.GLOBAL
    return found
