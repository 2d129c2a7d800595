"""`tw.grouped_matmul`: products of many matrices in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple  # Any: arrays of any library

import numpy as np

from tilewright.arch import Arch
from tilewright.arguments import one_of
from tilewright.dtypes import dtype as as_dtype
from tilewright.dtypes import int32, int64
from tilewright.errors import ArgumentError
from tilewright.kernels._grouped_kernel import grouped_tiles, listed_tiles
from tilewright.kernels.choice import fastest
from tilewright.kernels.dispatch import machine_of
from tilewright.kernels.grouped_hopper import GroupedHopper, GroupedPlan, Ragged, RaggedProblem
from tilewright.kernels.matrices import Matrix, matrix_of, result_operand
from tilewright.kernels.model import Machine, lack_of_shared, resident_blocks
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.multistage_plan import Plan, plan_for
from tilewright.kernels.problem import Operand, Problem, Types, types_of
from tilewright.kernels.repeats import repeating, watch
from tilewright.kernels.results import array_beside, handing_over, host_array, maker_for
from tilewright.runtime.addresses import may_overlap_itself, range_of, share_memory
from tilewright.runtime.arrays import ArrayInfo, adapter_for, common_device, describe
from tilewright.runtime.dlpack import row_major
from tilewright.runtime.pointers import addresses
from tilewright.schedulers import Groups

Shape = tuple[int, ...]

HOPPER = GroupedHopper()


@repeating("out_dtype", "precision", "fill")
@handing_over
def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any = None,
    *,
    out: Any = None,
    out_dtype: Any = None,
    precision: str | None = None,
    fill: bool = True,
) -> Any:
    """Multiply groups of matrices in one launch: those of ragged experts, or lists of any shapes.

    With `offsets`, a vector of int32 or int64, one mode is ragged: group e has its indices from offsets[e - 1] (0 for
    the first) up to offsets[e]. The ranks of a and b determine which mode, as in torch._grouped_mm:

    | a | b | result | group e computes |
    |---|---|---|---|
    | (T, K) | (E, K, N) | (T, N) | result[rows of e] = a[rows of e] @ b[e] |
    | (M, T) | (T, N) | (E, M, N) | result[e] = a[:, columns of e] @ b[rows of e] |
    | (E, M, K) | (K, T) | (M, T) | result[:, columns of e] = a[e] @ b[:, columns of e] |

    >>> import numpy as np, tilewright as tw
    >>> x, w = np.ones((5, 8), np.float16), np.stack([np.full((8, 2), v, np.float16) for v in (1, 2, 3)])
    >>> tw.grouped_matmul(x, w, np.array([2, 2, 5], np.int32))[:, 0]
    array([ 8.,  8., 24., 24., 24.], dtype=float16)

    The gradients of a layer y = grouped_matmul(x, w, offsets) are grouped_matmul(dy, w.swapaxes(1, 2), offsets) for x,
    and grouped_matmul(x.T, dy, offsets) for w; transposed arrays are read in place.

    Offsets on a GPU are read by the kernel only. An offset below the previous one counts as the previous one, and one
    past the end as the end, so nothing is written out of bounds; offsets on the host that decrease or pass the end
    raise an error. Indices after the last offset belong to no group, and their results are 0, or with `fill=False` not
    written. A group may be empty; a product with K = 0 is 0.

    Without `offsets`, a and b are lists of matrices of any shapes, of one element type each, and the result is a list;
    `out` is a list then, too.

    Element types (without those of 8 bits), accumulators, `precision` and `out_dtype` are those of `tw.matmul`. Each
    element of a result is the sum of products in the same order on every call.

    Raises `ArgumentError` for arguments that do not fit together.
    """
    one_of("grouped_matmul", "fill", fill, (True, False))
    if offsets is None:
        return _multiply_lists(a, b, out, out_dtype, precision)
    return _multiply_ragged(a, b, offsets, out, out_dtype, precision, fill)


# --- ragged modes ----------------------------------------------------------------------------------------------------


def _multiply_ragged(a: Any, b: Any, offsets: Any, out: Any, out_dtype: Any, precision: str | None, fills: bool) -> Any:
    infos = {name: _described(name, x) for name, x in (("a", a), ("b", b), ("offsets", offsets))}
    ends = infos["offsets"]
    if ends.rank != 1 or ends.dtype not in (int32, int64):
        raise ArgumentError(f"offsets is a vector of int32 or int64, got {ends.dtype} of the shape {ends.shape}")
    if out is not None:
        infos["out"] = _described("out", out)
    device = common_device(list(infos.values()), list(infos))
    types = types_of_groups(infos["a"], infos["b"], infos.get("out"), out_dtype, precision)
    shape, total, ragged = _result_of(infos["a"].shape, infos["b"].shape, ends.shape[0])
    if device == "cpu":
        _check_offsets(host_array(offsets, "offsets"), total)
    if out is None:
        adapter = adapter_for(a)
        assert adapter is not None
        make = maker_for(adapter.library, shape, types.out, device)
        out, pointer = make()
        watch.makes(out, make, pointer)
        infos["out"] = ArrayInfo(pointer, shape, row_major(shape), types.out, device)
    else:
        _check_out("out", infos, shape)
    groups = ends.shape[0]
    if 0 in shape:
        return out
    a_matrix, b_matrix, d = (matrix_of(infos[n], x) for n, x in (("a", a), ("b", b), ("out", out)))
    b_matrix = b_matrix.transposed
    if ragged == "N":  # the transposed product has ragged rows
        d, a_matrix, b_matrix = d.transposed, b_matrix, a_matrix
    along: Ragged = "K" if ragged == "K" else "M"
    if not groups:  # no index belongs to a group
        if not fills and ragged != "K":
            return out
        offsets = array_beside(np.zeros(1, np.int32), out)
        b_matrix = replace(b_matrix, shape=(*b_matrix.shape[:2], 1))
    product = _Ragged(along, fills, groups, d, a_matrix, b_matrix, types, machine_of(device))
    launch = _launch_ragged
    if HOPPER.is_simulated or not isinstance(device, str):
        launch = _launch_warpgroups
    launch(product, offsets)
    return out


class _Ragged(NamedTuple):
    """A product of ragged groups; whether it `fills` the results of indices that belong to no group."""

    along: Ragged
    fills: bool
    groups: int
    d: Matrix
    a: Matrix
    b: Matrix
    types: Types
    machine: Machine


def _launch_warpgroups(p: _Ragged, offsets: Any) -> None:
    """Launch the Hopper kernel where it takes the problem, and the other one elsewhere."""
    operands = p.a.mapped(), p.b.mapped(), p.d.mapped_result()
    problem = RaggedProblem(p.along, *p.d.shape[:2], p.a.shape[1], p.groups, *operands, p.types)
    found = _chosen(HOPPER, problem, p.machine)
    if found is None or not p.groups:
        _launch_ragged(p, offsets)
    else:
        launcher, launched = found
        launched = launched if p.fills else replace(launched, fills=False)
        launcher(p.d.view(), p.a.view(), p.b.view(), offsets, launched)


def _launch_ragged(p: _Ragged, offsets: Any) -> None:
    along, groups = p.along, max(p.groups, 1)
    operands = (
        p.a.operand(0 if along == "M" else 1),
        p.b.operand(1 if along == "K" else None),
        result_operand(p.d, 0 if along == "M" else None),
    )
    (m, n, _), k = p.d.shape, p.a.shape[1]
    mean = (max(m // groups, 1), n, k) if along == "M" else (m, n, max(k // groups, 1))
    guarded = (1 if along == "M" else m, n, 1)
    plan, blocks = _planned(operands, mean, guarded, groups, p.types, p.machine)
    tile_m, tile_n, _ = plan.tile
    rows = -(-m // tile_m) + p.groups if along == "M" else -(-m // tile_m) * p.groups
    grid = min(rows * -(-n // tile_n), blocks)
    launched = GroupedPlan(along, Groups(), plan, fills=p.fills)
    grouped_tiles.configure(min_blocks=1)[grid, plan.threads](p.d.view(), p.a.view(), p.b.view(), offsets, launched)


def _result_of(a: Shape, b: Shape, groups: int) -> tuple[Shape, int, Literal["M", "N", "K"]]:
    """Return the shape of the result, the extent of the ragged mode, and which it is."""
    found: tuple[Shape, int, Literal["M", "N", "K"]]
    if len(a) == 2 and len(b) == 3:
        k, other, experts, found = a[1], b[1], b[0], ((a[0], b[2]), a[0], "M")
    elif len(a) == 2 and len(b) == 2:
        k, other, experts, found = a[1], b[0], groups, ((groups, a[0], b[1]), a[1], "K")
    elif len(a) == 3 and len(b) == 2:
        k, other, experts, found = a[2], b[0], a[0], ((a[1], b[1]), b[1], "N")
    else:
        raise ArgumentError(
            f"a and b have {len(a)} and {len(b)} modes; with offsets they have 2 and 3, 2 and 2, or 3 and 2",
            help="products of equal shapes are tw.matmul(a, b); lists of matrices take no offsets",
        )
    if k != other:
        raise ArgumentError(f"the shapes {a} and {b} have no product: a has {k} columns and b has {other} rows")
    if experts != groups:
        raise ArgumentError(f"there are {experts} matrices and {groups} offsets; each group has one")
    return found


def _check_offsets(offsets: np.ndarray[Any, Any], total: int) -> None:
    before = 0
    for place, end in enumerate(offsets.tolist()):
        if end < before:
            raise ArgumentError(
                f"offsets[{place}] is {end}, and the group begins at {before}",
                help="offsets are the ends of the groups: np.cumsum(sizes)",
            )
        if end > total:
            raise ArgumentError(f"offsets[{place}] is {end}, and there are {total} rows (columns) to share out")
        before = end


# --- lists -----------------------------------------------------------------------------------------------------------


def _multiply_lists(a: Any, b: Any, out: Any, out_dtype: Any, precision: str | None) -> list[Any]:
    for name, given in (("a", a), ("b", b), *((("out", out),) if out is not None else ())):
        if not isinstance(given, (list, tuple)):
            raise ArgumentError(
                f"{name} is a {type(given).__name__}; without offsets a, b and out are lists of matrices",
                help="for a ragged mode give offsets, the ends of the groups",
            )
    if len(a) != len(b) or (out is not None and len(out) != len(a)):
        raise ArgumentError(
            f"there are {len(a)} matrices a and {len(b)} b" + ("" if out is None else f" and {len(out)} out")
        )
    products, results = [], []
    known: list[tuple[str, ArrayInfo, bool]] = []
    for place, (x, y) in enumerate(zip(a, b, strict=True)):
        names = {"a": f"a[{place}]", "b": f"b[{place}]", "out": f"out[{place}]"}
        infos = {"a": _described(names["a"], x), "b": _described(names["b"], y)}
        if out is not None:
            infos["out"] = _described(names["out"], out[place])
        device = common_device(list(infos.values()), [names[n] for n in infos])
        for name, info in infos.items():
            if info.rank != 2:
                raise ArgumentError(f"{names[name]} is a matrix, got the shape {info.shape}")
        (m, k), (other, n) = infos["a"].shape, infos["b"].shape
        if k != other:
            raise ArgumentError(f"the shapes {(m, k)} and {(other, n)} of product {place} do not fit")
        types = types_of_groups(infos["a"], infos["b"], infos.get("out"), out_dtype, precision)
        if out is None:
            adapter = adapter_for(x)
            assert adapter is not None
            made, pointer = maker_for(adapter.library, (m, n), types.out, device)()
            infos["out"] = ArrayInfo(pointer, (m, n), row_major((m, n)), types.out, device)
        else:
            made = out[place]
            _check_out(names["out"], infos, (m, n))
            known += [(names[x], info, x == "out") for x, info in infos.items()]
        results.append(made)
        if m and n:
            d, p, q = matrix_of(infos["out"], made), matrix_of(infos["a"], x), matrix_of(infos["b"], y).transposed
            products.append((types, device, d, p, q))
    _check_apart(known)
    kinds: dict[Any, list[tuple[Matrix, Matrix, Matrix]]] = {}
    for types, device, *matrices in products:
        d, p, q = matrices
        kinds.setdefault((types, device, result_operand(d, None), p.operand(None), q.operand(None)), []).append(
            (d, p, q)
        )
    for (types, device, *operands), group in kinds.items():
        _launch_list(group, operands, types, machine_of(device), device)
    return results


def _check_apart(arrays: list[tuple[str, ArrayInfo, bool]]) -> None:
    """Refuse results (those that are marked) which share memory with a result or an operand of any product.

    Arrays are gone through by their addresses, so that only those are compared whose ranges meet.
    """
    before: list[tuple[int, str, ArrayInfo, bool]] = []  # those that may reach to the next one's begin
    for name, info, is_out in sorted(arrays, key=lambda each: range_of(each[1])):
        begin, end = range_of(info)
        before = [each for each in before if each[0] > begin]
        for _, other, known, is_result in before:
            if not (is_out or is_result) or known.device != info.device:
                continue
            if share_memory(known, known.pointer, info, info.pointer):
                first, second = (name, other) if is_out else (other, name)
                raise ArgumentError(
                    f"{first} shares memory with {second}, and products of one launch have no order",
                    help="pass arrays of their own memory, or none",
                )
        if begin < end:
            before.append((end, name, info, is_out))


def _launch_list(
    products: Sequence[tuple[Matrix, Matrix, Matrix]],
    operands: Sequence[Operand],
    types: Types,
    machine: Machine,
    device: Any,
) -> None:
    d_operand, a_operand, b_operand = operands
    extents = np.array([(*d.shape[:2], a.shape[1]) for d, a, _ in products])
    mean = tuple(int(x) for x in np.maximum(extents.mean(0), 1))
    plan, blocks = _planned((a_operand, b_operand, d_operand), mean, (1, 1, 1), len(products), types, machine)
    tile_m, tile_n, _ = plan.tile
    tiles = int((-(-extents[:, 0] // tile_m) * -(-extents[:, 1] // tile_n)).sum())
    vectors = [max(x.alignment // x.dtype.bytes, 1) for x in operands]
    rows = [
        (
            *extent,
            *(s // vector for x, vector in zip(matrices, vectors, strict=True) for s in x.strides[:2]),
        )
        for matrices, extent in zip(products, extents.tolist(), strict=True)
    ]
    table = array_beside(np.array(rows, np.int64), products[0][0].array)
    launched = GroupedPlan(
        "none",
        Groups(),
        plan,
        (types.out, a_operand.dtype, b_operand.dtype),
        tuple({"MN": (1 if x is d_operand else 0), "K": 1, "none": None}[x.major] for x in operands),
        tuple(x.alignment for x in operands),
    )
    listed_tiles.configure(min_blocks=1)[min(tiles, blocks), plan.threads](
        *(addresses([x.array for x in each]) for each in zip(*products, strict=True)), table, launched
    )


# --- both ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _chosen(
    family: GroupedHopper, problem: RaggedProblem, machine: Machine
) -> tuple[Any, GroupedPlan] | None:  # Any: a launcher
    """Return what launches the Hopper kernel, or None where it does not take a problem."""
    configuration = family.choose(problem, machine)
    return None if configuration is None else family.launch(problem, configuration, machine.arch)


@lru_cache(maxsize=1024)
def _planned(
    operands: tuple[Operand, Operand, Operand],
    mean: tuple[int, ...],
    guarded: tuple[int, ...],
    groups: int,
    types: Types,
    machine: Machine,
) -> tuple[Plan, int]:
    """Return the plan of a tile and how many blocks stay, by the model for as many products of the mean extents.

    `guarded` are extents by which the plan knows what may reach beyond a matrix.
    """
    a, b, d = operands
    family = Multistage()
    m, n, k = mean
    problem = Problem(m, n, k, groups, a, b, d, types.compute, types.accumulator)
    with_edges = replace(problem, m=guarded[0], n=guarded[1], k=guarded[2])
    candidates = []
    for candidate in family.candidates(problem, machine):
        if candidate.configuration.splits > 1:
            continue
        resources = family.resources(with_edges, candidate.configuration, machine.arch)
        rejection = candidate.rejection or resources.rejection
        if rejection is None:
            rejection = _rejection(plan_for(with_edges, candidate.configuration, machine.arch), machine.arch)
        prediction = None if rejection else candidate.prediction
        candidates.append(replace(candidate, resources=replace(resources, rejection=rejection), prediction=prediction))
    chosen = fastest(problem, machine, candidates)
    plan = plan_for(with_edges, chosen.configuration, machine.arch)
    shared = _shared_bytes(plan)
    resident = resident_blocks(plan.threads, chosen.resources.accumulators, shared, machine.arch)
    return plan, machine.multiprocessors * resident


def _shared_bytes(plan: Plan) -> int:
    """Return the bytes of stages and of D's tile, which do not share any in a loop over tiles."""
    parts = ((plan.a.smem, plan.a.dtype), (plan.b.smem, plan.b.dtype), (plan.epilogue.smem, plan.epilogue.staged))
    return sum(int(layout.cosize) * dtype.bytes for layout, dtype in parts)  # type: ignore[arg-type,misc]


