"""Tilewright in PyTorch: operators with gradients, modules, and operators made from your own functions.

`import tilewright as tw` and then `tw.torch` imports PyTorch when it is first used; `import tilewright` does not.
"""

import torch  # by this name: where it is not installed, that is what is missing
import torch.fx

from tilewright.torch import nn as nn
from tilewright.torch.activations import dropout as dropout
from tilewright.torch.exchange import all_gather_matmul as all_gather_matmul
from tilewright.torch.exchange import matmul_all_reduce as matmul_all_reduce
from tilewright.torch.exchange import matmul_reduce_scatter as matmul_reduce_scatter
from tilewright.torch.experts import dispatch_grouped_matmul as dispatch_grouped_matmul
from tilewright.torch.experts import grouped_matmul_combine as grouped_matmul_combine
from tilewright.torch.fused_attention import attention as attention
from tilewright.torch.fused_attention import scaled_dot_product_attention as scaled_dot_product_attention
from tilewright.torch.groups import grouped_matmul as grouped_matmul
from tilewright.torch.losses import cross_entropy as cross_entropy
from tilewright.torch.moves import permute as permute
from tilewright.torch.operators import Operator as Operator
from tilewright.torch.operators import op as op
from tilewright.torch.overlap import OverlapPass as OverlapPass
from tilewright.torch.overlap import overlap_products as overlap_products
from tilewright.torch.patching import PatchReport as PatchReport
from tilewright.torch.patching import PatchRow as PatchRow
from tilewright.torch.patching import patch as patch
from tilewright.torch.products import matmul as matmul
from tilewright.torch.products import matmul_operator as matmul_operator
from tilewright.torch.quantized import quantized_matmul as quantized_matmul
from tilewright.torch.rows import layer_norm as layer_norm
from tilewright.torch.rows import log_softmax as log_softmax
from tilewright.torch.rows import rms_norm as rms_norm
from tilewright.torch.rows import rope as rope
from tilewright.torch.rows import softmax as softmax
from tilewright.torch.sharding import Way as Way
from tilewright.torch.symmetric import SymmetricGroup as SymmetricGroup
from tilewright.torch.symmetric import use_symmetric_memory as use_symmetric_memory

__all__ = [
    "op", "Operator", "Way",
    "matmul", "matmul_operator", "grouped_matmul", "quantized_matmul", "dropout", "softmax", "log_softmax", "rms_norm",
    "layer_norm", "permute", "cross_entropy", "rope", "attention", "scaled_dot_product_attention",
    "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce", "dispatch_grouped_matmul",
    "grouped_matmul_combine", "overlap_products", "OverlapPass", "SymmetricGroup", "use_symmetric_memory",
    "nn", "patch", "PatchReport", "PatchRow",
]  # fmt: skip

for _name in ("matmul", "grouped_matmul", "quantized_matmul", "dropout", "softmax", "log_softmax", "rms_norm"):
    torch.fx.wrap(_name)  # symbolic tracing records a call of it, as of torch's own functions
for _name in ("layer_norm", "permute", "cross_entropy", "rope", "attention", "scaled_dot_product_attention"):
    torch.fx.wrap(_name)
