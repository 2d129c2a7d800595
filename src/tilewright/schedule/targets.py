"""The GPUs that plans are made for: by model, by architecture, or the machine's own."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.arch import Arch, default_arch, find_gpu
from tilewright.dtypes import DType, dtype
from tilewright.errors import ScheduleError
from tilewright.runtime import driver
from tilewright.schedule.memory_spaces import Location
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.recipes import accumulator_for, find_recipe, has_shape, offers, shapes_for


class GridUnit(enum.Enum):
    """What a loop can be bound to: an axis of the grid's blocks, of a block's threads or warps, or its warpgroups."""

    BLOCK_X = "bx"
    BLOCK_Y = "by"
    BLOCK_Z = "bz"
    THREAD_X = "tx"
    THREAD_Y = "ty"
    THREAD_Z = "tz"
    WARP_X = "wx"
    WARP_Y = "wy"
    WARPGROUP = "wg"


def title_and_arch(title: str) -> tuple[str, str]:
    """Return a GPU's name with its vendor, and the name of its architecture."""
    return title, find_gpu(title.partition(" ")[2]).arch.name


class Category(str, enum.Enum):
    """The kinds of processors. Plans run on GPUs."""

    CPU = "CPU"
    GPU = "GPU"


class Runtime(str, enum.Enum):
    """What launches kernels: each equals the text that `Target.runtime` is."""

    CUDA = "CUDA"
    ROCM = "ROCM"


class Model(enum.Enum):
    """GPU models: the name, and the architecture."""

    NVIDIA_V100 = title_and_arch("NVIDIA V100")
    NVIDIA_T4 = title_and_arch("NVIDIA T4")
    NVIDIA_A100 = title_and_arch("NVIDIA A100")
    NVIDIA_RTX3090 = title_and_arch("NVIDIA RTX 3090")
    NVIDIA_RTX_A6000 = title_and_arch("NVIDIA RTX A6000")
    NVIDIA_RTX4090 = title_and_arch("NVIDIA RTX 4090")
    NVIDIA_L40S = title_and_arch("NVIDIA L40S")
    NVIDIA_H100 = title_and_arch("NVIDIA H100")
    NVIDIA_H200 = title_and_arch("NVIDIA H200")
    AMD_MI100 = title_and_arch("AMD MI100")
    AMD_MI210 = title_and_arch("AMD MI210")
    AMD_MI250 = title_and_arch("AMD MI250")
    AMD_MI200 = ("AMD MI200", "gfx90a")  # the family of the two before it
    NVIDIA_TESLA_V100 = title_and_arch("NVIDIA V100")  # another name of it
    AMD_MI300X = title_and_arch("AMD MI300X")
    AMD_MI300 = AMD_MI300X


_GridUnit = GridUnit  # `Target.GridUnit` and `Target.Model` are they, under the same names
_Model = Model
_Category = Category
_Runtime = Runtime


def _plain(name: str) -> str:
    return "".join(name.lower().replace("_", " ").split())


@dataclass(frozen=True)
class TensorCoreInfo:
    """What the matrix instructions of a target compute."""

    arch: Arch

    def shapes(self, input_type: Any, output_type: Any) -> tuple[MMAShape, ...]:  # Any: whatever names an element type
        """Return the shapes for elements of `input_type` and accumulators of `output_type`.

        `input_type` names one type, or that of A and that of B: `("float8_e4m3fnuz", "float8_e5m2fnuz")`.
        """
        factors = _factors(input_type)
        return shapes_for(self.arch, factors, accumulator_for(factors, dtype(output_type)))

    def supports(
        self,
        input_type: Any,  # Any: whatever names an element type
        output_type: Any,
        shape: MMAShape,
        num_total_passes: int = 1,
        num_fused_passes: int | None = None,
    ) -> bool:
        """Return whether the target computes a shape of these types, in that many passes along K.

        `input_type` names one type, or that of A and that of B. Passes that are not whole numbers from 1, or that the
        fused ones do not divide, are not supported. None and -1 fuse all of them. Raises `ScheduleError` for a shape
        that is not an `MMAShape`.

        >>> info = Target("A100").tensor_core_info
        >>> info.supports("float16", "float32", MMAShape.M16N16K16, 8, 2)
        True
        >>> info.supports("int8", "int16", MMAShape.M16N16K16), info.supports("float64", "float64", MMAShape.M16N16K16)
        (True, False)
        """
        _check_shape(shape)
        fused = num_total_passes if num_fused_passes in (None, -1) else num_fused_passes
        if not is_count(num_total_passes) or not is_count(fused) or num_total_passes % fused:
            return False
        factors = _factors(input_type)
        return find_recipe(self.arch, shape, factors, accumulator_for(factors, dtype(output_type))) is not None

    def mma_shape_to_tuple(self, mma_shape: MMAShape) -> tuple[int, int, int]:
        """Return the extents of one pass: M, N and K."""
        _check_shape(mma_shape)
        return mma_shape.m, mma_shape.n, mma_shape.k

    def compute_tensor_splits(self, mma_shape: MMAShape, num_total_passes: int = 1) -> tuple[int, int, int]:
        """Return the extents of the loops that a tensorized tile takes: M, N, and K times the passes.

        Raises `ScheduleError` where the target has no such shape, and for passes that are not a whole number from 1.

        >>> Target("gfx908").tensor_core_info.compute_tensor_splits(MMAShape.M16N16K4, 8)
        (16, 16, 32)
        """
        _check_shape(mma_shape)
        if not is_count(num_total_passes):
            raise ScheduleError(f"num_total_passes={num_total_passes!r}", help="a whole number of passes, at least 1")
        if not has_shape(self.arch, mma_shape):
            raise ScheduleError(f"{self.arch.name} has no {mma_shape.name}", help=offers(self.arch))
        return mma_shape.m, mma_shape.n, mma_shape.k * num_total_passes


