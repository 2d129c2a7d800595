"""Tracebacks show the user's frames only, unless the fault is the package's own."""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc

import tilewright as tw
from tilewright.compile import lower
from tilewright.errors import InternalError
from tilewright.frames import hiding_frames, with_stack
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store
from tilewright.schedule import Array, Nest, Role, Target
from tilewright.source import SourceLocation

PACKAGE = os.path.dirname(tw.__file__)
SHORTENED = pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks cannot be shortened before Python 3.11")


@tw.kernel
def racing(y, x):
    s = tw.shared(tw.float32, 64)
    s[tw.thread_idx.x] = x[tw.thread_idx.x]
    y[tw.thread_idx.x] = s[63 - tw.thread_idx.x]


@tw.kernel
def misspelt(y, x):
    y[0] = no_such_name + x[0]  # noqa: F821  # what the test is about


@tw.kernel
def calling(y, x):
    misspelt(y, x)


@tw.kernel
def without_such_axis(y, x):
    y[tw.thread_idx.w] = x[0]


@tw.kernel
def dividing(y, x):
    y[0] = helper(0) + x[0]


@tw.kernel
def dividing_by_two(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x] / 2


@tw.function
def of_two(a, b):
    return a + b


@tw.kernel
def calling_with_one(y, x):
    y[0] = of_two(x[0])


@tw.kernel
def yielding(y, x):
    def parts():
        yield x[0]

    y[0] = sum(parts())


@tw.kernel
def adding_to_three(y, x):
    y[tw.thread_idx + 1] = x[0]


@tw.kernel
def indexed_by_three(y, x):
    y[tw.block_idx] = x[0]


@tw.kernel
def greatest_of_a_function(y, x):
    y[0] = tw.maximum(helper, x[0])


@tw.kernel
def first_extent(y, x):
    y[0] = x.shape[0]


@tw.kernel
def length(y, x):
    y[0] = len(x)


@tw.autotune(configs=[tw.Config(n=1), tw.Config(n=2)], key=[], progress=False)
@tw.kernel
def tuned(y, x, n: tw.constexpr):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]


def helper(n):
    return 1 // n


@tw.kernel
def asserting(y, x):
    assert len(y.shape) == 2, "y is a matrix"


ARRAYS = (np.zeros(64, np.float32), np.ones(64, np.float32))


