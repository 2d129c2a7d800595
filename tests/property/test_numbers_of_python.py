"""One line each: what an expression gives in a kernel is what Python or NumPy gives, or it is refused with the line."""

from __future__ import annotations

import collections
import functools
import itertools
import linecache
import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw

TABLE = {3: 10}
_numbers = itertools.count()


def kernel_of(expression: str, before: str, names: list[str], **variables: Any) -> Any:
    """Return the kernel `o[0] = expression`, after some statements, with arrays of one number as its arguments."""
    file = f"<numbers of python {next(_numbers)}>"
    lines = [f"def kernel(o, {', '.join(names)}):", *(f"    {line}" for line in before.splitlines())]
    text = "\n".join([*lines, f"    o[0] = {expression}", ""])
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found = {"tw": tw, "np": np, "math": math, "collections": collections, "functools": functools, "TABLE": TABLE}
    found |= variables
    exec(compile(text, file, "exec"), found)
    return found["kernel"]


def on_device(expression: str, before: str = "", dtype: str = "float64", **given: tuple[str, Any]) -> Any:
    """Return what the simulator stores, as a Python number."""
    kernel = tw.kernel(kernel_of(expression, before, list(given)))
    out = np.zeros(1, dtype)
    kernel[1, 1](out, *[np.array([value], kind) for kind, value in given.values()])
    return out[0].item()


def in_python(expression: str, before: str = "", dtype: str = "float64", **given: tuple[str, Any]) -> Any:
    """Return what Python stores for the same numbers."""
    out = np.zeros(1, dtype)
    arrays = [[np.array([value], kind)[0].item()] for kind, value in given.values()]
    kernel_of(expression, before, list(given))(out, *arrays)
    return out[0].item()


def check(expressions: str, before: str = "", dtype: str = "float64", **given: tuple[str, Any]) -> None:
    """Compare lines of expressions, all differences in one message."""
    wrong = []
    for expression in filter(None, map(str.strip, expressions.splitlines())):
        got, want = (f(expression, before, dtype, **given) for f in (on_device, in_python))
        if got != want or math.copysign(1, got) != math.copysign(1, want):
            wrong.append(f"{expression}: {got!r}, and Python {want!r}")
    assert not wrong, "\n".join(wrong)


# --- float64 --------------------------------------------------------------------------------------------------

OF_FLOAT64 = """
    x[0] * 0.1
    0.1 * x[0]
    x[0] / 0.3
    0.3 / x[0]
    x[0] - 0.1
    x[0] + 1e300
    -x[0] + 0.1
    x[0] % 0.1
    0.7 % x[0]
    divmod(x[0], 0.4)[1]
    x[0] * 10**20
    x[0] * (2**53 + 1)
    x[0] + 2**63
    min(x[0], 0.1)
    max(x[0], 1.7)
    max(x[0], 1.7, 1e300)
    max([x[0], 1.7])
    min((x[0],), default=0.1)
    abs(x[0] - 0.1)
    sum([x[0], 0.1])
    float(x[0]) * 0.1
    int(x[0] * 1e15)
    (x[0] if x[0] > 5 else 0.1)
    (0.1 if x[0] > 5 else x[0])
    (0.1 if x[0] > 1 else 0.2)
    (0.1 if x[0] > 1 else 0.2) * x[0]
    x[0] - (0.1 if x[0] > 1 else 0.2)
    (0.1 if x[0] > 1 else 1) + x[0]
    (0.1 if x[0] > 5 else 0.7 if x[0] > 1 else 0.3) * x[0]
    -(0.1 if x[0] > 1 else 0.2)
    abs(-0.1 if x[0] > 1 else 0.2)
    (0.1 if x[0] > 1 else 0.2) * 3
    1 / (0.1 if x[0] > 1 else 0.2)
    (0.1 if x[0] > 1 else 0.2) / (0.3 if x[0] > 5 else 0.7) + x[0]
    x[0] == 1.1
    x[0] < 1.1000000001
    x[0] != np.float64(1.1)
    0.1 <= x[0] < 1.10000000001
    x[0] in (0.1, 1.1)
    x[0] * math.pi
    x[0] * np.float64(0.1)
"""


