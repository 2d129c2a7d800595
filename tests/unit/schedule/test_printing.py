"""What nests and tensorized plans say of themselves, as text and as data."""

from __future__ import annotations

import json
import textwrap

import pytest
from tests.helpers.products import Product

import tilewright as tw
from tilewright.schedule import Array, MMAFragmentOp, Nest, Role, create_parameters


def test_a_nest_prints_its_loops() -> None:
    A, B = Array(Role.INPUT, tw.float32, (4, 3), name="A"), Array(Role.OUTPUT, tw.float32, (4, 3), name="B")
    nest = Nest((4, 3))
    i, j = nest.get_indices()
    assert str(nest) == "Nest(4, 3), without logic"

    @nest.iteration_logic
    def _() -> None:
        B[i, j] = 2.0 * A[i, j]

    text = """
        for i in range(4):
            for j in range(3):
                B[i, j] = 2.0 * A[i, j]
    """
    assert str(nest) == textwrap.dedent(text).strip() == str(nest.create_schedule())
    assert repr(nest) == "Nest(4, 3)"


PRODUCT = Product("gfx908", "M64N64K1_B2", "float32", passes=8, fused=2, policy="BLOCK_ORDER", keep=True)


def test_a_plan_says_what_its_tile_is() -> None:
    remarks = [line.partition("  #")[2].strip() for line in str(PRODUCT.plan).splitlines() if "i3" in line]
    assert remarks[0] == "tensorized, M64N64K1_B2, 8 passes in groups of 2, BLOCK_ORDER"
    ended = Product(prologue=(MMAFragmentOp.SET, 0.0), epilogue=(MMAFragmentOp.ReLU, None), size=(1, 1, 1))
    assert "# tensorized, M16N16K16, 1 pass, prologue SET to 0.0, epilogue ReLU\n" in str(ended.plan)


def test_the_tile_is_data() -> None:
    data = json.loads(PRODUCT.plan.to_json())
    assert data["tensorization"] == {
        "indices": ["i3", "j3", "k3"], "mma_shape": "M64N64K1_B2", "num_total_passes": 8, "num_fused_passes": 2,
        "scheduling_policy": "BLOCK_ORDER", "prologue": "NONE", "epilogue": "NONE", "element_type": "float32",
        "accumulator_type": "float32", "saturating": False,
    }  # fmt: skip
    assert json.loads(Product().plan.snapshot().to_json())["tensorization"]["num_fused_passes"] == 1


@pytest.mark.parametrize("loops", [1, 2])
def test_a_nest_of_parameters_prints(loops: int) -> None:
    sizes = create_parameters(loops)
    nest = Nest(sizes if isinstance(sizes, tuple) else (sizes,))
    assert str(nest).endswith("without logic")
