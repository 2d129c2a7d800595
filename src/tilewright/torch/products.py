"""`tw.torch.matmul`: products with gradients, and the functions that may follow in the same kernel.

Where columns are pairs of a gate and what it multiplies, both are stored if a gradient is required, beside the result.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels.dropout import check_probability
from tilewright.torch._element_kernels import FUNCTIONS, finish, finish_pair
from tilewright.torch.activations import activation, both_of, dropout_operator, gate_backward, seed_for
from tilewright.torch.operators import op
from tilewright.torch.sharding import Way, expanded, partial, replicated, shard, sharded_like, sums

Epilogue = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"]
Pairs = Literal["halves", "interleaved"]
EPILOGUES = (*FUNCTIONS, "swiglu")
_DROPOUT = 8  # its place among the inputs of the operator
_INTEGERS = (torch.int8, torch.uint8)
_BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)


def check_depth(a: torch.Tensor, b: torch.Tensor) -> None:
    """Refuse matrices of which one has other columns than the other has rows."""
    torch._check(
        a.shape[-1] == b.shape[-2],
        lambda: f"a has {a.shape[-1]} columns and b has {b.shape[-2]} rows; they must be as many",
    )


def _result(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "",
    out_dtype: torch.dtype | None = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return an empty result."""
    check_depth(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kind = out_dtype
    if kind is None:
        kind = torch.int32 if a.dtype in _INTEGERS else torch.bfloat16 if a.dtype in _BYTES else a.dtype
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=kind)


