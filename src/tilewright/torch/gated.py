"""Gated layers of a model, down(silu(gate(x)) * up(x)): recognised by what they compute, and computed by kernels."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any  # Any: nodes of graphs

import torch
import torch.fx

from tilewright.torch import nn
from tilewright.torch.products import matmul


@cache
def gated_class(kind: Any, layers: tuple[str, ...]) -> Any:
    """Return a class of modules that compute as those of `kind` do, by `gated_forward` with layers of these names.

    A class, and no function of one module: what copies a module shares or copies its attributes, and sees none of them.
    """

    def forward(self: Any, *args: Any, **keywords: Any) -> Any:
        return gated_forward(kind, layers, self, *args, **keywords)

    def reduce(self: Any, protocol: Any) -> Any:
        function, args, *rest = kind.__reduce_ex__(self, protocol)
        if found not in args:  # of a class that was made of this one
            return function, args, *rest
        return _rebuilt, (kind, layers, function, *[kind if x is found else x for x in args]), *rest

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    found = type(kind)(kind.__name__, (kind,), {**names, "forward": forward, "__reduce_ex__": reduce})
    return found


def _rebuilt(kind: Any, layers: tuple[str, ...], function: Any, *args: Any) -> Any:
    """Return a copy of a gated layer, or what was pickled, that its attributes will follow."""
    module = function(*args)
    module.__class__ = gated_class(kind, layers)
    return module


def gated_forward(kind: Any, layers: tuple[str, ...], module: Any, *args: Any, **keywords: Any) -> torch.Tensor:
    """Compute down(silu(gate(x)) * up(x)), of layers with these names, with silu * up behind the product."""
    gate, up, down, *others = (module.get_submodule(name) for name in layers)
    # One column of `up` would be broadcast to those of the gate, which a product's result is not.
    is_same = type(up) is nn.Linear and up.weight.shape[0] > 1 and all(type(m) is torch.nn.SiLU for m in others)
    hooks = torch.nn.modules.module._has_any_global_hook() or any(map(_has_hooks, (up, *others)))
    if not is_same or hooks or keywords or len(args) != 1:
        found: torch.Tensor = kind.forward(module, *args, **keywords)  # up would not be called
    else:
        found = down(matmul(args[0], up.weight.t(), bias=up.bias, epilogue="swiglu", gate=gate(args[0])))
    return found


def _has_hooks(module: torch.nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


def gated_layers(module: torch.nn.Module) -> tuple[str, ...] | None:
    """Return the names of gate, up and down of a module that computes down(silu(gate(x)) * up(x)), or None.

    The name of its module for silu follows, if there is one.
    """
    children = dict(module.named_children())
    names = [name for name, child in children.items() if type(child) in (torch.nn.Linear, nn.Linear)]
    others = [child for name, child in children.items() if name not in names]
    if len(names) != 3 or len(others) > 1 or any(type(child) is not torch.nn.SiLU for child in others):
        return None
    if "forward" in vars(module) or next(module.parameters(recurse=False), None) is not None:
        return None
    # A graph shows no contexts, such as torch.no_grad(), no writes, and nothing that may change, such as `training`.
    code = getattr(type(module).forward, "__code__", None)
    known = {*children, "torch", "nn", "functional", "F", "silu", "mul"}
    if code is None or code.co_freevars or not known.issuperset(code.co_names):
        return None
    try:
        return _matched(list(torch.fx.Tracer().trace(module).nodes), children)
    except Exception:  # what torch.fx cannot follow computes something else
        return None


def _matched(nodes: list[Any], children: dict[str, torch.nn.Module]) -> tuple[str, ...] | None:
    """Return the names of gate, up, down, and perhaps silu if a graph is down(silu(gate(x)) * up(x))."""
    steps = {n.name: _step(n, children) for n in nodes}
    if sorted(steps.values()) != sorted(["placeholder", "linear", "linear", "silu", "mul", "linear", "output"]):
        return None
    x, out = nodes[0], nodes[-1]
    down = out.args[0]
    product = down.args[0]
    factors = [n for n in product.args if isinstance(n, torch.fx.Node)]
    slope = next((n for n in factors if steps[n.name] == "silu"), None)
    up = next((n for n in factors if steps[n.name] == "linear"), None)
    if steps[down.name] != "linear" or steps[product.name] != "mul" or slope is None or up is None:
        return None
    gate = slope.args[0]
    is_whole = steps[gate.name] == "linear" and gate.args == up.args == (x,) and down.args == (product,)
    layers = gate.target, up.target, down.target
    others = (slope.target,) if slope.op == "call_module" else ()
    return (*layers, *others) if is_whole and len(set(layers)) == 3 else None


def _step(node: Any, children: dict[str, torch.nn.Module]) -> str:
    """Return what a node of a graph does, by the names that `_matched` expects."""
    if node.kwargs and not (node.target is torch.nn.functional.silu and not any(node.kwargs.values())):
        return "other"
    if node.op == "call_module":
        return "silu" if isinstance(children.get(node.target), torch.nn.SiLU) else "linear"
    if node.op == "call_function":
        return {torch.nn.functional.silu: "silu", operator.mul: "mul", torch.mul: "mul"}.get(node.target, "other")
    return str(node.op)
