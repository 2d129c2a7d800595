"""Prints a kernel's IR as freestanding CUDA C++."""

from tilewright.backends.cuda.generate import CudaSource, generate

__all__ = ["CudaSource", "generate"]