def _product_of_batches(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[torch.Tensor, int]:
    """Compute a batch of products: the batch becomes the first mode of what has it.

    With dropout each product is one of its own, as rows are counted through a batch.
    """
    if len(args) > _DROPOUT and args[_DROPOUT]:
        alone = [
            matmul_operator(*(x if at is None else x.select(at, n) for x, at in zip(args, in_dims, strict=True)))
            for n in range(info.batch_size)
        ]
        return torch.stack(alone), 0
    rank = max(x.ndim - (at is not None) for x, at in zip(args[:2], in_dims[:2], strict=True))

    def in_front(x: Any, at: int | None) -> Any:
        if not isinstance(x, torch.Tensor) or at is None:
            return x
        x = x.movedim(at, 0)
        return x.reshape(x.shape[0], *(1,) * (rank - x.ndim + 1), *x.shape[1:])

    moved = [in_front(x, at) for x, at in zip(args, in_dims, strict=True)]
    if in_dims[0] is None and in_dims[1] is None:  # something else has the batch
        a = args[0]
        moved[0] = a.expand(info.batch_size, *(1,) * (rank - a.ndim), *a.shape)
    return matmul_operator(*moved), 0


@op("tilewright::matmul", shape=_result, vmap=_product_of_batches, autocast="lower")
def matmul_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "",
    out_dtype: torch.dtype | None = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute dropout(epilogue(a @ b + bias)) + residual in one kernel: the operator under `tw.torch.matmul`.

    It is what graphs show as torch.ops.tilewright.matmul. Operands have two modes at least; "" means no epilogue, and
    the precision that torch is set to.
    """
    function: Any = None  # Any: what tw.matmul takes
    if epilogue or residual is not None or dropout:
        operands: dict[str, Any] = {n: x for n, x in (("gate", gate), ("residual", residual)) if x is not None}
        if dropout:
            operands["drop"] = tilewright.dropout(dropout, seed)
        function = functools.partial(finish, function=_rounded_to(epilogue, a, out_dtype), **operands)
    precise = _precision_for(a, precision)
    found: torch.Tensor = tilewright.matmul(a, b, bias=bias, epilogue=function, out_dtype=out_dtype, precision=precise)
    return found


def _rounded_to(epilogue: str, a: torch.Tensor, out_dtype: torch.dtype | None) -> str:
    """Return the function that is traced for an epilogue, of accumulators of `a` and a result of a type."""
    is_short = (out_dtype or a.dtype).itemsize == 2 and a.dtype != torch.float64
    return "gelu_16" if epilogue == "gelu" and is_short else epilogue


def _precision_for(a: torch.Tensor, precision: str) -> str | None:
    """Return what `tw.matmul` is told of the precision; those for float32 say nothing of what autocast made of it."""
    if a.dtype == torch.float32:
        return precision or precision_of_torch()
    return precision if precision == "fp8_fast" else None


@matmul_operator.backward
def _matmul_backward(
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    gate: torch.Tensor | None,
    residual: torch.Tensor | None,
    epilogue: str,
    precision: str,
    dropout: float,
    seed: torch.Tensor | None,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    found = {}
    if residual is not None and "residual" in needs:
        found["residual"] = _summed(grad, residual)
    if dropout:
        assert seed is not None
        grad = dropout_operator(grad, seed, dropout)
    if epilogue and needs - {"residual"}:
        # The product again, because only its function was stored. tw.torch.matmul does not come here with an epilogue.
        before = matmul_operator(a, b, bias, None, None, "", grad.dtype, precision)
        if epilogue == "swiglu":
            assert gate is not None
            wide = gate.to(grad.dtype).expand_as(grad)
            if "gate" in needs:
                found["gate"] = _summed(activation(wide, grad * before, None, "silu", 1), gate)
            grad = activation(wide, grad, None, "silu", 0)
        else:
            grad = activation(before, grad, None, epilogue, 1)
    return found | _gradients_of_product(grad, a, b, bias, precision, needs)


def _gradients_of_product(
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    precision: str,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    """Return the gradients of a, b and bias for that of a @ b + bias."""
    found = {}
    if bias is not None and "bias" in needs:
        found["bias"] = _summed(grad, bias)
    slope = grad.to(a.dtype)
    if "a" in needs:
        found["a"] = _summed(matmul_operator(slope, b.mT, None, None, None, "", a.dtype, precision), a)
    if "b" in needs:
        if b.ndim == 2 and a.ndim > 2:  # one product over all rows
            left, right = a.flatten(0, -2).mT, slope.flatten(0, -2)
        else:
            left, right = a.mT, slope
        if b.stride(-2) == 1 < b.stride(-1):  # else a weight that was passed transposed copies its gradient
            made = matmul_operator(right.mT, left.mT, None, None, None, "", b.dtype, precision).mT
        else:
            made = matmul_operator(left, right, None, None, None, "", b.dtype, precision)
        found["b"] = _summed(made, b)
    return found


@matmul_operator.sharding
def _matmul_ways(
    a: Any,
    b: Any,
    bias: Any = None,
    gate: Any = None,
    residual: Any = None,
    epilogue: str = "",
    out_dtype: Any = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: Any = None,
) -> list[Way]:
    """Return the ways of products: by rows, columns and batches, and by parts of sums where no function follows.

    silu(gate) * product + residual is linear in the product, so that "swiglu" keeps parts of sums as none does. Dropout
    has none: a part would have the mask of the first rows and columns.
    """
    if dropout:
        return []
    batch = max(len(a.shape), len(b.shape)) - 2
    rank = batch + 2
    rest = {"bias": bias, "gate": gate, "residual": residual}

    def around(mode: int) -> dict[str, Any]:
        return {name: sharded_like(x.shape, mode, rank) for name, x in rest.items() if x is not None}

    last_a, last_b = len(a.shape) - 1, len(b.shape) - 1
    ways = [
        Way([shard(rank - 2)], {"a": shard(last_a - 1), **around(rank - 2)}),
        Way([shard(rank - 1)], {"b": shard(last_b), **around(rank - 1)}),
    ]
    for n in range(batch):
        modes = {name: sharded_like(x.shape, n, rank) for name, x in (("a", a), ("b", b))}
        ways.append(Way([shard(n)], {**modes, **around(n)}))
    if epilogue in ("", "swiglu"):
        parts = {"a": shard(last_a), "b": shard(last_b - 1)}
        ways.append(Way([partial()], {**parts, "bias": partial(), "residual": partial()}))
        for p in sums():
            ways += [Way([p], {name: p, "bias": p, "residual": p}) for name in ("a", "b")]
    return ways


# --- pairs of columns ------------------------------------------------------------------------------------------------


def _gated_results(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "silu",
    pairs: str = "halves",
    keeps: bool = False,
    out_dtype: torch.dtype | None = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an empty result, and empty gates and factors, without elements where they are not kept."""
    columns = b.shape[-1]
    torch._check(columns % 2 == 0, lambda: f"b has {columns} columns, which do not form pairs of a gate and a factor")
    product = _result(a, b[..., : columns // 2], out_dtype=out_dtype)
    gate, up = (product.new_empty(product.shape if keeps else (0,)) for _ in range(2))
    return product, gate, up


@op("tilewright::gated_matmul", shape=_gated_results, vmap="loop", autocast="lower")
def gated_matmul_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    epilogue: str = "silu",
    pairs: str = "halves",
    keeps: bool = False,
    out_dtype: torch.dtype | None = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute dropout(epilogue(gate) * up) + residual in one kernel, where a @ b + bias has the columns of both.

    The other results are gate and up, for the backward pass; they have no elements unless it `keeps` them, and then
    that pass computes the product again.
    """
    operands: dict[str, Any] = {} if residual is None else {"residual": residual}
    if dropout:
        operands["drop"] = tilewright.dropout(dropout, seed)
    rounded = _rounded_to(epilogue, a, out_dtype)
    function = functools.partial(finish_pair, function=rounded, keeps=keeps, **operands)
    gated: Any = tilewright.gated(function, pairs)  # type: ignore[arg-type]  # which checks it
    kept = [_result(a, b, out_dtype=out_dtype).dtype] * 2 if keeps else ()
    found = tilewright.matmul(
        a, b, bias=bias, epilogue=gated, out_dtype=out_dtype, precision=_precision_for(a, precision), also=kept
    )
    y, gate, up = found if keeps else (found, found.new_empty(0), found.new_empty(0))
    return y, gate, up


@gated_matmul_operator.backward
def _gated_backward(
    grad: torch.Tensor | None,
    of_gate: torch.Tensor | None,
    of_up: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    epilogue: str,
    pairs: str,
    keeps: bool,
    precision: str,
    dropout: float,
    seed: torch.Tensor | None,
    result_1: torch.Tensor,
    result_2: torch.Tensor,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    if grad is None:
        if not keeps:
            return found
        grad = torch.zeros_like(result_1)
    if residual is not None and "residual" in needs:
        found["residual"] = _summed(grad, residual)
    if not needs - {"residual"}:
        return found
    if dropout:
        assert seed is not None
        grad = dropout_operator(grad, seed, dropout)
    if keeps:
        gate, up = result_1, result_2
    else:
        gate, up = both_of(matmul_operator(a, b, bias, None, None, "", grad.dtype, precision), pairs)
    slope = gate_backward(grad, gate, up, epilogue, 0, pairs)
    if keeps and (of_gate is not None or of_up is not None):  # gradients of gradients reach them
        more = [torch.zeros_like(gate) if v is None else v for v in (of_gate, of_up)]
        slope = slope + torch.stack(more, -2 if pairs == "halves" else -1).flatten(-2)
    return found | _gradients_of_product(slope, a, b, bias, precision, needs)


@gated_matmul_operator.sharding
def _gated_ways(
    a: Any,
    b: Any,
    bias: Any = None,
    residual: Any = None,
    epilogue: str = "silu",
    pairs: str = "halves",
    keeps: bool = False,
    out_dtype: Any = None,
    precision: str = "",
    dropout: float = 0.0,
    seed: Any = None,
) -> list[Way]:
    """Return the ways of products by rows and by batches; none with dropout. Parts of columns would divide pairs."""
    if dropout:
        return []
    rank = max(len(a.shape), len(b.shape))

    def way(mode: int, **inputs: Any) -> Way:
        around = {
            n: sharded_like(x.shape, mode, rank) for n, x in (("bias", bias), ("residual", residual)) if x is not None
        }
        kept = [shard(mode) if keeps else replicated()] * 2
        return Way([shard(mode), *kept], {**inputs, **around})

    ways = [way(rank - 2, a=shard(len(a.shape) - 2))]
    for n in range(rank - 2):
        ways.append(way(n, a=sharded_like(a.shape, n, rank), b=sharded_like(b.shape, n, rank)))
    return ways


def precision_of_torch() -> str:
    """Return the precision of float32 products that torch is set to."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _summed(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of what was broadcast, in its type."""
    return gradient.sum_to_size(x.shape).to(x.dtype)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Epilogue | None = None,
    gate: torch.Tensor | None = None,
    pairs: Pairs | None = None,
    residual: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    precision: Literal["ieee", "tf32", "tf32x3", "bf16x6", "bf16x9", "fp8_fast"] | None = None,
    dropout: float = 0.0,
    seed: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """Return dropout(epilogue(a @ b + bias)) + residual, with gradients.

    >>> import torch, tilewright as tw
    >>> x, w = torch.ones(2, 3), torch.full((3, 4), 0.5, requires_grad=True)
    >>> tw.torch.matmul(x, w, bias=torch.arange(-2.0, 2.0), epilogue="relu").sum().backward()
    >>> w.grad[0]
    tensor([0., 2., 2., 2.])

    Shapes are those of `torch.matmul`, and element types those of `tw.matmul`; `bias`, `gate` and `residual` broadcast
    to the result. `epilogue` is "relu", "gelu", "gelu_tanh" (its approximation), "silu", or "swiglu": then the result
    is silu(gate) * (a @ b + bias) + residual. `precision` is one of `tw.matmul`, for float32 and its gradients; by
    default `torch.get_float32_matmul_precision()` decides, as for `torch.matmul`.

    With `pairs`, one product has the gate and what it multiplies: b and `bias` have 2 N columns, the result has N, and
    is epilogue(gate) * up + residual, where "swiglu" means silu. "halves" have all gates first, "interleaved" columns
    2 n and 2 n + 1 (see `tw.gated`).

    >>> x, w13 = torch.ones(1, 2), torch.tensor([[1.0, 1.0], [-1.0, -1.0], [3.0, 3.0], [4.0, 4.0]])
    >>> tw.torch.matmul(x, w13.T, epilogue="relu", pairs="halves")
    tensor([[12.,  0.]])

    With `dropout=p` (0 while not training), elements are zero with probability p, and the others are divided by 1 - p
    (see `tw.dropout`). `seed` is an int or a tensor of one int64; by default one is drawn from torch's generator of the
    device. The backward pass computes the mask again.

    Without gradients this is one kernel, and the result is rounded once. If a gradient is required, a @ b + bias is
    stored in the type of the result and the function is a second kernel, because the backward pass needs its argument;
    dropout behind a function is a third. With `pairs` it is one kernel, which stores gate and up too. Gradients are
    differentiable.

    Under autocast, operands become its 16-bit type. CPU tensors run in the simulator.

    Raises `ArgumentError` for arguments that do not fit together.
    """
    _check(a, b, bias, epilogue, gate, residual, dropout)
    _check_pairs(b, epilogue, gate, pairs)
    key = seed_for(seed, a) if dropout else None
    left, right = a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b
    if b.ndim == 1 or a.ndim == 1:
        # A vector's mode is there for the product alone: addends get it too, where they reach so far.
        bias, gate, residual = (_with_modes_of_vectors(x, a.ndim == 1, b.ndim == 1) for x in (bias, gate, residual))
    operands = [x for x in (a, b, bias, gate, residual) if x is not None]
    if pairs is not None:
        assert epilogue is not None
        function = "silu" if epilogue == "swiglu" else epilogue
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
        found, _, _ = gated_matmul_operator(
            left, right, bias, residual, function, pairs, keeps, out_dtype, precision or "", dropout, key
        )
        return found.squeeze(-2) if a.ndim == 1 else found
    if epilogue is not None and torch.is_grad_enabled() and any(x.requires_grad for x in operands):
        found = matmul_operator(left, right, bias, None, None, "", out_dtype, precision or "")
        after = None if residual is None else expanded(residual.to(found.dtype), found)
        addend = None if dropout else after
        if gate is not None:
            found = activation(expanded(gate.to(found.dtype), found), found, addend, "silu", 0)
        else:
            found = activation(found, None, addend, epilogue, 0)
        if key is not None:
            found = dropout_operator(found, key, dropout)
            found = found if after is None else found + after
    else:
        found = matmul_operator(
            left, right, bias, gate, residual, epilogue or "", out_dtype, precision or "", dropout, key
        )
    if b.ndim == 1:
        found = found.squeeze(-1)
    return found.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else found


def _with_modes_of_vectors(x: torch.Tensor | None, has_no_rows: bool, has_no_columns: bool) -> torch.Tensor | None:
    if x is None:
        return None
    if has_no_columns:
        x = x.unsqueeze(-1)
    return x.unsqueeze(-2) if has_no_rows and x.ndim > 1 else x


def _check_pairs(b: torch.Tensor, epilogue: str | None, gate: torch.Tensor | None, pairs: str | None) -> None:
    """Refuse a gate without a function for it, or two gates, or none."""
    if pairs is None:
        if (gate is not None) != (epilogue == "swiglu"):
            raise ArgumentError(
                'epilogue="swiglu" goes with gate=, and nothing else does',
                help='pass gate=x @ w_gate with epilogue="swiglu", or pairs="halves" for a b with the columns of both',
            )
        return
    if gate is not None:
        raise ArgumentError(f"pairs={pairs!r} says that b has the gate, and gate= is another", help="leave one out")
    if epilogue is None:
        raise ArgumentError(f"pairs={pairs!r} goes with an epilogue", help='epilogue="swiglu", for example')
    if b.ndim < 2:
        raise ArgumentError(f"pairs={pairs!r} are of columns of b, and b is a vector", help="pass a matrix")


def _check(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str | None,
    gate: torch.Tensor | None,
    residual: torch.Tensor | None,
    dropout: float,
) -> None:
    """Refuse what no later step would refuse in words of this function."""
    if epilogue is not None and epilogue not in EPILOGUES:
        raise ArgumentError(
            f"epilogue is {epilogue!r}, and has a name here",
            help=f"one of {', '.join(EPILOGUES)}; tw.matmul takes functions, without gradients",
        )
    check_probability("tw.torch.matmul", "dropout", dropout)
    for name, x in (("a", a), ("b", b), ("bias", bias), ("gate", gate), ("residual", residual)):
        if x is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(
                f"{name} is a {type(x).__name__}, and tw.torch.matmul takes tensors",
                help="tw.matmul takes arrays of any library",
            )
        if name in ("a", "b") and x.ndim == 0:
            raise ArgumentError(f"{name} has no mode, and a matrix has two", help="multiply by a number with *")
        if x.dtype in _BYTES and x.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} is {x.dtype} and requires a gradient, which products of 8-bit numbers do not have",
                help=f"pass {name}.detach(), or keep {name} in bfloat16",
            )
    if dropout and a.dtype in _INTEGERS:
        raise ArgumentError(f"dropout is of floats, and a product of {a.dtype} has integers")
    if epilogue not in (None, "relu") and a.dtype in _INTEGERS:
        raise ArgumentError(f"{epilogue} is a function of floats, and a is {a.dtype}")
