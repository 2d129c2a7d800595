"""Occupancy against known figures (CUDA occupancy calculator) and its laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.arch import ARCHES, occupancy


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared_bytes", "blocks"),
    [
        ("sm_90a", 256, 32, 0, 8),
        ("sm_90a", 256, 33, 0, 6),  # 40 registers a thread after rounding: 12 warps for each scheduler
        ("sm_90a", 64, 33, 0, 24),
        ("sm_90a", 256, 255, 0, 1),
        ("sm_90a", 1024, 64, 0, 1),
        ("sm_90a", 1024, 65, 0, 0),
        ("sm_90a", 32, 16, 0, 32),
        ("sm_90a", 128, 32, 227 * 1024, 1),
        ("sm_90a", 128, 32, 113 * 1024, 2),
        ("sm_90a", 128, 32, 113 * 1024 + 1, 1),
        ("sm_80", 128, 32, 48 * 1024, 3),
        ("sm_86", 256, 40, 16 * 1024, 5),
        ("sm_75", 256, 64, 32 * 1024, 2),
    ],
)
def test_known(arch: str, threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    assert occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes).blocks == blocks


@given(st.sampled_from(sorted(ARCHES)), st.integers(1, 1024), st.integers(1, 255), st.integers(0, 99 * 1024))
def test_more_of_anything_never_gives_more_blocks(arch: str, threads: int, registers: int, shared_bytes: int) -> None:
    found = occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert 0 <= found.share <= 1 and found.limits
    for more in (
        occupancy(arch, threads=min(threads + 32, 1024), registers=registers, shared_bytes=shared_bytes),
        occupancy(arch, threads=threads, registers=registers + 1, shared_bytes=shared_bytes),
        occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes + 512),
    ):
        assert more.blocks <= found.blocks


def test_a_block_has_threads() -> None:
    with pytest.raises(tw.ArgumentError):
        occupancy("sm_80", threads=0, registers=32, shared_bytes=0)
