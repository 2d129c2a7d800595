"""Calls of one kind, decided once: which kernel runs, on which views, and what each call still has to check."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple  # Any: arrays of any library, and kernels

import numpy as np

from tilewright.arch import Arch, default_arch, gpu_like
from tilewright.dtypes import DType, float64, int32
from tilewright.errors import ArgumentError
from tilewright.kernels.arrangement import Placement, broadcast_strides
from tilewright.kernels.choice import Option, fastest, options
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import matmul_tiles
from tilewright.kernels.packing import Packing, packing_for
from tilewright.kernels.plan import plan_for
from tilewright.kernels.question import OUT, A, B, Question, matrices
from tilewright.kernels.results import Maker, maker_for
from tilewright.launch import Kernel
from tilewright.runtime import driver
from tilewright.runtime.addresses import Overlap, overlap_of, share_memory
from tilewright.runtime.arrays import Adapter, ArrayInfo, Device, adapter_for
from tilewright.runtime.views import View, view_class
from tilewright.trace.host_numbers import NumberUse


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
class Decision:
    """How calls of one kind run: calls that agree in all but pointers, alpha and beta.

    `starts` say where the pointer of each array stands among a call's values; `uses` are D, A, B and the operands, and
    `packings` what packs A and B where they cannot be read as they lie.
    `tensors` are the places of PyTorch's tensors.
    """

    question: Question
    starts: tuple[int, ...]
    make: Maker | None
    uses: tuple[Use, ...]
    packings: tuple[Packing | None, Packing | None]
    overlaps: tuple[Overlap, ...]
    tensors: tuple[int, ...]
    scale: Callable[[Any], Any]
    launcher: Any
    plan: Any
    numbers: tuple[NumberUse, ...] = ()  # what the kernel is given of those that the epilogue captures

    def run(
        self, arrays: Sequence[Any], values: Sequence[Any], described: Sequence[ArrayInfo], alpha: Any, beta: Any,
        result_pointer: int | None = None, captured: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Compute a call from what was read of its arrays; `result_pointer` is that of a result made for it.

        `captured` are the numbers that the epilogue captures.
        """
        alpha, beta = self.scale(alpha), self.scale(beta)
        arrangement = self.question.arrangement
        if arrangement is None:
            return
        starts = self.starts
        if result_pointer is None:
            result_pointer = values[starts[OUT]]
            for overlap in self.overlaps:
                if overlap.low < result_pointer - values[starts[overlap.place]] < overlap.high:
                    self._check_overlap(overlap, values[starts[overlap.place]], result_pointer)
        device = self.question.inputs.of(A).device
        numbers = [use.value(captured) for use in self.numbers]
        for offsets in arrangement.offsets:
            views = []
            for (place, kind, placement, dtype, writable, index), offset in zip(self.uses, offsets):  # noqa: B905
                pointer = result_pointer if place == OUT else values[starts[place]]
                owner, stream = arrays[place], None
                if index is not None:
                    owner, stream = described[index].owner, described[index].stream
                views.append(
                    kind(
                        pointer + offset * dtype.bytes, placement.shape, placement.strides, dtype, device, writable,
                        owner, stream,
                    )
                )  # fmt: skip
            for place, packing in enumerate(self.packings, 1):
                if packing is not None:
                    views[place] = packing.pack(views[place])
            self.launcher(views[0], views[1], views[2], alpha, beta, self.plan, *views[3:], *numbers)

    def _check_overlap(self, overlap: Overlap, pointer: int, result_pointer: int) -> None:
        if overlap.may_coincide and pointer == result_pointer:
            return
        inputs = self.question.inputs
        if share_memory(inputs.of(overlap.place), pointer, inputs.of(OUT), result_pointer):
            raise ArgumentError(
                f"out shares memory with {inputs.names[overlap.place]}, which is read while out is written",
                help="give out memory of its own; only c, bias or an array of the epilogue may be out itself",
            )


