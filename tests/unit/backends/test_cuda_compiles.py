"""Every op on every type it takes: the text compiles for every target, and says what it should where that matters."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.backends.kernels import Draft, compile_text, moved_vectors

from tilewright import dtypes as t
from tilewright.errors import LanguageError
from tilewright.instructions import shuffle
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.instructions.shuffle import Shuffle
from tilewright.instructions.vote import Vote
from tilewright.ir import ops
from tilewright.ir.core import Value, VectorType
from tilewright.ir.ops import constant

INTEGERS = tuple(x for x in t.ALL if x.is_integer)
FLOATS = tuple(x for x in t.ALL if x.is_float)
TESTS = ("isnan", "isinf", "isfinite")
INTEGER_UNARY = ("neg", "bit_not", "abs", "popcount", "clz")
FLOAT_UNARY = sorted(ops.UNARY_KINDS - {"not", "bit_not", "popcount", "clz"})
FLOAT_BINARY = ("add", "sub", "mul", "div", "rem", "min", "max", "pow", "atan2", "copysign", "fmod")
INTEGER_BINARY = ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr")
OLD = ("sm_75", "sm_80", "sm_90a")


class Table(Draft):
    """Stores results one after another, each into a buffer of its type."""

    def __init__(self, dtypes: tuple[t.DType, ...] = t.ALL) -> None:
        super().__init__()
        self.buffers = {x: self.pointer(f"{x}_data", x) for x in dtypes}
        self.count = 0

    def read(self, dtype: t.DType) -> Value:
        self.count += 1
        return self.load(self.buffers[dtype], self.count)

    def write(self, value: Value) -> None:
        self.count += 1
        self.store(self.buffers[value.dtype], self.count, value)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.spread(2)
def test_functions_of_floats(dtype: t.DType) -> None:
    d = Table()
    for kind in FLOAT_UNARY:
        d.write(d.unary(kind, d.read(dtype), t.bool_ if kind in TESTS else dtype))
    for kind in FLOAT_BINARY:
        d.write(d.binary(kind, d.read(dtype), d.read(dtype)))
    for kind in sorted(ops.COMPARE_KINDS):
        d.write(d.compare(kind, d.read(dtype), d.read(dtype)))
    d.write(d.pure(ops.Select(d.read(t.bool_), d.read(dtype), d.read(dtype)), dtype))
    if dtype.bits >= 32:
        d.write(d.pure(ops.Fma(d.read(dtype), d.read(dtype), d.read(dtype)), dtype))
    for value in (0.0, -0.0, 1.5, -2.0, 1e-5, 3e38, float("inf"), float("-inf"), float("nan")):
        d.write(d.add(d.read(dtype), value))
        d.write(constant(value, dtype))
    d.compiles()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.spread(3)
def test_functions_of_integers(dtype: t.DType) -> None:
    d = Table()
    for kind in INTEGER_UNARY:
        d.write(d.unary(kind, d.read(dtype)))
    for kind in INTEGER_BINARY:
        d.write(d.binary(kind, d.read(dtype), d.read(dtype)))
        d.write(d.binary(kind, d.read(dtype), 3))
    for kind in sorted(ops.COMPARE_KINDS):
        d.write(d.compare(kind, d.read(dtype), d.read(dtype)))
    d.write(d.pure(ops.Select(d.read(t.bool_), d.read(dtype), constant(1, dtype)), dtype))
    for value in (dtype.lowest, dtype.highest, 0):
        d.write(constant(value, dtype))
        d.write(d.binary("min", d.read(dtype), value))
    d.compiles()


def test_functions_of_bools() -> None:
    d = Table()
    for kind in ("and", "or", "xor"):
        d.write(d.binary(kind, d.read(t.bool_), d.read(t.bool_)))
    d.write(d.unary("not", d.read(t.bool_)))
    d.write(d.unary("not", d.binary("and", d.read(t.bool_), d.compare("lt", d.read(t.int32), 3))))
    d.write(d.pure(ops.Select(d.read(t.bool_), constant(True, t.bool_), d.read(t.bool_)), t.bool_))
    assert "!(bool_data[12] && int32_data[13] < 3)" in d.body()
    d.compiles()


@pytest.mark.parametrize("source", t.ALL, ids=str)
@pytest.mark.spread(4)
def test_conversions(source: t.DType) -> None:
    d = Table()
    for target in t.ALL:
        d.write(d.cast(d.read(source), target))
        d.write(d.add(d.cast(d.read(source), target), 1)) if target is not t.bool_ else None
    d.compiles(OLD)


def test_floats_become_integers_with_saturation() -> None:
    d = Table()
    for source, target in product((t.float32, t.float64), INTEGERS):
        d.write(d.cast(d.read(source), target))
    text = d.text()
    assert "= __float2int_rz(float32_data[" in text
    assert 'asm("cvt.rzi.sat.s8.f32 %0, %1;" : "=r"(y) : "f"(x));' in text
    assert "return isnan(x) ? 0 : (signed char)min(max(__double2int_rz(x), -128), 127);" in text
    assert "return isnan(x) ? 0 : (unsigned short)min(max(__double2int_rz(x), 0), 65535);" in text
    assert "return isnan(x) ? 0 : __float2ll_rz(x);" in text
    d.compiles()


def test_bits() -> None:
    d = Table()
    for a, b in product(t.ALL, t.ALL):
        if a.bits == b.bits and a is not b and t.bool_ not in (a, b):
            d.write(d.pure(ops.Bitcast(d.read(a)), b))
    four = d.load(d.buffers[t.uint32], 0, 4, name="four")
    d.store(d.buffers[t.float16], 0, d.pure(ops.Bitcast(four), VectorType(t.float16, 8)))
    word = d.pure(ops.Bitcast(d.load(d.buffers[t.float16], 2, 2)), t.uint32)
    d.write(word)
    assert "__float_as_uint(float32_data[" in d.body()
    assert "*(uint4*)float16_data = four;" in d.body(), "the words are stored as they are"
    d.compiles()


@pytest.mark.parametrize("dtype", t.ALL, ids=str)
@pytest.mark.spread(4)
def test_vectors(dtype: t.DType) -> None:
    moved_vectors(dtype).compiles(("sm_80", "sm_90a"))


ATOMIC = (t.int16, t.uint16, t.int32, t.uint32, t.int64, t.uint64, *FLOATS)
BITWISE = {"and", "or", "xor"}


@pytest.mark.parametrize("dtype", ATOMIC, ids=str)
@pytest.mark.spread(3)
def test_atomics(dtype: t.DType) -> None:
    d = Draft()
    x, tile = d.pointer("x", dtype), d.shared("tile", 4, dtype)
    i = d.special("thread_idx.x", "i")
    for buffer in (x, tile):
        for kind in sorted(ops.ATOMIC_KINDS - (BITWISE if dtype.is_float else set())):
            (old,) = d.emit(ops.Atomic(kind, buffer, i, constant(2, dtype)), dtype)
            d.emit(ops.Atomic(kind, buffer, constant(0, t.int32), old), dtype)
    d.compiles(OLD)


def test_atomics_use_the_hardware_where_it_can() -> None:
    d = Draft()
    for dtype in (t.float32, t.float64, t.float16, t.bfloat16, t.int64):
        d.emit(ops.Atomic("add", d.pointer(str(dtype), dtype), constant(1, t.int32), constant(2, dtype)), dtype)
    assert "atomicAdd(&float32[1], 2.0f);" in d.body()
    assert "(long long)atomicAdd((unsigned long long*)&int64[1], (unsigned long long)2LL);" in d.body()
    assert "atom.add.noftz.bf16" in d.text("sm_90a") and "atom.add.noftz.f16" in d.text("sm_75")
    assert "atom.add.noftz.bf16" not in d.text("sm_89") and "atomicCAS" in d.text("sm_89")


@pytest.mark.parametrize("dtype", [t.int8, t.uint8, t.bool_], ids=str)
def test_atomics_on_narrow_integers_are_refused(dtype: t.DType) -> None:
    d = Draft()
    d.emit(ops.Atomic("add", d.pointer("x", dtype), constant(0, t.int32), constant(1, dtype)), dtype)
    with pytest.raises(LanguageError, match=f"no atomic operation on {dtype}"):
        d.text()


@pytest.mark.parametrize("dtype", t.ALL, ids=str)
@pytest.mark.spread(4)
def test_shuffles(dtype: t.DType) -> None:
    d = Table()
    lane = d.special("thread_idx.x")
    for kind, width in product(sorted(shuffle.KINDS), (32, 8)):
        d.write(d.emit(Shuffle(kind, d.read(dtype), lane, width), dtype)[0])
    d.compiles(("sm_80", "sm_90a"))


def test_a_warp_sum_reads_like_a_persons() -> None:
    d = Draft()
    x = d.pointer("x")
    total = d.load(x, d.special("thread_idx.x"), name="total")
    with d.loop(0, total, start=16, step=-4, carried=("total",), name="offset") as loop:
        (other,) = d.emit(Shuffle("down", loop.carried[0], loop.index), t.float32)
        loop.next(d.add(loop.carried[0], other, "total"))
    d.store(x, 0, loop.results[0])
    assert (
        d.body()
        == """\
