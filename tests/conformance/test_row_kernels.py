"""The examples that work on rows, on both backends: any shape and type, special values, and the lock of layer norm."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits

import tilewright as tw
from tilewright.demo import Case, collect_cases, run_case
from tilewright.demo.examples import examples_folder, load_example
from tilewright.demo.runner import greatest_difference

FOLDER = examples_folder() / "kernels"
SOFTMAX, RMS_NORM, LAYER_NORM, CROSS_ENTROPY, QUANTISE = NAMES = (
    "softmax", "rms_norm", "layer_norm", "cross_entropy", "quantise",
)  # fmt: skip
EXAMPLES: dict[str, ModuleType] = {name: load_example(FOLDER / f"{name}.py") for name in NAMES}
CASES = collect_cases([FOLDER / f"{name}.py" for name in NAMES], "sim", quick=True)
TYPES = (tw.float16, tw.bfloat16, tw.float32)
EPSILON = {tw.float16: 2.0**-11, tw.bfloat16: 2.0**-8, tw.float32: 2.0**-18}  # float32: of sums, and of exponentials


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.size}".replace(" ", "-"))
def test_case(case: Case) -> None:
    trial = case.prepare()
    before = np.nan_to_num(np.asarray(trial.result(), np.float64), nan=1e9)
    assert greatest_difference(before, trial.expected) > trial.limit  # nothing is right before the launch
    report = run_case(case, "sim")
    assert report.passed, report.failure


def rows(shape: tuple[int, ...], dtype: tw.DType, seed: int = 0, mean: float = 0.0) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape, dtype=np.float32) + np.float32(mean)).astype(dtype.numpy)


def nothing(backend: Backend, shape: Any, dtype: tw.DType) -> Any:
    """Return an output that holds nothing right."""
    return backend.put(np.full(shape, np.nan).astype(dtype.numpy))


def assert_near(actual: Array, expected: Array, dtype: tw.DType, factor: float = 1.0) -> None:
    """Compare each element, by the precision of a type and the greatest magnitude in its row."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(axis=-1, keepdims=True)
    limit = factor * EPSILON[dtype] * (np.abs(expected) + 2.0**-4 * scale) + (
        2.0**-25 if dtype is tw.float16 else 1e-30
    )
    difference = np.abs(actual.astype(np.float64) - expected)
    worst = np.unravel_index(np.argmax(difference - limit), difference.shape)
    assert (difference <= limit).all(), (worst, actual[worst], expected[worst], limit[worst])


# --- any shape and type --------------------------------------------------------------------------------

every_matrix = pytest.mark.parametrize(
    ("shape", "dtype"),
    [*itertools.product(((3, 7), (5, 4099)), TYPES), ((1, 1), tw.float32), ((130, 24), tw.bfloat16),
     ((2, 70000), tw.float16), ((2, 70000), tw.float32)], ids=str)  # fmt: skip


@every_matrix
@pytest.mark.spread(4)
def test_softmax(backend: Backend, shape: tuple[int, int], dtype: tw.DType) -> None:
    example, x = EXAMPLES[SOFTMAX], rows(shape, dtype)
    y = nothing(backend, shape, dtype)
    example.launch(y, backend.put(x))
    assert_near(backend.get(y), example.reference(x), dtype)


@every_matrix
@pytest.mark.spread(4)
def test_rms_norm(backend: Backend, shape: tuple[int, int], dtype: tw.DType) -> None:
    example, x, weight = EXAMPLES[RMS_NORM], rows(shape, dtype), rows(shape[1:], dtype, 1)
    y = nothing(backend, shape, dtype)
    example.launch(y, backend.put(x), backend.put(weight))
    assert_near(backend.get(y), example.reference(x, weight), dtype)


