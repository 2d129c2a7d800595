"""A kernel without code, launched by Python's launcher and by the compiled one: what the driver is given by each."""

from __future__ import annotations

import ctypes
import dataclasses
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.helpers.shown_to_c import c_function, shown_kind

from tilewright.dtypes import bool_, float32, float64, int32, int64
from tilewright.runtime import replays
from tilewright.runtime.driver import Function
from tilewright.runtime.launch import ExtentSlot, Packer, PointerSlot, ScalarSlot, Slot, launch_config
from tilewright.runtime.plan import Signature

Tensor: Any = shown_kind()
BYTES = {int32: 4, int64: 8, float32: 4, float64: 8, bool_: 1}

NAMES, SLOTS = ("z", "x", "n"), (PointerSlot(0), PointerSlot(1), ScalarSlot(2, int32), ExtentSlot(0, 0))


class Bench:
    """A kernel without code: a signature, its parameters, and what the driver was given by each launcher.

    `slots` are the kernel's parameters; `names` those of its arguments, of which `constexpr` are compile-time ones.
    """

    def __init__(
        self, names: Sequence[str], slots: Sequence[Slot], constexpr: Sequence[str] = (), **options: Any
    ) -> None:
        self.observers: dict[int, Any] = {}
        self.captures = SimpleNamespace(watched=[], _is_as_seen=lambda: True)
        self.signature = Signature(names, constexpr)
        self.slots, self.options = slots, options
        self.pairs: tuple[Any, ...] = ()
        self.status, self.stream = 0, 7
        self.seen: list[tuple[Any, ...]] = []
        entry, launch = c_function(lambda *args: self.record(*args))
        self.function = Function("kernel", 0, ctypes.c_void_p(6), launch, entry)
        # What a launcher of a kernel holds.
        self.kernel = SimpleNamespace(captures=self.captures)
        self._replay: Any = None
        self._stream: Any = None
        self._config = launch_config((3, 2), 64)
        self.admitted: Any = None
        self.tells_kinds = False

    def record(self, configuration: int, handle: int, parameters: Any) -> int:
        sizes = [8 if isinstance(slot, PointerSlot) else BYTES[slot.dtype] for slot in self.slots]
        passed = tuple(ctypes.string_at(parameters[n], size) for n, size in enumerate(sizes))
        self.seen.append((ctypes.string_at(configuration, 52), handle, passed))
        return self.status

    def python(self, args: tuple[Any, ...], *, learns: bool = False) -> None:
        """Launch by Python's launcher, and let the compiled one learn of it."""
        plan, (call, values, _) = self.signature.read(args)
        plan.current_stream = lambda ordinal: self.stream
        packer = plan.kernels.get("packer") or plan.kernels.add(
            "packer", Packer(self.slots, plan.starts, **self.options)
        )
        call.kernel = call.kernel or self.ready(packer, call, args)
        call.kernel.launch(self._config, self.stream, values)
        if learns:
            self._replay = replays.learn(self, self.observers, plan, call.kernel, args, values)

    def ready(self, packer: Packer, call: Any, args: tuple[Any, ...]) -> Any:
        """Return what runs calls of a kind; each has machine code of its own, with a handle that says the kind."""
        made = Ready()
        made.form, made.function = None, self.function
        if self.tells_kinds:
            kind = zlib.crc32(repr((call.key, [*map(type, args)])).encode())
            made.function = dataclasses.replace(self.function, handle=ctypes.c_void_p(kind))
        made.launch = packer.bind(call.layouts, made.function, self.pairs, lambda: self.function, self.admitted)
        made.packer = packer, call.layouts, self
        return made

    def compiled(self, args: tuple[Any, ...]) -> bool:
        """Launch by the compiled launcher where it knows the call, else by Python's; say by which."""
        if self._replay is not None and self._replay(args, {}):
            return True
        self.python(args, learns=True)
        return False


class Ready:
    """What runs calls of one kind, as `specialise` makes it."""

    form: Any
    function: Any
    packer: Any
    launch: Any

    def compiled(self, library: Any, stream_of: Any) -> Any:
        if self.form is None:
            packer, layouts, bench = self.packer
            shared = bench._config.shared_bytes
            self.form = packer.form(library, layouts, self.function, bench.pairs, bench.admitted, stream_of, shared)
        return self.form


FIRST, SECOND = 1 << 40, 2 << 40  # pointers: lower ones are looked at in Python, as those of freed memory are


def arguments(pointer: int = FIRST) -> tuple[Any, ...]:
    return Tensor((4, 8), pointer=pointer), Tensor((4, 8), pointer=1 << 45), 3


def learnt(bench: Bench) -> Bench:
    assert not bench.compiled(arguments())
    assert bench.compiled(arguments(SECOND))
    return bench
