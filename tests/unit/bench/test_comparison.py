"""compare: fair turns, ratios with their spread, and wrong candidates refused."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from tests.unit.bench.fake_stopwatch import FakeStopwatch

import tilewright as tw
from tilewright.bench import Race, compare


@pytest.mark.parametrize("flush", [True, False])
def test_ratio_is_baseline_over_own_time(flush: bool) -> None:
    watch = FakeStopwatch()
    runs = {"slow": watch.work("slow", 2.0), "fast": watch.work("fast", 0.5)}
    found = compare(runs, stopwatch=watch, flush=flush)
    assert found.baseline == "slow"
    assert found.ratio("fast").median == pytest.approx(4.0)
    assert found.ratio("slow", to="fast").median == pytest.approx(0.25)
    assert found["fast"].median == pytest.approx(0.5, rel=1e-3)
    assert found.flush_bytes == (watch.flush_bytes if flush else 0)


def test_a_drift_of_the_clock_meets_all_candidates_alike() -> None:
    """The device gets ten times slower while it is measured, and twins stay twins."""
    watch = FakeStopwatch(drift=0.01)
    found = compare(
        {name: watch.work(name, 1.0) for name in "abc"}, rounds=18, batch_ms=5, stopwatch=watch, flush=False
    )
    times = found["a"].milliseconds
    assert max(times) > 3 * min(times)
    for name in "bc":
        ratio = found.ratio(name)
        assert ratio.median == pytest.approx(1.0, abs=0.05) and ratio.low <= 1.0 <= ratio.high


def test_every_candidate_follows_every_other() -> None:
    """What runs behind a hot kernel finds lower clocks: with a fixed or rotating order it would be always the same."""
    names, rounds = "abcd", 40
    found = []
    for _ in range(2):
        watch = FakeStopwatch()
        runs = {name: watch.work(name, 1.0) for name in names}
        race = Race(runs, batch_ms=2, stopwatch=watch, flush=False)
        order: list[str] = []
        for _ in range(rounds):
            race.round(order.append)
        found.append(order)
    assert found[0] == found[1], "the order is the same in each run"
    turns = [found[0][n : n + len(names)] for n in range(0, len(found[0]), len(names))]
    assert all(sorted(turn) == list(names) for turn in turns)
    following = Counter((a, b) for turn in turns for a, b in itertools.pairwise(turn))
    assert len(following) == len(names) * (len(names) - 1)
    assert min(following.values()) > rounds / len(names) / 3


def test_launches_that_the_host_cannot_queue_in_time_run_as_a_graph_or_are_told() -> None:
    captured = FakeStopwatch(can_capture=True)
    found = compare({"f": captured.work("f", 0.001, 0.01)}, stopwatch=captured, flush=False)["f"]
    assert found.captured and not found.host_bound
    assert found.median == pytest.approx(0.001, rel=0.1)
    plain = FakeStopwatch()
    found = compare({"f": plain.work("f", 0.001, 0.01)}, stopwatch=plain, flush=False)["f"]
    assert found.host_bound and not found.captured and found.median > 0.005


def test_short_calls_are_captured_whatever_the_host_takes() -> None:
    """A host that is fast now may be slow in the next round; a long call hides what a launch takes."""
    watch = FakeStopwatch(can_capture=True)
    work = {"short": watch.work("short", 0.05, 0.001), "long": watch.work("long", 2.0, 0.001)}
    found = compare(work, stopwatch=watch, flush=False)
    assert found["short"].captured and not found["long"].captured


def test_results_are_checked_against_a_reference() -> None:
    watch = FakeStopwatch()
    out, want = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)

    def right() -> None:
        out[:] = want

    def nothing() -> None:
        pass

    def slightly_off() -> None:
        out[:] = want * 1.001

    assert compare({"r": right}, reference=want, outputs=out, stopwatch=watch)["r"].error == 0
    for wrong in (nothing, slightly_off):  # `out` holds the right values when `nothing` is called
        right()
        with pytest.raises(tw.CheckError, match="candidate 'w' is wrong"):
            compare({"r": right, "w": wrong}, reference=want, outputs=out, stopwatch=watch)
    assert compare({"w": slightly_off}, reference=want, outputs=out, tolerance=0.01, stopwatch=watch)["w"].error > 0
    with pytest.raises(tw.CheckError):
        compare({"r": right, "w": slightly_off}, reference="r", outputs=out, stopwatch=watch)
    assert compare({"v": lambda: want.copy()}, reference=want, stopwatch=watch)["v"].error == 0


def test_outputs_that_candidates_read_get_their_contents_back() -> None:
    watch = FakeStopwatch()
    out = np.ones(3, np.float32)

    def add() -> None:
        out[:] += 1

    found = compare(
        {"a": add, "b": add}, reference=np.full(3, 2, np.float32), outputs=out, spoiled=False, stopwatch=watch
    )
    assert found["b"].error == 0
    assert (out == 1).all()


def test_json_and_table() -> None:
    watch = FakeStopwatch()
    found = compare({"a": watch.work("a", 1.0), "b": watch.work("b", 2.0)}, rounds=7, stopwatch=watch)
    data = json.loads(json.dumps(found.as_json()))
    assert data["candidates"]["b"]["ratio"]["median"] == pytest.approx(0.5)
    assert data["candidates"]["b"]["ratio"]["confidence"] > 0.95
    assert len(data["candidates"]["a"]["milliseconds"]) == 7
    assert "0.500" in str(found) and "2.0000" in str(found)


def test_refusals() -> None:
    watch = FakeStopwatch()
    run = {"a": watch.work("a", 1.0)}
    with pytest.raises(tw.ArgumentError, match="at least one candidate"):
        compare({}, stopwatch=watch)
    with pytest.raises(tw.ArgumentError, match="the baseline 'b' is not among the candidates: a"):
        compare(run, baseline="b", stopwatch=watch)
    with pytest.raises(tw.ArgumentError, match="gives 0 arrays, the reference has 1"):
        compare(run, reference=np.ones(1), stopwatch=watch)
