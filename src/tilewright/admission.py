"""Launches whose blocks are on the GPU together: whether they fit, and what is launched.

The blocks of a cluster run at the same time on neighbouring multiprocessors, those of a cooperative launch all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Protocol

from tilewright.errors import DeviceError
from tilewright.ir.core import Kernel
from tilewright.runtime.attributes import COOPERATIVE, DEPENDENT, Attribute, cluster_dimension, configuration
from tilewright.runtime.driver import Function
from tilewright.runtime.launch import LaunchConfig
from tilewright.runtime.options import PORTABLE_CLUSTER, shown_cluster

if TYPE_CHECKING:
    from tilewright.compile import Lowered
    from tilewright.runtime.nvrtc import CompiledModule

Admit = Callable[[Function, LaunchConfig, int], Function]


class Owner(Protocol):
    """A kernel as machine code on one GPU."""

    lowered: Lowered
    function: Function

    def load(self, module: CompiledModule) -> Function:
        """Load machine code of the kernel on the device."""


def attributes_of(kernel: Kernel) -> tuple[Attribute, ...]:
    """Return what the driver is told of every launch of a kernel."""
    clusters = () if prod(kernel.cluster) == 1 else (cluster_dimension(kernel.cluster),)
    dependent = (DEPENDENT,) if kernel.dependent_launch else ()
    return (*((COOPERATIVE,) if kernel.cooperative else ()), *clusters, *dependent)


def admission_of(owner: Owner) -> Admit | None:
    """Return what a launch on a stream asks for its function, None where nothing has to be asked."""
    kernel = owner.lowered.kernel
    cooperative = Cooperative(owner).admit if kernel.cooperative else None
    if prod(kernel.cluster) == 1:
        return cooperative
    clusters = Clusters(attributes_of(kernel)).admit
    if cooperative is None:
        return clusters
    together = cooperative
    return lambda function, config, stream: clusters(together(function, config, stream), config, stream)


def blocks_at_once(function: Function, config: LaunchConfig, attributes: tuple[Attribute, ...] = ()) -> int:
    """Return how many blocks of a launch the whole device holds at once."""
    size = prod(config.cluster)
    if size == 1:
        return function.resident_blocks(prod(config.block), config.shared_bytes)
    if size > PORTABLE_CLUSTER:
        function.allow_large_clusters()
    attributes = attributes or (cluster_dimension(config.cluster),)
    return size * function.active_clusters(configuration(config.head, 0, attributes))


class Clusters:
    """Lets clusters be launched that the device can place."""

    def __init__(self, attributes: tuple[Attribute, ...]) -> None:
        self._attributes = attributes
        self._placed: set[tuple[Function, tuple[int, int, int], int]] = set()

    def admit(self, function: Function, config: LaunchConfig, stream: int) -> Function:
        """Return what is launched; raise `DeviceError` for clusters of which the device cannot place one."""
        key = function, config.block, config.shared_bytes
        if key not in self._placed:
            if not blocks_at_once(function, config, self._attributes):
                raise DeviceError(
                    f"kernel {function.name!r} is launched in {shown_cluster(config.cluster)}, of which this GPU "
                    "cannot place one",
                    details=[
                        f"a block has {prod(config.block)} threads of {function.registers} registers, and "
                        f"{config.shared_bytes} bytes of dynamic shared memory"
                    ],
                    help=f"take clusters of at most {PORTABLE_CLUSTER} blocks, or smaller blocks",
                )
            self._placed.add(key)
        return function


class Cooperative:
    """What cooperative launches of a kernel need: a grid that fits, and machine code of their own on each stream.

    The counter of the grid's barrier is a variable of the loaded code, so launches that may run at the same time have
    one each.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._fitting: dict[tuple[Function, tuple[int, int, int], int], int] = {}
        self._of_streams: dict[tuple[int, bool], Function] = {}

    def admit(self, function: Function, config: LaunchConfig, stream: int) -> Function:
        """Return what is launched on a stream; raise `DeviceError` for a grid that is not on the GPU at once."""
        key = function, config.block, config.shared_bytes
        most = self._fitting.get(key)
        if most is None:
            most = self._fitting[key] = blocks_at_once(function, config)
        blocks = prod(config.grid)
        if blocks > most:
            raise DeviceError(
                f"kernel {function.name!r} is launched cooperatively, and its grid of {blocks} blocks does not fit on "
                "the GPU at once",
                details=[f"of blocks of {prod(config.block)} threads this GPU holds {most}"],
                help="launch fewer blocks, each of which does more: for i in range(block, count, tw.grid_dim.x)",
            )
        owner = self._owner
        is_aliased = function is not owner.function
        found = self._of_streams.get((stream, is_aliased))
        if found is None:
            first = not any(aliased is is_aliased for _, aliased in self._of_streams)
            module = owner.lowered.aliased_module if is_aliased else owner.lowered.module
            found = self._of_streams[stream, is_aliased] = function if first else owner.load(module)
        return found
