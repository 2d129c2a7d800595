"""Grouped products of experts on several ranks of a process group: rows travel to them (dispatch) and back (combine).

Rank r has the experts from r * experts on. Transfers need to know how many rows they have, so the host reads offsets:
once for each dispatch, which tells them to all ranks. The handle that it returns has them for all that follows.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.exchange import (
    FLOATS,
    check_is_local,
    check_types,
    group_of,
    numbers_of_all,
    process_group,
    refuse_with,
    telling,
    told_by_all,
    trade,
)
from tilewright.torch.operators import op
from tilewright.torch.products import precision_of_torch

_agreed: set[tuple[Any, ...]] = set()  # kinds of calls of which all ranks of a group have told that they agree
_KINDS = 3  # numbers that `_agree` exchanges


class _Routes:
    """Which rows are sent to each rank, and which come from it, by a handle."""

    def __init__(self, handle: torch.Tensor, group: str) -> None:
        self.group = group_of(group)
        self.rank, self.size = self.group.rank(), self.group.size()
        borders = [0, *handle[0, :, -1].tolist()]
        self.sent = [slice(*pair) for pair in itertools.pairwise(borders)]
        borders = [0, *handle[1, :, -1].cumsum(0).tolist()]
        self.came = [slice(*pair) for pair in itertools.pairwise(borders)]
        self.ends = handle[1]

    def demand(self, sent: int | None, came: int) -> None:
        """Raise `ArgumentError` where there are not as many rows as the handle says."""
        if came != self.came[-1].stop or (sent is not None and sent < self.sent[-1].stop):
            raise ArgumentError(
                f"there are {came} rows that arrived and {sent} of this rank's own, and the handle is for "
                f"{self.came[-1].stop} and {self.sent[-1].stop}",
                help="pass the handle of the dispatch from which the rows came, and as many rows",
            )


def _product(a: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, out: torch.Tensor) -> None:
    if out.numel():
        precision = precision_of_torch() if a.dtype == torch.float32 else None
        tilewright.grouped_matmul(a, w, ends, out=out, precision=precision)


# --- operators -----------------------------------------------------------------------------------------------------


def _handle_shape(offsets: torch.Tensor, experts: int, rows: int, width: int, dtype: int, group: str) -> torch.Tensor:
    return torch.empty((2, offsets.shape[0] // experts, experts), dtype=torch.int64, device="cpu")


@op("tilewright::expert_handle", shape=_handle_shape)
def expert_handle_operator(
    offsets: torch.Tensor, experts: int, rows: int, width: int, dtype: int, group: str
) -> torch.Tensor:
    """Tell all ranks which rows go where: the exchange of counts before `tw.torch.dispatch_grouped_matmul`."""
    found = group_of(group)
    _agree("dispatch_grouped_matmul", found, (experts, width, dtype), offsets.device)
    rank, told = found.rank(), numbers_of_all(torch.cat([offsets.long(), offsets.new_full((1,), rows).long()]), found)
    for sender, (*ends, most) in enumerate(told):
        if any(not before <= end <= most for before, end in zip([0, *ends], ends, strict=False)):
            raise ArgumentError(
                f"rank {sender} has {most} rows, and its offsets decrease or pass the end: {ends}",
                help="offsets are the ends of the experts' rows: counts.cumsum(0)",
            )
    sent = torch.tensor(told)[:, :-1].unflatten(1, (found.size(), experts))
    begins = torch.cat([sent.new_zeros(found.size(), 1), sent[:, :-1, -1]], 1)
    return torch.stack([sent[rank], sent[:, rank] - begins[:, rank, None]])


def _dispatched_shapes(
    x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, rows: int, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty((rows, w.shape[2])), x.new_empty((rows, x.shape[1]))


@op("tilewright::dispatched_products", shape=_dispatched_shapes, autocast="lower")
def dispatched_products_operator(
    x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, rows: int, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send rows to their experts and multiply: the operator under `tw.torch.dispatch_grouped_matmul`.

    Returns both products and the rows that arrived, which the gradients of weights need.
    """
    routes, x = _Routes(handle, group), x.contiguous()
    routes.demand(x.shape[0], rows)
    rank, size, ends = routes.rank, routes.size, routes.ends.to(x.device)
    y, received = _dispatched_shapes(x, w, handle, rows, group)
    steps = [((rank - s) % size, (rank + s) % size) for s in range(1, size)]
    works = [trade(routes.group, x[routes.sent[to]], to, received[routes.came[source]], source) for to, source in steps]
    own = routes.came[rank]
    received[own] = x[routes.sent[rank]]
    _product(received[own], w, ends[rank], y[own])
    for (_, source), work in zip(steps, works, strict=True):
        for each in work:
            each.wait()
        part = routes.came[source]
        _product(received[part], w, ends[source], y[part])
    return y, received


