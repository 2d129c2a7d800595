"""What the printed text looks like, construct by construct; each also compiles."""

from __future__ import annotations

import linecache

import pytest
from tests.unit.backends.kernels import ARCHES, Draft, compile_text, scale

from tilewright import dtypes as t
from tilewright.errors import InternalError, LanguageError
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCopy
from tilewright.ir import ops
from tilewright.ir.core import Block, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import constant


def test_a_kernel_reads_like_a_persons() -> None:
    assert (
        scale().text()
        == """\
extern "C" __global__ void __launch_bounds__(256) scale(
    float* dst, const float* __restrict__ src, int n, float factor) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) {
        dst[i] = src[i] * factor;
    }
}
"""
    )
    scale().compiles()


def test_carried_values_become_variables() -> None:
    d = Draft()
    out, n = d.pointer("out", t.int32), d.scalar("n")
    with d.loop(n, constant(0, t.int32), constant(1, t.int32), name="k", carried=("a", "b")) as loop:
        a, b = loop.carried
        loop.next(b, d.add(a, b, "b"))
    d.store(out, 0, loop.results[0])
    assert (
        d.body()
        == """\
int a = 0;
int b = 1;
for (int k = 0; k < n; k += 1) {
    const int b_1 = a + b;
    a = b;
    b = b_1;
}
out[0] = a;"""
    )
    d.compiles()


def test_a_swap_takes_one_constant() -> None:
    d = Draft()
    out, n = d.pointer("out", t.int32), d.scalar("n")
    with d.loop(n, constant(0, t.int32), constant(1, t.int32), carried=("read", "write")) as loop:
        read, write = loop.carried
        d.store(out, read, write)
        loop.next(write, read)
    assert (
        d.body()
        == """\
int read = 0;
int write = 1;
for (int i = 0; i < n; i += 1) {
    out[read] = write;
    const int next_write = read;
    read = write;
    write = next_write;
}"""
    )
    d.compiles()


def test_a_nested_reduction_uses_one_variable() -> None:
    d = Draft()
    out, n = d.pointer("out"), d.scalar("n")
    with d.loop(n, constant(0.0, t.float32), name="i", carried=("acc",)) as outer:
        with d.loop(8, outer.carried[0], name="k", carried=("acc",), unroll=4) as inner:
            inner.next(d.add(inner.carried[0], 1.0, "acc"))
        with d.branch(d.compare("gt", outer.index, 3), "acc") as b:
            with b.block(0):
                b.give(d.mul(inner.results[0], 2.0, "acc"))
            with b.block(1):
                b.give(inner.results[0])
        outer.next(b.results[0])
    d.store(out, 0, outer.results[0])
    assert (
        d.body()
        == """\
float acc = 0.0f;
for (int i = 0; i < n; i += 1) {
    #pragma unroll 4
    for (int k = 0; k < 8; k += 1) {
        acc += 1.0f;
    }
    if (i > 3) {
        acc *= 2.0f;
    }
}
out[0] = acc;"""
    )
    d.compiles()


def test_a_value_that_is_read_later_keeps_its_own_name() -> None:
    d = Draft()
    out, x = d.pointer("out", t.int32), d.scalar("x")
    with d.loop(4, x, carried=("x",)) as loop:
        loop.next(d.mul(loop.carried[0], 3, "x"))
    d.store(out, 0, d.add(loop.results[0], x))
    assert (
        d.body()
        == """\
int x_1 = x;
for (int i = 0; i < 4; i += 1) {
    x_1 *= 3;
}
out[0] = x_1 + x;"""
    )
    d.compiles()


