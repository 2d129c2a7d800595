"""`tw.torch.softmax`, `log_softmax`, `rms_norm`, `layer_norm`, `rope`: functions of rows with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: torch's types, which are not read

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.operators import op
from tilewright.torch.sharding import Way, partial, replicated, shard, sharded_like, sums, whole_along

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def in_rows(x: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return an empty contiguous tensor like the first."""
    return x.new_empty(x.shape)


def like_second(grad: torch.Tensor, x: torch.Tensor, *others: Any) -> torch.Tensor:
    """Return an empty contiguous tensor like the second."""
    return x.new_empty(x.shape)


def check_tensor(function: str, name: str, x: Any) -> None:
    """Refuse what is not a tensor of floats."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(
            f"{name} is a {type(x).__name__}, and tw.torch.{function} takes tensors",
            help=f"tw.{function} takes arrays of any library",
        )
    if x.dtype not in _FLOATS:
        raise ArgumentError(f"{name} is {x.dtype}, and {function} takes {', '.join(map(str, _FLOATS))}")


# --- softmax -------------------------------------------------------------------------------------------------------


@op("tilewright::softmax", shape=in_rows, vmap="loop", autocast=torch.float32)
def softmax_operator(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute softmax along a mode: the operator under `tw.torch.softmax`."""
    found: torch.Tensor = tilewright.softmax(x, dim)
    return found


