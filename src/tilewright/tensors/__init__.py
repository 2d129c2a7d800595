"""Tensors: the same on the host and in a kernel, and their tiles."""

from tilewright.frames import hiding_all
from tilewright.tensors.construction import identity_tensor, make_tensor, recast, tensor
from tilewright.tensors.engines import CoordinateEngine, Engine, NumpyEngine
from tilewright.tensors.guarded import GuardedTensor, guarded
from tilewright.tensors.partition import domain_offset, local_partition, local_tile
from tilewright.tensors.tensor import Tensor, compact_fragment, fragment_like, make_fragment_like

__all__ = [
    "CoordinateEngine",
    "Engine",
    "GuardedTensor",
    "NumpyEngine",
    "Tensor",
    "compact_fragment",
    "domain_offset",
    "fragment_like",
    "guarded",
    "identity_tensor",
    "local_partition",
    "local_tile",
    "make_fragment_like",
    "make_tensor",
    "recast",
    "tensor",
]

hiding_all(globals(), __all__)
