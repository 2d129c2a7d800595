"""What does not fit the block or the target: refused while tracing, with the line, what came and what would fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes
from tilewright.atoms import UniversalCopy
from tilewright.errors import LanguageError

COPY = tw.make_tiled_copy(UniversalCopy(128), tw.Layout((8, 8)), tw.Layout((8, 1)))  # 64 threads, 64 x 8 float16
TILE = tw.static(tw.spec(tw.float16, (64, 8), stride=(1, 64)))
MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN)


@tw.kernel
def attempt(x, what: tw.constexpr):
    what(x)


def source(what: Callable[[Any], None], block: Any, argument: Any = TILE, **options: Any) -> str:
    return attempt.source(argument, what, block=block, **options)


def refusal(what: Callable[[Any], None], block: Any, argument: Any = TILE, **options: Any) -> str:
    with pytest.raises(LanguageError) as caught:
        source(what, block, argument, **options)
    assert caught.value.location is not None and caught.value.location.file == __file__
    assert caught.value.help
    return str(caught.value)


def copy_by(number: Callable[[], Any], **pred: Any) -> Callable[[Any], None]:
    """Return a kernel that fills shared memory by the slice that `number` gives each thread."""

    def what(x: Any) -> None:
        smem = tw.shared(tw.float16, tw.Layout((64, 8)))
        thread = COPY.get_slice(number())
        tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem), **pred)

    return what


def test_too_few_threads_for_a_tiled_copy() -> None:
    text = refusal(copy_by(lambda: tw.thread_idx.x), 32)
    assert "a TiledCopy of 64 threads is used in a block of 32 threads: no thread takes some of its slices" in text
    assert "of 64 slices, 0 to 63, the threads here take 0 to 31" in text
    assert "(64,8):(8,1)" in text and "x, global float16 (64,8):(1,64)" in text
    assert "thread.partition_S(x)" in text
    assert "help: launch blocks of 64 threads" in text


def test_too_many_threads_for_a_tiled_copy() -> None:
    text = refusal(copy_by(lambda: tw.thread_idx.x), 128)
    assert "a TiledCopy of 64 threads is used in a block of 128 threads: some of them take slices that do not" in text
    assert "put the access under an if" in text


def test_a_predicate_does_not_fill_what_no_thread_takes() -> None:
    assert "no thread takes some" in refusal(copy_by(lambda: tw.thread_idx.x, pred=True), 32)


def test_a_predicate_that_is_the_same_for_all_threads_leaves_none_out() -> None:
    def by_block() -> Any:
        return tw.block_idx.x < 3

    for pred in (lambda: True, by_block):
        text = refusal(lambda x, p=pred: copy_by(lambda: tw.thread_idx.x, pred=p())(x), 128)  # type: ignore[misc]
        assert "some of them take slices that do not exist" in text
    for pred in (lambda: False, lambda: tw.thread_idx.x < 64, lambda: tw.lane_id() + 32 * tw.warp_id() < 64):
        source(lambda x, p=pred: copy_by(lambda: tw.thread_idx.x, pred=p())(x), 128)  # type: ignore[misc]


@tw.kernel
def in_predicated_rounds(x, rounds, first: tw.constexpr):
    smem = tw.shared(tw.float16, tw.Layout((64, 8)))
    thread = COPY.get_slice(tw.thread_idx.x)
    for k in range(tw.thread_idx.x if first else 0, rounds):
        tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem), pred=k + 1 < rounds)


def test_a_predicate_on_the_index_of_a_loop() -> None:
    in_predicated_rounds.source(TILE, 3, False, block=64)
    with pytest.raises(LanguageError, match="some of them take slices that do not exist"):
        in_predicated_rounds.source(TILE, 3, False, block=128)
    in_predicated_rounds.source(TILE, 3, True, block=128)  # each thread has rounds of its own


def test_a_predicate_from_memory_is_let_pass() -> None:
    source(lambda x: copy_by(lambda: tw.thread_idx.x, pred=x[0, 0] > 0)(x), 128)


@pytest.mark.parametrize("block", [64, (64, 2), (8, 8), (4, 4, 4)], ids=str)
def test_threads_are_counted_in_the_expression(block: Any) -> None:
    """What counts is the numbers that the threads give, not the extent of the block."""

    def linear() -> Any:
        if isinstance(block, int) or block[0] == 64:
            return tw.thread_idx.x
        x, y, z = tw.thread_idx.x, tw.thread_idx.y, tw.thread_idx.z
        return x + tw.block_dim.x * (y + tw.block_dim.y * z)

    source(copy_by(linear), block)
    if isinstance(block, tuple) and block[0] != 64:
        assert f"the threads here take 0 to {block[0] - 1}" in refusal(copy_by(lambda: tw.thread_idx.x), block)


def test_groups_of_threads_may_share_a_tiled_copy() -> None:
    source(copy_by(lambda: tw.thread_idx.x % 64), 256)
    text = refusal(copy_by(lambda: tw.thread_idx.x // 2 * 2), 64)
    assert "take 0 to 62, 32 of them" in text


def test_threads_may_take_several_slices() -> None:
    def what(x: Any, rounds: int = 2) -> None:
        smem = tw.shared(tw.float16, tw.Layout((64, 8)))
        for part in tw.static_range(rounds):
            thread = COPY.get_slice(tw.thread_idx.x + 32 * part)
            tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))

    source(what, 32)
    assert "no thread takes some" in refusal(lambda x: what(x, 1), 32)


def test_some_warps_may_do_the_copy() -> None:
    for first in (True, False):
        branching.source(TILE, first, block=128)
        with pytest.raises(LanguageError, match="no thread takes some"):
            branching.source(TILE, first, block=32)


@tw.kernel
def branching(x, first: tw.constexpr):
    smem = tw.shared(tw.float16, tw.Layout((64, 8)))
    tid = tw.thread_idx.x
    if first:
        thread = COPY.get_slice(tid)
        if tid < 64:
            tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))
    else:
        thread = COPY.get_slice(tid - 64)
        if tid >= 64:
            tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))


@tw.kernel
def leaving(x):
    smem = tw.shared(tw.float16, tw.Layout((64, 8)))
    if tw.thread_idx.x >= 64:
        return
    thread = COPY.get_slice(tw.thread_idx.x)
    tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))


@tw.kernel
def in_rounds(x, rounds):
    smem = tw.shared(tw.float16, tw.Layout((64, 8)))
    thread = COPY.get_slice(tw.thread_idx.x)
    for _ in range(rounds):
        tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))


def test_threads_that_left_do_not_count() -> None:
    leaving.source(TILE, block=128)


def test_a_loop_is_no_branch() -> None:
    in_rounds.source(TILE, 3, block=64)
    with pytest.raises(LanguageError, match="some of them take slices that do not exist"):
        in_rounds.source(TILE, 3, block=96)


def test_a_number_from_memory_is_let_pass() -> None:
    def what(x: Any) -> None:
        smem = tw.shared(tw.float16, tw.Layout((64, 8)))
        thread = COPY.get_slice(x[0, 0].to(tw.int32))
        tw.copy(COPY, thread.partition_S(x), thread.partition_D(smem))

    source(what, 32)


def test_a_shape_of_a_slice_is_no_access() -> None:
    def what(x: Any) -> None:
        tw.clear(tw.fragment_like(COPY.get_slice(0).partition_S(x)))
        copy_by(lambda: tw.thread_idx.x)(x)

    source(what, 64)


def test_a_kernel_without_a_block_is_not_judged() -> None:
    source(copy_by(lambda: tw.thread_idx.x), None)
    source(copy_by(lambda: 3), None)
    assert "the threads here take slice 3" in refusal(copy_by(lambda: 3), 64)


@pytest.mark.parametrize(("threads", "what"), [(64, "some of them take slices"), (16, "is done by 32 lanes together")])
def test_a_tiled_mma_of_other_threads(threads: int, what: str) -> None:
    def product(x: Any) -> None:
        thread = MMA.get_slice(tw.thread_idx.x)
        a, b = (tw.shared(tw.float16, tw.row_major(shape)) for shape in ((16, 16), (8, 16)))
        c = tw.shared(tw.float32, tw.row_major((16, 8)))
        acc = thread.partition_fragment_C(c)
        tw.clear(acc)
        tw.gemm(MMA, acc, thread.partition_A(a), thread.partition_B(b), acc)
        tw.copy(acc, thread.partition_C(c))

    source(product, 32)
    assert what in refusal(product, threads)


def test_the_launch_refuses_before_anything_is_written() -> None:
    x = np.ones((64, 8), np.float16, order="F")
    with pytest.raises(LanguageError, match="a TiledCopy of 64 threads is used in a block of 32"):
        attempt[1, 32](tw.static(x), copy_by(lambda: tw.thread_idx.x))


# --- whole warps ----------------------------------------------------------------------------------------


def ldmatrix(x: Any) -> None:
    tw.copy(tw.atoms.SM75_U32x4_LDSM_N, tw.shared(tw.float16, (8,)), tw.registers(tw.float16, (8,)))


def gemm(x: Any) -> None:
    a, b, c = (tw.registers(t, (n, 1, 1)) for t, n in ((tw.float16, 8), (tw.float16, 4), (tw.float32, 4)))
    tw.gemm(MMA, c, a, b, c)


def shuffle(x: Any) -> None:
    x[0, 0] = tw.shuffle_xor(x[0, 0], 1)


@pytest.mark.parametrize("what", [ldmatrix, gemm, shuffle])
@pytest.mark.parametrize("block", [1, 8, 48, (3, 11), 100], ids=str)
def test_blocks_that_are_no_whole_warps(what: Callable[[Any], None], block: Any) -> None:
    threads = int(np.prod(block))
    text = refusal(what, block)
    assert "is done by 32 lanes together" in text and f"the block of {threads} threads leaves {threads % 32}" in text
    assert f"help: launch blocks of a multiple of 32 threads: {-(-threads // 32) * 32}" in text


@pytest.mark.parametrize("what", [ldmatrix, gemm, shuffle])
@pytest.mark.parametrize("block", [32, 96, (8, 4), None], ids=str)
def test_blocks_of_whole_warps(what: Callable[[Any], None], block: Any) -> None:
    source(what, block)


@tw.kernel
def by_the_first_warp(x):
    if tw.thread_idx.x < 32:
        x[0, 0] = tw.shuffle_xor(x[0, 0], 1)
        gemm(x)


def test_a_branch_may_leave_the_partial_warp_out() -> None:
    by_the_first_warp.source(TILE, block=48)


def test_a_shuffle_needs_whole_groups_only() -> None:
    def by_eight(x: Any) -> None:
        x[0, 0] = tw.shuffle_down(x[0, 0], 1, width=8)

    source(by_eight, 40)
    assert "a shuffle is done by 8 lanes together, and the block of 44 threads leaves 4" in refusal(by_eight, 44)


# --- targets and storage --------------------------------------------------------------------------------


def test_products_that_the_target_lacks_name_those_it_has() -> None:
    text = refusal(gemm, 32, arch="sm_75")
    assert "SM80_16x8x16_F32F16F16F32_TN needs sm_80 or later, and the target is sm_75" in text
    assert "a: register float16 (8,1,1):(1,0,0)" in text
    assert "help: sm_75 has SM70_8x8x4_F32F16F16F32_TN" in text and "SM75_16x8x8_F32F16F16F32_TN" in text
    assert "SM80" not in text.partition("help:")[2]


def test_eight_bit_floats_below_sm_89() -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM89_16x8x32_F32E4M3E4M3F32_TN)

    def product(x: Any) -> None:
        a, b = (tw.registers(tw.float8_e4m3fn, (n, 1, 1)) for n in (16, 8))
        c = tw.registers(tw.float32, (4, 1, 1))
        tw.gemm(mma, c, a, b, c)

    source(product, 32, arch="sm_89")
    assert "help: no atom of sm_80 multiplies float8_e4m3fn by float8_e4m3fn" in refusal(product, 32, arch="sm_80")

    def converted(x: Any) -> None:
        x[0, 0] = (x[0, 0] * 2).to(tw.float8_e5m2).to(tw.float16)

    source(converted, 32, arch="sm_89")
    text = refusal(converted, 32, arch="sm_86")
    assert "conversion of float8_e5m2 need sm_89 or later, and the target is sm_86" in text
    assert "(x[0, 0] * 2).to(tw.float8_e5m2)" in text


@pytest.mark.parametrize("make", [tw.shared, tw.registers])
@pytest.mark.parametrize("name", ["tfloat32", "int4", "uint4", "uint1"])
def test_operand_types_are_no_storage(make: Callable[..., Any], name: str) -> None:
    element = getattr(dtypes, name)
    text = refusal(lambda x: make(element, (64,)), 32)
    assert f"memory does not hold {name}: it is an operand type of matrix instructions" in text
    assert "help: use tw.float32" in text if name == "tfloat32" else "atom.in_words()" in text


def test_fragments_of_narrow_integers_come_in_words() -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x64_S32S4S4S32_TN)

    def what(x: Any) -> None:
        mma.get_slice(0).make_fragment_A(tw.registers(tw.uint32, (32, 1, 1)))

    assert "a tensor holds it as uint32: 8 int4 a word along K" in refusal(what, 32)


@tw.kernel
def large_tiles(x):
    tiles, rest = tw.shared(tw.float16, (256, 256, 2)), tw.shared(tw.float32, (16,))
    tiles[0, 0, 0], rest[0] = 1.0, 2.0
    x[0, 0] = tiles[0, 0, 1] + rest[1].to(tw.float16)


@pytest.mark.parametrize(("arch", "bytes"), [("sm_90a", 232448), ("sm_86", 101376)])
def test_tiles_that_shared_memory_cannot_hold(arch: str, bytes: int) -> None:
    with pytest.raises(LanguageError) as caught:
        large_tiles.source(TILE, arch=arch)
    text = str(caught.value)
    assert f"takes 262208 bytes of shared memory; a block of {arch} has {bytes}" in text
    assert "tiles: 262144 bytes" in text and "rest: 64 bytes" in text
    assert "tw.shared(tw.float16, (256, 256, 2))" in text
    assert "help: make the tiles smaller, or keep fewer stages" in text


def test_an_axis_that_is_none_may_be_asked_for() -> None:
    @tw.kernel
    def kernel(out):
        groups = (tw.thread_idx, tw.block_dim, tw.cluster_idx)
        assert not any(hasattr(group, "w") for group in groups) and all(hasattr(group, "z") for group in groups)
        out[0] = getattr(tw.thread_idx, "w", 5)

    kernel[1, 1](out := np.zeros(1, np.int32))
    assert out[0] == 5
    with pytest.raises(tw.LanguageError, match="no 'w'") as caught:
        tw.thread_idx.w
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), AttributeError)
