"""Python state that a loop or branch of the device changes: run by Python itself and by the simulator.

Each program computes the same in both, or it is refused with what it names in its message.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import functools
import io
import itertools
import random
import types
import typing
import weakref

import numpy as np
import pytest

import tilewright as tw

CONTEXT = contextvars.ContextVar("CONTEXT", default=0)


class CPair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int), ("second", ctypes.c_int))


class Keeps:
    kept = 0

    def __get__(self, instance, owner=None):
        return self.kept

    def __set__(self, instance, value):
        self.kept = value


class Described:
    value = Keeps()


CARRIED = []
REFUSED = []


def carried(function):
    CARRIED.append(pytest.param(function, id=function.__name__))
    return function


def refused(message):
    def note(function):
        REFUSED.append(pytest.param(function, message, id=function.__name__))
        return function

    return note


@pytest.mark.parametrize("function", CARRIED)
def test_python_and_the_device_agree(function):
    kernel = tw.kernel(function)
    for n in (0, 1, 2, 3, 7):
        for first in (3, 0, -2):
            x = np.array([first, 5, 1, 4, -2, 9, 2, 6], np.int64)
            expected = np.zeros(8, np.int64)
            function(expected, x, n)
            found = np.zeros(8, np.int32)
            kernel[1, 1](found, x.astype(np.int32), n)
            assert found.tolist() == expected.tolist(), (n, first)


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_what_cannot_be_carried_is_refused(function, message):
    with pytest.raises(tw.LanguageError, match=message) as caught:
        tw.kernel(function).lower(tw.spec("int32", 1), tw.spec("int32", 1), 3)
    assert caught.value.location is not None
    assert "help: " in str(caught.value)


# --- lists and dicts ------------------------------------------------------------------------------------


@carried
def item_of_a_list(out, x, n):
    counts = [0]
    for i in range(n):
        counts[0] += 1
    out[0] = counts[0]


@carried
def list_under_a_branch(out, x, n):
    counts = [0, 7]
    if x[0] > 1:
        counts[0] = x[1]
    elif x[0] < 0:
        counts[1] = 3
    out[0], out[1] = counts


@carried
def list_in_a_while(out, x, n):
    state = [0, 1]
    while state[0] < n:
        state[0] += 1
        state[1] *= 2
    out[0], out[1] = state


@carried
def swap_of_items(out, x, n):
    pair = [1, 2]
    for i in range(n):
        pair[0], pair[1] = pair[1], pair[0] + i
    out[0], out[1] = pair


@carried
def list_of_lists(out, x, n):
    table = [[0, 1], [2, 3]]
    for i in range(n):
        table[0][1] += table[1][0]
        if x[0] > 0:
            table[1][0] -= i
    out[0], out[1] = table[0]
    out[2], out[3] = table[1]


@carried
def aliases_see_each_other(out, x, n):
    first = [0]
    second = first
    both = (first, [first])
    for i in range(n):
        first[0] += 1
        second[0] += 10
        both[1][0][0] += 100
    out[0], out[1] = first[0], second[0]


@carried
def dict_items(out, x, n):
    found = {"a": 0, "b": [0]}
    for i in range(n):
        found["a"] += x[i]
        found["b"][0] += i
    out[0], out[1] = found["a"], found["b"][0]


@carried
def whole_slice(out, x, n):
    parts = [1, 2, 3]
    for i in range(n):
        parts[:] = [p + i for p in parts]
        parts[1:] = parts[2], parts[1]
        parts[0:2] = [parts[1], parts[0]]
    out[0], out[1], out[2] = parts


@carried
def augmented_list_and_restored_length(out, x, n):
    stack = [4]
    for i in range(n):
        stack.append(i)
        stack += [stack[-1] + 1]
        out[1] += stack.pop()
        del stack[1]
        stack[0] += 1
    out[0] = stack[0]


@carried
def list_sorted_and_reversed_in_place(out, x, n):
    order = [1, 2, 3]
    for i in range(n):
        order.reverse()
        order.insert(0, order.pop())
    out[0], out[1], out[2] = order


@carried
def deque_that_rotates(out, x, n):
    window = collections.deque([1, 2, 3], maxlen=3)
    for i in range(n):
        window.append(x[i])
    out[0], out[1], out[2] = window


@carried
def default_dict(out, x, n):
    sums = collections.defaultdict(int, {0: 1, 1: 2})
    for i in range(n):
        sums[0], sums[1] = sums[1], sums[0] + sums[1]
    out[0], out[1] = sums[0], sums[1]


@carried
def new_list_in_each_iteration(out, x, n):
    pair = [1, 2]
    for i in range(n):
        pair = [pair[1], pair[0] + i]
    out[0], out[1] = pair
    pair[0] = 7
    out[2] = pair[0]


@carried
def new_list_in_one_branch(out, x, n):
    pair = [1, 2]
    if x[0] > 1:
        pair = [x[0], 4]
    pair[1] += 1
    out[0], out[1] = pair


@carried
def lists_that_are_swapped(out, x, n):
    a, b = [0], [10]
    for i in range(n):
        a, b = b, a
        a[0] += 1
    a[0] += 5
    out[0], out[1] = a[0], b[0]


@carried
def one_of_two_lists_is_read(out, x, n):
    a, b = [1, 2], [3, 4]
    c = a if x[0] > 0 else b
    d = [[0, 0]]
    if x[0] > 1:
        d[0] = a
    out[0], out[1], out[2] = c[0], c[1], d[0][0]


@carried
def list_in_a_tuple_that_moves(out, x, n):
    a, b = [1], [2]
    pair = (a, 0)
    for i in range(n):
        pair = (b, pair[1] + 1)
        pair[0][0] += 1
    out[0], out[1], out[2] = a[0], b[0], pair[0][0]


@carried
def list_changed_and_then_replaced(out, x, n):
    a = [1]
    b = a
    if x[0] > 1:
        a[0] = 3
        a = [x[1]]
    out[0], out[1] = a[0], b[0]


@carried
def list_changed_and_then_replaced_in_a_dict(out, x, n):
    d = {"m": [1, 2]}
    for i in range(n):
        for j in range(x[i] & 3):
            d["m"][0] += j
            out[2] += d["m"][0]
            d["m"] = [i + d["m"][0], j]
    out[0], out[1] = d["m"]


@carried
def list_of_an_object_changed_and_then_replaced(out, x, n):
    state = Plain()
    for i in range(n):
        state.parts[1] += i
        if x[i] > 1:
            state.parts = [state.parts[1], x[i]]
    out[0], out[1] = state.parts


@carried
def new_list_in_two_variables(out, x, n):
    a = b = [1]
    for i in range(n):
        a = b = [i + a[0]]
        a[0] += 1
    out[0], out[1] = a[0], b[0]


@carried
def both_branches_grow_alike(out, x, n):
    values = [1]
    if x[0] > 1:
        values.append(x[1])
    else:
        values.append(9)
    out[0], out[1] = values


@carried
def nested_loops_and_branches(out, x, n):
    state = [0, 0]
    for i in range(n):
        state[0] += 1
        for j in range(i):
            if x[j] > 1:
                state[1] += state[0]
            else:
                state[0] -= 1
        while state[1] > 20:
            state[1] -= 7
    out[0], out[1] = state


@carried
def list_in_the_condition(out, x, n):
    state = [0]
    while state[0] < n and x[state[0]] != 4:
        state[0] += 1
    out[0] = state[0]


@carried
def item_with_a_static_loop_inside(out, x, n):
    parts = [0, 0, 0, 0]
    for i in range(n):
        for k in tw.static_range(4):
            parts[k] += x[k] * i
    for k in tw.static_range(4):
        out[k] = parts[k]


@carried
def a_loop_that_breaks_and_a_return(out, x, n):
    state = [0, 0]
    for i in range(n):
        if x[i] == 1:
            break
        state[0] += x[i]
        if state[0] > 7:
            state[1] = 5
            continue
        state[1] += 1
    out[0], out[1] = state


# --- objects ---------------------------------------------------------------------------------------------


class PipelineState:
    def __init__(self, stages):
        self.stages = stages
        self.index = 0
        self.phase = 0

    @tw.function
    def advance(self):
        self.index += 1
        if self.index == self.stages:
            self.index = 0
            self.phase ^= 1


@carried
def pipeline_state(out, x, n):
    state = PipelineState(3)
    for i in range(n):
        out[7] += state.index * 10 + state.phase
        state.advance()
    out[0], out[1] = state.index, state.phase


class Plain:
    def __init__(self):
        self.v = 0
        self.parts = [0, 0]

    def add(self, x):
        self.v += x
        self.parts[1] += 1
        return self


@carried
def method_that_is_plain_python(out, x, n):
    obj = Plain()
    bound = obj.add
    for i in range(n):
        obj.add(i).add(2)
        bound(1)
    out[0], out[1] = obj.v, obj.parts[1]


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@carried
def object_with_slots(out, x, n):
    obj = Slotted(1)
    obj.b = 2
    for i in range(n):
        obj.a, obj.b = obj.b, obj.a + i
    out[0], out[1] = obj.a, obj.b


@dataclasses.dataclass
class Stage:
    index: int
    total: int = 0


@carried
def dict_of_dataclasses(out, x, n):
    stages = {"load": Stage(0), "store": Stage(5)}
    for i in range(n):
        stages["load"].total += x[i]
        if x[i] > 2:
            stages["store"].index += 1
    out[0], out[1] = stages["load"].total, stages["store"].index


@dataclasses.dataclass(frozen=True)
class Frozen:
    index: int
    phase: int

    def next(self):
        return dataclasses.replace(self, index=self.index + 1, phase=self.phase ^ 1)


@carried
def frozen_object_that_is_replaced(out, x, n):
    state = Frozen(0, 0)
    for i in range(n):
        state = state.next()
    out[0], out[1] = state.index, state.phase


class Pair(typing.NamedTuple):
    a: int
    b: int


@carried
def named_tuple(out, x, n):
    pair = Pair(0, 1)
    for i in range(n):
        pair = pair._replace(a=pair.b, b=pair.a + pair.b)
    out[0], out[1] = pair.a, pair.b


class Property:
    def __init__(self):
        self._v = 0

    @property
    def v(self):
        return self._v

    @v.setter
    def v(self, value):
        self._v = value * 2


@carried
def property_setter(out, x, n):
    obj = Property()
    for i in range(n):
        obj.v = obj.v + 1
    out[0] = obj.v


class Watching:
    def __init__(self):
        self.n = 0
        self.log = 0

    def __setattr__(self, name, value):
        if name == "n" and "n" in self.__dict__:
            self.__dict__["log"] += 1
        object.__setattr__(self, name, value)


@carried
def own_setattr(out, x, n):
    obj = Watching()
    for i in range(n):
        obj.n += 2
    out[0], out[1] = obj.n, obj.log


class Vector(list):
    def __init__(self, items):
        super().__init__(items)
        self.writes = 0

    def __setitem__(self, k, v):
        self.writes += 1
        super().__setitem__(k, v)


@carried
def subclass_of_list(out, x, n):
    v = Vector([1, 2])
    for i in range(n):
        v[0] += i
    out[0], out[1] = v[0], v.writes


class Node:
    def __init__(self, value, next=None):
        self.value = value
        self.next = next


@carried
def linked_objects(out, x, n):
    tail = Node(1)
    head = Node(2, tail)
    tail.next = head
    for i in range(n):
        head.next.value += head.value
        head.next.next.value += 1
    out[0], out[1] = head.value, tail.value


@carried
def object_replaced_by_a_new_one(out, x, n):
    node = Node(1)
    for i in range(n):
        node = Node(node.value + 1)
        node.value += 1
    out[0] = node.value


@carried
def call_of_an_object(out, x, n):
    class_free = Adder()
    for i in range(n):
        class_free(i)
    out[0] = class_free.total


class Adder:
    total = 0

    def __call__(self, x):
        self.total = self.total + x

    def __enter__(self):
        self.total = self.total + 100
        return self

    def __exit__(self, *_):
        pass

    def __iadd__(self, x):
        self.total = self.total + x
        return self


@carried
def adder_with_its_total(out, x, n):
    adder = Adder()
    adder.total = 0
    for i in range(n):
        adder += i
        with adder as same:
            same(1)
    out[0] = adder.total


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


def make_counter(start):
    count = start

    def step(by):
        nonlocal count
        count += by
        return count

    return step


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


# --- what is refused --------------------------------------------------------------------------------------


ALIAS = "the device decides which list '{}' holds, other variables hold it too, and it is changed in place later"


@refused(ALIAS.format("a"))
def alias_of_a_list_that_a_loop_replaces(out, x, n):
    a = [0]
    b = a
    for i in range(n):
        a = [a[0] + 1]
    a[0] += 7
    out[0] = b[0]


@refused(ALIAS.format("a"))
def alias_of_a_list_that_a_branch_replaces(out, x, n):
    a = [0]
    b = a
    if x[0] > 0:
        a = [5]
    b[0] = 7
    out[0] = a[0]


@refused(ALIAS.format("[ab]"))
def alias_of_lists_that_are_swapped(out, x, n):
    a, b = [0], [10]
    c = a
    for i in range(n):
        a, b = b, a
        a[0] += 1
    out[0] = c[0]


@refused(ALIAS.format("the value of a conditional expression"))
def one_of_two_lists_is_changed(out, x, n):
    a, b = [1], [2]
    c = a if x[0] > 1 else b
    c[0] = 9
    out[0], out[1] = a[0], b[0]


@refused(ALIAS.format("current"))
def item_of_a_list_that_moves_on(out, x, n):
    parts = [[0], [1]]
    current = parts[0]
    for i in range(n):
        current[0] += 1
        current = parts[1]


@refused(ALIAS.format("pair"))
def list_in_a_tuple_that_is_replaced(out, x, n):
    a, b = [1], [2]
    pair = (a, 0)
    for i in range(n):
        pair = (b, pair[1] + 1)
        pair[0][0] += 1
    b[0] = 5
    out[0] = pair[0][0]


@refused("the list 'grown' changes its size or keys in a loop")
def list_that_grows(out, x, n):
    grown = []
    for i in range(n):
        grown.append(i)


@refused("the list 'grown' changes its size or keys in a branch")
def list_that_grows_in_a_branch(out, x, n):
    grown = []
    if x[0] > 0:
        grown.append(1)


@refused("the list 'grown.parts' changes its size or keys in a branch")
def list_that_grows_in_an_expression(out, x, n):
    grown = Plain()
    out[0] = grown.parts.append(1) or 1 if x[0] > 0 else 2


@refused("the dict 'd' changes its size or keys")
def dict_with_a_new_key(out, x, n):
    d = {}
    while n > out[0]:
        d["k"] = 1
        out[0] += 1


@refused("the object 'obj' changes its size or keys")
def new_attribute(out, x, n):
    obj = Plain()
    for i in range(n):
        obj.fresh = i


class Lazy:
    def __init__(self):
        self.v = 0

    @functools.cached_property
    def twice(self):
        return self.v * 2

    @functools.cached_property
    def four(self):
        return 4


@refused("the object 'lazy' changes its size or keys in a loop")
def cached_property_of_a_device_value(out, x, n):
    lazy = Lazy()
    for i in range(n):
        lazy.v += lazy.four
        out[0] += lazy.twice


@refused("the set 'seen' changes in a loop")
def set_that_grows(out, x, n):
    seen = set()
    for i in range(n):
        seen.add(len(seen) + 1)


@refused("the set 'seen' changes in a branch")
def set_that_grows_in_a_branch(out, x, n):
    seen = {1}
    if x[0] > 0:
        seen.add(2)


@refused("an iterator that exists before, 'numbers', is read or changed in a loop")
def iterator(out, x, n):
    numbers = iter([1, 2, 3])
    for i in range(n):
        out[0] += next(numbers)


@refused("an iterator that exists before, 'numbers', is read or changed in a branch")
def count_of_itertools(out, x, n):
    numbers = itertools.count()
    if x[0] > 0:
        out[0] += next(numbers)


@refused("an iterator that exists before, ")
def iterator_in_an_iterator(out, x, n):
    numbers = enumerate(zip([1, 2, 3], [4, 5, 6], strict=True))
    for i in range(n):
        next(numbers)


@refused("a generator that exists before, 'numbers', is read or changed in a loop")
def generator(out, x, n):
    numbers = (k for k in (1, 2, 3))
    for i in range(n):
        out[0] += next(numbers)


@refused("a file that exists before, 'log', is read or changed in a loop")
def file(out, x, n):
    log = io.StringIO()
    for i in range(n):
        log.write("x")


@refused("a buffer that exists before, 'data', is read or changed in a loop")
def array_of_the_standard_library(out, x, n):
    data = array.array("i", [0, 0])
    for i in range(n):
        data[0] += 1


@refused("a buffer that exists before, 'view', is read or changed in a branch")
def memory_view(out, x, n):
    view = memoryview(bytearray(3))
    if n > 0:
        view[0] += 1


@refused("a buffer that exists before, 'data', is read or changed in a loop")
def structure_of_ctypes(out, x, n):
    data = CPair()
    for i in range(n):
        data.first += 1


@refused("a random generator that exists before, 'generator', is read or changed in a loop")
def generator_of_numpy(out, x, n):
    generator = np.random.default_rng(0)
    for i in range(n):
        out[0] += generator.integers(5)


@refused("a random generator that exists before, 'np.random', is read or changed in a loop")
def random_functions_of_numpy(out, x, n):
    for i in range(n):
        out[0] += np.random.randint(5)


@refused("a random generator that exists before, 'random', is read or changed in a loop")
def random_functions(out, x, n):
    for i in range(n):
        out[0] += random.randrange(5)


@refused("an iterator that exists before, 'elements', is read or changed in a loop")
def iterator_of_an_array(out, x, n):
    elements = np.arange(9).flat
    for i in range(n):
        out[0] += int(next(elements))


@refused("the dict 'order' changes its size or keys in a loop")
def order_of_an_ordered_dict(out, x, n):
    order = collections.OrderedDict(a=0, b=1)
    for i in range(n):
        order.move_to_end("a")


@refused("'Described.value.kept' changes in a loop on the device, and it is not the kernel's own")
def descriptor(out, x, n):
    state = Described()
    for i in range(n):
        state.value += 1


@refused("a context variable that exists before, 'CONTEXT', is read or changed in a loop")
def context_variable(out, x, n):
    for i in range(n):
        CONTEXT.set(CONTEXT.get() + 1)


@carried
def namespace(out, x, n):
    state = types.SimpleNamespace(value=0)
    for i in range(n):
        state.value += i
    if x[0] > 0:
        state.value += 100
    out[0] = state.value


@carried
def ordered_dict(out, x, n):
    state = collections.OrderedDict(a=1, b=2)
    for i in range(n):
        state["a"], state["b"] = state["b"], state["a"] + 1
    out[0], out[1] = state.values()


@carried
def weak_reference(out, x, n):
    state = Keeps()
    state.value = 0
    reference = weakref.ref(state)
    for i in range(n):
        reference().value += i
    out[0] = state.value


@carried
def constant_table_of_the_standard_library(out, x, n):
    table = array.array("i", [3, 4])
    for i in range(n):
        out[0] += table[1]


@refused("the NumPy array 'table' changes in a loop")
def numpy_array(out, x, n):
    table = np.zeros(3)
    for i in range(n):
        table[0] += 1


@refused("the bytearray 'data' changes in a loop")
def bytes_that_change(out, x, n):
    data = bytearray(3)
    for i in range(n):
        data[0] += 1


@refused("'counts.0.' changes in the condition of a loop")
def condition_that_changes_a_list(out, x, n):
    counts = [0]

    def step():
        counts[0] += 1
        return counts[0]

    while step() < n:
        out[0] += 1


GLOBAL_LIST = [0]
GLOBAL_NUMBER = 0
GLOBAL_COUNTER = make_counter(0)


def changes_a_global():
    global GLOBAL_NUMBER
    GLOBAL_NUMBER += 1


def default_of_a_helper(v, cache=[0]):  # noqa: B006
    cache[0] += v


class Counted:
    made = 0
    items = [0]

    def __init__(self):
        type(self).made += 1

    def touch(self):
        self.items[0] += 1


@refused("'GLOBAL_LIST.0.' changes in a loop on the device, and it is not the kernel's own")
def global_list(out, x, n):
    for i in range(n):
        GLOBAL_LIST[0] += 1


@refused("'GLOBAL_LIST.1.' changes in a branch")
def global_list_that_grows(out, x, n):
    if x[0] > 0:
        GLOBAL_LIST.append(1)


@refused("'GLOBAL_NUMBER' changes in a loop")
def global_of_a_helper(out, x, n):
    for i in range(n):
        changes_a_global()


@refused("'count' changes in a loop")
def counter_outside_of_the_kernel(out, x, n):
    for i in range(n):
        GLOBAL_COUNTER(1)


@refused("'cache.0.' changes in a loop")
def mutable_default_of_a_helper(out, x, n):
    for i in range(n):
        default_of_a_helper(i)


@refused("'Counted.made' changes in a loop")
def attribute_of_a_class(out, x, n):
    for i in range(n):
        Counted()


@refused("'Counted.items.0.' changes in a loop")
def list_of_a_class(out, x, n):
    counted = Counted()
    for i in range(n):
        counted.touch()


@tw.function
def endless(x):
    return endless(x - 1) if x > 0 else 0


@refused("nests calls too deeply")
def endless_recursion(out, x, n):
    out[0] = endless(n)


@refused("variable 'kind.0.' changes in the loop: it is 'a' before it and 'ab' after")
def text_that_changes(out, x, n):
    kind = ["a"]
    for i in range(n):
        kind[0] += "b"


@refused("variable 'obj.v' is int32 in one branch|variable 'obj.v' is")
def place_of_two_types(out, x, n):
    obj = Plain()
    if x[0] > 0:
        obj.v = None


# --- numbers ----------------------------------------------------------------------------------------------


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
