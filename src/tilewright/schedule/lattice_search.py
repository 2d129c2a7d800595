"""Integer points of polyhedra: reduce the lattice's basis to the polyhedron, and branch where it is thinnest.

A polyhedron that has rational points and no integer one is thin in some integer direction: the number of values that
the sum c * x takes on it is bounded by a function of the dimension alone, for some integers c (Khinchine's flatness
theorem). So, as in Lenstra's algorithm, the coordinates are changed by unimodular operations until the unit steps along
them are short, measured by how far the conditions reach. Then one of the new coordinates takes few values. Each of them
is tried, which leaves one dimension less. The LLL algorithm finds the change of coordinates, in integers; what it finds
decides how many branches there are, and never the answer. Each range of values is exact (`simplex`).

    21 x - 29 y and 55 x - 76 y are between 0 and 3. In x and y that is a sliver, and x reaches from -87 to 228. With
    x = 76 p - 29 q and y = 55 p - 21 q the sums are p and q, and the search is over.

Directions in which the polyhedron has no end need no branch. Let C be the cone of all directions r in which one can
go on for ever, A r >= 0. The conditions that are zero on all of C bound the sums that are constant along C. With those
sums as the first coordinates, and integers chosen for them, what is left of the polyhedron has a cone with an inner
point, thus holds balls of any size, and has an integer point if it has a point at all.

Each branch has one coordinate less and finitely many values to try, so the search ends. Polynomially many steps are
enough for any fixed number of dimensions; but the number of branches is exponential in that, and `Work` limits them.

Sources: H. W. Lenstra, "Integer programming with a fixed number of variables", 1983; B. Krishnamoorthy and G. Pataki,
"Column basis reduction and decomposable knapsack problems", 2009; A. K. Lenstra, H. W. Lenstra and L. Lovász,
"Factoring polynomials with rational coefficients", 1982, in the integral form of H. Cohen, "A Course in Computational
Algebraic Number Theory", algorithm 2.6.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor

from tilewright.schedule.sides import Work, nearest_quotient
from tilewright.schedule.simplex import Polyhedron, Row

Vector = list[int]
Point = list[Fraction]

HALF = Fraction(1, 2)
THIN = Fraction(1, 16)  # as far as a condition reaches at least, for the lengths of steps
PRECISION = 16  # the least weight of a condition: weights are rounded to integers


class _Frame:
    """Conditions in coordinates y, where the integers asked for are x = columns * y + origin.

    The first `bounded` coordinates have a least and a largest value where the conditions hold.
    """

    def __init__(self, rows: Sequence[Row], size: int) -> None:
        # One vector for each coordinate: what it adds to every condition, and then to every x.
        identity = [[int(m == n) for m in range(size)] for n in range(size)]
        self.height = len(rows)
        self.columns: list[Vector] = [[terms[n] for terms, _ in rows] + identity[n] for n in range(size)]
        self.origin: Vector = [constant for _, constant in rows] + [0] * size
        self.bounded = 0
        self.centre: Point = []  # of the polyhedron, where it is known

    def rows(self) -> list[Row]:
        """Return the conditions."""
        return [([column[n] for column in self.columns], self.origin[n]) for n in range(self.height)]

    def at(self, point: Sequence[Fraction]) -> Vector | None:
        """Return the x of the integer point next to a point, or None where a condition does not hold there."""
        values = list(self.origin)
        for coordinate, column in zip(point, self.columns, strict=True):
            factor = floor(coordinate + HALF)
            if factor:
                values = [a + factor * b for a, b in zip(values, column, strict=True)]
        return values[self.height :] if all(a >= 0 for a in values[: self.height]) else None

    def subtract(self, column: int, factor: int, other: int) -> None:
        """Subtract a multiple of another column from one: y_other is then what y_other + factor * y_column was."""
        pairs = zip(self.columns[column], self.columns[other], strict=True)
        self.columns[column] = [a - factor * b for a, b in pairs]
        if self.centre:
            self.centre[other] += factor * self.centre[column]

    def swap(self, one: int, other: int) -> None:
        self.columns[one], self.columns[other] = self.columns[other], self.columns[one]
        if self.centre:
            self.centre[one], self.centre[other] = self.centre[other], self.centre[one]

    def fixed(self, coordinate: int, value: int) -> _Frame:
        """Return the conditions where a bounded coordinate has a value."""
        frame = _Frame([], 0)
        frame.height, frame.bounded = self.height, self.bounded - 1
        frame.columns = self.columns[:coordinate] + self.columns[coordinate + 1 :]
        frame.origin = [a + value * b for a, b in zip(self.origin, self.columns[coordinate], strict=True)]
        return frame


def integer_point(rows: Sequence[Row], size: int, work: Work) -> Vector | None:
    """Return integers x_0 .. x_(size-1) at which every sum of `rows` is zero or more, or None where there are none.

    Raises `WorkLimitError` where that takes more work than the limit.
    """
    frame = _Frame(rows, size)
    if Polyhedron(frame.rows(), size, work).is_empty():
        return None
    _separate(frame, work)
    return _search(frame, work)


def _separate(frame: _Frame, work: Work) -> None:
    """Make the first coordinates those that the conditions bound, by unimodular operations.

    Conditions of which a direction of the cone shows that they are not zero on all of it are left out, until there is
    no such direction; the ones that stay bound the sums that they mention.
    """
    rows = frame.rows()
    size = len(frame.columns)
    kept = [n for n, (terms, _) in enumerate(rows) if any(terms)]
    cone = [(rows[n][0], 0) for n in kept]
    while kept:
        total = [sum(rows[n][0][c] for n in kept) for c in range(size)]
        directions = Polyhedron([*cone, (total, -1)], size, work)
        if directions.is_empty():
            break
        direction = directions.vertex()
        kept = [n for n in kept if not sum(a * b for a, b in zip(rows[n][0], direction, strict=True))]
    given = list(frame.columns)
    for n in kept:
        _clear(frame, n, work)
    if frame.bounded == size:
        frame.columns = given  # all are bounded as they were, and by smaller coefficients


def _clear(frame: _Frame, row: int, work: Work) -> None:
    """Let a condition mention one coordinate at most beyond the bounded ones, and count that as bounded."""
    while True:
        mentioned = [n for n in range(frame.bounded, len(frame.columns)) if frame.columns[n][row]]
        if len(mentioned) <= 1:
            break
        least = min(mentioned, key=lambda n: abs(frame.columns[n][row]))
        divisor = frame.columns[least][row]
        work.spend(len(mentioned) * len(frame.origin), divisor)
        for n in mentioned:
            if n != least:
                frame.subtract(n, nearest_quotient(frame.columns[n][row], divisor), least)
    for n in mentioned:
        frame.swap(n, frame.bounded)
        frame.bounded += 1


def _search(frame: _Frame, work: Work) -> Vector | None:
    polyhedron = Polyhedron(frame.rows(), len(frame.columns), work)
    if polyhedron.is_empty():
        return None
    if not frame.bounded:
        return _inside(frame, polyhedron, work)
    ends = _extremes(polyhedron, frame)
    found = frame.at(frame.centre)
    if found is None and _fewest(ends)[0] > 1 and _shorten(frame, work):
        found = frame.at(frame.centre)
        if found is None:
            polyhedron = Polyhedron(frame.rows(), len(frame.columns), work)
            polyhedron.is_empty()
            ends = _extremes(polyhedron, frame)
            found = frame.at(frame.centre)
    if found is not None:
        return found
    count, thinnest = _fewest(ends)
    if count <= 0:
        return None
    for value in _from_the_middle(*ends[thinnest]):
        found = _search(frame.fixed(thinnest, value), work)
        if found is not None:
            return found
    return None


def _extremes(polyhedron: Polyhedron, frame: _Frame) -> list[tuple[int, int]]:
    """Return the least and the largest integer that each bounded coordinate may be, up to one that may be none.

    The mean of the points at the ends is the frame's centre.
    """
    ends: list[tuple[int, int]] = []
    points: list[Point] = []
    for coordinate in range(frame.bounded):
        low = polyhedron.extreme(coordinate, -1)
        points.append(polyhedron.vertex())
        high = polyhedron.extreme(coordinate, 1)
        points.append(polyhedron.vertex())
        assert low is not None and high is not None, coordinate
        ends.append((ceil(low), floor(high)))
        if ends[-1][0] > ends[-1][1]:
            break
    frame.centre = [sum(values, Fraction()) / len(points) for values in zip(*points, strict=True)]
    return ends


def _fewest(ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return how many integers are between the ends that have the fewest, and which these are."""
    return min((high - low + 1, n) for n, (low, high) in enumerate(ends))


