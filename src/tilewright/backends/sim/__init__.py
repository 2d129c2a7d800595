"""The simulator: executes a kernel's IR in NumPy, all threads of many blocks at once. It defines what ops mean.

How it is put together:

    execute       arguments in, chunks of consecutive blocks through the program, findings out
    program       the table of handlers, one for each op class: scalars, vectors, memory, atomics, asynchronous,
                  control, warp, matrix, messages
    compiler      what a handler needs to turn its op into a step, a closure over slots of values
    values        how a value of all threads is held: a scalar, a row, a column or the whole (blocks, threads)
    machine       the launch: special registers, the memory of each buffer (storage, registers), copies under way
    observers     the seam for whoever watches: checks (bounds, alignment, initialisation, barriers); waits; races, over
                  regions of memory with their shadow and the order of events
    overflow      and finite: handlers wrapped to watch values, addresses (by ranges) and floats
    agents        threads that wait for one another, by what `waiting` makes of a kernel: it divides them at the
                  `pauses` where they stop, for named_barriers, mbarriers and the barrier of the block; deadlocks

                  measure (wavefronts, sectors, instructions), gathered, narrate (timelines)
    predict       shared memory's accesses without a run, as far as they follow from the thread's index

Where the rest of the hardware goes:

Race and bank-conflict checkers and profilers are observers. They see each access before it happens, with its op,
the storage, the index of every thread and the mask, and each barrier, wait and allocation.

Bulk copies (TMA) and a warpgroup's matrix instructions (wgmma) are further kinds of pending work beside
`copies.Pending`: computed when issued, landing when an mbarrier's phase completes or their group is waited for.

A kernel without waits at named barriers or mbarriers runs as plain steps, all threads together; only kernels that
have them are laid out for agents, and there only the blocks of ops that can wait.
"""

from tilewright.backends.sim.execute import execute
from tilewright.backends.sim.findings import Finding
from tilewright.backends.sim.options import Options, Run, outer_run, running
from tilewright.backends.sim.predict import predict

__all__ = ["Finding", "Options", "Run", "execute", "outer_run", "predict", "running"]