def test_else_if() -> None:
    d = Draft()
    out, x = d.pointer("out", t.int32), d.scalar("x")
    with d.branch(d.compare("lt", x, 0), "sign") as b:
        with b.block(0):
            b.give(constant(-1, t.int32))
        with b.block(1):
            with d.branch(d.compare("gt", x, 0), "sign") as inner:
                with inner.block(0):
                    inner.give(constant(1, t.int32))
                with inner.block(1):
                    inner.give(constant(0, t.int32))
            b.give(*inner.results)
    d.store(out, 0, *b.results)
    assert (
        d.body()
        == """\
int sign;
if (x < 0) {
    sign = -1;
} else if (x > 0) {
    sign = 1;
} else {
    sign = 0;
}
out[0] = sign;"""
    )
    d.compiles()


def test_a_result_that_else_leaves_begins_with_it_and_an_empty_then_is_turned_round() -> None:
    d = Draft()
    out, x = d.pointer("out", t.int32), d.scalar("x")
    with d.branch(d.compare("lt", x, 0), "y") as b:
        with b.block(0):
            b.give(constant(7, t.int32))
        with b.block(1):
            b.give(constant(0, t.int32))
    with d.branch(d.compare("eq", x, 5)) as empty:
        with empty.block(0):
            empty.give()
        with empty.block(1):
            d.store(out, 0, *b.results)
            empty.give()
    assert (
        d.body()
        == """\
int y = 0;
if (x < 0) {
    y = 7;
}
if (x != 5) {
    out[0] = y;
}"""
    )
    d.compiles()


@pytest.mark.parametrize("store_in_condition", [False, True])
def test_while(store_in_condition: bool) -> None:
    d = Draft()
    out, n = d.pointer("out", t.int32), d.scalar("n")
    before, inside = Value(t.int32, "n"), Value(t.int32, "n")
    condition, body = Block(arguments=(before,)), Block(arguments=(inside,))
    with d.builder.inside(condition):
        if store_in_condition:
            d.store(out, 0, before)
        d.emit(ops.Yield((d.compare("gt", before, 1),)))
    with d.builder.inside(body):
        d.emit(ops.Yield((d.binary("div", inside, 2),)))
    (last,) = d.emit(ops.While((n,), condition, body), t.int32)
    d.store(out, 1, last)
    short = "while (n > 1) {\n    n /= 2;\n}\nout[1] = n;"
    long = "while (true) {\n    out[0] = n;\n    if (n <= 1) break;\n    n /= 2;\n}\nout[1] = n;"
    assert d.body() == (long if store_in_condition else short)
    d.compiles()


def test_loops_by_other_steps() -> None:
    d = Draft()
    out, n, step = d.pointer("out", t.int32), d.scalar("n"), d.scalar("step")
    for start, stop, by in ((n, 0, -2), (0, n, step)):
        with d.loop(stop, start=start, step=by) as loop:
            d.store(out, loop.index, loop.index)
    assert "for (int i = n; i > 0; i -= 2) {" in d.body()
    assert "for (int i = 0; step > 0 ? i < n : i > n; i += step) {" in d.body()
    d.compiles()


def test_a_load_stays_before_a_store() -> None:
    d = Draft()
    x = d.pointer("x")
    a, b = d.load(x, 0), d.load(x, 1)
    d.store(x, 0, b)
    d.store(x, 1, a)
    assert d.body() == "const float x_value = x[0];\nx[0] = x[1];\nx[1] = x_value;"
    d.compiles()


def test_unused_values_are_not_printed() -> None:
    d = Draft()
    x, n = d.pointer("x"), d.scalar("n")
    d.add(n, 1, "unused")
    d.load(x, n, name="also_unused")
    assert d.body() == ""


