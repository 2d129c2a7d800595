"""Guarded tiles against NumPy: what a tile reads is the padded array's part, and what it writes is cropped.

Arrays are views of larger ones that are full of a poison, so that an element read from outside is seen in the result,
and one written outside in the array; the simulator's checks of all accesses are on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw

Array = np.ndarray[Any, Any]
POISON = 113


def framed(shape: tuple[int, ...], dtype: Any, order: str, margin: tuple[int, int], start: int) -> tuple[Array, Array]:
    """Return an array of poison and a view of it that has numbers in it, with so much around on each side."""
    low, high = margin
    whole = np.full([low + n + high for n in shape], POISON, dtype, order=order)  # type: ignore[call-overload]
    view = whole[tuple(slice(low, low + n) for n in shape)]
    view[...] = (np.arange(start, start + view.size) % 101).astype(dtype).reshape(shape)
    return whole, view


def cut(x: Array, first: tuple[int, ...], tile: tuple[int, ...], fill: Any) -> Array:
    """Return x[first : first + tile] of an array that is `fill` everywhere outside."""
    found = np.full(tile, fill, x.dtype)
    for place in np.ndindex(*tile):
        at = tuple(f + p for f, p in zip(first, place, strict=True))
        if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
            found[place] = x[at]
    return found


# --- kernels -------------------------------------------------------------------------------------------


@tw.kernel
def read(out, x, index, tile: tw.constexpr, how: tw.constexpr, fill: tw.constexpr):
    """out = the tile of x at the coordinate that `index` holds."""
    coord = tuple(index[k] for k in range_of(tile))
    source = tw.local_tile(x, tile, coord, guard=True, fill=fill)
    if how[0] == "partition":
        part, whole = (tw.local_partition(t, how[1], tw.thread_idx.x) for t in (source, out))
        tw.copy(part, whole)
    elif how[0] == "fragment":
        part, whole = (tw.local_partition(t, how[1], tw.thread_idx.x) for t in (source, out))
        r = tw.fragment_like(part)
        tw.copy(part, r)
        tw.copy(r, whole)
    elif how[0] == "tiled":
        thread = how[1].get_slice(tw.thread_idx.x)
        part, whole = thread.partition_S(source), thread.partition_D(out)
        r = tw.fragment_like(part)
        tw.copy(part, r)
        tw.copy(r, whole)
    elif how[0] == "shared":
        thread = how[1].get_slice(tw.thread_idx.x)
        s = tw.shared(x.dtype, how[2])
        tw.copy(how[1], thread.partition_S(source), thread.partition_D(s))
        tw.cp_async_wait()
        tw.copy(thread.partition_S(s), thread.partition_D(out))
    else:
        part, whole = (tw.local_partition(t, how[1], tw.thread_idx.x) for t in (source, out))
        for i in range(part.size):
            whole[i] = part[i]


@tw.kernel
def write(x, src, index, tile: tw.constexpr, how: tw.constexpr):
    """The tile of x at the coordinate that `index` holds = src, as far as it is there."""
    coord = tuple(index[k] for k in range_of(tile))
    target = tw.local_tile(x, tile, coord, guard=True)
    if how[0] in ("partition", "fragment"):
        part, whole = (tw.local_partition(t, how[1], tw.thread_idx.x) for t in (src, target))
        r = tw.fragment_like(part)
        tw.copy(part, r)
        tw.copy(r, whole)
    elif how[0] in ("tiled", "shared"):
        thread = how[1].get_slice(tw.thread_idx.x)
        tw.copy(thread.partition_S(src), thread.partition_D(target))
    else:
        part, whole = (tw.local_partition(t, how[1], tw.thread_idx.x) for t in (src, target))
        for i in range(part.size):
            whole[i] = part[i]


def range_of(tile: tuple[int, ...]) -> Any:
    return tw.static_range(len(tile))


# --- what to try ---------------------------------------------------------------------------------------

VIEWS = {
    "itself": lambda x: x,
    "reversed": lambda x: x[tuple(slice(None, None, -1) for _ in x.shape)],
    "transposed and back": lambda x: np.ascontiguousarray(x.T).T,
    "one row many times": lambda x: np.broadcast_to(x[:1], x.shape),
}
DTYPES = (np.float16, np.float32, np.float64, np.int8, np.int32)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.sampled_from((1, 2, 2, 2, 3)))
    dtype = draw(st.sampled_from(DTYPES))
    order = draw(st.sampled_from("CF"))
    contiguous = rank - 1 if order == "C" else 0
    value = draw(st.sampled_from((1, 2, 4, 8)))
    threads = [draw(st.sampled_from((1, 2, 4))) for _ in range(rank)]
    values = [value if k == contiguous else draw(st.sampled_from((1, 2))) for k in range(rank)]
    repeat = [draw(st.sampled_from((1, 2))) for _ in range(rank)]
    tile = tuple(t * v * r for t, v, r in zip(threads, values, repeat, strict=True))
    kinds = ["partition", "fragment", "tiled", "shared", "elements"]
    kind = draw(st.sampled_from(kinds))
    by_threads = tw.Layout(tuple(threads), tuple(int(np.prod(threads[:k])) for k in range(rank)))
    by_values = tw.Layout(tuple(values)) if contiguous == 0 else tw.row_major(tuple(values))
    how: tuple[Any, ...] = (kind, by_threads)
    if kind in ("tiled", "shared"):
        atom = tw.atoms.UniversalCopy()
        how = (kind, tw.make_tiled_copy(atom, by_threads, by_values))
    if kind == "shared":
        how = (*how, tw.Layout(tile) if order == "F" else tw.row_major(tile))
    extents = tuple(draw(st.one_of(st.integers(1, 3 * t), st.sampled_from((t, 2 * t, 8, 16)))) for t in tile)
    index = tuple(draw(st.integers(-2, -(-n // t) + 1)) for n, t in zip(extents, tile, strict=True))
    margin = draw(st.sampled_from(((0, 0), (8, 8), (1, 2), (16, 0), (3, 5))))
    fills = (0, 1, -3) if np.issubdtype(dtype, np.integer) else (0, -1.5, float("nan"), float("-inf"), -0.0)
    return {
        "shape": extents, "dtype": dtype, "order": order, "margin": margin, "tile": tile, "index": index, "how": how,
        "view": draw(st.sampled_from(("itself", *VIEWS))), "fill": draw(st.sampled_from(fills)), "threads": int(np.prod(threads)),
    }  # fmt: skip


def same_bits(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


@examples(10, 60)
@given(cases())
def test_reads_are_those_of_the_padded_array(case: dict[str, Any]) -> None:
    tile, dtype, fill = case["tile"], case["dtype"], case["fill"]
    whole, x = framed(case["shape"], dtype, case["order"], case["margin"], 1)
    x = VIEWS[case["view"]](x)
    before = whole.copy()
    out = np.full(tile, POISON, dtype, order=case["order"])
    index = np.array(case["index"], np.int32)
    read[1, case["threads"]](tw.static(out), x, index, tile, case["how"], fill)
    first = tuple(i * t for i, t in zip(case["index"], tile, strict=True))
    assert same_bits(out, cut(x, first, tile, fill)), (out, cut(x, first, tile, fill))
    assert same_bits(whole, before)


@examples(10, 60)
@given(cases())
def test_writes_are_cropped(case: dict[str, Any]) -> None:
    tile, dtype = case["tile"], case["dtype"]
    whole, x = framed(case["shape"], dtype, case["order"], case["margin"], 1)
    _, src = framed(tile, dtype, case["order"], (0, 0), 17)
    expected, view = framed(case["shape"], dtype, case["order"], case["margin"], 1)
    first = tuple(i * t for i, t in zip(case["index"], tile, strict=True))
    for place in np.ndindex(*tile):
        at = tuple(f + p for f, p in zip(first, place, strict=True))
        if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
            view[at] = src[place]
    write[1, case["threads"]](x, tw.static(src), np.array(case["index"], np.int32), tile, case["how"])
    assert same_bits(whole, expected), (whole, expected)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 63, 64, 65, 100])
def test_a_row_in_one_call(n: int) -> None:
    """Every length of a row, with all tiles of a grid one longer than needed."""

    @tw.kernel
    def double(y, x):
        part = [tw.local_tile(t, (32,), (tw.block_idx.x,), guard=True) for t in (x, y)]
        a, b = [tw.local_tile(t, (4,), (tw.thread_idx.x,)) for t in part]
        r = tw.fragment_like(a)
        tw.copy(a, r)
        for i in range(4):
            r[i] = 2 * r[i]
        tw.copy(r, b)

    x = np.arange(n, dtype=np.float32)
    y = np.full(n + 9, -1, np.float32)
    double[-(-n // 32) + 1, 8](y[:n], x)
    assert np.array_equal(y, np.concatenate([2 * x, np.full(9, -1)]))
