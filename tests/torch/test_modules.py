"""Modules of Tilewright in the place of torch's, and `tw.torch.patch`, which puts them there."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402  # after the skip


class Own(torch.nn.Linear):
    """A class that may do something else."""


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    made = torch.nn.Sequential()
    made.add_module("first", torch.nn.Linear(4, 6))
    made.add_module("function", torch.nn.ReLU())
    made.add_module("own", Own(6, 6))
    made.add_module("block", torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 3)))
    return made


def losses(net: torch.nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    found = []
    for step in range(steps):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = (net(x) - x[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_a_linear_layer_is_that_of_torch() -> None:
    torch.manual_seed(0)
    by_torch = torch.nn.Linear(4, 3)
    torch.manual_seed(0)
    ours = tw.torch.nn.Linear(4, 3)
    assert repr(ours) == repr(by_torch) and isinstance(ours, torch.nn.Linear)
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), by_torch.parameters(), strict=True))
    assert [*ours.state_dict()] == [*by_torch.state_dict()]
    for shape in ((4,), (2, 4), (2, 3, 4), (0, 4), (2, 0, 4)):
        x = torch.randn(shape)
        assert ours(x).shape == by_torch(x).shape and torch.allclose(ours(x), by_torch(x), atol=1e-6)


def test_a_patched_model_trains_as_before() -> None:
    ours, by_torch = model(), model()
    optimizer = torch.optim.SGD(ours.parameters())
    known = [id(p) for group in optimizer.param_groups for p in group["params"]]
    report = tw.torch.patch(ours)
    assert [id(p) for p in ours.parameters()] == known
    assert [*ours.state_dict()] == [*by_torch.state_dict()]
    assert losses(ours) == pytest.approx(losses(by_torch), rel=1e-4)
    assert {row.name for row in report.swapped} == {"first", "block.0", "block.1"}


def test_a_report_tells_what_was_swapped_and_what_not() -> None:
    report = tw.torch.patch(model(), skip=["block.*1"])
    became = {row.name: row.after or row.reason for row in report.rows}
    assert became == {
        "first": "tw.torch.nn.Linear",
        "function": "there is no module of Tilewright for it",
        "own": "its class is not torch.nn.Linear itself, and may do something else",
        "block.0": "tw.torch.nn.Linear",
        "block.1": "skip names it",
    }
    assert "2 of 5 modules swapped" in str(report) and "now tw.torch.nn.Linear" in str(report)
    assert "skip names it" in report._repr_html_()
    plain = json.loads(report.to_json())
    assert plain == report.as_json() and plain["swapped"] == 2 and len(plain["modules"]) == 5


def test_modules_that_stay_as_they_are() -> None:
    linear = torch.nn.Linear(2, 2)
    linear.forward = lambda x: x
    net = torch.nn.Sequential(
        linear,
        torch.nn.Linear(2, 2, dtype=torch.complex64),
        torch.nn.MultiheadAttention(4, 2, add_zero_attn=True),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
        tw.torch.nn.Linear(2, 2),
    )
    kinds = [type(module) for module in net.modules()]
    report = tw.torch.patch(net)
    assert [type(module) for module in net.modules()] == kinds and report.swapped == ()
    reasons = {row.name: row.reason for row in report.rows}
    assert reasons["0"] == "its forward was replaced" and reasons["1"] == "its weight is torch.complex64"
    assert reasons["2"] == "it adds keys of its own"
    assert reasons["4"] == "it is one already" and "may do something else" in reasons["2.out_proj"]


def test_the_model_itself_hooks_copies_and_undoing() -> None:
    linear, seen = torch.nn.Linear(4, 4), []
    linear.register_forward_hook(lambda *args: seen.append(args))
    report = tw.torch.patch(linear)
    assert "(the model itself)" in str(report) and type(linear) is tw.torch.nn.Linear
    linear(torch.ones(2, 4))
    assert len(seen) == 1 and type(copy.deepcopy(linear)) is tw.torch.nn.Linear
    report.undo()
    assert type(linear) is torch.nn.Linear
    with pytest.raises(tw.ArgumentError, match="model is a list, and tw.torch.patch takes a torch.nn.Module"):
        tw.torch.patch([linear])


def test_shared_modules_and_weights_stay_shared() -> None:
    linear, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    other.weight = linear.weight
    net = torch.nn.Sequential(linear, linear, other)
    assert len(tw.torch.patch(net).rows) == 2
    net(torch.ones(2, 4)).sum().backward()
    assert net[0] is net[1] and net[2].weight is net[0].weight and net[0].weight.grad is not None


def test_a_compiled_and_an_exported_patched_model() -> None:
    net, x = model(), torch.randn(3, 4)
    expected = net(x)
    tw.torch.patch(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), expected, atol=1e-6)
    program = torch.export.export(net, (x,))
    assert program.graph_module.code.count("torch.ops.tilewright.matmul") == 3
    assert torch.allclose(program.module()(x), expected, atol=1e-6)


class Gated(torch.nn.Module):
    """The layers behind attention as the models of Llama's kind have them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(4, 6, bias=bias) for bias in (False, True))
        self.down_proj, self.act_fn = torch.nn.Linear(6, 4), torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Swapped(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.mul(self.up_proj(x), torch.nn.functional.silu(self.gate_proj(x), inplace=False)))


