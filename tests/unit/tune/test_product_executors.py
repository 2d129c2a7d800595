"""`tw.matmul.tune(executor=)`: products tuned by workers, and arguments on their way to them."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.tune import remote_kernels as remote

import tilewright as tw
from tilewright.errors import ArgumentError, TuningError
from tilewright.kernels import winners
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.quantized import quantize
from tilewright.runtime.arrays import describe
from tilewright.runtime.result_store import Store
from tilewright.tune import products
from tilewright.tune.arguments import like, pack
from tilewright.tune.workers import Job, Report, work

RANDOM = np.random.default_rng(3)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def tune(a, b, executor, **options):
    return tw.matmul.tune(a, b, executor=executor, progress=False, **options)


def there(value):
    """Return an argument as a worker gets it."""
    return pickle.loads(pickle.dumps(pack({"x": value}, "a test"))).unpack()["x"]


class Here(Executor):
    """Does each job in this process; `answer` makes its report."""

    def __init__(self, answer=work) -> None:
        self.answer, self.jobs = answer, []

    def submit(self, function, /, *args):
        assert function is work
        self.jobs.append(pickle.loads(args[0]))
        future: Future[Report] = Future()
        try:
            future.set_result(self.answer(args[0]))
        except Exception as error:
            future.set_exception(error)
        return future


def test_processes_find_what_this_process_finds() -> None:
    a, b, out = normal(24, 64)[:, ::2], normal(32, 24), normal(24, 24)
    before = [x.copy() for x in (a, b, out)]
    options = {"out": out, "beta": 2, "bias": normal(24), "most": 2}
    options["epilogue"] = functools.partial(remote.scaled, scale=normal(24, 1))
    with ProcessPoolExecutor(1) as pool:
        found = tune(a, b, pool, **options)
        alone = tw.matmul.tune(a, b, progress=False, **options)
        assert found == alone and [trial.status for trial in found.trials] == ["untimed"] * 2
        for array, kept in zip((a, b, out), before, strict=True):
            np.testing.assert_array_equal(array, kept)
        # One that dies while it traces is lost with its candidates, and says so.
        with pytest.raises(TuningError, match="none of the 2 candidates for tw.matmul can be used") as caught:
            tune(a, b, pool, most=2, epilogue=remote.fatal)
        assert "its worker died: BrokenProcessPool" in str(caught.value)


@pytest.mark.slow
def test_two_tunings_share_an_executor() -> None:
    """And weights that are packed, and further results, go to workers as well."""
    calls = [
        ((normal(16, 32), normal(32, 16)), {"also": [("sum", -1)], "most": 1}),
        ((normal(2, 64, dtype=np.float16), quantize(normal(64, 16, dtype=np.float16), 8, 32)), {"most": 1}),
    ]
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as outside:
        tunings = [outside.submit(tune, *inputs, pool, **options) for inputs, options in calls]
        found = [tuning.result() for tuning in tunings]
    assert [[trial.status for trial in tuning.trials] for tuning in found] == [["untimed"]] * 2


@pytest.mark.slow  # in one process, test_matmul_tune.py has it
def test_candidates_that_fail_and_that_are_wrong_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(24, 32), normal(32, 24)
    explained = tw.matmul.explain(a, b)
    ranked = sorted((c for c in explained.candidates if c.prediction), key=lambda c: c.prediction.us)
    launch = Multistage.launch

    def broken(self, problem, configuration, arch):
        made = launch(self, problem, configuration, arch)
        if configuration == ranked[1].configuration:
            raise ValueError("this one does not compile")
        if configuration != ranked[2].configuration:
            return made

        def wrong(D, A, B, alpha, *rest):
            made.launch(D, A, B, alpha + 1, *rest)

        return SimpleNamespace(**{**vars(made), "launch": wrong, "repeat": lambda arguments: None})

    monkeypatch.setattr(Multistage, "launch", broken)
    found = tune(a, b, Here(), most=4)
    assert [trial.status for trial in found.trials] == ["untimed", "failed", "wrong", "untimed"]
    assert "does not compile" in found.trials[1].reason and "against the reference" in found.trials[2].reason
    monkeypatch.undo()
    np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)  # no candidate's plan is left


def test_what_cannot_be_sent_is_refused_before_anything_runs() -> None:
    a, b = normal(8, 8), normal(8, 8)
    worker = Here()
    for epilogue in (lambda x: x * 2, functools.partial(lambda x, y: x * y, y=2.0)):
        with pytest.raises(ArgumentError, match="the epilogue of tw.matmul.tune, which goes to workers, cannot be"):
            tune(a, b, worker, epilogue=epilogue)
    with pytest.raises(ArgumentError, match="the argument c of tw.matmul.tune cannot be pickled: "):
        pack({"c": sys._getframe()}, "tw.matmul.tune")
    with pytest.raises(ArgumentError, match="executor is a int, which has no submit"):
        tune(a, b, 4)
    assert worker.jobs == []

    class Closed(Here):
        def submit(self, function, /, *args):
            raise RuntimeError("cannot schedule new futures after shutdown")

    with pytest.raises(TuningError, match="the executor takes no more work: RuntimeError"):
        tune(a, b, Closed(), most=2)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """A process whose arrays are on a GPU, as far as a tuning by workers asks."""
    properties = SimpleNamespace(name="NVIDIA Test", driver_version=(13, 0))
    monkeypatch.setattr(winners.driver, "device_properties", lambda ordinal: properties)
    monkeypatch.setattr(products, "_ordinal_of", lambda a: 0)
    monkeypatch.setattr(products, "device_name", lambda arrays: "A")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    winners.forget()
    yield
    winners.forget()


def answer(devices, slow=()):
    """Return the reports of workers whose GPUs are not there, and on which later candidates are faster."""

    def report(data: bytes) -> Report:
        job = pickle.loads(data)
        device = next(devices, "A")
        places = [job.work.order.index(candidate) for candidate in job.candidates]
        times = [1.0 / (1 + place) for place in places]
        best = (times.index(min(times)), min(times)) if job.is_final else None
        return Report(device, tuple(("ok", time, None) for time in times), ((None, tuple(range(len(times)))),), best)

    return report


@pytest.mark.usefixtures("gpu")
def test_the_process_that_asked_stores_what_workers_found() -> None:
    a, b = normal(64, 64), normal(64, 64)
    worker = Here(answer(iter(["B", "A", "B"])))  # those that another GPU has timed are tried once more
    found = tune(a, b, worker, most=4, workers=1)
    assert found.source == "measured" and found.best == found.trials[-1].config and len(found.trials) == 4
    assert {job.device for job in worker.jobs} == {"A"} and not worker.jobs[0].flush
    # Another process finds it, and asks no worker.
    winners.forget()
    again = tune(a, b, None, most=4)
    assert (again.source, again.best, again.milliseconds) == ("stored", found.best, found.milliseconds)
    assert Store().path.is_file()
    with pytest.raises(TuningError, match="measured on B and not on A"):
        tune(a, b, Here(answer(iter("B" * 99))), most=2, force=True)


class Impossible:
    """Work that this process cannot do."""

    def call(self, candidates):
        raise ArgumentError("no kernel does it on this GPU")


def test_a_worker_with_another_gpu_does_not_begin() -> None:
    job = Job("tw.matmul", Impossible(), True, None, 1.0, 1.0)
    assert work(pickle.dumps(replace(job, device="a GPU that is not here"))) == Report(None, (), ())
    with pytest.raises(ArgumentError, match="no kernel does it"):
        work(pickle.dumps(job))


MEMORY = np.arange(5000, dtype=np.float32)
ARRAYS = {
    "columns": MEMORY[:400].reshape(20, 20).T,
    "every other": MEMORY[:400].reshape(20, 20)[1::2, ::3],
    "backwards": MEMORY[:400].reshape(20, 20)[::-1, ::-2],
    "broadcast": np.broadcast_to(MEMORY[:7], (5, 7)),
    "off": MEMORY[1:31].reshape(5, 6),
    "bytes": MEMORY[:4].view(np.uint8)[3:9],
    "bfloat16": MEMORY[:30].reshape(5, 6).astype(tw.bfloat16.numpy),
    "empty": MEMORY[:0].reshape(0, 3),
    "number": MEMORY[3:4].reshape(()),
    "read only": np.frombuffer(bytes(range(16)), np.int8),
}


def kind_of(array):
    info = describe(array)
    return info.specialisation, info.shape, info.strides, info.pointer % 256


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_as_they_lie(name: str) -> None:
    array = ARRAYS[name]
    for made in (there(array), like(array)):
        assert kind_of(made) == kind_of(array)
        assert made.dtype == array.dtype and (made == array).all()
        assert not np.shares_memory(made, array)


def test_arrays_that_share_memory_share_it_there() -> None:
    matrix = normal(6, 8)
    made = pickle.loads(pickle.dumps(pack({"a": matrix, "b": (matrix.T, matrix, matrix[2:])}, "a test"))).unpack()
    transposed, whole, rows = made["b"]
    assert made["a"] is whole and np.shares_memory(whole, transposed) and np.shares_memory(whole, rows)
    for found, expected in zip((whole, transposed, rows), (matrix, matrix.T, matrix[2:]), strict=True):
        np.testing.assert_array_equal(found, expected)
    apart = pack({"a": matrix, "b": matrix.copy()}, "a test").unpack()
    assert not np.shares_memory(apart["a"], apart["b"])


def test_of_large_arrays_a_sample_of_elements_travels() -> None:
    array = (np.arange(1 << 21, dtype=np.int32) % 1000 + 7).reshape(1024, 2048)[:, :2000]
    data = pickle.dumps(pack({"x": array}, "a test"))
    assert array.nbytes > 8_000_000 and len(data) < 1_000_000
    made = pickle.loads(data).unpack()["x"]
    assert kind_of(made) == kind_of(array) and made.min() >= 7 and made.max() < 1007
    assert np.abs(np.bincount((made.reshape(-1) - 7) // 100) / made.size - 0.1).max() < 0.01
    assert not (made[:512] == made[512:]).all()
    np.testing.assert_array_equal(made, pickle.loads(data).unpack()["x"])  # the same for all workers


def test_tensors_arrive_as_they_lie() -> None:
    torch = pytest.importorskip("torch")
    memory = torch.arange(600, dtype=torch.float32)
    parameter = torch.nn.Parameter(memory[1:31].reshape(5, 6))
    for tensor in (memory[:400].reshape(20, 20).T, parameter, memory.bfloat16()[3:].reshape(-1, 3)[::2]):
        made = there(tensor)
        assert type(made) is torch.Tensor and made.dtype == tensor.dtype and torch.equal(made, tensor.detach())
        assert kind_of(made) == kind_of(tensor)
    found = tune(memory[:64].reshape(8, 8), memory[:64].reshape(8, 8).T, Here(), most=1)
    assert [trial.status for trial in found.trials] == ["untimed"]


@pytest.mark.slow
def test_a_script_tunes_by_spawned_processes(tmp_path) -> None:
    """Its epilogue is found by the text of the file, since `__main__` is another module there."""
    import subprocess

    file = tmp_path / "script.py"
    file.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "['untimed', 'untimed']", done.stderr
    assert multiprocessing.active_children() == []


SCRIPT = """
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
import numpy as np
import tilewright as tw

def halved(x):
    return x / 2

if __name__ == "__main__":
    a = np.ones((16, 32), np.float16)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = tw.matmul.tune(a, a.T, most=2, epilogue=halved, executor=pool, progress=False)
    print([trial.status for trial in found.trials])
"""
