"""Launch what is tuned with one config: a kernel with grid and block, or a function that launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import ArgumentError
from tilewright.launch import Kernel
from tilewright.tune.configs import Config, Extent

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
