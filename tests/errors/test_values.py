"""Kernels that break a rule of the language: the whole text of each error, with the line and what to do."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tests.helpers.refusals import floats, refused

import tilewright as tw

X = tw.spec("float32", 1)


def trace(kernel, *args):
    kernel.lower(X, *args)


# --- device values where Python wants numbers -------------------------------------------------------------


@refused(
    tw.LanguageError,
    """
    the truth of a device value is not known while the kernel is traced
      test_values.py:N, in helper:
        return 1 if n > 0 else 2
                    ^^^^^
      called from test_values.py:N, in kernel:
        x[0] = helper(n)
               ^^^^^^^^^
      help: decorate a helper function with @tw.function; in a lambda, a comprehension or a sort, write tw.where(condition, a, b)
    """,
)
def test_branch_in_a_plain_helper():
    def helper(n):
        return 1 if n > 0 else 2

    @tw.kernel
    def kernel(x, n):
        x[0] = helper(n)

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    a device value indexes what is not an array
      test_values.py:N, in kernel:
        x[i] = parts[i]
               ^^^^^^^^
      help: pass an array where the kernel has x[...]: a number has no elements, and a list or a tuple is indexed by what is known while tracing, such as indices of tw.static_range
    """,
)
def test_python_list_indexed_by_a_device_value():
    @tw.kernel
    def kernel(x):
        parts = (1, 2, 3)
        for i in range(3):
            x[i] = parts[i]

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    the value of a device number as a float is not known while the kernel is traced
      test_values.py:N, in kernel:
        x[0] = math.sqrt(x[1])
               ^^^^^^^^^^^^^^^
      help: convert with tw.float32(x); use tw.sqrt and the like in place of math's functions
    """,
)
def test_function_of_math():
    @tw.kernel
    def kernel(x):
        x[0] = math.sqrt(x[1])

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    TypeError: operand 'Scalar' does not support ufuncs (__array_ufunc__=None)
      test_values.py:N, in kernel:
        x[0] = np.sqrt(x[1])
               ^^^^^^^^^^^^^
      help: device values take Python's operators and the functions of tilewright (tw.sqrt, tw.where, ...); NumPy and math work on numbers that are known while tracing
    """,
)
def test_function_of_numpy():
    @tw.kernel
    def kernel(x):
        x[0] = np.sqrt(x[1])

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    this range has bounds that only the device knows, so only a for statement can loop over it
      test_values.py:N, in kernel:
        x[0] = list(range(n))[0]
               ^^^^^^^^^^^^^^
      help: write a for loop, or make the bound a tw.constexpr parameter
    """,
)
def test_comprehension_over_a_dynamic_range():
    @tw.kernel
    def kernel(x, n):
        x[0] = list(range(n))[0]

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    tw.static_range needs bounds that are known while tracing, and one is a device value
      test_values.py:N, in kernel:
        for i in tw.static_range(n):
                 ^^^^^^^^^^^^^^^^^^
      help: use range(...) for a loop on the device, or a tw.constexpr parameter for the bound
    """,
)
def test_static_range_of_a_device_value():
    @tw.kernel
    def kernel(x, n):
        for i in tw.static_range(n):
            x[i] = 1

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    a loop that is unrolled while tracing has not ended after 1024 iterations, and a device value decides whether break or return leaves it
      test_values.py:N, in kernel:
        for i in itertools.count():
        ^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: loop over range(...), which is a loop on the device
    """,
)
def test_device_break_of_an_unrolled_loop_without_an_end():
    @tw.kernel
    def kernel(x):
        for i in itertools.count():
            if x[i] > 0:
                break

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    a loop that runs while tracing has not ended after 100000 iterations
      test_values.py:N, in kernel:
        while n >= 0:
        ^^^^^^^^^^^^
      help: loop over range(...), or let a device value decide, for a loop on the device
    """,
)
def test_endless_loop_while_tracing():
    @tw.kernel
    def kernel(x):
        n = 0
        while n >= 0:
            n += 1
        x[0] = n

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    kernel 'kernel' nests calls too deeply to be traced
      test_values.py:N, in kernel:
        x[0] = countdown(n)
               ^^^^^^^^^^^^
      help: a recursion must end for values that are known while tracing; no device value can end it
    """,
)
def test_recursion_that_a_device_value_ends():
    @tw.function
    def countdown(n):
        if n > 0:
            return countdown(n - 1)
        return 0

    @tw.kernel
    def kernel(x, n):
        x[0] = countdown(n)

    trace(kernel, 1)


# --- types and indices ------------------------------------------------------------------------------------


@refused(
    tw.LanguageError,
    """
    a bound of a range is float32, and it must be an integer
      test_values.py:N, in kernel:
        for i in range(n):
                 ^^^^^^^^
      help: convert it: int(x), or tw.int32(x)
    """,
)
def test_range_of_floats():
    @tw.kernel
    def kernel(x, n):
        for i in range(n):
            x[i] = 1

    trace(kernel, 1.5)


@refused(
    tw.LanguageError,
    """
    the step of a range is 0
      test_values.py:N, in kernel:
        for i in range(0, n, 0):
                 ^^^^^^^^^^^^^^
    """,
)
def test_range_with_step_zero():
    @tw.kernel
    def kernel(x, n):
        for i in range(0, n, 0):
            x[i] = 1

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    an index is float32, and it must be an integer
      test_values.py:N, in kernel:
        x[n] = 1
        ^^^^
      help: convert it: int(x)
    """,
)
def test_float_as_an_index():
    @tw.kernel
    def kernel(x, n):
        x[n] = 1

    trace(kernel, 1.0)


