"""`tw.torch.overlap_products`: a pass of `torch.compile` that puts communication under the products beside it.

    gather(x) @ w1, gather(x) @ w2              ->   gathered_products(x, [w1, w2])
    scatter(sum over ranks, x1 @ w1 + x2 @ w2)  ->   scattered_products([x1, x2], [w1, w2])

The pass sees the graphs that inductor lowers, of the forward and of the backward pass, in which collectives are those
of `_c10d_functional`. It replaces what it recognises as a whole, and leaves everything else as it is.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: nodes of torch's graphs, and what they stand for

import torch
import torch.distributed as dist

from tilewright._version import __version__
from tilewright.errors import ArgumentError
from tilewright.torch.exchange import (
    FLOATS,
    MOST_MODES,
    all_gather_matmul_operator,
    gathered_products_operator,
    matmul_reduce_scatter_operator,
    scattered_products_operator,
)
from tilewright.torch.products import matmul_operator

_aten = torch.ops.aten
_RESHAPES = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
_COPIES = (_aten.clone.default, _aten.alias.default)
_SPLITS = (_aten.split.Tensor, _aten.split_with_sizes.default)
_TO_THE_END = 1 << 62  # what a slice says at least whose end is that of the mode


@dataclass(frozen=True)
class _Product:
    """A node that computes a @ w + bias; `node` has no other effect."""

    node: Any
    a: Any
    w: Any
    bias: Any | None


@dataclass(frozen=True)
class _Exchange:
    """A gather, or a scatter of sums, along a mode: what goes in, what comes out, and the nodes from there to here."""

    source: Any
    result: Any
    mode: int
    group: str
    nodes: tuple[Any, ...]  # those to be erased, users first
    operation: str = ""


class OverlapPass:
    """A pass over graphs of `torch.compile`, as `tw.torch.overlap_products` makes it.

    `replaced` counts the exchanges that it has put under products, in all graphs that it has seen.
    """

    def __init__(self, before: Sequence[Callable[[Any], object]]) -> None:
        self.replaced: int = 0
        self._before = tuple(before)

    def __call__(self, graph: Any) -> None:
        """Rewrite a graph in place, after the other passes."""
        for other in self._before:
            other(graph)
        if not dist.is_available():
            return
        for node in list(graph.nodes):
            if not node.users:  # nor any more
                continue
            exchange = _gather_of(node) or _scatter_of(node)
            if exchange is not None:
                rewrite = _overlap_scatter if exchange.operation else _overlap_gather
                self.replaced += rewrite(graph, exchange)

    def uuid(self) -> object:
        """Return what cached graphs depend on; None, for no caching, where another pass does not say it."""
        ours = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        others = [getattr(each, "uuid", lambda: None)() for each in self._before]
        return None if None in others else f"{__version__} {ours} {others}"


def overlap_products(*before: Callable[[Any], object]) -> OverlapPass:
    """Return a pass for `torch.compile` that overlaps gathers and scatters of a divided model with its products.

    It is for inductor: `torch.compile(model, options={"post_grad_custom_pre_pass": tw.torch.overlap_products()})`. In
    the graphs of the forward and of the backward pass, it replaces an all-gather whose result is multiplied by weights,
    and products whose sum over the ranks is scattered, by operators that compute as `tw.torch.all_gather_matmul` and
    `matmul_reduce_scatter` do: with `parallelize_module`, those around the layers of `SequenceParallel`,
    `ColwiseParallel` and `RowwiseParallel`. This is what torch's option `_micro_pipeline_tp` does with symmetric
    memory. The products become those of `tw.matmul`, whether torch or Tilewright computed them before.

    Several products of one gather become one operator, as does a sum of products that is scattered. Whatever else reads
    the gathered tensor gets it from there. Products may have a bias. A pattern is left as it is along the last mode; if
    an operand depends on the gather; if something else reads a product that is scattered; for operations other than sum
    and average; for products with another epilogue, `out_dtype` or `precision`; and in groups of one rank.

    >>> import torch, tilewright as tw
    >>> overlap = tw.torch.overlap_products()
    >>> double = torch.compile(lambda x: 2 * x, backend="eager")  # without inductor, no pass runs
    >>> double(torch.ones(1)), overlap.replaced
    (tensor([2.]), 0)

    `before` are other passes for the same option, which run first. The ranks of a group must compile the same program.

    Raises `ArgumentError` for a pass that cannot be called.
    """
    for other in before:
        if not callable(other):
            raise ArgumentError(f"a pass is a {type(other).__name__}, and functions of a graph are expected")
    from torch._inductor.custom_graph_pass import CustomGraphPass  # imports half of inductor

    made: OverlapPass = type("OverlapPass", (OverlapPass, CustomGraphPass), {"__module__": __name__})(before)
    return made


# --- patterns ------------------------------------------------------------------------------------------------------


def _value(node: Any) -> Any:
    """Return the tensor without memory that a node stands for, None where that is not known."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def _given(node: Any) -> dict[str, Any]:
    """Return the arguments of an operator's call by name, with defaults filled in."""
    schema = node.target._schema.arguments
    found = {x.name: x.default_value for x in schema if x.has_default_value()}
    return {**found, **dict(zip((x.name for x in schema), node.args, strict=False)), **node.kwargs}


