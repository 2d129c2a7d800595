"""The examples that move data, on both backends: dropout, rotary embedding, batched transpose, decode attention."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.checkers.test_examples_without import findings, launches, without
from tests.conformance.harness import Array, Backend, Simulator, assert_same_bits, bits_of
from tests.helpers.machine_code import opcodes

import tilewright as tw
from tilewright.demo import Case, run_case
from tilewright.demo.examples import examples_folder, load_example
from tilewright.demo.runner import greatest_difference
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncWait

DROPOUT, ROPE, TRANSPOSE, DECODE = (
    load_example(examples_folder() / "kernels" / f"{name}.py")
    for name in ("dropout", "rope", "batched_transpose", "decode_attention")
)
CASES = [case for module in (ROPE, TRANSPOSE, DECODE) for case in module.cases("sim", True)]
HALVES = [tw.float16, tw.bfloat16]


def normal(shape: Any, dtype: tw.DType, seed: int = 0) -> Array:
    found: Array = np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype.numpy)
    return found


def framed(
    backend: Backend, values: Array, padding: tuple[int, ...], before: int = 0
) -> tuple[Any, Any]:  # Any: arrays of a backend
    """Return memory of sevens and a view of it that holds `values`, with so many elements more in each mode but one."""
    shape, strides = values.shape, [1]
    for extent, more in zip(shape[:0:-1], padding[::-1], strict=True):
        strides.insert(0, strides[0] * extent + more)
    memory = np.full(before + strides[0] * shape[0] + 5, 7, values.dtype)
    np.lib.stride_tricks.as_strided(memory[before:], shape, [s * values.itemsize for s in strides])[...] = values
    held = backend.put(memory)
    return held, backend.strided(held, shape, strides, before)


def outside(memory: Array, shape: tuple[int, ...], padding: tuple[int, ...], before: int = 0) -> Array:
    """Return what the memory of `framed` holds besides the view."""
    strides = [1]
    for extent, more in zip(shape[:0:-1], padding[::-1], strict=True):
        strides.insert(0, strides[0] * extent + more)
    places = sum(np.indices(shape)[n] * s for n, s in enumerate(strides)) + before
    return np.delete(memory, np.ravel(places))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.size}")
def test_demo(case: Case) -> None:
    trial = case.prepare()
    assert greatest_difference(trial.result(), trial.expected) > trial.limit  # nothing is right before the launch
    report = run_case(case, "sim")
    assert report.passed, report.failure


# --- dropout -------------------------------------------------------------------------------------------


def dropped(backend: Backend, x: Array, p: float, seed: int) -> Array:
    y = backend.put(np.full_like(x, 7))
    DROPOUT.launch(y, backend.put(x), p, seed)
    return backend.get(y)


@pytest.mark.parametrize("dtype", [*HALVES, tw.float32], ids=str)
@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (2047,), (2049,), (3, 5, 137), (4096,)], ids=str)
@pytest.mark.spread(4)
def test_dropout_of_any_length(backend: Backend, shape: tuple[int, ...], dtype: tw.DType) -> None:
    x = normal(shape, dtype)
    for p, seed in ((0.3, 5), (0.0, 5), (1.0, 5), (0.5, 2**33 + 11), (1e-9, 0)):
        expected = DROPOUT.reference(x.reshape(-1), p, seed).reshape(shape)
        assert_same_bits(dropped(backend, x, p, seed), expected, (p, seed))


@pytest.mark.parametrize("before", [1, 2, 4, 8])
def test_dropout_writes_what_it_was_given_alone(backend: Backend, before: int) -> None:
    x = normal(1003, tw.bfloat16)
    _, view = framed(backend, x, (), before)
    memory, y = framed(backend, np.zeros_like(x), (), before + 1)
    DROPOUT.launch(y, view, 0.4, 9)
    found = backend.get(memory)
    assert_same_bits(found[before + 1 :][: x.size], DROPOUT.reference(x, 0.4, 9))
    assert_same_bits(outside(found, x.shape, (), before + 1), np.full(6 + before, 7, x.dtype))


def test_dropout_is_a_function_of_seed_and_place(backend: Backend) -> None:
    ones = np.ones(20_000, np.float32)
    kept = [dropped(backend, ones, 0.5, seed) > 0 for seed in (1, 1, 2)]
    assert (kept[0] == kept[1]).all()
    assert 0.4 < (kept[0] == kept[2]).mean() < 0.6
    half = dropped(backend, np.ones(9_999, tw.bfloat16.numpy), 0.5, 1) > 0
    assert (half == kept[0][:9_999]).all()
    often = dropped(backend, ones, 0.2, 1) > 0
    assert (often | ~kept[0]).all()  # what is kept at a high p is kept at a lower one


def test_dropout_with_probability_zero_keeps_everything(backend: Backend) -> None:
    ones = np.ones(1 << 18, np.float32)  # four of the numbers of 16 bits are 0
    numbers = DROPOUT.reference_halves(77, np.arange(ones.size // 8))
    assert (numbers == 0).any() and (numbers == 2**16 - 1).any()
    assert_same_bits(dropped(backend, ones, 0.0, 77), ones)
    assert not dropped(backend, ones, 1.0, 77).any()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_the_mean(backend: Backend, p: float) -> None:
    size = 1 << 18
    y = dropped(backend, np.ones(size, np.float32), p, 77)
    threshold, _ = DROPOUT.rounded(p)
    assert abs(threshold / 2**16 - p) <= 2.0**-17
    deviation = np.sqrt(p * (1 - p) / size)
    assert abs((y > 0).mean() - (1 - p)) < 5 * deviation
    assert abs(y.mean() - 1) < 5 * deviation / (1 - p)
    for step in (1, 2, 8, 16):  # neighbours in a word, in a vector, and beyond
        together = ((y > 0)[step:] & (y > 0)[:-step]).mean()
        assert abs(together - (1 - p) ** 2) < 8 * deviation, step


def test_dropout_writes_zero_for_infinite_and_nan_elements_that_it_drops(backend: Backend) -> None:
    x = np.resize(np.array([np.inf, -np.inf, np.nan, -1], np.float32), 4099)
    assert_same_bits(dropped(backend, x, 1.0, 3), np.zeros_like(x))
    y = dropped(backend, x, 0.5, 3)
    assert (np.signbit(y[y == 0]) == 0).all() and not np.isfinite(y[y != 0][::1]).all()


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_dropout_refuses_what_is_not_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match="p must be from 0 to 1"):
        dropped(Simulator(), np.ones(8, np.float32), p, 1)


def test_dropout_refuses_arrays_that_a_vector_would_copy(backend: Backend) -> None:
    x = backend.put(np.ones((6, 8), np.float32))
    for y in (backend.strided(x, (3, 4), (8, 1)), backend.strided(x, (8, 6), (1, 8))):
        with pytest.raises(ValueError, match="row-major arrays without gaps"):
            DROPOUT.launch(y, y, 0.5, 1)
    empty = backend.put(np.ones((0, 4), np.float32))
    DROPOUT.launch(empty, empty, 0.5, 1)


# --- rotary embedding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("dtype", [*HALVES, tw.float32], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 2), (5, 4, 128), (3, 5, 20), (2, 33, 64), (2, 3, 6), (1, 70, 16), (2, 3, 256)], ids=str
)
@pytest.mark.spread(6)
def test_rope(backend: Backend, shape: tuple[int, int, int], dtype: tw.DType, interleaved: bool) -> None:
    x, (cos, sin) = normal(shape, dtype), ROPE.angles(shape[0], shape[2] // 2)
    for tables in ((cos, sin), (cos.astype(dtype.numpy), sin.astype(dtype.numpy))):
        y = backend.put(np.full_like(x, np.nan))
        ROPE.launch(y, backend.put(x), *map(backend.put, tables), interleaved)
        expected = ROPE.reference(x, *tables, interleaved)
        error = np.abs(backend.get(y).astype(np.float64) - expected)
        precision = {tw.float16: 2.0**-11, tw.bfloat16: 2.0**-8, tw.float32: 2.0**-22}[dtype]
        assert (error <= precision * (np.abs(expected) + 2.0**-10) + 2.0**-22).all()


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(("padding", "before"), [((16, 8), 0), ((0, 3), 1), ((5, 0), 2)], ids=str)
def test_rope_of_part_of_an_array(backend: Backend, padding: tuple[int, int], before: int, interleaved: bool) -> None:
    """Queries and keys are often parts of the result of one product: rows begin where they begin."""
    x, (cos, sin) = normal((3, 5, 48), tw.float16), ROPE.angles(3, 24)
    _, source = framed(backend, x, padding, before)
    memory, y = framed(backend, np.zeros_like(x), padding, before)
    ROPE.launch(y, source, backend.put(cos), backend.put(sin), interleaved)
    whole = backend.put(np.zeros_like(x))
    ROPE.launch(whole, backend.put(x), backend.put(cos), backend.put(sin), interleaved)
    found = backend.get(memory)
    rest = outside(found, x.shape, padding, before)
    assert_same_bits(rest, np.full_like(rest, 7))
    strides = [2 * n for n in ((48 + padding[1]) * 5 + padding[0], 48 + padding[1], 1)]
    assert_same_bits(np.lib.stride_tricks.as_strided(found[before:], x.shape, strides), backend.get(whole))


def test_rope_refuses_heads_of_an_odd_number_of_elements() -> None:
    x = np.zeros((2, 2, 7), np.float16)
    with pytest.raises(ValueError, match="an even number of elements, got 7"):
        ROPE.launch(np.zeros_like(x), x, *ROPE.angles(2, 3))


# --- batched transpose ---------------------------------------------------------------------------------

SHAPES = [(1, 1, 1), (2, 64, 64), (3, 65, 63), (1, 72, 100), (2, 8, 200), (1, 129, 7), (2, 128, 64), (1, 1, 130)]


@pytest.mark.parametrize("dtype", [tw.uint8, tw.bfloat16, tw.float32, tw.float64], ids=str)
def test_batched_transpose_has_no_bank_conflicts(dtype: tw.DType) -> None:
    x, y = np.zeros((1, 128, 256), dtype.numpy), np.zeros((1, 256, 128), dtype.numpy)
    plan = TRANSPOSE.plan_for(dtype)
    side = plan.smem.shape[0]
    profile = TRANSPOSE.batched_transpose[(256 // side, 128 // side, 1), 256].analyze(y, x, plan)
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal


def distinct(shape: tuple[int, ...], dtype: tw.DType) -> Array:
    """Return elements of which neighbours differ, of any bits that are not NaN."""
    width = dtype.numpy.itemsize
    numbers = np.arange(1, 1 + np.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (numbers >> np.uint64(64 - 8 * width)).astype(f"u{width}") & ~np.array(1 << (8 * width - 2), f"u{width}")
    found: Array = bits.view(dtype.numpy).reshape(shape)
    return found


@pytest.mark.parametrize("dtype", [tw.float32, tw.int32, *HALVES, tw.uint16, tw.uint8, tw.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.spread(6)
def test_batched_transpose(backend: Backend, shape: tuple[int, int, int], dtype: tw.DType) -> None:
    x = distinct(shape, dtype)
    y = backend.put(np.zeros((shape[0], shape[2], shape[1]), dtype.numpy))
    TRANSPOSE.launch(y, backend.put(x))
    assert (bits_of(backend.get(y)) == bits_of(x.swapaxes(1, 2))).all()


@pytest.mark.parametrize("dtype", [tw.float32, tw.bfloat16], ids=str)
@pytest.mark.parametrize(("padding", "before"), [((8, 4), 0), ((1, 1), 1), ((64, 2), 2)], ids=str)
def test_batched_transpose_of_part_of_an_array(
    backend: Backend, padding: tuple[int, int], before: int, dtype: tw.DType
) -> None:
    x = distinct((2, 67, 92), dtype)
    _, source = framed(backend, x, padding, before)
    shape = (2, 92, 67)
    memory, y = framed(backend, np.zeros(shape, dtype.numpy), padding, before)
    TRANSPOSE.launch(y, source)
    found = backend.get(memory)
    rest = outside(found, shape, padding, before)
    assert_same_bits(rest, np.full_like(rest, 7))
    strides = [x.itemsize * n for n in ((67 + padding[1]) * 92 + padding[0], 67 + padding[1], 1)]
    written = np.lib.stride_tricks.as_strided(found[before:], shape, strides)
    assert (bits_of(written) == bits_of(x.swapaxes(1, 2))).all()


# --- decode attention ----------------------------------------------------------------------------------


def decoded(
    backend: Backend, lengths: tuple[int, ...], heads: tuple[int, int, int], page: int, dtype: tw.DType,
    splits: int | None = None, factor: float = 1.0, by_heads: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Return what two launches with one workspace give, and what they should."""
    host = DECODE.make_arguments(np.random.default_rng(1), len(lengths), *heads, page, lengths, dtype.numpy)
    host = ((host[0] * np.float32(factor)).astype(dtype.numpy), *host[1:])
    q, k, v, table, found_lengths = map(backend.put, host)
    if by_heads:  # (pages, heads, tokens, head) in memory
        k, v = (_swapped(backend.put(np.ascontiguousarray(x.swapaxes(1, 2)))) for x in host[1:3])
    workspace = DECODE.make_workspace(q, k, table)
    if splits is not None:
        batch, shared, _, group, width = workspace.parts.shape
        workspace = DECODE.Workspace(backend.zeros((batch, shared, splits, group, width), tw.float32), workspace.done)
    results = []
    for _ in range(2):
        out = backend.put(np.full_like(host[0], np.nan))
        DECODE.launch(out, q, k, v, table, found_lengths, workspace)
        results.append(backend.get(out))
    assert_same_bits(results[1], results[0])
    assert not backend.get(workspace.done).any()
    return results[0], DECODE.reference(*host)


