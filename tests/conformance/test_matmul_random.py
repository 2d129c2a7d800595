"""Random products by random legal configurations of the Hopper family against float64, on both backends.

A result is K products summed up in float32 and one rounding: each addition may lose a unit in the last place of the
greatest partial sum, which is at most the sum of the absolute products. Two launches give the same bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.conformance.test_matmul_hopper import KIND, put
from tests.helpers.one_family import only
from tests.helpers.slow import scaled

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem

H200 = Machine.of(Arch.parse("sm_90a"))
OUTPUTS = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.bfloat16,
    "s8": np.int32,
}


def draw(seed: int, most: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray, Any]:
    """Return a problem of a seed, operands, and a configuration that can run it."""
    random = np.random.default_rng(seed)
    name = random.choice(list(OUTPUTS))
    m, n, k = (int(np.exp(random.uniform(0, np.log(top)))) for top in (most, most, 4 * most))
    batch = (int(random.integers(2, 4)),) if random.random() < 0.2 else ()
    wide = name in ("bf16", "f16")
    majors = "".join(random.choice(["K", "M"]) if wide else "K" for _ in range(2))
    dtype = KIND[name]
    if name == "s8":
        a, b = (random.integers(-128, 128, (*batch, rows, k)).astype(dtype) for rows in (m, n))
    else:
        a, b = (random.standard_normal((*batch, rows, k), np.float32).astype(dtype) for rows in (m, n))
    out = np.dtype(OUTPUTS[name]) if name == "s8" or random.random() < 0.7 else np.dtype(np.float32)
    compute, sums = (tw.tfloat32 if name == "tf32" else tw.dtype(dtype)), tw.int32 if name == "s8" else tw.float32
    sides = [Operand(tw.dtype(dtype), "K" if major == "K" else "MN", 16) for major in majors]
    problem = Problem(m, n, k, batch[0] if batch else 1, *sides, Operand(tw.dtype(out), "MN", 16), compute, sums)
    legal = [c.configuration for c in Hopper().candidates(problem, H200) if c.rejection is None]
    options: dict[str, Any] = {"out_dtype": tw.dtype(out)}
    if name == "tf32":
        options["precision"] = "tf32"
    if random.random() < 0.5:
        options["alpha"] = 2 if name == "s8" else 0.75
    return {"majors": majors, "options": options}, a, b, legal[int(random.integers(len(legal)))]


def check(backend: Backend, seed: int, most: int, blocks: int) -> None:
    about, a, b, configuration = draw(seed, most)
    x, y = (put(backend, z, major) for z, major in zip((a, b), about["majors"], strict=True))
    bias = np.random.default_rng(seed).integers(-9, 9, a.shape[-2]).astype(np.int32)[:, None]
    addend = backend.put(bias)
    with only(configuration, blocks) as family:
        results = [backend.get(tw.matmul(x, y.swapaxes(-1, -2), bias=addend, **about["options"])) for _ in range(2)]
    assert family.launched, "another family computed it"
    assert results[0].tobytes() == results[1].tobytes(), "the same bits every time"
    wide_a, wide_b = a.astype(np.float64), np.swapaxes(b.astype(np.float64), -1, -2)
    alpha = about["options"].get("alpha", 1)
    exact = alpha * (wide_a @ wide_b) + bias
    if results[0].dtype == np.int32:
        np.testing.assert_array_equal(results[0], exact.astype(np.int64).astype(np.int32))
        return
    terms = alpha * (np.abs(wide_a) @ np.abs(wide_b)) + np.abs(bias)
    last = float(ml_dtypes.finfo(results[0].dtype).eps)
    rounded = 2.0**-9 if "precision" in about["options"] else 0.0  # of both operands, to 10 bits
    # The tensor cores keep some 14 bits of the sums of 8-bit floats, of each 128 of K.
    rounded += 2.0**-12 if a.dtype.itemsize == 1 else 0.0
    limit = np.abs(exact) * last + terms * (a.shape[-1] * 2.0**-23 + rounded)
    wrong = ~(np.abs(results[0].astype(np.float64) - exact) <= limit)
    assert not wrong.any(), (seed, str(configuration), np.argwhere(wrong)[:3], results[0][wrong][:3], exact[wrong][:3])


@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in range(1, scaled(30))]])
def test_random_products_in_the_simulator(seed: int) -> None:
    from tests.conformance.harness import Simulator

    check(Simulator(), seed, 100, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(200))
def test_random_products_on_gpu(seed: int) -> None:
    from tests.conformance.harness import Gpu

    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    check(Gpu(), 1000 + seed, 2000, torch.cuda.get_device_properties(0).multi_processor_count)
