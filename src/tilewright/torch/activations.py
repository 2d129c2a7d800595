"""Functions of elements with gradients, as operators: what follows a product where a gradient is required, dropout."""

from __future__ import annotations

from typing import Any  # Any: specifications of DTensor

import numpy as np
import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels.dropout import Dropout, check_probability
from tilewright.torch._element_kernels import (
    DROPPING,
    GROUPS,
    PERIOD,
    THREADS,
    TILE,
    activate,
    drop_elements,
    slopes,
)
from tilewright.torch.operators import op
from tilewright.torch.rows import check_tensor, in_rows
from tilewright.torch.sharding import Way, agreed, shard, sums

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


# --- dropout: the mask of a product's dropout, for tensors and for gradients ---------------------------------


@op("tilewright::dropout", shape=in_rows, vmap="loop")
def dropout_operator(x: torch.Tensor, seed: torch.Tensor, p: float) -> torch.Tensor:
    """Compute dropout of x, whose rows are counted through all modes but the last, by a seed in memory."""
    found, columns = Dropout(p, seed), x.shape[-1] if x.ndim else 1
    source = x.contiguous().reshape(-1, columns)
    y = torch.empty_like(source)
    width = 2 if columns % 2 == 0 and source.data_ptr() % (2 * x.element_size()) == 0 else 1
    threads = source.shape[0] * tilewright.ceil_div(columns, PERIOD) * GROUPS
    drop_elements[tilewright.ceil_div(threads, DROPPING), DROPPING](
        y, source, seed.reshape(1), found.threshold, np.float64(found.scale), width
    )
    return y.reshape(x.shape)


@dropout_operator.backward
def _dropout_backward(grad: torch.Tensor, seed: torch.Tensor, p: float) -> dict[str, torch.Tensor]:
    return {"x": dropout_operator(grad, seed, p)}


@dropout_operator.sharding
def _dropout_ways(*args: object) -> list[Way]:
    return []  # a part would have the mask of the first rows and columns


def seed_for(seed: torch.Tensor | int | None, x: torch.Tensor) -> torch.Tensor:
    """Return a seed on the device of x; None takes one from torch's generator there."""
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise ArgumentError(f"seed is a tensor of {seed.dtype} of the shape {tuple(seed.shape)}, not of one int64")
        return seed
    if seed is not None:
        if not isinstance(seed, (int, torch.SymInt)):
            raise ArgumentError(f"seed is a {type(seed).__name__}", help="an int, or a tensor of one int64")
        return torch.full((), seed, dtype=torch.int64, device=x.device)
    found: torch.Tensor = agreed(torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=x.device), x)
    return found


def dropout(
    x: torch.Tensor, p: float = 0.5, training: bool = True, *, seed: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Return x with each element zero with probability p, and the others divided by 1 - p; x itself without `training`.

    >>> import torch, tilewright as tw
    >>> x, w = torch.ones(2, 3), torch.ones(3, 6)
    >>> torch.equal(tw.torch.dropout(x @ w, 0.5, seed=1), tw.torch.matmul(x, w, dropout=0.5, seed=1))
    True

    The mask is that of `tw.dropout`: a function of the seed, the row (counted through all modes but the last) and the
    column. It is not stored, as gradients compute it again. Without `seed` one is drawn from torch's generator of the
    device, so that `torch.manual_seed` reproduces it; for a DTensor, on the first device of its mesh.

    Raises `ArgumentError` for anything but a tensor of floats, for a p that is not from 0 to 1, and for a seed that is
    not an int or a tensor of one int64.
    """
    check_tensor("dropout", "x", x)
    check_probability("tw.torch.dropout", "p", p)
    return dropout_operator(x, seed_for(seed, x), p) if training and p > 0 else x