def test_comments_quote_the_python_lines() -> None:
    linecache.cache["quoted.py"] = (1, None, ["a = 1\n", "b = a + \\\n", "# ünïcode ☺\n"], "quoted.py")
    d = Draft()
    d.file = "quoted.py"
    x = d.pointer("x")
    for line in (1, 1, 2, 3, 4):
        d.at(line)
        d.store(x, line, 0.0)
    source = d.source()
    assert d.body().split("\n") == [
        "// quoted.py:1: a = 1",
        "x[1] = 0.0f;",
        "x[1] = 0.0f;",
        "// quoted.py:2: b = a +",
        "x[2] = 0.0f;",
        "// quoted.py:3: # ünïcode ☺",
        "x[3] = 0.0f;",
        "// quoted.py:4",
        "x[4] = 0.0f;",
    ]
    lines = source.text.split("\n")
    assert [(lines[n - 1].strip(), place.line) for n, place in source.line_map.items()] == [
        (f"x[{n}] = 0.0f;", n) for n in (1, 1, 2, 3, 4)
    ]
    d.compiles()


def test_line_directives_name_the_python_file() -> None:
    d = Draft()
    d.file = 'C:\\a "folder"\\x.py'
    x = d.pointer("x")
    d.at(12)
    with d.loop(4, unroll=0) as loop:
        d.store(x, loop.index, 0.0)
    source = d.source(line_directives=True)
    assert "#line 12 \"C:\\\\a 'folder'\\\\x.py\"\n    for (int i = 0;" in source.text
    compile_text(source, "sm_90a")


def test_shared_buffers_are_arrays_where_they_fit() -> None:
    d = Draft()
    out = d.pointer("out")
    a, b = d.shared("a", 64, offset=0), d.shared("b", 64, offset=256)
    d.kernel.shared_bytes = 512
    d.store(a, 0, 1.0)
    d.store(b, 0, d.load(a, 1))
    d.store(out, 0, d.load(b, 1))
    assert "__shared__ __align__(16) float a[64];\n__shared__ __align__(16) float b[64];" in d.body()
    assert d.source().dynamic_shared_bytes == 0
    d.compiles()


def test_shared_buffers_that_overlap_are_places_in_one_array() -> None:
    d = Draft()
    a, b = d.shared("a", 64, offset=0), d.shared("b", 32, t.float16, offset=128)
    d.kernel.shared_bytes = 256
    d.store(a, 0, 1.0)
    d.store(b, 0, 1.0)
    assert "__shared__ __align__(128) unsigned char shared_memory[256];" in d.body()
    assert "float* const a = (float*)shared_memory;\nhalf* const b = (half*)(shared_memory + 128);" in d.body()
    assert d.source().dynamic_shared_bytes == 0
    d.compiles()


def test_large_shared_memory_is_dynamic() -> None:
    d = Draft()
    a = d.shared("a", 1 << 14, offset=0)
    d.kernel.shared_bytes = 1 << 16
    d.store(a, 0, 1.0)
    assert "extern __shared__ __align__(128) unsigned char shared_memory[];" in d.body()
    assert d.source().dynamic_shared_bytes == 1 << 16
    d.compiles()


def test_large_shared_memory_must_be_placed() -> None:
    d = Draft()
    d.store(d.shared("a", 1 << 14), 0, 1.0)
    with pytest.raises(InternalError, match="not placed"):
        d.source()


def test_pointers_that_are_written_promise_nothing() -> None:
    d = Draft()
    a, b, c = (d.pointer(n, t.int32) for n in "abc")
    d.emit(ops.Atomic("add", b, constant(0, t.int32), d.load(c, 0)), t.int32)
    d.store(a, 0, d.load(c, 1))
    assert "(int* a, int* b, const int* __restrict__ c)" in d.text()
    assert "(int* a, int* b, const int* c)" in d.source(restrict=False).text
    d.compiles()


def test_names_are_legal_and_unique() -> None:
    d = Draft("<lambda>")
    out = d.pointer("float", t.int32)
    n = d.scalar("n")
    for name in (
        "threadIdx",
        "n",
        "n",
        "\N{GREEK SMALL LETTER ALPHA}",
        "lambda",
        "min",
        "float4",
        "half",
        "cp_async_ca_4",
        "__x",
        "unix",
        "printf",
    ):
        d.store(out, 0, d.mul(n, 3, name))
    text = d.text()
    declared = [line.split()[2] for line in text.split("\n") if line.strip().startswith("const int")]
    assert declared == [
        "threadIdx_", "n_1", "n_2", "alpha", "lambda_1", "min_", "float4_", "half_", "cp_async_ca_4", "x", "unix_",
        "printf_",
    ]  # fmt: skip
    d.compiles()


