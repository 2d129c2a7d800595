"""Tilewright in JAX: operators for jit, gradients, vmap and shard_map, and operators made from your own functions.

`import tilewright as tw` and then `tw.jax` imports JAX when it is first used; `import tilewright` does not.
"""

from tilewright.jax.operators import Operator as Operator
from tilewright.jax.operators import op as op
from tilewright.jax.ready import attention as attention
from tilewright.jax.ready import cross_entropy as cross_entropy
from tilewright.jax.ready import layer_norm as layer_norm
from tilewright.jax.ready import log_softmax as log_softmax
from tilewright.jax.ready import matmul as matmul
from tilewright.jax.ready import permute as permute
from tilewright.jax.ready import rms_norm as rms_norm
from tilewright.jax.ready import rope as rope
from tilewright.jax.ready import softmax as softmax

__all__ = [
    "op", "Operator",
    "matmul", "softmax", "log_softmax", "rms_norm", "layer_norm", "permute", "cross_entropy", "rope", "attention",
]  # fmt: skip
