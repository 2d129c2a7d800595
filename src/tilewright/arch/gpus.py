"""GPUs by name: what bounds a kernel there, each GPU with its own figures.

Peak rates are dense, at the boost clock, in operations a second (a fused multiply-add is two), as the vendors' data
sheets and architecture white papers state them; those of tensor cores with float32 accumulators. The clock is the boost
clock and only used for shared memory and the issue of instructions, which no data sheet gives a rate for. Only
`copy_bandwidth` was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.arch.targets import ARCHES, Arch
from tilewright.errors import ArgumentError

DEFAULT_GPU = "H200"


@dataclass(frozen=True)
class Gpu:
    """One GPU: multiprocessors, clock in Hz, DRAM in bytes a second, and operations a second by unit.

    Units are element types ("float32": the ordinary cores) and "tensor bfloat16" and its like. `bandwidth` is the data
    sheet's; `copy_bandwidth` is what a copy was measured to reach, None where nobody measured it. `l2_bytes` is the
    second-level cache, in `l2_partitions` parts of which each may hold its own copy of a line ("each L2 partition
    caches data for memory accesses from SMs in the GPCs directly connected to the partition": A100 white paper), and
    `l2_bytes_per_clock` the most that others' measurements of it show; None where the table has no source.
    """

    name: str
    title: str
    arch: Arch
    multiprocessors: int
    clock: float
    bandwidth: float
    rates: Mapping[str, float] = field(compare=False, repr=False)
    source: str
    copy_bandwidth: float | None = None
    l2_bytes: int | None = None
    l2_partitions: int = 1
    l2_bytes_per_clock: int | None = None

    @property
    def l2_bandwidth(self) -> float | None:
        """The bytes a second that the second-level cache delivers at most, None where nobody measured it."""
        return None if self.l2_bytes_per_clock is None else self.l2_bytes_per_clock * self.clock

    @property
    def shared_wavefronts(self) -> float:
        """The wavefronts of shared memory a second: one a clock in each multiprocessor."""
        return self.multiprocessors * self.clock

    @property
    def issue_slots(self) -> float:
        """The instructions of warps a second: one a clock in each of a multiprocessor's four parts."""
        return self.arch.issued_per_clock * self.multiprocessors * self.clock

    @property
    def reached_bandwidth(self) -> float:
        """The bytes a second that kernels reach: measured, or the data sheet's times the share that an H200 reaches."""
        return self.copy_bandwidth or self.bandwidth * _REACHED

    def rate_of(self, unit: str) -> float | None:
        """Return the rate at which matrices of an element type are multiplied: by tensor cores where they do it.

        >>> find_gpu("T4").rate_of("float32"), find_gpu("T4").rate_of("float16"), find_gpu("T4").rate_of("bfloat16")
        (8100000000000.0, 65000000000000.0, None)
        """
        return self.rates.get(f"tensor {unit}", self.rates.get(unit))


def _rates(plain: tuple[float, float, float, float], **tensor: float) -> dict[str, float]:
    """Return rates in operations a second of tera-operations; 0 stands for none.

    `plain` are those of the ordinary cores on float32, float64, float16 and bfloat16, `tensor` those of tensor cores.
    """
    rates = dict(zip(("float32", "float64", "float16", "bfloat16"), plain, strict=True))
    rates |= {f"tensor {name}": rate for name, rate in tensor.items()}
    return {unit: rate * 1e12 for unit, rate in rates.items() if rate}


def _rates_16_bit(rate: float) -> dict[str, float]:
    return {"float16": rate, "bfloat16": rate}


def _rates_float8(rate: float) -> dict[str, float]:
    return {"float8_e4m3fn": rate, "float8_e5m2": rate}


def _rates_int8(rate: float) -> dict[str, float]:
    return {"int8": rate, "uint8": rate}


def _hopper(name: str, title: str, bandwidth: float, source: str, copy_bandwidth: float | None = None) -> Gpu:
    """Return a GPU with the chip of the H100 SXM5; the memory differs."""
    plain = 66.9, 33.5, 133.8, 133.8
    rates = _rates(
        plain,
        tfloat32=494.7,
        float64=66.9,
        **_rates_int8(1978.9),
        **_rates_16_bit(989.4),
        **_rates_float8(1978.9),
    )
    # 50 MB in two partitions (H100 white paper; the H200 has the same chip); 3900 to 4500 bytes a clock were measured
    # on the H100 and H800 (arXiv 2402.13499, 2501.12084).
    l2 = 50 * _MIB, 2, 4500
    return Gpu(name, title, ARCHES["sm_90a"], 132, 1.98e9, bandwidth, rates, source, copy_bandwidth, *l2)


_MIB = 1 << 20


_TABLE = (
    Gpu(
        "V100", "Tesla V100 SXM2", ARCHES["sm_70"], 80, 1.53e9, 900e9, _rates((15.7, 7.8, 31.4, 0), float16=125.0),
        "NVIDIA Tesla V100 GPU architecture, WP-08608-001, table 1",
    ),
    Gpu(
        "T4", "Tesla T4", ARCHES["sm_75"], 40, 1.59e9, 320e9,
        _rates((8.1, 0.254, 16.2, 0), float16=65.0, **_rates_int8(130.0)),
        "NVIDIA T4 data sheet; NVIDIA Turing GPU architecture, WP-09183-001",
    ),
    Gpu(
        "A100", "A100 SXM4 80 GB", ARCHES["sm_80"], 108, 1.41e9, 2039e9,
        _rates((19.5, 9.7, 78.0, 39.0), tfloat32=156.0, float64=19.5, **_rates_int8(624.0), **_rates_16_bit(312.0)),
        "NVIDIA A100 data sheet; NVIDIA A100 GPU architecture white paper, table 1",
        l2_bytes=40 * _MIB, l2_partitions=2, l2_bytes_per_clock=5120,  # the white paper's own figures
    ),
    Gpu(
        "RTX3090", "GeForce RTX 3090", ARCHES["sm_86"], 82, 1.695e9, 936e9,
        _rates((35.6, 0.556, 35.6, 35.6), tfloat32=35.6, **_rates_int8(284.0), **_rates_16_bit(71.0)),
        "NVIDIA Ampere GA102 GPU architecture white paper, table 2",
    ),
    Gpu(
        "RTX4090", "GeForce RTX 4090", ARCHES["sm_89"], 128, 2.52e9, 1008e9,
        _rates(
            (82.6, 1.29, 82.6, 82.6), tfloat32=82.6, **_rates_int8(660.6), **_rates_16_bit(165.2),
            **_rates_float8(330.3),
        ),
        "NVIDIA Ada GPU architecture white paper, appendix A",
    ),
    Gpu(
        "L40S", "L40S", ARCHES["sm_89"], 142, 2.52e9, 864e9,
        _rates(
            (91.6, 1.43, 91.6, 91.6), tfloat32=183.0, **_rates_int8(733.0), **_rates_16_bit(362.0),
            **_rates_float8(733.0),
        ),
        "NVIDIA L40S data sheet",
    ),
    Gpu(
        "RTXA6000", "RTX A6000", ARCHES["sm_86"], 84, 1.80e9, 768e9,
        _rates((38.7, 0.605, 38.7, 38.7), tfloat32=77.4, **_rates_int8(309.7), **_rates_16_bit(154.8)),
        "NVIDIA RTX A6000 data sheet",
    ),
    Gpu(
        "AGXORIN", "Jetson AGX Orin 64 GB", ARCHES["sm_87"], 16, 1.3e9, 204.8e9,
        _rates((5.3, 0.083, 10.6, 10.6), **_rates_int8(85.0), **_rates_16_bit(42.5)),
        "NVIDIA Jetson AGX Orin series technical brief",
    ),
    _hopper("H100", "H100 SXM5 80 GB", 3352e9, "NVIDIA H100 GPU architecture white paper, table 2"),
    _hopper(
        "H200", "H200 SXM 141 GB", 4800e9, "NVIDIA H200 data sheet; H100 white paper for the same chip",
        copy_bandwidth=4300e9,  # measured by a copy
    ),
    Gpu(
        "B200", "B200 SXM 180 GB", ARCHES["sm_100"], 148, 1.965e9, 7700e9,
        _rates(
            (75.0, 37.0, 150.0, 150.0), tfloat32=1125.0, float64=37.0, **_rates_int8(4500.0), **_rates_16_bit(2250.0),
            **_rates_float8(4500.0),
        ),
        "NVIDIA HGX B200 data sheet, an eighth of the board",
    ),
    Gpu(
        "RTX5090", "GeForce RTX 5090", ARCHES["sm_120"], 170, 2.407e9, 1792e9,
        _rates(
            (104.8, 1.64, 104.8, 104.8), tfloat32=104.8, **_rates_int8(838.0), **_rates_16_bit(209.5),
            **_rates_float8(419.0),
        ),
        "NVIDIA RTX Blackwell GPU architecture white paper",
    ),
    Gpu(
        "MI100", "Instinct MI100", ARCHES["gfx908"], 120, 1.502e9, 1228.8e9,
        _rates((23.1, 11.5, 46.1, 0), float32=46.1, float16=184.6, bfloat16=92.3, **_rates_int8(184.6)),
        "AMD Instinct MI100 data sheet; AMD CDNA architecture white paper",
    ),
    Gpu(
        "MI210", "Instinct MI210", ARCHES["gfx90a"], 104, 1.7e9, 1638.4e9,
        _rates((22.6, 22.6, 45.3, 0), float32=45.3, float64=45.3, **_rates_int8(181.0), **_rates_16_bit(181.0)),
        "AMD Instinct MI210 data sheet; AMD CDNA 2 architecture white paper",
    ),
    Gpu(
        # Its two dies are two devices.
        "MI250", "Instinct MI250, one die", ARCHES["gfx90a"], 104, 1.7e9, 1638.4e9,
        _rates((22.6, 22.6, 45.3, 0), float32=45.3, float64=45.3, **_rates_int8(181.0), **_rates_16_bit(181.0)),
        "AMD Instinct MI250 data sheet, half of the card",
    ),
    Gpu(
        "MI300X", "Instinct MI300X", ARCHES["gfx942"], 304, 2.1e9, 5300e9,
        _rates(
            (163.4, 81.7, 0, 0), float32=163.4, float64=163.4, tfloat32=653.7, **_rates_int8(2614.9),
            **_rates_16_bit(1307.4), float8_e4m3fnuz=2614.9, float8_e5m2fnuz=2614.9,
        ),
        "AMD Instinct MI300X data sheet",
    ),
)  # fmt: skip

GPUS = {gpu.name: gpu for gpu in _TABLE}

_H200 = GPUS["H200"]
_REACHED = (_H200.copy_bandwidth or 0.0) / _H200.bandwidth  # of the data sheet's bandwidth


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name, in any case and with or without blanks.

    >>> find_gpu("h200").multiprocessors
    132

    Raises `ArgumentError` for a name that is not in the table.
    """
    wanted = _joined(str(name))
    for gpu in _TABLE:
        if wanted in (_joined(gpu.name), _joined(gpu.title)):
            return gpu
    raise ArgumentError(f"no GPU is called {name!r}", help=f"the table has {', '.join(GPUS)}")


def gpu_of(arch: Arch) -> Gpu:
    """Return the GPU that stands for a target where none is named: the one with most multiprocessors, H200 for sm_90.

    >>> [gpu_of(ARCHES[name]).name for name in ("sm_80", "sm_90", "sm_90a", "sm_120", "gfx908")]
    ['A100', 'H200', 'H200', 'RTX5090', 'MI100']
    """
    fitting = [gpu for gpu in _TABLE if (gpu.arch.vendor, gpu.arch.capability) == (arch.vendor, arch.capability)]
    if arch.is_amd:
        fitting = [gpu for gpu in fitting if gpu.arch.name == arch.name]
    return max(fitting, key=lambda gpu: (gpu.multiprocessors, gpu.bandwidth))


def gpu_like(title: str, arch: Arch, multiprocessors: int, bandwidth: float | None = None) -> Gpu:
    """Return the figures of a device: those of the table where the device is in it, or scaled from one of its target.

    `title` is the driver's name for it. A device is in the table where that names the GPU and it has as many
    multiprocessors; of another one the rates are those of `gpu_of(arch)` for each multiprocessor. `bandwidth`, in bytes
    a second, is the device's own as far as the driver tells it: a model with other memory is another GPU.

    >>> gpu_like("NVIDIA A100-SXM4-80GB", ARCHES["sm_80"], 108, 2039e9) is GPUS["A100"]
    True
    >>> half = gpu_like("NVIDIA A100-SXM4-40GB MIG 4g.20gb", ARCHES["sm_80"], 54, 1555e9)
    >>> half.bandwidth, half.rates["float32"] / GPUS["A100"].rates["float32"]
    (1555000000000.0, 0.5)
    """
    words = re.split(r"[^a-z0-9]+", title.lower())
    named = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    for gpu in _TABLE:
        is_named = _joined(gpu.name) in named and gpu.arch.capability == arch.capability
        if is_named and gpu.multiprocessors == multiprocessors and _is_near(bandwidth, gpu.bandwidth):
            return gpu
    model = gpu_of(arch)
    share = multiprocessors / model.multiprocessors
    return replace(
        model,
        name=title,
        title=title,
        arch=arch,
        multiprocessors=multiprocessors,
        bandwidth=bandwidth or model.bandwidth * share,
        rates={unit: rate * share for unit, rate in model.rates.items()},
        source=f"scaled from {model.title}",
        copy_bandwidth=None,
    )


def _joined(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _is_near(told: float | None, known: float) -> bool:
    """Say whether the driver tells the memory of the data sheet, which rounds, and names lower clocks for some."""
    return not told or abs(told / known - 1) < 0.1