def test_names_return_after_their_scope() -> None:
    d = Draft()
    out, n = d.pointer("out", t.int32), d.scalar("n")
    for _ in range(2):
        with d.loop(n, name="k") as loop:
            d.store(out, loop.index, d.mul(loop.index, 3, "x"))
            d.store(out, 0, d.mul(loop.index, 3, "x"))
    assert d.body().count("for (int k = 0") == 2
    assert d.body().count("const int x = ") == d.body().count("const int x_1 = ") == 2
    d.compiles()


def test_a_product_does_not_swallow_a_quotient() -> None:
    d = Draft()
    out, a, b = d.pointer("out", t.int32), d.scalar("a"), d.scalar("b")
    d.store(out, 0, d.mul(a, d.mul(d.binary("div", b, a), b)))
    d.store(out, 1, d.mul(a, d.mul(a, b)))
    d.store(out, 2, d.sub(a, d.sub(b, a)))
    d.store(out, 3, d.add(a, d.sub(b, d.add(a, -5))))
    assert (
        d.body() == "out[0] = a * (b / a * b);\nout[1] = a * a * b;\nout[2] = a - (b - a);\nout[3] = a + b - (a - 5);"
    )
    d.compiles()


def test_products_of_narrow_unsigned_numbers_do_not_overflow_the_int_of_cpp() -> None:
    d = Draft()
    out, x = d.pointer("out", t.uint16), d.load(d.pointer("src", t.uint16), 0, name="x")
    byte = d.load(d.pointer("bytes", t.uint8), 0, name="byte")
    d.store(out, 0, d.mul(x, x))
    d.store(out, 1, d.mul(x, 7))
    d.store(out, 2, d.binary("shr", d.mul(x, d.mul(x, x)), constant(1, t.uint16)))
    d.store(d.pointer("narrow", t.uint8), 0, d.mul(byte, byte))
    assert (
        d.body()
        == """\
const unsigned short x = src[0];
const unsigned char byte = bytes[0];
out[0] = (unsigned short)((unsigned int)x * x);
out[1] = (unsigned short)(x * 7);
out[2] = (unsigned short)((unsigned short)(x * ((unsigned int)x * x)) >> 1);
narrow[0] = (unsigned char)(byte * byte);"""
    )
    d.compiles()


def test_a_special_register_that_may_be_negative_in_context_is_an_int() -> None:
    d = Draft()
    out, n = d.pointer("out", t.int32), d.scalar("n")
    d.store(out, d.sub(d.special("thread_idx.x"), n), 0)
    d.store(out, d.binary("div", d.special("thread_idx.y"), 8), 0)
    assert d.body() == "const int tx = threadIdx.x;\nout[tx - n] = 0;\nout[threadIdx.y / 8] = 0;"
    d.compiles()


def test_wide_indices_convert_once() -> None:
    d = Draft()
    out, row = d.pointer("out", t.int32), d.scalar("row")
    stride = d.scalar("stride", t.int64)
    index = d.add(d.mul(d.cast(row, t.int64), stride), d.cast(d.special("thread_idx.x"), t.int64))
    d.store(out, index, 0)
    d.store(out, d.mul(d.cast(row, t.int64), d.cast(row, t.int64)), 0)
    assert d.body() == "out[row * stride + threadIdx.x] = 0;\nout[(long long)row * row] = 0;"
    d.compiles()


def test_the_same_ir_gives_the_same_bytes() -> None:
    def once() -> str:
        d = Draft()
        x, n = d.pointer("x", t.bfloat16), d.scalar("n", t.int64)
        d.store(x, 0, d.cast(n, t.bfloat16))
        d.emit(ops.Assert(d.compare("gt", n, 3), "too small"))
        return d.text()

    assert once() == once()


