"""One random product: sizes, and arrays with numbers in them, for a kind and a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from benchmarks.random_problems.epilogues import EPILOGUES
from benchmarks.random_problems.kinds import Kind, seeded
from benchmarks.random_problems.layouts import Lay, Random, drawn_extents, row_major
from benchmarks.random_problems.memory import POOL, STYLES, Held, Memory
from benchmarks.random_problems.subjects import SUBJECTS
from tests.helpers.dropout import kept

import tilewright as tw
from tilewright.kernels.quantized import Quantized
from tilewright.kernels.weights import WeightFormat, check_group

BLOCK = 128
_HOST_AREA = 1 << 21  # elements of weights that are packed on the host; of bits of dropout, which take longer, less
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-40)


@dataclass
class Product:
    """A call: `a`, `b` (an array, or weights), `given` for a result, and the other arguments by their names.

    `held` are the arrays that are read, by their names. `full` are weights in float64; `row`, `column`, `gain` and
    `kept` (0, or the factor of an element that is kept) what the epilogue takes.
    """

    kind: Kind
    extents: tuple[int, int, int]
    style: str
    b: Any
    out: Held | None
    shape: tuple[int, ...]
    options: dict[str, Any]
    held: dict[str, Held] = field(default_factory=dict)
    full: Any = None  # packed weights in float64
    gain: float = 1
    kept: Any = None
    specials: int = 0

    @property
    def a(self) -> Any:
        return self.held["a"].array

    @property
    def given(self) -> Any:
        """The array that the call gets for its result, or None."""
        return None if self.out is None else self.out.array

    def __str__(self) -> str:
        m, n, k = self.extents
        shapes = {name: f"{x.array.shape} by {_strides(x)}" for name, x in self.held.items()}
        return f"{m} x {n} x {k}, {self.style}, {self.specials} special, {shapes}"


def _strides(held: Held) -> tuple[int, ...]:
    given = held.bits.stride() if callable(getattr(held.bits, "stride", None)) else held.bits.strides
    size = 1 if callable(getattr(held.bits, "stride", None)) else held.dtype.bytes
    return tuple(int(step) // size for step in given)


@dataclass(frozen=True)
class Limits:
    """How large problems may be: extents are those of the subject, in the simulator its `small` ones."""

    is_small: bool
    volume: int
    area: int

    def ranges(self, family: str) -> list[tuple[int, int]]:
        """Return the least and the largest M, N and K of a family."""
        subject = SUBJECTS[family]
        return list(zip(subject.least, subject.small if self.is_small else subject.most, strict=True))


ON_GPU = Limits(False, 1 << 32, 1 << 23)
IN_SIMULATOR = Limits(True, 1 << 21, 1 << 17)


def batches(kind: Kind, random: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the modes of a batch of A and of B."""
    p, q = (int(x) for x in random.integers(2, 4, 2))
    found = {
        None: ((), ()), "a only": ((p,), ()), "b only": ((), (p,)), "cross": ((p, 1), (q,)),
    }  # fmt: skip
    return found.get(kind.batch, ((p,), (p,)))


def draw(kind: Kind, seed: int, index: int, memory: Memory, limits: Limits) -> Product:
    """Return a problem of a kind; all of it follows from the seed and the number `index`."""
    random = seeded("problem", seed, kind.family, index)
    area = limits.area
    if kind.epilogue and EPILOGUES[kind.epilogue].drops:
        area = min(area, _HOST_AREA >> 4)
    if kind.weights is not None:
        area = min(area, _HOST_AREA)
    extents = m, n, k = drawn_extents(kind.fits, limits.ranges(kind.family), limits.volume, area, random)
    style = STYLES[int(random.choice(3, p=(0.4, 0.45, 0.15)))]
    of_a, of_b = batches(kind, random)
    shape = (*np.broadcast_shapes(of_a, of_b), m, n)
    held = {"a": _matrix(memory, kind.a, (*of_a, m, k), kind.lays[0], style, random)}
    b: Any
    if kind.weights is None:
        held["b"] = _matrix(memory, kind.b, (*of_b, k, n), kind.lays[1], style, random)
        b, full = held["b"].array, None
    else:
        b, full = _weights(kind, k, n, style == "whole", memory, held, random)
    out = None
    is_out_read = kind.c is not None and kind.c[1] == "out"
    if kind.gives_out or is_out_read:
        dtype = getattr(tw, kind.out)
        out = memory.hold(dtype, kind.lays[2].place(shape, dtype.bytes, random))
    product = Product(kind, extents, style, b, out, shape, {}, held, full)
    _add_options(product, memory, random)
    is_exact = bool(kind.also) or kind.is_whole
    if not is_exact and random.random() < 0.15 and memory.fills:
        _sprinkle(product, memory, random)
    return product


