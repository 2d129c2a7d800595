"""Calls of finished functions that are repeated: launched from pointers, without looking at the arrays anew.

To check the arrays of a softmax, to see them as rows and to choose a launch takes 30 microseconds. What comes of it
depends on shapes, strides, element types, alignments and options alone, so the first call of a kind is watched, and
later ones take from it which kernels run and which pointer goes where. Whatever cannot be said like that is computed as
it always was: on the simulator, for arrays of several libraries, where elements are read on the host.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast  # Any: arrays of any library

from tilewright.errors import ArgumentError
from tilewright.frames import hide_frames, is_entry
from tilewright.launch import Launcher, observers
from tilewright.runtime.addresses import address_range, meeting_distances
from tilewright.runtime.arrays import ArrayInfo, adapter_for
from tilewright.runtime.plan import NOT_ASKED, Signature
from tilewright.runtime.replays import quicken
from tilewright.runtime.views import View

F = TypeVar("F", bound=Callable[..., Any])
Maker = Callable[[], tuple[Any, int]]
Repeat = Callable[[Sequence[Any], tuple[Any, ...]], Any]  # (arguments, pointers) -> the result
Give = Callable[[Sequence[Any], Sequence[tuple[Any, int]]], Any]  # (arguments, arrays made) -> the result
_Launch = tuple[Callable[[tuple[Any, ...]], bool], Callable[[Sequence[Any]], tuple[Any, ...]]]

MAX_KINDS = 256  # of calls of one function that are kept at least, those used last
_ALIGNED = 15  # bits of a pointer that are 0 in memory that a library gives

# What a repeat gives where the call has to be looked at, and what is remembered of calls of which each has to be.
_LOOK: object = object()
_NEVER: Repeat = lambda values, pointers: _LOOK  # noqa: E731


class Meeting(NamedTuple):
    """A result that was given and an array that is read: whether they may lie at one place, element by element."""

    out: ArrayInfo
    read: ArrayInfo
    may_coincide: bool


class Script:
    """What a call did: the kernels that it launched, the arrays that it made, and what its results may not meet."""

    def __init__(self) -> None:
        self.launches: list[tuple[Launcher, tuple[Any, ...]]] = []
        self.made: list[tuple[Any, Maker, int]] = []  # with what made them, and their pointers
        self.meetings: list[Meeting] = []
        self.reads_elements = False  # on the host: another call may launch something else

    def __call__(self, launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Take note of a launch, and let it run."""
        if not launcher.kernel.takes_any_number:  # of those, the kernel for the number follows
            self.launches.append((launcher, launcher.kernel.complete(args, kwargs)))
        return False


class _Watch(threading.local):
    """The call of this thread that is watched, if one is: it is told what functions do beside launching."""

    script: Script | None = None

    def makes(self, array: Any, maker: Maker, pointer: int) -> None:
        """Take note of an array that was made."""
        if self.script is not None:
            self.script.made.append((array, maker, pointer))

    def meets(self, out: ArrayInfo, reads: Iterable[ArrayInfo], may_coincide: bool = False) -> None:
        """Take note that a result which was given was compared with arrays that are read."""
        if self.script is not None:
            self.script.meetings += [Meeting(out, read, may_coincide) for read in reads]

    def reads_elements(self) -> None:
        """Take note that elements are read on the host."""
        if self.script is not None:
            self.script.reads_elements = True


watch: _Watch = _Watch()


def repeating(*options: str) -> Callable[[F], F]:
    """Make repeated calls of a function cheap; `options` are its parameters that are not arrays. Hides frames, too.

    The function makes its results and other arrays by `operands.result`, and launches kernels.
    """

    def decorate(function: F) -> F:
        return cast("F", _repeating(function, options))

    return decorate


def _repeating(function: Callable[..., Any], options: Sequence[str]) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    signature = Signature(names, options, MAX_KINDS)
    places = {name: n for n, name in enumerate(names)}
    missing = object()
    defaults = [missing if p.default is p.empty else p.default for p in parameters.values()]
    most = sum(p.kind is not p.KEYWORD_ONLY for p in parameters.values())
    arrays = [n for n, name in enumerate(names) if name not in options]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = len(args)
            if given > most or not all(places.get(name, -1) >= given for name in kwargs):
                return function(*args, **kwargs)  # which says what is wrong
            values = [*args, *defaults[given:]]
            for name, value in kwargs.items():
                values[places[name]] = value
            plan: Any = signature.last  # Any: an `ArgumentPlan`, of which the reading is
            try:
                reading = None if plan is None else plan.read(*values)
            except Exception:  # the function says it in its own words
                reading = None
            known = None if reading is None else reading[0].kernel
            if reading is not None and known is not None:
                found = known(values, reading[1])
                if found is not _LOOK:
                    if plan.compiled is NOT_ASKED:
                        quicken(plan, tuple(values))
                    return found
            if known is _NEVER or threading.get_ident() in observers:
                return function(*args, **kwargs)
            script, result = _watched(function, args, kwargs)
            _remember(signature, values, arrays, script, result)
            return result
        except Exception as error:
            hide_frames(error)
            raise

    is_entry(call)
    return call


def _watched(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Script, Any]:
    script, thread = Script(), threading.get_ident()
    observers[thread] = watch.script = script
    try:
        return script, function(*args, **kwargs)
    finally:
        watch.script = None
        del observers[thread]


is_entry(_watched)  # arguments that do not fit are the fault of who calls the function


