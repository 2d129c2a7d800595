"""Finished functions that are called again: the launches of a first call, with other pointers, and nothing looked at."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.compilers import has_nvrtc
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import Tensor

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.kernels import operands
from tilewright.kernels.repeats import repeating
from tilewright.recording import record_launches
from tilewright.runtime.views import view

has_nvrtc()  # before the driver's stand-in takes the place of every library

FLOAT, BF16 = "float32", "bfloat16"
FIRST, STEP = 0x7A12_3450_0000, 0x111_1000  # of pointers: no two numbers beside each other look like one


class Library:
    """Stands for PyTorch with a GPU: makes tensors, each in memory of its own."""

    def __init__(self) -> None:
        self.pointers = itertools.count(FIRST, STEP)
        self.kind: Any = type("Tensor", (Tensor,), {"__module__": "torch", "requires_grad": False})
        self.has_gradients = False
        names = (FLOAT, BF16, "float16", "float64", "int32", "int64")
        self.module = SimpleNamespace(
            _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 0),
            empty=lambda shape, dtype, device: self(shape, dtype),
            device=lambda text: text,
            is_grad_enabled=lambda: self.has_gradients,
            **{name: name for name in names},
        )

    def __call__(self, shape: tuple[int, ...], dtype: str = FLOAT, strides: Any = None, pointer: int = 0) -> Any:
        return self.kind(shape, strides, pointer=pointer or next(self.pointers), dtype=dtype)


@pytest.fixture
def torch(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Library:
    fake_cuda.current = [1000]
    library = Library()
    monkeypatch.setitem(sys.modules, "torch", library.module)
    return library


@pytest.fixture
def launched(torch: Library, fake_cuda: FakeCuda) -> list[tuple[Any, ...]]:
    """What the driver is given: grid and block, and 8 bytes of each parameter."""
    found: list[tuple[Any, ...]] = []

    def launch(configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
        words = ctypes.string_at(configuration.value, 28)
        found.append((words, *(ctypes.string_at(address, 8) for address in parameters)))
        return 0

    fake_cuda.cuLaunchKernelEx = launch  # type: ignore[assignment, method-assign]
    fake_cuda.cuTensorMapEncodeTiled = lambda map, *rest: ctypes.memset(map, rest[2] >> 24 & 255, 128) and 0  # type: ignore[attr-defined]
    return found


Arguments = Callable[[Library], tuple[tuple[Any, ...], dict[str, Any]]]
N, D = 48, 256


def norm(**options: Any) -> Arguments:
    return lambda t: ((t((N, D), BF16), t((D,))), options)


CALLS: dict[str, tuple[Any, Arguments]] = {
    "softmax": (tw.softmax, lambda t: ((t((N, D)),), {})),
    "softmax, out, axis": (tw.softmax, lambda t: ((t((N, D)), 0), {"out": t((N, D), BF16)})),
    "log_softmax of 100,000 columns": (tw.log_softmax, lambda t: ((t((2, 100_000), BF16),), {})),
    "softmax_backward": (tw.softmax_backward, lambda t: ((t((N, D)), t((N, D))), {})),
    "log_softmax_backward": (tw.log_softmax_backward, lambda t: ((t((N, D)), t((N, D))), {"axis": 1})),
    "rms_norm": (tw.rms_norm, norm(eps=1e-3)),
    "rms_norm, statistics": (tw.rms_norm, norm(statistics=True)),
    "layer_norm": (tw.layer_norm, lambda t: ((t((N, D)),), {"bias": t((D,)), "eps": 1e-3})),
    "rms_norm_backward": (tw.rms_norm_backward, lambda t: ((t((N, D)), t((N, D)), t((N,)), t((D,))), {})),
    "layer_norm_backward": (
        tw.layer_norm_backward, lambda t: ((t((N, D)), t((N, D)), t((N,)), t((N,))), {"weight": t((D,))})
    ),
    "permute": (tw.permute, lambda t: ((t((4, 6, 8)), (2, 0, 1)), {})),
    "rope": (tw.rope, lambda t: ((t((2, N, 64), BF16), t((N, 32)), t((N, 32))), {"interleaved": True})),
    "cross_entropy": (tw.cross_entropy, lambda t: ((t((N, D)), t((N,), "int64")), {"statistics": True})),
    "cross_entropy_backward": (
        tw.cross_entropy_backward,
        lambda t: ((t((N,)), t((N, D)), t((N,), "int64"), t((N,)), t((N,))), {"label_smoothing": 0.25}),
    ),
    "attention": (tw.attention, lambda t: (tuple(t((2, 3, 40, 32), FLOAT) for _ in range(3)), {"causal": True})),
    "attention on Hopper": (tw.attention, lambda t: (tuple(t((1, 2, 256, 64), BF16) for _ in range(3)), {})),
    "attention, lengths": (
        tw.attention,
        lambda t: (
            (t((50, 3, 32), FLOAT), t((50, 3, 32), FLOAT), t((50, 3, 32), FLOAT)),
            {"offsets": t((4,), "int32"), "window": (5, 0), "statistics": True},
        ),
    ),
    "attention_backward": (
        tw.attention_backward,
        lambda t: ((*(t((1, 2, 40, 32), FLOAT) for _ in range(5)), t((1, 2, 40))), {"scale": 0.5}),
    ),
    "grouped_matmul": (
        tw.grouped_matmul, lambda t: ((t((64, 64), BF16), t((4, 64, 72), BF16), t((4,), "int32")), {"out_dtype": tw.float32})
    ),
    "grouped_matmul, out, ragged K": (
        tw.grouped_matmul, lambda t: ((t((64, 48)), t((48, 72)), t((2,), "int32")), {"out": t((2, 64, 72))})
    ),
}  # fmt: skip
QUICK = (
    "softmax",
    "softmax, out, axis",
    "rms_norm, statistics",
    "layer_norm_backward",
    "permute",
)


def refuse(*given: Any, **options: Any) -> None:
    raise AssertionError("a repeated call looked at an array")


def shape_of(result: Any) -> Any:
    return [shape_of(x) for x in result] if isinstance(result, tuple) else result and (result.shape, result.dtype)


def pointers(launch: tuple[Any, ...], *arrays: Any) -> list[Any]:
    """Return the arrays whose pointers a launch was given, in order."""
    known = {x.data_ptr().to_bytes(8, "little"): x for x in arrays}
    return [known[parameter] for parameter in launch[1:] if parameter in known]


def flat(result: Any) -> Iterator[Any]:
    for x in result if isinstance(result, tuple) else (result,):
        if x is not None:
            yield x


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CALLS]
)
def test_a_repeated_call_launches_what_the_first_would(
    name: str, torch: Library, launched: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, arguments = CALLS[name]
    args, options = arguments(torch)
    function(*args, **options)
    args, options = arguments(torch)
    state = next(torch.pointers)
    torch.pointers = itertools.count(state, STEP)
    del launched[:]
    expected = function.__wrapped__(*args, **options)
    first = launched[:]
    assert first
    torch.pointers = itertools.count(state, STEP)  # results are made at the same places again
    del launched[:]
    monkeypatch.setattr(operands, "read", refuse)
    found = function(*args, **options)
    assert launched == first
    assert shape_of(found) == shape_of(expected)
    assert [x.data_ptr() for x in flat(found)] == [x.data_ptr() for x in flat(expected)]


def test_what_the_result_may_not_meet_is_looked_at(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    x, weight, out = torch((N, D)), torch((D,)), torch((N, D))
    for _ in range(2):
        assert tw.rms_norm(x, weight, out=out) is out
    inside = torch((D,), pointer=out.data_ptr() + 4 * D)
    with pytest.raises(ArgumentError, match="out shares memory with weight"):
        tw.rms_norm(x, inside, out=out)
    assert tw.rms_norm(x, weight, out=x) is x  # element by element
    with pytest.raises(ArgumentError, match="out shares memory with x"):
        tw.rms_norm(x, weight, out=torch((N, D), pointer=x.data_ptr() + 16))
    assert len(launched) == 3


def test_one_array_in_two_places(
    torch: Library, launched: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say which of them a pointer is: what is learnt of it holds for such calls."""
    x, y = torch((N, D)), torch((N, D))
    tw.softmax_backward(x, x)
    tw.softmax_backward(x, y)
    tw.softmax_backward(y, x)
    tw.softmax_backward(y, y)
    assert [pointers(launch, x, y) for launch in launched] == [[x, x], [x, y], [y, x], [y, y]]
    for again in (torch((4, D)), torch((4, D))):
        assert tw.softmax(again, out=again) is again
        monkeypatch.setattr(operands, "read", refuse)


