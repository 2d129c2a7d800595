"""The double-buffered matmul as IR written by hand: what the text of a whole kernel looks like."""

from __future__ import annotations

import linecache

import pytest
from tests.unit.backends.kernels import ARCHES, Draft, compile_text

from tilewright import dtypes as t
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir import ops
from tilewright.ir.core import Buffer, Value
from tilewright.ir.facts import Facts
from tilewright.ir.ops import constant

SOURCE = """\
@tw.kernel
def matmul(C, A, B, tiled_copy: tw.constexpr, mma: tw.constexpr):
    sA = tw.shared(A.dtype, tw.layout((128, 8, 2), (1, 130, 1040)))
    sB = tw.shared(B.dtype, tw.layout((128, 8, 2), (1, 130, 1040)))
    tid = tw.thread_idx.x
    acc = mma.make_fragment_C(tCgC)
    rA, rB = mma.make_fragment_A(tCsA), mma.make_fragment_B(tCsB)
    acc.fill(0)
    tw.copy(tiled_copy, tAgA[..., 0], tAsA[..., 0])
    tw.copy(tiled_copy, tBgB[..., 0], tBsB[..., 0])
    tw.cp_async_commit()
    read, write = 0, 1
    for k_tile in range(k_tiles):
        tw.cp_async_wait()
        tw.sync_threads()
        if k_tile + 1 < k_tiles:
            tw.copy(tiled_copy, tAgA[..., k_tile + 1], tAsA[..., write])
            tw.copy(tiled_copy, tBgB[..., k_tile + 1], tBsB[..., write])
            tw.cp_async_commit()
        for k in tw.static_range(8):
            tw.copy(tCsA[..., k, read], rA)
            tw.copy(tCsB[..., k, read], rB)
            tw.gemm(mma, acc, rA, rB, acc)
        read, write = write, read
    tw.copy(acc, tCgC)
"""
FILE = "matmul_tiles.py"
PADDED, STAGE = 130, 1040


def matmul() -> Draft:
    linecache.cache[FILE] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), FILE)
    d = Draft("matmul", (256, 1, 1))
    d.file = FILE
    C, A, B = d.pointer("C"), d.pointer("A"), d.pointer("B")
    large = Facts(0, 2**20)
    M, N, K = (d.scalar(n, facts=large) for n in "MNK")
    d.at(3)
    sA = d.shared("sA", 2 * STAGE)
    d.at(4)
    sB = d.shared("sB", 2 * STAGE)
    d.at(5)
    tid = d.special("thread_idx.x", "tid")
    bx, by = d.special("block_idx.x"), d.special("block_idx.y")
    d.at(6)
    acc = d.registers("acc", 64)
    d.at(7)
    rA, rB = d.registers("rA", 8), d.registers("rB", 8)
    d.at(8)
    with d.loop(64, unroll=0) as loop:
        d.store(acc, loop.index, 0.0)

    pair, column = d.mul(d.binary("rem", tid, 32), 2), d.binary("div", tid, 32)

    def copy(g: Buffer, s: Buffer, leading: Value, block: Value, tile: object, stage: object) -> None:
        with d.loop(2, name="i", unroll=0) as loop:
            row = d.add(pair, d.mul(loop.index, 64))
            start = d.mul(d.add(d.mul(d.value(tile, tid), 8), column), leading)
            g_index = d.add(d.add(start, d.mul(block, 128)), row)
            s_index = d.add(d.add(d.mul(d.value(stage, tid), STAGE), d.mul(column, PADDED)), row)
            d.emit(AsyncCopy(s, g, 2, "ca", s_index, g_index, constant(True, t.bool_)))

    d.at(9)
    copy(A, sA, M, by, 0, 0)
    d.at(10)
    copy(B, sB, N, bx, 0, 0)
    d.at(11)
    d.emit(AsyncCommit())
    d.at(13)
    k_tiles = d.binary("div", K, 8, "k_tiles")
    read, write = constant(0, t.int32), constant(1, t.int32)
    with d.loop(k_tiles, read, write, name="k_tile", carried=("read", "write")) as loop:
        k_tile, (read, write) = loop.index, loop.carried
        d.at(14)
        d.emit(AsyncWait(None))
        d.at(15)
        d.emit(Barrier("block"))
        d.at(16)
        following = d.add(k_tile, 1)
        with d.branch(d.compare("lt", following, k_tiles)) as b:
            with b.block(0):
                d.at(17)
                copy(A, sA, M, by, following, write)
                d.at(18)
                copy(B, sB, N, bx, following, write)
                d.at(19)
                d.emit(AsyncCommit())
                b.give()
            with b.block(1):
                b.give()
        d.at(20)
        with d.loop(8, name="k", unroll=0) as inner:
            for line, r, s, place in ((21, rA, sA, d.binary("div", tid, 16)), (22, rB, sB, d.binary("rem", tid, 16))):
                d.at(line)
                with d.loop(8, name="m" if r is rA else "n", step=4, unroll=0) as lanes:
                    offset = d.add(d.mul(read, STAGE), d.mul(inner.index, PADDED))
                    index = d.add(offset, d.add(d.mul(place, 8), lanes.index))
                    d.store(r, lanes.index, d.load(s, index, 2))
                    d.store(r, d.add(lanes.index, 2), d.load(s, d.add(index, 2), 2))
            d.at(23)
            with d.loop(8, name="m", unroll=0) as ms, d.loop(8, name="n", unroll=0) as ns:
                place = d.add(d.mul(ns.index, 8), ms.index)
                a, b_, c = d.load(rA, ms.index), d.load(rB, ns.index), d.load(acc, place)
                d.store(acc, place, d.pure(ops.Fma(a, b_, c), t.float32))
        d.at(24)
        loop.next(write, read)
    d.at(25)
    with d.loop(8, name="m", unroll=0) as ms, d.loop(8, name="n", unroll=0) as ns:
        row = d.add(d.mul(d.binary("div", tid, 16), 8), ms.index)
        col = d.add(d.mul(d.binary("rem", tid, 16), 8), ns.index)
        index = d.add(d.mul(d.add(d.mul(bx, 128), col), M), d.add(d.mul(by, 128), row))
        d.store(C, index, d.load(acc, d.add(d.mul(ns.index, 8), ms.index)))
    return d


