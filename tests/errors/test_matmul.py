"""What `tw.matmul` refuses, with whole texts; nothing is written."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tests.helpers.refusals import floats, refused
from tests.unit.runtime.fake_arrays import InterfaceArray, Tensor

import tilewright as tw
from tilewright.runtime.arrays import Static

A, B = floats(4, 3), floats(3, 5)


@refused(
    tw.ArgumentError,
    """
    the shapes (4, 3) and (4, 3) have no product: a has 3 columns and b has 4 rows
      help: b is transposed, it seems: pass b.T (b.mT, b.swapaxes(-1, -2)), which copies nothing
    """,
)
def test_shapes_without_a_product():
    tw.matmul(A, A)


@refused(
    tw.ArgumentError,
    """
    a is float32 and b is float64; both have one element type, or are two of 8 bits that multiply each other
      help: convert one of them: to float64
    """,
)
def test_mixed_types():
    tw.matmul(A, B.astype(np.float64))


@refused(
    tw.ArgumentError,
    """
    a is int32, and matmul takes float16, bfloat16, float32, float64, int8, uint8, float8_e4m3fn, float8_e5m2
      help: convert it to one of these
    """,
)
def test_type_without_a_kernel():
    tw.matmul(A.astype(np.int32), B.astype(np.int32))


@refused(
    tw.ArgumentError,
    """
    precision is one of 'ieee', 'tf32', 'tf32x3', 'bf16x6', 'bf16x9', 'fp8_fast', got 'high'
      help: 'ieee' multiplies float32 numbers as they are, 'tf32' takes 10 bits of their fraction; 'tf32x3', 'bf16x6' and 'bf16x9' multiply them in parts on tensor cores, about as exactly as 'ieee'; 'fp8_fast' lets tensor cores sum up 8-bit floats, in fewer bits than float32 has; 'rounded' is for packed weights
    """,
)
def test_unknown_precision():
    tw.matmul(A, B, precision="high")


@refused(
    tw.ArgumentError,
    """
    precision='tf32' is for float32, and a and b are float64
      help: leave precision out
    """,
)
def test_precision_of_another_type():
    tw.matmul(A.astype(np.float64), B.astype(np.float64), precision="tf32")


@refused(
    tw.ArgumentError,
    """
    a is a list, and matmul takes arrays
      help: arrays of NumPy, torch, CuPy, or of any library with DLPack or __cuda_array_interface__
    """,
)
def test_no_array():
    tw.matmul([[1.0]], B)


@refused(
    tw.ArgumentError,
    """
    a has no modes, and matmul takes vectors, matrices and batches of them
      help: use * to multiply by a number
    """,
)
def test_array_without_modes():
    tw.matmul(np.zeros((), np.float32), B)


@refused(
    tw.ArgumentError,
    """
    a is a tw.static array, which is for kernels
      help: pass the array itself
    """,
)
def test_static_array():
    tw.matmul(Static(A), B)


@refused(tw.ArgumentError, "out has the shape (4, 4), and the result (4, 5)")
def test_shape_of_out():
    tw.matmul(A, B, out=floats(4, 4))


@refused(
    tw.ArgumentError,
    """
    out is read-only
      help: pass a writable array (a copy, or after array.setflags(write=True))
    """,
)
def test_read_only_out():
    out = floats(4, 5)
    out.setflags(write=False)
    tw.matmul(A, B, out=out)


@refused(
    tw.ArgumentError,
    """
    out is float64, and out_dtype asks for float32
      help: leave out_dtype out: out's type is taken
    """,
)
def test_out_of_another_type():
    tw.matmul(A, B, out=np.zeros((4, 5)), out_dtype=tw.float32)


@refused(
    tw.ArgumentError,
    """
    elements of out share memory: shape (4, 5), strides (4, 1)
      help: pass an array of its own memory, for example a copy
    """,
)
def test_out_that_overlaps_itself():
    tw.matmul(A, B, out=np.lib.stride_tricks.as_strided(floats(17), (4, 5), (16, 4)))


@pytest.mark.parametrize("name", ["a", "b"])
def test_out_that_is_an_input(name):
    x, y = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    out = {"a": x, "b": y}[name]
    with pytest.raises(tw.ArgumentError, match=f"out shares memory with {name}, which is read while out is written"):
        tw.matmul(x, y, out=out)
    assert (x == 1).all() and (y == 1).all()


@pytest.mark.parametrize("shift", [-3, -1, 1, 3])
def test_out_that_is_c_moved_on(shift):
    memory = np.ones((10, 4), np.float32)
    c, out = memory[3:7], memory[3 + shift : 7 + shift]
    with pytest.raises(tw.ArgumentError, match="out shares memory with c, which is read while out is written"):
        tw.matmul(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), c=c, beta=1, out=out)
    assert (memory == 1).all()


def test_out_that_is_c_transposed():
    memory = np.ones((4, 4), np.float32)
    with pytest.raises(tw.ArgumentError, match="out shares memory with c"):
        tw.matmul(memory.copy(), memory.copy(), c=memory.T, beta=1, out=memory)


def test_overlap_is_looked_at_in_every_call():
    x, y, out = (np.ones((4, 4), np.float32) for _ in range(3))
    tw.matmul(x, y, out=out)
    with pytest.raises(tw.ArgumentError, match="out shares memory with a"):
        tw.matmul(out, y, out=out)


@refused(
    tw.ArgumentError,
    """
    bias has the shape (4,), which does not broadcast to the result's (4, 5)
      help: NumPy's rule: the last modes are compared, and each is 1 or the result's
    """,
)
def test_bias_that_does_not_broadcast():
    tw.matmul(A, B, bias=floats(4))


@refused(
    tw.ArgumentError,
    """
    the epilogue's scale has the shape (4,), which does not broadcast to the result's (4, 5)
      help: NumPy's rule: the last modes are compared, and each is 1 or the result's
    """,
)
def test_array_of_an_epilogue_that_does_not_broadcast():
    scale = floats(4)
    tw.matmul(A, B, epilogue=lambda acc: acc * scale)


@refused(
    tw.ArgumentError,
    """
    c is float32, and the accumulators of integers are int32
      help: add it in an epilogue: epilogue=lambda acc: acc + bias, with out_dtype=tw.float32
    """,
)
def test_float_added_to_integers():
    tw.matmul(A.astype(np.int8), B.astype(np.int8), c=floats(4, 5), beta=1)


@refused(
    tw.ArgumentError,
    """
    the accumulators are int32, and alpha and beta are whole numbers, got 0.5
      help: scale in an epilogue: epilogue=lambda acc: acc * 0.5, with out_dtype=tw.float32
    """,
)
def test_integers_scaled_by_a_fraction():
    tw.matmul(A.astype(np.int8), B.astype(np.int8), alpha=0.5)


@refused(
    tw.ArgumentError,
    """
    the accumulators are float32 and out_dtype is int32, and a float does not become an integer by itself
      help: convert in an epilogue: epilogue=lambda acc: ...to(tw.int32)
    """,
)
def test_float_into_integer():
    tw.matmul(A, B, out_dtype=tw.int32)


@refused(
    tw.ArgumentError,
    """
    the accumulators are int32 and out_dtype is int8, which does not hold them
      help: convert in an epilogue: epilogue=lambda acc: ...to(tw.int8)
    """,
)
def test_accumulators_into_bytes():
    tw.matmul(A.astype(np.int8), B.astype(np.int8), out_dtype=tw.int8)


@refused(
    tw.ArgumentError,
    """
    beta is 2, and there is neither c nor out that it could multiply
      help: pass c=
    """,
)
def test_beta_without_c():
    tw.matmul(A, B, beta=2)


@refused(
    tw.ArgumentError,
    """
    alpha is a number, got ndarray
      help: factors of rows or columns, or one in memory, are scale_a= and scale_b=
    """,
)
def test_alpha_that_is_an_array():
    tw.matmul(A, B, alpha=floats(5))


@refused(
    tw.ArgumentError,
    """
    epilogue is a function of the accumulator, got str
      help: for example epilogue=lambda acc: tw.maximum(acc, 0)
    """,
)
def test_epilogue_that_is_no_function():
    tw.matmul(A, B, epilogue="relu")


@pytest.mark.parametrize("epilogue", [lambda acc, scale: acc, functools.partial(lambda acc: acc, 1), lambda: 0])
def test_epilogue_of_other_parameters(epilogue):
    with pytest.raises(
        tw.ArgumentError, match="epilogue is called with the accumulator alone, and .* does not take that"
    ):
        tw.matmul(A, B, epilogue=epilogue)


@pytest.mark.parametrize(("result", "kind"), [(None, "NoneType"), ("x", "str"), (((1,), 2), "tuple")])
def test_epilogue_that_gives_no_number(result, kind):
    with pytest.raises(tw.LanguageError, match=f"<lambda> returns a {kind}"):
        tw.matmul(A, B, epilogue=lambda acc: result)


class Layer:
    def __init__(self) -> None:
        self.scale = floats(5)


@refused(
    tw.ArgumentError,
    """
    the epilogue reads the array .scale of a Layer, and attributes are not looked into
      help: put it into a variable outside of the epilogue: scale = ....scale
    """,
)
def test_array_in_an_attribute():
    layer = Layer()
    tw.matmul(A, B, epilogue=lambda acc: acc * layer.scale)


def test_out_dtype_that_is_none():
    with pytest.raises(tw.ArgumentError, match="out_dtype is not an element type of Tilewright"):
        tw.matmul(A, B, out_dtype="complex64")


@refused(
    tw.ArgumentError,
    """
    arguments 'a' and 'b' are on different devices
      a is on cuda:0
      b is on cpu
      help: move all arrays of one launch to one device
    """,
)
def test_arrays_on_different_devices():
    tw.matmul(Tensor((4, 3)), B)


def test_arrays_of_an_epilogue_on_another_device():
    scale = Tensor((5,))
    with pytest.raises(tw.ArgumentError, match="arguments 'a' and \"the epilogue's scale\" are on different devices"):
        tw.matmul(A, B, epilogue=lambda acc: acc * scale)


def test_library_that_makes_no_arrays() -> None:
    found: Any = InterfaceArray((4, 4))
    with pytest.raises(tw.ArgumentError, match="matmul cannot allocate a .* array\n  help: give the array .*: out="):
        tw.matmul(found, found)


def test_target_without_the_instruction():
    matrix = tw.spec(tw.bfloat16, (64, 64))
    with pytest.raises(tw.ArgumentError) as caught:
        tw.matmul.explain(matrix, matrix, arch="sm_75")
    error = caught.value
    assert error.summary == "no kernel multiplies bfloat16 and bfloat16 on sm_75"
    assert error.help == "convert a and b to another type, for example float32 with precision='ieee'"
    assert len(error.details) > 1
    for line in error.details:
        assert line.startswith("multistage, ") and line.endswith(": sm_75 has no matrix instruction for bfloat16")
