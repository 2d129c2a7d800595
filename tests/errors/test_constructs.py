"""Python that has no meaning on a device: the construct and its line."""

from __future__ import annotations

import linecache

import pytest
from tests.helpers.refusals import floats, normalised, refused

import tilewright as tw

CONSTRUCTS = {
    "try": ("try:\n        x[0] = 1\n    finally:\n        pass", "try", "check the condition with if"),
    "match": ("match x:\n        case _:\n            pass", "match", "use if and elif"),
    "global": ("global counter", "global", "return the value, or keep it in a tensor"),
    "del": ("del x", "del", "leave the variable: an unused one costs nothing"),
    "yield": ("yield x", "yield", "a kernel stores its values; an __iter__ returns map(function, range(...))"),
    "yield from": ("yield from x", "yield", "a kernel stores its values; an __iter__ returns map(function, range(...))"),
    "class": ("class Inner:\n        pass", "a class definition", "define it outside of the kernel"),
    "raise": ("raise ValueError", "raise", "use tw.device_assert, or raise in a plain helper function while tracing"),
    "for else": ("for i in range(3):\n        pass\n    else:\n        pass", "else after a loop",
                 "use a variable that says whether the loop was left"),
    "while else": ("while x[0] > 1:\n        pass\n    else:\n        pass", "else after a loop",
                   "use a variable that says whether the loop was left"),
    "walrus": ("while x[1] > 0 and (n := x[0]) > 1:\n        pass", "an assignment (:=) in a condition that may not be computed",
               "assign on a line of its own"),
    "async def": ("async def inner():\n        pass", "async def", "use def"),
    "jump out of with": ("with x:\n        return", "a jump out of a with block", "end the block before the jump"),
}  # fmt: skip


def defined(source: str, name: str = "kernel"):
    """Define a kernel from text, as a notebook cell does."""
    file = f"<ipython-input-{abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    variables = {"tw": tw, "__name__": "__main__"}
    exec(compile(source, file, "exec"), variables)
    return variables[name]


@pytest.mark.parametrize("construct", CONSTRUCTS)
@pytest.mark.parametrize("nested", [False, True])
def test_construct_is_refused_with_its_line(construct, nested):
    body, what, help = CONSTRUCTS[construct]
    if nested:
        body = "if x[0] > 0:\n        " + body.replace("\n", "\n    ")
    kernel = defined(f"@tw.kernel\ndef kernel(x):\n    {body}\n")
    x = floats(1)
    with pytest.raises(tw.LanguageError) as caught:
        kernel[1, 1](x)
    text = str(caught.value)
    assert text.startswith(f"{what} is not possible in a kernel\n")
    assert text.endswith(f"\n  help: {help}")
    line = next(n for n, line in enumerate(body.split("\n")) if line.strip() == text.split("\n")[2].strip())
    assert f":{line + 3}, in kernel:" in text
    assert not x.any()


def test_nonlocal_is_refused():
    kernel = defined(
        "def make():\n    n = 0\n    @tw.kernel\n    def kernel(x):\n        nonlocal n\n        n = 1\n    return kernel\n"
        "kernel = make()\n"
    )
    with pytest.raises(tw.LanguageError, match="nonlocal is not possible in a kernel"):
        kernel[1, 1](floats(1))


def test_assignment_expressions_that_are_always_computed_work():
    @tw.kernel
    def kernel(x):
        if (first := x[0]) > 1:
            x[1] = first
        x[2] = (second := first * 2) + second

    x = floats(3)
    x[0] = 3
    kernel[1, 1](x)
    assert x.tolist() == [3, 3, 12]


@refused(
    tw.LanguageError,
    """
    try is not possible in a kernel
      test_constructs.py:N, in kernel:
        try:
        ^^^^
      help: check the condition with if
    """,
)
def test_the_whole_text():
    @tw.kernel
    def kernel(x):
        try:
            x[0] = 1
        except ValueError:
            pass

    kernel[1, 1](floats(1))


def test_carets_stand_under_the_construct():
    @tw.kernel
    def kernel(x):
        x[0] = yield

    with pytest.raises(tw.LanguageError) as caught:
        kernel[1, 1](floats(1))
    lines = str(caught.value).split("\n")
    assert lines[2:4] == ["    x[0] = yield", "           ^^^^^"]


# --- functions that are no kernels ------------------------------------------------------------------------


@refused(
    tw.LanguageError,
    """
    the source of 'no_source' cannot be read, and a kernel is made from its source
      its text was compiled under the name '<string>', of which Python knows no lines
      help: define the kernel in a file or in a notebook cell; text that a program compiles can be made known before by linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    """,
)
def test_kernel_without_source():
    variables = {}
    exec("def no_source(x):\n    x[0] = 1", variables)
    x = floats(1)
    try:
        tw.kernel(variables["no_source"])[1, 1](x)
    finally:
        assert not x.any()


def test_lambda_as_a_kernel():
    kernel = tw.kernel(lambda x: x)
    with pytest.raises(tw.LanguageError) as caught:
        kernel[1, 1](floats(1))
    assert "is not a def statement of its own" in str(caught.value)
    assert "test_constructs.py" in str(caught.value)


@refused(
    tw.LanguageError,
    """
    @tw.kernel takes a function, got int
    """,
)
def test_kernel_that_is_no_function():
    tw.kernel(3)


@refused(
    tw.LanguageError,
    """
    @tw.kernel takes a function, got staticmethod
      help: put @staticmethod or @classmethod above @tw.kernel, not below it
    """,
)
def test_decorators_in_the_wrong_order():
    tw.kernel(staticmethod(floats))


@refused(
    tw.LanguageError,
    """
    @tw.function takes a function, got classmethod
      help: put @staticmethod or @classmethod above @tw.function, not below it
    """,
)
def test_function_that_is_no_function():
    tw.function(classmethod(floats))


@refused(
    tw.LanguageError,
    """
    the parameters of a kernel come by position, and **arrays stands for any that are named
      test_constructs.py:N, in kernel:
        @tw.kernel
        ^^^^^^^^^^
      help: name each parameter, or take any number of them by position: *arrays
    """,
)
def test_any_number_of_named_parameters():
    @tw.kernel
    def kernel(**arrays):
        pass


@refused(
    tw.LanguageError,
    """
    the parameter 'arrays_1' has the name that an argument of *arrays gets in generated code
      test_constructs.py:N, in kernel:
        @tw.kernel
        ^^^^^^^^^^
      help: give 'arrays_1' or *arrays another name
    """,
)
def test_parameter_named_like_one_of_any_number():
    @tw.kernel
    def kernel(arrays_1, *arrays):
        arrays_1[0] = arrays[0][0]

    x = tw.spec(tw.float32, (4,))
    kernel.source(x, x, x)


def test_normalised_texts_differ_where_texts_do():
    assert normalised("a.py:1") == normalised("a.py:22")
    assert normalised("a") != normalised("b")
