"""What the text of a kernel means: the same text, run by Python, one thread after the other from barrier to barrier.

`tw` in the text is replaced by `Namespace`, whose scalars are `Number` and whose tensors are host tensors. A call that
threads carry out together is a request that the thread yields (see threads.py). Copies happen at once, which a kernel
that waits and synchronises where it has to cannot tell from later. Layouts and partitions are the library's own: they
have an oracle of their own, and here it is copying and computing through them that is compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import numpy as np
from tests.conformance.test_mathematics import FUNCTIONS, TWO
from tests.fuzz.numbers import Number, arithmetic, fused, made, mathematics, transformed, typed

import tilewright as tw

WARP = 32
TYPES = (
    tw.bool_, tw.int8, tw.int16, tw.int32, tw.int64, tw.uint8, tw.uint16, tw.uint32, tw.uint64, tw.float16, tw.bfloat16,
    tw.float32, tw.float64,
)  # fmt: skip


class Type:
    """An element type in the text: `tw.int8(x)` converts, and it names the type of memory."""

    def __init__(self, dtype: tw.DType) -> None:
        self.dtype = dtype

    def __call__(self, x: Any) -> Number:
        return typed(x, self.dtype)


def element_type(x: Any) -> tw.DType:
    found: tw.DType = x.dtype if isinstance(x, Type) else x
    return found


class View:
    """A tensor in the text: a host tensor that takes and gives numbers with a type; `is_global` says where it lies."""

    def __init__(self, tensor: tw.Tensor, is_global: bool) -> None:
        self.tensor = tensor
        self.is_global = is_global

    @property
    def dtype(self) -> tw.DType:
        return self.tensor.dtype

    @property
    def shape(self) -> Any:
        return self.tensor.shape

    @property
    def size(self) -> int:
        count = self.tensor.size
        assert isinstance(count, int)
        return count

    @property
    def T(self) -> View:
        return View(self.tensor.T, self.is_global)

    def __getitem__(self, coord: Any) -> Any:
        found = self.tensor[plain(coord)]
        if isinstance(found, tw.Tensor):
            return View(found, self.is_global)
        if isinstance(found, tuple):
            return tuple(Number(tw.int32, int(x)) for x in found)
        return made(self.dtype, found)

    def __setitem__(self, coord: Any, value: Any) -> None:
        part = self if coord is Ellipsis else self.tensor[plain(coord)]
        if not isinstance(part, (tw.Tensor, View)):
            self.tensor[plain(coord)] = typed(value, self.dtype).value
            return
        part = part if isinstance(part, View) else View(part, self.is_global)
        values = list(value.items()) if isinstance(value, View) else [value] * part.size
        for k, x in enumerate(values):
            part[k] = x

    def items(self) -> Iterator[Number]:
        """Return the elements, the first mode fastest."""
        for k in range(self.size):
            yield self[k]

    def to(self, dtype: Any) -> View:
        return elementwise(lambda x: x.to(dtype), self)

    def reduce(self, op: str, init: Any = None) -> Number:
        """Combine the elements in the documented order: four, two or one equal runs, and then the runs."""
        found = combine_runs(op, list(self.items()))
        return found if init is None else by_name(op, init, found)


def elementwise(function: Callable[..., Any], *operands: Any) -> Any:
    """Return what a function of numbers gives for each element, where an operand is a tensor; else for the numbers."""
    sizes = {x.size for x in operands if isinstance(x, View)}
    if not sizes:
        return function(*operands)
    assert len(sizes) == 1, operands
    size = sizes.pop()
    found = [function(*(x[k] if isinstance(x, View) else x for x in operands)) for k in range(size)]
    made = memory(found[0].dtype, size)
    for k, x in enumerate(found):
        made[k] = x
    return made


def _lift(name: str) -> Callable[..., Any]:
    def method(*operands: Any) -> Any:
        return elementwise(getattr(operator, name), *operands)

    return method


def _lift_reflected(name: str) -> Callable[..., Any]:
    def method(view: View, other: Any) -> Any:
        return elementwise(lambda a, b: getattr(operator, name)(b, a), view, other)

    return method


def _lift_in_place(name: str) -> Callable[..., Any]:
    def method(view: View, other: Any) -> View:
        view[...] = elementwise(getattr(operator, name), view, other)
        return view

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    _bare = _name.rstrip("_")
    setattr(View, f"__{_bare}__", _lift(_name))
    setattr(View, f"__r{_bare}__", _lift_reflected(_name))
    setattr(View, f"__i{_bare}__", _lift_in_place(_name))
for _name in ("neg", "pos", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(View, f"__{_name}__", _lift(_name))


def by_name(op: Any, a: Any, b: Any) -> Number:
    """Combine two values by the name of an operation, or by a function."""
    if not isinstance(op, str):
        return op(a, b)  # type: ignore[no-any-return]
    if op in ("and", "or", "xor"):
        return {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[op](a, b)  # type: ignore[no-any-return]
    return arithmetic(op, a, b)


def combine_runs(op: Any, values: list[Number]) -> Number:
    parts = next(parts for parts in (4, 2, 1) if parts == 1 or (len(values) % parts == 0 and len(values) // parts > 1))
    length = len(values) // parts
    runs = [reduce(partial(by_name, op), values[k * length : (k + 1) * length]) for k in range(parts)]
    while len(runs) > 1:
        runs = [by_name(op, runs[k], runs[k + 1]) for k in range(0, len(runs), 2)]
    return runs[0]


def plain(x: Any) -> Any:
    """Return indices and views as the host's integers and tensors."""
    if isinstance(x, slice):
        return slice(plain(x.start), plain(x.stop), plain(x.step))
    if isinstance(x, Number):
        return int(x)
    if isinstance(x, View):
        return x.tensor
    return tuple(plain(v) for v in x) if isinstance(x, tuple) else x


