"""Make the pictures of the documentation: `python docs/make_pictures.py` writes docs/pictures/*.svg.

They are the same bytes on every machine, and a test compares the committed files with what the code makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tilewright as tw
from tilewright.atoms import MMAAtom, UniversalCopy, UniversalFMA
from tilewright.draw import Drawing, banks, beside, picture, svg, tiling

FOLDER = Path(__file__).parent / "pictures"


def orders() -> Drawing:
    """Draw one shape under two strides."""
    return beside(
        picture(tw.Layout((4, 8)), title="column-major (4,8):(1,4)"),
        picture(tw.Layout((4, 8), (8, 1)), title="row-major (4,8):(8,1)"),
    )


def nested() -> Drawing:
    """Draw a layout whose modes are nested: 2 x 2 blocks, column-major inside and outside."""
    return picture(tw.Layout(((2, 2), (2, 4)), ((1, 4), (2, 8))))


def divide() -> Drawing:
    """Draw a matrix cut into tiles, before and after."""
    matrix = tw.row_major((4, 8))
    return beside(
        picture(matrix, title="(4,8):(8,1)"),
        picture(tw.zipped_divide(matrix, (2, 4)), title="zipped_divide by (2,4)"),
    )


def tile_and_partition() -> Drawing:
    """Draw a block's tile, and a thread's elements."""
    matrix = tw.row_major((8, 8))
    threads = tw.Layout((2, 4))
    return beside(
        tiling(matrix, lambda t: tw.local_tile(t, (4, 4), (1, 0))).titled("local_tile(t, (4,4), (1,0))"),
        tiling(matrix, lambda t: tw.local_partition(t, threads, 5)).titled("local_partition(t, (2,4):(1,2), 5)"),
    )


def products() -> Drawing:
    """Draw the two ways in which a block is repeated over a matrix."""
    block, grid = tw.Layout((2, 2)), tw.Layout((2, 3))
    return beside(
        picture(tw.blocked_product(block, grid), title="blocked_product"),
        picture(tw.raked_product(block, grid), title="raked_product"),
    )


def swizzle() -> Drawing:
    """Draw a swizzle of 8 x 8 elements."""
    return picture(tw.Swizzle(3, 0, 3))


def _columns_of_vectors(layout: object, title: str) -> Drawing:
    # Eight lanes, one of the four phases of a warp, read 16 bytes each: a column of eight vectors of eight float16.
    access = [(row, 16) for row in range(8)]
    return banks(layout, tw.float16, access, width=16, limit=(8, 32)).titled(title)


def conflict() -> Drawing:
    """Draw a column read from a row-major tile of 128-byte rows: all lanes meet in four banks."""
    return _columns_of_vectors(tw.row_major((8, 64)), "(8,64):(64,1) of float16")


def no_conflict() -> Drawing:
    """Draw the same read from the swizzled tile: the lanes spread over all banks."""
    layout = tw.composition(tw.Swizzle(3, 3, 3), tw.row_major((8, 64)))
    return _columns_of_vectors(layout, f"{layout} of float16")


def tiled_copy() -> Drawing:
    """Draw a copy of 32 threads with four float32 values each."""
    copy = tw.make_tiled_copy(UniversalCopy(128), tw.Layout((8, 4), (4, 1)), tw.Layout((1, 4)))
    return picture(copy, dtype=tw.float32)


def tiled_fma() -> Drawing:
    """Draw a matrix product of 16 threads with 2 x 2 values each."""
    return picture(tw.make_tiled_mma(UniversalFMA(tw.float32), tw.Layout((4, 4)), (8, 8, 2)))


def tensor_core() -> Drawing:
    """Draw which lane holds what in the tensor-core instruction of shape 16 x 8 x 16."""
    lanes = (4, 8)
    atom = MMAAtom(
        *("mma.m16n8k16", "sm_80", (16, 8, 16)),
        *(tw.float32, tw.float16, tw.float16, tw.float32),
        thr_id=tw.Layout(32),
        layout_a=tw.Layout((lanes, (2, 2, 2)), ((32, 1), (16, 8, 128))),
        layout_b=tw.Layout((lanes, (2, 2)), ((16, 1), (8, 64))),
        layout_c=tw.Layout((lanes, (2, 2)), ((32, 1), (16, 8))),
    )
    return picture(tw.make_tiled_mma(atom))


def tf32_atom() -> Drawing:
    """Draw which lane holds what in the TF32 instruction of shape 16 x 8 x 8."""
    return picture(tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN))


def quad_pair() -> Drawing:
    """Draw which lanes hold what in one quad pair's instruction of shape 8 x 8 x 4."""
    return picture(tw.atoms.SM70_8x8x4_F32F16F16F32_NT)


