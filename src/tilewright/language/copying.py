"""`tw.copy`, `tw.fill`, `tw.clear`, `tw.axpby`: operations on all elements of tensors.

    copy(src, dst)           the widest vector that both layouts and the known alignment allow
    copy(tiled_copy, s, d)   the atom's instruction and width, or an error that says what does not fit

A copy lowers to loops over register and view indices. From global to shared memory it uses cp.async where the
target has it (sm_80 and later) and the vector is 4, 8 or 16 bytes; such a copy is complete after `tw.cp_async_wait`.
"""

from __future__ import annotations

from typing import Any

from tilewright.arch import Arch
from tilewright.arguments import instance, shown
from tilewright.atoms import CopyAtom, UniversalCopy
from tilewright.dtypes import bool_
from tilewright.errors import LanguageError
from tilewright.instructions import cp_async
from tilewright.instructions.mbarrier import MBarrier
from tilewright.ir.core import Space
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.tiled import TiledCopy
from tilewright.trace.control import truth
from tilewright.trace.edges import along, conjunction, copy_guarded, fill_guarded, limits_of
from tilewright.trace.engine import BufferEngine
from tilewright.trace.memory import fragment_like
from tilewright.trace.vectors import VectorCopy
from tilewright.trace.walks import common_walk, each_step, place


def copy(
    *arguments: Any, pred: Any = None, count: Any = None, barrier: MBarrier | None = None, mask: Any = None
) -> None:
    """Copy a tensor: `copy(src, dst)`, or `copy(atom_or_tiled_copy, src, dst)` by the instruction of an atom.

    Law: dst[c] = src[c] for every coordinate c; with `pred`, only where pred[c] holds; elsewhere shared memory and
    registers get zeros, and global memory is not written. `pred` is a bool, or a bool tensor of the shape of the
    tensors (with modes of stride 0, one bool applies to many elements).

    With `count`, only where the index in mode 0 is less than count[c], so that the last access of a row may copy fewer
    elements than its width: mode 0 of a partition holds what one thread copies at once. `count` is an integer (zero or
    less copies nothing) or an integer tensor of the shape of the tensors, with stride 0 in mode 0.

    In guarded tiles (`tw.guarded`), elements outside of the source read as its fill, and elements outside of the
    destination are not written.

    The atoms of bulk copies (such as `SM90_TMA_LOAD`) move a guarded tile from or to shared memory; one thread starts
    the copy. Loads signal `barrier`, the mbarrier of one stage, when their bytes have arrived.
    `SM90_TMA_LOAD_MULTICAST` copies the tile to every block of the cluster whose bit is set in `mask`, to the same
    offset in each, and signals the mbarrier that each has at the offset of `barrier`.

    Raises `LanguageError` for shapes or element types that differ, and for layouts without the width or alignment that
    the atom needs. Source: CuTe `copy`, `copy_if`.
    """
    atom: CopyAtom | None = None
    if len(arguments) == 3:
        first, src, dst = arguments
        atom = first.atom if isinstance(first, TiledCopy) else first
        if not isinstance(atom, CopyAtom):
            raise LanguageError(f"tw.copy: the first of three arguments is a copy atom or tiled copy, got {first!r}")
    elif len(arguments) == 2:
        src, dst = arguments
    else:
        raise LanguageError("tw.copy takes (src, dst) or (tiled_copy, src, dst)")
    for name, tensor in (("src", src), ("dst", dst)):
        if not isinstance(tensor, Tensor):
            raise LanguageError(f"tw.copy: {name} is a {type(tensor).__name__}, and it must be a tensor")
    if src.dtype is not dst.dtype:
        raise LanguageError(
            f"tw.copy: src is {src.dtype} and dst is {dst.dtype}",
            help="convert in registers: load into a fragment, and store x.to(dtype) element by element",
        )
    if atom is not None and atom.is_bulk:
        _copy_bulk(atom, src, dst, pred, count, barrier, mask)
        return
    if mask is not None:
        raise LanguageError(
            "tw.copy: mask= names the blocks of a cluster that get a tile, and this copy goes to one",
            help="give the atom, tw.copy(tw.atoms.SM90_TMA_LOAD_MULTICAST, tile, smem, barrier=full, mask=0b11); "
            "a predicate is pred=",
        )
    if barrier is not None:
        raise LanguageError(
            "tw.copy: barrier= is told of the bytes of a bulk load, and this copy is none",
            help="give the atom: tw.copy(tw.atoms.SM90_TMA_LOAD, tile, smem, barrier=full[stage]); behind cp.async "
            "write full[stage].cp_async_arrive()",
        )
    if not isinstance(src.engine, BufferEngine) and not isinstance(dst.engine, BufferEngine):
        dst[...] = src
        return
    if isinstance(src, GuardedTensor) or isinstance(dst, GuardedTensor):
        copy_guarded(src, dst, atom, pred, count, _fastest)
        return
    if atom is not None and atom.threads > 1:
        if pred is not None or count is not None:
            raise LanguageError(
                f"tw.copy: {atom.name} takes neither pred nor count: a whole warp executes it",
                help="predicate the copy that fills shared memory",
            )
        atom.copy_together(src, dst)
        return
    if pred is not None and count is not None:
        raise LanguageError(
            "tw.copy takes pred or count, not both", help="let count be 0 where the predicate does not hold"
        )
    VectorCopy(src, dst, atom, truth(pred), count, _fastest).emit()


