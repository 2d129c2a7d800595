"""Products whose operands lie on several ranks of a process group, with the exchange of their parts under the products.

Each rank multiplies what it has while the next part is on its way: parts travel from rank to rank, each in a transfer
of its own, beginning with one's own and going round the ring from there. Any backend that sends and receives will do.
NCCL's own collectives are faster than such transfers but for large rows between two ranks: on four H200s an all-gather
and then the product of 8192 cubed take 702 us and transfers 1106, of 1024 x 8192 x 8192 115 and 762.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import torch
import torch.distributed as dist

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch import symmetric
from tilewright.torch.operators import op
from tilewright.torch.products import matmul_operator, precision_of_torch
from tilewright.torch.sharding import is_dtensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_agreed: set[tuple[Any, ...]] = set()  # kinds of calls of which all ranks of a group have told that they agree
MOST_MODES = 8
_COMPARED_EACH_TIME = "cpu"  # tensors there, as it costs little
_REFUSED = -2  # tells of an error
_COLLECTIVE = "nccl"  # whose collectives are taken
# Bytes of a rank's rows that two ranks gather by one. With twice as many 16384 x 4096 x 4096 takes 672 us, 572 without.
_MOST_TOGETHER = 32 << 20


def group_of(name: str) -> Any:
    """Return the process group of a name."""
    return dist.distributed_c10d._resolve_process_group(name)


def _product(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None, is_added: bool = False
) -> None:
    if 0 not in out.shape:
        precision = precision_of_torch() if a.dtype == torch.float32 else None
        tilewright.matmul(a, b, out=out, beta=int(is_added), bias=bias, precision=precision)


def trade(group: Any, sent: torch.Tensor, to: int, received: torch.Tensor, source: int) -> list[Any]:
    """Begin to send to a rank and to receive from one; return what is waited for. Both tensors are contiguous."""
    work = [
        dist.P2POp(operation, part, dist.get_global_rank(group, rank), group)
        for operation, part, rank in ((dist.isend, sent, to), (dist.irecv, received, source))
        if part.numel()
    ]
    return dist.batch_isend_irecv(work) if work else []


def _has_collectives(x: torch.Tensor, group: Any) -> bool:
    return x.device.type == "cuda" and _COLLECTIVE in str(dist.get_backend(group))


def gather_rows(out: torch.Tensor, x: torch.Tensor, group: Any = None) -> None:
    """Gather x of all ranks in `out`, by torch's collective."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
    gather(out, x, group=group)


