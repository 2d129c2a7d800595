"""Python state that a loop or branch of the device cannot change: refused, with its name."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import enum
import functools
import io
import itertools
import queue
import random
import threading
import types
import weakref

import numpy as np
import pytest
from tests.helpers.python_state import Plain, Programs, assert_agrees, assert_refused, make_counter

import tilewright as tw

PROGRAMS = Programs()
carried = PROGRAMS.carried
refused = PROGRAMS.refused

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


@pytest.mark.parametrize("function", PROGRAMS.agreeing)
def test_python_and_the_device_agree(function):
    assert_agrees(function)


@pytest.mark.parametrize(("function", "message"), PROGRAMS.refusals)
def test_what_cannot_be_carried_is_refused(function, message):
    assert_refused(function, message)


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


@refused("the device decides how far a list_iterator is read, and a variable holds it")
def iterator_that_is_read_on_after_a_break(out, x, n):
    items = iter([1, 2, 3])
    for k in items:
        if x[0] == k:
            break
    out[0] = next(items)


class Kind(enum.Enum):
    COUNTS = [0]


@refused("'Kind.COUNTS._value_\\[0\\]' changes in a loop on the device, and it is not the kernel's own")
def value_of_an_enumeration(out, x, n):
    for _ in range(n):
        Kind.COUNTS.value[0] += 1


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


@refused("the queue 'waiting' changes its size")
def queue_that_grows(out, x, n):
    waiting = queue.SimpleQueue()
    for i in range(n):
        waiting.put(i)
    out[0] = waiting.qsize()


EVENT = threading.Event()


@refused("'EVENT._flag' changes in a loop on the device, and it is not the kernel's own")
def event_that_is_set(out, x, n):
    for i in range(n):
        EVENT.set()
    out[0] = n


@refused("an iterator that exists before, 'numbers'")
def enumerated_range_in_two_iterations(out, x, n):
    numbers = enumerate(range(x[0]))
    for j in range(2):
        for i, v in numbers:
            out[0] += i * v


@refused("was looped over before")
def enumerated_range_in_two_loops(out, x, n):
    numbers = enumerate(range(x[0]))
    for i, v in numbers:
        out[0] += i * v
    for i, v in numbers:
        out[0] += i * v


@refused("next\\(\\) of enumerate")
def next_of_an_enumerated_range(out, x, n):
    out[0] = next(enumerate(range(x[0])))[0]


@refused("zip of a range that only the device knows, with list")
def zip_of_a_range_and_a_list(out, x, n):
    for i, v in zip(range(x[0]), [1, 2, 3], strict=False):
        out[i] = v


@refused("strict=True")
def strict_zip_of_ranges(out, x, n):
    for i, j in zip(range(x[0]), range(x[1]), strict=True):
        out[0] += i * j


@refused("`in` of enumerate")
def member_of_an_enumerated_range(out, x, n):
    out[0] = x[1] in enumerate(range(x[0]))


@refused("a NumPy array is indexed by")
def array_of_numpy_at_a_device_value(out, x, n):
    table = np.array([5, 6, 7, 8])
    out[0] = table[x[0]]


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
