"""Whether a kernel computes what it should: what the program says, or what the untransformed nests compute.

A kernel is run in the simulator where that takes seconds. One with more iterations is compiled as C++ for the CPU where
its text allows that; else the simulator runs the first blocks of its grid, and the elements that these write are compared. What was not run whole is noted in `notes`.
"""

from __future__ import annotations

import re
import time

import numpy as np
from tests.accera import host

import tilewright.schedule as ts
from tilewright.errors import ArgumentError, CheckError
from tilewright.schedule.scheduled import strides_for

SIMULATED = 15_000  # iterations that the simulator takes in seconds, for one thread
_EXTENT = 37  # of a size that only the launch knows, where the program does not say

_TOLERANCE = {"float16": 1e-2, "bfloat16": 4e-2}  # sums are rounded to the array's type more than once
_PATIENCE = 25  # seconds, for comparisons that a program does not ask for
_ROOM = 4096  # elements before and behind an array, for programs that read outside of it

notes: list[str] = []
checked: set[str] = set()
pending: list = []


class Disagreement(AssertionError):
    """A kernel computes something else."""


def added(function):
    pending.append(function)


def build(function):
    """Print the kernel's text: all that is decided when a plan is built has been decided then."""
    assert function.made.device_source.text


def finish():
    """Compare every function that the program has not compared itself with its untransformed nests."""
    start = time.time()
    for function in pending:
        if function.name in checked:
            continue
        if time.time() - start > _PATIENCE:
            notes.append(f"{function.name} and what was added after it: built, and not compared")
            break
        if function.is_plain:
            notes.append(f"{function.name}: untransformed, and nothing to compare it with")
        else:
            against_nests(function)


def check(function, before, after, tolerance):
    """Call a function with copies of `before` and compare them with `after`, as Accera's verifier does."""
    kernel = function.made.kernel
    given = list(zip(before, after, strict=False))
    if len(given) == len(function.args) > len(kernel.parameters):  # sizes are told from the arrays
        given = [x for x, array in zip(given, function.args, strict=True) if not isinstance(array, ts.Dimension)]
    if len(given) < len(kernel.parameters):  # as hatlib does, which tells sizes from the arrays too
        given = with_sizes(kernel, given)
    arrays = [
        (array, np.asarray(value), np.asarray(wanted))
        for array, (value, wanted) in zip(kernel.parameters, given, strict=True)
    ]
    values = [laid_out(array, value) for array, value, _ in arrays]
    given = [copied(array, value) for (array, _, _), value in zip(arrays, values, strict=True)]
    is_whole = run(kernel, values, function.made)
    checked.add(function.name)
    for (array, _, wanted), value, old in zip(arrays, values, given, strict=True):
        if isinstance(value, np.ndarray):
            compare(array.name, value, wanted.reshape(value.shape), tolerance, None if is_whole else old)


def product(nest, values):
    """Add up a nest `C[i, j] += A[i, k] * B[k, j]` of single indices with NumPy; return whether it is one."""
    if len(nest.statements) != 1:  # none, where a nest calls functions alone
        return False
    statement = nest.statements[0]
    text = re.fullmatch(r"(\w+)\[([\w, ]+)\] \+= (\w+)\[([\w, ]+)\] \* (\w+)\[([\w, ]+)\]", str(statement))
    if text is None:
        return False
    target, to, first, one, second, two = text.groups()
    by_name = {getattr(array, "name", None): value for array, value in values.items()}
    names = sorted({*to.split(", "), *one.split(", "), *two.split(", ")})
    if len(names) != len(nest.indices) or not {target, first, second} <= set(by_name):
        return False
    if any(name.isdigit() for name in names) or by_name[target].shape == ():
        return False
    letters = {name: chr(ord("a") + n) for n, name in enumerate(names)}
    terms = ["".join(letters[name] for name in places.split(", ")) for places in (one, two, to)]
    extents = dict(zip(names, [None] * len(names), strict=True))
    for array, places in ((target, to), (first, one), (second, two)):
        for name, extent in zip(places.split(", "), by_name[array].shape, strict=True):
            if extents[name] not in (None, extent):
                return False
            extents[name] = extent
    shape = {str(index): extent for index, extent in zip(nest.indices, nest.shape, strict=True)}
    if any(isinstance(extent, int) and extents[name] != extent for name, extent in shape.items()):
        return False
    exact = np.float64 if by_name[first].dtype.kind not in "iu" else np.int64
    added = np.einsum(
        f"{terms[0]},{terms[1]}->{terms[2]}", by_name[first].astype(exact), by_name[second].astype(exact), optimize=True
    )
    by_name[target][...] = (by_name[target].astype(exact) + added).astype(by_name[target].dtype)
    return True


