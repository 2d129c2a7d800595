"""`tw.torch.attention` with gradients, and PyTorch's `scaled_dot_product_attention` by it where both are the same."""

from __future__ import annotations

import functools
import math
from numbers import Integral
from typing import Any  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels.attention import UNLIMITED
from tilewright.torch.operators import op
from tilewright.torch.rows import check_tensor
from tilewright.torch.sharding import Way, is_taken_by_torch, partial, replicated, shard, shards

_ALL = -1  # a side of a window without a bound
_MOST_HEAD = 256


def _sides(left: int, right: int) -> tuple[int | None, int | None]:
    return None if left == _ALL else left, None if right == _ALL else right


def _empty_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    left: int,
    right: int,
    scale: float | None,
    offsets: torch.Tensor | None,
    key_offsets: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return empty results, the first one with its modes in the order of q's: then joining heads copies nothing."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    if offsets is not None:
        tokens, heads, _ = q.shape
        return q.new_empty((tokens, heads, v.shape[-1])), q.new_empty((heads, tokens), dtype=kind)
    batch, heads, tokens, _ = q.shape
    lse = q.new_empty((batch, heads, tokens), dtype=kind)
    if q.stride(1) >= q.stride(2):
        return q.new_empty((batch, heads, tokens, v.shape[-1])), lse
    if q.stride(0) < q.stride(2) and batch > 1:
        return q.new_empty((tokens, batch, heads, v.shape[-1])).permute(1, 2, 0, 3), lse
    return q.new_empty((batch, tokens, heads, v.shape[-1])).transpose(1, 2), lse


@op("tilewright::attention", shape=_empty_results, vmap="loop", autocast="lower")
def attention_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    left: int,
    right: int,
    scale: float | None,
    offsets: torch.Tensor | None,
    key_offsets: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention and log(sum(exp(scores))): the operator under `tw.torch.attention`; -1 stands for all keys."""
    out, _ = _empty_results(q, k, v, left, right, scale, offsets, key_offsets, key_lengths)
    found, lse = tilewright.attention(
        q,
        k,
        v,
        window=_sides(left, right),
        scale=scale,
        offsets=offsets,
        key_offsets=key_offsets,
        key_lengths=key_lengths,
        out=out,
        statistics=True,
    )
    return found, lse


def _empty_gradients(
    grad: torch.Tensor, lse_grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return empty gradients in the order of memory of what they are of, so that those of heads join without a copy."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@op("tilewright::attention_backward", shape=_empty_gradients, vmap="loop")
def attention_backward_operator(
    grad: torch.Tensor,
    lse_grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    left: int,
    right: int,
    scale: float | None,
    offsets: torch.Tensor | None,
    key_offsets: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of q, k and v. These are not differentiable, as with torch's fused attention.

    As in torch's, the sums of q's gradient have one order where `torch.use_deterministic_algorithms` asks for it.
    """
    # Bulk copies take no gradients that repeat one number, as that of a sum does.
    joined = grad if 0 not in grad.stride() and grad.stride(-1) == 1 else grad.contiguous()
    made = zip(("dq", "dk", "dv"), _empty_gradients(grad, lse_grad, q, k, v), strict=True)
    dq, dk, dv = tilewright.attention_backward(
        joined,
        q,
        k,
        v,
        out,
        lse,
        window=_sides(left, right),
        scale=scale,
        offsets=offsets,
        key_offsets=key_offsets,
        key_lengths=key_lengths,
        lse_grad=lse_grad,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **dict(made),
    )
    return dq, dk, dv


@attention_operator.backward
def _attention_backward(
    grad: torch.Tensor,
    lse_grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    left: int,
    right: int,
    scale: float | None,
    offsets: torch.Tensor | None,
    key_offsets: torch.Tensor | None,
    key_lengths: torch.Tensor | None,
    results: tuple[torch.Tensor, ...],
) -> dict[str, torch.Tensor]:
    dq, dk, dv = attention_backward_operator(
        grad, lse_grad, q, k, v, results[0], results[1], left, right, scale, offsets, key_offsets, key_lengths
    )
    return {"q": dq, "k": dk, "v": dv}


def _whole_groups(q: Any, k: Any, **others: Any) -> bool:
    """Refuse heads divided so that a device lacks the keys of some: several heads may share those of one."""
    if q.shape[1] == k.shape[1]:
        return True
    devices = zip(k.placements, k.mesh.shape, strict=True)
    return bool(k.shape[1] % math.prod(n for p, n in devices if shards(p, 1)) == 0)


def _attention_ways(q: Any, k: Any, has_results: bool, lengths: Any, is_ragged: bool, sees_all: bool) -> list[Way]:
    """Return ways by batches and heads; a ragged batch is divided by heads alone.

    Heads that share all keys are divided while the keys are not, and so are tokens that all see the same keys. The
    gradients of these are then sums.
    """
    results, lse = ("grad", "out"), ("lse_grad", "lse")
    ways = []
    for mode in (1,) if is_ragged else (0, 1):
        inputs: dict[str, Any] = dict.fromkeys(("q", "k", "v", *results), shard(mode))
        inputs |= dict.fromkeys(lse, shard(0 if is_ragged else mode))
        if mode == 0 and lengths is not None:
            inputs["key_lengths"] = shard(0)
        first = [shard(mode), shard(0 if is_ragged else mode)]
        if mode == 1 and k.shape[1] == 1 < q.shape[1]:
            shared = {**inputs, "k": replicated(), "v": replicated()}
            ways.append(Way([shard(1), partial(), partial()] if has_results else first, shared))
        else:
            ways.append(Way([shard(mode)] * 3 if has_results else first, inputs))
    if sees_all and not is_ragged:
        inputs = dict.fromkeys(("q", *results, *lse), shard(2))
        ways.append(Way([shard(2), partial(), partial()] if has_results else [shard(2)] * 2, inputs))
    return ways


