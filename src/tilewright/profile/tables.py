"""A report as plain data, for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.figures import Figures, Line
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.conflicts import Conflict
from tilewright.remarks import Remark

VERSION = 1  # of the form of the data


def as_data(launches: Sequence[LaunchReport]) -> dict[str, object]:
    """Return all launches as dicts, lists, numbers and strings."""
    return {"version": VERSION, "launches": [_launch(each) for each in launches]}


def _launch(each: LaunchReport) -> dict[str, object]:
    launch, bounds, held = each.launch, each.bounds, each.occupancy
    longest = bounds.longest
    return {
        "kernel": launch.kernel,
        "times": each.times,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "arch": launch.arch,
        "blocks": launch.blocks,
        "measured_blocks": launch.measured_blocks,
        "total": figures(launch.total),
        "lines": [_line(line) for line in launch.lines],
        "touched_bytes": launch.touched_bytes,
        "shared_buffers": [
            {
                "name": buffer.name,
                "element": buffer.element,
                "size": buffer.size,
                "offset": buffer.offset,
                "layout": None if buffer.layout is None else str(buffer.layout),
                "patterns_complete": buffer.is_complete,
            }
            for buffer in launch.buffers
        ],
        "conflicts": [_conflict(conflict) for conflict in each.conflicts],
        "remarks": [remark_data(remark) for remark in each.remarks],
        "gpu": each.gpu.name,
        "bounds": {
            "flops": bounds.flops,
            "intensity": bounds.intensity if math.isfinite(bounds.intensity) else None,
            "peak_flops_per_second": bounds.peak,
            "attainable_flops_per_second": bounds.attainable,
            "limiter": None if longest is None else longest.name,
            "limits": [
                {"name": limit.name, "amount": limit.amount, "rate": limit.rate, "seconds": limit.seconds}
                for limit in bounds.limits
            ],
            "units_without_rate": list(bounds.unknown),
        },
        "occupancy": {
            "blocks": held.blocks,
            "warps": held.warps,
            "most_warps": held.most_warps,
            "limits": held.limits,
            "limiter": held.limiter,
            "registers": held.registers,
            "shared_bytes": held.shared_bytes,
            "spills": held.spills,
            "arch": held.arch,
            "problem": held.problem,
        },
    }


def figures(found: Figures) -> dict[str, object]:
    """Return figures as a dict."""
    return {
        "shared_requests": found.shared_requests,
        "shared_wavefronts": found.shared_wavefronts,
        "shared_wavefronts_ideal": found.shared_wavefronts_ideal,
        "shared_bytes": found.shared_bytes,
        "global_requests": found.global_requests,
        "global_sectors": found.global_sectors,
        "global_sectors_ideal": found.global_sectors_ideal,
        "global_bytes": found.global_bytes,
        "sectors_per_request": found.sectors_per_request,
        "sector_use": found.sector_use,
        "barriers": found.barriers,
        "instructions": dict(found.instructions),
        "operations": dict(found.operations),
    }


def _line(line: Line) -> dict[str, object]:
    return {"file": line.file, "line": line.line, "text": line.text, **figures(line)}


def _conflict(conflict: Conflict) -> dict[str, object]:
    found = conflict.suggestion
    return {
        "buffer": conflict.buffer.name,
        "layout": None if conflict.buffer.layout is None else str(conflict.buffer.layout),
        "lines": [
            {
                "file": None if line.location is None else line.location.file,
                "line": None if line.location is None else line.location.line,
                "requests": line.requests,
                "wavefronts": line.wavefronts,
                "ideal": line.ideal,
                "worst": line.worst,
            }
            for line in conflict.lines
        ],
        "suggestion": None
        if found is None
        else {
            "expression": found.expression,
            "kind": found.kind,
            "before": found.before,
            "after": found.after,
            "ideal": found.ideal,
            "removes": found.removes,
            "extra_bytes": found.extra_bytes,
        },
    }


def remark_data(remark: Remark) -> dict[str, object]:
    """Return a remark as a dict."""
    suggestion = remark.suggestion
    return {
        "kind": remark.kind,
        "file": remark.file,
        "line": remark.line,
        "message": remark.message,
        "suggestion": None if suggestion is None else suggestion.expression,
    }
