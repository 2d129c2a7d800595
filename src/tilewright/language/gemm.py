"""`tw.gemm`: fragments multiplied by an instruction of a TiledMMA.

    D[v, m, n] += sum over k of A[v, m, k] * B[v, n, k]

Without a TiledMMA or an atom, plain tensors are multiplied by the universal multiply-add. It lowers to loops over the
fragments' modes with one instruction inside; the universal multiply-add becomes a fused multiply-add of the element
type, an atom of a warp its instruction (`matrix`).
"""

from __future__ import annotations

from typing import Any

from tilewright import atoms
from tilewright.arch import Arch
from tilewright.arguments import instance
from tilewright.atoms import MMAAtom
from tilewright.dtypes import uint16
from tilewright.errors import LanguageError
from tilewright.instructions.fma import UniversalFMA
from tilewright.instructions.mfma import NAMES as MFMAS
from tilewright.instructions.mma import NAMES as WARP_MMAS
from tilewright.ir.core import Space
from tilewright.language.copying import copied_fragment
from tilewright.layout import Layout, make_layout, prepend
from tilewright.layout.layouts import from_modes, inside, modes_of
from tilewright.tensors import Tensor
from tilewright.tiled import TiledMMA
from tilewright.trace.tracer import current


def gemm(
    mma: Any, *tensors: Tensor, accumulate: Any = True, metadata: Tensor | None = None
) -> None:  # Any: a bool of host or device
    """Multiply fragments and add: `gemm(mma, d, a, b, c)` computes d = a b + c, `gemm(mma, a, b, c)` adds to c.

    The fragments are those of `mma` (or of an atom): a with modes (V, M, K), b (V, N, K), c and d (V, M, N). The mode K
    may be left out, and M of a and N of b as well, where c and d leave them out too: (V) times (V, N) adds to (V, N).
    Operands in shared or global memory are first copied into registers, a step of K at a time.

    Without `mma`, `gemm(a, b, c)` and `gemm(d, a, b, c)` take plain tensors of one thread and use the universal
    multiply-add of their types. Their ranks determine the product, and V is element-wise:

        (V) x (V) => (V)                    (V, M) x (V, N) => (V, M, N)
        (M) x (N) => (M, N)                 (V, M, K) x (V, N, K) => (V, M, N)
        (M, K) x (N, K) => (M, N)

    An atom of one value each, such as `tw.atoms.UniversalFMA`, takes the same ranks.

    An atom of a warpgroup (`SM90_64x128x16_F32BF16BF16_SS`) takes operands as partitions of shared memory, and c must
    not be accessed until `tw.wgmma_wait`. With `accumulate=False`, or a bool that is false, the first step of K
    overwrites c, so that `tw.clear` is not needed. An atom with a sparse a (`GMMA_64x128x32_F32BF16BF16_SS`) takes
    `metadata`, a fragment (V, M, K) that says which elements are kept.

    Raises `LanguageError` where the modes do not match the atom or one another. Source: CuTe `gemm`.
    """
    if isinstance(mma, Tensor):
        mma, tensors = None, (mma, *tensors)
    elif isinstance(mma, TiledMMA):
        mma = mma.atom
    if mma is not None and not isinstance(mma, MMAAtom):
        raise LanguageError(f"tw.gemm: the first argument is a tiled mma, an atom or a tensor, got {mma!r}")
    if len(tensors) == 3:
        a, b, c = tensors
        d = c
    elif len(tensors) == 4:
        d, a, b, c = tensors
    else:
        raise LanguageError("tw.gemm takes (mma, a, b, c) or (mma, d, a, b, c), or the tensors alone")
    for name, tensor in zip("abcd", (a, b, c, d), strict=True):
        instance("tw.gemm", name, tensor, Tensor, "a tensor")
    in_place = c is d
    atom: MMAAtom = UniversalFMA(d.dtype, a.dtype, b.dtype, c.dtype) if mma is None else mma
    if _has_one_value(atom):
        d, a, b, c = _with_values(d, a, b, c)
    c, d = (_with_both_modes(t, a, b) for t in (c, d))
    a, b = _with_k(a), _with_k(b)
    _check(atom, d, a, b, c)
    _demand_target(atom, a, b)
    _check_metadata(atom, a, metadata)
    if atom.is_asynchronous:
        if not in_place:
            raise LanguageError(
                f"tw.gemm: {atom.name} adds to its accumulator in place, so that c and d are one tensor",
                details=[f"c: {c.title}", f"d: {d.title}"],
                help="write tw.gemm(mma, a, b, c)",
            )
        atom.begin(d, a, b, accumulate, None if metadata is None else _with_k(metadata))
        return
    if accumulate is not True:
        raise LanguageError(
            f"tw.gemm: accumulate= is for atoms of a warpgroup, and {atom.name} always adds c",
            help="clear the accumulator before: tw.clear(c)",
        )
    if _is_fragment(a) and _is_fragment(b) and (c is d or _extent(a, 2) == 1):
        atom.multiply(d, a, b, c)
        return
    for k in range(_extent(a, 2)):
        step_a, step_b = (_with_k(_operand(t[:, :, k])) for t in (a, b))
        atom.multiply(d, step_a, step_b, c if k == 0 else d)


