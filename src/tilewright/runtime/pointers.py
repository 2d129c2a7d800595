"""Arrays of addresses: how a kernel takes any number of arrays of different shapes as one argument.

    tw.addresses([a, b, c])          an array of three uint64, on the device of a, b and c, which it keeps alive

A kernel reads an element of it and makes a tensor there: `tw.make_tensor(tw.pointer(xs[g], tw.float32), layout)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakSet

from tilewright.dtypes import uint64
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_all
from tilewright.pickling import Refused
from tilewright.runtime.arrays import Adapter, ArrayInfo, adapter_for, common_device, describe
from tilewright.runtime.options import shown
from tilewright.runtime.views import View, view_class


class Addresses(Refused):
    """The addresses of arrays, as an array of uint64 on their device; `arrays` keeps them alive."""

    _why_no_copy = (
        "it holds the addresses of arrays, which another process does not have",
        "pickle the arrays, and call tw.addresses(arrays) where they arrive",
    )
    __slots__ = ()
    arrays: tuple[Any, ...]  # Any: arrays of any library

    def __repr__(self) -> str:
        return f"<addresses of {len(self.arrays)} arrays on {self.device}>"  # type: ignore[attr-defined]  # of View


alive: WeakSet[Any] = (
    WeakSet()
)  # all that were made and are still held: the simulator looks addresses up in their arrays


@cache
def _class(adapter: Adapter) -> type[View]:
    """Return the class for arrays of one library: a launch goes to that library's current stream."""
    slots = {"__slots__": ("__weakref__", "arrays"), "__doc__": Addresses.__doc__}
    return type("Addresses", (Addresses, view_class(adapter)), slots)


def addresses(arrays: Sequence[Any]) -> View:  # Any: arrays of any library
    """Return the addresses of arrays as an array of uint64, to pass to a kernel; it keeps the arrays alive.

    The address is that of element (0, ..., 0). The arrays are on one device and may differ in shape and element type.

    >>> import numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def total(out, xs, sizes):
    ...     x = tw.make_tensor(tw.pointer(xs[tw.thread_idx.x], tw.float32), sizes[tw.thread_idx.x])
    ...     acc = tw.float32(0)
    ...     for i in range(x.size):
    ...         acc += x[i]
    ...     out[tw.thread_idx.x] = acc
    >>> xs, out = [np.ones(3, np.float32), np.ones(5, np.float32)], np.zeros(2, np.float32)
    >>> total[1, 2](out, tw.addresses(xs), np.array([3, 5], np.int32))
    >>> out
    array([3., 5.], dtype=float32)

    Raises `ArgumentError` for anything but a list of arrays, for an empty list, and for arrays on different devices.
    """
    import numpy as np

    if not isinstance(arrays, (list, tuple)) or not arrays:
        raise ArgumentError(f"tw.addresses: expected a list of at least one array, got {shown(arrays)}")
    infos = [_info(n, array) for n, array in enumerate(arrays)]
    device = common_device(infos, [f"arrays[{n}]" for n in range(len(infos))])
    held: Any = np.array([info.pointer for info in infos], np.uint64)
    if device == "cpu":
        pointer = held.__array_interface__["data"][0]
    else:
        from tilewright.runtime.memory import DeviceArray

        assert isinstance(device, int), device
        held = DeviceArray.from_numpy(held, ordinal=device)
        pointer = held.pointer
    adapter = adapter_for(arrays[0])
    assert adapter is not None, arrays[0]
    stream = next((info.stream for info in infos if info.stream is not None), None)
    made: Any = _class(adapter)(pointer, (len(infos),), (1,), uint64, device, False, held, stream)
    made.arrays = tuple(arrays)
    alive.add(made)
    return made  # type: ignore[no-any-return]


def _info(n: int, array: Any) -> ArrayInfo:
    info = describe(array, f"tw.addresses: arrays[{n}]")
    if info is None:
        raise ArgumentError(f"tw.addresses: arrays[{n}] is {shown(array)}, which is not an array")
    return info


def reached(infos: dict[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """Return the arrays whose addresses a launch's arguments hold, and those on the host that others hold, by name."""
    found: dict[str, ArrayInfo] = {}
    pending = [(name, info.owner) for name, info in infos.items() if isinstance(info.owner, Addresses)]
    given = {id(owner) for _, owner in pending}
    pending += [("other addresses", each) for each in list(alive) if id(each) not in given and each.device == "cpu"]
    seen: set[int] = set()
    while pending:
        name, owner = pending.pop(0)
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for n, array in enumerate(owner.arrays):
            info = _info(n, array)
            found[f"arrays[{n}] of {name}" + (f" ({len(seen)})" if name == "other addresses" else "")] = info
            if isinstance(info.owner, Addresses):
                pending.append((f"arrays[{n}] of {name}", info.owner))
    return found


hiding_all(globals(), ("addresses",))
