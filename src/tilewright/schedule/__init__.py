"""The scheduling layer: declare a loop nest, transform it, say how it runs on a GPU, and get a kernel."""

# Modules in the order in which they stand on one another: each imports from those above it only.
#
# What a kernel computes
#     naming, parameters       the names of what is assigned; values that are chosen later
#     memory_spaces, roles     where caches live, Accera's names of element types; what arrays are for
#     values, affine, places   values that the logic computes; indices, sizes of the launch; what of values is a place
#     views, view_kinds        how one array is seen as another; elements, what is read and written of them
#     arrays, scalars          arrays that the logic of a nest names; numbers that a kernel takes or writes
#     conditions               If: when statements run
#     loop_nest                statements, loops, parts and their conditions: the state of a schedule
#     transforms               what each transform makes of a loop nest
#     delayed                  loop nests and calls that wait for the values of parameters
#     calls                    nests that call functions of packages
#     integers                 whether integers exist that satisfy equations and bounds: omega eliminates variables,
#                              lattice_search and simplex decide what is left
# What a GPU offers
#     mma_shapes, recipes      shapes of matrix instructions, and how a warp computes one
#     targets, binding         GPUs; loops that their blocks, threads and warps run through
#     factors                  A and B of the sum in a tile, as elements or computed
# What a plan says
#     dependences, private     pairs of accesses that meet; TEMP arrays that each point of a nest has for itself
#     orders, crossings        the orders and vectors that would break dependences, and what threads wait for
#     caches, plan_state       caches, tiles of matrix instructions, and all else that a plan has chosen
# What it decides
#     bulk                     which caches TMA can fill
#     cache_placement          at which loops caches are filled, and which of them cannot be
#     tensorization            which matrix instructions compute a tile
#     lanes                    which iterations of vectorized loops run at once, and the order of the loops then
#     beginnings               TEMP arrays that are read before they are written, and those that the launch allocates
#     warpgroup_rules          what warpgroups, TMA and a producer ask of a plan
#     validation, bounds       what a whole plan has to be; accesses that would leave their arrays
#     plan_text                a plan as text and as data
# How it becomes a kernel
#     scope                    what is known at one point: values, conditions, where elements are
#     filling, shared_caches   memory of caches, filled and written back
#     edges                    tiles across the ends of loops: which elements of a fragment are there
#     fragments, tiles         matrix instructions: fragments read, multiplied in passes, finished, stored
#     register_operands        A in the registers from which a warpgroup multiplies
#     warpgroups               tiles that a warpgroup multiplies
#     bulk_results             results that leave through shared memory by TMA
#     rings                    caches that TMA fills: mbarriers, who copies and who waits
#     pipelines                caches in loops, filled before what reads them or ahead of it
#     vectors                  statements for all lanes of vectorized loops at once, and reductions over them
#     warpgroup_choice         products C += A * B that a nest computes; the tile of one of warpgroups, by a model
#     heuristics               what `plan.auto` chooses; Accera calls it `algorithms`
#     emission                 the walk through the loops while the kernel is traced
#     report                   what a kernel is made of, counted
# What users hold
#     constants                arrays whose values the kernel holds, at a launch
#     scheduled                ScheduledKernel: a plan as a kernel to call
#     plan, schedule, nest     Plan, Schedule and Nest, each of which makes the one before it
#     functions, headers, manifests, schema, loading, package    kernels as files

from tilewright.frames import hide_methods, hiding_all
from tilewright.schedule import heuristics as algorithms  # the name of Accera
from tilewright.schedule.affine import Affine, Dimension, Index, create_dimensions
from tilewright.schedule.arrays import AllocateFlags, Array, Load, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.conditions import If, logical_and, logical_not, logical_or
from tilewright.schedule.memory_spaces import AUTO, ScalarType
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
from tilewright.schedule.scalars import Scalar
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.scheduled import ScheduledKernel
from tilewright.schedule.targets import GridUnit, Target
from tilewright.schedule.values import apply, cast, where

_If = If  # Accera calls it so

# Accera's names of the same things.
GridUnits = GridUnit
CacheStrategy = Strategy
MemorySpace = Location
LoopIndex = Index

__all__ = [
    "AUTO",
    "Affine",
    "AllocateFlags",
    "Array",
    "CacheStrategy",
    "DelayedParameter",
    "Dimension",
    "GridUnit",
    "GridUnits",
    "If",
    "Index",
    "Location",
    "LoopIndex",
    "MMAFragmentOp",
    "MMASchedulingPolicy",
    "MMAShape",
    "MemorySpace",
    "Nest",
    "Package",
    "Plan",
    "Role",
    "Scalar",
    "ScalarType",
    "Schedule",
    "ScheduledKernel",
    "Strategy",
    "Target",
    "algorithms",
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

hiding_all(globals(), __all__)
hide_methods(Load)  # A[i, j], and with it what is computed from elements
