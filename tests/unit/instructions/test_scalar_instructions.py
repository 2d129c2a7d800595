"""Instructions by name: their text and machine code, HIP's text on the host, folding, facts, and what is refused."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.language import TARGETS, lowered, run
from tests.helpers.machine_code import opcodes
from tests.helpers.slow import covering

import tilewright as tw
from tilewright.errors import LanguageError
from tilewright.instructions.bits import FindFirstSet
from tilewright.instructions.products import MulHi
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Compare
from tilewright.runtime.clang import find_clang

MODES = (None, "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
THREADS = 256

# Functions of two integers of one type and of a word.
OF_ALL = (
    lambda x, y, n: tw.mul_hi(x, y),
    lambda x, y, n: tw.ffs(x),
    lambda x, y, n: tw.brev(x),
    lambda x, y, n: tw.bfe(x, n, n >> 8),
    lambda x, y, n: tw.bfi(x, y, n, n >> 8),
    lambda x, y, n: tw.philox(x, y)[0] - tw.philox(x, (n, n >> 1, n, n))[3],
)
OF_WORDS = (
    *OF_ALL,
    lambda x, y, n: tw.dp4a(x, y, n.to(x.dtype)),
    lambda x, y, n: tw.dp4a(x, n, 7),
    lambda x, y, n: tw.dp2a(n, x, 7),
    lambda x, y, n: tw.dp2a(x, y, 7, high=True),
    lambda x, y, n: tw.sad(x, y, n),
    lambda x, y, n: tw.funnel_shift_left(x, y, n),
    lambda x, y, n: tw.funnel_shift_left(x, y, n, clamp=True),
    lambda x, y, n: tw.funnel_shift_right(x, y, n),
    lambda x, y, n: tw.funnel_shift_right(x, y, n, clamp=True),
    lambda x, y, n: tw.lop3(x, y, n, 0xB4),
    *[lambda x, y, n, mode=mode: tw.byte_permute(x, y, n, mode) for mode in MODES],
)


@tw.kernel
def apply(out, x, y, n, functions: tw.constexpr):
    i = tw.thread_idx.x
    for row, function in enumerate(functions):
        out[THREADS * row + i] = function(x[i], y[i], n[i]).to(tw.uint64)


def operands(dtype: Any) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(dtype.bits)
    x, y = (random.integers(dtype.lowest, dtype.highest, THREADS, dtype.numpy, endpoint=True) for _ in range(2))
    x[:8] = [0, 1, dtype.highest, dtype.lowest, 2, 7, 128, 255]
    n = random.integers(0, 1 << 32, THREADS, np.uint32)
    n[:128] = random.choice([0, 1, 31, 32, 33, 63, 64, 65, 200, 255], 128) | random.integers(0, 80, 128) << 8
    return x, y, n


def specs(dtype: Any) -> tuple[Any, ...]:
    word, wide = tw.spec(tw.uint32, (THREADS,)), tw.spec(tw.uint64, (THREADS,))
    return wide, tw.spec(dtype, (THREADS,)), tw.spec(dtype, (THREADS,)), word


@pytest.mark.parametrize("dtype", [tw.int32, tw.uint32, tw.int64, tw.uint64], ids=str)
@pytest.mark.spread(2)
def test_they_compile(dtype: tw.DType) -> None:
    functions = OF_WORDS if dtype.bits == 32 else OF_ALL
    for target in (*TARGETS, *(("gfx908",) if find_clang() is not None else ())):
        assert not apply.resources(*specs(dtype), functions, block=THREADS, arch=target).spills


SHIM = """\
#define __attribute__(x)
int thread;
#define __builtin_amdgcn_workitem_id_x() thread
"""


@pytest.mark.parametrize("dtype", [tw.int32, tw.uint32, tw.int64, tw.uint64], ids=str)
def test_the_text_for_amd_computes_the_same(dtype: tw.DType, tmp_path: Path) -> None:
    """Compile HIP's text for the host, run it thread by thread, and compare with the simulator."""
    clang = find_clang()
    if clang is None:
        pytest.skip("needs clang")
    functions = OF_WORDS if dtype.bits == 32 else OF_ALL
    given = operands(dtype)
    expected = run(apply, np.zeros(THREADS * len(functions), np.uint64), *given, functions, block=THREADS)
    text = apply.source(*specs(dtype), functions, block=THREADS, arch="gfx90a")
    (tmp_path / "kernel.cpp").write_text(SHIM + text)
    command = [str(clang), "-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fdeclspec", "-w"]
    subprocess.run([*command, str(tmp_path / "kernel.cpp"), "-o", str(tmp_path / "kernel.so")], check=True, timeout=120)
    library = ctypes.CDLL(str(tmp_path / "kernel.so"))
    found = np.zeros_like(expected)
    thread = ctypes.c_int.in_dll(library, "thread")
    for number in range(THREADS):
        thread.value = number
        library.apply(*[array.ctypes.data_as(ctypes.c_void_p) for array in (found, *given)])
    for row, (here, there) in enumerate(zip(found.reshape(-1, THREADS), expected.reshape(-1, THREADS), strict=True)):
        assert np.array_equal(here, there), (row, np.flatnonzero(here != there)[:5])


