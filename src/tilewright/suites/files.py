"""A report as files, whole or not at all: its JSON, and bars with what they are compared with as lines."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.suites.report import Report, Row


def check_target(path: Path) -> None:
    """Raise `ArgumentError` where a file cannot be written: before a measurement, not after it."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ArgumentError(f"{path} is a folder; name a file")
    if _is_special(path):
        return
    if not folder.is_dir():
        raise ArgumentError(f"the folder {folder}, to write {path.name} to, does not exist")
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror or error}") from None
    os.close(handle)
    os.unlink(name)


def write_json(path: Path, value: Any) -> None:  # Any: plain data
    """Write plain data as JSON: beside its place first, then moved there in one step."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file: beside its place first, then moved there in one step. A device or a pipe is written to."""
    temporary = None
    try:
        if _is_special(path):
            with open(path, "wb") as special:
                special.write(data)
            return
        handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def _is_special(path: Path) -> bool:
    """Say whether a path is that of a device or a pipe, such as /dev/null, which no file takes the place of."""
    return path.exists() and not path.is_file()


FORMATS = (".svg", ".png", ".pdf")
# What a suite's bars show: the figure of a GPU and its unit, and that of the simulator.
_SHOWN = {
    "sgemm": (("gflops", "GFLOP/s"), ("instructions", "instructions")),
    "transpose": (("gigabytes_per_second", "GB/s"), ("global_sectors", "sectors of global memory")),
    "launch": (("microseconds", "microseconds a call"),),
    "compile": (("nvrtc_ms", "milliseconds in NVRTC"),),
    "simulate": (("checked_seconds", "seconds, checked"),),
    "file": (("milliseconds", "milliseconds"), ("instructions", "instructions")),
}


def check_plot(path: Path) -> None:
    """Raise `ArgumentError` where no plot can be drawn to a file: before a measurement, not after it."""
    if path.suffix not in FORMATS:
        raise ArgumentError(f"a plot is one of {', '.join(FORMATS)}, got {path.name}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ArgumentError("a plot needs matplotlib", help='pip install "tilewright[plot]"')


def plot(report: Report, path: Path) -> None:
    """Draw a report to a file: a bar for each row, error bars where times have a spread, lines for ceilings.

    Raises `ArgumentError` where no row has a figure to draw.
    """
    from matplotlib.figure import Figure

    drawable = [(f, unit, rows) for f, unit in _SHOWN[report.suite] if (rows := _rows_with(report, f))]
    if not drawable:
        raise ArgumentError("nothing was measured that could be drawn")
    figure, unit, rows = drawable[0]
    drawing = Figure(figsize=(8, 0.4 * len(rows) + 1.6), layout="constrained")
    axes = drawing.add_subplot()
    values = [row.figures[figure] for row in rows]
    labels = [f"{row.name} ({row.figures['size']})" if "size" in row.figures else row.name for row in rows]
    positions = range(len(rows))
    bars = axes.barh(positions, values, color="#4477aa", xerr=_spread(rows, figure))
    axes.bar_label(bars, [f"{value:,.4g}" for value in values], label_type="center", color="white", fontsize="small")
    axes.set_yticks(list(positions), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(_title(report), fontsize="medium", loc="left")
    for name, value in _lines(report, figure).items():
        axes.axvline(value, color="#aa3377", linestyle="--", linewidth=1)
        axes.annotate(name, (value, 0), xycoords=("data", "axes fraction"), rotation=90, fontsize="small", ha="right")
    data = io.BytesIO()
    drawing.savefig(data, format=path.suffix[1:])
    write_bytes(path, data.getvalue())


def _rows_with(report: Report, figure: str) -> list[Row]:
    return [row for row in report.rows if row.figures.get(figure) is not None]


def _title(report: Report) -> str:
    gpu: Mapping[str, Any] | None = report.machine.get("gpu")
    return report.title if gpu is None or report.settings.get("backend") == "sim" else f"{report.title}\n{gpu['name']}"


def _spread(rows: list[Row], figure: str) -> list[list[float]] | None:
    """Return the lengths of the error bars from the 10th to the 90th percentile of the time, None without times."""
    if figure not in ("gflops", "milliseconds") or any("p10_ms" not in row.figures for row in rows):
        return None
    below, above = [], []
    for row in rows:
        value, f = row.figures[figure], row.figures
        ends = [f["p10_ms"], f["p90_ms"]]
        if figure == "gflops":
            ends = [value * f["milliseconds"] / f["p90_ms"], value * f["milliseconds"] / f["p10_ms"]]
        below.append(max(value - ends[0], 0.0))
        above.append(max(ends[1] - value, 0.0))
    return [below, above]


def _lines(report: Report, figure: str) -> dict[str, float]:
    ceilings = report.facts.get("ceilings")
    if ceilings is None:
        return {}
    if figure == "gigabytes_per_second":
        return {"copy": ceilings["bytes_per_second"] / 1e9}
    if figure == "gflops":
        rate = report.facts.get("arithmetic_ceiling")
        return {} if rate is None else {"ceiling": rate / 1e9}
    return {}
