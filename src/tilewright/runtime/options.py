"""Launch options beside grid and block, checked when they are given: what no GPU can do is refused there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

from tilewright.arch import ARCHES, Arch
from tilewright.errors import ArgumentError

_MOST_HANDLE = 2**64 - 1
_STREAM_ATTRIBUTES = ("cuda_stream", "ptr", "handle")  # of PyTorch, CuPy and cuda-python


@dataclass(frozen=True)
class Options:
    """Launch options beside grid and block.

    Raises `ArgumentError` for what is not of an option's type, and for what the target cannot do: `arch`, or any target
    where none is given.
    """

    stream: Any = None  # Any: a handle, or a framework's stream object
    min_blocks: int = 0
    arch: str | None = None
    fastmath: bool = False
    cooperative: bool = False
    cluster: Any = 1  # Any: an int or up to three, kept as three
    dependent_launch: bool = False

    @property
    def of_code(self) -> dict[str, Any]:
        """The options beside the target that the code depends on, by the names under which it is lowered."""
        names = ("min_blocks", "fastmath", "cooperative", "cluster", "dependent_launch")
        return {name: getattr(self, name) for name in names}

    def __post_init__(self) -> None:
        target = None if self.arch is None else Arch.parse(self.arch)
        targets = list(ARCHES.values()) if target is None else [target]
        where = "any target" if target is None else target.name
        most_blocks = max(t.blocks_per_multiprocessor for t in targets)
        checked: dict[str, object] = {
            "arch": None if target is None else target.name,
            "min_blocks": checked_int(
                "min_blocks", self.min_blocks, 0, most_blocks, f"blocks on a multiprocessor of {where}"
            ),
            "cluster": checked_cluster(self.cluster, target),
        }
        for name in ("fastmath", "cooperative", "dependent_launch"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} is {shown(getattr(self, name))}; expected True or False")
        if self.stream is not None:
            stream_handle(self.stream)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.dependent_launch:
            global _dependent_launches
            _dependent_launches = True
            if target is not None:
                demand_dependent_launch(target, True)


_dependent_launches = False


def has_dependent_launches() -> bool:
    """Say whether options with `dependent_launch` have been made in this process."""
    return _dependent_launches


def demand_dependent_launch(target: Arch, asked: bool) -> None:
    """Raise `ArgumentError` for a launch that may begin early on a target that has none."""
    if asked and (target.is_amd or target.number < 90):
        raise ArgumentError(
            f"dependent_launch: {target} has no launches that begin early; they need sm_90 or later",
            help="leave dependent_launch= out there",
        )


def configured(options: Options, given: Mapping[str, Any]) -> Options:
    """Return options with some changed by name; raise `ArgumentError` for a name or a value that is none."""
    unknown = [name for name in given if name not in Options.__dataclass_fields__]
    if unknown:
        *names, last = Options.__dataclass_fields__
        raise ArgumentError(f"configure takes {', '.join(names)} and {last}, got {', '.join(unknown)}")
    try:
        return replace(options, **given)
    except ArgumentError as error:
        raise ArgumentError(f"configure: {error.summary}", help=error.help) from None


MOST_IN_CLUSTER = 16  # blocks; more than PORTABLE_CLUSTER not on every GPU
PORTABLE_CLUSTER = 8


def checked_cluster(given: object, target: Arch | None) -> tuple[int, int, int]:
    """Return the blocks of a cluster along x, y and z; raise `ArgumentError` for what the target cannot do."""
    parts = given if isinstance(given, (tuple, list)) else (given,)
    found = [as_int(part) for part in parts]
    extents = [extent for extent in found if extent is not None and extent >= 1]
    if len(extents) != len(parts) or not 1 <= len(parts) <= 3:
        raise ArgumentError(f"cluster is {shown(given)}; expected the number of its blocks, an int or up to three")
    x, y, z = (*extents, 1, 1)[:3]
    if prod(extents) > MOST_IN_CLUSTER:
        raise ArgumentError(
            f"cluster is {shown(given)}, {prod(extents)} blocks; a cluster has at most {MOST_IN_CLUSTER}",
            help=f"every GPU from sm_90 on takes {PORTABLE_CLUSTER}, some take {MOST_IN_CLUSTER}",
        )
    if target is not None:
        demand_clusters(target, (x, y, z))
    return x, y, z


def demand_clusters(target: Arch, cluster: tuple[int, int, int]) -> None:
    """Raise `ArgumentError` for clusters of several blocks on a target that has none."""
    if prod(cluster) > 1 and not target.has_clusters:
        raise ArgumentError(
            f"{target} has no clusters, which need sm_90 or later, and the kernel asks for {shown_cluster(cluster)}",
            help="leave cluster= out there: each block by itself",
        )


def shown_cluster(cluster: tuple[int, int, int]) -> str:
    """Return the extents of a cluster in words.

    >>> shown_cluster((2, 1, 1)), shown_cluster((2, 2, 1))
    ('clusters of 2 blocks', 'clusters of 2 x 2 blocks')
    """
    last = max(n for n, extent in enumerate(cluster) if extent > 1 or n == 0)
    return f"clusters of {' x '.join(map(str, cluster[: last + 1]))} blocks"


def is_simulator_chosen() -> bool:
    """Say whether TILEWRIGHT_BACKEND=sim sends arrays on a GPU to the simulator. Raises `ArgumentError` for others."""
    chosen = os.environ.get("TILEWRIGHT_BACKEND", "")
    if chosen not in ("", "sim"):
        raise ArgumentError(
            f"the environment variable TILEWRIGHT_BACKEND is {chosen!r}",
            help='set it to "sim" to run all kernels on the simulator, or leave it out: arrays then run where they are',
        )
    return chosen == "sim"


def checked_int(name: str, value: object, low: int, high: int, what: str) -> int:
    """Return an option that is an integer of Python or NumPy within bounds; raise `ArgumentError` for anything else.

    A bool is not a number here.
    """
    found = as_int(value)
    if found is None:
        raise ArgumentError(f"{name} is {shown(value)}; expected an int from {low} to {high} ({what})")
    if not low <= found <= high:
        raise ArgumentError(f"{name} is {shown(found)}; expected {low} to {high} ({what})")
    return found


def as_int(value: object) -> int | None:
    """Return an integer of Python or NumPy as an int, None for anything else, bools among them."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]  # refused below
    except TypeError:
        return None


def shown(value: object) -> str:
    """Return a value with its type where that is not plain, and not longer than a line takes."""
    text = ascii(value) if isinstance(value, (int, float, str, tuple, list, type(None))) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def stream_handle(stream: Any) -> int:
    """Return the CUDA handle of a stream: an int, or torch's, CuPy's and cuda-python's objects.

    Raises `ArgumentError` for anything else.
    """
    found = as_int(stream)
    if found is None and not isinstance(stream, (bool, str, bytes)):
        for name in _STREAM_ATTRIBUTES:
            handle = getattr(stream, name, None)
            if handle is not None:
                try:
                    found = int(handle)
                except (TypeError, ValueError):
                    continue
                break
    if found is None:
        got = repr(stream) if isinstance(stream, (bool, str, bytes)) else type(stream).__name__
        raise ArgumentError(f"a stream is a CUDA handle or a framework's stream object, got {got}")
    if not 0 <= found <= _MOST_HANDLE:
        raise ArgumentError(f"a stream's handle is a pointer, got {found}")
    return found
