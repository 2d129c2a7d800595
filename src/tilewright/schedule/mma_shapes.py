"""The shapes of matrix instructions under Accera's names, and how plans order and finish them."""

from __future__ import annotations

import enum


class MMAShape(enum.Enum):
    """The shape of one pass of a warp's, or a warpgroup's, matrix instructions: M x N x K, computed in B blocks.

    AMD's names end in the number of blocks. Without it they mean one block, and `M16N16K16` and `M16N16K8` are shapes
    of NVIDIA's targets and of AMD's: the target determines the instructions of a shape. Accera writes an x between
    extents.

    The shapes M64N8K16 to M64N256K16, and those of K8 and K32, are what four warps of sm_90a compute together from
    shared memory.

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

    # Of a warpgroup (wgmma): K16 for elements of 16 bits, K8 for float32 as tf32, K32 for those of 8 bits.
    M64N8K16 = (64, 8, 16, 1)
    M64N16K16 = (64, 16, 16, 1)
    M64N24K16 = (64, 24, 16, 1)
    M64N32K16 = (64, 32, 16, 1)
    M64N40K16 = (64, 40, 16, 1)
    M64N48K16 = (64, 48, 16, 1)
    M64N56K16 = (64, 56, 16, 1)
    M64N64K16 = (64, 64, 16, 1)
    M64N72K16 = (64, 72, 16, 1)
    M64N80K16 = (64, 80, 16, 1)
    M64N88K16 = (64, 88, 16, 1)
    M64N96K16 = (64, 96, 16, 1)
    M64N104K16 = (64, 104, 16, 1)
    M64N112K16 = (64, 112, 16, 1)
    M64N120K16 = (64, 120, 16, 1)
    M64N128K16 = (64, 128, 16, 1)
    M64N136K16 = (64, 136, 16, 1)
    M64N144K16 = (64, 144, 16, 1)
    M64N152K16 = (64, 152, 16, 1)
    M64N160K16 = (64, 160, 16, 1)
    M64N168K16 = (64, 168, 16, 1)
    M64N176K16 = (64, 176, 16, 1)
    M64N184K16 = (64, 184, 16, 1)
    M64N192K16 = (64, 192, 16, 1)
    M64N200K16 = (64, 200, 16, 1)
    M64N208K16 = (64, 208, 16, 1)
    M64N216K16 = (64, 216, 16, 1)
    M64N224K16 = (64, 224, 16, 1)
    M64N232K16 = (64, 232, 16, 1)
    M64N240K16 = (64, 240, 16, 1)
    M64N248K16 = (64, 248, 16, 1)
    M64N256K16 = (64, 256, 16, 1)
    M64N8K8 = (64, 8, 8, 1)
    M64N16K8 = (64, 16, 8, 1)
    M64N24K8 = (64, 24, 8, 1)
    M64N32K8 = (64, 32, 8, 1)
    M64N40K8 = (64, 40, 8, 1)
    M64N48K8 = (64, 48, 8, 1)
    M64N56K8 = (64, 56, 8, 1)
    M64N64K8 = (64, 64, 8, 1)
    M64N72K8 = (64, 72, 8, 1)
    M64N80K8 = (64, 80, 8, 1)
    M64N88K8 = (64, 88, 8, 1)
    M64N96K8 = (64, 96, 8, 1)
    M64N104K8 = (64, 104, 8, 1)
    M64N112K8 = (64, 112, 8, 1)
    M64N120K8 = (64, 120, 8, 1)
    M64N128K8 = (64, 128, 8, 1)
    M64N136K8 = (64, 136, 8, 1)
    M64N144K8 = (64, 144, 8, 1)
    M64N152K8 = (64, 152, 8, 1)
    M64N160K8 = (64, 160, 8, 1)
    M64N168K8 = (64, 168, 8, 1)
    M64N176K8 = (64, 176, 8, 1)
    M64N184K8 = (64, 184, 8, 1)
    M64N192K8 = (64, 192, 8, 1)
    M64N200K8 = (64, 200, 8, 1)
    M64N208K8 = (64, 208, 8, 1)
    M64N216K8 = (64, 216, 8, 1)
    M64N224K8 = (64, 224, 8, 1)
    M64N232K8 = (64, 232, 8, 1)
    M64N240K8 = (64, 240, 8, 1)
    M64N248K8 = (64, 248, 8, 1)
    M64N256K8 = (64, 256, 8, 1)
    M64N8K32 = (64, 8, 32, 1)
    M64N16K32 = (64, 16, 32, 1)
    M64N24K32 = (64, 24, 32, 1)
    M64N32K32 = (64, 32, 32, 1)
    M64N40K32 = (64, 40, 32, 1)
    M64N48K32 = (64, 48, 32, 1)
    M64N56K32 = (64, 56, 32, 1)
    M64N64K32 = (64, 64, 32, 1)
    M64N72K32 = (64, 72, 32, 1)
    M64N80K32 = (64, 80, 32, 1)
    M64N88K32 = (64, 88, 32, 1)
    M64N96K32 = (64, 96, 32, 1)
    M64N104K32 = (64, 104, 32, 1)
    M64N112K32 = (64, 112, 32, 1)
    M64N120K32 = (64, 120, 32, 1)
    M64N128K32 = (64, 128, 32, 1)
    M64N136K32 = (64, 136, 32, 1)
    M64N144K32 = (64, 144, 32, 1)
    M64N152K32 = (64, 152, 32, 1)
    M64N160K32 = (64, 160, 32, 1)
    M64N168K32 = (64, 168, 32, 1)
    M64N176K32 = (64, 176, 32, 1)
    M64N184K32 = (64, 184, 32, 1)
    M64N192K32 = (64, 192, 32, 1)
    M64N200K32 = (64, 200, 32, 1)
    M64N208K32 = (64, 208, 32, 1)
    M64N216K32 = (64, 216, 32, 1)
    M64N224K32 = (64, 224, 32, 1)
    M64N232K32 = (64, 232, 32, 1)
    M64N240K32 = (64, 240, 32, 1)
    M64N248K32 = (64, 248, 32, 1)
    M64N256K32 = (64, 256, 32, 1)

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
        """The number of blocks of C, each computed by separate instructions."""
        return self.value[3]

    @property
    def is_of_warpgroup(self) -> bool:
        """Whether a warpgroup, four warps together, computes it: wgmma.

        >>> MMAShape.M64N256K16.is_of_warpgroup, MMAShape.M64N64K4_B4.is_of_warpgroup
        (True, False)
        """
        return self.m == 64 and self.num_blocks == 1


class MMASchedulingPolicy(enum.Enum):
    """What runs innermost where a shape has several blocks: the passes along K of one block, or the blocks."""

    PASS_ORDER = 1
    BLOCK_ORDER = 2


class MMAFragmentOp(enum.Enum):
    """The operation on a fragment of the accumulator before the first instruction, or after the last."""

    NONE = 0
    ReLU = 1
    ReLU_NoConditional = 2
    SET = 3
    SCALE = 4