@refused(
    tw.LayoutError,
    """
    coordinate (0,0) does not fit shape (x_shape0)
      tensor: x, global float32 (x_shape0):(1)
      test_values.py:N, in kernel:
        x[0, 0] = 1
        ^^^^^^^
      help: give one index for each mode, or a single linear index
    """,
)
def test_index_of_the_wrong_rank():
    @tw.kernel
    def kernel(x):
        x[0, 0] = 1

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    & is not defined on float32
      test_values.py:N, in kernel:
        x[0] = x[0] & 3
               ^^^^^^^^
      help: convert with tw.int32(x), or .bitcast(tw.uint32)
    """,
)
def test_bits_of_a_float():
    @tw.kernel
    def kernel(x):
        x[0] = x[0] & 3

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    TypeError: unsupported operand type(s) for +: 'Scalar' and 'str'
      test_values.py:N, in kernel:
        x[0] = x[0] + "1"
               ^^^^^^^^^^
      help: device values take Python's operators and the functions of tilewright (tw.sqrt, tw.where, ...); NumPy and math work on numbers that are known while tracing
    """,
)
def test_number_and_text():
    @tw.kernel
    def kernel(x):
        x[0] = x[0] + "1"

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    tw.copy: the shapes do not match
      x, global float32 (x_shape0):(1)
      shared float32 4:1
      test_values.py:N, in kernel:
        tw.copy(x, tw.shared("float32", 4))
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: cut an extent that only the launch knows by tw.local_tile, or pass the array as tw.static(x)
    """,
)
def test_copy_between_shapes():
    @tw.kernel
    def kernel(x):
        tw.copy(x, tw.shared("float32", 4))

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    tw.copy: src is float32 and dst is float16
      test_values.py:N, in kernel:
        tw.copy(tw.local_tile(x, (4,), (0,)), tw.shared("float16", 4))
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: convert in registers: load into a fragment, and store x.to(dtype) element by element
    """,
)
def test_copy_between_types():
    @tw.kernel
    def kernel(x):
        tw.copy(tw.local_tile(x, (4,), (0,)), tw.shared("float16", 4))

    trace(kernel)


@refused(
    tw.LanguageError,
    """
    shared memory needs a size that is known before the launch, and the layout depends on what only the device knows
      test_values.py:N, in kernel:
        smem = tw.shared("float32", n + tw.thread_idx.x)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: compute it from extents of arrays and from number arguments, or make it a tw.constexpr parameter
    """,
)
def test_shared_memory_of_a_size_that_the_device_knows():
    @tw.kernel
    def kernel(x, n):
        smem = tw.shared("float32", n + tw.thread_idx.x)
        x[0] = smem[0]

    trace(kernel, 4)


@refused(
    tw.LanguageError,
    """
    tw.sync_threads is in a branch that only some threads of the block may run
      the branch at test_values.py:N depends on tw.thread_idx:
        if tw.thread_idx.x < 16:
      test_values.py:N, in kernel:
        tw.sync_threads()
        ^^^^^^^^^^^^^^^^^
      help: move the barrier out, so that every thread of the block reaches it; what follows an early return, break or continue counts as a branch too
    """,
)
def test_barrier_in_a_divergent_branch():
    @tw.kernel
    def kernel(x):
        if tw.thread_idx.x < 16:
            x[0] = 1
            tw.sync_threads()

    kernel.lower(X, block=64)


@refused(
    tw.LanguageError,
    """
    tw.sync_threads can be used only inside a kernel
      help: call it in a function decorated with @tw.kernel, or in one that a kernel calls
    """,
)
def test_language_outside_of_a_kernel():
    tw.sync_threads()


# --- errors of the user's own code ------------------------------------------------------------------------


@refused(
    NameError,
    """
    name 'no_such_name' is not defined
      while kernel 'kernel' was traced
      test_values.py:N, in kernel:
        x[0] = no_such_name  # noqa: F821
               ^^^^^^^^^^^^
    """,
)
def test_unknown_name():
    @tw.kernel
    def kernel(x):
        x[0] = no_such_name  # noqa: F821

    trace(kernel)


