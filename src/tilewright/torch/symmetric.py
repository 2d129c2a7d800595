"""Symmetric memory of PyTorch: GPUs that reach each other's memory as a group of `tw.distributed`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tilewright import distributed
from tilewright.distributed.products import send, send_beside
from tilewright.errors import ArgumentError, DeviceError

_MOST_BUFFERS = 16  # of a group: kinds of calls whose memory is kept
_HALVES = (torch.float16, torch.bfloat16)
_DEVICE = "cuda"  # whose memory is reached
_groups: dict[str, SymmetricGroup] = {}  # those that were enabled once, with the memory of their calls
_enabled: set[str] = set()


class _Peers(list[Any]):
    """The arrays of all ranks, and what keeps their memory mapped."""

    handle: Any = None


class _Symmetric:
    """An array of each rank, `peers`, and the rank's own, `local`."""

    def __init__(self, peers: list[Any], rank: int) -> None:
        self.peers: Sequence[Any] = peers
        self.local: Any = peers[rank]


class SymmetricGroup:
    """The ranks of a process group whose GPUs reach each other's memory: a group for `tw.distributed`.

    `rank` is that of the process in the group, `size` the number of ranks, and `symmetric(shape, dtype)` allocates an
    array of zeros on each GPU by `torch.distributed._symmetric_memory` and returns an object whose `peers` are the
    arrays of all ranks, and `local` the rank's own. All ranks call it in the same order. Kernels write to `peers` and
    wait for flags in them, so each rank makes its launches on one stream.

    Without `group` it is the group of all processes. Raises `ArgumentError` for what is not a process group with GPUs,
    and `DeviceError` where the GPUs do not reach each other's memory.
    """

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                "SymmetricGroup takes a process group, and there is none",
                help='torch.distributed.init_process_group("nccl", ...) makes one',
            )
        self.group: Any = dist.group.WORLD if group is None else group
        if not isinstance(self.group, dist.ProcessGroup):
            raise ArgumentError(f"SymmetricGroup: group is {self.group!r}, and a process group is expected")
        if not torch.cuda.is_available() or "nccl" not in str(dist.get_backend(self.group)):
            raise ArgumentError(
                "SymmetricGroup is for processes that have a GPU each, in a group with the backend nccl",
                help="on a CPU tw.simulate(ranks=...) runs programs of several ranks",
            )
        self.rank: int = self.group.rank()
        self.size: int = self.group.size()
        self._buffers: OrderedDict[tuple[Any, ...], distributed.ExchangeBuffer] = OrderedDict()

    def symmetric(self, shape: Any, dtype: Any) -> _Symmetric:
        """Return an array of zeros of each rank, of the same shape and type. All ranks call this."""
        import torch.distributed._symmetric_memory as memory

        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        element = getattr(torch, str(dtype))
        try:
            local = memory.empty(*shape, dtype=element, device=torch.device("cuda", torch.cuda.current_device()))
            local.zero_()
            handle = memory.rendezvous(local, self.group.group_name)
            peers = _Peers(handle.get_buffer(rank, shape, element) for rank in range(self.size))
        except RuntimeError as error:
            raise DeviceError(
                f"the GPUs of rank {self.rank} and of the others do not reach each other's memory",
                details=str(error).splitlines()[:3],
                help="tw.torch.all_gather_matmul and its relatives work over process groups of any kind",
            ) from None
        peers[self.rank], peers.handle = local, handle
        torch.cuda.synchronize()
        dist.barrier(self.group)  # nobody writes before the zeros are there
        return _Symmetric(peers, self.rank)

    def buffer(self, kind: str, shape: tuple[int, int], dtype: torch.dtype) -> distributed.ExchangeBuffer:
        """Return the buffer of a kind of calls, which all ranks make in the same order."""
        key = kind, shape, dtype
        found = self._buffers.pop(key, None)
        if found is None:
            if len(self._buffers) >= _MOST_BUFFERS:
                torch.cuda.synchronize()
                dist.barrier(self.group)  # no rank writes to it any more
                self._buffers.popitem(last=False)
            found = distributed.ExchangeBuffer(self, shape, str(dtype).removeprefix("torch."))
        self._buffers[key] = found  # the last one to go
        return found


