"""What all tests share: options, markers, a cache folder of their own, and skipping what needs a GPU without one.

Examples that Hypothesis draws have no time limit of their own, and none is refused because drawing it was slow: both
would depend on what else the machine does. On a build server (`CI` is set) they are the same in every run; elsewhere
they are new ones, and one that fails is printed with what repeats it.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from tests.helpers import covered, slow
from tests.helpers.memory import Garbage
from tests.helpers.reports import OneReport, are_all_needed

_CACHE = "TILEWRIGHT_CACHE_DIR"
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers, and commands fold what they print to it

# What NumPy reads when it is first imported, which is after this; the workers of xdist inherit it. The tests' matrices are
# small, and a second thread of OpenBLAS only spins beside another worker. Of the simulator's notes on large arrays few
# are ever written, and the system would clear two megabytes for each of them: a tenth of the suite's time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")

# What `pytest -m quick` runs: the laws of layouts, generated files, whole messages, and a module for each room.
QUICK = (
    "tests/property/test_layout_laws.py",
    "tests/property/test_fold.py",
    "tests/golden",
    "tests/errors",
    "tests/unit/layout",
    "tests/unit/ir",
    "tests/unit/atoms",
    "tests/unit/tiled",
    "tests/unit/schedule/test_integers.py",
    "tests/unit/test_tensors.py",
    "tests/unit/arch",
    "tests/conformance/test_arithmetic.py",
    "tests/conformance/test_control.py",
    "tests/conformance/test_shared.py",
    "tests/conformance/test_inline_ptx.py",
    "tests/conformance/test_pointers.py",
    "tests/conformance/test_random.py",
    "tests/conformance/test_scalar_instructions.py",
    "tests/conformance/test_structured_arguments.py",
    "tests/conformance/test_tiles_compute.py",
    "tests/conformance/test_variadic.py",
    "src/tilewright/layout",
)

# And some tests of modules that take longer as a whole.
QUICK_TESTS = (
    "tests/conformance/test_between_blocks.py::test_loads_and_stores",
    "tests/conformance/test_collectives.py::test_in_loops",
    "tests/conformance/test_collectives.py::test_sums",
    "tests/conformance/test_guarded_tiles.py::test_reads",
    "tests/property/test_numbers_of_python.py::test_wide_integers_compare_exactly_with_python_numbers",
)

# The limit of a slow test. The longest takes under three minutes on two busy cores.
SLOW_SECONDS = 1800

hypothesis.settings.register_profile(
    "tilewright",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)
hypothesis.settings.register_profile("tilewright-ci", hypothesis.settings.get_profile("tilewright"), derandomize=True)
hypothesis.settings.load_profile("tilewright-ci" if os.environ.get("CI") else "tilewright")

_own_folder = pytest.StashKey[Path]()
_garbage = pytest.StashKey[Garbage]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")
    if not pluginmanager.hasplugin("xdist"):  # the options for it in pyproject.toml then mean nothing
        group = parser.getgroup("xdist")
        group._addoption("-n", "--numprocesses", help="needs pytest-xdist")
        group._addoption("--maxprocesses", "--dist", help="needs pytest-xdist")


def pytest_configure(config: pytest.Config) -> None:
    # In the environment and not in a fixture, so that doctests, and programs that tests start, use it too. The
    # workers of xdist inherit the folder of the process that started them.
    if config.pluginmanager.hasplugin("timeout"):
        from tests.helpers.time_limit import TimeLimit

        config.pluginmanager.register(TimeLimit())
    if hasattr(config, "workerinput") and not are_all_needed(config):
        config.pluginmanager.register(OneReport())
    config.stash[_garbage] = Garbage(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    slow.Random.in_full = config.option.markexpr.strip() == "slow"
    if not hasattr(config, "workerinput"):
        config.stash[_own_folder] = Path(tempfile.mkdtemp(prefix="tilewright-test-"))
        config.stash[_own_folder].chmod(0o711)  # programs that tests start as other users read byte code there
        os.environ[_CACHE] = str(config.stash[_own_folder] / "cache")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the programs that tests start share byte code where the environment forbids to write it beside the sources.

    Without it each compiles all of the library that it imports, which takes longer than most of what they do. It lies
    in this run's own folder. The workers of xdist start before, or they would compile pytest and NumPy for themselves.
    """
    runs_tests = hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None)
    if runs_tests and os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(os.environ[_CACHE]).with_name("bytecode")))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Leave what is collected, half a million objects that stay, to no garbage collector.

    It would look at them over and over: a seventh of the time of the tests after. And have it look less often: what a
    test makes, a kernel's IR for example, is mostly gone by itself when the test ends.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(2_000_000, 20, 1_000_000)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Collect garbage where memory is short. Elsewhere it stays to the end, a twenty-fifth of the suite's time less."""
    found = yield
    item.config.stash[_garbage].tidy(is_file_over=nextitem is None or nextitem.path != item.path)
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_what_is_left_out(items)
    config.stash.setdefault(covered.WRONG, []).extend(covered.mark_what_is_covered(items))
    folders = {config.rootpath / path for path in QUICK}
    # Of each file once: comparing paths for each of the tests takes seconds.
    quick_files = {path: not folders.isdisjoint((path, *path.parents)) for path in {item.path for item in items}}
    for item in items:
        is_quick = quick_files[item.path] or item.nodeid.partition("[")[0] in QUICK_TESTS
        is_slow = item.get_closest_marker("slow") is not None
        if is_quick and not is_slow:
            item.add_marker("quick")
        if is_slow and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))


def mark_what_is_left_out(items: list[pytest.Item]) -> None:
    """Mark as slow the cases of tests with the mark `spread` that are not among those that it keeps.

    Where TILEWRIGHT_SLOW_FACTOR says so, the slow tests run a share of them.
    """
    tests: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("spread")
        if mark is not None and item.get_closest_marker("slow") is None:
            # What runs on a GPU is counted apart: it is skipped where there is none.
            is_on_gpu = item.get_closest_marker("gpu") is not None
            tests.setdefault((item.nodeid.partition("[")[0], is_on_gpu, *mark.args), []).append(item)
    for (_, _, every), cases in tests.items():
        kept = slow.spread([case.callspec.indices for case in cases], every)
        left = [case for n, case in enumerate(cases) if n not in kept]
        run = {id(case) for case in slow.share(left)}
        for case in left:
            case.add_marker("slow")
            if id(case) not in run:
                case.add_marker(pytest.mark.skip(reason="TILEWRIGHT_SLOW_FACTOR leaves it out"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _own_folder in config.stash:
        shutil.rmtree(config.stash[_own_folder], ignore_errors=True)
        os.environ.pop(_CACHE, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not _gpu_there():
        pytest.skip("needs an NVIDIA GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that wants compiled code where there is no compiler: NVRTC is an extra, and macOS has none."""
    try:
        return (yield)
    except Exception as error:
        if type(error).__name__ == "CompileError" and "NVRTC, the CUDA compiler, is not installed" in str(error):
            pytest.skip("needs NVRTC")
        raise


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(_CACHE, str(folder))
    return folder


@cache
def _gpu_there() -> bool:
    from tilewright.runtime import driver

    return driver.device_count() > 0
