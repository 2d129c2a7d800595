"""Modules with the parameters of torch's own, whose work is done by kernels."""

from __future__ import annotations

import torch

from tilewright.torch.products import matmul

__all__ = ["Linear"]


class Linear(torch.nn.Linear):  # type: ignore[misc]  # torch's types are not read, see pyproject.toml
    """Compute x @ weight.T + bias, as `torch.nn.Linear` does: the same parameters, initial values and `state_dict`.

    >>> import torch, tilewright as tw
    >>> layer = tw.torch.nn.Linear(3, 2)
    >>> layer.load_state_dict(torch.nn.Linear(3, 2).state_dict())
    <All keys matched successfully>
    >>> layer(torch.ones(4, 3)).shape
    torch.Size([4, 2])

    Raises `ArgumentError` for element types that `tw.matmul` does not take.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # torch's name for it
        return matmul(input, self.weight.t(), bias=self.bias)
