"""Matrix products of the scheduling layer against cuBLAS: the best plan that a grid of parameters finds.

    python -m benchmarks.schedule [--json FILE] [--type bfloat16] [--layouts NN] [--size 4096] [--quick]
    python -m benchmarks.schedule --type int8 [--json FILE] [--size 4096] [--quick]

NT is A by rows and B by columns (K contiguous in both), NN both by rows.
Each type's grids are tuned first, of plans by warps (mma.sync) and, on sm_90a, by warpgroups (wgmma, TMA): all plans
are built, compiled, checked against float64 and timed. The best ones are then measured interleaved with cuBLAS
(PyTorch), `tw.matmul` and the plan that `plan.auto` chooses, on normal random numbers. The last one adds to C, which it
reads, where the others set it.

`--type int8` is C = (A * S) B of int8 weights A, with a float32 scale for each row, and bfloat16 B by columns. Each
thread of a warpgroup converts and scales A in the registers from which wgmma multiplies. The libraries' way is beside
it: cuBLAS on weights that were converted before, and the conversion and cuBLAS together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

import tilewright as tw
from tilewright.schedule import (
    Array,
    Location,
    MMAFragmentOp,
    MMAShape,
    Nest,
    Plan,
    Role,
    ScheduledKernel,
    Target,
    cast,
    create_parameter_grid,
)
from tilewright.tune import tune_plan

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LAYOUTS = {"NT": Array.Layout.LAST_MAJOR, "NN": Array.Layout.FIRST_MAJOR}  # of B
CHOICES: dict[str, list[Any]] = {
    "tile": [(128, 256, 64), (128, 256, 32), (256, 128, 64), (128, 128, 64)],
    "stages": [3, 4],
    "group": [4, 8, 16, 32],  # tiles along M whose blocks come before the next along N
    "staged": [False, True],  # whether C goes through shared memory
}
OF_WARPGROUPS: dict[str, list[Any]] = {  # of plans by wgmma, on sm_90a: two warpgroups beside a producer
    "tile": [(128, 256, 64), (256, 128, 64), (128, 192, 64), (128, 128, 64)],
    "stages": [3, 4],
    "group": [4, 8, 16],
    "blocks": [None, 132],  # how many blocks stay
    "stores": [False, True],  # whether C leaves by TMA
}


def plan_of(values: Mapping[str, Any], size: int, dtype: tw.DType, layouts: str) -> tuple[Plan, Sequence[Array]]:
    """Return the plan of C = A B for the choices of a grid; 64 x 64 of C a warp."""
    A = Array(Role.INPUT, dtype, (size, size))
    B = Array(Role.INPUT, dtype, (size, size), LAYOUTS[layouts])
    C = Array(Role.OUTPUT, dtype, (size, size))
    nest = Nest((size, size, size))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    target, shape = Target(), MMAShape.M16N16K16
    unit = target.GridUnit
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape)
    schedule = nest.create_schedule()
    rows, columns, steps = values["tile"]
    i_warp, j_warp, k_step = schedule.tile({i: rows, j: columns, k: steps})
    i_tile, j_tile = schedule.tile({i_warp: 64, j_warp: 64})
    ii, jj, kk = schedule.tile({i_tile: m, j_tile: n, k_step: depth})
    i_group = schedule.split(i, values["group"])
    schedule.reorder(i, j, i_group, k, i_warp, j_warp, k_step, i_tile, j_tile, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({(i, j, i_group): unit.BLOCK_X, i_warp: unit.WARP_Y, j_warp: unit.WARP_X})
    for operand in (A, B):
        plan.cache(operand, index=i_warp, pipeline_stages=values["stages"])
        plan.cache(operand, index=i_tile, location=Location.MMA_FRAGMENT, double_buffer=True)
    sums: Any = plan.cache(C, index=k) if values["staged"] else C
    plan.cache(sums, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), shape, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan, (A, B, C)


def plan_of_warpgroups(
    values: Mapping[str, Any], size: int, dtype: tw.DType, layouts: str, of_weights: bool = False
) -> tuple[Plan, Sequence[Array]]:
    """Return the plan of C = A B for the choices of `OF_WARPGROUPS`: half of the tile's rows a warpgroup.

    `of_weights`: A is int8, and each of its rows has a scale S.
    """
    A = Array(Role.INPUT, tw.int8 if of_weights else dtype, (size, size))
    S = Array(Role.INPUT, tw.float32, (size,))
    B = Array(Role.INPUT, dtype, (size, size), LAYOUTS[layouts])
    C = Array(Role.OUTPUT, dtype, (size, size))
    nest = Nest((size, size, size))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += (cast(A[i, k] * S[i], dtype) if of_weights else A[i, k]) * B[k, j]

    target = Target()
    unit = target.GridUnit
    rows, columns, steps = values["tile"]
    shape = MMAShape[f"M64N{columns}K16"]
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape, steps // 16)
    schedule = nest.create_schedule()
    i_group = schedule.split(i, rows * values["group"])
    i_warpgroup = schedule.split(i_group, rows)
    i_tile, jj, kk = schedule.tile({i_warpgroup: rows // 2, j: n, k: depth})
    ii = schedule.split(i_tile, m)
    schedule.reorder(i, j, i_group, k, i_warpgroup, i_tile, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({(i, j, i_group): unit.BLOCK_X, i_warpgroup: unit.WARPGROUP}, producer=True, blocks=values["blocks"])
    for operand in (A, B):
        plan.cache(operand, index=i_tile, pipeline_stages=values["stages"])
    plan.cache(C, index=k, location=Location.MMA_FRAGMENT, tma=values["stores"])
    plan.tensorize((ii, jj, kk), shape, steps // 16, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan, (A, S, B, C) if of_weights else (A, B, C)


def chosen(size: int, dtype: tw.DType, layouts: str) -> ScheduledKernel:
    """Return the kernel of C += A B whose plan `auto` chooses."""
    A = Array(Role.INPUT, dtype, (size, size))
    B = Array(Role.INPUT, dtype, (size, size), LAYOUTS[layouts])
    C = Array(Role.INPUT_OUTPUT, dtype, (size, size))
    nest = Nest((size, size, size))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    return nest.create_plan(Target()).auto().build("chosen", (A, B, C))


def kinds(quick: bool) -> dict[str, tuple[Any, dict[str, list[Any]]]]:
    """Return how plans are made, and the choices for them: of warps, and where the target has them of warpgroups."""
    choices = {name: values[-1:] for name, values in CHOICES.items()} if quick else CHOICES
    if quick:
        choices = {**choices, "tile": CHOICES["tile"][:1], "group": [8, 16], "stages": [3]}
    found: dict[str, tuple[Any, dict[str, list[Any]]]] = {"schedule, warps": (plan_of, choices)}
    if Target().arch.name == "sm_90a":
        wide = {**OF_WARPGROUPS, "tile": OF_WARPGROUPS["tile"][:1], "group": [8], "stages": [4]}
        found["schedule, warpgroups"] = (plan_of_warpgroups, wide if quick else OF_WARPGROUPS)
    return found


def measure(name: str, layouts: str, size: int, quick: bool) -> dict[str, Any]:
    """Tune the plans of each kind for a type, and measure the best ones against cuBLAS and `tw.matmul`."""
    dtype = TYPES[name]
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    b = b.T if layouts == "NT" else b
    out, ours, theirs = (torch.full((size, size), float("nan"), device="cuda", dtype=dtype) for _ in range(3))
    exact = a.double() @ b.double()

    def reference(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(exact)

    found: dict[str, Any] = {}
    errors: dict[str, float] = {}
    for kind, (make, choices) in kinds(quick).items():
        found[kind] = tune_plan(
            lambda values, make=make: make(values, size, tw.dtype(name), layouts),
            create_parameter_grid(choices),
            (a, b, out),
            name="product",
            reference=reference,
            store=None,
            force=True,
        )
        found[kind].kernel(a, b, out)
        errors[kind] = float((out.double() - exact).norm() / exact.norm())
    auto, summed = chosen(size, tw.dtype(name), layouts), torch.zeros_like(out)
    auto(a, b, summed)
    errors["schedule, auto"] = float((summed.double() - exact).norm() / exact.norm())
    times = interleaved(
        {
            "cuBLAS": lambda: torch.matmul(a, b, out=theirs),
            **{kind: partial(best.kernel, a, b, out) for kind, best in found.items()},
            "schedule, auto": partial(auto, a, b, summed),
            "tw.matmul": lambda: tw.matmul(a, b, out=ours),
        },
        rounds=5 if quick else 25,
    )
    best = times["cuBLAS"]["seconds"]
    return {
        "type": name,
        "layouts": layouts,
        "size": size,
        "parameters": {
            kind: {str(key): value for key, value in plan.parameters.items()} for kind, plan in found.items()
        },
        "error": errors,
        "report": {kind: plan.kernel.report().as_json() for kind, plan in found.items()},
        "seconds": times,
        "of_cublas": {candidate: best / each["seconds"] for candidate, each in times.items()},
        "tuning": {kind: plan.as_json() for kind, plan in found.items()},
    }


def measure_weights(size: int, quick: bool) -> dict[str, Any]:
    """Tune the plans of int8 weights times bfloat16, and measure the best one against conversions and cuBLAS."""
    a = torch.randint(-127, 128, (size, size), device="cuda", dtype=torch.int8)
    s = torch.rand(size, device="cuda") / 64
    b = torch.randn(size, size, device="cuda").to(torch.bfloat16).T
    out, theirs = (torch.full((size, size), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    converted = (a * s[:, None]).to(torch.bfloat16)
    exact = converted.double() @ b.double()

    def reference(a: torch.Tensor, s: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(exact)

    choices = {**OF_WARPGROUPS, "tile": OF_WARPGROUPS["tile"][:1], "group": [8], "stages": [4]}
    found = tune_plan(
        lambda values: plan_of_warpgroups(values, size, tw.bfloat16, "NT", of_weights=True),
        create_parameter_grid(choices if quick else OF_WARPGROUPS),
        (a, s, b, out),
        name="product",
        reference=reference,
        store=None,
        force=True,
    )
    found.kernel(a, s, b, out)
    error = float((out.double() - exact).norm() / exact.norm())
    times = interleaved(
        {
            "cuBLAS, weights converted before": lambda: torch.matmul(converted, b, out=theirs),
            "conversion and cuBLAS": lambda: torch.matmul((a * s[:, None]).to(torch.bfloat16), b, out=theirs),
            "schedule, int8 weights": partial(found.kernel, a, s, b, out),
        },
        rounds=5 if quick else 25,
    )
    best = times["cuBLAS, weights converted before"]["seconds"]
    return {
        "type": "int8",
        "layouts": "NT",
        "size": size,
        "parameters": {str(key): value for key, value in found.parameters.items()},
        "error": {"schedule, int8 weights": error},
        "report": found.kernel.report().as_json(),
        "seconds": times,
        "of_cublas": {candidate: best / each["seconds"] for candidate, each in times.items()},
        "tuning": found.as_json(),
    }


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--type", choices=[*TYPES, "int8"])
    parser.add_argument("--layouts", choices=LAYOUTS)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--quick", action="store_true", help="a grid of two plans, few rounds")
    options = parser.parse_args()
    results = []
    wanted = [
        (name, layouts)
        for name in ([options.type] if options.type else TYPES)
        for layouts in (["NT"] if name == "int8" else [options.layouts] if options.layouts else LAYOUTS)
    ]
    for name, layouts in wanted:
        if name == "int8":
            result = measure_weights(options.size, options.quick)
        else:
            result = measure(name, layouts, options.size, options.quick)
        results.append(result)
        shares = ", ".join(f"{candidate} {share:.3f}" for candidate, share in result["of_cublas"].items())
        errors = ", ".join(f"{error:.1e}" for error in result["error"].values())
        print(
            f"{name} {layouts} {options.size}: {shares} of cuBLAS, error {errors}, {result['parameters']}", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
