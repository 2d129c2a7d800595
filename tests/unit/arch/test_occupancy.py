"""Occupancy against known figures, against NVIDIA's published rules written out in another way, and its laws."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.arch import ARCHES, Arch, blocks_allowed, find_gpu, occupancy
from tilewright.figures import Compiled, Launch
from tilewright.kernels.model import resident_blocks
from tilewright.profile.bounds import occupancy_of


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
        ("sm_90a", 96, 136, 0, 4),  # 3 warps of 4352 registers in each quarter of 16384; all 65536 would hold 15 warps
        ("sm_90a", 96, 128, 0, 5),  # 4 warps in each quarter
        ("sm_80", 32, 168, 0, 12),
        ("sm_90a", 160, 160, 0, 2),
        ("sm_90a", 128, 32, 227 * 1024, 1),
        ("sm_90a", 128, 32, 113 * 1024, 2),
        ("sm_90a", 128, 32, 113 * 1024 + 1, 1),
        ("sm_80", 128, 32, 48 * 1024, 3),
        ("sm_86", 256, 40, 16 * 1024, 5),
        ("sm_75", 256, 64, 32 * 1024, 2),
        ("sm_70", 128, 32, 32 * 1024, 3),  # nothing is reserved before sm_80
        ("gfx90a", 256, 128, 0, 4),
        ("gfx908", 64, 64, 64 * 1024, 1),
    ],
)
def test_known(arch: str, threads: int, registers: int, shared_bytes: int, blocks: int) -> None:
    assert occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes).blocks == blocks


KERNELS = st.tuples(st.integers(1, 1024), st.integers(1, 255), st.integers(0, 99 * 1024))


@given(st.sampled_from([a for a in ARCHES.values() if not a.is_amd]), KERNELS)
def test_blocks_are_those_that_can_be_placed_one_after_the_other(arch: Arch, kernel: tuple[int, int, int]) -> None:
    """Place blocks as the hardware does: each warp into the partition with most room, until something is used up."""
    threads, registers, shared = kernel
    quarters = [arch.registers_per_multiprocessor // 4] * 4
    of_warp = math.ceil(registers * 32 / 256) * 256
    unit, reserved = (128, 1024) if arch.number >= 80 else (256, 0)
    room, taken = arch.shared_bytes_per_multiprocessor, math.ceil((shared + reserved) / unit) * unit
    slots, blocks = arch.threads_per_multiprocessor // 32, 0
    while (
        blocks < arch.blocks_per_multiprocessor and slots >= math.ceil(threads / 32) and (not shared or room >= taken)
    ):
        for _ in range(math.ceil(threads / 32)):
            quarters[quarters.index(max(quarters))] -= of_warp
        if min(quarters) < 0:
            break
        slots, room, blocks = slots - math.ceil(threads / 32), room - taken, blocks + 1
    assert occupancy(arch, threads=threads, registers=registers, shared_bytes=shared).blocks == blocks


@given(st.sampled_from(sorted(ARCHES)), KERNELS)
def test_more_of_anything_never_gives_more_blocks(arch: str, kernel: tuple[int, int, int]) -> None:
    threads, registers, shared_bytes = kernel
    found = occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert 0 <= found.share <= 1 and found.limits
    for more in (
        occupancy(arch, threads=min(threads + 32, 1024), registers=registers, shared_bytes=shared_bytes),
        occupancy(arch, threads=threads, registers=registers + 1, shared_bytes=shared_bytes),
        occupancy(arch, threads=threads, registers=registers, shared_bytes=shared_bytes + 512),
    ):
        assert more.blocks <= found.blocks


@given(st.sampled_from([32, 64, 96, 128, 256]), st.integers(1, 107), st.integers(0, 99 * 1024))
def test_reports_and_the_model_of_matmul_go_by_the_same_rules(threads: int, sums: int, shared_bytes: int) -> None:
    gpu = find_gpu("A100")
    compiled = Compiled("sm_80", sums, shared_bytes, False)
    launch = Launch("k", (1, 1, 1), (threads, 1, 1), "sm_80", 1, 1, 0, compile=lambda: compiled)
    expected = occupancy(gpu.arch, threads=threads, registers=sums, shared_bytes=shared_bytes).blocks
    assert occupancy_of(launch, gpu).blocks == expected
    registers = min(sums + min(sums, 64) + 40, 255)
    allowed = blocks_allowed(gpu.arch, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert resident_blocks(threads, sums, shared_bytes, gpu.arch) == max(1, min(allowed.values()))


def test_registers_that_nobody_told_limit_nothing() -> None:
    assert "registers" not in blocks_allowed(ARCHES["sm_80"], threads=128, registers=None, shared_bytes=0)


@pytest.mark.parametrize("threads", [0, -32])
def test_a_block_has_threads(threads: int) -> None:
    with pytest.raises(tw.ArgumentError, match="threads is at least 1, got"):
        occupancy("sm_80", threads=threads, registers=32, shared_bytes=0)
