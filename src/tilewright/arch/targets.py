"""Compilation targets: what a compute capability offers, as far as code generation and launches need to know.

The figures are those of the CUDA programming guide's table "technical specifications per compute capability". For
gfx908 (MI100), gfx90a (MI200) and gfx942 (MI300) they are those of AMD's CDNA white papers and instruction set
manuals, in whose words a multiprocessor is a compute unit, a block a work-group and a warp a wavefront.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.errors import ArgumentError

VECTOR_BYTES = 16  # the widest access of one thread (PTX ld and st .v4.b32, cp.async)

# What a launch may have on every target: blocks of a grid and threads of a block along x, y and z, and threads in all
# (CUDA programming guide, "technical specifications per compute capability").
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024

_KIB = 1024


@dataclass(frozen=True)
class Arch:
    """One compilation target, such as sm_80 or sm_90a.

    `shared_bytes` is what a block may use of shared memory without asking, `shared_bytes_optin` what it
    may use after raising the kernel's limit. A name that ends in "a" allows instructions that only this
    very architecture has, and its machine code runs on no other.

    Registers are allocated to whole warps, `register_unit` at a time, from the multiprocessor's `partitions`; shared
    memory is allocated to blocks, `shared_unit` bytes at a time, with `shared_bytes_reserved` for the system.
    `issued_per_clock` are the instructions of warps, `fma_per_clock` the float32 multiply-adds that a multiprocessor
    does in a clock; `matrix_flops_per_clock` are those of its tensor cores by element type, dense, as far as they were
    compared with measurements.

    >>> Arch.parse("sm_90a").is_specific, Arch.parse("sm_90").is_specific, Arch.parse(80).shared_bytes_optin
    (True, False, 166912)
    """

    name: str
    capability: tuple[int, int]
    shared_bytes_optin: int
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_bytes: int = 48 * _KIB
    registers_per_multiprocessor: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = MAX_THREADS
    warp_size: int = 32
    partitions: int = 4
    register_unit: int = 256
    shared_unit: int = 128
    shared_bytes_reserved: int = _KIB
    issued_per_clock: int = 4
    fma_per_clock: int = 128
    matrix_flops_per_clock: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    vendor: str = "nvidia"  # or "amd", whose compute capability counts as 0.0: none of the features below are theirs

    @staticmethod
    def parse(spec: Arch | str | int | tuple[int, int]) -> Arch:
        """Return the architecture that `spec` names: "sm_90a", "90a", 90, (9, 0), "gfx90a", or an Arch itself.

        Raises `ArgumentError`, which is a `ValueError`, when there is none of that name.
        """
        if isinstance(spec, Arch):
            return spec
        name = str(spec)
        if isinstance(spec, tuple):
            name = "".join(str(part) for part in spec) if [type(part) for part in spec] == [int, int] else ""
        match = re.fullmatch(r"(?:sm_)?([0-9]+)(a?)", name)
        found = ARCHES.get(f"sm_{match[1]}{match[2]}" if match else name)
        if found is None:
            given = repr(spec)
            given = ascii(given)[1:-1] if not given.isprintable() else given
            given = given if len(given) <= 80 else f"{given[:77]}..."
            raise ArgumentError(f"no architecture is called {given}; there are {', '.join(ARCHES)}")
        return found

    @staticmethod
    def of_device(capability: tuple[int, int]) -> Arch:
        """Return the best target for a device of this compute capability.

        That is the architecture-specific variant where there is one (sm_90a on an H100). A device newer
        than this table takes the newest entry of its own generation, whose machine code it runs.

        >>> Arch.of_device((9, 0)).name, Arch.of_device((8, 6)).name
        ('sm_90a', 'sm_86')
        """
        major, minor = capability
        fitting = [
            arch
            for arch in ARCHES.values()
            if arch.capability == capability
            or (arch.capability[0] == major and arch.capability[1] < minor and not arch.is_specific)
        ]
        if not fitting:
            raise ValueError(f"compute capability {major}.{minor} is not supported; the least is 7.0")
        return max(fitting, key=lambda arch: (arch.capability, arch.name))

    @property
    def number(self) -> int:
        """The compute capability as one number, as in __CUDA_ARCH__ / 10: 90 for sm_90a."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def is_specific(self) -> bool:
        """True where the machine code runs on this architecture alone."""
        return self.name.endswith("a") and not self.is_amd

    @property
    def is_amd(self) -> bool:
        """True of AMD's CDNA targets, whose waves have 64 lanes and whose matrix instructions are MFMA."""
        return self.vendor == "amd"

    def has_instructions_of(self, first: Arch) -> bool:
        """Return whether the target has the matrix instructions that came with another target of the same vendor.

        >>> Arch.parse("gfx90a").has_instructions_of(Arch.parse("gfx908"))
        True
        >>> Arch.parse("sm_90a").has_instructions_of(Arch.parse("gfx908"))
        False
        """
        if self.vendor != first.vendor:
            return False
        return self.name >= first.name if self.is_amd else self.number >= first.number

    @property
    def warps_per_multiprocessor(self) -> int:
        return self.threads_per_multiprocessor // self.warp_size

    def warps_of(self, threads: int) -> int:
        """Return the warps of a block of so many threads, the last one perhaps in part."""
        return -(-threads // self.warp_size)

    @property
    def has_ldmatrix(self) -> bool:
        return self.number >= 75

    @property
    def has_cp_async(self) -> bool:
        return self.number >= 80

    @property
    def has_bfloat16(self) -> bool:
        """Arithmetic on bfloat16; storage and conversion work everywhere."""
        return self.number >= 80

    @property
    def float8(self) -> tuple[str, ...]:
        """The names of the 8-bit floats that the target has conversions of.

        >>> Arch.parse("sm_90").float8, Arch.parse("gfx942").float8
        (('float8_e4m3fn', 'float8_e5m2'), ('float8_e4m3fnuz', 'float8_e5m2fnuz'))
        """
        if self.is_amd:  # CDNA3 ISA, "V_CVT_PK_FP8_F32" and its like
            return ("float8_e4m3fnuz", "float8_e5m2fnuz") if self.name == "gfx942" else ()
        return ("float8_e4m3fn", "float8_e5m2") if self.number >= 89 else ()  # PTX ISA, "cvt": .e4m3x2 and .e5m2x2

    @property
    def has_mbarrier(self) -> bool:
        return self.number >= 80

    @property
    def has_clusters(self) -> bool:
        return self.number >= 90 and not self.is_amd

    def __str__(self) -> str:
        return self.name


# Dense operations of tensor cores in a clock (NVIDIA's A100 and H100 architecture white papers).
_MATRIX_FLOPS = {
    "sm_80": {"float16": 2048, "bfloat16": 2048, "tfloat32": 1024, "int8": 4096, "float64": 128},
    "sm_90": {"float16": 4096, "bfloat16": 4096, "tfloat32": 2048, "int8": 8192, "float64": 256},
}


def _table() -> dict[str, Arch]:
    rows = (
        # name, KiB of shared memory: per block (opt-in), per SM; per SM: threads, blocks, float32 FMAs in a clock
        ("sm_70", 96, 96, 2048, 32, 64),
        ("sm_75", 64, 64, 1024, 16, 64),
        ("sm_80", 163, 164, 2048, 32, 64),
        ("sm_86", 99, 100, 1536, 16, 128),
        ("sm_87", 163, 164, 1536, 16, 128),
        ("sm_89", 99, 100, 1536, 24, 128),
        ("sm_90", 227, 228, 2048, 32, 128),
        ("sm_90a", 227, 228, 2048, 32, 128),
        ("sm_100", 227, 228, 2048, 32, 128),
        ("sm_120", 99, 100, 1536, 24, 128),
    )
    arches = {}
    for name, optin, shared, threads, blocks, fma in rows:
        family = name.rstrip("a")
        number = int(family.removeprefix("sm_"))
        arches[name] = Arch(
            name,
            divmod(number, 10),
            optin * _KIB,
            shared * _KIB,
            threads,
            blocks,
            # From sm_80 on the system takes 1 KiB of each block's shared memory (CUDA occupancy calculator).
            shared_unit=128 if number >= 80 else 256,
            shared_bytes_reserved=_KIB if number >= 80 else 0,
            fma_per_clock=fma,
            matrix_flops_per_clock=_MATRIX_FLOPS.get(family, {}),
        )
    # threads of a compute unit; registers of each lane that are allocated together; float32 multiply-adds in a clock
    for name, threads, registers, fma in (("gfx908", 2560, 4, 64), ("gfx90a", 2048, 8, 64), ("gfx942", 2048, 8, 128)):
        arches[name] = Arch(
            name,
            (0, 0),
            shared_bytes_optin=64 * _KIB,
            shared_bytes_per_multiprocessor=64 * _KIB,
            threads_per_multiprocessor=threads,
            blocks_per_multiprocessor=32,
            shared_bytes=64 * _KIB,
            registers_per_multiprocessor=4 * 512 * 64,  # four SIMDs: 256 vector and 256 accumulation registers a lane
            registers_per_thread=512,
            warp_size=64,
            register_unit=registers * 64,  # so many registers of each lane
            shared_unit=512,
            shared_bytes_reserved=0,
            issued_per_clock=1,  # each of the four SIMDs works on an instruction of a wavefront for four clocks
            fma_per_clock=fma,
            vendor="amd",
        )
    return arches


ARCHES: dict[str, Arch] = _table()


def missing_float8(name: str, arch: Arch) -> tuple[str, str]:
    """Return what to say of an 8-bit float that a target has no conversions of, and what to do instead."""
    first = "gfx942" if name.endswith("fnuz") else "sm_89 or later"
    advice = "copying them works everywhere; convert on the host, or keep the data in float16"
    if arch.float8:
        advice = f"the 8-bit floats of {arch} are tw.{' and tw.'.join(arch.float8)}; {advice}"
    return f"arithmetic and conversion of {name} need {first}, and the target is {arch}", advice


def default_arch() -> Arch:
    """Return the target of code generation where no GPU is present and none was named."""
    return ARCHES["sm_90a"]