@functools.partial(attention_operator.sharding, check=_whole_groups)
def _forward_ways(
    q: Any, k: Any, v: Any, left: int, right: int, scale: Any, offsets: Any, key_offsets: Any, key_lengths: Any
) -> list[Way]:
    return _attention_ways(q, k, False, key_lengths, offsets is not None, left == right == _ALL)


@functools.partial(attention_backward_operator.sharding, check=_whole_groups)
def _backward_ways(
    grad: Any,
    lse_grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    left: int,
    right: int,
    scale: Any,
    offsets: Any,
    key_offsets: Any,
    key_lengths: Any,
) -> list[Way]:
    return _attention_ways(q, k, True, key_lengths, offsets is not None, left == right == _ALL)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    offsets: torch.Tensor | None = None,
    key_offsets: torch.Tensor | None = None,
    key_lengths: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(scale * query key^T) value of each head, with gradients.

    >>> import torch, tilewright as tw
    >>> query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4)
    >>> value = torch.tensor([[[[1.0], [3.0]]]], requires_grad=True)
    >>> out = tw.torch.attention(query, key, value, causal=True)
    >>> out.flatten().tolist(), torch.autograd.grad(out.sum(), value)[0].flatten().tolist()
    ([1.0, 2.0], [1.5, 0.5])

    Arguments, types and masks are those of `tw.attention`: with `causal`, the last token is aligned with the last key.
    Tensors are (batch, heads, tokens, head), or (tokens, heads, head) with `offsets`. The result has the memory layout
    of `query`: tokens before heads, also before batches, or heads before tokens. With `return_lse` the result is a pair
    with log(sum(exp(scores))) of each token, which has gradients too. Gradients are not differentiable. Under autocast
    it is computed in autocast's type. CPU tensors run in the simulator.

    Raises `ArgumentError` for anything but tensors of floats, and for arguments that do not fit together.
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor("attention", name, x)
        if x.ndim != (4 if offsets is None else 3):
            modes = "batch, heads, tokens, head" if offsets is None else "tokens, heads, head"
            raise ArgumentError(f"{name} has the shape {tuple(x.shape)}, and attention takes ({modes})")
    left, right = (_ALL, _ALL) if window is None else _checked(window)
    found, lse = attention_operator(
        query, key, value, left, 0 if causal else right, scale, offsets, key_offsets, key_lengths
    )
    return (found, lse) if return_lse else found


def _checked(window: object) -> tuple[int, int]:
    """Return the sides of a window as the operator takes them."""
    sides = window if isinstance(window, (tuple, list)) else ()
    if len(sides) != 2 or any(
        n is not None and (isinstance(n, bool) or not isinstance(n, Integral) or n < 0) for n in sides
    ):
        raise ArgumentError(
            f"window is {window!r}",
            help="(left, right): keys before and behind the one beside the token, or None for all of a side",
        )
    left, right = (_ALL if n is None else min(int(n), UNLIMITED) for n in sides)
    return left, right


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention`, by `attention` where the result is the same.

    >>> import torch, tilewright as tw
    >>> x = torch.randn(1, 2, 3, 8)
    >>> ours, known = (f(x, x, x, is_causal=True) for f in
    ...                (tw.torch.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
    >>> torch.allclose(ours, known, atol=1e-6)
    True

    Masks, dropout, other ranks than four, batches that broadcast, other types, and `is_causal` for different numbers of
    tokens and keys go to torch's own function; so do calls that it rejects, and all inside of torch's
    `context_parallel`.
    """
    if why_torch(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa) is not None:
        known = torch.nn.functional.scaled_dot_product_attention
        if known is scaled_dot_product_attention:  # it took that place
            known = torch._C._nn.scaled_dot_product_attention
        found: torch.Tensor = known(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found
    result = attention(query, key, value, causal=is_causal, scale=scale)
    assert isinstance(result, torch.Tensor)
    return result


def why_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str | None:
    """Return why a call is left to torch's own function, or None if `attention` gives the same."""
    tensors = (query, key, value)
    if is_taken_by_torch(torch.ops.aten._scaled_dot_product_flash_attention.default):
        return "torch's context_parallel divides its tokens"
    if not all(isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() > 1 for x in tensors):
        return "its arguments are not tensors of floats"
    if attn_mask is not None or dropout_p:
        return "it has a mask, or dropout"
    if any(x.ndim != 4 for x in tensors) or len({x.dtype for x in tensors}) > 1 or len({x.device for x in tensors}) > 1:
        return "its tensors have other ranks, or several types or devices"
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        return "its shapes broadcast"
    if max(query.shape[3], value.shape[3]) > _MOST_HEAD or 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return "its heads are long, or it has no elements"
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared and (not enable_gqa or heads % shared):
        return "its heads differ"
    if is_causal and query.shape[2] != key.shape[2]:
        return "its causal mask begins at the first token"
    return None
