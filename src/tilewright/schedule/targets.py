import enum

from tilewright.arch import Arch, default_arch


class GridUnit(enum.Enum):
    BLOCK_X = "bx"
    BLOCK_Y = "by"
    BLOCK_Z = "bz"
    THREAD_X = "tx"
    THREAD_Y = "ty"
    THREAD_Z = "tz"
    WARP_X = "wx"
    WARP_Y = "wy"


class Target:
    GridUnit = GridUnit

    def __init__(self, name=None):
        self.arch = Arch.parse({"NVIDIA A100": "sm_80"}.get(name, name)) if name else default_arch()
        self.name = name or self.arch.name
        self.warp_size = self.arch.warp_size
        self.max_threads_per_block = 1024

        self.tensor_core_info = self

    def compute_tensor_splits(self, shape, p=1):
        return (16, 16, 16 * p)
