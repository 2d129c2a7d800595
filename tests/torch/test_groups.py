"""`tw.torch.grouped_matmul`: each group is torch's product of its slices, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402  # after the skip
from tilewright.torch.groups import grouped_matmul_operator  # noqa: E402

ENDS = (2, 2, 5)  # the second group is empty, and the last of six indices belongs to none
SHAPES = {"M": ((6, 4), (3, 4, 5)), "K": ((4, 6), (6, 5)), "N": ((3, 4, 2), (2, 6))}
every = pytest.mark.parametrize("ragged", SHAPES)
some = pytest.mark.parametrize("ragged", ["M", *(pytest.param(mode, marks=pytest.mark.slow) for mode in "KN")])


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()


def operands(ragged: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = SHAPES[ragged]
    return numbers(*left, dtype=dtype), numbers(*right, dtype=dtype, seed=1)


def by_torch(ragged: str, a: torch.Tensor, b: torch.Tensor, ends: tuple[int, ...] = ENDS) -> torch.Tensor:
    slices = [slice(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
    if ragged == "M":
        left = a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])
        return torch.cat([*(a[s] @ b[e] for e, s in enumerate(slices)), left])
    if ragged == "K":
        return torch.stack([a[:, s] @ b[s] for s in slices])
    left = a.new_zeros(a.shape[1], b.shape[-1] - ends[-1])
    return torch.cat([*(a[e] @ b[:, s] for e, s in enumerate(slices)), left], 1)


@some
def test_results_and_gradients_are_those_of_torch(ragged: str) -> None:
    a, b = operands(ragged)
    ends = torch.tensor(ENDS, dtype=torch.int32 if ragged == "M" else torch.int64)
    found, expected = tw.torch.grouped_matmul(a, b, ends), by_torch(ragged, a, b)
    assert found.shape == expected.shape and torch.allclose(found, expected)
    for gradient in (
        torch.randn_like(expected),
        torch.ones(()).double().expand(expected.shape),
        torch.randn_like(expected).mT.contiguous().mT,
    ):
        pairs = [torch.autograd.grad(y, (a, b), gradient, retain_graph=True) for y in (found, expected)]
        assert all(map(torch.allclose, *pairs))


@pytest.mark.slow
@every
def test_gradients_of_gradients(ragged: str) -> None:
    ends = torch.tensor(ENDS)
    assert torch.autograd.gradgradcheck(
        lambda a, b: tw.torch.grouped_matmul(a, b, ends), operands(ragged), fast_mode=True
    )


@pytest.mark.slow
@every
def test_torch_finds_nothing_wrong(ragged: str) -> None:
    call = (*operands(ragged), torch.tensor(ENDS))
    assert set(grouped_matmul_operator.check(*call).values()) == {"SUCCESS"}


def test_compiled_with_a_number_of_rows_that_changes() -> None:
    def function(a, b, ends):
        return tw.torch.grouped_matmul(a, b, ends) * 2

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    b = numbers(3, 4, 5)
    for rows, ends in ((6, ENDS), (9, (4, 4, 9)), (5, (0, 0, 0))):
        a = numbers(rows, 4)
        found, expected = compiled(a, b, torch.tensor(ends)), 2 * by_torch("M", a, b, ends)
        assert torch.allclose(found, expected)
        pairs = [torch.autograd.grad(y.sum(), (a, b)) for y in (found, expected)]
        assert all(map(torch.allclose, *pairs))


def test_batches_autocast_and_types() -> None:
    a, b = operands("M", torch.float32)
    ends = torch.tensor(ENDS)
    batch = torch.stack([a, 2 * a]).detach()
    found = torch.vmap(tw.torch.grouped_matmul, (0, None, None))(batch, b.detach(), ends)
    assert torch.allclose(found[1], 2 * by_torch("M", a, b), atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = tw.torch.grouped_matmul(a, b, ends)
    assert low.dtype == torch.bfloat16 and torch.allclose(low.float(), by_torch("M", a, b), 0.05, 0.05)
    gradients = torch.autograd.grad(low.float().sum(), (a, b))
    assert [g.dtype for g in gradients] == [torch.float32, torch.float32]
    wide = tw.torch.grouped_matmul(a.bfloat16(), b.bfloat16(), ends, out_dtype=torch.float32)
    assert wide.dtype == torch.float32
    assert [g.dtype for g in torch.autograd.grad(wide.sum(), (a, b))] == [torch.float32, torch.float32]


@pytest.mark.parametrize(("left", "right"), [((0, 4), (3, 4, 5)), ((6, 0), (3, 0, 5)), ((4, 0), (0, 5))], ids=str)
def test_without_elements(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = numbers(*left), numbers(*right, seed=1)
    empty = 0 in (left[0], left[1] if len(right) == 2 else 1)
    found = tw.torch.grouped_matmul(a, b, torch.tensor([0, 0, 0] if empty else ENDS))
    assert (found == 0).all()
    gradients = torch.autograd.grad(found.sum(), (a, b))
    assert [g.shape for g in gradients] == [a.shape, b.shape] and all((g == 0).all() for g in gradients)


def test_fake_tensors_launch_nothing() -> None:
    a, b = (x.detach().to("meta") for x in operands("M"))
    assert tw.torch.grouped_matmul(a, b, torch.tensor(ENDS, device="meta")).shape == (6, 5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"a": [numbers(2, 2)]}, "a is a list, and tw.torch.grouped_matmul takes tensors"),
        ({"offsets": torch.tensor([1.0, 2.0, 3.0])}, "offsets is torch.float32"),
        ({"offsets": torch.tensor([2, 5])}, "3 matrices and 2 offsets"),
        ({"offsets": torch.tensor([3, 2, 6])}, "offsets[1] is 2, and the group begins at 3"),
        ({"offsets": torch.tensor([3, 4, 7])}, "offsets[2] is 7, and there are 6 rows"),
        ({"b": numbers(3, 5, 5)}, "no product"),
        ({"b": numbers(3, 4, 5, dtype=torch.float32)}, "float32"),
    ],
)
def test_refused(change: dict, text: str) -> None:
    a, b = operands("M")
    call = {"a": a, "b": b, "offsets": torch.tensor(ENDS), **change}
    with pytest.raises(tw.ArgumentError) as caught:
        tw.torch.grouped_matmul(**call)
    assert text in str(caught.value)
