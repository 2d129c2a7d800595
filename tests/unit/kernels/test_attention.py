"""Calls of `tw.attention` that do not fit are refused; its kernels fit into registers and shared memory."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels._attention_gradient_kernel import gradients_by_warpgroups
from tilewright.kernels._attention_heads_kernel import gradients_of_heads
from tilewright.kernels._attention_hopper_kernel import attend_by_warpgroups
from tilewright.kernels._attention_kernels import attend
from tilewright.kernels.attention_heads import heads_plan
from tilewright.kernels.attention_hopper import hopper_gradient_plan, hopper_plan, is_short, keys_of, why_not
from tilewright.kernels.attention_plan import HEADS, plan_for
from tilewright.runtime.arrays import describe
from tilewright.runtime.views import view

HOPPER = Arch.parse("sm_90a")


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


Q, K = zeros(2, 4, 3, 8), zeros(2, 2, 5, 8)
R = zeros(6, 4, 8)
REFUSED: list[tuple[str, tuple[Any, Any, Any], dict[str, Any]]] = [
    (r"q has the shape \(3, 8\), and attention takes \(batch, heads, tokens, head\)", (Q[0, 0], K, K), {}),
    (r"\(tokens, heads, head\) with offsets", (Q, K, K), {"offsets": np.array([0, 2])}),
    ("k is float64, and q is float32", (Q, K.astype(np.float64), K), {}),
    ("q is int32, and attention takes float16", (Q.astype(np.int32), K, K), {}),
    ("all but the last mode agree", (Q, K, K[:, :, :4]), {}),
    ("heads of q have 8 elements, and those of k 7", (Q, K[..., :7], K), {}),
    ("q has 3 heads, and k and v have 2", (Q[:, :3], K, K), {}),
    ("q has 2 batches, and k and v 1", (Q, K[:1], K[:1]), {}),
    ("heads of q have no elements", (Q[..., :0], K[..., :0], K), {}),
    ("heads of q and k have 257 elements, and attention takes up to 256", (zeros(1, 1, 2, 257),) * 3, {}),
    ("window of attention is 4", (Q, K, K), {"window": 4}),
    (r"window of attention is \(-1, 0\)", (Q, K, K), {"window": (-1, 0)}),
    ("causal of attention is 'yes'", (Q, K, K), {"causal": "yes"}),
    ("scale of attention is a number, got str", (Q, K, K), {"scale": "1"}),
    ("key_offsets go with offsets", (Q, K, K), {"key_offsets": np.array([0, 2])}),
    ("do not go together", (R, R, R), {"offsets": np.array([0, 6]), "key_lengths": np.array([1])}),
    (r"offsets are \[0, 4\], and q has 6 tokens", (R, R, R), {"offsets": np.array([0, 4])}),
    (r"offsets are \[0, 5, 2, 6\]", (R, R, R), {"offsets": np.array([0, 5, 2, 6])}),
    (r"offsets has the shape \(1,\)", (R, R, R), {"offsets": np.array([6])}),
    (r"key_lengths has the shape \(3,\), and there are 2 batches", (Q, K, K), {"key_lengths": np.array([1, 2, 3])}),
    (r"key_lengths are \[-1, 2\], and there are 5 keys", (Q, K, K), {"key_lengths": np.array([-1, 2])}),
    (r"key_lengths are \[2, 6\], and there are 5 keys", (Q, K, K), {"key_lengths": np.array([2, 6])}),
    ("offsets is float64", (R, R, R), {"offsets": np.array([0.0, 6.0])}),
    (r"out has the shape \(2, 4, 3, 7\), and the result \(2, 4, 3, 8\)", (Q, K, K), {"out": zeros(2, 4, 3, 7)}),
    ("out shares memory with q", (Q, K, K), {"out": Q}),
    ("out is float64, and attention takes float32", (Q, K, K), {"out": Q.astype(np.float64)}),
    ("v is None", (Q, K, None), {}),
]


@pytest.mark.parametrize(("text", "given", "options"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refused(text: str, given: tuple[Any, Any, Any], options: dict[str, Any]) -> None:
    with pytest.raises(tw.ArgumentError, match=text):
        tw.attention(*given, **options)


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("dk shares memory with dq, which is written while dk is written", {"dq": slice(0, 32)}, {"dk": slice(0, 32)}),
        ("dv shares memory with dk, which is written", {"dk": slice(0, 32)}, {"dv": slice(16, 48)}),
        ("dv shares memory with dq, which is written", {"dq": slice(0, 32)}, {"dv": slice(31, 63)}),
        ("dq shares memory with key_lengths, which is read", {"dq": slice(0, 32)}, {"key_lengths": slice(0, 1)}),
    ],
)
def test_gradients_have_memory_of_their_own(text: str, first: dict[str, slice], second: dict[str, slice]) -> None:
    x, memory = zeros(1, 1, 4, 8), zeros(64)
    given: dict[str, Any] = {name: memory[part].reshape(x.shape) for name, part in first.items()}
    for name, part in second.items():
        given[name] = memory[part].view(np.int32) if name == "key_lengths" else memory[part].reshape(x.shape)
    with pytest.raises(tw.ArgumentError, match=text):
        tw.attention_backward(x, x, x, x, x, x[..., 0], **given)


def test_what_warpgroups_compute() -> None:
    def why(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, **more: Any) -> str:
        x = zeros(int(np.prod(shape)) + 8, dtype=more.pop("dtype", np.float16))
        pointer = x[-(describe(x).pointer // 2) % 8 :]  # at a multiple of 16 bytes
        given = view(pointer, shape, strides or tuple(int(np.prod(shape[n + 1 :])) for n in range(4)))
        return str(why_not([given] * 4, more.get("factor", 0.1), more.get("arch", HOPPER)))

    assert why((1, 2, 3, 64)) == "None"
    assert why((2, 2, 3, 64), (384, 64, 128, 1)) == "None"  # batch, tokens, heads, head
    assert "sm_80 has no wgmma" in why((1, 2, 3, 64), arch=Arch.parse("sm_80"))
    assert "q is float32" in why((1, 2, 3, 64), dtype=np.float32)
    assert why((1, 2, 3, 80)) == "None" and "tiles 40 to 256" in why((1, 2, 3, 32))
    assert "-0.5 changes their order" in why((1, 2, 3, 64), factor=-0.5)
    assert "contiguous heads" in why((1, 2, 3, 64), (384, 192, 1, 3)) and "contiguous" in why((1, 2, 0, 64))
    assert "positive multiples of 16 bytes" in why((2, 2, 3, 64), (0, 192, 64, 1))


@pytest.mark.parametrize(("head", "row", "first"), [(44, 48, 0), (64, 65, 1)])
def test_gradients_of_q_may_have_any_strides(head: int, row: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMA loads rows of 44 elements, but stores whole 16 bytes, at multiples of 16 bytes."""
    random = np.random.default_rng(0)
    q, k, v, grad = (random.standard_normal((1, 1, 5, 64)).astype(np.float16)[..., :head] for _ in range(4))
    out, lse = tw.attention(q, k, v, statistics=True)
    expected = tw.attention_backward(grad, q, k, v, out, lse)
    monkeypatch.setattr("tilewright.kernels.attention.heads_plan", lambda *_: None)
    monkeypatch.setattr(
        "tilewright.kernels.attention.family_of",
        lambda problem, views: "tiles" if why_not(views, float(problem.factor), HOPPER) else "hopper",
    )
    dq = np.zeros((1, 1, 5, row), np.float16)[..., first:][..., :head]
    found = tw.attention_backward(grad, q, k, v, out, lse, dq=dq)
    assert all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("tokens", "keys", "head", "expected"),
    [(32, 32, 64, True), (32, 33, 64, False), (30, 20, 48, True), (64, 64, 128, True), (16, 16, 256, False),
     (1, 4096, 64, False)],
)  # fmt: skip
def test_short_sequences_are_multiplied_by_warps(tokens: int, keys: int, head: int, expected: bool) -> None:
    assert is_short(head, tokens, keys) == expected


