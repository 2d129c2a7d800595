"""Convert 8-bit floats two at a time in loops over fragments, because the instructions take two.

    for (i = 0; i < 16; i += 1)                for (i = 0; i < 16; i += 2)
        narrow[i] = (float8)wide[i]        ->      narrow[i : i + 2] = (float8)wide[i : i + 2]

Both sides are registers, and where an even iteration goes, the iteration after it goes to the next element. The
compiler packs conversions to 16-bit floats by itself, but not these.
"""

from __future__ import annotations

from tilewright.dtypes import FLOAT8, float16, float32
from tilewright.ir.core import Block, Kernel, Op, Space, Value, VectorType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.ops import Cast, CastPair, Constant, For, Load, Store, Yield, constant


def pair_conversions(kernel: Kernel) -> None:
    """Rewrite the loops whose body converts one element of a fragment from or to an 8-bit float."""
    for op in list(kernel.body.walk()):
        if isinstance(op, For):
            found = _conversion(op)
            if found is not None and all(_steps_by_pairs(op, access.index) for access in (found[0], found[2])):
                _pair(op, *found)


def _conversion(loop: For) -> tuple[Load, Cast, Store] | None:
    """Return what a loop converts, where that is all it does."""
    body = loop.body
    others = [op for op in body.ops if not op.is_pure or isinstance(op, Cast)]
    if loop.init or len(others) != 4:
        return None
    load, cast, store, end = others
    if not (isinstance(load, Load) and isinstance(cast, Cast) and isinstance(store, Store) and isinstance(end, Yield)):
        return None
    if cast.x is not load.result or store.value is not cast.result or _is_read_elsewhere(body, load, cast):
        return None
    if load.buffer.root is store.buffer.root or any(b.space is not Space.REGISTER for b in (load.buffer, store.buffer)):
        return None
    source, target = cast.x.type, cast.result.type
    narrows, widens = source is float32 and target in FLOAT8, source in FLOAT8 and target in (float16, float32)
    return (load, cast, store) if narrows or widens else None


def _is_read_elsewhere(body: Block, load: Load, cast: Cast) -> bool:
    """Say whether an op beside the conversion and the store reads what they read."""
    readers = [op for op in body.ops if load.result in op.operands or cast.result in op.operands]
    return len(readers) != 2


def _steps_by_pairs(loop: For, index: Value) -> bool:
    """Say whether iterations 2 n and 2 n + 1 go to neighbours, the first of them even."""
    bounds = [_number(v) for v in (loop.start, loop.stop, loop.step)]
    if bounds[0] != 0 or bounds[1] is None or bounds[1] % 2 or bounds[2] != 1:
        return False
    try:
        places = [evaluate(index, {loop.body.arguments[0]: n}) for n in range(bounds[1])]
    except KeyError:  # it depends on more than the round
        return False
    return all(a % 2 == 0 and b == a + 1 for a, b in zip(places[::2], places[1::2], strict=True))


def _number(value: Value) -> int | None:
    op = value.definition
    return int(op.value) if isinstance(op, Constant) else None


def _pair(loop: For, load: Load, cast: Cast, store: Store) -> None:
    loop.step = constant(2, loop.body.arguments[0].dtype)
    wide, narrow = (Value(VectorType(v.dtype, 2), v.name) for v in (load.result, cast.result))
    replaced: dict[Op, Op] = {
        load: Load(load.buffer, load.index, results=(wide,), location=load.location),
        cast: CastPair(wide, results=(narrow,), location=cast.location),
        store: Store(store.buffer, store.index, narrow, location=store.location),
    }
    loop.body.ops = [replaced.get(op, op) for op in loop.body.ops]
