"""What fastmath makes of a kernel's text, and of what a kernel is specialised on."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from tests.helpers.language import TARGETS, compiles, lowered
from tests.helpers.machine_code import opcodes

import tilewright as tw
from tilewright.errors import ArgumentError, LanguageError
from tilewright.ir.ops import Binary, Unary

SPECS = (tw.spec(tw.float32, (64,)), tw.spec(tw.float32, (64,)))

FUNCTIONS = {
    "exp": (tw.exp, "__expf(", "expf("),
    "log": (tw.log, "__logf(", "logf("),
    "log2": (tw.log2, "__log2f(", "log2f("),
    "log10": (tw.log10, "__log10f(", "log10f("),
    "sin": (tw.sin, "__sinf(", "sinf("),
    "cos": (tw.cos, "__cosf(", "cosf("),
    "tan": (tw.tan, "__tanf(", "tanf("),
    "tanh": (tw.tanh, "tanh_approximately(", "tanhf("),
    "sqrt": (tw.sqrt, "sqrt_approximately(", "sqrtf("),
    "pow": (lambda v: tw.pow(v, 2.5), "__powf(", "powf("),
    "div": (lambda v: 3.0 / v, "__fdividef(", "3.0f / "),
}


@tw.kernel
def apply(y, x, function: tw.constexpr):
    y[tw.thread_idx.x] = function(x[tw.thread_idx.x])


@tw.kernel(fastmath=True)
def fast(y, x, function: tw.constexpr):
    y[tw.thread_idx.x] = function(x[tw.thread_idx.x])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_text(name: str) -> None:
    function, quick, slow = FUNCTIONS[name]
    text = compiles(fast, *SPECS, function, block=64)
    assert quick in text
    plain = apply.source(*SPECS, function, block=64)
    assert quick not in plain and slow in plain
    assert quick in apply.configure(fastmath=True).source(*SPECS, function, block=64)
    assert plain == apply.configure(fastmath=True).configure(fastmath=False).source(*SPECS, function, block=64)


def test_machine_code_has_the_special_function_unit() -> None:
    for target in TARGETS:
        code = opcodes(fast.sass(*SPECS, lambda v: tw.tanh(tw.sin(v) / tw.sqrt(v)), block=64, arch=target))
        kinds = {each for each in code if each.startswith("MUFU")}
        assert {"MUFU.SIN", "MUFU.TANH"} <= kinds and "CALL.REL.NOINC" not in code


def test_other_types_stay_exact() -> None:
    specs = (tw.spec(tw.float64, (64,)), tw.spec(tw.float64, (64,)))
    text = fast.source(*specs, lambda v: tw.exp(v) / 3.0, block=64)
    assert "exp(" in text and "__" not in text.split("__global__")[1].split("{", 1)[1]
    narrow = (tw.spec(tw.float16, (64,)), tw.spec(tw.float16, (64,)))
    assert "__expf(to_float(" in fast.source(*narrow, tw.exp, block=64)  # computed in float32


def test_before_sm_75_there_is_no_tanh() -> None:
    assert "tanhf(" in fast.source(*SPECS, tw.tanh, block=64, arch="sm_70")
    with pytest.raises(LanguageError, match="tanh.approx needs sm_75 or later, and the target is sm_70"):
        apply.source(*SPECS, tw.tanh_approx, block=64, arch="sm_70")


def test_an_approximate_and_an_exact_one_are_not_the_same_expression() -> None:
    @tw.function(fastmath=True)
    def quick(v):
        return tw.exp(v) + v / 3.0

    ops = lowered(apply, *SPECS, lambda v: quick(v) - (tw.exp(v) + v / 3.0), block=64)
    for kind, op_class in (("exp", Unary), ("div", Binary)):
        assert sorted(op.approximate for op in ops if isinstance(op, op_class) and op.kind == kind) == [False, True]


def test_a_function_that_raises_leaves_no_fastmath_behind() -> None:
    def refuse():
        raise ValueError("no")

    @tw.function(fastmath=True)
    def failing():
        refuse()

    def both(v):
        try:
            failing()
        except ValueError:
            pass
        return tw.exp(v)

    assert "__expf" not in apply.source(*SPECS, both, block=64)


def test_amd_computes_them_as_it_does_without() -> None:
    def function(v):
        return tw.exp(v) / tw.sqrt(v)

    texts = [k.source(*SPECS, function, block=64, arch="gfx90a") for k in (apply, apply.configure(fastmath=True))]
    assert texts[0] == texts[1]
    x, y = np.full(64, -2.0, np.float32), np.zeros(64, np.float32)
    apply.configure(fastmath=True, arch="gfx90a")[1, 64](y, x, lambda v: tw.pow(v, 3.0))
    assert (y == -8).all()  # and the simulator of such a target computes what it computes


def test_a_kernel_keeps_it_when_it_is_copied_and_pickled() -> None:
    configured = apply.configure(fastmath=True)
    for kernel in (copy.deepcopy(configured), pickle.loads(pickle.dumps(configured))):
        assert kernel.options.fastmath
    assert pickle.loads(pickle.dumps(fast)) is fast


def test_both_run_from_one_kernel() -> None:
    x, y = np.full(32, -2.0, np.float32), np.zeros(32, np.float32)
    cube = lambda v: tw.pow(v, 3.0)  # noqa: E731
    for options, expected in (({"fastmath": True}, np.nan), ({"fastmath": False}, -8.0), ({"fastmath": True}, np.nan)):
        apply.configure(**options)[1, 32](y, x, cube)
        assert np.array_equal(y, np.full(32, expected, np.float32), equal_nan=True)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_what_is_not_a_bool_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="expected True or False"):
        apply.configure(fastmath=value)
    with pytest.raises(ArgumentError, match="expected True or False"):
        tw.kernel(fastmath=value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(ArgumentError, match="fastmath= of @tw.function is True, False or None"):
            tw.function(fastmath=value)  # type: ignore[arg-type]


def test_double_precision_is_refused_by_name() -> None:
    specs = (tw.spec(tw.float64, (64,)), tw.spec(tw.float64, (64,)))
    with pytest.raises(LanguageError, match="tw.ex2_approx computes in float32, got float64"):
        apply.source(*specs, tw.ex2_approx, block=64)
