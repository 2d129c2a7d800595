"""Generates kernels that multiply matrices: every instruction of a warp, over several warps, from where operands may lie.

Half of the kernels get small whole numbers, of which every sum on the way is exact: any order gives the same bits. The
others get numbers of up to one, and the bound is the instruction's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from tests.conformance.harness import Array
from tests.fuzz.expressions import name_of
from tests.fuzz.trial import Argument, Program

import tilewright as tw
from tilewright.atoms.mma import MMAAtom
from tilewright.instructions.mma import NAMES

FMA_TYPES = (tw.float32, tw.float64, tw.int32)
# The programs add to one fragment, which is both C and D.
IN_PLACE = tuple(name for name in NAMES if getattr(tw.atoms, name).layout_d is None)
LDMATRIX = ("SM80_16x8x16_F32F16F16F32_TN", "SM80_16x8x16_F32BF16BF16F32_TN", "SM80_16x8x16_F16F16F16F16_TN")


@dataclass(frozen=True)
class Product(Program):
    """D = A B^T + C. A and B may be passed transposed."""

    atom: MMAAtom
    transposed: tuple[bool, bool]

    def meaning(self) -> list[Array]:
        d, a, b, *rest = self.make_arguments()
        given = [a, b, *rest]
        a, b = (x.T if t else x for x, t in zip((a, b), self.transposed, strict=True))
        c = rest[0] if rest else np.zeros(d.shape, self.atom.dtype_c.numpy)
        if self.atom.elements is not None:  # words of narrow integers
            exact = self.atom.reference(a, b, c)
        elif self.atom.dtype_d.is_float:
            exact = a.astype(np.float64) @ b.astype(np.float64).T + c.astype(np.float64)
        else:
            exact = a.astype(np.int64) @ b.astype(np.int64).T + c
        return [exact.astype(self.atom.dtype_d.numpy).astype(d.dtype), *given]


def write_product(random: Random) -> Product:
    """Return a kernel, one block a tile of D."""
    by_ldmatrix = random.random() < 0.3
    name = random.choice(LDMATRIX) if by_ldmatrix else random.choice((*IN_PLACE, "fma", "fma", "fma"))
    if name == "fma":
        dtype = random.choice(FMA_TYPES)
        atom, written = tw.atoms.UniversalFMA(dtype), f"tw.atoms.UniversalFMA({name_of(dtype)})"
        places = random.choice(((8, 4), (4, 8), (8, 8), (16, 4)))
        permutations = None
    else:
        atom = getattr(tw.atoms, name).in_words()
        written = f"tw.atoms.{name}" + (".in_words()" if atom.elements is not None else "")
        places = (2, 2) if atom.threads == 8 or by_ldmatrix else random.choice(((1, 1), (2, 1), (1, 2), (2, 2)))
        m, n, k = atom.shape_mnk
        permutations = (32, 32, 16) if by_ldmatrix else random.choice((None, (places[0] * m, 2 * places[1] * n, k)))
    mma = tw.make_tiled_mma(atom, (*places, 1), permutations)
    repeats = [random.choice((1, 1, 2)) for _ in range(3)]
    tile = tuple(mma.tile_size(i) * repeats[i] for i in range(3))
    if name == "fma":
        tile = (tile[0], tile[1], 4 * tile[2])
    grid, steps = (random.choice((1, 2)), random.choice((1, 2))), random.choice((1, 2, 3))
    m, n, k = tile[0] * grid[0], tile[1] * grid[1], tile[2] * steps

    operand, other = atom.dtype_a.storage, atom.dtype_b.storage
    is_exact = random.random() < 0.5 or not operand.is_float
    content = "edges" if atom.elements is not None else "small" if is_exact else "unit"
    distance = 0.0
    if not is_exact:
        ones = np.ones((1, k))
        distance = float(atom.error_bound(ones, ones, np.ones((1, 1))).max())
    out = atom.dtype_d
    if out is tw.float32 and is_exact:
        out = random.choice((tw.float32, tw.float16, tw.bfloat16))
    has_c = random.random() < 0.5
    transposed = (random.random() < 0.3, random.random() < 0.3)
    is_static = random.random() < 0.3
    shapes = [(k, rows) if t else (rows, k) for rows, t in zip((m, n), transposed, strict=True)]
    arguments = [
        Argument("D", out, (m, n), "zeros", distance=distance, is_static=is_static),
        Argument("A", operand, shapes[0], content, is_static=is_static),
        Argument("B", other, shapes[1], content, is_static=is_static),
    ]
    if has_c:
        arguments.append(
            Argument("C", atom.dtype_c, (m, n), "unit" if content == "unit" else "small", is_static=is_static)
        )
    head = [
        f"MMA = tw.make_tiled_mma({written}, {(*places, 1)}, {permutations})",
        f"TILE = {tile}",
        "@tw.kernel",
        f"def kernel({', '.join(a.name for a in arguments)}):",
        "    tid = tw.thread_idx.x",
        "    block = (tw.block_idx.x, tw.block_idx.y, None)",
        f"    gA = tw.local_tile(A{'.T' * transposed[0]}, TILE, block, (1, None, 1))",
        f"    gB = tw.local_tile(B{'.T' * transposed[1]}, TILE, block, (None, 1, 1))",
        "    thread = MMA.get_slice(tid)",
        "    tCgD = thread.partition_C(tw.local_tile(D, TILE, block, (1, 1, None)))",
        f"    acc = tw.fragment_like(tCgD, {name_of(atom.dtype_c)})",
        "    tw.copy(thread.partition_C(tw.local_tile(C, TILE, block, (1, 1, None))), acc)"
        if has_c
        else "    tw.clear(acc)",
    ]
    if by_ldmatrix:
        body = _by_ldmatrix(random, tile, mma.size, transposed)
    else:
        body = random.choice((_direct, _shared, _pipelined))(random, tile, mma.size, steps)
    if not any("tw.copy(tw.local_partition(g" in line for line in body):
        body = [line for line in body if "cp_async" not in line]  # there is nothing to wait for
    tail = [
        f"    rD = tw.fragment_like(acc, {name_of(out)})",
        "    for e in tw.range(tw.size(acc), unroll=True):",
        f"        rD[e] = acc[e].to({name_of(out)})",
        "    tw.copy(rD, tCgD)",
        "",
    ]
    text = "\n".join([*head, *body, *tail])
    return Product(text, grid, mma.size, tuple(arguments), random.randrange(2**32), atom, transposed)


def _direct(random: Random, tile: tuple[int, ...], threads: int, steps: int) -> list[str]:
    """Fragments from global memory."""
    counted = random.choice(("range(tw.size(gA.shape[2]))", f"tw.static_range({steps})"))
    return [
        f"    for k in {counted}:",
        "        tA, tB = thread.partition_A(gA[:, :, k]), thread.partition_B(gB[:, :, k])",
        "        rA, rB = thread.make_fragment_A(tA), thread.make_fragment_B(tB)",
        "        tw.copy(tA, rA)",
        "        tw.copy(tB, rB)",
        "        tw.gemm(MMA, acc, rA, rB, acc)",
    ]


def _layout(random: Random, rows: int, columns: int, stages: int | None = None) -> str:
    pad = random.choice((0, 1, 4, 8))
    modes, steps = random.choice((((rows, columns), (columns + pad, 1)), ((rows, columns), (1, rows + pad))))
    if stages is None:
        return f"tw.Layout({modes}, {steps})"
    whole = max((rows - 1) * steps[0] + (columns - 1) * steps[1] + 1, 1)
    return f"tw.Layout({(*modes, stages)}, {(*steps, -(-whole // 16) * 16)})"


def _spread(random: Random, rows: int, columns: int, threads: int) -> str:
    """Return how threads lie over a tile, which they must divide."""
    fitting = [
        (r, threads // r)
        for r in (1, 2, 4, 8, 16, 32, 64)
        if threads % r == 0 and rows % r == 0 and columns % (threads // r) == 0
    ]
    if not fitting:
        return ""
    r, c = random.choice(fitting)
    return f"tw.Layout({(r, c)}, {random.choice(((c, 1), (1, r)))})"


def _fill(
    random: Random, indent: str, name: str, rows: int, columns: int, threads: int, k: str, stage: str = ""
) -> list[str]:
    """Return the lines that copy a tile of an operand to shared memory, all threads or one element at a time."""
    src, dst = f"g{name}[:, :, {k}]", f"s{name}{stage}"
    spread = _spread(random, rows, columns, threads)
    if spread:
        return [f"{indent}tw.copy(tw.local_partition({src}, {spread}, tid), tw.local_partition({dst}, {spread}, tid))"]
    return [
        f"{indent}for e in range(tid, {rows * columns}, {threads}):",
        f"{indent}    {dst.replace(':, :', f'e % {rows}, e // {rows}') if stage else f'{dst}[e % {rows}, e // {rows}]'} = "
        f"g{name}[e % {rows}, e // {rows}, {k}]",
    ]


def _operands(random: Random, indent: str, stage: str = "") -> list[str]:
    if random.random() < 0.4:
        return [f"{indent}tw.gemm(MMA, acc, thread.partition_A(sA{stage}), thread.partition_B(sB{stage}), acc)"]
    return [
        f"{indent}tA, tB = thread.partition_A(sA{stage}), thread.partition_B(sB{stage})",
        f"{indent}rA, rB = thread.make_fragment_A(tA), thread.make_fragment_B(tB)",
        f"{indent}tw.copy(tA, rA)",
        f"{indent}tw.copy(tB, rB)",
        f"{indent}tw.gemm(MMA, acc, rA, rB, acc)",
    ]


def _shared(random: Random, tile: tuple[int, ...], threads: int, steps: int) -> list[str]:
    """One tile at a time through shared memory."""
    m, n, k = tile
    return [
        f"    sA = tw.shared(A.dtype, {_layout(random, m, k)})",
        f"    sB = tw.shared(B.dtype, {_layout(random, n, k)})",
        "    for k in range(tw.size(gA.shape[2])):",
        *_fill(random, "        ", "A", m, k, threads, "k"),
        *_fill(random, "        ", "B", n, k, threads, "k"),
        "        tw.cp_async_wait()",
        "        tw.sync_threads()",
        *_operands(random, "        "),
        "        tw.sync_threads()",
    ]


def _pipelined(random: Random, tile: tuple[int, ...], threads: int, steps: int) -> list[str]:
    """A ring of stages, filled ahead; steps past the last one copy nothing."""
    m, n, k = tile
    stages = random.choice((2, 3))
    fill = random.getstate()

    def filled(indent: str, at: str, stage: str) -> list[str]:
        random.setstate(fill)  # the same copies before the loop and in it
        lines = _fill(random, indent + "    ", "A", m, k, threads, at, f"[:, :, {stage}]")
        lines += _fill(random, indent + "    ", "B", n, k, threads, at, f"[:, :, {stage}]")
        return [f"{indent}if {at} < tiles:", *lines]

    ahead = filled("        ", "k", "k")
    body = filled("        ", "coming", "free")
    return [
        f"    sA = tw.shared(A.dtype, {_layout(random, m, k, stages)})",
        f"    sB = tw.shared(B.dtype, {_layout(random, n, k, stages)})",
        "    tiles = tw.size(gA.shape[2])",
        f"    for k in tw.static_range({stages - 1}):",
        *ahead,
        "        tw.cp_async_commit()",
        "    for k in range(tiles):",
        f"        tw.cp_async_wait({stages - 2})",
        "        tw.sync_threads()",
        f"        stage, coming = k % {stages}, k + {stages - 1}",
        f"        free = coming % {stages}",
        *body,
        "        tw.cp_async_commit()",
        *_operands(random, "        ", "[:, :, stage]"),
        "    tw.cp_async_wait()",
        "    tw.sync_threads()",
    ]


def _by_ldmatrix(random: Random, tile: tuple[int, ...], threads: int, transposed: tuple[bool, bool]) -> list[str]:
    """Fragments by ldmatrix, from rows of 16 bytes along K, or along M and N and turned."""
    m, n, k = tile
    lines, loads = [], []
    for name, rows in (("A", m), ("B", n)):
        turned = random.random() < 0.4
        lies = f"tw.Layout(({rows}, {k}), (1, {rows + 8}))" if turned else f"tw.Layout(({rows}, {k}), ({k + 8}, 1))"
        if not turned and k % 32 == 0 and random.random() < 0.5:
            lies = f"tw.tile_to_shape(tw.ComposedLayout(tw.Swizzle(2, 3, 3), 0, tw.Layout((8, 32), (32, 1))), ({rows}, {k}))"
        wide = ("SM75_U16x8_LDSM_T", "SM75_U16x4_LDSM_T") if turned else ("SM75_U32x4_LDSM_N", "SM75_U32x2_LDSM_N")
        atom = random.choice(wide)
        lines += [f"    s{name} = tw.shared({name}.dtype, {lies})",
                  f"    load{name} = tw.make_tiled_copy_{name}(tw.atoms.{atom}, MMA)"]  # fmt: skip
        lines += [f"    part{name} = load{name}.get_slice(tid)"]
        loads.append(f"        tw.copy(load{name}, part{name}.partition_S(s{name}), part{name}.retile_D(r{name}))")
    return [
        *lines,
        "    rA, rB = thread.partition_fragment_A(sA), thread.partition_fragment_B(sB)",
        "    for k in range(tw.size(gA.shape[2])):",
        *_fill(random, "        ", "A", m, k, threads, "k"),
        *_fill(random, "        ", "B", n, k, threads, "k"),
        "        tw.cp_async_wait()",
        "        tw.sync_threads()",
        *loads,
        "        tw.gemm(MMA, acc, rA, rB, acc)",
        "        tw.sync_threads()",
    ]
