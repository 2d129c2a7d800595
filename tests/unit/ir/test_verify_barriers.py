"""The verifier's rules for barriers that part of a block meets at."""

from __future__ import annotations

import pytest
from tests.unit.backends.sim_kernels import Sketch

from tilewright.dtypes import bool_, int32, int64, uint64
from tilewright.errors import InternalError
from tilewright.instructions.barrier import NamedBarrier
from tilewright.instructions.mbarrier import MbarrierArrive, MbarrierInit, MbarrierTest, MbarrierWait
from tilewright.instructions.vote import Elect
from tilewright.ir.core import Kernel, Value
from tilewright.ir.ops import constant
from tilewright.ir.verify import verify


def kernel(sketch: Sketch) -> Kernel:
    return Kernel("kernel", tuple(sketch.parameters), sketch.body)


ONE = constant(1, int32)


def test_right_ops_pass() -> None:
    sketch = Sketch()
    barriers = sketch.shared("full", uint64, 2)
    sketch.do(MbarrierInit(barriers, ONE, ONE))
    sketch.do(MbarrierArrive(barriers, ONE, ONE))
    sketch.do(MbarrierWait(barriers, ONE, ONE))
    sketch.emit(MbarrierTest(barriers, ONE, ONE), bool_)
    sketch.emit(Elect(), bool_)
    sketch.do(NamedBarrier("sync", 64, ONE))
    verify(kernel(sketch))


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (lambda b, w: NamedBarrier("wait", 64, ONE), "no wait of a named barrier"),
        (lambda b, w: NamedBarrier("sync", 40, ONE), "40 threads are not whole warps"),
        (lambda b, w: NamedBarrier("sync", 0, ONE), "0 threads are not whole warps"),
        (lambda b, w: NamedBarrier("sync", 64, constant(1, int64)), "is an int32"),
        (lambda b, w: MbarrierWait(w, ONE, ONE), "words does not hold mbarriers"),
        (lambda b, w: MbarrierWait(b, ONE, constant(1, int64)), "are int32"),
        (lambda b, w: MbarrierTest(b, ONE, ONE, results=(Value(int32),)), "a test gives bool"),
        (lambda b, w: Elect(results=(Value(int32),)), "an election gives bool"),
        (lambda b, w: Elect(), "0 results instead of 1"),
    ],
)
def test_wrong_ops_are_refused(op, text) -> None:
    sketch = Sketch()
    barriers, words = sketch.shared("full", uint64, 2), sketch.shared("words", int32, 2)
    sketch.body.ops.append(op(barriers, words))
    with pytest.raises(InternalError, match=text):
        verify(kernel(sketch))
