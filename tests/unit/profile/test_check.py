"""`tw.check`: what a trace alone tells of bank conflicts and of narrow copies."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example
from tilewright.errors import ArgumentError

THREADS = tw.Layout((8, 32), (32, 1))
ROWS, PADDED = tw.Layout((32, 32), (32, 1)), tw.Layout((32, 32), (33, 1))
MATRIX = tw.spec(tw.float32, (256, 256))


def line_with(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.__wrapped__)
    (found,) = [first + k for k, line in enumerate(lines) if text in line]
    return found


def conflicts(*arguments: Any, **options: Any) -> list[Any]:
    return [remark for remark in tw.check(*arguments, **options) if remark.kind == "bank-conflict"]


@tw.kernel
def transpose(dst, src, layout: tw.constexpr):
    smem = tw.shared(src.dtype, layout)
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, (32, 32), block), tw.local_tile(dst, (32, 32), block[::-1])
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(g_src, THREADS, tid), tw.local_partition(smem, THREADS, tid))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(tw.local_partition(smem.T, THREADS, tid), tw.local_partition(g_dst, THREADS, tid))  # down columns


def test_a_conflict_is_told_with_its_line_and_a_layout() -> None:
    (remark,) = conflicts(transpose, (MATRIX, MATRIX, ROWS), block=256)
    assert (remark.file, remark.line) == (__file__, line_with(transpose, "# down columns"))
    assert "32 requests to smem take 1024 wavefronts, and 32 would do" in remark.message
    assert remark.suggestion is not None and remark.suggestion.removes
    mended = eval(remark.suggestion.expression, {"tw": tw})
    assert conflicts(transpose, (MATRIX, MATRIX, mended), block=256) == []
    assert conflicts(transpose, (MATRIX, MATRIX, PADDED), block=256) == []


def test_signatures_by_name_and_with_a_launcher() -> None:
    named = {"dst": MATRIX, "src": MATRIX, "layout": ROWS}
    assert len(conflicts(transpose, named, block=256)) == 1
    assert len(conflicts(transpose[(8, 8), 256], (MATRIX, MATRIX, ROWS))) == 1
    with pytest.raises(ArgumentError, match="block was given twice"):
        tw.check(transpose[1, 256], (MATRIX, MATRIX, ROWS), block=256)
    with pytest.raises(ArgumentError, match="takes a kernel"):
        tw.check(print, ())


def test_the_same_figures_as_a_run() -> None:
    for layout in (ROWS, PADDED, tw.composition(tw.Swizzle(3, 0, 5), ROWS)):
        profile = transpose[(8, 8), 256].analyze(MATRIX, MATRIX, layout)
        told = conflicts(transpose, (MATRIX, MATRIX, layout), block=256)
        wasted = sum(
            s.before - s.ideal for s in {id(r.suggestion): r.suggestion for r in told if r.suggestion}.values()
        )
        assert 64 * wasted == profile.shared_wavefronts - profile.shared_wavefronts_ideal


@tw.kernel
def branches(x, n):
    smem = tw.shared(tw.float32, 2048)
    tid = tw.thread_idx.x
    smem[tid] = 0.0
    tw.sync_threads()
    if n > 3:
        smem[2 * tid] = 1.0  # behind an unknown condition
    if tid < 1:
        smem[32 * tid] = 1.0  # one lane only
    for k in range(n):
        smem[4 * tid + k] = 1.0  # in a loop of unknown length
    place = tw.int32(x[tid])
    smem[32 * (place % 32)] = 2.0  # data decide
    smem[tid * n] = 2.0  # an argument decides
    smem[2 * tid * tw.grid_dim.x] = 2.0  # the grid decides
    tw.sync_threads()
    x[tid] = smem[tid]


def test_what_is_unknown_is_walked_and_not_guessed() -> None:
    found = conflicts(branches, (tw.spec(tw.float32, (64,)), 5), block=64)
    lines = [line_with(branches, text) for text in ("# behind an unknown", "# in a loop")]
    assert [remark.line for remark in found] == lines


def test_without_a_block_one_warp_is_looked_at() -> None:
    (remark,) = conflicts(transpose, (MATRIX, MATRIX, ROWS))
    assert remark.suggestion is not None


def test_matrix_copies_of_the_multistage_example() -> None:
    multistage = load_example(examples_folder() / "tensorcore" / "03_multistage.py")
    grid, block, arguments = multistage.example_matmul_multistage()
    kernel = multistage.matmul_multistage

    def to_operands(*arguments: Any) -> list[Any]:
        found = conflicts(kernel[grid, block], arguments)
        return [r for r in found if "requests to sA " in r.message or "requests to sB " in r.message]

    assert to_operands(*arguments) == []
    given = list(arguments)
    (place,) = [n for n, x in enumerate(given) if hasattr(x, "smem_a")]
    given[place] = dataclasses.replace(given[place], smem_a=given[place].smem_a.inner)
    found = to_operands(*given)
    assert found and all("requests to sA " in remark.message for remark in found)
    assert all(r.suggestion is not None and r.suggestion.removes for r in found)


# --- narrow copies ----------------------------------------------------------------------------------------------------

COPIER = tw.make_tiled_copy(tw.atoms.UniversalCopy(32), tw.Layout((32, 8), (8, 1)), tw.Layout((1, 4)))


@tw.kernel
def fetch(dst, src, layout: tw.constexpr, told: tw.constexpr):
    smem = tw.shared(src.dtype, layout)
    mine = COPIER.get_slice(tw.thread_idx.x)
    other = tw.shared(src.dtype, PADDED)
    ends = mine.partition_S(tw.local_tile(src, (32, 32), (0, 0))), mine.partition_D(smem)
    tw.copy(*((COPIER, *ends) if told else ends))  # the copy
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(mine.partition_D(smem), mine.partition_D(other))  # within shared memory: nothing is said
    tw.sync_threads()
    dst[tw.thread_idx.x] = other[tw.thread_idx.x % 32, 0]


def narrow(layout: Any = ROWS, told: bool = False, src: Any = MATRIX) -> str | None:
    arguments = (tw.spec(tw.float32, (256,)), src, layout, told)
    found = [r for r in tw.check(fetch, arguments, block=256) if r.kind == "narrow-copy"]
    if not found:
        return None
    (remark,) = found
    assert (remark.file, remark.line) == (__file__, line_with(fetch, "# the copy"))
    return remark.message.splitlines()[0]


def test_a_copy_of_16_bytes_is_as_wide_as_can_be() -> None:
    assert narrow() is None
    assert narrow(tw.composition(tw.Swizzle(3, 2, 3), ROWS)) is None


REASONS: dict[str, dict[str, Any]] = {
    "rows of the destination are not known to begin at multiples of 16 bytes": {"layout": PADDED},
    "rows of the source are not known to begin at multiples of 16 bytes": {"src": tw.spec(tw.float32, (256, 255))},
    "the elements of one thread are not contiguous in the destination": {"layout": tw.Layout((32, 32), (1, 32))},
    "the source is known to begin at a multiple of 4 bytes only": {"src": tw.spec(tw.float32, (256, 256), align=4)},
    "keeps only 1 elements of the destination together": {"layout": tw.composition(tw.Swizzle(5, 0, 5), ROWS)},
    "the copy was told to take 1 at once": {"told": True},
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_narrow_copy_says_why(reason: str) -> None:
    message = narrow(**REASONS[reason])
    assert message is not None and message.startswith("narrow copy: 4 bytes at once, where 16 are possible: ")
    assert reason in message


def test_the_profile_holds_the_remarks_of_the_trace() -> None:
    profile = fetch[1, 256].analyze(tw.spec(tw.float32, (256,)), MATRIX, PADDED, False)
    assert [r.kind for r in profile.report().remarks if r.kind == "narrow-copy"] == ["narrow-copy"]


@tw.kernel
def scaled(x, factor: tw.constexpr):
    x[tw.thread_idx.x] = x[tw.thread_idx.x] * factor


@pytest.mark.parametrize(
    ("factor", "dtype", "told"),
    [
        (np.float64(0.5), tw.float32, True),
        (np.sqrt(2), tw.float16, True),
        (np.array(0.5), tw.float32, True),
        (0.5, tw.float32, False),
        (np.float32(0.5), tw.float32, False),
        (np.float64(0.5), tw.float64, False),
    ],
)
def test_a_numpy_number_that_widens_arithmetic_is_told(factor, dtype, told: bool) -> None:
    found = [r for r in tw.check(scaled, (tw.spec(dtype, (32,)), factor), block=32) if r.kind == "wide-number"]
    assert len(found) == told
    if told:
        assert f"so {dtype} is widened" in found[0].message and "help: write float(" in found[0].message


@tw.kernel
def scaled_by_an_argument(x, factor):
    x[tw.thread_idx.x] = x[tw.thread_idx.x] * factor


@pytest.mark.parametrize(
    ("factor", "dtype", "told"),
    [
        (np.float64(0.5), tw.float32, True),
        (0.5, tw.float32, False),
        (np.float32(0.5), tw.float16, False),
        (np.float64(0.5), tw.float64, False),
    ],
)
def test_an_argument_that_widens_arithmetic_is_told(factor, dtype, told: bool) -> None:
    arguments = (tw.spec(dtype, (32,)), factor)
    found = [r for r in tw.check(scaled_by_an_argument, arguments, block=32) if r.kind == "wide-number"]
    assert len(found) == told
    if told:
        assert "argument 'factor' is a NumPy float64" in found[0].message and "pass float(factor)" in found[0].message


@tw.kernel
def masked(dst, src, n):
    values = tw.registers(src.dtype, 4)
    tid = tw.thread_idx.x
    mine = tw.local_tile(src, 4, tid)
    wanted = tw.registers(tw.bool_, 4)
    for k in tw.static_range(4):
        wanted[k] = 4 * tid + k < n
    tw.copy(mine, values, pred=wanted)  # element by element
    dst[tid] = values[0] + values[1] + values[2] + values[3]


def test_a_predicate_of_each_element_makes_a_copy_narrow() -> None:
    arguments = tw.spec(tw.float32, (32,)), tw.static(tw.spec(tw.float32, (128,))), 100
    (remark,) = tw.check(masked, arguments, block=32)
    assert remark.line == line_with(masked, "# element by element")
    assert "the predicate or count may differ within 4 adjacent elements" in remark.message
