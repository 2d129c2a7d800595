"""One tuning, candidate by candidate: kernels run on the simulator, and a clock is put beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.bench.fake_stopwatch import FakeStopwatch

import tilewright as tw
from tilewright.tune.configs import Config
from tilewright.tune.space import listed
from tilewright.tune.trials import Call, Tuner


@tw.kernel
def scale(dst, src, factor: tw.constexpr, skip: tw.constexpr):
    """Write factor * src into dst, except for the elements from `skip` on."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < dst.size - skip:
        dst[i] = src[i] * factor


@tw.kernel
def accumulate(total, src, times: tw.constexpr):
    """Add src to total."""
    i = tw.thread_idx.x
    total[i] = total[i] + src[i] * times


def config(name: str, ms: float = 1.0, factor: float = 2.0, skip: int = 0) -> Config:
    return Config(name=name, ms=ms, factor=factor, skip=skip)


class Bench:
    """dst = 2 src by candidates that take the time they say, and are as wrong as they say."""

    def __init__(self, **call: object) -> None:
        self.watch = FakeStopwatch()
        self.src = np.arange(1, 65, dtype=np.float32)
        self.dst = 2 * self.src  # the right result is there before
        self.call = Call("scale", self.launch, {"dst": self.dst, "src": self.src}, **call)  # type: ignore[arg-type]

    def launch(self, c: Config) -> None:
        if c.values["factor"] is None:
            raise tw.LanguageError("this one does not compile")
        scale[2, 32](self.dst, self.src, c.values["factor"], c.values["skip"])
        self.watch.work(c.values["name"], c.values["ms"])()

    def tune(self, *configs: Config, **settings: object):
        return Tuner(self.call, self.watch, progress=False, **settings).run(listed(configs), None)  # type: ignore[arg-type]


def statuses(found) -> dict[str, str]:
    return {trial.config.values["name"]: trial.status for trial in found.trials}


def test_the_fastest_right_one_wins_and_the_rest_is_listed() -> None:
    bench = Bench()
    found = bench.tune(
        config("slow", 3.0), config("fast", 1.0), config("wrong", 0.1, factor=2.5), config("broken", factor=None)
    )
    assert found.best.values["name"] == "fast" and found.milliseconds == pytest.approx(1.0)
    assert statuses(found) == {"slow": "ok", "fast": "ok", "wrong": "wrong", "broken": "failed"}
    reasons = {trial.config.values["name"]: trial.reason for trial in found.trials}
    assert "does not compile" in reasons["broken"] and "dst is off by 0.25" in reasons["wrong"]
    assert "wrong" in str(found) and "best" in str(found)


def test_a_candidate_that_leaves_elements_out_never_wins() -> None:
    """The arrays hold the right result before: only what a run itself writes counts."""
    bench = Bench()
    found = bench.tune(config("lazy", 0.1, skip=1), config("nothing", 0.05, skip=64), config("a"), config("b", 2.0))
    assert found.best.values["name"] == "a"
    assert statuses(found)["lazy"] == statuses(found)["nothing"] == "wrong"


def test_without_a_reference_a_tie_is_an_error_and_with_one_it_is_not() -> None:
    two = config("two"), config("three", 0.5, factor=3.0)
    with pytest.raises(tw.TuningError, match="candidates disagree") as error:
        Bench().tune(*two)
    assert "reference" in str(error.value)
    bench = Bench()

    def reference() -> None:
        bench.dst[:] = bench.src * 3

    bench.call.reference = reference
    found = bench.tune(*two, config("also two", 0.1))
    assert found.best.values["name"] == "three"
    assert statuses(found) == {"two": "wrong", "three": "ok", "also two": "wrong"}


def test_arrays_hold_afterwards_what_they_held_before() -> None:
    bench = Bench()
    bench.dst[:] = 7
    bench.tune(config("a"), config("b"))
    assert (bench.dst == 7).all() and (bench.src == np.arange(1, 65)).all()
    with pytest.raises(tw.TuningError):
        bench.tune(config("a"), config("b", factor=3.0))
    assert (bench.dst == 7).all()


