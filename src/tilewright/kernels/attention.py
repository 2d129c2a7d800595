"""`tw.attention` and its gradients: softmax(scale * Q K^T) V, without the matrix of scores in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any  # Any: arrays of any library

import numpy as np

from tilewright.arch import VECTOR_BYTES, Arch, default_arch
from tilewright.dtypes import DType, float32, float64, int32, int64
from tilewright.errors import ArgumentError
from tilewright.kernels._attention_gradient_kernel import finish_tokens, gradients_by_warpgroups
from tilewright.kernels._attention_heads_kernel import gradients_of_heads
from tilewright.kernels._attention_hopper_kernel import attend_by_warpgroups
from tilewright.kernels._attention_kernels import attend, gradient_of_tokens, gradients_of_keys, sum_products
from tilewright.kernels.attention_heads import heads_plan
from tilewright.kernels.attention_hopper import (
    CACHED,
    NARROW,
    heads_together,
    hopper_gradient_plan,
    hopper_plan,
    is_low,
    is_short,
    is_small,
    keys_of,
    why_not,
)
from tilewright.kernels.attention_parts import count_parts, launch_parts
from tilewright.kernels.attention_plan import alignment_of, plan_for
from tilewright.kernels.operands import Operand, Shape, check_together, launcher, read, result
from tilewright.kernels.repeats import repeating
from tilewright.kernels.results import handing_over, host_array
from tilewright.kernels.rows import plan_rows
from tilewright.runtime import driver
from tilewright.runtime.views import View

BEHIND = 128  # more than the columns of a tile that are behind the last token
_RESIDENT = 2  # blocks of tiles of 16 bits on a multiprocessor, by their shared memory
UNLIMITED = 1 << 30  # tokens: more than any sequence has
Window = tuple[int | None, int | None]


@dataclass(frozen=True)
class Sequences:
    """Where the tokens of each sequence are; all None: each batch is a sequence."""

    tokens: Operand | None
    keys: Operand | None
    lengths: Operand | None

    def given(self) -> list[Operand]:
        """Return the arrays that there are."""
        return [x for x in (self.tokens, self.keys, self.lengths) if x is not None]

    def views(self) -> tuple[View | None, View | None, View | None]:
        """Return what kernels take."""
        tokens, keys, lengths = (
            None if x is None else x.view(x.shape, x.info.strides) for x in (self.tokens, self.keys, self.lengths)
        )
        return tokens, keys, lengths


@dataclass(frozen=True)
class Problem:
    """A call: arrays as they were given, where sequences are, and what a token sees."""

    function: str
    q: Operand
    k: Operand
    v: Operand
    sequences: Sequences
    left: int
    right: int
    scale: float

    @property
    def kind(self) -> DType:
        """The type that is computed in, and that of lse."""
        return float64 if self.q.dtype == float64 else float32

    @property
    def is_ragged(self) -> bool:
        """Whether sequences follow one another in one array of three modes."""
        return self.sequences.tokens is not None

    @property
    def count(self) -> int:
        """How many sequences there are."""
        tokens = self.sequences.tokens
        return self.q.shape[0] if tokens is None else tokens.shape[0] - 1

    def result_shape(self) -> Shape:
        """Return the shape of the result."""
        return (*self.q.shape[:-1], self.v.shape[-1])

    def numbers_shape(self) -> Shape:
        """Return the shape of lse: a number for each head and token."""
        return (self.q.shape[1], self.q.shape[0]) if self.is_ragged else self.q.shape[:-1]

    def make(self, shape: Shape) -> Operand:
        """Return a new array of the type that is computed in."""
        return result(self.function, None, self.q, shape, self.kind)

    def heads(self, x: Operand) -> View:
        """Return an array as kernels take it: (batch, heads, tokens, head)."""
        shape, strides = x.shape, x.info.strides
        if self.is_ragged:
            shape, strides = (1, shape[1], shape[0], shape[2]), (0, strides[1], strides[0], strides[2])
        # What an extent of 1 has for a stride means nothing, where it does not align.
        size, row = x.dtype.bytes, -(-shape[3] // VECTOR_BYTES) * VECTOR_BYTES
        *steps, _ = (s if n > 1 or s * size % VECTOR_BYTES == 0 else row for n, s in zip(shape, strides, strict=True))
        return x.view(shape, (*steps, strides[3]))

    def numbers(self, x: Operand) -> View:
        """Return lse, or what has its shape, as kernels take it: (batch, heads, tokens)."""
        shape, strides = x.shape, x.info.strides
        return x.view((1, *shape), (0, *strides)) if self.is_ragged else x.view(shape, strides)

    @property
    def factor(self) -> Any:  # Any: a NumPy number
        """The scale of scores in units of log 2."""
        return self.kind.numpy.type(self.scale * math.log2(math.e))


@repeating("causal", "window", "scale", "statistics")
@handing_over
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    offsets: Any = None,
    key_offsets: Any = None,
    key_lengths: Any = None,
    out: Any = None,
    statistics: bool = False,
) -> Any:
    """Return softmax(scale * q k^T) v of each head, without storing the scores.

    >>> import numpy as np, tilewright as tw
    >>> q = k = np.zeros((1, 1, 2, 4), np.float32)  # batch, heads, tokens, head
    >>> v = np.array([[[[1], [3]]]], np.float32)
    >>> tw.attention(q, k, v).ravel(), tw.attention(q, k, v, causal=True).ravel()
    (array([2., 2.], dtype=float32), array([1., 2.], dtype=float32))

    `q` is (batch, heads, tokens, head), `k` (batch, key heads, keys, head) and `v` (batch, key heads, keys, head of v),
    of any strides: (batch, tokens, heads, head) is passed as `x.transpose(1, 2)`, and read in place. Heads of q share
    those of k and v in groups of equal size: head h uses key head h // (heads // key heads). Types are float16,
    bfloat16, float32 and float64, one for all; accumulators are float32 (float64 for float64), and weights have the
    arrays' type before they are multiplied by v. Heads have up to 256 elements. `scale` is 1 / sqrt(head) if it is not
    given.

    With `causal`, token r of m sees key c of n where c - r <= n - m: the last token sees all keys. (For m = n this is
    PyTorch's `is_causal`; otherwise PyTorch aligns the first token with the first key.) `window` is a pair (left,
    right): a token sees that many keys before and after the one aligned with it, or all if None. The result of a token
    that sees no key is 0.

    Sequences of different lengths: with `offsets` (sequences + 1 numbers, int32 or int64, from 0 on) the arrays are
    (tokens of all sequences, heads, head), and sequence n has the tokens offsets[n] to offsets[n + 1]; `key_offsets`
    are those of k and v, if they are others. With `key_lengths` (batch numbers) batch n has key_lengths[n] keys, and
    later ones are not read.

    With `statistics` the result is a pair: the result itself, and for the backward pass log(sum(exp(scores))) of each
    token, float32 or float64, (batch, heads, tokens), or (heads, tokens) with offsets; -inf for a token without keys.

    Raises `ArgumentError` for other types, shapes that do not fit together, an `out` that does not fit, and tensors
    that require a gradient (see `tw.torch.attention`).
    """
    problem = read_problem("attention", q, k, v, causal, window, scale, (offsets, key_offsets, key_lengths))
    reads = (problem.q, problem.k, problem.v, *problem.sequences.given())
    target = result("attention", out, problem.q, problem.result_shape(), problem.q.dtype, reads=reads,
                    types=(problem.q.dtype,))  # fmt: skip
    numbers = result("attention", None, problem.q, problem.numbers_shape(), problem.kind) if statistics else None
    if 0 not in target.shape[:-1]:
        _forward(problem, target, numbers)
    return target.array if numbers is None else (target.array, numbers.array)


def _forward(problem: Problem, out: Operand, lse: Operand | None) -> None:
    views = [problem.heads(x) for x in (out, problem.q, problem.k, problem.v)]
    numbers = None if lse is None else problem.numbers(lse)
    problem, views, numbers = _with_heads_as_tokens(problem, views, numbers)
    (by_warpgroups if family_of(problem, views) == "hopper" else by_tiles)(problem, views, numbers)


def by_tiles(problem: Problem, views: Sequence[View], lse: View | None, parts: int | None = None) -> None:
    """Launch the kernel of ordinary products; `parts` of the keys are for tests."""
    out, q, k, v = views
    longest, arch = max(q.shape[2], k.shape[2]), arch_of(problem.q)
    plan = plan_for(q.dtype, q.shape[3], v.shape[3], alignment_of((q, k, v)), longest, arch, False)
    blocks = blocks_of(problem, q, plan.rows)
    if parts is None:
        slots = _RESIDENT * multiprocessors_of(problem.q)
        steps = -(-k.shape[2] // (plan.columns * (problem.count if problem.is_ragged else 1)))
        parts = count_parts(blocks, steps, slots, math.prod(out.shape)) if slots else 1
    numbers = problem.factor, np.int32(problem.left), np.int32(problem.right)

    def launch(out: View, lse: View | None) -> None:
        launcher(attend, blocks * parts, plan.threads)(
            out, lse, *views[1:], *problem.sequences.views(), *numbers, parts > 1, plan
        )

    launch_parts(launch, out, lse, parts, problem.make, arch)


def _with_heads_as_tokens(
    problem: Problem, views: list[View], lse: View | None
) -> tuple[Problem, list[View], View | None]:
    """Return a call of one token, which sees all keys, with the heads that share keys as its tokens.

    A tile then has all of them, and keys are read once.
    """
    _, q, k, _ = views
    shared = k.shape[1]
    if problem.is_ragged or q.shape[2] != 1 or q.shape[1] == shared or problem.left < k.shape[2] or 0 in k.shape:
        return problem, views, lse

    def packed(x: View) -> View:
        batch, heads, _, *head = x.shape
        of_batch, of_head, _, *of_element = x.strides
        group = heads // shared
        shape, strides = (batch, shared, group, *head), (of_batch, group * of_head, of_head, *of_element)
        return type(x)(x.pointer, shape, strides, x.dtype, x.device, x.writable, x.owner, x.stream)

    found = [packed(x) for x in views[:2]] + views[2:]
    return replace(problem, right=UNLIMITED), found, None if lse is None else packed(lse)


def family_of(problem: Problem, views: Sequence[View]) -> str:
    """Return which kernels compute a call: "hopper" or "tiles". The simulator takes tiles, which are smaller.

    Tiles are also for short sequences.
    """
    _, q, k, _ = views
    if isinstance(problem.q.info.device, str) or is_short(q.shape[3], q.shape[2], k.shape[2]):
        return "tiles"
    return "tiles" if why_not(views, float(problem.factor), arch_of(problem.q)) else "hopper"


def by_warpgroups(
    problem: Problem,
    views: Sequence[View],
    lse: View | None,
    blocks: int | None = None,
    keys: int | None = None,
    parts: int | None = None,
) -> None:
    """Launch the kernel of Hopper; `blocks`, `keys` of a tile, and `parts` of all keys are for tests."""
    out, q, k, _ = views
    unlimited = q.shape[2] + k.shape[2]  # no token sees more keys on one side
    sides = problem.left < unlimited, problem.right < unlimited
    count = problem.count if problem.is_ragged else 1  # of sequences in one array
    each, is_cut = k.shape[2] // count, bool(problem.sequences.given())
    kind = {"is_narrow": q.shape[2] <= count * NARROW, "is_cut": is_cut}
    kind["is_low"] = not any(kind.values()) and is_low(q.shape[3], q.shape[2])
    planned = partial(hopper_plan, q.dtype, q.shape[3], *sides, values=out.shape[3])
    plan = planned(keys, **kind)
    tiles, blocks = blocks_of(problem, q, plan.rows), blocks or multiprocessors_of(problem.q)
    parts = parts or count_parts(tiles, -(-each // plan.keys), blocks, math.prod(out.shape))
    if keys is None and parts == 1:
        if is_small(q.shape[3], each):
            kind = {"is_small": True, "is_cut": is_cut}
            plan = planned(**kind)
            tiles, blocks = blocks_of(problem, q, plan.rows), blocks * plan.blocks
        if not is_cut and not kind.get("is_narrow"):
            keys = keys_of(each, plan.keys, any(sides))
    grid = min(blocks, tiles * parts)
    plan = planned(keys, is_in_parts=parts > 1, **kind)
    numbers = problem.factor, *map(np.int32, (problem.left, problem.right, heads_together(views, grid)))

    def launch(out: View, lse: View | None) -> None:
        launcher(attend_by_warpgroups, grid, plan.threads, plan.blocks)(
            out, lse, *views[1:], *problem.sequences.views(), *numbers, plan
        )

    launch_parts(launch, out, lse, parts, problem.make, arch_of(problem.q))


@repeating("causal", "window", "scale", "deterministic")
@handing_over
def attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    result_of_forward: Any,
    lse: Any,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    offsets: Any = None,
    key_offsets: Any = None,
    key_lengths: Any = None,
    lse_grad: Any = None,
    deterministic: bool = True,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the gradients of `tw.attention`'s q, k and v from that of its result.

    >>> import numpy as np, tilewright as tw
    >>> q = k = np.zeros((1, 1, 2, 4), np.float32)
    >>> v = np.array([[[[1], [3]]]], np.float32)
    >>> out, lse = tw.attention(q, k, v, statistics=True)
    >>> dq, dk, dv = tw.attention_backward(np.ones_like(out), q, k, v, out, lse)
    >>> dv.ravel()
    array([1., 1.], dtype=float32)

    `result_of_forward` and `lse` are what `tw.attention` returns with `statistics=True`; the other arguments are those
    of that call. `lse_grad` is a gradient of lse, if there is one. Scores are computed again. Gradients have the type
    of the arrays; each is summed in a fixed order, so that it is bitwise reproducible. With `deterministic=False`
    blocks may add to that of q, in float32, in the order in which they run: up to 1.15 times as fast on Hopper. `dq`,
    `dk` and `dv` are arrays for them, of any strides.

    Raises `ArgumentError` for arrays that do not fit together.
    """
    function = "attention_backward"
    problem = read_problem(function, q, k, v, causal, window, scale, (offsets, key_offsets, key_lengths))
    given = [read(function, name, x, (problem.q.dtype,)) for name, x in
             (("grad", grad), ("result_of_forward", result_of_forward))]  # fmt: skip
    numbers = [read(function, name, x, (problem.kind,)) for name, x in
               (("lse", lse), *([] if lse_grad is None else [("lse_grad", lse_grad)]))]  # fmt: skip
    for x, shape in (*((x, problem.result_shape()) for x in given), *((x, problem.numbers_shape()) for x in numbers)):
        if x.shape != shape:
            raise ArgumentError(f"{x.name} has the shape {x.shape}, and {shape} is expected for q {problem.q.shape}")
    check_together((problem.q, *given, *numbers))
    arrays = problem.q, problem.k, problem.v
    reads, types = (*arrays, *problem.sequences.given(), *given, *numbers), (problem.q.dtype,)
    found: list[Operand] = []
    writes: list[Operand] = []  # those of them that were given
    for x, out in zip(arrays, (dq, dk, dv), strict=True):
        made = result(function, out, x, x.shape, x.dtype, name=f"d{x.name}", types=types, reads=reads, writes=writes)
        found.append(made)
        writes += [made] if out is not None else []
    _backward(problem, given, numbers, found, deterministic)
    return found[0].array, found[1].array, found[2].array


