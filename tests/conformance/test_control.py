"""Control flow: functions that run twice, as device code in every thread and as plain Python here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.conformance.harness import Backend, blocks

import tilewright as tw


@tw.kernel
def apply(out, x, function: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        out[i] = function(x[i])


# Each is called with the integers from 0 to 99; what it returns is compared with what Python makes of it.


@tw.function
def sign(n):
    if n > 50:
        return 1
    elif n == 50:
        return 0
    else:
        return -1


@tw.function
def nested_branches(n):
    if n % 2 == 0:
        if n % 3 == 0:
            r = 6
        else:
            r = 2
    elif n % 3 == 0:
        r = 3
    else:
        r = n
    return r * 10 + 1


@tw.function
def branch_changes_several(n):
    a, b, c = n, n + 1, 5
    if n > 30:
        a, b = b, a
        c = c + a
    elif n > 20:
        c = b
    return a * 10000 + b * 100 + c


@tw.function
def only_one_side_assigns(n):
    a = 1
    if n > 10:
        a = n
    if n > 20 and n < 40:
        a += 7
    return a


@tw.function
def logic(n):
    r = 0
    if n > 5 and (n < 10 or n == 20) and not n == 7:  # "not" is what is tested
        r += 1
    if not (n > 50 or n < 40):
        r += 2
    if 10 <= n < 30:
        r += 4
    r += 8 if n > 60 and n != 61 else 16
    return r


@tw.function
def bound_by_thread(n):
    total = 0
    for i in range(n):
        total += i * i
    return total


@tw.function
def loop_with_start_and_step(n):
    total = 0
    for i in range(3, n, 7):
        total = total * 3 % 1009 + i
    return total


@tw.function
def loop_downwards(n):
    total = 0
    for i in range(n, 0, -3):
        total = total * 3 % 1009 + i
    return total


@tw.function
def loop_never_entered(n):
    total = n
    for i in range(5, 5):
        total = i
    for i in range(n, 0):
        total += i
    return total


@tw.function
def dynamic_step(n):
    total = 0
    for i in range(0, 60, n % 7 + 1):
        total += i
    return total


@tw.function
def nested_loops(n):
    total = 0
    for i in range(n % 11):
        for j in range(i):
            total += i * j + 1
        total -= 1
    return total


@tw.function
def triangular_with_branch(n):
    total = 0
    for i in range(n % 13):
        for j in range(i, 13):
            if (i + j) % 3 == 0:
                total += j
            elif j > n % 5:
                total -= 1
    return total


@tw.function
def collatz(n):
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@tw.function
def greatest_common_divisor(n):
    a, b = n, 84
    while b != 0:
        a, b = b, a % b
    return a


@tw.function
def while_in_while(n):
    total = 0
    i = 0
    while i < n % 9:
        j = i
        while j > 0:
            total += j
            j -= 2
        i += 1
    return total


@tw.function
def break_out(n):
    found = -1
    for i in range(2, n):
        if n % i == 0:
            found = i
            break
    return found


@tw.function
def continue_past(n):
    total = 0
    for i in range(n):
        if i % 3 == 0:
            continue
        total += i
        if i % 5 == 0:
            continue
        total += 100
    return total


@tw.function
def break_and_continue(n):
    total = 0
    i = 0
    while True:
        i += 1
        if i > n:
            break
        if i % 4 == 1:
            continue
        total += i
        if total > 500:
            break
    return total * 100 + i


@tw.function
def break_inner_only(n):
    total = 0
    for i in range(n % 10):
        for j in range(20):
            if j * i > n:
                break
            total += 1
        total += i
    return total


@tw.function
def early_return(n):
    if n % 10 == 3:
        return -3
    total = 0
    for i in range(n):
        total += i
        if total > 300:
            return total
    if total % 2 == 0:
        return total + 1
    return 0


@tw.function
def return_from_nested_loops(n):
    for i in range(12):
        for j in range(12):
            if i * j == n:
                return i * 100 + j
    return -1


@tw.function
def return_from_while(n):
    k = n
    while k > 0:
        if k % 8 == 5:
            return k
        k -= 3
    return 0


@tw.function
def loop_index_afterwards(n):
    i = -7
    for i in range(n % 6):
        pass
    return i


@tw.function
def static_loops(n):
    total = 0
    for k in tw.static_range(4):
        if n % (k + 2) == 0:
            total += 10**k
    return total


@tw.function
def unrolled(n):
    total = 0
    for i in tw.range(10, unroll=True):
        total += i * n
    for i in tw.range(n, unroll=4):
        total -= i
    return total


@tw.function
def horner(n, coefficients):
    total = 0
    for c in coefficients:
        total = total * n + c
    return total


@tw.function
def helpers_in_helpers(n):
    return sign(n) + 10 * collatz(n % 17 + 1) + horner(n, (1, -2, 3))


@tw.function
def comprehension(n):
    values = [n * k for k in range(5)]
    return sum(v for v in values) + max(1, 2)


@tw.function
def bool_carried(n):
    seen = False
    odd = n % 2 == 1
    for i in range(n):
        if i == 17:
            seen = True
        odd = not odd
    return (4 if seen else 0) + (2 if odd else 1)


@tw.function
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n % 40):
        a, b = b, a + b
    return a


@tw.function
def bits_set(n):
    count = 0
    while n:
        n &= n - 1
        count += 1
    return count


@tw.function
def conditional_bound(n):
    stop = 5 if n % 2 == 0 else n
    total = 0
    for i in range(stop):
        stop = 1  # the bound is taken once
        total += i
    return total + stop


@tw.function
def shadowed(n):
    total = 0
    for i in range(n % 5):
        inner = i * 2
        total += inner
    inner = 100
    return total + inner


FUNCTIONS: tuple[Callable[[int], int], ...] = (
    sign, nested_branches, branch_changes_several, only_one_side_assigns, logic, bound_by_thread,
    loop_with_start_and_step, loop_downwards, loop_never_entered, dynamic_step, nested_loops, triangular_with_branch,
    collatz, greatest_common_divisor, while_in_while, break_out, continue_past, break_and_continue, break_inner_only,
    early_return, return_from_nested_loops, return_from_while, loop_index_afterwards, static_loops, unrolled,
    helpers_in_helpers, comprehension, bool_carried, fibonacci, bits_set, conditional_bound, shadowed,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.spread(6)
def test_functions_as_python_runs_them(backend: Backend, function: Callable[[int], int]) -> None:
    x = np.arange(100, dtype=np.int32)
    out = backend.zeros(100, tw.int32)
    apply[blocks(100, 32), 32](out, backend.put(x), function)
    assert backend.get(out).tolist() == [function(n) for n in range(100)]


@tw.kernel
def early_exit(out, n):
    """Threads leave the kernel at different places."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i >= n:
        return
    out[i] = 1
    if i % 3 == 0:
        return
    for k in range(i):
        if k == 5:
            out[i] = 3
            return
    out[i] = 2


