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
    neither rows nor keys; nor has it tokens in slots before the first sequence, if that does not begin at 0.

    A sequence ends where any that the search takes for a later one begins, and begins where any earlier one does. Of
    offsets that ascend these are its own; others are held back: no two sequences share tokens, keys or slots, and all
    tiles of one have slots, so that no block waits in vain for the tile before.
    """
    least, most = tw.int32(0), tokens_at.shape[0] - 2
    first_token, end_token = (number_of(tokens_at, n, all_tokens) for n in (0, most + 1))
    first_key, end_key = (number_of(keys_at, n, all_keys) for n in (0, most + 1))
    while least < most:
        middle = (least + most + 1) // 2
        token, key = number_of(tokens_at, middle, all_tokens), number_of(keys_at, middle, all_keys)
        if token // rows + middle <= slot:
            least, first_token, first_key = middle, tw.maximum(first_token, token), tw.maximum(first_key, key)
        else:
            most, end_token, end_key = middle - 1, tw.minimum(end_token, token), tw.minimum(end_key, key)
    row = (slot - first_token // rows - least) * rows
    tokens = tw.where(row < 0, 0, tw.maximum(end_token - first_token, 0))
    row = tw.maximum(row, 0)
    keys = tw.where(row < tokens, tw.maximum(end_key - first_key, 0), 0)
    return row, tokens, keys, first_token, first_key, least


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
