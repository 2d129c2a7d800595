"""Kernels compiled ahead of time: files that launch them from C, C++, Python and PyTorch, without this library."""

# sizes          extents and numbers that only a launch knows, as a grid's function sees them
# expressions    what a launch computes on the host, as C and as Python
# functions      a kernel with its arguments, compiled for several GPUs
# c_text         the C header and the launcher's source
# python_text    the loaders for Python and PyTorch
# _loader        what the Python loader consists of, beside its tables; written into each package as it is
# package        Package: functions, checked and written

from tilewright.ahead.functions import ExportedFunction
from tilewright.ahead.package import Package
from tilewright.frames import hiding_all

__all__ = ["ExportedFunction", "Package"]

hiding_all(globals(), __all__)
