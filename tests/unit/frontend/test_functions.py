"""Kernels and helpers as Python makes them: closures, methods, functions built in a loop, defaults, notebook cells."""

from __future__ import annotations

import ast
import dataclasses
import linecache
import operator
import sys
import types

import numpy as np
import pytest
from tests.helpers.language import run, zeros

import tilewright as tw
from tilewright.frontend.captures import UNASSIGNED, captured_variables
from tilewright.frontend.syntax import captured

SCALE = 3
TILE = (2, 2)


@tw.function
def clamp(x, low, high=5):
    """Limit x."""
    if x < low:
        return low
    return high if x > high else x


def twice(x):
    return x + x


@tw.function
def twice_clamped(x, *, low):
    return clamp(twice(x), low)


@tw.kernel
def helpers(out):
    i = tw.thread_idx.x
    out[i] = twice_clamped(i, low=2) + twice(1)


def test_helpers_call_helpers():
    assert run(helpers, zeros(4), block=4).tolist() == [4, 4, 6, 7]


def test_function_outside_of_a_kernel_is_the_plain_function():
    assert clamp(9, 0) == 5
    assert clamp.__doc__ == "Limit x."
    assert clamp.__name__ == "clamp"


def test_recursion_that_ends_while_tracing():
    @tw.function
    def power(x, n):
        if n == 0:
            return 1.0
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    @tw.kernel
    def powers(out, x):
        for n in tw.static_range(5):
            out[n] = power(x, n)

    assert run(powers, zeros(5, np.float32), 3.0).tolist() == [1, 3, 9, 27, 81]


def test_lambda_and_nested_function():
    @tw.kernel
    def nested(out, n):
        i = tw.thread_idx.x
        shift = lambda x, by=i: x + by  # noqa: E731

        def total(limit):
            result = 0
            for k in range(limit):
                if k == 3:
                    continue
                result += k * n
            return result

        out[i] = shift(total(i)) + (lambda x: x if x < 2 else 100)(i)

    def expected(i, n):
        return sum(k * n for k in range(i) if k != 3) + i + (i if i < 2 else 100)

    assert run(nested, zeros(6), 2, block=6).tolist() == [expected(i, 2) for i in range(6)]


def test_kernels_built_in_a_loop():
    kernels = []
    for operation in (operator.add, operator.mul):

        @tw.kernel
        def combine(out, a, b, operation=operation):
            out[0] = operation(a, b)

        @tw.kernel
        def closed(out, a, b):
            out[0] = kept(a, b)

        kept = operation
        kernels.append((combine, closed))

    def make(operation):
        @tw.kernel
        def made(out, a, b):
            out[0] = operation(a, b)

        return made

    made = [make(operator.sub), make(operator.floordiv)]
    assert [run(k, zeros(1), 7, 2).tolist() for k in made] == [[5], [3]]
    assert run(kernels[0][1], zeros(1), 7, 2).tolist() == [14]  # the closure sees the last one, as in Python


def test_default_and_keyword_arguments():
    @tw.kernel
    def defaults(out, a, b=10, *, c: tw.constexpr = 100):
        out[0] = a + b
        out[1] = c

    assert run(defaults, zeros(2), 1).tolist() == [11, 100]
    assert run(defaults, zeros(2), 1, 2).tolist() == [3, 100]
    out = zeros(2)
    defaults[1, 1](out, b=5, a=1, c=7)
    assert out.tolist() == [6, 7]


def test_none_is_a_compile_time_argument():
    @tw.kernel
    def optional(out, bias=None):
        i = tw.thread_idx.x
        if bias is not None:
            out[i] += bias[i]
        else:
            out[i] = -1

    assert run(optional, zeros(2), np.array([3, 4], np.int32), block=2).tolist() == [3, 4]
    assert run(optional, zeros(2), block=2).tolist() == [-1, -1]