def _combined_shape(x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, rows: int, group: str) -> torch.Tensor:
    return x.new_empty((rows, w.shape[2]))


@op("tilewright::combined_products", shape=_combined_shape, autocast="lower")
def combined_products_operator(
    x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, rows: int, group: str
) -> torch.Tensor:
    """Multiply, and send rows back: the operator under `tw.torch.grouped_matmul_combine`."""
    routes, x = _Routes(handle, group), x.contiguous()
    routes.demand(rows, x.shape[0])
    rank, size, ends = routes.rank, routes.size, routes.ends.to(x.device)
    y = _combined_shape(x, w, handle, rows, group)
    products, works = x.new_empty((x.shape[0], w.shape[2])), []
    for s in range(1, size):
        to, source = (rank + s) % size, (rank - s) % size
        part = routes.came[to]
        _product(x[part], w, ends[to], products[part])
        works += trade(routes.group, products[part], to, y[routes.sent[source]], source)
    _product(x[routes.came[rank]], w, ends[rank], y[routes.sent[rank]])
    y[routes.sent[-1].stop :] = 0
    for each in works:
        each.wait()
    return y


def _weights_shape(x: torch.Tensor, grad: torch.Tensor, handle: torch.Tensor) -> torch.Tensor:
    return x.new_empty((handle.shape[2], x.shape[1], grad.shape[1]))


@op("tilewright::expert_weights_gradient", shape=_weights_shape)
def expert_weights_gradient_operator(x: torch.Tensor, grad: torch.Tensor, handle: torch.Tensor) -> torch.Tensor:
    """Multiply the rows that arrived for each expert, from all ranks, by their gradients: those of its weights."""
    ends = handle[1]
    counts = ends.diff(dim=1, prepend=ends.new_zeros(ends.shape[0], 1))
    if ends.shape[0] > 1:
        # One product for each expert, whose sum is rounded once.
        experts = torch.arange(ends.shape[1]).repeat(ends.shape[0]).repeat_interleave(counts.flatten())
        order = experts.argsort(stable=True).to(x.device)
        x, grad = x.index_select(0, order), grad.index_select(0, order)
    precision = precision_of_torch() if x.dtype == torch.float32 else None
    found: torch.Tensor = tilewright.grouped_matmul(
        x.mT, grad.contiguous(), counts.sum(0).cumsum(0).to(x.device), precision=precision
    )
    return found


