"""Operators and modules on a GPU: torch's results and gradients, streams, CUDA graphs, and a model that trains."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.torch.operators import product, scaled  # noqa: E402
from tests.torch.test_gradients import ROWS  # noqa: E402
from tests.torch.test_modules import language_losses, language_model  # noqa: E402
from tests.torch.test_products import FUNCTIONS, by_torch  # noqa: E402
from tests.torch.test_ready import READY  # noqa: E402

import tilewright as tw  # noqa: E402  # after the skip

pytestmark = pytest.mark.gpu


def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float32, device="cuda", generator=generator).to(dtype).requires_grad_()


@pytest.mark.parametrize("epilogue", [None, *FUNCTIONS, "swiglu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_products_and_gradients_are_those_of_torch(epilogue: str | None, dtype: torch.dtype) -> None:
    a, b, bias, residual = numbers(3, 100, 64), numbers(64, 72), numbers(72), numbers(3, 100, 72)
    gate = numbers(100, 72) if epilogue == "swiglu" else None
    inputs = [x.detach().to(dtype).requires_grad_() for x in (a, b, bias, residual, gate) if x is not None]
    a, b, bias, residual, *rest = inputs
    options = {"bias": bias, "epilogue": epilogue, "gate": rest[0] if rest else None, "residual": residual}
    found = tw.torch.matmul(a, b, **options)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = by_torch(*wide[:2], wide[2], epilogue, wide[4] if rest else None, wide[3])
    gradient = torch.randn_like(found)
    slack = 0.05 if dtype == torch.bfloat16 else 1e-3
    for ours, known in zip(
        (found, *torch.autograd.grad(found, inputs, gradient)),
        (expected, *torch.autograd.grad(expected, wide, gradient.double())),
        strict=True,
    ):
        assert (ours.double() - known).abs().max() <= slack * known.abs().max()


@pytest.mark.parametrize("name", READY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_ready_operators_and_gradients_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    case = READY[name]
    inputs = [numbers(*shape, dtype=dtype).detach().requires_grad_() for shape in case.shapes]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = case.function(*inputs), case.by_torch(*wide)
    gradient = torch.randn_like(found)
    slack = 0.05 if dtype == torch.bfloat16 else 1e-9
    for ours, known in zip(
        (found, *torch.autograd.grad(found, inputs, gradient)),
        (expected, *torch.autograd.grad(expected, wide, gradient.double())),
        strict=True,
    ):
        assert (ours.double() - known).abs().max() <= slack * (known.abs().max() + 1)
    if dtype == torch.float64:
        assert torch.autograd.gradcheck(case.function, inputs)
        compiled = torch.compile(case.function, fullgraph=True)
        assert torch.allclose(compiled(*inputs), expected)


@pytest.mark.parametrize(("dtype", "head"), [(torch.bfloat16, 128), (torch.float16, 64), (torch.float64, 8)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_gradients_are_those_of_torch(dtype: torch.dtype, head: int, causal: bool) -> None:
    shapes = [(2, 300, heads, head) for heads in (4, 2, 2)]  # tokens before heads, as products give them
    given = [numbers(*shape).detach().to(dtype) for shape in shapes]
    if causal:  # and before batches
        given = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in given]
    inputs = [x.requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in inputs]

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return tw.torch.attention(*(x.transpose(1, 2) for x in inputs), causal=causal).transpose(1, 2).flatten(-2)

    def by_torch(*inputs: torch.Tensor) -> torch.Tensor:
        heads = [x.transpose(1, 2) for x in inputs]
        found = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True)
        return found.transpose(1, 2).flatten(-2)

    expected = by_torch(*wide)
    gradient = torch.randn_like(expected).to(dtype)
    slack = {torch.bfloat16: 0.02, torch.float16: 0.004, torch.float64: 1e-9}[dtype]
    for function in (run, torch.compile(run, fullgraph=True)):
        found = function(*inputs)
        for ours, known in zip(
            (found, *torch.autograd.grad(found, inputs, gradient)),
            (expected, *torch.autograd.grad(expected, wide, gradient.double(), retain_graph=True)),
            strict=True,
        ):
            assert (ours.double() - known).abs().max() <= slack * known.abs().max()


@pytest.mark.parametrize("name", ROWS)
def test_gradients_are_those_of_differences(name: str) -> None:
    """Each public operator, in float64: the calls that are checked in the simulator, entry by entry."""
    for function, shapes in ROWS[name]:
        assert torch.autograd.gradcheck(function, [numbers(*shape, dtype=torch.float64) for shape in shapes])


def test_operators_find_nothing_wrong() -> None:
    x, y = numbers(4, 5, dtype=torch.float32), numbers(4, 5, dtype=torch.float32)
    assert set(product.check(x, y).values()) == {"SUCCESS"}
    assert set(tw.torch.matmul_operator.check(x, y.detach().T).values()) == {"SUCCESS"}


def test_work_goes_to_the_current_stream() -> None:
    x, stream = torch.ones(1 << 20, device="cuda"), torch.cuda.Stream()
    product(x, x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        found = product(x, x)
        assert not stream.query()  # behind what sleeps there
    stream.synchronize()
    assert torch.equal(found, x)


def test_a_compiled_function_in_a_cuda_graph() -> None:
    compiled = torch.compile(
        lambda x, w: tw.torch.matmul(x, w, epilogue="silu") * 2, mode="reduce-overhead", fullgraph=True
    )
    x, w = numbers(64, 64).detach(), numbers(64, 64).detach()
    expected = torch.nn.functional.silu(x.float() @ w.float()) * 2
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found = compiled(x, w).float()
        assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_operators_on_the_second_device_and_on_both() -> None:
    x = torch.ones(8, device="cuda:1")
    assert scaled(x, 3.0).device == x.device and torch.equal(scaled(x, 3.0), 3 * x)
    with pytest.raises((tw.ArgumentError, RuntimeError), match="different devices|two devices"):
        product(x, x.to("cuda:0"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "slack"), [(torch.bfloat16, 0.02), (torch.float32, 1e-3)], ids=["bfloat16", "float32"]
)
def test_a_language_model_learns_as_with_torch(dtype: torch.dtype, slack: float) -> None:
    """Law: losses, each the mean of 20 steps, differ from torch's by no more than twice what its roundings change."""
    ours, by_them, exact = (language_model(128, 64).to("cuda", dtype) for _ in range(3))
    assert len(tw.torch.patch(ours).swapped) >= 9
    found, known, wide = (
        torch.tensor(language_losses(net, 200, 1e-3, 8, 33)).double().reshape(10, 20).mean(1)
        for net in (ours, by_them, exact.double())
    )
    assert ((found - known).abs() <= 2 * (known - wide).abs() + slack * wide).all(), (found, known, wide)
    assert found[-1] < 0.02 * found[0]
