import enum


class MMAShape(enum.Enum):
    M16N16K16 = "a"
    m = property(lambda self: 16)
    n = property(lambda self: 16)
    k = property(lambda self: 16)


class MMASchedulingPolicy(enum.Enum):
    PASS_ORDER = 1
    BLOCK_ORDER = 2


class MMAFragmentOp(enum.Enum):
    NONE = 0
    ReLU = 1
    ReLU_NoConditional = 2
    SET = 3
    SCALE = 4
