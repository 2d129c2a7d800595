"""Every op that AMD's targets have, on every type it takes: clang makes machine code of the text, without a warning."""

from __future__ import annotations

from itertools import product

import pytest
from tests.unit.backends.kernels import AMD, Draft, compile_text, moved_vectors
from tests.unit.backends.test_cuda_compiles import (
    ATOMIC,
    BITWISE,
    FLOATS,
    INTEGER_BINARY,
    INTEGER_UNARY,
    INTEGERS,
    TESTS,
    Table,
)

from tilewright import dtypes as t
from tilewright.instructions import shuffle
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.shuffle import Shuffle
from tilewright.instructions.vote import Elect, Vote
from tilewright.ir import ops
from tilewright.ir.ops import constant

WIDE = tuple(x for x in t.ALL if not (x.is_float and x.bits == 8))
COMPUTED = tuple(x for x in FLOATS if x.bits > 8)
SINGLE = ("sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10")
EVERYWHERE = ("neg", "abs", "floor", "ceil", "trunc", "round")


def compiles(draft: Draft, targets: tuple[str, ...] = AMD) -> None:
    for arch in targets:
        module = compile_text(draft.source(arch), arch)
        assert module.log == "", module.log
        assert module.resources.registers > 0


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_functions_of_floats(dtype: t.DType) -> None:
    d = Table()
    kinds = EVERYWHERE + (() if dtype is t.float64 else SINGLE)
    for kind in kinds + TESTS:
        d.write(d.unary(kind, d.read(dtype), t.bool_ if kind in TESTS else dtype))
    for kind in ("add", "sub", "mul", "div", "min", "max", "copysign"):
        d.write(d.binary(kind, d.read(dtype), d.read(dtype)))
    for kind in sorted(ops.COMPARE_KINDS):
        d.write(d.compare(kind, d.read(dtype), d.read(dtype)))
    d.write(d.pure(ops.Select(d.read(t.bool_), d.read(dtype), d.read(dtype)), dtype))
    if dtype.bits >= 32:
        d.write(d.pure(ops.Fma(d.read(dtype), d.read(dtype), d.read(dtype)), dtype))
    for value in (0.0, -0.0, 1.5, 1e-5, 3e38, float("inf"), float("-inf"), float("nan")):
        d.write(d.add(d.read(dtype), value))
    compiles(d)


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
    for value in (dtype.lowest, dtype.highest, 0):
        d.write(constant(value, dtype))
        d.write(d.binary("min", d.read(dtype), value))
    compiles(d, ("gfx908",))


@pytest.mark.parametrize("source", WIDE, ids=str)
@pytest.mark.spread(4)
def test_conversions(source: t.DType) -> None:
    d = Table()
    for target in WIDE:
        d.write(d.cast(d.read(source), target))
        if target.bits == source.bits and t.bool_ not in (source, target):
            d.write(d.pure(ops.Bitcast(d.read(source)), target))
    compiles(d, ("gfx908",))


@pytest.mark.parametrize("dtype", t.ALL, ids=str)
@pytest.mark.spread(4)
def test_vectors(dtype: t.DType) -> None:
    compiles(moved_vectors(dtype), ("gfx90a",))


@pytest.mark.parametrize("dtype", [x for x in ATOMIC if not (x.is_float and x.bits == 8)], ids=str)
@pytest.mark.spread(3)
def test_atomics(dtype: t.DType) -> None:
    d = Draft()
    x, tile = d.pointer("x", dtype), d.shared("tile", 4, dtype)
    i = d.special("thread_idx.x", "i")
    for buffer in (x, tile):
        for kind in sorted(ops.ATOMIC_KINDS - (BITWISE if dtype.is_float else set())):
            (old,) = d.emit(ops.Atomic(kind, buffer, i, constant(2, dtype)), dtype)
            d.emit(ops.Atomic(kind, buffer, constant(0, t.int32), old), dtype)
    compiles(d, ("gfx908",))