def on_host(function: Callable[..., tw.Tensor]) -> Callable[..., View]:
    """Return a function of tensors as one of views; what it does is the layout algebra's."""

    def on_views(*arguments: Any) -> View:
        is_global = any(a.is_global for a in arguments if isinstance(a, View))
        return View(function(*(plain(a) for a in arguments)), is_global)

    return on_views


def memory(dtype: tw.DType, layout: Any) -> View:
    """Return memory of a thread or block, zeros at first: a kernel without faults does not see them."""
    given = layout if isinstance(layout, (tw.Layout, tw.ComposedLayout)) else tw.Layout(layout)
    return View(tw.make_tensor(np.zeros(tw.cosize(given), dtype.numpy), given), is_global=False)


def counted(*bounds: Any) -> Iterator[Number]:
    """Count as `range` does on the device: in int32."""
    yield from (Number(tw.int32, k) for k in range(*(int(b) for b in bounds)))


class Axes:
    """tw.thread_idx and its like."""

    def __init__(self, x: int, y: int = 0, z: int = 0) -> None:
        self.x, self.y, self.z = (Number(tw.int32, n) for n in (x, y, z))


class Slice:
    """One thread's part of a tiled copy."""

    def __init__(self, part: Any) -> None:
        self.partition_S, self.partition_D = on_host(part.partition_S), on_host(part.partition_D)


class Copier:
    """A tiled copy in the text."""

    def __init__(self, tiled: tw.TiledCopy) -> None:
        self.get_slice = lambda thread: Slice(tiled.get_slice(int(thread)))


class Pipeline:
    """A ring of stages; what it waits for is there, and the barrier in it is a request (see threads.py)."""

    def __init__(self, stages: int) -> None:
        self.stages, self.ahead = stages, stages - 1

    def commit(self) -> None:
        return

    def read_stage(self, k: Any) -> Any:
        return k % self.stages

    def write_stage(self, k: Any) -> Any:
        return (k + self.ahead) % self.stages


class MBarrier:
    """Barriers in shared memory, each of whose phases is over after `count` arrivals."""

    def __init__(self, count: int, stages: int = 1) -> None:
        self.stages = [self] if stages == 1 else [MBarrier(count) for _ in range(stages)]
        self.count, self.arrived = count, 0

    def __getitem__(self, stage: Any) -> MBarrier:
        return self.stages[int(stage)]

    def arrive(self) -> None:
        self.arrived += 1

    def is_over(self, parity: int) -> bool:
        """Say whether the phase of this parity is over: it is not the one under way."""
        return self.arrived // self.count % 2 != parity


