"""The choice of a kernel, and what `tw.matmul.explain` shows of it: all families' candidates, and the fastest."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any  # Any: JSON

from tilewright import notebook
from tilewright.errors import ArgumentError
from tilewright.kernels.family import Candidate, Family
from tilewright.kernels.gemv import Gemv
from tilewright.kernels.hopper import HOPPER
from tilewright.kernels.hopper_parts import HopperParts
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.problem import Operand, Problem
from tilewright.kernels.streaming import Streaming
from tilewright.kernels.tiny import Tiny
from tilewright.kernels.weight_streaming import WeightStreaming
from tilewright.kernels.weight_tiles import WeightTiles
from tilewright.kernels.weight_warpgroups import WeightWarpgroups
from tilewright.notebook import Column, Row

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

# The index of families, a line for each; of equally fast candidates the first is chosen.
FAMILIES: tuple[Family, ...] = (
    HOPPER,
    HopperParts(),
    Multistage(),
    Streaming(),
    Gemv(),
    Tiny(),
    WeightStreaming(),
    WeightTiles(),
    WeightWarpgroups(),
)  # fmt: skip


def all_candidates(
    problem: Problem, machine: Machine, families: Sequence[Family] | None = None, *, lazily: bool = False
) -> list[Candidate]:
    """Return all candidates of families, without a list of those of the index."""
    return [
        candidate
        for family in (FAMILIES if families is None else families)
        if family.takes_weights == (problem.weights is not None)
        for candidate in family.candidates(problem, machine, lazily=lazily)
    ]


def simulated_families() -> Sequence[Family]:
    """Return the families for calls that run in the simulator, where the result counts and not the kernel."""
    return [family for family in FAMILIES if family.is_simulated] or FAMILIES


def _order(candidate: Candidate) -> tuple[float, int, float]:
    prediction = candidate.prediction
    assert prediction is not None
    return prediction.us, candidate.configuration.splits, prediction.compute_us


def fastest(problem: Problem, machine: Machine, candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that is predicted to be fastest; raise `ArgumentError` for none.

    Of those that take as long, because memory does, it is one of the fewest splits, and then of the least computing.
    """
    for _, n in sorted((_order(c), n) for n, c in enumerate(candidates) if c.prediction is not None):
        found = candidates[n].looked_at(machine.arch)
        if not found.rejection:
            return found
    by = "" if problem.parts is None else f" by {problem.parts}"
    raise ArgumentError(
        f"no kernel multiplies {problem.a.dtype} and {problem.b.dtype}{by} on {machine.arch}",
        details=[f"{c.family.name}, {c.configuration}: {c.looked_at(machine.arch).rejection}" for c in candidates],
        help="convert a and b to another type, for example float32 with precision='ieee'"
        if problem.weights is None
        else "multiply by weights.dequantised()",
    )


