"""The kernels of examples/kernels against copies and PyTorch, on one GPU.

    python -m benchmarks.kernels [--json FILE] [--only NAME ...]

Kernels that memory bounds are set against a device-to-device copy of their input, by the rate of bytes read and
written once; attention against FlashAttention 2 in PyTorch, by TFLOP/s (causal counts half of the work); matrix
products against PyTorch's. Candidates run interleaved in random order on normal random data; outputs hold NaN before,
and are checked against PyTorch in float32 or float64 after.
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

import numpy as np
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


def prefix_sum() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure prefix sums of 2^28 elements against a copy and torch.cumsum."""
    launch, size = example("prefix_sum").launch, 1 << 28
    for x in (normal(size, dtype=torch.float32), torch.randint(-9, 10, (size,), device="cuda", dtype=torch.int32)):
        y = spoiled(x)
        expected = x.cumsum(0, dtype=torch.float64 if x.dtype is torch.float32 else torch.int64)
        ours = Measured(partial(launch, y, x), 2 * bytes_of(x), (y,), (expected,))
        theirs = Measured(partial(torch.cumsum, x, 0, dtype=x.dtype), 2 * bytes_of(x))
        name = f"{size} {str(x.dtype).removeprefix('torch.')}"
        yield name, measure({"copy": copied(x), "tilewright": ours, "torch.cumsum": theirs})


def histogram() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure histograms of 2^28 bytes, spread evenly and mostly small, against a copy and torch.bincount."""
    launch, size = example("histogram").launch, 1 << 28
    even = torch.randint(0, 256, (size,), device="cuda", dtype=torch.uint8)
    small = torch.empty(size, device="cuda").exponential_(1 / 20).clamp_(max=255).to(torch.uint8)
    for name, x in (("even", even), ("mostly small", small)):
        counts = torch.full((256,), -1, device="cuda", dtype=torch.int32)
        bincount = partial(torch.bincount, x, minlength=256)
        ours = Measured(partial(launch, counts, x), bytes_of(x), (counts,), (bincount(),), tolerance=0)
        yield name, measure({"copy": copied(x), "tilewright": ours, "torch.bincount": Measured(bincount, bytes_of(x))})


def top_k() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure argmax and top-k of rows against a copy, torch.max and torch.topk; of equal elements the first counts."""
    module = example("argmax_topk")
    for shape in (*SHAPES, (2048, 128_256)):
        x = normal(*shape)
        values, indices = (t[:, :32].clone() for t in x.sort(dim=1, descending=True, stable=True))
        ours = (spoiled(values[:, 0]), spoiled(indices[:, 0]))
        runs = {
            "copy": copied(x),
            "tilewright": Measured(
                partial(module.launch_argmax, *ours, x), bytes_of(x), ours, (values[:, 0], indices[:, 0]), tolerance=0
            ),
            "torch.max": Measured(partial(torch.max, x, 1), bytes_of(x)),
        }
        yield f"argmax, {shape[0]} x {shape[1]} bfloat16", measure(runs)
        for k in (8, 32):
            expected = (values[:, :k].contiguous(), indices[:, :k].contiguous())
            ours = (spoiled(expected[0]), spoiled(expected[1]))
            runs = {
                "copy": copied(x),
                "tilewright": Measured(partial(module.launch, *ours, x, k), bytes_of(x), ours, expected, tolerance=0),
                "torch.topk": Measured(partial(torch.topk, x, k), bytes_of(x)),
            }
            yield f"top {k}, {shape[0]} x {shape[1]} bfloat16", measure(runs)


def embedding() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure embeddings against a copy of as many bytes, and their gradient, the table's zeros included."""
    module, rows = example("embedding"), 50_304
    for tokens, columns in SHAPES:
        ids = torch.randint(0, rows, (tokens,), device="cuda")
        table, dout = normal(rows, columns), normal(tokens, columns)
        out = spoiled(dout)
        theirs = partial(F.embedding, ids, table)
        work = bytes_of(dout, out, ids)
        ours = Measured(partial(module.launch, out, table, ids), work, (out,), (theirs(),), tolerance=0)
        shape = f"{tokens} rows of {columns} bfloat16"
        yield shape, measure({"copy": copied(dout), "tilewright": ours, "torch": Measured(theirs, work)})

        backward = torch.ops.aten.embedding_dense_backward
        expected = backward(dout.float(), ids, rows, -1, False)
        runs = {"copy": copied(dout)}
        for dtype in (torch.bfloat16, torch.float32):
            dtable = torch.empty(rows, columns, device="cuda", dtype=dtype)

            def gradient(dtable: torch.Tensor = dtable, dout: torch.Tensor = dout, ids: torch.Tensor = ids) -> None:
                module.launch_gradient(dtable.zero_(), dout, ids)

            work = bytes_of(dout, dtable, ids)
            runs[f"tilewright, {dtype}"] = Measured(gradient, work, (dtable,), (expected,))
        runs["torch"] = Measured(partial(backward, dout, ids, rows, -1, False), bytes_of(dout, table, ids))
        yield f"gradient of {shape}", measure(runs)


