"""The subsets of the suite: what `slow` changes of a test."""

import pytest
from tests.conftest import SLOW_SECONDS, pytest_collection_modifyitems
from tests.helpers import slow


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


@pytest.mark.parametrize(("factor", "rounds", "seconds"), [(1.0, 300, 20.0), (0.25, 75, 5.0), (1e-9, 1, 2e-8)])
def test_repetitions_of_slow_tests_scale(monkeypatch, factor, rounds, seconds):
    monkeypatch.setattr(slow, "FACTOR", factor)
    assert slow.scaled(300) == slow.slow(300).values[0] == rounds
    assert slow.slow(20.0).values[0] == seconds and [mark.name for mark in slow.slow(1).marks] == ["slow"]
