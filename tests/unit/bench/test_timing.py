"""do_bench: what is in the time of a run and what is not, by a device whose clock is known."""

from __future__ import annotations

import statistics

import pytest
from tests.unit.bench.fake_stopwatch import FakeStopwatch

import tilewright as tw
from tilewright.bench.timing import do_bench, summarise, time_runs


@pytest.mark.parametrize("host_ms", [0.001, 0.05, 0.4, 3.0])
def test_the_host_time_of_a_launch_is_not_in_the_time(host_ms: float) -> None:
    watch = FakeStopwatch()
    found = time_runs(watch.work("f", 0.02, host_ms), stopwatch=watch)
    assert not found.host_bound
    assert found.median == pytest.approx(0.02)
    assert found.host_ms == pytest.approx(host_ms)


def test_a_host_that_cannot_be_hidden_is_told() -> None:
    watch = FakeStopwatch()
    found = time_runs(watch.work("f", 0.02, 100.0), stopwatch=watch)
    assert found.host_bound and found.median > 1


def test_warmup_and_rep_are_milliseconds_of_the_whole_loop() -> None:
    watch = FakeStopwatch(flush_ms=0.5)
    few = time_runs(watch.work("f", 0.5), 10, 20, stopwatch=watch)
    assert len(few.milliseconds) == pytest.approx(20, abs=1)
    begin = watch.device
    time_runs(watch.work("f", 0.5), 30, 20, stopwatch=watch)
    assert watch.device - begin == pytest.approx(50, abs=10)  # five probes come on top
    assert len(time_runs(watch.work("f", 500.0), 10, 20, stopwatch=watch).milliseconds) == 1


def test_every_run_is_preceded_by_a_flush_and_setup_comes_before_it() -> None:
    watch = FakeStopwatch()
    setup = watch.work("setup", 5.0)
    found = time_runs(watch.work("f", 0.02), 1, 20, setup=setup, stopwatch=watch)
    assert found.median == pytest.approx(0.02)
    runs = [n for n, what in enumerate(watch.log) if what == "f"]
    assert all(watch.log[n - 1] == "flush" for n in runs[1:])
    before = [max(k for k in range(n) if watch.log[k] not in ("flush",)) for n in runs]
    assert {watch.log[n] for n in before} == {"setup"}


def test_results_as_triton_gives_them() -> None:
    times = [4.0, 1.0, 3.0, 2.0]
    assert summarise(times, None, "min") == 1 and summarise(times, None, "max") == 4
    assert summarise(times, None, "mean") == statistics.mean(times)
    assert summarise(times, None, "median") == 2.5
    assert summarise(times, None, "all") == times
    assert summarise(times, [0.0, 1 / 3, 1.0], "mean") == pytest.approx([1.0, 2.0, 4.0])
    assert summarise(times, (0.5,), "mean") == 2.5


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    def never() -> None:
        raise AssertionError

    with pytest.raises(tw.ArgumentError, match="return_mode is one of min, max, mean, median or all, got 'best'"):
        do_bench(never, return_mode="best")
    with pytest.raises(tw.ArgumentError, match=r"quantiles lie between 0 and 1, got 1\.5"):
        do_bench(never, quantiles=[1.5])
    with pytest.raises(tw.ArgumentError, match="rep, in milliseconds, is more than 0, got 0"):
        time_runs(never, 1, 0, stopwatch=FakeStopwatch())


def test_without_a_gpu_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime import driver

    monkeypatch.setattr(driver, "why_unavailable", lambda: "no driver here")
    with pytest.raises(tw.DeviceError, match="timing needs a GPU") as error:
        do_bench(lambda: None)
    assert "no driver here" in str(error.value) and "simulator" in str(error.value)


def test_kernels_on_the_simulator_are_refused() -> None:
    """Where a GPU is there, arrays on the host would be timed as nothing at all."""
    import numpy as np

    from tilewright.bench.timing import call_on_device

    @tw.kernel
    def one(x):
        x[0] = 1.0

    with pytest.raises(tw.ArgumentError, match="kernel 'one' ran on the simulator, where time means nothing"):
        call_on_device(lambda: one[1, 1](np.zeros(1, np.float32)))
    assert call_on_device(lambda: 3) == 3