def test_alignments_and_layouts_are_kinds_of_their_own(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    out = torch((N, D))
    for x in (torch((N, D)), torch((N, D), strides=(D + 1, 1)), torch((N, D), pointer=4100), torch((N, D))):
        tw.softmax(x, out=out)
        tw.softmax.__wrapped__(x, out=out)
        assert launched[-1] == launched[-2]


@tw.kernel
def clear(x):
    x[tw.thread_idx.x] = 0


@pytest.mark.parametrize("offset", [0, 4])
def test_what_begins_inside_of_an_array_is_looked_at(
    torch: Library, launched: list[tuple[Any, ...]], offset: int
) -> None:
    calls = []

    @repeating("first")
    def clear_behind(x: Any, first: int) -> None:
        calls.append(x)
        clear[1, 8](view(x, (8,), (1,), first))

    arrays = [torch((16,)) for _ in range(3)]
    for x in arrays:
        clear_behind(x, offset)
    assert calls == (arrays if offset else arrays[:1])
    given = [int.from_bytes(launch[1], "little") for launch in launched]
    assert given == [x.data_ptr() + 4 * offset for x in arrays]


def test_gradients_are_refused_as_at_first(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    x = torch((N, D))
    tw.softmax(x)
    tw.softmax(x)
    x.requires_grad, torch.has_gradients = True, True
    with pytest.raises(ArgumentError, match=r"x requires a gradient, and none flows through softmax"):
        tw.softmax(x)
    torch.has_gradients = False
    tw.softmax(x)
    assert len(launched) == 3


def test_wrong_arguments_are_told_by_the_function(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    x = torch((N, D))
    tw.softmax(x)
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        tw.softmax(x, 0, x)  # type: ignore[misc]
    with pytest.raises(TypeError, match="multiple values for argument 'axis'"):
        tw.softmax(x, 0, axis=1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        tw.softmax(x, axes=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tw.softmax()  # type: ignore[call-arg]
    with pytest.raises(ArgumentError, match="axis is 2, and the array has 2 modes"):
        tw.softmax(x, axis=2)
    with pytest.raises(ArgumentError, match="axis of softmax is True"):
        tw.softmax(x, axis=True)
    with pytest.raises(ArgumentError, match="x is a list, and softmax takes arrays"):
        tw.softmax([x])


def test_recordings_see_repeated_calls(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    x = torch((N, D))
    tw.softmax(x)
    tw.softmax(x)
    with record_launches() as found:
        tw.softmax(x)
    assert [each.kernel for each in found] == ["softmax_held"] and len(launched) == 3


def test_threads(torch: Library, launched: list[tuple[Any, ...]]) -> None:
    """Each thread's launches have its own pointers, whoever is watched meanwhile."""
    wanted: list[Any] = []

    def work(seed: int) -> None:
        for n in range(20):
            x = torch((seed % 3 + 1, D))
            wanted.append(x)
            (tw.softmax if n % 2 else tw.log_softmax)(x)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [x for launch in launched for x in pointers(launch, *wanted)]
    assert len(launched) == len(found) == len(wanted) == 120 and set(found) == set(wanted)