@refused(
    ValueError,
    """
    n is 3
      while kernel 'kernel' was traced
      test_values.py:N, in check:
        raise ValueError(f"n is {n}")
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      called from test_values.py:N, in kernel:
        check(n)
        ^^^^^^^^
    """,
)
def test_error_raised_by_a_helper():
    def check(n):
        raise ValueError(f"n is {n}")

    @tw.kernel
    def kernel(x, n: tw.constexpr):
        check(n)

    trace(kernel, 3)


@refused(
    AssertionError,
    """
    n is too small
      while kernel 'kernel' was traced
      test_values.py:N, in kernel:
        assert n > 3, "n is too small"
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    """,
)
def test_assertion_that_fails_while_tracing():
    @tw.kernel
    def kernel(x, n: tw.constexpr):
        assert n > 3, "n is too small"

    trace(kernel, 3)


@refused(
    tw.LanguageError,
    """
    AttributeError: 'Tensor' object has no attribute 'length'
      test_values.py:N, in kernel:
        x[0] = x.length
               ^^^^^^^^
      help: device values take Python's operators and the functions of tilewright (tw.sqrt, tw.where, ...); NumPy and math work on numbers that are known while tracing
    """,
)
def test_attribute_that_a_tensor_lacks():
    @tw.kernel
    def kernel(x):
        x[0] = x.length

    trace(kernel)


# --- where the error happened -----------------------------------------------------------------------------


@refused(
    tw.LanguageError,
    """
    & is not defined on float32
      test_values.py:N, in inner:
        x[i] = tw.float32(i) & 1
               ^^^^^^^^^^^^^^^^^
      called from test_values.py:N, in outer:
        return inner(x, n + 1)
               ^^^^^^^^^^^^^^^
      called from test_values.py:N, in kernel:
        outer(x, n)
        ^^^^^^^^^^^
      help: convert with tw.int32(x), or .bitcast(tw.uint32)
    """,
)
def test_chain_of_helpers():
    @tw.function
    def inner(x, n):
        for i in range(n):
            if i > 2:
                x[i] = tw.float32(i) & 1

    def outer(x, n):
        return inner(x, n + 1)

    @tw.kernel
    def kernel(x, n):
        while n > 0:
            n -= 1
            outer(x, n)

    trace(kernel, 1)


@refused(
    tw.LanguageError,
    """
    | is not defined on float32
      test_values.py:N, in kernel:
        x[2] | 1,
        ^^^^^^^^
      help: convert with tw.int32(x), or .bitcast(tw.uint32)
    """,
)
def test_statement_of_several_lines():
    @tw.kernel
    def kernel(x):
        x[0] = tw.where(
            x[1] > 0,
            x[2] | 1,
            0,
        )

    trace(kernel)


def test_nothing_is_left_over_from_a_failed_trace():
    @tw.kernel
    def kernel(x, flag: tw.constexpr):
        if flag:
            tw.device_assert(False, "stop")
        x[0] = 1

    for flag in (True, False):
        x = floats(1)
        try:
            kernel[1, 1](x, flag)
        except tw.LanguageError as error:
            assert "stop" in str(error)
        assert x.tolist() == [0 if flag else 1]


INDICES = {
    "element": lambda x, g, i: x[0, i],
    "view": lambda x, g, i: x[i, :][0],
    "tile": lambda x, g, i: tw.local_tile(x, (1, 2), (0, i))[0, 0],
    "offset": lambda x, g, i: tw.domain_offset((0, i), x)[0, 0],
    "element of a guarded tile": lambda x, g, i: g[0, i],
    "guarded tile": lambda x, g, i: tw.local_tile(x, (1, 2), (0, i), guard=True)[0, 0],
    "offset of a guarded tensor": lambda x, g, i: tw.domain_offset((0, i), g)[0, 0],
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_an_integer(name: str) -> None:
    read = INDICES[name]

    @tw.kernel
    def kernel(out, x, i, condition: tw.constexpr):
        out[0] = read(x, tw.guarded(x), i > 1 if condition else i)

    for condition, what in ((False, "float32"), (True, "bool")):
        with pytest.raises(tw.LanguageError, match=f"an index is {what}, and it must be an integer") as caught:
            kernel[1, 1](np.zeros(1, np.float32), np.ones((2, 4), np.float32), 2.5, condition)
        assert caught.value.location is not None


@pytest.mark.parametrize("op", [["add"], {}, "sum", 3])
def test_an_operation_has_a_name_that_is_known(op: object) -> None:
    for combine in (lambda i, op: tw.reduce(i, op), lambda i, op: tw.redux(i, op)):

        @tw.kernel
        def kernel(out):
            out[tw.thread_idx.x] = combine(tw.thread_idx.x, op)

        with pytest.raises(tw.LanguageError, match="add, "):
            kernel[1, 32](np.zeros(32, np.int32))
