"""Instructions by name against definitions in Python's integers, over edge values and random ones, in every type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits, blocks, edge_values, wrapped

import tilewright as tw

WORDS = (tw.int32, tw.uint32)
INTEGERS = (tw.int32, tw.uint32, tw.int64, tw.uint64)
BYTES = np.array([0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x80000000, 0xFFFFFFFF], np.uint32)


@tw.kernel
def apply(out, function: tw.constexpr, *operands):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = function(*[operand[i] for operand in operands])


def values(dtype: tw.DType, seed: int, count: int = 600) -> Array:
    """Return numbers of a type: edge values among random ones of every length."""
    random = np.random.default_rng([seed, dtype.bits])
    some = random.integers(dtype.lowest, dtype.highest, count, dtype=dtype.numpy, endpoint=True)
    some >>= random.integers(0, dtype.bits, count).astype(dtype.numpy)
    return np.where(random.random(count) < 0.4, random.choice(edge_values(dtype), count), some).astype(dtype.numpy)


def check(backend: Backend, function: Any, definition: Callable[..., int], result: tw.DType, *operands: Array) -> None:
    """Compare what the kernel gives with the definition, which takes and gives Python's integers."""
    out = backend.zeros(operands[0].shape, result)
    apply[blocks(out.shape[0]), 128](out, function, *[backend.put(x) for x in operands])
    given = zip(*[x.tolist() for x in operands], strict=True)
    expected = np.array([wrapped(definition(*numbers), result) for numbers in given], result.numpy)
    assert_same_bits(backend.get(out), expected, function, operands)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_high_halves(backend: Backend, dtype: tw.DType) -> None:
    x, y = values(dtype, 1), values(dtype, 2)
    check(backend, tw.mul_hi, lambda a, b: a * b >> dtype.bits, dtype, x, y)
    check(backend, lambda a: tw.mul_hi(a, 1000003), lambda a: a * 1000003 >> dtype.bits, dtype, x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_single_bits(backend: Backend, dtype: tw.DType) -> None:
    x, bits = values(dtype, 3), dtype.bits

    def reverse(a: int) -> int:
        return int(f"{a % 2**bits:0{bits}b}"[::-1], 2)

    check(backend, tw.ffs, lambda a: (a & -a).bit_length(), tw.int32, x)
    check(backend, tw.brev, reverse, dtype, x)


def extracted(a: int, start: int, length: int, dtype: tw.DType) -> int:
    """Follow the pseudocode of PTX's bfe."""
    msb, start, length = dtype.bits - 1, start & 255, length & 255
    sign = a >> min(start + length - 1, msb) & 1 if dtype.is_signed and length else 0
    bits = [a >> (start + n) & 1 if n < length and start + n <= msb else sign for n in range(msb + 1)]
    return sum(bit << n for n, bit in enumerate(bits))


def inserted(field: int, into: int, start: int, length: int, dtype: tw.DType) -> int:
    """Follow the pseudocode of PTX's bfi."""
    start, length = start & 255, length & 255
    for n in range(length):
        if start + n < dtype.bits:
            into = into & ~(1 << (start + n)) | (field >> n & 1) << (start + n)
    return into


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_fields(backend: Backend, dtype: tw.DType) -> None:
    random = np.random.default_rng(4)
    x, y = values(dtype, 5), values(dtype, 6)
    start, length = random.choice(BYTES, x.size), random.choice(BYTES, x.size)
    check(backend, tw.bfe, lambda *a: extracted(*a, dtype), dtype, x, start, length)
    check(backend, tw.bfi, lambda *a: inserted(*a, dtype), dtype, x, y, start, length)


@pytest.mark.parametrize("a_type", WORDS, ids=str)
@pytest.mark.parametrize("b_type", WORDS, ids=str)
def test_dot_products(backend: Backend, a_type: tw.DType, b_type: tw.DType) -> None:
    type = tw.uint32 if a_type is b_type is tw.uint32 else tw.int32
    a, b, c = values(a_type, 7), values(b_type, 8), values(type, 9)

    def part(x: int, n: int, width: int, dtype: tw.DType) -> int:
        low = x >> n * width & (1 << width) - 1
        return low - (1 << width) if dtype.is_signed and low >> width - 1 else low

    def dot(parts: int, first: int) -> Callable[[int, int, int], int]:
        width = 32 // parts
        return lambda a, b, c: c + sum(part(a, n, width, a_type) * part(b, first + n, 8, b_type) for n in range(parts))

    check(backend, tw.dp4a, dot(4, 0), type, a, b, c)
    check(backend, tw.dp2a, dot(2, 0), type, a, b, c)
    check(backend, lambda a, b, c: tw.dp2a(a, b, c, high=True), dot(2, 2), type, a, b, c)


@pytest.mark.parametrize("dtype", WORDS, ids=str)
def test_sums_of_differences(backend: Backend, dtype: tw.DType) -> None:
    a, b, c = values(dtype, 10), values(dtype, 11), values(tw.uint32, 12)
    check(backend, tw.sad, lambda a, b, c: c + abs(a - b), tw.uint32, a, b, c)


# The byte that each byte of the result is, by the two low bits of the selector: PTX ISA's table of "prmt", from byte 3.
MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


def permuted(a: int, b: int, selector: int, mode: str | None) -> int:
    both, result = (b % 2**32) << 32 | a % 2**32, 0
    for n in range(4):
        nibble = selector >> 4 * n & 15 if mode is None else int(MODES[mode][selector & 3][3 - n])
        byte = both >> 8 * (nibble & 7) & 255
        result |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * n
    return result


@pytest.mark.parametrize("mode", [None, *MODES])
def test_permuted_bytes(backend: Backend, mode: str | None) -> None:
    a, b, selector = values(tw.int32, 13), values(tw.uint32, 14), values(tw.uint32, 15)
    selector[:256] = np.random.default_rng(16).integers(0, 1 << 16, 256)
    check(backend, lambda *x: tw.byte_permute(*x, mode), lambda *x: permuted(*x, mode), tw.uint32, a, b, selector)


def test_logic_by_table(backend: Backend) -> None:
    a, b, c = values(tw.uint32, 17, 64), values(tw.int32, 18, 64), values(tw.uint32, 19, 64)
    for table in (0, 0x80, 0x96, 0xE8, 0x1B, 0xFF):

        def definition(a: int, b: int, c: int, table: int = table) -> int:
            index = [(a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1) for n in range(32)]
            return sum((table >> i & 1) << n for n, i in enumerate(index))

        check(backend, lambda *x, t=table: tw.lop3(*x, t), definition, tw.uint32, a, b, c)
    functions: list[Callable[[int, int, int], int]] = [
        lambda a, b, c: (a & b) ^ c,
        lambda a, b, c: ~(a | (b & ~c)),
        lambda a, b, c: b,
    ]
    for function in functions:
        check(backend, lambda *x, f=function: tw.lop3(*x, f), function, tw.uint32, a, b, c)


@pytest.mark.parametrize("clamp", [False, True])
def test_funnel_shifts(backend: Backend, clamp: bool) -> None:
    low, high, amount = values(tw.uint32, 20), values(tw.int32, 21), np.resize(BYTES, 600)

    def both(low: int, high: int) -> int:
        return (high % 2**32) << 32 | low

    def by(n: int) -> int:
        return min(n, 32) if clamp else n & 31

    left, right = (
        lambda *x: tw.funnel_shift_left(*x, clamp=clamp),
        lambda *x: tw.funnel_shift_right(*x, clamp=clamp),
    )
    check(backend, left, lambda a, b, n: both(a, b) << by(n) >> 32, tw.uint32, low, high, amount)
    check(backend, right, lambda a, b, n: both(a, b) >> by(n), tw.uint32, low, high, amount)


# --- matches -----------------------------------------------------------------------------------------------


@tw.kernel
def matches(lanes, every, x):
    i = tw.thread_idx.x
    lanes[i] = tw.match_any(x[i])
    every[i] = tw.match_all(x[i])


@pytest.mark.parametrize("dtype", [tw.bool_, tw.int8, tw.int32, tw.uint64, tw.float16, tw.float32, tw.float64], ids=str)
def test_matches(backend: Backend, dtype: tw.DType) -> None:
    random = np.random.default_rng(22)
    x = random.choice(edge_values(dtype)[:6], 96)
    x[32:64] = x[32]
    if dtype.is_float:  # a NaN matches its own bits, and a zero its sign
        x[:4] = [np.nan, np.nan, 0.0, -0.0]
    lanes, every = backend.zeros(96, tw.uint32), backend.zeros(96, tw.int32)
    matches[1, 96](lanes, every, backend.put(x))
    bits = x.view(f"u{x.itemsize}").reshape(3, 32)
    expected = [[sum(1 << n for n in range(32) if row[n] == own) for own in row] for row in bits]
    assert backend.get(lanes).tolist() == np.ravel(expected).tolist()
    assert backend.get(every).reshape(3, 32).tolist() == [[int((row == row[0]).all())] * 32 for row in bits]


# --- narrow integers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [tw.int8, tw.uint8, tw.int16, tw.uint16, tw.int32, tw.uint32, tw.int64], ids=str)
@pytest.mark.parametrize("source", [tw.float16, tw.bfloat16, tw.float32, tw.float64], ids=str)
def test_rounded_casts(backend: Backend, source: tw.DType, target: tw.DType) -> None:
    """A rounded number that is cast saturates at both ends, halves go to the even number, and NaN gives 0."""
    random = np.random.default_rng(23)
    ends = [float(n) + d for n in (target.lowest, target.highest, 0) for d in (-1.5, -1, -0.5, -0.25, 0, 0.5, 1, 1.5)]
    x = np.array([*ends, *random.uniform(-300, 300, 64), *np.arange(-8, 8) / 2])
    with np.errstate(over="ignore"):
        x = x.astype(source.numpy)
    x = np.concatenate([x, edge_values(source)])
    expected = []
    for number in x.astype(np.float64).tolist():
        whole = 0 if number != number else number if abs(number) == float("inf") else round(number)
        expected.append(int(min(max(whole, target.lowest), target.highest)))
    out = backend.zeros(x.shape, target)
    apply[blocks(x.size), 128](out, lambda v: tw.round(v).to(target), backend.put(x))
    assert_same_bits(backend.get(out), np.array(expected, target.numpy), "round", [x])