@dataclasses.dataclass(frozen=True)
class Config:
    tile: int
    __private: int = 2

    @tw.kernel
    def kernel(self, out, x):
        i = tw.thread_idx.x
        if i < self.tile:
            out[i] = self.scaled(x[i]) + self.__private

    @tw.function
    def scaled(self, x):
        if x > 2:
            return x * self.tile
        return x

    @staticmethod
    @tw.kernel
    def static(out, n):
        out[0] = n

    @classmethod
    def launch(cls, out, n):
        cls.static[1, 1](out, n)


def test_kernel_as_a_method():
    x = np.array([1, 2, 3, 4], np.int32)
    assert run(Config(3).kernel, zeros(4), x, block=4).tolist() == [3, 4, 11, 0]
    assert run(Config(2).kernel, zeros(4), x, block=4).tolist() == [3, 4, 0, 0]
    out = zeros(1)
    Config.launch(out, 8)
    assert out.tolist() == [8]


def test_equal_objects_share_what_was_compiled():
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counted:
        n: int

        @tw.kernel
        def kernel(self, out):
            traces.append(self.n)
            out[0] = self.n

    for n in (1, 1, 2, 1):
        assert run(Counted(n).kernel, zeros(1)).tolist() == [n]
    assert traces == [1, 2]


def test_configured_kernels_share_what_was_compiled():
    traces = []

    @tw.kernel
    def counted(out):
        traces.append(0)
        out[0] = 1

    for _ in range(3):
        run(counted.configure(stream=None), zeros(1))
        run(counted, zeros(1))
    assert len(traces) == 1


def test_method_that_uses_super():
    class Base:
        def value(self):
            return 4

    class Derived(Base):
        @tw.kernel
        def kernel(self, out):
            out[0] = super().value()

    assert run(Derived().kernel, zeros(1)).tolist() == [4]


def test_super_in_blocks_of_a_method():
    """Blocks become functions, whose first argument is not the object."""

    class Base:
        def scaled(self, x):
            return x * 4

    class Derived(Base):
        @tw.function
        def scaled(me, x):  # whatever it is called
            if x > 2:
                return super().scaled(x)
            total = 0
            for _ in range(x):
                total += x > 0 and super().scaled(1) > 0
            return total + (lambda other: super().scaled(100))(me)

        @tw.kernel
        def kernel(self, out):
            out[tw.thread_idx.x] = self.scaled(tw.thread_idx.x)

    assert run(Derived().kernel, zeros(4), block=4).tolist() == [400, 401, 402, 12]


# --- what is captured -----------------------------------------------------------------------------------


def helper():
    return SCALE * 10


@tw.kernel
def reads_globals(out):
    out[0] = SCALE
    out[1] = TILE[0] + TILE[1]
    out[2] = helper()


def test_changed_globals_are_seen(monkeypatch):
    module = sys.modules[__name__]
    assert run(reads_globals, zeros(3)).tolist() == [3, 4, 30]
    monkeypatch.setattr(module, "SCALE", 4)
    assert run(reads_globals, zeros(3)).tolist() == [4, 4, 40]
    monkeypatch.setattr(module, "TILE", (5, 6))
    assert run(reads_globals, zeros(3)).tolist() == [4, 11, 40]
    monkeypatch.setattr(module, "helper", lambda: 1)
    assert run(reads_globals, zeros(3)).tolist() == [4, 11, 1]
    monkeypatch.undo()
    assert run(reads_globals, zeros(3)).tolist() == [3, 4, 30]


def test_changed_closure_is_seen_by_every_block_size():
    value = 1

    @tw.kernel
    def closure(out):
        out[tw.thread_idx.x] = value

    assert run(closure, zeros(1)).tolist() == [1]
    assert run(closure, zeros(2), block=2).tolist() == [1, 1]
    value = 2
    assert run(closure, zeros(2), block=2).tolist() == [2, 2]
    assert run(closure, zeros(1)).tolist() == [2]


def test_equal_constants_of_another_type_are_other_constants(monkeypatch):
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "SCALE", 1)

    @tw.kernel
    def half(out):
        out[0] = SCALE / 2

    @tw.kernel
    def typed(out):
        out[0] = 10 if isinstance(SCALE, bool) else 20

    assert run(typed, zeros(1)).tolist() == [20]
    monkeypatch.setattr(module, "SCALE", True)
    assert run(typed, zeros(1)).tolist() == [10]


