"""Packed weights and grouped products against torch, on one GPU.

    python -m benchmarks.weights [--only 4-bit grouped few] [--each] [--json FILE]

4-bit weights of 8192 x 8192 in groups of 128, with 1 to 4096 rows of bfloat16: `tw.matmul(x, weights)`, the same with
`precision="rounded"`, torch's `_weight_int4pack_mm`, and the product with bfloat16 weights. Grouped products of 8
experts, 4096 -> 14336, with uneven rows: `tw.grouped_matmul`, torch's `_grouped_mm`, and a loop of products; forward
and both gradients. Few rows of bfloat16: `tw.matmul`, `torch.matmul`, and every configuration of the streaming family.
With `--each` every configuration of the families for packed weights is timed. What the model predicted for a
configuration is told.

Candidates of one row run interleaved in random order, on normal random data and warm caches, as CUDA graphs where a
launch takes longer than its work. Before they are timed, results are compared with float64.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import grouped
from tilewright.kernels.arguments import NAMES, ArrangedProblem, Inputs, Options, arrange_problem
from tilewright.kernels.choice import all_candidates
from tilewright.kernels.dispatch import machine_of, plan_call
from tilewright.kernels.grouped_hopper import GroupedHopper, GroupedPlan, RaggedProblem
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.weight_arguments import arrange_weights
from tilewright.launch import Launcher
from tilewright.recording import record_launches
from tilewright.runtime.arrays import describe

ROWS = (1, 8, 16, 32, 64, 128, 4096)
TOKENS = (512, 8192, 32768)
FEW = (1, 8, 16)
MATRICES = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (7168, 2048), (576, 7168))  # N, K
UNEVEN = (0.0, 0.03, 0.07, 0.48, 0.12, 0.0, 0.25, 0.05)  # the experts' shares of the tokens
Runs = dict[str, Callable[[], object]]


def weights_of(k: int, n: int, group: int = 128) -> tuple[Any, torch.Tensor]:
    """Return packed weights, and what they stand for in float32."""
    weights = tw.quantize(torch.randn(k, n, device="cuda"), group=group, scale_dtype=tw.bfloat16)
    return weights, torch.from_numpy(weights.dequantised()).cuda()


def int4_of_torch(k: int, n: int, group: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random weights in torch's own packing, with scales and zeros."""
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randn(k // group, n, 2, device="cuda").to(torch.bfloat16)
    return torch.ops.aten._convert_weight_to_int4pack(codes, 8), scales


def each_configuration(x: torch.Tensor, weights: Any) -> tuple[Runs, dict[str, float]]:
    """Return what runs each legal configuration, and the microseconds that were predicted."""
    out = torch.empty(x.shape[0], weights.shape[1], dtype=x.dtype, device="cuda")
    arrays = (x, weights.packed, out, None, None, *weights.parts)
    names = ("a", "b", "out", "c", "bias", "scales", "zeros")[: len(arrays)]
    infos = tuple(None if array is None else describe(array) for array in arrays)
    return run_each(arrange_weights(Inputs(infos, names), Options(), weights.format), arrays)


def run_each(arranged: ArrangedProblem, arrays: tuple[Any, ...], family: str | None = None) -> Any:
    """Return what runs each legal configuration, of one family or all, and the microseconds that were predicted."""
    pointers = [0 if array is None else array.data_ptr() for array in arrays]
    runs: Runs = {}
    predicted = {}
    for candidate in all_candidates(arranged.problem, machine_of(0)):
        if candidate.prediction is not None and family in (None, candidate.family.name):
            planned = plan_call(arranged, arrays, tuple(range(len(arrays))), candidate)
            name = f"{candidate.family.name}, {candidate.configuration}"
            runs[name] = partial(planned.run, arrays, pointers, (), 1, 0)
            predicted[name] = candidate.prediction.us
    return runs, predicted


def four_bits(each: bool) -> dict[str, Any]:
    """Time products with 4-bit weights."""
    k = n = 8192
    weights, full = weights_of(k, n)
    exact_weights, full = full.double(), full.to(torch.bfloat16)
    packed, scales = int4_of_torch(k, n)
    results = {}
    for m in ROWS:
        x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        exact = x[:4].double() @ exact_weights
        own: dict[str, Callable[[], torch.Tensor]] = {
            "tw.matmul, 4 bits": partial(tw.matmul, x, weights),
            "tw.matmul, rounded": partial(tw.matmul, x, weights, precision="rounded"),
        }
        errors = {
            name: float((run()[:4].double() - exact).abs().max() / exact.abs().max()) for name, run in own.items()
        }
        runs: Runs = own | {
            "torch, bfloat16": partial(torch.matmul, x, full),
            "_weight_int4pack_mm": partial(torch.ops.aten._weight_int4pack_mm, x, packed, 128, scales),
        }
        predicted: dict[str, float] = {}
        if each:
            configurations, predicted = each_configuration(x, weights)
            runs |= configurations
        times = interleaved(runs)
        for name, us in predicted.items():
            times[name]["predicted_us"] = us
        chosen = tw.matmul.explain(x, weights).choice
        for name, error in errors.items():
            times[name] |= {"error": error}
        row = f"4-bit weights: {m} x {n} x {k}"
        results[row] = {"chosen": f"{chosen.family.name}, {chosen.configuration}" if chosen else "", "times": times}
        report(row, times, "tw.matmul, 4 bits")
    return results


def few_rows(each: bool) -> dict[str, Any]:
    """Time products of few rows."""
    results = {}
    for n, k in MATRICES:
        b = torch.randn(n, k, device="cuda").to(torch.bfloat16).t()
        for m in FEW:
            a, out = torch.randn(m, k, device="cuda").to(torch.bfloat16), torch.empty(m, n, device="cuda").bfloat16()
            exact = a.double() @ b.double()
            arrays = (a, b, out, None, None)
            infos = tuple(None if array is None else describe(array) for array in arrays)
            configurations, predicted = run_each(arrange_problem(Inputs(infos, NAMES), Options()), arrays, "streaming")
            errors = {}
            for name, run in configurations.items():
                out.fill_(torch.nan)
                run()
                errors[name] = float((out.double() - exact).abs().max() / exact.abs().max())
            runs: Runs = {"tw.matmul": partial(tw.matmul, a, b), "torch": partial(torch.matmul, a, b)}
            times = interleaved(runs | configurations)
            for name, us in predicted.items():
                times[name] |= {"predicted_us": us, "error": errors[name]}
            row = f"few rows: {m} x {n} x {k}"
            chosen = tw.matmul.explain(a, b).choice
            results[row] = {"chosen": f"{chosen.family.name}, {chosen.configuration}" if chosen else "", "times": times}
            report(row, times, "tw.matmul")
    return results


class Told(GroupedHopper):
    """The Hopper family of grouped products, which remembers the configuration that it launched last."""

    configuration = "multistage"

    def launch(self, problem: RaggedProblem, c: HopperConfiguration, arch: Arch) -> tuple[Launcher, GroupedPlan]:
        self.configuration = f"hopper, {c}"
        return super().launch(problem, c, arch)


def configuration_of(call: Callable[[], object]) -> str:
    """Return the configuration that a grouped product takes."""
    family, before = Told(), grouped.HOPPER
    grouped.HOPPER = family
    try:
        with record_launches():  # calls that are met again choose nothing
            call()
    finally:
        grouped.HOPPER = before
    return family.configuration


def groups(each: bool) -> dict[str, Any]:
    """Time grouped products: forward, and the gradients of the rows and of the weights."""
    k, n, experts = 4096, 14336, len(UNEVEN)
    w = torch.randn(experts, n, k, device="cuda").to(torch.bfloat16).transpose(1, 2)  # (E, K, N), as torch wants it
    results = {}
    for tokens in TOKENS:
        sizes = [int(share * tokens) for share in UNEVEN]
        sizes[3] += tokens - sum(sizes)
        offsets = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
        x, dy = (torch.randn(tokens, width, device="cuda").to(torch.bfloat16) for width in (k, n))
        ends = offsets.tolist()
        parts = [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        rows: dict[str, tuple[Runs, Callable[[], torch.Tensor]]] = {
            "forward": (
                {
                    "tw.grouped_matmul": partial(tw.grouped_matmul, x, w, offsets),
                    "torch._grouped_mm": partial(torch._grouped_mm, x, w, offs=offsets),
                    "a loop": lambda x=x, parts=parts: [x[part] @ w[e] for e, part in enumerate(parts)],
                },
                lambda x=x, parts=parts: torch.cat([x[part] @ w[e] for e, part in enumerate(parts)]),
            ),
            "gradient of x": (
                {
                    "tw.grouped_matmul": partial(tw.grouped_matmul, dy, w.transpose(1, 2), offsets),
                    "torch._grouped_mm": partial(torch._grouped_mm, dy, w.transpose(1, 2), offs=offsets),
                    "a loop": lambda dy=dy, parts=parts: [dy[part] @ w[e].T for e, part in enumerate(parts)],
                },
                lambda dy=dy, parts=parts: torch.cat([dy[part] @ w[e].T for e, part in enumerate(parts)]),
            ),
            "gradient of w": (
                {
                    "tw.grouped_matmul": partial(tw.grouped_matmul, x.T, dy, offsets),
                    "torch._grouped_mm": partial(torch._grouped_mm, x.T, dy, offs=offsets),
                    "a loop": lambda x=x, dy=dy, parts=parts: [x[part].T @ dy[part] for part in parts],
                },
                lambda x=x, dy=dy, parts=parts: torch.stack([x[part].T @ dy[part] for part in parts]),
            ),
        }
        for kind, (runs, reference) in rows.items():
            exact = reference().float()
            found = runs["tw.grouped_matmul"]()
            assert isinstance(found, torch.Tensor)
            error = float((found.float() - exact).abs().max() / exact.abs().max())
            del exact, found
            times = interleaved(runs)
            times["tw.grouped_matmul"] |= {"error": error}
            row = f"grouped, {kind}: {tokens} rows, {experts} experts of {k} -> {n}"
            chosen = configuration_of(runs["tw.grouped_matmul"])
            results[row] = {"chosen": chosen, "times": times}
            report(f"{row}, {chosen}", times, "tw.grouped_matmul")
    return results


def report(row: str, times: dict[str, Any], own: str) -> None:
    """Print a row: microseconds, and the ratio of the fastest of the others to our own."""
    ours = own.partition(",")[0]
    others = [x["seconds"] for name, x in times.items() if not name.startswith(ours) and "predicted_us" not in x]
    told = ", ".join(
        f"{name} {x['seconds'] * 1e6:.1f} us" + (f" (predicted {x['predicted_us']:.1f})" if "predicted_us" in x else "")
        for name, x in times.items()
    )
    errors = [x["error"] for x in times.values() if "error" in x]
    error = f", error at most {max(errors):.1e}" if errors else ""
    print(f"{row}: {told}; {min(others) / times[own]['seconds']:.2f} of the faster{error}", flush=True)


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"4-bit": four_bits, "grouped": groups, "few": few_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--each", action="store_true", help="time every configuration for packed weights")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "results": {}}
    for name in options.only:
        results["results"] |= PARTS[name](options.each)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
