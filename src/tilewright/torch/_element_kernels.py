"""Functions of neural networks and their derivatives, and dropout, element by element; traced into kernels.

`derivative` works on a number and on a tile. `finish` and `finish_pair` are epilogues of matmul; `activate`, `slopes`
and `drop_elements` are kernels of their own. Dropout has the mask that epilogues of products have.
"""

from __future__ import annotations

import math

import tilewright as tw
from tilewright.kernels._places_kernel import Places

THREADS = 128
TILES = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(THREADS), tw.Layout(8))
TILE = 8 * THREADS  # elements of a block
DROPPING = 256  # threads of a block of dropout
PERIOD, GROUPS, EACH = 32, 4, 8  # columns of a row, the calls of Philox for them, and the elements of a call


def derivative(function, order, x):
    """Return a function of x (order 0), or its first, second or third derivative."""
    return _FUNCTIONS[function](order, x)


def times(function, order, x, factor):
    """Return a derivative times a factor: relu has none below 0, whatever the factor is there."""
    slope = derivative(function, order, x)
    return tw.where(slope == 0, 0, factor).to(factor.dtype) if function == "relu" and order else slope * factor


def _relu(order, x):
    # Comparisons with NaN are false: it stays NaN, and its gradient passes, as in torch.
    if order == 0:
        return tw.where(x < 0, 0, x)
    return tw.where(x <= 0, 0, 1 if order == 1 else 0).to(x.dtype)


def _sigmoid(x):
    """Return 1 / (1 + exp(-x)), of float32 to a few units of the last place.

    An exact division branches for each element, and keeps an epilogue from working on several at once. Subnormal
    numbers vanish in the sum, and have ten further instructions.
    """
    if x.dtype is tw.float64:
        return 1 / (1 + tw.exp(-x))
    return tw.rcp_approx(1 + tw.ex2_approx(x * -math.log2(math.e), ftz=True), ftz=True)


def _silu(order, x):
    s = _sigmoid(x)
    if order == 0:
        return x * s
    s1 = s * (1 - s)
    if order == 1:
        return s + x * s1
    s2 = s1 * (1 - 2 * s)
    if order == 2:
        return 2 * s1 + x * s2
    return 3 * s2 + x * (s2 * (1 - 2 * s) - 2 * s1 * s1)


def _gelu(order, x):
    if order <= 1:
        below = 0.5 * (1 + tw.erf(x * math.sqrt(0.5)))
    if order == 0:
        return x * below
    density = tw.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    if order == 1:
        return below + x * density
    return density * (2 - x * x) if order == 2 else density * (x * x * x - 4 * x)


def _gelu_16(order, x):
    """Return gelu of float32 for a result of 16 bits: within 2^-12 of the result, or 6e-8 x where that is more.

    The normal distribution as 1 / (1 + 2^(x p)), p a polynomial of x^2; an element takes 10 instructions, by erf 26.
    """
    assert order == 0, order
    t, p = x * x, -1.1543474e-06
    for coefficient in (3.2277904e-05, 8.4196676e-04, -1.0671545e-01, -2.3008009):
        p = tw.fma(p, t, coefficient)
    return x * tw.rcp_approx(1 + tw.ex2_approx(x * p, ftz=True), ftz=True)


def _gelu_tanh(order, x):
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    if order == 0:
        return x * _sigmoid(x * tw.fma(x * x, 2 * scale * cubic, 2 * scale))
    t = tw.tanh(scale * (x + cubic * x * x * x))
    u1, u2, u3 = scale * (1 + 3 * cubic * x * x), 6 * scale * cubic * x, 6 * scale * cubic
    rest = 1 - t * t
    t1 = rest * u1
    if order == 1:
        return 0.5 * (1 + t) + 0.5 * x * t1
    t2 = rest * u2 - 2 * t * t1 * u1
    if order == 2:
        return t1 + 0.5 * x * t2
    t3 = rest * u3 - 4 * t * t1 * u2 - 2 * (t1 * t1 + t * t2) * u1
    return 1.5 * t2 + 0.5 * x * t3


_FUNCTIONS = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}
FUNCTIONS = tuple(_FUNCTIONS)
_FUNCTIONS["gelu_16"] = _gelu_16  # what an epilogue of that name is where it is rounded to 16 bits


