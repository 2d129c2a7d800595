"""How the consumers of the Hopper kernel turn accumulators into results, and how those leave; traced into kernels.

Before that blocks that share the K of a tile add up their accumulators.
"""

import tilewright as tw
from tilewright.kernels._further_kernel import over_quad, reduce_part, scale_of
from tilewright.kernels._places_kernel import Places
from tilewright.kernels.hopper_plan import WARPGROUP
from tilewright.kernels.problem import BLOCK

BOX = 8  # rows that are stored between two pauses


class Peers:
    """The blocks of a cluster that share the K of a tile: the first `owners` add up the sums of as many parts of it.

    The parts are columns side by side. When all of a block have read its stages, what belongs to other blocks goes to
    those of `buffer`, or where they are too small to memory of its own, and from there by bulk copies to a place that
    its owner has for each of the others. Stores of threads to there would need a fence of about a microsecond. Where
    the plan `lends`, the owners' places lie in stages too. A cluster computes one tile.
    """

    def __init__(self, plan, buffer):
        m, n, _ = plan.tile
        threads, dtype = plan.mma.size, plan.mma.atom.dtype_c
        self.plan, self.owners, self.others = plan, plan.owners, plan.peers - 1
        self.count, leaving = m * n // threads // self.owners, min(self.owners, self.others)
        self.first = leaving if plan.lends else 0  # of the places for what comes

        def layout(places):
            return tw.Layout((threads, self.count, places), (1, threads, threads * self.count))

        if buffer is None:
            self.sent = tw.shared(dtype, layout(leaving))
        else:
            self.sent = tw.make_tensor(buffer.recast(dtype).engine, layout(self.first + leaving))
        self.sums = self.sent
        if not plan.lends:
            self.sums = tw.shared(dtype, layout(self.others))
            self.sums.engine.buffer.name = "sums"
        self.ready, self.arrived, self.left = tw.mbarrier(threads // 32), tw.mbarrier(1), tw.mbarrier(self.owners)
        if plan.lends:
            self.read, self.free = tw.mbarrier(1), tw.mbarrier(self.owners)
        self.meet = tw.named_barrier(4, threads)
        self.rank, self.thread = tw.block_rank_in_cluster(), tw.thread_idx.x - WARPGROUP

    def pieces(self, acc, owner):
        """Return the registers of an owner's part of the accumulators: the first place, and those from there on."""
        if self.owners == 1:
            return [(0, acc, 0, self.count)]
        waves = acc.shape[1]
        each = self.count // waves
        return [(wave * each, acc[:, wave, 0], owner * each, each) for wave in range(waves)]

    @tw.function
    def exchange(self, acc):
        """Leave what belongs to other blocks to be sent, and return the sums of this one's part, if it has one."""
        self.meet.sync()
        if self.plan.lends and self.thread == 0:
            self.read.arrive()
        for owner in tw.static_range(self.owners):
            if self.rank != owner:
                place = owner - tw.where(self.rank < owner, 1, 0)
                for begin, registers, first, each in self.pieces(acc, owner):
                    for i in tw.range(each, unroll=True):
                        self.sent[self.thread, begin + i, place] = registers[first + i]
        tw.fence_proxy_async()
        tw.sync_warp()
        if tw.elect_one():
            self.ready.arrive()
        tw.cluster_wait()  # as all threads of a cluster have to: the one that sends needs it
        mine = self.own(acc)
        if self.rank < self.owners:
            self.arrived.wait(0)
            for other in tw.static_range(self.others):
                for i in tw.range(self.count, unroll=True):
                    mine[i] += self.sums[self.thread, i, self.first + other]
        return mine

    @tw.function
    def send(self):
        """Send what `exchange` left, by a thread of the producer's warpgroup, and stay while others need this block."""
        if self.rank < self.owners:
            self.arrived.arrive_expect_tx(4 * self.plan.mma.size * self.count * self.others)
        if self.plan.lends:
            self.read.wait(0)
            self.tell(self.free)  # wgmma alone has read the stages, and was waited for
            self.free.wait(0)
        self.ready.wait(0)
        for owner in tw.static_range(self.owners):
            if self.rank != owner:
                ours, there = owner - tw.where(self.rank < owner, 1, 0), self.rank - tw.where(self.rank > owner, 1, 0)
                target = self.sums.at_rank(owner)[:, :, self.first + there]
                arrived = self.arrived.at_rank(owner)
                tw.copy(tw.atoms.SM90_BULK_COPY_S2S, self.sent[:, :, ours], target, barrier=arrived)
        if self.rank < self.owners:
            self.arrived.wait(0)
            self.tell(self.left)
        self.left.wait(0)  # all owners have what was sent from here

    @tw.function
    def tell(self, barrier):
        """Arrive at a barrier of each block, this one among them; nothing was written that these would see."""
        for rank in tw.static_range(self.plan.peers):
            barrier.at_rank(rank).arrive(relaxed=True)

    @tw.function
    def own(self, acc):
        """Return the accumulators of this block's part."""
        if self.owners == 1:
            return acc
        waves = acc.shape[1]
        mine = tw.registers(acc.dtype, (self.count // waves, waves, 1))
        tw.clear(mine)  # so that registers are not kept for what no branch writes
        for owner in tw.static_range(self.owners):
            if self.rank == owner:
                for place, registers, first, each in self.pieces(acc, owner):
                    for i in tw.static_range(each):
                        mine[place + i] = registers[first + i]
        return mine


def results_buffer(plan, D):
    """Return the shared memory through which results leave, None where they leave from registers."""
    return tw.shared(D.dtype, plan.smem_d) if plan.stores_boxes or plan.rows is not None else None


class Results:
    """Where the results of a block's tiles go: through the epilogue to D, or as `sums` of a piece of K to a slot."""

    def __init__(self, plan, epilogue, sD, D, operands, alpha, beta, sums=None):
        self.plan, self.epilogue, self.sD, self.D = plan, epilogue, sD, D
        self.operands, self.alpha, self.beta, self.sums = operands, alpha, beta, sums

    def begin(self, place, consumer):
        """Return what is read for a tile before it is multiplied."""
        return Operands(self.plan, self.epilogue, self.operands, self.D, Pieces(self.plan, place, consumer))

    def settle(self):
        """Complete what the consumer's tile before has begun, when the next one is multiplied; here nothing is left."""

    @tw.function
    def finish(self, acc, place, consumer, ready=None, owner=None):
        """Write the results of a consumer's accumulators."""
        put = self.epilogue, acc, self.sD, self.D, self.operands, place, consumer, self.alpha, self.beta
        finish(self.plan, *put, ready, owner)

    @tw.function
    def leave(self, acc, thread, slot):
        """Write the accumulators of a piece; `thread` is the slice of the instructions that they are of."""
        tw.copy(acc, thread.partition_C(slots(self.plan, self.sums)[:, :, slot]))

    @tw.function
    def end(self):
        """Wait for the stores of the last tile: the buffer is there until the last one has read it."""
        if self.plan.stores_boxes and not self.plan.takes_turns and tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)


def slots(plan, sums):
    """Return the sums of pieces, (m, n, slot), whose rows lie one behind another."""
    m, n, _ = plan.tile
    return tw.Tensor(sums.engine, tw.Layout((m, n, sums.shape[2]), (n, 1, m * n)))


class Pieces:
    """The parts of a consumer's tile, of which results are finished one after another.

    `place` is the tile's row and column, counted in tiles, and its matrix of the batch. `owner` is the consumer whose
    buffers the results pass through, where that is not the one that counts in the tile's rows.
    """

    def __init__(self, plan, place, consumer, owner=None):
        self.plan, self.place, self.consumer = plan, place, consumer
        self.owner = consumer if owner is None else owner
        rows, columns = plan.part.tiler_mn
        height, width = plan.results
        self.parts, self.groups = width // plan.owners // columns, plan.mma.size // WARPGROUP
        self.waves = height // (rows * self.groups)
        self.batch = place[2]
        self.count = self.waves * self.parts

    def where(self, wave, part):
        """Return the place of a part, counted in parts."""
        row, column, _ = self.place
        return (row * self.waves + wave) * self.groups + self.consumer, self.parts * column + part

    def first(self, extents, wave, part):
        """Return the row and column of the thread's first result of a part."""
        thread = self.plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        identity = tw.local_tile(tw.identity_tensor(extents), self.plan.part.tiler_mn, self.where(wave, part))
        return thread.partition_C(identity)[0]

    def places(self, extents, wave, part):
        """Return the places of the thread's results of a part, and of each how far it is from the first."""
        steps = self.plan.part.get_slice(0).partition_C(tw.identity_tensor(self.plan.part.tiler_mn))
        # A quad has pairs of columns side by side: two bits of the first column are the thread's. Parts of 16 columns
        # begin with four bits 0 beside these, and so on.
        columns = self.plan.part.tiler_mn[1]
        first = Places(*self.first(extents, wave, part), self.batch, zeros=(columns & -columns) - 1 & 0b11001)
        return first, [steps[i] for i in range(tw.size(steps))]


class Operands:
    """What a thread reads of the operands for the results of a tile, before the tile's products where it can.

    Of operands that are the same in all columns, as scales of rows are, a thread reads each value once. Of those that
    are the same in all rows, as biases are, the lanes of a warp hold the values of columns side by side, and a thread
    gets what it needs by shuffles. Matrices are read with the part that needs them.
    """

    def __init__(self, plan, epilogue, operands, D, pieces):
        self.plan, self.epilogue, self.pieces, self.extents = plan, epilogue, pieces, D.shape[:2]
        self.arrays = [x[:, :, pieces.batch] for x in epilogue.where_stored(operands)[0]]
        self.modes = [varying_mode(x) for x in self.arrays]
        steps = plan.part.get_slice(0).partition_C(tw.identity_tensor(plan.part.tiler_mn))
        self.steps = [steps[i] for i in range(tw.size(steps))]
        self.rows = [self.of_rows(wave) for wave in range(pieces.waves)]
        self.columns = [self.of_columns(n) if mode == 1 else None for n, mode in enumerate(self.modes)]
        thread = plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        self.within = thread.partition_C(tw.identity_tensor(plan.part.tiler_mn))[0][1]  # the first column of a part

    def of_rows(self, wave):
        """Return what operands that differ along rows alone have for a wave: by the distance from its first row."""
        first = self.pieces.first(self.extents, wave, 0)[0]
        distances = sorted({row for row, _ in self.steps})
        found = {}
        for n, x in enumerate(self.arrays):
            if self.modes[n] == 0:
                inside = tw.guarded(x[:, 0])  # outside of D the value makes no difference
                found[n] = {distance: inside[first + distance] for distance in distances}
        return found

    def of_columns(self, n):
        """Return a lane's values of an operand: of every 32nd column of the tile."""
        width, inside = self.plan.part.tiler_mn[1], tw.guarded(self.arrays[n][0, :])
        first = self.pieces.where(0, 0)[1] * width + tw.lane_id()
        return [inside[first + 32 * i] for i in range(-(-self.pieces.parts * width // 32))]

    def widened(self):
        """Return them with lanes' values of a bias in the type in which it is added, which saves a conversion a result.

        Behind the products, for these do not wait. Others, for in one branch of two these would change their type.
        """
        epilogue, sums, found = self.epilogue, self.plan.mma.atom.dtype_c, object.__new__(type(self))
        found.__dict__.update(self.__dict__, columns=list(self.columns))
        if sums is tw.float32 and not epilogue.is_gated:
            for n in range(epilogue.scales, epilogue.scales + epilogue.has_c + epilogue.has_bias):
                if self.modes[n] == 1:
                    found.columns[n] = [x.to(sums) for x in self.columns[n]]
        return found

    def take(self, wave, part):
        """Return for each operand what gives its value for an accumulator of a part."""
        begin = part * self.plan.part.tiler_mn[1]
        thread = self.plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        found = []
        for n, x in enumerate(self.arrays):
            if self.modes[n] is None:
                found.append(load_part(self.plan, thread, x, self.pieces.where(wave, part)))
            elif self.modes[n] == 0:
                found.append([self.rows[wave][n][row] for row, _ in self.steps])
            else:
                # A quad has eight columns side by side: all four lanes read the same register of the others.
                values = {}
                for step in sorted({column for _, column in self.steps}):
                    number = begin + step
                    values[step] = tw.shuffle(self.columns[n][number // 32], number % 32 + self.within)
                found.append([values[column] for _, column in self.steps])
        return found


def varying_mode(matrix):
    """Return the mode along which alone a matrix differs, None if along both; one number differs along the rows."""
    is_same = [isinstance(step, int) and step == 0 for step in matrix.stride]
    return 0 if is_same[1] else 1 if is_same[0] else None


@tw.function
def finish(plan, epilogue, acc, sD, D, operands, place, consumer, alpha, beta, ready=None, owner=None, pause=None):
    """Compute the results of a consumer's accumulators and write them, `plan.part` at a time.

    `ready` are the `Operands` of the tile, if they were begun before; `owner` as in `Pieces`, `pause` in `store_boxes`.
    Where D is divided by scales, those of a block of columns come first, and its values are kept in the accumulators.
    """
    pieces = Pieces(plan, place, consumer, owner)
    ready = (Operands(plan, epilogue, operands, D, pieces) if ready is None else ready).widened()
    together = 1 if epilogue.scale is None else BLOCK // plan.part.tiler_mn[1]
    for wave in tw.static_range(pieces.waves):
        for first in tw.static_range(0, pieces.parts, together):
            scales = None if epilogue.scale is None else RowScales(plan, D)
            for part in tw.static_range(first, first + together):
                where, elements = pieces.where(wave, part), ready.take(wave, part)
                out, others = compute_part(plan, epilogue, acc, pieces, (wave, part), D, elements, alpha, beta)
                if scales is None:
                    store_part(plan, out, sD, D, pieces, wave, part, pause)
                put_others(plan, epilogue, others, operands, where, pieces.batch, D.shape[:2], scales)
            if scales is not None:
                target = epilogue.where_stored(operands)[1][epilogue.scale]
                block = (pieces.parts * place[1] + first) // together
                scales.finish(target[:, :, pieces.batch], where, block, D.shape)
                for part in tw.static_range(first, first + together):
                    out = tw.registers(D.dtype, plan.part.partition_shape(plan.part.tiler_mn, "C"))
                    for i in tw.static_range(tw.size(out)):
                        out[i] = scales.scaled(of_part(acc, i, wave, part * tw.size(out)), i).to(D.dtype)
                    store_part(plan, out, sD, D, pieces, wave, part)


@tw.function
def compute_part(plan, epilogue, acc, pieces, place, D, elements, alpha, beta):
    """Return the results of a part, and the values of further results; `elements` are the operands'.

    Where D is divided by scales, the values of D take the accumulators' place.
    """
    wave, part = place
    out = tw.registers(D.dtype, plan.part.partition_shape(plan.part.tiler_mn, "C"))
    others = [tw.registers(x.dtype, out.shape) for x in epilogue.further]
    count = tw.size(out)
    places, steps = pieces.places(D.shape[:2], wave, part) if epilogue.places else (None, None)
    for i in tw.static_range(count):
        value = total_of(plan, acc, pieces, i, wave, part * count)
        where = None if places is None else places.at(*steps[i])
        found = epilogue.apply_all(value, alpha, beta, [x[i] for x in elements], where)
        if epilogue.scale is None:
            out[i] = found[0].to(D.dtype)
        else:
            acc[:, wave, 0][part * count + i] = found[0].to(acc.dtype)
        for other, value in zip(others, epilogue.further_values(found), strict=True):
            other[i] = value
    return out, others


@tw.function
def put_others(plan, epilogue, others, operands, where, batch, extents, scales):
    """Write what a part has of further results; `scales` see theirs."""
    _, further = epilogue.where_stored(operands)
    for n in tw.static_range(len(further)):
        if epilogue.further[n].operation == "scale":
            scales.see(others[n], where)
        else:
            put(plan, epilogue.further[n], others[n], further[n][:, :, batch], extents, where)


class RowScales:
    """The scales of a thread's rows in a block of columns: of the greatest absolute value that the row has there."""

    def __init__(self, plan, D):
        self.plan, self.extents, self.dtype = plan, D.shape[:2], D.dtype
        steps = plan.part.get_slice(0).partition_C(tw.identity_tensor(plan.part.tiler_mn))
        self.rows = [steps[i][0] for i in range(tw.size(steps))]
        self.most = {row: tw.float32(0) for row in self.rows}

    def see(self, values, where):
        """Take account of the values of a part; those outside of D count as 0."""
        thread = self.plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        steps = self.plan.part.get_slice(0).partition_C(tw.identity_tensor(self.plan.part.tiler_mn))
        _, column = thread.partition_C(tw.local_tile(tw.identity_tensor(self.extents), self.plan.part.tiler_mn, where))[
            0
        ]
        for i, row in enumerate(self.rows):
            inside = column + steps[i][1] < self.extents[1]
            self.most[row] = tw.maximum(self.most[row], tw.where(inside, values[i], 0.0))

    @tw.function
    def finish(self, target, where, block, extents):
        """Compute the scales, and write them to [row, block]."""
        thread = self.plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        first, _ = thread.partition_C(tw.local_tile(tw.identity_tensor(self.extents), self.plan.part.tiler_mn, where))[
            0
        ]
        self.inverse = {}
        for row in self.most:
            scale = scale_of(over_quad(self.most[row]), self.dtype)
            self.inverse[row] = 1.0 / scale
            if (tw.lane_id() % 4 == 0) & (first + row < extents[0]) & (block * BLOCK < extents[1]):
                target[first + row, block] = scale

    def scaled(self, value, i):
        """Return a value over the scale of its row."""
        return value * self.inverse[self.rows[i]]


@tw.function
def store_part(plan, out, sD, D, pieces, wave, part, pause=None):
    """Write the results of a part."""
    number, where = wave * pieces.parts + part, pieces.where(wave, part)
    # In ping-pong the other consumer has told that it is; where peers compute one tile, none was before.
    begins_free = plan.takes_turns or plan.peers > 1
    is_free = begins_free and number == 0
    if plan.stores_boxes:
        buffer = sD[:, :, pieces.owner * plan.buffers + number % plan.buffers]
        reads = Reads(plan.buffers, pieces.count, begins_free)
        is_free = is_free or reads.free(number)
        turns = reads.awaits(number), reads.commits(number)
        store_boxes(plan, out, buffer, D, (*where, pieces.batch), is_free, *turns, pause)
    elif plan.rows is not None:
        store_rows(plan, out, sD[:, :, pieces.owner], D[:, :, pieces.batch], where, is_free)
    else:
        thread = plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
        tile = tw.local_tile(D[:, :, pieces.batch], plan.part.tiler_mn, where, guard=True)
        tw.copy(out, thread.partition_C(tile))


class Reads:
    """When the stores of a tile's parts have to have read their buffers, of which there are one or two.

    With two, part i waits behind its own writes for the store of part i - 1, whose buffer part i + 1 takes: of the same
    tile, or of the next one where an even number of parts ends in the second buffer, unless that begins with free ones.
    """

    def __init__(self, buffers, count, begins_free):
        self.alternates, self.count = buffers > 1, count
        self.goes_on = count % 2 == 0 and not begins_free

    def free(self, number):
        """Return whether a part before has seen to it that a part's buffer is free."""
        return self.alternates and (number > 0 or self.goes_on)

    def awaits(self, number):
        """Return whether a part waits behind its writes."""
        return self.alternates and (self.goes_on or 1 <= number < self.count - 1)

    def commits(self, number):
        """Return whether a wait tells a part's store from the next one's."""
        return not self.alternates or number == self.count - 1 or self.awaits(number + 1)


@tw.function
def put(plan, kind, values, target, extents, where):
    """Store the values of a further result of a part, or what they leave of each row or column."""
    if kind.operation is None:
        tile = tw.local_tile(target, plan.part.tiler_mn, where, guard=True)
        tw.copy(values, plan.part.get_slice(tw.thread_idx.x % WARPGROUP).partition_C(tile))
    else:
        reduce_part(kind, plan.part, values, extents, where, target)


def of_part(acc, i, wave, first):
    """Return an accumulator of a wave of instructions."""
    return acc[:, wave, 0][first + i]


def total_of(plan, acc, pieces, i, wave, first):
    """Return an accumulator of a wave of instructions, of pairs with its partner.

    Partners are in the second half of a tile's columns, as many registers further. Where D^T is computed they are in
    the second half of its rows, as many waves further, or 8 rows further, of which a thread has two neighbours each.
    """
    if plan.alternates:
        gate = 2 * first + 4 * (i // 2) + i % 2
        return of_part(acc, gate, wave, 0), of_part(acc, gate + 2, wave, 0)
    total = of_part(acc, i, wave, first)
    if not plan.epilogue.is_gated:
        return total
    if plan.is_swapped:
        return total, of_part(acc, i, wave + pieces.waves, first)
    return total, of_part(acc, i, wave, first + tw.size(acc[:, wave, 0]) // 2)


def load_part(plan, thread, tensor, where):
    """Return the elements of an operand for the accumulators of a part, where they exist."""
    source = thread.partition_C(tw.local_tile(tensor, plan.part.tiler_mn, where, guard=True))
    found = tw.registers(tensor.dtype, source.shape)
    tw.copy(source, found)
    return found


@tw.function
def store_boxes(plan, out, buffer, D, where, is_free, awaits, commits, pause=None):
    """Write a part of the results to shared memory, when it is free, and begin its store by TMA.

    Of two buffers the one is written while the store before reads the other; when all have written, that is free, if
    the part `awaits` it. With a `pause` of so many nanoseconds 8 rows are stored at a time, and a pause after each.
    """
    group = tw.warpgroup_id()
    ours, is_leader = tw.named_barrier(group, WARPGROUP), tw.thread_idx.x % WARPGROUP == 0
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    if not is_free:
        if is_leader:
            tw.tma_store_wait(0)  # the store before has read the buffer
        ours.sync()
    tw.copy(plan.write, writer.retile_S(out), writer.partition_D(buffer))
    tw.fence_proxy_async()
    if awaits and is_leader:
        tw.tma_store_wait(0)
    ours.sync()
    if is_leader:
        rows, columns = plan.part.tiler_mn
        boxes = 1 if pause is None else rows // BOX
        for i in tw.static_range(boxes):
            box, (m, n, batch) = (rows // boxes, columns), where
            tile = tw.local_tile(D, (*box, 1), (m * boxes + i, n, batch), guard=True)[:, :, 0]
            tw.copy(tw.atoms.SM90_TMA_STORE, tw.local_tile(buffer, box, (i, 0)), tile)
            if pause is not None:
                sleep(pause)
        if commits:
            tw.tma_store_commit()


def sleep(nanoseconds):
    """Let the thread rest for about so long."""
    tw.inline_ptx("nanosleep.u32 %0;", nanoseconds, lambda x: None, volatile=True)


@tw.function
def store_rows(plan, out, buffer, D, where, is_free):
    """Write a part of the results to shared memory, when it is free, and from there row by row."""
    ours, thread = tw.named_barrier(tw.warpgroup_id(), WARPGROUP), tw.thread_idx.x % WARPGROUP
    writer, reader = plan.write.get_slice(thread), plan.rows.get_slice(thread)
    if not is_free:
        ours.sync()  # all have read the buffer
    tw.copy(plan.write, writer.retile_S(out), writer.partition_D(buffer))
    ours.sync()
    tile = tw.local_tile(D, plan.part.tiler_mn, where, guard=True)
    tw.copy(plan.rows, reader.partition_S(buffer), reader.partition_D(tile))
