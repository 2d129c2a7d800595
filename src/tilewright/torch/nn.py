"""Modules with the parameters of torch's own, whose work is done by kernels."""

from __future__ import annotations

import torch

from tilewright.torch.products import matmul
from tilewright.torch.rows import layer_norm, rms_norm

__all__ = ["Linear", "RMSNorm", "LayerNorm"]


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


class RMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]
    """Compute x / sqrt(mean(x^2) + eps) * weight, as `torch.nn.RMSNorm` does: the same parameters and `state_dict`.

    >>> import torch, tilewright as tw
    >>> tw.torch.nn.RMSNorm(4, eps=0.0)(torch.tensor([[3.0, 4.0, 0.0, 0.0]])).detach()
    tensor([[1.2000, 1.6000, 0.0000, 0.0000]])

    Raises `ArgumentError` for inputs that `tw.torch.rms_norm` does not take.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]
    """Compute layer norm with weight and bias, as `torch.nn.LayerNorm` does: the same parameters and `state_dict`.

    >>> import torch, tilewright as tw
    >>> tw.torch.nn.LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.,  1.]])

    Raises `ArgumentError` for inputs that `tw.torch.layer_norm` does not take.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # torch's name for it
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