def _rejection(plan: Plan, arch: Arch) -> str | None:
    """Reject what does not fit beside the loop over tiles: its shared memory, and the guards of single elements."""
    shared = _shared_bytes(plan)
    if shared > arch.shared_bytes_optin:
        return lack_of_shared(shared, arch)
    singles = sum(x.rows * x.depth // plan.threads for x in (plan.a, plan.b) if x.copy.atom.values(x.dtype) == 1)
    if plan.tile[0] * plan.tile[1] // plan.threads + 2 * singles > 200:
        return (
            f"each thread copies {singles} single elements of a tile of K, and no registers are left for their guards"
        )
    return None


def types_of_groups(
    a: ArrayInfo, b: ArrayInfo, out: ArrayInfo | None, out_dtype: Any = None, precision: str | None = None
) -> Types:
    """Return the types of grouped products; raise `ArgumentError` for those that have none."""
    try:
        asked = None if out_dtype is None else as_dtype(out_dtype)
    except TypeError as error:
        raise ArgumentError(f"out_dtype is not an element type of Tilewright: {error}") from None
    if out is not None and asked not in (None, out.dtype):
        raise ArgumentError(f"out is {out.dtype}, and out_dtype asks for {asked}", help="leave out_dtype out")
    for name, info in (("a", a), ("b", b)):
        if info.dtype.bits == 8:
            raise ArgumentError(f"{name} is {info.dtype}, and grouped products are of 16 bits and more")
    types = types_of(a.dtype, b.dtype, asked if out is None else out.dtype, precision)
    if types.parts is not None:
        raise ArgumentError(f"precision={precision!r} is for tw.matmul; grouped products take 'ieee' and 'tf32'")
    return types


def _described(name: str, array: Any) -> ArrayInfo:
    if adapter_for(array) is None:
        raise ArgumentError(f"{name} is a {type(array).__name__}, and grouped_matmul takes arrays")
    if getattr(array, "requires_grad", False):
        torch = __import__("sys").modules["torch"]
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} requires a gradient, and none flows through grouped_matmul",
                help=f"pass {name}.detach(), or call it in torch.no_grad(); gradients are grouped products themselves",
            )
    info = describe(array, name)
    assert info is not None
    return info


def _check_out(name: str, infos: dict[str, ArrayInfo], shape: Shape) -> None:
    out = infos["out"]
    if out.shape != shape:
        raise ArgumentError(f"{name} has the shape {out.shape}, and the result {shape}")
    if not out.writable or may_overlap_itself(out.shape, out.strides):
        raise ArgumentError(
            f"{name} is read-only, or its elements share memory", help="pass an array of its own memory"
        )
    for other in ("a", "b", "offsets"):
        if other in infos and share_memory(infos[other], infos[other].pointer, out, out.pointer):
            raise ArgumentError(f"{name} shares memory with {other}, which is read while it is written")
    watch.meets(out, [infos[other] for other in ("a", "b", "offsets") if other in infos])
