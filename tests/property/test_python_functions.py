"""Variables that functions share, jumps, and first assignments: by Python itself and on the simulator."""

from __future__ import annotations

import functools
import weakref

import numpy as np
import pytest
from tests.helpers.python_state import Plain, Programs, assert_agrees, make_counter

import tilewright as tw

PROGRAMS = Programs()
carried = PROGRAMS.carried


@pytest.mark.parametrize("function", PROGRAMS.agreeing)
def test_python_and_the_device_agree(function):
    assert_agrees(function)


# --- functions ------------------------------------------------------------------------------------------


@tw.function
def add_to(items, x):
    if x > 2:
        items[0] += x
    else:
        items[1] += 1


def add_plain(items, x=1):
    items[0] += x


@carried
def list_handed_to_functions(out, x, n):
    items = [0, 0]
    for i in range(n):
        add_to(items, x[i])
        add_plain(items)
        add_plain(x=i, items=items)
    out[0], out[1] = items


@carried
def side_effects_in_expressions(out, x, n):
    seen = [0, 0]

    def note(k, value):
        seen[k] += 1
        return value

    for i in range(n):
        a = note(0, 5) if x[i] > 2 else note(1, 6)
        if x[i] > 1 and note(0, x[0]) > 0:
            out[3] += a
        if x[i] > 4 or note(1, x[0]) > 0:
            out[4] += 1
        if x[i] < 3 < note(0, 4):
            out[5] += 1
    out[0], out[1] = seen


@carried
def any_and_all_stop_where_an_item_decides(out, x, n):
    seen = [0]

    def note(v):
        seen[0] = (seen[0] * 3 + v) & 1023
        out[3] += v
        return v > 3

    for i in range(n):
        out[0] += 1 if any(note(v) for v in ((x[i] & 7) + 1, 2, 5)) else 0
        out[1] += 1 if all(map(note, (x[i], 7, 1))) else 0
        out[2] += 1 if any(note(v) for v in (1, 9, x[i])) else 0  # known while tracing
    out[4] = seen[0]


@carried
def closure_reads_the_loop_around_its_call(out, x, n):
    k, s = 0, 0
    load = lambda: x[k]  # noqa: E731
    while k < n:
        s += load()
        k += 1
    for k in range(n):
        s += 10 * load()
    for k in tw.static_range(3):
        s += 100 * load()
    out[0] = s


@carried
def closure_reads_branches(out, x, n):
    k = 0

    def load(d=0):
        return x[k + d] + k

    if x[0] > 1:
        k = 2
        out[0] = load()
    else:
        out[1] = load(1)
        k = 3
    out[2] = load()
    if n > 2 and load() > 0:
        out[3] = 1


@carried
def closure_reads_swapped_tensors(out, x, n):
    a, b = x, out
    read = lambda i: a[i]  # noqa: E731
    for k in tw.static_range(2):
        out[k] = read(k) + 1
        a, b = b, a


@carried
def nested_function_assigns_by_nonlocal(out, x, n):
    total, calls = 0, 0

    def add(v):
        nonlocal total, calls
        calls += 1
        if v > 2:
            total += v

    for i in range(n):
        add(x[i])
        if x[i] > 3:
            add(1)
    out[0], out[1] = total, calls


@carried
def functions_made_in_blocks_assign_by_nonlocal(out, x, n):
    last, count, items = 1, 0, [0]
    if x[0] > 2:

        def set_last():
            nonlocal last

            def set_both():
                nonlocal last, items
                last, items = 5, [7]

            set_both()

        set_last()
    for i in range(n):

        def add(v, count=2):
            nonlocal last
            if v > count:
                last += v

        add(x[i])
        if x[i] > 3:

            def tally(by=1):
                nonlocal count
                count += by

            tally()
    out[0], out[1], out[2] = last, count, items[0]


@carried
def assignments_in_defaults(out, x, n):
    a = b = c = 1
    for i in range(n):
        if x[i] > 2:
            out[0] += (lambda k, step=(a := i): k + step)(1)

            def add(k, *, step=(b := a + 1)):
                return k + step

            out[1] += add(2) + (lambda *, to=(c := 9): to)()
    out[2], out[3], out[4] = a, b, c


@carried
def keywords_of_a_partial(out, x, n):
    add = functools.partial(add_plain, x=1)
    items = [0]
    for i in range(n):
        if x[i] > 2:
            add.keywords["x"] = 4
        add(items)
    out[0] = items[0]


@carried
def closure_factory(out, x, n):
    step = make_counter(5)
    for i in range(n):
        out[1] += step(i)
    out[0] = step(0)


