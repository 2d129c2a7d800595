"""Tensors that device conditions choose and device loops swap, on both backends."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

N = 64


@tw.kernel
def expression(out, a, b, c):
    t = a if c > 0 else b
    i = tw.thread_idx.x
    out[i] = t[i]
    out[i + t.shape[0]] = (b if i % 2 == 0 else a)[i]


@tw.kernel
def statement(out, a, b, c):
    i = tw.thread_idx.x
    if c > 0:
        t = a
    elif c == 0:
        t = b
    else:
        t = tw.local_tile(a, (32,), (1,)) if False else a
    t[i] = t[i] + 1
    out[i] = a[i]
    out[i + N] = b[i]


@tw.kernel
def swapped(out, a, b, n):
    """Each iteration reads what the last one wrote: stores through one must be seen by loads through the other."""
    i = tw.thread_idx.x
    source, target = a, b
    for k in range(n):
        target[i] = source[i] + k
        source, target = target, source
    out[i] = source[i]
    out[i + N] = a[i]


@tw.kernel
def rotated(out, a, b, c, n):
    i = tw.thread_idx.x
    k = 0
    while k < n:
        a, b, c = b, c, a
        k += 1
    out[i] = a[i]
    out[i + N] = c[i]


@tw.kernel
def of_a_function(out, a, b, c):
    i = tw.thread_idx.x
    t = pick(a, b, c)
    out[i] = t[i]
    out[i + N] = t[N - 1 - i]


@tw.function
def pick(a, b, c):
    if c > 0:
        return a
    return b


@tw.kernel
def of_addresses(out, a, addresses, c):
    i = tw.thread_idx.x
    b = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout((a.shape[0],), (1,)))
    t = a
    if c > 0:
        t = b
    out[i] = t[i]
    t[i] = 0.0
    out[i + N] = a[i]


def three(backend):
    host = [np.arange(N, dtype=np.float32) + 1000 * k for k in range(3)]
    return host, [backend.put(x) for x in host], backend.zeros(2 * N, tw.float32)


@pytest.mark.parametrize("c", [-1, 0, 1])
def test_by_an_expression(backend, c):
    (a, b, _), (x, y, _), out = three(backend)
    expression[1, N](out, x, y, c)
    even = np.arange(N) % 2 == 0
    np.testing.assert_array_equal(backend.get(out), np.r_[a if c > 0 else b, np.where(even, b, a)])


@pytest.mark.parametrize("c", [0, 1])
def test_by_a_statement_and_written(backend, c):
    (a, b, _), (x, y, _), out = three(backend)
    statement[1, N](out, x, y, c)
    np.testing.assert_array_equal(backend.get(out), np.r_[a + (c > 0), b + (c == 0)])


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_swapped_in_a_loop(backend, n):
    (a, b, _), (x, y, _), out = three(backend)
    swapped[1, N](out, x, y, n)
    source, target = a.copy(), b.copy()
    first = source
    for k in range(n):
        target[:] = source + k
        source, target = target, source
    np.testing.assert_array_equal(backend.get(out), np.r_[source, first])


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_rotated_in_a_while_loop(backend, n):
    host, given, out = three(backend)
    rotated[1, N](out, *given, n)
    np.testing.assert_array_equal(backend.get(out), np.r_[host[n % 3], host[(n + 2) % 3]])


@pytest.mark.parametrize("c", [0, 1])
def test_returned_on_two_paths(backend, c):
    (a, b, _), (x, y, _), out = three(backend)
    of_a_function[1, N](out, x, y, c)
    chosen = a if c else b
    np.testing.assert_array_equal(backend.get(out), np.r_[chosen, chosen[::-1]])


@pytest.mark.parametrize("c", [0, 1])
@pytest.mark.parametrize("same", [False, True])
def test_an_argument_or_what_an_address_names(backend, c, same):
    (a, b, _), (x, y, _), out = three(backend)
    of_addresses[1, N](out, x, tw.addresses([x if same else y]), c)
    chosen, left = (b if c and not same else a), (a if c and not same else 0 * a)
    np.testing.assert_array_equal(backend.get(out), np.r_[chosen, left])


@tw.kernel
def of_a_tuple(out, a, b, c, n):
    i = tw.thread_idx.x
    source, (target, third) = (a, (b, c)) if n > 0 else (b, (a, c))
    pair = {"s": (source, 1), "t": [target, third]}
    for k in range(n):
        pair = {"s": (pair["t"][0], 1 + k), "t": [pair["t"][1], pair["s"][0]]}
    out[i] = pair["s"][0][i] + pair["s"][1]
    out[i + N] = pair["t"][1][i]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_in_tuples_lists_and_dicts(backend, n):
    host, given, out = three(backend)
    of_a_tuple[1, N](out, *given, n)
    order = [0, 1, 2] if n else [1, 0, 2]
    order = order[n % 3 :] + order[: n % 3]
    np.testing.assert_array_equal(backend.get(out), np.r_[host[order[0]] + max(n, 1), host[order[2]]])


@tw.kernel
def slices(out, a, b, n):
    """Offsets go along with addresses; rows of dynamic strides are chosen too."""
    i = tw.thread_idx.x
    row = a[0, :]
    for k in range(n):
        if k % 2 == 0:
            row = b[k, :]
        else:
            row = a[k, :]
    out[i] = row[i]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_views_with_offsets(backend, n):
    host = [np.arange(4 * 32, dtype=np.float32).reshape(4, 32) + 1000 * k for k in range(2)]
    out = backend.zeros(32, tw.float32)
    slices[1, 32](out, *(backend.put(x) for x in host), n)
    expected = host[0][0] if n == 0 else host[n % 2][n - 1]
    np.testing.assert_array_equal(backend.get(out), expected)


def test_different_alignments_keep_narrow_accesses(backend):
    """One array begins in the middle of a vector: what stands for both is not copied by vectors."""

    @tw.kernel
    def kernel(out, a, b, c):
        t = a if c > 0 else b
        r = tw.registers(tw.float32, 4)
        tw.copy(tw.local_tile(t, (4,), (tw.thread_idx.x,)), r)
        tw.copy(r, tw.local_tile(out, (4,), (tw.thread_idx.x,)))

    memory = np.arange(80, dtype=np.float32)
    a, b = backend.put(memory[:64]), backend.strided(backend.put(memory), (64,), (1,), 1)
    for c, expected in ((1, memory[:64]), (0, memory[1:65])):
        out = backend.zeros(64, tw.float32)
        kernel[1, 16](out, a, b, c)
        np.testing.assert_array_equal(backend.get(out), expected)


def test_races_through_chosen_tensors_are_found():
    @tw.kernel
    def kernel(out, a, b, c):
        t = a if c > 0 else b
        i = tw.thread_idx.x
        t[i] = 1.0
        out[i] = a[63 - i]

    a, b, out = (np.zeros(64, np.float32) for _ in range(3))
    for c, found in ((1, ["race"]), (0, [])):
        with tw.simulate(raise_errors=False) as run:
            kernel[1, 64](out, a, b, c)
        assert [finding.kind for finding in run.findings] == found


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (tw.shared(tw.float32, 4), tw.shared(tw.float32, 4)), "one of two shared tensors"),
        (lambda: (tw.registers(tw.float32, 4), tw.registers(tw.float32, 4)), "registers have no addresses"),
    ],
)
def test_what_is_refused_with_the_way_out(make, words):
    @tw.kernel
    def kernel(x, n):
        a, b = make()
        a[0] = 1.0
        b[0] = 2.0
        for _ in range(n):
            a, b = b, a
        x[0] = a[0]

    with pytest.raises(tw.LanguageError, match=words) as caught:
        kernel[1, 1].source(tw.spec(tw.float32, (4,)), 3)
    assert "a mode more" in str(caught.value)


def test_what_does_not_agree_in_layout_or_type_is_refused():
    @tw.kernel
    def kernel(x, y, n):
        t = x if n > 0 else y
        x[0] = t[0]

    one = tw.spec(tw.float32, (4,))
    for other in (tw.spec(tw.int32, (4,)), tw.spec(tw.float32, (4, 4))):
        with pytest.raises(tw.LanguageError):
            kernel[1, 1].source(one, other, 1)
