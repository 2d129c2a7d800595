"""Each way of an operator holds: its results on parts of the inputs are the parts of its result on all of them.

No processes are needed for that: a way is a statement about a function. What DTensor makes of the ways is tested in
test_sharding.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")

from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.torch import activations, fused_attention, groups, losses, moves, products, quantized, rows  # noqa: E402

DEVICES = 2


@dataclass(frozen=True)
class Case:
    operator: tw.torch.Operator
    inputs: dict = field(default_factory=dict)
    fewest_ways: int = 0  # so that no rule becomes empty unseen
    near: float = 1e-9


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def _cases() -> Iterator[tuple[str, Case]]:
    matmul = products.matmul_operator
    a, b, square = numbers(2, 3, 4), numbers(4, 6), numbers(2, 3, 6, seed=1)
    bias = numbers(6, seed=2)
    yield "matmul", Case(matmul, {"a": numbers(3, 4), "b": b, "precision": "ieee"}, 7)
    yield "matmul, bias and residual", Case(matmul, {"a": a, "b": b, "bias": bias, "residual": square}, 8)
    yield "matmul, relu", Case(matmul, {"a": a, "b": b, "bias": bias, "epilogue": "relu"}, 3)
    swiglu = {"a": a, "b": b, "bias": bias, "gate": square, "residual": square, "epilogue": "swiglu"}
    yield "matmul, swiglu", Case(matmul, swiglu, 8)
    gated = {"a": a, "b": b, "bias": bias, "residual": numbers(2, 3, 3), "epilogue": "silu"}
    yield "gated matmul", Case(products.gated_matmul_operator, {**gated, "pairs": "interleaved"}, 2)
    yield "gated matmul, kept", Case(products.gated_matmul_operator, {**gated, "keeps": True}, 2)
    yield "matmul, batches that broadcast", Case(matmul, {"a": numbers(2, 1, 3, 4), "b": numbers(3, 4, 2)}, 9)
    like = {"x": square, "factor": square, "addend": square}
    yield "activation", Case(activations.activation, {"x": square, "function": "gelu"}, 3)
    yield "activation, factor", Case(activations.activation, {**like, "function": "silu", "order": 1}, 5)

    both = {"grad": square, "x": numbers(2, 3, 6, seed=7), "factor": numbers(2, 3, 6, seed=8), "function": "silu"}
    yield "gate backward", Case(activations.gate_backward, both, 3)
    yield "gate backward, halves", Case(activations.gate_backward, {**both, "pairs": "halves"}, 2)

    for name in ("softmax", "log_softmax"):
        yield name, Case(getattr(rows, f"{name}_operator"), {"x": a, "dim": 1}, 2)
        y = getattr(torch, name)(a, -1)
        yield (
            f"{name} backward",
            Case(getattr(rows, f"{name}_backward_operator"), {"grad": numbers(2, 3, 4, seed=3), "y": y, "dim": -1}, 2),
        )
    weight, grad = numbers(6, seed=4), numbers(2, 3, 6, seed=5)
    statistic = numbers(2, 3).abs()
    yield "rms_norm", Case(rows.rms_norm_operator, {"x": square, "weight": weight, "eps": 1e-5}, 2)
    backward = {"grad": grad, "x": square, "scale": statistic, "eps": 1e-5}
    yield "rms_norm backward", Case(rows.rms_norm_backward_operator, {**backward, "weight": weight}, 2)
    yield "rms_norm backward, no weight", Case(rows.rms_norm_backward_operator, {**backward, "weight": None}, 2)
    yield "layer_norm", Case(rows.layer_norm_operator, {"x": square, "weight": weight, "bias": bias, "eps": 1e-5}, 2)
    backward |= {"mean": statistic, "weight": weight}
    yield "layer_norm backward", Case(rows.layer_norm_backward_operator, {**backward, "parameters": True}, 2)
    yield "layer_norm backward, x only", Case(rows.layer_norm_backward_operator, {**backward, "parameters": False}, 2)

    labels = torch.tensor([[0, 5, 2], [1, -100, 3]])
    loss = {"logits": square, "labels": labels, "ignore_index": -100, "label_smoothing": 0.1}
    yield "cross_entropy", Case(losses.cross_entropy_operator, loss, 2)
    _, top, total = losses.cross_entropy_operator(**loss)
    backward = {**loss, "grad": statistic, "top": top, "total": total}
    yield "cross_entropy backward", Case(losses.cross_entropy_backward_operator, backward, 2)
    yield "permute", Case(moves.permute_operator, {"x": square, "dims": [2, 0, -2]}, 5)

    x, angles = numbers(2, 3, 2, 4), {"cos": numbers(3, 1, 2), "sin": numbers(3, 1, 2, seed=6)}
    yield "rope", Case(rows.rope_operator, {"x": x, **angles, "interleaved": False, "inverse": False}, 5)
    yield from _attention()

    weights = tw.quantize(numbers(40, 20).detach())
    f, half = weights.format, numbers(2, 3, 40).detach().half().requires_grad_()
    given = {"packed": weights.packed, "scales": weights.scales, "zeros": weights.zeros, "bits": f.bits}
    given |= {"group": f.group, "k": f.k, "n": f.n, "zero": -1}
    yield "quantized", Case(quantized.quantized_matmul_operator, {"x": half, "bias": None, **given}, 4, near=0.1)

    tokens, ends = numbers(5, 4), torch.tensor([2, 2, 5])
    grouped = groups.grouped_matmul_operator
    yield "grouped, rows", Case(grouped, {"a": tokens, "b": numbers(3, 4, 6), "offsets": ends}, 6)
    yield "grouped, sums", Case(grouped, {"a": numbers(4, 5), "b": numbers(5, 6), "offsets": ends}, 6)
    yield "grouped, columns", Case(grouped, {"a": numbers(3, 6, 4), "b": numbers(4, 5), "offsets": ends}, 6)


def _attention() -> Iterator[tuple[str, Case]]:
    plain = {"left": -1, "right": 0, "scale": None, "offsets": None, "key_offsets": None, "key_lengths": None}
    for what, shared, lengths, right in (
        ("", 4, None, 0),
        (", two heads share", 2, torch.tensor([2, 3]), 0),
        (", all share", 1, None, -1),
    ):
        q, k, v = numbers(2, 4, 3, 8), numbers(2, shared, 3, 8), numbers(2, shared, 3, 8, seed=7)
        given = {**plain, "q": q, "k": k, "v": v, "key_lengths": lengths, "right": right}
        yield f"attention{what}", Case(fused_attention.attention_operator, given, 2 - right)
        out, lse = fused_attention.attention_operator(**given)
        given |= {"grad": numbers(*out.shape), "lse_grad": numbers(*lse.shape), "out": out, "lse": lse}
        yield f"attention{what} backward", Case(fused_attention.attention_backward_operator, given, 2 - right)
    ends = torch.tensor([0, 2, 5])
    q, k, v = (numbers(5, 2, 8, seed=n) for n in range(3))
    given = {**plain, "q": q, "k": k, "v": v, "offsets": ends}
    yield "attention, ragged", Case(fused_attention.attention_operator, given, 1)


CASES = dict(_cases())


def parts(x: torch.Tensor, placement: object) -> list[torch.Tensor]:
    if isinstance(placement, Shard):
        return list(x.tensor_split(DEVICES, placement.dim))
    if isinstance(placement, Partial):
        other = torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
        return [2 * x - other, other] if placement.reduce_op == "avg" else [x - other, other]
    assert isinstance(placement, Replicate)
    return [x] * DEVICES


def joined(results: list[torch.Tensor], placement: object) -> torch.Tensor:
    if isinstance(placement, Shard):
        return torch.cat(results, placement.dim)
    if isinstance(placement, Partial):
        return sum(results) / (len(results) if placement.reduce_op == "avg" else 1)
    assert all(torch.equal(x, results[0]) for x in results)
    return results[0]


def arguments(case: Case) -> dict[str, object]:
    return {name: case.inputs.get(name, p.default) for name, p in inspect.signature(case.operator).parameters.items()}


@pytest.mark.spread(4)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_of_parts_are_parts_of_the_result(case: Case) -> None:
    whole = arguments(case)
    expected = case.operator(**whole)
    ways = case.operator.ways(*whole.values())
    assert len(ways) >= case.fewest_ways
    for way in ways:
        placed = {name: way.inputs.get(name, Replicate()) for name, x in whole.items() if isinstance(x, torch.Tensor)}
        divided = {name: parts(whole[name], placement) for name, placement in placed.items()}
        found = [case.operator(**{**whole, **{name: x[n] for name, x in divided.items()}}) for n in range(DEVICES)]
        several = [x if isinstance(x, tuple) else (x,) for x in found]
        results = expected if isinstance(expected, tuple) else (expected,)
        assert len(way.results) == len(results)
        for n, placement in enumerate(way.results):
            made = joined([x[n] for x in several], placement)
            assert made.shape == results[n].shape, way
            assert torch.allclose(made, results[n], rtol=case.near, atol=case.near, equal_nan=True), way


def test_a_nonlinear_function_is_never_applied_to_parts_of_sums() -> None:
    for epilogue in ("relu", "gelu", "gelu_tanh", "silu"):
        whole = {**arguments(CASES["matmul, relu"]), "epilogue": epilogue}
        placements = [p for way in products.matmul_operator.ways(*whole.values()) for p in way.results]
        assert placements and not any(isinstance(p, Partial) for p in placements)


def test_heads_that_share_keys_stay_together() -> None:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    class Mesh:
        shape = (2, 2)

    def spec(heads: int, *placements: object) -> object:
        found = DTensorSpec.__new__(DTensorSpec)
        found.mesh, found.placements = Mesh(), placements
        found.tensor_meta = TensorMeta(torch.Size((2, heads, 3, 8)), (1, 1, 1, 1), torch.float32)
        return found

    allowed = fused_attention._whole_groups
    both, one = (Shard(1), Shard(1)), (Shard(0), Shard(1))
    assert allowed(spec(6, *both), spec(6, *both)) and allowed(spec(8, *both), spec(4, *both))
    assert not allowed(spec(8, *both), spec(2, *both)) and allowed(spec(8, *one), spec(2, *one))
    assert not allowed(spec(6, *one), spec(3, *one))


def test_operators_that_write_into_inputs_are_not_divided() -> None:
    from tests.torch.operators import add_in_place

    with pytest.raises(tw.ArgumentError, match="add_in_place mutates its inputs, and such operators are not divided"):
        add_in_place.sharding(lambda x, number: [])


def test_a_torch_with_other_internals_is_a_warning_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import _op_schema

    monkeypatch.delattr(_op_schema, "RuntimeSchemaInfo")
    with pytest.warns(tw.TilewrightWarning, match="cannot be told how operators are divided"):
        activations.activation.sharding(activations.activation.ways)
    assert activations.activation(torch.ones(2, 2), None, None, "relu", 0).sum() == 4
    monkeypatch.undo()
    activations.activation.sharding(activations.activation.ways)
