"""`tw.torch.attention` has the results and gradients of the formula, and torch's own function's where they are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip
from tests.torch.test_ready import numbers  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.torch.fused_attention import attention_backward_operator, attention_operator, why_torch  # noqa: E402


def inputs(heads: int = 2, shared: int = 1, tokens: int = 3, keys: int = 4, **more: Any) -> list[Any]:
    return [numbers(1, h, n, 4, **more) for h, n in ((heads, tokens), (shared, keys), (shared, keys))]


def test_results_and_gradients_are_those_of_torch() -> None:
    q, k, v = inputs(tokens=4)
    found = tw.torch.attention(q, k, v, causal=True)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(found, expected)
    grad = torch.randn_like(expected)
    pairs = [torch.autograd.grad(y, (q, k, v), grad) for y in (found, expected)]
    assert all(map(torch.allclose, *pairs))


def test_gradients_of_every_input_and_of_the_sums() -> None:
    q, k, v = inputs()
    run = lambda q, k, v: tw.torch.attention(q, k, v, window=(2, 0), scale=0.7, return_lse=True)  # noqa: E731
    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)
    (out, _), grad = run(q, k, v), torch.ones(1, 2, 3, 4, dtype=torch.float64)
    (first,) = torch.autograd.grad(out, q, grad, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(first.sum(), q)


@pytest.mark.slow
def test_gradients_of_ragged_batches() -> None:
    q, k, v = (numbers(5, h, 4) for h in (2, 1, 1))
    offsets = torch.tensor([0, 2, 5])
    run = lambda q, k, v: tw.torch.attention(q, k, v, offsets=offsets, causal=True)  # noqa: E731
    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)
    parts = [
        tw.torch.attention(*(x[s].transpose(0, 1)[None] for x in (q, k, v)), causal=True)[0].transpose(0, 1)
        for s in (slice(0, 2), slice(2, 5))
    ]
    assert torch.allclose(run(q, k, v), torch.cat(parts))


def test_torch_finds_nothing_wrong() -> None:
    q, k, v = inputs(dtype=torch.float32)
    rest = (-1, 0, None, None, None, None)
    assert set(attention_operator.check(q, k, v, *rest).values()) == {"SUCCESS"}
    given = [x.detach() for x in (q, k, v)]
    out, lse = attention_operator(*given, *rest)
    found = attention_backward_operator.check(out, lse, *given, out, lse, *rest)
    assert set(found.values()) == {"SUCCESS"}


def test_the_result_lies_as_the_query_does() -> None:
    q, k, v = (numbers(1, 3, 2, 4, dtype=torch.float32).transpose(1, 2) for _ in "qkv")
    out = tw.torch.attention(q, k, v)
    assert out.transpose(1, 2).is_contiguous() and out.shape == q.shape
    assert torch.allclose(out, tw.torch.attention(*(x.contiguous() for x in (q, k, v))))
    assert torch.allclose(out, F.scaled_dot_product_attention(q, k, v), atol=1e-6)
    q, k, v = (numbers(3, 2, 2, 4, dtype=torch.float32).permute(1, 2, 0, 3) for _ in "qkv")
    out = tw.torch.attention(q, k, v)
    assert out.permute(2, 0, 1, 3).is_contiguous()
    assert torch.allclose(out, F.scaled_dot_product_attention(q, k, v), atol=1e-6)


def test_compiled_exported_and_with_autocast() -> None:
    q, k, v = inputs(dtype=torch.float32)
    run = lambda q, k, v: tw.torch.attention(q, k, v, causal=True)  # noqa: E731
    expected = run(q, k, v)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    assert torch.allclose(compiled(q, k, v), expected)
    pairs = [torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, run)]
    assert all(map(torch.allclose, *pairs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lower = run(q, k, v)
    assert lower.dtype == torch.bfloat16 and torch.allclose(lower.float(), expected, atol=0.05)
    assert torch.autograd.grad(lower.float().sum(), q)[0].dtype == torch.float32


def test_batches_of_vmap() -> None:
    q, k, v = (numbers(2, *x.shape).detach() for x in inputs())
    found = torch.vmap(tw.torch.attention)(q, k, v)
    assert torch.allclose(found, torch.stack([tw.torch.attention(*x) for x in zip(q, k, v, strict=True)]))


CALLS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "scale": ({"scale": 0.3}, True),
    "shared heads": ({"shared": 1, "enable_gqa": True}, True),
    "causal": ({"is_causal": True, "keys": 3}, True),
    "causal from the first token": ({"is_causal": True}, False),
    "mask": ({"attn_mask": torch.ones(3, 4).tril().bool()}, False),
    "heads that broadcast": ({"shared": 1}, False),
    "no keys": ({"keys": 0}, False),
}


@pytest.mark.parametrize("name", CALLS)
def test_torchs_function_by_ours_where_they_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, is_ours = CALLS[name]
    options = dict(options)
    shape = {"shared": options.pop("shared", 2), "keys": options.pop("keys", 4)}
    q, k, v = inputs(**shape)
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    calls: list[str] = []
    by_torch = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **o: (calls.append("torch"), by_torch(*a, **o))[1]
    )
    found = tw.torch.scaled_dot_product_attention(q, k, v, **options)
    assert torch.allclose(found, expected, equal_nan=True) and (not calls) is is_ours
    taken = ("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False), ("enable_gqa", False)
    assert (why_torch(q, k, v, *(options.get(n, default) for n, default in taken)) is None) is is_ours


def test_ours_in_the_place_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, mask = numbers(1, 2, 3, 4), torch.ones(3, 3, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(x, x, x, mask)
    monkeypatch.setattr(F, "scaled_dot_product_attention", tw.torch.scaled_dot_product_attention)
    for keywords in ({"attn_mask": mask}, {"is_causal": True}):
        assert torch.allclose(F.scaled_dot_product_attention(x, x, x, **keywords), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda q, k, v: tw.torch.attention([1.0], k, v), "query is a list"),
        (lambda q, k, v: tw.torch.attention(q.int(), k, v), "query is torch.int32"),
        (lambda q, k, v: tw.torch.attention(q, k, v, window=(-1, None)), r"window is \(-1, None\)"),
        (lambda q, k, v: tw.torch.attention(q, k, v, window=(True, 1)), r"window is \(True, 1\)"),
        (lambda q, k, v: tw.torch.attention(q, k.float(), v), "k is float32, and q is float64"),
        (lambda q, k, v: tw.torch.attention(q, k, v[:, :, :2]), "all but the last mode agree"),
        (
            lambda q, k, v: tw.torch.attention(q, k[0], v),
            r"key has the shape \(.*\), and attention takes \(batch, heads, tokens, head\)",
        ),
        (
            lambda q, k, v: tw.torch.attention(q, k, v, offsets=torch.tensor([0, 3])),
            r"query has the shape \(.*\), and attention takes \(tokens, heads, head\)",
        ),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError, match=text):
        call(*(x.detach() for x in inputs()))


def test_windows_of_any_whole_numbers() -> None:
    q, k, v = (x.detach() for x in inputs())
    for window, same in (((np.int64(1), 0), (1, 0)), ([2**70, np.uint8(0)], (None, 0))):
        found, known = (tw.torch.attention(q, k, v, window=each) for each in (window, same))
        assert torch.equal(found, known)


def test_a_write_to_what_is_saved_is_refused() -> None:
    q, k, v = inputs()
    out = tw.torch.attention(q, k, v)
    with torch.no_grad():
        k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# --- the module -----------------------------------------------------------------------------------------------------

MODULES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "batch first": ({"batch_first": True}, {}, True),
    "tokens first": ({"bias": False}, {}, True),
    "other keys": ({"batch_first": True, "kdim": 5, "vdim": 3}, {}, True),
    "causal": ({"batch_first": True}, {"is_causal": True, "attn_mask": torch.ones(4, 4).triu(1).bool()}, True),
    "mask": ({"batch_first": True}, {"attn_mask": torch.eye(4).bool()}, False),
    "weights": ({"batch_first": True}, {"need_weights": True}, False),
    "no projected keys": ({"add_bias_kv": True}, {}, False),
}


SLOW = ("batch first", "other keys", "causal", "weights", "no projected keys")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MODULES])
def test_the_module_does_what_torchs_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, options, is_ours = MODULES[name]
    torch.manual_seed(0)
    known, ours = (kind(8, 2, **made).double() for kind in (torch.nn.MultiheadAttention, tw.torch.nn.Attention))
    ours.load_state_dict(known.state_dict())
    query = numbers(2, 4, 8)
    others = [numbers(2, 4, n) for n in (5, 3)] if "kdim" in made else [query, query]
    options = {"need_weights": False, **options}
    calls: list[str] = []
    run = torch.nn.MultiheadAttention.forward
    expected = known(query, *others, **options)
    monkeypatch.setattr(
        torch.nn.MultiheadAttention, "forward", lambda *a, **o: (calls.append("torch"), run(*a, **o))[1]
    )
    found = ours(query, *others, **options)
    assert (not calls) is is_ours
    for mine, theirs in zip(found, expected, strict=True):
        assert mine is theirs is None or torch.allclose(mine, theirs)
    pairs = [torch.autograd.grad(y[0].sum(), (query, *m.parameters())) for y, m in ((found, ours), (expected, known))]
    assert all(map(torch.allclose, *pairs))


def test_patched_attention() -> None:
    net = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = numbers(1, 3, 8, dtype=torch.float32)
    expected = net(x, x, x, need_weights=False)[0]
    report = tw.torch.patch(net)
    assert type(net) is tw.torch.nn.Attention and report.swapped[0].after == "tw.torch.nn.Attention"
    assert torch.allclose(net(x, x, x, need_weights=False)[0], expected, atol=1e-6)
    report.undo()
    assert type(net) is torch.nn.MultiheadAttention


def test_the_module_refuses_shapes_as_torchs_does() -> None:
    x = torch.randn(2, 3, 8)
    for key, value in ((x[:1], x[:1]), (x, x[:, :2])):
        for module in (
            tw.torch.nn.Attention(8, 2, batch_first=True),
            torch.nn.MultiheadAttention(8, 2, batch_first=True),
        ):
            with pytest.raises((RuntimeError, AssertionError), match="is invalid for input|does not match value shape"):
                module(x, key, value, need_weights=False)


def test_gradients_by_transforms() -> None:
    """Those of attention are computed by an operator that has none."""
    q, k, v = (x.detach() for x in inputs(shared=2))
    found, expected = (
        torch.func.vmap(torch.func.grad(lambda q, f=f: f(q, k, v).square().sum()))(torch.stack((q, 2 * q)))
        for f in (tw.torch.attention, F.scaled_dot_product_attention)
    )
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="attention_backward but no autograd formula was registered"):
        torch.func.jacrev(torch.func.grad(lambda q: tw.torch.attention(q, k, v).sum()))(q)


def test_heads_join_without_a_copy() -> None:
    """Where tokens come before heads they do so through rotation, attention, and their gradients."""
    joined = torch.randn(2, 5, 6 * 4, dtype=torch.float64, requires_grad=True)
    cos, sin = torch.randn(5, 2), torch.randn(5, 2)
    q, k, v = (x.transpose(1, 2) for x in joined.unflatten(-1, (6, 4)).split((2, 2, 2), 2))
    q, k = tw.torch.rope(q, cos, sin), tw.torch.rope(k, cos, sin)
    out = tw.torch.attention(q, k, v)
    assert all(x.transpose(1, 2).is_contiguous() for x in (q, k, out))
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("is_asked", [False, True])
def test_torchs_flag_decides_whether_sums_have_one_order(is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, compute = [], tw.attention_backward

    def watch(*args: Any, deterministic: bool, **kwargs: Any) -> Any:
        seen.append(deterministic)
        return compute(*args, deterministic=deterministic, **kwargs)

    monkeypatch.setattr(tw, "attention_backward", watch)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_asked)
    try:
        tw.torch.attention(*inputs()).sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    assert seen == [is_asked]


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((1, 1, 7, 8), (1, 1, 8, 1)), ((1, 1, 7, 8), (7, 56, 8, 1)), ((1, 3, 1, 8), (5, 8, 3, 1)), ((1, 1, 1, 12), (12, 12, 12, 1)),
     ((1, 1, 1, 5), (5, 5, 5, 1)), ((1, 1, 1, 1), (1, 1, 1, 1))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_strides_of_extents_of_one_mean_nothing(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> None:
    memory = torch.randn(64, generator=torch.Generator().manual_seed(5)).to(dtype)
    x = memory.as_strided(shape, strides).detach().requires_grad_()
    found = [tw.torch.attention(x, x, x), tw.torch.scaled_dot_product_attention(x, x, x, is_causal=True)]
    expected = [torch.nn.functional.scaled_dot_product_attention(*[x.double()] * 3, is_causal=c) for c in (False, True)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=2e-3, rtol=2e-3)
        slopes = [torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0].double() for y in (ours, theirs)]
        torch.testing.assert_close(*slopes, atol=2e-2, rtol=2e-2)
    if shape[:2] == (1, 1):  # one sequence of several, too
        ends = torch.tensor([0, shape[2]])
        tokens = x[0].transpose(0, 1)
        torch.testing.assert_close(
            tw.torch.attention(tokens, tokens, tokens, offsets=ends), found[0][0].transpose(0, 1)
        )
