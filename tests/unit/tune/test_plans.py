"""Tuning of plans in the simulator, and the estimate that ranks there."""

import json

import numpy as np
import pytest
from tests.unit.schedule.plans import product

from tilewright.arch import find_gpu
from tilewright.errors import ScheduleError, TuningError
from tilewright.schedule.parameters import create_parameter_grid, create_parameters
from tilewright.tune import tune_plan
from tilewright.tune.plans import estimate


def operands(m, n, k):
    random = np.random.default_rng(0)
    return [random.integers(-4, 5, shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n))]


def test_the_best_is_the_right_candidate_of_the_least_estimate():
    tile, depth = create_parameters(2)
    plan, arrays = product(32, 32, 16, tile, depth)
    grid = create_parameter_grid({tile: [4, 8, 64], depth: [2, 8]})
    c, a, b = operands(32, 32, 16)
    before = c.copy()
    found = tune_plan(plan, grid, (c, a, b), args=arrays, progress=False)
    assert np.array_equal(c, before)
    assert {trial.status for trial in found.tuning.trials} == {"untimed", "failed"}
    refused = [trial for trial in found.tuning.trials if trial.status == "failed"]
    assert [trial.config.values["tile"] for trial in refused] == [64, 64]
    assert all("4096 threads" in trial.reason for trial in refused)
    alone = {}
    for choice in grid:
        if choice[tile] != 64:
            names = [x.name for x in arrays]
            made = plan.with_parameters(choice)
            kernel = made.build("mm", [next(x for x in made.arguments if x.name == n) for n in names])
            alone[tuple(choice.values())] = estimate(kernel.analyze(c, a, b), find_gpu("H200"))
    assert {tuple(config.values.values()): s for config, s in found.estimates.items()} == alone
    assert tuple(found.parameters.values()) == min(alone, key=alone.get)
    found.kernel(c, a, b)
    assert np.array_equal(c, before + a @ b)
    assert json.loads(json.dumps(found.as_json()))["estimated_for"] == "H200"
    assert "estimate for H200" in str(found) and "4096 threads" in str(found)


def test_a_candidate_that_the_reference_disagrees_with_is_out():
    def make(p):
        return product(16, 16, p["depth"], 8)  # a depth other than that of the arrays is refused at the launch

    c, a, b = operands(16, 16, 8)
    grid = create_parameter_grid({"depth": [8, 16]})
    found = tune_plan(make, grid, (c, a, b), reference=lambda c, a, b: c.__iadd__(a @ b), progress=False)
    assert found.parameters == {"depth": 8}
    with pytest.raises(TuningError, match="can be used"):
        tune_plan(make, grid, (c, a, b), reference=lambda c, a, b: c.__isub__(a @ b), progress=False)


def test_a_grid_of_which_nothing_can_be_built_is_refused_with_the_reasons():
    tile = create_parameters(1)
    plan, arrays = product(16, 16, 8, tile)
    values = operands(16, 16, 8)
    with pytest.raises(TuningError, match="threads"):
        tune_plan(plan, [{tile: 64}], values, args=arrays, progress=False)
    with pytest.raises(ScheduleError, match="empty"):
        tune_plan(plan, [], values, args=arrays, progress=False)
    with pytest.raises(ScheduleError, match="got 2 arguments"):
        tune_plan(plan, [{tile: 4}], values[:2], args=arrays, progress=False)


def test_the_estimate_grows_with_the_work_and_with_idle_multiprocessors():
    gpu = find_gpu("H200")

    def of(m, tile):
        plan, arrays = product(m, 32, 32, tile)
        return estimate(plan.build("mm", arrays).analyze(), gpu)

    # 4 and 16 blocks of the same work each fit side by side on 132 multiprocessors.
    assert of(16, 8) == pytest.approx(of(64, 8), rel=0.01)
    assert of(2048, 8) > 1.5 * of(1024, 8)