def finish_elements(values, operation, argument):
    """Do to an array what the prologue or epilogue of a tile does to its elements."""
    kind = ts.MMAFragmentOp
    if values is None or operation is kind.NONE:
        return
    if operation in (kind.ReLU, kind.ReLU_NoConditional):
        values[...] = np.maximum(values, 0)
    elif operation is kind.SET:
        values[...] = argument
    else:
        values[...] = values * argument


def with_sizes(kernel, given):
    """Return pairs of values with those of the sizes that are arguments of their own among them.

    Sizes that are given, where others are not, are left out: they are told from the arrays.
    """
    known = sum(not isinstance(array, ts.Dimension) for array in kernel.parameters)
    rest = iter(given[len(given) - known :])
    found = [None if isinstance(array, ts.Dimension) else next(rest) for array in kernel.parameters]
    sizes = {}
    for array, pair in zip(kernel.parameters, found, strict=True):
        if pair is not None:
            sizes.update(zip(array.shape, np.shape(pair[0]), strict=False))
    return [
        pair or (np.int64(sizes[size]), np.int64(sizes[size]))
        for size, pair in zip(kernel.parameters, found, strict=True)
    ]


def against_nests(function):
    """Compare a function on random numbers with the nests of its plan, run one after another as they were declared.

    Sizes that are arguments of their own, which may say where a tile begins, are small where others are not possible.
    """
    has_sizes = any(isinstance(array, ts.Dimension) for array in function.made.kernel.parameters)
    for extent in (None, 1, 0) if has_sizes else (None,):
        try:
            compare_with_nests(function, extent)
            return
        except ArgumentError:
            if not has_sizes:
                raise
    notes.append(f"{function.name}: result not compared, for it takes none of the sizes that were tried")


def compare_with_nests(function, extent=None):
    """Compare as `against_nests` does, with one number for all sizes that are arguments of their own."""
    kernel = function.made.kernel
    sources = function.sources
    arrays = kernel.parameters
    temporaries = [a for a in kernel.plan.arrays if a.role is ts.Role.TEMP]
    if not sources or (temporaries and len(sources) > 1):
        notes.append("result not compared: no untransformed program to compare with")
        return
    random = np.random.default_rng(0)
    sizes: dict = {}
    if extent is not None:
        sizes = {size: extent for size in arrays if isinstance(size, ts.Dimension)}
    # Caches that keep elements in another type convert whole numbers without a loss.
    is_converted = any(cache.element_type != cache.array.element_type for cache in kernel.plan.caches)
    values = [random_values(array, sizes, random, is_converted) for array in arrays]
    wanted = [copied(array, value) for array, value in zip(arrays, values, strict=True)]
    old = [copied(array, value) for array, value in zip(arrays, values, strict=True)]
    by_array = dict(zip(arrays, wanted, strict=True))
    tile = kernel.plan.tensorization
    if tile is not None:
        finish_elements(by_array.get(tile.c.array), *tile.prologue)
    for place, source in enumerate(sources):
        if tile is not None and place == 1:
            finish_elements(by_array.get(tile.c.array), *tile.epilogue)
        plain = source.create_plan()
        if plain.is_delayed:  # with parameters, arrays are made anew, under the same names
            plain = plain.with_parameters(function.made.parameters)
            by_name = {array.name: array for array in plain.arguments}
            used, given = [], []
            for array in arrays:
                if array.name in by_name:
                    used.append(by_name[array.name])
                    given.append(by_array[array])
        else:
            if product(source, by_array):
                continue
            used = [array for array in arrays if array in plain.arguments or isinstance(array, ts.Dimension)]
            given = [by_array[array] for array in used]
        try:
            run(plain.build("reference", used), given)
        except CheckError as error:  # the simulator's: a read outside of an array, a negative power of an integer
            notes.append(f"result not compared, for the program itself is wrong: {str(error).splitlines()[0]}")
            return
    if tile is not None and len(sources) == 1:
        finish_elements(by_array.get(tile.c.array), *tile.epilogue)
    is_whole = run(kernel, values, function.made)
    for array, value, right, before in zip(arrays, values, wanted, old, strict=True):
        if isinstance(value, np.ndarray):
            compare(array.name, value, right, _TOLERANCE.get(value.dtype.name, 1e-4), None if is_whole else before)


def laid_out(array, value):
    """Return a copy of a value in the type and strides that an array was declared with."""
    if isinstance(array, ts.Dimension):
        is_read = array.role is ts.Role.INPUT
        return np.int64(value.item()) if is_read else value.reshape((1,)).astype(np.int64)
    if not array.rank:
        return array.element_type.numpy.type(value.item())
    made = empty(array, value.shape if value.ndim == array.rank else shape_of(array, {}))
    made[...] = value.reshape(made.shape)
    return made


