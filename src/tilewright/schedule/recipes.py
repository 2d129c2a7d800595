from dataclasses import dataclass
from typing import Any
from tilewright import atoms
from tilewright.tiled import make_tiled_mma
import tilewright as tw


@dataclass(frozen=True)
class Recipe:
    shape: Any
    mmas: tuple
    transposed: bool


def recipe_for(arch, shape, a, c):
    at = {"float16": atoms.SM80_16x8x16_F32F16F16F32_TN, "bfloat16": atoms.SM80_16x8x16_F32BF16BF16F32_TN}[str(a)]
    return Recipe(shape, (make_tiled_mma(at, (1, 1, 1), (16, 16, 16)),), False)
