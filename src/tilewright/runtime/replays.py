"""What Python's launcher tells the compiled one, so that the next launch of the same kind is made there.

The table of a signature (`Calls`) finds what runs a call (`Form`) by what is read of the arguments: types, and of
arrays the element type, device, shape, strides and the alignment of the pointer. A launcher asks the table first
(`Replay`), finished functions have pointers at hand already (`Again`), which they read by such a table too (`Read`).
Each leaves some calls to Python, having launched nothing: one that was not met before, one while launches are observed
or after something that the kernel was traced with has changed, and one in which arrays share memory or a number does
not fit. Python's launcher does all of it, and says what is wrong. So nothing is decided in C but that a call is like an
earlier one.

A form belongs to what Python's launcher remembers of a call, and the table refers to it weakly: what is forgotten there
is not launched any more. The table of a signature that is dropped is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple  # Any: what is in the compiled launcher, and what was admitted

from tilewright.dtypes import int32
from tilewright.freezing import is_looked_up
from tilewright.runtime import compiled
from tilewright.runtime.arrays import StreamGetter, exchange_of
from tilewright.runtime.launch import LaunchConfig
from tilewright.runtime.plan import NOT_ASKED, ArgumentPlan, Number, Signature

Observers = dict[int, Any]  # by thread; see launch.py
Launch = Callable[[tuple[Any, ...]], bool]  # from the values of a reading; False where it has launched nothing

_MOST_ARGUMENTS = 64
_CALLS = "calls"  # of a signature's tables


class Readable(NamedTuple):
    """What the compiled launcher has to know of arguments.

    `arrays` are the types of the arrays, with how their library shows them to C, `steady` those of compile-time
    arguments that are known by their identity, as they do not change.
    """

    arrays: dict[type, Any]  # Any: a capsule of DLPack
    steady: tuple[type, ...]


def readable(plan: ArgumentPlan, args: tuple[Any, ...]) -> Readable | None:
    """Return what the compiled launcher has to know of a plan's arguments, None where it cannot read them.

    It reads arrays that their library shows to C, Python's own numbers, and compile-time arguments.
    """
    if plan.current_stream is None or len(args) != len(plan.roles):  # there is a structure among them
        return None
    arrays: dict[type, Any] = {}
    steady: list[type] = []
    for role, value in zip(plan.roles, args, strict=True):
        kind = type(value)
        if role.values == 0:
            steady += [kind] if is_looked_up(value) else []
        elif isinstance(role, Number):
            if kind not in (int, float, bool) or role.number.limits not in (None, int32):
                return None  # the range that it looks at is that of int32
        else:
            arrays[kind] = exchange_of(kind)
    return Readable(arrays, tuple(steady)) if arrays and None not in arrays.values() else None


def calls_of(signature: Signature, observers: Observers, captures: Any) -> Any:
    """Return the table of a signature, None while or where there is no compiled launcher.

    `observers` are told of launches, `captures` says what its kernel was traced with.
    """
    calls = signature.tables.get(_CALLS)
    if calls is not None:
        return calls
    library = compiled.launcher()
    if library is None or len(signature.names) > _MOST_ARGUMENTS:
        return None
    # No lock, which a fork might leave locked: whichever comes second, this or `close`, sees the other.
    calls = signature.tables.setdefault(_CALLS, _table(library, signature, observers, captures))
    if signature.is_dropped:
        calls.close()
    return calls


def _table(library: Any, signature: Signature, observers: Observers, captures: Any) -> Any:
    is_constant = bytes(name in signature.constexpr for name in signature.names)
    return library.Calls(observers, captures, is_constant)


def close(signature: Signature) -> None:
    """Launch nothing any more that was compiled for a signature."""
    signature.is_dropped = True
    calls = signature.tables.get(_CALLS)
    if calls is not None:
        calls.close()


def learn(
    launcher: Any, observers: Observers, plan: ArgumentPlan, ready: Any, args: tuple[Any, ...], values: tuple[Any, ...]
) -> Any:  # Any: a launcher, what it launched, what makes its launches
    """Remember what runs calls like one that a launcher made, and return what makes its launches from here on.

    `values` were read of the arguments.
    """
    known, config, stream = launcher._replay, launcher._config, launcher._stream
    if ready.form is False or not (stream is None or type(stream) is int):  # a framework's object may change
        return known
    calls = calls_of(plan.signature, observers, launcher.kernel.captures)
    if plan.compiled is NOT_ASKED:
        plan.compiled = readable(plan, args)
    if calls is None and compiled.is_settled():
        plan.compiled = None
    if calls is None or plan.compiled is None or plan.current_stream is None or config is None:
        return known
    form = ready.compiled(compiled.launcher(), plan.current_stream)
    if form is None or not calls.add(args, values, form, *plan.compiled):
        return known
    if known is not None and known.calls is calls and known.config is config:
        return known
    return compiled.launcher().Replay(calls, config, config.head, stream)


def again(calls: Any, ready: Any, config: LaunchConfig, stream_of: StreamGetter, python: Launch) -> Launch:
    """Return what launches such calls from their values as `python` does, itself where the compiled launcher cannot."""
    form = None if calls is None else ready.compiled(compiled.launcher(), stream_of)
    if form is None:
        return python
    made: Launch = compiled.launcher().Again(calls, config, config.head, form, python)
    return made


def quicken(plan: ArgumentPlan, args: tuple[Any, ...]) -> None:
    """Let arguments such as these be read by C, where it is loaded: `plan.read` gives the same readings in less time.

    It is called again while `plan.compiled` is `NOT_ASKED`.
    """
    library = compiled.loaded()
    if library is None and not compiled.is_settled():
        return
    known = None if library is None or len(args) > _MOST_ARGUMENTS else readable(plan, args)
    plan.compiled = known
    if known is not None:
        with contextlib.suppress(ValueError):  # a library that shows arrays in another way
            plan.read = library.Read(_table(library, plan.signature, {}, None), plan.read, *known)