@carried
def mutable_default_of_a_nested_function(out, x, n):
    def add(v, total=[0], *, calls=[0]):  # noqa: B006
        total[0] += v
        calls[0] += 1
        return total[0] + calls[0]

    for i in range(n):
        add(i)
    out[0] = add(0)


@carried
def attribute_of_a_function(out, x, n):
    def add(v):
        add.total += v

    add.total = 1
    for i in range(n):
        add(x[i])
    out[0] = add.total


@carried
def partial_with_a_list(out, x, n):
    items = [0]
    add = functools.partial(add_plain, items)
    for i in range(n):
        add(i)
    out[0] = items[0]


@carried
def list_of_functions(out, x, n):
    state = [1]
    steps = [lambda: state.__setitem__(0, state[0] + 1), lambda: state.__setitem__(0, state[0] * 2)]
    for i in range(n):
        for step in steps:
            step()
    out[0] = state[0]


@carried
def comprehension_reads_the_loop(out, x, n):
    k = 1
    for i in range(n):
        k += sum([x[i] + k for _ in range(2)])
        k &= 255
    out[0] = k


@carried
def generator_reads_the_loop(out, x, n):
    s = 0
    for i in range(n):
        lazy = (x[i] * d + s for d in (1, 2))
        s = s + 1
        s = (s + sum(lazy)) & 1023
    out[0] = s


@carried
def walrus_in_a_comprehension(out, x, n):
    last = 0
    for i in range(n):
        parts = [last := x[i] + d for d in (1, 2)]
        out[1] += parts[0]
    out[0] = last


@carried
def recursion_with_a_static_end(out, x, n):
    out[0] = power(x[0], 3)
    for i in range(n):
        out[1] += power(i, 2)


@tw.function
def power(x, k):
    if k == 0:
        return 1
    return x * power(x, k - 1)


# --- jumps and first assignments ------------------------------------------------------------------------


@carried
def break_from_a_static_loop(out, x, n):
    for k in tw.static_range(6):
        if x[k] == n:
            break
        out[k] = x[k]
    out[7] = 1


@carried
def break_from_a_list(out, x, n):
    last, seen = -1, [0]
    for v in [5, 3, 1]:
        seen[0] += 1
        if x[0] == v:
            continue
        if x[1] == v:
            last = v
            break
        last = v + 10
    out[0], out[1] = last, seen[0]


@tw.function
def position_of(x, v):
    for k in tw.static_range(8):
        if x[k] == v:
            return k
    return -1


@carried
def return_from_a_static_loop(out, x, n):
    out[0] = position_of(x, n)
    out[1] = position_of(x, 4)


@carried
def break_from_a_range_with_a_dynamic_step(out, x, n):
    step = n - 3
    if n != 3:
        for i in range(2, x[5], step):
            if out[1] > 3:
                break
            out[0] += i
            out[1] += 1


@carried
def first_assigned_in_a_loop_that_runs(out, x, n):
    for i in range(3):
        last = x[i]
        pair = [last, i]
        for j in range(2):
            inner = i + j
    out[0], out[1], out[2] = last, pair[1], inner


@carried
def function_made_in_a_loop(out, x, n):
    for i in range(4):

        def twice(v):
            return v * 2 + i

        out[0] += twice(x[i])
    for i in range(n):
        read = lambda: x[i]  # noqa: E731
        out[1] += read()


# --- numbers ----------------------------------------------------------------------------------------------


# --- enumerate, zip and reversed of ranges of the device ---------------------------------------------


@carried
def enumerated_ranges(out, x, n):
    for i, v in enumerate(range(2, n + 2)):
        out[0] += i * v
    for i, v in enumerate(range(n, -2, -2), 5):
        out[1] += i * v
    for i, v in enumerate(range(n, 20, x[1] - 2)):  # a step that only the device knows, up and down
        out[2] += i * v
    for i, v in enumerate(range(20, n, 2 - x[1])):
        out[3] += i * v
    for i, v in enumerate(range(4)):
        out[4] += i * v * n


@carried
def enumerated_range_with_jumps(out, x, n):
    for i, v in enumerate(range(2, 2 * n + 2, 2)):
        if v > 8:
            break
        if i == 1:
            continue
        out[i] = v


@carried
def zipped_ranges(out, x, n):
    total = 0
    for i, j in zip(range(n), range(5, 5 + n, 2), strict=False):
        total += i * j
    for i, j in zip(range(3), range(n, -1, -1), strict=False):
        total = total * 2 + i * j
    for k, (i, j) in enumerate(zip(range(n), range(n, 9), strict=False)):
        total = total * 2 + i * j + k
    out[0] = total


