"""Matrix products over several GPUs, with the exchange of their parts under the products (`tw.distributed`).

They take a group: an object with `rank`, `size` and `symmetric(shape, dtype)`, whose result has `peers`, the arrays of
all ranks in order. `tw.simulate(ranks=4).run(main)` gives such a group to `main`.
"""

# buffers             symmetric memory of one operation: a slot for each rank, flags, and how often it was used
# products            all-gather then product, product then reduce-scatter, product then all-reduce
# experts             grouped products of experts on several ranks: dispatch then product, product then combine
# _exchange_kernels   what they launch beside `tw.matmul`: push, tell, await, add; and what experts launch beside
#                     `tw.grouped_matmul`: offsets, and rows of which only devices know

from tilewright.distributed.buffers import ExchangeBuffer, Group
from tilewright.distributed.experts import ExpertBuffer, dispatch_grouped_matmul, grouped_matmul_combine
from tilewright.distributed.products import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from tilewright.frames import hiding_all

__all__ = [
    "ExchangeBuffer", "ExpertBuffer", "Group", "all_gather_matmul", "dispatch_grouped_matmul", "grouped_matmul_combine",
    "matmul_all_reduce", "matmul_reduce_scatter",
]  # fmt: skip

hiding_all(globals(), __all__)
