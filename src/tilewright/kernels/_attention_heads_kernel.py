"""All gradients of attention where a block holds whole heads; device code, traced into kernels.

    P = exp2(scale K Q^T - tops)    W = P (V dO^T - delta)    dV = P dO    dK = W Q    dQ = W^T K

Scores are transposed, keys by tokens, so that P and W are operand A of the sums over tokens, and stay in registers. W
passes through shared memory once more, to be operand A of dQ: nothing is added up in global memory, and all arrays are
read once.
"""

from __future__ import annotations

import math

import tilewright as tw
from tilewright.kernels._attention_kernels import (
    Operand,
    Weights,
    clear_behind,
    fill,
    mask,
    matrix_of,
    multiply,
    numbers_of,
    part_of,
    power,
    resident,
    streamed,
    transposed,
)
from tilewright.kernels._row_kernels import LOG2E


@tw.kernel
def gradients_of_heads(
    dQ, dK, dV, Q, K, V, dO, out, lse, slope, lengths, scale, factor, left, right, plan: tw.constexpr
):
    """Compute the gradients of a head of keys, and of the heads of tokens that share it.

    `slope` is a gradient of lse, or None. `scale` has the factor log2(e); dK and dQ are multiplied by `factor`.
    """
    head, batch, group = tw.block_idx.x % K.shape[1], tw.block_idx.x // K.shape[1], Q.shape[1] // K.shape[1]
    of_keys = part_of(K, None, lengths, batch)
    shared = [tw.shared(plan.dtype, x) for x in (plan.smem_a1, plan.smem_a2, plan.smem_b1, plan.smem_b2)]
    fill(plan.fill1, matrix_of(K, of_keys, head), 0, shared[0])
    fill(plan.fill2, matrix_of(V, of_keys, head), 0, shared[1])
    block = Heads(plan, shared, Q.shape[2], of_keys[2])
    for member in range(group):
        of_tokens, of_head = part_of(Q, None, None, batch), head * group + member
        block.bring(of_tokens, of_head, Q, dO, out, lse, slope)
        for part in tw.static_range(plan.rows // plan.part):
            steps = plan.part // plan.columns
            for step in tw.range(steps, unroll=1):
                block.add(part * steps + step, step, scale, left, right)
            tw.sync_threads()
            acc = block.of_tokens() * factor
            block.store(acc, plan.hold1, block.Q, part, matrix_of(dQ, of_tokens, of_head))
        tw.sync_threads()
    block.sum_k *= factor
    if lengths is not None:
        clear_behind(plan, block.sum_k, block.at, block.keys)
        clear_behind(plan, block.sum_v, block.at, block.keys)
    of_all = part_of(K, None, None, batch)
    block.store(block.sum_k, plan.hold1, shared[0], 0, matrix_of(dK, of_all, head))
    block.store(block.sum_v, plan.hold2, shared[1], 0, matrix_of(dV, of_all, head))


class Heads:
    """A head of keys in shared memory, and one of tokens at a time."""

    @tw.function
    def __init__(self, plan, shared, tokens, keys):
        self.plan, self.tokens, self.keys, self.tid = plan, tokens, keys, tw.thread_idx.x
        self.behind = tokens - keys
        self.thread = thread = plan.mma.get_slice(self.tid)
        sK, sV, sQ, sG = shared
        self.W = tw.shared(plan.dtype, plan.smem_w)
        self.tops, self.deltas = (tw.shared(tw.float32, (plan.rows,)) for _ in "td")
        # Tokens of all steps in one matrix
        self.Q, self.G = (x.map_layout(lambda _, y=y: y) for x, y in ((sQ, plan.smem_a1), (sG, plan.smem_a2)))
        self.a1, self.a2 = (resident(plan, thread, x) for x in (sK, sV))
        self.b1, self.b2 = (streamed(plan, thread, x) for x in (sQ, sG))
        self.turned_q, self.turned_g = (transposed(plan, thread, x) for x in (sQ, sG))
        rows, head = plan.smem_a1.shape
        whole = tw.make_tensor(sK.engine, tw.Layout((rows, head, 1), (*plan.smem_a1.stride, 0)))
        self.turned_k = transposed(plan, thread, whole)
        turned = self.W.map_layout(lambda layout: tw.select(layout, 1, 0))
        self.turned_w = Operand(plan.load_w, thread.partition_fragment_A(turned), turned)
        self.weights = Weights(plan, thread)
        self.sum_k, self.sum_v = (
            tw.registers(tw.float32, plan.mma.partition_shape((plan.rows, n), "C"))
            for n in (plan.head, plan.value_head)
        )
        tw.clear(self.sum_k)
        tw.clear(self.sum_v)
        self.at = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.columns))))

    @tw.function
    def bring(self, of_tokens, head, Q, dO, out, lse, slope):
        """Bring Q and dO, and the numbers of their tokens: sum(dO out), less the gradient of lse, and lse."""
        plan = self.plan
        fill(plan.fill1, matrix_of(Q, of_tokens, head), 0, self.Q)
        fill(plan.fill2, matrix_of(dO, of_tokens, head), 0, self.G)
        tw.cp_async_commit()
        hold = plan.hold2.get_slice(self.tid)
        shape = plan.rows, plan.value_head
        source = hold.partition_S(tw.local_tile(matrix_of(out, of_tokens, head), shape, (0, 0)))
        results = tw.registers(plan.dtype, source.shape)
        tw.copy(plan.hold2, source, results)  # while the others travel
        grads = hold.partition_S(self.G)
        tw.cp_async_wait(0)
        tw.sync_threads()
        beside, at_once = plan.beside, plan.threads // plan.beside
        for n in tw.static_range(tw.size(results.shape[1])):
            products = results[:, n, :].to(tw.float32) * grads[:, n, :].to(tw.float32)
            found, token = tw.reduce(products, "add", beside), self.tid // beside + n * at_once
            if self.tid % beside == 0:
                top = numbers_of(lse, of_tokens, head)[token]
                if slope is not None:
                    found = found - numbers_of(slope, of_tokens, head)[token]
                self.deltas[token], self.tops[token] = found, tw.where(top == -math.inf, 0, top * LOG2E)
        tw.sync_threads()

    @tw.function
    def add(self, stage, step, scale, left, right):
        """Add a step of tokens to dK and dV, and write their W: zeros where they do not see the keys of the warp."""
        plan, first = self.plan, stage * self.plan.columns
        target = self.thread.partition_C(tw.local_tile(self.W, (plan.rows, plan.columns), (0, step)))
        S, dP = (tw.registers(tw.float32, plan.mma.partition_shape((plan.rows, plan.columns), "C")) for _ in "SP")
        tw.clear(S)
        tw.clear(dP)
        least = tw.shuffle(tw.warp_id(), 0) * 16 + self.behind  # the token beside the first key
        greatest = least + plan.rows - plan.threads // 2 + 15
        if (least <= first + plan.columns - 1 + right) & (greatest >= first - left):
            self.compute(S, dP, stage, scale, left, right)
            tw.copy(dP.to(plan.dtype), target)
        else:  # one copy behind the branch is other machine code, which was not measured
            tw.copy(dP.to(plan.dtype), target)

    @tw.function
    def compute(self, S, dP, stage, scale, left, right):
        """Compute P and W, in the place of S and dP, and add their products to the sums."""
        plan, at = self.plan, self.at
        multiply(plan, S, self.a1, self.b1, stage)
        multiply(plan, dP, self.a2, self.b2, stage)
        scores, slopes = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, dP)
        S *= scale
        first = stage * plan.columns
        mask(scores, at, 0, first, self.behind, right, left, self.tokens, plan)
        for c in tw.static_range(tw.size(scores.shape[1])):
            token = at[0, c][1] + first
            top, least = self.tops[token], self.deltas[token]
            for r in tw.static_range(tw.size(scores.shape[0])):
                # Scores behind the last key are 0, and their weights may overflow.
                share = tw.where(at[r, 0][0] < self.keys, power(scores[r, c] - top, plan.dtype), 0)
                scores[r, c], slopes[r, c] = share, share * (slopes[r, c] - least)
        self.weights.multiply(self.sum_v, S, self.turned_g, stage)
        self.weights.multiply(self.sum_k, dP, self.turned_q, stage)

    @tw.function
    def of_tokens(self):
        """Return W^T K of the tokens whose W was written."""
        plan = self.plan
        acc = tw.registers(tw.float32, plan.mma.partition_shape((plan.part, plan.head), "C"))
        tw.clear(acc)
        multiply(plan, acc, self.turned_w, self.turned_k, 0)
        return acc

    @tw.function
    def store(self, acc, hold, smem, part, target):
        """Store rows from part `part` on, by way of shared memory that nobody reads any more."""
        rows = tw.size(acc.layout) * self.plan.threads // smem.shape[1]
        place = tw.local_tile(smem, (rows, smem.shape[1]), (part, 0))
        tw.copy(acc.to(self.plan.dtype), self.thread.partition_C(place))
        tw.sync_threads()
        each = hold.get_slice(self.tid)
        tw.copy(hold, each.partition_S(place), each.partition_D(tw.local_tile(target, place.shape, (part, 0))))
