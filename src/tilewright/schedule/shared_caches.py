"""Caches in shared memory: filled by all threads of the block, by cp.async where the target has it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tilewright.atoms import CopyAtom, CpAsync, UniversalCopy
from tilewright.dtypes import bool_
from tilewright.lang.carry import rename
from tilewright.lang.copying import copy
from tilewright.lang.fragments import convert_fragment
from tilewright.lang.memory import registers, shared
from tilewright.lang.special import linear_thread
from tilewright.lang.tracer import current
from tilewright.layout import ComposedLayout, Layout, append, composition, select
from tilewright.schedule.filling import Filling, divisor_of, divisor_of_affine, static_layout
from tilewright.schedule.matrix_layouts import matrix_layout
from tilewright.schedule.sharing import Share, share_out
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.schedule.caches import Cache
    from tilewright.schedule.emission import Emission

_VECTOR = 16  # bytes: the widest access


class SharedCache(Filling):
    """A cache in shared memory, of one or more buffers."""

    def __init__(self, emission: Emission, cache: Cache) -> None:
        super().__init__(emission, cache)
        self.tensor = shared(cache.element_type, self.layout)
        rename(cache.name, self.tensor)

    @cached_property
    def layout(self) -> Layout | ComposedLayout:
        """The layout of all buffers: the modes of the array, then the number of the buffer."""
        cache, stages = self.cache, self.cache.stages
        if cache.layout is None and self.emission.plan.feeds_matrix_instructions(cache):
            found = matrix_layout(cache, self.region, self.order, stages)
            if found is not None:
                return found
        layout = static_layout(cache, self.region)
        return append(layout, Layout(stages, layout.cosize))  # type: ignore[no-any-return]  # a layout of a layout

    def buffer(self, stage: Any) -> Tensor:  # Any: a number of host or device
        """Return one of the buffers."""
        found: Tensor = self.tensor[(None,) * len(self.region.shape) + (stage,)]
        return found

    @cached_property
    def width(self) -> int:
        """The elements that a thread moves at once: as many as alignment, layouts and edges allow."""
        cache, assumed = self.cache, self.emission
        fast = self.order[0]
        source = self.source_view()
        strides = source.layout.stride if isinstance(source.layout.stride, tuple) else (source.layout.stride,)
        inner = self._inner_stride(fast)
        limit = _VECTOR // max(cache.array.element_type.bytes, cache.element_type.bytes)
        if not isinstance(cache.vectorize, bool):
            limit = min(limit, cache.vectorize)
        if cache.vectorize is False or strides[fast] != 1 or inner != 1:
            return 1
        width = max(limit, 1)
        extent = cache.array.shape[fast]
        fits = [self.region.shape[fast]]
        if fast in self.guards:
            fits.append(divisor_of(extent if isinstance(extent, int) else assumed.values[extent]))
        fits += [divisor_of(step) for mode, step in enumerate(strides) if mode != fast]
        fits.append(divisor_of_affine(assumed, self.region.origin[fast]))
        aligned = source.engine.buffer.alignment // cache.array.element_type.bytes
        while width > 1 and any(x % width for x in (*fits, aligned)):
            width //= 2
        return width

    def _inner_stride(self, fast: int) -> int:
        """Return how far apart in shared memory two neighbours along a mode lie."""
        if isinstance(self.layout, ComposedLayout):
            return 1  # a swizzle leaves the elements of a vector side by side
        found = self.layout[fast].stride
        return found if isinstance(found, int) else 0

    @cached_property
    def share(self) -> Share:
        """Which vectors each thread takes."""
        return share_out(self.region.size, self.emission.threads, self.width, self.cache.strategy)

    @cached_property
    def atom(self) -> CopyAtom:
        """What moves a vector: cp.async where it can."""
        bits = self.width * self.cache.array.element_type.bits
        same = self.cache.element_type is self.cache.array.element_type
        is_async = current("a cache").arch.has_cp_async and same and bits in (32, 64, 128)
        if is_async and not self.cache.through_registers:
            return CpAsync(bits, cache="global" if bits == 128 else "always")
        return UniversalCopy(bits)

    @property
    def is_asynchronous(self) -> bool:
        return self.atom.kind == "cp.async"

    def part(self, tensor: Tensor) -> Tensor:
        """Return the elements of the region that the thread moves: (element of a vector, vector)."""
        dealt = tensor.map_layout(lambda layout: composition(_ordered(layout, self.order), self.share.layout))
        found: Tensor = dealt[(linear_thread() if self.share.threads > 1 else 0, None)]
        return found

    def places(self) -> list[tuple[Any, ...]]:  # Any: numbers of host or device
        """Return where the first element of each of the thread's vectors stands in the region."""
        share = self.share
        thread = linear_thread() if share.threads != 1 else 0
        found = []
        for vector in range(share.vectors):
            rest: Any = thread * share.by_thread + vector * share.by_vector
            place: list[Any] = [0] * len(self.region.shape)
            for n, mode in enumerate(self.order):
                extent = self.region.shape[mode]
                is_last = n == len(self.order) - 1
                place[mode] = rest if is_last else rest % extent
                rest = 0 if is_last else rest // extent
            found.append(tuple(place))
        return found

    def guard(self, when: Any) -> Any:  # Any: a condition of host or device; a condition, or a tensor of them
        """Return what says for each vector of the thread whether it is there: None where all are."""
        if not self.guards:
            return None if when is True else when
        held = registers(bool_, Layout(self.share.vectors))
        for vector, place in enumerate(self.places()):
            inside = self.inside(place)
            held[vector] = inside if when is True else inside & when
        return Tensor(held.engine, Layout((self.width, self.share.vectors), (0, 1)))

    def fill(self, stage: Any = 0, when: Any = True) -> None:  # Any: numbers and conditions of host or device
        """Begin to copy the region into a buffer, zeros where the array has ended or `when` does not hold."""
        target = self.part(self.buffer(stage))
        if self.cache.element_type is self.cache.array.element_type:
            self._taking(lambda: copy(self.atom, self.part(self.source_view()), target, pred=self.guard(when)))
            return
        self._taking(lambda: copy(self._converted(self.fetch(when)), target))

    def fetch(self, when: Any = True) -> Tensor:  # Any: a condition of host or device
        """Read the thread's part of the region into registers."""
        held = registers(self.cache.array.element_type, Layout((self.width, self.share.vectors)))
        copy(UniversalCopy(self.atom.bits or 0), self.part(self.source_view()), held, pred=self.guard(when))
        return held

    def put(self, held: Tensor, stage: Any = 0) -> None:  # Any: a number of host or device
        """Write what `fetch` has read to a buffer."""
        self._taking(lambda: copy(self._converted(held), self.part(self.buffer(stage))))

    def _converted(self, held: Tensor) -> Tensor:
        if held.dtype is self.cache.element_type:
            return held
        result = registers(self.cache.element_type, held.layout)
        convert_fragment(held, result, self.cache.element_type)
        return result

    def flush(self) -> None:
        """Write the region back as far as the array reaches, by all threads."""
        target = self.part(self.source_view())

        def write() -> None:
            held = registers(self.cache.element_type, Layout((self.width, self.share.vectors)))
            copy(self.part(self.buffer(0)), held)
            result = held
            if target.dtype is not held.dtype:
                result = registers(target.dtype, held.layout)
                convert_fragment(held, result, target.dtype)
            copy(UniversalCopy(self.width * target.dtype.bits), result, target, pred=self.guard(True))

        self._taking(write)

    def _taking(self, body: Any) -> None:  # Any: a function without result
        """Emit something for the threads that take part."""
        all_take = self.share.threads == self.emission.threads
        self.emission.choose(True if all_take else linear_thread() < self.share.threads, body)


def _ordered(layout: Layout | ComposedLayout, order: tuple[int, ...]) -> Any:  # Any: a layout of the same kind
    return select(layout, *order) if len(order) > 1 else layout
