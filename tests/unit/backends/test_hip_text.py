"""What HIP C++ looks like where it differs from CUDA C++, and what AMD's targets refuse."""

from __future__ import annotations

import pytest
from tests.unit.backends.kernels import AMD, Draft, compile_text, scale

from tilewright import dtypes as t
from tilewright.errors import LanguageError
from tilewright.instructions.barrier import NamedBarrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.instructions.matrix_copies import LoadMatrix, StoreMatrix, TransposeMatrix
from tilewright.instructions.mbarrier import MbarrierInit
from tilewright.instructions.shuffle import Shuffle
from tilewright.instructions.vote import Vote
from tilewright.ir import ops
from tilewright.ir.core import Op, Type
from tilewright.ir.ops import constant


def test_the_kernel_itself_reads_as_in_cuda() -> None:
    d = scale()
    assert d.text("gfx908").endswith("\n" + d.text("sm_90a"))


def test_above_it_stands_what_it_uses_and_no_header() -> None:
    text = scale().text("gfx90a")
    above = text[: text.index('extern "C"')]
    for name in ("__global__", "__device__", "__launch_bounds__"):
        assert f"#define {name}" in above
    assert "#include" not in text and "__shared__" not in text and "float4" not in text
    assert "__builtin_amdgcn_workitem_id_x" in above and "__builtin_amdgcn_workgroup_id_x" in above
    assert "gridDim" not in above


def test_names_in_comments_and_messages_need_nothing() -> None:
    d = Draft()
    d.emit(ops.Assert(d.compare("lt", d.scalar("n"), 3), "sqrtf of float4"))
    assert "// sqrtf of float4" in d.text("gfx908")
    assert "__builtin_amdgcn_sqrtf" not in d.text("gfx908") and "ext_vector_type" not in d.text("gfx908")


def test_the_block_bounds_the_registers() -> None:
    d = scale()
    d.kernel.min_blocks = 3  # of 4 waves each: 3 waves on each of the 4 SIMDs
    text = "__launch_bounds__(256) __attribute__((amdgpu_waves_per_eu(3))) scale("
    assert text in d.text("gfx908")
    d.kernel.min_blocks = 100  # more than there is room for
    assert "amdgpu_waves_per_eu(10)" in d.text("gfx908")
    assert "amdgpu_waves_per_eu(8)" in d.text("gfx90a")
    for arch in AMD:
        assert compile_text(d.source(arch), arch).resources.registers <= 64
    d.kernel.block = None
    assert 'extern "C" __global__ void scale(' in d.text("gfx908")


def test_shuffles_name_their_width_unless_it_is_the_wave() -> None:
    d = Draft()
    x = d.pointer("x")
    lane = d.special("thread_idx.x", "lane")
    for at, width in enumerate((64, 32)):
        d.store(x, at, d.emit(Shuffle("xor", d.load(x, lane), lane, width), t.float32)[0])
    assert "__shfl_xor(x[lane], lane)" in d.body("gfx908")
    assert "__shfl_xor(x[lane], lane, 32)" in d.body("gfx908")


def test_waits_for_copies_that_cannot_be_are_nothing() -> None:
    d = Draft()
    d.emit(AsyncCommit())
    d.emit(AsyncWait(0))
    assert d.body("gfx908") == ""


def test_restrict_is_left_away_where_arrays_may_meet() -> None:
    d = scale()
    assert "const float* __restrict__ src" in d.text("gfx908")
    assert "__restrict__" not in d.source("gfx908", restrict=False).text


# --- what is refused -----------------------------------------------------------------------------------


def refusal(d: Draft, arch: str = "gfx908") -> str:
    with pytest.raises(LanguageError) as caught:
        d.text(arch)
    return str(caught.value)


REFUSED = {
    "fmod": ("float32", "compute it on the host, or from exp, exp2, log, log2, log10, sqrt and rsqrt of float32"),
    "tanh": ("float32", "compute it on the host, or from exp, exp2, log, log2, log10, sqrt and rsqrt of float32"),
    "sin": ("float16", "compute it on the host, or from exp, exp2, log, log2, log10, sqrt and rsqrt of float32"),
    "sqrt": ("float64", "compute it in float32, for which there is one"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_functions_without_an_instruction_are_refused(kind: str) -> None:
    type_name, help = REFUSED[kind]
    dtype = t.dtype(type_name)
    d = Draft()
    x = d.pointer("x", dtype)
    value = d.load(x, 0)
    d.at(7)
    d.store(x, 1, d.binary(kind, value, value) if kind == "fmod" else d.unary(kind, value))
    assert (
        refusal(d)
        == f"""\
gfx908 has no instruction for {kind} of {dtype}, and the math library of ROCm is not linked
  draft.py:7, in kernel:
  help: {help}"""
    )


def missing_ops(d: Draft) -> dict[str, tuple[Op, tuple[Type, ...]]]:
    zero, one = constant(0, t.int32), constant(1, t.int32)
    source, tile = d.pointer("source"), d.shared("tile", 64)
    halves, barrier = d.shared("halves", 64, t.float16), d.shared("barrier", 1, t.uint64)
    word = d.load(d.pointer("words", t.uint32), 0)
    copy = AsyncCopy(tile, source, 4, "cg", zero, zero, constant(True, t.bool_))
    return {
        "cp.async": (copy, ()),
        "ldmatrix": (LoadMatrix(halves, False, zero), (t.uint32,)),
        "stmatrix": (StoreMatrix(halves, False, zero, (word,)), ()),
        "movmatrix": (TransposeMatrix(word), (t.uint32,)),
        "cvt.rna.tf32": (ops.RoundToTfloat32(d.load(source, 0)), (t.float32,)),
        "barrier of a part of the block": (NamedBarrier("sync", 32, one), ()),
        "mbarrier": (MbarrierInit(barrier, zero, one), ()),
        "printf": (ops.Print(("x",), ()), ()),
    }


@pytest.mark.parametrize("what", missing_ops(Draft()))
@pytest.mark.parametrize("arch", AMD)
def test_ops_of_nvidia_alone_are_refused(what: str, arch: str) -> None:
    d = Draft()
    op, types = missing_ops(d)[what]
    d.at(31)
    for result in d.emit(op, *types):
        d.store(d.pointer("result", result.dtype), 0, result) if result.type is result.dtype else d.store(
            d.pointer("result", result.dtype), 0, d.pure(ops.Extract(result, 0), result.dtype)
        )
    text = refusal(d, arch)
    assert text.startswith(f"{arch} has no {what}\n  draft.py:31, in kernel:\n  help: "), text


def test_every_op_is_printed_or_refused() -> None:
    from tilewright.backends.hip.dialect import Hip

    def classes(base: type[Op]) -> set[type[Op]]:
        return {c for sub in base.__subclasses__() for c in {sub, *classes(sub)} if c.__module__ == ops.__name__}

    assert classes(Op) - {ops.Yield} == set(Hip.expressions) | set(Hip.statements)


def test_a_ballot_of_32_bits_is_refused() -> None:
    d = Draft()
    (ballot,) = d.emit(Vote("ballot", d.compare("lt", d.scalar("n"), 3)), t.uint32)
    d.store(d.pointer("x", t.uint32), 0, ballot)
    assert "a ballot of the 64 lanes of gfx908 has 64 bits, and its result is uint32" in refusal(d)
