"""Products with packed weights of 4 or 8 bits; device code, traced into kernels.

The weights are operand A of mma.sync and x operand B, so that what is summed is D transposed: then a thread multiplies
the columns of the weights whose sums it holds, and needs one scale and one zero for each. `weights.py` says where a
lane's weights lie. A code q is made the number q - zero, which is exact in float16 and bfloat16, the matrix
instructions add up the products of a group in float32, and one multiply-add in float32 takes the group's scale and adds
the result to the total:

    total += scale * (sum over k of the group: x[k] * (q[k] - zero))
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._places_kernel import Places


class Lane:
    """A lane's place in the warp's fragments, and what it reads of packed weights, their scales and zeros."""

    def __init__(self, plan, packed, parts):
        self.plan, self.packed = plan, packed.recast(tw.uint32)
        self.scales, self.zeros = parts[0], parts[1] if len(parts) > 1 else None
        self.lane = tw.thread_idx.x % 32
        self.quad, self.row = self.lane % 4, self.lane // 4
        self.chunks = packed.shape[1]

    def tile(self, number):
        """Return a tile of the weights that there is; what is computed beyond the last one is not stored."""
        return tw.minimum(number, self.packed.shape[0] - 1)

    def groups(self):
        """Return room for scales and zeros of a chunk, (half, group) each: two columns of the tile."""
        arrays = (self.scales, self.zeros)
        return [None if x is None else tw.registers(x.dtype, tw.Layout((2, self.plan.parts))) for x in arrays]

    def read_groups(self, tile, chunk, groups=None):
        """Return scales and zeros of a chunk, in new registers or in `groups`."""
        plan = self.plan
        first = chunk * plan.parts if plan.parts > 1 else chunk // plan.weights.chunks_in_group
        scales, zeros = self.groups() if groups is None else groups
        for g in tw.static_range(plan.parts):
            place = (tile, first + g, self.row)
            tw.copy(tw.local_tile(self.scales, (1, 1, 2), place)[0, 0, :], scales[:, g])
            if zeros is not None:
                tw.copy(tw.local_tile(self.zeros, (1, 1, 2), place)[0, 0, :], zeros[:, g])
        return scales, zeros


def multiply_chunk(plan, acc, part, w, x, words, scales, zeros):
    """Add the products of a chunk: `words[t]` (4, vectors, half), `scales[t]` and `zeros[t]` (half, group) of tile t.

    `x` has the fragments of all steps, `w` room for those of one, and `part` for the sums of a group.
    """
    sums, group_sums = tw.accumulator_rows(plan.mma, acc), tw.accumulator_rows(plan.mma, part)
    steps = plan.steps // plan.parts
    for g in tw.static_range(plan.parts):
        tw.clear(part)
        for s in tw.static_range(steps):
            for t in tw.static_range(plan.tiles):
                for half in tw.static_range(2):
                    zero = plan.weights.zero if zeros is None else zeros[t][half, g]
                    unpack(plan, w[:, t, 0], words[t], zero, half, g * steps + s)
            tw.gemm(plan.mma, part, w[:, :, 0], x(g * steps + s), part)
        for t in tw.static_range(plan.tiles):
            for half in tw.static_range(2):
                scale, row = scales[t][half, g].to(tw.float32), 2 * t + half
                sums[row, :] = tw.fma(group_sums[row, :], scale, sums[row, :])


def unpack(plan, w, words, zero, half, step):
    """Write the weights of a column and a step, less their zero, to the tile's fragment of operand A.

    With 0x4300 above it a number of 7 bits is 128 more as a bfloat16, and with 0x6400 one of 10 bits 1024 more as a
    float16. Two such are made by one lop3, and their difference to 128 (or 1024) + zero is exact. Bytes go through
    float32 to bfloat16: 0x4B000000 is 2**23.
    """
    if plan.weights.bits == 8 and w.dtype is tw.bfloat16:
        word, wide = words[step % 4, step // 4, half], number(zero) + 0x4B000000
        for h in tw.static_range(2):
            for e in tw.static_range(2):
                byte = tw.byte_permute(word, tw.uint32(0x4B000000), 0x7440 + h + 2 * e).bitcast(tw.float32)
                w[(e, half, h),] = (byte - wide.bitcast(tw.float32)).to(tw.bfloat16)
        return
    magic = 0x4300 if w.dtype is tw.bfloat16 else 0x6400
    both, bits = magic << 16 | magic, w.recast(tw.uint32)
    for h in tw.static_range(2):
        if plan.weights.bits == 4:
            field, mask = words[step // 2, 0, half] >> (step % 2 * 8 + h * 4), 0x000F000F
        else:
            field, mask = words[step % 4, step // 4, half] >> (8 * h), 0x00FF00FF
        bits[(0, half, h),] = tw.lop3(field, mask, both, lambda a, b, c: (a & b) | c)
    w[(None, half, None),] -= (number(zero) + magic).to(tw.uint16).bitcast(w.dtype)


def number(zero):
    """Return a zero as uint32, whether the device reads it or the plan has it."""
    return tw.uint32(zero) if isinstance(zero, int) else zero.to(tw.uint32)


@tw.function
def finish_elements(plan, total, D, operands, place, alpha, beta, batch):
    """Write an element of D, where D has it, from its sum."""
    if (place[0] < D.shape[0]) and (place[1] < D.shape[1]):
        elements = [x[place] for x in operands]
        D[place] = plan.apply(total, alpha, beta, elements, Places(*place, batch).at()).to(D.dtype)


@tw.kernel
def stream_weights(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute a tile of D = epilogue(alpha * A @ weights, operands) for a few rows of A.

    The warps of a block share the columns and divide K, one chunk after another each, so that together they read the
    memory of the weights from its beginning to its end. A warp loads its next chunk before it multiplies the one that
    it has: the weights to registers, x to two stages of shared memory of its own, for ldmatrix. The warps' sums are
    added in the warps' order.
    """
    n_block, m_block, batch = block_of(plan, D.shape)
    scales_and_zeros, rest, numbers = taken_apart(plan, operands)
    D, A, *rest = (x[:, :, batch] for x in (D, A, *rest))

    lane, warp = Lane(plan, B, scales_and_zeros), tw.thread_idx.x // 32
    tiles = [lane.tile(n_block * plan.tiles + t) for t in range(plan.tiles)]
    thread = plan.mma.get_slice(tw.thread_idx.x % 32)
    w = tw.registers(A.dtype, plan.mma.partition_shape((plan.columns, 16), "A"))
    shape = plan.mma.partition_shape((plan.columns, plan.tokens), "C")
    acc, part = tw.registers(tw.float32, shape), tw.registers(tw.float32, shape)
    sX = tw.shared(A.dtype, plan.smem_x)[:, :, :, warp]
    x = tw.registers(A.dtype, plan.x_layout)
    # What is under way or multiplied: a chunk's words of each tile, and scales and zeros.
    rooms = [[(tw.registers(tw.uint32, plan.word_layout), lane.groups()) for _ in tiles] for _ in range(2)]

    def load(chunk, room):
        if chunk < lane.chunks:
            for tile, (target, beside) in zip(tiles, rooms[room], strict=True):
                for half in tw.static_range(2):
                    for vector in tw.static_range(plan.vectors):
                        place = (tile, chunk, (half * plan.vectors + vector) * 32 + lane.lane)
                        source = tw.local_tile(lane.packed, (1, 1, 4), place)
                        tw.copy(plan.read, source[0, 0, :], target[:, vector, half])
                lane.read_groups(tile, chunk, beside)
            for i in tw.static_range(plan.rows // 2):  # two rows of 256 bytes at once
                row, vector = 2 * i + lane.lane // 16, lane.lane % 16
                source = tw.local_tile(A, (1, 8), (m_block * plan.rows + row, chunk * 16 + vector), guard=True)
                tw.copy(plan.copy_x, source[0, :], tw.local_tile(sX[row, :, room], (8,), (vector,)))
        tw.cp_async_commit()

    def read_x(room):
        tw.cp_async_wait(0)
        tw.sync_warp()
        for atom in tw.static_range(plan.tokens // 8):
            for i in tw.static_range(4):
                row = sX[(8 * atom + lane.lane % 8) % plan.rows, :, room]
                tw.copy(plan.load_x, tw.local_tile(row, (8,), (4 * i + lane.lane // 8,)), x[:, i, atom])

    def multiply(room):
        words, groups = zip(*rooms[room], strict=True)
        scales, zeros = [s for s, _ in groups], None if lane.zeros is None else [z for _, z in groups]
        multiply_chunk(plan, acc, part, w, lambda s: fragments[:, :, s], words, scales, zeros)

    fragments = x.map_layout(lambda _: plan.x_fragments)
    tw.clear(acc)
    load(warp, 0)
    for first in tw.range(warp, lane.chunks, 2 * plan.shares, unroll=1):
        for room in tw.static_range(2):
            chunk = first + room * plan.shares
            if room == 0 or chunk < lane.chunks:
                read_x(room)
                load(chunk + plan.shares, 1 - room)
                multiply(room)

    finish_block(plan, acc, thread, warp, D, rest, numbers, (m_block, n_block, batch), alpha, beta)


@tw.kernel
def multiply_weights(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute a tile of D = epilogue(alpha * A @ weights, operands) for many rows of A.

    Tiles of x and of the weights come through a ring of stages by cp.async. The warps of a block share columns, rows
    and, with few of these, K: a stage has as many chunks as K has warps.
    """
    n_block, m_block, batch = block_of(plan, D.shape)
    scales_and_zeros, rest, numbers = taken_apart(plan, operands)
    D, A, *rest = (x[:, :, batch] for x in (D, A, *rest))

    tid = tw.thread_idx.x
    lane, share, warp = Lane(plan, B, scales_and_zeros), tid // plan.mma.size, tid % plan.mma.size // 32
    across = warp % plan.warps[0]  # the warp's place among columns
    tiles = [lane.tile(n_block * plan.block_tiles + t * plan.warps[0] + across) for t in range(plan.tiles)]
    thread, filler = plan.mma.get_slice(tid % plan.mma.size), plan.fill.get_slice(tid)
    sX, sW = tw.shared(A.dtype, plan.smem_x), tw.shared(tw.uint32, plan.smem_w)
    pipe, steps = tw.pipeline(plan.stages), tw.ceil_div(lane.chunks, plan.shares)

    def fill(k, stage):
        if k < steps:
            source = tw.local_tile(A, (plan.tokens, 128 * plan.shares), (m_block, k), guard=True)
            tw.copy(plan.fill, filler.partition_S(source), filler.partition_D(sX[:, :, stage]))
            for i in tw.static_range(plan.word_vectors // plan.threads):
                number = tid + i * plan.threads  # vectors of a chunk, chunks, tiles
                vector, chunk = number % plan.vectors_of_block, number // plan.vectors_of_block % plan.shares
                tile = number // plan.vectors_of_block // plan.shares
                place = (n_block * plan.block_tiles + tile, k * plan.shares + chunk, vector)
                source = tw.local_tile(lane.packed, (1, 1, 4), place, guard=True)
                tw.copy(plan.copy_words, source[0, 0, :], sW[(None, vector), chunk, tile, stage])
        pipe.commit()

    w = tw.registers(A.dtype, plan.mma.partition_shape((plan.columns, 16), "A"))
    shape = plan.mma.partition_shape((plan.columns, plan.tokens), "C")
    acc, part = tw.registers(tw.float32, shape), tw.registers(tw.float32, shape)
    x = tw.registers(A.dtype, plan.mma.partition_shape((plan.tokens, 16), "B"))
    loader = plan.load_x.get_slice(tid % plan.mma.size)
    loaded = loader.retile_D(x)
    held = [tw.registers(tw.uint32, plan.word_layout) for _ in tiles]

    def read(k):
        chunk = tw.minimum(k * plan.shares + share, lane.chunks - 1)
        return [lane.read_groups(tile, chunk) for tile in tiles]

    def x_of(step, stage):
        tw.copy(plan.load_x, loader.partition_S(sX[:, (None, share), stage])[:, :, step], loaded[:, :, 0])
        return x[:, :, 0]

    tw.clear(acc)
    for k in tw.static_range(pipe.ahead):
        fill(k, k)
    groups = read(0)
    scales, zeros = [s for s, _ in groups], None if lane.zeros is None else [z for _, z in groups]
    for k in tw.range(steps, unroll=1):
        pipe.wait()
        fill(k + pipe.ahead, pipe.write_stage(k))
        coming = read(k + 1)
        stage = pipe.read_stage(k)
        for t, words in enumerate(held):
            tile = t * plan.warps[0] + across
            for half in tw.static_range(2):
                for vector in tw.static_range(plan.vectors):
                    number = (half * plan.vectors + vector) * 32 + lane.lane
                    tw.copy(sW[(None, number), share, tile, stage], words[:, vector, half])

        # Behind the last chunk there is nothing to add: sums of zeros times a scale that is not finite are not zeros.
        is_chunk = True if plan.shares == 1 else k * plan.shares + share < lane.chunks
        if is_chunk:
            multiply_chunk(plan, acc, part, w, lambda s, stage=stage: x_of(s, stage), held, scales, zeros)
        for t in tw.static_range(plan.tiles):
            tw.copy(coming[t][0], scales[t])
            if zeros is not None:
                tw.copy(coming[t][1], zeros[t])

    pipe.drain()
    finish_block(plan, acc, thread, share, D, rest, numbers, (m_block, n_block, batch), alpha, beta)


def taken_apart(plan, operands):
    """Return scales and zeros, the epilogue's operands, and its numbers."""
    end = len(operands) - len(plan.epilogue.numbers)
    return operands[: plan.arrays], operands[plan.arrays : end], operands[end:]


@tw.function
def finish_block(plan, acc, thread, share, D, operands, numbers, block, alpha, beta):
    """Add the accumulators of the warps that share K, in their order, and write the block's tile of D."""
    sums = tw.shared(tw.float32, plan.sums)
    tw.copy(acc, thread.partition_C(sums[:, :, share]))
    tw.sync_threads()
    epilogue = plan.epilogue.bind(numbers)
    for i in tw.range(tw.thread_idx.x, plan.columns * plan.tokens, plan.threads):
        column, token = i % plan.columns, i // plan.columns
        place = block[0] * plan.tokens + token, block[1] * plan.columns + column
        total = sums[column, token, :].reduce("add")
        if epilogue.is_gated:  # partners are behind all columns of results
            total = total, sums[column + plan.columns, token, :].reduce("add")
        finish_elements(epilogue, total, D, operands, place, alpha, beta, block[2])


def block_of(plan, extents):
    """Return the block of columns, that of rows, and the matrix of the batch.

    Blocks that run at the same time take all columns for some rows, or all rows for some columns where those are few.
    """
    columns, rows = tw.ceil_div(extents[1], plan.columns), tw.ceil_div(extents[0], plan.tokens)
    block = tw.block_idx.x
    return block // rows % columns, block % rows, block // columns // rows


@tw.kernel
def unpack_weights(W, packed, scales, zeros, weights: tw.constexpr):
    """Write W[n, k] = (q - zero) * scale, rounded once, where `weights.py` says that q, zero and scale lie.

    A block writes 16 columns of the weights by 128 of K, and a thread the 16 of K of one step.
    """
    tile, chunk = tw.block_idx.x, tw.block_idx.y
    column, step = tw.thread_idx.x // 8, tw.thread_idx.x % 8
    half, row = column // 8, column % 8
    words = packed.recast(tw.uint32)
    group = (128 * chunk + 16 * step) // weights.group
    place = tile, group, 2 * row + half
    scale = scales[place].to(tw.float32)
    zero = tw.int32(weights.zero) if weights.zero is not None else zeros[place].to(tw.int32)
    values = tw.registers(W.dtype, (16,))
    for quad in tw.static_range(4):
        lane = 4 * row + quad
        if weights.bits == 4:
            word = words[tile, chunk, 128 * half + 4 * lane + step // 2] >> (8 * (step % 2))
        else:
            word = words[tile, chunk, 256 * half + 128 * (step // 4) + 4 * lane + step % 4]
        for h in tw.static_range(2):
            for e in tw.static_range(2):
                code = (word >> (weights.bits * h + 16 * e)) & (2**weights.bits - 1)
                values[8 * h + 2 * quad + e] = ((code.to(tw.int32) - zero).to(tw.float32) * scale).to(W.dtype)
    tw.copy(values, tw.local_tile(W, (1, 16), (16 * tile + column, 8 * chunk + step), guard=True)[0, :])