def test_each_is_one_instruction() -> None:
    wanted = {
        "IMAD.HI.U32": lambda x, y, n: tw.mul_hi(x, y),
        "IDP.4A.U8.U8": lambda x, y, n: tw.dp4a(x, y, n),
        "IDP.2A.LO.U16.U8": lambda x, y, n: tw.dp2a(x, y, n),
        "PRMT": lambda x, y, n: tw.byte_permute(x, y, n),
        "LOP3.LUT": lambda x, y, n: tw.lop3(x, y, n, lambda a, b, c: (a & b) ^ c),
        "SHF.L.W.U32.HI": lambda x, y, n: tw.funnel_shift_left(x, y, n),
        "BREV": lambda x, y, n: tw.brev(x),
        "VABSDIFF.U32": lambda x, y, n: tw.sad(x, y, n),
    }
    for target in TARGETS:
        code = opcodes(apply.sass(*specs(tw.uint32), tuple(wanted.values()), block=THREADS, arch=target))
        assert set(wanted) <= set(code), set(wanted) - set(code)


def test_they_stand_in_expressions_and_are_computed_once() -> None:
    def function(x, y, n):
        return tw.mul_hi(x, y) + (tw.mul_hi(x, y) ^ n) * tw.ffs(n).to(tw.uint32)

    text = apply.source(*specs(tw.uint32), (function,), block=THREADS)
    assert text.count("__umulhi(") == 1 and "(unsigned int)__ffs(" in text
    ops = lowered(apply, *specs(tw.uint32), (function,), block=THREADS)
    assert [type(op) for op in ops if isinstance(op, Instruction)] == [MulHi, FindFirstSet]


def test_constants_fold() -> None:
    @tw.kernel
    def constants(out):
        out[0] = tw.mul_hi(-(2**31), 2**31 - 1)
        out[1] = tw.ffs(0) + tw.ffs(2**33) + tw.ffs(-(2**63))
        out[2] = tw.dp4a(0x01020304, -1, 100)
        out[3] = tw.byte_permute(0x03020100, 0x07060504, 0x7531).to(tw.int64)
        out[4] = tw.lop3(0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA, 0x1B).to(tw.int64)
        out[5] = tw.bfe(-256, 4, 8) + tw.brev(1)
        out[6] = tw.mul_hi(tw.uint64(2**64 - 1), tw.uint64(2**64 - 1)).bitcast(tw.int64)

    ops = lowered(constants, tw.spec(tw.int64, (7,)))
    assert not [op for op in ops if isinstance(op, Instruction)]
    out = run(constants, np.zeros(7, np.int64))
    assert out.tolist() == [-(2**30), 34 + 64, 90, 0x07050301, 0x1B1B1B1B, 2**31 - 16, -2]


