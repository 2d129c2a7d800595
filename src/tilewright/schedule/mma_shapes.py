"""The shapes of matrix instructions under Accera's names, and how plans order and finish them."""

from __future__ import annotations

import enum


class MMAShape(enum.Enum):
    """The shape of one pass of a warp's matrix instructions: M x N x K, computed in B blocks.

    AMD's names end in the number of blocks. Without it they mean one block, and `M16N16K16` and `M16N16K8` are shapes
    of NVIDIA's targets and of AMD's: what a shape is made of is up to the target. Accera writes an x between extents.

    >>> MMAShape.M64N64K1_B2.m, MMAShape.M64N64K1_B2.k, MMAShape.M64N64K1_B2.num_blocks
    (64, 1, 2)
    >>> MMAShape.M16N16K4_B1 is MMAShape.M16N16K4, MMAShape.M16xN16xK16_B1 is MMAShape.M16N16K16
    (True, True)
    """

    M16N16K16 = (16, 16, 16, 1)
    M32N8K16 = (32, 8, 16, 1)
    M8N32K16 = (8, 32, 16, 1)
    M16N16K8 = (16, 16, 8, 1)
    M16N16K4_B1 = (16, 16, 4, 1)
    M32N32K2_B1 = (32, 32, 2, 1)
    M32N32K8_B1 = (32, 32, 8, 1)
    M32N32K4_B1 = (32, 32, 4, 1)
    M64N64K1_B2 = (64, 64, 1, 2)
    M64N64K1_B4 = (64, 64, 1, 4)
    M64N64K4_B2 = (64, 64, 4, 2)
    M64N64K4_B4 = (64, 64, 4, 4)
    M64N64K2_B2 = (64, 64, 2, 2)
    M64N64K2_B4 = (64, 64, 2, 4)
    M16N16K32_B1 = (16, 16, 32, 1)
    M32N32K16_B1 = (32, 32, 16, 1)

    # The same shapes by other names.
    M16N16K16_B1 = (16, 16, 16, 1)
    M16N16K8_B1 = (16, 16, 8, 1)
    M16N16K4 = (16, 16, 4, 1)
    M32N32K2 = (32, 32, 2, 1)
    M32N32K8 = (32, 32, 8, 1)
    M32N32K4 = (32, 32, 4, 1)
    M32N8K16_B1 = (32, 8, 16, 1)
    M8N32K16_B1 = (8, 32, 16, 1)
    M16xN16xK16_B1 = (16, 16, 16, 1)
    M32xN8xK16_B1 = (32, 8, 16, 1)
    M8xN32xK16_B1 = (8, 32, 16, 1)
    M16xN16xK8_B1 = (16, 16, 8, 1)
    M16xN16xK4_B1 = (16, 16, 4, 1)
    M32xN32xK2_B1 = (32, 32, 2, 1)
    M32xN32xK8_B1 = (32, 32, 8, 1)
    M32xN32xK4_B1 = (32, 32, 4, 1)
    M64xN64xK1_B2 = (64, 64, 1, 2)
    M64xN64xK1_B4 = (64, 64, 1, 4)
    M64xN64xK4_B2 = (64, 64, 4, 2)
    M64xN64xK4_B4 = (64, 64, 4, 4)
    M64xN64xK2_B2 = (64, 64, 2, 2)
    M64xN64xK2_B4 = (64, 64, 2, 4)
    M16N16K32 = (16, 16, 32, 1)
    M16xN16xK32_B1 = (16, 16, 32, 1)
    M32N32K16 = (32, 32, 16, 1)
    M32xN32xK16_B1 = (32, 32, 16, 1)

    @property
    def m(self) -> int:
        return self.value[0]

    @property
    def n(self) -> int:
        return self.value[1]

    @property
    def k(self) -> int:
        return self.value[2]

    @property
    def num_blocks(self) -> int:
        """The number of blocks of C that instructions of their own compute."""
        return self.value[3]


class MMASchedulingPolicy(enum.Enum):
    """What runs innermost where a shape has several blocks: the passes along K of one block, or the blocks."""

    PASS_ORDER = 1
    BLOCK_ORDER = 2


class MMAFragmentOp(enum.Enum):
    """What is done to a fragment of the accumulator before the first instruction, or after the last."""

    NONE = 0
    ReLU = 1
    ReLU_NoConditional = 2
    SET = 3
    SCALE = 4
