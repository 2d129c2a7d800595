"""Trials of `tw.grouped_matmul`: ragged groups and lists, by a configuration that is forced, against float64."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from benchmarks.random_problems.bounds import Verdict, arithmetic_of
from benchmarks.random_problems.kinds import Kind, seeded
from benchmarks.random_problems.layouts import drawn_extents
from benchmarks.random_problems.memory import POOL, STYLES, Held, Memory
from benchmarks.random_problems.problems import Limits
from benchmarks.random_problems.trials import NotTaken, rank

import tilewright as tw
from tilewright.kernels import grouped
from tilewright.kernels.family import Candidate
from tilewright.kernels.grouped_hopper import GroupedHopper, RaggedProblem
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.model import Machine

Region = tuple[Any, Any, Any]  # of the result, A and B: what one group computes


class _Chosen:
    """Which configuration a call takes, of the family in the place of those that would be chosen."""

    def __init__(self, family: str, salt: object) -> None:
        self.family, self.salt, self.text = family, salt, ""

    def candidate(self, problem: Any, machine: Machine, candidates: Sequence[Candidate]) -> Candidate:
        """Stand in for the choice of the fastest."""
        able = [candidate for candidate in candidates if candidate.prediction is not None]
        if not able:
            raise NotTaken(f"none of {len(candidates)} candidates")
        found = min(able, key=lambda candidate: rank(repr(candidate.configuration), self.salt))
        self.text = f"grouped: {found.configuration!r}"
        return found


class _Hopper(GroupedHopper):
    """The Hopper family with a configuration that is forced, or none at all."""

    is_simulated = True

    def __init__(self, chosen: _Chosen) -> None:
        self.chosen = chosen

    def choose(self, problem: RaggedProblem, machine: Machine) -> HopperConfiguration | None:
        if self.chosen.family != "grouped hopper":
            return None
        able = self.configurations(problem, machine)
        if not able:
            raise NotTaken("no configuration of the Hopper family")
        found = min(able, key=lambda c: rank(repr(c), self.chosen.salt))
        self.chosen.text = f"grouped hopper: {found!r}"
        return found


class GroupedCase:
    """Products of groups: of a ragged mode, or of lists."""

    def __init__(self, kind: Kind, seed: int, index: int, turn: int, memory: Memory, limits: Limits) -> None:
        self.kind, self.memory = kind, memory
        random = seeded("problem", seed, kind.family, index)
        self.style = STYLES[int(random.choice(3, p=(0.4, 0.45, 0.15)))]
        self.held: dict[str, Held] = {}
        self.outs: list[Held] = []
        self._regions: list[Region] = []
        self._chosen = _Chosen(kind.family, (kind.family, kind.number, turn))
        if kind.ragged is None:
            self._draw_list(limits, random)
        else:
            self._draw_ragged(limits, random)

    reads_results = False

    @property
    def configuration(self) -> str:
        return self._chosen.text

    def __str__(self) -> str:
        shapes = {name: tuple(x.bits.shape) for name, x in self.held.items()}
        ends = [] if self.kind.ragged is None else self._ends
        return f"{self.style}, {shapes}, offsets {ends}"

    def _matrix(self, name: str, place: int, dtype: str, shape: tuple[int, ...], random: Any) -> Held:
        kind = getattr(tw, dtype)
        placed = self.kind.lays[place].place(shape, kind.bytes, random)
        self.held[name] = self.memory.numbers(kind, placed, self.style, int(random.integers(POOL)))
        return self.held[name]

    def _result(self, shape: tuple[int, ...], random: Any) -> None:
        dtype = getattr(tw, self.kind.out)
        self.outs.append(self.memory.hold(dtype, self.kind.lays[2].place(shape, dtype.bytes, random)))

    def _draw_ragged(self, limits: Limits, random: Any) -> None:
        kind, groups = self.kind, self.kind.groups
        ranges = limits.ranges(kind.family)
        m, n, k = drawn_extents(kind.fits, ranges, limits.volume, limits.area // groups, random)
        total = {"M": m, "N": n, "K": k}[str(kind.ragged)]
        ends = np.sort(random.integers(0, total + 1, groups))
        if random.random() < 0.6:  # mostly all indices belong to a group
            ends[-1] = total
        is_wrong, place, end = random.random() < 0.15, int(random.integers(groups)), int(random.integers(-3, total + 9))
        if is_wrong and self.memory.is_on_gpu:  # where offsets are not looked at, and are to be made the best of
            ends[place] = end
        self._ends = [int(end) for end in ends]
        before, bounds = 0, []
        for end in ends.tolist():
            end = min(max(end, before), total)
            bounds.append(slice(before, end))
            before = end
        shapes: Any = {
            "M": ((m, k), (groups, k, n), (m, n)), "K": ((m, k), (k, n), (groups, m, n)),
            "N": ((groups, m, k), (k, n), (m, n)),
        }  # fmt: skip
        a, b, out = shapes[kind.ragged]
        self._matrix("a", 0, kind.a, a, random)
        self._matrix("b", 1, kind.b, b, random)
        # Of int64 for odd numbers of a kind, so that both are seen.
        self.held["offsets"] = self.memory.from_host(ends.astype((np.int32, np.int64)[kind.number % 2]))
        every = slice(None)
        for n_, part in enumerate(bounds):
            self._regions.append({
                "M": ((part, every), (part, every), (n_,)), "K": ((n_,), (every, part), (part, every)),
                "N": ((every, part), (n_,), (every, part)),
            }[str(kind.ragged)])  # fmt: skip
        if kind.gives_out:
            self._result(out, random)

    def _draw_list(self, limits: Limits, random: Any) -> None:
        kind = self.kind
        for n in range(min(kind.groups, 4)):
            ranges = limits.ranges(kind.family)
            m, columns, k = drawn_extents(kind.fits, ranges, limits.volume // 4, limits.area // 4, random)
            self._matrix(f"a{n}", 0, kind.a, (m, k), random)
            self._matrix(f"b{n}", 1, kind.b, (k, columns), random)
            if kind.gives_out:
                self._result((m, columns), random)

    def choose(self) -> None:
        """Nothing yet: the call does."""

    def poison(self, byte: int) -> None:
        for out in self.outs:
            self.memory.fill(out, byte)

    def call(self) -> list[Any]:
        kind, outs = self.kind, [out.array for out in self.outs]
        options: dict[str, Any] = {"precision": kind.precision}
        if not outs and kind.out != kind.a:
            options["out_dtype"] = getattr(tw, kind.out)
        grouped._planned.cache_clear()
        multiply = inspect.unwrap(tw.grouped_matmul)
        hopper = mock.patch.object(grouped, "HOPPER", _Hopper(self._chosen))
        with hopper, mock.patch.object(grouped, "fastest", self._chosen.candidate):
            if kind.ragged is None:
                sides = [[x.array for name, x in self.held.items() if name[0] == side] for side in "ab"]
                return list(multiply(*sides, out=outs or None, **options))
            arrays = [self.held[name].array for name in ("a", "b", "offsets")]
            return [multiply(*arrays, out=outs[0] if outs else None, **options)]

    def judge(self, found: list[Any], verdict: Verdict) -> None:
        memory, xp = self.memory, self.memory.xp
        dtype, arithmetic = getattr(tw, self.kind.out), arithmetic_of(self.kind)

        def compare(what: str, got: Any, a: Any, b: Any) -> None:
            terms = xp.matmul(abs(a), abs(b))
            limit = arithmetic.share(a.shape[-1]) * terms
            if self.style == "whole":
                limit = xp.where(terms < arithmetic.exact, xp.zeros_like(terms), limit)
            verdict.compare(what, memory, got, xp.matmul(a, b), limit, dtype)

        if self.kind.ragged is None:
            for n, got in enumerate(found):
                compare(f"product {n}", got, *(memory.wide(self.held[f"{side}{n}"].array) for side in "ab"))
            return
        a, b = (memory.wide(self.held[name].array) for name in "ab")
        for n, (of_d, of_a, of_b) in enumerate(self._regions):
            compare(f"group {n}", found[0][of_d], a[of_a], b[of_b])
        self._judge_rest(found[0], verdict)

    def _judge_rest(self, found: Any, verdict: Verdict) -> None:
        """Indices that belong to no group have results of 0."""
        last = max(
            (part.stop for region in self._regions for part in region[0] if isinstance(part, slice) and part.stop),
            default=0,
        )
        rest = {"M": found[last:], "N": found[:, last:], "K": found[:0]}[str(self.kind.ragged)]
        if not bool((self.memory.wide(rest) == 0).all()):
            verdict.says("results of no group are not 0")
