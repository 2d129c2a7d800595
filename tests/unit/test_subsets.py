"""The subsets of the suite: what `slow` changes of a test."""

import threading
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import QUICK, QUICK_TESTS, SLOW_SECONDS, mark_what_is_left_out, pytest_collection_modifyitems
from tests.helpers import covered, memory, reports, slow, time_limit


def limit_of(request, *marks):
    """The seconds that a test with these marks may take; None where the suite's own limit holds."""

    def something():
        pass

    for mark in marks:
        something = mark(something)
    item = pytest.Function.from_parent(request.node.parent, name="something", callobj=something)
    pytest_collection_modifyitems(request.config, [item])
    marker = item.get_closest_marker("timeout")
    return None if marker is None else marker.args[0]


def test_a_slow_test_has_a_longer_limit_unless_it_names_one(request):
    assert limit_of(request) is None
    assert limit_of(request, pytest.mark.slow) == SLOW_SECONDS > float(request.config.getini("timeout"))
    assert limit_of(request, pytest.mark.slow, pytest.mark.timeout(7)) == 7


def test_a_test_that_takes_longer_is_ended_and_no_other(request, monkeypatch):
    ended, hung = [], threading.Event()
    monkeypatch.setattr(time_limit, "_EVERY", 0.01)
    monkeypatch.setattr(time_limit, "timeout_timer", lambda *what: (ended.append(what), hung.set()))
    limit, (quick, slow_one) = (
        time_limit.TimeLimit(),
        (SimpleNamespace(timeout=t, method="thread") for t in (600, 0.02)),
    )
    limit.pytest_timeout_set_timer("quick", quick)
    assert not hung.wait(0.1)
    limit.pytest_timeout_cancel_timer("quick")
    limit.pytest_timeout_set_timer("over", slow_one)
    limit.pytest_timeout_cancel_timer("over")
    assert not hung.wait(0.1)
    limit.pytest_timeout_set_timer("hung", slow_one)
    assert hung.wait(60) and ended == [("hung", slow_one)]
    assert limit.pytest_timeout_set_timer("by signal", SimpleNamespace(timeout=1, method="signal")) is None


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ({"setup": True, "call": True, "teardown": True}, ["call"]),
        ({"setup": True, "call": False, "teardown": True}, ["call"]),
        ({"setup": False, "teardown": True}, ["setup"]),
        ({"setup": True, "call": True, "teardown": False}, ["call", "teardown"]),
    ],
)
def test_a_worker_tells_of_a_test_once_and_of_all_that_failed(outcomes, told, monkeypatch):
    found = [SimpleNamespace(when=when, passed=passed) for when, passed in outcomes.items()]
    monkeypatch.setattr(reports, "runtestprotocol", lambda item, log, nextitem: found)
    calls = []
    hooks = {
        f"pytest_runtest_log{what}": lambda what=what, **more: calls.append((what, more))
        for what in ("start", "report", "finish")
    }
    item = SimpleNamespace(ihook=SimpleNamespace(**hooks), nodeid="test", location=("file", 1, "test"))
    assert reports.OneReport().pytest_runtest_protocol(item, None)
    assert [what for what, _ in calls] == ["start", *["report"] * len(told), "finish"]
    assert [more["report"].when for what, more in calls if what == "report"] == told


def test_garbage_stays_only_where_memory_is_plenty(tmp_path):
    assert memory.held_bytes(tmp_path) is None  # the system does not tell
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("1 500 1 1 0 1 0")
    assert memory.held_bytes(tmp_path) == 500 * memory.os.sysconf("SC_PAGE_SIZE")

    def is_short(held, available, total=16, workers=2):
        (tmp_path / "meminfo").write_text(
            f"MemTotal: {total << 20} kB\nMemAvailable: {available << 20} kB\nHugePages_Total: 0\n"
        )
        return memory.is_memory_short(held << 30, workers, tmp_path, tmp_path / "group")

    assert (is_short(1, 12), is_short(1, 7), is_short(5, 12)) == (False, True, True)
    assert (is_short(5, 20, 24), is_short(7, 20, 24), is_short(5, 30, 32)) == (False, True, False)
    assert (is_short(5, 30, 32, workers=4), is_short(7, 12, 16, workers=1)) == (True, False)
    (tmp_path / "group").mkdir()
    for name, text in (("memory.max", "max\n"), ("memory.max", f"{8 << 30}\n")):
        (tmp_path / "group" / name).write_text(text)
        assert (is_short(1, 30, 32), is_short(5, 30, 32)) == (False, text != "max\n")
    (tmp_path / "group" / "memory.max").unlink()
    (tmp_path / "group" / "memory").mkdir()
    (tmp_path / "group" / "memory" / "memory.limit_in_bytes").write_text(f"{8 << 30}\n")
    assert is_short(5, 30, 32)


