"""From a kernel's IR to CUDA C++."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.backends.cpp.generate import DeviceSource
from tilewright.backends.cpp.generate import generate as generate_cpp
from tilewright.backends.cuda.dialect import CUDA
from tilewright.ir.core import Kernel

CudaSource = DeviceSource  # CUDA C++ has nothing to add to it


def generate(
    kernel: Kernel, arch: Arch | str = "sm_90a", *, line_directives: bool = False, restrict: bool = True
) -> CudaSource:
    """Return a kernel as freestanding CUDA C++ for one architecture; see `cpp.generate`."""
    return generate_cpp(kernel, Arch.parse(arch), CUDA, line_directives=line_directives, restrict=restrict)
