"""Targets: their names, the machine's own, and which shapes of matrix instructions each has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.arch import ARCHES, Arch
from tilewright.errors import ScheduleError
from tilewright.runtime import driver
from tilewright.schedule import GridUnit, MMAShape, Target

MODELS = {
    "NVIDIA V100": "sm_70", "NVIDIA T4": "sm_75", "NVIDIA A100": "sm_80", "NVIDIA RTX 3090": "sm_86",
    "NVIDIA RTX A6000": "sm_86", "NVIDIA RTX 4090": "sm_89", "NVIDIA L40S": "sm_89", "NVIDIA H100": "sm_90a",
    "NVIDIA H200": "sm_90a", "AMD MI100": "gfx908", "AMD MI210": "gfx90a", "AMD MI250": "gfx90a", "AMD MI200": "gfx90a",
    "AMD MI300X": "gfx942",
}  # fmt: skip
CUBES = ("M16N16K16", "M32N8K16", "M8N32K16")
# The lists of shapes that each family is to have, by the type of the input.
NVIDIA = {"float16": CUBES, "bfloat16": CUBES, "int8": CUBES, "uint8": CUBES, "tfloat32": ("M16N16K8",)}
NVIDIA["float32"] = NVIDIA["tfloat32"]
CDNA = {
    "float32": ("M16N16K4_B1", "M32N32K2_B1", "M64N64K1_B2", "M64N64K1_B4"),
    "float16": ("M16N16K16_B1", "M32N32K8_B1", "M64N64K4_B2", "M64N64K4_B4"),
    "int8": ("M16N16K16_B1", "M32N32K8_B1", "M64N64K4_B2", "M64N64K4_B4"),
    "bfloat16": ("M16N16K8_B1", "M32N32K4_B1", "M64N64K2_B2", "M64N64K2_B4"),
}
K4 = ("M16N16K16_B1", "M32N32K8_B1", "M64N64K4_B2", "M64N64K4_B4")
CDNA2 = {**CDNA, "bfloat16": (*CDNA["bfloat16"], *K4)}
XF32 = ("M16N16K8_B1", "M32N32K4_B1")
CDNA3 = {
    "float32": (*CDNA["float32"], *XF32),
    "tfloat32": XF32,
    "float16": CDNA["float16"],
    "int8": ("M16N16K32_B1", "M32N32K16_B1", "M64N64K4_B2", "M64N64K4_B4"),
    "bfloat16": K4,
    **{
        f"float8_{a}": ("M16N16K32_B1", "M32N32K16_B1")
        for a in ("e4m3fnuz", "e5m2fnuz", "e4m3fnuz and e5m2fnuz", "e5m2fnuz and e4m3fnuz")
    },
}
OF_AMD = {"gfx908": CDNA, "gfx90a": CDNA2, "gfx942": CDNA3}
# Which types came with which generation of NVIDIA's.
SINCE = {"float16": 70, "int8": 75, "uint8": 75, "bfloat16": 80, "tfloat32": 80, "float32": 80}


# K of a warpgroup's shapes (wgmma, sm_90a alone), and the numbers of columns that bytes have.
WARPGROUP_K = {
    "float16": 16, "bfloat16": 16, "float32": 8, "tfloat32": 8, "int8": 32, "uint8": 32, "float8_e4m3fn": 32,
}  # fmt: skip
OF_BYTES = (8, 16, 24, *range(32, 257, 16))


def shapes_of(arch: Arch, dtype: str) -> set[MMAShape]:
    table = OF_AMD[arch.name] if arch.is_amd else NVIDIA
    wide: set[MMAShape] = set()
    if arch.name == "sm_90a" and dtype in WARPGROUP_K:
        columns = OF_BYTES if dtype in ("int8", "uint8") else range(8, 257, 8)
        wide = {MMAShape[f"M64N{n}K{WARPGROUP_K[dtype]}"] for n in columns}
    if not arch.is_amd and arch.number < SINCE.get(dtype, 1000):
        return wide
    return wide | {MMAShape[name] for name in table.get(dtype, ())}


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "arch"), MODELS.items())
def test_models_by_name(name: str, arch: str) -> None:
    member = next(model for model in Target.Model if model.value[0] == name)
    short = name.removeprefix("NVIDIA ").removeprefix("AMD ")
    spellings = (member, name, name.lower(), name.upper(), name.replace(" ", "_"), short, short.replace(" ", ""))
    assert {(Target(x).name, Target(x).arch.name) for x in spellings} == {(name, arch)}
    assert {hash(Target(x)) for x in spellings} == {hash(Target(name))}


def test_the_table_names_every_model() -> None:
    assert {model.value for model in Target.Model} == set(MODELS.items())


@pytest.mark.parametrize("arch", ARCHES)
def test_architectures_by_name(arch: str) -> None:
    target = Target(arch)
    assert (target.name, target.arch) == (arch, ARCHES[arch]) and target == Target(ARCHES[arch])
    is_amd = arch.startswith("gfx")
    assert (target.runtime, target.warp_size) == (("ROCM", 64) if is_amd else ("CUDA", 32))
    assert target.category == "GPU" and target.max_threads_per_block == 1024
    assert target.max_shared_memory_per_block == ARCHES[arch].shared_bytes_optin


def test_numbers_name_architectures() -> None:
    assert Target(80).arch is Target((8, 0)).arch is Target("80").arch is ARCHES["sm_80"]
    assert Target("A100") != Target("sm_80") and Target("sm_80") != "sm_80"


def test_units_of_the_grid_are_reached_through_a_target() -> None:
    assert Target("A100").GridUnit is GridUnit
    names = [f"{kind}_{axis}" for kind in ("BLOCK", "THREAD") for axis in "XYZ"]
    assert [unit.name for unit in GridUnit] == [*names, "WARP_X", "WARP_Y", "WARPGROUP"]


# --- the machine's own -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A device as the driver describes it."""

    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> Arch:
        return Arch.of_device(self.capability)


