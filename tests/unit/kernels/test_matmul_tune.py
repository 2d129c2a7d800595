"""`tw.matmul.prepare` and `tw.matmul.tune`, on the simulator, and what planning asks of finds."""

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.errors import ArgumentError, TilewrightError, TuningError
from tilewright.kernels import dispatch, winners
from tilewright.kernels import matmul as matmul_module
from tilewright.kernels.choice import all_candidates, fastest
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage
from tilewright.products import Product
from tilewright.runtime.result_rows import Winner
from tilewright.runtime.result_store import Store

RANDOM = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def same(x, y):
    np.testing.assert_array_equal(x, y)


PRODUCTS = {
    "plain": lambda: ((normal(33, 40), normal(40, 24)), {}),
    "packed": lambda: ((normal(17, 45, dtype=np.float16), normal(45, 19, dtype=np.float16)), {}),
    "splits": lambda: ((normal(16, 4096, dtype=np.float16), normal(4096, 16, dtype=np.float16)), {}),
    "launches": lambda: ((normal(2, 3, 8, 16)[:, ::2], normal(2, 3, 16, 8)[:, ::2]), {}),
    "addends": lambda: (
        (normal(16, 8), normal(8, 16)),
        {"alpha": 2, "beta": -1, "c": normal(16, 16), "bias": normal(16)},
    ),
    "number": lambda: ((normal(16, 8), normal(8, 16)), {"epilogue": lambda acc, scale=3.0: acc * scale}),
    "constant": lambda: ((normal(16, 8), normal(8, 16)), {"epilogue": lambda acc, scale=4.0: acc * math.sqrt(scale)}),
    "scales": lambda: ((normal(16, 8), normal(8, 16)), {"scale_a": normal(16, 1), "scale_b": 0.5}),
    "nothing": lambda: ((normal(0, 8), normal(8, 16)), {}),
}


@pytest.mark.parametrize("name", rest_is_slow(PRODUCTS, "plain", "splits", "launches", "nothing"))
def test_a_prepared_product_is_the_product_of_what_the_arrays_hold_when_it_is_called(name):
    (a, b), options = PRODUCTS[name]()
    out = np.full_like(tw.matmul(a, b, **options), 7)
    product = tw.matmul.prepare(a, b, out=out, **options)
    assert (out == 7).all()  # prepared, not computed
    assert product() is out
    same(out, tw.matmul(a, b, **options))
    a *= -2
    assert product() is out
    same(out, tw.matmul(a, b, **options))


def test_a_prepared_product_makes_its_result_once_and_keeps_its_arrays_alive():
    product = tw.matmul.prepare(np.eye(4, dtype=np.float32), np.full((4, 4), 3, np.float32))
    assert product() is product() is product.out
    assert (product.out == 3).all()


def test_a_prepared_product_has_no_copy_and_refuses_what_the_call_refuses():
    product = tw.matmul.prepare(normal(4, 4), normal(4, 4))
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises((TilewrightError, TypeError), match="prepared for"):
            attempt(product)
    for compute in (tw.matmul, tw.matmul.prepare):
        with pytest.raises(ArgumentError, match="5"):
            compute(normal(4, 4), normal(5, 4))


def test_tuning_on_the_simulator_compares_candidates_and_changes_no_array():
    a, b, out = normal(24, 32), normal(32, 24), normal(24, 24)
    before = [x.copy() for x in (a, b, out)]
    found = tw.matmul.tune(a, b, out=out, beta=2, most=3, progress=False)
    assert found.source == "simulated" and [trial.status for trial in found.trials] == ["untimed"] * 3
    for array, kept in zip((a, b, out), before, strict=True):
        same(array, kept)
    choice = tw.matmul.explain(a, b, out=out, beta=2).choice
    assert found.best.values == {"kernel": choice.family.name, "configuration": str(choice.configuration)}


