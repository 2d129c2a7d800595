"""The scheduling layer: declare a loop nest, transform it, say how it runs on a GPU, and get a kernel.

Modules in the order in which they stand on one another: each imports from those above it only.

What a kernel computes
    naming, parameters       the names of what is assigned; values that are chosen later
    values, affine, arrays   values, indices and sizes of the launch, and the arrays that the logic of a nest names
    conditions               If: when statements run
    loop_nest                statements, loops, parts and their conditions: the state of a schedule
    transforms               what each transform makes of a loop nest
    delayed                  loop nests and calls that wait for the values of parameters
    calls                    nests that call functions of packages
    integers                 whether integers exist that satisfy equations and bounds: omega eliminates variables,
                             lattice_search and simplex decide what is left
What a GPU offers
    mma_shapes, recipes      shapes of matrix instructions, and how a warp computes one
    targets, binding         GPUs; loops that their blocks, threads and warps run through
What a plan says
    caches, plan_state       caches, tiles of matrix instructions, and all else that a plan has chosen
What it decides
    dependences              pairs of accesses, and the orders, bindings and vectors that would break them
    cache_placement          at which loops caches are filled, and which of them cannot be
    tensorization            which matrix instructions compute a tile
    validation               what a whole plan has to be
    plan_text                a plan as text and as data
How it becomes a kernel
    scope                    what is known at one point: values, conditions, where elements are
    filling, shared_caches   memory of caches, filled and written back
    fragments, tiles         matrix instructions: fragments read, multiplied in passes, finished, stored
    pipelines                caches in loops, filled before what reads them or ahead of it
    emission                 the walk through the loops, vectors among them, while the kernel is traced
    report                   what a kernel is made of, counted
What users hold
    constants                arrays whose values the kernel holds, at a launch
    scheduled                ScheduledKernel: a plan as a kernel to call
    plan, schedule, nest     Plan, Schedule and Nest, each of which makes the one before it
    functions, headers, manifests, schema, loading, package    kernels as files
"""

from __future__ import annotations

from tilewright.schedule.affine import Affine, Dimension, Index, create_dimensions
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.conditions import If, logical_and, logical_not, logical_or
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
from tilewright.schedule.values import apply, cast, where

_If = If  # Accera calls it so

__all__ = [
    "Affine",
    "Array",
    "DelayedParameter",
    "Dimension",
    "GridUnit",
    "If",
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
    "logical_and",
    "logical_not",
    "logical_or",
    "where",
]
