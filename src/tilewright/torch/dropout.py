"""`tw.torch.dropout`: the mask of a product's dropout, for tensors and for gradients."""

from __future__ import annotations

import numpy as np
import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels.dropout import Dropout, check_probability
from tilewright.torch._element_kernels import DROPPING, GROUPS, PERIOD, drop_elements
from tilewright.torch.operators import op
from tilewright.torch.rows import check_tensor, in_rows
from tilewright.torch.sharding import Way, agreed


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