def test_kernel_returns_early(backend: Backend) -> None:
    out = backend.zeros(64, tw.int32)
    early_exit[2, 32](out, 50)
    expected = [0 if i >= 50 else 1 if i % 3 == 0 else 3 if i > 5 else 2 for i in range(64)]
    assert backend.get(out).tolist() == expected


@tw.kernel
def carried_types(out_f, out_i, out_d, x, n):
    i = tw.thread_idx.x
    total, count, wide, flag = tw.float32(0), tw.int64(1), tw.float64(0.5), False
    for k in range(n):
        total += x[i, k]
        if flag:
            count *= 3
        wide = wide * 2 + tw.float64(x[i, k])
        flag = not flag
    out_f[i] = total
    out_i[i] = count
    out_d[i] = wide


def test_variables_of_several_types_are_carried(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (32, 30)).astype(np.float32)
    outs = [backend.zeros(32, t) for t in (tw.float32, tw.int64, tw.float64)]
    carried_types[1, 32](*outs, backend.put(x), 30)
    wide = np.full(32, 0.5)
    for k in range(30):
        wide = wide * 2 + x[:, k]
    assert np.array_equal(backend.get(outs[0]), x.sum(axis=1))
    assert np.array_equal(backend.get(outs[1]), np.full(32, 3**15))
    assert np.array_equal(backend.get(outs[2]), wide)


@tw.kernel
def carried_views(out, x):
    """A view moves along a matrix: a tensor is carried by its offset."""
    i = tw.thread_idx.x
    view = x[0, None]
    total = view[i]
    for row in range(1, x.shape[0]):
        view = x[row, None]
        total = total * 2 + view[i]
    # What the last round left.
    out[i] = total * 1000 + view[0]