def copied(array, value):
    """Return a copy of an argument, in the same strides."""
    return laid_out(array, value) if isinstance(value, np.ndarray) else value


def empty(array, shape):
    """Return an array of zeros in the strides of its declaration, with room around it."""
    steps = strides_for(array, tuple(int(extent) for extent in shape))
    kind = np.dtype(array.element_type.numpy)
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    memory = np.zeros(max(span, 1) + 2 * _ROOM, kind)
    return np.lib.stride_tricks.as_strided(memory[_ROOM:], shape, [step * kind.itemsize for step in steps])


def shape_of(array, sizes):
    return tuple(
        extent if isinstance(extent, int) else sizes.setdefault(extent, _EXTENT + 2 * len(sizes))
        for extent in array.shape
    )


def shape_of_size(size, sizes):
    """Return the extent that was chosen for a size."""
    return sizes.setdefault(size, _EXTENT + 2 * len(sizes))


def random_values(array, sizes, random, is_whole=False):
    if isinstance(array, ts.Dimension):
        return np.int64(shape_of_size(array, sizes)) if array.role is ts.Role.INPUT else np.zeros((1,), np.int64)
    kind = array.element_type
    shape = shape_of(array, sizes)
    if is_whole and kind.kind != "bool":
        drawn = random.integers(0, 3, shape)
    elif kind.kind == "float":
        drawn = random.integers(-8, 9, shape) / 8
    elif kind.kind == "bool":
        drawn = random.integers(0, 2, shape)
    else:
        drawn = random.integers(0 if kind.kind == "uint" else -5, 6, shape)
    if not array.rank:
        return kind.numpy.type(drawn)
    made = empty(array, shape)
    made[...] = drawn.astype(made.dtype)
    return made


def iterations(kernel, values):
    """Return how often the innermost loops run in all, over all threads."""
    sizes = sizes_of(kernel, values)
    total = 1
    for loop in kernel.plan.nest.loops:
        trips = loop.trips
        if trips is None:
            trips = -(-int(loop.stop.evaluate(sizes)) // loop.step)
        total *= max(trips, 1)
    return total * max(len(part.statements) for part in kernel.plan.nest.parts)


def sizes_of(kernel, values):
    """Return the extent of each size of the launch."""
    sizes = {}
    for array, value in zip(kernel.parameters, values, strict=True):
        if isinstance(array, ts.Dimension):
            sizes[array] = int(np.asarray(value).reshape(-1)[0])
        elif array.rank and isinstance(value, np.ndarray):
            sizes.update((e, n) for e, n in zip(array.shape, value.shape, strict=False) if isinstance(e, ts.Dimension))
    return sizes


def run(kernel, values, function=None):
    """Call a kernel; return whether all of it ran."""
    work = iterations(kernel, values)
    grid = kernel.grid_for(*values)
    threads = int(np.prod(kernel.block))
    blocks = int(np.prod(grid))
    cost = work / min(threads, 32)
    if cost > SIMULATED:
        ran = host.run(kernel, values, grid, function)
        if isinstance(ran, int):
            if ran < blocks:
                notes.append(f"{ran} of {blocks} blocks run on the host")
            return ran == blocks
        notes.append(f"not compiled for the host: {ran}")
    most = max(1, int(SIMULATED * blocks / max(cost, 1)))
    if blocks <= most:
        kernel(*values)
        return True
    _, arguments = kernel._launch(tuple(values))
    x = min(grid[0], max(1, most))
    y = min(grid[1], max(1, most // x))
    kernel._launcher((x, y, 1))(*arguments)
    notes.append(f"{x * y} of {blocks} blocks simulated")
    return False


def compare(name, value, wanted, tolerance, before=None):
    """Raise `Disagreement` where values differ; with `before`, where those that changed do."""
    value, wanted = np.asarray(value).astype(np.float64), np.asarray(wanted).astype(np.float64)
    if before is not None:
        changed = value != np.asarray(before).astype(np.float64)
        if not changed.any():
            if not (wanted != np.asarray(before).astype(np.float64)).any():
                return
            raise Disagreement(f"{name}: the blocks that ran changed nothing")
        value, wanted = value[changed], wanted[changed]
    scale = float(np.max(np.abs(wanted), initial=0.0))
    slack = max(tolerance, 1e-5)
    bad = ~np.isclose(value, wanted, rtol=slack, atol=slack * max(scale, 1e-30), equal_nan=True)
    if bad.any():
        where = tuple(int(n) for n in np.argwhere(bad)[0])
        raise Disagreement(
            f"{name}: {int(bad.sum())} of {bad.size} elements differ, at {where} {value[where]} instead of {wanted[where]}"
        )
