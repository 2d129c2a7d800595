"""Calls of one kind, planned once: which kernel runs, on which views, and what each call still has to check."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple  # Any: arrays of any library, and kernels

import numpy as np

from tilewright.arch import default_arch, gpu_like
from tilewright.dtypes import DType, float64, int32
from tilewright.errors import ArgumentError
from tilewright.kernels.arguments import OUT, A, ArrangedProblem, B, matrices
from tilewright.kernels.arrangement import Arrangement, Placement, broadcast_strides
from tilewright.kernels.choice import all_candidates, fastest, simulated_families
from tilewright.kernels.family import Candidate, KernelLaunch
from tilewright.kernels.model import Machine
from tilewright.kernels.packing import Packing, maker_of, pack_both, packing_for
from tilewright.kernels.problem import Problem
from tilewright.kernels.results import Maker, adapter_of_results, handed_over, maker_for
from tilewright.kernels.winners import is_forced, winner_among
from tilewright.runtime import driver
from tilewright.runtime.addresses import Overlap, overlap_of, share_memory
from tilewright.runtime.arrays import ALIGNMENT, Adapter, ArrayInfo, Device, adapter_for
from tilewright.runtime.views import View, view_class


def machine_of(device: Device) -> Machine:
    """Return the GPU of a device, or for the simulator the one that code is generated for."""
    if isinstance(device, str):
        return Machine.of(default_arch())
    properties = driver.device_properties(device)
    arch = properties.arch
    return Machine(arch, gpu_like(properties.name, arch, properties.multiprocessors, properties.bandwidth))


class Use(NamedTuple):
    """An array of a call as the kernel sees it. `described` is its place among those that were described in full."""

    place: int
    kind: type[View]
    placement: Placement
    dtype: DType
    writable: bool
    described: int | None


@dataclass(frozen=True, eq=False)
class CallPlan:
    """How calls of one kind run: calls that agree in all but pointers, alpha and beta.

    `starts` say where the pointer of each array stands among a call's values; `uses` are D, A, B and the operands, and
    `packings` what packs A and B where the kernel does not take their layouts. `kernel` is None for an empty result.
    `tensors` are the places of PyTorch's tensors.
    """

    arranged: ArrangedProblem
    starts: tuple[int, ...]
    make: Maker | None
    uses: tuple[Use, ...]
    packings: tuple[Packing | None, Packing | None]
    overlaps: tuple[Overlap, ...]
    tensors: tuple[int, ...]
    scale: Callable[[Any], Any]
    kernel: KernelLaunch | None
    make_workspace: Maker | None = None
    hands_over: Callable[[Any], Any] | None = None  # what makes a result that was made for the call JAX's
    # What launches calls like those that were made, by launch and alignments of pointers: from values, without views.
    repeats: dict[Any, Callable[[tuple[Any, ...]], bool] | None] = field(default_factory=dict)

    def run(
        self, arrays: Sequence[Any], values: Sequence[Any], described: Sequence[ArrayInfo], alpha: Any, beta: Any,
        result_pointer: int | None = None, captured: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Compute a call from what was read of its arrays; `result_pointer` is that of a result made for it.

        `captured` are the numbers that the epilogue captures.
        """
        try:
            alpha, beta = self.scale(alpha), self.scale(beta)
        except OverflowError:
            raise ArgumentError("alpha or beta is an integer that no float holds") from None
        arrangement, kernel, rows = self.arranged.arrangement, self.kernel, self.arranged.rows
        if arrangement is None or kernel is None:
            return
        starts = self.starts
        if result_pointer is None:
            result_pointer = values[starts[OUT]]
            for overlap in self.overlaps:
                if overlap.low < result_pointer - values[starts[overlap.place]] < overlap.high:
                    self._check_overlap(overlap, values[starts[overlap.place]], result_pointer)
        numbers: Sequence[Any] = [use.value(captured) for use in kernel.numbers] if kernel.numbers and not rows else ()
        for n, pick in enumerate(self._picks):
            if rows:
                numbers = [use.value((*captured, *rows[n])) for use in kernel.numbers]
            if pick is not None:
                pointers = (result_pointer, *pick(values))
            else:
                places = zip(self.uses, arrangement.offsets[n], strict=True)
                pointers = tuple([
                    (result_pointer if use.place == OUT else values[starts[use.place]]) + offset * use.dtype.bytes
                    for use, offset in places
                ])  # fmt: skip
            low = 0
            for pointer in pointers:
                low |= pointer
            key = n if not low & 15 else (n, *[ALIGNMENT[pointer & 15] for pointer in pointers])
            again = self.repeats.get(key)
            if again is not None:
                passed = (*pointers[:3], alpha, beta, *pointers[3:], *numbers)
                if self.make_workspace is not None:
                    workspace = self.make_workspace()  # kept until the launch is made
                    passed = (workspace[1], *passed)
                if again(passed):
                    continue
            device, views = self.arranged.inputs.of(A).device, []
            for (place, kind, placement, dtype, writable, index), pointer in zip(self.uses, pointers):  # noqa: B905
                owner, stream = arrays[place], None
                if index is not None:
                    owner, stream = described[index].owner, described[index].stream
                views.append(kind(pointer, placement.shape, placement.strides, dtype, device, writable, owner, stream))
            first, second = self.packings
            if first is not None and second is not None:
                views[1:3] = pack_both(first, second, views[1], views[2])
            elif first is not None:
                views[1] = first.pack(views[1])
            elif second is not None:
                views[2] = second.pack(views[2])
            arguments = (views[0], views[1], views[2], alpha, beta, kernel.plan, *views[3:], *numbers)
            if self.make_workspace is not None:
                arguments = (self._workspace(views[1]), *arguments)
            kernel.launch(*arguments)
            if (again is not None or key not in self.repeats) and not any(self.packings):
                self.repeats[key] = kernel.repeat(arguments)

    @cached_property
    def _picks(self) -> tuple[Callable[[Sequence[Any]], tuple[int, ...]] | None, ...]:
        """For each launch, what takes the pointers behind that of D out of a call's values; None where they move."""
        arrangement = self.arranged.arrangement
        assert arrangement is not None
        places = [use.place for use in self.uses]
        is_plain = places[0] == OUT and OUT not in places[1:]
        pick = itemgetter(*(self.starts[place] for place in places[1:])) if is_plain else None
        return tuple([None if any(offsets) else pick for offsets in arrangement.offsets])

    def _workspace(self, a: View) -> View:
        """Return memory for a launch, of the library of A; the work on it goes where that on A goes."""
        assert self.kernel is not None and self.kernel.workspace is not None and self.make_workspace is not None
        dtype, shape, strides = self.kernel.workspace
        memory, pointer = self.make_workspace()
        return type(a)(pointer, shape, strides, dtype, a.device, True, memory, a.stream)

    def _check_overlap(self, overlap: Overlap, pointer: int, result_pointer: int) -> None:
        if overlap.may_coincide and pointer == result_pointer:
            return
        inputs = self.arranged.inputs
        if share_memory(inputs.of(overlap.place), pointer, inputs.of(OUT), result_pointer):
            raise ArgumentError(
                f"out shares memory with {inputs.names[overlap.place]}, which is read while out is written",
                help="give out memory of its own; only c, bias or an array of the epilogue may be out itself",
            )