def test_parameters_of_arrays_have_names() -> None:
    d = Draft()
    out = d.pointer("out", t.int32)
    extent = Value(t.int32, None, Facts(1, 100))
    d._parameter("src", ("shape", 1), extent)
    d.store(out, 0, extent)
    assert "(int* out, int src_shape_1)" in d.text()


def test_a_register_array_is_aligned_for_vectors_and_stays_in_registers() -> None:
    d = Draft()
    out, src = d.pointer("out"), d.pointer("src")
    r = d.registers("r", 8)
    tile = d.shared("tile", 4096)
    tid = d.special("thread_idx.x", "tid")
    with d.loop(8, name="i", step=4, unroll=0) as loop:
        d.store(r, loop.index, d.load(src, d.add(d.mul(tid, 8), loop.index), 4))
    with d.loop(8, name="i", unroll=0) as loop:
        d.store(r, loop.index, d.mul(d.load(r, loop.index), 2.0))
    with d.loop(8, name="i", step=4, unroll=0) as loop:
        d.store(tile, d.add(d.mul(tid, 8), loop.index), d.load(r, loop.index, 4))
    d.emit(Barrier("block"))
    with d.loop(8, name="i", step=4, unroll=0) as loop:
        d.store(out, d.add(d.mul(tid, 8), loop.index), d.load(tile, d.add(d.mul(tid, 8), d.sub(4, loop.index)), 4))
    assert "__align__(16) float r[8];" in d.body()
    assert "*(float4*)&r[i] = *(const float4*)&src[tid * 8 + i];" in d.body()
    for arch in ARCHES:
        compiled = compile_text(d.source(arch), arch)
        from tilewright.runtime.disassemble import disassemble

        code = disassemble(compiled.cubin)
        assert all(word in code for word in ("LDG.E.128", "STS.128", "LDS.128", "STG.E.128")), code
        assert "LDL" not in code and "STL" not in code, code


def test_a_global_buffer_is_not_atomic_in_registers() -> None:
    d = Draft()
    r = d.registers("r", 4, t.int32)
    d.at(3)
    d.emit(ops.Atomic("add", r, constant(0, t.int32), constant(1, t.int32)), t.int32)
    with pytest.raises(LanguageError, match=r"r lives in registers[^$]*draft.py:3"):
        d.source()


def test_what_the_target_lacks_is_an_error_at_its_line() -> None:
    d = Draft()
    src, tile = d.pointer("src"), d.shared("tile", 64)
    d.at(42)
    zero = constant(0, t.int32)
    d.emit(AsyncCopy(tile, src, 4, "cg", zero, zero, constant(True, t.bool_)))
    with pytest.raises(LanguageError) as caught:
        d.source("sm_75")
    assert str(caught.value) == (
        "cp.async needs sm_80 or later, and the target is sm_75\n"
        "  draft.py:42, in kernel:\n"
        "  help: copy through registers: load from global memory, then store to shared memory"
    )


def test_vectors_without_a_name_in_cuda() -> None:
    d = Draft()
    a, b = d.pointer("a", t.float16), d.pointer("b", t.float16)
    d.store(b, 0, d.load(a, 0, 8))
    v = d.load(a, 8, 8, name="v")
    lane = d.pure(ops.Extract(v, 3), t.float16)
    d.store(b, 8, d.pure(ops.Pack((lane, lane)), VectorType(t.float16, 2)))
    assert d.body() == (
        "*(vec<half, 8>*)b = *(const vec<half, 8>*)a;\n"
        "const vec<half, 8> v = *(const vec<half, 8>*)&a[8];\n"
        "*(vec<half, 2>*)&b[8] = vec<half, 2>{{v.v[3], v.v[3]}};"
    )
    d.compiles()
