"""When the compiled launcher leaves a call to Python's, what it gives the driver, and what it keeps."""

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
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.launch_bench import FIRST, NAMES, SECOND, SLOTS, Bench, Tensor, arguments, learnt
from tests.helpers.shown_to_c import why_not_compiled

from tilewright.dtypes import int32
from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime import compiled, driver, replays
from tilewright.runtime.attributes import DEPENDENT
from tilewright.runtime.driver import EntryPoints, Function
from tilewright.runtime.launch import Packer, PointerSlot, ScalarSlot, launch_config
from tilewright.runtime.plan import NOT_ASKED

pytestmark = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}")


@pytest.fixture(autouse=True)
def built() -> None:
    assert compiled.wait() is not None, compiled.report()


@pytest.fixture
def bench() -> Bench:
    return Bench(NAMES, SLOTS)


# ---- what is left to Python's launcher ---


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
        assert bench._replay(arguments((1 << 45) + apart), {})
    for apart in (-112, 0, 112):
        assert not bench._replay(arguments((1 << 45) + apart), {})


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
        bench.compiled((Tensor((4, 8 + n), pointer=FIRST), *arguments()[1:]))
    again = Tensor((4, 8 + 2999), pointer=FIRST), *arguments()[1:]
    assert bench.compiled(again)


def test_a_kind_that_repeats_is_learnt_after_many_that_do_not(bench: Bench) -> None:
    learnt(bench)
    for n in range(4200):
        bench.compiled((Tensor((4, 8 + n), pointer=FIRST), *arguments()[1:]))
    late = Tensor((5, 8), pointer=FIRST), *arguments()[1:]
    by_c = [bench.compiled(late) for _ in range(100)]
    assert not any(by_c[:2])  # few are added
    assert all(by_c[-20:])
    new = Tensor((6, 8), pointer=FIRST), *arguments()[1:]
    assert [bench.compiled(new) for _ in range(2)] == [False, True]


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


class Interrupting:
    """Raises `error`, once there is one, wherever Python runs in it."""

    error: type[BaseException] | None = None

    def __call__(self, *args: Any) -> int:
        if self.error is not None:
            raise self.error
        return 7

    def __hash__(self) -> int:
        return self()

    def __index__(self) -> int:
        return self()

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
@pytest.mark.parametrize("where", ["captures", "constant", "new constant", "values", "reading"])
def test_what_ends_a_program_is_raised(where: str, error: type[BaseException]) -> None:
    """Python's launcher meets a usual error again, and says it; an interrupt comes once, and must not be lost."""
    armed = Interrupting()
    bench = Bench(("x", "c", "n"), (PointerSlot(0), ScalarSlot(2, int32)), ["c"])
    args: tuple[Any, ...] = (Tensor((4, 8)), 1 if where in ("captures", "values") else armed, 3)
    assert [bench.compiled(args) for _ in range(2)] == [False, True]
    plan, (call, values, _) = bench.signature.read(args)
    bench.captures.watched, bench.captures._is_as_seen = [1], lambda: where != "captures" or armed() == 7
    again = replays.again(bench._replay.calls, call.kernel, bench._config, lambda n: 7, lambda values: False)
    readable = replays.readable(plan, args)
    assert readable is not None
    table = compiled.launcher().Calls({}, None, b"\0\1\0")
    read = compiled.launcher().Read(table, lambda *args: (call, values, ()), *readable)
    read(*args)
    launches: dict[str, Any] = {
        "captures": lambda: bench._replay(args, {}),
        "constant": lambda: bench._replay(args, {}),
        "new constant": lambda: bench._replay.calls.add(args, values, call.kernel.form, *readable),
        "values": lambda: again((4096, armed)),
        "reading": lambda: bool(read(*args)),
    }
    launch = launches[where]
    assert launch() is True
    launched, armed.error = len(bench.seen), error
    if error is ValueError:
        assert launch() is (where == "reading")  # by Python's function
    else:
        with pytest.raises(error):
            launch()
    assert len(bench.seen) == launched


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
            return bytes([values[0] >> 40]) * 128 + bytes([values[2]]) * 128

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
    for pointer in (FIRST, FIRST, SECOND, FIRST):
        assert bench._replay(arguments(pointer), {})
        assert bench.maps[-1] == (bytes([pointer >> 40]) * 128, bytes([3]) * 128)
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
    unknown = (Tensor((4, 9), pointer=FIRST), *args[1:])
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
        assert pointer.value == FIRST * number.value, (pointer, number)
        seen[number.value - 1] += 1
        return 0

    bench.record = record  # type: ignore[method-assign]
    failed: list[BaseException] = []

    def run(number: int) -> None:
        args = Tensor((4, 8), pointer=FIRST * number), Tensor((4, 8), pointer=1 << 45), number
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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_launches_too(bench: Bench) -> None:
    learnt(bench)
    launched = len(bench.seen)
    child = os.fork()
    if child == 0:
        is_launched = (
            bench._replay(arguments(), {}) and bench.compiled(arguments(SECOND)) and len(bench.seen) == launched + 2
        )
        os._exit(0 if is_launched else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(bench.seen) == launched
