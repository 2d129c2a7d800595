"""How one warp, or warpgroup, computes an MMA shape on a target: which instructions, laid out how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilewright import atoms
from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.atoms.mma import OperandPlace
from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.instructions.mfma import mfma_names
from tilewright.instructions.sparse_wgmma import NAMES as SPARSE_NAMES
from tilewright.instructions.warpgroup_atoms import NAMES
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.tiled import TiledMMA, make_tiled_mma

_CUBES = (MMAShape.M16N16K16, MMAShape.M32N8K16, MMAShape.M8N32K16)
_QUAD_PAIRS = {MMAShape.M16N16K16: (2, 2, 1), MMAShape.M32N8K16: (4, 1, 1), MMAShape.M8N32K16: (1, 4, 1)}
Factors = DType | tuple[DType, DType]  # the type of A and B, or that of A and that of B
# The words of atoms for D, A, B and C, by the types of A, of B and of the accumulator.
_TYPES: dict[tuple[DType, DType, DType], str] = {
    (t.float16, t.float16, t.float32): "F32F16F16F32",
    (t.float16, t.float16, t.float16): "F16F16F16F16",
    (t.bfloat16, t.bfloat16, t.float32): "F32BF16BF16F32",
    (t.tfloat32, t.tfloat32, t.float32): "F32TF32TF32F32",
    (t.float32, t.float32, t.float32): "F32F32F32F32",
    (t.float64, t.float64, t.float64): "F64F64F64F64",
    (t.int8, t.int8, t.int32): "S32S8S8S32",
    (t.uint8, t.uint8, t.int32): "S32U8U8S32",
    (t.float8_e4m3fnuz, t.float8_e4m3fnuz, t.float32): "F32FP8FP8F32",
    (t.float8_e4m3fnuz, t.float8_e5m2fnuz, t.float32): "F32FP8BF8F32",
    (t.float8_e5m2fnuz, t.float8_e4m3fnuz, t.float32): "F32BF8FP8F32",
    (t.float8_e5m2fnuz, t.float8_e5m2fnuz, t.float32): "F32BF8BF8F32",
}
_WGMMAS, _SPARSE = frozenset(NAMES), frozenset(SPARSE_NAMES)
OF_SPARSE = (
    "a sparse A has half of its elements, at places along K that metadata says, and a nest says of each element which "
    "one it reads: write the product in a kernel, tw.gemm(mma, a, b, c, metadata=fragment) with the atom"
)
_FP8 = {t.float8_e4m3fn: "E4M3", t.float8_e5m2: "E5M2"}
_BYTES = {t.int8: "S8", t.uint8: "U8"}
# The words of a warpgroup's atoms, and K, by the types of A, of B and of the accumulator.
_WARPGROUP_TYPES: dict[tuple[DType, DType, DType], tuple[str, int]] = {
    (t.float16, t.float16, t.float32): ("F32F16F16_SS", 16),
    (t.float16, t.float16, t.float16): ("F16F16F16_SS", 16),
    (t.bfloat16, t.bfloat16, t.float32): ("F32BF16BF16_SS", 16),
    (t.tfloat32, t.tfloat32, t.float32): ("F32TF32TF32_SS_TN", 8),
    **{
        (a, b, t.float32): (f"F32{_FP8[a]}{_FP8[b]}_SS_TN", 32)
        for a in (t.float8_e4m3fn, t.float8_e5m2)
        for b in (t.float8_e4m3fn, t.float8_e5m2)
    },
    **{(a, b, t.int32): (f"S32{_BYTES[a]}{_BYTES[b]}_SS_TN", 32) for a in (t.int8, t.uint8) for b in (t.int8, t.uint8)},
}
_ALL_TYPES = tuple(dict.fromkeys((*_TYPES, *_WARPGROUP_TYPES)))


@dataclass(frozen=True)
class Recipe:
    """The instructions of one warp, or of a warpgroup, for one pass of a shape.

    `mmas` has one TiledMMA for each block: all take the same tiles, and each adds to elements of C of its own.
    Where `transposed`, they compute the transpose: their tiles are (n, k) of our B, (m, k) of our A and (n, m) of C.
    """

    shape: MMAShape
    mmas: tuple[TiledMMA, ...]
    transposed: bool

    @property
    def is_of_warpgroup(self) -> bool:
        """Whether four warps compute it together."""
        return self.shape.is_of_warpgroup

    @property
    def has_a_in_registers(self) -> bool:
        """Whether A is passed in registers, as all of a warp's operands are, and not read from shared memory."""
        return self.mmas[0].atom.a_place is OperandPlace.REGISTERS

    @property
    def dtype_a(self) -> DType:
        return self.mmas[0].atom.dtype_a

    @property
    def dtype_b(self) -> DType:
        return self.mmas[0].atom.dtype_b

    @property
    def dtype_c(self) -> DType:
        return self.mmas[0].atom.dtype_c