def _copy_bulk(
    atom: CopyAtom, src: Tensor, dst: Tensor, pred: Any, count: Any, barrier: MBarrier | None, mask: Any
) -> None:
    given: object = barrier
    if pred is not None or count is not None:
        raise LanguageError(
            f"tw.copy: {atom.name} takes neither pred nor count: it knows what lies outside of the tensor",
            help="start the copy under a branch",
        )
    if given is not None and not isinstance(given, MBarrier):
        raise LanguageError(f"tw.copy: barrier is the tw.mbarrier of one stage, got {shown(given)}")
    atom.copy_bulk(src, dst, barrier, mask)


def _fastest(spaces: tuple[Space, Space], bits: int, arch: Arch) -> CopyAtom:
    """Choose cp.async where the target has it and it fits."""
    if cp_async.reaches(spaces, bits // 8):
        return cp_async.atom_for(bits, arch) or UniversalCopy(bits)
    return UniversalCopy()


def fill(tensor: Tensor, value: Any) -> None:
    """Set every element: tensor[c] = value for every coordinate c."""
    instance("tw.fill", "tensor", tensor, Tensor, "a tensor")
    if not isinstance(tensor.engine, BufferEngine):
        tensor[...] = value
        return
    if isinstance(tensor, GuardedTensor):
        fill_guarded(tensor, value)
        return
    walk = common_walk([tensor], "tw.fill")
    each_step(walk, lambda steps: tensor.engine.store(place(tensor, steps[0]), value))


def clear(tensor: Tensor) -> None:
    """Set every element to 0."""
    instance("tw.clear", "tensor", tensor, Tensor, "a tensor")
    fill(tensor, 0)


def axpby(a: Any, x: Tensor, b: Any, y: Tensor) -> None:
    """Compute y[c] = a * x[c] + b * y[c] for every coordinate c; y is not read where b is the number 0.

    Source: CuTe `axpby`.
    """
    instance("tw.axpby", "x", x, Tensor, "a tensor")
    instance("tw.axpby", "y", y, Tensor, "a tensor")
    if isinstance(x, GuardedTensor) or isinstance(y, GuardedTensor):
        result = copied_fragment(y)
        axpby(a, copied_fragment(x), b, result)
        copy(result, y)
        return
    walk = common_walk([x, y], "tw.axpby")

    def step(steps: tuple[Any, ...]) -> None:
        px, py = place(x, steps[0]), place(y, steps[1])
        value = x.engine.load(px)
        result = value if _is_number(a, 1) else a * value
        if not _is_number(b, 0):
            old = y.engine.load(py)
            result = result + (old if _is_number(b, 1) else b * old)
        y.engine.store(py, result)

    each_step(walk, step)


def _is_number(x: Any, value: int) -> bool:
    return isinstance(x, (int, float)) and x == value


def copied_fragment(tensor: Tensor) -> Tensor:
    """Return a register tensor with the elements of another."""
    fragment = fragment_like(tensor)
    copy(tensor, fragment)
    return fragment


def inside(tensor: Tensor) -> Tensor:
    """Return a fragment of bools: which elements of a tile are inside of the tensor that it was cut from.

    Law: inside(t)[c] == t.inside(c) for every coordinate c. Raises `LayoutError` for a dynamic shape.
    """
    instance("tw.inside", "tensor", tensor, Tensor, "a tensor")
    mask = fragment_like(tensor, bool_)
    limits = limits_of(tensor)
    walk = common_walk([mask, *along(limits)], "tw.inside")

    def step(steps: tuple[Any, ...]) -> None:
        mask.engine.store(place(mask, steps[0]), conjunction(limits, steps[1:]))

    each_step(walk, step)
    return mask
