"""The warp-level matrix instructions of sm_70 to sm_90 (mma.sync), under CuTe's names.

A name says all: `SM80_16x8x8_F32TF32TF32F32_TN` is from sm_80 on, has M x N x K = 16 x 8 x 8, takes D, A, B and C of
these types, A row-major (T: K contiguous) and B column-major (N: K contiguous). So the table is a list of names,
and an atom is made of its name when it is first asked for.

Source: PTX ISA, "mma"; CUTLASS, include/cute/arch/mma_sm70.hpp to mma_sm90.hpp. CuTe's complex types (C64) are no
instructions but four of float64 each, and are not here.
"""

from __future__ import annotations

import re
from functools import cache

from tilewright import dtypes as t
from tilewright.atoms import fragments
from tilewright.atoms.arithmetic import count_and, count_xor, multiply_add_saturating, multiply_add_tf32
from tilewright.atoms.mma import MMAAtom
from tilewright.layout import Layout

# CuTe's abbreviation of a type, its PTX name and the element type.
_TYPES: dict[str, tuple[str, t.DType]] = {
    "F16": ("f16", t.float16),
    "BF16": ("bf16", t.bfloat16),
    "TF32": ("tf32", t.tfloat32),
    "F32": ("f32", t.float32),
    "F64": ("f64", t.float64),
    "E4M3": ("e4m3", t.float8_e4m3fn),
    "E5M2": ("e5m2", t.float8_e5m2),
    "S32": ("s32", t.int32),
    "S8": ("s8", t.int8),
    "U8": ("u8", t.uint8),
    "S4": ("s4", t.int4),
    "U4": ("u4", t.uint4),
    "U1": ("b1", t.uint1),
}


def _listed() -> tuple[str, ...]:
    """Return all names in the order of architectures."""
    names = [f"SM70_8x8x4_{types}_{majors}" for types in ("F16F16F16F16", "F32F16F16F32") for majors in _MAJORS_SM70]
    names += ["SM75_16x8x8_F32F16F16F32_TN", "SM75_16x8x8_F16F16F16F16_TN"]
    names += ["SM75_8x8x16_S32S8S8S32_TN", "SM75_8x8x16_S32U8U8S32_TN"]
    for shape in ("16x8x8", "16x8x16"):
        names += [f"SM80_{shape}_{types}_TN" for types in ("F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32")]
    names += [f"SM80_{shape}_F32TF32TF32F32_TN" for shape in ("16x8x4", "16x8x8")]
    names += ["SM80_8x8x4_F64F64F64F64_TN"]
    for bits, shapes in ((8, ("8x8x16", "16x8x16", "16x8x32")), (4, ("8x8x32", "16x8x32", "16x8x64"))):
        for a in "SU":
            for b in "SU":
                for shape in shapes:
                    name = f"SM80_{shape}_S32{a}{bits}{b}{bits}S32_TN"
                    names += [name, f"{name}_SATURATE"]
    for operation in ("XORPOPC", "ANDPOPC"):
        names += [f"SM80_{shape}_S32U1U1S32_TN_{operation}" for shape in ("8x8x128", "16x8x128", "16x8x256")]
    for d in ("F32", "F16"):
        names += [f"SM89_16x8x32_{d}{a}{b}{d}_TN" for a in ("E4M3", "E5M2") for b in ("E4M3", "E5M2")]
    names += [f"SM90_{shape}_F64F64F64F64_TN" for shape in ("16x8x4", "16x8x8", "16x8x16")]
    return tuple(names)


_MAJORS_SM70 = ("TN", "NT", "NN", "TT")
NAMES = _listed()


_NAME = re.compile(r"SM(\d+)_(\d+)x(\d+)x(\d+)_(\w+?)_([TN])([TN])(?:_(\w+))?")
_TYPE = re.compile("|".join(sorted(_TYPES, key=len, reverse=True)))
# PTX's words for the major of A and of B, and what the end of a name adds to the instruction and to its meaning.
_ORDER = ({"T": "row", "N": "col"}, {"N": "col", "T": "row"})
_VARIANTS = {
    "SATURATE": (".satfinite", multiply_add_saturating),
    "ANDPOPC": (".and.popc", count_and),
    "XORPOPC": (".xor.popc", count_xor),
}


@cache
def warp_mma(name: str) -> MMAAtom:
    """Return the atom of a name in `NAMES`.

    >>> atom = warp_mma("SM80_16x8x8_F32TF32TF32F32_TN")
    >>> atom.instruction, str(atom.layout_a)
    ('mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32', '((4,8),(2,2)):((16,1),(8,64))')
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    arch, m, n, k = (int(match[i]) for i in range(1, 5))
    types = [_TYPES[found] for found in _TYPE.findall(match[5])]
    d, a, b, c = (dtype for _, dtype in types)
    a_major, b_major, variant = match[6], match[7], match[8]
    suffix, arithmetic = _VARIANTS[variant] if variant else ("", multiply_add_tf32 if a is t.tfloat32 else None)
    majors = f"{_ORDER[0][a_major]}.{_ORDER[1][b_major]}"
    ptx = ".".join(ptx_type for ptx_type, _ in types)
    instruction = f"mma.sync.aligned.m{m}n{n}k{k}.{majors}.{ptx}{suffix}"
    if arch == 70:
        return MMAAtom(
            name, "sm_70", (m, n, k), d, a, b, c, fragments.QUAD_PAIR,
            fragments.QUAD_PAIR_ROW if a_major == "T" else fragments.QUAD_PAIR_COLUMN,
            fragments.QUAD_PAIR_ROW if b_major == "N" else fragments.QUAD_PAIR_COLUMN,
            fragments.QUAD_PAIR_F32 if d is t.float32 else fragments.QUAD_PAIR_F16, instruction,
        )  # fmt: skip
    return MMAAtom(
        name, f"sm_{arch}", (m, n, k), d, a, b, c, Layout(fragments.WARP),
        fragments.operand(m, k, a.bits), fragments.operand(n, k, b.bits), fragments.accumulator(m),
        instruction, arithmetic,
    )  # fmt: skip