float total = x[threadIdx.x];
for (int offset = 16; offset > 0; offset -= 4) {
    total += __shfl_down_sync(0xffffffff, total, offset);
}
x[0] = total;"""
    )
    d.compiles()


def test_a_shuffle_is_never_skipped() -> None:
    d = Table()
    (moved,) = d.emit(Shuffle("xor", d.read(t.int32), constant(1, t.int32)), t.int32)
    d.write(d.pure(ops.Select(d.read(t.bool_), moved, constant(0, t.int32)), t.int32))
    (voted,) = d.emit(Vote("any", d.read(t.bool_)), t.bool_)
    d.write(d.binary("and", d.read(t.bool_), voted))
    assert "const int n = __shfl_xor_sync(0xffffffff, int32_data[1], 1);" in d.body()
    assert "const bool condition = __any_sync(0xffffffff, bool_data[4]) != 0;" in d.body()
    d.compiles()


def test_votes_barriers_prints_and_assertions() -> None:
    d = Table()
    for kind, type in (("any", t.bool_), ("all", t.bool_), ("ballot", t.uint32)):
        d.write(d.emit(Vote(kind, d.read(t.bool_)), type)[0])
    d.emit(Barrier("block"))
    d.emit(Barrier("warp"))
    values = tuple(d.read(x) for x in t.ALL)
    d.emit(ops.Print((*(f"{x}=" for x in t.ALL), ""), values))
    d.emit(ops.Print(('100% "sure"\\ of\tit\né ??/',), ()))
    d.at(7)
    d.emit(ops.Assert(d.compare("lt", values[3], 5), 'i < 5 "always" 100%'))
    body = d.body()
    assert r'printf("100%% \"sure\"\\ of\tit\né \?\?/\n");' in body
    assert '"bool=%s int8=%d'.replace(" ", "") in body and "uint64=%llu" in body and "float32=%g" in body
    assert r'if (int32_data_value >= 5) assertion_failed("draft.py:7: i < 5 \"always\" 100%");' in body
    d.compiles()


def test_asynchronous_copies() -> None:
    d = Draft()
    src, tile, n = d.pointer("src"), d.shared("tile", 256), d.scalar("n")
    zero, yes = constant(0, t.int32), constant(True, t.bool_)
    d.emit(AsyncCopy(tile, src, 4, "cg", zero, n, yes))
    for elements in (1, 2, 4):
        d.emit(AsyncCopy(tile, src, elements, "ca", n, zero, d.compare("lt", n, 7)))
    d.emit(AsyncCommit())
    d.emit(AsyncWait(1))
    d.emit(AsyncWait(None))
    assert (
        d.body()
        == """\
