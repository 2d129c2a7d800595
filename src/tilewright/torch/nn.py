"""Modules with the parameters of torch's own, whose work is done by kernels."""

from __future__ import annotations

import torch

from tilewright.torch.fused_attention import scaled_dot_product_attention
from tilewright.torch.products import matmul
from tilewright.torch.rows import layer_norm, rms_norm

__all__ = ["Linear", "RMSNorm", "LayerNorm", "Attention"]


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


class Attention(torch.nn.MultiheadAttention):  # type: ignore[misc]
    """Compute attention of several heads with projections, as `torch.nn.MultiheadAttention` does: the same parameters.

    >>> import torch, tilewright as tw
    >>> known = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> ours = tw.torch.nn.Attention(8, 2, batch_first=True)
    >>> ours.load_state_dict(known.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(1, 3, 8)
    >>> outs = [module(x, x, x, need_weights=False)[0] for module in (ours, known)]
    >>> torch.allclose(*outs, atol=1e-6)
    True

    Kernels do the work with `need_weights=False`, without dropout (or in evaluation), without masks, and with the
    causal mask that `is_causal=True` says `attn_mask` to be, for as many keys as tokens. All else is left to torch's
    own module: weights are returned, for example, only if all scores are stored.

    Raises `ArgumentError` for element types that `tw.matmul` does not take.
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        length = 1 if self.batch_first else 0
        is_plain = not (need_weights or self.add_zero_attn or (self.dropout and self.training))
        is_plain = is_plain and key_padding_mask is None and self.bias_k is None and self.bias_v is None
        is_plain = is_plain and all(x.ndim == 3 and not x.is_nested for x in (query, key, value))
        has_mask = attn_mask is not None
        if not is_plain or has_mask != is_causal or (is_causal and query.shape[length] != key.shape[length]):
            found: tuple[torch.Tensor, torch.Tensor | None] = super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return found
        # (batch, heads, tokens, head), whichever of batch and tokens comes first.
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).permute(order) for x in self._projected(query, key, value))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        joined = mixed.permute((0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)).flatten(-2)
        return matmul(joined, self.out_proj.weight.t(), bias=self.out_proj.bias), None

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        """Return query, key and value multiplied by their weights: at once where they are one tensor."""
        bias = self.in_proj_bias
        if self._qkv_same_embed_dim and query is key and key is value:
            return list(matmul(query, self.in_proj_weight.t(), bias=bias).chunk(3, -1))
        weights = (
            self.in_proj_weight.chunk(3)
            if self._qkv_same_embed_dim
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = (None, None, None) if bias is None else bias.chunk(3)
        inputs = zip((query, key, value), weights, biases, strict=True)
        return [matmul(x, weight.t(), bias=each) for x, weight, each in inputs]
