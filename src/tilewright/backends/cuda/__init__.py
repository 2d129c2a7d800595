"""Prints a kernel's IR as freestanding CUDA C++."""

from tilewright.backends.cuda.dialect import CudaSource, generate

__all__ = ["CudaSource", "generate"]