@pytest.mark.parametrize(
    ("held", "short", "is_file_over", "called"),
    [
        (None, True, False, []),
        (None, True, True, ["collect", "freeze"]),
        (9 << 30, False, False, []),
        (9 << 30, False, True, ["freeze"]),
        (9 << 30, True, False, ["unfreeze", "collect", "freeze"]),
    ],
)
def test_garbage_is_collected_behind_a_test_where_memory_is_short(held, short, is_file_over, called, monkeypatch):
    calls = []
    collector = {name: lambda name=name: calls.append(name) for name in ("unfreeze", "collect", "freeze")}
    monkeypatch.setattr(memory, "gc", SimpleNamespace(**collector))
    monkeypatch.setattr(memory, "held_bytes", lambda: held)
    monkeypatch.setattr(memory, "is_memory_short", lambda held, workers: short)
    garbage = memory.Garbage(2)
    garbage.tidy(is_file_over=is_file_over)
    assert calls == called
    if held is not None:
        garbage.tidy(is_file_over=False)  # no more than before: there is nothing to gain
        assert calls == called


def test_the_suite_keeps_its_limits_by_one_thread(request):
    plugins = request.config.pluginmanager.get_plugins()
    (limit,) = [plugin for plugin in plugins if isinstance(plugin, time_limit.TimeLimit)]
    assert limit._running[1] is request.node
    assert not hasattr(request.node, "cancel_timeout")  # what pytest-timeout leaves at a test that it watches


@pytest.mark.parametrize(("factor", "rounds", "seconds"), [(1.0, 300, 20.0), (0.25, 75, 5.0), (1e-9, 1, 2e-8)])
def test_repetitions_of_slow_tests_scale(monkeypatch, factor, rounds, seconds):
    monkeypatch.setattr(slow, "FACTOR", factor)
    assert slow.scaled(300) == slow.slow(300).values[0] == rounds
    assert slow.slow(20.0).values[0] == seconds and [mark.name for mark in slow.slow(1).marks] == ["slow"]


def test_what_is_quick_exists(request):
    root = Path(request.config.rootpath)
    assert [path for path in QUICK if not (root / path).exists()] == []
    for test in QUICK_TESTS:
        path, name = test.split("::")
        assert f"def {name}(" in (root / path).read_text(encoding="utf-8"), test


def test_what_is_covered_exists_and_what_covers_it_is_run(request):
    if not any("::" in argument for argument in request.config.args):  # whole files
        assert request.config.stash[covered.WRONG] == []


def test_what_is_covered_is_slow_and_its_neighbour_has_to_run(monkeypatch):
    table = {"a.py": {"one": "two", "three[1]": "three[2]"}, "b.py": {"four": "five"}}
    monkeypatch.setattr(covered, "COVERED", table)

    def run(*names, **slow):
        items = [Item(name, {}) for name in names]
        for item, name in zip(items, names, strict=True):
            item.nodeid = name
            if name in slow.get("slow", ()):
                item.add_marker("slow")
        wrong = covered.mark_what_is_covered(items)
        return [item.nodeid for item in items if "slow" in item.marks], wrong

    names = ["a.py::one", "a.py::two", "a.py::three[1]", "a.py::three[2]", "c.py::one"]
    assert run(*names) == (["a.py::one", "a.py::three[1]"], [])
    assert run("a.py::one[x]", *names[1:]) == (["a.py::one[x]", "a.py::three[1]"], [])
    assert run(*names[1:])[1] == ["a.py: one is covered by two"]
    assert run(*names, slow=["a.py::three[2]"])[1] == ["a.py: three[1] is covered by three[2]"]
    assert run(names[0], *names[2:])[1] == ["a.py: one is covered by two"]


def kept(parameters):
    """The values of those that are not slow."""
    return [parameter.values for parameter in parameters if not parameter.marks]


@pytest.mark.parametrize("of", [1, 2, 3])
def test_the_suite_covers_every_combination_of_some_choices(of):
    choices = ["abc", [True, 2, False], [(1, 1), (1, 2)], [None, 0.5]]
    found = slow.covering(*choices, of=of)
    assert [parameter.values for parameter in found] == list(product(*choices))
    for places in combinations(range(4), of):
        met = {tuple(repr(values[n]) for n in places) for values in kept(found)}
        assert met == set(product(*([repr(value) for value in choices[n]] for n in places)))
    assert len(kept(found)) <= len(found) / 2 and all(mark.name == "slow" for x in found for mark in x.marks)