def _backward(
    problem: Problem, given: list[Operand], numbers: list[Operand], found: list[Operand], ordered: bool
) -> None:
    grad, out = (problem.heads(x) for x in given)
    views = [problem.heads(x) for x in found]
    others = [problem.heads(x) for x in (problem.q, problem.k, problem.v)]
    lse, *slopes = (problem.numbers(x) for x in numbers)
    slope = slopes[0] if slopes else None
    if _gradients_of_whole_heads(problem, views, others, (grad, out, lse, slope)):
        return
    # The gradient of q is stored by TMA, those of k and v by threads.
    if all(family_of(problem, (x, *others)) == "hopper" for x in (grad, views[0])):
        gradients_on_hopper(problem, views, (grad, out, lse, slope), ordered)
    else:
        _gradients_by_tiles(problem, views, grad, *numbers_of_tokens(problem, grad, out, lse, slope))


def _gradients_of_whole_heads(
    problem: Problem, found: Sequence[View], arrays: Sequence[View], given: tuple[View, View, View, View | None]
) -> bool:
    """Launch the kernel whose blocks hold a head each, if they can; say whether."""
    (q, k, v), (grad, out, lse, slope) = arrays, given
    blocks = k.shape[0] * k.shape[1]
    # Those that share keys come one after another: of 256 tokens in 20 us each, in which other kernels take all of 32.
    is_slow = q.shape[1] > k.shape[1] and 2 * blocks < multiprocessors_of(problem.q)
    if problem.is_ragged or 0 in q.shape or 0 in v.shape or is_slow:
        return False
    vector = alignment_of((*found, *arrays, grad, out))
    plan = heads_plan(q.dtype, q.shape[3], v.shape[3], vector, max(q.shape[2], k.shape[2]), arch_of(problem.q))
    if plan is not None:
        launcher(gradients_of_heads, blocks, plan.threads, plan.blocks)(
            *found, *arrays, grad, out, lse, slope, problem.sequences.views()[2], problem.factor,
            np.float32(problem.scale), np.int32(problem.left), np.int32(problem.right), plan,
        )  # fmt: skip
    return plan is not None


