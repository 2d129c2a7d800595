"""`tw.torch.grouped_matmul`: products of ragged groups of matrices, with gradients."""

from __future__ import annotations

from typing import Any, Literal  # Any: specifications of DTensor

import torch

import tilewright
from tilewright.errors import ArgumentError
from tilewright.torch.operators import op
from tilewright.torch.products import check_depth, precision_of_torch
from tilewright.torch.sharding import Way, partial, shard, sums


def _result(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    precision: str = "",
) -> torch.Tensor:
    """Return an empty result."""
    ranks = (a.ndim, b.ndim)
    torch._check(
        ranks in ((2, 3), (2, 2), (3, 2)) and offsets.ndim == 1,
        lambda: f"a, b and offsets have {a.ndim}, {b.ndim} and {offsets.ndim} modes; see tw.grouped_matmul",
    )
    check_depth(a, b)
    groups = offsets.shape[0]
    for matrices in (a, b):
        torch._check(
            matrices.ndim == 2 or matrices.shape[0] == groups,
            lambda: f"there are {matrices.shape[0]} matrices and {groups} offsets; each group has one",  # noqa: B023
        )
    shape = (groups, a.shape[0], b.shape[1]) if ranks == (2, 2) else (a.shape[-2], b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


@op("tilewright::grouped_matmul", shape=_result, vmap="loop", autocast="lower")
def grouped_matmul_operator(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    precision: str = "",
) -> torch.Tensor:
    """Multiply ragged groups in one launch: the operator under `tw.torch.grouped_matmul`. "" is torch's precision."""
    precise = (precision or precision_of_torch()) if a.dtype == torch.float32 else None
    found: torch.Tensor = tilewright.grouped_matmul(a, b, offsets, out_dtype=out_dtype, precision=precise)
    return found


@grouped_matmul_operator.backward
def _grouped_matmul_backward(
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    precision: str,
    needs: frozenset[str],
) -> dict[str, torch.Tensor]:
    # The ranks choose the ragged mode: whichever of M, N and K it is here, that of each product below follows from it.
    found = {}
    slope = grad.to(a.dtype)
    if "a" in needs:
        found["a"] = grouped_matmul_operator(slope, b.mT, offsets, None, precision)
    if "b" in needs:
        found["b"] = grouped_matmul_operator(a.mT, slope, offsets, None, precision)
    return found


@grouped_matmul_operator.sharding
def _grouped_matmul_ways(a: Any, b: Any, offsets: Any, out_dtype: Any = None, precision: str = "") -> list[Way]:
    # The ragged mode stays whole, as do the groups: offsets count its indices.
    ways = [Way([p], {name: p}) for p in sums() for name in ("a", "b")]
    ragged = {(2, 3): "M", (2, 2): "K", (3, 2): "N"}[len(a.shape), len(b.shape)]
    rank = 3 if ragged == "K" else 2
    if ragged != "M":
        ways.append(Way([shard(rank - 2)], {"a": shard(len(a.shape) - 2)}))
    if ragged != "N":
        ways.append(Way([shard(rank - 1)], {"b": shard(len(b.shape) - 1)}))
    if ragged != "K":
        ways.append(Way([partial()], {"a": shard(len(a.shape) - 1), "b": shard(len(b.shape) - 2)}))
    return ways


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor,
    *,
    out_dtype: torch.dtype | None = None,
    precision: Literal["ieee", "tf32"] | None = None,
) -> torch.Tensor:
    """Multiply ragged groups of matrices in one launch, with gradients; group e ends before index offsets[e].

    | a | b | result | group e computes |
    |---|---|---|---|
    | (T, K) | (E, K, N) | (T, N) | result[rows of e] = a[rows of e] @ b[e] |
    | (M, T) | (T, N) | (E, M, N) | result[e] = a[:, columns of e] @ b[rows of e] |
    | (E, M, K) | (K, T) | (M, T) | result[:, columns of e] = a[e] @ b[:, columns of e] |

    >>> import torch, tilewright as tw
    >>> tokens, experts = torch.ones(5, 8), torch.ones(3, 8, 2, requires_grad=True)
    >>> tw.torch.grouped_matmul(tokens, experts, torch.tensor([2, 2, 5])).sum().backward()
    >>> experts.grad[:, 0, 0]
    tensor([2., 0., 3.])

    `offsets` is a vector of int32 or int64 on the device of `a` and `b`; offsets and element types are those of
    `tw.grouped_matmul`. Indices after the last offset belong to no group: their results are 0, and they get gradients
    of 0. Each gradient is one launch of the same kernels, and gradients have gradients. `precision` is that of
    `tw.torch.matmul`. Under autocast, operands become its 16-bit type.

    There is no operator for lists of matrices: `tw.grouped_matmul` takes them, without gradients.

    Raises `ArgumentError` for arguments that do not fit together.
    """
    for name, x in (("a", a), ("b", b), ("offsets", offsets)):
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(
                f"{name} is a {type(x).__name__}, and tw.torch.grouped_matmul takes tensors",
                help="tw.grouped_matmul takes arrays of any library, and lists of matrices without offsets",
            )
    if offsets.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"offsets is {offsets.dtype}, and the ends of groups are int32 or int64")
    return grouped_matmul_operator(a, b, offsets, out_dtype, precision or "")
