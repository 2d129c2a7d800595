"""Launches in clusters: what the driver is told, and what is refused before it is asked."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pytest

import tilewright as tw
from tilewright.admission import Clusters, admission_of, attributes_of
from tilewright.errors import ArgumentError, DeviceError
from tilewright.ir.core import Block, Kernel
from tilewright.runtime import driver
from tilewright.runtime.attributes import Attribute, configuration
from tilewright.runtime.launch import Packer, launch_config


def attributes_at(configuration: int) -> list[tuple[int, ...]]:
    """Read the attributes of a CUlaunchConfig as the driver does: number, and three ints of the value."""
    *_, address, count = struct.unpack("@7IQQI", ctypes.string_at(configuration, 52))
    found = [struct.unpack("@i4x3i52x", ctypes.string_at(address + 72 * n, 72)) for n in range(count)]
    return [(number, *value) for number, *value in found]


def kernel_of(cluster: tuple[int, int, int], cooperative: bool = False) -> Kernel:
    return Kernel("k", (), Block(), cooperative=cooperative, cluster=cluster)


@pytest.mark.parametrize(
    ("cluster", "cooperative", "expected"),
    [
        ((1, 1, 1), False, []),
        ((2, 1, 1), False, [(4, 2, 1, 1)]),
        ((2, 2, 4), True, [(2, 1, 0, 0), (4, 2, 2, 4)]),
    ],
)
def test_the_driver_is_told_of_clusters(
    cluster: tuple[int, int, int], cooperative: bool, expected: list[tuple[int, ...]]
) -> None:
    seen: list[list[tuple[int, ...]]] = []

    def launch(configuration: Any, handle: Any, parameters: Any, extra: Any) -> int:
        seen.append(attributes_at(configuration.value))
        return 0

    function = driver.Function("k", 0, ctypes.c_void_p(1), launch)
    packer = Packer((), (), attributes=attributes_of(kernel_of(cluster, cooperative)))
    config = launch_config((4, 4, 4), 32, 0, cluster)
    packer.bind((), function)(config, 0, ())
    packer.prepare(function, config, 0, ())()
    assert seen == [expected, expected]


def test_any_attributes_follow_one_another() -> None:
    memory = configuration(b"\1" * 28, 9, (Attribute(6, (1,)), Attribute(4, (2, 3, 1))))
    assert attributes_at(ctypes.addressof(memory)) == [(6, 1, 0, 0), (4, 2, 3, 1)]


class Gpu:
    """Answers how many clusters fit, as a loaded kernel."""

    name, registers = "k", 32

    def __init__(self, clusters: int) -> None:
        self.clusters, self.asked, self.large = clusters, 0, 0

    def active_clusters(self, configuration: Any) -> int:
        self.asked += 1
        return self.clusters

    def allow_large_clusters(self) -> None:
        self.large += 1


@pytest.mark.parametrize(("cluster", "is_large"), [((8, 1, 1), False), ((8, 2, 1), True)])
def test_a_cluster_that_cannot_be_placed_is_refused(cluster: tuple[int, int, int], is_large: bool) -> None:
    config = launch_config((16, 2), 1024, 0, cluster)
    gpu: Any = Gpu(1)
    admit = Clusters(attributes_of(kernel_of(cluster))).admit
    assert admit(gpu, config, 0) is admit(gpu, config, 7) is gpu
    assert gpu.asked == 1 and gpu.large == is_large
    gpu = Gpu(0)
    with pytest.raises(DeviceError, match=r"clusters of 8( x 2)? blocks, of which this GPU cannot place one"):
        admit(gpu, config, 0)


def test_a_cooperative_launch_counts_what_clusters_leave_free() -> None:
    gpu: Any = Gpu(3)
    lowered = SimpleNamespace(kernel=kernel_of((4, 1, 1), cooperative=True), module=None)
    owner: Any = SimpleNamespace(lowered=lowered, function=gpu)
    admit = admission_of(owner)
    assert admit is not None and admit(gpu, launch_config(12, 32, 0, (4, 1, 1)), 0) is gpu
    with pytest.raises(DeviceError, match="its grid of 16 blocks does not fit"):
        admit(gpu, launch_config(16, 32, 0, (4, 1, 1)), 0)


@tw.kernel
def nothing(x):
    pass


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (0, "cluster is 0; expected the number of its blocks, an int or up to three"),
        ((2, 1, 1, 1), "expected the number of its blocks"),
        ("2", "cluster is '2'; expected"),
        (True, "cluster is True; expected"),
        (17, "cluster is 17, 17 blocks; a cluster has at most 16"),
        ((4, 4, 2), r"cluster is \(4, 4, 2\), 32 blocks; a cluster has at most 16"),
    ],
)
def test_clusters_that_no_gpu_has(cluster: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        nothing.configure(cluster=cluster)
    with pytest.raises(ArgumentError, match=message):
        tw.kernel(cluster=cluster)


def test_targets_without_clusters_are_refused() -> None:
    spec = tw.spec(tw.float32, (4,))
    for refused in (
        lambda: nothing.configure(cluster=2, arch="sm_80"),
        lambda: nothing.configure(cluster=2).source(spec, arch="gfx942"),
        lambda: nothing.configure(cluster=2).source(spec, arch="sm_89"),
    ):
        with pytest.raises(ArgumentError, match=r"has no clusters, which need sm_90 or later, .*clusters of 2 blocks"):
            refused()
    assert nothing.configure(cluster=1, arch="sm_80").options.cluster == (1, 1, 1)
    assert nothing.configure(cluster=[2, 2]).options.cluster == (2, 2, 1)


@pytest.mark.parametrize(("grid", "cluster", "axis"), [(3, 2, "x"), ((4, 3), (2, 2), "y"), ((2, 2, 5), (1, 1, 4), "z")])
def test_a_cluster_divides_the_grid(grid: Any, cluster: Any, axis: str) -> None:
    import numpy as np

    kernel = nothing.configure(cluster=cluster)
    with pytest.raises(ArgumentError, match=f"blocks in {axis}, and clusters of .* blocks do not divide it"):
        kernel[grid, 32](np.zeros(1, np.float32))
    kernel[(4, 4, 4), 32](np.zeros(1, np.float32))


def test_code_of_another_stream_may_have_large_clusters_too() -> None:
    """What a cooperative launch loads for a second stream is asked for its clusters as the first was."""
    gpus: list[Any] = [Gpu(1), Gpu(1)]
    lowered = SimpleNamespace(kernel=kernel_of((16, 1, 1), cooperative=True), module=None)
    owner: Any = SimpleNamespace(lowered=lowered, function=gpus[0], load=lambda module: gpus[1])
    admit = admission_of(owner)
    assert admit is not None
    config = launch_config(16, 32, 0, (16, 1, 1))
    assert [admit(gpus[0], config, stream) for stream in (0, 1)] == gpus
    assert all(gpu.large for gpu in gpus)