class Target:
    """A GPU to plan for: a `Target.Model`, the name of one or of an architecture, or the machine's own GPU.

    >>> Target(Target.Model.NVIDIA_H100).arch.name, Target("NVIDIA A100").arch.name, Target("sm_75").warp_size
    ('sm_90a', 'sm_80', 32)
    >>> Target("AMD MI100").runtime, Target("gfx90a").warp_size
    ('ROCM', 64)
    """

    GridUnit: TypeAlias = _GridUnit
    Model: TypeAlias = _Model
    Category: TypeAlias = _Category
    Runtime: TypeAlias = _Runtime
    MemorySpace: TypeAlias = Location
    category = _Category.GPU

    def __init__(
        self,
        name: _Model | Arch | str | int | tuple[int, int] | None = None,
        category: _Category | str = _Category.GPU,
        runtime: _Runtime | str | None = None,
        *,
        known_name: _Model | str | None = None,
        model: _Model | str | None = None,
    ) -> None:
        if category != _Category.GPU:
            raise ScheduleError(
                f"Target(category={category!r}): plans run on GPUs",
                help="Target('NVIDIA A100') is one, and arrays of NumPy run in the simulator of it",
            )
        names = [given for given in (name, known_name, model) if given is not None]
        if len(names) > 1:
            raise ScheduleError(f"a target has one name, got {' and '.join(map(repr, names))}")
        chosen = names[0] if names else _OF_RUNTIMES.get(str(getattr(runtime, "value", runtime)))
        self.name: str
        self.arch: Arch
        self.name, self.arch = _named(chosen)
        if runtime is not None and runtime != self.runtime:
            raise ScheduleError(
                f"{self.name} is of the runtime {self.runtime}, and {getattr(runtime, 'name', runtime)} is asked for",
                help="leave runtime out, or name a target of it; there are CUDA and ROCM",
            )

    @staticmethod
    def of_device() -> Target:
        """Return the machine's first GPU, or sm_90a if there is none."""
        return Target()

    @property
    def warp_size(self) -> int:
        return self.arch.warp_size

    @property
    def max_threads_per_block(self) -> int:
        return self.arch.threads_per_block

    @property
    def max_shared_memory_per_block(self) -> int:
        """In bytes, for kernels that raise their limit."""
        return self.arch.shared_bytes_optin

    @property
    def max_static_shared_memory_per_block(self) -> int:
        """In bytes, for kernels that do not raise their limit."""
        return self.arch.shared_bytes

    @property
    def max_registers_per_block(self) -> int:
        return self.arch.registers_per_multiprocessor

    @property
    def runtime(self) -> str:
        return "ROCM" if self.arch.is_amd else "CUDA"

    @property
    def tensor_core_info(self) -> TensorCoreInfo:
        return TensorCoreInfo(self.arch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and (self.name, self.arch.name) == (other.name, other.arch.name)

    def __hash__(self) -> int:
        return hash((self.name, self.arch.name))

    def __repr__(self) -> str:
        return f"Target({self.name!r})"


def _factors(input_type: Any) -> tuple[DType, DType]:  # Any: as `shapes` says
    a, b = input_type if isinstance(input_type, tuple) and len(input_type) == 2 else (input_type, input_type)
    return dtype(a), dtype(b)


def is_count(number: object) -> bool:
    """Whether something is a whole number from 1."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _check_shape(shape: object) -> None:
    if not isinstance(shape, MMAShape):
        raise ScheduleError(f"{shape!r} is not an MMAShape", help="such as MMAShape.M16N16K16")


_OF_RUNTIMES = {"ROCM": "AMD MI100"}  # the target of a runtime without a name; None is the machine's own GPU


def _machines_own() -> tuple[str, Arch]:
    if driver.device_count() == 0:
        arch = default_arch()
        return arch.name, arch
    device = driver.device_properties(0)
    try:
        return device.name, device.arch
    except ValueError as error:
        raise ScheduleError(f"no code is generated for {device.name}: {error}") from None


def _named(name: Model | Arch | str | int | tuple[int, int] | None) -> tuple[str, Arch]:
    if name is None:
        return _machines_own()
    if isinstance(name, Model):
        return name.value[0], Arch.parse(name.value[1])
    if isinstance(name, str):
        for model in Model:
            full = _plain(model.value[0])
            if _plain(name) in (full, full.removeprefix("nvidia").removeprefix("amd")):
                return model.value[0], Arch.parse(model.value[1])
    try:
        arch = Arch.parse(name)
    except ValueError as error:
        models = ", ".join(model.value[0] for model in Model)
        raise ScheduleError(f"no target is called {name!r}", help=f"there are {models}; {error}") from None
    return arch.name, arch