def scatter_sums(out: torch.Tensor, x: torch.Tensor, group: Any = None) -> None:
    """Add up x of all ranks, and give each its rows in `out`, by torch's collective."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # its name before torch 2.13
    scatter(out, x, group=group)


def _gathered_products(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], group: Any
) -> list[torch.Tensor]:
    """Return the rows of all ranks, and what they give times each weight, with its bias."""
    rank, size = group.rank(), group.size()
    x = x.contiguous()
    parts = x.new_empty((size, *x.shape))
    if _has_collectives(x, group) and (size > 2 or x.nbytes <= _MOST_TOGETHER):
        rows = parts.flatten(0, 1)
        if x.numel():
            gather_rows(rows, x, group)
        found = [x.new_empty((*rows.shape[:-1], w.shape[1])) for w in weights]
        for w, bias, y in zip(weights, biases, found, strict=True):
            _product(rows, w, y, bias)
        return [rows, *found]
    products = [x.new_empty((size, *x.shape[:-1], w.shape[1])) for w in weights]
    steps = [((rank - s) % size, (rank + s) % size) for s in range(1, size)]
    works = [trade(group, x, to, parts[source], source) for to, source in steps]
    parts[rank] = x
    for source, work in zip((rank, *(source for _, source in steps)), ([], *works), strict=True):
        for each in work:
            each.wait()
        for w, bias, y in zip(weights, biases, products, strict=True):
            _product(parts[source], w, y[source], bias)
    return [parts.flatten(0, 1), *(y.flatten(0, 1) for y in products)]


def _scattered_products(
    xs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], group: Any
) -> torch.Tensor:
    """Return this rank's rows of the sum of all ranks' products, added up in the order of the ranks, or in NCCL's.

    A rank may have several products, each with a bias, which it adds up before.
    """
    rank, size = group.rank(), group.size()
    if size > 1 and _has_collectives(xs[0], group):
        whole = xs[0].new_empty((*xs[0].shape[:-1], weights[0].shape[1]))
        for n, (x, w, bias) in enumerate(zip(xs, weights, biases, strict=True)):
            _product(x, w, whole, bias, n > 0)
        own = whole.new_empty((whole.shape[0] // size, *whole.shape[1:]))
        if own.numel():
            scatter_sums(own, whole, group)
        return own
    parts = [
        x.unflatten(0, (size, -1)) if x.numel() else x.new_empty((size, x.shape[0] // size, *x.shape[1:])) for x in xs
    ]
    shape = (*parts[0].shape[1:-1], weights[0].shape[1])
    products, sums = xs[0].new_empty((size, *shape)), xs[0].new_empty((size, *shape))

    def multiply(place: int, out: torch.Tensor) -> None:
        for n, (part, w, bias) in enumerate(zip(parts, weights, biases, strict=True)):
            _product(part[place], w, out, bias, n > 0)

    works = []
    for s in range(1, size):
        to, source = (rank + s) % size, (rank - s) % size
        multiply(to, products[to])
        works += trade(group, products[to], to, sums[source], source)
    multiply(rank, sums[rank])
    for each in works:
        each.wait()
    return sums.sum(0) if size > 1 else sums[0]


# --- operators -----------------------------------------------------------------------------------------------------


def _gathered_shape(x: torch.Tensor, w: torch.Tensor, group: str) -> torch.Tensor:
    return x.new_empty((x.shape[0] * group_of(group).size(), *x.shape[1:-1], w.shape[1]))


def _gathered_shapes(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor | None], group: str, are_read: bool
) -> list[torch.Tensor]:
    rows = x.new_empty((x.shape[0] * group_of(group).size(), *x.shape[1:]) if are_read else (0,))
    return [rows, *(_gathered_shape(x, w, group) for w in weights)]


def _scattered_shape(
    x: torch.Tensor, w: torch.Tensor, group: str, residual: torch.Tensor | None = None
) -> torch.Tensor:
    return x.new_empty((x.shape[0] // group_of(group).size(), *x.shape[1:-1], w.shape[1]))


def _sum_shape(
    xs: list[torch.Tensor], weights: list[torch.Tensor], biases: list[torch.Tensor | None], group: str
) -> torch.Tensor:
    return _scattered_shape(xs[0], weights[0], group)


def _reduced_shape(x: torch.Tensor, w: torch.Tensor, group: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[1]))


@op("tilewright::all_gather_matmul", shape=_gathered_shape, autocast="lower")
def all_gather_matmul_operator(x: torch.Tensor, w: torch.Tensor, group: str) -> torch.Tensor:
    """Gather rows and multiply them: the operator under `tw.torch.all_gather_matmul`."""
    found = symmetric.gathered(x, w, group_of(group))
    return _gathered_products(x, [w], [None], group_of(group))[1] if found is None else found


@op("tilewright::gathered_products", shape=_gathered_shapes)
def gathered_products_operator(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor | None], group: str, are_read: bool
) -> list[torch.Tensor]:
    """Gather rows and multiply them by each weight: what graphs are given. The rows come first, if they `are_read`."""
    found, products = group_of(group), []

    def gather() -> None:
        products.append(symmetric.gathered(x, weights[0], found, biases[0]))

    rows = symmetric.rows_beside(x, found, gather, are_gathered=True)
    if rows is None:
        rows, *products = _gathered_products(x, weights, biases, found)
    else:  # they lie where the next call writes
        for w, bias in zip(weights[1:], biases[1:], strict=True):
            y = x.new_empty(rows.shape[0], w.shape[1])
            _product(rows, w, y, bias)
            products.append(y.unflatten(0, (-1, *x.shape[1:-1])))
        rows = rows.clone().unflatten(0, (-1, *x.shape[1:-1])) if are_read else rows
    return [rows if are_read else x.new_empty(0), *products]


@op("tilewright::matmul_reduce_scatter", shape=_scattered_shape, autocast="lower")
def matmul_reduce_scatter_operator(
    x: torch.Tensor, w: torch.Tensor, group: str, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply, and give each rank its rows of the sum: the operator under `tw.torch.matmul_reduce_scatter`."""
    found = symmetric.scattered(x, w, group_of(group), residual)
    if found is not None:
        return found
    found = _scattered_products([x], [w], [None], group_of(group))
    return found if residual is None else found.add_(residual)


