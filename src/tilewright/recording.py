"""See which kernels a piece of host code launches: with `record_launches` they run, with `trace_launches` they do not.

`surround_launches` lets somebody act before and after each, `prepare_launches` packs them in place of making them.

A launch pays one look at an empty dict for this while nobody records. Only launches of the thread that records are
seen; those of other threads run as always.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch import Arch
from tilewright.compile import Lowered
from tilewright.launch import Kernel, Launcher, observers
from tilewright.runtime import driver
from tilewright.runtime.plan import named_leaves

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Recorded:
    """One launch: the compiled kernel with its arguments by name (`params.weight` is a leaf), and how it was launched.

    `lowered` is what a GPU runs, on the simulator too. `function` is the machine code as loaded, None on the simulator
    and where the launch was only traced; `grid` is None there too.
    """

    kernel: str
    lowered: Lowered
    arguments: dict[str, Any]  # Any: arrays, numbers and compile-time values
    block: Grid
    grid: Grid | None = None
    dynamic_shared_bytes: int = 0
    function: driver.Function | None = None

    @property
    def written(self) -> dict[str, Any]:
        """The arguments that the kernel writes, by name."""
        return {name: self.arguments[name] for name in sorted(self.lowered.written)}

    @property
    def read(self) -> dict[str, Any]:
        """The array arguments that the kernel reads, by name."""
        return {name: self.arguments[name] for name in sorted(self.lowered.read)}


Around = Callable[[Launcher], contextlib.AbstractContextManager[None]]


class _Recording:
    """Recordings under way in one thread: what each found, and the target for which launches are traced, not run."""

    def __init__(self) -> None:
        self.open: list[tuple[list[Recorded], Arch | None]] = []  # the innermost last
        self.around: list[Around] = []
        self.prepared: list[list[Callable[[], None]]] = []  # the innermost last
        self._is_launching = False

    def __call__(self, launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Launch and tell all recordings; where one only traces, tell the innermost such one and no more."""
        if self._is_launching:  # the launch below
            return False
        if launcher.kernel.takes_any_number:
            launcher = launcher.kernel.numbered_for(args)[launcher.grid, launcher.block]
        if self.prepared:
            self._prepare(launcher, args, kwargs)
            return True
        for found, arch in reversed(self.open):
            if arch is not None:
                found.append(_traced(launcher, args, kwargs, arch))
                return True
        self._is_launching = True
        try:
            if self.around:
                launcher.admitted(launcher.kernel.complete(args, kwargs))  # compiled, so that what follows is short
            with contextlib.ExitStack() as stack:
                for around in self.around:
                    stack.enter_context(around(launcher))
                launcher(*args, **kwargs)
        finally:
            self._is_launching = False
        recorded = _recorded(launcher, launcher.kernel.complete(args, kwargs))
        for found, _ in self.open:
            found.append(recorded)
        return True

    def _prepare(self, launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.prepared[-1].append(launcher.prepare(*args, **kwargs))
        except BaseException:  # what is begun anew after it brings all of its launches again
            self.prepared[-1].clear()
            raise


@contextlib.contextmanager
def record_launches() -> Iterator[list[Recorded]]:
    """Collect the launches of the body of a `with`, which run as always. Prepared launches are not seen."""
    with _recording(None) as found:
        yield found


@contextlib.contextmanager
def surround_launches(around: Around) -> Iterator[list[Recorded]]:
    """Run each launch of the body of a `with` inside `around(launcher)`, when its kernel is compiled; collect them."""
    with _recording(None) as found:
        recording = observers[threading.get_ident()]
        assert isinstance(recording, _Recording), recording
        recording.around.append(around)
        try:
            yield found
        finally:
            recording.around.remove(around)


@contextlib.contextmanager
def trace_launches(arch: Arch) -> Iterator[list[Recorded]]:
    """Collect the launches of the body of a `with` without running them: kernels are traced for `arch`, no more."""
    with _recording(arch) as found:
        yield found


@contextlib.contextmanager
def prepare_launches() -> Iterator[list[Callable[[], None]]]:
    """Prepare the launches of the body of a `with` without making them; no recording sees them."""
    prepared: list[Callable[[], None]] = []
    with _recording(None):
        recording = observers[threading.get_ident()]
        assert isinstance(recording, _Recording), recording
        recording.prepared.append(prepared)
        try:
            yield prepared
        finally:
            recording.prepared.pop()


@contextlib.contextmanager
def _recording(arch: Arch | None) -> Iterator[list[Recorded]]:
    thread = threading.get_ident()  # no other thread changes what is under its number
    found: list[Recorded] = []
    recording = observers.setdefault(thread, _Recording())
    assert isinstance(recording, _Recording), recording
    recording.open.append((found, arch))
    try:
        yield found
    finally:
        recording.open[:] = [each for each in recording.open if each[0] is not found]
        if not recording.open:
            observers.pop(thread, None)


def _traced(launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any], arch: Arch) -> Recorded:
    kernel = launcher.kernel
    lowered = launcher.lower(*args, arch=arch.name, **kwargs)
    arguments = _by_name(kernel, kernel.complete(args, kwargs))
    return Recorded(kernel.__name__, lowered, arguments, kernel.variant(launcher.block).block)


def _recorded(launcher: Launcher, values: tuple[Any, ...]) -> Recorded:
    ready, config = launcher.admitted(values)
    owner: Any = getattr(ready, "owner", ready)  # Any: on a GPU what was admitted belongs to a specialisation
    return Recorded(
        launcher.kernel.__name__,
        owner.lowered_for_gpu,
        _by_name(launcher.kernel, values),
        config.block,
        config.grid,
        config.shared_bytes,
        getattr(owner, "function", None),
    )


def _by_name(kernel: Kernel, values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a call by name, structures by their leaves: `params.weight`, `xs[0]`."""
    found: dict[str, Any] = {}
    for parameter, value in zip(kernel.parameters, values, strict=True):
        found.update({parameter.name: value} if parameter.is_constexpr else named_leaves(parameter.name, value))
    return found