@carried
def reversed_ranges(out, x, n):
    total = 0
    for i in reversed(range(n)):
        total = total * 2 + i
    for i in reversed(range(n, 9, 3)):
        total = total * 2 + i
    for k, i in enumerate(reversed(range(9, n, -4))):
        total = total * 2 + i * k
    for k, v in enumerate(reversed([x[0], x[1]])):
        out[k + 1] = v
    out[0] = total


# --- items that a loop takes from an iterator -------------------------------------------------------------


def numbers_after(items):
    for k in range(6):
        items[0] += 1
        yield k


@carried
def break_from_a_generator_that_changes_state(out, x, n):
    items, left = [0], n + 0
    for k in numbers_after(items):
        if left == 0:
            break
        left -= 1
        out[1] += k
    out[0] = items[0]


@carried
def break_from_a_map_that_changes_state(out, x, n):
    items, left = [0], n + 0

    def note(k):
        items[0] += k
        return k

    for k in map(note, [3, 4, 5]):
        if left == 0:
            break
        left -= 1
        out[1] += k
    out[0] = items[0]


@carried
def break_from_a_list_of_objects(out, x, n):
    held, left = Plain(), n + 0
    for each in [None, held, held, held]:
        if each is not None:
            each.add(2)
        if left == 0:
            break
        left -= 1
    out[0], out[1] = held.v, held.parts[1]


@carried
def break_from_an_iterator_of_two_loops(out, x, n):
    left = n + 0
    for k, v in zip((5, 6, 7), reversed([1, 2, 3]), strict=True):
        if left == 0:
            break
        left -= 1
        out[0] += k * v


# --- objects that are reached on unusual ways -------------------------------------------------------------


@carried
def object_behind_a_proxy(out, x, n):
    held = Plain()
    proxy = weakref.proxy(held)

    def add():
        proxy.add(3)

    for _ in range(n):
        add()
    out[0], out[1] = held.v, held.parts[1]


@carried
def object_in_a_weak_dict(out, x, n):
    held = Plain()
    table = weakref.WeakValueDictionary({"a": held})

    def add():
        table["a"].add(3)

    for _ in range(n):
        add()
    out[0] = held.v


@functools.lru_cache(2)
def powers(k):
    return [k, k * k]


@carried
def caches_may_grow(out, x, n):
    for i in range(n):
        out[0] += powers(3)[1] + i
        if i > 1:
            out[1] += powers(4)[0]


def test_a_python_number_keeps_its_value_until_it_takes_a_type():
    @tw.kernel
    def largest(out, x, n):
        m, held, state = -1e300, [1e-300, 0.1], [0.1]
        for i in range(2):
            m = tw.maximum(m, x[i])
            held = [tw.minimum(held[0], x[i]), held[1] * x[2]]
            if n > 0:
                state[0] = state[0] + x[2]
        s = 0.1
        if n > 5:
            s = x[0]
        out[0], out[1], out[2], out[3], out[4] = m, held[0], held[1], state[0], s

    out = np.zeros(5)
    x = np.array([-1e299, -1e301, 1.0])
    largest[1, 1](out, x, 1)
    assert out.tolist() == [-1e299, -1e301, 0.1, 2.1, 0.1]


def test_closures_of_the_kernel_itself_are_not_the_kernels_own():
    outer = [0]

    @tw.kernel
    def kernel(out, n):
        for i in range(n):
            outer[0] += 1

    with pytest.raises(tw.LanguageError, match="'outer\\[0\\]' changes in a loop on the device, and it is not the ker"):
        kernel.lower(tw.spec("int32", 1), 3)
    assert outer == [0]


def test_a_helper_that_a_kernel_makes_has_its_variables_from_the_kernel():
    def counting(items):
        @tw.function
        def count(n):
            for _ in range(n):
                items[0] += 1

        return count

    @tw.kernel
    def kernel(out, n):
        items = [0]
        count = counting(items)
        count(2)
        for _ in range(n):
            count(n)
        out[0] = items[0]

    out = np.zeros(1, np.int32)
    kernel[1, 1](out, 3)
    assert out[0] == 11


def test_what_a_helper_of_another_function_shares_is_not_the_kernels_own():
    outer = [0]

    def adding(items):
        def add():
            outer[0] += items[0]

        return add

    @tw.kernel
    def kernel(out, n):
        add = adding([n])
        for _ in range(n):
            add()

    with pytest.raises(tw.LanguageError, match="'outer\\[0\\]' changes in a loop on the device, and it is not the ker"):
        kernel.lower(tw.spec("int32", 1), 3)
    assert outer == [0]
