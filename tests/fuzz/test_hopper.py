"""Generated kernels of bulk copies and warpgroup products: the simulator against NumPy, and both against a GPU."""

from __future__ import annotations

from random import Random

import pytest
from tests.conformance.harness import Gpu, Simulator
from tests.fuzz.hopper import write_hopper_program

BATCH = 10


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 13])
def test_one(seed: int) -> None:
    program = write_hopper_program(Random(seed))
    program.assert_agree(("the simulator", "NumPy"), program.run(Simulator()), program.meaning())


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(3))
def test_batches(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        program = write_hopper_program(Random(seed))
        program.assert_agree(("the simulator", "NumPy"), program.run(Simulator()), program.meaning())
        assert program.compile() == "", program


def test_a_seed_gives_one_program() -> None:
    first, second = (write_hopper_program(Random(7)) for _ in range(2))
    assert str(first) == str(second) and (first.expected == second.expected).all()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", range(50))
def test_on_a_gpu(batch: int) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        program = write_hopper_program(Random(seed))
        simulated = program.run(Simulator())
        program.assert_agree(("the simulator", "NumPy"), simulated, program.meaning())
        program.assert_agree(("the simulator", "the GPU"), simulated, program.run(Gpu()))
