"""How the threads of a block share the copying of a box: which vectors each of them takes."""

from __future__ import annotations

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
