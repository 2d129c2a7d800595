"""`tw.torch.permute`: modes in another order, in memory of their own, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: what torch gives a rule of vmap

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.operators import op
from tilewright.torch.sharding import Way, shard, sums


def _permuted(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    torch._check(
        sorted(d % max(x.ndim, 1) for d in dims) == list(range(x.ndim)),
        lambda: f"dims are {tuple(dims)}, and name not each of {x.ndim} modes once",
    )
    return x.new_empty([x.shape[d] for d in dims])


def _permute_batch(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, dims: Sequence[int]) -> Any:
    moved = x.movedim(in_dims[0], 0)
    return permute_operator(moved, [0, *(d % (x.ndim - 1) + 1 for d in dims)]), 0


@op("tilewright::permute", shape=_permuted, vmap=_permute_batch)
def permute_operator(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Copy with modes in another order: the operator under `tw.torch.permute`."""
    found: torch.Tensor = tilewright.permute(x, dims)
    return found


@permute_operator.backward
def _permute_backward(grad: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    back = [0] * len(dims)
    for n, d in enumerate(dims):
        back[d % len(dims)] = n
    return permute_operator(grad, back)


@permute_operator.sharding
def _permute_ways(x: Any, dims: Sequence[int]) -> list[Way]:
    moved = [Way([shard(n)], {"x": shard(d % len(dims))}) for n, d in enumerate(dims)]
    return moved + [Way([p], {"x": p}) for p in sums()]


def permute(input: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Return a contiguous copy with the modes in the order `dims`, with gradients.

    >>> import torch, tilewright as tw
    >>> tw.torch.permute(torch.arange(6).reshape(1, 2, 3), (2, 0, 1)).tolist()
    [[[0, 3]], [[1, 4]], [[2, 5]]]

    It is `torch.permute(input, dims).contiguous()`, for any element type. Gradients are differentiable. CPU tensors run
    in the simulator.

    Raises `ArgumentError` for anything but a tensor, and torch's errors for dims that are not its modes.
    """
    if not isinstance(input, torch.Tensor):
        raise ArgumentError(
            f"input is a {type(input).__name__}, and tw.torch.permute takes tensors",
            help="tw.permute takes arrays of any library",
        )
    if sorted(d + input.ndim if d < 0 else d for d in dims) != list(range(input.ndim)):
        torch.permute(input, tuple(dims))  # raises torch's own error
    return permute_operator(input, list(dims))
