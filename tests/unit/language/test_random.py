"""What random numbers become: machine code, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.language import TARGETS, lowered
from tests.helpers.machine_code import opcodes

import tilewright as tw
from tilewright.errors import LanguageError
from tilewright.instructions.philox import Philox

OUT = tw.spec(tw.uint32, (64,))


@tw.kernel
def apply(out, seed, function: tw.constexpr):
    i = tw.thread_idx.x
    out[i] = function(seed, i)


def test_a_round_is_two_wide_products() -> None:
    for target in TARGETS:
        code = opcodes(apply.sass(OUT, tw.uint64(7), lambda s, i: sum(tw.philox(s, i)), block=64, arch=target))
        # The third word of the counter is 0, and so is its product in the first round.
        assert 18 <= code.count("IMAD.WIDE.U32") <= 21 and not any("IMAD.HI" in each for each in code)


def test_normal_numbers_call_no_function() -> None:
    spec = tw.spec(tw.float32, (64,))
    for target in TARGETS:
        code = opcodes(apply.sass(spec, 7, tw.randn, block=64, arch=target))
        assert "CALL.REL.NOINC" not in code and {"MUFU.COS", "MUFU.RSQ"} & set(code)
        assert not apply.resources(spec, 7, tw.randn, block=64, arch=target).spills


def test_the_logarithm_of_a_normal_number_is_exact_under_fastmath() -> None:
    spec = tw.spec(tw.float32, (64,))
    text = apply.configure(fastmath=True).source(spec, 7, lambda s, i: tw.randn(s, i) / 3.0, block=64)
    assert "logf(" in text and "__logf(" not in text and "__fdividef(" in text


def test_amd_takes_them() -> None:
    text = apply.source(OUT, tw.uint64(7), lambda s, i: tw.randint(s, i, 0, 10).to(tw.uint32), block=64, arch="gfx90a")
    assert "unsigned long long" in text


def test_one_call_makes_four_words_however_often_they_are_asked_for() -> None:
    def function(s, i):
        return tw.randint(s, i) ^ tw.randint4x(s, i)[3] ^ tw.rand(s, i).bitcast(tw.uint32)

    assert sum(isinstance(op, Philox) for op in lowered(apply, OUT, 0, function, block=64)) == 1
    assert apply.source(OUT, 0, function, block=64).count("philox<10>(") == 1
    assert (
        sum(isinstance(op, Philox) for op in lowered(apply, OUT, 0, lambda s, i: (tw.rand(s, i), i)[1], block=64)) == 0
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s, i: tw.rand(1.5, i).to(tw.uint32), "the seed of tw.philox takes an integer of .* bits, got 1.5"),
        (lambda s, i: tw.rand(s, i.to(tw.float32)).to(tw.uint32), "the offset of a random number takes an integer"),
        (lambda s, i: tw.rand(2**64, i).to(tw.uint32), "the seed of tw.philox|does not fit"),
        (lambda s, i: tw.philox(s, (i,) * 5)[0], "has up to four words, got 5"),
        (lambda s, i: tw.philox(s, i, 0)[0], "the rounds of tw.philox are 1 to 16, known while tracing, got 0"),
        (lambda s, i: tw.philox(s, i, i)[0], "the rounds of tw.philox are 1 to 16"),
        (lambda s, i: tw.randint(s, i, 0).to(tw.uint32), "tw.randint takes both bounds, or none"),
        (lambda s, i: tw.randint(s, i, 5, 5).to(tw.uint32), "a range of 1 to 2 \\*\\* 32 - 1 numbers, got 5 to 5"),
        (lambda s, i: tw.randint(s, i, 0, 2**32).to(tw.uint32), "a range of 1 to 2 \\*\\* 32 - 1 numbers"),
        (
            lambda s, i: tw.randint(s, i, -1, 2**31 + 1).to(tw.uint32),
            "neither int32 nor uint32 has the numbers from -1",
        ),
        (lambda s, i: tw.randint(s, i, 2**40, 2**40 + 2).to(tw.uint32), "a bound of tw.randint takes an integer of 32"),
        (lambda s, i: tw.randint(s, i, 0, 0.5).to(tw.uint32), "a bound of tw.randint takes an integer of 32 bits"),
    ],
)
def test_wrong_arguments(function: Any, message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        apply.source(OUT, np.int32(7), function, block=64)


def test_outside_of_a_kernel() -> None:
    with pytest.raises(LanguageError, match="tw.philox can be used only inside a kernel"):
        tw.rand(1, 2)