def test_a_candidate_that_fails_and_one_that_is_wrong_are_left_out(monkeypatch):
    a, b = normal(24, 32), normal(32, 24)
    right, explained = tw.matmul(a, b), tw.matmul.explain(a, b)
    ranked = sorted((c for c in explained.candidates if c.prediction), key=lambda c: c.prediction.us)
    failing, bad = ranked[1].configuration, ranked[2].configuration
    launch = Multistage.launch

    def broken(self, problem, configuration, arch):
        made = launch(self, problem, configuration, arch)
        if configuration == failing:
            raise ValueError("this one does not compile")
        if configuration != bad:
            return made

        def wrong(D, A, B, alpha, *rest):
            made.launch(D, A, B, alpha + 1, *rest)

        return SimpleNamespace(**{**vars(made), "launch": wrong, "repeat": lambda arguments: None})

    monkeypatch.setattr(Multistage, "launch", broken)
    found = tw.matmul.tune(a, b, most=4, progress=False)
    trials = {trial.config.values["configuration"]: trial for trial in found.trials}
    assert [trials[str(c.configuration)].status for c in ranked[:4]] == ["untimed", "failed", "wrong", "untimed"]
    assert "does not compile" in trials[str(failing)].reason
    monkeypatch.undo()
    same(tw.matmul(a, b), right)  # no candidate's plan is left


def test_no_plan_of_a_candidate_is_left_after_tuning(monkeypatch):
    a, b = normal(24, 32), normal(32, 24)
    tw.matmul.tune(a, b, most=2, progress=False)
    planned = []
    plan_call = matmul_module.plan_call
    monkeypatch.setattr(matmul_module, "plan_call", lambda *args: planned.append(args) or plan_call(*args))
    tw.matmul(a, b)
    tw.matmul(a, b)
    assert len(planned) == 1


def test_no_candidate_that_can_be_used_is_an_error(monkeypatch):
    def broken(self, problem, configuration, arch):
        raise ValueError("none compiles")

    a, b = normal(24, 32), normal(32, 24)
    tw.matmul(a, b)
    monkeypatch.setattr(Product, "__call__", lambda self, *args, **kwargs: np.zeros((24, 24), np.float32))
    monkeypatch.setattr(Multistage, "launch", broken)
    monkeypatch.setattr(Product, "prepare", lambda self, *args, **kwargs: broken(self, *args[:2], None))
    with pytest.raises((TuningError, ValueError), match="none compiles"):
        tw.matmul.tune(a, b, most=2, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrong": 1}, "tw.matmul.tune has no argument 'wrong'"),
        ({"arch": "sm_90a"}, "tw.matmul.tune has no argument 'arch'"),
        ({"most": 0}, "most"),
        ({"budget": -1}, "budget"),
        ({"tolerance": "low"}, "tolerance"),
        ({"workers": -1}, "workers"),
        ({"beta": 2}, "neither c nor out"),
    ],
)
def test_tuning_refuses(options, message):
    with pytest.raises(ArgumentError, match=message):
        tw.matmul.tune(normal(4, 4), normal(4, 4), progress=False, **options)


def test_tuning_needs_memory_and_something_to_launch():
    matrix = tw.spec(tw.float32, (64, 64))
    with pytest.raises(ArgumentError, match="no memory"):
        tw.matmul.tune(matrix, matrix)
    with pytest.raises(ArgumentError, match="empty"):
        tw.matmul.tune(normal(0, 4), normal(4, 4))


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """What is asked of a GPU where finds are looked up, and a cache folder without finds."""
    properties = SimpleNamespace(name="NVIDIA Test", driver_version=(13, 0))
    monkeypatch.setattr(winners.driver, "device_properties", lambda ordinal: properties)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    winners.forget()
    yield properties
    winners.forget()


def problem_of(m=4096, **options):
    matrix, other = (tw.spec(tw.bfloat16, shape) for shape in ((m, 4096), (4096, 4096)))
    return tw.matmul.explain(matrix, other, arch="sm_90a", **options).problem


def chosen(problem):
    return dispatch._choose(problem, Machine.of(tw.arch.Arch.parse("sm_90a")), 0)