def test_python_floats_meet_float64_as_they_are() -> None:
    check(OF_FLOAT64, x=("float64", 1.1))


@pytest.mark.parametrize("condition", ["x[0] > 1", "x[0] > 5"])
@pytest.mark.parametrize(
    "sides",
    [
        ("0.1", "0.2"),
        ("0.1", "x[0]"),
        ("x[0]", "0.1"),
        ("0.1", "3"),
        ("-0.0", "1e-320"),
        ("0.0", "-0.0"),
        ("(0.1 if x[0] > 2 else 0.2)", "0.3"),
        ("(0.1 if x[0] > 2 else 0.2)", "x[0]"),
        ("0.7", "(0.1 if x[0] > 2 else x[0])"),
    ],
)
@pytest.mark.spread(4)
def test_branches_assign_python_floats(condition: str, sides: tuple[str, str]) -> None:
    before = f"if {condition}:\n    a = {sides[0]}\nelse:\n    a = {sides[1]}"
    check("a\na * x[0]\n-a\na + 0.1 + x[0]", before, x=("float64", 1.1))


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("tw.where(x[0] > 1, 0.1, 0.2)", 0.1),
        ("tw.where(x[0] > 1, 0.1, 0.2) * x[0]", 0.1 * 1.1),
        ("tw.where(x[0] > 1, 0.1, x[0])", 0.1),
        ("tw.minimum(tw.where(x[0] > 1, 0.1, 0.2), x[0])", 0.1),
        ("tw.maximum(x[0] - 1e305, -1e300)", -1e300),
        ("tw.float64(0.1)", 0.1),
        ("tw.float64(0.1) * 3", 0.1 * 3),
        ("tw.float32(0.1)", float(np.float32(0.1))),
        ("tw.float32(0.1) * 3", float(np.float32(0.1) * np.float32(3))),
        ("tw.float16(1) + x[0]", 2.1),
        ("tw.copysign(0.1, x[0])", 0.1),
    ],
)
def test_choices_of_python_floats(expression: str, want: float) -> None:
    assert on_device(expression, x=("float64", 1.1)) == want


def test_fragments_of_float64_take_python_floats_exactly() -> None:
    before = "r = tw.registers(tw.float64, (2,))\ntw.fill(r, 0.1)\nr[1] = 0.2"
    assert on_device("r[0]", before, x=("float64", 1)) == 0.1
    assert on_device("r[1]", before, x=("float64", 1)) == 0.2
    assert on_device("a", "a: tw.float64 = 0.1", x=("float64", 1)) == 0.1


# --- integers -------------------------------------------------------------------------------------------------

POWERS = """
    x[0] ** 0
    x[0] ** 1
    x[0] ** 2
    x[0] ** 7
    x[0] ** 17
    x[0] ** 20
    x[0] ** True
    2 ** x[0]
    (-2) ** x[0]
    x[0] ** y[0]
    pow(x[0], 2)
    pow(x[0], y[0])
    (x[0] > 0) ** 2 + (x[0] < 0) ** y[0]
    big[0] ** one[0]
    big[0] ** 1 + one[0] ** 40
"""


