"""`tw.torch.cross_entropy`, with gradients."""

from __future__ import annotations

from typing import Any  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.operators import op
from tilewright.torch.rows import check_tensor, like_second
from tilewright.torch.sharding import Way, is_dtensor, is_taken_by_torch, shard, shards

_REDUCTIONS = ("none", "mean", "sum")


def _loss_shape(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    made = [logits.new_empty(labels.shape, dtype=kind) for _ in range(3)]
    return made[0], made[1], made[2]


@op("tilewright::cross_entropy", shape=_loss_shape, vmap="loop")
def cross_entropy_operator(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute losses of rows, and what their gradient needs: the operator under `tw.torch.cross_entropy`."""
    loss, top, total = tilewright.cross_entropy(
        logits,
        labels.contiguous(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        statistics=True,
    )
    return loss, top, total


@op("tilewright::cross_entropy_backward", shape=like_second, vmap="loop")
def cross_entropy_backward_operator(
    grad: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    """Compute (softmax - what the label counts) * grad."""
    joined = grad if grad.ndim < 2 else grad.contiguous()
    found: torch.Tensor = tilewright.cross_entropy_backward(
        joined,
        logits,
        labels.contiguous(),
        top.contiguous(),
        total.contiguous(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return found


@cross_entropy_operator.backward
def _cross_entropy_backward(
    grad: torch.Tensor,
    of_top: torch.Tensor,
    of_total: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    result_1: torch.Tensor,
    result_2: torch.Tensor,
) -> dict[str, torch.Tensor]:
    found = cross_entropy_backward_operator(grad, logits, labels, result_1, result_2, ignore_index, label_smoothing)
    return {"logits": found}


@cross_entropy_backward_operator.backward
def _cross_entropy_backward_backward(
    second: torch.Tensor,
    grad: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    # top and total are functions of the logits: all of their gradients go there.
    counts = (labels != ignore_index).unsqueeze(-1)
    wide, columns = second.to(grad.dtype) * counts, logits.shape[-1]
    shares = logits.to(grad.dtype).softmax(-1)
    found = {}
    if "grad" in needs:
        place = labels.clamp(0, columns - 1).long().unsqueeze(-1)
        at_label = wide.gather(-1, place).squeeze(-1)
        found["grad"] = (wide * shares).sum(-1) - (1 - label_smoothing) * at_label - label_smoothing * wide.mean(-1)
    if "logits" in needs:
        weighted = shares * (wide - (wide * shares).sum(-1, keepdim=True))
        found["logits"] = (weighted * grad.unsqueeze(-1)).to(logits.dtype)
    return found


@cross_entropy_operator.sharding
def _cross_entropy_ways(logits: Any, labels: Any, ignore_index: int, label_smoothing: float) -> list[Way]:
    return [Way([shard(n)] * 3, {"logits": shard(n), "labels": shard(n)}) for n in range(len(labels.shape))]


@cross_entropy_backward_operator.sharding
def _cross_entropy_backward_ways(
    grad: Any, logits: Any, labels: Any, top: Any, total: Any, ignore_index: int, label_smoothing: float
) -> list[Way]:
    names = ("grad", "logits", "labels", "top", "total")
    return [Way([shard(n)], dict.fromkeys(names, shard(n))) for n in range(len(labels.shape))]


def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Return the loss log(sum(exp(x))) - x[label] of logits, with gradients.

    >>> import torch, tilewright as tw
    >>> logits = torch.zeros(2, 4, requires_grad=True)
    >>> loss = tw.torch.cross_entropy(logits, torch.tensor([0, 3]))
    >>> loss.backward()
    >>> loss.detach(), logits.grad[0]
    (tensor(1.3863), tensor([-0.3750,  0.1250,  0.1250,  0.1250]))

    Arguments are those of `torch.nn.functional.cross_entropy` for labels of classes: `input` is (N, C), (C) or (N, C,
    d1, ...), and `target` has the shape without C. Sums and losses are computed in float32 (float64), whatever autocast
    says; the result has the input's type, and under autocast float32. Gradients are differentiable. On a GPU a label
    that is not a class gives NaN; on the CPU it is torch's `IndexError`. Inside of torch's `loss_parallel()`, DTensors
    whose classes are divided go to torch's own function; elsewhere their parts are gathered.

    Raises `ArgumentError` for probabilities as the target, another reduction, and weights of another shape or
    with label smoothing.
    """
    check_tensor("cross_entropy", "input", input)
    if reduction not in _REDUCTIONS:
        raise ArgumentError(f"reduction is {reduction!r}", help=f"one of {', '.join(_REDUCTIONS)}")
    if input.ndim == 0:
        raise ArgumentError("input is one number, and tw.torch.cross_entropy takes (classes,) or (batch, classes, ...)")
    if isinstance(target, torch.Tensor) and target.dtype == torch.uint8:
        target = target.long()
    if not isinstance(target, torch.Tensor) or target.dtype not in (torch.int64, torch.int32):
        kind = target.dtype if isinstance(target, torch.Tensor) else type(target).__name__
        raise ArgumentError(
            f"target is {kind}, and tw.torch.cross_entropy takes numbers of classes: int64, int32 or uint8",
            help="for probabilities of classes, use torch.nn.functional.cross_entropy",
        )
    if weight is not None and label_smoothing:
        raise ArgumentError(
            "weight and label_smoothing do not go together here", help="use torch.nn.functional.cross_entropy for both"
        )
    if weight is not None:
        check_tensor("cross_entropy", "weight", weight)
        classes = input.shape[min(input.ndim - 1, 1)]
        if tuple(weight.shape) != (classes,):
            raise ArgumentError(f"weight has the shape {tuple(weight.shape)}, and there are {classes} classes")
    logits = input.movedim(1, -1) if input.ndim > 2 else input
    if target.shape != logits.shape[:-1]:
        raise ArgumentError(f"target has the shape {tuple(target.shape)}, and input {tuple(input.shape)}")
    if not torch.compiler.is_compiling():
        _check_labels(target, logits.shape[-1], ignore_index)
    if is_dtensor(input) and _is_divided_by_torch(input):
        found: torch.Tensor = torch.nn.functional.cross_entropy(
            input, target, weight, None, ignore_index, None, reduction, label_smoothing
        )
        return found
    losses, _, _ = cross_entropy_operator(logits, target, ignore_index, label_smoothing)
    device = input.device.type
    kind = losses.dtype if device != "meta" and torch.is_autocast_enabled(device) else input.dtype
    if weight is not None:
        counts = target != ignore_index
        factor = torch.where(counts, weight.to(losses.dtype)[torch.where(counts, target, 0).long()], 0)
        losses = losses * factor
        if reduction == "mean":
            return (losses.sum() / factor.sum()).to(kind)
    if reduction == "none":
        return losses.to(kind)
    total = losses.sum()
    return (total if reduction == "sum" else total / (target != ignore_index).sum()).to(kind)


def _is_divided_by_torch(input: Any) -> bool:
    """Say whether the classes of a DTensor are divided, and torch's `loss_parallel()` is there for the parts."""
    classes = 0 if input.ndim == 1 else 1
    is_on = is_taken_by_torch(torch.ops.aten.nll_loss_forward.default)
    return is_on and any(shards(p, classes) for p in input.placements)


def _check_labels(target: torch.Tensor, classes: int, ignore_index: int) -> None:
    """Raise torch's error for labels that are not classes, where looking at them waits for nothing.

    Every rank looks at all labels of a DTensor: if one rank alone raised, the others would wait for it.
    """
    functorch = torch._C._functorch
    # A transform of torch.func wraps arguments, each once more: what is below holds the labels of all items.
    while functorch.is_functorch_wrapped_tensor(target):
        if functorch.is_functionaltensor(target):
            torch._sync(target)  # writes to it wait until then
        target = functorch.get_unwrapped(target)
    local: Any = target.to_local() if is_dtensor(target) else target
    if local.device.type != "cpu":
        return
    if isinstance(local, torch._subclasses.FakeTensor):
        return
    labels: torch.Tensor = target.full_tensor() if is_dtensor(target) else target
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= classes))]
    if wrong.numel():
        raise IndexError(f"Target {int(wrong[0])} is out of bounds.")
