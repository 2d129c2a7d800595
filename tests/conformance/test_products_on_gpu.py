"""On a GPU: products that are prepared, tuned and scaled, results that are JAX's, and packages loaded without this library."""

import importlib
import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright.kernels import winners
from tilewright.runtime.result_store import Store

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def normal(torch, *shape, dtype="bfloat16"):
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


SHAPES = [(64, 64, 64), (333, 200, 1000), (16, 4096, 8192), (100, 100, 65536), (1111, 1111, 1111), (4096, 4096, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_prepared_products(torch, shape, dtype):
    m, n, k = shape
    a, b = normal(torch, m, k, dtype=dtype), normal(torch, k, n, dtype=dtype)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=a.dtype)
    bias = normal(torch, n, dtype=dtype)
    product = tw.matmul.prepare(a, b, out=out, bias=bias, epilogue=lambda acc: tw.maximum(acc, 0))
    assert torch.isnan(out).all()
    expected = tw.matmul(a, b, bias=bias, epilogue=lambda acc: tw.maximum(acc, 0))
    assert product() is out and torch.equal(out, expected)
    a.mul_(-1)
    assert torch.equal(product(), tw.matmul(a, b, bias=bias, epilogue=lambda acc: tw.maximum(acc, 0)))


def test_tuning_finds_a_kernel_that_later_processes_take(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    winners.forget()
    a, b = normal(torch, 96, 1024), normal(torch, 1024, 768)
    before = tw.matmul(a, b)
    kept = a.clone(), b.clone()
    found = tw.matmul.tune(a, b, most=6, progress=False)
    assert found.source == "measured" and found.milliseconds > 0
    assert {trial.status for trial in found.trials} == {"ok"}
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
    explained = tw.matmul.explain(a, b)
    assert explained.is_found and str(explained.choice.configuration) == found.best.values["configuration"]
    torch.testing.assert_close(tw.matmul(a, b), before, atol=1e-1, rtol=2e-2)
    winners.forget()  # as a new process
    assert tw.matmul.explain(a, b).is_found
    assert tw.matmul.tune(a, b, most=6, progress=False).source == "stored"
    assert Store().path.exists()
    winners.forget()


@pytest.mark.parametrize("shape", [(48, 80, 64), (256, 512, 1024), (17, 4096, 2048)])
def test_scales_agree_with_torch(torch, shape):
    m, n, k = shape
    a, b = (normal(torch, x, k, dtype="float32").to(torch.float8_e4m3fn) for x in (m, n))
    rows, columns = (torch.rand(x, device="cuda") + 0.5 for x in ((m, 1), (1, n)))
    found = tw.matmul(a, b.t(), scale_a=rows, scale_b=columns, out_dtype=tw.float32)
    expected = (a.double() * rows) @ (b.double().t() * columns)
    torch.testing.assert_close(found.double(), expected, atol=2e-3 * k**0.5, rtol=2e-3)
    if m % 16 == 0 and n % 16 == 0:
        by_torch = torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16)
        torch.testing.assert_close(found.to(torch.bfloat16), by_torch, atol=0.1, rtol=0.03)


@pytest.mark.parametrize("shape", [(48, 80, 256), (256, 512, 1024), (17, 4096, 2048), (513, 261, 4000), (300, 24, 520)])
@pytest.mark.parametrize("rows", [(1, 128), (1, 1), (128, 1), (128, 128)], ids=str)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "bfloat16"])
def test_scales_of_blocks(torch, shape, rows, dtype):
    """Against float64 of the operands, each element multiplied by its scale first."""
    m, n, k = shape
    a, b = (normal(torch, x, k, dtype="float32").to(getattr(torch, dtype)) for x in (m, n))
    scales = [torch.rand(-(-x // r), -(-k // 128), device="cuda") + 0.5 for x, r in zip((m, n), rows, strict=True)]
    full = [
        x.double() * s.repeat_interleave(r, 0)[: len(x)].repeat_interleave(128, 1)[:, :k].double()
        for x, s, r in zip((a, b), scales, rows, strict=True)
    ]
    out = torch.full((m, n), torch.nan, device="cuda")
    tw.matmul(a, b.t(), scale_a=scales[0], scale_b=scales[1].t(), out=out)
    torch.testing.assert_close(out.double(), full[0] @ full[1].t(), atol=4e-3 * k**0.5, rtol=4e-3)
    again = tw.matmul(a, b.t(), scale_a=scales[0], scale_b=scales[1].t(), out_dtype=tw.float32)
    assert torch.equal(again, out)


@pytest.mark.parametrize("shape", [(256, 512, 1024), (17, 4096, 2048), (4096, 4096, 4096)])
def test_sums_that_stay_in_tensor_cores(torch, shape):
    """Their error grows with K, and is that of torch's fast accumulation."""
    m, n, k = shape
    a, b = (normal(torch, x, k, dtype="float32").to(torch.float8_e4m3fn) for x in (m, n))
    expected = a.double() @ b.double().t()
    errors = {}
    for precision in (None, "fp8_fast"):
        found = tw.matmul(a, b.t(), precision=precision, out_dtype=tw.float32)
        errors[precision] = float((found.double() - expected).norm() / expected.norm())
    assert errors[None] < 1e-3 and errors["fp8_fast"] < 2e-2, errors


def test_weights_unpacked_on_the_gpu(torch):
    for bits, k, n, group in ((4, 4096, 1024, 128), (8, 300, 40, 64), (4, 260, 33, -1)):
        weights = tw.quantize(normal(torch, k, n, dtype="float32"), bits, group)
        full = torch.from_numpy(weights.dequantised())
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            found = weights.to_matrix(dtype)
            assert found.is_cuda and torch.equal(found.cpu(), full.to(dtype))
        x = normal(torch, 5, k, dtype="float16").requires_grad_()
        slope = normal(torch, 5, n, dtype="float16")
        (gradient,) = torch.autograd.grad(tw.torch.quantized_matmul(x, weights), x, slope)
        expected = slope.double().cpu() @ full.double().t()
        torch.testing.assert_close(gradient.double().cpu(), expected, atol=0.05 * n**0.5, rtol=2e-2)


def test_arrays_of_jax(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    keys = jax.random.split(jax.random.key(0), 2)
    for dtype, bound in ((jax.numpy.float32, 1e-3), (jax.numpy.bfloat16, 0.3)):
        a, b = (
            jax.random.normal(keys[0], (300, 500)).astype(dtype),
            jax.random.normal(keys[1], (500, 200)).astype(dtype),
        )
        for _ in range(3):
            y = tw.matmul(a, b)
        assert isinstance(y, jax.Array) and y.dtype == dtype and y.devices() == a.devices()
        expected = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=bound, rtol=2e-2)
        doubled = jax.jit(lambda y: 2 * y)(y)
        np.testing.assert_allclose(np.asarray(doubled, np.float64), 2 * expected, atol=2 * bound, rtol=2e-2)
    x = jax.random.normal(keys[0], (64, 1000))
    np.testing.assert_allclose(np.asarray(tw.softmax(x)), np.asarray(jax.nn.softmax(x, -1)), atol=1e-6, rtol=1e-4)


@tw.kernel
def axpy(y, a: tw.float32, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < y.shape[0]:
        y[i] = a * x[i] + y[i]


def test_a_package_is_launched_by_its_python_and_torch_loaders(torch, tmp_path, monkeypatch):
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    vector = tw.spec(tw.float32, (4097,), align=4)
    launcher = axpy[lambda y, a, x: tw.ceil_div(y.shape[0], 256), 256]
    arch = "sm_90a" if capability == "90" else f"sm_{capability}"
    launcher.export(tmp_path, vector, 1.0, vector, name="on_a_gpu", archs=[arch])
    monkeypatch.syspath_prepend(str(tmp_path))
    loader = importlib.import_module("on_a_gpu")
    for n in (1, 1000, 100_003):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        expected = 2.5 * x + y
        loader.axpy(y, 2.5, x)
        torch.testing.assert_close(y, expected)
    importlib.import_module("on_a_gpu_torch")
    x, y = torch.randn(5000, device="cuda"), torch.zeros(5000, device="cuda")
    torch.ops.on_a_gpu.axpy(y, 3.0, x)
    torch.testing.assert_close(y, 3 * x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        loader.axpy(y, -3.0, x)
    stream.synchronize()
    torch.testing.assert_close(y, torch.zeros_like(y), atol=1e-5, rtol=0)
    with pytest.raises(loader.PackageError, match="shares memory"):
        loader.axpy(y, 1.0, y[:])
    del sys.modules["on_a_gpu"], sys.modules["on_a_gpu_torch"]
