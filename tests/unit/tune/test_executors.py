"""Tunings by workers: threads and processes that run the simulator, and workers made up here that fail in every way."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.unit.tune import remote_kernels as remote

import tilewright as tw
from tilewright.tune.configs import Target
from tilewright.tune.executors import RemoteTuner
from tilewright.tune.sending import receive, send
from tilewright.tune.trials import Call
from tilewright.tune.workers import Job, Report, candidate_of, job_of, work


class Worker(Executor):
    """An executor whose `answer` gets each job, in this process."""

    def __init__(self, answer: Callable[[Job], Report]) -> None:
        self.answer, self.jobs = answer, []

    def submit(self, function, /, *args):
        assert function is work
        job = pickle.loads(args[0])
        self.jobs.append(job)
        future: Future[Report] = Future()
        try:
            future.set_result(self.answer(job))
        except Exception as error:
            future.set_exception(error)
        return future


def arguments() -> tuple[np.ndarray, np.ndarray, float]:
    return np.zeros(70, np.float32), np.arange(70, dtype=np.float32), 2.0


def tuned(configs=remote.CONFIGS, **settings):
    return tw.autotune(configs=configs, progress=False, **settings)(remote.scale)


def here(job: Job) -> Report:
    return work(pickle.dumps(job))


def statuses(tuning: tw.Tuning) -> list[str]:
    by_config = {trial.config: trial.status for trial in tuning.trials}
    return [by_config[config] for config in remote.CONFIGS]


def measured(job: Job, milliseconds: Callable[[int], float], device: str = "A") -> Report:
    """Return the report of a GPU that is not there: candidates take what their block says."""
    times = [milliseconds(candidate.values["BLOCK"]) for candidate in job.candidates]
    best = min(enumerate(times), key=lambda pair: pair[1]) if job.is_final else None
    everything = tuple(range(len(times)))
    group = ({"out": np.zeros(2)}, everything)
    return Report(device, tuple(("ok", time, None) for time in times), (group,), best)


def tuner(executor: Executor, configs: list[tw.Config], **settings) -> tuple[RemoteTuner, Iterator]:
    target, (out, x, factor) = Target(remote.scale, "scale"), arguments()
    meta = {"out": out, "x": x, "factor": factor}
    job = job_of(target, Call("scale", lambda config: None, {"out": out, "x": x}), meta, None, 1.0, 1.0)
    limits = {"budget": None, "workers": None, "progress": False, **settings}
    candidate = lambda config: candidate_of(target, config, meta, remote.blocks, None)  # noqa: E731
    return RemoteTuner(executor, job, candidate, "A", **limits), iter([configs])


TIMED = [tw.Config(BLOCK=b, block=b) for b in (32, 64, 96, 128)]


def test_threads_find_what_this_process_finds() -> None:
    out, x, factor = arguments()
    with ThreadPoolExecutor(2) as pool:
        found = tuned(reference=remote.reference).tune(out, x, factor, grid=remote.blocks, executor=pool)
        assert statuses(found) == ["untimed", "untimed", "wrong", "wrong"]
        alone = tuned(reference=remote.reference).tune(out, x, factor, grid=remote.blocks)
        assert statuses(alone) == statuses(found) and alone.best == found.best
        assert [trial.config for trial in found.trials] == remote.CONFIGS
        # Without a reference, groups of several workers are joined: two against one.
        found = tuned(remote.CONFIGS[:3]).tune(out, x, factor, grid=remote.blocks, executor=pool)
        assert [t.status for t in found.trials if t.config == remote.CONFIGS[2]] == ["wrong"]
        with pytest.raises(tw.TuningError, match="candidates disagree on the result, 2 against 2"):
            tuned().tune(out, x, factor, grid=remote.blocks, executor=pool)
    assert not out.any()  # workers write into copies


def test_a_process_that_dies_takes_one_candidate_with_it() -> None:
    """The pool of the standard library takes no more work then: that is said of what was not tried."""
    configs = [*remote.CONFIGS[:2], tw.Config(BLOCK=96, OFF=0, block=96, pre_hook=remote.die)]
    out, x, factor = arguments()
    with ProcessPoolExecutor(1) as pool:
        found = tuned(configs[:2]).tune(out, x, factor, grid=remote.blocks, executor=pool)
        assert [trial.status for trial in found.trials] == ["untimed"] * 2
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(int).result() == 0
        with pytest.raises(tw.TuningError, match="none of the 1 candidates for scale can be used") as caught:
            tuned(configs[2:]).tune(out, x, factor, grid=remote.blocks, executor=pool)
        assert "its worker died: BrokenProcessPool" in str(caught.value)


def test_candidates_of_a_lost_group_are_tried_alone() -> None:
    def answer(job: Job) -> Report:
        if any(candidate.values["BLOCK"] == 96 for candidate in job.candidates):
            raise RuntimeError("the worker went away")
        return measured(job, float)

    worker = Worker(answer)
    found = tuner(worker, TIMED, workers=1)
    tuning = found[0].run(found[1], 4)
    failed = [trial for trial in tuning.trials if trial.status == "failed"]
    assert [trial.config for trial in failed] == [TIMED[2]] and tuning.best == TIMED[0] and tuning.complete
    assert failed[0].reason == "its worker died: RuntimeError: the worker went away"
    alone = [job for job in worker.jobs if [c.values["BLOCK"] for c in job.candidates] == [96]]
    assert len(alone) == 3


def test_times_of_another_gpu_do_not_count() -> None:
    devices = iter(["B", "A", "B", "A"])
    found = tuner(Worker(lambda job: measured(job, float, next(devices, "A"))), TIMED, workers=2)
    assert found[0].run(found[1], 4).best == TIMED[0]
    found = tuner(Worker(lambda job: measured(job, float, "B")), TIMED)
    with pytest.raises(tw.TuningError) as caught:
        found[0].run(found[1], 4)
    assert "measured on B and not on A" in str(caught.value)


def test_the_best_are_compared_once_more_by_one_worker() -> None:
    times = {32: 1.0, 64: 1.01, 96: 1.02, 128: 9.0}

    def answer(job: Job) -> Report:
        return measured(job, lambda block: -times[block] if job.is_final else times[block])

    worker = Worker(answer)
    found = tuner(worker, TIMED, workers=2)
    tuning = found[0].run(found[1], 4)
    assert [c.values["BLOCK"] for c in worker.jobs[-1].candidates] == [32, 64, 96] and worker.jobs[-1].is_final
    assert tuning.best == TIMED[2] and tuning.milliseconds == -1.02


def test_an_executor_that_takes_no_more_work() -> None:
    class Closing(Worker):
        def submit(self, function, /, *args):
            if len(self.jobs) == 1:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(function, *args)

    found = tuner(Closing(lambda job: measured(job, float)), TIMED, workers=2)
    tuning = found[0].run(found[1], 4)
    assert [trial.status for trial in tuning.trials].count("failed") == 3 and not tuning.complete
    assert any("not tried, as the executor takes no more work: RuntimeError" in (t.reason or "") for t in tuning.trials)


def test_futures_of_another_library_are_refused() -> None:
    class Client:
        def submit(self, function, /, *args):
            return object()

    found = tuner(Client(), TIMED)
    with pytest.raises(tw.ArgumentError, match=r"executor.submit returned a object\n.*\n*.*get_executor"):
        found[0].run(found[1], 4)


def test_a_budget_cancels_what_waits() -> None:
    class Slow(Worker):
        def submit(self, function, /, *args):
            if self.jobs:
                self.waiting = Future()
                return self.waiting
            return super().submit(function, *args)

    worker = Slow(lambda job: measured(job, float))
    found = tuner(worker, TIMED, workers=1, budget=0.0)
    tuning = found[0].run(found[1], 4)
    assert not tuning.complete and tuning.best == TIMED[0] and worker.waiting.cancelled()


def test_what_cannot_be_sent_is_refused_before_anything_runs() -> None:
    out, x, factor = arguments()
    worker = Worker(here)

    @tw.kernel
    def inside(out, x, factor, BLOCK: tw.constexpr, OFF: tw.constexpr = 0):
        out[tw.thread_idx.x] = x[tw.thread_idx.x] * factor

    with pytest.raises(tw.ArgumentError, match="inside, which goes to workers, cannot be pickled"):
        tw.autotune(configs=remote.CONFIGS)(inside).tune(out, x, factor, grid=1, executor=worker)
    with pytest.raises(tw.ArgumentError, match="the reference of scale, which goes to workers, cannot be pickled"):
        tuned(reference=lambda out, x, factor: None).tune(out, x, factor, grid=1, executor=worker)
    with pytest.raises(tw.ArgumentError, match="executor is a int, which has no submit"):
        tuned(executor=4)
    assert worker.jobs == []
    hooked = [tw.Config(BLOCK=32, block=32, pre_hook=lambda meta: None), tw.Config(BLOCK=64, block=64)]
    found = tuned(hooked).tune(out, x, factor, grid=remote.blocks, executor=worker)
    assert [t.status for t in found.trials] == ["failed", "untimed"] and "pre_hook" in (found.trials[0].reason or "")


def test_a_worker_of_another_release_is_an_error() -> None:
    found = tuner(Worker(lambda job: here(Job(**{**vars(job), "version": "0.0.1"}))), TIMED)
    with pytest.raises(tw.ArgumentError, match=r"a worker has Tilewright .*, and 0.0.1 tunes"):
        found[0].run(found[1], 4)


def test_functions_are_found_by_name_or_made_of_their_text() -> None:
    sent = send(remote.launch, "launch")
    assert receive(sent) is remote.launch
    by_text = receive(type(sent)("no.such.module", sent.name, sent.depth, sent.text))
    out, x, factor = arguments()
    by_text(out, x, factor, 32)
    assert by_text is not remote.launch and (out == 2 * x).all()
    # An older copy of the module is passed over.
    changed = type(sent)(sent.module, sent.name, sent.depth, sent.text.replace("x[i] * factor", "x[i] * factor + 1"))
    receive(changed)(out, x, factor, 32)
    assert (out == 2 * x + 1).all()
    with pytest.raises(tw.ArgumentError, match="a worker cannot run the file of launch: ModuleNotFoundError"):
        receive(type(sent)("no.such.module", sent.name, sent.depth, sent.text.replace("import os", "import no_such")))
    with pytest.raises(tw.ArgumentError, match="a worker finds no launch of module 'no.such.module'"):
        receive(type(sent)("no.such.module", sent.name, sent.depth, ""))


SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing, sys
import numpy as np
import tilewright as tw

@tw.autotune(configs=[tw.Config(BLOCK=b, block=b) for b in (32, 64)], progress=False)
@tw.kernel
def scale(out, x, BLOCK: tw.constexpr):
    i = tw.block_idx.x * BLOCK + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = 2 * x[i]

if __name__ == "__main__":
    x = np.ones(70, np.float32)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = scale.tune(np.zeros_like(x), x, grid=lambda meta: -(-70 // meta["BLOCK"]), executor=pool)
    print([trial.status for trial in found.trials])
"""


def test_a_script_tunes_its_own_kernel(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "['untimed', 'untimed']", done.stderr


def test_the_text_of_a_script_is_run_without_its_main_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker on another machine does, whose `__main__` is another program."""
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    sent = type(send(remote.launch, ""))("__main__", "scale", 1, SCRIPT)
    kernel = receive(sent)
    out, x = np.zeros(32, np.float32), np.ones(32, np.float32)
    kernel[1, 32](out, x, 32)
    assert (out == 2).all()