def use_symmetric_memory(group: Any = None, enabled: bool = True) -> None:
    """Let the products of a process group exchange their parts by symmetric memory, or (`enabled=False`) by NCCL again.

    It concerns `tw.torch.all_gather_matmul`, `matmul_reduce_scatter` and their gradients on tensors of float16 and
    bfloat16: copy engines and kernels write to the memory of the other GPUs, and tiles wait for their own part in place
    of all parts of a rank. Results are the same up to the rounding of sums. All ranks of the group call it, and then
    make their calls on one stream each. In a CUDA graph that is being captured, products go by NCCL. The memory of the
    last 16 kinds of calls is kept: two slots for each rank, of the shape of what is sent, and the sums for the others.

    A kernel that waits for another rank holds all multiprocessors. A collective of NCCL that runs on another stream at
    the same time, such as a prefetch of FSDP, may find none on one rank while it holds some on another: then neither
    ends. Let the stream of the products wait for such collectives first.

    Raises `ArgumentError` and `DeviceError` as `tw.torch.SymmetricGroup`.
    """
    is_there = dist.is_available() and dist.is_initialized()
    given = dist.group.WORLD if group is None and is_there else group
    name = str(getattr(given, "group_name", None))
    # Names come again with new groups. One that is known is not looked at anew: programs switch often.
    if not is_there or name not in _groups or _groups[name].group is not given:
        found = SymmetricGroup(group)
        if enabled:
            _groups[name] = found
    if enabled:
        _enabled.add(name)
    else:
        _enabled.discard(name)


def gathered(x: torch.Tensor, w: torch.Tensor, group: Any, bias: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return the rows of all ranks times w, plus a bias, None where the group has no symmetric memory.

    What decides is the same on all ranks.
    """
    own = _group(x, group)
    if own is None or 0 in x.shape:
        return None
    if w.shape[1] == 0:  # the others want the rows all the same
        found = gathered(x, w.new_zeros(w.shape[0], 1), group)
        return None if found is None else found[..., :0]
    rows = _rows(x).contiguous()
    y = x.new_empty(own.size * x.shape[0], *x.shape[1:-1], w.shape[1])
    buffer = own.buffer("gather", (rows.shape[0], rows.shape[1]), x.dtype)
    distributed.all_gather_matmul(rows, w, _rows(y), buffer, None if bias is None else bias.contiguous())
    return y


def scattered(
    x: torch.Tensor,
    w: torch.Tensor,
    group: Any,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Return this rank's rows of the sum of all ranks' products, None where the group has no symmetric memory.

    The residual is added to them, and all ranks' biases.
    """
    own = _group(x, group)
    columns = w.shape[1]
    if own is None or columns == 0 or 0 in x.shape[:-1]:
        return None
    if x.shape[-1] == 0:  # the others want the sums all the same
        x, w = x.new_zeros(*x.shape[:-1], 1), w.new_zeros(1, columns)
    rows = _rows(x).contiguous()
    y = x.new_empty(x.shape[0] // own.size, *x.shape[1:-1], columns)
    buffer = own.buffer("scatter", (rows.shape[0] // own.size, columns), x.dtype)
    more = None if residual is None else residual.reshape(-1, columns).contiguous()
    distributed.matmul_reduce_scatter(rows, w, _rows(y), buffer, more, None if bias is None else bias.contiguous())
    return y


def rows_beside(x: torch.Tensor, group: Any, launch: Callable[[], None], *, are_gathered: bool) -> torch.Tensor | None:
    """Return the rows of all ranks, which come while what `launch` launches is computed.

    `are_gathered` says that it is `gathered` of x, so that only the rank's own rows are missing. The rows lie in slots,
    for launches that follow on the stream until the next `gathered` of this kind. Return None, with nothing launched,
    where the group has no symmetric memory.
    """
    own = _group(x, group)
    if own is None or 0 in x.shape:
        return None
    rows = _rows(x).contiguous()
    buffer = own.buffer("gather", (rows.shape[0], rows.shape[1]), x.dtype)
    if are_gathered:
        launch()
        send(rows, buffer, [own.rank])
    else:
        with buffer:
            send_beside(rows, buffer, launch)
    found: torch.Tensor = torch.as_tensor(buffer.slots()).reshape(-1, rows.shape[1])
    return found


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _group(x: torch.Tensor, group: Any) -> SymmetricGroup | None:
    """Return the group of symmetric memory that products of these tensors go by."""
    name = str(group.group_name)
    if name not in _enabled or x.device.type != _DEVICE or x.dtype not in _HALVES:
        return None
    own = _groups[name]
    is_ours = own.group is group and own.size > 1
    return own if is_ours and not torch.cuda.is_current_stream_capturing() else None
