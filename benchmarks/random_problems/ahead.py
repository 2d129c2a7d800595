"""Compile what problems will launch, where no GPU is: calls are planned, and each new kernel goes into the store.

The store is the folder of `TILEWRIGHT_CACHE_DIR`. Its keys are of the generated code, the target and NVRTC's build,
so that a folder which one machine filled is used by another one with the same build.
"""

from __future__ import annotations

import threading
from typing import Any

from benchmarks.random_problems.memory import Nowhere
from benchmarks.random_problems.running import Draw, first_taken
from benchmarks.random_problems.trials import Case

from tilewright.arch import default_arch
from tilewright.launch import Launcher, observers
from tilewright.specialise import argument_type


class Compiler:
    """Stands in for launches: what was not met before is traced and compiled, and nothing runs."""

    def __init__(self) -> None:
        self.memory = Nowhere()
        self.known: set[Any] = set()
        self.reads_result = False  # where a result is read too, other code is launched

    def __call__(self, launcher: Launcher, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        kernel = launcher.kernel
        if kernel.takes_any_number:
            launcher = kernel.numbered_for(args)[launcher.grid, launcher.block]
            kernel = launcher.kernel
        values = kernel.complete(args, kwargs)
        types = tuple(
            value if p.is_constexpr else argument_type(p.name, value, is_constexpr=False)
            for p, value in zip(kernel.parameters, values, strict=True)
        )
        key = kernel.__qualname__, launcher.block, tuple(sorted(kernel.options.of_code.items())), types
        for is_aliased in (False, True)[: 1 + self.reads_result]:
            if (*key, is_aliased) not in self.known:
                self.known.add((*key, is_aliased))
                lowered = launcher.lower(*args, arch=default_arch().name, **kwargs)
                _ = lowered.aliased_module if is_aliased else lowered.module
        return True

    def compile(self, family: str, number: int, how: Draw) -> int:
        """Compile the kernels of a problem; return how many of them are new to this process."""
        before = len(self.known)

        def call(case: Case) -> None:
            kind = getattr(case, "product", case).kind  # type: ignore[attr-defined]
            self.reads_result = kind.c is not None and kind.c[1] == "out"
            case.call()

        thread = threading.get_ident()
        observers[thread] = self
        try:
            first_taken(family, number, how, self.memory, call)
        finally:
            observers.pop(thread, None)
        return len(self.known) - before
