"""Options that no launch can have: refused when they are given, with the name, what is expected and what came."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.arch import ARCHES, Arch
from tilewright.runtime.launch import launch_config


@tw.kernel
def fill(x):
    x[tw.thread_idx.x] = 1.0


BLOCKS = "(blocks on a multiprocessor of any target)"
NAMES = ", ".join(ARCHES)

CONFIGURED = [
    (
        {"min_blocks": '2) asm("trap;"); //'},
        f"configure: min_blocks is '2) asm(\"trap;\"); //'; expected an int from 0 to 32 {BLOCKS}",
    ),
    ({"min_blocks": -5}, f"configure: min_blocks is -5; expected 0 to 32 {BLOCKS}"),
    ({"min_blocks": 33}, f"configure: min_blocks is 33; expected 0 to 32 {BLOCKS}"),
    ({"min_blocks": True}, f"configure: min_blocks is True; expected an int from 0 to 32 {BLOCKS}"),
    ({"min_blocks": 2.0}, f"configure: min_blocks is 2.0; expected an int from 0 to 32 {BLOCKS}"),
    ({"min_blocks": None}, f"configure: min_blocks is None; expected an int from 0 to 32 {BLOCKS}"),
    ({"min_blocks": np.float32(2)}, f"configure: min_blocks is float32; expected an int from 0 to 32 {BLOCKS}"),
    (
        {"min_blocks": 24, "arch": "sm_86"},
        "configure: min_blocks is 24; expected 0 to 16 (blocks on a multiprocessor of sm_86)",
    ),
    ({"stream": "x"}, "configure: a stream is a CUDA handle or a framework's stream object, got 'x'"),
    ({"stream": -1}, "configure: a stream's handle is a pointer, got -1"),
    ({"stream": 2**64}, "configure: a stream's handle is a pointer, got 18446744073709551616"),
    ({"stream": True}, "configure: a stream is a CUDA handle or a framework's stream object, got True"),
    ({"stream": 1.0}, "configure: a stream is a CUDA handle or a framework's stream object, got float"),
    (
        {"stream": SimpleNamespace(ptr="x")},
        "configure: a stream is a CUDA handle or a framework's stream object, got SimpleNamespace",
    ),
    ({"arch": ""}, f"configure: no architecture is called ''; there are {NAMES}"),
    ({"arch": "sm_1"}, f"configure: no architecture is called 'sm_1'; there are {NAMES}"),
    ({"arch": "sm_\uff18\uff10"}, f"configure: no architecture is called 'sm_\uff18\uff10'; there are {NAMES}"),
    ({"arch": (9,)}, f"configure: no architecture is called (9,); there are {NAMES}"),
    ({"arch": ("9", "0")}, f"configure: no architecture is called ('9', '0'); there are {NAMES}"),
    ({"arch": True}, f"configure: no architecture is called True; there are {NAMES}"),
    ({"arch": b"sm_80"}, f"configure: no architecture is called b'sm_80'; there are {NAMES}"),
    (
        {"warps": 3, "min_blocks": "x"},
        "configure takes stream, min_blocks, arch, fastmath, cooperative, cluster and dependent_launch, got warps",
    ),
]


@pytest.mark.parametrize(("options", "message"), CONFIGURED, ids=str)
def test_configure(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        fill.configure(**options)
    assert str(caught.value) == message


def test_options_that_can_be() -> None:
    found = fill.configure(min_blocks=np.int64(2), stream=SimpleNamespace(cuda_stream=7)).options
    assert found.min_blocks == 2 and type(found.min_blocks) is int
    assert fill.configure(arch=90).options.arch == "sm_90" and fill.configure(arch=(8, 0)).options.arch == "sm_80"
    assert fill.configure(stream=0, arch=None).options.stream == 0
    text = fill.configure(min_blocks=np.int8(3))[1, 32].source(tw.spec(tw.float32, (32,)))
    assert "__launch_bounds__(32, 3)" in text


@pytest.mark.parametrize("call", ["source", "ptx", "sass", "resources", "lower"])
@pytest.mark.parametrize("arch", ["", "sm_1", 7.5])
def test_an_arch_that_there_is_not(call: str, arch: Any) -> None:
    x = tw.spec(tw.float32, (32,))
    for holder in (fill, fill[1, 32], fill.configure(arch="sm_80")):
        with pytest.raises(tw.ArgumentError, match="no architecture is called"):
            getattr(holder, call)(x, arch=arch)
    with pytest.raises(tw.ArgumentError, match="no architecture is called"):
        tw.check(fill, (x,), block=32, arch=arch)
    with pytest.raises(ValueError, match="no architecture is called"):
        Arch.parse(arch)


MOST = 2**63 - 1
SPECS = [
    ((tw.float32, (-4,)), f"tw.spec: shape[0] is -4; expected 0 to {MOST} (elements)"),
    ((tw.float32, (4, True)), f"tw.spec: shape[1] is True; expected an int from 0 to {MOST} (elements)"),
    ((tw.float32, (2.5,)), f"tw.spec: shape[0] is 2.5; expected an int from 0 to {MOST} (elements)"),
    ((tw.float32, (2**70,)), f"tw.spec: shape[0] is {2**70}; expected 0 to {MOST} (elements)"),
    ((tw.float32, -1), "tw.spec: the rank is -1; expected 0 to 32 (modes)"),
    ((tw.float32, 10**9), "tw.spec: the rank is 1000000000; expected 0 to 32 (modes)"),
    ((tw.float32, True), "tw.spec: shape is True; expected a tuple of at most 32 ints"),
    ((tw.float32, "ab"), "tw.spec: shape is 'ab'; expected a tuple of at most 32 ints"),
    ((tw.float32, {4}), "tw.spec: shape is set; expected a tuple of at most 32 ints"),
    ((tw.float32, (4,), 1), "tw.spec: stride is 1; expected a tuple of at most 32 ints"),
    ((tw.float32, (4,), (1.0,)), f"tw.spec: stride[0] is 1.0; expected an int from -{MOST} to {MOST} (elements)"),
    ((tw.float32, (4,), None, 3), "tw.spec: align is a power of two in bytes, got 3"),
    (
        (tw.float32, (4,), None, True),
        "tw.spec: align is True; expected an int from 1 to 1073741824 (bytes, a power of two)",
    ),
    ((tw.float32, (4,), None, 0), "tw.spec: align is 0; expected 1 to 1073741824 (bytes, a power of two)"),
]


@pytest.mark.parametrize(("arguments", "message"), SPECS, ids=str)
def test_spec(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        tw.spec(*arguments)
    assert str(caught.value) == message


def test_a_spec_of_no_type() -> None:
    with pytest.raises(tw.ArgumentError, match="tw.spec: no element type is called 'nope'"):
        tw.spec("nope", 3)


def test_specs_that_can_be() -> None:
    assert tw.spec(tw.float32, np.int64(2)).info.shape == (64, 64)
    info = tw.spec("float16", [np.int32(4), 0], (-1, np.int8(4)), align=np.int32(2)).info
    assert (info.shape, info.strides, info.pointer) == ((4, 0), (-1, 4), 2)
    assert all(type(number) is int for number in (*info.shape, *info.strides, info.pointer))


GRIDS = [
    (True, "grid"),
    ({}, "grid"),
    ({1}, "grid"),
    ((997, True), "grid"),  # no test launches (997, 1): an equal tuple would be taken
    ((1, [2]), "grid"),
    (1.0, "grid"),
    ("1", "grid"),
]


@pytest.mark.parametrize(("extent", "what"), GRIDS, ids=str)
def test_grids_and_blocks(extent: Any, what: str) -> None:
    x = np.zeros(32, np.float32)
    fill[1, 32](x)  # an equal configuration that is right does not make this one right
    x[:] = 0
    for grid, block, name in ((extent, 32, "grid"), (1, extent, "block")):
        with pytest.raises(tw.ArgumentError) as caught:
            fill[grid, block](x)
        assert str(caught.value) == f"{name} {extent!r} is neither an int nor a tuple of ints"
        with pytest.raises(tw.ArgumentError):
            launch_config(grid, block)
    assert not x.any()


# --- arguments ------------------------------------------------------------------------------------------


@refused(
    tw.ArgumentError,
    """
    argument 'x' cannot be used: it is a masked array, and a kernel would take its masked elements for numbers
      help: pass array.filled(value), or array.data and array.mask as two arguments
    """,
)
def test_a_masked_array():
    x = np.ma.masked_array(np.zeros(32, np.float32), np.arange(32) > 3)
    fill[1, 32](x)


@pytest.mark.parametrize("give", [tw.static, lambda x: x], ids=["static", "plain"])
def test_masked_arrays_are_refused_everywhere(give: Any) -> None:
    x = np.ma.masked_array(np.ones((4, 4), np.float32), np.eye(4) > 0)
    for call in (
        lambda: fill[1, 32](give(x)),
        lambda: fill.source(give(x)),
        lambda: fill[1, 32].prepare(give(x)),
        lambda: fill[1, 32].analyze(give(x)),
        lambda: tw.matmul(x, x.data),
        lambda: tw.tensor(x),
    ):
        with pytest.raises(tw.TilewrightError, match="masked"):
            call()
    fill[1, 4](x.data)
    fill[1, 4](x.filled(0))


@refused(
    tw.LayoutError,
    """
    local_partition: the index is 8, and the threads of (2,4):(1,2) have the numbers 0 to 7
      help: give the number of a thread, such as tw.thread_idx.x
    """,
)
def test_one_past_the_last_thread():
    tw.local_partition(tw.tensor(np.zeros((8, 8))), tw.Layout((2, 4)), 8)


@pytest.mark.parametrize("index", [-1, 8, np.int64(8), True, "x", 2.0, (1, 2), None], ids=repr)
@pytest.mark.parametrize("threads", [(2, 4), tw.Layout((2, 4), (4, 1))], ids=str)
def test_threads_that_there_are_not(index: Any, threads: Any) -> None:
    for tensor in (tw.tensor(np.zeros((8, 8))), tw.Layout((8, 8))):
        with pytest.raises(tw.LayoutError, match="local_partition: the index is"):
            tw.local_partition(tensor, threads, index)
        assert tw.size(tw.local_partition(tensor, threads, np.int64(7))) == 8

    @tw.kernel
    def part(x):
        tw.local_partition(x, threads, index)[0] = 1.0

    with pytest.raises(tw.LayoutError, match="local_partition: the index is"):
        part[1, 8](np.zeros((8, 8), np.float32))


@pytest.mark.parametrize("unroll", ["3", "4) x", 2.5, -1, 2**31], ids=repr)
def test_counts_of_unrolling(unroll: Any) -> None:
    @tw.kernel
    def loop(x):
        for _ in tw.range(4, unroll=unroll):
            x[tw.thread_idx.x] += 1.0

    with pytest.raises(tw.LanguageError, match="unroll is .*; expected True, False or how many times, an int from 1"):
        loop.source(tw.spec(tw.float32, (32,)))


@pytest.mark.parametrize(
    "options", [{"min_blocks": "x"}, {"min_blocks": -1}, {"min_blocks": 64}, {"min_blocks": True}], ids=str
)
def test_options_of_a_config(options: dict[str, Any]) -> None:
    with pytest.raises(tw.ArgumentError, match=r"tw\.Config: min_blocks"):
        tw.Config(BM=64, **options)
