"""Calls of operators that C++ makes (`calls.cpp`), and which functions it may repeat without calling them.

The C++ knows the calls that were met before by what the dispatcher goes by, all numbers: it needs none of Python's
questions. It calls the operator's function. Where that does nothing but make empty tensors and launch kernels, which
follows from its code, its first call of a kind is watched, and later ones are its allocations and launches alone. What
tells kinds apart is all that such code can see: shapes, strides, element types, devices, alignments, whether two inputs
are one, numbers and texts by their values. The variables that it reads are compared at each call.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any  # Any: what operators are given, and the module in C++

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.dtypes import DType
from tilewright.freezing import is_looked_up
from tilewright.frontend.captures import captured_variables
from tilewright.frontend.contents import names_read
from tilewright.kernels.repeats import Script
from tilewright.launch import Kernel, observers
from tilewright.layout import ceil_div
from tilewright.runtime import compiled
from tilewright.runtime.arrays import adapter_for

_aten = torch.ops.aten
_ALLOCATE = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
_VIEW = (
    *(_aten.view.default, _aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.unsqueeze.default),
    *(_aten.squeeze.default, _aten.squeeze.dim, _aten.expand.default, _aten.detach.default, _aten.alias.default),
)
_words = str.split
# What code that is repeated may read of tensors, kernels, numbers and the modules below: it follows from the kind of a
# call, or the dispatcher sees it.
_ATTRIBUTES = _words("""
shape dtype device type index ndim dim size stride numel element_size itemsize nbytes is_contiguous is_cuda
is_floating_point empty empty_like empty_strided new_empty new_empty_strided view reshape flatten contiguous t T mT
transpose permute unsqueeze squeeze expand detach ceil_div prod ceil floor sqrt log2 inf bit_length
""")
_MODULES = ("torch", "tilewright", "math")
_FIXED = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, DType)
_BUILTINS = _words("""
abs all any bool divmod enumerate float int isinstance len list max min range reversed round sorted str sum tuple zip
Exception TypeError ValueError RuntimeError AssertionError NotImplementedError
""")
_PURE = (ceil_div, math.ceil, math.prod, torch.empty, torch.empty_like, torch.empty_strided)
# Code with one of these changes something that stays.
_CHANGES = _words("""
STORE_GLOBAL DELETE_GLOBAL STORE_NAME STORE_ATTR DELETE_ATTR STORE_SUBSCR DELETE_SUBSCR STORE_SLICE STORE_DEREF
IMPORT_NAME LOAD_BUILD_CLASS
""")
_MOST_RENEWALS = 16  # for changes of variables; from there on the function is called each time

Guard = tuple[Any, str, Any]  # a dict, cell or function, a name in it ("" for code), and what was there: ... is nothing


def _given() -> tuple[str, ...]:
    """Return what a compiler is told of PyTorch; the result is kept for this very one."""
    root, abi = Path(torch.__file__).parent, int(torch._C._GLIBCXX_USE_CXX11_ABI)
    version = f"{torch.__version__}.{torch.version.git_version}"
    return (
        *("-std=c++17", "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-DFOR_TORCH={version}", f"-I{root}/include"),
        *(f"-L{root}/lib", "-lc10", "-ltorch_cpu", "-ltorch_python"),
    )


EXTENSION = compiled.Extension(
    "tilewright_operators",
    "TILEWRIGHT_OPERATORS",
    "compiled calls of operators",
    "the first call of an operator on a GPU",
    ("torch/calls.cpp",),
    "C++",
    ("CXX", "c++", "g++", "clang++"),
    _given,
)


def library(args: Sequence[Any]) -> Any:
    """Return the module in C++ where it is loaded; a call with a tensor on a GPU begins to build it."""
    found = EXTENSION.loaded()
    if found is None and not EXTENSION.is_settled() and any(isinstance(x, torch.Tensor) and x.is_cuda for x in args):
        return EXTENSION.module()
    return found


def guards_of(function: Callable[..., Any]) -> list[Guard] | None:
    """Return what the meaning of a function hangs on beside its arguments; None if it may do more than is repeated."""
    guards: list[Guard] = []
    pending, seen = [function], set[Any]()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if type(current) is not types.FunctionType or not _is_plain(current):
            return None
        guards.append((current, "", current.__code__))
        guards.append((current, "defaults", ... if current.__defaults__ is None else current.__defaults__))
        hidden = (name for name in names_read(current.__code__).variables if name not in current.__globals__)
        guards += [(current.__globals__, name, ...) for name in hidden]  # builtins, until a variable hides them
        for name, value, holder in captured_variables(current):
            if type(value) is types.FunctionType and value not in _PURE:
                pending.append(value)
            elif not _is_fixed(value):
                return None
            guards.append((holder, name, value))
    return guards


def _is_plain(function: types.FunctionType) -> bool:
    """Say whether code reads what is known, and changes nothing."""
    names, globals_ = names_read(function.__code__), function.__globals__
    return not (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or _changes(function.__code__)
        or function.__code__.co_kwonlyargcount  # their defaults are a dict
        or not all(map(_is_fixed, function.__defaults__ or ()))
        or any(name not in globals_ and name not in _BUILTINS for name in names.variables)
        or any(name not in _ATTRIBUTES and not _is_type(name) for name in names.attributes)
    )


def _changes(code: types.CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(each.opname in _CHANGES for each in dis.get_instructions(code)) or any(map(_changes, inner))


def _is_type(name: str) -> bool:
    return isinstance(getattr(torch, name, None), (torch.dtype, torch.memory_format))


def _is_fixed(value: Any) -> bool:
    """Say whether an object stays as it is, or says by itself when it has changed, as kernels do."""
    if isinstance(value, types.ModuleType):
        return value.__name__ in _MODULES
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    is_ours = type(value).__module__.startswith("tilewright.") and is_looked_up(value)
    return is_ours or type(value) in _FIXED or isinstance(value, Kernel) or any(value is each for each in _PURE)


class _Allocations(TorchDispatchMode):  # type: ignore[misc]  # torch's types are not looked into
    """Sees what a function does by PyTorch: which tensors it makes, and whether that is all."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.is_all = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found, device = function(*args, **(kwargs or {})), (kwargs or {}).get("device")
        if function in _ALLOCATE and (device is None or device.type == "cpu" or device.index is not None):
            self.made.append(found)
        elif function not in _VIEW:
            self.is_all = False
        return found


