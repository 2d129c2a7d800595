"""The scheduling layer: declare a loop nest, transform it, say how it runs on a GPU, and get a kernel.

What a kernel computes
    affine, arrays       indices, sizes of the launch, and the arrays that loops access
    expressions          what the logic of a nest computes, recorded; statements finds its sums
    nest                 Nest: loops and the logic inside of them
Schedules: the order of the turns
    loop_nest            the state of a schedule: loops, parts and their conditions
    transforms           what each transform makes of a loop nest; schedule is the class that users call
    dependences          which pairs of accesses an order breaks; parallel the same for loops that run at once
    integers             whether integers exist that satisfy equations and bounds: omega eliminates variables,
                         lattice_search and simplex decide what is left
Plans: where and with what it runs
    targets, mma_shapes  GPUs, and the shapes of their matrix instructions; recipes says how a warp computes one
    plan                 Plan: bindings, caches, vectors, tiles; binding, caches, vectors and tensorization check them
    constants            arrays whose values the kernel holds; temporaries: those that live in caches alone
Kernels: from the plan to the language
    scheduled            ScheduledKernel: a plan as a kernel to call
    emission             loops, parts and statements as calls of the language, while the kernel is traced
    filling, shared_caches, pipelines, write_backs   caches filled, kept in flight, and written back
    fragments, tiles     matrix instructions: fragments loaded, multiplied in passes, finished, stored; sums and
                         held_fragments are the fragments of C, and the operands that a cache keeps
    report, plan_text    what a plan became; a plan as text
Packages: kernels as files
    parameters, delayed  values that are chosen later, and plans that wait for them
    package              Package: sources, binaries, header, manifest and loader
"""

from __future__ import annotations

from tilewright.schedule.affine import Affine, Dimension, Index, create_dimensions
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.expressions import apply, cast, where
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMASchedulingPolicy, MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.package import Package
from tilewright.schedule.parameters import (
    DelayedParameter,
    create_parameter_grid,
    create_parameters,
    get_parameters_from_grid,
)
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.scheduled import ScheduledKernel
from tilewright.schedule.targets import GridUnit, Target

__all__ = [
    "Affine",
    "Array",
    "DelayedParameter",
    "Dimension",
    "GridUnit",
    "Index",
    "Location",
    "MMAFragmentOp",
    "MMASchedulingPolicy",
    "MMAShape",
    "Nest",
    "Package",
    "Plan",
    "Role",
    "Schedule",
    "ScheduledKernel",
    "Strategy",
    "Target",
    "apply",
    "cast",
    "create_dimensions",
    "create_parameter_grid",
    "create_parameters",
    "fuse",
    "get_parameters_from_grid",
    "where",
]