def _keep_dispatched(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, w, handle, _, ctx.group = inputs
    ctx.rows = x.shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(w, handle, output[1] if ctx.needs_input_grad[1] else None)


def _dispatched_backward(ctx: Any, grad: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    w, handle, received = ctx.saved_tensors
    dx = dw = None
    if grad is not None and ctx.needs_input_grad[0]:
        dx = combined_products_operator(grad, w.mT, handle, ctx.rows, ctx.group)
    if grad is not None and ctx.needs_input_grad[1]:
        dw = expert_weights_gradient_operator(received, grad, handle)
    return dx, dw, None, None, None


dispatched_products_operator.backward(_dispatched_backward, setup=_keep_dispatched)


@combined_products_operator.backward
def _combined_backward(
    grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, group: str, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    found = {}
    slope, received = dispatched_products_operator(grad, w.mT, handle, x.shape[0], group)
    if "x" in needs:
        found["x"] = slope
    if "w" in needs:
        found["w"] = expert_weights_gradient_operator(x, received, handle)
    return found


# --- what users call -----------------------------------------------------------------------------------------------


def dispatch_grouped_matmul(
    x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, group: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send rows to the ranks of their experts and multiply those that arrive by the experts' weights, with gradients.

    `x` (rows, K) has the rank's rows sorted by expert, and `offsets` (ranks * experts,) the end of each expert's rows,
    as for `tw.torch.grouped_matmul`; rank r of the process group `group` (without it, of all processes) has the experts
    from r * experts on, and `w` (experts, K, N) is its own. Returns (y, handle): y (rows that arrived, N) has the rows
    of rank 0, then those of rank 1, and so on, those of each rank sorted by expert. Parts are multiplied as they
    arrive, the rank's own first. `handle`, int64 of shape (2, ranks, experts) on the CPU, has `offsets` in handle[0],
    and in handle[1] the end of each expert's rows in the part of each rank.

    >>> import tempfile, torch, tilewright as tw
    >>> _ = tempfile.TemporaryDirectory()
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{_.name}/group", rank=0, world_size=1)
    >>> x, w1, w2 = torch.ones(3, 4), torch.ones(2, 4, 5), torch.ones(2, 5, 4)
    >>> y, handle = tw.torch.dispatch_grouped_matmul(x, w1, torch.tensor([1, 3]))
    >>> y.shape, handle[1]
    (torch.Size([3, 5]), tensor([[1, 3]]))
    >>> tw.torch.grouped_matmul_combine(torch.relu(y), w2, handle)[:, 0]
    tensor([20., 20., 20.])
    >>> torch.distributed.destroy_process_group()

    The host reads the offsets, and with GPUs waits for them: transfers need to know how many rows they have. Rows after
    the last offset do not travel; their gradients are 0. The gradient of `x` is a `grouped_matmul_combine`; that of `w`
    is one grouped product of the rows that arrived, which are kept for it. Gradients of `w` are not differentiable.

    All ranks of the group call it, in the same order. Element types are those of `tw.torch.all_gather_matmul`, also
    under autocast. Raises `ArgumentError` on all ranks for offsets that decrease or pass the end on one of them and
    where numbers of experts, K or types differ, and as that for arguments of one that do not fit together.
    """
    name = "dispatch_grouped_matmul"
    found = process_group(name, group)
    with telling(found, x, _KINDS):
        _check(name, x, w)
        _check_offsets(name, offsets, found.size(), w.shape[0])
    group_name, kind = str(found.group_name), FLOATS.index(x.dtype)
    handle = expert_handle_operator(offsets.to(x.device), w.shape[0], x.shape[0], x.shape[1], kind, group_name)
    rows = handle[1, :, -1].sum().item()
    torch._check(rows >= 0)
    return dispatched_products_operator(x, w, handle, rows, group_name)[0], handle


def grouped_matmul_combine(
    x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, group: Any = None, *, rows: int | None = None
) -> torch.Tensor:
    """Multiply rows by the weights of the rank's experts and send the results back to their ranks, with gradients.

    `x` (rows that arrived, K) and `handle` are as `dispatch_grouped_matmul` gives them, and `w` (experts, K, N) is the
    rank's own. Returns the results (`rows`, N) for the rows that this rank dispatched, in their order. `rows` is by
    default the last offset; for the rows up to a larger number, which no expert had, the results are 0. Each rank
    computes the other ranks' rows first, and sends them while it computes the next.

    >>> import tempfile, torch, tilewright as tw
    >>> _ = tempfile.TemporaryDirectory()
    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{_.name}/group", rank=0, world_size=1)
    >>> handle = torch.tensor([[[1, 3]], [[1, 3]]])    # one row for the first expert, two for the second
    >>> w = torch.stack([torch.ones(4, 2), torch.full((4, 2), 2.0)])
    >>> tw.torch.grouped_matmul_combine(torch.ones(3, 4), w, handle)[:, 0]
    tensor([4., 8., 8.])
    >>> torch.distributed.destroy_process_group()

    The gradient of `x` is a dispatch of the result's gradients with grouped products, which uses the handle and waits
    for nothing on the host. Group, types and errors are those of `dispatch_grouped_matmul`; handles that do not belong
    to one dispatch are refused on all ranks, on GPUs in the first call of a kind.
    """
    name = "grouped_matmul_combine"
    found = process_group(name, group)
    with telling(found, x, _KINDS):
        _check(name, x, w)
        _check_handle(handle, (2, found.size(), w.shape[0]))
    last = handle[0, -1, -1].item() if rows is None else rows
    torch._check(last >= 0)
    if not torch.compiler.is_compiling():
        _agree_on_handle(found, x, w, handle, last)
    return combined_products_operator(x, w, handle, last, str(found.group_name))


# --- what is refused -------------------------------------------------------------------------------------------


def _check(function: str, x: object, w: object) -> None:
    for name, tensor, modes in (("x", x, 2), ("w", w, 3)):
        check_is_local(function, name, tensor)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS or tensor.ndim != modes:
            raise ArgumentError(f"{name} is {_kind(tensor)}, and {function} takes floats of {modes} modes")
    assert isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)
    if x.shape[1] != w.shape[1] or 0 in w.shape:
        raise ArgumentError(
            f"x has the shape {tuple(x.shape)} and w {tuple(w.shape)}, "
            f"and {function} takes (rows, K) and (experts, K, N)"
        )
    check_types(x, w)


def _check_offsets(function: str, offsets: object, size: int, experts: int) -> None:
    check_is_local(function, "offsets", offsets)
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in (torch.int32, torch.int64) or offsets.ndim != 1:
        raise ArgumentError(f"offsets is {_kind(offsets)}, and {function} takes a vector of int32 or int64")
    if offsets.shape[0] != size * experts:
        raise ArgumentError(
            f"there are {offsets.shape[0]} offsets, and {size} ranks with {experts} experts each",
            help="offsets has the end of the rows of each expert of all ranks",
        )


def _check_handle(handle: object, shape: tuple[int, ...]) -> None:
    if not isinstance(handle, torch.Tensor) or handle.dtype != torch.int64 or handle.shape != shape:
        raise ArgumentError(
            f"handle is {_kind(handle)}, and the one of a dispatch is int64 of shape {shape}",
            help="y, handle = tw.torch.dispatch_grouped_matmul(...)",
        )
    if handle.device.type != "cpu":
        raise ArgumentError("handle is on a GPU, and the host reads it", help="pass it as the dispatch returned it")


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _agree(function: str, group: Any, kind: tuple[int, int, int], device: torch.device) -> None:
    """Compare what has to be the same on all ranks; on a GPU at the first call of a kind."""
    key = (function, group.group_name, kind, device.type)
    if group.size() == 1 or (key in _agreed and device.type != "cpu"):
        return
    told = told_by_all(function, torch.tensor(kind, device=device), group)
    if any(row != told[0] for row in told):
        raise ArgumentError(
            f"the ranks call {function} with different numbers of experts, widths of rows, or types",
            details=[
                f"rank {rank}: {experts} experts, rows of {width} {FLOATS[dtype]}"
                for rank, (experts, width, dtype) in enumerate(told)
            ],
        )
    _agreed.add(key)


def _agree_on_handle(group: Any, x: torch.Tensor, w: torch.Tensor, handle: torch.Tensor, rows: int) -> None:
    """Compare handles: what arrived on a rank has to be what the others sent, and each has its rows."""
    kind, device = (w.shape[0], w.shape[2], FLOATS.index(x.dtype)), x.device
    key = ("handle", group.group_name, kind, device.type)
    if group.size() == 1 or (key in _agreed and device.type != "cpu"):
        return
    _agree("grouped_matmul_combine", group, kind, device)
    ours = torch.cat([handle.flatten(), torch.tensor([x.shape[0], rows])]).to(device)
    numbers = torch.tensor(numbers_of_all(ours, group))
    told = numbers[:, :-2].unflatten(1, handle.shape)
    sent = told[:, 0]
    begins = torch.cat([sent.new_zeros(group.size(), 1), sent[:, :-1, -1]], 1)
    if not torch.equal(told[:, 1], (sent - begins[:, :, None]).swapaxes(0, 1)):
        raise ArgumentError(
            "the handles of the ranks do not belong to one dispatch",
            help="let all ranks combine with what the same call of dispatch_grouped_matmul returned",
        )
    is_wrong = (numbers[:, -2] != told[:, 1, :, -1].sum(1)) | (numbers[:, -1] < sent[:, -1, -1])
    if is_wrong.any() and not is_wrong[group.rank()]:  # else the operator says what is wrong
        refuse_with("grouped_matmul_combine", is_wrong.nonzero().flatten().tolist())
    _agreed.add(key)