def test_a_machine_without_gpu_plans_for_sm_90a(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "device_count", lambda: 0)
    assert Target().arch.name == Target().name == Target.of_device().name == "sm_90a"


def test_the_machines_own_gpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "device_count", lambda: 1)
    monkeypatch.setattr(driver, "device_properties", lambda number: Device("NVIDIA A100-SXM4-80GB", (8, 0)))
    for target in (Target(), Target.of_device()):
        assert (target.name, target.arch.name) == ("NVIDIA A100-SXM4-80GB", "sm_80")


def test_a_gpu_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "device_count", lambda: 1)
    monkeypatch.setattr(driver, "device_properties", lambda number: Device("NVIDIA GTX 1080", (6, 1)))
    with pytest.raises(ScheduleError) as caught:
        Target()
    assert str(caught.value) == (
        "no code is generated for NVIDIA GTX 1080: compute capability 6.1 is not supported; the least is 7.0"
    )


# --- refused ---------------------------------------------------------------------------------------------------------


@refused(
    ScheduleError,
    """
    no target is called 'P100'
      help: there are NVIDIA V100, NVIDIA T4, NVIDIA A100, NVIDIA RTX 3090, NVIDIA RTX A6000, NVIDIA RTX 4090, NVIDIA L40S, NVIDIA H100, NVIDIA H200, AMD MI100, AMD MI210, AMD MI250, AMD MI200, AMD MI300X; no architecture is called 'P100'; there are sm_70, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, sm_100, sm_120, gfx908, gfx90a, gfx942
    """,
)
def test_an_unknown_name() -> None:
    Target("P100")


@refused(
    ScheduleError,
    """
    sm_70 has no M16N16K8
      help: sm_70 has M16N16K16, M32N8K16, M8N32K16 of float16 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of float16 with float16 accumulators
    """,
)
def test_splits_of_a_shape_that_the_target_lacks() -> None:
    Target("V100").tensor_core_info.compute_tensor_splits(MMAShape.M16N16K8)


@refused(
    ScheduleError,
    """
    num_total_passes=1.5
      help: a whole number of passes, at least 1
    """,
)
def test_splits_of_half_a_pass() -> None:
    Target("A100").tensor_core_info.compute_tensor_splits(MMAShape.M16N16K16, 1.5)  # type: ignore[arg-type]


