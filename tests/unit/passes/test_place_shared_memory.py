from __future__ import annotations

from tests.helpers.sketch import Sketch

from tilewright.dtypes import bool_, float32, int8, int32
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.core import Buffer
from tilewright.ir.ops import constant
from tilewright.passes.place_shared_memory import place_shared_memory


def use(s: Sketch, *buffers: Buffer) -> None:
    for buffer in buffers:
        s.store(buffer, 0, 0)


def offsets(s: Sketch, *buffers: Buffer) -> list[int | None]:
    place_shared_memory(s.kernel())
    return [buffer.offset for buffer in buffers]


def copy_into(s: Sketch, buffer: Buffer) -> None:
    zero = constant(0, int32)
    s.builder.emit(AsyncCopy(buffer, s.fout, 1, "ca", zero, zero, constant(True, bool_)))


def test_buffers_in_use_together_lie_side_by_side_the_largest_first() -> None:
    s = Sketch()
    small, large, byte = s.shared("small", 4), s.shared("large", 64), s.shared("byte", 3, int8, alignment=1)
    use(s, small, large, byte)
    kernel = s.kernel()
    place_shared_memory(kernel)
    assert [b.offset for b in (small, large, byte)] == [256, 0, 272]
    assert kernel.shared_bytes == 275


def test_offsets_are_aligned() -> None:
    s = Sketch()
    odd, aligned = s.shared("odd", 129, int8, alignment=1), s.shared("aligned", 4, alignment=128)
    use(s, odd, aligned)
    assert offsets(s, odd, aligned) == [0, 256]


def test_a_barrier_of_the_block_lets_buffers_share_bytes() -> None:
    for scope, expected in (("block", [0, 0]), ("warp", [0, 64])):
        s = Sketch()
        a, b = s.shared("a", 16), s.shared("b", 16)
        use(s, a)
        s.barrier(scope)
        use(s, b)
        assert offsets(s, a, b) == expected


def test_a_barrier_in_a_loop_or_branch_does_not() -> None:
    s = Sketch()
    a, b = s.shared("a", 16), s.shared("b", 16)
    with s.loop(0, 4):
        use(s, a)
        s.barrier()
        use(s, b)
    assert offsets(s, a, b) == [0, 64]
    s = Sketch()
    a, b = s.shared("a", 16), s.shared("b", 16)
    use(s, a)
    with s.branch(s.scalar("c", bool_)):
        s.barrier()
    use(s, b)
    assert offsets(s, a, b) == [0, 64]


def test_what_follows_a_barrier_starts_again_at_the_bottom() -> None:
    s = Sketch()
    a, b, c = s.shared("a", 64), s.shared("b", 16), s.shared("c", 32)
    use(s, a)
    s.barrier()
    use(s, b, c)
    assert offsets(s, a, b, c) == [0, 128, 0]


def test_a_copy_under_way_keeps_its_destination() -> None:
    cases = {
        "no wait": ([], 64),
        "wait for all": ([AsyncWait(None)], 0),
        "wait without commit": ([AsyncWait(0)], 64),
        "commit and wait": ([AsyncCommit(), AsyncWait(0)], 0),
        "one may be under way": ([AsyncCommit(), AsyncWait(1)], 64),
    }
    for name, (ops, expected) in cases.items():
        s = Sketch()
        a, b = s.shared("a", 16, float32), s.shared("b", 16)
        copy_into(s, a)
        for op in ops:
            s.builder.emit(op)
        s.barrier()
        use(s, b)
        assert offsets(s, a, b)[1] == expected, name


def test_copies_of_a_loop_are_committed_there_and_awaited_after_it() -> None:
    for commit, expected in ((True, 0), (False, 64)):
        s = Sketch()
        a, b = s.shared("a", 16, float32), s.shared("b", 16)
        with s.loop(0, s.scalar("n")):
            copy_into(s, a)
            if commit:
                s.builder.emit(AsyncCommit())
            s.builder.emit(AsyncWait(1))
            s.barrier()
            s.store(s.fout, 0, s.load(a, 0))
        s.builder.emit(AsyncWait(0))
        s.barrier()
        use(s, b)
        assert offsets(s, a, b)[1] == expected


def test_buffers_that_nobody_uses_share_all() -> None:
    s = Sketch()
    a, b = s.shared("a", 16), s.shared("b", 16)
    s.barrier()
    use(s, b)
    assert offsets(s, a, b) == [0, 0]


def test_registers_and_kernels_without_shared_memory() -> None:
    s = Sketch()
    r = s.registers("r", 4)
    use(s, r)
    kernel = s.kernel()
    place_shared_memory(kernel)
    assert (r.offset, kernel.shared_bytes) == (None, 0)
