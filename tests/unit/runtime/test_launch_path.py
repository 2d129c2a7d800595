"""From a call to the driver: what reaches it, on which stream, and what nothing of it leaves behind."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.compilers import has_nvrtc
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import Tensor

import tilewright as tw
from tilewright.errors import ArgumentError, LanguageError
from tilewright.recording import record_launches

has_nvrtc()  # before the driver's stand-in takes the place of every library

SHIFT = 2.0


@tw.kernel
def blend(out, x, n, alpha):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < n:
        out[i, 0] = alpha * x[i, 1]


@pytest.fixture
def tensor(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of tensors of a framework whose current stream is 70."""
    getter = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 70 + ordinal)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=getter))
    return type("Tensor", (Tensor,), {"__module__": "torch"})


class Reader:
    """Reads the parameters of each launch, while it lasts."""

    def __init__(self, cuda: FakeCuda, kinds: dict[str, Any]) -> None:
        self.kinds, self.seen = kinds, []
        self.launch = cuda.cuLaunchKernelEx
        cuda.cuLaunchKernelEx = self  # type: ignore[assignment, method-assign]
        cuda.current = [1000]

    def __call__(self, configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
        kinds = self.kinds.items()
        self.seen.append({name: kind.from_address(parameters[n]).value for n, (name, kind) in enumerate(kinds)})
        return self.launch(configuration, function, parameters, extra)


KINDS = {
    "out": ctypes.c_uint64, "out_stride": ctypes.c_int32, "x": ctypes.c_uint64, "x_stride": ctypes.c_int32,
    "n": ctypes.c_int32, "alpha": ctypes.c_float,
}  # fmt: skip


def test_parameters_of_every_kind_of_call(fake_cuda: FakeCuda, tensor: Any) -> None:
    reader = Reader(fake_cuda, KINDS)
    launch, expected = blend[2, 32], []
    for rows, columns, pointer in [(4, 8, 4096), (4, 8, 1 << 45), (6, 16, 8192), (4, 8, 4096), (4, 8, 4100)]:
        for n, alpha in ((3, 0.5), (-1, 2.0)):
            launch(tensor((rows, columns), pointer=pointer), tensor((rows, 24), pointer=1 << 46), n, alpha)
            expected.append((pointer, columns, 1 << 46, 24, n, alpha))
    assert [tuple(seen.values()) for seen in reader.seen] == expected
    assert {stream for _, stream, _ in fake_cuda.launches} == {70}


def test_a_configured_stream_is_taken_after_launches_on_the_current_one(fake_cuda: FakeCuda, tensor: Any) -> None:
    """Both share what was compiled; which stream a launch goes to is not part of that."""
    fake_cuda.current = [1000]
    args = tensor((4, 8), pointer=4096), tensor((4, 8), pointer=8192), 3, 0.5
    given = [99, np.uint64(98), SimpleNamespace(cuda_stream=97), 0]
    launchers = [blend[1, 32], *(blend.configure(stream=s)[1, 32] for s in given), blend[lambda *_: 1, 32]]
    for _ in range(3):
        for launcher in launchers:
            launcher(*args)
    assert [stream for _, stream, _ in fake_cuda.launches] == [70, 99, 98, 97, 0, 70] * 3


def test_a_launch_inside_a_trace_is_refused(tensor: Any) -> None:
    args = tensor((4, 8), pointer=4096), tensor((4, 8), pointer=8192), 3, 0.5

    @tw.kernel
    def outer(y):
        blend[1, 32](*args)

    with pytest.raises(LanguageError, match="launched inside a kernel"):
        outer[1, 1](np.zeros(1, np.float32))


def test_nothing_is_put_among_the_users_globals() -> None:
    names = {"SHIFT": 1.0}
    kernel = tw.kernel(_with_globals(scaled_sum.__wrapped__, names))
    x = np.ones(4, np.float32)
    kernel[1, 4](x)
    names["SHIFT"] = 5.0  # what is assigned later is seen
    kernel[1, 4](x)
    assert x.tolist() == [3 * (3 * (1 + 1.0) + 5.0)] * 4
    assert names.keys() - {"__builtins__"} == {"SHIFT", "tw"}
    assert not [name for name in globals() if name.startswith("__tilewright")]


@tw.kernel
def scaled_sum(x):
    total = 0.0
    for _ in range(3):
        total += x[tw.thread_idx.x] + SHIFT
    x[tw.thread_idx.x] = total


def _with_globals(function: Any, names: dict[str, Any]) -> Any:
    import types

    names["tw"] = tw
    own = types.FunctionType(function.__code__, names, function.__name__)
    own.__module__ = function.__module__
    return own


@tw.kernel
def dynamic(y, x):
    y[tw.thread_idx.x, 0] = x[tw.thread_idx.x, 1]


@tw.kernel
def tiles(y, x):
    tile = tw.shared(x.dtype, (32, 4))
    part = tw.local_tile(x, (32, 4), (tw.block_idx.x, 0))
    for n in range(x.shape[1] // 4):
        tile[tw.thread_idx.x, n % 4] = part[tw.thread_idx.x, n % 4]
    tw.sync_threads()
    y[tw.thread_idx.x, 0] = tile[31 - tw.thread_idx.x, 1]


PROFILED = [
    (dynamic, (np.zeros((32, 4), np.float32), np.ones((32, 4), np.float32))),
    (tiles, (np.zeros((32, 1), np.float32), np.ones((32, 8), np.float32))),
    (blend, (np.zeros((32, 1), np.float32), np.ones((32, 8), np.float32), 32, 0.5)),
    (dynamic, (tw.static(np.zeros((32, 4), np.float32)), np.ones((4, 32), np.float32).T)),
]


@pytest.mark.parametrize(("kernel", "args"), PROFILED)
def test_a_profile_asks_for_the_registers_of_the_kernel_that_a_gpu_runs(kernel: Any, args: tuple[Any, ...]) -> None:
    expected = kernel.lower(*args, block=32)
    with record_launches() as launches:
        kernel[1, 32](*args)
    assert launches[0].lowered.cuda.text == expected.cuda.text
    on_simulator: Any = kernel[1, 32].admitted(args)[0]
    assert on_simulator.compiled() == expected.compiled()


def test_registers_of_a_kernel_that_has_changed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(4, np.float32)
    for again in (False, True):
        with tw.simulate(profile=True) as run:
            scaled_sum[1, 4](x)
        monkeypatch.setitem(globals(), "SHIFT", 7.0 + again)
        if again:
            scaled_sum[1, 4](x)
        with pytest.raises(ArgumentError, match="what kernel 'scaled_sum' captures has changed"):
            run.profile.launches[0].compile()


@pytest.mark.parametrize("grid", [0, (0,), (3, 0), (0, 0, 0), lambda out: 0])
def test_a_grid_without_blocks_does_nothing(grid: object) -> None:
    @tw.kernel
    def kernel(out):
        out[tw.block_idx.x] = 1

    out = np.zeros(4, np.float32)
    launcher = kernel[grid, 32]
    for _ in range(2):
        launcher(out)
    launcher.prepare(out)()
    assert not out.any() and len(launcher.analyze(out).launches) == 0
    kernel[2, 1](out)
    assert out.tolist() == [1, 1, 0, 0]