def test_powers_of_integers() -> None:
    given = {"x": ("int64", 3), "y": ("int64", 31), "big": ("int32", 2**24 + 1), "one": ("int32", 1)}
    check(POWERS, dtype="int64", **given)
    check("x[0] ** y[0]\n2 ** y[0]", dtype="int64", x=("int32", 3), y=("int32", 19))
    check("x[0] ** y[0]\nx[0] ** 2.0\n2.0 ** y[0]\n0.5 ** y[0]", x=("float64", 3), y=("int32", 19))


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_powers_are_exact_modulo_the_type(kind: str) -> None:
    @tw.kernel
    def powers(o, x, y, z):
        i = tw.thread_idx.x
        o[i] = x[i] ** y[i]
        z[i] = x[i] ** 105

    info, rng = np.iinfo(kind), np.random.default_rng(0)
    x = rng.integers(info.min, info.max, 64, kind, endpoint=True)
    y = rng.integers(0, info.max, 64, kind, endpoint=True)
    o, z = np.zeros(64, kind), np.zeros(64, kind)
    powers[1, 64](o, x, y, z)
    assert [int(n) % 2**info.bits for n in o] == [pow(int(a), int(b), 2**info.bits) for a, b in zip(x, y, strict=True)]
    assert [int(n) % 2**info.bits for n in z] == [pow(int(a), 105, 2**info.bits) for a in x]


def test_a_negative_exponent_of_the_device_is_found() -> None:
    with pytest.raises(tw.CheckError, match="the exponent of an integer power is negative"):
        on_device("x[0] ** y[0]", x=("int32", 3), y=("int32", -1))
    assert on_device("x[0] ** -1", x=("int32", 4), y=("int32", -1)) == 0.25


COMPARISONS = """
    x[0] < 200
    x[0] > -200
    x[0] == 356
    x[0] != 356
    -129 <= x[0] <= 128
    x[0] < 0.5
    x[0] > 99.5
    x[0] >= 100.0
    x[0] == 100.5
    x[0] != 100.5
    100.25 > x[0]
    x[0] < 1e300
    x[0] > float("-inf")
    x[0] == float("nan")
    x[0] != float("nan")
    x[0] + 200
    x[0] - 300
    200 + x[0]
    x[0] & 255
    x[0] + 2**40
    x[0] // 200
    min(x[0], 200)
    max(x[0], -200)
"""


@pytest.mark.parametrize(("kind", "value"), [("int8", 100), ("int8", -128), ("uint8", 50), ("int16", -5)])
def test_numbers_that_do_not_fit_a_narrow_integer(kind: str, value: int) -> None:
    lines = [line for line in COMPARISONS.split("\n") if value >= 0 or "//" not in line]
    check("\n".join(lines), x=(kind, value))


@pytest.mark.parametrize("value", [0, 1, 2**53 + 1, 2**63, 2**64 - 1])
@pytest.mark.spread(2)
def test_wide_integers_compare_exactly_with_python_numbers(value: int) -> None:
    numbers = [-1, 0, 2**53, float(2**53), 2**63 - 1, float(2**63), 2**64 - 1, 1e300, -0.5, 0.5]
    lines = [f"x[0] {sign} {number!r}" for sign in ("<", "<=", "==", "!=", ">=", ">") for number in numbers]
    lines += [f"{number!r} {sign} x[0]" for sign in ("<", ">=", "!=") for number in numbers]
    check("\n".join(lines), dtype="bool", x=("uint64", value))
    if value < 2**63:
        check("\n".join(line for line in lines if str(2**64 - 1) not in line), dtype="bool", x=("int64", value))


OF_INTEGERS = """
    int(x[0])
    int(x[0]) + 1
    float(x[0])
    bool(x[0])
    abs(x[0])
    round(x[0])
    -(x[0] < 0)
    (x[0] < 0) + (x[0] > -9)
    (x[0] < 0) * 5
    (x[0] < 0) << 2
    (x[0] < 0) >> 1
    (x[0] < 0) // 1
    (x[0] < 0) / 2
    (x[0] < 0) == True
    (x[0] < 0) | 2
    -10 < x[0] < 0 < 5
    -10 < x[0] < -8
    min(x[0], 2.5)
    max(x[0], -9.5)
    min(x[0], 3, -9)
    x[0] >> 40
    x[0] in range(-9, 0)
    x[0] in range(-9, 0, 2)
    x[0] in range(0, -9, -7)
    x[0] in range(-2000000001, 2000000000, 3)
    x[0] is None
    x[0] == None
    x[0] == "a"
    x[0] not in (1, 2)
"""