@dataclass(frozen=True, repr=False)
class Explanation:
    """How a product would be computed. It shows itself as a table, `to_json` and `to_dict` give it to programs.

    `choice` is None for an empty result, for which nothing is launched.
    """

    problem: Problem
    machine: Machine
    launches: int
    is_swapped: bool
    candidates: tuple[Candidate, ...]
    choice: Candidate | None
    is_found: bool = False  # by `tw.matmul.tune`, not by the model

    @property
    def as_read(self) -> Problem:
        """The problem as the chosen kernel reads it: A and B as they lie, or as they do after packing."""
        return self.problem if self.choice is None else self.choice.problem

    @property
    def packed(self) -> tuple[bool, bool]:
        """Whether A and B are packed first for the chosen kernel."""
        return (False, False) if self.choice is None else self.choice.packed

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; times are in microseconds, sizes in bytes."""
        problem = self.as_read
        return {
            "problem": {
                **{name: getattr(problem, name) for name in ("m", "n", "k", "batch")},
                **{name: _operand(getattr(problem, name)) for name in ("a", "b", "d")},
                "compute": str(problem.compute),
                "parts": None if problem.parts is None else problem.parts.name,
                "accumulator": str(problem.accumulator),
                "c": None if problem.c is None else str(problem.c),
                "bias": None if problem.bias is None else str(problem.bias),
                "epilogue": None if problem.epilogue is None else str(problem.epilogue),
                "elements": [str(dtype) for dtype in problem.elements],
                "scales": [str(dtype) for dtype in problem.scales],
                "blocks": [str(blocks) for blocks in problem.blocks],
                "further": [str(further) for further in problem.further],
                "computes_transpose": self.is_swapped,
                "packed_first": _names("ab", self.packed),
                "launches": self.launches,
                "flops": problem.flops,
            },
            "machine": {"arch": self.machine.arch.name, "multiprocessors": self.machine.multiprocessors},
            "candidates": [_described(candidate) for candidate in self.candidates],
            "choice": None if self.choice is None else self.candidates.index(self.choice),
            "found_by_tuning": self.is_found,
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=400, color_system=None, force_jupyter=False)
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        title, _, note = self._heading().partition("\n")
        rows = [
            Row(_row(c, is_choice=c is self.choice), kind="chosen" if c is self.choice else "") for c in self.candidates
        ]
        parts = [notebook.table(_COLUMNS, rows)] if rows else []
        return notebook.box(title, *parts, notebook.heading(self._conclusion()), note=note)

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(Text(self._heading()), self._table(), Text(self._conclusion()))

    def _heading(self) -> str:
        p = self.as_read
        batch = f"{p.batch} times " if p.batch != 1 else ""
        extra = [f"{len(p.scales)} scale{'s' * (len(p.scales) > 1)}"] * bool(p.scales)
        extra += [f"scales of {blocks}" for blocks in p.blocks]
        extra += ["sums by tensor cores" if p.weights is None else "weights may be rounded"] * p.sums_stay
        extra += [f"beta * c ({p.c})"] * p.has_c + [f"bias ({p.bias})"] * p.has_bias
        arrays = f" with {', '.join(map(str, p.elements))}" if p.elements else ""
        extra += [] if p.weights is None else [str(p.weights)]
        extra += [f"{p.epilogue}{arrays}"] * (p.epilogue is not None)
        lines = [
            f"{batch}{p.m} x {p.n} x {p.k}, {p.arithmetic} with {p.accumulator} accumulators, on {self.machine.arch} "
            f"with {self.machine.multiprocessors} multiprocessors",
            f"A {_words(p.a, 'M')}; B {_words(p.b, 'N')}; D {_words(p.d, 'N')}",
        ]
        if extra:
            lines.append(f"plus {', '.join(extra)}")
        if self.is_swapped:
            lines.append("D is contiguous along M, so its transpose is computed: A is the caller's b")
        sides = zip("AB", "MN", self.packed, (self.problem.a, self.problem.b), strict=True)
        lines += [
            f"{name} is packed first, in a pass of its own, as its layout prevents vector loads: "
            f"{_words(operand, other)}"
            for name, other, is_packed, operand in sides
            if is_packed
        ]
        if self.launches > 1:
            lines.append(f"{self.launches} launches: the batch modes of the arrays do not join to one")
        return "\n".join(lines)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in _COLUMNS[:-1]:
            table.add_column(column.title, justify="left" if column.is_text else "right", no_wrap=column.is_text)
        table.add_column(_COLUMNS[-1].title)
        for candidate in self.candidates:
            table.add_row(*_row(candidate, is_choice=candidate is self.choice))
        return table

    def _conclusion(self) -> str:
        if self.choice is None or self.choice.prediction is None:
            return "the result is empty: nothing is launched"
        rate = self.problem.flops / self.choice.prediction.us / 1e6
        by = "found to be fastest by tw.matmul.tune" if self.is_found else "chosen"
        return f"{by}: {self.choice.family.name}, {self.choice.configuration}: {rate:.3g} TFLOP/s predicted"


_COLUMNS = (
    Column("", is_text=True),
    Column("kernel", is_text=True, is_wide=True),
    Column("tile, warps, stages", is_text=True),
    Column("predicted us"),
    *(Column(name, is_wide=True) for name in ("compute", "memory", "packing", "adding", "tiles", "waves", "blocks/SM")),
    Column("shared KB", is_wide=True),
    Column("rejected", is_text=True),
)


def _row(candidate: Candidate, *, is_choice: bool) -> list[str]:
    shared = f"{candidate.resources.shared_bytes / 1024:.0f}"
    begin = ["->" if is_choice else "", candidate.family.name, str(candidate.configuration)]
    p = candidate.prediction
    if p is None:
        return [*begin, *[""] * 8, shared, candidate.rejection or ""]
    times = [f"{t:.2f}" for t in (p.us, p.compute_us, p.memory_us, p.packing_us, p.adding_us)]
    return [*begin, *times, str(p.tiles), str(p.waves), str(p.blocks), shared, ""]


def _words(operand: Operand, other: str) -> str:
    """Say how a matrix lies; `other` is the name of its mode beside K."""
    layout = {"K": "contiguous along K", "MN": f"contiguous along {other}", "none": "non-contiguous"}[operand.major]
    return f"{operand.dtype}, {layout}, aligned to {operand.alignment}"


def _operand(operand: Operand) -> dict[str, Any]:
    return {"dtype": str(operand.dtype), "major": operand.major, "alignment": operand.alignment}


def _names(names: str, chosen: Sequence[bool]) -> list[str]:
    return [name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen]


def _described(candidate: Candidate) -> dict[str, Any]:
    p = candidate.prediction
    configuration = asdict(candidate.configuration).items()
    result: dict[str, Any] = {
        "family": candidate.family.name,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in configuration},
        "packed_first": _names("ab", candidate.packed),
        "shared_bytes": candidate.resources.shared_bytes,
        "rejection": candidate.rejection,
    }
    if p is not None:
        result |= {"us": p.us, "compute_us": p.compute_us, "memory_us": p.memory_us}
        result |= {"packing_us": p.packing_us, "adding_us": p.adding_us}
        result |= {"tiles": p.tiles, "waves": p.waves, "blocks_per_multiprocessor": p.blocks}
    return result