def ldmatrix() -> Drawing:
    """Draw who names and who gets the elements of A in an ldmatrix of four matrices."""
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN)
    return picture(tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma), dtype=tw.float16)


def sgemm_threads() -> Drawing:
    """Draw which thread computes which element of C: along columns, and along rows."""
    return beside(
        picture(tw.Layout((8, 8), (1, 8)), title="naive: neighbours along M"),
        picture(tw.Layout((8, 8), (8, 1)), title="coalesced: neighbours along N"),
    )


def sgemm_register_tiles() -> Drawing:
    """Draw a product of 4 x 4 threads with 2 x 2 neighbouring elements each, a small sibling of rung 5."""
    runs = tw.Layout((4, 2), (2, 1))
    return picture(tw.make_tiled_mma(UniversalFMA(tw.float32), tw.Layout((4, 4, 1), (4, 1, 0)), (runs, runs, None)))


def _eighth_floats(layout: object, title: str) -> Drawing:
    # Eight threads, served together, read 16 bytes at every eighth of 64 floats of B, folded at 32 banks.
    access = [(thread // 4, thread % 4 * 8) for thread in range(8)]
    return banks(layout, tw.float32, access, width=16).titled(title)


def sgemm_banks() -> Drawing:
    """Draw how rung 6 reads B: two threads meet in each bank that is asked."""
    return _eighth_floats(tw.row_major((2, 32)), "rung 6")


def sgemm_banks_swizzled() -> Drawing:
    """Draw how rung 7 reads B."""
    return _eighth_floats(tw.composition(tw.Swizzle(1, 2, 3), tw.row_major((2, 32))), "rung 7: Swizzle(1, 2, 3)")


def sgemm_banks_padded() -> Drawing:
    """Draw how rung 8 reads B."""
    return _eighth_floats(tw.Layout((2, 32), (36, 1)), "rung 8: 4 floats of padding behind 32")


def sgemm_warp_tile() -> Drawing:
    """Draw what the 32 lanes of one warp compute of 16 x 32 elements, in strips of 4 along N."""
    lanes = tw.Layout((4, 8, 1), (8, 1, 0))
    strips = tw.Layout((4, 1, 4, 1), (4, 16, 1, 16)), tw.Layout((8, 1, 4, 1), (4, 32, 1, 32))
    return picture(tw.make_tiled_mma(UniversalFMA(tw.float32), lanes, (*strips, None)))


def schedule_tile() -> Drawing:
    """Draw when the points of 8 x 10 loops are visited that were tiled by 4 x 5, before and after the reordering."""
    return beside(
        picture(tw.Layout(((4, 2), (5, 2)), ((10, 40), (1, 5))), title="tile({i: 4, j: 5}): for i, ii, j, jj"),
        picture(tw.Layout(((4, 2), (5, 2)), ((5, 40), (1, 20))), title="reorder(i, j, ii, jj): for i, j, ii, jj"),
    )


PICTURES: dict[str, Callable[[], Drawing]] = {
    "orders": orders,
    "nested": nested,
    "divide": divide,
    "tile_and_partition": tile_and_partition,
    "products": products,
    "swizzle": swizzle,
    "bank_conflict": conflict,
    "no_bank_conflict": no_conflict,
    "tiled_copy": tiled_copy,
    "tiled_fma": tiled_fma,
    "tensor_core": tensor_core,
    "tf32_atom": tf32_atom,
    "quad_pair": quad_pair,
    "ldmatrix": ldmatrix,
    "sgemm_threads": sgemm_threads,
    "sgemm_register_tiles": sgemm_register_tiles,
    "sgemm_banks": sgemm_banks,
    "sgemm_banks_swizzled": sgemm_banks_swizzled,
    "sgemm_banks_padded": sgemm_banks_padded,
    "sgemm_warp_tile": sgemm_warp_tile,
    "schedule_tile": schedule_tile,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(svg(draw()), encoding="utf-8", newline="\n")
        print(f"{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