def dropout() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure dropout against a copy."""
    launch, p, seed = example("dropout").launch, 0.25, 2024
    for shape in SHAPES:
        x = normal(*shape)
        out = spoiled(x)
        launch(out, x, p, seed)
        kept = out != 0
        assert abs(float(kept.float().mean()) - (1 - p)) < 1e-3
        expected = torch.where(kept, x.float() / (1 - p), 0)
        out.fill_(float("nan"))
        ours = Measured(lambda: launch(out, x, p, seed), bytes_of(x, out), (out,), (expected,))  # noqa: B023
        torch_dropout = Measured(lambda: F.dropout(x, p), bytes_of(x, out))  # noqa: B023
        yield " x ".join(map(str, shape)), measure({"copy": copied(x), "torch": torch_dropout, "tilewright": ours})


def rope() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure rotary embeddings in both conventions against a copy; the tables are float32."""
    module, head = example("rope"), 128
    for tokens, columns in SHAPES:
        x = normal(tokens, columns // head, head)
        cos, sin = (torch.from_numpy(t).cuda() for t in module.angles(tokens, head // 2))
        c, s = cos[:, None, :], sin[:, None, :]
        kernels = {"copy": copied(x)}
        for name, is_interleaved in (("halves", False), ("interleaved", True)):
            out = spoiled(x)
            a, b = (x[..., ::2], x[..., 1::2]) if is_interleaved else x.chunk(2, -1)
            pairs = torch.stack((a * c - b * s, b * c + a * s), -1 if is_interleaved else -2)
            kernels[f"tilewright, {name}"] = Measured(
                lambda out=out, kind=is_interleaved: module.launch(out, x, cos, sin, kind),  # noqa: B023
                bytes_of(x, out, cos, sin),
                (out,),
                (pairs.reshape(x.shape),),
            )
        yield f"{tokens} x {columns // head} x {head}", measure(kernels)


def transpose() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure batched transposes against a copy: whole tiles, rows of whole vectors, and rows that begin anywhere."""
    launch = example("batched_transpose").launch
    for shape, dtype in (
        ((4, 8192, 4096), torch.bfloat16),
        ((4, 8192, 4096), torch.float32),
        ((4, 8200, 4088), torch.bfloat16),
        ((4, 8191, 4097), torch.bfloat16),
        ((512, 512, 256), torch.bfloat16),
    ):
        x = normal(*shape, dtype=dtype)
        by_torch, out = (spoiled(x.transpose(1, 2).contiguous()) for _ in range(2))
        kernels = {
            "copy": copied(x),
            "torch": Measured(lambda: by_torch.copy_(x.transpose(1, 2)), bytes_of(x, out)),  # noqa: B023
            "tilewright": Measured(
                lambda: launch(out, x),  # noqa: B023
                bytes_of(x, out),
                (out,),
                (x.transpose(1, 2),),
                tolerance=0.0,
            ),
        }
        yield f"{' x '.join(map(str, shape))} {str(dtype).removeprefix('torch.')}", measure(kernels)


def decode() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure attention of one token over pages, by bytes of K and V, against a copy, and SDPA on contiguous ones."""
    module, heads, shared, head = example("decode_attention"), 32, 8, 128
    for batch, tokens, page, by_heads in (
        (32, 8192, 16, False),
        (32, 8192, 64, False),
        (32, 8192, 16, True),
        (4, 16384, 64, False),
        (1, 131072, 64, False),
    ):
        count = batch * tokens // page
        shape = (count, shared, page, head) if by_heads else (count, page, shared, head)
        k_pages, v_pages = (normal(*shape).transpose(1, 2) if by_heads else normal(*shape) for _ in "KV")
        table = torch.randperm(count, device="cuda").to(torch.int32).view(batch, -1)
        lengths = torch.full((batch,), tokens, device="cuda", dtype=torch.int32)
        k, v = (
            pages[table.long()].view(batch, tokens, shared, head).transpose(1, 2).contiguous()
            for pages in (k_pages.contiguous(), v_pages.contiguous())
        )
        q = normal(batch, heads, head)
        of_groups = q.view(batch, shared, heads // shared, head).float()
        weights = torch.softmax(of_groups @ k.float().transpose(2, 3) / head**0.5, -1)
        expected = (weights @ v.float()).view(q.shape)
        out, work, workspace = spoiled(q), bytes_of(k, v), module.make_workspace(q, k_pages, table)
        kernels = {"copy": copied(k)}
        for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)):

            def library(q: Any = q[:, :, None], k: Any = k, v: Any = v, backend: Any = backend) -> torch.Tensor:
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

            try:
                library()
            except (RuntimeError, TypeError):  # not in this version of torch
                continue
            kernels[name] = Measured(library, work)
        kernels["tilewright"] = Measured(
            lambda: module.launch(out, q, k_pages, v_pages, table, lengths, workspace),  # noqa: B023
            work,
            (out,),
            (expected,),
        )
        yield f"{batch} x {tokens}, pages of {page}{' by heads' if by_heads else ''}", measure(kernels)


def int4() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure 4-bit weights against the product with bfloat16 weights, by time."""
    module, n, k = example("int4_matmul"), 8192, 8192
    host = module.random_weights(np.random.default_rng(0), n, k)
    weights, packed = (torch.from_numpy(x).cuda() for x in (host[0], module.pack(host[0])))
    # (N, K / 128) with N contiguous.
    scales = torch.from_numpy(host[1].T.astype(np.float32)).cuda().to(torch.bfloat16).T
    zeros = torch.from_numpy(np.ascontiguousarray(host[2].T)).cuda().T
    full = (weights.float() - zeros.float().repeat_interleave(128, 1)) * scales.float().repeat_interleave(128, 1)
    rounded = full.to(torch.bfloat16)
    for m in (1, 16, 128):
        a = normal(m, k)
        out, work = spoiled(normal(m, n)), bytes_of(packed, scales, zeros, a) + 2 * m * n
        ours = Measured(lambda: module.launch(out, a, packed, scales, zeros), work, (out,), (a.float() @ full.T,))  # noqa: B023  # called at once
        # The same work for both: the ratio is that of the times.
        yield (
            f"{m} x {n} x {k}",
            measure({"torch, bfloat16": Measured(lambda: a @ rounded.T, work), "tilewright, 4 bits": ours}),  # noqa: B023
        )


def grouped() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure the products of eight experts of one launch against a loop of PyTorch's."""
    module, n, k = example("grouped_matmul"), 14336, 4096
    weights = [normal(n, k) for _ in range(8)]
    for rows in ((0, 17, 33, 250, 64, 1, 120, 27), (1024, 100, 2048, 24, 1000, 1001, 1995, 1000)):
        xs = [normal(m, k) for m in rows]
        expected = [x @ w.T for x, w in zip(xs, weights, strict=True)]
        outs, flops = [spoiled(e) for e in expected], 2 * sum(rows) * n * k
        products = module.Products(outs, xs, weights)
        held = tuple(g for g, m in enumerate(rows) if m)
        ours = Measured(products.launch, flops, tuple(outs[g] for g in held), tuple(expected[g] for g in held))

        def loop(xs: Any = xs, outs: Any = [torch.empty_like(e) for e in expected]) -> None:  # noqa: B006
            for x, w, out in zip(xs, weights, outs, strict=True):
                torch.mm(x, w.T, out=out)

        yield f"{sum(rows)} rows", measure({"torch, one by one": Measured(loop, flops), "tilewright": ours})


def split_k() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure a long K in parts against PyTorch."""
    module, (m, n, k) = example("splitk_matmul"), (256, 256, 65536)
    a, b = normal(m, k), normal(n, k)
    expected, flops = a.double() @ b.double().T, 2 * m * n * k
    for dtype in (torch.bfloat16, torch.float32):
        kernels = {"torch, bfloat16": Measured(lambda: a @ b.T, flops)}
        for splits in (16, 32, 33):
            out = spoiled(expected, dtype)
            workspace = module.make_workspace(out, splits)
            launch = partial(module.launch, out, a, b, splits, workspace=workspace)
            kernels[f"tilewright, {splits} parts"] = Measured(launch, flops, (out,), (expected,))
        yield f"{m} x {n} x {k}, {str(dtype).removeprefix('torch.')} result", measure(kernels)


def torch_runs(function: Run, work: float) -> dict[str, Measured]:
    """Return what PyTorch runs, and what torch.compile makes of it where it can be used."""
    found = {"torch": Measured(function, work)}
    torch._dynamo.reset()  # it compiles one function for a few sets of tensors only
    compiled = torch.compile(lambda: function())
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
    "prefix sum": prefix_sum,
    "histogram": histogram,
    "top-k": top_k,
    "embedding": embedding,
    "decode": decode,
    "dropout": dropout,
    "rope": rope,
    "transpose": transpose,
    "int4": int4,
    "grouped": grouped,
    "split-k": split_k,
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