def _from_the_middle(low: int, high: int) -> Iterator[int]:
    """Yield the integers from low to high, those in the middle first."""
    middle = (low + high) // 2
    yield middle
    for distance in range(1, high - middle + 1):
        yield middle + distance
        if middle - distance >= low:
            yield middle - distance


def _inside(frame: _Frame, polyhedron: Polyhedron, work: Work) -> Vector:
    """Return an integer point of a polyhedron whose cone has inner points: go along one until rounding is harmless.

    Rounding changes a condition by half of the sum of its coefficients at most, and a step adds 1 or more to each.
    """
    start, size = polyhedron.vertex(), len(frame.columns)
    inner = Polyhedron([(terms, -1) for terms, _ in frame.rows() if any(terms)], size, work)
    assert not inner.is_empty(), frame.rows()
    direction = inner.vertex()
    steps = 0
    while True:
        found = frame.at([a + steps * b for a, b in zip(start, direction, strict=True)])
        if found is not None:
            return found
        steps = 2 * steps + 1


def _shorten(frame: _Frame, work: Work) -> bool:
    """Make the unit steps along the bounded coordinates short, and return whether any changed.

    The length of a step is that of what it adds to the conditions, where one that is between 0 and w on the polyhedron
    counts for 1 / w. Conditions on unbounded coordinates do not count.
    """
    size, rows = frame.bounded, frame.rows()
    conditions = [row for row in rows if any(row[0][:size]) and not any(row[0][size:])]
    polyhedron = Polyhedron(rows, len(frame.columns), work, goals=conditions)
    polyhedron.is_empty()
    reaches = []
    for n in range(len(conditions)):
        reach = polyhedron.extreme(len(frame.columns) + n, 1)
        assert reach is not None, conditions[n]
        reaches.append(max(reach, THIN))
    # Weights are integers of at least `PRECISION`, so that the vectors stay independent.
    farthest = max(reaches)
    weights = [floor(PRECISION * farthest / reach) for reach in reaches]
    vectors = [[w * terms[n] for w, (terms, _) in zip(weights, conditions, strict=True)] for n in range(size)]
    return _Reduction(frame, vectors, work).run()


