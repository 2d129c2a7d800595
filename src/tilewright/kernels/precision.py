"""How float32 is multiplied on tensor cores at float32's accuracy: each number as a sum of narrower ones.

    x = x_0 + x_1 (+ x_2) + r,    x_0 = round(x),    x_(i+1) = round(x - x_0 - ... - x_i)

Each difference is exact. `round` rounds to the nearest number of the part's type; the last part of tf32 is cut, which
is what a tensor core does with it. The remainder r is 0 for three parts of bfloat16, and 2**-23 |x| at most for two of
tfloat32, as long as the parts do not fall below the type's smallest number, 2**-133 for bfloat16 and 2**-136 for
tfloat32: then |r| is at most one such number (for tfloat32) or half of it.

A kernel sums the products of parts that `Parts.products` lists, the smallest first, for some k (a *chunk*), and adds
the sums of chunks with float32 additions. A chunk is `CHUNK` elements of K, one instruction after the other where one
takes less (8 for tfloat32), or in the Hopper kernel a tile of K:

    acc <- acc + (((x_1 y_0 + x_0 y_1) + x_0 y_0) over the chunk)        here of "tf32x3"

A tensor core cuts its sums where an addition rounds, and cuts them all in one direction. Because chunks begin at 0, the
bits that are cut belong to the sum of a chunk, and not to the sum so far, which a long K makes much larger.

An infinity has no such parts, and a number within half a unit of bfloat16's or tfloat32's last place of the greatest
float32 has none either. Each gives a sum that is not finite, and such results are computed again, by fused
multiply-adds in the order of k: they are those of precision="ieee".

Sources: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021), for how sums are cut and
that subnormal numbers count; Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing
the FP32 theoretical peak performance" (2022), for additions outside of the tensor core; Henry, Tang, Heinecke,
"Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations" (2019), for three parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bfloat16, tfloat32

CHUNK = 16
Product = tuple[int, int]  # numbers of a part of A and of a part of B; part 0 is the largest


@dataclass(frozen=True)
class Parts:
    """A precision that multiplies float32 in `count` parts of type `part`, and adds up `products` in this order."""

    name: str
    part: DType
    count: int
    products: tuple[Product, ...]

    def __str__(self) -> str:
        return self.name


def _products(parts: int, last: int) -> tuple[Product, ...]:
    """Return the pairs of parts whose numbers add up to `last` at most, those of the smallest products first."""
    pairs = [(i, j) for i in range(parts) for j in range(parts) if i + j <= last]
    return tuple(sorted(pairs, key=lambda pair: (-sum(pair), -pair[0])))


PARTS = {
    parts.name: parts
    for parts in (
        Parts("tf32x3", tfloat32, 2, _products(2, last=1)),
        Parts("bf16x6", bfloat16, 3, _products(3, last=2)),
        Parts("bf16x9", bfloat16, 3, _products(3, last=4)),
    )
}
