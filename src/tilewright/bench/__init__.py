"""Timing that can be trusted: one function, several compared round by round, and what the machine itself can do.

milliseconds = tw.bench.do_bench(lambda: kernel[grid, block](C, A, B))
print(tw.bench.compare({"mine": mine, "library": library}, baseline="library"))
"""

# device        the stopwatch: events on the current stream, the flush of the L2 cache, CUDA graphs
# timing        do_bench: one function, each run apart; quantiles and the confidence of a median
# race          compare: a batch of every candidate in each round, in another order
# comparison    what a comparison found: times and ratios with their confidence
# checking      what candidates compute: keep, restore, spoil and compare arrays
# machine       what figures depend on: GPU, clocks, power, versions
# ceilings      the most that this machine does: a large copy, and multiply-adds in registers
# occupancy     how many blocks of a kernel fit on a multiprocessor (`tilewright.arch.occupancy`)

from tilewright.arch import Occupancy, occupancy
from tilewright.bench.comparison import Comparison
from tilewright.bench.machine import machine
from tilewright.bench.race import Race, compare
from tilewright.bench.timing import Timing, do_bench, time_runs
from tilewright.frames import hiding_all

__all__ = ["Comparison", "Occupancy", "Race", "Timing", "compare", "do_bench", "machine", "occupancy", "time_runs"]

hiding_all(globals(), __all__)
