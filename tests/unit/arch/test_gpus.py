"""The table of GPUs: each has figures of its own, and those of a chip agree with its clocks and units."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.arch import ARCHES, GPUS, Arch, Gpu, find_gpu, gpu_like, gpu_of
from tilewright.instructions.mfma import NAMES, mfma
from tilewright.kernels import choice
from tilewright.kernels.dispatch import machine_of
from tilewright.kernels.model import Machine, Prediction
from tilewright.kernels.multistage import Multistage
from tilewright.runtime import driver


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_rates_agree_with_multiprocessors_and_clock(gpu: Gpu) -> None:
    """Data sheets round, and state the rates of some chips at another clock than the highest."""
    cycles = gpu.multiprocessors * gpu.clock
    assert gpu.rates["float32"] == pytest.approx(2 * gpu.arch.fma_per_clock * cycles, rel=0.05)
    for unit, flops in gpu.arch.matrix_flops_per_clock.items():
        assert gpu.rates[f"tensor {unit}"] == pytest.approx(flops * cycles, rel=0.09)
    assert gpu.source and 1e11 < gpu.bandwidth < 1e13 and gpu.rates["float64"] > 0
    assert gpu.copy_bandwidth is None or gpu.copy_bandwidth < gpu.bandwidth
    assert find_gpu(gpu.name) is gpu is find_gpu(gpu.title.upper())


def test_every_target_has_a_gpu_of_its_own() -> None:
    for arch in ARCHES.values():
        found = gpu_of(arch)
        assert (found.arch.vendor, found.arch.capability) == (arch.vendor, arch.capability)
        assert Machine.of(arch).multiprocessors == found.multiprocessors
        assert Machine.of(arch).bandwidth <= found.bandwidth / 1e6
    bandwidths = {gpu_of(arch).bandwidth for arch in ARCHES.values()}
    assert len(bandwidths) == len(ARCHES) - 1  # sm_90 and sm_90a are one


@pytest.mark.parametrize(
    ("title", "arch", "multiprocessors", "bandwidth", "name"),
    [
        ("NVIDIA H200", "sm_90a", 132, 4.916e12, "H200"),  # the driver tells a higher clock than the data sheet
        ("NVIDIA H100 80GB HBM3", "sm_90a", 132, 3.352e12, "H100"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", 108, 2.039e12, "A100"),
        ("NVIDIA GeForce RTX 3090", "sm_86", 82, 9.361e11, "RTX3090"),
        ("NVIDIA RTX A6000", "sm_86", 84, 7.68e11, "RTXA6000"),
        ("Tesla V100-SXM2-16GB", "sm_70", 80, 8.98e11, "V100"),
        ("NVIDIA H200", "sm_90a", 132, None, "H200"),
    ],
)
def test_devices_of_the_table(title: str, arch: str, multiprocessors: int, bandwidth: float | None, name: str) -> None:
    assert gpu_like(title, ARCHES[arch], multiprocessors, bandwidth) is GPUS[name]


@pytest.mark.parametrize(
    ("title", "arch", "multiprocessors", "bandwidth", "like"),
    [
        ("NVIDIA H100 PCIe", "sm_90a", 114, 2.039e12, "H200"),
        ("NVIDIA GH200 480GB", "sm_90a", 132, 4.023e12, "H200"),  # not an H200, though its name ends like one
        ("NVIDIA A100-SXM4-40GB", "sm_80", 108, 1.555e12, "A100"),  # another memory
        ("NVIDIA GeForce RTX 3090 Ti", "sm_86", 84, 1.008e12, "RTXA6000"),
        ("NVIDIA A2", "sm_86", 10, 2.0e11, "RTXA6000"),
    ],
)
def test_other_devices_have_their_own_memory_and_size(
    title: str, arch: str, multiprocessors: int, bandwidth: float, like: str
) -> None:
    found, model = gpu_like(title, ARCHES[arch], multiprocessors, bandwidth), GPUS[like]
    assert (found.title, found.multiprocessors, found.bandwidth) == (title, multiprocessors, bandwidth)
    assert found.copy_bandwidth is None and found.reached_bandwidth < bandwidth and title not in GPUS
    for unit, rate in model.rates.items():
        assert found.rates[unit] / multiprocessors == pytest.approx(rate / model.multiprocessors)
    unknown = gpu_like(title, ARCHES[arch], multiprocessors)
    assert unknown.bandwidth / multiprocessors == pytest.approx(model.bandwidth / model.multiprocessors) or (
        unknown is not found and unknown.name in GPUS
    )


def test_the_model_of_matmul_takes_the_figures_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = driver.DeviceProperties(
        ordinal=0, name="NVIDIA A100-SXM4-80GB", capability=(8, 0), multiprocessors=108, l2_bytes=1, shared_bytes=1,
        shared_bytes_optin=1, memory_bytes=1, memory_clock_khz=1593000, memory_bus_bits=5120, driver_version=(13, 0),
    )  # fmt: skip
    monkeypatch.setattr(driver, "device_properties", lambda ordinal: properties)
    machine = machine_of(0)
    assert machine.gpu is GPUS["A100"] and machine.arch is ARCHES["sm_80"]
    assert properties.bandwidth == pytest.approx(2.039e12, rel=1e-3)
    assert machine_of("cpu") == Machine.of(ARCHES["sm_90a"])


def prediction(arch: Arch, dtype: tw.DType, m: int, n: int, k: int) -> Prediction:
    found = tw.matmul.explain(tw.spec(dtype, (m, k)), tw.spec(dtype, (k, n)), arch=arch)
    assert found.choice is not None and found.choice.prediction is not None
    return found.choice.prediction


def test_predictions_follow_the_rates_and_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one family: what another one reaches of the same rates is its own."""
    monkeypatch.setattr(choice, "FAMILIES", (Multistage(),))
    hopper, ampere, consumer = (ARCHES[name] for name in ("sm_90a", "sm_80", "sm_89"))
    for arch in (hopper, ampere, consumer):
        bytes = 2 * (1 * 8192 + 8192 * 8192 + 1 * 8192)
        expected = bytes / gpu_of(arch).reached_bandwidth * 1e6
        assert prediction(arch, tw.bfloat16, 1, 8192, 8192).memory_us == pytest.approx(expected)
    large = 8192, 8192, 8192
    for dtype in (tw.bfloat16, tw.float32, tw.int8, tw.float64):
        for arch in (ampere, ARCHES["sm_100"]):
            rates = [gpu_of(each).rate_of(dtype.name) for each in (hopper, arch)]
            assert rates[0] is not None and rates[1] is not None
            found = prediction(arch, dtype, *large).us / prediction(hopper, dtype, *large).us
            assert found == pytest.approx(rates[0] / rates[1], rel=0.3), (dtype, arch)


@pytest.mark.parametrize("arch", [a for a in ARCHES.values() if a.number >= 80], ids=str)
@pytest.mark.spread(3)
def test_no_step_is_faster_than_the_peak(arch: Arch) -> None:
    for dtype in (tw.float16, tw.bfloat16, tw.float32, tw.float64, tw.int8, tw.uint8):
        found = tw.matmul.explain(tw.spec(dtype, (4096, 4096)), tw.spec(dtype, (4096, 4096)), arch=arch.name)
        rate = gpu_of(arch).rate_of(dtype.name)
        for candidate in found.candidates:
            if candidate.prediction is not None and rate is not None:
                assert candidate.prediction.us > 2 * 4096**3 / rate * 1e6


@pytest.mark.parametrize("name", ["MI100", "MI210", "MI250", "MI300X"])
def test_amd_states_a_rate_for_what_its_matrix_instructions_take(name: str) -> None:
    gpu = GPUS[name]
    for atom in (mfma(each) for each in NAMES):
        if atom.runs_on(gpu.arch):
            for dtype in (atom.dtype_a, atom.dtype_b):
                assert gpu.rates[f"tensor {dtype}"] > 0, atom
