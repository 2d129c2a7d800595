"""fence.proxy.async: how it is written, where it is refused, and which writes the checker takes for fenced."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim.order import Order
from tilewright.backends.sim.proxies import ProxyFences
from tilewright.ir.effects import Proxy

X = tw.spec("float32", (64,))


@tw.kernel
def fenced(x, space: tw.constexpr):
    smem = tw.shared(tw.float32, 64)
    smem[tw.thread_idx.x] = x[tw.thread_idx.x]
    tw.fence_proxy_async(space)
    tw.sync_threads()
    x[tw.thread_idx.x] = smem[63 - tw.thread_idx.x]


@pytest.mark.parametrize(("space", "words"), [("shared", "shared::cta"), ("global", "global")])
def test_it_is_written_before_the_barrier(space: str, words: str) -> None:
    text = fenced.source(X, space, block=64, arch="sm_90a")
    assert f"fence.proxy.async.{words};" in text
    call = "fence_proxy_async();" if space == "shared" else "fence_proxy_async_global();"
    assert text.index("smem[threadIdx.x] =") < text.index(call) < text.index("__syncthreads")
    assert fenced[1, 64].resources(X, space, arch="sm_90a").spills == 0


def test_it_changes_no_value() -> None:
    x = np.arange(64, dtype=np.float32)
    fenced[1, 64](x, "shared")
    assert (x == np.arange(64)[::-1]).all()


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_other_targets_refuse_it(arch: str) -> None:
    with pytest.raises(tw.LanguageError, match="has no async proxy; it needs sm_90"):
        fenced.lower(X, "shared", block=64, arch=arch)


@pytest.mark.parametrize("space", ["cluster", None, 3])
def test_other_spaces_are_refused(space: object) -> None:
    with pytest.raises(tw.LanguageError, match='space is "shared" or "global"'):
        fenced.lower(X, space, block=64)


def test_an_op_is_of_the_generic_proxy_unless_it_says_otherwise() -> None:
    ops = list(fenced.lower(X, "shared", block=64).kernel.body.walk())
    assert {op.effects.proxy for op in ops} == {Proxy.GENERIC}
    assert [op.effects.fences_proxy for op in ops].count("shared") == 1


def seen(order: Order, fences: ProxyFences, thread: int, other: int, event: int) -> bool:
    rows, threads, others, events = (np.array([n]) for n in (0, thread, other, event))

    def is_known(_: np.ndarray, who: np.ndarray, event: int) -> np.ndarray:
        return order.is_before(rows, threads, who, np.array([event]))

    return bool(fences.are_before(rows, threads, others, events, rows, is_known)[0])


def of(*threads: int) -> np.ndarray:
    mask = np.zeros((1, 8), np.bool_)
    mask[0, list(threads)] = True
    return mask


@pytest.mark.parametrize("partial", [False, True])
def test_the_fence_is_of_the_writer_and_before_the_barrier(partial: bool) -> None:
    order = Order(8, 4, partial)
    order.begin(1)
    fences = ProxyFences(order)
    early = order.tick()  # threads 1 and 2 write
    fences.add(of(1))
    late = order.tick()  # and again, behind the fence of thread 1
    assert seen(order, fences, 1, 1, early) and not seen(order, fences, 1, 1, late)
    assert not seen(order, fences, 0, 1, early)  # nothing has told thread 0 of the fence
    order.meet_block(None)
    assert seen(order, fences, 0, 1, early) and not seen(order, fences, 0, 1, late)
    assert not seen(order, fences, 0, 2, early)  # thread 2 ran none
    fences.add(of(0))  # nor is the fence of another thread one of its own
    assert not seen(order, fences, 0, 2, early)
    fences.begin()
    assert not seen(order, fences, 0, 1, early)
