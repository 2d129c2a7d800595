"""Variables that have no value or change what they are: the whole text of each error, with the line and what to do."""

from __future__ import annotations

from tests.helpers.refusals import refused

import tilewright as tw

X = tw.spec("float32", 1)


def trace(kernel, *args):
    kernel.lower(X, *args)


@refused(
    tw.LanguageError,
    """
    variable 'scale' may have no value here: it is assigned in only one branch of an if
      test_variables.py:N, in kernel:
        x[0] = scale
               ^^^^^
      help: assign 'scale' before, so that it has a value on every path
    """,
)
def test_variable_defined_in_only_one_branch():
    @tw.kernel
    def kernel(x, n):
        if n > 0:
            scale = 2
        x[0] = scale

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    variable 'scale' may have no value here: it is not assigned before this point
      test_variables.py:N, in kernel:
        x[0] = scale
               ^^^^^
      help: assign 'scale' before, so that it has a value on every path
    """,
)
def test_variable_defined_in_a_branch_that_is_not_taken():
    @tw.kernel
    def kernel(x, flag: tw.constexpr):
        if flag:
            scale = 2
        x[0] = scale

    trace(kernel, False)


@refused(
    tw.LanguageError,
    """
    variable 'last' may have no value here: it is assigned only inside a loop, which may not run at all
      test_variables.py:N, in kernel:
        x[0] = last
               ^^^^
      help: assign 'last' before, so that it has a value on every path
    """,
)
def test_variable_defined_only_inside_a_loop():
    @tw.kernel
    def kernel(x, n):
        for i in range(n):
            last = i
        x[0] = last

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    variable 'total' may have no value here: it is not assigned before this point
      test_variables.py:N, in kernel:
        total += i  # noqa: F821
        ^^^^^
      help: assign 'total' before, so that it has a value on every path
    """,
)
def test_variable_changed_before_it_has_a_value():
    @tw.kernel
    def kernel(x, n):
        for i in range(n):
            total += i  # noqa: F821
        x[0] = 1

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    variable 'total' changes in the loop: it is int32 before it and float32 after an iteration
      test_variables.py:N, in kernel:
        for i in range(n):
        ^^^^^^^^^^^^^^^^^
      help: give it the type and layout of the later iterations before the loop, for example with tw.float32(0)
    """,
)
def test_loop_that_changes_a_type():
    @tw.kernel
    def kernel(x, n):
        total = tw.int32(0)
        for i in range(n):
            total = total + x[i]
        x[0] = total

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    variable 'value' changes in the loop: it is None before it and float32 after an iteration
      test_variables.py:N, in kernel:
        while n > 0:
        ^^^^^^^^^^^
      help: give it the type and layout of the later iterations before the loop, for example with tw.float32(0)
    """,
)
def test_loop_that_changes_none_to_a_value():
    @tw.kernel
    def kernel(x, n):
        value = None
        while n > 0:
            value = x[0]
            n -= 1
        x[0] = value

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    variable 'view' changes in the loop: it is a global tensor of float32 with layout (?):(1) before it and a global tensor of float32 with layout (?):(?) after an iteration
      test_variables.py:N, in kernel:
        for _ in range(n):
        ^^^^^^^^^^^^^^^^^
      help: give it the type and layout of the later iterations before the loop, for example with tw.float32(0)
    """,
)
def test_loop_that_changes_a_layout():
    @tw.kernel
    def kernel(x, n):
        view = x[0, :]
        for _ in range(n):
            view = x[:, 0]
        x[0, 0] = view[0]

    kernel.lower(tw.spec("float32", 2), 1)


@refused(
    tw.LanguageError,
    """
    variable 'value' is bool in one branch and float32 in the other
      test_variables.py:N, in kernel:
        if n > 0:
        ^^^^^^^^
      help: give both branches the same type and layout: convert one, for example with tw.float32(x)
    """,
)
def test_branches_that_disagree():
    @tw.kernel
    def kernel(x, n):
        if n > 0:
            value = x[0] > 1
        else:
            value = x[0]
        x[0] = value

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    the value of a conditional expression is float32 in one branch and None in the other
      test_variables.py:N, in kernel:
        x[0] = x[0] if n > 0 else None
               ^^^^^^^^^^^^^^^^^^^^^^^
      help: give both branches the same type and layout: convert one, for example with tw.float32(x)
    """,
)
def test_conditional_expression_that_disagrees():
    @tw.kernel
    def kernel(x, n):
        x[0] = x[0] if n > 0 else None

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    a function returns int32 on one path and None on another
      test_variables.py:N, in positive:
        if n > 0:
        ^^^^^^^^
      called from test_variables.py:N, in kernel:
        x[0] = positive(n)
               ^^^^^^^^^^^
      help: return values of one type on every path, the end of the function included
    """,
)
def test_function_without_a_value_on_one_path():
    @tw.function
    def positive(n):
        if n > 0:
            return n

    @tw.kernel
    def kernel(x, n):
        x[0] = positive(n)

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    the list 'sums' changes its size or keys in a loop on the device: it has 0 items before it and 1 items after it
      test_variables.py:N, in kernel:
        for i in range(n):
        ^^^^^^^^^^^^^^^^^
      help: keep values in tw.registers or a tensor, with a variable that counts them; or loop with tw.static_range, which runs while tracing, where lists and dicts may grow
    """,
)
def test_list_that_grows_inside_a_loop():
    @tw.kernel
    def kernel(x, n):
        sums = []
        for i in range(n):
            sums.append(x[i])
        x[0] = sums[0]

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    kernel 'kernel' returns a value
      test_variables.py:N, in kernel:
        def kernel(x):
        ^^^^^^^^^^^^^^
      help: store results in a tensor that is an argument
    """,
)
def test_kernel_that_returns_a_value():
    @tw.kernel
    def kernel(x):
        return x[0]

    trace(kernel)
