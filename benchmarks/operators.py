"""Finished operators against copies, PyTorch and torch.compile, on one GPU.

    python -m benchmarks.operators [--json FILE] [--only NAME ...] [--without-compile]

The works are softmax, rms_norm, layer_norm, permute, cross_entropy, attention, block. A case that fails is printed and
noted, and the others go on; the file is written after each. Each case is measured in one interleaved run with a
device-to-device copy (attention with cuDNN), PyTorch's own operator, and the same under torch.compile. A rate is that
of the bytes that have to move: inputs read and results written once. Results hold NaN before and are checked against
PyTorch in float32 or float64. Forward and backward passes are measured apart; `tilewright` calls functions of `tw`,
`tw.torch` the operators with their dispatch. All runs on a stream of its own, because autograd goes back on the stream
of the forward pass, and the default stream cannot be captured in a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.timing import interleaved, machine
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw

Run = Callable[[], Any]
Row = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Row]]]
SHAPES = ((16384, 4096), (8192, 16384), (2048, 131072))
MOVED = (64, 128, 64, 256)
AXES = ((0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2), (0, 3, 1, 2))
LOGITS = (8192, 128256)
is_compiling = True
COMPILED = "torch.compile"
WEIGHT_TOLERANCE = 2e-2  # of the greatest magnitude: results of bfloat16, and sums over all rows


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def bytes_of(*arrays: torch.Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in arrays)


def tensors(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x for x in found if x is not None) if isinstance(found, (tuple, list)) else (found,)


def check(name: str, run: Run, expected: tuple[torch.Tensor, ...], tolerance: float) -> float:
    """Return the greatest error, relative to the greatest magnitude of what is expected."""
    worst = 0.0
    for ours, known in zip(tensors(run()), expected, strict=False):
        # In parts: a whole difference in float32 would take as much memory again.
        pairs = zip(ours.flatten().split(1 << 26), known.flatten().split(1 << 26), strict=True)
        error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
        greatest = max(float(b.abs().max()) for b in known.flatten().split(1 << 26))
        assert error == error, f"{name}: NaN in a result"
        worst = max(worst, error / max(greatest, 1e-30))
    assert worst <= tolerance, (name, worst)
    return worst


def measure(
    moved: int, runs: dict[str, Run], expected: Any, like: torch.Tensor, tolerance: float = WEIGHT_TOLERANCE
) -> Row:
    """Check what is ours, and time all with a copy of `like`, whose rate the others' are divided by."""
    known = tensors(expected)
    if not is_compiling:
        runs.pop(COMPILED, None)
    errors = {name: check(name, run, known, tolerance) for name, run in runs.items() if name.startswith(("ti", "tw"))}
    target = torch.empty_like(like)
    times = interleaved({"copy": lambda: target.copy_(like), **runs}, rounds=11, batch_seconds=0.012)
    rates = {n: (2 * bytes_of(like) if n == "copy" else moved) / t["seconds"] / 1e12 for n, t in times.items()}
    return {
        n: {**times[n], "TB/s": rate, "of_copy": rate / rates["copy"], "error": errors.get(n)}
        for n, rate in rates.items()
    }


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as torch compiles it for each of its shapes, or itself if nothing shall be compiled."""
    if not is_compiling:
        return function
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def with_gradient(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], grad: torch.Tensor) -> Run:
    """Return the backward pass alone, as autograd runs it."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = function(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    return lambda: torch.autograd.grad(y, wanted, grad, retain_graph=True)


def by_softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def softmax_forward(shape: tuple[int, int]) -> Row:
    x = normal(*shape)
    out, run = torch.full_like(x, float("nan")), compiled(by_softmax)
    runs = {
        "torch": lambda: by_softmax(x),
        COMPILED: lambda: run(x),
        "tilewright": lambda: tw.softmax(x, out=out),
        "tw.torch": lambda: tw.torch.softmax(x),
    }
    return measure(2 * bytes_of(x), runs, by_softmax(x.float()), x)


