"""A launch run again in other orders of its agents: what only they show, and results that differ among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.backends.sim.aliases import Reachable
from tilewright.backends.sim.findings import Collector, Fault, name_place
from tilewright.backends.sim.interleaving import Interleaving
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.backends.sim.values import Array
from tilewright.errors import CheckError
from tilewright.ir.core import Buffer, Kernel, Op, Space
from tilewright.ir.effects import Use

if TYPE_CHECKING:
    from tilewright.backends.sim.execute import Options

Launch = Callable[[Collector, "Interleaving | None"], None]
# What sums of floats in another order may differ by, in units of the largest result's last place.
_ROUNDING = 256


@dataclass
class _Output:
    """An array that the kernel writes: its elements, and what they held before the launch and after the first order."""

    elements: Array
    own: Array | None  # which of them are the array's, None: all
    before: Array
    storage: GlobalStorage | None
    name: str
    dtype: np.dtype[np.generic]
    first: Array | None = None

    def bits(self) -> Array:
        copied: Array = self.elements.copy()
        return copied

    def restore(self, bits: Array) -> None:
        if self.own is None:
            np.copyto(self.elements, bits)
        else:
            self.elements[self.own] = bits[self.own]


class Varied:
    """The further orders of one launch. Made before the launch, it keeps what the arrays hold."""

    def __init__(
        self, kernel: Kernel, collector: Collector, storages: Mapping[Buffer, Storage], addresses: Sequence[Reachable]
    ) -> None:
        self._collector, self._kernel = collector, kernel
        self._writers: dict[Buffer, Op] = {}
        self._sums_floats = False
        for op in kernel.body.walk():
            for use in op.uses:
                root = use.buffer.root
                if use.use.is_write and root.space is Space.GLOBAL:
                    self._writers.setdefault(root, op)
                    self._sums_floats |= use.use is Use.UPDATE and use.buffer.dtype.is_float
        self._outputs: list[_Output] = []
        for buffer in self._writers:
            storage = storages.get(buffer)
            if isinstance(storage, GlobalStorage):
                elements = storage.flat.view(f"u{storage.flat.itemsize}")
                kept = _Output(
                    elements, storage.present, elements.copy(), storage, buffer.name or "an array", storage.flat.dtype
                )
                self._outputs.append(kept)
        if any(buffer.is_pointed or buffer not in storages for buffer in self._writers):
            for each in addresses:
                if each.array.flags.writeable:
                    elements = each.array.view(f"u{each.array.itemsize}")
                    self._outputs.append(_Output(elements, None, elements.copy(), None, each.name, each.array.dtype))

    def run(self, options: Options, launch: Launch) -> list[str]:
        """Run the launch in the orders of the options; the results of the order without a seed stay in the arrays.

        What is found goes to the collector of the launch. Return what is worth saying besides.
        """
        is_right = not self._collector.has_errors
        notes: dict[str, int] = {}
        for output in self._outputs:
            output.first = output.bits()
        try:
            for seed in range(options.seed, options.seed + options.schedules):
                if options.progress is not None:
                    options.progress(seed - options.seed)
                for output in self._outputs:
                    output.restore(output.before)
                found = Collector(raise_errors=False)
                try:
                    launch(found, Interleaving(seed))
                except CheckError:
                    pass  # told by the collector
                else:
                    if is_right and not found.has_errors:
                        self._compare(seed, found, notes)
                self._collector.add_order(found, seed)
        finally:
            for output in self._outputs:
                assert output.first is not None
                output.restore(output.first)
        return [f"{what}, in {count} of {options.schedules} orders" for what, count in notes.items()]

    def _compare(self, seed: int, found: Collector, notes: dict[str, int]) -> None:
        for output in self._outputs:
            assert output.first is not None
            differ = output.elements != output.first
            if output.own is not None:
                differ = differ & output.own
            if not differ.any():
                continue
            dtype = output.dtype
            now, then = (bits[differ].view(dtype) for bits in (output.elements, output.first))
            if self._sums_floats and _is_rounding(now, then, output.first.view(dtype)):
                what = f"{self._kernel.name}: {output.name} differs by the rounding of atomic sums of floats"
                notes[what] = notes.get(what, 0) + 1
                continue
            place = int(np.flatnonzero(differ)[0])
            self._report(found, output, place, int(differ.sum()), now[0], then[0])

    def _report(
        self, found: Collector, output: _Output, place: int, count: int, now: np.generic, then: np.generic
    ) -> None:
        name, coordinate = f"{output.name}[{place}]", None
        buffer = None if output.storage is None else output.storage.buffer
        if output.storage is not None:
            name, coordinate = name_place(output.storage, place + output.storage.low)
        writer = next(iter(self._writers.values())) if buffer is None else self._writers[buffer]
        fault = Fault(
            writer,
            "order-dependent",
            f"the result depends on the order of agents: {name.rstrip(',')} is {now}, and {then} in the order without "
            "a seed",
            (0, 0, 0),
            None,
            output.name,
            place,
            coordinate,
            [f"{count} element{'s' if count > 1 else ''} of {output.name} differ{'s' if count == 1 else ''}"],
            "a GPU may take either order: let what is computed not depend on who comes first, or, where any of the "
            "results is right, ignore this warning",
            is_warning=True,
        )
        found.report(fault)


def _is_rounding(now: Array, then: Array, every: Array) -> bool:
    """Return whether floats differ by no more than sums in another order do."""
    if now.dtype.kind not in "fV" and "float" not in now.dtype.name:
        return False
    a, b = now.astype(np.float64), then.astype(np.float64)
    sizes = np.abs(every.astype(np.float64))
    largest = float(sizes[np.isfinite(sizes)].max(initial=0.0))
    bits = {2: 10, 4: 23, 8: 52}.get(now.dtype.itemsize, 3)
    if now.dtype.name == "bfloat16":
        bits = 7
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return bool((same | (np.abs(a - b) <= _ROUNDING * 2.0**-bits * largest)).all())
