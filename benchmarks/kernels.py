"""The kernels of examples/kernels against copies and PyTorch, on one GPU.

    python -m benchmarks.kernels [--json FILE] [--only NAME ...]

Kernels that memory bounds are set against a device-to-device copy of their input, by the rate of bytes read and
written once; attention against FlashAttention 2 in PyTorch, by TFLOP/s (causal counts half of the work). Candidates run
interleaved in random order on normal random data; outputs hold NaN before, and are checked against PyTorch in float32
or float64 after.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.timing import interleaved, machine
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.demo.examples import examples_folder, load_example

Run = Callable[[], object]
SHAPES = ((16384, 4096), (8192, 16384))


@dataclass(frozen=True)
class Measured:
    """A kernel: what runs it, its bytes or flops, and what its outputs must be."""

    run: Run
    work: float
    outputs: tuple[torch.Tensor, ...] = ()
    expected: tuple[torch.Tensor, ...] = ()
    tolerance: float = 1e-2  # of the greatest magnitude


def example(name: str) -> ModuleType:
    """Load one of the examples."""
    return load_example(examples_folder() / "kernels" / f"{name}.py")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return normal random data."""
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def spoiled(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an output that nothing was written to."""
    out = torch.empty_like(like, dtype=dtype or like.dtype)
    return out.fill_(float("nan") if out.dtype.is_floating_point else -1)


def copied(x: torch.Tensor) -> Measured:
    """Return the copy that others are compared with."""
    y = torch.empty_like(x)
    return Measured(lambda: y.copy_(x), 2 * x.numel() * x.element_size())


def bytes_of(*arrays: torch.Tensor) -> int:
    """Return the bytes of arrays that are read or written once."""
    return sum(x.numel() * x.element_size() for x in arrays)


def check(name: str, kernel: Measured) -> float:
    """Run a kernel once and return its greatest error, relative to the greatest magnitude of what is expected."""
    kernel.run()
    error = 0.0
    for out, expected in zip(kernel.outputs, kernel.expected, strict=True):
        assert bool(torch.isfinite(out.float()).all()), f"{name}: something was not written"
        error = max(error, float((out.float() - expected.float()).abs().max() / expected.float().abs().max()))
    assert error <= kernel.tolerance, (name, error)
    return error


def measure(kernels: dict[str, Measured]) -> dict[str, Any]:
    """Check every kernel, and time them interleaved; the first is what the rates of others are divided by."""
    errors = {name: check(name, kernel) for name, kernel in kernels.items() if kernel.outputs}
    times = interleaved({name: kernel.run for name, kernel in kernels.items()}, rounds=15, batch_seconds=0.03)
    rates = {name: kernels[name].work / t["seconds"] / 1e12 for name, t in times.items()}
    first = rates[next(iter(kernels))]
    return {
        name: {**times[name], "T/s": rate, "of_first": rate / first, "error": errors.get(name)}
        for name, rate in rates.items()
    }


def attention() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure attention forward against FlashAttention 2."""
    launch = example("attention").launch
    for batch, heads, tokens, head, causal in (
        (1, 16, 16384, 128, False),
        (1, 16, 16384, 128, True),
        (4, 16, 4096, 128, False),
        (4, 16, 4096, 128, True),
        (4, 32, 4096, 64, True),
    ):
        q, k, v = (normal(batch, heads, tokens, head) for _ in range(3))
        out, flops = spoiled(q), 4 * batch * heads * tokens * tokens * head / (2 if causal else 1)

        def flash(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        ours = Measured(lambda: launch(out, q, k, v, causal), flops, (out,), (flash(),))  # noqa: B023  # called at once
        name = f"{batch} x {heads} x {tokens} x {head}{', causal' if causal else ''}"
        yield name, measure({"FlashAttention 2": Measured(flash, flops), "tilewright": ours})


def torch_runs(function: Run, work: float) -> dict[str, Measured]:
    """Return what PyTorch runs, and what torch.compile makes of it where it can be used."""
    found = {"torch": Measured(function, work)}
    torch._dynamo.reset()  # it compiles one function for a few sets of tensors only
    compiled = torch.compile(function)
    try:
        compiled()
    except Exception as error:  # it needs Triton and a compiler of C
        print(f"torch.compile: {type(error).__name__}", flush=True)
    else:
        found["torch.compile"] = Measured(compiled, work)
    return found


def softmax() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure softmax over rows."""
    launch = example("softmax").launch
    for shape in (*SHAPES, (2048, 131072)):
        x = normal(*shape)
        y, work = spoiled(x), 2 * bytes_of(x)
        ours = Measured(partial(launch, y, x), work, (y,), (x.float().softmax(1),))
        runs = torch_runs(partial(torch.softmax, x, 1), work)
        yield f"softmax {shape[0]} x {shape[1]}", measure({"copy": copied(x), "tilewright": ours, **runs})


def rms_norm() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure RMS norm of rows."""
    launch = example("rms_norm").launch
    for shape in SHAPES:
        x, weight = normal(*shape), normal(shape[1])
        y, work = spoiled(x), 2 * bytes_of(x) + bytes_of(weight)
        expected = F.rms_norm(x.float(), shape[1:], weight.float(), 1e-6)
        ours = Measured(partial(launch, y, x, weight), work, (y,), (expected,))
        runs = torch_runs(partial(F.rms_norm, x, shape[1:], weight, 1e-6), work)
        yield f"RMS norm {shape[0]} x {shape[1]}", measure({"copy": copied(x), "tilewright": ours, **runs})


def layer_norm() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure layer norm of rows, forward and backward."""
    module = example("layer_norm")
    for rows, n in SHAPES:
        x, dy, weight, bias = normal(rows, n), normal(rows, n), normal(n), normal(n)
        wide = [t.float() for t in (dy, x, weight, bias)]
        y, mean, rstd = spoiled(x), *(spoiled(x[:, 0], torch.float32) for _ in range(2))
        expected = torch.native_layer_norm(wide[1], (n,), wide[2], wide[3], 1e-5)
        columns = [t.view(-1) for t in expected[1:]]
        work = bytes_of(x, y, mean, rstd, weight, bias)
        ours = Measured(
            partial(module.launch, y, mean, rstd, x, weight, bias), work, (y, mean, rstd), (expected[0], *columns)
        )
        runs = torch_runs(partial(F.layer_norm, x, (n,), weight, bias), work)
        yield f"layer norm {rows} x {n}", measure({"copy": copied(x), "tilewright": ours, **runs})

        backward = torch.ops.aten.native_layer_norm_backward
        outputs = (spoiled(x), spoiled(weight), spoiled(bias))
        expected = backward(wide[0], wide[1], (n,), expected[1], expected[2], wide[2], wide[3], [True] * 3)
        sums = (
            torch.zeros(module.LOCKS, 2, n, device="cuda"),
            torch.zeros(module.LOCKS, device="cuda", dtype=torch.int32),
        )
        work = bytes_of(x, dy, *outputs, *columns, weight)
        ours = Measured(
            partial(module.launch_backward, *outputs, dy, x, *columns, weight, *sums), work, outputs, tuple(expected)
        )
        statistics = [t.view(rows, 1) for t in columns]
        theirs = Measured(partial(backward, dy, x, (n,), *statistics, weight, bias, [True] * 3), work)
        yield (
            f"layer norm, gradients {rows} x {n}",
            measure({"copy": copied(x), "tilewright": ours, "torch": theirs}),
        )


def cross_entropy() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure cross entropy with its gradient."""
    launch = example("cross_entropy").launch
    for rows, n in ((8192, 32000), (4096, 128256)):
        x, labels = normal(rows, n), torch.randint(0, n, (rows,), device="cuda")
        labels[::7] = -100
        wide = x.float().requires_grad_()
        losses = F.cross_entropy(wide, labels, reduction="none")
        (expected,) = torch.autograd.grad(losses.sum(), wide)
        loss, gradient = spoiled(losses.detach()), spoiled(x)
        work = bytes_of(x, gradient, labels, loss)
        ours = Measured(partial(launch, loss, gradient, x, labels), work, (loss, gradient), (losses.detach(), expected))
        leaf = x.detach().requires_grad_()

        def theirs(x: Any = leaf, labels: Any = labels) -> object:
            return torch.autograd.grad(F.cross_entropy(x, labels, reduction="sum"), x)

        kernels = {"copy": copied(x), "tilewright": ours, "torch": Measured(theirs, work)}
        yield f"cross entropy {rows} x {n}", measure(kernels)


def quantise() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure row quantisation to int8 and float8."""
    launch = example("quantise").launch
    for shape in SHAPES:
        x = normal(*shape)
        for dtype, greatest in ((torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)):
            scale, q = spoiled(x[:, 0], torch.float32), torch.ones_like(x).to(dtype)
            work = bytes_of(x, q, scale)

            def theirs(x: Any = x, dtype: Any = dtype, greatest: float = greatest) -> tuple[torch.Tensor, torch.Tensor]:
                scale = x.float().abs().amax(1) / greatest
                values = x.float() / scale[:, None]
                return (values.round() if dtype is torch.int8 else values).clamp(-greatest, greatest).to(dtype), scale

            ours = Measured(partial(launch, q, scale, x), work, (q, scale), theirs(), 0.08)  # by a step of e4m3
            kernels = {"copy": copied(x), "tilewright": ours, **torch_runs(theirs, work)}
            yield f"quantise to {dtype} {shape[0]} x {shape[1]}", measure(kernels)


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure what works on rows of a matrix."""
    for group in (softmax, rms_norm, layer_norm, cross_entropy, quantise):
        yield from group()


GROUPS: dict[str, Callable[[], Iterator[tuple[str, dict[str, Any]]]]] = {
    "attention": attention,
    "rows": rows,
}


def main() -> None:
    """Measure the groups that were asked for, and print or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=sorted(GROUPS), default=sorted(GROUPS))
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "results": {}}
    for group in options.only:
        for name, result in GROUPS[group]():
            found["results"][f"{group}: {name}"] = result
            rates = "  ".join(f"{key} {value['T/s']:.3f} ({value['of_first']:.3f})" for key, value in result.items())
            print(f"{group}: {name}: {rates}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
