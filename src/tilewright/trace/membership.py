"""`x in container` where a device value is looked for, or is among the items: each item is compared.

Python would look a device value up by its identity, and find nothing.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping, ValuesView
from functools import partial
from typing import Any

from tilewright.arguments import given
from tilewright.errors import LanguageError
from tilewright.tensors import Tensor
from tilewright.trace.branches import or_
from tilewright.trace.control import DeviceRange
from tilewright.trace.scalar import Scalar

_COMPARED = (tuple, list, set, frozenset, Mapping, KeysView, ValuesView)


def contains(item: Any, container: Any) -> Any:
    """Return `item in container`: a device bool where it takes a device value to know.

    Raises `LanguageError` for a device value in a container whose items are not known one by one.
    """
    if isinstance(container, (DeviceRange, range)) and isinstance(item, Scalar):
        span = (
            container
            if isinstance(container, DeviceRange)
            else DeviceRange(container.start, container.stop, container.step)
        )
        return span.contains(item)
    holds = _holds_device_value(item)
    if not isinstance(container, _COMPARED):
        as_list = getattr(container, "tolist", None) if holds else None  # an array of NumPy
        if holds and as_list is None:
            raise LanguageError(
                f"a device value is looked for in {given(container)}, whose items cannot be compared one by one",
                help="write the items as a tuple, or loop over them",
            )
        if as_list is None:
            return item in container
        container = container.ravel().tolist() if hasattr(container, "ravel") else as_list()
    if not holds and isinstance(container, (set, frozenset, Mapping, KeysView)):
        return item in container  # no device value can be among these
    held: Any = False
    for candidate in container:
        held = or_(held, partial(_equal, item, candidate))
    return held


def _holds_device_value(item: Any) -> bool:
    return isinstance(item, Scalar) or (type(item) is tuple and any(map(_holds_device_value, item)))


def _equal(a: Any, b: Any) -> Any:
    if a is b:
        return True
    equal = a == b
    return bool(equal) if isinstance(equal, Tensor) else equal  # whose truth is refused