def test_atomics_on_integers_are_single_instructions() -> None:
    d = Draft()
    for dtype in (t.int32, t.uint64):
        for kind in sorted(ops.ATOMIC_KINDS):
            d.emit(
                ops.Atomic(kind, d.pointer(f"{kind}_{dtype}", dtype), constant(1, t.int32), constant(2, dtype)), dtype
            )
    text = compile_text(d.source("gfx908"), "gfx908").assembly
    for instruction in ("add", "smin", "smax", "add_x2", "umin_x2", "umax_x2"):
        assert f"global_atomic_{instruction} " in text
    assert "cmpswap" not in text


def test_atomics_land_in_the_address_space_of_their_buffer() -> None:
    d = Draft()
    tile = d.shared("tile", 4, t.int32)
    (old,) = d.emit(ops.Atomic("add", tile, d.special("thread_idx.x"), constant(2, t.int32)), t.int32)
    d.store(d.pointer("x", t.int32), 0, old)
    assert "ds_add_rtn_u32" in compile_text(d.source("gfx908"), "gfx908").assembly


@pytest.mark.parametrize("dtype", t.ALL, ids=str)
@pytest.mark.spread(4)
def test_shuffles(dtype: t.DType) -> None:
    d = Table()
    lane = d.special("thread_idx.x")
    for kind, width in product(sorted(shuffle.KINDS), (64, 32, 8)):
        d.write(d.emit(Shuffle(kind, d.read(dtype), lane, width), dtype)[0])
    compiles(d, ("gfx908",))


def test_threads_together() -> None:
    d = Table()
    lane = d.special("thread_idx.x")
    odd = d.compare("eq", d.binary("and", lane, 1), 1)
    for kind in ("any", "all"):
        d.write(d.emit(Vote(kind, odd), t.bool_)[0])
    (ballot,) = d.builder.emit(Vote("ballot", odd), t.uint64)
    d.write(ballot)
    d.write(d.emit(Elect(), t.bool_)[0])
    for scope in ("block", "warp"):
        d.emit(Barrier(scope))
    d.emit(ops.Assert(odd, "it is\nodd \\"))
    for name in ops.SPECIAL_NAMES:
        d.write(d.special(name))
    compiles(d)
    text = d.body("gfx908")
    assert "__builtin_trap();  // it is odd\n" in text


def test_a_barrier_waits_for_the_block() -> None:
    d = Draft()
    tile, x = d.shared("tile", 128), d.pointer("x")
    i = d.special("thread_idx.x", "i")
    d.store(tile, i, d.load(x, i))
    d.emit(Barrier("block"))
    d.store(x, i, d.load(tile, d.sub(127, i)))
    assembly = compile_text(d.source("gfx908"), "gfx908").assembly
    write, barrier, read = (assembly.index(word) for word in ("ds_write_b32", "s_barrier", "ds_read_b32"))
    assert write < barrier < read


def test_multiply_and_add_stay_apart_unless_fused() -> None:
    d = Draft()
    x = d.pointer("x")
    a, b, c = (d.load(x, i) for i in range(3))
    d.store(x, 3, d.add(d.mul(a, b), c))
    assert "v_fma" not in compile_text(d.source("gfx908"), "gfx908").assembly
    d.store(x, 4, d.pure(ops.Fma(a, b, c), t.float32))
    assert "v_fma" in compile_text(d.source("gfx908"), "gfx908").assembly


def test_floats_keep_what_is_not_normal_and_are_divided_exactly() -> None:
    d = Draft()
    x = d.pointer("x")
    d.store(x, 0, d.binary("div", d.load(x, 0), d.load(x, 1)))
    for arch in AMD:
        text = compile_text(d.source(arch), arch).assembly
        assert ".amdhsa_float_denorm_mode_32 3" in text and ".amdhsa_float_denorm_mode_16_64 3" in text
        assert "v_div_fixup_f32" in text


def test_float64_becomes_float16_without_a_stop_at_float32() -> None:
    """A detour by way of float32 would round twice."""
    d = Draft()
    x, y = d.pointer("x", t.float64), d.pointer("y", t.float16)
    d.store(y, 0, d.cast(d.load(x, 0), t.float16))
    assert "v_cvt_f32_f64" not in compile_text(d.source("gfx908"), "gfx908").assembly