def finish(accumulator, function, gate=None, residual=None, drop=None):
    """Return what an epilogue of a name makes of an accumulator; `gate` and `residual` are their elements there.

    `drop` is a dropout between the function and the residual.
    """
    found = accumulator
    if function == "swiglu":
        found = derivative("silu", 0, gate.to(found.dtype)) * found
    elif function:
        found = derivative(function, 0, found)
    if drop is not None:
        found = drop(found)
    return found if residual is None else found + residual.to(found.dtype)


def finish_pair(gate, up, function, keeps=False, residual=None, drop=None):
    """Return what an epilogue of a name makes of a pair of accumulators, and both of them where it `keeps` them."""
    found = finish(derivative(function, 0, gate) * up, "", residual=residual, drop=drop)
    return (found, gate, up) if keeps else found


@tw.kernel
def activate(y, x, factor, addend, function: tw.constexpr, order: tw.constexpr, operands: tw.constexpr):
    """Compute y = derivative(x) * factor + addend, without those that `operands` does not name; all are vectors."""
    thread, block = TILES.get_slice(tw.thread_idx.x), (tw.block_idx.x,)
    size, kind = (TILE,), tw.float64 if x.dtype == tw.float64 else tw.float32
    values = thread.partition_S(tw.local_tile(x, size, block, guard=True)).to(kind)
    if "factor" in operands:
        found = times(
            function, order, values, thread.partition_S(tw.local_tile(factor, size, block, guard=True)).to(kind)
        )
    else:
        found = derivative(function, order, values)
    if "addend" in operands:
        found = found + thread.partition_S(tw.local_tile(addend, size, block, guard=True)).to(kind)
    part = thread.partition_D(tw.local_tile(y, size, block, guard=True))
    part[...] = found.to(y.dtype)


@tw.kernel
def slopes(dx, dfactor, grad, x, factor, function: tw.constexpr, order: tw.constexpr):
    """Compute the gradients of x and factor of derivative(x) * factor; all are (rows, columns), of any strides."""
    thread, tiles = TILES.get_slice(tw.thread_idx.x), tw.ceil_div(x.shape[1], TILE)
    row, tile = tw.block_idx.x // tiles, tw.block_idx.x % tiles
    kind = tw.float64 if x.dtype == tw.float64 else tw.float32
    parts = [thread.partition_S(tw.local_tile(t[row, :], (TILE,), (tile,), guard=True)) for t in (grad, x, factor)]
    gradient, values, other = (part.to(kind) for part in parts)
    found = times(function, order + 1, values, gradient * other), times(function, order, values, gradient)
    for t, slope in zip((dx, dfactor), found, strict=True):
        thread.partition_D(tw.local_tile(t[row, :], (TILE,), (tile,), guard=True))[...] = slope.to(t.dtype)


@tw.kernel
def drop_elements(y, x, seed, threshold, scale, width: tw.constexpr):
    """Compute y = x * scale, and 0 for elements whose random bits are below a threshold.

    A thread takes what one call of Philox is for: pairs of columns in four groups of eight. `width` of these, side by
    side, are one access.
    """
    rows, columns = x.shape
    number = tw.block_idx.x * DROPPING + tw.thread_idx.x
    calls = tw.ceil_div(columns, PERIOD) * GROUPS
    row, call = number // calls, number % calls
    kind = tw.float64 if x.dtype == tw.float64 else tw.float32
    if row < rows:
        first = call // GROUPS * PERIOD + call % GROUPS * 2
        places, numbers = Places(row, first, 0, zeros=0b11001), [tw.uint32(n) for n in (0, 1, 0)]
        factor, key = scale.to(kind), seed[0]
        bits = {}  # computed before the branches below, all of which use them
        for along in [8 * word + half for word in range(EACH // 2) for half in range(2)]:
            bits[along] = places.at(0, along).bits(0, key, "N", numbers)
        for word in tw.static_range(EACH // 2):
            for half in tw.static_range(0, 2, width):
                column = first + 8 * word + half
                if column < columns:
                    vector = tw.registers(x.dtype, (1, width))
                    source, target = (tw.local_tile(t, (1, width), (row, column // width)) for t in (x, y))
                    tw.copy(source, vector)
                    for i in tw.static_range(width):
                        is_kept = bits[8 * word + half + i] >= threshold
                        vector[0, i] = tw.where(is_kept, vector[0, i].to(kind) * factor, 0).to(x.dtype)
                    tw.copy(vector, target)
