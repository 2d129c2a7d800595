"""Whatever is wrong with the arguments of a public name, the traceback ends at the user's call."""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import inspect
import itertools
import operator
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule import Array, Nest, Role

ROOMS = ("", *(f".{name}" for name in tw._SUBMODULES))
PACKAGE = os.path.dirname(tw.__file__)
SHORTENED = pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks cannot be shortened before Python 3.11")

# What functions return, and users do not make: their arguments are this package's own.
RESULTS = {"Comparison", "Race", "Timing", "ScheduledKernel"}
# A bad argument of another kind each: of no known type, of a wrong number, out of range, a text.
ARGUMENTS: tuple[Any, ...] = (object(), (object(), 3), -1, "no such thing", None, 2.5)


def public_callables() -> Iterator[tuple[str, Any]]:
    for room in ROOMS:
        module = importlib.import_module(f"tilewright{room}")
        for name in module.__all__:
            value = getattr(module, name)
            is_special = isinstance(value, type) and issubclass(value, (BaseException, enum.Enum))
            if callable(value) and not inspect.ismodule(value) and not is_special and name not in RESULTS:
                yield f"tw{room}.{name}", value


CALLABLES = dict(public_callables())


def error_of(function: Any, *arguments: object) -> Exception | None:
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def ours(error: BaseException) -> list[str]:
    """Return the frames of this package in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.name}" for frame in frames if frame.filename.startswith(PACKAGE)]


@SHORTENED
@pytest.mark.quick
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the square root of -1
def test_no_frame_of_ours_below_the_users() -> None:
    """Law: for every public callable and every bad argument, the error is the package's or a TypeError, without frames."""
    wrong = []
    for (name, function), argument in itertools.product(CALLABLES.items(), ARGUMENTS):
        for count in (1, 2, 3):
            error = error_of(function, *[argument] * count)
            if error is None:
                continue
            if not isinstance(error, (tw.TilewrightError, TypeError)) or ours(error):
                wrong.append(f"{name}({', '.join([repr(argument)] * count)}): {error!r} {ours(error)}")
    assert not wrong, "\n".join(wrong)


@SHORTENED
@pytest.mark.parametrize(
    "call",
    [
        lambda: tw.Layout((4, 8))("x"),
        lambda: tw.layout.make_swizzle("x", 8),
        lambda: tw.Layout((4, 8)).coalesce("x"),
        lambda: tw.float32("x"),
        lambda: tw.identity_tensor((4, 8))["x"],
        lambda: tw.maximum(1),
        lambda: tw.ex2_approx(1, 2),
        lambda: tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), tw.Layout(2)).tile_size("x"),
    ],
)
def test_methods_and_calls_that_do_not_fit_hide_theirs_too(call: Any) -> None:
    error = error_of(call)
    assert error is not None
    assert ours(error) == []


def test_debugging_shows_the_frames_of_public_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    error = error_of(tw.make_layout, object())
    assert error is not None
    assert len(ours(error)) > 1


@SHORTENED
def test_a_wrong_call_inside_of_the_package_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that do not fit are the fault of the caller; where that is this package, it is seen."""
    divide = tw.layout.zipped_divide
    monkeypatch.setitem(divide.__wrapped__.__globals__, "logical_divide", tw.layout.size)  # of one argument
    error = error_of(divide, tw.Layout(4), 2)
    assert isinstance(error, TypeError)
    assert ours(error)


@pytest.mark.parametrize("name", [name for name, value in CALLABLES.items() if inspect.isfunction(value)])
def test_public_functions_are_found_by_name(name: str) -> None:
    """A function that hides its frames is the one that its module holds, or it could not be pickled."""
    assert pickle.loads(pickle.dumps(CALLABLES[name])) is CALLABLES[name]


@tw.kernel
def copying(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]


def public_objects() -> dict[str, Any]:
    """Return an object of each kind that users compute with outside of kernels."""
    data = np.ones(64, np.float32)
    array = Array(Role.INPUT_OUTPUT, tw.float32, (8, 8), name="A")
    nest = Nest((8, 8))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _():
        array[i, j] += 1.0

    return {
        "layout": tw.Layout((4, 8)),
        "swizzle": tw.Swizzle(3, 0, 3),
        "composed": tw.composition(tw.Swizzle(2, 0, 2), tw.Layout((4, 4))),
        "coordinates": tw.identity_tensor((4, 8)),
        "tensor": tw.tensor(data),
        "dtype": tw.float32,
        "mma": tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), tw.Layout((2, 2, 1))),
        "index": i,
        "sum": i + 2 * j,
        "array": array,
        "element": array[i, j],
        "value": array[i, j] + 1.0,
        "nest": nest,
        "plan": nest.create_schedule().create_plan(),
        "kernel": copying,
        "launcher": copying[1, 64],
        "prepared": copying[1, 64].prepare(data, data.copy()),
        "thread": tw.thread_idx,
        "space": tw.Space(a=[1, 2]),
    }


OBJECTS = public_objects()
NAMES_OF_OPERATORS = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift lt le gt ge eq ne getitem"
BINARY = [*(getattr(operator, name) for name in NAMES_OF_OPERATORS.split()), operator.contains, operator.iadd, divmod]
UNARY = [
    *(len, iter, list, bool, int, float, complex, abs, round, operator.neg, operator.pos, operator.invert),
    *(operator.index, copy.deepcopy, pickle.dumps, lambda x: x.x, lambda x: x.w),
    *(lambda x: x(), lambda x: setattr(x, "no_such_field", 1), lambda x: x.__setitem__(object(), 1)),
    *(lambda x: x.__delitem__(0), lambda x: x.tile_of("Z"), lambda x: x.tensorize(3), lambda x: x.bind()),
    *(lambda x: x.get_hier_coord("x"), lambda x: x.get_flat_coord(None)),
]


@SHORTENED
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")  # NumPy's, and invert of a bool
@pytest.mark.parametrize("name", OBJECTS)
def test_operators_hide_theirs_too(name: str) -> None:
    """Law: whatever an operator meets, its error ends at the user's line: operators of a kind are all alike in that."""
    x = OBJECTS[name]
    operands = (object(), "x", None, -1, 2.5, (1, 2), [], {}, (object(),), np.ones(3), tw.Layout(4))
    calls = [(f, (x, other)) for f in BINARY for other in operands]
    calls += [(f, (other, x)) for f in BINARY for other in operands]
    calls += [(f, (x,)) for f in UNARY]
    wrong = []
    for function, arguments in calls:
        error = error_of(function, *arguments)
        if error is not None and ours(error):
            wrong.append(f"{function.__name__}{arguments}: {error!r} {ours(error)}")
    assert not wrong, "\n".join(wrong)


@SHORTENED
def test_errors_that_no_raise_asked_for_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is raised on purpose is the user's; one that happens in the package shows where."""
    layout = tw.Layout((4, 8))
    error = error_of(lambda: layout[5])
    assert isinstance(error, IndexError) and not ours(error)
    names = type(layout).__getitem__.__wrapped__.__globals__
    for broken in (operator.attrgetter("no_such_name"), len, functools.partial(operator.getitem, [])):
        monkeypatch.setitem(names, "modes_of", broken)
        error = error_of(lambda: layout[0])
        assert isinstance(error, (AttributeError, TypeError)) and ours(error)