class _Reduction:
    """The integral LLL algorithm on vectors that stand for the first columns of a frame, which change with them.

    `dots` and `minors` are the coefficients and lengths of Gram and Schmidt, times what makes them integers.
    """

    def __init__(self, frame: _Frame, vectors: list[Vector], work: Work) -> None:
        self.frame, self.vectors, self.work = frame, vectors, work
        size = len(vectors)
        self.minors = [1] * (size + 1)  # minors[n]: the determinant of the Gram matrix of the first n vectors
        self.dots = [[0] * size for _ in range(size)]
        self.changed = False

    def run(self) -> bool:
        k, known = 0, -1
        while k < len(self.vectors):
            if k > known:
                known = k
                self._orthogonalise(k)
            if k:
                self._shorten(k, k - 1)
            d = self.minors
            if k and 4 * d[k + 1] * d[k - 1] < 3 * d[k] ** 2 - 4 * self.dots[k][k - 1] ** 2:
                self._swap(k, known)
                k = max(1, k - 1)
            else:
                for other in range(k - 2, -1, -1):
                    self._shorten(k, other)
                k += 1
        return self.changed

    def _orthogonalise(self, k: int) -> None:
        self.work.spend((k + 1) * (len(self.vectors[k]) + k), self.minors[k])
        for j in range(k + 1):
            u = sum(a * b for a, b in zip(self.vectors[k], self.vectors[j], strict=True))
            for i in range(j):
                u = (self.minors[i + 1] * u - self.dots[k][i] * self.dots[j][i]) // self.minors[i]
            if j < k:
                self.dots[k][j] = u
            else:
                self.minors[k + 1] = u

    def _shorten(self, k: int, other: int) -> None:
        factor = nearest_quotient(self.dots[k][other], self.minors[other + 1])
        if not factor:
            return
        self.changed = True
        self.work.spend(len(self.vectors[k]) + len(self.frame.origin), self.minors[k])
        self.frame.subtract(k, factor, other)
        self.vectors[k] = [a - factor * b for a, b in zip(self.vectors[k], self.vectors[other], strict=True)]
        self.dots[k][other] -= factor * self.minors[other + 1]
        for i in range(other):
            self.dots[k][i] -= factor * self.dots[other][i]

    def _swap(self, k: int, known: int) -> None:
        self.changed = True
        self.work.spend(4 * len(self.vectors), self.minors[k])
        self.frame.swap(k, k - 1)
        self.vectors[k], self.vectors[k - 1] = self.vectors[k - 1], self.vectors[k]
        for j in range(k - 1):
            self.dots[k][j], self.dots[k - 1][j] = self.dots[k - 1][j], self.dots[k][j]
        shared, d = self.dots[k][k - 1], self.minors
        minor = (d[k - 1] * d[k + 1] + shared**2) // d[k]
        for i in range(k + 1, known + 1):
            t = self.dots[i][k]
            self.dots[i][k] = (d[k + 1] * self.dots[i][k - 1] - shared * t) // d[k]
            self.dots[i][k - 1] = (minor * t + shared * self.dots[i][k]) // d[k + 1]
        d[k] = minor