def test_unchanged_captures_do_not_trace_again():
    traces = []
    layout = tw.Layout((2, 2))

    @tw.kernel
    def counted(out):
        traces.append(layout)
        out[0] = 1

    for _ in range(3):
        run(counted, zeros(1))
        layout = tw.Layout((2, 2))  # another object, equal to the first
    assert len(traces) == 1


@pytest.mark.parametrize("reads", ["body", "lambda", "comprehension", "nested class"])
def test_a_global_that_only_an_inner_scope_reads_is_watched(monkeypatch, reads):
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "SCALE", 2)

    def in_body():
        return SCALE

    def in_lambda():
        return (lambda: SCALE)()

    def in_comprehension():
        return [SCALE for _ in range(1)][0]

    def in_class():
        class Outer:
            class Inner:
                value = SCALE

        return Outer.Inner.value

    read = {"body": in_body, "lambda": in_lambda, "comprehension": in_comprehension, "nested class": in_class}[reads]

    @tw.kernel
    def scaled(out):
        out[0] = read()

    assert run(scaled, zeros(1)).tolist() == [2]
    monkeypatch.setattr(module, "SCALE", 3)
    assert run(scaled, zeros(1)).tolist() == [3]


def test_captured_variables_are_named_with_their_values_and_holders():
    before = 1

    def function():
        return before, late, SCALE, np.pi, len

    variables = {variable.name: variable for variable in captured_variables(function)}
    assert set(variables) == {"before", "late", "SCALE", "np"}  # a builtin is not a variable of the module
    assert variables["before"].value == 1 and variables["before"].holder is function.__closure__[0]
    assert variables["SCALE"].holder is function.__globals__
    assert variables["late"].value is UNASSIGNED
    late = 2
    assert [variable.value for variable in captured_variables(function)][:2] == [1, 2]


# --- where the source comes from ------------------------------------------------------------------------


def notebook_cell(source: str, number: int = 1) -> dict:
    """Run a cell as IPython does: compiled under a name of its own, with its source in the line cache."""
    name = f"<ipython-input-{number}-0123456789ab>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    variables = {"__name__": "__main__", "tw": tw}
    exec(compile(source, name, "exec"), variables)
    return variables


def test_kernel_of_a_notebook_cell():
    cell = notebook_cell(
        "factor = 3\n@tw.kernel\ndef cell_kernel(out):\n    for i in range(4):\n        out[i] = factor * i\n"
    )
    assert run(cell["cell_kernel"], zeros(4)).tolist() == [0, 3, 6, 9]
    cell["factor"] = 5
    assert run(cell["cell_kernel"], zeros(4)).tolist() == [0, 5, 10, 15]


def test_error_of_a_notebook_cell_shows_its_line():
    cell = notebook_cell("@tw.kernel\ndef broken(out):\n    out[0] = tw.thread_idx.x + 'a'\n", number=2)
    with pytest.raises(tw.LanguageError) as caught:
        run(cell["broken"], zeros(2), block=2)
    assert "out[0] = tw.thread_idx.x + 'a'" in str(caught.value)


def test_file_names_and_comments_of_any_shape():
    @tw.kernel  # a comment
    # another
    def odd(
        out,  # the output
        n: tw.constexpr = 2,
    ):
        """A docstring with lines
        that stand further left."""
        text = """
left
"""
        # a comment at the margin
        out[0] = len(text) + n

    assert run(odd, zeros(1)).tolist() == [8]


def test_globals_assigned_after_the_kernel():
    module = types.ModuleType("later_module")
    source = "import tilewright as tw\n@tw.kernel\ndef later(out):\n    out[0] = LATER\n"
    name = "<ipython-input-9-later>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), module.__dict__)
    with pytest.raises(NameError, match="LATER"):
        run(module.later, zeros(1))
    module.LATER = 6
    assert run(module.later, zeros(1)).tolist() == [6]
    module.LATER = 7
    assert run(module.later, zeros(1)).tolist() == [7]


