"""Autotuning: measure the candidates for a kernel's compile-time values, check them, and keep the best on disk."""

# configs       Config: values, grid, block and launch options of one candidate
# space         Space: all combinations of values that constraints allow, and the order in which they are tried
# compiling     compile candidates ahead, in parallel processes
# results       what a tuning finds: times, and which candidates compute the right result
# trials        trace, compile, check and time candidates: one tuning
# keys          what a result holds for: device, source, kind of the arguments
# launching     launch with one config
# sending       functions on their way to another process
# arguments     arguments on their way to another process: arrays with their layout
# workers       what a worker of an executor does: a job, and its report
# executors     one tuning by the workers of an executor
# autotuner     what @tw.autotune makes of a function
# decorator     @tw.autotune
# products      the tuning of one product of matrices
# plans         tune_plan: the best of a grid of parameters for a plan

from tilewright.frames import hiding_all
from tilewright.tune.autotuner import Autotuned
from tilewright.tune.configs import Config
from tilewright.tune.decorator import autotune
from tilewright.tune.plans import PlanTuning, tune_plan
from tilewright.tune.results import Trial, Tuning
from tilewright.tune.space import Space

__all__ = ["Autotuned", "Config", "PlanTuning", "Space", "Trial", "Tuning", "autotune", "tune_plan"]

hiding_all(globals(), __all__)