@pytest.mark.parametrize("arch", ARCHES)
def test_it_compiles_without_spills(arch: str) -> None:
    compiled = compile_text(matmul().source(arch), arch)
    assert compiled.resources.spill_stores == 0  # type: ignore[attr-defined]


def test_it_reads_like_a_persons() -> None:
    body = matmul().body()
    for excerpt in EXCERPTS:
        assert "\n" + excerpt in body


def test_every_name_is_said_once_in_a_scope() -> None:
    lines = matmul().body().split("\n")
    assert not [line for line in lines if line.split("=")[0].rstrip().endswith(("_2", "_3"))]


EXCERPTS = (
    """\
// matmul_tiles.py:10: tw.copy(tiled_copy, tBgB[..., 0], tBsB[..., 0])
#pragma unroll
for (int i = 0; i < 2; i += 1) {
    const int offset_1 = offset + i * 64;
    cp_async_ca_8(&sB[tid_div_32 * 130 + offset_1], &B[tid_div_32 * N + bx * 128 + offset_1]);
}
""",
    """\
// matmul_tiles.py:13: for k_tile in range(k_tiles):
const int k_tiles = K / 8;
int read = 0;
int write = 1;
for (int k_tile = 0; k_tile < k_tiles; k_tile += 1) {
    // matmul_tiles.py:14: tw.cp_async_wait()
    cp_async_wait_all();
    // matmul_tiles.py:15: tw.sync_threads()
    __syncthreads();
    // matmul_tiles.py:16: if k_tile + 1 < k_tiles:
    if (k_tile + 1 < k_tiles) {
""",
    """\
        // matmul_tiles.py:23: tw.gemm(mma, acc, rA, rB, acc)
        #pragma unroll
        for (int m = 0; m < 8; m += 1) {
            #pragma unroll
            for (int n = 0; n < 8; n += 1) {
                const int index = n * 8 + m;
                acc[index] = fmaf(rA[m], rB[n], acc[index]);
            }
        }
    }

    // matmul_tiles.py:24: read, write = write, read
    const int next_write = read;
    read = write;
    write = next_write;
}
""",
)
