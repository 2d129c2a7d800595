"""Count the registers of fused passes, and write them into docs/schedule.md: `python docs/schedule_registers.py`.

For F = 8, 4, 2, 1 fused passes of P = 8, the fragments that the kernel declares, their registers a thread, and what the
compilers report: with the groups of passes written one after another, between them a fence for the compiler, and as a
loop (`use_static_offsets=False`). The counts are written to benchmarks/results/schedule_registers.json, and the table
of the page is made of that file. Nothing is run, so no GPU is needed; NVRTC and clang are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.clang import clang_version
from tilewright.runtime.nvrtc import nvrtc_version
from tilewright.schedule import Array, Location, MMAShape, Nest, Plan, Role, Target

PAGE = Path(__file__).parent / "schedule.md"
RESULTS = PAGE.parent.parent / "benchmarks" / "results" / "schedule_registers.json"
BEGIN, END = "<!-- registers -->", "<!-- end of registers -->"
PASSES, FUSED = 8, (8, 4, 2, 1)
CASES = [
    (name, dtype, shape, shared)
    for name, dtype, shape in (
        ("sm_80", "float16", MMAShape.M16N16K16),
        ("sm_90a", "float16", MMAShape.M16N16K16),
        ("gfx908", "float32", MMAShape.M16N16K4),
    )
    for shared in (False, True)
]
HEADINGS = (
    "target, type, shape", "operands from", "F", "fragments of A and B", "their registers", "the kernel's registers",
    "groups as a loop",
)  # fmt: skip


def plan_of(name: str, dtype: str, shape: MMAShape, shared: bool, fused: int, static: bool = True) -> Plan:
    """Return a product whose blocks of 2 x 2 warps read A and B group by group, from memory or a shared pipeline."""
    target = Target(name)
    m, n, step = target.tensor_core_info.compute_tensor_splits(shape, PASSES)
    rows, columns, depth = 8 * m, 8 * n, 8 * step
    A = Array(Role.INPUT, dtype, (rows, depth))
    B = Array(Role.INPUT, dtype, (depth, columns), Array.Layout.LAST_MAJOR)
    C = Array(Role.INPUT_OUTPUT, "float32", (rows, columns))
    nest = Nest((rows, columns, depth))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    schedule = nest.create_schedule()
    i_warp, j_warp = schedule.tile({i: 2 * m, j: 2 * n})
    ii, jj, kk = schedule.tile({i_warp: m, j_warp: n, k: step})
    schedule.reorder(i, j, k, i_warp, j_warp, ii, jj, kk)
    plan, unit = schedule.create_plan(target), target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i_warp: unit.WARP_Y, j_warp: unit.WARP_X})
    for operand in (A, B) if shared else ():
        plan.cache(operand, index=i_warp, pipeline_stages=2)
    plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), shape, PASSES, use_static_offsets=static, num_fused_passes=fused)
    return plan


def row_of(name: str, dtype: str, shape: MMAShape, shared: bool, fused: int) -> dict[str, Any]:
    """Return the counts of one kernel, and the registers of its twin whose groups are a loop."""
    kernel = plan_of(name, dtype, shape, shared, fused).build("product")
    twin = plan_of(name, dtype, shape, shared, fused, static=False).build("product").resources()
    report, resources, target = kernel.report(), kernel.resources(), Target(name)
    size = 2 if dtype == "float16" else 4
    a, b = (extent * shape.k * size // (4 * target.warp_size) for extent in (shape.m, shape.n))
    return {
        "target": name,
        "type": dtype,
        "shape": shape.name.removesuffix("_B1"),
        "operands": "shared memory" if shared else "global memory",
        "passes": PASSES,
        "fused": fused,
        "fragments_a": report.fragments_a,
        "fragments_b": report.fragments_b,
        "fragment_registers": report.fragments_a * a + report.fragments_b * b,
        "registers": resources.registers,
        "accumulation_registers": getattr(resources, "accumulation_registers", None),
        "registers_loop": twin.registers,
        "accumulation_registers_loop": getattr(twin, "accumulation_registers", None),
        "spills": resources.spills or twin.spills,
    }


def table(record: Mapping[str, Any]) -> str:
    """Return the table of a record, as it stands in the page."""
    compilers = ", ".join(f"{name} {version}" for name, version in record["compilers"].items())
    lines = [
        f"P = {PASSES}; {compilers} ([JSON](../benchmarks/results/{RESULTS.name})):",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---" * len(HEADINGS) + "|",
    ]
    for row in record["rows"]:
        sums, of_loop = row["accumulation_registers"], row["accumulation_registers_loop"]
        cells = (
            f"{row['target']}, {row['type']}, {row['shape']}",
            row["operands"],
            str(row["fused"]),
            f"{row['fragments_a']} + {row['fragments_b']}",
            str(row["fragment_registers"]),
            str(row["registers"]) + ("" if sums is None else f" + {sums}") + (", spills" if row["spills"] else ""),
            str(row["registers_loop"]) + ("" if of_loop is None else f" + {of_loop}"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str, record: Mapping[str, Any]) -> str:
    """Return the page with the table of a record; raise `ValueError` where it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} followed by {END}")
    return "\n\n".join([before + begin, table(record), end]) + after


def main() -> None:
    """Count, and write the record and the page."""
    clang = clang_version()
    if clang is None:
        raise SystemExit("nothing was written: clang 14 or later is needed for AMD's targets")
    rows = []
    for case in CASES:
        for fused in FUSED:
            rows.append(row_of(*case, fused))
            print(f"{case[0]}, {rows[-1]['operands']}, F = {fused}", file=sys.stderr)
    compilers = {"NVRTC": ".".join(map(str, nvrtc_version())), "clang": clang}
    record = {"compilers": compilers, "rows": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
