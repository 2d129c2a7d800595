"""`tw.matmul` on tensors of PyTorch, which on the CPU run in the simulator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402  # after the skip


def whole(*shape: int, dtype: object = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int8, torch.int32),
        (torch.float8_e4m3fn, torch.bfloat16),
        (torch.float8_e5m2, torch.bfloat16),
    ],
)
def test_result_is_a_tensor(dtype: torch.dtype, result: torch.dtype) -> None:
    a, b = whole(3, 20, 33, dtype=dtype), whole(18, 33, dtype=dtype).T
    found = tw.matmul(a, b)
    assert isinstance(found, torch.Tensor) and found.dtype == result and found.device.type == "cpu"
    assert torch.equal(found.double(), a.double() @ b.double())


def test_tensors_as_torch_has_them() -> None:
    a, out = whole(20, 30)[:, ::2], torch.empty(8, 20).T
    weight = torch.nn.Parameter(whole(8, 15))
    scale, bias = whole(8), whole(20, 1, dtype=torch.bfloat16)
    with torch.no_grad():
        found = tw.matmul(a, weight.T, out=out, bias=bias, epilogue=lambda acc: tw.maximum(acc * scale, 0))
        expected = torch.relu((a @ weight.T + bias) * scale)
    assert found is out and torch.equal(out, expected)


def test_no_elements() -> None:
    assert tw.matmul(torch.empty(0, 3), torch.empty(3, 4)).shape == (0, 4)
    assert torch.equal(tw.matmul(torch.empty(2, 0), torch.empty(0, 4)), torch.zeros(2, 4))
    assert tw.matmul(whole(5), whole(5)).shape == ()


def test_out_dtype_is_torchs_or_ours() -> None:
    a = whole(8, 8, dtype=torch.float16)
    for dtype in (torch.float32, tw.float32, "float32"):
        assert tw.matmul(a, a, out_dtype=dtype).dtype == torch.float32


def test_numpy_and_torch_together() -> None:
    a = whole(8, 8)
    assert torch.equal(tw.matmul(a, a.numpy()), a @ a)
    assert type(tw.matmul(a.numpy(), a)) is type(a.numpy())


def test_gradients_are_refused() -> None:
    a, b = whole(4, 4).requires_grad_(), whole(4, 4)
    with pytest.raises(
        tw.ArgumentError,
        match=r"b requires a gradient[^\n]*\n  help: gradients flow through tw.torch.matmul; or pass b.det",
    ):
        tw.matmul(b, a)
    with pytest.raises(tw.ArgumentError, match="the epilogue's a requires a gradient"):
        tw.matmul(b, b, epilogue=lambda acc: acc + a)
    assert torch.equal(tw.matmul(a.detach(), b), (a @ b).detach())
    with torch.no_grad():
        assert torch.equal(tw.matmul(a, b), a @ b)
