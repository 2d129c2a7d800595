"""Weights of 4 or 8 bits as the kernels read them: the format, and packing by NumPy.

A weight matrix of (K, N) codes is cut into blocks of 128 of K (a *chunk*) by 16 of N (a *tile*). Each block is one
contiguous piece of memory, from which a warp loads the operand A of its matrix instructions: 16 columns of the weights
by 16 of K, eight times. Lane 4 r + q of the warp has column r of the tile and column r + 8::

    packed[tile, chunk, word]        4 bits: word = 128 * half + 4 * lane + j,             j = 0 ... 3
                                     8 bits: word = 256 * half + 128 * p + 4 * lane + j,   j = 0 ... 3, p = 0, 1

    column of N     16 * tile + 8 * half + lane // 4
    step s          4 bits: 2 * j + (0 or 1), two in a word;    8 bits: 4 * p + j, one in a word
    row of K        128 * chunk + 16 * s + 8 * h + 2 * (lane % 4) + e           h, e = 0, 1
    bits            4 bits: 4 * (2 * (s % 2) + h) + 16 * e;     8 bits: 8 * h + 16 * e

So 16 bytes of a lane are all that it needs for four steps or eight, the 32 lanes read 512 bytes side by side, and the
two weights of a register of the instruction (e = 0, 1) lie 16 bits apart, where one `lop3` finds both. Four tiles are
operand A of a warpgroup's instruction in the same way, one for each of its warps. A step has 16 consecutive rows of K,
as ldmatrix and TMA bring them of x, so no step mixes groups.

Scales and zeros of a group lie as [tile, group, 2 * (column % 8) + column // 8].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError

CHUNK, TILE = 128, 16  # of K and of N in a block
STEPS = CHUNK // 16  # matrix instructions along K in a chunk
BITS = (4, 8)
ALL = CHUNK << 23  # rows of a group that takes all of K, in a kernel

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WeightFormat:
    """What a kernel knows of packed weights when it is compiled, beside their extents.

    `group` rows of K share a scale; `zero` is the code that stands for 0 everywhere, None where an array has one for
    each group.
    """

    bits: int
    k: int
    n: int
    group: int
    scale: DType
    zero: int | None

    @property
    def chunks(self) -> int:
        """The chunks of K: one of zeros where K is 0."""
        return max(-(-self.k // CHUNK), 1)

    @property
    def tiles(self) -> int:
        return -(-self.n // TILE)

    @property
    def groups(self) -> int:
        """The groups that are stored: up to the end of the last chunk."""
        return self.chunks * self.groups_in_chunk if self.group <= CHUNK else max(-(-self.k // self.group), 1)

    @property
    def groups_in_chunk(self) -> int:
        return max(CHUNK // self.group, 1)

    @property
    def chunks_in_group(self) -> int:
        return max(self.group // CHUNK, 1)

    @property
    def words(self) -> int:
        """The 32-bit words of a block."""
        return CHUNK * TILE * self.bits // 32

    @property
    def bytes(self) -> int:
        """The bytes of weights, scales and zeros."""
        beside = self.scale.bytes + (0 if self.zero is not None else self.bits // 4)
        return self.tiles * (self.chunks * self.words * 4 + self.groups * TILE * beside)

    def without_extents(self) -> WeightFormat:
        """Return the format of weights of other extents, equal for all: that of a kernel."""
        is_whole = self.group >= CHUNK and self.groups <= 1
        return replace(self, k=0, n=0, group=ALL if is_whole else self.group)

    def __str__(self) -> str:
        zeros = f"zero {self.zero}" if self.zero is not None else "zeros of their own"
        return f"{self.bits}-bit weights in groups of {self.group}, scales of {self.scale}, {zeros}"


def is_group(rows: int) -> bool:
    """Return whether kernels take groups of so many rows of K."""
    return rows in (32, 64) or (rows > 0 and rows % CHUNK == 0)


def check_group(group: int, k: int) -> int:
    """Return the rows of K in a group, those of -1 too; raise `ArgumentError` for a size that no kernel takes.

    >>> check_group(-1, 300), check_group(64, 300)
    (384, 64)
    """
    if isinstance(group, bool) or not isinstance(group, (int, np.integer)):
        raise ArgumentError(f"group is a number of rows, got {group!r}")
    group = int(group)
    whole = max(-(-k // CHUNK), 1) * CHUNK
    if group == -1:
        return whole
    if not is_group(group):
        raise ArgumentError(
            f"group is 32, 64, a multiple of {CHUNK}, or -1 for all of K, got {group}",
            help="a group has whole matrix instructions, or whole pieces of 128 of K",
        )
    return min(group, whole)


def pack_codes(codes: Array, bits: int) -> Array:
    """Return codes (K, N) from 0 to 2**bits - 1 as int32 (tiles, chunks, words), padded with code 0.

    >>> pack_codes(np.full((40, 20), 7, np.uint8), 4).shape
    (2, 1, 256)
    """
    k, n = codes.shape
    filled = np.pad(codes, ((0, -k % CHUNK if k else CHUNK), (0, -n % TILE))).astype(np.uint32)
    chunks, tiles = filled.shape[0] // CHUNK, filled.shape[1] // TILE
    parts = filled.reshape(chunks, STEPS, 2, 4, 2, tiles, 2, 8)  # chunk, s, h, q, e; tile, half, r
    parts = parts.transpose(5, 0, 6, 1, 7, 3, 4, 2)  # tile, chunk, half, s, r, q, e, h
    if bits == 4:  # s is j and which of the two steps of a word
        parts = parts.reshape(tiles, chunks, 2, 4, 2, 8, 4, 2, 2)  # ..., half, j, s % 2, r, q, e, h
        parts = parts.transpose(0, 1, 2, 5, 6, 3, 7, 4, 8)  # ..., half, r, q, j, e, s % 2, h
        shifts = 16 * np.arange(2)[:, None, None] + 8 * np.arange(2)[:, None] + 4 * np.arange(2)
    else:
        parts = parts.reshape(tiles, chunks, 2, 2, 4, 8, 4, 2, 2)  # ..., half, p, j, r, q, e, h
        parts = parts.transpose(0, 1, 2, 3, 5, 6, 4, 7, 8)  # ..., half, p, r, q, j, e, h
        shifts = 16 * np.arange(2)[:, None] + 8 * np.arange(2)
    fields = parts.reshape(tiles, chunks, 64 * bits, 32 // bits) << shifts.ravel().astype(np.uint32)
    packed: Array = np.bitwise_or.reduce(fields, 3)
    return packed.view(np.int32)


def unpack_codes(packed: Array, bits: int, k: int, n: int) -> Array:
    """Return the codes (K, N) of packed weights, as uint8: word by word, as the layout is defined.

    >>> codes = np.random.default_rng(0).integers(0, 16, (40, 20), np.uint8)
    >>> np.array_equal(unpack_codes(pack_codes(codes, 4), 4, 40, 20), codes)
    True
    """
    tiles, chunks, words = packed.shape
    word, s_in_word, h, e = np.ogrid[:words, : 8 // bits, :2, :2]
    lane, j = word // 4 % 32, word % 4
    half = word // (words // 2)
    s = 2 * j + s_in_word if bits == 4 else 4 * (word // 128 % 2) + j
    shift = 16 * e + (4 * (2 * s_in_word + h) if bits == 4 else 8 * h)
    row, column = 16 * s + 8 * h + 2 * (lane % 4) + e, 8 * half + lane // 4
    codes = np.zeros((tiles, TILE, chunks, CHUNK), np.uint8)
    fields = packed.view(np.uint32)[:, :, :, None, None, None] >> shift.astype(np.uint32) & (2**bits - 1)
    codes.transpose(1, 3, 0, 2)[column, row] = fields.transpose(2, 3, 4, 5, 0, 1)
    found: Array = codes.reshape(tiles * TILE, chunks * CHUNK).T
    return found[:k, :n]


def pack_groups(values: Array, groups: int) -> Array:
    """Return scales or zeros (groups, N) as (tiles, groups, 16), padded with 0 to whole tiles and stored groups."""
    filled = np.pad(values, ((0, groups - values.shape[0]), (0, -values.shape[1] % TILE)))
    parts = filled.reshape(groups, filled.shape[1] // TILE, 2, 8).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(parts).reshape(parts.shape[0], groups, TILE)


def unpack_groups(packed: Array, k: int, n: int, group: int) -> Array:
    """Return scales or zeros (groups, N) from where `pack_groups` put them.

    >>> unpack_groups(pack_groups(np.arange(20)[None], 3), 40, 20, 128)[0, :3].tolist()
    [0, 1, 2]
    """
    tiles, groups, _ = packed.shape
    values: Array = packed.reshape(tiles, groups, 8, 2).transpose(1, 0, 3, 2).reshape(groups, tiles * TILE)
    return values[: -(-k // group), :n]