def _remember(signature: Signature, values: Sequence[Any], arrays: Sequence[int], script: Script, result: Any) -> None:
    """Remember how calls like the one that was watched are repeated, or that none can be."""
    places = [n for n in arrays if values[n] is not None]
    if not all(adapter_for(values[n]) for n in places):  # lists of them, say, of which each length would be a kind
        return
    try:
        plan, (call, pointers, _) = signature.read(tuple(values))
    except ArgumentError:  # an option that cannot be looked up, such as a list
        return
    if plan.current_stream is None or script.reads_elements or not places:
        call.kernel = _NEVER
        return
    first = {id(values[n]): n for n in reversed(places)}
    # Where one array is in two places, it is not known of which of them a pointer is: that holds for such calls alone.
    same = [(first[id(values[n])], n) for n in places if first[id(values[n])] != n]
    given = {identity: plan.starts[n] for identity, n in first.items()}
    tensors = [n for n in places if hasattr(values[n], "requires_grad")]
    call.kernel = _Found(given, pointers, script).repeat(result, values, tensors, same) or _NEVER


class _Found:
    """What a call did, put in terms of its pointers: of the arrays given, then of those made, then its numbers."""

    def __init__(self, given: dict[int, int], pointers: tuple[Any, ...], script: Script) -> None:
        self._script = script
        self._given = given  # where the pointer of an array stands, by the array's identity
        self._places = given | {id(x): n for n, (x, _, _) in enumerate(script.made, len(pointers))}
        self._values: list[Any] = [*pointers, *(pointer for _, _, pointer in script.made)]
        self._first_number = len(self._values)

    def repeat(
        self, result: Any, values: Sequence[Any], tensors: Sequence[int], same: Sequence[tuple[int, int]]
    ) -> Repeat | None:
        """Return what repeats the call; None where that cannot be said.

        `tensors` are the places of PyTorch's tensors, `same` those of two that have to be one array.
        """
        script, give = self._script, self._outputs(result, values)
        launches = [self._launch(launcher, args) for launcher, args in script.launches]
        meetings = [self._meeting(each, len(launches) == 1) for each in script.meetings]
        if give is None or None in launches or None in meetings:
            return None
        makers = [maker for _, maker, _ in script.made]
        return _repeat(launches, makers, self._values[self._first_number :], meetings, tensors, same, give)  # type: ignore[arg-type]

    def _launch(self, launcher: Launcher, args: tuple[Any, ...]) -> _Launch | None:
        """Return a launch, and what takes its pointers and numbers."""
        again = launcher.repeat(args)
        if again is None:
            return None
        taken = []
        for value, leaf in launcher.passed(args):
            is_array = adapter_for(leaf) is not None
            owner = leaf.owner if isinstance(leaf, View) else leaf
            place = self._places.get(id(owner)) if is_array else self._number(value)
            if place is None or value != self._values[place]:  # memory of its own, or somewhere inside of an array
                return None
            taken.append(place)
        return again, _taker(taken)

    def _number(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1

    def _meeting(self, meeting: Meeting, is_single: bool) -> tuple[int, int, int, int, bool] | None:
        """Return the places of two arrays, and between which distances of their pointers they have to be looked at.

        After several launches nothing could be done again where they lie at one place.
        """
        out, read = meeting.out, meeting.read
        places = [self._given.get(id(info.owner)) for info in (out, read)]
        ranges = [address_range(info.shape, info.strides, info.dtype.bytes) for info in (read, out)]
        low, high = meeting_distances(*ranges) or (0, 0)
        may_coincide = meeting.may_coincide and is_single and (read.strides, read.dtype) == (out.strides, out.dtype)
        return None if None in places else (*places, low, high, may_coincide)  # type: ignore[return-value]

    def _outputs(self, result: Any, values: Sequence[Any]) -> Give | None:
        """Return what gives the call's result, from its arguments and the arrays made."""
        if type(result) is tuple:
            parts = [self._outputs(x, values) for x in result]
            return None if None in parts else lambda values, made: tuple([part(values, made) for part in parts])  # type: ignore[misc]
        if result is None:
            return lambda values, made: None
        for n, (array, _, _) in enumerate(self._script.made):
            if result is array:
                return lambda values, made: made[n][0]
        for n, array in enumerate(values):
            if result is array:
                return lambda values, made: values[n]
        return None


def _taker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return what takes the values of a launch out of those of a call."""
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[place] for place in places])


def _repeat(
    launches: Sequence[_Launch],
    makers: Sequence[Maker],
    numbers: Sequence[Any],
    meetings: Sequence[tuple[int, int, int, int, bool]],
    tensors: Sequence[int],
    same: Sequence[tuple[int, int]],
    give: Give,
) -> Repeat:
    def repeat(values: Sequence[Any], pointers: tuple[Any, ...]) -> Any:
        for first, other in same:
            if values[first] is not values[other]:
                return _LOOK
        for n in tensors:
            if values[n].requires_grad and sys.modules["torch"].is_grad_enabled():
                return _LOOK
        for out, read, low, high, may_coincide in meetings:
            apart = pointers[out] - pointers[read]
            if low < apart < high and (apart or not may_coincide):
                return _LOOK
        made: Sequence[tuple[Any, int]] = [make() for make in makers]  # kept until all is launched
        for _, pointer in made:
            if pointer & _ALIGNED:
                return _LOOK
        known = (*pointers, *[pointer for _, pointer in made], *numbers)
        for launch, take in launches:
            if not launch(take(known)):
                return _LOOK
        return give(values, made)

    return repeat