def plan_call(
    arranged: ArrangedProblem, arrays: Sequence[Any], starts: tuple[int, ...], candidate: Candidate | None = None
) -> CallPlan:
    """Choose a kernel and prepare all that calls of one kind share; `arrays` are those of the first such call.

    `candidate` is another than the one that is predicted to be fastest.
    """
    problem, inputs, arrangement = arranged.problem, arranged.inputs, arranged.arrangement
    adapters = [None if array is None else adapter_for(array) for array in arrays]
    first = adapters[A]
    assert first is not None
    result = inputs.of(OUT)
    adapters[OUT] = adapters[OUT] or adapter_of_results(first, result.device)
    make = maker_for(first.library, result.shape, result.dtype, result.device) if arrays[OUT] is None else None
    kernel: KernelLaunch | None = None
    make_workspace: Maker | None = None
    packings: tuple[Packing | None, Packing | None] = (None, None)
    if arrangement is not None:
        machine = machine_of(result.device)
        candidate = candidate or _choose(problem, machine, result.device)
        one_launch = replace(candidate.problem, batch=arrangement.d.shape[2])
        kernel = candidate.family.launch(one_launch, candidate.configuration, machine.arch)
        packings = _packings(arranged, arrangement, candidate, first.library)
        if kernel.workspace is not None:
            dtype, (rows, _, matrices_of), (row, _, _) = kernel.workspace
            make_workspace = maker_of(first.library, (matrices_of, rows, row), dtype, result.device)
    return CallPlan(
        arranged,
        starts,
        make,
        _uses(arranged, adapters),
        packings,
        () if arrays[OUT] is None else _overlaps(arranged),
        tuple(n for n, x in enumerate(arrays) if hasattr(x, "requires_grad")),
        _SCALES.get(problem.accumulator, float),
        kernel,
        make_workspace,
        handed_over if make is not None and first.library == "jax" else None,
    )