@op("tilewright::softmax_backward", shape=like_second, vmap="loop")
def softmax_backward_operator(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute y * (grad - sum(grad * y))."""
    found: torch.Tensor = tilewright.softmax_backward(grad, y, dim)
    return found


@softmax_operator.backward
def _softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    return softmax_backward_operator(grad, result, dim)


@softmax_backward_operator.backward
def _softmax_backward_backward(
    second: torch.Tensor, grad: torch.Tensor, y: torch.Tensor, dim: int, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    found = {}
    if "grad" in needs:
        found["grad"] = softmax_backward_operator(second, y, dim)
    if "y" in needs:
        sums = [(v * y).sum(dim, keepdim=True) for v in (grad, second)]
        found["y"] = second * (grad - sums[0]) - grad * sums[1]
    return found


@op("tilewright::log_softmax", shape=in_rows, vmap="loop", autocast=torch.float32)
def log_softmax_operator(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute the logarithm of softmax along a mode: the operator under `tw.torch.log_softmax`."""
    found: torch.Tensor = tilewright.log_softmax(x, dim)
    return found


@op("tilewright::log_softmax_backward", shape=like_second, vmap="loop")
def log_softmax_backward_operator(grad: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute grad - exp(y) * sum(grad)."""
    found: torch.Tensor = tilewright.log_softmax_backward(grad, y, dim)
    return found


@log_softmax_operator.backward
def _log_softmax_backward(grad: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    return log_softmax_backward_operator(grad, result, dim)


@log_softmax_backward_operator.backward
def _log_softmax_backward_backward(
    second: torch.Tensor, grad: torch.Tensor, y: torch.Tensor, dim: int, needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    weighted, found = second * y.exp(), {}
    if "grad" in needs:
        found["grad"] = second - weighted.sum(dim, keepdim=True)
    if "y" in needs:
        found["y"] = -weighted * grad.sum(dim, keepdim=True)
    return found


@softmax_operator.sharding
@log_softmax_operator.sharding
def _ways_beside(x: Any, dim: int) -> list[Way]:
    return [Way([shard(n)], {"x": shard(n)}) for n in _beside(x, dim)]


@softmax_backward_operator.sharding
@log_softmax_backward_operator.sharding
def _ways_of_gradients_beside(grad: Any, y: Any, dim: int) -> list[Way]:
    return [Way([shard(n)], {"grad": shard(n), "y": shard(n)}) for n in _beside(y, dim)]


def _beside(x: Any, dim: int) -> list[int]:
    """Return the modes of a tensor but one."""
    return [n for n in range(len(x.shape)) if n != dim % len(x.shape)]


def _converted(function: str, input: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    if dtype is not None and isinstance(input, torch.Tensor):
        input = input.to(dtype)
    check_tensor(function, "input", input)
    return input


def softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return exp(x - max(x)) / sum(exp(x - max(x))) along a mode, with gradients.

    >>> import torch, tilewright as tw
    >>> tw.torch.softmax(torch.tensor([[0.0, 0.0], [0.0, -torch.inf]]))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])

    Arguments are those of `torch.nn.functional.softmax`, except that the default is the last mode; with `dtype` the
    input is converted first. Types are those of `tw.softmax`. Gradients are differentiable. Under autocast it is
    computed in float32. CPU tensors run in the simulator.

    Raises `ArgumentError` for anything but a tensor of floats, and for a mode that it does not have.
    """
    return softmax_operator(_converted("softmax", input, dtype), dim)


def log_softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return x - max(x) - log(sum(exp(x - max(x)))) along a mode, with gradients.

    >>> import torch, tilewright as tw
    >>> tw.torch.log_softmax(torch.zeros(1, 4))
    tensor([[-1.3863, -1.3863, -1.3863, -1.3863]])

    Arguments are those of `tw.torch.softmax`.

    Raises `ArgumentError` as that does.
    """
    return log_softmax_operator(_converted("log_softmax", input, dtype), dim)


# --- norms ---------------------------------------------------------------------------------------------------------


def _number_type(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _rms_shape(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=_number_type(x))


@op("tilewright::rms_norm", shape=_rms_shape, vmap="loop", autocast=torch.float32)
def rms_norm_operator(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute RMS norm over the last mode, and 1 / sqrt(mean(x^2) + eps): the operator under `tw.torch.rms_norm`."""
    if x.shape[-1] == 0:
        return x.new_empty(x.shape), x.new_full(x.shape[:-1], torch.nan, dtype=_number_type(x))
    y, scale = tilewright.rms_norm(x, weight, eps=eps, statistics=True)
    return y, scale


def _rms_backward_shape(
    grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(0) if weight is None else weight.new_empty(weight.shape)


@op("tilewright::rms_norm_backward", shape=_rms_backward_shape, vmap="loop")
def rms_norm_backward_operator(
    grad: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of RMS norm's x and weight; `eps` is for gradients of these."""
    dx, dweight = tilewright.rms_norm_backward(grad, x, scale.contiguous(), weight)
    return dx, x.new_empty(0) if dweight is None else dweight


@rms_norm_operator.backward
def _rms_norm_backward(
    grad: torch.Tensor,
    of_scale: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    result_1: torch.Tensor,
) -> dict[str, torch.Tensor]:
    dx, dweight = rms_norm_backward_operator(grad, x, result_1, weight, eps)
    return {"x": dx} if weight is None else {"x": dx, "weight": dweight}


@rms_norm_backward_operator.backward
def _rms_norm_backward_backward(
    of_x: torch.Tensor,
    of_weight: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    # scale is a function of x: all of its gradient goes there.
    def gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        values, slope = x * scale, grad * weight
        dx = scale * (slope - values * (slope * values).mean(-1, keepdim=True))
        return dx, (grad * values).sum_to_size(weight.shape)

    return _gradients_of(gradients, (of_x, of_weight), {"grad": grad, "x": x, "weight": weight}, needs)


def _gradients_of(
    function: Any, seconds: tuple[torch.Tensor, ...], inputs: dict[str, torch.Tensor | None], needs: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Return gradients of the gradients that `function` computes, by torch's own operators in the wide type."""
    x = inputs["x"]
    assert x is not None
    kind, columns = _number_type(x), x.shape[-1]
    values = [x.new_ones(columns, dtype=kind) if v is None else v.to(kind) for v in inputs.values()]
    _, pull = torch.func.vjp(function, *values)
    wide = [s.to(kind) if s.numel() or not columns else s.new_zeros(columns, dtype=kind) for s in seconds]
    pulled = zip(inputs.items(), pull(tuple(wide)), strict=True)
    return {name: g.to(v.dtype) for (name, v), g in pulled if v is not None and name in needs}


@rms_norm_operator.sharding
def _rms_norm_ways(x: Any, weight: Any, eps: float) -> list[Way]:
    return [Way([shard(n)] * 2, {"x": shard(n)}) for n in range(len(x.shape) - 1)]


@rms_norm_backward_operator.sharding
def _rms_norm_backward_ways(grad: Any, x: Any, scale: Any, weight: Any, eps: float) -> list[Way]:
    return _ways_of_rows(x, ("grad", "x", "scale"), [weight is not None])


def _ways_of_rows(x: Any, names: Sequence[str], has_sums: Sequence[bool]) -> list[Way]:
    """Return ways by rows: gradients of parameters are sums over rows, and empty where there are none."""
    totals = [partial() if has else replicated() for has in has_sums]
    return [Way([shard(n), *totals], dict.fromkeys(names, shard(n))) for n in range(len(x.shape) - 1)]


def _layer_shape(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kind = _number_type(x)
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=kind), x.new_empty(x.shape[:-1], dtype=kind)


@op("tilewright::layer_norm", shape=_layer_shape, vmap="loop", autocast=torch.float32)
def layer_norm_operator(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute layer norm over the last mode, mean, and scale: the operator under `tw.torch.layer_norm`."""
    if x.shape[-1] == 0:
        mean = x.new_full(x.shape[:-1], torch.nan, dtype=_number_type(x))
        return x.new_empty(x.shape), mean, mean.clone()
    y, mean, scale = tilewright.layer_norm(x, weight, bias, eps=eps, statistics=True)
    return y, mean, scale


def _layer_backward_shape(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    parameters: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    like, size = (x if weight is None else weight), x.shape[-1:] if parameters else (0,)
    return x.new_empty(x.shape), like.new_empty(size), like.new_empty(size)


@op("tilewright::layer_norm_backward", shape=_layer_backward_shape, vmap="loop")
def layer_norm_backward_operator(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    parameters: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of layer norm's x, weight and bias; `eps` is for gradients of these."""
    dx, dweight, dbias = tilewright.layer_norm_backward(
        grad, x, mean.contiguous(), scale.contiguous(), weight, parameters=parameters
    )
    if not parameters:
        like = x if weight is None else weight
        return dx, like.new_empty(0), like.new_empty(0)
    return dx, dweight, dbias


@layer_norm_operator.backward
def _layer_norm_backward(
    grad: torch.Tensor,
    of_mean: torch.Tensor,
    of_scale: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    result_1: torch.Tensor,
    result_2: torch.Tensor,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    parameters = bool(needs & {"weight", "bias"})
    dx, dweight, dbias = layer_norm_backward_operator(grad, x, result_1, result_2, weight, eps, parameters)
    found = {"x": dx}
    if weight is not None and parameters:
        found["weight"] = dweight
    if bias is not None and parameters:
        found["bias"] = dbias.to(bias.dtype)
    return found


@layer_norm_backward_operator.backward
def _layer_norm_backward_backward(
    of_x: torch.Tensor,
    of_weight: torch.Tensor,
    of_bias: torch.Tensor,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    # mean and scale are functions of x: all of their gradients go there.
    def gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        apart = x - x.mean(-1, keepdim=True)
        scale = (apart.square().mean(-1, keepdim=True) + eps).rsqrt()
        values, slope = apart * scale, grad * weight
        shift = slope.mean(-1, keepdim=True) + values * (slope * values).mean(-1, keepdim=True)
        return scale * (slope - shift), (grad * values).sum_to_size(weight.shape), grad.sum_to_size(weight.shape)

    return _gradients_of(gradients, (of_x, of_weight, of_bias), {"grad": grad, "x": x, "weight": weight}, needs)


@layer_norm_operator.sharding
def _layer_norm_ways(x: Any, weight: Any, bias: Any, eps: float) -> list[Way]:
    return [Way([shard(n)] * 3, {"x": shard(n)}) for n in range(len(x.shape) - 1)]


@layer_norm_backward_operator.sharding
def _layer_norm_backward_ways(
    grad: Any, x: Any, mean: Any, scale: Any, weight: Any, eps: float, parameters: bool
) -> list[Way]:
    return _ways_of_rows(x, ("grad", "x", "mean", "scale"), [parameters] * 2)


def _rows(function: str, input: torch.Tensor, normalized_shape: Any, vectors: dict[str, Any]) -> torch.Tensor:
    """Return the input with its normalised modes as one; raise `ArgumentError` for shapes that do not fit."""
    check_tensor(function, "input", input)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ArgumentError(
            f"normalized_shape is {shape}, and the last modes of input, {tuple(input.shape)}, are to be so",
            help=f"pass one mode at least, such as {tuple(input.shape[-1:])}",
        )
    for name, vector in vectors.items():
        if vector is not None:
            check_tensor(function, name, vector)
            if tuple(vector.shape) != shape:
                raise ArgumentError(f"{name} has the shape {tuple(vector.shape)}, and normalized_shape is {shape}")
    count = len(shape)
    return whole_along(input, range(input.ndim - count, input.ndim)).flatten(-count) if count > 1 else input


def _vector(x: torch.Tensor | None) -> torch.Tensor | None:
    return x if x is None or x.ndim == 1 else whole_along(x, range(x.ndim)).flatten()


def rms_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with means over the last modes and gradients.

    >>> import torch, tilewright as tw
    >>> x = torch.tensor([[3.0, 4.0, 0.0, 0.0]], requires_grad=True)
    >>> tw.torch.rms_norm(x, 4, eps=0.0).sum().backward()
    >>> x.grad
    tensor([[ 0.0640, -0.0480,  0.4000,  0.4000]])

    Arguments are those of `torch.nn.functional.rms_norm`, and types those of `tw.rms_norm`. The result has the input's
    type. Gradients are differentiable. Under autocast it is computed in float32. CPU tensors run in the simulator.

    Raises `ArgumentError` for anything but tensors of floats, and for shapes that do not fit together.
    """
    rows = _rows("rms_norm", input, normalized_shape, {"weight": weight})
    number = torch.finfo(_number_type(input)).eps if eps is None else eps
    y, _ = rms_norm_operator(rows, _vector(weight), number)
    return y if rows is input else y.reshape(input.shape)  # FSDP warns of views


def layer_norm(
    input: torch.Tensor,
    normalized_shape: int | Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Return (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, with means over the last modes and gradients.

    >>> import torch, tilewright as tw
    >>> tw.torch.layer_norm(torch.tensor([[1.0, 3.0]]), 2, bias=torch.tensor([0.0, 10.0]), eps=0.0)
    tensor([[-1., 11.]])

    Arguments are those of `torch.nn.functional.layer_norm`; the rest is as for `tw.torch.rms_norm`.

    Raises `ArgumentError` as that does.
    """
    rows = _rows("layer_norm", input, normalized_shape, {"weight": weight, "bias": bias})
    y, _, _ = layer_norm_operator(rows, _vector(weight), _vector(bias), eps)
    return y if rows is input else y.reshape(input.shape)


# --- rotary position embedding ---------------------------------------------------------------------------------------


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
