"""The compiled launcher gives the driver what Python's gives it, whatever the call."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
import os
import pickle
import sys
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.shown_to_c import c_function, shown_kind, why_not_compiled

from tilewright.dtypes import bool_, float32, float64, int32, int64
from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime import compiled, driver, replays
from tilewright.runtime.attributes import DEPENDENT
from tilewright.runtime.driver import EntryPoints, Function
from tilewright.runtime.launch import ExtentSlot, Packer, PointerSlot, ScalarSlot, Slot, StrideSlot, launch_config
from tilewright.runtime.plan import NOT_ASKED, Signature

pytestmark = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}")

Tensor: Any = shown_kind()
BYTES = {int32: 4, int64: 8, float32: 4, float64: 8, bool_: 1}


@pytest.fixture(autouse=True)
def built() -> None:
    assert compiled.wait() is not None, compiled.report()


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


# ---- the law ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layout:
    rows: int
    columns: int


SMALL = st.integers(0, 3)
KINDS = ("tensor", "int", "float", "bool", "number", "constant")
# Compile-time arguments that are easily taken for each other.
ALIKE: list[list[Any]] = [
    [1, True, 1.0, 2**40, -1],
    [0.0, -0.0, 0, False, None],
    [(1, 2), (1, 2.0), (True, 2), (1, 3)],
    [(0.0,), (-0.0,), ("a",), (("a",),)],
    ["a", "b", "", int, float],
    [Layout(2, 3), Layout(2, 4), Layout(2.0, 3)],  # type: ignore[arg-type]
]


PARAMETER: Any = shown_kind("Parameter", "torch.nn.parameter")
SUBCLASS: Any = type("Mine", (Tensor,), {"__module__": "mine"})

FIELDS: dict[str, Any] = {
    "rank": st.integers(0, 2),
    "shape": st.sampled_from([(4, 8), (4, 16), (1, 8), (8, 4)]),
    "strides": st.sampled_from([None, (8, 1), (16, 2), (1, 1), (0, 1), (-8, 1)]),
    "pointer": st.sampled_from([4096, 8192, 1 << 45]),
    "offset": st.sampled_from([0, 4, 8, 16]),
    "dtype": st.sampled_from(["float32", "float16", "int32"]),
    "index": st.sampled_from([0, 1]),
    "kind": st.sampled_from([Tensor, Tensor, PARAMETER, SUBCLASS]),
}


def tensor(rank: int, shape: Any, strides: Any, pointer: int, offset: int, dtype: str, index: int, kind: Any) -> Any:
    strides = None if strides is None else strides[:rank]
    return kind(shape[:rank], strides, pointer=pointer + offset, dtype=dtype, index=index)


@st.composite
def tensors(draw: Any) -> list[Any]:
    """Draw tensors that agree with the first in all but one thing."""
    first = draw(st.fixed_dictionaries(FIELDS))
    changed = draw(st.lists(st.sampled_from([*FIELDS]), max_size=3))
    return [tensor(**first), *(tensor(**{**first, name: draw(FIELDS[name])}) for name in changed)]


NUMBERS: Any = {
    "int": st.sampled_from([0, 1, -1, 7, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**63), 2**63, 2**64]),
    "float": st.sampled_from([0.0, -0.0, 0.5, 1e300, float("inf"), float("nan"), 5e-324]),
    "bool": st.booleans(),
    "number": st.sampled_from([0, 1, 0.0, 1.0, -0.0, False, True, 2**31]),
}
VALUES: Any = {kind: st.lists(number, min_size=1, max_size=3) for kind, number in NUMBERS.items()}
VALUES["tensor"] = tensors()
VALUES["constant"] = st.sampled_from(ALIKE).flatmap(lambda x: st.lists(st.sampled_from(x), min_size=1, max_size=3))


@st.composite
def programs(draw: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Draw the kinds of a kernel's arguments and calls of it, of which some repeat others."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    kinds = kinds if "tensor" in kinds else ["tensor", *kinds]
    pools = [draw(VALUES[kind]) for kind in kinds]
    picks = draw(st.lists(st.tuples(*(SMALL for _ in kinds)), min_size=1, max_size=6))
    return kinds, [tuple(pool[n % len(pool)] for pool, n in zip(pools, pick, strict=True)) for pick in [*picks, *picks]]


def parameters(kinds: Sequence[str], args: Sequence[Any]) -> list[Slot]:
    """Return parameters for arguments of these kinds; where all calls have that rank, extents and strides too."""
    slots: list[Slot] = []
    for n, (kind, value) in enumerate(zip(kinds, args, strict=True)):
        if kind == "tensor":
            slots.append(PointerSlot(n))
            slots += [
                part for mode in range(len(value.shape)) for part in (ExtentSlot(n, mode), StrideSlot(n, mode, int64))
            ]
        elif kind != "constant":
            slots.append(ScalarSlot(n, {"int": int64, "float": float32, "bool": bool_, "number": float64}[kind]))
    return slots[::-1]


def outcome(launch: Any, args: tuple[Any, ...]) -> str | None:
    try:
        launch(args)
    except (ArgumentError, DeviceError, OverflowError) as error:
        return str(error)
    return None


@given(programs())
@settings(max_examples=100)
def test_every_call_gives_the_driver_what_pythons_launcher_gives(
    program: tuple[list[str], list[tuple[Any, ...]]],
) -> None:
    kinds, calls = program
    ranks = [[len(x.shape) for x, kind in zip(args, kinds, strict=True) if kind == "tensor"] for args in calls]
    calls = [args for args, rank in zip(calls, ranks, strict=True) if rank == ranks[0]]
    slots, names = parameters(kinds, calls[0]), [f"x{n}" for n in range(len(kinds))]
    constexpr = [name for name, kind in zip(names, kinds, strict=True) if kind == "constant"]
    first, second = Bench(names, slots, constexpr), Bench(names, slots, constexpr)
    first.tells_kinds = second.tells_kinds = True
    for args in calls:
        assert outcome(first.python, args) == outcome(second.compiled, args)
    assert second.seen == first.seen
    # Once a call was made, the compiled launcher makes it: all but those of types that only Python reads.
    for args in calls:
        fits = all(-(2**63) <= x < 2**63 for x in args if type(x) is int)
        if fits and not any(type(x) is SUBCLASS for x in args):
            second.compiled(args)
            assert second.compiled(args)


@given(programs())
@settings(max_examples=100)
def test_arguments_are_read_as_python_reads_them(program: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    kinds, calls = program
    names = [f"x{n}" for n in range(len(kinds))]
    constexpr = [name for name, kind in zip(names, kinds, strict=True) if kind == "constant"]
    signature = Signature(names, constexpr)
    plans: dict[Any, Any] = {}
    for args in calls:
        try:
            plan = signature.plan(args)
            python = plans.setdefault(plan, plan.read)
            plan.current_stream = abs
            expected = python(*args)
        except (ArgumentError, OverflowError):
            continue
        if plan.compiled is NOT_ASKED:
            replays.quicken(plan, args)
        for _ in range(2):
            call, values, described = plan.read(*args)  # type: ignore[misc]
            assert call is expected[0]
            assert [(type(x), repr(x)) for x in values] == [(type(x), repr(x)) for x in expected[1]]
            assert described == expected[2]
        assert (plan.read is not python) == (SUBCLASS not in map(type, args))
    for plan in plans:
        assert plan.read(*(None for _ in names)) is None or all(kind == "constant" for kind in kinds)


# ---- what makes a call another one ------------------------------------------------------------------------------------

NAMES, SLOTS = ("z", "x", "n"), (PointerSlot(0), PointerSlot(1), ScalarSlot(2, int32), ExtentSlot(0, 0))


@pytest.fixture
def bench() -> Bench:
    return Bench(NAMES, SLOTS)


def arguments(pointer: int = 4096) -> tuple[Any, ...]:
    return Tensor((4, 8), pointer=pointer), Tensor((4, 8), pointer=1 << 20), 3


def learnt(bench: Bench) -> Bench:
    assert not bench.compiled(arguments())
    assert bench.compiled(arguments(8192))
    return bench


BASE: dict[str, Any] = {"rank": 2, "shape": (4, 8), "strides": (16, 2), "pointer": 4096, "offset": 0}
BASE |= {"dtype": "float32", "index": 0, "kind": Tensor}
OTHER: dict[str, Any] = {"rank": 1, "shape": (4, 6), "strides": (16, 1), "offset": 4}
OTHER |= {"dtype": "float16", "index": 1, "kind": PARAMETER}
APART: dict[str, tuple[Any, Any]] = {
    **{f"a tensor's {name}": (tensor(**BASE), tensor(**{**BASE, name: other})) for name, other in OTHER.items()},
    "float and bool": (1.0, True),
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "ints of 32 and 64 bits": (1, 2**31),
    **{f"constants {x!r} and {y!r}": (x, y) for x, y in (
        (1, True), (1, 1.0), (True, 1.0), (1, 2), (0.0, -0.0), (1.0, 2.0), ((1, 2), (1, 2.0)), ((0.0,), (-0.0,)), ("a", "b"),
        ((1,), (1, 1)), (None, 0), (int, float), (Layout(2, 3), Layout(2, 4)), (2**64, 2**64 + 1),
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_tells_calls_apart(name: str) -> None:
    first, second = APART[name]
    slots: list[Slot] = [PointerSlot(0)]
    if "tensor" in name:
        slots.append(PointerSlot(1))
    elif "constants" not in name:
        slots.append(ScalarSlot(1, float64))
    bench = Bench(("x", "y"), slots, ["y"] if "constants" in name else [])
    bench.tells_kinds = True
    x = Tensor((4, 8))
    assert [bench.compiled((x, y)) for y in (first, first, second, second, first)] == [False, True, False, True, True]
    handles = [handle for _, handle, _ in bench.seen]
    assert handles == [handles[0], handles[0], handles[2], handles[2], handles[0]]
    assert handles[0] != handles[2]


@pytest.mark.parametrize(
    "make", [lambda: 10**6, lambda: 0.1 + 0.2, lambda: "a" + str(1), lambda: (1, (0.1 + 0.2, str(1)))]
)
def test_constants_of_equal_value_are_one(make: Any) -> None:
    bench = Bench(("x", "y"), SLOTS[:1], ["y"])
    assert [bench.compiled((Tensor((4, 8)), make())) for _ in range(3)] == [False, True, True]


def test_other_shared_memory_is_left_to_python(bench: Bench) -> None:
    calls = learnt(bench)._replay.calls
    config = launch_config((3, 2), 64, 16)
    assert not compiled.launcher().Replay(calls, config, config.head, None)(arguments(), {})


def test_launches_are_left_to_python_while_they_are_observed(bench: Bench) -> None:
    learnt(bench).observers[1] = None
    assert not bench._replay(arguments(), {})
    bench.observers.clear()
    assert bench._replay(arguments(), {})


def test_keywords_and_other_numbers_of_arguments_are_left_to_python(bench: Bench) -> None:
    learnt(bench)
    assert not bench._replay(arguments(), {"n": 3})
    assert not bench._replay(arguments()[:2], {})
    assert not bench._replay((*arguments(), 1), {})


def test_what_the_kernel_captures_is_compared(bench: Bench) -> None:
    learnt(bench)
    bench.captures.watched = [1]
    assert bench._replay(arguments(), {})
    bench.captures._is_as_seen = lambda: False
    assert not bench._replay(arguments(), {})
    bench.captures._is_as_seen = lambda: {}["gone"]
    assert not bench._replay(arguments(), {})


def test_what_was_forgotten_is_not_launched(bench: Bench) -> None:
    learnt(bench)
    replays.close(bench.signature)
    assert not bench._replay(arguments(), {})
    plan = bench.signature.last
    assert plan is not None
    call, values, _ = plan.read(*arguments())  # type: ignore[misc]
    bench._replay = replays.learn(
        bench, bench.observers, plan, call.kernel, arguments(), values
    )  # a thread that was late
    assert not bench._replay(arguments(), {})


def test_a_call_that_pythons_launcher_forgot_is_not_launched(bench: Bench) -> None:
    plan = learnt(bench).signature.last
    assert plan is not None
    plan._calls.clear()
    plan.kernels.clear()
    gc.collect()
    assert not bench._replay(arguments(), {})


def test_arrays_that_share_memory_are_left_to_python() -> None:
    bench = Bench(NAMES, SLOTS)
    bench.pairs = ((0, 1, -128, 128),)
    learnt(bench)
    for apart in (-128, 128, 4096):
        assert bench._replay(arguments((1 << 20) + apart), {})
    for apart in (-112, 0, 112):
        assert not bench._replay(arguments((1 << 20) + apart), {})


def test_a_compile_time_argument_that_changes_its_hash_is_another_one() -> None:
    class Mutable:
        value = 1

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Mutable) and self.value == other.value

        def __hash__(self) -> int:
            return hash(self.value)

    bench, given = Bench(NAMES, SLOTS[:2], ["n"]), Mutable()
    args = (*arguments()[:2], given)
    assert not bench.compiled(args)
    assert bench.compiled(args)
    given.value = 2
    assert not bench._replay(args, {})


def test_kinds_that_never_repeat_are_not_collected(bench: Bench) -> None:
    learnt(bench)
    for n in range(3000):
        bench.compiled((Tensor((4, 8 + n), pointer=4096), *arguments()[1:]))
    again = Tensor((4, 8 + 2999), pointer=4096), *arguments()[1:]
    assert bench.compiled(again)


# ---- the driver -------------------------------------------------------------------------------------------------------


def test_a_refused_launch_is_finished_by_python(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt(bench)
    monkeypatch.setattr("tilewright.runtime.launch.error_text", lambda status: f"status {status}")
    bench.status = 700
    with pytest.raises(DeviceError) as by_c:
        bench._replay(arguments(), {})
    with pytest.raises(DeviceError) as by_python:
        bench.python(arguments())
    assert str(by_c.value) == str(by_python.value)
    assert "status 700" in str(by_c.value)


def test_a_launch_in_the_wrong_context_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def relaunch(self: Function, status: int, configuration: Any, parameters: Any) -> int:
        tried.append((status, ctypes.string_at(configuration.value, 52)))
        return 0

    learnt(bench)
    monkeypatch.setattr(Function, "relaunch", relaunch)
    bench.status = 201
    assert bench._replay(arguments(), {})
    assert tried == [(201, bench.seen[-1][0])]


def test_a_function_on_a_stream_stays_loaded(bench: Bench) -> None:
    driver._kept.discard(bench.function)
    bench.stream = 0
    learnt(bench)
    assert bench.function not in driver._kept
    bench.stream = 9
    assert bench._replay(arguments(), {})
    assert bench.function in driver._kept
    driver._kept.discard(bench.function)


def test_a_stream_of_the_launcher_takes_the_place_of_the_current_one(bench: Bench) -> None:
    bench._stream = 99
    learnt(bench)
    assert int.from_bytes(bench.seen[-1][0][32:40], "little") == 99


def test_errors_of_the_framework_are_raised(bench: Bench) -> None:
    class Broken(Exception):
        pass

    def stream(ordinal: int) -> int:
        raise Broken

    plan, _ = bench.signature.read(arguments())
    bench.python(arguments())
    plan.current_stream = stream
    call, values, _ = plan.read(*arguments())  # type: ignore[misc]
    bench._replay = replays.learn(bench, bench.observers, plan, call.kernel, arguments(), values)
    with pytest.raises(Broken):
        bench._replay(arguments(), {})


def test_blocks_that_run_together_are_admitted_for_each_stream(bench: Bench) -> None:
    asked: list[Any] = []
    other = dataclasses.replace(bench.function, handle=ctypes.c_void_p(60))

    def admit(function: Function, config: Any, stream: int) -> Function:
        asked.append((function, config, stream))
        return other if stream == 8 else function

    bench.admitted = admit
    learnt(bench)
    for stream, handle in ((7, 6), (8, 60), (8, 60), (7, 6)):
        bench.stream = stream
        assert bench._replay(arguments(), {})
        assert bench.seen[-1][1] == handle
    assert {(function, config) for function, config, _ in asked} == {(bench.function, bench._config)}


def test_another_devices_context_is_left_to_python(bench: Bench) -> None:
    current = [5]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def get_context(context: Any) -> int:
        context[0] = current[0]
        return 0

    assert bench.function.entry is not None
    address = ctypes.cast(get_context, ctypes.c_void_p).value or 0
    entry = EntryPoints(bench.function.entry.launch, address, 5)
    bench.function = dataclasses.replace(bench.function, entry=entry)
    learnt(bench)
    current[0] = 6
    assert not bench._replay(arguments(), {})
    current[0] = 5
    assert bench._replay(arguments(), {})


def test_attributes_and_tensor_maps_are_passed() -> None:
    class Maps:
        count, key, made = 2, (0, 2), 0

        def __call__(self, layouts: Any, values: tuple[Any, ...]) -> bytes:
            self.made += 1
            return bytes([values[0] >> 12 & 255]) * 128 + bytes([values[2]]) * 128

    class WithMaps(Bench):
        def record(self, configuration: int, handle: int, parameters: Any) -> int:
            assert parameters[4] % 64 == parameters[5] % 64 == 0
            self.maps.append((ctypes.string_at(parameters[4], 128), ctypes.string_at(parameters[5], 128)))
            attributes, count = (int.from_bytes(ctypes.string_at(configuration + at, 8), "little") for at in (40, 48))
            assert count & 0xFFFFFFFF == 1
            assert ctypes.string_at(attributes, 72) == DEPENDENT.encode()
            return super().record(configuration, handle, parameters)

        maps: list[Any]

    maps = Maps()
    bench = WithMaps(NAMES, SLOTS, attributes=(DEPENDENT,), maps=maps)
    bench.maps = []
    learnt(bench)
    made = maps.made
    for pointer in (4096, 4096, 8192, 4096):
        assert bench._replay(arguments(pointer), {})
        assert bench.maps[-1] == (bytes([pointer >> 12]) * 128, bytes([3]) * 128)
    assert maps.made == made + 3


# ---- launches from values, and prepared ones ----------------------------------------------------------------------------


@pytest.fixture
def again(bench: Bench) -> Iterator[Any]:
    """What launches from values; the calls that it left to Python are in its `left`."""
    learnt(bench)
    assert bench.signature.last is not None
    call, _, _ = bench.signature.last.read(*arguments())  # type: ignore[misc]
    left: list[Any] = []
    made = replays.again(
        bench._replay.calls, call.kernel, bench._config, lambda n: 7, lambda values: bool(left.append(values))
    )
    yield SimpleNamespace(launch=made, left=left, bench=bench, call=call)


def test_launches_from_values(again: Any) -> None:
    bench = again.bench
    for values in ((4096, 1 << 45, -5), (8192, 1 << 20, True), (8192, 1 << 20, np.int16(7))):
        assert again.launch(values) is True
        again.call.kernel.launch(bench._config, 7, values)
        assert bench.seen[-1] == bench.seen[-2]
    assert not again.left


def test_values_that_do_not_fit_are_left_to_python(again: Any) -> None:
    bad: list[Any] = [
        (4096, 8192, 2**31),
        (-1, 8192, 3),
        (4096, 8192, 0.5),
        (4096, 8192, "3"),
        (4096, 8192),
        (2**64, 8192, 3),
    ]
    launched = len(again.bench.seen)
    assert [again.launch(values) for values in bad] == [False] * len(bad)
    assert again.left == bad
    again.bench.observers[1] = None
    assert again.launch((4096, 8192, 3)) is False
    again.bench.observers.clear()
    replays.close(again.bench.signature)
    assert again.launch((4096, 8192, 3)) is False
    assert len(again.bench.seen) == launched


def test_prepared_launches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, (call, values, _) = bench.signature.read(arguments())
    owner = arguments()[0]
    kept = weakref.ref(owner)
    prepared = Packer(SLOTS, plan.starts).prepare(bench.function, bench._config, 7, values, call.layouts, [owner])
    del owner
    gc.collect()
    assert kept() is not None
    bench.python(arguments())
    for _ in range(2):
        prepared()
        assert bench.seen[-1] == bench.seen[0]
    assert isinstance(prepared, compiled.launcher().Prepared)
    monkeypatch.setattr("tilewright.runtime.launch.error_text", lambda status: f"status {status}")
    bench.status = 719
    with pytest.raises(DeviceError, match="status 719"):
        prepared()
    with pytest.raises(TypeError):
        prepared(1)  # type: ignore[call-arg]
    assert copy.copy(prepared) is prepared
    with pytest.raises(ArgumentError, match="addresses of the arrays"):
        pickle.dumps(prepared)


# ---- memory and threads -------------------------------------------------------------------------------------------------


def test_nothing_is_leaked(again: Any) -> None:
    """References are counted: of what a call takes and of what it meets, none is kept."""
    bench = again.bench
    args, values = arguments(), (4096, 8192, 123456789)
    bench.record = lambda *_: 0  # type: ignore[method-assign]
    unknown = (Tensor((4, 9)), *args[1:])
    counted = [
        *args[:2],
        Tensor,
        bench.observers,
        bench.captures,
        bench._config,
        bench.function,
        None,
        True,
        False,
        *values,
    ]

    plan = again.bench.signature.last
    plan.compiled = NOT_ASKED
    replays.quicken(plan, args)

    def run(times: int) -> list[int]:
        for _ in range(times):
            plan.read(*args)
            bench._replay(args, {})
            bench._replay(unknown, {})
            again.launch(values)
            again.launch((4096, 8192, 0.5))
        again.left.clear()
        gc.collect()
        return [sys.getrefcount(x) for x in counted]

    before, blocks = run(10), sys.getallocatedblocks()
    assert all(abs(now - then) < 50 for now, then in zip(run(1000), before, strict=True))
    assert sys.getallocatedblocks() - blocks < 500


def test_everything_is_freed_with_the_kernel() -> None:
    bench = learnt(Bench(NAMES, SLOTS))
    kept = [weakref.ref(bench), weakref.ref(bench.function)]
    bench.captures.bench = bench  # as a kernel's captures reach its launchers
    bench.captures.replay = bench._replay
    driver._kept.discard(bench.function)
    del bench
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_threads_launch_at_once(bench: Bench) -> None:
    learnt(bench)
    seen, barrier = [0, 0], threading.Barrier(2)

    def record(configuration: int, handle: int, parameters: Any) -> int:
        pointer, number = (ctypes.c_uint64.from_address(parameters[0]), ctypes.c_int32.from_address(parameters[2]))
        assert pointer.value == 4096 * number.value, (pointer, number)
        seen[number.value - 1] += 1
        return 0

    bench.record = record  # type: ignore[method-assign]
    failed: list[BaseException] = []

    def run(number: int) -> None:
        args = Tensor((4, 8), pointer=4096 * number), Tensor((4, 8), pointer=1 << 20), number
        barrier.wait()
        try:
            for _ in range(2000):
                assert bench._replay(args, {})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert seen == [2000, 2000]


def test_a_forked_process_launches_too(bench: Bench) -> None:
    learnt(bench)
    launched = len(bench.seen)
    child = os.fork()
    if child == 0:
        is_launched = (
            bench._replay(arguments(), {}) and bench.compiled(arguments(8192)) and len(bench.seen) == launched + 2
        )
        os._exit(0 if is_launched else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(bench.seen) == launched