def _calls(node: Any, *targets: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def _reads_only(node: Any, users: Iterable[Any]) -> bool:
    return set(node.users) == set(users)


def _product_of(node: Any) -> _Product | None:
    """Return the product that a node computes, where our operators compute the same."""
    if _calls(node, _aten.mm.default):
        found = _Product(node, node.args[0], node.args[1], None)
    elif _calls(node, _aten.addmm.default):
        given = _given(node)
        if (given["beta"], given["alpha"]) != (1, 1):
            return None
        found = _Product(node, given["mat1"], given["mat2"], given["self"])
    elif _calls(node, matmul_operator.overload):
        given = _given(node)
        found = _Product(node, given.pop("a"), given.pop("b"), given.pop("bias"))
        dtype = given.pop("out_dtype")
        if any(given.values()) or (dtype is not None and dtype != _value(node).dtype):
            return None
    else:
        return None
    tensors = [_value(x) for x in (node, found.a, found.w)]
    if any(x is None or x.dtype not in FLOATS or x.dtype != tensors[0].dtype for x in tensors):
        return None
    result, a, w = tensors
    if w.ndim != 2 or not 2 <= a.ndim <= MOST_MODES or not all(isinstance(x, int) for x in w.shape):
        return None
    if found.bias is not None:
        bias = _value(found.bias)
        if bias is None or bias.dtype != result.dtype or tuple(bias.shape) != (w.shape[1],):
            return None
    return found


def _whole_of(pieces: Sequence[Any], mode: int, count: int) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the tensor that pieces are all equal parts of, in order along a mode, and the nodes that cut it.

    None where they are not, or something else reads them. Parts of different sizes were not joined along another mode.
    """
    if not pieces or len(pieces) != count:
        return None
    first = pieces[0]
    if all(_calls(x, operator.getitem) and x.args == (first.args[0], n) for n, x in enumerate(pieces)):
        split = first.args[0]
        if not _calls(split, *_SPLITS) or not _reads_only(split, pieces):
            return None
        given = _given(split)
        if given["dim"] != mode or len(split.meta.get("val") or ()) != count:
            return None
        return given["self"], (*pieces, split)
    if not all(_calls(x, _aten.slice.Tensor) for x in pieces):
        return None
    cuts = [_given(x) for x in pieces]
    whole, value = cuts[0]["self"], _value(cuts[0]["self"])
    if value is None or not isinstance(value.shape[mode], int) or value.shape[mode] % count:
        return None
    step = value.shape[mode] // count
    for n, cut in enumerate(cuts):
        ends = isinstance(cut["end"], int) and (
            cut["end"] == (n + 1) * step or (n == count - 1 and cut["end"] >= _TO_THE_END)
        )
        if (
            cut["self"] is not whole
            or cut["dim"] != mode
            or cut["step"] != 1
            or (cut["start"] or 0) != n * step
            or not ends
        ):
            return None
    return whole, tuple(pieces)


def _ranks(group: Any, size: Any) -> int | None:
    """Return how many ranks a collective has, None where there is nothing to overlap or its group is unknown here."""
    try:
        found: int = dist.distributed_c10d._resolve_process_group(group).size()
    except (RuntimeError, ValueError, KeyError, TypeError):
        return None
    return found if found > 1 and found == size else None


def _gather_of(node: Any) -> _Exchange | None:
    """Return the gather of which a node is the result: as it comes, or put together along another mode."""
    wait, mode, count = node, 0, None
    between: tuple[Any, ...] = ()
    if _calls(node, _aten.cat.default) and _value(node) is not None:
        pieces = _given(node)["tensors"]
        mode, count = _given(node)["dim"] % _value(node).ndim, len(pieces)
        cut = _whole_of(pieces, 0, count)
        if mode == 0 or cut is None or not all(_reads_only(piece, [node]) for piece in pieces):
            return None
        wait, between = cut
        if not _reads_only(wait, _cutters(between)):
            return None
    if not _calls(wait, _collectives().wait_tensor.default):
        return None
    gather = wait.args[0]
    if not _calls(gather, _collectives().all_gather_into_tensor.default) or not _reads_only(gather, [wait]):
        return None
    shard, size, group = _given(gather).values()
    value, ranks = _value(shard), _ranks(group, size)
    if ranks is None or count not in (None, ranks) or value is None or _value(node) is None:
        return None
    if not 2 <= value.ndim <= MOST_MODES or mode == value.ndim - 1:
        return None
    return _Exchange(shard, node, mode, group, tuple(dict.fromkeys((node, *between, wait, gather))))


def _scatter_of(node: Any) -> _Exchange | None:
    """Return the scatter of sums of which a node is the result; its source is the tensor that is added up."""
    if not _calls(node, _collectives().wait_tensor.default):
        return None
    scatter = node.args[0]
    if not _calls(scatter, _collectives().reduce_scatter_tensor.default) or not _reads_only(scatter, [node]):
        return None
    source, operation, size, group = _given(scatter).values()
    ranks = _ranks(group, size)
    if ranks is None or operation not in ("sum", "avg"):
        return None
    mode, nodes, readers = 0, (node, scatter), (scatter,)
    if _calls(source, _aten.cat.default) and _given(source)["dim"] == 0 and _reads_only(source, [scatter]):
        joined, pieces = source, _given(source)["tensors"]
        mode = _mode_cut(pieces[0]) if pieces else -1
        cut = _whole_of(pieces, mode, ranks) if mode >= 0 else None
        if cut is None or not all(_reads_only(piece, [joined]) for piece in pieces):
            return None
        source, between = cut
        nodes, readers = (*nodes, joined, *between), _cutters(between)
    value = _value(source)
    if value is None or not _reads_only(source, readers) or not mode < value.ndim - 1:
        return None
    return _Exchange(source, node, mode, group, nodes, operation)


def _collectives() -> Any:
    return torch.ops._c10d_functional


def _cutters(nodes: Sequence[Any]) -> tuple[Any, ...]:
    """Return which of the nodes that cut a tensor into pieces read the tensor."""
    return tuple(nodes[-1:] if _calls(nodes[-1], *_SPLITS) else nodes)


def _mode_cut(piece: Any) -> int:
    """Return along which mode a piece was cut; -1 for what was not."""
    cut: Any = piece.args[0] if _calls(piece, operator.getitem) else piece
    mode: int = _given(cut)["dim"] if _calls(cut, *_SPLITS, _aten.slice.Tensor) else -1
    return mode


# --- rewriting -----------------------------------------------------------------------------------------------------


def _call(graph: Any, target: Any, *args: Any) -> Any:
    """Add a call with the value that it stands for, which later passes read."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]))
    return node


def _to_front(graph: Any, node: Any, mode: int) -> Any:
    modes = list(range(_value(node).ndim))
    return node if mode == 0 else _call(graph, _aten.permute.default, node, [modes.pop(mode), *modes])


def _from_front(graph: Any, node: Any, mode: int) -> Any:
    if mode == 0:
        return node
    modes = list(range(1, _value(node).ndim))
    modes.insert(mode, 0)
    return _call(graph, _aten.permute.default, node, modes)


def _overlap_gather(graph: Any, gather: _Exchange) -> bool:
    """Replace a gather and the products of its result; say whether there are any."""
    result = gather.result
    places = {node: n for n, node in enumerate(graph.nodes)}
    first: Any = min(result.users, key=places.__getitem__)
    after = {result}
    for node in graph.nodes:
        if not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    readers = _readers(result)
    taken, early = [], []
    for reader in readers:
        for user in reader.users:
            product = _product_of(user)
            if product is None or product.a is not reader:
                continue
            operands = [x for x in (product.w, product.bias) if x is not None]
            if not after.isdisjoint(operands):
                continue
            behind = _behind(operands, first, places)
            if behind is not None:
                taken.append(product)
                early += behind
    if not taken:
        return False
    for node in sorted(set(early), key=places.__getitem__):
        first.prepend(node)
    with graph.inserting_before(first):
        x = _to_front(graph, gather.source, gather.mode)
        weights, biases = [p.w for p in taken], [p.bias for p in taken]
        outside = {user for reader in readers for user in reader.users} - {p.node for p in taken} - set(readers)
        if not outside and biases == [None]:
            rows, found = None, [_call(graph, all_gather_matmul_operator.overload, x, weights[0], gather.group)]
        else:
            are_read = bool(outside)
            products = _call(graph, gathered_products_operator.overload, x, weights, biases, gather.group, are_read)
            rows, *found = (_call(graph, operator.getitem, products, n) for n in range(1 + len(taken)))
            rows = _from_front(graph, rows, gather.mode) if are_read else None
        for product, y in zip(taken, found, strict=True):
            y = _from_front(graph, y, gather.mode)
            if _value(product.node).ndim != _value(result).ndim:
                y = _call(graph, _aten.reshape.default, y, [-1, _value(product.w).shape[1]])
            product.node.replace_all_uses_with(y)
    if rows is not None:
        result.replace_all_uses_with(rows)
    _erase(graph, [*(p.node for p in taken), *reversed(readers), *([] if rows is None else [rows]), *gather.nodes])
    return True


def _readers(result: Any) -> list[Any]:
    """Return a node, and those with the same elements in the same order, as matrices of the same width or copies."""
    found, width = [result], _value(result).shape[-1]
    for node in found:
        for user in node.users:
            if not _calls(user, *_COPIES, *_RESHAPES) or user in found or _value(user) is None:
                continue
            if user.target in _COPIES or (isinstance(width, int) and tuple(_value(user).shape[1:]) == (width,)):
                found.append(user)
    return found


def _behind(operands: Iterable[Any], first: Any, places: dict[Any, int]) -> list[Any] | None:
    """Return the nodes that operands need and that come behind a node; None where one of them cannot be moved."""
    found, left = set(), list(operands)
    while left:
        node = left.pop()
        if places[node] < places[first] or node in found:
            continue
        schema = getattr(node.target, "_schema", None)
        if node.is_impure() or (schema is not None and schema.is_mutable):
            return None
        found.add(node)
        left += node.all_input_nodes
    return list(found)


def _overlap_scatter(graph: Any, scatter: _Exchange) -> bool:
    """Replace a scatter of sums and the products that are added up; say whether there are any."""
    source, addends = scatter.source, _Addends([], [], [])
    if not addends.take(source):
        return False
    products, biases = [product for product, _ in addends.products], [product.bias for product, _ in addends.products]
    for bias in addends.biases:
        if None not in biases or tuple(_value(bias).shape) != (_value(source).shape[-1],):
            return False
        biases[biases.index(None)] = bias
    begin = scatter.nodes[1]
    with graph.inserting_before(begin):
        xs = []
        for product, shape in addends.products:
            x, depth = product.a, _value(product.w).shape[0]
            if shape is not None:
                x = _call(graph, _aten.reshape.default, x, [*shape[:-1], depth])
            xs.append(_to_front(graph, x, scatter.mode))
        weights = [product.w for product in products]
        if biases == [None]:
            y = _call(graph, matmul_reduce_scatter_operator.overload, xs[0], weights[0], scatter.group)
        else:
            y = _call(graph, scattered_products_operator.overload, xs, weights, biases, scatter.group)
        y = _from_front(graph, y, scatter.mode)
        if scatter.operation == "avg":
            y = _call(graph, _aten.div.Tensor, y, _given(begin)["group_size"])
    scatter.result.replace_all_uses_with(y)
    _erase(graph, [*scatter.nodes, *addends.nodes])
    return True


@dataclass(frozen=True)
class _Addends:
    """What a sum adds up: products, each with the shape that it is given, and biases; and the nodes, users first."""

    products: list[tuple[_Product, list[Any] | None]]
    biases: list[Any]
    nodes: list[Any]

    def take(self, node: Any) -> bool:
        """Take a node apart; say whether it is nothing but products and biases that nothing else reads."""
        self.nodes.append(node)
        if _calls(node, _aten.add.Tensor) and not node.kwargs:
            return all(self._take_addend(x, node) for x in node.args)
        product, shape = _product_of(node), None
        if product is None and _calls(node, *_RESHAPES):
            inner, shape = node.args[0], list(node.args[1])
            product = _product_of(inner) if _reads_only(inner, [node]) else None
            self.nodes.append(inner)
        if product is None or _value(node).shape[-1] != _value(product.w).shape[1] or _value(node).ndim > MOST_MODES:
            return False
        self.products.append((product, shape))
        return True

    def _take_addend(self, x: Any, total: Any) -> bool:
        value, whole = _value(x), _value(total)
        if value is None or value.dtype != whole.dtype:
            return False
        if value.ndim == 1:
            self.biases.append(x)
            return True
        # As text: comparing symbols would fix what they stand for.
        return str(value.shape) == str(whole.shape) and _reads_only(x, [total]) and self.take(x)


def _erase(graph: Any, nodes: Iterable[Any]) -> None:
    """Erase the nodes that nobody reads, users first."""
    for node in dict.fromkeys(nodes):
        if not node.users:
            graph.erase_node(node)