def test_what_is_not_kept_is_slow():
    found = slow.rest_is_slow(["a", "b", "c"], "a", "c")
    assert (found[0], found[1].values, found[2]) == ("a", ("b",), "c")
    assert [mark.name for mark in found[1].marks] == ["slow"]
    with pytest.raises(AssertionError):
        slow.rest_is_slow(["a"], "b")


@pytest.mark.parametrize("every", [2, 3, 4, 6])
@pytest.mark.parametrize("extents", [(1,), (5,), (40,), (3, 8), (2, 1, 9, 4), (50, 2)])
def test_a_spread_has_one_of_so_many_neighbours_and_each_value_that_cases_share(extents, every):
    cases = [{f"p{n}": value for n, value in enumerate(values)} for values in product(*map(range, extents))]
    kept = slow.spread(cases, every)
    assert {0, *([len(cases) - 1] if len(cases) > every else [])} <= kept <= set(range(len(cases)))
    assert all(kept & set(range(start, start + every)) for start in range(0, len(cases), every))
    for name, extent in zip(cases[0], extents, strict=True):
        assert {cases[n][name] for n in kept} == set(range(extent)) or len(cases) == extent
    assert len(kept) <= len(cases) // every + 2 + sum(extents)


def test_of_no_more_cases_than_its_step_a_spread_keeps_the_first_and_what_cases_share():
    assert slow.spread([{"p": 0}, {"p": 1}], 2) == slow.spread([{"p": n} for n in range(5)], 6) == {0}
    assert slow.spread([{"p": p, "q": q} for p in range(2) for q in range(2)], 4) == {0, 3}


def test_a_spread_meets_every_place_of_a_pattern_as_long_as_its_step():
    assert {n % 4 for n in slow.spread([{"p": n} for n in range(16)], 4)} == {0, 1, 2, 3}


class Item:
    """A case of a test, with its marks and which value of each parameter it has."""

    def __init__(self, name, indices, *marks):
        self.nodeid = f"{name}[{'-'.join(map(str, indices.values()))}]"
        self.callspec = SimpleNamespace(indices=indices)
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        mark = getattr(pytest.mark, mark) if isinstance(mark, str) else mark
        self.marks[mark.name] = mark.mark


def test_what_a_spread_leaves_out_is_slow():
    mark, gpu, is_slow = pytest.mark.spread(4).mark, pytest.mark.gpu.mark, pytest.mark.slow.mark
    places = [{"a": a, "b": b} for a, b in product(range(8), range(2))]
    groups = {
        "here": [Item("test", place, mark) for place in places],
        "on a GPU": [Item("test", place, mark, gpu) for place in places],
        "slow anyway": [Item("test", place, mark, is_slow) for place in places],
        "without a mark": [Item("other", place) for place in places],
    }
    mark_what_is_left_out([item for items in zip(*groups.values(), strict=True) for item in items])
    run = {name: [n for n, item in enumerate(items) if "slow" not in item.marks] for name, items in groups.items()}
    assert run["here"] == run["on a GPU"] == sorted(slow.spread(places, 4)) and len(run["here"]) == 8
    assert run["slow anyway"] == [] and run["without a mark"] == list(range(16))


@pytest.mark.parametrize(("factor", "every"), [(2.0, 1), (1.0, 1), (0.25, 4), (0.01, 100)])
def test_the_slow_tests_run_a_share_of_what_a_spread_leaves_out(monkeypatch, factor, every):
    """Of each test one case at least."""
    monkeypatch.setattr(slow, "FACTOR", factor)
    items = [Item("test", {"n": n}, pytest.mark.spread(4).mark) for n in range(60)]
    mark_what_is_left_out(items)
    left = [item for item in items if "slow" in item.marks]
    assert len(left) == 60 - len(slow.spread([{"n": n} for n in range(60)], 4))
    assert [n for n, item in enumerate(left) if "skip" not in item.marks] == list(range(0, len(left), every))
    assert not any("skip" in item.marks for item in items if "slow" not in item.marks)


@pytest.mark.parametrize(("in_full", "count"), [(False, 3), (True, 11)])
def test_random_examples_are_few_in_the_suite_and_all_in_the_slow_tests(monkeypatch, in_full, count):
    monkeypatch.setattr(slow.Random, "in_full", in_full)
    drawn = []

    @slow.examples(3, 11, database=None)
    @given(st.integers(0, 2**60))
    def draw(number):
        drawn.append(number)

    draw()
    assert len(drawn) == count
    assert [mark.name for mark in getattr(draw, "pytestmark", [])] == ["slow"] * in_full