def test_tensors_are_carried_through_loops(backend: Backend) -> None:
    x = np.arange(4 * 32, dtype=np.int32).reshape(4, 32) % 7
    out = backend.zeros(32, tw.int32)
    carried_views[1, 32](out, backend.put(x))
    total = x[0]
    for row in range(1, 4):
        total = total * 2 + x[row]
    assert np.array_equal(backend.get(out), total * 1000 + x[3, 0])


@tw.kernel
def swapped_views(out, x, y, n):
    i = tw.thread_idx.x
    read, write = x[0, None], x[1, None]
    for _ in range(n):
        read, write = write, read
    chosen = read
    if i % 2 == 1:
        chosen = write
    out[i] = chosen[i]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_tensors_are_swapped_and_chosen(backend: Backend, n: int) -> None:
    x = np.arange(64, dtype=np.int32).reshape(2, 32)
    out = backend.zeros(32, tw.int32)
    swapped_views[1, 32](out, backend.put(x), backend.put(x), n)
    rows = (np.arange(32) + n) % 2
    assert np.array_equal(backend.get(out), x[rows, np.arange(32)])


@tw.kernel
def register_arrays(out, x):
    """A histogram in registers, whose index only the device knows, and one whose loops are unrolled."""
    i = tw.thread_idx.x
    counts = tw.registers(tw.int32, 4)
    tw.clear(counts)
    for k in range(x.shape[1]):
        counts[x[i, k] % 4] += 1
    for k in tw.static_range(4):
        out[i, k] = counts[k]


@pytest.mark.filterwarnings("ignore::tilewright.TilewrightWarning")
def test_register_arrays(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 100, (32, 50)).astype(np.int32)
    out = backend.zeros((32, 4), tw.int32)
    register_arrays[1, 32](out, backend.put(x))
    expected = [[int((row % 4 == k).sum()) for k in range(4)] for row in x]
    assert backend.get(out).tolist() == expected


@tw.kernel
def divergent_stores(out, x):
    i = tw.thread_idx.x
    if x[i] > 0:
        if x[i] % 2 == 0:
            out[i, 0] = x[i]
        else:
            out[i, 1] = -x[i]
            for k in range(x[i] % 4):
                out[i, 2 + k] = k + 1
    else:
        out[i, 5] = 99


def test_stores_in_divergent_branches(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(-10, 30, 64).astype(np.int32)
    out = backend.zeros((64, 6), tw.int32)
    divergent_stores[1, 64](out, backend.put(x))
    expected = np.zeros((64, 6), np.int32)
    for i, v in enumerate(x):
        if v > 0 and v % 2 == 0:
            expected[i, 0] = v
        elif v > 0:
            expected[i, 1] = -v
            expected[i, 2 : 2 + v % 4] = np.arange(1, v % 4 + 1)
        else:
            expected[i, 5] = 99
    assert np.array_equal(backend.get(out), expected)


@tw.kernel
def ranges_at_the_ends(out, count, last):
    n = 0
    for i in range(2147483640, 2147483647, 4):
        out[n] = i
        n += 1
    for i in range(-2147483640, -2147483648, -5):
        out[n] = i
        n += 1
    for k in range(2**63 - 9, 2**63 - 1, 5):
        out[n] = k
        n += 1
    for i in range(last - 7, 2147483647, 3):
        out[n] = i
        n += 1
    count[0] = n


def test_ranges_near_the_ends_of_their_type(backend: Backend) -> None:
    out, count = backend.zeros(16, tw.int64), backend.zeros(1, tw.int32)
    ranges_at_the_ends[1, 1](out, count, np.int32(2147483647))
    want = [*range(2147483640, 2147483647, 4), *range(-2147483640, -2147483648, -5), *range(2**63 - 9, 2**63 - 1, 5)]
    want += range(2147483640, 2147483647, 3)
    assert backend.get(count).tolist() == [len(want)]
    assert backend.get(out).tolist()[: len(want)] == want


@tw.kernel
def strided(out):
    for i in range(tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, out.size, tw.grid_dim.x * tw.block_dim.x):
        out[i] += i


def test_grid_stride_loops_and_grids_without_blocks(backend: Backend) -> None:
    out = backend.zeros(10_000, tw.int32)
    strided[7, 96](out)
    assert backend.get(out).tolist() == list(range(10_000))
    for grid in (0, (3, 0), lambda x: 0):
        strided[grid, 96](out)
        strided[grid, 96].prepare(out)()
    assert backend.get(out).tolist() == list(range(10_000))