def _choose(problem: Problem, machine: Machine, device: Device) -> Candidate:
    """Return what was measured to be fastest, else what is predicted to be; on the simulator any that is light."""
    light = isinstance(device, str) and not is_forced()
    candidates = all_candidates(problem, machine, simulated_families() if light else None, lazily=True)
    won = winner_among(candidates, problem, device)
    if won is not None and not (won := won.looked_at(machine.arch)).rejection:
        return won
    return fastest(problem, machine, candidates)


def _uses(arranged: ArrangedProblem, adapters: Sequence[Adapter | None]) -> tuple[Use, ...]:
    arrangement = arranged.arrangement
    if arrangement is None:
        return ()
    placements = (arrangement.d, arrangement.a, arrangement.b, *arrangement.blocks, *arrangement.operands)
    described = [place for place, adapter in enumerate(adapters) if adapter is not None and adapter.fast is None]
    uses = []
    for place, placement in zip((*matrices(arrangement), *arranged.operands), placements, strict=True):
        adapter, info = adapters[place], arranged.inputs.of(place)
        assert adapter is not None
        index = described.index(place) if place in described else None
        uses.append(Use(place, view_class(adapter), placement, info.dtype, info.writable, index))
    return tuple(uses)


def _packings(
    arranged: ArrangedProblem, arrangement: Arrangement, candidate: Candidate, library: str
) -> tuple[Packing | None, Packing | None]:
    device = arranged.inputs.of(OUT).device
    early = candidate.family.begins_early(candidate.configuration)
    sides = zip(candidate.packed, (arranged.problem.a, arranged.problem.b), (arrangement.a, arrangement.b), strict=True)
    first, second = (
        packing_for(operand, placement, library, device, early) if is_packed else None
        for is_packed, operand, placement in sides
    )
    return first, second


def _overlaps(arranged: ArrangedProblem) -> tuple[Overlap, ...]:
    inputs = arranged.inputs
    result = inputs.of(OUT)
    found = []
    for place in dict.fromkeys((A, B, *arranged.operands)):
        info = inputs.of(place)
        is_read_in_place = place in arranged.operands[len(arranged.problem.blocks) :]
        strides = broadcast_strides(info.shape, info.strides, result.shape) if is_read_in_place else None
        found.append(overlap_of(place, info, strides, result))
    return tuple(found)


def _whole(value: Any) -> int:
    """Return a factor of int32 accumulators."""
    try:
        found = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"the accumulators are int32, and alpha and beta are whole numbers, got {value!r}",
            help="scale in an epilogue: epilogue=lambda acc: acc * 0.5, with out_dtype=tw.float32",
        ) from None
    if not int32.lowest <= found <= int32.highest:
        raise ArgumentError(f"the accumulators are int32, and alpha and beta too, got {found}")
    return found


_SCALES: dict[DType, Callable[[Any], Any]] = {float64: np.float64, int32: _whole}
