"""Printing and assertions on the device."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw


def test_device_print(capsys):
    @tw.kernel
    def talk(out, name: tw.constexpr):
        i = tw.thread_idx.x
        if i > 0:
            tw.device_print(name, "has", i, i * 0.5, i == 1, "100%")

    run(talk, zeros(1), "thread", block=3)
    assert capsys.readouterr().out == "thread has 1 0.5 True 100%\nthread has 2 1 False 100%\n"
    compiles(talk, tw.spec("int32", 1), "thread", block=3)


def test_device_print_to_an_output_without_the_signs(monkeypatch):
    """A GPU writes bytes and never fails for them."""

    @tw.kernel
    def talk(out):
        tw.device_print("x ≤", tw.thread_idx.x)

    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    run(talk, zeros(1), block=1)
    ascii_only.flush()
    assert ascii_only.buffer.getvalue().splitlines() == [rb"x \u2264 0"]
    monkeypatch.setattr(sys, "stdout", None)  # as of pythonw, or closed by the shell
    run(talk, zeros(1), block=1)


def test_device_print_of_a_formatted_device_value_is_refused():
    @tw.kernel
    def formatted(out):
        tw.device_print(f"i = {tw.thread_idx.x}")

    with pytest.raises(tw.LanguageError, match="text of a device value"):
        run(formatted, zeros(1), block=2)


def test_device_assert():
    @tw.kernel
    def careful(out, n):
        i = tw.thread_idx.x
        tw.device_assert(i < n, "too far")
        out[i] = 1

    assert run(careful, zeros(2), 2, block=2).tolist() == [1, 1]
    with pytest.raises(tw.CheckError) as caught:
        run(careful, zeros(3), 2, block=3)
    assert "assertion failed: too far" in str(caught.value)
    assert 'tw.device_assert(i < n, "too far")' in str(caught.value)
    compiles(careful, tw.spec("int32", 1), 2, block=3)


def test_device_assert_of_a_python_value_is_checked_while_tracing():
    @tw.kernel
    def static(out, n: tw.constexpr):
        tw.device_assert(n > 2, "n is too small")
        out[0] = n

    assert run(static, zeros(1), 3).tolist() == [3]
    with pytest.raises(tw.LanguageError, match="tw.device_assert: n is too small"):
        run(static, zeros(1), 2)


def test_print_while_tracing_shows_what_a_value_is(capsys):
    @tw.kernel
    def look(out, x):
        value = x[0]
        print(repr(value), out.layout)
        out[0] = value

    run(look, zeros(1, np.float32), np.ones(1, np.float32))
    assert capsys.readouterr().out.startswith("<device float32 value> (out_shape0):(1)")
