"""How the threads of a block share the copying of a box: which vectors each of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.layout import Layout
from tilewright.schedule.caches import Strategy


@dataclass(frozen=True)
class Share:
    """Which elements of a box each thread copies.

    Vector v of thread t begins at element t * by_thread + v * by_vector, counted with the box's fastest mode first;
    `threads` of the block take part. Where `is_even`, all of these are elements of the box, and `layout` maps (thread,
    (element of a vector, vector)) to them; else those at `size` and beyond are not.

    Law: every element of the box has one thread and one place.
    """

    size: int
    threads: int
    width: int
    vectors: int
    by_thread: int
    by_vector: int

    @property
    def is_even(self) -> bool:
        return self.threads * self.vectors * self.width == self.size

    @property
    def layout(self) -> Layout:
        assert self.is_even, self
        return Layout((self.threads, (self.width, self.vectors)), (self.by_thread, (1, self.by_vector)))

    def in_pieces(self, pieces: int) -> Layout:
        """Return (thread, (element of a vector, vector), piece), with as many vectors in each piece."""
        assert self.is_even, self
        assert self.vectors % pieces == 0, (self, pieces)
        each = self.vectors // pieces
        return Layout(
            (self.threads, (self.width, each), pieces), (self.by_thread, (1, self.by_vector), self.by_vector * each)
        )


@dataclass(frozen=True)
class Piece:
    """One of so many equal pieces of what a thread copies."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number + 1}/{self.of}"

    def of_range(self, extent: int) -> range:
        """Return which of `extent` vectors are in the piece."""
        each = extent // self.of
        return range(self.number * each, (self.number + 1) * each)


WHOLE = Piece(0, 1)


def spread(vectors: Sequence[int], slots: int) -> list[list[tuple[int, Piece]]]:
    """Deal the pieces of several copies out to slots, about as many vectors to each: (which copy, its piece).

    >>> [[(copy, str(piece)) for copy, piece in slot] for slot in spread((4, 8), 3)]
    [[(0, '1/1')], [(1, '1/2')], [(1, '2/2')]]
    """
    most = -(-sum(vectors) // slots)
    found: list[list[tuple[int, Piece]]] = [[] for _ in range(slots)]
    dealt = 0
    for copy, extent in enumerate(vectors):
        of = next(n for n in range(1, extent + 1) if extent % n == 0 and extent // n <= most)
        for number in range(of):
            found[min(dealt // most, slots - 1)].append((copy, Piece(number, of)))
            dealt += extent // of
    return found


def share_out(size: int, threads: int, width: int, strategy: Strategy) -> Share:
    """Deal out `size` elements in vectors of `width` to at most so many threads, each as many or one less.

    STRIPED: thread t takes vectors t, t + threads, ...; BLOCKED: a run of neighbours. Where the vectors do not divide
    among the threads, fewer threads take part if they do divide them and none has more to do for it.

    >>> print(share_out(64, 8, 4, Strategy.STRIPED).layout, share_out(64, 8, 4, Strategy.BLOCKED).layout)
    (8,(4,2)):(4,(1,32)) (8,(4,2)):(8,(1,4))
    """
    vectors = size // width
    most = min(threads, vectors)
    each = -(-vectors // most)
    taking = vectors // each if vectors % each == 0 else most
    by_thread, by_vector = (width * each, width) if strategy is Strategy.BLOCKED else (width, width * taking)
    return Share(size, taking, width, each, by_thread, by_vector)
