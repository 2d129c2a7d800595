"""What all tests share: options, a cache folder of their own, and skipping what needs a GPU where there is none."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

_CACHE = "TILEWRIGHT_CACHE_DIR"
_own_folder = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")
    if not pluginmanager.hasplugin("xdist"):  # the options for it in pyproject.toml then mean nothing
        group = parser.getgroup("xdist")
        group._addoption("-n", "--numprocesses", help="needs pytest-xdist")
        group._addoption("--maxprocesses", "--dist", help="needs pytest-xdist")


def pytest_configure(config: pytest.Config) -> None:
    # In the environment and not in a fixture, so that doctests, and programs that tests start, use it too. The
    # workers of xdist inherit the folder of the process that started them.
    if not hasattr(config, "workerinput"):
        config.stash[_own_folder] = Path(tempfile.mkdtemp(prefix="tilewright-test-cache-"))
        os.environ[_CACHE] = str(config.stash[_own_folder])


def pytest_unconfigure(config: pytest.Config) -> None:
    if _own_folder in config.stash:
        shutil.rmtree(config.stash[_own_folder], ignore_errors=True)
        os.environ.pop(_CACHE, None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not _gpu_there():
        pytest.skip("needs an NVIDIA GPU")


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