@op("tilewright::scattered_products", shape=_sum_shape)
def scattered_products_operator(
    xs: list[torch.Tensor], weights: list[torch.Tensor], biases: list[torch.Tensor | None], group: str
) -> torch.Tensor:
    """Multiply and add, and give each rank its rows of the sum over all ranks: what graphs are given.

    Biases are the rank's own, one or None for each product. By symmetric memory each product is scattered, and added to
    the sum of those before.
    """
    found, total = group_of(group), None
    for x, w, bias in zip(xs, weights, biases, strict=True):
        total = symmetric.scattered(x, w, found, total, bias)
        if total is None:
            return _scattered_products(xs, weights, biases, found)
    assert total is not None
    return total


@op("tilewright::matmul_all_reduce", shape=_reduced_shape, autocast="lower")
def matmul_all_reduce_operator(x: torch.Tensor, w: torch.Tensor, group: str) -> torch.Tensor:
    """Multiply, and give each rank the sum: the operator under `tw.torch.matmul_all_reduce`."""
    found = group_of(group)
    rows, size = math.prod(x.shape[:-1]), found.size()
    y = x.new_empty((*x.shape[:-1], w.shape[1]))
    if rows % size or _has_collectives(x, found):
        _product(x, w, y)
        dist.all_reduce(y, group=found)
    else:
        part = _scattered_products([x.reshape(rows, x.shape[-1])], [w], [None], found)
        gather_rows(y.view(rows, w.shape[1]), part.contiguous(), found)
    return y


# --- gradients -----------------------------------------------------------------------------------------------------
#
# Both gradients of a call are one operator: the rows of all ranks that one of them reads come while the other one is
# computed, and lie in memory that the next call writes.


def _gradient_shapes(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, group: str, of_x: bool, of_w: bool
) -> list[torch.Tensor]:
    """Return empty gradients; that of w lies as w does, as torch would copy it otherwise."""
    found = [x.new_empty(x.shape)] if of_x else []
    return [*found, torch.empty_like(w)] if of_w else found


