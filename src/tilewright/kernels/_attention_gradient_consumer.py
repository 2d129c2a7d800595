"""What a warpgroup does that multiplies for the gradients of attention; device code, traced into kernels.

The kernel, and what its other warps do, is in `_attention_gradient_kernel`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple  # Any: device values

import tilewright as tw
from tilewright.kernels._attention_sequences import WARPGROUP, clear_behind


class Shared(NamedTuple):
    """The shared memory of a block."""

    KV: Any  # (keys, head, which)
    QG: Any  # (tokens, head, stage): first all stages of Q, then those of dO
    W: Any  # (keys, tokens, stage), or P and W
    sums: Any  # a piece of dQ, of each consumer
    tops: Any  # (tokens, stage)
    deltas: Any


class Barriers(NamedTuple):
    """The barriers of W, and of pieces of dQ."""

    written: Any
    used: Any
    full: Any
    empty: Any


class Consumer:
    """A warpgroup that multiplies: its parts of shared memory, its sums, and a step of them."""

    @tw.function
    def __init__(self, plan, place, shared, barriers, dtype, scale, before, after):
        self.plan, self.place, self.shared, self.barriers = plan, place, shared, barriers
        self.dtype, self.scale, self.before, self.after = dtype, scale, before, after
        # Of a number that comes from one lane the compiler knows that it is the same in all.
        self.consumer, self.tid = tw.shuffle(tw.warpgroup_id() - 1, 0), tw.thread_idx.x - WARPGROUP
        of_scores = self.tid % plan.scores.size
        by_sums, by_tokens = (mma.get_slice(self.consumer * WARPGROUP) for mma in (plan.sums, plan.tokens))
        by_scores = plan.scores.get_slice(of_scores if plan.is_divided else self.consumer * WARPGROUP)
        self.tKV, self.tQG = by_scores.partition_A(shared.KV), by_scores.partition_B(shared.QG)
        self.turned_qg = by_sums.partition_B(shared.QG.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
        self.tP = by_sums.partition_A(shared.W) if plan.is_divided else None
        self.tW = by_tokens.partition_A(shared.W.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
        turned, self.wide = (
            shared.KV[:, :, 0].map_layout(lambda layout: tw.select(layout, 1, 0)),
            plan.head // plan.parts,
        )
        self.turned_k = [
            by_tokens.partition_B(tw.local_tile(turned, (self.wide, plan.rows), (n, 0))) for n in range(plan.parts)
        ]
        self.acc_k, self.acc_v = (fragment(plan.sums, plan.rows, plan.head) for _ in "KV")
        tw.clear(self.acc_k)
        tw.clear(self.acc_v)
        whole_tile = tw.identity_tensor((plan.rows, plan.columns))
        # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
        self.at, self.at_of_first = (
            tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (of_scores, 0)
        )
        self.part_of_step = tw.make_tensor(shared.sums.engine, plan.quads)
        self.writer, self.reader = plan.write.get_slice(of_scores), plan.read.get_slice(of_scores)
        self.first = place.tile * plan.rows
        self.beside = self.first + place.tokens - place.keys

    @tw.function
    def add_up(self, there, state, group):
        """Add up dK and dV of the tokens that see the keys, in all heads of a group, and pass parts of dQ on."""
        plan, place = self.plan, self.place
        self.put_nothing()
        there.acquire()
        if place.is_cut:
            of_both = [self.shared.KV[:, :, which] for which in range(2)]
            clear_behind(of_both, tw.maximum(place.keys - self.first, 0), plan)
        steps = group * (place.end - place.begin)
        column, heads_left = (place.end - 1) * plan.columns, group
        for n in tw.range(1, steps + 1, unroll=1):
            stage = state.acquire()
            if place.is_packed:
                of_both = [self.shared.QG[:, :, stage], self.shared.QG[:, :, plan.stages + stage]]
                clear_behind(of_both, place.tokens - column, plan)
            S = fragment(plan.scores, plan.rows, plan.columns)
            if plan.is_divided:  # passed on under this product, and the other half under that of dK
                acc_q = self.begin_tokens(n - 1, 1)
            self.begin_scores(self.consumer if plan.is_divided else 0, stage, S)
            tw.wgmma_wait(1)  # the product of the step before with its W
            if plan.is_divided:
                signal(self.barriers.used[1])
            if n > 1:
                state.give_back(tw.where(stage == 0, plan.stages, stage) - 1)
                if plan.is_divided:
                    self.pass_on(n - 1, acc_q, 1)
            if plan.is_divided:
                tw.wgmma_wait(0)
                self.divide(n, stage, column, S)
            else:
                self.multiply(n, stage, column, S)
            column = tw.where(heads_left == 1, column - plan.columns, column)
            heads_left = tw.where(heads_left == 1, group, heads_left - 1)
        if plan.is_divided:  # or the compiler moves sums of the loop while a product runs, and serialises products
            tw.wgmma_wait(0)
        acc_q = self.begin_tokens(steps, plan.parts - 1)
        tw.wgmma_wait(0)
        if steps > 0:
            self.pass_on(steps, acc_q, plan.parts - 1)

    @tw.function
    def put_nothing(self):
        """Write zeros for the weights of the step before the first one, which there is not."""
        none = fragment(self.plan.scores, self.plan.rows, self.plan.columns)
        tw.clear(none)
        if self.plan.is_divided:
            for which in tw.static_range(2):
                if self.consumer == which:
                    self.put(which, none)
            signal(self.barriers.used[0])
        else:
            self.put(0, none)

    @tw.function
    def multiply(self, n, stage, column, S):
        """Compute a step of 64 keys: P and W stay in registers, and W is written for the next step too."""
        plan, used = self.plan, self.barriers.used
        stages = self.shared.W.shape[2]
        dP = fragment(plan.scores, plan.rows, plan.columns)
        scores, slopes = tw.accumulator_rows(plan.scores, S), tw.accumulator_rows(plan.scores, dP)
        self.begin_scores(1, stage, dP)
        tw.wgmma_wait(1)
        self.weigh(scores, stage, column)
        weights = tw.as_operand_a(plan.scores, S, to=plan.sums)
        # Long rows of scores do not fit into registers beside all else; as weights they do.
        shares = scores
        if plan.columns > 64:
            shares = tw.accumulator_rows(plan.scores, tw.make_tensor(weights.engine, S.layout))
        tw.wgmma_fence()
        tw.gemm(plan.sums, weights, self.turned_qg[:, :, :, plan.stages + stage], self.acc_v)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        self.incline(slopes, shares, stage)
        used[n % stages].wait((n // stages + 1) % 2)
        self.put(n % stages, dP)
        steep = tw.as_operand_a(plan.scores, dP, to=plan.sums)
        acc_q = self.begin_tokens(n - 1, 0)
        tw.gemm(plan.sums, steep, self.turned_qg[:, :, :, stage], self.acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[(n - 1) % stages])
        if n > 1:
            self.pass_on(n - 1, acc_q, 0)

    @tw.function
    def divide(self, n, stage, column, S):
        """Compute a step of half of the head: one consumer has P, and the other one W."""
        plan, written, used = self.plan, self.barriers.written, self.barriers.used
        scores = tw.accumulator_rows(plan.scores, S)
        if self.consumer == 0:
            self.weigh(scores, stage, column)
            used[0].wait((n - 1) % 2)
            self.put(0, S)
        else:
            shares = tw.registers(self.dtype, plan.scores.partition_shape((plan.rows, plan.columns), "C"))
            written[0].wait(n % 2)
            tw.copy(plan.read, self.reader.partition_S(self.shared.W[:, :, 0]), self.reader.retile_D(shares))
            self.incline(scores, tw.accumulator_rows(plan.scores, shares), stage)
            used[1].wait((n - 1) % 2)
            self.put(1, S)
        written[0].wait(n % 2)
        tw.wgmma_fence()
        tw.gemm(plan.sums, self.tP[:, :, :, 0], self.turned_qg[:, :, :, plan.stages + stage], self.acc_v)
        tw.wgmma_commit()
        acc_q = self.begin_tokens(n, 0)
        tw.gemm(plan.sums, self.tP[:, :, :, 1], self.turned_qg[:, :, :, stage], self.acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[0])
        self.pass_on(n, acc_q, 0)

    @tw.function
    def begin_scores(self, which, stage, acc):
        """Begin the product of K or V with Q or dO of a stage."""
        tw.wgmma_fence()
        stage_of_both = which * self.plan.stages + stage
        tw.gemm(self.plan.scores, self.tKV[:, :, :, which], self.tQG[:, :, :, stage_of_both], acc, accumulate=False)
        tw.wgmma_commit()

    @tw.function
    def begin_tokens(self, n, part):
        """Begin the product of step n with W^T, when all consumers have written theirs; return the sums."""
        stages = self.shared.W.shape[2]
        acc = fragment(self.plan.tokens, self.plan.columns, self.wide)
        # W of step n, and how often that was written before
        slot, uses = (1, n) if self.plan.is_divided else (n % stages, n // stages)
        self.barriers.written[slot].wait(uses % 2)
        tw.wgmma_fence()
        tw.gemm(self.plan.tokens, self.tW[:, :, :, slot], self.turned_k[part], acc, accumulate=False)
        tw.wgmma_commit()
        return acc

    @tw.function
    def put(self, slot, values):
        """Write P or W to shared memory, and tell those who read it."""
        target = self.writer.partition_D(self.shared.W[:, :, slot])
        tw.copy(self.plan.write, self.writer.retile_S(values.to(self.dtype)), target)
        tw.fence_proxy_async()
        signal(self.barriers.written[slot])

    @tw.function
    def weigh(self, scores, stage, column):
        """Compute P, of what tokens see."""
        plan, at, at_of_first, beside = self.plan, self.at, self.at_of_first, self.beside
        before, after, extent = self.before, self.after, self.place.tokens
        rows, columns = tw.size(at.shape[0]), tw.size(at.shape[1])
        is_inside = (column + plan.columns <= extent) & (column + plan.columns - 1 <= beside + after)
        is_inside &= beside + plan.rows <= extent  # the scores behind the last key are 0, and weights may overflow
        if ~(is_inside & (column >= beside + plan.rows - 1 - before)):
            origin = at[0, 0][1] + column
            apart = at[0, 0][0] + beside - origin
            for r in tw.static_range(rows):
                row = apart + at_of_first[r, 0][0]
                fewest, behind = row - before, tw.minimum(row + after + 1, extent - origin)
                behind = tw.where(row < extent - origin, behind, 0)  # the last key is beside the last token
                for c in tw.static_range(columns):
                    here = at_of_first[0, c][1]
                    scores[r, c] = tw.where((here >= fewest) & (here < behind), scores[r, c], -math.inf)
        for c in tw.static_range(columns):
            top = self.shared.tops[at[0, 0][1] + at_of_first[0, c][1], stage]
            scores[:, c] = tw.ex2_approx(scores[:, c] * self.scale - top, ftz=True)

    @tw.function
    def incline(self, slopes, shares, stage):
        """Compute W from P."""
        for c in tw.static_range(tw.size(self.at.shape[1])):
            token = self.at[0, 0][1] + self.at_of_first[0, c][1]
            slopes[:, c] = shares[:, c].to(tw.float32) * (slopes[:, c] - self.shared.deltas[token, stage])

    @tw.function
    def pass_on(self, n, acc, part):
        """Give the sums of step n to the warp that adds them; the first one is step 1."""
        # Four values of a thread at a time: no two threads meet at a bank.
        plan, consumer = self.plan, self.consumer
        pieces = plan.pieces // plan.parts
        quads = tw.size(acc.layout) // 4 // pieces
        values = acc.map_layout(lambda _: tw.Layout((pieces, quads, 4), (4 * quads, 4, 1)))
        for piece in tw.static_range(pieces):
            self.barriers.empty[consumer].wait(((n - 1) * plan.pieces + part * pieces + piece + 1) % 2)
            for each in tw.static_range(quads):
                tw.copy(values[piece, each, :], self.part_of_step[each, self.tid % WARPGROUP, :, consumer])
            tw.fence_proxy_async()
            signal(self.barriers.full[2 * consumer + 1 - n % 2])

    @tw.function
    def store(self, dK, dV, factor):
        """Store the consumer's rows."""
        self.acc_k *= factor
        for target, acc in ((dK, self.acc_k), (dV, self.acc_v)):
            thread, rows = self.plan.sums.get_slice(self.tid), target[self.place.batch, self.place.head, ...]
            if self.place.is_packed:
                rows = rows[self.place.first_key : self.place.first_key + self.place.keys, :]
            part = tw.local_tile(tw.guarded(rows), (self.plan.rows, self.plan.head), (self.place.tile, 0))
            tw.copy(acc.to(target.dtype), thread.partition_C(part))


def fragment(mma, *extents):
    """Return registers for sums of a tile."""
    return tw.registers(tw.float32, mma.partition_shape(extents, "C"))


@tw.function
def signal(barrier):
    """Arrive for the warp, with what its lanes have done."""
    tw.sync_warp()
    if tw.elect_one():
        barrier.arrive()
