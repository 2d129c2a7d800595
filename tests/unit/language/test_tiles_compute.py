"""Operations on whole tensors: what is refused and how, how the text reads, what machine code they become."""

from __future__ import annotations

import operator
from collections import Counter

import numpy as np
import pytest
from tests.helpers.machine_code import opcodes

import tilewright as tw

ROW = 64


@tw.kernel
def softmax(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    row = +x[i, :]
    e = tw.exp(row - row.reduce("max"))
    y[i, :] = e / e.reduce("add")


@tw.kernel
def softmax_by_hand(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    row = tw.registers(x.dtype, x.shape[1])
    tw.copy(x[i, :], row)
    largest = row[0]
    for j in range(1, ROW):
        largest = tw.maximum(largest, row[j])
    total = tw.float32(0)
    for j in range(ROW):
        row[j] = tw.exp(row[j] - largest)
        total += row[j]
    for j in range(ROW):
        row[j] = row[j] / total
    tw.copy(row, y[i, :])


def specs(dtype: tw.DType, count: int = 2) -> list:
    return [tw.static(tw.spec(dtype, (1024, ROW))) for _ in range(count)]


def test_softmax_costs_what_it_costs_by_hand() -> None:
    short, long = (
        Counter(opcodes(k.sass(*specs(tw.float32), block=128, arch="sm_90a"))) for k in (softmax, softmax_by_hand)
    )
    for name in ("LDG.E.128.CONSTANT", "STG.E.128", "FMNMX", "MUFU.EX2", "MUFU.RCP"):
        assert short[name] == long[name], name
    # Padding at the end aside, not one instruction more: the sum begins with an element where the loop begins with 0.
    assert sum(short.values()) - short["NOP"] <= sum(long.values()) - long["NOP"]
    used, by_hand = (k.resources(*specs(tw.float32), block=128, arch="sm_90a") for k in (softmax, softmax_by_hand))
    assert used.local_bytes == used.spill_stores == used.stack_bytes == 0
    assert used.registers <= by_hand.registers + 2


@tw.kernel
def fused(y, x, z):
    i = tw.thread_idx.x
    y[i, :] = tw.maximum(x[i, :] * 2 + z[i, :], 0) - x[i, :]


@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.spread(4)
def test_16_bit_floats_are_computed_two_at_a_time(dtype: tw.DType, arch: str) -> None:
    counts = Counter(opcodes(fused.sass(*specs(dtype, 3), block=128, arch=arch)))
    packed = sum(n for name, n in counts.items() if name.startswith(("HADD2", "HMUL2", "HFMA2", "HMNMX2")))
    assert ROW * 4 // 2 <= packed <= ROW * 4 // 2 + 2, counts  # four operations on half as many pairs, and constants
    # No conversion, and no element taken out of a pair; what is left are addresses, loads and stores.
    assert not any(name.startswith(("F2F", "FADD", "FMUL", "PRMT", "LDL", "STL")) for name in counts), counts
    assert fused.resources(*specs(dtype, 3), block=128, arch=arch).local_bytes == 0


@tw.kernel
def sum_of_products(y, x, z):
    i = tw.thread_idx.x
    y[i, 0] = x[i, 0] * z[i, 0] + z[i, 1]


def test_a_product_and_a_sum_of_16_bit_floats_are_rounded_each() -> None:
    # A multiply-add would round once, and its bits would differ.
    for dtype in (tw.float16, tw.bfloat16):
        counts = Counter(opcodes(sum_of_products.sass(*specs(dtype, 3), block=32, arch="sm_90a")))
        half = sum(n for name, n in counts.items() if name.startswith(("HADD2", "HMUL2", "HFMA2")))
        assert half == 2, counts


def test_an_expression_is_one_loop() -> None:
    text = fused.source(*specs(tw.float32, 3), block=128)
    lines = [line for line in text.splitlines() if "fmaxf" in line]
    assert lines == ["        value[j] = fmaxf(fmaf(x_values[j], 2.0f, z_values[j]), 0.0f) - x_values_1[j];"], text
    assert text.count("for (") == 5, text  # three loads, one expression, one store


@tw.kernel
def not_fused(y, x):
    r = +x[0, 0:8]
    s = r + 1
    r[1:8] = s[0:7]  # reads s at another index than it was written at
    y[0, 0:8] = s * r


@tw.kernel
def shifted(y, x):
    r = +x[0, 0:8]
    r[1:8] = r[0:7]
    r[0:7] += r[1:8]
    y[0, 0:8] = r


def test_what_is_read_at_another_index_is_not_fused() -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(1, 8) + 1, np.zeros((1, 8), np.float32)
    not_fused[1, 1](tw.static(y), tw.static(x))
    s, r = x[0] + 1, x[0].copy()
    r[1:] = s[:-1]
    assert (y[0] == s * r).all()
    shifted[1, 1](tw.static(y), tw.static(x))
    r = x[0].copy()
    r[1:] = r[:-1].copy()
    r[:-1] += r[1:].copy()
    assert (y[0] == r).all()


@tw.kernel
def reversed_after(y, x):
    r = +x[0, 0:8]
    s = r + 1
    y[0, 0:8] = r * s[::-1]  # the same number of steps, in the other direction


def test_what_is_read_in_another_order_is_not_fused() -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(1, 8), np.zeros((1, 8), np.float32)
    reversed_after[1, 1](tw.static(y), tw.static(x))
    assert (y[0] == x[0] * (x[0] + 1)[::-1]).all()


@tw.kernel
def interleaved(y, x):
    r = +x[0, 0:4]
    s = r * 2
    r[2] = 100.0  # between two operations that could be one loop
    y[0, 0:4] = s + r
    t = r * 3
    y[0, 4] = t[1]
    t += r
    y[0, 4:8] = t


def test_a_write_between_two_operations_keeps_them_apart() -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(1, 8), np.zeros((1, 8), np.float32)
    interleaved[1, 1](tw.static(y), tw.static(x))
    r = np.float32([0, 1, 100, 3])
    assert (y[0, :4] == x[0, :4] * 2 + r).all()
    assert (y[0, 4:] == r * 4).all()


@tw.kernel
def in_place(y, x, n: tw.int32):
    acc = x[0, 0:4] * 0
    for j in range(4):
        acc += x[0, 4 * j : 4 * j + 4]
    if n > 2:
        acc[...] = tw.where(acc > 20, acc, -acc)
    else:
        acc *= 2
    y[0, 0:4] = acc
    y[0, 0:4] += 1
    tile = tw.shared(tw.float32, 4)
    tile[...] = acc
    tile -= 1
    y[0, 4:8] = tile


@pytest.mark.parametrize("n", [0, 3])
def test_in_place_operations_reach_the_tensor_itself(n: int) -> None:
    x, y = np.arange(16, dtype=np.float32).reshape(1, 16), np.zeros((1, 8), np.float32)
    in_place[1, 1](tw.static(y), tw.static(x), n)
    acc = x.reshape(4, 4).sum(0)
    acc = np.where(acc > 20, acc, -acc) if n > 2 else acc * 2
    assert (y[0, :4] == acc + 1).all()
    assert (y[0, 4:] == acc - 1).all()


# --- the same on the host --------------------------------------------------------------------------------


def test_host_tensors_compute_as_numpy_does() -> None:
    a = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    t = tw.tensor(a)
    for f in (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.floordiv,
        operator.mod,
        operator.pow,
    ):
        np.testing.assert_array_equal(f(t, 2).to_numpy(), f(a, 2))
        np.testing.assert_array_equal(f(np.float32(2), t).to_numpy(), f(np.float32(2), a))
    np.testing.assert_array_equal(tw.exp(t).to_numpy(), np.exp(a))
    np.testing.assert_array_equal(tw.where(t > 3, t, 0).to_numpy(), np.where(a > 3, a, 0))
    np.testing.assert_array_equal((t - t.reduce("min", 1, keep=True)).to_numpy(), a - a.min(1, keepdims=True))
    assert t.reduce("add") == a.sum() and t.reduce("max", 0).shape == (4,)
    t[1:, 0] = t[0, 0:2]
    assert (a[1:, 0] == [1, 2]).all()
    assert len({t, t}) == 1  # by identity


# --- what is refused -------------------------------------------------------------------------------------

T = tw.tensor(np.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: T + tw.tensor(np.zeros(4)), tw.LayoutError, "the shapes (3,4) and (4) do not match"),
        (lambda: T + tw.tensor(np.zeros((4, 3))), tw.LayoutError, "extents have to be equal, or 1"),
        (lambda: bool(T), tw.LanguageError, "a tensor has no truth"),
        (lambda: T in [1], tw.LanguageError, "a tensor has no truth"),
        (lambda: 1 in T, tw.LanguageError, "(t == x).reduce('or')"),
        (lambda: T == None, tw.LanguageError, "compared with a NoneType"),  # noqa: E711
        (lambda: T != "a", tw.LanguageError, "compared with a str"),
        (lambda: float(T), tw.LanguageError, "is not one number"),
        (lambda: round(T), tw.LanguageError, "tw.round"),
        (lambda: T + np.zeros((3, 4)), tw.LanguageError, "tw.tensor(array)"),
        (lambda: T + "a", TypeError, "unsupported operand"),
        (lambda: T.reduce("sum"), tw.ArgumentError, "one of add, mul, min, max"),
        (lambda: T.reduce("add", 2), tw.ArgumentError, "has modes 0 to 1"),
        (lambda: T.reduce("add", ()), tw.ArgumentError, "mode is ()"),
        (lambda: tw.where(T > 1, T, "a"), tw.ArgumentError, "tensors and numbers"),
        (lambda: tw.exp(tw.identity_tensor((4, 4))), tw.LanguageError, "are coordinates"),
        (lambda: T[0:0], tw.LayoutError, "has no elements"),
        (lambda: T[:, ::0], tw.LayoutError, "the step of a slice is 0"),
        (lambda: T[0:2, 0, 0], tw.LayoutError, "3 indices for a tensor of 2 modes"),
        (lambda: T[0:1.5, 0], tw.LayoutError, "a bound of a slice is not an integer"),
    ],
)
def test_refusals_on_the_host(wrong: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        wrong()
    assert message in str(caught.value)


def row(x):
    return +x[0, 0:8]


@tw.function
def in_if(x):
    return 1 if row(x) else 0


@tw.function
def in_not(x):
    return not row(x)


@tw.function
def in_and(x):
    return row(x) and 1


@tw.function
def in_while(x):
    while row(x) > 1:
        x[0, 0] = 1.0


@tw.function
def in_tuple(x):
    return row(x) in (row(x), 1)


@tw.function
def in_max(x):
    return max(row(x))


@tw.function
def in_min(x):
    return min(row(x), 1)


REFUSED = {
    "if": (in_if, "a tensor has no truth"),
    "not": (in_not, "a tensor has no truth"),
    "and": (in_and, "a tensor has no truth"),
    "while": (in_while, "a tensor has no truth"),
    "in": (in_tuple, "a tensor has no truth"),
    "max": (in_max, "t.reduce('max')"),
    "min of two": (in_min, "tw.minimum(a, b)"),
    "sorted": (lambda x: sorted(row(x)), "cannot be iterated over"),
    "dynamic": (lambda x: x[0, :] + 1, "needs a static shape"),
    "type": (lambda x: row(x).to(tw.int32).__iadd__(0.5), "not converted to it implicitly"),
    "repeated": (lambda x: tw.registers(tw.float32, tw.Layout(4, 0)).__iadd__(1), "holds elements several times"),
    "host": (lambda x: row(x) + tw.tensor(np.zeros(8)), "is not memory of the kernel"),
    "function": (lambda x: row(x).reduce(lambda a, b: (a + b).to(tw.float64)), "gives float64 of two float32"),
    "bits": (lambda x: ~row(x), "~ is not defined on float32"),
    "too large": (lambda x: row(x).__setitem__(slice(0, 4), row(x)), "do not match"),
    "step": (lambda x: x[0, :: tw.thread_idx.x], "the step of a slice is not known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_in_a_kernel_name_the_line(name: str) -> None:
    wrong, message = REFUSED[name]

    @tw.kernel
    def kernel(x, wrong: tw.constexpr):
        wrong(x)

    with pytest.raises(tw.errors.TilewrightError) as caught:
        kernel[1, 1](np.zeros((4, 16), np.float32), wrong)
    assert message in str(caught.value)
    assert "in kernel" in str(caught.value)


@tw.kernel
def rebound(y, x):
    acc = x[0, 0:4] * 0
    for j in range(4):
        acc = acc + x[0, 4 * j : 4 * j + 4]
    y[0, 0:4] = acc


def test_a_fragment_made_in_each_iteration_says_how_to_update_it() -> None:
    with pytest.raises(tw.LanguageError, match=r"as in acc \+= x or acc\[...\] = x"):
        rebound[1, 1](np.zeros((1, 4), np.float32), np.zeros((1, 16), np.float32))


# --- slices are checked in their modes ---------------------------------------------------------------------


@tw.kernel
def overhanging(y, x, start: tw.int32, how: tw.constexpr):
    part = x[tw.thread_idx.x, start : start + 8 : 2]
    if how == "element":
        for j in range(4):
            y[tw.thread_idx.x, j] = part[j]
    elif how == "compute":
        y[tw.thread_idx.x, 0:4] = part + 1
    elif how == "copy":
        tw.copy(part, y[tw.thread_idx.x, 0:4])
    elif how == "write":
        x[tw.thread_idx.x, start : start + 4] = 5
    elif how == "guarded":
        for j in range(4):
            if start + 2 * j < x.shape[1]:
                y[tw.thread_idx.x, j] = part[j]


@pytest.mark.parametrize("how", ["element", "compute", "copy", "write", "guarded"])
def test_a_slice_past_its_mode_is_found_where_it_is_accessed(how: str) -> None:
    # The next row follows in memory, so that no address is outside of the array but those of the last row.
    x, y = np.zeros((40, 16), np.float32), np.zeros((32, 4), np.float32)
    overhanging[1, 32](y, x, 9, how)
    if how == "guarded":
        overhanging[1, 32](y, x, 13, how)
        return
    with pytest.raises(tw.CheckError, match="of mode 1, whose extent is 16"):
        overhanging[1, 32](y, x, 13, how)


@tw.kernel
def beyond_the_slice(y, x, i: tw.int32):
    part = x[0:4]
    y[0] = part[i]


def test_an_index_past_a_slice_is_found_though_the_array_goes_on() -> None:
    x, y = np.zeros(16, np.float32), np.zeros(1, np.float32)
    beyond_the_slice[1, 1](y, x, 3)
    with pytest.raises(tw.CheckError, match="whose extent is 4"):
        beyond_the_slice[1, 1](y, x, 4)


# --- what else sees operations on pairs ----------------------------------------------------------------------


@tw.kernel
def doubled(y, x):
    y[tw.thread_idx.x, :] = x[tw.thread_idx.x, :] * 2


def test_an_overflow_in_one_of_a_pair_is_found() -> None:
    x, y = np.ones((4, 8), np.float16), np.zeros((4, 8), np.float16)
    x[2, 5] = 60000
    with tw.simulate(nan=True), pytest.raises(tw.CheckError, match=r"mul gives inf of finite operands") as caught:
        doubled[1, 4](tw.static(y), tw.static(x))
    assert "thread (2, 0, 0)" in str(caught.value)


def test_amds_gpus_compute_pairs_one_by_one() -> None:
    text = doubled.source(*specs(tw.float16), block=64, arch="gfx90a")
    assert "to_half(to_float(a.v[1]) * to_float(b.v[1]))" in text


@tw.kernel
def one_element_repeated(y, x):
    r = tw.registers(tw.float32, tw.Layout((4, 2), (1, 0)))
    r[...] = 3
    r[...] = x[0:4]
    y[0] = r[0, 0]


def test_elements_that_repeat_take_a_number_and_no_tensor() -> None:
    with pytest.raises(tw.errors.TilewrightError, match="do not match|holds elements several times"):
        one_element_repeated[1, 1](np.zeros(1, np.float32), np.zeros(4, np.float32))


def counted(state, how):
    """Return an associative function that also writes down that it was called."""

    def add(a, b):
        if how == "append":
            state.append(1)
        else:
            state[0] += 1
        return a + b

    return add


@pytest.mark.parametrize("how", ["append", "item"])
@pytest.mark.parametrize("what", ["reduce", "tw.reduce", "tw.scan"])
def test_a_function_of_two_values_changes_nothing_else(how: str, what: str) -> None:
    @tw.kernel
    def kernel(y, x):
        state = [0]
        add = counted(state, how)
        if what == "reduce":
            y[0] = (x[0:4] * 1).reduce(add)
        elif what == "tw.reduce":
            y[0] = tw.reduce(x[tw.thread_idx.x], add)
        else:
            y[0] = tw.scan(x[tw.thread_idx.x], add)

    with pytest.raises(tw.LanguageError, match=r"'state.*' changes in the function that .* is given") as caught:
        kernel[1, 32](np.zeros(1, np.float32), np.zeros(32, np.float32))
    assert "add" in str(caught.value) and caught.value.location is not None


def test_a_function_of_two_values_reads_what_changes_and_has_state_of_its_own() -> None:
    @tw.kernel
    def kernel(y, x, n):
        factor = [1.0]

        def add(a, b):
            parts = [a * factor[0]]
            parts.append(b)
            return parts[0] + parts[1]

        for i in range(n):
            y[i] = (x[0:4] * 1).reduce(add, init=0.0) + factor[0]
            factor[0] += 0.0

    y = np.zeros(3, np.float32)
    kernel[1, 1](y, np.ones(4, np.float32), 3)
    assert y.tolist() == [5, 5, 5]
