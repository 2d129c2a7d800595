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


def gated_forward(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Compute down(silu(gate(x)) * up(x)), of layers that `module.gated` names, with silu * up behind the product."""
    gate, up, down = (module.get_submodule(name) for name in module.gated)
    hooks = (up._forward_hooks, up._forward_pre_hooks, up._backward_hooks, up._backward_pre_hooks)
    if type(up) is not nn.Linear or any(hooks):  # it would not be called
        found: torch.Tensor = down(torch.nn.functional.silu(gate(x)) * up(x))
    else:
        found = down(matmul(x, up.weight.t(), bias=up.bias, epilogue="swiglu", gate=gate(x)))
    return found


class _Layers(torch.fx.Tracer):  # type: ignore[misc]
    """Follows a module's `forward`, and looks into none of the modules inside."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True


def gated_layers(module: torch.nn.Module) -> tuple[str, str, str] | None:
    """Return the names of gate, up and down of a module that computes down(silu(gate(x)) * up(x)), or None."""
    children = dict(module.named_children())
    names = [name for name, child in children.items() if type(child) in (torch.nn.Linear, nn.Linear)]
    others = [child for name, child in children.items() if name not in names]
    if len(names) != 3 or len(others) > 1 or any(type(child) is not torch.nn.SiLU for child in others):
        return None
    if "forward" in vars(module) or next(module.parameters(recurse=False), None) is not None:
        return None
    try:
        nodes = list(_Layers().trace(module).nodes)
    except Exception:  # what torch.fx cannot follow computes something else
        return None
    return _matched(nodes, children)


def _matched(nodes: list[Any], children: dict[str, torch.nn.Module]) -> tuple[str, str, str] | None:
    """Return the names of gate, up and down if a graph is down(silu(gate(x)) * up(x))."""
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
    return layers if is_whole and len(set(layers)) == 3 else None


def _step(node: Any, children: dict[str, torch.nn.Module]) -> str:
    """Return what a node of a graph does, by the names that `_matched` expects."""
    if node.kwargs and not (node.target is torch.nn.functional.silu and not any(node.kwargs.values())):
        return "other"
    if node.op == "call_module":
        return "silu" if isinstance(children.get(node.target), torch.nn.SiLU) else "linear"
    if node.op == "call_function":
        return {torch.nn.functional.silu: "silu", operator.mul: "mul", torch.mul: "mul"}.get(node.target, "other")
    return str(node.op)