@every_matrix
@pytest.mark.spread(4)
def test_layer_norm(backend: Backend, shape: tuple[int, int], dtype: tw.DType) -> None:
    """All results, of rows that are not around zero."""
    example, (count, columns) = EXAMPLES[LAYER_NORM], shape
    far = 16.0 if dtype is tw.float32 else 4.0
    x, weight, bias, dy = rows(shape, dtype, 0, far), *(rows(s, dtype, 1) for s in ((columns,), (columns,), shape))
    expected = example.reference(x, weight, bias, dy)
    y, dx = (nothing(backend, shape, dtype) for _ in range(2))
    dweight, dbias = (nothing(backend, (columns,), dtype) for _ in range(2))
    mean, rstd = (nothing(backend, (count,), tw.float32) for _ in range(2))
    sources = [backend.put(a) for a in (x, weight, bias)]
    example.launch(y, mean, rstd, *sources)
    assert np.abs(backend.get(mean) - expected["mean"]).max() <= 2.0**-19 * far
    assert np.abs(backend.get(rstd) / expected["rstd"] - 1).max() <= 2.0**-10
    if columns > 1:  # a row of one element is its mean, and what is left of it a rounding error times 1 / sqrt(eps)
        assert_near(backend.get(y), expected["y"], dtype, 8 if dtype is tw.float32 else 2)
    partial, locks = backend.zeros((3, 2, columns), tw.float32), backend.zeros(3, tw.int32)
    for _ in range(2):  # the sums are zero again after the first
        example.launch_backward(dx, dweight, dbias, backend.put(dy), sources[0], mean, rstd, sources[1], partial, locks)
        if columns > 1:
            assert_near(backend.get(dx), expected["dx"], dtype, 64 if dtype is tw.float32 else 8)
            assert_near(backend.get(dweight), expected["dweight"], dtype, 64 if dtype is tw.float32 else 8)
        assert_near(backend.get(dbias), expected["dbias"], dtype, 2)
    assert not backend.get(partial).any() and not backend.get(locks).any()


def test_variance_of_rows_far_from_zero(backend: Backend) -> None:
    """mean(x^2) - mean(x)^2 would have no correct digit in float32."""
    x, one, zero = rows((3, 700), tw.float32, 0, 10000.0), np.ones(700, np.float32), np.zeros(700, np.float32)
    y, mean, rstd = (nothing(backend, shape, tw.float32) for shape in (x.shape, 3, 3))
    EXAMPLES[LAYER_NORM].launch(y, mean, rstd, *(backend.put(a) for a in (x, one, zero)))
    np.testing.assert_allclose(backend.get(rstd), EXAMPLES[LAYER_NORM].reference(x, one, zero, x)["rstd"], rtol=1e-3)


@every_matrix
@pytest.mark.spread(4)
def test_cross_entropy(backend: Backend, shape: tuple[int, int], dtype: tw.DType) -> None:
    example, logits = EXAMPLES[CROSS_ENTROPY], rows(shape, dtype)
    labels = np.random.default_rng(1).integers(0, shape[1], shape[0])
    labels[-1:] = -100 if shape[0] > 1 else 0
    losses, expected = example.reference(logits, labels)
    loss, gradient = nothing(backend, shape[:1], tw.float32), nothing(backend, shape, dtype)
    example.launch(loss, gradient, backend.put(logits), backend.put(labels))
    assert np.abs(backend.get(loss) - losses).max() <= 1e-5 * (1 + np.abs(losses).max())
    assert_near(backend.get(gradient), expected, dtype, 1 if dtype is not tw.float32 else 4)


@pytest.mark.parametrize("to", [tw.int8, tw.float8_e4m3fn], ids=str)
@every_matrix
@pytest.mark.spread(4)
def test_quantise(backend: Backend, shape: tuple[int, int], dtype: tw.DType, to: tw.DType) -> None:
    example, x = EXAMPLES[QUANTISE], rows(shape, dtype)
    x[0] *= 0  # a row of zeros has the scale 0
    q, scale = backend.put(np.full(shape, 3).astype(to.numpy)), nothing(backend, shape[:1], tw.float32)
    example.launch(q, scale, backend.put(x))
    numbers, scales = example.reference(x, to)
    assert_same_bits(backend.get(q), numbers)
    assert_same_bits(backend.get(scale), scales)
    assert (backend.get(q)[0] == 0).all() and backend.get(scale)[0] == 0


