"""Launches seen from outside: what ran, with which arguments, and what is only traced."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.launch import Launcher
from tilewright.recording import prepare_launches, record_launches, trace_launches


@tw.kernel
def add_into(c, a, n: tw.constexpr = 1):
    """Add n to a and accumulate into c."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < c.size:
        c[i] += a[i] + n


@tw.kernel
def copy_async(dst, src):
    threads, thread = tw.Layout(32), tw.thread_idx.x
    smem = tw.shared(src.dtype, threads)
    tile = tw.local_tile(src, (32,), (0,))
    tw.copy(tw.local_partition(tile, threads, thread), tw.local_partition(smem, threads, thread))
    tw.cp_async_wait()
    dst[tw.thread_idx.x] = smem[tw.thread_idx.x]


def test_launches_run_and_are_seen() -> None:
    a, c = np.ones(64, np.float32), np.zeros(64, np.float32)
    with record_launches() as found:
        add_into[2, 32](c, a)
        add_into[2, 32](c, a, n=3)
    assert (c == 6).all()
    assert [(x.kernel, x.grid, x.block) for x in found] == [("add_into", (2, 1, 1), (32, 1, 1))] * 2
    assert [x.arguments["n"] for x in found] == [1, 3]
    assert found[0].written["c"] is c and list(found[0].written) == ["c"]
    assert set(found[0].read) == {"a", "c"}


def test_traced_launches_do_not_run() -> None:
    a, c = np.ones(64, np.float32), np.zeros(64, np.float32)
    with trace_launches(Arch.parse("sm_80")) as found:
        add_into[2, 32](c, a)
    assert (c == 0).all()
    assert found[0].lowered.arch.name == "sm_80" and "add_into" in found[0].lowered.cuda.text


def test_the_text_of_a_traced_launch_is_that_of_the_real_one() -> None:
    """So what is compiled ahead is found by the launch."""
    a, c = np.ones(64, np.float32), np.zeros(64, np.float32)
    with trace_launches(Arch.parse("sm_90a")) as traced:
        add_into[2, 32](c, a)
    with record_launches() as run:
        add_into[2, 32](c, a)
    assert traced[0].lowered.cuda.text == run[0].lowered.cuda.text


def test_asynchronous_copies_read_their_source() -> None:
    a, c = np.ones(32, np.float32), np.zeros(32, np.float32)
    with record_launches() as found:
        copy_async[1, 32](c, a)
    assert set(found[0].read) == {"src"} and set(found[0].written) == {"dst"}


@tw.kernel
def add_all(c, *operands):
    total = 0.0
    for x in operands:
        total += x[tw.thread_idx.x]
    c[tw.thread_idx.x] = total


def test_kernels_of_any_number_of_arguments() -> None:
    a, b, c = (np.full(32, n, np.float32) for n in (1, 2, 0))
    with record_launches() as found:
        add_all[1, 32](c, a, b)
    with trace_launches(Arch.parse("sm_80")) as traced:
        add_all[1, 32](c, a)
    assert (c == 3).all()
    assert len(found) == 1 and found[0].written["c"] is c
    assert [x is y for x, y in zip(found[0].read.values(), (a, b), strict=True)] == [True, True]
    assert len(traced) == 1 and len(traced[0].read) == 1


def test_prepared_launches_do_not_run_and_no_recording_sees_them() -> None:
    a, c = np.ones(64, np.float32), np.zeros(64, np.float32)
    with record_launches() as found, prepare_launches() as prepared:
        add_into[2, 32](c, a)
        add_into[2, 32](c, a, n=3)
    assert (c == 0).all() and found == []
    prepared[1]()
    assert (c == 4).all()
    add_into[2, 32](c, a)
    assert (c == 6).all()


def test_what_was_prepared_before_a_launch_failed_is_prepared_anew() -> None:
    a, c = np.ones(64, np.float32), np.zeros(64, np.float32)
    with prepare_launches() as prepared:
        add_into[2, 32](c, a)
        with pytest.raises(tw.TilewrightError):
            add_into[2, 32](c, "no array")
        add_into[2, 32](c, a, n=3)
    for launch in prepared:
        launch()
    assert (c == 4).all()


def test_nothing_stays_behind() -> None:
    before = Launcher.__call__
    with pytest.raises(RuntimeError), record_launches():
        raise RuntimeError
    assert Launcher.__call__ is before


def test_recordings_may_stand_inside_each_other() -> None:
    """A tuning traces its candidates inside a recording: what is only traced does not count as run."""
    a, c = np.ones(32, np.float32), np.zeros(32, np.float32)
    with record_launches() as outer:
        with record_launches() as inner:
            add_into[1, 32](c, a)
        with trace_launches(Arch.parse("sm_80")) as traced:
            add_into[1, 32](c, a)
        add_into[1, 32](c, a)
        with trace_launches(Arch.parse("sm_80")) as around, record_launches() as within:
            add_into[1, 32](c, a)
    assert (len(outer), len(inner), len(traced), len(around), len(within)) == (2, 1, 1, 1, 0)
    assert (c == 4).all()


def test_other_threads_are_left_alone() -> None:
    a, c = np.ones(32, np.float32), np.zeros(32, np.float32)
    with trace_launches(Arch.parse("sm_80")) as found:
        thread = threading.Thread(target=lambda: add_into[1, 32](c, a))
        thread.start()
        thread.join()
    assert (c == 2).all() and found == []
