"""What the simulator finds in kernels that reach memory by addresses, and over shared bytes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


def kinds(launch, *args):
    with tw.simulate(raise_errors=False) as run:
        launch(*args)
    return [(finding.kind, finding.line) for finding in run.findings]


@tw.kernel
def shifted(out, addresses, by):
    x = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    out[tw.thread_idx.x] = x[tw.thread_idx.x + by]


@pytest.mark.parametrize(("by", "found"), [(0, False), (1, True), (-1, True), (1 << 20, True), (-(1 << 28), True)])
def test_accesses_outside_of_all_arrays(by, found):
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    run = kinds(shifted[1, 64], out, tw.addresses([x]), by)
    assert [kind for kind, _ in run] == ["out-of-bounds"] * found


def test_gaps_between_the_rows_of_a_view_are_outside():
    memory, out = np.zeros((8, 16), np.float32), np.zeros(64, np.float32)
    rows = memory[:, :8]

    @tw.kernel
    def read(out, addresses, width: tw.constexpr):
        x = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout((8, width), (16, 1)))
        for j in range(width):
            out[tw.thread_idx.x] = x[tw.thread_idx.x, j]

    assert kinds(read[1, 8], out, tw.addresses([rows]), 8) == []
    assert kinds(read[1, 8], out, tw.addresses([rows[::-1]]), 1) != []  # the last row first: what follows is outside
    assert {kind for kind, _ in kinds(read[1, 8], out, tw.addresses([rows]), 9)} == {"out-of-bounds"}
    assert kinds(read[1, 8], out, tw.addresses([rows, memory]), 9) == []


def test_unchecked_accesses_outside_stop_the_launch():
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with tw.simulate(check=False), pytest.raises(tw.CheckError, match="out of bounds"):
        shifted[1, 64](out, tw.addresses([x]), 1 << 30)


def test_null_and_dangling_addresses():
    @tw.kernel
    def read(out, address):
        out[0] = tw.make_tensor(tw.pointer(address, tw.float32), tw.Layout(1))[0]

    out = np.zeros(1, np.float32)
    assert [kind for kind, _ in kinds(read[1, 1], out, np.uint64(0))] == ["out-of-bounds"]
    gone = np.zeros(1 << 20, np.float32)
    address = np.uint64(gone.ctypes.data)
    del gone
    assert [kind for kind, _ in kinds(read[1, 1], out, address)] == ["out-of-bounds"]


def test_misaligned_and_read_only():
    @tw.kernel
    def write(addresses, by: tw.constexpr):
        x = tw.make_tensor(tw.pointer(addresses[0] + by, tw.float32), tw.Layout(4))
        x[tw.thread_idx.x] = 1.0

    x = np.zeros(8, np.float32)
    assert kinds(write[1, 4], tw.addresses([x]), 4) == []
    assert [kind for kind, _ in kinds(write[1, 4], tw.addresses([x]), 2)] == ["misaligned"]
    assert (x == [0, 1, 1, 1, 1, 0, 0, 0]).all()
    x.setflags(write=False)
    assert [kind for kind, _ in kinds(write[1, 4], tw.addresses([x]), 4)] == ["out-of-bounds"]


@tw.kernel
def race(out, x, addresses, synchronised: tw.constexpr):
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    i = tw.thread_idx.x
    p[i] = 1.0
    if synchronised:
        tw.sync_threads()
    out[i] = x[63 - i]


def test_races_between_an_address_and_an_argument_are_found():
    x, y, out = (np.zeros(64, np.float32) for _ in range(3))
    assert kinds(race[1, 64], out, x, tw.addresses([x]), True) == []
    assert kinds(race[1, 64], out, x, tw.addresses([y]), False) == []
    with tw.simulate(raise_errors=False) as run:
        race[1, 64](out, x, tw.addresses([x]), False)
    assert [finding.kind for finding in run.findings] == ["race"]
    with tw.simulate(raise_errors=False) as run:
        race[2, 64](out, x, tw.addresses([x]), True)
    assert {finding.kind for finding in run.findings} <= {"race", "overlapping-writes"}
    assert run.findings


def test_races_between_two_addresses_name_the_array():
    @tw.kernel
    def both(addresses):
        p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
        q = tw.make_tensor(tw.pointer(addresses[1], tw.float32), tw.Layout(64))
        p[tw.thread_idx.x] = 1.0
        q[63 - tw.thread_idx.x] = 2.0

    x = np.zeros(64, np.float32)
    assert kinds(both[1, 64], tw.addresses([x, np.zeros(64, np.float32)])) == []
    with tw.simulate(raise_errors=False) as run:
        both[1, 64](tw.addresses([x, x]))
    assert [finding.kind for finding in run.findings] == ["race"]
    assert "of arrays[" in str(run.findings[0])


def test_rollback_of_arrays_written_by_address():
    @tw.kernel
    def write(addresses):
        x = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
        x[tw.thread_idx.x] = 1.0

    x = np.arange(32, dtype=np.float32)
    with tw.simulate(rollback=True), pytest.raises(tw.CheckError):
        write[1, 64](tw.addresses([x]))
    np.testing.assert_array_equal(x, np.arange(32))


@tw.kernel
def union(out, x, barriers: tw.constexpr, stale: tw.constexpr):
    a, b = tw.shared_union(a=(tw.float32, 64), b=(tw.int32, 64))
    i = tw.thread_idx.x
    a[i] = x[i]
    if barriers > 0:
        tw.sync_threads()
    value = a[63 - i]
    if barriers > 1:
        tw.sync_threads()
    if not stale:
        b[i] = i
        tw.sync_threads()
    out[i] = b[63 - i] + value.to(tw.int32)


@pytest.mark.parametrize(
    ("barriers", "stale", "found"),
    [(2, False, []), (1, False, ["race"]), (2, True, ["uninitialised-read"])],
)
def test_tensors_over_the_same_bytes(barriers, stale, found):
    x, out = np.ones(64, np.float32), np.zeros(64, np.int32)
    assert [kind for kind, _ in kinds(union[1, 64], out, x, barriers, stale)] == found


def test_recasts_see_what_was_written_and_race():
    @tw.kernel
    def view(out, x, synchronised: tw.constexpr):
        a = tw.shared(tw.float32, 64)
        bits = a.recast(tw.uint16)
        i = tw.thread_idx.x
        a[i] = x[i]
        if synchronised:
            tw.sync_threads()
        out[i] = bits[2 * (63 - i) + 1]

    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.uint16)
    assert kinds(view[1, 64], out, x, True) == []
    np.testing.assert_array_equal(out, (x[::-1].copy().view(np.uint32) >> 16).astype(np.uint16))
    assert [kind for kind, _ in kinds(view[1, 64], out, x, False)] == ["race"]


def test_registers_that_were_written_in_part():
    @tw.kernel
    def parts(out, both: tw.constexpr):
        r = tw.registers(tw.float32, 2)
        halves = r.recast(tw.uint16)
        halves[2] = tw.uint16(0)
        if both:
            halves[3] = tw.uint16(0x4000)
        out[0] = r[1]

    out = np.zeros(1, np.float32)
    assert kinds(parts[1, 1], out, True) == []
    assert out[0] == 2
    assert [kind for kind, _ in kinds(parts[1, 1], out, False)] == ["uninitialised-read"]