class Namespace:
    """`tw` as the text sees it. `block`, `thread` and `shared_memory` are those of who runs just now."""

    Layout, ComposedLayout, Swizzle, atoms = tw.Layout, tw.ComposedLayout, tw.Swizzle, tw.atoms
    local_tile = staticmethod(on_host(tw.local_tile))
    local_partition = staticmethod(on_host(tw.local_partition))
    identity_tensor = staticmethod(on_host(tw.identity_tensor))
    pipeline = Pipeline
    maximum = staticmethod(lambda a, b: elementwise(partial(arithmetic, "max"), a, b))
    minimum = staticmethod(lambda a, b: elementwise(partial(arithmetic, "min"), a, b))
    fmod = staticmethod(lambda a, b: arithmetic("fmod", a, b))
    copysign = staticmethod(lambda a, b: arithmetic("copysign", a, b))
    abs = staticmethod(abs)
    fma = staticmethod(fused)

    def __init__(self, grid: int, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.block_dim, self.grid_dim = Axes(*shape), Axes(grid, 1, 1)
        for name in ("sqrt", "floor", "ceil", "trunc", "round"):
            setattr(self, name, lambda x, name=name: elementwise(partial(transformed, name), x))
        for function in (*FUNCTIONS, *TWO):
            setattr(self, function.name, lambda *x, function=function: mathematics(function.special, *x))
        for dtype in TYPES:
            setattr(self, "bool_" if dtype is tw.bool_ else dtype.name, Type(dtype))

    def begin(self, block: int, threads: int) -> None:
        self.block_idx = Axes(block)
        self._shared: list[Any] = []
        self._made = [0] * threads  # how many shared tensors each thread has made
        self._gathered: list[dict[int, Any]] = []
        self._collectives = [0] * -(-threads // WARP)  # how many each warp has come by

    def gathered(self, warp: int) -> dict[int, Any]:
        """Return what threads bring to the collective that this warp comes by, by thread."""
        number = self._collectives[warp]
        self._collectives[warp] += 1
        if number == len(self._gathered):
            self._gathered.append({})
        return self._gathered[number]

    def enter(self, thread: int) -> None:
        x, y, _ = self.shape
        self.thread, self.thread_idx = thread, Axes(thread % x, thread // x % y, thread // (x * y))

    @staticmethod
    def kernel(function: Any) -> Any:
        return function

    function = kernel

    def lane_id(self) -> Number:
        return Number(tw.int32, self.thread % WARP)

    def warp_id(self) -> Number:
        return Number(tw.int32, self.thread // WARP)

    def range(self, *bounds: Any, unroll: object = None) -> Iterator[Number]:
        return counted(*bounds)

    @staticmethod
    def static_range(*bounds: int) -> Any:
        return range(*bounds)

    @staticmethod
    def size(x: Any) -> int:
        return x.size if isinstance(x, View) else int(tw.size(x))  # type: ignore[arg-type]

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return elementwise(lambda c, x, y: x if c else y, condition, a, b)

    @staticmethod
    def isnan(x: Number) -> Number:
        return Number(tw.bool_, bool(np.isnan(x.value)))

    @staticmethod
    def isinf(x: Number) -> Number:
        return Number(tw.bool_, bool(np.isinf(x.value)))

    @staticmethod
    def isfinite(x: Number) -> Number:
        return Number(tw.bool_, bool(np.isfinite(x.value)))

    @staticmethod
    def popcount(x: Number) -> Number:
        return Number(tw.int32, bin(x.value & ((1 << x.dtype.bits) - 1)).count("1"))

    @staticmethod
    def clz(x: Number) -> Number:
        return Number(tw.int32, x.dtype.bits - (x.value & ((1 << x.dtype.bits) - 1)).bit_length())

    # --- memory ---

    def registers(self, dtype: Any, layout: Any) -> View:
        return memory(element_type(dtype), layout)

    def shared(self, dtype: Any, layout: Any) -> View:
        """Return the block's tensor: made by the first thread that comes here, found by the others."""
        made: View = self._of_block(lambda: memory(element_type(dtype), layout))
        return made

    def mbarrier(self, count: int, stages: int = 1) -> MBarrier:
        made: MBarrier = self._of_block(lambda: MBarrier(count, stages))
        return made

    def _of_block(self, make: Callable[[], Any]) -> Any:
        number = self._made[self.thread]
        self._made[self.thread] += 1
        if number == len(self._shared):
            self._shared.append(make())
        return self._shared[number]

    def fragment_like(self, view: View) -> View:
        return memory(view.dtype, view.shape)

    @staticmethod
    def make_tiled_copy(*arguments: Any) -> Copier:
        return Copier(tw.make_tiled_copy(*arguments))

    @staticmethod
    def fill(view: View, value: Any) -> None:
        for k in range(view.size):
            view[k] = value

    def clear(self, view: View) -> None:
        self.fill(view, 0)

    @staticmethod
    def copy(*arguments: Any, pred: Any = None) -> None:
        src, dst = arguments[-2:]
        for k in range(src.size):
            if pred is None or (pred[k] if isinstance(pred, View) else pred):
                dst[k] = src[k]
            elif not dst.is_global:
                dst[k] = 0

    @staticmethod
    def cp_async_commit() -> None:
        return

    @staticmethod
    def cp_async_wait(pending: int | None = None) -> None:
        return

    @staticmethod
    def _atomic(kind: str, view: View, coord: Any, value: Any) -> Number:
        old = view[coord]
        view[coord] = arithmetic(kind, old, typed(value, view.dtype))
        return old  # type: ignore[no-any-return]

    def atomic_add(self, view: View, coord: Any, value: Any) -> Number:
        return self._atomic("add", view, coord, value)

    def atomic_max(self, view: View, coord: Any, value: Any) -> Number:
        return self._atomic("max", view, coord, value)

    def atomic_min(self, view: View, coord: Any, value: Any) -> Number:
        return self._atomic("min", view, coord, value)
