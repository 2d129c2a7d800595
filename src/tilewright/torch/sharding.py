"""How operators are divided over devices: the possible ways of each, and their registration with torch's DTensor.

A way says of one dimension of a device mesh which placements an operator's inputs may have, and which its results have
then: the function of the parts is then the part of the function. DTensor combines the ways of all dimensions of the
mesh, drops those that shapes do not allow, and takes the one that costs the least communication.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any  # Any: torch's placements and specifications, whose types are not read

__all__ = [
    "Way", "Rule", "agreed", "all_dtensors", "is_dtensor", "is_loaded", "is_taken_by_torch", "partial", "register",
    "shard", "shards", "sharded_like", "sums",
]  # fmt: skip


@dataclass(frozen=True)
class Way:
    """Placements of the results in order, and of inputs by name; inputs that are not named are replicated.

    >>> from torch.distributed.tensor import Shard
    >>> Way([Shard(0)], {"x": Shard(0)}).results
    [Shard(dim=0)]
    """

    results: Sequence[Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)


Rule = Callable[..., Sequence[Way]]
Check = Callable[..., bool]


def is_loaded() -> bool:
    """Say whether this process has DTensor, whose import takes half as long as torch's."""
    return "torch.distributed.tensor" in sys.modules


def is_dtensor(x: object) -> bool:
    """Say whether something is a DTensor, without importing what these are."""
    return is_loaded() and isinstance(x, sys.modules["torch.distributed.tensor"].DTensor)


def all_dtensors(gradients: Sequence[Any]) -> Sequence[Any]:
    """Return gradients of which all are DTensors if one is: where nothing uses a result, autograd's zeros are none."""
    mesh = next((x.device_mesh for x in gradients if is_dtensor(x)), None)
    if mesh is None:
        return gradients
    from torch.distributed.tensor import DTensor

    return [x if x is None or is_dtensor(x) else DTensor.from_local(x, mesh, run_check=False) for x in gradients]


def agreed(x: Any, like: Any) -> Any:
    """Return x, which each device of a mesh may have drawn: where `like` is a DTensor, that of the first device."""
    if is_dtensor(like) and like.device_mesh.get_coordinate() is not None:
        from torch.distributed import _functional_collectives as collectives

        for mode in range(like.device_mesh.ndim):
            x = collectives.wait_tensor(collectives.broadcast(x, 0, (like.device_mesh, mode)))
    return x


def whole_along(x: Any, modes: Sequence[int]) -> Any:
    """Return a tensor that no device has only a part of along some modes, for which torch refuses uneven parts."""
    if not is_dtensor(x):
        return x
    placements = [replicated() if getattr(p, "dim", -1) in modes else p for p in x.placements]
    return x if placements == [*x.placements] else x.redistribute(placements=placements)


def expanded(x: Any, like: Any) -> Any:
    """Return x broadcast to the shape of another tensor."""
    return whole_along(x, [n for n, extent in enumerate(x.shape) if extent == 1]).expand_as(like)


def is_taken_by_torch(overload: Any) -> bool:
    """Say whether torch treats an operator of DTensors in its own way for now, as `loss_parallel()` lets it."""
    if not is_loaded():
        return False
    dispatcher = sys.modules["torch.distributed.tensor"].DTensor._op_dispatcher
    return overload in getattr(dispatcher, "_custom_op_handlers", {})


def shard(mode: int) -> Any:
    """Return the placement of a tensor whose mode is divided."""
    from torch.distributed.tensor import Shard

    return Shard(mode)


def replicated() -> Any:
    """Return the placement of what every device has all of."""
    from torch.distributed.tensor import Replicate

    return Replicate()


def partial(reduction: str = "sum") -> Any:
    """Return the placement of a tensor that is the sum (or the mean) of what the devices hold."""
    from torch.distributed.tensor import Partial

    return Partial(reduction)


def sums() -> list[Any]:
    """Return the placements that linear functions keep: sums and means over the devices."""
    return [partial("sum"), partial("avg")]


def shards(placement: Any, mode: int) -> bool:
    """Say whether a placement divides a mode."""
    return getattr(placement, "dim", None) == mode


def sharded_like(shape: Sequence[int], mode: int, rank: int) -> Any:
    """Return the placement of a tensor that broadcasts to a result of `rank` modes of which `mode` is divided."""
    from torch.distributed.tensor import Replicate

    own = mode - (rank - len(shape))
    return Replicate() if own < 0 or shape[own] == 1 else shard(own)


def register(overload: Any, rule: Rule, check: Check | None) -> None:
    """Tell DTensor the ways of an operator; `check` refuses combinations of ways over several dimensions of a mesh."""
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    arguments = overload._schema.arguments
    results = len(overload._schema.returns)

    def strategy(op_schema: Any) -> Any:
        def spec(x: Any) -> Any:
            return x.strategies[0].output_spec if isinstance(x, OpStrategy) else x

        given = [*op_schema.args_schema, *(a.default_value for a in arguments[len(op_schema.args_schema) :])]
        tensors = [a.name for a, x in zip(arguments, given, strict=True) if isinstance(x, OpStrategy)]
        specs = [spec(x) for x in given]
        whole = Replicate()
        rows = [[*way.results, *(way.inputs.get(name, whole) for name in tensors)] for way in rule(*specs)]
        # Where a way divides no input, such as a batch of one, each device computes the whole and not a part.
        rows = [[whole] * (results + len(tensors)), *(row for row in rows if any(p != whole for p in row[results:]))]
        placements = {p for x in specs for p in getattr(x, "placements", ())}
        rows += [row for found in _strided(placements) for row in _with_strides(rows, found)]
        valid = None
        if check is not None:

            def valid(inputs: Sequence[Any], outputs: Any) -> bool:
                return check(**dict(zip(tensors, inputs, strict=True)))

        mesh = op_schema.get_mesh_from_args()
        return expand_to_full_mesh_op_strategy(mesh, op_schema, rows, input_index=results, is_valid_strategy_cb=valid)

    # What is not a tensor chooses among the ways too (an epilogue, a mode), so decisions are kept by all of it.
    first = next((n for n, a in enumerate(arguments) if "Tensor" not in str(a.type)), len(arguments))
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.register_op_strategy(overload, strategy, RuntimeSchemaInfo(static_argnum=first))


def _strided(placements: set[Any]) -> list[Any]:
    """Return the placements among them that joined modes have, of which an inner one was divided."""
    return [p for p in placements if type(p).__name__ == "_StridedShard"]


def _with_strides(rows: Sequence[Sequence[Any]], found: Any) -> list[list[Any]]:
    """Return the ways with modes divided as those of `found` are."""
    from torch.distributed.tensor import Shard

    def same(p: Any) -> Any:
        return type(found)(p.dim, split_factor=found.split_factor) if type(p) is Shard else p

    return [[same(p) for p in row] for row in rows if any(type(p) is Shard for p in row)]
