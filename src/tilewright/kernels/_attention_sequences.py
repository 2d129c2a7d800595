"""Where sequences are whose lengths differ, and what is behind their ends; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw

WARPGROUP = 128
VECTOR = 8  # elements


def slots_of(x, at, rows):
    """Return how many tiles of rows a head of x has; of sequences in one array some of them have no row."""
    return tw.ceil_div(x.shape[2], rows) if at is None else x.shape[2] // rows + at.shape[0] - 1


def number_of(numbers, n, extent):
    """Return one of `numbers` of tokens, at most `extent`."""
    return tw.minimum(tw.maximum(numbers[n].to(tw.int32), 0), extent)


@tw.function
def sequence_of(slot, tokens_at, keys_at, all_tokens, all_keys, rows):
    """Return a slot's first row, how many tokens and keys its sequence has, its first ones, and its number.

    Sequence n has the slots from tokens_at[n] // rows + n on: as many as it has tiles, or one more, in which it has
    neither rows nor keys; nor have slots before the first sequence, if that does not begin at 0.
    """
    least, most = tw.int32(0), tokens_at.shape[0] - 2
    while least < most:
        middle = (least + most + 1) // 2
        if number_of(tokens_at, middle, all_tokens) // rows + middle <= slot:
            least = middle
        else:
            most = middle - 1
    first_token, first_key = number_of(tokens_at, least, all_tokens), number_of(keys_at, least, all_keys)
    tokens = tw.maximum(number_of(tokens_at, least + 1, all_tokens) - first_token, 0)
    keys = tw.maximum(number_of(keys_at, least + 1, all_keys) - first_key, 0)
    row = (slot - first_token // rows - least) * rows
    return row, tokens, tw.where((row >= 0) & (row < tokens), keys, 0), first_token, first_key, least


@tw.function
def clear_behind(tiles, count, plan):
    """Clear rows of tiles behind a sequence's last one: their weights are 0, and 0 times what is there may be NaN."""
    rows, beside, threads = tw.size(tiles[0].shape[0]), plan.head // VECTOR, WARPGROUP * plan.consumers
    if count < rows:
        zeros = tw.registers(tiles[0].dtype, VECTOR)
        tw.clear(zeros)
        for place in range(count * beside + tw.thread_idx.x - WARPGROUP, rows * beside, threads):
            for tile in tiles:
                tw.copy(zeros, tw.local_tile(tile, (1, VECTOR), (place // beside, place % beside)))
        tw.fence_proxy_async()  # wgmma reads them
        tw.named_barrier(1 + 2 * plan.consumers, threads).sync()