def _weights_gradient(x: torch.Tensor, grad: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(w)
    _product(x.flatten(0, -2).mT, grad.flatten(0, -2), out)
    return out


@op("tilewright::all_gather_matmul_gradients", shape=_gradient_shapes)
def all_gather_gradients_operator(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, group: str, of_x: bool, of_w: bool
) -> list[torch.Tensor]:
    """Compute those gradients of `all_gather_matmul` that are asked for; the rows of all ranks are gathered again."""
    found, grad, slopes = group_of(group), grad.contiguous(), []

    def scatter() -> None:
        if of_x:
            slopes.append(matmul_reduce_scatter_operator(grad, w.mT, group))

    rows = symmetric.rows_beside(x, found, scatter, are_gathered=False) if of_w else None
    if rows is None:
        scatter()
        rows = _gathered_products(x, [], [], found)[0] if of_w else None
    return slopes if rows is None else [*slopes, _weights_gradient(rows, grad, w)]


@op("tilewright::matmul_reduce_scatter_gradients", shape=_gradient_shapes)
def reduce_scatter_gradients_operator(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, group: str, of_x: bool, of_w: bool
) -> list[torch.Tensor]:
    """Compute those gradients of `matmul_reduce_scatter` that are asked for, both from one exchange."""
    found, grad, slopes = group_of(group), grad.contiguous(), []

    def gather() -> None:
        if of_x:
            slopes.append(all_gather_matmul_operator(grad, w.mT, group))

    rows = symmetric.rows_beside(grad, found, gather, are_gathered=of_x)
    if rows is None:
        columns = [w.mT] if of_x else []
        rows, *slopes = _gathered_products(grad, columns, [None] * len(columns), found)
    return [*slopes, _weights_gradient(x, rows, w)] if of_w else slopes


@all_gather_matmul_operator.backward
def _all_gather_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, group: str, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    found = all_gather_gradients_operator(grad, x, w, group, "x" in needs, "w" in needs)
    return dict(zip([name for name in ("x", "w") if name in needs], found, strict=True))


@matmul_reduce_scatter_operator.backward
def _reduce_scatter_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, group: str, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    names = [name for name in ("x", "w") if name in needs]
    found = reduce_scatter_gradients_operator(grad, x, w, group, "x" in names, "w" in names) if names else []
    return dict(zip(names, found, strict=True)) | {name: grad for name in needs if name == "residual"}


@matmul_all_reduce_operator.backward
def _all_reduce_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    found = {}
    if "x" in needs:
        found["x"] = matmul_operator(grad, w.mT, None, None, None, "", x.dtype, "")
    if "w" in needs:
        found["w"] = matmul_operator(x.flatten(0, -2).mT, grad.flatten(0, -2), None, None, None, "", x.dtype, "")
    return found


for _each in (
    all_gather_matmul_operator,
    gathered_products_operator,
    matmul_reduce_scatter_operator,
    scattered_products_operator,
    matmul_all_reduce_operator,
    all_gather_gradients_operator,
    reduce_scatter_gradients_operator,
):
    _each.is_collective = True


# --- what users call -----------------------------------------------------------------------------------------------


def all_gather_matmul(x: torch.Tensor, w: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the rows of all ranks times w, with gradients: concatenate(x of rank 0, x of rank 1, ...) @ w.

    `x` (rows, ..., K) has the same shape on all ranks of the process group `group` (without it, of all processes), and
    `w` (K, N) is the rank's own, as the columns of a weight that is divided by columns; N may differ between ranks. The
    result is (ranks * rows, ..., N). Parts are multiplied as they arrive, the rank's own first. The gradient of `x` is
    a `matmul_reduce_scatter`; that of `w` gathers the rows once more, so that they are not kept.

    >>> import tempfile, torch, tilewright as tw
    >>> _ = tempfile.TemporaryDirectory()
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{_.name}/group", rank=0, world_size=1)
    >>> tw.torch.all_gather_matmul(torch.ones(2, 3), torch.eye(3)).shape
    torch.Size([2, 3])
    >>> torch.distributed.destroy_process_group()

    All ranks of the group call it, in the same order. Element types are float16, bfloat16, float32 and float64, and
    become autocast's type; `torch.get_float32_matmul_precision()` decides on float32. Gradients are not differentiable.
    Raises `ArgumentError` on all ranks where their shapes differ, and for arguments of one that do not fit together: on
    GPUs on that one, and on all for tensors on the CPU.
    """
    return all_gather_matmul_operator(x, w, _checked("all_gather_matmul", x, w, group))


def matmul_reduce_scatter(
    x: torch.Tensor, w: torch.Tensor, group: Any = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return this rank's rows of the sum of all ranks' x @ w, plus a residual, with gradients.

    `x` (rows, ..., K) and `w` (K, N) are the rank's own: a part of K, as of a weight that is divided by rows; K may
    differ between ranks. The first mode of `x` is divided by the ranks, and the result is (rows / ranks, ..., N). Each
    rank computes the other ranks' rows first and sends them, in the type of the result, while it computes the next.
    Parts are added in the order of the ranks, so that the result is bitwise reproducible. The gradient of `x` is an
    `all_gather_matmul`. `residual` has the shape of the result, and is the rank's own.

    >>> import tempfile, torch, tilewright as tw
    >>> _ = tempfile.TemporaryDirectory()
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{_.name}/group", rank=0, world_size=1)
    >>> tw.torch.matmul_reduce_scatter(torch.ones(4, 3), torch.ones(3, 2))[0]
    tensor([3., 3.])
    >>> torch.distributed.destroy_process_group()

    Group, types and errors are those of `tw.torch.all_gather_matmul`; the number of ranks must divide the rows.
    """
    name = _checked("matmul_reduce_scatter", x, w, group, residual)
    return matmul_reduce_scatter_operator(x, w, name, residual)


def matmul_all_reduce(x: torch.Tensor, w: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the sum of all ranks' x @ w on each of them, with gradients.

    `x` (..., K) and `w` (K, N) are the rank's own: a part of K, which may differ between ranks. Where the ranks divide
    the rows, the sum is made as by `matmul_reduce_scatter` and gathered, and all ranks have the same bits.

    For gradients the result counts once, as in a model that all ranks continue identically: the gradient of `x` is the
    rank's own product.

    >>> import tempfile, torch, tilewright as tw
    >>> _ = tempfile.TemporaryDirectory()
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{_.name}/group", rank=0, world_size=1)
    >>> tw.torch.matmul_all_reduce(torch.ones(5, 3), torch.ones(3, 2))[0]
    tensor([3., 3.])
    >>> torch.distributed.destroy_process_group()

    Group, types and errors are those of `tw.torch.all_gather_matmul`.
    """
    return matmul_all_reduce_operator(x, w, _checked("matmul_all_reduce", x, w, group))


def process_group(function: str, group: Any) -> Any:
    """Return the process group of a call; refuse what is none, and one that the rank does not belong to."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ArgumentError(
            f"tw.torch.{function} is called by the ranks of a process group, and there is none",
            help="torch.distributed.init_process_group(...) makes one, also of a single process",
        )
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, dist.ProcessGroup):
        raise ArgumentError(
            "group has other ranks than this one"
            if found is dist.GroupMember.NON_GROUP_MEMBER
            else f"group is {found!r}, and a process group is expected",
            help="pass a process group that this rank belongs to: mesh.get_group(), torch.distributed.new_group(...)",
        )
    return found


def check_is_local(function: str, name: str, x: object) -> None:
    """Refuse DTensors."""
    if is_dtensor(x):
        raise ArgumentError(f"{name} is a DTensor, and {function} takes a rank's own part", help=f"{name}.to_local()")


def check_types(x: torch.Tensor, w: torch.Tensor) -> None:
    """Refuse operands of two types, unless autocast converts them."""
    if x.dtype != w.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ArgumentError(f"x is {x.dtype} and w is {w.dtype}", help="convert one of them")


def _checked(function: str, x: torch.Tensor, w: torch.Tensor, group: Any, residual: object = None) -> str:
    """Return the name of the group; refuse what one rank can see to be wrong, then what only all can."""
    found = process_group(function, group)
    with telling(found, x, 2 + MOST_MODES):
        _check(function, x, w, found.size(), residual)
    shape = x.shape if function == "all_gather_matmul" else (*x.shape[:-1], w.shape[1])
    if not torch.compiler.is_compiling():
        _agree(function, found, x, shape)
    if function == "matmul_reduce_scatter" and x.shape[0] % found.size():
        raise ArgumentError(
            f"x has {x.shape[0]} rows, which {found.size()} ranks do not divide",
            help="fill up with rows of zeros, or call tw.torch.matmul_all_reduce",
        )
    return str(found.group_name)


def _check(function: str, x: object, w: object, size: int, residual: object) -> None:
    for name, tensor in (("x", x), ("w", w)):
        check_is_local(function, name, tensor)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
            raise ArgumentError(f"{name} is {kind}, and {function} takes tensors of floats")
    assert isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)
    if w.ndim != 2 or x.ndim < 2 or x.ndim > MOST_MODES or x.shape[-1] != w.shape[0]:
        raise ArgumentError(
            f"x has the shape {tuple(x.shape)} and w {tuple(w.shape)}, and {function} takes (rows, ..., K) and (K, N)"
        )
    check_types(x, w)
    if residual is None:
        return
    if not isinstance(residual, torch.Tensor):
        raise ArgumentError(f"residual is a {type(residual).__name__}, and a tensor is expected")
    expected = (x.shape[0] // size, *x.shape[1:-1], w.shape[1])
    is_converted = torch.is_autocast_enabled(x.device.type)
    if tuple(residual.shape) != expected or (residual.dtype != x.dtype and not is_converted):
        raise ArgumentError(
            f"residual is {tuple(residual.shape)} of {residual.dtype}, and the result {expected} of {x.dtype}"
        )


@contextmanager
def _told(group: Any, x: object, count: int) -> Iterator[None]:
    try:
        yield
    except ArgumentError:
        backend = str(dist.get_backend(group))  # one for each device, it may be
        device = x.device.type if isinstance(x, torch.Tensor) else _COMPARED_EACH_TIME if backend == "gloo" else None
        if group.size() > 1 and device == _COMPARED_EACH_TIME and "gloo" in backend:
            numbers_of_all(torch.full((count,), _REFUSED), group)
        raise


def telling(group: Any, x: object, count: int) -> AbstractContextManager[None]:
    """Return what tells the other ranks of an error within, in place of the `count` numbers that begin a call.

    Of tensors on GPUs, ranks compare at the first call of a kind only, and know of no other.
    """
    return nullcontext() if torch.compiler.is_compiling() else _told(group, x, count)


def told_by_all(function: str, ours: torch.Tensor, group: Any) -> list[list[int]]:
    """Return the numbers of all ranks with which a call begins; raise `ArgumentError` where one has refused it."""
    told = numbers_of_all(ours, group)
    refused = [rank for rank, row in enumerate(told) if row[0] == _REFUSED]
    if refused:
        refuse_with(function, refused)
    return told


def refuse_with(function: str, ranks: Sequence[int]) -> NoReturn:
    """Raise an error where other ranks do, and say which."""
    raise ArgumentError(f"{function} is refused on rank {', '.join(map(str, ranks))}, which says why")


def numbers_of_all(ours: torch.Tensor, group: Any) -> list[list[int]]:
    """Return the numbers of all ranks."""
    all_of = ours.new_empty((group.size(), ours.numel()))
    dist.all_gather(list(all_of.unbind()), ours, group=group)
    found: list[list[int]] = all_of.tolist()
    return found


def _agree(function: str, group: Any, x: torch.Tensor, shape: Sequence[int]) -> None:
    """Compare what has to be the same on all ranks.

    On a GPU at the first call of a kind, as a comparison waits there. Ranks that part from each other later wait for
    their timeout, as with collectives of torch.
    """
    key = (function, group.group_name, tuple(shape), x.dtype, x.device.type)
    if group.size() == 1 or (key in _agreed and x.device.type != _COMPARED_EACH_TIME):
        return
    ours = torch.tensor([len(shape), FLOATS.index(x.dtype), *shape, *[-1] * (MOST_MODES - len(shape))])
    told = told_by_all(function, ours.to(x.device), group)
    if any(row != told[0] for row in told):
        lines = [f"rank {rank}: {tuple(row[2 : 2 + row[0]])} {FLOATS[row[1]]}" for rank, row in enumerate(told)]
        what = "x" if function == "all_gather_matmul" else "rows of x and columns of w"
        raise ArgumentError(f"the ranks call {function} with different shapes of {what}, or types", details=lines)
    _agreed.add(key)
