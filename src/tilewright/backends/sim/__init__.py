"""The simulator: executes a kernel's IR in NumPy, all threads of many blocks at once. It defines what ops mean.

From the top down, as the imports run:

    joint          launches of several ranks as one (`tw.simulate(ranks=)`), over groups (the ranks and their threads),
                   ranked (what each brings) and histories (what their earlier launches did)
    execute        arguments in, chunks of consecutive blocks through the program, findings out; the options of a run,
                   and the arrays as they were before a launch, put back where it fails
    predict        shared memory's accesses without a run, as far as they follow from the thread's index
    program        the table of handlers, one for each op class, and a kernel as a list of steps
    linearisation  a kernel whose threads wait for one another, as a list of instructions for agents
    varied         a launch run again in other orders of its agents, and what differs
    interleaving   which agent runs next where a seed gives the order
    agents         sets of threads at one place in the program, the scheduler that runs them, the report of a deadlock
    control        handlers of branches, loops, prints and assertions
    memory         handlers of allocation, loads, stores and atomic updates
    scalars        handlers of the pure ops; what they compute is in floats and integers
    compiler       what a handler needs to compile its op to a step, a closure over slots of values

    checks         the checker of bounds, alignment, initialisation and barriers in divergent code
    races          the race checker, over shadow (who accessed each piece of memory last) and order (happens-before)
    overflow       the checker of address arithmetic, with the ranges of a launch; finite: where NaN and infinity begin
    measure        the meter (wavefronts, sectors, instructions by line) and the timelines; counting: what it keeps

    barriers       named barriers and mbarriers: arrivals and phases
    copies         asynchronous copies under way, and the checker of waits for them
    machine        the launch: special registers, the memory of each buffer, and the observers of what threads do
    findings       what a run found to be wrong, and how an element of memory is called
    aliases        memory that several buffers see: other element types, and buffers that begin at an address
    storage        global, shared and register memory
    values         how a value of all threads is held: a scalar, a row, a column or the whole (blocks, threads)

Race and bank-conflict checkers and profilers are observers (`machine.Observer`). They see each access before it
happens, with its op, the storage, the index of every thread and the mask, and each barrier, wait and allocation.

Bulk copies (TMA) and a warpgroup's matrix instructions (wgmma) are further kinds of pending work beside
`copies.Pending`: computed when issued, landing when an mbarrier's phase completes or their group is waited for.

A kernel without waits at named barriers or mbarriers runs as plain steps, all threads together; only kernels that
have them are laid out for agents, and there only the blocks of ops that can wait.
"""

from tilewright.backends.sim.aliases import reachable
from tilewright.backends.sim.execute import Options, Run, execute, outer_run, running, teller
from tilewright.backends.sim.findings import Finding
from tilewright.backends.sim.groups import Rank, Symmetric, current_rank
from tilewright.backends.sim.joint import run_ranks
from tilewright.backends.sim.predict import predict

__all__ = [
    "Finding",
    "Options",
    "Rank",
    "Run",
    "Symmetric",
    "current_rank",
    "execute",
    "outer_run",
    "predict",
    "reachable",
    "run_ranks",
    "running",
    "teller",
]
