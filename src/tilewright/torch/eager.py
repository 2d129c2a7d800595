"""Say when an operator may be run at once, past PyTorch's dispatcher.

A call of an operator that is written in Python takes 35 microseconds through the dispatcher, 85 with gradients,
whatever the operator does. The dispatcher is needed where something is between the caller and the kernels: a tensor of
another kind (fake, functional, on "meta", a subclass, a negative view), a mode, a transform, autocast, a trace. All of
these show in the sets of keys by which the dispatcher itself goes.
"""

from __future__ import annotations

from typing import Any  # Any: what operators are given, and torch's sets of keys

import torch
from torch.autograd import forward_ad

_keys = torch._C._dispatch_keys
_included, _excluded = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
_any_alias = getattr(torch._C, "_any_output_is_alias_to_input_or_output", None)  # PyTorch's own, a third of the time

DEVICES = ("cpu", "cuda")  # that kernels run on
AT_ONCE, WITH_GRADIENTS = 1, 2

# What a thread has where nothing is between, in and out of inference mode.
_PLAIN_THREADS: set[tuple[int, int]] = set()
# The keys of ordinary tensors with memory, and those of others that were met.
_PLAIN: set[int] = set()
_OTHERS: set[int] = set()
# The types that the dispatcher takes as they are, by the schema's.
_SCALARS = {"int": int, "SymInt": int, "float": float, "bool": bool, "str": str, "ScalarType": torch.dtype}
_INTEGERS = ("List[int]", "List[SymInt]")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_TENSORS = (torch.Tensor, torch.nn.Parameter)  # others may have a say in what is done with them


def is_plain_thread() -> bool:
    """Say whether there is no mode, transform, trace, autocast, profiler or forward derivative in this thread."""
    if not _PLAIN_THREADS:
        _learn_threads()
    return (
        (_included().raw_repr(), _excluded().raw_repr()) in _PLAIN_THREADS
        and forward_ad._current_level < 0
        and not torch._C._len_torch_function_stack()
        and not torch._C._autograd._profiler_enabled()
    )


def _learn_threads() -> None:
    """Learn what a thread begins with: a new one, as this one may be in whatever mode."""
    import threading

    def look() -> None:
        for inference in (False, True):
            with torch.inference_mode(inference):
                _PLAIN_THREADS.add((_included().raw_repr(), _excluded().raw_repr()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether the dispatcher does no more with a tensor than find its device, where its elements are in memory."""
    keys = _keys(tensor).raw_repr()
    if keys in _PLAIN:
        return True
    if keys in _OTHERS or tensor.device.type not in DEVICES:
        return False
    for inference in (False, True):
        with torch.inference_mode(inference):
            _PLAIN.add(_keys(torch.empty(0, device=tensor.device)).raw_repr())
    if keys not in _PLAIN:
        _OTHERS.add(keys)
    return keys in _PLAIN


class Inputs:
    """What an operator takes, from its schema: which inputs are tensors, and of which types the others are."""

    def __init__(self, schema: Any) -> None:
        self._count = len(schema.arguments)
        self._tensors: list[int] = []
        self._scalars: list[tuple[int, tuple[type, ...]]] = []
        self._integers: list[int] = []
        self._numbers: list[int] = []  # of the scalars, those that are integers
        self.is_known: bool = not schema.is_mutable  # a call that writes its inputs tells autograd of it
        for place, argument in enumerate(schema.arguments):
            kind = str(argument.real_type)  # `type` calls an element type an int
            is_optional = kind.startswith("Optional[")
            inner = kind.removeprefix("Optional[").removesuffix("]") if is_optional else kind
            if inner == "Tensor":
                self._tensors.append(place)
            elif inner in _SCALARS:
                self._scalars.append((place, (_SCALARS[inner], *((type(None),) if is_optional else ()))))
                if _SCALARS[inner] is int:
                    self._numbers.append(place)
            elif inner in _INTEGERS:
                self._integers.append(place)
            else:
                self.is_known = False

    def look(self, args: tuple[Any, ...]) -> int:
        """Return `AT_ONCE` for inputs that the dispatcher would hand on as they are, `WITH_GRADIENTS`, or 0.

        It is 0 also where a tensor has no elements.
        """
        if len(args) != self._count or not self.is_known:
            return 0
        for place, kinds in self._scalars:
            if type(args[place]) not in kinds:
                return 0
        for place in self._numbers:
            if args[place] is not None and not _LEAST <= args[place] <= _MOST:
                return 0
        for place in self._integers:
            if type(args[place]) not in (list, tuple):
                return 0
            if not all(type(x) is int and _LEAST <= x <= _MOST for x in args[place]):
                return 0
        found = AT_ONCE
        for place in self._tensors:
            tensor = args[place]
            if tensor is None:
                continue
            if type(tensor) not in _TENSORS or not tensor.numel():
                return 0
            if _keys(tensor).raw_repr() not in _PLAIN and not is_plain(tensor):
                return 0
            if tensor.requires_grad and torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                found = WITH_GRADIENTS
        return found


def shares_memory(results: Any, args: tuple[Any, ...]) -> bool:
    """Say whether a result is an input or lies in its memory, which operators must not return."""
    found = (results,) if isinstance(results, torch.Tensor) else tuple(results or ())
    if _any_alias is not None:
        return bool(_any_alias(args, {}, found))
    given = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
    return any(x.untyped_storage()._cdata in given for x in found if isinstance(x, torch.Tensor))


def without_views(found: Any) -> Any:
    """Return results with tensors of their own in place of views, such as transposed ones, as torch's operators do.

    Autograd refuses to write to views that were made without gradients. Several results are a tuple or a list.
    """
    if isinstance(found, torch.Tensor):
        return found.detach() if found._is_view() or found.requires_grad else found
    if isinstance(found, (tuple, list)):
        return (list if isinstance(found, list) else tuple)(map(without_views, found))
    return found