def numbers_of_tokens(
    problem: Problem,
    grad: View,
    out: View,
    lse: View,
    subtracted: View | None = None,
    cleared: tuple[View | None, View | None] = (None, None),
    tile: int = 0,
) -> tuple[View, View]:
    """Return sum(grad * out) of each token, less a gradient of lse, and lse in units of log 2; clear sums and turns.

    Of sequences in one array, each tile of so many tokens has numbers of its own, if `tile` is given.
    """
    *leading, tokens = problem.numbers_shape()
    at = problem.sequences.views()[0] if tile else None
    # Tiles read what is behind; bulk copies begin at 16 bytes.
    length = -(-tokens // 4) * 4 + BEHIND if at is None else (tokens // tile + problem.count) * tile
    delta, tops = (problem.numbers(problem.make((*leading, length))) for _ in range(2))
    if 0 not in lse.shape:
        rows = plan_rows(grad.dtype.bits, max(grad.shape[3], 1), alignment_of((grad, out)))
        count = math.prod((lse if at is None else delta).shape)
        launcher(sum_products, rows.grid(count), rows.block, rows.min_blocks)(
            delta, tops, grad, out, lse, subtracted, *cleared, at, tile, rows.tiles, rows.held
        )
    return delta, tops


def _gradients_by_tiles(problem: Problem, found: Sequence[View], grad: View, delta: View, tops: View) -> None:
    q, k, v = (problem.heads(x) for x in (problem.q, problem.k, problem.v))
    longest, vector = max(q.shape[2], k.shape[2]), alignment_of((q, k, v, grad))
    plan = plan_for(q.dtype, q.shape[3], v.shape[3], vector, longest, arch_of(problem.q), True)
    factors = problem.factor, problem.kind.numpy.type(problem.scale)
    rest = (tops, delta, *problem.sequences.views(), *factors, np.int32(problem.left), np.int32(problem.right), plan)
    dq, dk, dv = found
    # Where there is nothing to add up, gradients are zeros; what has no elements is not computed.
    if 0 not in dq.shape:
        launcher(gradient_of_tokens, blocks_of(problem, dq, plan.rows), plan.threads)(dq, q, grad, k, v, *rest)
    if 0 not in dk.shape:
        launcher(gradients_of_keys, blocks_of(problem, dk, plan.rows), plan.threads)(dk, dv, k, v, q, grad, *rest)


def gradients_on_hopper(
    problem: Problem, found: Sequence[View], given: tuple[View, View, View, View | None], ordered: bool = True
) -> None:
    """Launch the kernel of Hopper that computes all gradients; blocks add to that of q in one order if `ordered`.

    `given` are the gradient of the result, the result, lse and its gradient.
    """
    q, k, v = (problem.heads(x) for x in (problem.q, problem.k, problem.v))
    batch, heads, _, head = q.shape
    plan = hopper_gradient_plan(q.dtype, head, ordered, v.shape[3])
    head, blocks = plan.head, blocks_of(problem, q, plan.columns)
    rows, slots = blocks * plan.columns, blocks * plan.consumers
    made = result(problem.function, None, problem.q, (rows * head,), float32)
    counted = result(problem.function, None, problem.q, (blocks,), int32) if ordered else None

    def seen(x: Operand | None, *shape: int) -> View | None:
        return None if x is None else x.view(shape, tuple(math.prod(shape[n + 1 :]) for n in range(len(shape))))

    cleared = (
        seen(made, batch, heads, rows // (batch * heads), head),
        seen(counted, batch, heads, blocks // (batch * heads)),
    )
    delta, tops = numbers_of_tokens(problem, *given, cleared, plan.columns)
    dq, dk, dv = found
    of_head = rows // (batch * k.shape[1]) * head * (2 * q.dtype.bytes + float32.bytes)
    together = max(1, min(CACHED // of_head, batch * k.shape[1]))
    factor, values = np.float32(problem.scale), rows * head // slots
    places = problem.sequences.views()
    launcher(gradients_by_warpgroups, blocks_of(problem, k, plan.rows), plan.threads)(
        dk, dv, seen(made, slots, values // 256, 256), seen(counted, blocks), k, v, q, given[0], tops, delta,
        *places, problem.factor, factor, np.int32(problem.right), np.int32(problem.left), np.int32(together), plan,
    )  # fmt: skip
    launcher(finish_tokens, blocks, 128 * plan.consumers)(
        dq, seen(made, slots, values // 512, 128, 4), places[0], factor, plan
    )


def multiprocessors_of(x: Operand) -> int:
    """Return how many multiprocessors an array's device has; none in the simulator."""
    device = x.info.device
    return 0 if isinstance(device, str) else driver.device_properties(device).multiprocessors


def arch_of(x: Operand) -> Arch:
    """Return the target that kernels on an array are compiled for; in the simulator, the default one."""
    device = x.info.device
    return default_arch() if isinstance(device, str) else driver.device_properties(device).arch


def blocks_of(problem: Problem, x: View, rows: int) -> int:
    """Return how many blocks take the tiles of x's tokens."""
    batch, heads, tokens, _ = x.shape
    if problem.is_ragged:
        return heads * (tokens // rows + problem.count)
    return batch * heads * -(-tokens // rows)


# --- arguments ------------------------------------------------------------------------------------------------------


def read_problem(
    function: str,
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    window: Window | None,
    scale: float | None,
    places: tuple[Any, Any, Any],
) -> Problem:
    """Return a call's problem; raise `ArgumentError` for arguments that do not fit together."""
    arrays = [read(function, name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    sequences = _sequences(function, *places)
    check_together((*arrays, *sequences.given()))
    queries, keys, values = arrays
    modes = "(tokens, heads, head)" if sequences.tokens is not None else "(batch, heads, tokens, head)"
    for x in arrays:
        if len(x.shape) != len(modes.split(",")):
            raise ArgumentError(
                f"{x.name} has the shape {x.shape}, and {function} takes {modes}"
                + (" with offsets" if sequences.tokens is not None else ""),
                help="x[None] adds a batch of one" if len(x.shape) == 3 and sequences.tokens is None else None,
            )
        if x.dtype != queries.dtype:
            raise ArgumentError(f"{x.name} is {x.dtype}, and q is {queries.dtype}", help="convert one of them")
    _check_shapes(function, queries, keys, values, sequences)
    left, right = _window(function, causal, window)
    head = queries.shape[-1]
    return Problem(function, queries, keys, values, sequences, left, right, _scale(function, scale, head))


def _check_shapes(function: str, q: Operand, k: Operand, v: Operand, sequences: Sequences) -> None:
    is_ragged = sequences.tokens is not None
    if k.shape[:-1] != v.shape[:-1]:
        raise ArgumentError(f"k has the shape {k.shape}, and v {v.shape}: all but the last mode agree")
    if q.shape[-1] != k.shape[-1]:
        raise ArgumentError(f"heads of q have {q.shape[-1]} elements, and those of k {k.shape[-1]}")
    if q.shape[-1] == 0:
        raise ArgumentError(f"heads of q have no elements: shape {q.shape}")
    heads, shared = q.shape[1], k.shape[1]
    if heads and (shared == 0 or heads % shared):
        raise ArgumentError(
            f"q has {heads} heads, and k and v have {shared}, which do not divide them",
            help="each key head serves as many heads of q",
        )
    if not is_ragged and q.shape[0] != k.shape[0]:
        raise ArgumentError(f"q has {q.shape[0]} batches, and k and v {k.shape[0]}")
    if sequences.lengths is not None and sequences.lengths.shape != q.shape[:1]:
        raise ArgumentError(
            f"key_lengths has the shape {sequences.lengths.shape}, and there are {q.shape[0]} batches of {function}"
        )
    x = sequences.lengths
    if x is not None and isinstance(x.info.device, str):
        numbers = host_array(x.array, x.name).tolist()
        if any(not 0 <= n <= k.shape[2] for n in numbers):
            raise ArgumentError(f"key_lengths are {numbers}, and there are {k.shape[2]} keys", help="numbers of keys")
    for x, total in ((sequences.tokens, q), (sequences.keys, k)):
        if x is not None and isinstance(x.info.device, str):
            numbers = host_array(x.array, x.name).tolist()
            if numbers[0] != 0 or numbers[-1] != total.shape[0] or sorted(numbers) != numbers:
                raise ArgumentError(
                    f"{x.name} are {numbers}, and {total.name} has {total.shape[0]} tokens",
                    help="from 0 to the number of tokens, none less than the one before",
                )


def _sequences(function: str, offsets: Any, key_offsets: Any, key_lengths: Any) -> Sequences:
    if offsets is None and key_offsets is not None:
        raise ArgumentError("key_offsets go with offsets", help="give the offsets of q too")
    if offsets is not None and key_lengths is not None:
        raise ArgumentError(
            "offsets and key_lengths do not go together", help="key_offsets say where the keys of a sequence are"
        )
    found: dict[str, Operand | None] = {}
    for name, x in (("offsets", offsets), ("key_offsets", key_offsets), ("key_lengths", key_lengths)):
        found[name] = None if x is None else read(function, name, x, (int32, int64))
        operand = found[name]
        if operand is not None and (len(operand.shape) != 1 or (name != "key_lengths" and operand.shape[0] < 2)):
            raise ArgumentError(
                f"{name} has the shape {operand.shape}",
                help="one number for each batch" if name == "key_lengths" else "one number more than sequences",
            )
    tokens, keys, lengths = found.values()
    if tokens is not None and keys is not None and tokens.shape != keys.shape:
        raise ArgumentError(f"offsets has the shape {tokens.shape}, and key_offsets {keys.shape}")
    if tokens is not None and keys is None:
        keys = replace(tokens, name="key_offsets (which are the offsets)")
    return Sequences(tokens, keys, lengths)


def _window(function: str, causal: Any, window: Any) -> tuple[int, int]:
    """Return how many keys a token sees before and behind the one beside it."""
    sides = (None, None) if window is None else window
    is_pair = isinstance(sides, (tuple, list)) and len(sides) == 2
    if not is_pair or any(
        side is not None and (isinstance(side, bool) or not isinstance(side, Integral) or side < 0) for side in sides
    ):
        raise ArgumentError(
            f"window of {function} is {window!r}",
            help="(left, right): keys before and behind the one beside the token, or None for all of a side",
        )
    left, right = (UNLIMITED if side is None else min(int(side), UNLIMITED) for side in sides)
    if not isinstance(causal, (bool, np.bool_)):
        raise ArgumentError(f"causal of {function} is {causal!r}", help="True or False")
    return left, 0 if causal else right


def _scale(function: str, scale: Any, head: int) -> float:
    if scale is None:
        return 1 / math.sqrt(head)
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise ArgumentError(f"scale of {function} is a number, got {type(scale).__name__}")
    return float(scale)