class Shifted(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) + 1)


class Crossed(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.gate_proj(x))


class Training(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(found * 0 if self.training else found)


class Branching(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize("kind", [Gated, Swapped, Shifted, Crossed, Branching])
def test_gated_layers_are_found_by_what_they_compute(kind: type[Gated]) -> None:
    torch.manual_seed(0)
    known = torch.nn.Sequential(kind())
    net, x = copy.deepcopy(known), torch.randn(3, 4)
    report, is_gated = tw.torch.patch(net), kind in (Gated, Swapped)
    assert ("now a gated layer" in str(report)) == is_gated == (type(net[0]) is not kind)
    assert tw.torch.patch(net).swapped == () and [*net.state_dict()] == [*known.state_dict()]
    for ours in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        found, expected = (
            torch.autograd.grad(m(x).square().sum(), [*m.parameters()], allow_unused=True) for m in (ours, known)
        )
        pairs = [pair for pair in zip(found, expected, strict=True) if pair != (None, None)]
        assert torch.allclose(ours(x), known(x), atol=1e-6) and all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
        if is_gated:
            assert type(ours[0]) is type(net[0]) and "forward" not in vars(ours[0])
            graph = torch.export.export(ours, (x,)).graph_module.code
            assert "silu" not in graph.replace("'silu'", "") and graph.count("torch.ops.tilewright.matmul") == 3
    report.undo()
    assert type(net[0]) is kind and type(net[0].up_proj) is torch.nn.Linear


def replica(net: torch.nn.Module) -> Any:
    """Return a copy with modules of its own, as torch.nn.DataParallel makes them: what it copies, it copies shallowly."""
    found = net._replicate_for_data_parallel()
    found._modules = {name: copy.deepcopy(module) for name, module in net.named_children()}
    return found


def shallow(net: torch.nn.Module) -> Any:
    found = copy.copy(net)
    found._modules = {name: copy.deepcopy(module) for name, module in net.named_children()}
    return found


@pytest.mark.parametrize("copied", [replica, shallow, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net, 0))])
def test_a_copy_of_a_gated_layer_computes_with_layers_of_its_own(copied: Any) -> None:
    known, x = Gated(), torch.randn(3, 4)
    net = copy.deepcopy(known)
    report = tw.torch.patch(net)
    ours = copied(net)
    for module in (ours, known):
        module.down_proj = torch.nn.Linear(6, 4, bias=False)
        torch.nn.init.ones_(module.down_proj.weight)
    assert torch.allclose(ours(x), known(x), atol=1e-6) and not torch.allclose(ours(x), net(x))
    report.undo()
    assert type(net) is Gated and type(ours) is not Gated and type(ours.up_proj) is tw.torch.nn.Linear
    assert torch.allclose(ours(x), known(x), atol=1e-6)


class Closed(Gated):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Precise(Gated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Counting(Gated):
    calls, factor = 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        product = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(product if self.factor is None else self.factor * product)


class Inherited(Counting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


@pytest.mark.parametrize("kind", [Closed, Precise, Counting, Inherited])
def test_a_forward_that_does_more_than_a_graph_shows_stays_as_it_is(kind: type[Gated]) -> None:
    torch.manual_seed(0)
    known, x = kind(), torch.randn(3, 4)
    net = copy.deepcopy(known)
    tw.torch.patch(net)
    for module in (net, known):
        module.factor = 3
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = net(x), known(x)
    assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
    assert torch.allclose(net(x), known(x), atol=1e-6) and getattr(net, "calls", 0) == getattr(known, "calls", 0)


def test_weights_that_compute_for_themselves_stay_with_torch() -> None:
    class Tripled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.linear:
                x, weight, bias = args
                return torch.nn.functional.linear(x, 3 * weight.as_subclass(torch.Tensor), bias)
            return super().__torch_function__(function, types, args, kwargs)

    linear, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    linear.weight = torch.nn.Parameter(linear.weight.detach().as_subclass(Tripled))
    expected = linear(x)
    report = tw.torch.patch(linear)
    assert torch.equal(linear(x), expected)
    assert report.rows[0].reason == "its weight is a Tripled, and may do something else"


def test_a_layer_with_packed_weights_is_one_already() -> None:
    (row,) = tw.torch.patch(tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(4, 2), bits=8, group=-1)).rows
    assert (row.before, row.reason) == ("tw.torch.nn.QuantizedLinear", "it is one already")


def test_layers_of_a_gated_layer_keep_their_hooks() -> None:
    net, seen, x = Gated(), [], torch.randn(3, 4)
    expected = net(x)
    tw.torch.patch(net)
    names = ("gate_proj", "act_fn", "up_proj", "down_proj")
    for name in names:
        hook = net.get_submodule(name).register_forward_hook(lambda *args, name=name: seen.append(name))
        assert torch.allclose(net(x), expected, atol=1e-6) and seen == [name]
        seen.clear()
        hook.remove()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(module))
    net(x)
    hook.remove()
    assert seen == [*map(net.get_submodule, names), net]


