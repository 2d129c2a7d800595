"""Declare a matrix product as loops, and let threads run through them: C[i, j] += sum over k of A[i, k] * B[k, j].

What is computed is declared once, by a `Nest`: its loops, and the logic at each of their points. How it runs is said
apart from it. A `Schedule` rewrites the loops and a `Plan` says what each becomes on a target; neither can change the
result, and what would is refused. `print(schedule)` shows the loops as they are. Here, after `tile` and `reorder`::

    for i in range(0, 2048, 16):
        for j in range(0, 2048, 16):
            for ii in range(16):
                for jj in range(16):
                    for k in range(2048):
                        C[i + ii, j + jj] += A[i + ii, k] * B[k, j + jj]

- `elements`: the loops over i and j become the blocks of the grid, those over ii and jj the threads of a block, and
  the one that is left, over k, runs in each thread. `cache` keeps the thread's element of C in a register meanwhile.
- `tiles`: a thread computes 4 x 4 elements. For each k it reads 4 elements of A and 4 of B into registers, and uses
  each four times. The elements of B are neighbours, and are read 16 bytes at a time.

Extents need not be multiples of a tile: what lies beyond them does not run. `print(plan)` shows the loops with all
that was said of them, and `kernel.source()` the CUDA C++. With NumPy arrays a kernel runs in the simulator.

Run it: `python examples/schedule/01_threads.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, Location, Nest, Plan, Role, Target


def declare(M: int, N: int, K: int) -> tuple[Nest, Array, Array, Array]:
    """Return the nest of C += A B, and its arrays."""
    A = Array(Role.INPUT, tw.float32, (M, K))
    B = Array(Role.INPUT, tw.float32, (K, N))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    return nest, A, B, C


def elements(M: int, N: int, K: int) -> Plan:
    """Return the plan in which a thread computes one element of C."""
    nest, _, _, C = declare(M, N, K)
    i, j, k = nest.get_indices()
    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 16, j: 16})
    schedule.reorder(i, j, ii, jj, k)

    target = Target()  # this machine's GPU; without one, sm_90a
    unit = target.GridUnit
    plan = schedule.create_plan(target)
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, ii: unit.THREAD_Y, jj: unit.THREAD_X})
    plan.cache(C, index=k, location=Location.PRIVATE)
    return plan


def tiles(M: int, N: int, K: int) -> Plan:
    """Return the plan in which a thread computes 4 x 4 elements of C."""
    nest, A, B, C = declare(M, N, K)
    i, j, k = nest.get_indices()
    schedule = nest.create_schedule()
    i_thread, j_thread = schedule.tile({i: 64, j: 64})
    ii, jj = schedule.tile({i_thread: 4, j_thread: 4})
    schedule.reorder(i, j, i_thread, j_thread, k, ii, jj)

    target = Target()
    unit = target.GridUnit
    plan = schedule.create_plan(target)
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i_thread: unit.THREAD_Y, j_thread: unit.THREAD_X})
    plan.cache(C, index=k, location=Location.PRIVATE)
    for operand in (A, B):
        plan.cache(operand, index=ii, location=Location.PRIVATE)
    plan.kernelize(unroll_indices=[ii], vectorize_indices=jj)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the two cases; the quick extents are not multiples of a tile."""
    extents = (130, 150, 70) if quick else (2048, 2048, 2048)
    return [
        scheduled_case("threads, an element each", elements(*extents).build("elements"), backend),
        scheduled_case("threads, 4 x 4 elements each", tiles(*extents).build("tiles"), backend),
    ]


if __name__ == "__main__":
    main(cases)