__shared__ __align__(16) float tile[256];
cp_async_cg_16(tile, &src[n]);
cp_async_ca_4_zero_fill(&tile[n], src, n < 7);
cp_async_ca_8_zero_fill(&tile[n], src, n < 7);
cp_async_ca_16_zero_fill(&tile[n], src, n < 7);
cp_async_commit();
cp_async_wait<1>();
cp_async_wait_all();"""
    )
    d.compiles()


@pytest.mark.parametrize("register", ops.SPECIAL_NAMES)
def test_special_registers(register: str) -> None:
    d = Draft()
    d.store(d.pointer("x", t.int32), 0, d.special(register))
    group, axis = register.split(".")
    word = group.split("_")[0] + group.split("_")[1].capitalize()
    assert d.body() == f"x[0] = {word}.{axis};"


def test_it_compiles_with_the_newest_targets() -> None:
    d = Table()
    d.write(d.cast(d.read(t.float64), t.bfloat16))
    for arch in ("sm_100", "sm_120"):
        compile_text(d.source(arch), arch)


@pytest.mark.parametrize("name", ["norm", "y0", "main", "malloc", "roundf", "std", "size_t", "max", "matmul", "clock"])
@pytest.mark.spread(3)
def test_kernels_of_names_that_compilers_declare(name: str) -> None:
    draft = Draft(name)
    buffer = draft.pointer("out", t.float32)
    draft.store(buffer, 0, draft.load(buffer, 1))
    compile_text(draft.source("sm_90a"), "sm_90a")
