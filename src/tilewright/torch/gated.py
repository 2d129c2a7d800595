"""Gated layers of a model, down(silu(gate(x)) * up(x)): recognised by what they compute, and computed by kernels."""

from __future__ import annotations

import operator
from typing import Any  # Any: nodes of graphs

import torch
import torch.fx

from tilewright.torch import nn
from tilewright.torch.products import matmul


def is_gated(module: torch.nn.Module) -> bool:
    """Return whether a module has got `gated_forward`."""
    return getattr(vars(module).get("forward"), "func", None) is gated_forward


def gated_forward(module: torch.nn.Module, layers: tuple[str, ...], *args: Any, **keywords: Any) -> torch.Tensor:
    """Compute down(silu(gate(x)) * up(x)), of layers with these names, with silu * up behind the product."""
    gate, up, down, *others = (module.get_submodule(name) for name in layers)
    is_same = type(up) is nn.Linear and all(type(m) is torch.nn.SiLU for m in others)
    hooks = torch.nn.modules.module._has_any_global_hook() or any(map(_has_hooks, (up, *others)))
    if not is_same or hooks or keywords or len(args) != 1:
        found: torch.Tensor = type(module).forward(module, *args, **keywords)  # up would not be called
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