def test_facts_of_high_halves_are_known() -> None:
    @tw.kernel
    def scaled(out):
        i = tw.thread_idx.x
        out[tw.mul_hi(i << 8, 1 << 24) % 64] = tw.ffs(i) > 40

    ops = lowered(scaled, tw.spec(tw.int32, (64,)), block=64)
    assert not [op for op in ops if isinstance(op, Compare) or getattr(op, "kind", "") == "rem"]
    assert any(isinstance(op, MulHi) for op in ops)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, y, n: tw.mul_hi(x, n), "tw.mul_hi takes two integers of one type, got int32 and uint32"),
        (lambda x, y, n: tw.mul_hi(x, 2**40), "does not fit into int32"),
        (lambda x, y, n: tw.mul_hi(x.to(tw.int16), 3), "tw.mul_hi takes an integer of 32 or 64 bits, got"),
        (lambda x, y, n: tw.mul_hi(x, 0.5), "tw.mul_hi takes an integer of 32 or 64 bits, got 0.5"),
        (lambda x, y, n: tw.ffs(True), "tw.ffs takes an integer of 32 or 64 bits, got True"),
        (lambda x, y, n: tw.dp4a(x.to(tw.int64), y), "tw.dp4a takes an integer of 32 bits, got"),
        (lambda x, y, n: tw.dp2a(x, y, high=1), "high= of tw.dp2a is True or False, known while tracing, got 1"),
        (lambda x, y, n: tw.byte_permute(x, y, n, "f5e"), "a mode of tw.byte_permute is None or one of f4e, .* got"),
        (lambda x, y, n: tw.byte_permute(x, 2**32, n), "tw.byte_permute takes an integer of 32 bits, got 4294967296"),
        (lambda x, y, n: tw.lop3(x, y, n, 256), "the table of tw.lop3 is a number from 0 to 255, or a function"),
        (lambda x, y, n: tw.lop3(x, y, n, lambda a, b, c: 0.5), "the table of tw.lop3 is a number from 0 to 255, or"),
        (lambda x, y, n: tw.lop3(x, y, n, n), "the table of tw.lop3 is a number from 0 to 255"),
        (lambda x, y, n: tw.funnel_shift_left(x, y, n, clamp=n), "clamp= of tw.funnel_shift_left is True or False"),
        (lambda x, y, n: tw.bfi(x, y.to(tw.int64), 1, 1), "tw.bfi takes integers of one width, got int32 and int64"),
        (lambda x, y, n: tw.sad(x, n), "tw.sad takes two integers of one type"),
    ],
)
def test_wrong_operands(function: Any, message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        apply.source(*specs(tw.int32), (function,), block=THREADS)


def test_lanes_that_a_last_warp_lacks_match_nothing() -> None:
    @tw.kernel
    def zeros_everywhere(lanes, every, x, bound):
        i = tw.thread_idx.x
        if i < bound:
            lanes[i] = tw.match_any(x[i])
            every[i] = tw.match_all(x[i] + i // 32)

    lanes, every = np.zeros(48, np.uint32), np.zeros(48, np.int32)
    zeros_everywhere[1, 48](lanes, every, np.zeros(48, np.int32), 48)
    assert lanes.tolist() == [0xFFFFFFFF] * 32 + [0xFFFF] * 16 and every.all()


def test_matches_are_nvidias() -> None:
    with pytest.raises(LanguageError, match="gfx90a has no match instruction"):
        apply.source(*specs(tw.int32), (lambda x, y, n: tw.match_any(x),), block=THREADS, arch="gfx90a")
    with pytest.raises(LanguageError, match="the block of 48 threads leaves 16 in its last group"):
        apply.source(*specs(tw.int32), (lambda x, y, n: tw.match_any(x),), block=48)
    code = opcodes(apply.sass(*specs(tw.int64), (lambda x, y, n: tw.match_all(x),), block=64))
    assert "MATCH.ALL.U64" in code


NARROW = [tw.int8, tw.uint8, tw.int16, tw.uint16, tw.int32]


@pytest.mark.parametrize(("target", "arch"), covering(NARROW, TARGETS, of=1), ids=str)
@pytest.mark.spread(4)
def test_a_rounded_float_becomes_a_narrow_integer_in_one_instruction(target: tw.DType, arch: str) -> None:
    @tw.kernel
    def quantise(out, x, scale):
        i = tw.thread_idx.x
        out[i] = tw.round(x[i] * scale).to(target)

    given = tw.spec(target, (64,)), tw.spec(tw.float32, (64,)), 1.0
    code = opcodes(quantise.sass(*given, block=64, arch=arch))
    assert sum(each.startswith("F2I") for each in code) == 1
    assert not [each for each in code if each.startswith(("FRND", "IMNMX", "VIMNMX", "FSETP", "ISETP"))], code