def test_what_python_does_with_integers() -> None:
    check(OF_INTEGERS, x=("int32", -7))
    check("int(x[0])\nint(x[0]) * 2", dtype="int64", x=("int64", 2**40 + 1))
    check("int(x[0])", dtype="int64", x=("float64", 2.0**40 + 1))
    check("int(x[0])", dtype="int64", x=("uint32", 2**32 - 1))


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("tw.uint32(0) - 1", 2**32 - 1),
        ("tw.uint32(0) - x[0]", 2**32 - 3),
        ("tw.int8(100) + tw.int8(100)", -56),
        ("tw.uint8(255) + 1", 0),
        ("tw.int32(-7) // 2", -3),
        ("tw.int32(-7) % 2", -1),
        ("tw.int64(2**40) * 4", 2**42),
        ("tw.uint32(1) << 31", 2**31),
        ("tw.uint32(-1)", 2**32 - 1),
        ("tw.int32(2**31)", -(2**31)),
        ("tw.int32(3.7)", 3),
        ("tw.int32(-3.7)", -3),
        ("tw.int8(1e9)", 127),
        ("tw.uint8(-1e9)", 0),
        ("tw.int32(float('nan'))", 0),
        ("tw.uint64(2**64 - 1) >> 63", 1),
        ("tw.bool_(2) + 1", 2),
        ("~tw.uint32(0)", 2**32 - 1),
        ("-tw.uint32(1)", 2**32 - 1),
        ("tw.uint8(200) + tw.int8(100)", 300),
        ("tw.int32(tw.uint8(200))", 200),
        ("tw.uint32(np.int64(2**32 + 5))", 5),
        ("[7, 8, 9][tw.int32(1)]", 8),
        ("tw.uint32(7) if tw.uint32(0) - 1 > 5 else 3", 7),
    ],
)
def test_typed_numbers_are_device_numbers(expression: str, want: int) -> None:
    assert on_device(expression, dtype="int64", x=("uint32", 3)) == want


def test_typed_numbers_outside_of_a_kernel_are_numpys() -> None:
    for kind in (tw.uint32, tw.float32, tw.bool_, tw.bfloat16):
        assert type(kind(1)) is kind.numpy.type
    zero = tw.uint32(0)
    assert isinstance(zero, np.uint32)

    @tw.kernel
    def kernel(o):
        o[0] = tw.uint32(0) - 1 > 5

    out = np.zeros(1, np.int32)
    kernel[1, 1](out)
    assert out[0] == 1 and type(tw.uint32(0)) is np.uint32


# --- looking up -----------------------------------------------------------------------------------------------

LOOKED_UP = """
    x[0] in {3: 10}
    x[0] in TABLE
    x[0] not in {4: 10}
    x[0] in {1, 3}
    x[0] in frozenset((1, 3))
    x[0] in np.array([1, 3])
    x[0] in np.array([[1, 2], [3, 4]])
    x[0] in {3: 10}.keys()
    x[0] in {4: 3}.values()
    x[0] in [1, 3]
    3 in [x[0]]
    3 in {"a": x[0]}.values()
    x[0] in ()
    (x[0] in {1: 2}) + (x[0] in {3: 2})
    0 < x[0] in {3}
    {"a": x[0]}["a"]
    [x[0]][0]
    sorted((2, 1))[0]
    list(map(abs, [x[0]]))[0]
    tuple(enumerate([x[0]]))[0][1]
"""


def test_containers_compare_device_values() -> None:
    check(LOOKED_UP, x=("int32", 3))


