"""How the threads of a block share the copying of a box: which vectors each of them takes."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.layout import Layout
from tilewright.schedule.caches import Strategy


@dataclass(frozen=True)
class Share:
    """Which elements of a box each thread copies.

    `layout` maps (thread, (element of a vector, vector)) to an element, counted with the box's first mode fastest;
    `threads` of the block take part. Vector v of thread t begins at element t * by_thread + v * by_vector.

    Law: every element of the box has one thread and one place.
    """

    layout: Layout
    threads: int
    width: int
    vectors: int
    by_thread: int
    by_vector: int


def share_out(size: int, threads: int, width: int, strategy: Strategy) -> Share:
    """Deal out `size` elements in vectors of `width` to at most so many threads, each as many.

    STRIPED: thread t takes vectors t, t + threads, ...; BLOCKED: a run of neighbours. Where the vectors do not divide
    among the threads, as many threads take part as do divide them.

    >>> print(share_out(64, 8, 4, Strategy.STRIPED).layout, share_out(64, 8, 4, Strategy.BLOCKED).layout)
    (8,(4,2)):(4,(1,32)) (8,(4,2)):(8,(1,4))
    """
    vectors = size // width
    taking = next(count for count in range(min(threads, vectors), 0, -1) if vectors % count == 0)
    each = vectors // taking
    by_thread, by_vector = (width * each, width) if strategy is Strategy.BLOCKED else (width, width * taking)
    layout = Layout((taking, (width, each)), (by_thread, (1, by_vector)))
    return Share(layout, taking, width, each, by_thread, by_vector)
