"""Where sequences are whose lengths differ, and what is behind their ends; device code, traced into kernels."""

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

    It has no keys in slots that have no row of it. Its offsets are not held back: no block of the forward pass waits
    for another, and holding them would spill registers there.
    """
    least, *_ = search(tokens_at, all_tokens, in_slots(slot, rows))
    first_token, first_key = number_of(tokens_at, least, all_tokens), number_of(keys_at, least, all_keys)
    tokens = tw.maximum(number_of(tokens_at, least + 1, all_tokens) - first_token, 0)
    keys = tw.maximum(number_of(keys_at, least + 1, all_keys) - first_key, 0)
    row = (slot - first_token // rows - least) * rows
    return row, tokens, tw.where((row >= 0) & (row < tokens), keys, 0), first_token, first_key, least


def in_slots(slot, rows):
    """Return whether a sequence begins at a slot or before it, given its number and first token.

    Sequence n has the slots from at[n] // rows + n on: as many as it has tiles, or one more, which has no row.
    """
    return lambda n, first: first // rows + n <= slot


def held_sequence_of(slot, at, extent, rows):
    """Return a slot's first row, how many tokens its held sequence has, its first one, and its number.

    It has no tokens in slots before the first sequence, if that does not begin at 0.
    """
    number, first, tokens = search(at, extent, in_slots(slot, rows))
    row = (slot - first // rows - number) * rows
    return tw.maximum(row, 0), tw.where(row < 0, 0, tokens), first, number


def held(number, at, extent):
    """Return the first token of a held sequence, and how many it has."""
    return search(at, extent, lambda n, _: n <= number)[1:]


@tw.function
def search(at, extent, is_reached):
    """Return the number of the last sequence that is reached, its first token, and how many it has.

    It ends where any that was found behind it begins, and begins where any before it does. Of offsets that ascend these
    are its own. Others are held back: what leads to a sequence is always the same, so sequences share no tokens and no
    slots, and all tiles of one have slots. No block waits for the tile before in vain.
    """
    least, most = tw.int32(0), at.shape[0] - 2
    first, end = number_of(at, 0, extent), number_of(at, most + 1, extent)
    while least < most:
        middle = (least + most + 1) // 2
        token = number_of(at, middle, extent)
        if is_reached(middle, token):
            least, first = middle, tw.maximum(first, token)
        else:
            most, end = middle - 1, tw.minimum(end, token)
    return least, first, tw.maximum(end - first, 0)


@tw.function
def clear_behind(tiles, count, plan):
    """Clear rows of tiles from `count` on, which is negative where a part has no keys.

    They are behind a sequence's last one: their weights are 0, and 0 times what is there may be NaN.
    """
    rows, threads = tw.size(tiles[0].shape[0]), WARPGROUP * plan.consumers
    if count < rows:
        zeros = tw.registers(tiles[0].dtype, VECTOR)
        tw.clear(zeros)
        for tile in tiles:
            beside = tw.size(tile.shape[1]) // VECTOR
            for place in range(tw.maximum(count, 0) * beside + tw.thread_idx.x - WARPGROUP, rows * beside, threads):
                tw.copy(zeros, tw.local_tile(tile, (1, VECTOR), (place // beside, place % beside)))
        tw.fence_proxy_async()  # wgmma reads them
        tw.named_barrier(1 + 2 * plan.consumers, threads).sync()
