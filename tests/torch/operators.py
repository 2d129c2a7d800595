"""Operators that the tests register, each of which launches a kernel in the simulator."""

from __future__ import annotations

import torch

import tilewright as tw

launches: list[str] = []  # the operators that launched a kernel


@tw.kernel
def multiply(out, x, y):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = x[i] * y[i]


@tw.kernel
def add_number(x, number):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[0]:
        x[i] = x[i] + number


def in_rows(x: torch.Tensor, *others: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@tw.torch.op("tests::product", shape=in_rows, vmap="elementwise", autocast="lower")
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    launches.append("product")
    out = in_rows(x)
    multiply[tw.ceil_div(x.numel(), 32), 32](out.view(-1), x.reshape(-1), y.reshape(-1))
    return out


@product.backward
def product_backward(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, needs: frozenset[str]) -> dict:
    return {name: product(grad, other) for name, other in (("x", y), ("y", x)) if name in needs}


@tw.torch.op("tests::scaled", shape=in_rows, vmap="loop", autocast=torch.float32)
def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    launches.append("scaled")
    return product.__wrapped__(x, torch.full_like(x, factor))


@scaled.backward
def scaled_backward(grad: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled(grad, factor)


@tw.torch.op("tests::square_and_double", shape=lambda x: (in_rows(x), in_rows(x)), vmap="loop")
def square_and_double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    launches.append("square_and_double")
    return product.__wrapped__(x, x), product.__wrapped__(x, torch.full_like(x, 2.0))


@square_and_double.backward
def square_and_double_backward(square: torch.Tensor, double: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return scaled(product(square, x), 2.0) + scaled(double, 2.0)


@tw.torch.op("tests::add_in_place", mutates=("x",))
def add_in_place(x: torch.Tensor, number: float) -> None:
    launches.append("add_in_place")
    add_number[tw.ceil_div(x.numel(), 32), 32](x.view(-1), number)


@tw.torch.op("tests::without_gradient", shape="x")
def without_gradient(x: torch.Tensor) -> torch.Tensor:
    return product.__wrapped__(x, x)


@tw.torch.op("tests::cubed", shape=in_rows, vmap="elementwise")
def cubed(x: torch.Tensor) -> torch.Tensor:
    return product.__wrapped__(x, product.__wrapped__(x, x))


def _setup(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])


cubed.backward(lambda ctx, grad: 3 * grad * ctx.saved_tensors[0] ** 2, setup=_setup)
