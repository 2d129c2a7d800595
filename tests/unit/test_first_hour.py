"""The tasks of `docs/first_hour.md`, each with its commands and what must be seen.

Each task is run by the interpreter of the tests, in a folder of its own with all files of the page. The slow test does
the first task as well: it installs a copy of the checkout into a fresh environment, as the page says, and runs the
others there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.pages import DOCS, ROOT, Session, blocks_of, shell_of_this_python, skip_where_it_cannot_run

PAGE = (DOCS / "first_hour.md").read_text(encoding="utf-8")
TASKS = {
    found["title"]: found["text"]
    for found in re.finditer(r"^## (?P<title>\d+\. .+?)$\n(?P<text>.*?)(?=^## |\Z)", PAGE, re.M | re.S)
}
INSTALL = "1. Install"


def is_slow(title: str) -> bool:
    return "<!-- slow -->" in TASKS[title]


def write_files(folder: Path) -> None:
    """Write the files of all tasks to a folder, which is made."""
    folder.mkdir()
    for block in blocks_of(PAGE):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")


def do(title: str, folder: Path, environment: dict[str, str]) -> None:
    assert Session(title, folder, environment).run([block for block in blocks_of(TASKS[title]) if block.file is None])


def test_there_are_thirty_tasks_in_order() -> None:
    assert [int(title.partition(".")[0]) for title in TASKS] == list(range(1, 31))
    assert all("```console\n$ " in text for text in TASKS.values())


@pytest.mark.parametrize(
    "title", [pytest.param(t, marks=pytest.mark.slow if is_slow(t) else ()) for t in TASKS if t != INSTALL]
)
@pytest.mark.spread(4)  # the slow tests do all of them twice, once after an installation
def test_task(title: str, tmp_path: Path) -> None:
    skip_where_it_cannot_run(TASKS[title])
    folder = tmp_path / "hour"
    write_files(folder)
    # A cache of its own: a task clears it.
    do(title, folder, {**shell_of_this_python(tmp_path), "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")})


@pytest.mark.slow
def test_all_of_them_after_the_installation_of_the_page(tmp_path: Path) -> None:
    skip_where_it_cannot_run(TASKS[INSTALL])
    checkout, folder, environment = tmp_path / "checkout", tmp_path / "hour", tmp_path / "environment"
    made = shutil.ignore_patterns(".git", ".venv*", "venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, checkout, ignore=made, symlinks=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    shell = {
        **inherited,
        "PATH": f"{environment / 'bin'}{os.pathsep}{inherited['PATH']}",
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    reached = subprocess.run(
        [environment / "bin" / "pip", "download", "-q", "--no-deps", "-d", tmp_path / "wheels", "hatchling>=1.26"],
        env=shell, capture_output=True,
    )  # fmt: skip
    if reached.returncode != 0:
        pytest.skip("no package index can be reached")
    do(INSTALL, checkout, shell)
    write_files(folder)
    for title in TASKS:
        if title != INSTALL and not is_slow(title):
            do(title, folder, shell)
