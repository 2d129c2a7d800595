"""What `tilewright bench` measures: a module for each of its commands."""

# sgemm         the ladder of matmul kernels, rung by rung, against cuBLAS
# transposing   a transpose against a copy
# multi         products over several ranks, with their communication
# launching     what a launch costs on the host
# compiling     from a Python function to machine code, and from the cache
# simulating    how fast the simulator is
# userfile      a function or a kernel of a user's file
#
# products      matrices, the library's product, and the check of a product
# report        rows of figures: their table, what the simulator counts, what kernels take of the hardware
# files         a report as JSON and as bars, whole files or none

from tilewright.suites.report import Report, Row

__all__ = ["Report", "Row"]