def _matrix(memory: Memory, dtype: str, shape: tuple[int, ...], lay: Lay, style: str, random: Random) -> Held:
    kind, begin = getattr(tw, dtype), int(random.integers(POOL))
    if random.random() < 0.1 and memory.goes_backwards:
        lay = replace(lay, is_backward=True)
    return memory.numbers(kind, lay.place(shape, kind.bytes, random), style, begin)


def _add_options(product: Product, memory: Memory, random: Random) -> None:
    """Draw what the call is given beside A, B and the result."""
    kind, options, held = product.kind, product.options, product.held
    (m, n, _), shape = product.extents, product.shape
    numbers = product.style if not kind.is_whole else "whole"
    if kind.alpha != 1:
        options["alpha"] = kind.alpha
    forms = {"full": shape, "row": (n,), "column": (m, 1), "one": (1,)}
    if kind.c is not None:
        options["beta"] = 2 if kind.is_whole else -0.5
        if kind.c[1] != "out":
            held["c"] = _addend(memory, kind.c[0], forms[kind.c[1]], kind.lays[3], numbers, random)
            options["c"] = held["c"].array
    if kind.bias is not None:
        held["bias"] = _addend(memory, kind.bias[0], forms[kind.bias[1]], kind.lays[3], numbers, random)
        options["bias"] = held["bias"].array
    if kind.scales is not None:
        for name, scale in _scales(kind.scales, product.extents, product.style == "whole", random).items():
            held[name] = memory.from_host(scale)
            options[name] = held[name].array
    if kind.epilogue is not None:
        _add_epilogue(product, memory, numbers, random)
    if kind.also:
        options["also"] = [x if isinstance(x, tuple) else getattr(tw, x) for x in kind.also]
    if product.out is None and kind.out != _default(kind):
        options["out_dtype"] = getattr(tw, kind.out)
    if kind.precision is not None:
        options["precision"] = kind.precision


def _default(kind: Kind) -> str:
    """Return the type of a result of which nothing is said."""
    return "int32" if kind.is_whole else "bfloat16" if kind.a.startswith("float8") else kind.a


def _addend(memory: Memory, dtype: str, shape: tuple[int, ...], lay: Lay, style: str, random: Random) -> Held:
    kind, begin = getattr(tw, dtype), int(random.integers(POOL))
    placed = lay.place(shape, kind.bytes, random) if len(shape) > 1 and shape[-1] > 1 else row_major(shape)
    return memory.numbers(kind, placed, style, begin)


def _add_epilogue(product: Product, memory: Memory, style: str, random: Random) -> None:
    kind = product.kind
    assert kind.epilogue is not None
    epilogue, (m, n, _) = EPILOGUES[kind.epilogue], product.extents
    product.gain = 3 if kind.is_whole else float(random.choice([0.5, 1.25, 2.0, -3.0]))
    row = column = drop = None
    if epilogue.captures:
        dtype = "int32" if kind.is_whole else "float32"
        product.held["row"] = _addend(memory, dtype, (n,), kind.lays[3], style, random)
        row = product.held["row"].array
        if not epilogue.drops:
            product.held["column"] = _addend(memory, dtype, (m, 1), kind.lays[3], style, random)
            column = product.held["column"].array
    if epilogue.drops:
        p, seed = float(random.choice([0.1, 0.5, 0.25])), int(random.integers(1 << 60))
        drop = tw.dropout(p, seed)
        if memory.fills:
            product.kept = memory.put(kept(product.shape, p, seed) * drop.scale)
    product.options["epilogue"] = epilogue.make(row, column, product.gain, drop)


