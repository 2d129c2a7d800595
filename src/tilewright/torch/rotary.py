"""`tw.torch.rope`: rotary position embedding with gradients."""

from __future__ import annotations

from typing import Any  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.operators import op
from tilewright.torch.rows import check_tensor
from tilewright.torch.sharding import Way, shard, sharded_like, sums


@op("tilewright::rope", shape="x", vmap="loop")
def rope_operator(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, inverse: bool
) -> torch.Tensor:
    """Turn pairs by angles: the operator under `tw.torch.rope`."""
    # Tokens before heads stay so, and what follows joins heads without a copy.
    found: torch.Tensor = tilewright.rope(
        x, cos, sin, interleaved=interleaved, inverse=inverse, out=torch.empty_like(x)
    )
    return found


@rope_operator.backward
def _rope_backward(
    grad: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool, inverse: bool
) -> dict[str, torch.Tensor]:
    return {"x": rope_operator(grad, cos, sin, interleaved, not inverse)}


@rope_operator.sharding
def _rope_ways(x: Any, cos: Any, sin: Any, interleaved: bool, inverse: bool) -> list[Way]:
    rank, ways = len(x.shape), [Way([p], {"x": p}) for p in sums()]
    for n in range(rank - 1):
        angles = {name: sharded_like(v.shape, n, rank) for name, v in (("cos", cos), ("sin", sin))}
        ways.append(Way([shard(n)], {"x": shard(n), **angles}))
    return ways


def rope(input: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotate pairs of elements of the last mode by angles, with gradients: (a cos - b sin, b cos + a sin).

    >>> import torch, tilewright as tw
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    >>> y = tw.torch.rope(x, torch.tensor([0.0, -1.0]), torch.tensor([1.0, 0.0]))
    >>> y.detach(), torch.autograd.grad(y.sum(), x)[0]
    (tensor([[-3., -2.,  1., -4.]]), tensor([[ 1., -1., -1., -1.]]))

    Arguments are those of `tw.rope`. Gradients are differentiable. Angles have none.

    Raises `ArgumentError` for anything but tensors of floats, for shapes that do not fit together, and for angles that
    require a gradient.
    """
    for name, x in (("input", input), ("cos", cos), ("sin", sin)):
        check_tensor("rope", name, x)
        if name != "input" and x.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} requires a gradient, and rope has none of its angles", help=f"pass {name}.detach()"
            )
    return rope_operator(input, cos, sin, interleaved, False)
