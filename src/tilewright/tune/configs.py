"""One candidate of a tuning: compile-time values, how to launch with them, and what is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.arguments import function, hashable, instance
from tilewright.errors import ArgumentError
from tilewright.launch import Kernel
from tilewright.runtime.options import Options

# Any: arguments of a kernel by name, with the values of the config among them
Meta: TypeAlias = Mapping[str, Any]
Extent: TypeAlias = "int | tuple[int, ...] | Callable[[Meta], int | tuple[int, ...]] | None"

LAUNCH_OPTIONS = ("min_blocks",)


class Config:
    """Values for the parameters of a kernel or of a launching function, by name, and how to launch with them.

    `Config({"BM": 128}, BK=8)` and `Config(BM=128, BK=8)` are the same. `grid` and `block` are what `kernel[grid,
    block]` takes, or functions of all arguments by name, including the values of the config; they apply if the call
    itself gives none. `min_blocks` is that of `kernel.configure`. `pre_hook`, a function of the same names, runs on the
    host before each call with this config.

    Raises `ArgumentError` for a value that cannot be hashed, and for an option that no GPU supports.

    >>> Config({"BM": 128}, BK=8)
    Config(BM=128, BK=8)
    """

    __slots__ = ("_key", "block", "grid", "options", "pre_hook", "values")

    def __init__(
        self,
        values: Meta | None = None,
        *,
        grid: Extent = None,
        block: Extent = None,
        min_blocks: int | None = None,
        pre_hook: Callable[[Meta], object] | None = None,
        **more: Any,  # Any: whatever a kernel takes at compile time
    ) -> None:
        instance("Config", "values", values, (Mapping, type(None)), "a dict of values by name")
        if pre_hook is not None:
            function("Config", "pre_hook", pre_hook)
        self.values: dict[str, Any] = {**(values or {}), **more}
        for name, value in self.values.items():
            if not hashable(value):
                raise ArgumentError(f"the value of {name} in a config has to be hashable, got {value!r}")
        self.grid: Extent = grid
        self.block: Extent = block
        given: dict[str, Any] = {"min_blocks": min_blocks}
        self.options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        try:
            Options(**self.options)
        except ArgumentError as error:
            raise ArgumentError(f"tw.Config: {error.summary}", help=error.help) from None
        self.pre_hook: Callable[[Meta], object] | None = pre_hook
        # 1, 1.0 and True are equal, and kernels made with them are not.
        values_of_types = frozenset((name, type(value), value) for name, value in self.values.items())
        self._key = (values_of_types, grid, block, frozenset(self.options.items()), pre_hook)

    def as_json(self) -> dict[str, Any]:
        """Return the values and options as plain data; what JSON cannot hold as text."""
        plain = {**self.values, **self.options}
        return {name: v if _is_json(v) else repr(v) for name, v in plain.items()}

    def __str__(self) -> str:
        shown = {**self.values, **self.options}
        shown |= {name: e for name, e in (("grid", self.grid), ("block", self.block)) if e and not callable(e)}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items()) or "no values"

    def __repr__(self) -> str:
        return f"Config({'' if str(self) == 'no values' else self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_json(value: object) -> bool:
    """Say whether JSON has a value as it is: it has no infinity, and no NaN."""
    return isinstance(value, (int, str, type(None))) or (isinstance(value, float) and math.isfinite(value))


# Any: arguments of a kernel by name, and what a function returns


@dataclass
class Target:
    """A kernel, or a function that launches kernels, and its name in messages."""

    function: Kernel | Callable[..., Any]
    name: str
    _configured: dict[Config, Kernel] = field(default_factory=dict)

    def launch(self, config: Config, meta: Mapping[str, Any], grid: Extent, block: Extent) -> Any:
        """Launch with a config; what the call says of grid and block counts more than the config."""
        everything = {**meta, **config.values}
        if config.pre_hook is not None:
            config.pre_hook(everything)
        if not isinstance(self.function, Kernel):
            return self.function(**everything)
        extents = self.extents(config, everything, grid, block)
        return self._configure(self.function, config)[extents[0], extents[1]](**everything)

    def extents(self, config: Config, everything: Mapping[str, Any], grid: Extent, block: Extent) -> tuple[Any, Any]:
        """Return grid and block as numbers. Raises `ArgumentError` where nothing says one of them."""
        extents = []
        for what, given, own in (("grid", grid, config.grid), ("block", block, config.block)):
            extent = own if given is None else given
            if extent is None:
                raise ArgumentError(
                    f"{self.name} has no {what} for {config}",
                    help=f"call {self.name}[grid, block](...), or give each tw.Config its {what}",
                )
            extents.append(extent(everything) if callable(extent) else extent)
        return extents[0], extents[1]

    def _configure(self, kernel: Kernel, config: Config) -> Kernel:
        if not config.options:
            return kernel
        found = self._configured.get(config)
        if found is None:
            found = self._configured[config] = kernel.configure(**config.options)
        return found