def frames(call):
    """Return the file names and functions of the traceback of what a call raises, and of the errors behind it."""
    with pytest.raises(Exception) as caught:  # each case has its own
        call()
    found, error = [], caught.value
    while error is not None:
        found += traceback.extract_tb(error.__traceback__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [(frame.filename, frame.name) for frame in found if frame.filename.startswith((PACKAGE, __file__))]


@SHORTENED
@pytest.mark.parametrize(
    ("kernel", "inner"),
    [
        (racing, []),
        (misspelt, ["misspelt"]),
        (calling, ["calling"]),
        (without_such_axis, ["without_such_axis"]),
        (dividing, ["dividing", "helper"]),
        (asserting, ["asserting"]),
        (calling_with_one, ["calling_with_one"]),  # the call does not fit, whose fault is the caller's
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
@pytest.mark.parametrize("way", ["launch", "source", "analyze", "prepare"])
def test_only_frames_of_the_user_show(kernel, inner, way):
    launcher = kernel[1, 64]
    call = launcher if way == "launch" else getattr(launcher, way)
    if kernel is racing and way in ("source", "prepare"):
        pytest.skip("nothing runs")
    found = frames(lambda: call(*ARRAYS))
    assert [file for file, _ in found if file.startswith(PACKAGE)] == []
    assert [name for _, name in found if name not in ("frames", "<lambda>")] == inner


@SHORTENED
def test_what_a_kernel_may_not_hold_shows_the_call_only():
    """Frames of Python's `ast`, which walks the source for us, stood there: neither ours nor the user's."""
    with pytest.raises(tw.LanguageError, match="yield is not possible in a kernel") as caught:
        yielding[1, 64](*ARRAYS)
    assert [frame.filename for frame in traceback.extract_tb(caught.tb)] == [__file__]


@SHORTENED
@pytest.mark.parametrize(
    ("call", "message", "inner"),
    [
        (lambda: tuned[4], "tuned is launched as tuned\\[grid, block\\]", []),
        (lambda: tuned[1, 64](ARRAYS[0]), "missing a required argument: 'x'", []),
        (lambda: tuned[lambda meta: meta["none"], 64](*ARRAYS), "none", ["<lambda>"]),
        (lambda: tuned[1, "a"](*ARRAYS), "block 'a'", []),
        (lambda: racing.configure(fast=True), "got fast", []),
    ],
)
def test_tuned_and_configured_kernels_hide_their_frames_too(call, message, inner):
    with pytest.raises(Exception, match=message):
        call()
    found = frames(call)
    assert [file for file, _ in found if file.startswith(PACKAGE)] == []
    assert [name for _, name in found if name != "frames"] == ["<lambda>", *inner]


@SHORTENED
def test_a_product_hides_its_frames_too():
    a = np.ones((32, 32), np.float32)
    found = frames(lambda: tw.matmul(a, a, epilogue=lambda x: x if x > 0 else 0))
    assert [file for file, _ in found if file.startswith(PACKAGE)] == []


@SHORTENED
def test_schedules_and_plans_hide_their_frames_too():
    def of_a_new_nest(change):
        A, C = Array(Role.INPUT, tw.float32, (64, 64)), Array(Role.INPUT_OUTPUT, tw.float32, (64, 64))
        nest = Nest((64, 64))
        i, j = nest.get_indices()

        def logic():
            C[i, j] = A[i, j] + C[j, i]

        nest.iteration_logic(logic)
        return change(nest.create_schedule(), i, j)

    changes = (
        lambda schedule, i, j: schedule.split(i, 0),
        lambda schedule, i, j: schedule.reorder(j, i),
        lambda schedule, i, j: schedule.create_plan(Target("H200")).bind({i: 3}),
        lambda schedule, i, j: schedule.create_plan(Target("H200")).build(5),
        lambda schedule, i, j: schedule.create_plan(Target("H200")).build()(np.zeros(3)),
    )
    for change in changes:
        found = frames(lambda change=change: of_a_new_nest(change))
        assert [file for file, _ in found if file.startswith(PACKAGE)] == []


def test_debugging_shows_all(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    assert any(file.startswith(PACKAGE) for file, _ in frames(lambda: misspelt[1, 64](*ARRAYS)))


def test_faults_of_the_package_show_all(monkeypatch):
    def broken(*args):
        raise KeyError("ours")

    def found_out(*args):
        raise InternalError("ours")

    ours = os.path.join(PACKAGE, "imagined.py")
    for fault in (broken, found_out):
        code = compile("def call(fault): fault()", ours, "exec")
        module = types.ModuleType("imagined")
        exec(code, vars(module))
        inner = types.FunctionType(fault.__code__.replace(co_filename=ours), {"InternalError": InternalError})
        found = frames(lambda inner=inner, module=module: hiding_frames(module.call)(inner))
        assert [name for file, name in found if file == ours] == ["call", fault.__name__]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (calling, "decorate misspelt with @tw.function"),
        (without_such_axis, "its axes are x, y and z"),
        (adding_to_three, "three indices are used as one number: (.*\n)*.*write tw.thread_idx.x"),
        (indexed_by_three, "tw.block_idx is not an integer: (.*\n)*.*write tw.block_idx.x"),
        (greatest_of_a_function, "tw.maximum takes numbers and tensors, got <function helper"),
    ],
)
def test_errors_say_the_way_out(kernel, text):
    with pytest.raises(tw.LanguageError, match=text):
        kernel[1, 64](*ARRAYS)


@pytest.mark.parametrize(
    ("kernel", "arguments", "text"),
    [
        (racing, (ARRAYS[0], 5), r"a number is indexed like an array\n.*\n.*x\["),
        (racing, (5, ARRAYS[1]), r"a device value indexes what is not an array\n(.*\n)*.*pass an array"),
        (racing, (ARRAYS[0], [1.0, 2.0]), r"a device value indexes what is not an array\n(.*\n)*.*a list or a tuple"),
        (first_extent, (ARRAYS[0], 5), r"a number has no 'shape', which arrays have\n(.*\n)*.*has x\.shape"),
        (length, (ARRAYS[0], 5), r"a number has no length\n(.*\n)*.*has len\(x\)"),
    ],
)
def test_a_number_in_place_of_an_array_is_named(kernel, arguments, text):
    with pytest.raises(tw.LanguageError, match=text):
        kernel[1, 64](*arguments)


def test_findings_are_check_errors():
    with pytest.raises(tw.CheckError) as caught:
        racing[1, 64](*ARRAYS)
    assert type(caught.value) is tw.CheckError
    assert [finding.kind for finding in caught.value.findings] == ["race"]


def test_cells_of_notebooks_are_called_as_ipython_calls_them(monkeypatch):
    names = {"/tmp/cell.py": ("Cell", "In[3]")}
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert str(SourceLocation("/tmp/cell.py", 2, "kernel")) == "In [3]:2"
    assert str(SourceLocation("/tmp/other.py", 2, "kernel")) == "other.py:2"


@SHORTENED
def test_frames_of_python_between_ours_are_hidden_and_those_of_the_user_shown():
    """`functools` and `contextlib` call functions of ours for us; where the user calls theirs, Python shows it."""

    def misspelt_later():
        return functools.singledispatch(lambda x: tw.make_layout(x))(object())

    class Later:
        @functools.cached_property
        def broken(self):
            raise tw.LayoutError("of the package")

    file = os.path.join(PACKAGE, "imagined.py")
    names = {"Later": Later}
    exec(compile("def call(later=None): return (later or Later()).broken", file, "exec"), names)
    Later.broken.func.__code__ = Later.broken.func.__code__.replace(co_filename=file)
    for call, expected in ((misspelt_later, 1), (hiding_frames(names["call"]), 0)):
        with pytest.raises(tw.LayoutError) as caught:
            call()
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files.count(functools.__file__) == expected
        assert not any(file.startswith(PACKAGE) for file in files)


@needs_nvrtc
def test_warnings_of_the_cache_name_the_line_of_the_user(monkeypatch, tmp_path):
    """However many calls of the package lie between: a warning that names one of its files says nothing."""
    unusable = tmp_path / "file"
    unusable.write_text("not a folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(unusable))
    with pytest.warns(tw.TilewrightWarning, match="the kernel cache .* cannot be used") as caught:
        dividing_by_two[1, 64].resources(*ARRAYS, arch="sm_80")
    assert [warning.filename for warning in caught] == [__file__]


def test_warnings_of_the_store_name_the_line_of_the_user(tmp_path):
    path = tmp_path / "tuning.sqlite"
    path.write_bytes(b"no database" * 400)
    ours = compile(
        "def tune(call, *args, **named): return call(*args, **named)", os.path.join(PACKAGE, "imagined.py"), "exec"
    )
    names = {}
    exec(ours, names)
    with pytest.warns(tw.TilewrightWarning, match="is damaged") as caught:
        names["tune"](
            names["tune"],
            Store(path).keep,
            Place("GPU", "580", "abc", "n=4"),
            Winner("BM=1", 0.5),
            name="product",
            trials=[],
        )
    assert [warning.filename for warning in caught] == [__file__]


def test_only_one_function_warns():
    """A number of frames that is written down is wrong after the next change."""
    texts = {path: path.read_text(encoding="utf-8") for path in pathlib.Path(PACKAGE).rglob("*.py")}
    assert [path.name for path, text in texts.items() if "warnings.warn" in text] == ["frames.py"]


@SHORTENED
def test_no_frame_of_ours_where_a_decorator_refuses():
    with pytest.raises(tw.ArgumentError) as caught:
        tw.autotune([])(misspelt)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_no_frame_of_ours_where_a_decorator_refuses"]


def test_an_unknown_backend_is_refused(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "banana")
    with pytest.raises(tw.ArgumentError, match="TILEWRIGHT_BACKEND is 'banana'"):
        misspelt[1, 32](*(np.zeros(3, np.float32), np.zeros(5, np.float32)))


@tw.kernel
def calling_in_a_branch(y, x):
    def scaled(value):
        return value * 2

    if tw.thread_idx.x < 3:
        for i in range(tw.thread_idx.x):
            y[i] = scaled()


def test_parts_of_a_kernel_are_called_as_the_user_called_them():
    """Neither the frames of a branch or loop nor a function in the kernel have names that the rewriter made."""
    with pytest.raises(TypeError) as caught:
        calling_in_a_branch[1, 32](np.zeros(32, np.float32), np.zeros(32, np.float32))
    text = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "calling_in_a_branch.<locals>.scaled() missing 1 required positional argument" in text
    assert "__in__" not in text and "__tilewright" not in text
    names = [frame.name for frame in traceback.extract_tb(caught.tb) if frame.filename == __file__]
    assert names[1:] == ["calling_in_a_branch"] * len(names[1:]) and len(names) > 2


@tw.kernel
def comparing_in_a_reduction(y, x):
    row = tw.registers(tw.float32, 4)
    row[:] = x[0]
    y[0] = row.reduce(lambda a, b: a > b)


def test_messages_name_bool_as_it_is_written():
    """`tw.bool` is not a name, so no message may tell somebody to write it."""
    with pytest.raises(tw.ArgumentError, match=r"tw\.bool_ converts numbers") as refused:
        tw.bool_("yes")
    with pytest.raises(tw.LanguageError, match=r"t\.to\(tw\.bool_\)") as traced:
        comparing_in_a_reduction[1, 1](np.zeros(1, np.float32), np.zeros(1, np.float32))
    assert not any("tw.bool " in f"{e.value} " or "tw.bool)" in str(e.value) for e in (refused, traced))


# --- room for frames -----------------------------------------------------------------------------------


def _called(x: int) -> int:
    return x


_called.__code__ = _called.__code__.replace(co_stacksize=64)  # more than a step of depth: it meets each border


def _calls_at(depth: int, times: int) -> int:
    if depth:
        return _calls_at(depth - 1, times)
    return sum(map(_called, range(times)))


def _most_faults(call: Callable[[int, int], int]) -> int:
    """Return how many pages the system hands out at most where a function is called often, at each of some depths."""
    resource = pytest.importorskip("resource")
    most = 0
    for depth in range(160):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call(depth, 400)
        most = max(most, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return most


@pytest.mark.skipif(sys.version_info < (3, 11), reason="each frame is an object of its own before Python 3.11")
@pytest.mark.skipif(sys.implementation.name != "cpython" or sys.platform != "linux", reason="as CPython does on Linux")
def test_calls_in_loops_ask_for_no_memory_again_and_again() -> None:
    def roomy(depth: int, times: int) -> int:
        return _calls_at(depth, times)

    with_stack(roomy)
    assert _most_faults(roomy) < 200
    assert _most_faults(_calls_at) >= 400, "else CPython needs no help any more"


@pytest.mark.parametrize("function", [lower, sys.modules["tilewright.backends.sim.execute"].execute])
def test_traces_and_simulations_have_room_for_frames(function: types.FunctionType) -> None:
    assert function.__code__.co_stacksize > 10_000
