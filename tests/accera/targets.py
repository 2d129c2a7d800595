"""Accera's targets: GPUs as this library has them, and CPUs, whose plans run on one thread of a GPU."""

from __future__ import annotations

import enum
from types import SimpleNamespace

import tilewright.schedule as ts

AUTO = object()
_HOST = "sm_90a"  # has the most shared memory, in which the caches of a CPU's plans are


class Category(enum.Enum):
    CPU = 1
    GPU = 2


class Runtime(enum.Enum):
    DEFAULT = 0
    VULKAN = 1
    CUDA = 2
    ROCM = 3
    NONE = 4
    OPENMP = 5


MemorySpace = SimpleNamespace(
    NONE=None,
    GLOBAL="GLOBAL",
    SHARED=ts.Location.SHARED,
    PRIVATE=ts.Location.PRIVATE,
    MMA_FRAGMENT=ts.Location.MMA_FRAGMENT,
)


def memory_space(given):
    """Return where a cache is kept, None for the default."""
    return None if given in (None, AUTO, "GLOBAL") else given


class _Models:
    """Names of models: GPUs of the library, and any other name, which is a CPU."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(ts.Target.Model, name, name)

    def __iter__(self):
        return iter(ts.Target.Model)


class Target(ts.Target):
    Model = _Models()
    Category = Category
    Runtime = Runtime
    Architecture = SimpleNamespace(HOST="HOST", ARM="ARM", X86="X86", X86_64="X86_64", AARCH64="AARCH64")
    MemorySpace = MemorySpace

    def __init__(self, known_name="HOST", category=None, architecture=None, runtime=None, name=None, **properties):
        is_gpu = isinstance(known_name, ts.Target.Model) or category is Category.GPU
        if isinstance(known_name, ts.Target.Model):
            super().__init__(known_name)
        elif is_gpu:
            super().__init__("gfx908" if runtime is Runtime.ROCM else "sm_80")
        else:
            super().__init__(_HOST)
        self.category = Category.GPU if is_gpu else Category.CPU
        self.architecture = architecture or Target.Architecture.HOST
        self.properties = properties
        if not is_gpu:
            self.properties = {"vector_bytes": 32, "vector_registers": 16, **properties}  # of a CPU with AVX2
            self.name = name or known_name

    def __getattr__(self, name):
        if name == "max_static_shared_memory_per_block":
            return 48 << 10
        try:
            return self.__dict__["properties"][name]
        except KeyError:
            raise AttributeError(f"a target has no {name}") from None


Target.HOST = Target()
