"""From a kernel's IR to HIP C++."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.backends.cpp.generate import DeviceSource
from tilewright.backends.cpp.generate import generate as generate_cpp
from tilewright.backends.hip.dialect import Hip
from tilewright.ir.core import Kernel

HipSource = DeviceSource  # HIP C++ has nothing to add to it


def generate(
    kernel: Kernel, arch: Arch | str = "gfx90a", *, line_directives: bool = False, restrict: bool = True
) -> HipSource:
    """Return a kernel as freestanding HIP C++ for one architecture; see `cpp.generate`."""
    target = Arch.parse(arch)
    return generate_cpp(kernel, target, Hip(target), line_directives=line_directives, restrict=restrict)
