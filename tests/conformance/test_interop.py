"""Arrays of PyTorch, CuPy, JAX and the two array protocols, streams, and launches from several threads: GPU only."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu


@tw.kernel
def scale(out, x, factor):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        out[i] = x[i] * factor


X = np.arange(1000, dtype=np.float32)


def launch(out: Any, x: Any, factor: float = 3.0) -> None:
    scale[8, 128](out, x, factor)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


def test_torch(torch: Any) -> None:
    x, out = torch.from_numpy(X).cuda(), torch.zeros(1000, device="cuda")
    launch(out, x)
    assert np.array_equal(out.cpu().numpy(), 3 * X)
    launch(out[500:], x[:500])
    assert np.array_equal(out.cpu().numpy(), np.concatenate([3 * X[:500], 3 * X[:500]]))
    parameter = torch.nn.Parameter(x)
    launch(out, parameter, 2.0)
    assert np.array_equal(out.cpu().numpy(), 2 * X)


def test_torch_views(torch: Any) -> None:
    """Transposed, strided and broadcast tensors."""

    @tw.kernel
    def add(out, a, b):
        i, j = tw.block_idx.x, tw.thread_idx.x
        out[i, j] = a[i, j] + b[i, j]

    a = torch.arange(64.0, device="cuda").reshape(8, 8)
    b = torch.arange(8.0, device="cuda").expand(8, 8)
    out = torch.zeros((8, 16), device="cuda")[:, ::2]
    add[8, 8](out, a.t(), b)
    assert torch.equal(out, a.t() + b)


def test_cupy(cupy: Any) -> None:
    x, out = cupy.asarray(X), cupy.zeros(1000, cupy.float32)
    launch(out, x)
    assert np.array_equal(cupy.asnumpy(out), 3 * X)
    launch(out[::2], x[::-2][:500], 1.0)
    assert np.array_equal(cupy.asnumpy(out)[::2], X[::-2])


def test_cupy_stream(cupy: Any) -> None:
    """A launch follows CuPy's current stream: it reads what that stream wrote before."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, out = cupy.zeros(1 << 22, cupy.float32), cupy.zeros(1 << 22, cupy.float32)
        for _ in range(100):
            x += 1
        scale[1 << 15, 128](out, x, 2.0)
        out += 1
        stream.synchronize()
    assert float(out.min()) == float(out.max()) == 201


def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most of the memory
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    torch = pytest.importorskip("torch")
    out = torch.zeros(1000, device="cuda")
    launch(out, jax.numpy.asarray(X))
    assert np.array_equal(out.cpu().numpy(), 3 * X)
    with pytest.raises(tw.ArgumentError, match="out"):
        launch(jax.numpy.zeros(1000), out)


class _Interface:
    """Only the CUDA array interface."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.owner = array


class _Dlpack:
    """Only DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        options.pop("max_version", None)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrapper", [_Interface, _Dlpack])
def test_protocols(torch: Any, wrapper: Any) -> None:
    x, out = torch.from_numpy(X).cuda(), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    launch(wrapper(out), wrapper(x))
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), 3 * X)


def test_device_arrays_of_our_own() -> None:
    from tilewright.runtime.memory import DeviceArray

    x, out = DeviceArray.from_numpy(X), DeviceArray((1000,))
    launch(out, x)
    assert np.array_equal(out.numpy(), 3 * X)


def test_libraries_mixed(torch: Any, cupy: Any) -> None:
    x, out = cupy.asarray(X), torch.zeros(1000, device="cuda")
    cupy.cuda.get_current_stream().synchronize()
    launch(out, x)
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), 3 * X)


def test_arrays_on_different_devices(torch: Any) -> None:
    with pytest.raises(tw.ArgumentError, match=r"x|out"):
        launch(torch.zeros(1000, device="cuda"), X)


def test_simulating_arrays_of_the_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TILEWRIGHT_BACKEND=sim copies them there and back."""
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "sim")

    @tw.kernel
    def triple(out, x):
        i = tw.thread_idx.x
        out[i] = x[i] * 3

    x, out = torch.arange(64.0, device="cuda"), torch.zeros(64, device="cuda")
    triple[1, 64](out, x)
    assert torch.equal(out, 3 * x)


def _write_late(torch: Any, stream: Any) -> tuple[Any, Any]:
    """Return an array that a stream fills after a while, and room for a result."""
    with torch.cuda.stream(stream):
        x, out = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
        torch.cuda._sleep(50_000_000)
        x.fill_(7.0)
    return x, out


def test_current_stream_of_torch(torch: Any) -> None:
    """The launch comes after the stream's earlier work and before its later work."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    x, out = _write_late(torch, stream)
    with torch.cuda.stream(stream):
        scale[1 << 13, 128](out, x, 2.0)
        total = out.sum()
    stream.synchronize()
    assert total.item() == 14.0 * (1 << 20)


def test_stream_by_name(torch: Any) -> None:
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    x, out = _write_late(torch, stream)
    for handle in (stream, stream.cuda_stream):
        scale.configure(stream=handle)[1 << 13, 128](out, x, 2.0)
    stream.synchronize()
    assert float(out.min()) == 14.0


def test_prepared_launch_on_a_stream(torch: Any) -> None:
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    x, out = _write_late(torch, stream)
    with torch.cuda.stream(stream):
        go = scale[1 << 13, 128].prepare(out, x, 2.0)
        go()
    stream.synchronize()
    assert float(out.min()) == 14.0


def test_captured_in_a_graph(torch: Any) -> None:
    """Launches are recorded like those of the framework."""
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    launch(out, x, 4.0)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(out, x, 4.0)
        launch(out, out, 2.0)
    x.fill_(5.0)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert float(out.min()) == float(out.max()) == 40.0


def test_threads(torch: Any) -> None:
    """Threads compile and launch at once, each with arrays, numbers and a stream of its own."""

    @tw.kernel
    def mix(out, x, factor, offset, rounds: tw.constexpr):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        if i < x.size:
            value = x[i]
            for _ in range(rounds):
                value = value * factor + offset
            out[i] = value

    failures: list[object] = []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x = torch.arange(257 + number, device="cuda", dtype=torch.int32)
                out = torch.zeros_like(x)
                barrier.wait()
                for step in range(200):
                    rounds = 1 + (number + step) % 3
                    mix[4, 128](out, x, number + 1, step, rounds)
                    if step % 20 == 0:
                        expected = x.clone()
                        for _ in range(rounds):
                            expected = expected * (number + 1) + step
                        if not torch.equal(out, expected):
                            failures.append((number, step))
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_one_prepared_launch_from_several_threads(torch: Any) -> None:
    counter = torch.zeros(1, device="cuda", dtype=torch.int32)

    @tw.kernel
    def count(x):
        tw.atomic_add(x, 0, 1)

    go = count[2, 32].prepare(counter)
    threads = [threading.Thread(target=lambda: [go() for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert counter.item() == 4 * 100 * 64


def test_large_arrays_need_wide_offsets(torch: Any) -> None:
    """Elements beyond the first 2**31."""
    if torch.cuda.mem_get_info()[0] < 8 << 30:
        pytest.skip("needs 8 GB of free memory")

    @tw.kernel
    def mark(x):
        i = tw.thread_idx.x
        row = x.shape[0] - 1 - i
        x[row, x.shape[1] - 1] = tw.int8(i + 1)

    x = torch.zeros((1 << 16, 40000), device="cuda", dtype=torch.int8)
    mark[1, 32](x)
    assert x[-32:, -1].flip(0).tolist() == list(range(1, 33))
    assert int(x[:, -1].sum(dtype=torch.int64)) == sum(range(1, 33))