REFUSED = """
    {3: 10}[x[0]]                                hash
    {3: 10}.get(x[0])                            hash
    TABLE.get(x[0], 5)                           hash
    {3: 10}.setdefault(x[0], 7)                  hash
    {3: 10}.pop(x[0], 7)                         hash
    {x[0]: 1}[3]                                 hash
    dict([(x[0], 1)])[3]                         hash
    len({x[0], 3})                               hash
    {1, 3}.issuperset([x[0]])                    hash
    collections.Counter([x[0], 3])[3]            hash
    hash(x[0])                                   hash
    hash((1, x[0]))                              hash
    (x[0], 1) in {(3, 1): 5}                     truth
    functools.lru_cache(lambda n: n)(x[0])       hash
    [1, 3].index(x[0])                           truth
    [1, 3].count(x[0])                           truth
    (x[0], 1) == (3, 1)                          truth
    [x[0]] == [3]                                truth
    sorted([5, x[0]])[0]                         truth
    min([x[0], 5], key=lambda v: -v)             min(..., key=)
    max(1, x[0], key=abs)                        max(..., key=)
    x[0] in iter([1, 3])                         looked for
    x[0] in "abc"                                looked for
    str(x[0])                                    text
    f"{x[0]}"                                    text
    f"{x[0]:>5}"                                 text
    "%s" % x[0]                                  text
    "{}".format(x[0])                            text
    print(x[0])                                  tw.device_print
    print("x is", x[0])                          tw.device_print
    print(x)                                     tw.device_print
    math.sin(x[0])                               tw.sqrt and the like
    math.floor(x[0])                             as a float
    np.exp(x[0])                                 tw.sqrt
    np.where(x[0] < 0, 1, 2)                     truth
    pow(x[0], 2, 5)                              pow(a, b, c)
    round(x[0], 1)                               round(x, digits)
    [10, 20, 30][x[0]]                           tw.static_range
    range(10)[x[0]]                              known
    len(range(x[0]))                             only the device knows
    x[0] + 2**70                                 does not fit
    x[y[0]]                                      must be an integer
    x[x[0] > 0]                                  must be an integer
    [v for v in range(y[0])][0]                  must be an integer
    tw.int32("7")                                converts numbers
    x[0] // 0                                    has no result
    x[0] % tw.int32(0)                           has no result
    divmod(x[0], 0)[1]                           has no result
    tw.make_tensor(x[0], 4)[0]                   a number and not memory
    x[0] in x                                    looked for in Tensor
    sum(v for v in x[0])                         loop over range(x)
"""


@pytest.mark.parametrize("row", [line.strip() for line in REFUSED.strip().splitlines()])
def test_refused_with_the_line_and_the_way_out(row: str) -> None:
    expression, words = (part.strip() for part in row.rsplit("   ", 1))
    with pytest.raises((tw.LanguageError, tw.ArgumentError)) as caught:
        on_device(expression, x=("int32", 3), y=("float32", 1))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert words in text and f"o[0] = {expression}" in text


def test_a_plain_helper_cannot_print_or_look_up_either() -> None:
    def helper(table: Any, x: Any) -> Any:
        print(x)

    def other(table: Any, x: Any) -> Any:
        return table[x]

    for function in (helper, other):
        found: dict[str, Any] = {"x": ("int32", 3)}
        kernel = tw.kernel(kernel_of("function({3: 1}, x[0])", "", ["x"], function=function))
        with pytest.raises(tw.LanguageError, match="text of a device value|hash of a device value"):
            kernel.lower(tw.spec("float32", (1,)), tw.spec(found["x"][0], (1,)))


def test_what_may_be_said_of_device_values(capsys: pytest.CaptureFixture[str]) -> None:
    @tw.kernel
    def kernel(o):
        value = o[0]
        print("traced", repr(value), o.layout, tw.Layout((value, 2)))
        o[0] = len({value.dtype, o.dtype})

    out = np.zeros(1, np.int32)
    kernel[1, 1](out)
    assert out[0] == 1 and "traced <device int32 value> (o_shape0):(1)" in capsys.readouterr().out
