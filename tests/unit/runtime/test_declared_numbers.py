"""Numbers for parameters that declare an element type: the kernel gets that type, whatever number is given."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def halved(out, alpha: tw.float64):
    out[0] = alpha / 2


@tw.kernel
def of_all(out, i: tw.int8, u: tw.uint64, h: tw.float16, b: tw.bfloat16, yes: tw.bool_):
    out[0], out[1], out[2], out[3], out[4] = i, u, h, b, yes


@tw.kernel
def any_number(out, *factors: tw.float64):
    product = tw.float64(1)
    for factor in factors:
        product *= factor
    out[0] = product


def parameters_of(text: str) -> str:
    return text[text.index("(") : text.index(")") + 1]


@pytest.mark.parametrize("number", [0.1, 3, True, np.float32(0.1), np.float64(0.1), np.int16(3), ml_dtypes.bfloat16(3)])
def test_a_float_takes_any_number(number: float) -> None:
    out = np.zeros(1)
    halved[1, 1](out, number)
    halved[1, 1](out, number)  # as it was read before
    assert out[0] == float(number) / 2
    assert "double* out, double alpha" in halved.source(out, number)


def test_each_type_is_the_kernel_s() -> None:
    out = np.zeros(5)
    of_all[1, 1](out, -128, 2**63, 0.1, 0.1, True)
    assert out.tolist() == [-128, 2.0**63, float(np.float16(0.1)), float(ml_dtypes.bfloat16(0.1)), 1]
    types = "signed char i, unsigned long long u, half h, bfloat16 b, bool yes"
    assert types in of_all.source(out, 1, 1, 1, 1, False)


def test_numbers_of_any_number_have_it_too() -> None:
    out = np.zeros(1)
    any_number[1, 1](out, 0.1, 3, np.float32(2))
    assert out[0] == 0.1 * 3 * 2


def test_a_type_that_is_no_annotation_of_the_module_s_text() -> None:
    """As where annotations are not put off."""

    def plain(out, alpha):
        out[0] = alpha

    plain.__annotations__ = {"alpha": tw.float64}
    out = np.zeros(1)
    tw.kernel(plain)[1, 1](out, 0.1)
    assert out[0] == 0.1


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((128, 1, 0.5, 0.5, True), "argument 'i' is 128, which does not fit into int8"),
        ((1, -1, 0.5, 0.5, True), "argument 'u' is -1, which does not fit into uint64"),
        ((1.5, 1, 0.5, 0.5, True), "argument 'i' is 1.5, and the kernel declares i: tw.int8"),
        ((np.float32(1), 1, 0.5, 0.5, True), "and the kernel declares i: tw.int8"),
        ((1, 1, 0.5, 0.5, 1), "argument 'yes' is 1, and the kernel declares yes: tw.bool_"),
    ],
)
def test_what_the_type_does_not_hold_is_refused(numbers: tuple[float, ...], message: str) -> None:
    out = np.zeros(5)
    of_all[1, 1](out, 1, 1, 0.5, 0.5, True)
    for ask in (of_all[1, 1], of_all.source):
        with pytest.raises(tw.ArgumentError) as caught:
            ask(out, *numbers)
        assert message in str(caught.value)
    of_all[1, 1](out, 2, 1, 0.5, 0.5, True)  # later calls as before
    assert out[0] == 2


@pytest.mark.parametrize("number", [1e39, -1e300, float(2**200)])
def test_a_float_beyond_float32_is_refused_as_on_a_gpu(number: float) -> None:
    @tw.kernel
    def plain(out, x):
        out[0] = x

    out = np.zeros(1)
    with pytest.raises(tw.ArgumentError, match="argument x is .*, which does not fit into float32"):
        plain[1, 1](out, number)
    plain[1, 1](out, float("inf"))
    assert out[0] == np.inf


def test_types_of_arrays_only_are_refused_for_numbers() -> None:
    @tw.kernel
    def plain(out, x: tw.float8_e4m3fn):
        out[0] = x[0].to(tw.float32)

    out = np.zeros(1)
    plain[1, 1](out, np.full(1, 0.5, ml_dtypes.float8_e4m3fn))
    assert out[0] == 0.5
    with pytest.raises(tw.ArgumentError, match="argument 'x' is 0.5, and the kernel declares x: tw.float8_e4m3fn"):
        plain[1, 1](out, 0.5)


def test_an_int_that_no_declaration_narrows_is_int64_in_the_source_too() -> None:
    @tw.kernel
    def plain(out, n):
        out[0] = n

    out = np.zeros(1)
    assert "long long n" in plain.source(out, 2**40) and "int n" in plain.source(out, 2**20)