def decide(
    question: Question, arrays: Sequence[Any], starts: tuple[int, ...], option: Option | None = None
) -> Decision:
    """Choose a kernel and prepare all that calls of one kind share; `arrays` are those of the first such call.

    `option` is another candidate than the one that is predicted to be fastest.
    """
    problem, inputs = question.problem, question.inputs
    adapters = [None if array is None else adapter_for(array) for array in arrays]
    first = adapters[A]
    assert first is not None
    result = inputs.of(OUT)
    adapters[OUT] = adapters[OUT] or first
    make = maker_for(first.library, result.shape, result.dtype, result.device) if arrays[OUT] is None else None
    launcher, plan = None, None
    numbers: tuple[NumberUse, ...] = ()
    if question.arrangement is not None:
        machine = machine_of(result.device)
        option = option or fastest(problem, machine, options(problem, machine))
        launcher, plan = launcher_for(question, option, machine.arch)
        numbers = plan.epilogue.numbers
    return Decision(
        question,
        starts,
        make,
        _uses(question, adapters),
        _packings(question, first.library),
        () if arrays[OUT] is None else _overlaps(question),
        tuple(n for n, x in enumerate(arrays) if hasattr(x, "requires_grad")),
        _SCALES.get(problem.accumulator, float),
        launcher,
        plan,
        numbers,
    )


def launcher_for(question: Question, option: Option, arch: Arch) -> tuple[Any, Any]:
    """Return the kernel of a candidate with grid and block, and its plan.

    Raises `NeedsConstant` where the epilogue's function needs the value of a number that it captures.
    """
    assert question.arrangement is not None
    m, n, batch = question.arrangement.d.shape
    plan = plan_for(replace(question.problem, batch=batch), option.configuration, arch)
    tile_m, tile_n, _ = option.configuration.tile
    function = question.problem.epilogue
    if isinstance(function, ElementFunction):
        numbers = function.uses(question.problem.accumulator, question.problem.elements, arch)
        plan = replace(plan, epilogue=replace(plan.epilogue, numbers=numbers))
    kernel = _kernel(len(question.operands) + len(plan.epilogue.numbers))
    return kernel[-(-m // tile_m) * -(-n // tile_n) * batch, plan.threads], plan


@cache
def _kernel(further: int) -> Kernel:
    # One block a multiprocessor will do: left to itself the compiler spills registers to make room for more.
    return matmul_tiles.numbered(further).configure(min_blocks=1)


def _uses(question: Question, adapters: Sequence[Adapter | None]) -> tuple[Use, ...]:
    arrangement = question.arrangement
    if arrangement is None:
        return ()
    placements = (arrangement.d, arrangement.a, arrangement.b, *arrangement.operands)
    described = [place for place, adapter in enumerate(adapters) if adapter is not None and adapter.fast is None]
    uses = []
    for place, placement in zip((*matrices(arrangement), *question.operands), placements, strict=True):
        adapter, info = adapters[place], question.inputs.of(place)
        assert adapter is not None
        index = described.index(place) if place in described else None
        uses.append(Use(place, view_class(adapter), placement, info.dtype, info.writable, index))
    return tuple(uses)


def _packings(question: Question, library: str) -> tuple[Packing | None, Packing | None]:
    arrangement, device = question.arrangement, question.inputs.of(OUT).device
    if arrangement is None:
        return None, None
    first, second = (
        None if operand is None else packing_for(operand, placement, library, device)
        for operand, placement in zip(question.unpacked, (arrangement.a, arrangement.b), strict=True)
    )
    return first, second


def _overlaps(question: Question) -> tuple[Overlap, ...]:
    inputs = question.inputs
    result = inputs.of(OUT)
    found = []
    for place in (A, B, *question.operands):
        info = inputs.of(place)
        strides = broadcast_strides(info.shape, info.strides, result.shape) if place > OUT else None
        found.append(overlap_of(place, info, strides, result))
    return tuple(found)


def _whole(value: Any) -> int:
    """Return a factor of sums in int32."""
    try:
        found = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"the sums are int32, and alpha and beta are whole numbers, got {value!r}",
            help="scale in an epilogue: epilogue=lambda acc: acc * 0.5, with out_dtype=tw.float32",
        ) from None
    if not int32.lowest <= found <= int32.highest:
        raise ArgumentError(f"the sums are int32, and alpha and beta too, got {found}")
    return found


_SCALES: dict[DType, Callable[[Any], Any]] = {float64: np.float64, int32: _whole}