def softmax_backward(shape: tuple[int, int]) -> Row:
    x, grad = normal(*shape), normal(*shape)
    y, dx = by_softmax(x), torch.full_like(x, float("nan"))
    known = torch._softmax_backward_data(grad.float(), y.float(), -1, torch.float32)
    runs = {
        "torch": lambda: torch._softmax_backward_data(grad, y, -1, grad.dtype),
        COMPILED: with_gradient(compiled(by_softmax), [x], grad),
        "tilewright": lambda: tw.softmax_backward(grad, y, out=dx),
        "tw.torch": with_gradient(tw.torch.softmax, [x], grad),
    }
    return measure(3 * bytes_of(x), runs, known, x)


def softmax() -> Cases:
    """Measure softmax and its gradient."""
    for rows, columns in SHAPES:
        yield f"softmax {rows} x {columns}", partial(softmax_forward, (rows, columns))
        yield f"softmax {rows} x {columns}, backward", partial(softmax_backward, (rows, columns))


class Norm:
    """A norm of rows by torch and by Tilewright, and its inputs: x, weight, and a bias for layer norm."""

    def __init__(self, name: str, shape: tuple[int, int]) -> None:
        self.name, self.columns = name, shape[1]
        self.inputs = [normal(*shape), *(normal(shape[1]) for _ in range(1 + (name == "layer_norm")))]

    def by_torch(self, x: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        return getattr(F, self.name)(x, (self.columns,), *vectors, eps=1e-5)

    def operator(self, x: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        return getattr(tw.torch, self.name)(x, self.columns, *vectors, eps=1e-5)

    def forward(self) -> Row:
        inputs, direct = self.inputs, getattr(tw, self.name)
        x, run = inputs[0], compiled(self.by_torch)
        out = torch.full_like(x, float("nan"))
        runs = {
            "torch": lambda: self.by_torch(*inputs),
            COMPILED: lambda: run(*inputs),
            "tilewright": lambda: direct(*inputs, eps=1e-5, out=out),
            "tw.torch": lambda: self.operator(*inputs),
        }
        return measure(2 * bytes_of(x), runs, self.by_torch(*(v.float() for v in inputs)), x)

    def backward(self) -> Row:
        inputs, x = self.inputs, self.inputs[0]
        grad, dx = normal(*x.shape), torch.full_like(x, float("nan"))
        _, *numbers = getattr(tw, self.name)(*inputs, eps=1e-5, statistics=True)
        direct = getattr(tw, f"{self.name}_backward")
        expected = with_gradient(self.by_torch, [v.float() for v in inputs], grad.float())()
        runs = {
            "torch": with_gradient(self.by_torch, inputs, grad),
            COMPILED: with_gradient(compiled(self.by_torch), inputs, grad),
            "tilewright": lambda: direct(grad, x, *numbers, inputs[1], out=dx),
            "tw.torch": with_gradient(self.operator, inputs, grad),
        }
        return measure(3 * bytes_of(x), runs, expected, x)


def norms(name: str) -> Cases:
    """Measure a norm and its gradients."""
    for shape in SHAPES:
        title = f"{name} {shape[0]} x {shape[1]}"
        yield title, lambda shape=shape: Norm(name, shape).forward()
        yield f"{title}, backward", lambda shape=shape: Norm(name, shape).backward()


def permutation(axes: tuple[int, ...], dtype: torch.dtype) -> Row:
    x = normal(*MOVED, dtype=torch.float32)
    x = (x * 40).to(dtype) if dtype is torch.int8 else x.to(dtype)
    expected = x.permute(axes).contiguous()
    out = torch.empty_like(expected).fill_(-1)
    runs: dict[str, Run] = {
        "torch": lambda: x.permute(axes).contiguous(),
        "tilewright": lambda: tw.permute(x, axes, out=out),
        "tw.torch": lambda: tw.torch.permute(x, axes),
    }
    if dtype is torch.float32:  # compiling takes its time
        run = compiled(lambda x: x.permute(axes).contiguous())
        runs[COMPILED] = lambda: run(x)
    return measure(2 * bytes_of(x), runs, expected, x, 0.0)


def permute() -> Cases:
    """Measure permutations; bits have to be the same."""
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for axes in AXES:
            name = f"permute {MOVED} by {axes}, {str(dtype).removeprefix('torch.')}"
            yield name, partial(permutation, axes, dtype)


def logits() -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = LOGITS
    return normal(rows, columns), torch.randint(0, columns, (rows,), device="cuda")


def cross_entropy_forward() -> Row:
    x, labels = logits()
    run = compiled(F.cross_entropy)
    # In parts: in float32 the logits take 4 GB.
    parts = zip(x.split(512), labels.split(512), strict=True)
    expected = torch.cat([F.cross_entropy(p.float(), q, reduction="none") for p, q in parts])
    runs = {
        "torch": lambda: F.cross_entropy(x, labels),
        COMPILED: lambda: run(x, labels),
        "tilewright": lambda: tw.cross_entropy(x, labels),
        "tw.torch": lambda: tw.torch.cross_entropy(x, labels, reduction="none"),
    }
    return measure(bytes_of(x), runs, expected, x[: LOGITS[0] // 2])


def cross_entropy_backward() -> Row:
    x, labels = logits()
    one = torch.ones((), device="cuda", dtype=x.dtype)
    each = torch.full(LOGITS[:1], 1 / LOGITS[0], device="cuda")
    _, top, total = tw.cross_entropy(x, labels, statistics=True)
    dx = torch.empty_like(x).fill_(float("nan"))
    known = with_gradient(F.cross_entropy, [x, labels], one)()
    runs = {
        "torch": with_gradient(F.cross_entropy, [x, labels], one),
        COMPILED: with_gradient(compiled(F.cross_entropy), [x, labels], one),
        "tilewright": lambda: tw.cross_entropy_backward(each, x, labels, top, total, out=dx),
        "tw.torch": with_gradient(tw.torch.cross_entropy, [x, labels], one),
    }
    return measure(2 * bytes_of(x), runs, known, x[: LOGITS[0] // 2])


def cross_entropy() -> Cases:
    """Measure cross entropy and its gradient, which reads the logits and writes as much."""
    name = f"cross_entropy {LOGITS[0]} x {LOGITS[1]}"
    yield name, cross_entropy_forward
    yield f"{name}, backward", cross_entropy_backward


# --- attention, and a block of a language model ----------------------------------------------------------------------

# Batch, heads, heads of keys, tokens, elements of a head, causal.
ATTENTIONS = (
    (1, 16, 16, 16384, 128, False),
    (1, 16, 16, 16384, 128, True),
    (4, 16, 16, 4096, 128, False),
    (4, 16, 16, 4096, 128, True),
    (4, 32, 32, 4096, 64, True),
    (4, 32, 8, 4096, 128, True),
    (2, 8, 8, 8192, 256, False),
)
# Batch, heads, heads of keys, keys, elements of a head.
DECODES = (
    (32, 32, 8, 8192, 128),
    (4, 32, 8, 16384, 128),
    (1, 32, 8, 131072, 128),
    (8, 64, 8, 32768, 128),
    (1, 32, 8, 8192, 128),
    (16, 32, 8, 8192, 64),
    (8, 16, 4, 8192, 256),
)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def by_backend(name: str, causal: bool, shared: bool) -> Callable[..., torch.Tensor]:
    """Return torch's attention by one of its backends."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared)

    return run


def attention_case(case: tuple[int, int, int, int, int, bool], is_backward: bool) -> Row:
    """Return TFLOP/s in place of TB/s; a causal mask counts half the work. `of` is the share of cuDNN's."""
    batch, heads, shared, tokens, head, causal = case
    q, k, v, grad = (normal(batch, h, tokens, head) for h in (heads, shared, shared, heads))
    flops = (10 if is_backward else 4) * batch * heads * tokens * tokens * head / (1 + causal)
    functions = {name: by_backend(name, causal, heads != shared) for name in BACKENDS}
    functions["tw.torch"] = partial(tw.torch.attention, causal=causal)
    runs: dict[str, Run] = {}
    for name, function in functions.items():
        try:
            run = with_gradient(function, [q, k, v], grad) if is_backward else partial(function, q, k, v)
            run()
        except RuntimeError:  # a backend does not take every head
            continue
        runs[name] = run
    out, lse = tw.attention(q, k, v, causal=causal, statistics=True)
    if is_backward:
        runs["tilewright"] = lambda: tw.attention_backward(grad, q, k, v, out, lse, causal=causal)
    else:
        runs["tilewright"] = lambda: tw.attention(q, k, v, causal=causal, out=out)
    known = tensors(runs["cudnn"]())
    errors = {name: check(name, run, known, WEIGHT_TOLERANCE) for name, run in runs.items() if name.startswith("t")}
    times = interleaved(runs, rounds=7, batch_seconds=0.012)
    rates = {name: flops / found["seconds"] / 1e12 for name, found in times.items()}
    return {
        name: {**times[name], "TFLOP/s": rate, "of": rate / rates["cudnn"], "error": errors.get(name)}
        for name, rate in rates.items()
    }


def decode_case(case: tuple[int, int, int, int, int]) -> Row:
    """Measure one new token of each sequence: the rate at which keys and values are read."""
    batch, heads, shared, keys, head = case
    q, k, v = normal(batch, heads, 1, head), *(normal(batch, shared, keys, head) for _ in "kv")
    out = torch.full_like(q, float("nan"))
    runs = {name: partial(by_backend(name, False, True), q, k, v) for name in BACKENDS}
    runs["tilewright"] = lambda: tw.attention(q, k, v, out=out)
    runs["tw.torch"] = lambda: tw.torch.attention(q, k, v)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    of_lengths = torch.full_like(q, float("nan"))
    runs["tilewright, numbers of keys"] = lambda: tw.attention(q, k, v, key_lengths=lengths, out=of_lengths)
    return measure(bytes_of(k, v), runs, runs["cudnn"](), k)


def attention() -> Cases:
    """Measure attention and its gradients against torch's backends."""
    for case in ATTENTIONS:
        batch, heads, shared, tokens, head, causal = case
        name = f"attention {batch} x {heads}/{shared} x {tokens} x {head}" + (", causal" if causal else "")
        yield name, partial(attention_case, case, False)
        yield f"{name}, backward", partial(attention_case, case, True)
    for decode in DECODES:
        batch, heads, shared, keys, head = decode
        yield f"attention of a new token, {batch} x {heads}/{shared} x {keys} x {head}", partial(decode_case, decode)


class Mlp(torch.nn.Module):
    """The layers behind attention in models of Llama's kind."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(wide, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(torch.nn.Module):
    """A layer of a language model as Llama's: RMS norm, grouped heads with rotary embedding, SwiGLU."""

    HIDDEN, HEADS, SHARED, HEAD, WIDE = 4096, 32, 8, 128, 14336

    def __init__(self, is_ours: bool) -> None:
        super().__init__()
        norm, linear = torch.nn.RMSNorm, partial(torch.nn.Linear, bias=False)
        self.before, self.after = norm(self.HIDDEN, eps=1e-5), norm(self.HIDDEN, eps=1e-5)
        self.qkv = linear(self.HIDDEN, (self.HEADS + 2 * self.SHARED) * self.HEAD)
        self.out = linear(self.HEADS * self.HEAD, self.HIDDEN)
        self.mlp = Mlp(self.HIDDEN, self.WIDE)
        self.is_ours = is_ours

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        counts = (self.HEADS, self.SHARED, self.SHARED)
        parts = self.qkv(self.before(x)).unflatten(-1, (-1, self.HEAD)).split(counts, dim=-2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        function = tw.torch.scaled_dot_product_attention if self.is_ours else F.scaled_dot_product_attention
        mixed = function(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.after(x))

    def turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if self.is_ours:
            return tw.torch.rope(x, cos, sin)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def block_case() -> Row:
    """Measure forward and backward of a block; `of` is against the compiled block of torch."""
    batch, tokens = 4, 4096
    x, grad = normal(batch, tokens, Block.HIDDEN), normal(batch, tokens, Block.HIDDEN) / 100
    angle = torch.arange(tokens, device="cuda")[:, None] * 10000 ** (-torch.arange(64, device="cuda") / 64)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    with torch.device("cuda"):
        known, ours = Block(False).bfloat16(), Block(True).bfloat16()
    ours.load_state_dict(known.state_dict())
    tw.torch.patch(ours)

    def step(block: Callable[..., torch.Tensor], module: torch.nn.Module) -> Run:
        inputs = x.detach().requires_grad_()
        wanted = (inputs, *module.parameters())
        return lambda: torch.autograd.grad(block(inputs, cos, sin), wanted, grad)

    runs = {"torch": step(known, known), "tw.torch": step(ours, ours)}
    if is_compiling:
        runs[COMPILED] = step(compiled(known), known)
        runs["tw.torch compiled"] = step(torch.compile(ours, fullgraph=True, dynamic=False), ours)
    expected = tensors(runs["torch"]())
    errors = {name: check(name, run, expected, 5e-2) for name, run in runs.items() if name.startswith("tw")}
    times = interleaved(runs, rounds=5, batch_seconds=0.1)
    base = times[COMPILED if is_compiling else "torch"]["seconds"]
    return {name: {**each, "of": base / each["seconds"], "error": errors.get(name)} for name, each in times.items()}


def block() -> Cases:
    """Measure a block of a language model, forward and backward."""
    yield "block of 4096, 32/8 heads, SwiGLU 14336, 4 x 4096 tokens, forward and backward", block_case


WORKS: dict[str, Callable[[], Cases]] = {
    "softmax": softmax,
    "rms_norm": lambda: norms("rms_norm"),
    "layer_norm": lambda: norms("layer_norm"),
    "permute": permute,
    "cross_entropy": cross_entropy,
    "attention": attention,
    "block": block,
}


def shown(row: Row) -> str:
    """Return a row as it is printed: shares of a copy's rate, or TFLOP/s, or milliseconds."""
    if "copy" in row:
        shares = "  ".join(f"{n} {r['of_copy']:.2f}" for n, r in row.items() if n != "copy")
        return f"copy {row['copy']['TB/s']:.2f} TB/s  {shares}"
    if all("TFLOP/s" in r for r in row.values()):
        return "  ".join(f"{n} {r['TFLOP/s']:.0f} TFLOP/s ({r['of']:.2f})" for n, r in row.items())
    return "  ".join(f"{n} {1000 * r['seconds']:.2f} ms ({r['of']:.2f})" for n, r in row.items())


def run(works: list[str], path: Path | None) -> dict[str, Any]:
    """Measure the works case by case, print each, and write all that is known after each."""
    found: dict[str, Any] = {"machine": machine(), "works": {}, "failed": {}}
    for name, case in (each for work in works for each in WORKS[work]()):
        begun = time.monotonic()
        try:
            torch.manual_seed(0)
            row = found["works"][name] = case()
            print(f"{name:60} {shown(row)}", end="", flush=True)
        except Exception as error:  # the others are measured nevertheless
            found["failed"][name] = traceback.format_exc()
            print(f"{name:60} failed: {error!r}"[:400], end="", flush=True)
        print(f"  ({time.monotonic() - begun:.1f} s)", flush=True)
        if path:
            path.write_text(json.dumps(found, indent=1))
        torch.cuda.empty_cache()
    return found


def main() -> None:
    global is_compiling
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--without-compile", action="store_true", help="leave out torch.compile, which takes longest")
    given = parser.parse_args()
    is_compiling = not given.without_compile
    begun = time.monotonic()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = run(given.only, given.json)
    print(f"{len(found['works'])} measured, {len(found['failed'])} failed: {', '.join(found['failed']) or 'none'}")
    print(f"{time.monotonic() - begun:.0f} s")
    raise SystemExit(bool(found["failed"]))


if __name__ == "__main__":
    main()