def another(problem, place=5):
    machine = Machine.of(tw.arch.Arch.parse("sm_90a"))
    candidates = all_candidates(problem, machine)
    legal = sorted((c for c in candidates if c.prediction), key=lambda c: c.prediction.us)
    assert legal[0].prediction.us == fastest(problem, machine, candidates).prediction.us
    return legal[place]


def test_a_find_counts_for_its_problem_and_its_gpu_only(gpu):
    problem = problem_of()
    by_model, found = chosen(problem), another(problem)
    winners.remember(winners.place_of(problem, 0), found)
    assert winners.text_of(chosen(problem)) == winners.text_of(found) != winners.text_of(by_model)
    other = problem_of(m=4097)
    assert winners.text_of(chosen(other)) == winners.text_of(another(other, 0))
    gpu.name = "another"
    assert winners.text_of(chosen(problem)) == winners.text_of(by_model)


def test_a_find_is_not_that_of_the_product_with_further_results(gpu):
    keys = {winners.place_of(problem_of(also=also), 0).key for also in ((), [tw.float32], [("amax", -1)])}
    assert len(keys) == 3


def test_finds_are_kept_for_other_processes(gpu):
    problem = problem_of(m=2048)
    found = another(problem)
    winners.keep(Store(), winners.place_of(problem, 0), found, 0.5, [])
    winners.forget()  # as a new process
    assert winners.text_of(chosen(problem)) == winners.text_of(found)


def test_a_find_that_is_no_candidate_any_more_is_passed_over(gpu):
    problem = problem_of(m=2048)
    Store().put(winners.place_of(problem, 0), Winner("Nowhere: of an older release", 0.1), name="tw.matmul", trials=[])
    assert winners.text_of(chosen(problem)) == winners.text_of(another(problem, 0))


def test_a_store_that_cannot_be_read_is_told_of_once_and_passed_over(gpu):
    problem = problem_of(m=2048)
    Store().path.parent.mkdir(parents=True)
    Store().path.write_bytes(b"no database" * 100)
    with pytest.warns(UserWarning, match="chooses by its model"):
        assert winners.text_of(chosen(problem)) == winners.text_of(another(problem, 0))
    chosen(problem)


def test_without_a_store_nothing_is_written_by_looking(gpu):
    chosen(problem_of())
    assert not Store().path.parent.exists()


def test_every_candidate_has_a_name_of_its_own():
    for options in (
        {},
        {"out_dtype": tw.float32},
        {"epilogue": lambda acc: acc * 2},
        {"scale_a": tw.spec(tw.float32, (4096, 1))},
    ):
        problem = problem_of(**options)
        names = [winners.text_of(c) for c in all_candidates(problem, Machine.of(tw.arch.Arch.parse("sm_90a")))]
        assert len(names) == len(set(names)) > 10


def test_explain_says_that_a_choice_was_found_by_tuning():
    matrix = tw.spec(tw.float16, (64, 64))
    explained = tw.matmul.explain(matrix, matrix)
    assert not explained.is_found and explained.to_dict()["found_by_tuning"] is False
    with winners.forcing(another(explained.problem)):
        found = tw.matmul.explain(matrix, matrix)
    assert found.is_found and "found to be fastest by tw.matmul.tune" in str(found)
    assert "found to be fastest" not in str(explained)


def test_what_comes_with_the_package_is_taken_on_its_gpu(gpu):
    """Each entry names a problem as it is read today, and a kernel that is among its candidates."""
    (device,) = winners._shipped()
    keys = set(winners._shipped()[device])
    gpu.name = device
    assert len(keys) >= 10
    for key in keys:
        _, m, n, k = map(int, key.split(";")[0].split(" x "))
        a, b = tw.spec(tw.bfloat16, (m, k)), tw.spec(tw.bfloat16, (k, n), (1, k))
        problem = tw.matmul.explain(a, b, arch="sm_90a").problem
        assert winners.place_of(problem, 0).key == key
        assert winners.text_of(chosen(problem)) == winners._shipped()[device][key]
