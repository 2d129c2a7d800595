"""Write measured figures into the pages: `python docs/fill_figures.py FILE.json...`.

The files are what `tilewright bench sgemm -o FILE.json` wrote, one for each element type, for docs/matmul.md, or
one file of `python -m benchmarks.counters --json FILE.json` for docs/profiler.md. The tables between the two marks of
the page are made anew from them, so that no figure is typed by hand, and each table names its file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "matmul.md"
COUNTERS_PAGE = Path(__file__).parent / "profiler.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
HEADINGS = ("rung", "ms", "TFLOP/s", "of cuBLAS", "registers", "shared memory", "occupancy")


def table(report: Mapping[str, Any], source: str) -> str:
    """Return the tables of one report, one for each size.

    Raises `ValueError` where the report is not one of `bench sgemm` on a GPU, or holds a rung that failed.
    """
    settings = report.get("settings", {})
    if settings.get("backend") != "cuda" or "rows" not in report:
        raise ValueError(f"{source} is not a report of `tilewright bench sgemm --backend cuda`")
    failed = [row["name"] for row in report["rows"] if row.get("failure")]
    if failed:
        raise ValueError(f"{source} holds rungs that failed: {', '.join(failed)}")
    machine = report.get("machine", {})
    gpu = machine.get("gpu") or {}
    parts = []
    for size in dict.fromkeys(row["size"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["size"] == size and row.get("milliseconds") is not None]
        if not rows:
            raise ValueError(f"{source} holds no times for {size}: it was made with --check")
        about = f"{settings['dtype']}, {size}, {gpu.get('name', 'GPU')}, {machine.get('date', 'no date')[:10]}"
        lines = [
            f"{about} ([JSON](../{source})):",
            "",
            "| " + " | ".join(HEADINGS) + " |",
            "|---" * len(HEADINGS) + "|",
        ]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of one row; what was not measured stays empty."""
    share, occupancy, shared = row.get("of_library"), row.get("occupancy"), row.get("shared_bytes")
    return [
        row["name"],
        f"{row['milliseconds']:.3f}",
        f"{row['gflops'] / 1000:.2f}",
        "" if share is None else f"{share:.3f}",
        str(row.get("registers") or ""),
        "" if shared is None else f"{shared / 1024:.1f} KB",
        "" if occupancy is None else f"{100 * occupancy:.0f} %",
    ]


def counters_table(report: Mapping[str, Any], source: str) -> str:
    """Return the table of the simulator's figures and the GPU's; where they differ, both stand in bold.

    Raises `ValueError` where the report is not one of `benchmarks.counters`.
    """
    if not report.get("cases"):
        raise ValueError(f"{source} is not a report of `python -m benchmarks.counters`")
    machine = report.get("machine", {})
    gpu = machine.get("gpu") or {}
    driver = gpu.get("driver") or gpu.get("driver_version")
    about = f"{gpu.get('name', 'GPU')}, {f'driver {driver}' if driver else 'driver not recorded'}, "
    lines = [f"{about}{machine.get('date', 'no date')[:10]} ([JSON](../{source})); simulator / GPU:", ""]
    figures = list(report["cases"][0]["equal"])
    lines += ["| " + " | ".join(("kernel", *figures)) + " |", "|---" * (len(figures) + 1) + "|"]
    for row in report["cases"]:
        cells = [row["case"]]
        for figure, equal in row["equal"].items():
            both = f"{row['simulator'][figure]} / {row['gpu'][figure]:g}"
            cells.append(both if equal else f"**{both}**")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str, tables: Sequence[str]) -> str:
    """Return the page with the tables between its marks; raise `ValueError` where it does not have both."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} followed by {END}")
    return before + "\n\n".join([begin, *tables, end]) + after


def main(files: Sequence[str]) -> None:
    """Fill the page."""
    if not files:
        raise SystemExit(__doc__)
    root = PAGE.parent.parent
    try:
        reports = {
            Path(f).resolve().relative_to(root).as_posix(): json.loads(Path(f).read_text("utf-8")) for f in files
        }
        page, make = (COUNTERS_PAGE, counters_table) if "cases" in next(iter(reports.values())) else (PAGE, table)
        text = filled(page.read_text(encoding="utf-8"), [make(report, source) for source, report in reports.items()])
    except (OSError, ValueError) as error:
        raise SystemExit(f"nothing was written: {error}") from None
    page.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