def test_grid_as_a_function_of_the_arguments():
    @tw.kernel
    def fill(x, tile: tw.constexpr):
        i = tw.block_idx.x * tile + tw.thread_idx.x
        if i < x.size:
            x[i] = i + 1

    x = zeros(10)
    fill[lambda x, tile: -(-x.size // tile), 4](x, 4)
    assert x.tolist() == list(range(1, 11))


def test_prepared_launch_and_lists_as_grid_and_block():
    @tw.kernel
    def add(x):
        x[tw.block_idx.x * 4 + tw.thread_idx.x] += 1

    x = zeros(8)
    launch = add[[2], [4, 1]].prepare(x)
    launch()
    launch()
    assert x.tolist() == [2] * 8


def test_code_of_a_kernel_without_arguments_of_its_own():
    @tw.kernel
    def plain(x):
        x[0] = 1

    assert plain.__name__ == "plain"
    assert repr(plain).startswith("<kernel test_code_of_a_kernel")
    with pytest.raises(tw.ArgumentError, match=r"write plain\[grid, block\]"):
        plain(zeros(1))


def test_decorated_function_inside_a_kernel():
    @tw.kernel
    def outer(out, n):
        scale = n * 2

        @tw.function
        def steps(limit):
            for k in range(limit):
                if k * scale > 7:
                    return k
            return -1

        out[tw.thread_idx.x] = steps(tw.thread_idx.x)

    assert run(outer, zeros(6), 1, block=6).tolist() == [-1, -1, -1, -1, -1, 4]


def test_statements_that_stay_plain_python():
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def section(name):
        seen.append(name)
        yield name
        seen.append("end")

    @tw.kernel
    def plain(out, x):
        """Only a docstring first."""
        import math as mathematics

        first, *others = (1, 2, 3)
        a = b = first
        with section("one") as name:
            for i, (left, right) in enumerate([(1, 2), (3, 4)]):
                out[i] = left * right
            if x > 0:
                out[2] = len(name)
        text = f"{len(others)!r:>3}"
        out[3] = a + b + len(text) + mathematics.floor(2.7)
        {"key": out}["key"][4] = [*others, 9][-1]
        ...

    assert run(plain, zeros(5), 1).tolist() == [2, 12, 3, 7, 9]
    assert seen == ["one", "end"]


def test_kernel_with_an_empty_body():
    @tw.kernel
    def empty(out):
        """Do nothing."""

    @tw.kernel
    def passed(out):
        pass

    for kernel in (empty, passed):
        assert run(kernel, zeros(1)).tolist() == [0]


@tw.function
def product_down(x, n):
    if n == 0:
        return x
    return product_down(x, n - 1) * n


def test_a_function_may_call_itself_by_its_global_name():
    @tw.kernel
    def apply(x):
        x[tw.thread_idx.x] = product_down(x[tw.thread_idx.x], 4)

    x = np.full(2, 2, np.int32)
    apply[1, 2](x)
    assert x.tolist() == [48, 48]


def test_messages_call_a_function_by_its_own_name():
    """Python's own message had `__tilewright_factory.<locals>` and a name of the rewritten function in it."""

    @tw.function
    def both(a, b):
        return a if a > 0 else b

    @tw.kernel
    def lacking(x):
        x[0] = both(1)

    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        lacking[1, 32](np.zeros(32, np.float32))
    assert "tilewright_factory" not in str(caught.value) and "both()" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def f(k, *rows, step=n, **more):\n    x = k + y\n    return x, rows, more, step", {"n", "y"}),
        ("def f(a, k=a):\n    return k", {"a"}),  # of the function around, when it is defined
        ("def f():\n    nonlocal total\n    total = total + y", {"total", "y"}),
        ("def f(k):\n    def g():\n        nonlocal k, z\n        k = z\n    return g", {"k", "z"}),
        ("lambda k: k + y", {"y"}),
        ("(k + y for k in rows)", {"k", "y", "rows"}),  # generators run in the function around, in part
    ],
)
def test_what_a_nested_function_has_for_itself_is_not_captured(text, names):
    """Or a loop whose index has the name of a parameter carries the index, and is traced twice."""
    assert captured(ast.parse(text).body) == names