def recipe_for(
    arch: Arch,
    mma_shape: MMAShape,
    input_type: Factors,
    accumulator_type: DType,
    *,
    a_in_registers: bool = False,
) -> Recipe:
    """Return how a warp of the target computes a shape; float32 may be rounded to tf32.

    `input_type` is that of A and B, or (that of A, that of B). float32 is rounded on NVIDIA's targets, and for the
    shapes of gfx942 that multiply it so. `a_in_registers`: a warpgroup takes A from there.

    Raises `ScheduleError` where the target has no such instructions, with the shapes that it has for the types.

    >>> recipe_for(Arch.parse("sm_80"), MMAShape.M8N32K16, t.float16, t.float32).transposed
    True
    """
    recipe = find_recipe(arch, mma_shape, input_type, accumulator_type, a_in_registers)
    if recipe is None:
        factors = _spoken(*factors_of(input_type))
        sparse = _sparse_atom(arch, mma_shape, input_type, accumulator_type)
        raise ScheduleError(
            f"{arch.name} has no {mma_shape.name} of {factors} with {accumulator_type} accumulators"
            + (f"; {sparse} has these extents, and takes a sparse A" if sparse else ""),
            help=(f"{OF_SPARSE}; " if sparse else "") + offers(arch),
        )
    return recipe


def _sparse_atom(arch: Arch, shape: MMAShape, input_type: Factors, accumulator_type: DType) -> str | None:
    """Return the atom of a sparse product that has the extents of a shape, None where there is none."""
    a, b = (t.tfloat32 if x is t.float32 else x for x in factors_of(input_type))
    words, _ = _WARPGROUP_TYPES.get((a, b, accumulator_type), ("", 0))
    name = f"GMMA_64x{shape.n}x{shape.k}_{words}"
    return name if shape.is_of_warpgroup and name in _SPARSE and getattr(atoms, name).runs_on(arch) else None


def shapes_for(arch: Arch, input_type: Factors, accumulator_type: DType) -> tuple[MMAShape, ...]:
    """Return the shapes that a target has for the types.

    >>> [shape.name for shape in shapes_for(Arch.parse("gfx908"), t.bfloat16, t.float32)]
    ['M16N16K8', 'M32N32K4_B1', 'M64N64K2_B2', 'M64N64K2_B4']
    """
    return tuple(shape for shape in MMAShape if find_recipe(arch, shape, input_type, accumulator_type) is not None)


@lru_cache(maxsize=64)
def offers(arch: Arch) -> str:
    """Return the shapes that a target has, by types, as a sentence."""
    return f"{arch.name} has {'; '.join(_offered(arch))}"


@lru_cache(maxsize=512)
def has_shape(arch: Arch, shape: MMAShape) -> bool:
    """Return whether a target has a shape for any types."""
    return any(find_recipe(arch, shape, (a, b), sums) is not None for a, b, sums in _ALL_TYPES)


def _offered(arch: Arch) -> Iterator[str]:
    for a, b, accumulator in _ALL_TYPES:
        shapes = shapes_for(arch, (a, b), accumulator)
        names = [shape.name for shape in shapes if not shape.is_of_warpgroup]
        wide = [shape for shape in shapes if shape.is_of_warpgroup]
        if wide:
            ns = [shape.n for shape in wide]
            steps = "8" if ns[-1] - ns[-2] == 8 else "8, above 32 of 16"
            names.append(f"{wide[0].name} to {wide[-1].name} in steps of {steps}")
        if names:
            yield f"{', '.join(names)} of {_spoken(a, b)} with {accumulator} accumulators"


def factors_of(input_type: Factors) -> tuple[DType, DType]:
    """Return the types of A and of B."""
    return (input_type, input_type) if isinstance(input_type, DType) else input_type


def _spoken(a: DType, b: DType) -> str:
    return str(a) if a is b else f"{a} and {b}"


