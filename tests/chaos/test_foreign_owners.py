"""Owners and modes at random, and entries that others have planted: what they hold is never run."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tests.chaos.processes import compile_all, needs_fork, start, wait
from tests.helpers.cache_process import NOBODY, open_folder
from tests.helpers.slow import slow

from tilewright.runtime.cache import DiskCache
from tilewright.runtime.compiler_log import Resources
from tilewright.runtime.entries import cache_key, pack
from tilewright.runtime.nvrtc import CompiledModule

SOURCES = [f"source {n}" for n in range(5)]
PLANTED = CompiledModule("k", "sm_80", b"planted by another user", "", Resources())


def plant(folder: Path, source: str) -> Path:
    """Write a whole entry under the key of a source, as who knows the source can."""
    key = cache_key(source, "k", "sm_80", ())
    path = folder / key[:2] / f"{key}.cubin"
    if path.is_symlink() or path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(key, PLANTED))
    return path


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners and modes of files")
@pytest.mark.parametrize("rounds", [60, slow(1500)])
def test_planted_entries(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    """Whatever others can do: own entries, entries that all may write, links to entries of theirs."""
    folder, theirs = tmp_path / "cache", tmp_path / "theirs"
    as_root = os.geteuid() == 0
    for n in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(theirs, ignore_errors=True)
        compile_all(DiskCache(folder), SOURCES)
        kind = chance.choice(["owner", "mode", "link", "part", "folder"])
        for source in chance.sample(SOURCES, 3):
            if kind == "owner" and as_root:
                os.chown(plant(folder, source), chance.choice([NOBODY, 1000]), -1)
            elif kind == "link":
                path = plant(theirs, source)
                path.chmod(0o600)
                os.chown(path, NOBODY if as_root else -1, -1)
                target = folder / path.relative_to(theirs)
                target.unlink()
                target.symlink_to(path)
            elif kind == "part":
                part = plant(folder, source).parent
                part.chmod(chance.choice([0o770, 0o707, 0o777, 0o1777]))
            elif kind == "folder":
                plant(folder, source)
                folder.chmod(chance.choice([0o770, 0o707, 0o777, 0o1777]))
            else:
                plant(folder, source).chmod(chance.choice([0o620, 0o602, 0o666, 0o777]))
        assert len(compile_all(DiskCache(folder), SOURCES)) == 1, (n, kind)  # which checks each machine code
        assert len(DiskCache(folder).entries()) >= 0 and DiskCache(folder).clear() >= 0


@needs_fork
@pytest.mark.parametrize("rounds", [8, slow(150)])
def test_two_users_and_one_folder(chance: random.Random, rounds: int) -> None:
    """Root and another user compile in one folder at once, that either of them has made, with any mode."""
    if os.geteuid() != 0:
        pytest.skip("needs root")

    def compile_as(user: int, folder: Path, umask: int) -> None:
        os.umask(umask)
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for _ in range(5):
            assert len(compile_all(DiskCache(folder), SOURCES)) <= 1

    for n in range(rounds):
        with open_folder() as base:
            folder = base / "cache"
            if chance.random() < 0.5:
                folder.mkdir()
                folder.chmod(chance.choice([0o700, 0o755, 0o777, 0o1777]))
                os.chown(folder, chance.choice([0, NOBODY]), 0)
            umask = chance.choice([0, 0o002, 0o022, 0o077])
            children = [start(lambda user=user: compile_as(user, folder, umask)) for user in (0, NOBODY, 0, NOBODY)]
            assert wait(children) == [0] * 4, n
