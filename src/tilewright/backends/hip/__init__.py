"""Prints a kernel's IR as freestanding HIP C++, for AMD's GPUs."""

from tilewright.backends.hip.dialect import HipSource, generate

__all__ = ["HipSource", "generate"]
