"""The Hopper family of `tw.matmul`: every branch of its kernel on both backends, in the simulator under all checks.

Operands are small integers, so that sums are exact in every order and results of float32 are compared to the bit;
those of 16 bits are the rounded exact ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.helpers.one_family import only

import tilewright as tw
from tilewright.kernels.hopper_plan import HopperConfiguration

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
KIND = {"bf16": BF16, "f16": np.float16, "tf32": np.float32, "e4m3": E4M3, "e5m2": E5M2, "s8": np.int8, "u8": np.uint8}


@dataclass(frozen=True)
class Case:
    """A product (M, N, K), how it is cut up, and by how many blocks; `majors` are those of A and B."""

    extents: tuple[int, int, int]
    tile: tuple[int, int, int]
    blocks: int
    types: tuple[str, str] = ("bf16", "bf16")
    majors: str = "KK"
    out: Any = None
    batch: tuple[int, ...] = ()
    stages: int = 3
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> HopperConfiguration:
        return HopperConfiguration(self.tile, (8, 1), self.stages, 2, **self.more)


PING_PONG, SWAPPED, CLUSTER = {"is_ping_pong": True}, {"is_swapped": True}, {"cluster": 2}
CASES = {
    "one tile, few steps": Case((128, 256, 64), (128, 256, 64), 1),
    "edges, more tiles than blocks": Case((200, 264, 200), (128, 128, 64), 2),
    "two rows of instructions": Case((200, 136, 72), (256, 128, 64), 1, majors="MK"),
    "M and N contiguous": Case((136, 264, 200), (128, 128, 64), 2, majors="MM"),
    "one element": Case((1, 1, 1), (128, 64, 64), 1),
    "a batch": Case((72, 72, 72), (128, 64, 64), 2, batch=(3,)),
    "ping-pong": Case((136, 264, 136), (64, 128, 64), 2, more=PING_PONG),
    "ping-pong, one tile": Case((64, 64, 72), (64, 64, 64), 1, more=PING_PONG),
    "ping-pong, float32, N contiguous": Case((72, 136, 136), (64, 64, 64), 1, majors="KM", out=np.float32, more=PING_PONG),
    "cluster": Case((300, 136, 136), (128, 128, 64), 2, more=CLUSTER),
    "cluster, N contiguous": Case((130, 256, 136), (128, 128, 64), 4, majors="KM", more=CLUSTER),
    "cluster, ping-pong": Case((200, 264, 72), (64, 128, 64), 2, more=CLUSTER | PING_PONG),
    "swapped": Case((5, 264, 136), (8, 128, 64), 2, more=SWAPPED),
    "swapped, ping-pong, M contiguous": Case((24, 136, 136), (32, 64, 64), 1, majors="MK", more=SWAPPED | PING_PONG),
    "splits": Case((130, 136, 600), (128, 128, 64), 3, more={"splits": 3}),
    "splits, swapped, a batch": Case((3, 136, 520), (8, 128, 64), 4, batch=(2,), more={"splits": 4} | SWAPPED),
    "f16": Case((130, 72, 72), (128, 64, 64), 1, ("f16", "f16")),
    "tf32": Case((130, 68, 68), (128, 64, 32), 1, ("tf32", "tf32")),
    "tf32, splits": Case((130, 68, 132), (128, 64, 32), 1, ("tf32", "tf32"), more={"splits": 2}),
    "e4m3 x e5m2": Case((130, 72, 272), (128, 64, 128), 1, ("e4m3", "e5m2")),
    "s8 x u8": Case((130, 72, 272), (128, 64, 128), 1, ("s8", "u8")),
    "u8, swapped": Case((3, 144, 144), (8, 128, 128), 1, ("u8", "s8"), more=SWAPPED),
    "float64 results": Case((72, 72, 72), (128, 64, 64), 1, out=np.float64),
    "bf16 results of odd rows": Case((67, 131, 72), (128, 64, 64), 1),
}  # fmt: skip


def integers(random: np.random.Generator, *shape: int, dtype: Any) -> np.ndarray:
    low = 0 if np.dtype(dtype).kind == "u" else -4
    return random.integers(low, 5, shape).astype(dtype)


def put(backend: Backend, array: np.ndarray, major: str) -> Any:
    """Put matrices with one mode contiguous, and rows that begin at multiples of 16 bytes."""
    turned = np.swapaxes(array, -1, -2) if major == "M" else array
    *batch, rows, columns = turned.shape
    wide = -(-columns * turned.itemsize // 16) * 16 // turned.itemsize
    filled = np.zeros((*batch, rows, wide), turned.dtype)
    filled[..., :columns] = turned
    found = backend.put(filled)[..., :columns]
    return found.swapaxes(-1, -2) if major == "M" else found


def operands(case: Case) -> tuple[np.ndarray, np.ndarray]:
    random, (m, n, k) = np.random.default_rng(0), case.extents
    a, b = (KIND[name] for name in case.types)
    return integers(random, *case.batch, m, k, dtype=a), integers(random, *case.batch, n, k, dtype=b)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ np.swapaxes(b.astype(np.float64), -1, -2)


def same(actual: np.ndarray, exact: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.astype(np.float64), exact.astype(actual.dtype).astype(np.float64))


def compute(backend: Backend, case: Case, a: np.ndarray, b: np.ndarray, **options: Any) -> np.ndarray:
    """Return the product by the case's configuration; in the simulator without any finding."""
    if case.types[0] == "tf32":
        options["precision"] = "tf32"
    if case.out is not None:
        options["out_dtype"] = tw.dtype(case.out)
    x, y = put(backend, a, case.majors[0]), put(backend, b, case.majors[1])
    with only(case.configuration, case.blocks) as family:
        if backend.name != "sim":
            result = tw.matmul(x, y.swapaxes(-1, -2), **options)
        else:
            with tw.simulate(raise_errors=False) as run:
                result = tw.matmul(x, y.swapaxes(-1, -2), **options)
            assert not run.findings, run.findings
    assert family.launched, "another family computed it"
    return backend.get(result)


@pytest.mark.parametrize("name", CASES)
def test_products(backend: Backend, name: str) -> None:
    case = CASES[name]
    a, b = operands(case)
    same(compute(backend, case, a, b), product(a, b))