# --- special values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 40000])
def test_softmax_of_special_values(backend: Backend, columns: int) -> None:
    """The greatest and the least numbers, infinities and NaN give what the definition gives."""
    x = np.zeros((7, columns), np.float32)
    most = np.finfo(np.float32).max
    x[0, 3], x[0, 5] = most, -most
    x[1] = -most
    x[2] = -np.inf
    x[2, 9] = -5
    x[3, 0] = np.nan
    x[4, 7] = np.inf
    x[5] = -np.inf
    x[6] = -most
    x[6, columns - 1] = most
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        e = np.exp(wide - wide.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
    y = nothing(backend, x.shape, tw.float32)
    EXAMPLES[SOFTMAX].launch(y, backend.put(x))
    np.testing.assert_allclose(backend.get(y), expected, rtol=1e-5)


def test_quantising_halves(backend: Backend) -> None:
    """Quotients that are halves go to the even number, and what is too great for its scale saturates."""
    x = np.arange(-254, 255, dtype=np.float32)[None] / 2
    q, scale = backend.put(np.zeros(x.shape, np.int8)), nothing(backend, (1,), tw.float32)
    EXAMPLES[QUANTISE].launch(q, scale, backend.put(x))
    assert backend.get(scale).tolist() == [1.0]
    assert_same_bits(backend.get(q), np.rint(x).astype(np.int8))
    tiny = np.array([[2.0**-149, 0, -(2.0**-149), 2.0**-148]], np.float32)  # the reciprocal of its scale is infinite
    q, scale = backend.put(np.full(tiny.shape, 9, np.int8)), nothing(backend, (1,), tw.float32)
    EXAMPLES[QUANTISE].launch(q, scale, backend.put(tiny))
    assert backend.get(q)[0, 1] == 0 and (np.sign(backend.get(q)) * np.sign(tiny) >= 0).all()


def test_labels_outside_of_the_vocabulary(backend: Backend) -> None:
    """Their loss is infinity, and nothing outside of the row is read or written."""
    logits, labels = rows((4, 100), tw.float32), np.array([100, -1, 2**40, 3])
    memory = np.full((6, 100), 7, np.float32)
    placed = backend.put(memory)
    gradient = backend.strided(placed.reshape(-1), (4, 100), (100, 1), 100)
    loss = nothing(backend, (4,), tw.float32)
    EXAMPLES[CROSS_ENTROPY].launch(loss, gradient, backend.put(logits), backend.put(labels))
    found = backend.get(loss)
    assert (found[:3] == np.inf).all() and np.isfinite(found[3])
    around = backend.get(placed)[[0, 5]]
    assert (around == 7).all()


# --- the lock ------------------------------------------------------------------------------------------

WEAKENED = {
    "taken without acquire": ('0, 1, sem="acquire")', "0, 1)"),
    "given back without release": ('0, sem="release")', '0, sem="relaxed")'),
    "no barrier before it is given back": ("        total += sums\n    tw.sync_threads()\n", "        total += sums\n"),
    "no lock": ("tw.atomic_cas(locks, mine, 0, 1, ", "tw.atomic_cas(locks, mine, 2, 1, "),
}


@pytest.mark.parametrize("change", [None, *WEAKENED], ids=str)
@pytest.mark.spread(2)
def test_lock(change: str | None, tmp_path: Path) -> None:
    """The simulator finds every way to leave out a part of the lock, by a race at the partial sums."""
    text = (FOLDER / "layer_norm.py").read_text()
    if change is not None:
        old, new = WEAKENED[change]
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "weakened.py").write_text(text)
    example = load_example(tmp_path / "weakened.py")
    shape, (columns,) = (12, 512), (512,)
    x, dy, weight = rows(shape, tw.float32), rows(shape, tw.float32, 1), rows((columns,), tw.float32, 2)
    expected = example.reference(x, weight, weight, dy)
    mean, rstd = (expected[name].astype(np.float32) for name in ("mean", "rstd"))
    partial, locks = np.zeros((2, 2, columns), np.float32), np.zeros(2, np.int32)
    outputs = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(weight)
    with tw.simulate(raise_errors=False) as run:
        example.launch_backward(*outputs, dy, x, mean, rstd, weight, partial, locks)
    if change is None:
        assert not run.findings, run.findings
        assert_near(outputs[1], expected["dweight"], tw.float32, 64)
    else:
        assert any(finding.kind == "race" and "partial" in str(finding) for finding in run.findings), run.findings
