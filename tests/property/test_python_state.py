"""Lists, dicts and objects that a loop or branch of the device changes: by Python itself and on the simulator."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import optparse
import queue
import typing

import pytest
from tests.helpers.python_state import Plain, Programs, assert_agrees

import tilewright as tw

PROGRAMS = Programs()
carried = PROGRAMS.carried


@pytest.mark.parametrize("function", PROGRAMS.agreeing)
@pytest.mark.spread(3)
def test_python_and_the_device_agree(function):
    assert_agrees(function)


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
def queue_that_keeps_its_length(out, x, n):
    waiting = queue.SimpleQueue()
    waiting.put(1)
    waiting.put(x[0])
    for i in range(n):
        waiting.put(waiting.get() + i)
    if x[0] > 0:
        waiting.put(waiting.get() * 2)
    out[0], out[1] = waiting.get(), waiting.get()


@carried
def namespace_of_arguments(out, x, n):
    options = argparse.Namespace(count=0)
    for i in range(n):
        options.count += i
    out[0] = options.count


@carried
def values_of_options(out, x, n):
    options = optparse.Values({"count": 0})
    for i in range(n):
        options.count += i
    out[0] = options.count


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
