"""`tw.torch.quantized_matmul`: products with packed weights of 4 or 8 bits, with the gradient of what they multiply."""

from __future__ import annotations

from typing import Any  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.kernels.quantized import Quantized, unpack
from tilewright.kernels.weights import WeightFormat
from tilewright.torch.operators import op
from tilewright.torch.products import matmul_operator
from tilewright.torch.rows import check_tensor
from tilewright.torch.sharding import Way, shard, sums


def _result(x: torch.Tensor, packed: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return an empty result."""
    k, n = rest[5:7]
    torch._check(x.shape[-1] == k, lambda: f"x has {x.shape[-1]} columns, and the weights {k} rows")
    return x.new_empty((*x.shape[:-1], n))


def _matrix(packed: torch.Tensor, scales: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return empty weights (N, K)."""
    _, _, _, k, n, _, dtype = rest
    return scales.new_empty((n, k), dtype=dtype)


def _format(scales: torch.Tensor, bits: int, group: int, k: int, n: int, zero: int) -> WeightFormat:
    return WeightFormat(bits, k, n, group, as_dtype(scales.dtype), None if zero < 0 else zero)


@op("tilewright::unpacked_weights", shape=_matrix, vmap="loop")
def unpacked_operator(
    packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, group: int, k: int, n: int,
    zero: int, dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Return packed weights as a matrix (N, K), as `torch.nn.Linear` has it."""
    weights = _format(scales, bits, group, k, n, zero)
    found: torch.Tensor = unpack(packed, scales, zeros, weights, as_dtype(dtype))
    return found


@unpacked_operator.sharding
def _unpacked_ways(*args: Any) -> list[Way]:
    return []


@op("tilewright::quantized_matmul", shape=_result, vmap="loop")
def quantized_matmul_operator(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bias: torch.Tensor | None,
    bits: int, group: int, k: int, n: int, zero: int, precision: str = "",
) -> torch.Tensor:  # fmt: skip
    """Multiply by packed weights: the operator under `tw.torch.quantized_matmul`. A `zero` of -1 is none for all."""
    weights = Quantized(packed, scales, zeros, _format(scales, bits, group, k, n, zero))
    found: torch.Tensor = tilewright.matmul(x, weights, bias=bias, precision=precision or None)
    return found


@quantized_matmul_operator.backward
def _quantized_matmul_backward(
    grad: torch.Tensor, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None,
    bias: torch.Tensor | None, bits: int, group: int, k: int, n: int, zero: int, precision: str, needs: frozenset[str],
) -> dict[str, torch.Tensor]:  # fmt: skip
    found = {}
    if bias is not None and "bias" in needs:
        found["bias"] = grad.sum_to_size(bias.shape).to(bias.dtype)
    if "x" in needs:
        weights = unpacked_operator(packed, scales, zeros, bits, group, k, n, zero, x.dtype)
        found["x"] = matmul_operator(grad.to(x.dtype), weights, None, None, None, "", x.dtype, "")
    return found


@quantized_matmul_operator.sharding
def _quantized_matmul_ways(x: Any, *args: Any) -> list[Way]:
    rows = [Way([shard(mode)], {"x": shard(mode)}) for mode in range(len(x.shape) - 1)]
    return rows + [Way([p], {"x": p, "bias": p}) for p in sums()]


def quantized_matmul(
    x: torch.Tensor, weights: Quantized, bias: torch.Tensor | None = None, *, precision: str | None = None
) -> torch.Tensor:
    """Return x @ ((q - zero) * scale) + bias for packed weights, with gradients of `x` and `bias`.

    >>> import torch, tilewright as tw
    >>> weights = tw.quantize(torch.tensor([[1.0, -2.0], [0.5, 0.0]]), symmetric=True)
    >>> x = torch.ones(1, 2, dtype=torch.float16, requires_grad=True)
    >>> y = tw.torch.quantized_matmul(x, weights)
    >>> bool((y - torch.tensor([[1.5, -2.0]])).abs().max() < 0.1)
    True
    >>> torch.allclose(torch.autograd.grad(y.sum(), x)[0], weights.to_matrix(tw.float16).sum(1))
    True

    `x` (..., K) is float16 or bfloat16, or becomes autocast's type; `weights` are what `tw.quantize`, `tw.quantized`
    and its readers of GPTQ's and AWQ's files return, and `bias` is a vector of N. The product multiplies group sums in
    float32 by their scales, unless `precision="rounded"` lets weights be rounded to x's type; the gradient of `x` is a
    product with the weights unpacked in x's type, which takes temporary memory. Weights and scales have no gradients.
    CPU tensors run in the simulator.

    Raises `ArgumentError` for other types, shapes that do not fit, and weights that are not torch tensors.
    """
    check_tensor("quantized_matmul", "x", x)
    if not isinstance(weights, Quantized):
        raise ArgumentError(
            f"weights is a {type(weights).__name__}, and quantized_matmul takes packed ones", help="tw.quantize packs"
        )
    if not isinstance(weights.packed, torch.Tensor):
        raise ArgumentError(
            f"the weights are of {type(weights.packed).__name__}, and tw.torch.quantized_matmul takes tensors",
            help="pack tensors: tw.quantize(tensor)",
        )
    if weights.scales.requires_grad and torch.is_grad_enabled():
        raise ArgumentError("the scales require a gradient, and have none", help="detach them")
    device = x.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(device))
    f, tensors = weights.format, (weights.packed, weights.scales, weights.zeros, bias)
    numbers = f.bits, f.group, f.k, f.n, -1 if f.zero is None else f.zero
    rows = weights.take_columns(x)
    if rows.ndim == 1:
        return quantized_matmul_operator(rows[None], *tensors, *numbers, precision or "")[0]
    return quantized_matmul_operator(rows, *tensors, *numbers, precision or "")