def _swapped(pages: Any) -> Any:  # Any: an array of NumPy or torch
    return pages.swapaxes(1, 2)


@pytest.mark.parametrize(
    ("lengths", "heads", "page", "more"),
    [
        ((65, 0, 1), (4, 1, 64), 16, {}),  # nothing at all, one key, a key in a fifth tile
        ((70,), (4, 2, 128), 64, {"by_heads": True}),
        ((40, 16), (12, 1, 64), 16, {}),  # both rows of a thread are heads
        ((33,), (16, 1, 64), 16, {"splits": 3}),  # parts without keys
        ((200, 17), (3, 3, 64), 32, {"splits": 2}),  # rings are filled again; a head of Q for each of K
        ((100,), (2, 1, 64), 16, {"factor": 40.0, "splits": 2}),  # weights that nearly all are zero
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.spread(4)
def test_decode_attention(
    backend: Backend,
    lengths: tuple[int, ...],
    heads: tuple[int, int, int],
    page: int,
    more: dict[str, Any],
    dtype: tw.DType,
) -> None:
    found, expected = decoded(backend, lengths, heads, page, dtype, **more)
    assert np.abs(found.astype(np.float64) - expected).max() <= {tw.float16: 0.004, tw.bfloat16: 0.03}[dtype]
    for b, length in enumerate(lengths):
        if length == 0:
            assert not found[b].any()


@pytest.mark.parametrize(
    ("heads", "page", "told"), [((17, 1, 64), 16, "17, 64 and 16"), ((2, 1, 96), 16, "96"), ((2, 1, 64), 8, "and 8")]
)
def test_decode_attention_refuses_what_its_products_do_not_fit(
    heads: tuple[int, int, int], page: int, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        decoded(Simulator(), (20,), heads, page, tw.float16)


@pytest.mark.parametrize("name", ["batched_transpose", "decode_attention"])
def test_every_wait_and_barrier_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tiles a warp: stages are filled again."""
    if name == "decode_attention":
        host = DECODE.make_arguments(np.random.default_rng(1), 1, 2, 1, 64, 16, (490,), np.float16)
        run = lambda: DECODE.launch(np.zeros_like(host[0]), *host)  # noqa: E731
    else:
        run = lambda: TRANSPOSE.launch(np.zeros((1, 64, 64), np.float32), np.ones((1, 64, 64), np.float32))  # noqa: E731
    (launch,) = launches(run, monkeypatch)
    assert findings(launch) == []
    places = [(block, op) for block, op in launch.places() if isinstance(op, (Barrier, AsyncWait))]
    assert len(places) == {"batched_transpose": 2, "decode_attention": 5}[name]
    for block, op in places:
        with without(block, op):
            assert findings(launch), op.location


# --- machine code --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "accesses"),
    [
        (DROPOUT.example_dropout, {"LDG.E.128.CONSTANT": 2, "STG.E.128": 2}),  # inside, and at the end
        (ROPE.example_rope, {"LDG.E.128.CONSTANT": 10, "STG.E.128": 6}),  # two heads an iteration, and one
        (TRANSPOSE.example_batched_transpose, {"LDGSTS.E.BYPASS.128": 4, "STG.E.128": 4}),
        (DECODE.example_decode_attention, {"LDGSTS.E.BYPASS.128": 96}),  # three stages, inside and at the end
    ],
    ids=["dropout", "rope", "batched_transpose", "decode_attention"],
)
@pytest.mark.spread(4)
def test_machine_code_has_wide_accesses_and_no_local_memory(kernel: Any, accesses: dict[str, int]) -> None:
    grid, block, arguments = kernel()
    launcher = kernel.__globals__[kernel.__name__.removeprefix("example_")][grid, block]
    found = Counter(opcodes(launcher.sass(*arguments, arch="sm_90a")))
    assert {op: found[op] for op in accesses} == accesses
    narrow = [
        op for op in found if op.startswith(("LDL", "STL", "LDG.E.U", "STG.E.U", "LDGSTS")) and op not in accesses
    ]
    assert narrow == []
