"""Functions of elements with gradients, as operators: what follows a product where a gradient is required."""

from __future__ import annotations

from typing import Any  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch._element_kernels import THREADS, TILE, activate, slopes
from tilewright.torch.operators import op
from tilewright.torch.sharding import Way, shard, sums

_LAST_ORDER = 3  # of the derivatives that kernels know


@op("tilewright::activation", shape=lambda x, *others: x.new_empty(x.shape), vmap="elementwise")
def activation(
    x: torch.Tensor,
    factor: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    function: str = "relu",
    order: int = 0,
) -> torch.Tensor:
    """Compute derivative(x) * factor + addend, where all have one shape; `order` 0 is the function itself."""
    if order > _LAST_ORDER:
        raise ArgumentError(f"{function} has derivatives up to the third here, got one of order {order}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    vectors = [x if v is None else v for v in (x, factor, addend)]
    operands = tuple(n for n, v in (("factor", factor), ("addend", addend)) if v is not None)
    flat = [v.contiguous().reshape(-1) for v in vectors]
    activate[tilewright.ceil_div(x.numel(), TILE), THREADS](y.reshape(-1), *flat, function, order, operands)
    return y


@activation.backward
def _activation_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    factor: torch.Tensor | None,
    addend: torch.Tensor | None,
    function: str,
    order: int,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    found = {}
    if factor is not None and {"x", "factor"} <= needs:
        found["x"], of_factor = both_of(gate_backward(grad, x, factor, function, order))
        needs, found["factor"] = needs - {"x", "factor"}, of_factor.to(factor.dtype)
    if "x" in needs:
        slope = grad if factor is None else grad * factor
        found["x"] = activation(x, slope, None, function, order + 1)
    if factor is not None and "factor" in needs:
        found["factor"] = activation(x, grad, None, function, order).to(factor.dtype)
    if addend is not None and "addend" in needs:
        found["addend"] = grad.to(addend.dtype)
    return found


def both_of(both: torch.Tensor, pairs: str = "") -> tuple[torch.Tensor, ...]:
    """Return the gradients of gate and factor: a matrix each, or halves of columns, or columns in turn."""
    mode = 0
    if pairs:
        both, mode = both.unflatten(-1, (2, -1) if pairs == "halves" else (-1, 2)), -2 if pairs == "halves" else -1
    return tuple(both.unbind(mode))


def _both_shape(
    grad: torch.Tensor, x: torch.Tensor, factor: torch.Tensor, function: str, order: int = 0, pairs: str = ""
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]) if pairs else (2, *x.shape))


@op("tilewright::gate_backward", shape=_both_shape, vmap="loop")
def gate_backward(
    grad: torch.Tensor, x: torch.Tensor, factor: torch.Tensor, function: str, order: int = 0, pairs: str = ""
) -> torch.Tensor:
    """Compute the gradients of x and factor of derivative(x) * factor in one pass, both in one tensor."""
    columns = x.shape[-1] if pairs else x.numel()
    both = torch.empty(
        (x.numel() // columns, 2 * columns) if pairs else (2, 1, columns), dtype=x.dtype, device=x.device
    )
    rows = [v.reshape(-1, columns) for v in (grad, x, factor)]
    blocks = len(rows[0]) * tilewright.ceil_div(columns, TILE)
    slopes[blocks, THREADS](*both_of(both, pairs), *rows, function, order)
    return both.view((*x.shape[:-1], -1) if pairs else (2, *x.shape))


@gate_backward.backward
def _gate_backward_backward(
    seconds: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    factor: torch.Tensor,
    function: str,
    order: int,
    pairs: str,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    of_x, of_factor = both_of(seconds, pairs)
    found = {}
    if "grad" in needs:
        found["grad"] = activation(
            x, of_x * factor, activation(x, of_factor, None, function, order), function, order + 1
        )
    if "x" in needs:
        later = activation(x, of_factor * grad, None, function, order + 1)
        found["x"] = activation(x, of_x * grad * factor, later, function, order + 2)
    if "factor" in needs:
        found["factor"] = activation(x, of_x * grad, None, function, order + 1)
    return found


@gate_backward.sharding
def _gate_backward_ways(grad: Any, x: Any, factor: Any, function: str, order: int = 0, pairs: str = "") -> Any:
    # Columns of pairs stay together; without pairs the result has a mode more in front.
    modes = range(len(x.shape) - bool(pairs))
    return [Way([shard(n + (not pairs))], dict.fromkeys(("grad", "x", "factor"), shard(n))) for n in modes]


@activation.sharding
def _activation_ways(x: Any, factor: Any = None, addend: Any = None, function: str = "relu", order: int = 0) -> Any:
    together = [Way([shard(n)], dict.fromkeys(("x", "factor", "addend"), shard(n))) for n in range(len(x.shape))]
    # Nonlinear in x, and linear in what follows it.
    return together + ([] if factor is None else [Way([p], {"factor": p, "addend": p}) for p in sums()])
