"""The matrix instructions of AMD's CDNA GPUs (MFMA), which a wave of 64 lanes computes, on gfx908 and gfx90a.

Names are as CuTe would give them. `GFX908_16x16x4_F32F32F32F32_MFMA` has M x N x K = 16 x 16 x 4 and takes D, A, B and
C of these types. With R = M = N (16 or 32) and v elements of A in a lane, neighbours along K:

    A, B   lane l, element j:  row l % R,  k = v * (l / R) + j                            K = v * 64 / R
    C, D   R = 16, value i:    column l % 16,  row 4 * (l / 16) + i
           R = 32, value i:    column l % 32,  row 8 * (i / 4) + 4 * (l / 32) + i % 4

Instructions of n = 64 / R blocks hold n small tiles side by side, with lane l in row l of A and l of B. With CBSZ =
log2 n one of A's blocks, number ABID, stands for all of them: the instruction multiplies R rows of A by all 64 of B.
`GFX908_64x64x1_F32F32F32F32_MFMA_B4_2` is that for block 2 of 4, computing rows 32 to 47 of a 64 x 64 tile; the atoms
`_B4_0` to `_B4_3` together compute the tile. They take the same fragments of A and of B; each has a C of its own:

    C, D   value i:  column R * (i / w) + l % R,  row R * ABID + the row above of value i % w     w = R * R / 64

There is no atom for n products of separate blocks, which is not one matrix product.

Source: AMD, "Instinct MI100 (CDNA1) instruction set architecture", "Matrix arithmetic instructions": layouts, CBSZ and
ABID. The builtins are LLVM's (BuiltinsAMDGPU.def).
"""

from __future__ import annotations

import re
from functools import cache

from tilewright import dtypes as t
from tilewright.atoms.arithmetic import multiply_add_in_order
from tilewright.atoms.mma import MMAAtom
from tilewright.layout import Layout

LANES = 64
# What a name calls the types, their element types, the builtin's words for them, and the elements of A in a lane.
_TYPES: dict[str, tuple[t.DType, t.DType, str, str, int]] = {
    "F32F32F32F32": (t.float32, t.float32, "f32", "f32", 1),
    "F32F16F16F32": (t.float32, t.float16, "f32", "f16", 4),
    "F32BF16BF16F32": (t.float32, t.bfloat16, "f32", "bf16", 2),
    "S32S8S8S32": (t.int32, t.int8, "i32", "i8", 4),
}


def _listed() -> tuple[str, ...]:
    names = []
    for types, (*_, values) in _TYPES.items():
        for rows in (16, 32):
            names.append(f"GFX908_{rows}x{rows}x{values * LANES // rows}_{types}_MFMA")
        for blocks in (2, 4):
            names += [f"GFX908_64x64x{values}_{types}_MFMA_B{blocks}_{i}" for i in range(blocks)]
    return tuple(names)


NAMES = _listed()
_NAME = re.compile(r"GFX908_(\d+)x\d+x(\d+)_([A-Z0-9]+)_MFMA(?:_B(\d)_(\d))?")


def mfma_names(m: int, n: int, k: int, types: str, blocks: int) -> tuple[str, ...]:
    """Return the names of the atoms that compute M x N x K in so many blocks, one each; none where there are none.

    >>> mfma_names(64, 64, 1, "F32F32F32F32", 2)
    ('GFX908_64x64x1_F32F32F32F32_MFMA_B2_0', 'GFX908_64x64x1_F32F32F32F32_MFMA_B2_1')
    """
    name = f"GFX908_{m}x{n}x{k}_{types}_MFMA"
    names = (name,) if blocks == 1 else tuple(f"{name}_B{blocks}_{block}" for block in range(blocks))
    return names if all(each in NAMES for each in names) else ()


@cache
def mfma(name: str) -> MMAAtom:
    """Return the atom of a name in `NAMES`.

    >>> atom = mfma("GFX908_16x16x4_F32F32F32F32_MFMA")
    >>> atom.instruction, str(atom.layout_a), str(atom.layout_c)
    ('__builtin_amdgcn_mfma_f32_16x16x4f32', '((16,4),1):((1,16),16)', '((16,4),4):((16,4),1)')
    >>> block = mfma("GFX908_64x64x1_F32F32F32F32_MFMA_B4_2")
    >>> block.instruction, block.modifiers, block.first_row, block.rows
    ('__builtin_amdgcn_mfma_f32_16x16x1f32', (2, 2, 0), 32, 16)
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    extent, k, types = int(match[1]), int(match[2]), match[3]
    d, a, of_d, of_a, values = _TYPES[types]
    blocks, block = (int(match[4]), int(match[5])) if match[4] else (1, 0)
    rows = extent // blocks
    operand = Layout(((rows, LANES // rows), values), ((1, rows * (values if blocks == 1 else 1)), extent))
    modifiers = (blocks.bit_length() - 1, block, 0)
    return MMAAtom(
        name, "gfx908", (extent, extent, k), d, a, a, d, Layout(LANES), operand, operand,
        _accumulator(rows, blocks), f"__builtin_amdgcn_mfma_{of_d}_{rows}x{rows}x{k}{of_a}", multiply_add_in_order,
        modifiers=modifiers, block=(block, blocks),
    )  # fmt: skip


def _accumulator(rows: int, blocks: int) -> Layout:
    """Return the layout of C: (lane, value) to elements of a column-major tile of rows * blocks by as many."""
    extent = rows * blocks
    shape, stride = [4], [1]
    if rows == 32:
        shape, stride = [4, 4], [1, 8]
    if blocks > 1:
        shape, stride = [*shape, blocks], [*stride, rows * extent]
    values = (shape[0], stride[0]) if len(shape) == 1 else (tuple(shape), tuple(stride))
    return Layout(((rows, LANES // rows), values[0]), ((extent, 4), values[1]))