def test_an_output_that_is_read_begins_each_run_with_its_own_contents() -> None:
    watch = FakeStopwatch()
    total, src = np.full(32, 5, np.float32), np.ones(32, np.float32)
    seen = []

    def launch(c: Config) -> None:
        seen.append(float(total[0]))
        accumulate[1, 32](total, src, c.values["times"])
        watch.work("add", 1.0)()

    call = Call("accumulate", launch, {"total": total, "src": src})
    found = Tuner(call, watch, progress=False).run(
        listed([Config(times=1), Config(times=1, n=0), Config(times=2)]), None
    )
    assert found.best.values["times"] == 1
    assert [t.status for t in found.trials] == ["ok", "ok", "wrong"]
    assert set(seen) == {5.0} and (total == 5).all()
    call.reset_to_zero = ["total"]
    seen.clear()
    Tuner(call, watch, progress=False).run(listed([Config(times=1)]), None)
    assert set(seen[1:]) == {0.0} and (total == 5).all()


def test_results_that_are_returned_are_checked() -> None:
    watch = FakeStopwatch()
    src = np.ones(32, np.float32)

    def launch(c: Config) -> np.ndarray:
        watch.work("f", c.values["ms"])()
        return src * c.values["factor"]

    configs = [Config(ms=3, factor=1), Config(ms=2, factor=1), Config(ms=1, factor=4)]
    found = Tuner(Call("f", launch, {"src": src}), watch, progress=False).run(listed(configs), None)
    assert found.best == configs[1]


def test_the_budget_ends_the_search_when_something_is_found() -> None:
    bench = Bench()
    found = bench.tune(config("broken", factor=None), *(config(str(n)) for n in range(30)), budget=0.0)
    assert (not found.complete and statuses(found) == {"broken": "failed", "0": "ok"}) or len(found.trials) < 12


def test_nothing_usable_is_an_error_that_lists_all() -> None:
    with pytest.raises(tw.TuningError, match="none of the 2 candidates for scale can be used") as error:
        Bench().tune(config("a", factor=None), config("b", factor=None))
    assert str(error.value).count("does not compile") == 2


def test_twins_are_decided_by_turns() -> None:
    """Equal candidates while the clock falls: the one that is measured first must not win for that."""
    wins = []
    for order in (("a", "b"), ("b", "a")):
        bench = Bench()
        bench.watch.drift = 3e-4
        times = {"a": 1.0, "b": 0.99}
        wins.append(bench.tune(*(config(name, times[name]) for name in order)).best.values["name"])
    assert wins == ["b", "b"]


def test_on_the_simulator_results_are_checked_and_nothing_is_timed() -> None:
    bench = Bench()
    tuner = Tuner(bench.call, None, progress=False)
    found = tuner.run(listed([config("wrong", 0.1, factor=1.0), config("a", 5.0), config("b", 1.0)]), None)
    assert found.source == "simulated" and found.milliseconds is None
    assert statuses(found) == {"wrong": "wrong", "a": "untimed", "b": "untimed"}
    assert found.best.values["name"] == "a"


def test_a_device_that_is_down_ends_the_tuning() -> None:
    bench = Bench()
    launch = bench.call.launch

    def crash(c: Config) -> None:
        launch(c)
        if c.values["name"] == "crash" and (bench.watch.log[-1:] == ["crash"]) and bench.watch.host > 0:
            bench.watch.synchronize = down  # type: ignore[method-assign]

    def down() -> None:
        raise tw.DeviceError("an illegal memory access was encountered")

    bench.call.launch = crash
    with pytest.raises(tw.TuningError, match="has brought the device down") as error:
        bench.tune(config("a"), config("crash"))
    assert "illegal memory access" in str(error.value) and "simulator" in str(error.value)


def test_an_interrupt_gives_the_arrays_back() -> None:
    bench = Bench()
    launch: Callable[[Config], object] = bench.call.launch
    bench.dst[:] = 9

    def stop(c: Config) -> None:
        launch(c)
        if c.values["name"] == "stop" and bench.watch.log.count("stop") > 1:
            raise KeyboardInterrupt

    bench.call.launch = stop
    with pytest.raises(KeyboardInterrupt):
        bench.tune(config("a"), config("stop"))
    assert (bench.dst == 9).all()
