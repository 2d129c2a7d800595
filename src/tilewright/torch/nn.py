"""Modules with the same parameters as torch's own, which run kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast  # Any: what modules are called with

import torch
import torch.fx

from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.kernels.quantized import Quantized, quantize
from tilewright.torch.fused_attention import scaled_dot_product_attention
from tilewright.torch.products import matmul
from tilewright.torch.quantized import quantized_matmul
from tilewright.torch.rows import layer_norm, rms_norm

F = TypeVar("F", bound=Callable[..., Any])
torch.fx.wrap("matmul")  # where a module is traced by itself
torch.fx.wrap("layer_norm")
torch.fx.wrap("rms_norm")

__all__ = ["Linear", "QuantizedLinear", "RMSNorm", "LayerNorm", "Attention"]


def _whole(forward: F) -> F:
    """Let `torch.fx.symbolic_trace` take a module as one node, as it does those of torch."""

    @functools.wraps(forward)
    def call(self: torch.nn.Module, *args: Any, **keywords: Any) -> Any:
        first = args[0] if args else next(iter(keywords.values()), None)
        if isinstance(first, torch.fx.Proxy) and self is not first.tracer.root:
            return first.tracer.create_proxy("call_module", first.tracer.path_of_module(self), args, keywords)
        return forward(self, *args, **keywords)

    return cast("F", call)


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

    @_whole
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # torch's name for it
        return matmul(input, self.weight.t(), bias=self.bias)


class QuantizedLinear(torch.nn.Module):  # type: ignore[misc]
    """Compute x @ weights + bias with packed weights of 4 or 8 bits, and gradients of x and bias.

    >>> import torch, tilewright as tw
    >>> layer = torch.nn.Linear(256, 32, dtype=torch.float16)
    >>> packed = tw.torch.nn.QuantizedLinear.from_linear(layer, group=64)
    >>> packed.weights
    <256 x 32: 4-bit weights in groups of 64, scales of float16, zeros of their own>
    >>> x = torch.randn(8, 256, dtype=torch.float16)
    >>> bool((packed(x) - layer(x)).abs().max() < 0.5)
    True
    >>> round(sum(x.nbytes for x in packed.buffers()) / layer.weight.nbytes, 2)
    0.27

    `from_linear` rounds the weights of a `torch.nn.Linear` to the nearest numbers (`tw.quantize`); the constructor
    takes what `tw.quantize`, `tw.quantized`, `tw.quantized.from_gptq` or `tw.quantized.from_awq` return. Weights,
    scales and zeros are buffers, so that `to` moves them and `state_dict` has them; the bias is a parameter.
    `load_state_dict` takes the state of a module of the same extents, bits and group. `half()` and similar methods only
    round the scales to the type (`double()` leaves them float32). `precision` may be set to "rounded", as that of
    `tw.torch.quantized_matmul`.

    The input is float16 or bfloat16, or becomes autocast's type. Raises `ArgumentError` as
    `tw.torch.quantized_matmul` does.
    """

    precision: str | None = None

    def __init__(self, weights: Quantized, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(getattr(weights, "packed", None), torch.Tensor):
            raise ArgumentError(
                f"weights is a {type(weights).__name__}, and QuantizedLinear takes packed weights of tensors",
                help="tw.quantize(tensor) packs, and QuantizedLinear.from_linear(layer) does it for a layer",
            )
        self._format = weights.format
        for name in ("packed", "scales", "zeros", "order"):
            self.register_buffer(name, getattr(weights, name))
        self.bias: torch.nn.Parameter | None = None if bias is None else torch.nn.Parameter(bias)

    @classmethod
    def from_linear(
        cls, layer: torch.nn.Linear, bits: int = 4, group: int = 128, *, symmetric: bool = False
    ) -> QuantizedLinear:
        """Return a module whose weights are those of a linear layer, rounded as `tw.quantize` does it.

        >>> import torch, tilewright as tw
        >>> tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 2, bias=False), bits=8, group=-1).weights
        <4 x 2: 8-bit weights in groups of 128, scales of float16, zeros of their own>
        """
        if not isinstance(layer, torch.nn.Linear):
            raise ArgumentError(f"layer is a {type(layer).__name__}, and a torch.nn.Linear is expected")
        weights = quantize(layer.weight.detach().t(), bits, group, symmetric=symmetric)
        return cls(weights, None if layer.bias is None else layer.bias.detach().clone())

    @property
    def weights(self) -> Quantized:
        """The packed weights, as `tw.matmul` takes them."""
        scales = self.scales.float() if self.scales.dtype is torch.float64 else self.scales
        described = replace(self._format, scale=as_dtype(scales.dtype))
        return Quantized(self.packed, scales, self.zeros, described, self.order)

    def get_extra_state(self) -> torch.Tensor:
        """Return what a state has beside the arrays: bits, group, K, N, and the zero if all groups have the same."""
        f = self._format
        return torch.tensor([f.bits, f.group, f.k, f.n] + ([] if f.zero is None else [f.zero]))

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take the zero that all groups have in a state, if they have the same."""
        self._format = replace(self._format, zero=state[4].item() if len(state) > 4 else None)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        extra = state.get(f"{prefix}_extra_state")
        if extra is not None:
            theirs, ours = extra.tolist()[:4], self.get_extra_state().tolist()[:4]
            if theirs != ours:
                rest[-1].append(f"{prefix}packed has bits, group, K and N of {theirs}, and {ours} here.")
                return
            for name in ("zeros", "order"):
                loaded = state.get(prefix + name)
                if (loaded is None) != (getattr(self, name) is None):
                    setattr(self, name, None if loaded is None else torch.empty_like(loaded, device=self.packed.device))
        super()._load_from_state_dict(state, prefix, *rest)

    @_whole
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # torch's name for it
        return quantized_matmul(input, self.weights, self.bias, precision=self.precision)

    def extra_repr(self) -> str:
        """Return what torch shows of the module."""
        f = self.weights.format
        return f"in_features={f.k}, out_features={f.n}, bias={self.bias is not None}, {f}"


class RMSNorm(torch.nn.RMSNorm):  # type: ignore[misc]
    """Compute x / sqrt(mean(x^2) + eps) * weight, as `torch.nn.RMSNorm` does: the same parameters and `state_dict`.

    >>> import torch, tilewright as tw
    >>> tw.torch.nn.RMSNorm(4, eps=0.0)(torch.tensor([[3.0, 4.0, 0.0, 0.0]])).detach()
    tensor([[1.2000, 1.6000, 0.0000, 0.0000]])

    Raises `ArgumentError` for inputs that `tw.torch.rms_norm` does not take.
    """

    @_whole
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(torch.nn.LayerNorm):  # type: ignore[misc]
    """Compute layer norm with weight and bias, as `torch.nn.LayerNorm` does: the same parameters and `state_dict`.

    >>> import torch, tilewright as tw
    >>> tw.torch.nn.LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.,  1.]])

    Raises `ArgumentError` for inputs that `tw.torch.layer_norm` does not take.
    """

    @_whole
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
    causal mask that `is_causal=True` says `attn_mask` to be, for as many keys as tokens. Everything else is left to
    torch's own module: returning weights, for example, requires all scores to be stored.

    Raises `ArgumentError` for element types that `tw.matmul` does not take.
    """

    @_whole
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
        is_plain = is_plain and key.shape[:2] == value.shape[:2] and query.shape[1 - length] == key.shape[1 - length]
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