@refused(
    ScheduleError,
    """
    'M16N16K16' is not an MMAShape
      help: such as MMAShape.M16N16K16
    """,
)
def test_splits_of_the_name_of_a_shape() -> None:
    Target("A100").tensor_core_info.compute_tensor_splits("M16N16K16")  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", [0, -1, "2", True])
def test_splits_of_no_pass(passes: Any) -> None:
    with pytest.raises(ScheduleError, match="num_total_passes="):
        Target("A100").tensor_core_info.compute_tensor_splits(MMAShape.M16N16K16, passes)


def test_support_of_the_name_of_a_shape() -> None:
    with pytest.raises(ScheduleError, match="is not an MMAShape"):
        Target("A100").tensor_core_info.supports("float16", "float32", "M16N16K16")  # type: ignore[arg-type]


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m", "n", "k", "num_blocks"])
def test_a_shape_is_what_its_name_says(name: str) -> None:
    for spelled, shape in MMAShape.__members__.items():
        m, rest = spelled.replace("x", "").removeprefix("M").split("N")
        n, rest = rest.split("K")
        k, _, blocks = rest.partition("_B")
        read = {"m": m, "n": n, "k": k, "num_blocks": blocks or 1}
        assert getattr(shape, name) == int(read[name]), spelled


@pytest.mark.parametrize("arch", ARCHES)
def test_splits_are_the_extents_of_the_shape(arch: str) -> None:
    target = Target(arch)
    has = set().union(*(shapes_of(target.arch, dtype) for dtype in (*SINCE, *CDNA, "float8_e4m3fn")))
    for shape in MMAShape:
        if shape not in has:
            with pytest.raises(ScheduleError, match=f"{arch} has no {shape.name}"):
                target.tensor_core_info.compute_tensor_splits(shape)
            continue
        assert target.tensor_core_info.compute_tensor_splits(shape) == (shape.m, shape.n, shape.k)
        for passes in (1, 2, 3, 8, 64):
            splits = target.tensor_core_info.compute_tensor_splits(shape, num_total_passes=passes)
            assert splits == (shape.m, shape.n, shape.k * passes)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.spread(4)
def test_support_is_that_of_the_lists(arch: str) -> None:
    info = Target(arch).tensor_core_info
    types = (
        "float16",
        "bfloat16",
        "float32",
        "tfloat32",
        "float64",
        "int8",
        "uint8",
        "int16",
        "int32",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e4m3fnuz and e5m2fnuz",
        "float8_e5m2fnuz and e4m3fnuz",
    )
    for given in types:
        first, _, second = given.partition(" and ")
        dtype = tw.tfloat32 if given == "tfloat32" else (first, f"float8_{second}") if second else given
        # Sums of integers are int32, those of floats float32, whatever C of fewer bits is in.
        integers = {"int8", "uint8", "int16", "uint16", "int32", "uint32"}
        outputs = integers if given in ("int8", "uint8") else {"float16", "bfloat16", "float32"}
        wanted = shapes_of(info.arch, given)
        for output in {*integers, "float16", "bfloat16", "float32", "float64", "int64"}:
            has_double = info.arch.is_amd and info.arch.name != "gfx908" and (given, output) == ("float64", "float64")
            shapes = {MMAShape.M16N16K4_B1} if has_double else wanted if output in outputs else set()
            assert set(info.shapes(dtype, output)) == shapes
            assert {shape for shape in MMAShape if info.supports(dtype, output, shape)} == shapes


@pytest.mark.parametrize(("passes", "fused"), [(p, f) for p in (-1, 0, 1, 4, 6) for f in (None, 0, 1, 2, 3, 4, 6, 8)])
@pytest.mark.spread(4)
def test_fused_passes_divide_all_passes(passes: int, fused: int | None) -> None:
    wanted = passes >= 1 and (fused is None or (fused >= 1 and passes % fused == 0))
    info = Target("AMD MI100").tensor_core_info
    assert info.supports("float32", "float32", MMAShape.M16N16K4, passes, fused) is wanted