def test_gated_layers_of_one_column() -> None:
    class Columns(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, gates: int, ups: int) -> None:
            super().__init__()
            self.gate, self.up = torch.nn.Linear(4, gates), torch.nn.Linear(4, ups)
            self.down = torch.nn.Linear(max(gates, ups), 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    x = torch.randn(3, 4)
    for columns in ((6, 6), (1, 6), (6, 1)):
        layer = Columns(*columns)
        expected = layer(x)
        report = tw.torch.patch(layer)
        assert report.rows[0].after == "a gated layer"
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(copy.deepcopy(layer)(x), expected)
        report.undo()
        assert type(layer) is Columns


def test_what_is_gated_in_evaluation_alone_stays_as_it_is() -> None:
    net = Training().eval()
    tw.torch.patch(net)
    assert type(net) is Training and not net.training
    assert net(torch.ones(1, 4)).any() and torch.equal(net.train()(torch.ones(1, 4))[0], net.down_proj.bias)


def test_a_gated_layer_that_changes_or_has_names_of_its_own() -> None:
    class Named(Gated):
        gated = "kept"

    net, x = Named(), torch.randn(3, 4)
    expected = net(x)
    report = tw.torch.patch(net.eval())
    assert not net.training and net.gated == "kept" and torch.allclose(net(x=x), expected, atol=1e-6)
    net.act_fn = torch.nn.Tanh()
    assert torch.allclose(net(x), net.down_proj(torch.tanh(net.gate_proj(x)) * net.up_proj(x)), atol=1e-6)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        net(y=x)
    report.undo()
    assert net.gated == "kept" and type(net) is Named


class Block(torch.nn.Module):
    """A layer of a language model, with attention over what came before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.heads, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.narrow = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.heads(self.before(x)).chunk(3, -1)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.after(x))))


def language_model(width: int = 16, tokens: int = 11) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(tokens, width),
        Block(width),
        Block(width),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, tokens),
    )


def language_losses(
    net: torch.nn.Module, steps: int, rate: float = 1e-2, rows: int = 4, length: int = 9
) -> list[float]:
    optimizer, found, kinds = torch.optim.AdamW(net.parameters(), rate), [], net[0].num_embeddings
    for step in range(steps):
        starts = torch.randint(0, kinds, (rows, 1), generator=torch.Generator().manual_seed(step))
        tokens = ((starts + 3 * torch.arange(length)) % kinds).to(net[0].weight.device)  # each token says what follows
        scores = net(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_a_language_model_learns_with_patched_modules_as_with_those_of_torch() -> None:
    ours, by_torch = language_model(), language_model()
    assert len(tw.torch.patch(ours).swapped) >= 9
    found, known = language_losses(ours, 8), language_losses(by_torch, 8)
    assert found == pytest.approx(known, rel=1e-3) and found[-1] < 0.8 * found[0]


def test_torch_fx_takes_modules_as_whole() -> None:
    """As it does those that they take the place of; a module that is traced by itself becomes its function."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)
            self.heads = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            x = self.second(self.first(x))
            return self.heads(query=x, key=x, value=x, need_weights=False)[0]

    model, x = Model(), torch.randn(1, 3, 8)
    known = torch.fx.symbolic_trace(model)
    expected = known(x)
    tw.torch.patch(model)
    graph = torch.fx.symbolic_trace(model)
    assert [str(n) for n in graph.graph.nodes] == [str(n) for n in known.graph.nodes]
    torch.testing.assert_close(graph(x), expected)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), expected)
    alone = torch.fx.symbolic_trace(model.first)
    torch.testing.assert_close(alone(x), model.first(x))


def test_torch_fx_takes_functions_as_whole() -> None:
    graph = torch.fx.symbolic_trace(lambda x: tw.torch.softmax(tw.torch.matmul(x, x), dim=0))
    x = torch.randn(4, 4)
    torch.testing.assert_close(graph(x), torch.softmax(x @ x, 0))


def test_a_gated_layer_whose_class_is_particular_about_its_subclasses() -> None:
    class Registered(Gated):
        def __init_subclass__(cls, *, key: str) -> None: ...

    net, x = torch.nn.Sequential(Registered()), torch.randn(3, 4)
    expected = net(x)
    rows = {row.name: row for row in tw.torch.patch(net).rows}
    assert "its class takes no subclass here: " in str(rows["0"].reason) and "key" in str(rows["0"].reason)
    assert type(net[0]) is Registered and type(net[0].up_proj) is tw.torch.nn.Linear
    assert torch.allclose(net(x), expected, atol=1e-6)
