"""`torch.autograd.gradcheck` in float64 of every public operator: one that has no row here fails a test.

Gradients of gradients are checked beside each operator's other tests.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402  # after the skip

ENDS, LABELS = torch.tensor([2, 2, 4]), torch.tensor([1, 0, -100])
COS, SIN = (f(torch.arange(6.0).reshape(3, 2)).double() for f in (torch.cos, torch.sin))

# A public operator, and calls of it with the shapes of the tensors that gradients are checked of.
ROWS: dict[str, tuple[tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]], ...]] = {
    "matmul": (
        (tw.torch.matmul, ((2, 3), (3, 2))),
        (
            lambda a, b, bias, gate, residual: tw.torch.matmul(
                a, b, bias=bias, epilogue="swiglu", gate=gate, residual=residual
            ),
            ((2, 3), (3, 2), (2,), (2, 2), (2,)),
        ),
    ),
    "matmul_operator": (  # its own backward pass computes the product before the function again
        (
            lambda a, b, bias, residual: tw.torch.matmul_operator(a, b, bias, None, residual, "gelu"),
            ((2, 3), (3, 2), (2,), (2, 2)),
        ),
    ),
    "grouped_matmul": ((lambda a, b: tw.torch.grouped_matmul(a, b, ENDS.to(a.device)), ((5, 2), (3, 2, 3))),),
    "softmax": ((tw.torch.softmax, ((2, 3),)),),
    "log_softmax": ((tw.torch.log_softmax, ((2, 3),)),),
    "rms_norm": ((lambda x, w: tw.torch.rms_norm(x, 4, w, 1e-3), ((2, 4), (4,))),),
    "layer_norm": (
        (lambda x, w, b: tw.torch.layer_norm(x, 4, w, b, 1e-3), ((2, 4), (4,), (4,))),
        (lambda x, w: tw.torch.layer_norm(x, 4, w, None, 1e-3), ((2, 4), (4,))),
    ),
    "permute": ((lambda x: tw.torch.permute(x, (2, 0, 1)), ((2, 1, 3),)),),
    "cross_entropy": ((lambda x: tw.torch.cross_entropy(x, LABELS.to(x.device), label_smoothing=0.1), ((3, 4),)),),
    "rope": ((lambda x: tw.torch.rope(x, COS.to(x.device), SIN.to(x.device)), ((2, 3, 4),)),),
    "attention": (
        (
            lambda q, k, v: tw.torch.attention(q, k, v, causal=True, window=(1, None)),
            ((1, 2, 3, 4), (1, 1, 4, 4), (1, 1, 4, 4)),
        ),
        (
            lambda q, k, v: tw.torch.attention(q, k, v, offsets=torch.tensor([0, 1, 3], device=q.device)),
            ((3, 2, 4), (3, 1, 4), (3, 1, 4)),
        ),
    ),
    "dropout": ((lambda x: tw.torch.dropout(x, 0.5, seed=1), ((3, 40),)),),
    "scaled_dot_product_attention": ((tw.torch.scaled_dot_product_attention, ((1, 1, 2, 4),) * 3),),
}
ELSEWHERE = {
    "quantized_matmul",  # of 16 bits only: test_quantized.py compares with float64
    *("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"),  # of a process group: test_exchange.py
    *("dispatch_grouped_matmul", "grouped_matmul_combine"),  # of a process group: test_experts.py
}
NOT_OPERATORS = {
    "op", "Operator", "Way", "nn", "patch", "PatchReport", "PatchRow", "overlap_products", "OverlapPass", "SymmetricGroup",
    "use_symmetric_memory",
}  # fmt: skip
OTHERS_HAVE = {"matmul", "matmul_operator", "attention", "scaled_dot_product_attention"}  # quick tests of gradients
CASES = [
    pytest.param(*case, id=f"{name} {place}", marks=[pytest.mark.slow] * (place > 0 or name in OTHERS_HAVE))
    for name, cases in ROWS.items()
    for place, case in enumerate(cases)
]


def test_every_operator_has_a_row() -> None:
    assert set(tw.torch.__all__) - NOT_OPERATORS == set(ROWS) | ELSEWHERE


@pytest.mark.parametrize(("function", "shapes"), CASES)
def test_gradients_are_those_of_differences(
    function: Callable[..., torch.Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
