"""Faults at random: killed writers, damaged files, full disks, foreign owners, processes that race.

Each test runs for a few rounds in the suite and for many with `pytest -m slow tests/chaos`; TILEWRIGHT_SLOW_FACTOR
multiplies those (0.1: a tenth). Where one fails, its output has the seed: TILEWRIGHT_CHAOS_SEED=<seed> draws the same
faults again (what other processes do meanwhile, it cannot).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from tests.chaos.processes import forget

from tilewright.runtime import nvrtc
from tilewright.runtime.compiler_log import Resources
from tilewright.runtime.nvrtc import CompiledModule


@pytest.fixture
def chance() -> random.Random:
    """The source of the faults. pytest shows the seed with a failure."""
    seed = int(os.environ.get("TILEWRIGHT_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TILEWRIGHT_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler whose machine code is the source, and a process that has neither warned nor kept anything."""

    def compile_cuda(source: str, *, name: str, arch: object, **options: object) -> CompiledModule:
        return CompiledModule(name, str(arch), source.encode(), "a log", Resources(registers=40))

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "a stand-in")
    forget()
    yield
    forget()
