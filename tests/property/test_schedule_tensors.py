"""Random tensorized plans: whatever the passes, caches, layouts, warps and targets, the product is the same."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from tests.helpers.products import FIRST, LAST, Product
from tests.helpers.slow import examples

from tilewright.schedule.mma_shapes import MMAFragmentOp as Op

NVIDIA = [
    *(("sm_80", s, t) for s in ("M16N16K16", "M32N8K16", "M8N32K16") for t in ("float16", "bfloat16", "int8", "uint8")),
    ("sm_90a", "M16N16K8", "float32"),
    ("sm_80", "M16N16K16", "float16"),
    ("sm_75", "M8N32K16", "float16"),
    ("sm_75", "M16N16K16", "int8"),
    ("sm_70", "M32N8K16", "float16"),
]
CDNA = [
    ("gfx908", "M16N16K4_B1", "float32"),
    ("gfx90a", "M32N32K8_B1", "float16"),
    ("gfx908", "M16N16K16_B1", "int8"),
    ("gfx90a", "M64N64K1_B2", "float32"),
    ("gfx908", "M64N64K2_B4", "bfloat16"),
]
LAYOUT = st.sampled_from([FIRST, LAST])


@st.composite
def products(draw: st.DrawFn) -> Product:
    target, shape, dtype = draw(st.sampled_from(NVIDIA + CDNA))
    passes = draw(st.integers(1, 4 if target.startswith("sm") else 8))
    shared = draw(st.booleans())
    keep = draw(st.booleans())
    large = shape.startswith("M64")
    outputs = ["int32", "int16"] if dtype in ("int8", "uint8") else ["float32", "float16"]
    small = st.just(1) if large else st.integers(1, 2)
    return Product(
        target, shape, dtype, draw(st.sampled_from(outputs)), passes,
        fused=draw(st.sampled_from([f for f in range(1, passes + 1) if passes % f == 0])),
        policy=draw(st.sampled_from(["PASS_ORDER", "BLOCK_ORDER"])),
        warps=(draw(small), draw(small)),
        tiles=(draw(small), draw(small)),
        steps=draw(st.integers(1, 3)),
        size=(1, draw(st.integers(1, 2)), draw(st.integers(1, 4))),
        batch=0 if large else draw(st.sampled_from([0, 0, 2])),
        shared=shared,
        stages=draw(st.integers(1, 4)) if shared else 1,
        fragments=draw(st.booleans()),
        keep=keep,
        staged=keep and draw(st.booleans()),
        layouts=(draw(LAYOUT), draw(LAYOUT), draw(LAYOUT)),
        transposed=(draw(st.booleans()), draw(st.booleans())),
        prologue=draw(st.sampled_from([(Op.NONE, None), (Op.SET, 3.0), (Op.SCALE, 2.0)])) if keep else (Op.NONE, None),
        epilogue=draw(st.sampled_from([(Op.NONE, None), (Op.ReLU, None)])) if keep else (Op.NONE, None),
        static=draw(st.booleans()),
        short=draw(st.sampled_from([(0, 0, 0), (1, 5, 3), (7, 0, 0), (0, 9, 1), (3, 1, 20)])),
    )  # fmt: skip


@examples(8, 50, suppress_health_check=list(HealthCheck))
@given(products())
def test_random_products(product: Product) -> None:
    m, n, k = product.block
    assume((m + n) * k * 4 * product.stages + m * n * 4 <= 48 * 1024)  # bytes of shared memory, of the largest types
    product.check()


@examples(4, 25, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([*NVIDIA, *CDNA]), st.integers(1, 8), st.data(), st.booleans(),
    st.sampled_from(["PASS_ORDER", "BLOCK_ORDER"]), st.booleans(),
)  # fmt: skip
def test_random_counts(kind: tuple, passes: int, data: st.DataObject, keep: bool, policy: str, shared: bool) -> None:
    fused = data.draw(st.sampled_from([f for f in range(1, passes + 1) if passes % f == 0]))
    output = "int32" if kind[2] in ("int8", "uint8") else "float32"
    product = Product(
        *kind, output, passes, fused, policy, keep=keep, shared=shared, size=(1, 1, data.draw(st.integers(1, 3)))
    )
    product.refuse_other_counts(product.plan.report())