def watched(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Call a function; return its result, and its plan: what it made, which of that are results, and its launches.

    The plan is None where the call cannot be repeated, and False where that cannot be said now.
    """
    thread, script, mode = threading.get_ident(), Script(), _Allocations()
    if observers or compiled.launcher() is None:
        return function(*args), None if compiled.is_settled() and not observers else False
    observers[thread] = script
    try:
        with mode:
            result = function(*args)
    finally:
        del observers[thread]
    return result, _plan(result, args, script, mode) if mode.is_all and not script.reads_elements else None


def _plan(result: Any, args: tuple[Any, ...], script: Script, mode: _Allocations) -> Any:
    """Return (tensors made, places of results among them, launches)."""
    given = [x for x in args if isinstance(x, torch.Tensor)]
    places: dict[int, int] = {}
    for n, x in enumerate((*given, *mode.made)):
        if places.setdefault(x.data_ptr(), n) != n and n >= len(given):
            return None  # without elements
    # Not by identity: under a mode, PyTorch's factories hand out another tensor with the same memory.
    kinds = [_kind(x) for x in mode.made]
    parts = result if type(result) is tuple else (result,)
    results = [kinds.index(kind) if (kind := _kind(x)) in kinds else -1 for x in parts]
    launches = [_launch(launcher, values, places) for launcher, values in script.launches]
    is_here = all(x.device == given[0].device and not x.storage_offset() for x in (*given[:1], *mode.made))
    if not is_here or -1 in results or None in launches or len(set(results)) != len(results):
        return None
    return mode.made, results, launches


def _kind(x: Any) -> tuple[Any, ...]:
    """Return what two tensors agree in that are one array."""
    return (x.data_ptr(), x.shape, x.stride(), x.dtype, x.requires_grad) if type(x) is torch.Tensor else ()


def _launch(launcher: Any, values: tuple[Any, ...], places: dict[int, int]) -> Any:
    """Return (what launches again, the places of its pointers, its numbers); None where it has to be looked at."""
    again = launcher.repeat(values)
    if not isinstance(again, compiled.launcher().Again):
        return None
    passed = [(value, adapter_for(leaf) is not None) for value, leaf in launcher.passed(values)]
    found = [places.get(value) if is_array else -1 for value, is_array in passed]
    return None if None in found else (again, found, tuple(value for value, _ in passed))


def calls_of(library: Any, operator: Any, gradient: Any, renewals: int) -> Any:
    """Return what makes an operator's calls, and what adds kinds of them; `gradient` is its `Backward`."""
    function = operator.__wrapped__
    guards = guards_of(function) if renewals <= _MOST_RENEWALS else None
    may_be_none = gradient is not None and gradient.may_be_none
    bits = guards is not None, not operator._is_ours, may_be_none
    return library.calls(
        *(function, functools.partial(watched, function), None if gradient is None else gradient.finish),
        *(operator._places, operator._defaults, observers, [] if gradient is None else [n for _, n in gradient.kept]),
        *(sum(bit << n for n, bit in enumerate(bits)), guards or [], -1 if operator._is_list else operator._results),
    )