def _scales(form: str, extents: tuple[int, int, int], is_exact: bool, random: Random) -> dict[str, Any]:
    """Return scales of a form, in NumPy: powers of two, or numbers around 1."""
    m, n, k = extents
    rows, columns, steps = (-(-x // BLOCK) for x in (m, n, k))
    shapes = {
        "one": {"scale_a": (1,)}, "rows": {"scale_a": (m, 1)}, "columns": {"scale_b": (n,)},
        "both": {"scale_a": (m, 1), "scale_b": (1, n)}, "1": {"scale_a": (m, steps)},
        "128": {"scale_a": (rows, steps)},
        "1 and 128": {"scale_a": (m, steps), "scale_b": (steps, columns)},
        "128 and columns": {"scale_a": (rows, steps), "scale_b": (steps, n)},
    }[form]  # fmt: skip

    def numbers(shape: tuple[int, ...]) -> Any:
        return np.exp2(random.integers(-2, 3, shape)) if is_exact else random.uniform(0.5, 1.5, shape)

    return {name: numbers(shape).astype(np.float32) for name, shape in shapes.items()}


def _weights(
    kind: Kind, k: int, n: int, is_exact: bool, memory: Memory, held: dict[str, Held], random: Random
) -> tuple[Any, Any]:
    """Return packed weights, whose arrays lie inside of bands, and what they stand for in float64."""
    assert kind.weights is not None
    bits, group, scale, zeros = kind.weights
    groups, rows = 1 if group == -1 else -(-k // group), k if group == -1 else group
    if not memory.fills:
        return _no_weights(kind, k, n, memory, held), None
    codes = random.integers(0, 2**bits, (k, n), np.uint8)
    powers = np.exp2(random.integers(-2, 2, (groups, n)))
    scales = (powers if is_exact else random.uniform(0.01, 0.1, (groups, n))).astype(getattr(tw, scale).numpy)
    one = kind.number % (2**bits + 1)  # which is compiled in
    zero = {"none": None, "one": np.full((groups, n), one), "each": random.integers(0, 2**bits + 1, (groups, n))}[zeros]
    packed = tw.quantized(codes, scales, None if zero is None else zero.astype(np.int16), bits=bits, group=group)
    names = ("packed", "scales", "zeros")
    for name in names:
        if getattr(packed, name) is not None:
            held[name] = memory.from_host(getattr(packed, name))
    arrays = {name: held[name].array if name in held else None for name in names}
    full = codes.astype(np.float64) - (0 if zero is None else np.repeat(zero, max(rows, 1), 0)[:k])
    full *= np.repeat(scales.astype(np.float64), max(rows, 1), 0)[:k]
    return type(packed)(**arrays, format=packed.format, order=packed.order), memory.put(full)


def _no_weights(kind: Kind, k: int, n: int, memory: Memory, held: dict[str, Held]) -> Quantized:
    """Return weights of which a kernel is compiled for the format alone."""
    assert kind.weights is not None
    bits, group, scale, zeros = kind.weights
    zero = {"none": 0, "one": kind.number % (2**bits + 1), "each": None}[zeros]
    found = WeightFormat(bits, k, n, check_group(group, k), getattr(tw, scale), zero)
    beside = (found.tiles, found.groups, 16)
    shapes = {"packed": ((found.tiles, found.chunks, found.words), np.int32), "scales": (beside, found.scale.numpy)}
    if zero is None:
        shapes["zeros"] = (beside, np.uint8 if bits == 4 else np.int16)
    for name, (shape, dtype) in shapes.items():
        held[name] = memory.hold(tw.dtype(dtype), row_major(shape))
    zeros_held = held["zeros"].array if zero is None else None
    return Quantized(held["packed"].array, held["scales"].array, zeros_held, found)


def _sprinkle(product: Product, memory: Memory, random: Random) -> None:
    """Put a few numbers that are not finite, zeros with a sign and subnormal ones into A, B and what is added."""
    places = [name for name in ("a", "b", "c", "bias") if name in product.held]
    kinds = (*_SPECIAL[:-1], 2.0**-133) if product.kind.precision == "tf32" else _SPECIAL  # which 11 bits hold
    for _ in range(int(random.integers(1, 5))):
        held = product.held[places[int(random.integers(len(places)))]]
        value = np.array(kinds[int(random.integers(len(kinds)))]).astype(held.dtype.numpy)
        place = tuple(int(random.integers(extent)) for extent in held.bits.shape if extent)
        if len(place) == len(held.bits.shape):
            held.bits[place] = int(value.view(f"i{held.dtype.bytes}"))
            product.specials += 1
