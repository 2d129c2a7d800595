"""What this machine can do at most, measured in the same run as what is set against it.

Memory: the faster of a kernel that copies a large array and the driver's own copy. Arithmetic: a kernel of
independent multiply-adds on registers, and beside it the number of units times the clock that was read while it ran.
"""

from __future__ import annotations

import ctypes
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright import atoms
from tilewright import language as lang
from tilewright.bench.device import Gpu, current_stream
from tilewright.bench.machine import Monitor, Sampler
from tilewright.bench.timing import time_runs
from tilewright.errors import CheckError
from tilewright.launch import kernel
from tilewright.layout import Layout
from tilewright.runtime import driver
from tilewright.runtime.memory import DeviceArray
from tilewright.tensors import local_tile
from tilewright.tiled import make_tiled_copy

THREADS = 256
VECTORS = 4  # 16-byte accesses of a thread that are under way at once
TILE = THREADS * 4 * VECTORS
COPY = make_tiled_copy(atoms.UniversalCopy(), Layout(THREADS), Layout(4))

CHAINS = 32  # independent accumulators of a thread: a multiply-add takes 4 cycles, and none may wait for another
UNROLLED = 16  # multiply-adds of each accumulator in one iteration of the loop


@kernel
def copy_stream(dst, src):  # type: ignore[no-untyped-def]  # the arguments of a kernel have no Python types
    """Copy one tile of a long vector, 16 bytes at a time."""
    thread = COPY.get_slice(lang.thread_idx.x)
    block = (lang.block_idx.x,)
    source = thread.partition_S(local_tile(src, (TILE,), block))
    target = thread.partition_D(local_tile(dst, (TILE,), block))
    values = lang.fragment_like(target)
    lang.copy(source, values)
    lang.copy(values, target)


@kernel
def multiply_add(out, factors, iterations):  # type: ignore[no-untyped-def]  # as above
    """Apply x = x factors[0] + factors[1] `iterations * UNROLLED` times to CHAINS numbers a thread; write their sum."""
    sums = lang.registers("float32", CHAINS)
    thread = lang.block_idx.x * lang.block_dim.x + lang.thread_idx.x
    scale, offset = factors[0], factors[1]
    for i in lang.static_range(CHAINS):
        sums[i] = lang.thread_idx.x.to("float32") + float(i)
    for _ in range(iterations):
        for _ in lang.static_range(UNROLLED):
            for i in lang.static_range(CHAINS):
                sums[i] = lang.fma(sums[i], scale, offset)
    total = sums[0]
    for i in lang.static_range(1, CHAINS):
        total = total + sums[i]
    out[thread] = total


@dataclass(frozen=True)
class Ceilings:
    """The most that the machine did: bytes and float32 operations a second, and the SM clock meanwhile.

    `bytes_per_second` counts bytes read plus bytes written. `flops_by_clock` is units times the median clock that was
    read while the multiply-adds ran, None where it cannot be read.
    """

    bytes_per_second: float
    copy_kernel_bytes_per_second: float
    flops_per_second: float
    sm_clock_mhz: float | None
    flops_by_clock: float | None
    power_w: float | None
    matrix_flops_by_clock: dict[str, float] | None

    def flops_of(self, dtype: str) -> float | None:
        """Return the ceiling for products of an element type, None where it was not measured.

        float32 has a measured one; the types of tensor cores are counted by the clock.
        """
        if dtype == "float32":
            return self.flops_per_second
        return (self.matrix_flops_by_clock or {}).get(dtype)

    def as_json(self) -> dict[str, Any]:  # Any: plain data
        return asdict(self)


def measure_ceilings(ordinal: int = 0, copy_bytes: int = 1 << 29) -> Ceilings:
    """Measure the ceilings of one device; takes a few seconds.

    The copy moves `copy_bytes` from one array to another; smaller on a device without room for two of them. Raises
    `DeviceError` without a GPU and `CheckError` where a kernel computed a wrong result.
    """
    by_kernel, by_driver = _bandwidths(ordinal, copy_bytes)
    rate, clock, power = _multiply_add_rate(ordinal)
    properties = driver.device_properties(ordinal)
    units, matrix = properties.arch.fma_per_clock, properties.arch.matrix_flops_per_clock
    cycles = None if clock is None else properties.multiprocessors * clock * 1e6
    return Ceilings(
        bytes_per_second=max(by_kernel, by_driver),
        copy_kernel_bytes_per_second=by_kernel,
        flops_per_second=rate,
        sm_clock_mhz=clock,
        flops_by_clock=None if cycles is None else 2 * units * cycles,
        power_w=power,
        matrix_flops_by_clock=None
        if cycles is None or not matrix
        else {name: flops * cycles for name, flops in matrix.items()},
    )


def _bandwidths(ordinal: int, copy_bytes: int) -> tuple[float, float]:
    copy_bytes = min(copy_bytes, free_bytes(ordinal) // 4)
    count = max(copy_bytes // 4 // TILE, 1) * TILE
    host = np.random.default_rng(0).standard_normal(count, dtype=np.float32)
    source, target = DeviceArray.from_numpy(host, ordinal=ordinal), DeviceArray((count,), ordinal=ordinal)
    launch = copy_stream.configure(stream=current_stream(ordinal))[count // TILE, THREADS].prepare(target, source)
    launch()
    if not np.array_equal(target.numpy(), host):
        raise CheckError("the copy kernel of the ceiling did not copy")

    def by_driver() -> None:
        with driver.device_context(ordinal):
            status = driver.library().cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(target.pointer),
                ctypes.c_uint64(source.pointer),
                ctypes.c_size_t(4 * count),
                ctypes.c_void_p(current_stream(ordinal)),
            )
        driver.check(status, "copying on the device")

    watch = Gpu(ordinal)
    moved = 2 * 4 * count
    times = [time_runs(run, 10, 60, stopwatch=watch).median for run in (launch, by_driver)]
    return moved / times[0] * 1e3, moved / times[1] * 1e3


def _multiply_add_rate(ordinal: int) -> tuple[float, float | None, float | None]:
    blocks = driver.device_properties(ordinal).multiprocessors * 8
    out = DeviceArray((blocks * THREADS,), ordinal=ordinal)
    factors = DeviceArray.from_numpy(np.array([0.5, 1.0], np.float32), ordinal=ordinal)
    iterations = 4096
    launcher = multiply_add.configure(stream=current_stream(ordinal))[blocks, THREADS]
    launch = launcher.prepare(out, factors, iterations)
    with Sampler(Monitor(ordinal)) as samples:
        timing = time_runs(launch, 100, 200, stopwatch=Gpu(ordinal))
    # x = x / 2 + 1 ends at its fixed point 2, whatever it began with.
    if not np.array_equal(out.numpy(), np.full(blocks * THREADS, 2.0 * CHAINS, np.float32)):
        raise CheckError("the multiply-adds of the ceiling gave a wrong sum")
    flops = 2 * blocks * THREADS * CHAINS * UNROLLED * iterations
    clocks = samples.sm_clocks[len(samples.sm_clocks) // 3 :]  # the first readings are of a clock that still rises
    return (
        flops / timing.median * 1e3,
        statistics.median(clocks) if clocks else None,
        statistics.median(samples.powers) if samples.powers else None,
    )


def free_bytes(ordinal: int = 0) -> int:
    """Return the bytes of a device's memory that are free now."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with driver.device_context(ordinal):
        status = driver.library().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    driver.check(status, "asking for free memory")
    return free.value