def _has_one_value(atom: MMAAtom) -> bool:
    """Say whether a thread holds one value of each operand, so that a mode V adds nothing."""
    return all(layout[1].size == 1 for layout in (atom.layout_a, atom.layout_b, atom.layout_c))


def _with_values(d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (M) x (N) => (M, N) and (M, K) x (N, K) => (M, N) with a mode V of one value, and other ranks as they are.

    (V, M) x (V) => (V, M) and its like have other ranks: they leave a mode out.
    """
    ranks = (a.rank, b.rank, c.rank, d.rank)
    if ranks == (1, 1, 2, 2) or ranks == (2, 2, 2, 2):
        front = inside(lambda layout: prepend(from_modes(modes_of(layout)), Layout(1, 0)))
        d, a, b, c = (t.map_layout(front) for t in (d, a, b, c))
    return d, a, b, c


def _with_k(tensor: Tensor) -> Tensor:
    """Return an operand with all of its three modes, those left out of extent 1."""
    if not 1 <= tensor.rank <= 3:
        raise LanguageError(f"tw.gemm: a fragment has the modes (V, M) or (V, M, K), got {tensor.layout}")
    missing = [Layout(1, 0)] * (3 - tensor.rank)
    modes = range(tensor.rank)
    return tensor.map_layout(inside(lambda layout: make_layout(*(layout[mode] for mode in modes), *missing)))


def _with_both_modes(accumulator: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return c or d with the modes (V, M, N), where M and N may be missing as they are in a and b."""
    if accumulator.rank != 3 - (a.rank == 1) - (b.rank == 1):
        return accumulator  # refused later, where the extents are compared

    def widen(layout: Layout) -> Layout:
        modes = [layout[mode] for mode in range(1, accumulator.rank)]
        m = modes.pop(0) if a.rank > 1 else Layout(1, 0)
        n = modes.pop(0) if b.rank > 1 else Layout(1, 0)
        return make_layout(layout[0], m, n)

    return accumulator.map_layout(widen) if accumulator.rank < 3 else accumulator


def _extent(tensor: Tensor, mode: int) -> int:
    size = tensor.layout[mode].size
    if not isinstance(size, int):
        raise LanguageError(f"tw.gemm: the extents of a fragment are static, got {tensor.layout}")
    return size


def _check(atom: MMAAtom, d: Tensor, a: Tensor, b: Tensor, c: Tensor) -> None:
    m, n = _extent(a, 1), _extent(b, 1)
    extents = (m, n)
    for name, tensor in (("c", c), ("d", d)):
        if tensor.rank != 3 or (_extent(tensor, 1), _extent(tensor, 2)) != extents:
            raise LanguageError(
                f"tw.gemm: {name} has modes {tensor.layout.shape}, and a and b need (V, {m}, {n})",
                details=[f"a: {a.title}", f"b: {b.title}", f"{name}: {tensor.title}"],
                help=f"the mode V of {name} holds {atom.layout_c[1].size} values; partition_fragment_C of a tile of "
                "these extents makes it",
            )
    if _extent(a, 2) != _extent(b, 2):
        raise LanguageError(
            f"tw.gemm: a has {_extent(a, 2)} steps of K and b has {_extent(b, 2)}",
            details=[f"a: {a.title}", f"b: {b.title}"],
            help="partition tiles of one extent along K, or take the same steps of both: a[:, :, k], b[:, :, k]",
        )
    if atom.layout_d is not None and _extent(a, 2) > 1:
        raise LanguageError(
            f"tw.gemm: {atom.name} takes c of {atom.dtype_c} and gives d of {atom.dtype_d}, so it makes one step of K, "
            f"and a has {_extent(a, 2)}",
            details=[f"a: {a.title}"],
            help="take a[:, :, 0] and b[:, :, 0] for the first step, and an atom whose c is as its d for the others",
        )
    for name, tensor, type in (
        ("a", a, atom.dtype_a),
        ("b", b, atom.dtype_b),
        ("c", c, atom.dtype_c),
        ("d", d, atom.dtype_d),
    ):
        if tensor.dtype is not type.storage:
            raise LanguageError(
                f"tw.gemm: {name} is {tensor.dtype}, and {atom.name} takes {type}",
                details=[f"{name}: {tensor.title}"],
                help="use tw.atoms.<name>.in_words() on tensors of uint32"
                if type.bits < 8
                else f"convert it (fragment.to(tw.{type.storage})), or take an atom for {tensor.dtype}",
            )


def _check_metadata(atom: MMAAtom, a: Tensor, metadata: Tensor | None) -> None:
    if atom.layout_e is None:
        if metadata is not None:
            raise LanguageError(
                f"tw.gemm: metadata= is for atoms with a sparse a, and {atom.name} takes all of its elements",
                help="leave it out, or take one of the atoms GMMA_64x...",
            )
        return
    if metadata is None:
        raise LanguageError(
            f"tw.gemm: {atom.name} takes a sparse a, and metadata that says which of its elements are kept",
            help="load it into registers: thread.make_fragment_E(thread.partition_E(words)), and pass metadata=",
        )
    instance("tw.gemm", "metadata", metadata, Tensor, "a tensor")
    whole = _with_k(metadata)
    extents, wanted = ((_extent(t, 1), _extent(t, 2)) for t in (whole, a))
    if metadata.dtype is not uint16 or extents != wanted:
        raise LanguageError(
            f"tw.gemm: metadata is uint16 with modes (V, M, K) as a, here (V, {wanted[0]}, {wanted[1]})",
            details=[f"metadata: {metadata.title}", f"a: {a.title}"],
            help="partition it with the tiled mma: thread.make_fragment_E(thread.partition_E(words))",
        )


def _demand_target(atom: MMAAtom, a: Tensor, b: Tensor) -> None:
    arch = current("tw.gemm").arch
    if not atom.runs_on(arch):
        has_newer = arch.has_instructions_of(Arch.parse(atom.arch))
        raise LanguageError(
            f"tw.gemm: {arch.name} no longer has {atom.name}, an instruction of {atom.arch}"
            if has_newer
            else f"tw.gemm: {atom.name} needs {atom.arch} or later, and the target is {arch.name}",
            details=[f"a: {a.title}", f"b: {b.title}"],
            help=_alternatives(atom, arch),
        )


def _alternatives(atom: MMAAtom, arch: Arch) -> str:
    """Return which atoms of a target take the types that an atom takes, as a help text."""
    fitting = [
        name
        for name in (*WARP_MMAS, *MFMAS)
        if (known := getattr(atoms, name)).runs_on(arch)
        and (known.dtype_a, known.dtype_b, known.dtype_c, known.dtype_d)
        == (atom.dtype_a, atom.dtype_b, atom.dtype_c, atom.dtype_d)
    ]
    if fitting:
        return f"{arch.name} has {', '.join(fitting)}"
    return (
        f"no atom of {arch.name} multiplies {atom.dtype_a} by {atom.dtype_b} to {atom.dtype_d}; convert the operands, "
        "for example to float16"
    )


def _is_fragment(tensor: Tensor) -> bool:
    """Say whether the elements are in registers, at the places of a plain layout."""
    return tensor.engine.buffer.space is Space.REGISTER and isinstance(tensor.layout, Layout)


def _operand(tensor: Tensor) -> Tensor:
    return tensor if _is_fragment(tensor) else copied_fragment(tensor)