@pytest.mark.parametrize("most", [64, 80, 128, 160])
def test_tiles_of_keys_waste_little(most: int) -> None:
    """They are in steps of 16, and fewer than twice the keys behind the last one are multiplied in vain."""
    for keys in range(1, 1100, 7):
        tile = keys_of(keys, most)
        assert tile in range(64, most + 1, 16)
        assert keys > 1024 or -(-keys // tile) * tile <= max(1.2 * keys, keys + 63), (keys, tile)


@pytest.mark.parametrize("longest", [1, 16, 17, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("head", [16, 64, 96, 256])
def test_copies_of_small_tiles_take_whole_vectors(longest: int, head: int) -> None:
    plan = plan_for(tw.bfloat16, head, head, 16, longest, HOPPER, False)
    for copy in (plan.fill1, plan.fill2):
        assert plan.rows % copy.tiler[0] == plan.columns % copy.tiler[0] == 0
    assert plan.rows * -(-longest // plan.rows) < longest + 64


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_whole_heads_fit_into_a_block(arch: str) -> None:
    """Shared memory and registers are enough, every token and key has a row, and each product has whole tiles."""
    target, most = Arch.parse(arch), 0
    for head, longest in itertools.product((8, 64, 80, 128, 200), (1, 16, 17, 77, 128, 197, 224, 256, 257)):
        plan = heads_plan(tw.bfloat16, head, head, 16, longest, target)
        if plan is None:
            continue
        most = max(most, longest) if head == 64 else most
        assert longest <= plan.rows < longest + 32 and plan.rows == plan.columns * plan.stages
        assert plan.rows % plan.part == plan.part % plan.columns == plan.part % (plan.threads // 2) == 0
        size = 2 * (2 * plan.rows * (plan.head + 8 + plan.value_head + 8) + plan.smem_w.cosize) + 8 * plan.rows
        assert size <= target.shared_bytes_optin and plan.blocks * plan.threads <= 2048
    assert most == {"sm_80": 128, "sm_86": 128, "sm_90a": 256}[arch]
    assert heads_plan(tw.float32, 64, 64, 16, 64, target) is heads_plan(tw.bfloat16, 64, 64, 16, 257, target) is None


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"])
def test_tiles_are_whole_instructions(arch: str) -> None:
    """Heads of Q and V of any lengths fill what all warps multiply, and so do the keys of a tile."""
    target = Arch.parse(arch)
    for heads, longest, is_backward in itertools.product(
        itertools.product(HEADS, repeat=2), (8, 20, 64, 1000), (False, True)
    ):
        plan = plan_for(tw.float16, *heads, 16, longest, target, is_backward)
        along_m, along_n = plan.mma.tile_size(0), plan.mma.tile_size(1)
        columns = [plan.columns, plan.head, plan.value_head] if is_backward else [plan.columns, plan.value_head]
        assert plan.rows % along_m == 0 and not any(n % along_n for n in columns), (heads, longest, is_backward)


@pytest.mark.parametrize(
    ("heads", "tokens", "keys"), [((256, 256), 40, 33), pytest.param((8, 136), 20, 20, marks=pytest.mark.slow)]
)
def test_gradients_of_long_heads_where_shared_memory_is_small(
    heads: tuple[int, int], tokens: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of sm_86 has no room for 64 rows and 32 keys of 256 elements."""
    random = np.random.default_rng(0)
    q, k, v, grad = (
        random.standard_normal((1, 1, n, head)).astype(np.float16)
        for n, head in ((tokens, heads[0]), (keys, heads[0]), (keys, heads[1]), (tokens, heads[1]))
    )
    with monkeypatch.context() as patched:
        patched.setattr("tilewright.kernels.attention.arch_of", lambda _: Arch.parse("sm_86"))
        out, lse = tw.attention(q, k, v, statistics=True)
        found = tw.attention_backward(grad, q, k, v, out, lse)
    wide = [x.astype(np.float64) for x in (grad, q, k, v, out, lse)]
    for ours, exact in zip(found, tw.attention_backward(*wide), strict=True):
        assert np.abs(ours - exact).max() < 4e-3 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("heads", "shared", "multiprocessors", "expected"),
    [(4, 1, 132, False), (4, 2, 4, True), (4, 2, 5, False), (4, 4, 132, True), (4, 1, 0, True)],
)
def test_heads_that_share_keys_are_whole_where_blocks_are_many(
    heads: int, shared: int, multiprocessors: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block takes them one after another: of 32 heads that share one 131 multiprocessors would wait."""
    (q, k), lse = (zeros(1, n, 20, 16, dtype=np.float16) for n in (heads, shared)), zeros(1, heads, 20)
    launched: list[Any] = []
    monkeypatch.setattr("tilewright.kernels.attention.multiprocessors_of", lambda _: multiprocessors)
    monkeypatch.setattr("tilewright.kernels.attention.launcher", lambda kernel, *_: lambda *_: launched.append(kernel))
    monkeypatch.setattr("tilewright.kernels.attention._gradients_by_tiles", lambda *_: None)
    tw.attention_backward(q, q, k, k, q, lse)
    assert (gradients_of_heads in launched) == expected


@pytest.mark.parametrize(
    ("head", "longest"),
    [(64, 77), *(pytest.param(*x, marks=pytest.mark.slow)
                 for x in ((16, 16), (32, 49), (64, 50), (64, 128), (64, 197), (64, 256), (96, 100), (128, 128)))],
)  # fmt: skip
def test_gradients_of_whole_heads_fit_into_registers(head: int, longest: int) -> None:
    plan = heads_plan(tw.bfloat16, head, head, 16, longest, HOPPER)
    assert plan is not None
    x, lse = tw.spec(tw.bfloat16, (2, 4, longest, head)), tw.spec(tw.float32, (2, 4, longest))
    numbers = np.float32(0.1), np.float32(0.1), np.int32(1), np.int32(1)
    kernel = gradients_of_heads.configure(min_blocks=plan.blocks)
    lowered = kernel.lower(*[x] * 8, lse, None, None, *numbers, plan, arch="sm_90a", block=plan.threads)
    assert lowered.module.resources.spill_loads <= 32, lowered.module.resources


MASKS = [(left, right) for left in (False, True) for right in (False, True)]
KINDS = (
    "small",
    "small, sequences",
    "small, lengths",
    "low",
    "parts",
    "lengths",
    "parts, sequences",
    "narrow",
    "narrow, parts, lengths",
    "narrow, parts, sequences",
)


@pytest.mark.parametrize(("head", "values"), [(64, 64), (128, 128), (160, 160), (192, 128), (256, 256)])
@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [(kind, *mask) for kind in ("", "sequences") for mask in MASKS] + [(kind, False, True) for kind in KINDS],
)
@pytest.mark.slow
def test_warpgroups_fit_into_registers(head: int, values: int, left: bool, right: bool, kind: str) -> None:
    if "small" in kind and head > 64:
        pytest.skip("small blocks are for heads of up to 64 elements")
    plan = hopper_plan(
        tw.bfloat16,
        head,
        left,
        right,
        is_small="small" in kind,
        is_low="low" in kind,
        is_narrow="narrow" in kind,
        is_in_parts="parts" in kind,
        is_cut="sequences" in kind or "lengths" in kind,
        values=values,
    )
    x, v = (tw.spec(tw.bfloat16, (1, 2, 4096, elements)) for elements in (head, values))
    lse = tw.spec(tw.float32, (1, 2, 4096))
    out = tw.spec(tw.float32, (1, 2, 4096, values)) if plan.is_in_parts else v
    lengths = tw.spec(tw.int32, (1,)) if "lengths" in kind else None
    offsets = tw.spec(tw.int32, (9,)) if "sequences" in kind else None
    sequences = offsets, offsets, lengths
    numbers = np.float32(0.1), np.int32(1), np.int32(1), np.int32(1)
    lowered = attend_by_warpgroups.configure(min_blocks=plan.blocks).lower(
        out, lse, x, x, v, *sequences, *numbers, plan, arch="sm_90a", block=plan.threads
    )
    resources = lowered.module.resources
    assert not resources.spills and not re.search(r"C75\d\d", lowered.module.log), resources


@pytest.mark.parametrize("kind", ["", "sequences", "lengths"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("head", "values"), [(64, 64), (128, 128), (192, 64), (192, 128), (192, 192), (256, 256)])
@pytest.mark.slow
def test_gradients_by_warpgroups_fit_into_registers(head: int, values: int, ordered: bool, kind: str) -> None:
    plan = hopper_gradient_plan(tw.bfloat16, head, ordered, values)
    x, v = (tw.spec(tw.bfloat16, (1, 2, 4096, elements)) for elements in (head, values))
    number = tw.spec(tw.float32, (1, 2, 4224))
    offsets = tw.spec(tw.int32, (9,)) if kind == "sequences" else None
    lengths = tw.spec(tw.int32, (1,)) if kind == "lengths" else None
    slots, lines = 2 * 4096 // plan.columns * plan.consumers, plan.columns * head // 512
    sums, turns = tw.spec(tw.float32, (slots, lines, 256)), tw.spec(tw.int32, (slots,)) if ordered else None
    numbers = np.float32(0.1), np.float32(0.1), np.int32(1), np.int32(1), np.int32(2)
    arrays = (x, v, sums, turns, x, v, x, v, number, number, offsets, offsets, lengths)
    lowered = gradients_by_warpgroups.lower(*arrays, *numbers, plan, arch="sm_90a", block=plan.threads)
    resources = lowered.module.resources
    # Where registers are full but for one product, a few numbers of the block are spilled, and no sums.
    assert resources.spill_stores + resources.spill_loads <= 100 * plan.is_tight, resources
    assert not re.search(r"C75\d\d", lowered.module.log), lowered.module.log


@pytest.mark.parametrize(
    ("dtype", "head"),
    [(tw.bfloat16, 64), *(pytest.param(t, h, marks=pytest.mark.slow)
                          for t, h in ((tw.bfloat16, 128), (tw.float16, 256), (tw.float32, 128), (tw.float64, 256)))],
    ids=str,
)  # fmt: skip
def test_tiles_fit_into_registers(dtype: tw.DType, head: int) -> None:
    plan = plan_for(dtype, head, head, 16, 4096, HOPPER, False)
    kind = np.float64 if dtype is tw.float64 else np.float32
    x, lse = tw.spec(dtype, (1, 2, 4096, head)), tw.spec(kind, (1, 2, 4096))
    numbers = kind(0.1), np.int32(1), np.int32(1)
    lowered = attend.lower(x, lse, x, x, x, None, None, None, *numbers, False, plan, arch="sm_90a", block=plan.threads)
    assert not lowered.module.resources.spills, lowered.module.resources


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_90a"])
def test_every_target_has_tiles_or_says_what_is_too_large(arch: str) -> None:
    for dtype in (tw.float16, tw.bfloat16, tw.float32, tw.float64):
        for head in (16, 64, 80, 128, 256):
            if (arch, dtype, head) == ("sm_75", tw.float64, 256):
                with pytest.raises(tw.ArgumentError, match="takes 101312 bytes .* a block of sm_75 has 65536"):
                    plan_for(dtype, head, head, 2, 4096, Arch.parse(arch), False)
                continue
            plan = plan_for(dtype, head, head, 2, 4096, Arch.parse(arch), False)
            assert plan.shared_bytes(False) <= Arch.parse(arch).shared_bytes_optin


def test_targets_before_cp_async_multiply_by_threads() -> None:
    """Tiles are loaded for instructions of 16 elements of K, and that of sm_75 takes 8."""
    turing = Arch.parse("sm_75")
    plan, x = plan_for(tw.float16, 64, 64, 16, 40, turing, False), tw.spec(tw.float16, (1, 1, 40, 64))
    assert plan.mma.atom.threads == 1 and heads_plan(tw.float16, 64, 64, 16, 40, turing) is None
    arguments = (x, None, x, x, x, None, None, None, np.float32(1), np.int32(1), np.int32(1), False, plan)
    assert attend.lower(*arguments, arch="sm_75", block=plan.threads).kernel.block == (plan.threads, 1, 1)
