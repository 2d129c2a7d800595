"""Keep tiles of A and B in shared memory, and fill them ahead of their use: C[i, j] += sum over k of A[i, k] * B[k, j].

A block of 16 x 16 threads computes 64 x 64 elements of C, 4 x 4 a thread. All of its threads read the same 64 rows of A
and 64 columns of B, so the plan keeps them in shared memory, for 16 of K at a time::

    plan.cache(A, index=i_thread)

The cache holds what the loops from `i_thread` inwards touch of A: 64 x 16 elements, because loops that are bound to
threads count as inside of a cache that all threads share. The threads fill it together, by accesses as wide as
alignment allows, and the kernel waits where it has to; how it lies in memory is chosen so that neither those who fill
nor those who read it meet in a bank, unless `layout` says otherwise.

With one buffer, filling and multiplying take turns. The other plans fill for the next iterations of `k`:

- `double_buffer=True`: a second buffer fills while the first one is read, and they change places;
- with `double_buffer_location=Location.PRIVATE` the next tile waits in registers, and shared memory holds one;
- `pipeline_stages=3`: a ring of three, two of them under way.

From sm_80 on cp.async fills them all but the third, without registers. `print(plan)` shows each cache at the loop that
fills it.

Run it: `python examples/schedule/02_shared_caches.py`
"""

from typing import Any

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, Location, Nest, Plan, Role, Target

WAYS: dict[str, dict[str, Any]] = {  # Any: options of `Plan.cache`
    "one buffer": {},
    "double buffer": {"double_buffer": True},
    "through registers": {"double_buffer": True, "double_buffer_location": Location.PRIVATE},
    "three stages": {"pipeline_stages": 3},
}


def cached(M: int, N: int, K: int, **options: Any) -> Plan:  # Any: as in WAYS
    """Return the plan of C += A B whose tiles of A and B are kept in shared memory, with `options` of the caches."""
    A = Array(Role.INPUT, tw.float32, (M, K), Array.Layout.LAST_MAJOR)  # by columns
    B = Array(Role.INPUT, tw.float32, (K, N))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    schedule = nest.create_schedule()
    i_thread, j_thread, kk = schedule.tile({i: 64, j: 64, k: 16})
    ii, jj = schedule.tile({i_thread: 4, j_thread: 4})
    schedule.reorder(i, j, k, i_thread, j_thread, kk, ii, jj)

    target = Target()
    unit = target.GridUnit
    plan = schedule.create_plan(target)
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i_thread: unit.THREAD_Y, j_thread: unit.THREAD_X})
    plan.cache(C, index=k, location=Location.PRIVATE)
    for operand in (A, B):
        tile = plan.cache(operand, index=i_thread, **options)
        plan.cache(tile, index=ii, location=Location.PRIVATE)  # 4 elements of the tile, in registers
    plan.kernelize(unroll_indices=[kk, ii], vectorize_indices=jj)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return one case for each way to fill the caches; the quick extents are not multiples of a tile."""
    extents = (132, 100, 70) if quick else (2048, 2048, 2048)
    return [
        scheduled_case(f"shared caches, {name}", cached(*extents, **options).build("cached"), backend)
        for name, options in WAYS.items()
    ]


if __name__ == "__main__":
    main(cases)