def accumulator_for(input_type: Factors, output_type: DType) -> DType:
    """Return the type of accumulators, whatever C is in: float32 for floats of 32 bits and fewer, int32 for integers.

    Sums of integers wrap, in int32 as in fewer bits: C is the same whether it wraps at once or when it is stored.

    >>> accumulator_for(t.float16, t.bfloat16), accumulator_for(t.int8, t.int16)
    (tw.float32, tw.int32)
    """
    a, b = factors_of(input_type)
    if a.is_float and b.is_float and output_type.is_float and output_type is not t.float64:
        return t.float32
    if {a, b} <= {t.int8, t.uint8} and is_narrow(output_type):
        return t.int32
    return output_type


def is_narrow(dtype: DType) -> bool:
    """Return whether integers of a type fit into the bits of an int32 accumulator."""
    return dtype in (t.int8, t.uint8, t.int16, t.uint16, t.int32, t.uint32)


@lru_cache(maxsize=1 << 14)  # what a refusal lists: all shapes, for all types of a target
def find_recipe(
    arch: Arch, shape: MMAShape, input_type: Factors, accumulator_type: DType, a_in_registers: bool = False
) -> Recipe | None:
    """Return how a warp of the target computes a shape, or None where it cannot.

    `a_in_registers` matters to warpgroups, which otherwise read A from shared memory.
    """
    a, b = factors_of(input_type)
    if a is b is t.float32 and not arch.is_amd:
        a = b = t.tfloat32
    if shape.is_of_warpgroup:
        return _of_warpgroup(arch, shape, (a, b, accumulator_type), a_in_registers)
    types = _TYPES.get((a, b, accumulator_type))
    if types is None:
        return None
    if not arch.is_amd:
        return None if a in t.FLOAT8_AMD else _of_nvidia(arch, shape, types, a)
    found = _of_amd(arch, shape, types)
    if found is None and a is b is t.float32:  # the shapes of gfx942 that multiply its upper bits
        found = _of_amd(arch, shape, _TYPES[t.tfloat32, t.tfloat32, accumulator_type])
    return found


def _of_nvidia(arch: Arch, shape: MMAShape, types: str, input_type: DType) -> Recipe | None:
    tf32 = input_type == t.tfloat32
    if shape not in ((MMAShape.M16N16K8,) if tf32 else _CUBES) or input_type in (t.float32, t.float64):
        return None
    extents = (shape.m, shape.n, shape.k)
    if arch.number >= 80:
        transposed = shape is MMAShape.M8N32K16
        if transposed:
            extents = (shape.n, shape.m, shape.k)
        # Two atoms side by side in a tile of 16 x 16: what an ldmatrix of four matrices of 16-bit elements fills.
        return Recipe(shape, (_tiled(f"SM80_16x8x{shape.k}_{types}_TN", (1, 1, 1), extents),), transposed)
    if arch.number >= 75 and input_type == t.float16:
        transposed = shape is MMAShape.M8N32K16
        if transposed:
            extents = (shape.n, shape.m, shape.k)
        return Recipe(shape, (_tiled(f"SM75_16x8x8_{types}_TN", (1, 1, 1), extents),), transposed)
    if arch.number >= 75 and input_type in (t.int8, t.uint8):
        return Recipe(shape, (_tiled(f"SM75_8x8x16_{types}_TN", (1, 1, 1), extents),), False)
    if arch.number < 75 and input_type == t.float16:
        return Recipe(shape, (_tiled(f"SM70_8x8x4_{types}_TN", _QUAD_PAIRS[shape], extents),), False)
    return None


def _of_warpgroup(
    arch: Arch, shape: MMAShape, types: tuple[DType, DType, DType], a_in_registers: bool
) -> Recipe | None:
    words, k = _WARPGROUP_TYPES.get(types, ("", 0))
    words = words.replace("_SS", "_RS") if a_in_registers else words
    name = f"SM90_64x{shape.n}x{k}_{words}"
    if k != shape.k or name not in _WGMMAS or not getattr(atoms, name).runs_on(arch):
        return None
    return Recipe(shape, (_tiled(name, (1, 1, 1), None),), False)


def _of_amd(arch: Arch, shape: MMAShape, types: str) -> Recipe | None:
    names = mfma_names(arch, shape.m, shape.n, shape.k, types, shape.num_blocks)
    return Recipe(shape, tuple(_tiled(name, (1, 1, 1), None) for name in names), False) if names else None


def _tiled(name: str, layout: tuple[int, int, int], extents: tuple[int, int, int] | None) -> TiledMMA:
    atom = getattr(atoms, name)
    return make_tiled_mma(atom, layout) if extents is None else make_tiled_mma(atom, layout, extents)
