"""Reduce rows: their sums, and softmax, in which one reduction needs the result of another.

A loop of a reduction cannot be bound: threads that add to one element at the same time lose sums, and `bind` refuses
it. So a thread takes a row. By itself that is bad for memory, because neighbouring threads then read elements that are
a whole row apart. A cache in shared memory mends it: the threads of a block bring the next columns of 32 rows together,
along the rows, and each reads its own row from there. The strides (33, 1), for 32 columns, put the elements that the 32
threads of a warp read at once in 32 different banks.

- `sums`: S[i, p] = sum over c of X[i, width * p + c], the sums of parts of rows, as many columns each; one part gives
  those of whole rows. Three tiles of 32 columns are under way while one is added up, and sums stay in registers.
- Few long rows keep few threads busy. Their parts are summed at the same time, p bound to blocks, and then the sums of
  the parts by a second kernel of the same nest. What is a part is said by an affine place; the rows stay as they are.
- `softmax`: X = exp(X - max) / sum of exp(X - max) along rows, in place. The four nests share the loop over rows. With
  the fusing index inside of it, a thread runs them one after the other on its row: maximum and sum are TEMP and live in
  its registers, and the row is in shared memory from the first reading to the last writing.

Run it: `python examples/schedule/11_reduction.py`
"""

import math

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.schedule import Array, Location, Nest, Plan, Role, Target, fuse

ROWS = 32  # of a block: a warp


def sums(rows: int, parts: int, width: int) -> Plan:
    """Return the plan of the sums of parts of rows."""
    X = Array(Role.INPUT, tw.float32, (rows, parts * width))
    S = Array(Role.OUTPUT, tw.float32, (rows, parts))

    begin = Nest((rows, parts))
    i, p = begin.get_indices()

    @begin.iteration_logic
    def _():
        S[i, p] = 0.0

    add = Nest((rows, parts, width))
    i, p, c = add.get_indices()

    @add.iteration_logic
    def _():
        S[i, p] += X[i, width * p + c]

    schedule = fuse(begin.create_schedule(), add.create_schedule(), partial=2)
    i, p, f, c = schedule.get_indices()
    ii, cc = schedule.tile({i: ROWS, c: 32})
    schedule.reorder(i, p, ii, f, c, cc)
    plan = schedule.create_plan(Target())
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_X, p: unit.BLOCK_Y, ii: unit.THREAD_X})
    plan.cache(X, index=cc, pipeline_stages=4, layout=(33, 1))
    plan.cache(S, index=f, location=Location.PRIVATE)
    return plan


def softmax(rows: int, columns: int) -> Plan:
    """Return the plan of the softmax of each row."""
    X = Array(Role.INPUT_OUTPUT, tw.float32, (rows, columns))
    greatest = Array(Role.TEMP, tw.float32, (rows,))
    total = Array(Role.TEMP, tw.float32, (rows,))

    begin, compare, add, divide = (Nest(shape) for shape in ((rows,), *[(rows, columns)] * 3))
    i = begin.get_indices()

    @begin.iteration_logic
    def _():
        greatest[i] = -math.inf
        total[i] = 0.0

    i, c = compare.get_indices()

    @compare.iteration_logic
    def _():
        greatest[i] = tw.maximum(greatest[i], X[i, c])

    i, c = add.get_indices()

    @add.iteration_logic
    def _():
        X[i, c] = tw.exp(X[i, c] - greatest[i])
        total[i] += X[i, c]

    i, c = divide.get_indices()

    @divide.iteration_logic
    def _():
        X[i, c] = X[i, c] / total[i]

    schedule = fuse([nest.create_schedule() for nest in (begin, compare, add, divide)], partial=1)
    i, f, *columns_of_each = schedule.get_indices()
    ii = schedule.split(i, ROWS)
    schedule.reorder(i, ii, f, *columns_of_each)
    plan = schedule.create_plan(Target())
    plan.bind({i: plan.target.GridUnit.BLOCK_X, ii: plan.target.GridUnit.THREAD_X})
    plan.cache(X, index=f, layout=(columns + 1, 1))
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return sums of many rows, of few long ones, and softmax."""
    rows, columns = (70, 150) if quick else (65536, 1024)
    few, parts, width = (20, 6, 40) if quick else (512, 128, 1024)

    def row_sums() -> Trial:
        x, X = _rows(rows, columns, backend)
        S, kernel = put(np.full((rows, 1), np.nan, np.float32), backend), sums(rows, 1, columns).build("sums")
        return Trial(lambda: kernel(X, S), lambda: fetch(S)[:, 0], x.sum(1), _limit(x, columns))

    def in_parts() -> Trial:
        x, X = _rows(few, parts * width, backend)
        P, S = (put(np.full((few, n), np.nan, np.float32), backend) for n in (parts, 1))
        first, second = sums(few, parts, width).build("sums"), sums(few, 1, parts).build("sums")

        def launch() -> None:
            first(X, P)
            second(P, S)

        return Trial(launch, lambda: fetch(S)[:, 0], x.sum(1), _limit(x, width + parts))

    def of_softmax() -> Trial:
        x, X = _rows(rows, 128, backend)
        kernel = softmax(rows, 128).build("softmax")
        powers = np.exp(x - x.max(1, keepdims=True))
        return Trial(lambda: kernel(X), lambda: fetch(X), powers / powers.sum(1, keepdims=True), 2.0**-20)

    return [
        Case("row sums", f"{rows} x {columns} float32", row_sums, bytes_moved=4 * rows * (columns + 1)),
        Case(
            "row sums in parts",
            f"{few} x {parts * width} float32",
            in_parts,
            bytes_moved=4 * few * (parts * width + 2 * parts + 1),
        ),
        Case("softmax in place", f"{rows} x 128 float32", of_softmax, bytes_moved=2 * 4 * rows * 128),
    ]


def _rows(rows: int, columns: int, backend: Backend):
    """Return random rows in float64, and the same where the backend computes."""
    x = np.random.default_rng(0).standard_normal((rows, columns), np.float32)
    return x.astype(np.float64), put(x, backend)


def _limit(x: np.ndarray, additions: int) -> float:
    """Return how far rounding can take the sum of a row, each element of which goes through so many additions."""
    return additions * 2.0**-24 * float(np.abs(x).sum(1).max())


if __name__ == "__main__":
    main(cases)
