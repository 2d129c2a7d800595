"""What a run measured, launch by launch, and its report: text, JSON and one HTML file, from the same findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tilewright.arch import DEFAULT_GPU, Gpu, find_gpu
from tilewright.arguments import instance
from tilewright.errors import ArgumentError
from tilewright.figures import Figures, Launch, Line, total
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.facts import amount, shape
from tilewright.profile.inline import as_inline
from tilewright.profile.page import as_html
from tilewright.profile.text import as_data, as_text
from tilewright.remarks import Remark


class Report(str):
    """The report as text, which it is, and in its other forms.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def double(x):
    ...     x[tw.thread_idx.x] = 2 * x[tw.thread_idx.x]
    >>> with tw.simulate(profile=True) as run:
    ...     double[1, 32](np.ones(32, np.float32))
    >>> report = run.report()
    >>> "double" in report, report.data["launches"][0]["total"]["global_sectors"]
    (True, 8)
    """

    profile: Profile
    launches: tuple[LaunchReport, ...]

    @staticmethod
    def of(profile: Profile, gpu: Gpu, seconds: Sequence[float | None] = ()) -> Report:
        """Return the report of a profile, with bounds and occupancy for a GPU, and the times of launches there."""
        instance("Profile.report", "seconds", seconds, (list, tuple), "a list of the time of each launch, or None")
        taken = [*seconds, *[None] * (len(profile.launches) - len(seconds))]
        launches = tuple(
            LaunchReport(profile.launches[numbers[0]], gpu, len(numbers), _median([taken[n] for n in numbers]))
            for numbers in _alike(profile.launches)
        )
        result = Report(as_text(launches))
        result.profile, result.launches = profile, launches
        return result

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_inline(self.launches)

    @property
    def data(self) -> dict[str, object]:
        """The report as what JSON holds: dicts, lists, numbers and strings."""
        return as_data(self.launches)

    @property
    def remarks(self) -> list[Remark]:
        """What could be faster, line by line, over all launches."""
        return [remark for launch in self.launches for remark in launch.remarks]

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.data, indent=2, allow_nan=False)

    def html(self) -> str:
        """Return the report as one HTML file that needs nothing else."""
        return as_html(self.launches)

    def save(self, path: str | Path) -> None:
        """Write the report to a file: `.html`, `.json` or `.txt`. Raises `ArgumentError` for another ending."""
        file = Path(path)
        forms = {".html": self.html, ".json": self.json, ".txt": self.__str__}
        if file.suffix.lower() not in forms:
            raise ArgumentError(f"a report is saved as .html, .json or .txt, not as {file.name!r}")
        file.write_text(forms[file.suffix.lower()]() + "\n", encoding="utf-8")


@dataclass(repr=False)
class Profile:
    """What a run measured, launch by launch; its own properties are sums over them."""

    launches: list[Launch] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Profile({'; '.join(_about(self.launches[each[0]], len(each)) for each in _alike(self.launches))})"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    @property
    def total(self) -> Figures:
        """The sum over all launches."""
        return total(line for launch in self.launches for line in launch.lines)

    @property
    def shared_wavefronts(self) -> int:
        """The passes that shared memory took for all requests."""
        return self.total.shared_wavefronts

    @property
    def shared_wavefronts_ideal(self) -> int:
        """The fewest passes that the same requests could take."""
        return self.total.shared_wavefronts_ideal

    @property
    def global_sectors(self) -> int:
        """The sectors of 32 bytes that all requests of global memory touched."""
        return self.total.global_sectors

    @property
    def global_sectors_ideal(self) -> int:
        """The fewest sectors that could hold the bytes asked for, request by request."""
        return self.total.global_sectors_ideal

    def by_line(self) -> list[Line]:
        """Return the figures of each source line over all launches, by file and line."""
        found: dict[tuple[str | None, int | None], Line] = {}
        for launch in self.launches:
            for line in launch.lines:
                found.setdefault((line.file, line.line), Line(location=line.location)).add(line)
        return sorted(found.values(), key=lambda line: (line.file or "", line.line or 0))

    @property
    def remarks(self) -> list[Remark]:
        """What could be faster, line by line: bank conflicts with the layouts that avoid them, and narrow copies."""
        return self.report().remarks

    def report(self, gpu: str = DEFAULT_GPU, seconds: Sequence[float | None] = ()) -> Report:
        """Return the report, with bounds and occupancy for a GPU: print it, or `.save("report.html")` it.

        With `seconds`, the time of each launch on that GPU (None where it was not measured), the report gives the
        achieved share of the limits: `kernel[grid, block]` timed by `tw.bench.do_bench`, or the script by `tilewright
        profile SCRIPT --measure`. Raises `ArgumentError` for a GPU that is not in the table (`tilewright.arch.gpus`).
        """
        return Report.of(self, find_gpu(gpu), seconds)


def _about(launch: Launch, times: int) -> str:
    """Return a launch in a line: what it is, and what shared and global memory took, beside what would do."""
    found = launch.total
    return (
        f"{launch.kernel}: grid {shape(launch.grid)}, block {shape(launch.block)}, "
        f"{amount(found.shared_wavefronts)} wavefronts ({amount(found.shared_wavefronts_ideal)} ideal), "
        f"{amount(found.global_sectors)} sectors ({amount(found.global_sectors_ideal)} ideal)"
        + (f", {times} times" if times > 1 else "")
    )


def _alike(launches: list[Launch]) -> list[list[int]]:
    """Return the numbers of launches in groups: those of a group are alike in everything."""
    found: list[list[int]] = []
    for number, launch in enumerate(launches):
        group = next((each for each in found if launches[each[0]].is_like(launch)), None)
        if group is None:
            found.append([number])
        else:
            group.append(number)
    return found


def _median(seconds: Sequence[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return median(known) if known else None
