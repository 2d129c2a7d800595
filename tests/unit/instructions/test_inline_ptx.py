"""PTX of the user's own: what is printed, what the compiler makes of it, what the simulator runs, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.language import TARGETS, lowered, run
from tests.helpers.machine_code import opcodes
from tests.helpers.slow import covering

import tilewright as tw
from tilewright.errors import CheckError, LanguageError
from tilewright.instructions.inline_ptx import InlinePtx

WORD = tw.spec(tw.uint32, (64,))


@tw.kernel
def apply(out, x, function: tw.constexpr):
    i = tw.thread_idx.x
    out[i] = function(x[i])


def text_of(function: Any, dtype: Any = tw.uint32, result: Any = tw.uint32, arch: str = "sm_90a") -> str:
    return apply.source(tw.spec(result, (64,)), tw.spec(dtype, (64,)), function, block=64, arch=arch)


def compiled(function: Any, dtype: Any = tw.uint32, result: Any = tw.uint32, arch: str = "sm_90a") -> list[str]:
    """Return the opcodes of the machine code."""
    return opcodes(apply.sass(tw.spec(result, (64,)), tw.spec(dtype, (64,)), function, block=64, arch=arch))


def ptx(text: str, *more: Any, **options: Any) -> Any:
    """Return a function of one value that is this PTX."""
    options.setdefault("result", tw.uint32)
    return lambda v: tw.inline_ptx(text, (v, *more), **options)


INSTRUCTIONS = {
    "bfind.u32 %0, %1;": "FLO",
    "prmt.b32 %0, %1, %1, 0x0123;": "PRMT",
    "shf.l.wrap.b32 %0, %1, %1, 7;": "SHF",
    "mad.hi.u32 %0, %1, %1, %1;": "IMAD.HI",
    "vabsdiff.u32.u32.u32 %0, %1, 3;": "",  # several, where the GPU has none
    "{\n    .reg .pred p;\n    setp.eq.u32 p, %1, 5;\n    selp.u32 %0, 7, 9, p;\n}": "ISETP",
    "set.eq.u32.u32 %0, %1, 5": "ISETP",
    "mov.u32 %0, %laneid; // %1 is not used, %% neither": "S2R",
    '.pragma "nounroll"; mul.hi.u32 %0, %1, 10;': "IMAD.HI",
}


@pytest.mark.parametrize(("text", "target"), covering(INSTRUCTIONS, TARGETS, of=1))
@pytest.mark.spread(3)
def test_what_the_library_lacks(text: str, target: str) -> None:
    found = compiled(ptx(text), arch=target)
    assert any(opcode.startswith(INSTRUCTIONS[text]) for opcode in found), found


EVERY = (tw.bool_, tw.int8, tw.uint8, tw.int16, tw.uint16, tw.int32, tw.uint32, tw.int64, tw.uint64, tw.float16,
         tw.bfloat16, tw.float32, tw.float64)  # fmt: skip


@tw.kernel
def through_registers(*operands):
    i = tw.thread_idx.x
    for out, x in zip(operands[: len(EVERY)], operands[len(EVERY) :], strict=True):
        width = max(x.dtype.bits, 16) if x.dtype in (tw.int16, tw.uint16) else max(x.dtype.bits, 32)
        width = 16 if x.dtype in (tw.float16, tw.bfloat16) else width
        value = x[i] if x.dtype is tw.bool_ else x[i] + x[i]  # narrow sums are computed in wider types
        out[i] = tw.inline_ptx(f"mov.b{width} %0, %1;", value, lambda v: v, x.dtype)


def test_registers_of_every_type() -> None:
    """A value of each type goes to a register and comes back."""
    random = np.random.default_rng(1)
    given = [random.integers(0, 2, 64).astype(dtype.numpy) for dtype in EVERY]
    outputs = [np.zeros_like(x) for x in given]
    through_registers[1, 64](*outputs, *given)
    for x, out in zip(given, outputs, strict=True):
        assert np.array_equal(out, x if x.dtype == np.bool_ else x + x), x.dtype
    for target in TARGETS:
        through_registers.resources(*outputs, *given, block=64, arch=target)


def test_several_results() -> None:
    @tw.kernel
    def wide(low, high, x):
        i = tw.thread_idx.x
        a, b = tw.inline_ptx(
            "{ .reg .b64 t; mul.wide.u32 t, %2, %3; mov.b64 {%0, %1}, t; }",
            (x[i], tw.uint32(0xDEADBEEF)),
            lambda a, b: tuple((a.astype(np.uint64) * b >> np.uint64(n)).astype(np.uint32) for n in (0, 32)),
            (tw.uint32, tw.uint32),
        )
        low[i], high[i] = a, b

    x = np.arange(64, dtype=np.uint32) * 0x3456789
    low, high = np.zeros_like(x), np.zeros_like(x)
    wide[1, 64](low, high, x)
    exact = x.astype(np.uint64) * 0xDEADBEEF
    assert np.array_equal(low, exact.astype(np.uint32)) and np.array_equal(high, (exact >> np.uint64(32)))
    assert 'asm("{ .reg .b64 t; mul.wide.u32 t, %2, %3; mov.b64 {%0, %1}, t; }" : "=r"(a), "=r"(b) : "r"(' in (
        wide.source(WORD, WORD, WORD, block=64)
    )
    wide.resources(WORD, WORD, WORD, block=64)


# --- the text stays inside of its statement ----------------------------------------------------------------


def test_text_is_escaped() -> None:
    text = text_of(ptx('// say "no" \\ ??/ %tid\nmov.u32 %0, %1;'))
    assert 'asm("// say \\"no\\" \\\\ ?\\?/ %%tid\\n"' in text.replace("\\?\\?", "?\\?")
    assert '"mov.u32 %0, %1;" : "=r"(' in text
    assert compiled(ptx('// say "no" \\ ??/ %tid\nmov.u32 %0, %1;')).count("STG.E") == 1


@pytest.mark.parametrize(
    "text",
    [
        'add.u32 %0, %1, 1; // ");  __trap(); asm("',
        'add.u32 %0, %1, 1; /* "); } */',
        "add.u32 %0, %1, 1; // a comment at the end takes no semicolon",
        "add.u32 %0, %1, 1 // a comment at the end takes no semicolon",
        "add.u32 %0, %1, 1 // $0 ${0} {x|y} \\",
        "{ .reg .u32 t$0; mov.u32 t$0, %1; add.u32 %0, t$0, 1; }",
        "add.u32 %0, %1, 1; ",
        "\n\n  add.u32 %0, %1, 1\n\n",
        "{ $loop: add.u32 %0, %1, 1; }",
        "add.u32 %0, %1, 1; // ends with \\",
    ],
)
@pytest.mark.spread(6)
def test_texts_that_look_like_code_compile(text: str) -> None:
    found = compiled(ptx(text))
    assert found.count("STG.E") == 1 and "BPT.TRAP" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add.u32 %0, %1, 1; }", "braces of the PTX do not match"),
        ("} .func evil() {", "braces of the PTX do not match"),
        ("{ add.u32 %0, %1, 1;", "braces of the PTX do not match"),
        ("add.u32 %0, %1, 1; /* ", "a comment of the PTX does not end"),
        ("add.u32 %0, %1, 1; /* /", "a comment of the PTX does not end"),
        ('.pragma "nounroll; add.u32 %0, %1, 1;', "a string of the PTX does not end"),
        ('.pragma "}"; { add.u32 %0, %1, 1;', "braces of the PTX do not match"),
        ("{ /* } */ add.u32 %0, %1, 1;", "braces of the PTX do not match"),
        ("add.u32 %0, %1, 1;\0", r"has the character U\+0000"),
        ("add.u32 %0, %1, 1;\r}", r"has the character U\+000D"),
        ("add.u32 %0, %1, 1; // \u2028", r"has the character U\+2028"),
        ("add.u32 %0, %1, %2;", "names %2, and there are 1 results and 1 operands"),
        ("add.u32 %0, %01, 1;", None),
        ("add.u32 %0, 1, 1;", "does not use %1"),
        ("add.u32 %r1, %1, 1;", "does not use %0"),
        ("add.u32 %0, %1, 1; % ", "a % of PTX is followed by a number or a name, got '% '"),
        ("add.u32 %0, %1, 1; %", "a % of PTX is followed by a number or a name"),
        ("%%0 %%1", "does not use %0, %1"),
        ("", "does not use|has no instruction"),
        ("// %0 %1", "has no instruction"),
        (7, "the text of tw.inline_ptx is a str, got 7"),
    ],
)
def test_texts_that_are_refused(text: Any, message: str | None) -> None:
    if message is None:
        assert "%01" not in text_of(ptx(text))
        return
    with pytest.raises(LanguageError, match=message) as caught:
        text_of(ptx(text))
    assert caught.value.location is not None and caught.value.location.file.endswith("test_inline_ptx.py")


# --- targets -----------------------------------------------------------------------------------------------


def test_targets() -> None:
    for first, fits, lacks in (("sm_90", ("sm_90", "sm_90a"), "sm_80"), ("sm_90a", ("sm_90a",), "sm_90")):
        function = ptx("add.u32 %0, %1, 1;", requires=first)
        for arch in fits:
            text_of(function, arch=arch)
        with pytest.raises(LanguageError, match=f"this PTX needs {first}.*, and the target is {lacks}"):
            text_of(function, arch=lacks)
    with pytest.raises(LanguageError, match="gfx90a has no PTX"):
        text_of(ptx("add.u32 %0, %1, 1;"), arch="gfx90a")
    with pytest.raises(LanguageError, match="requires= of tw.inline_ptx: no architecture is called 'sm_9'"):
        text_of(ptx("add.u32 %0, %1, 1;", requires="sm_9"))


# --- meaning -----------------------------------------------------------------------------------------------


def test_the_simulator_runs_the_meaning_for_threads_that_come_there() -> None:
    seen = []

    def meaning(v):
        seen.append(v.copy())
        return v + np.uint32(1)

    @tw.kernel
    def some(out, x):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        if x[i] > 3:
            out[i] = tw.inline_ptx("add.u32 %0, %1, 1;", x[i], meaning, tw.uint32)

    x = np.arange(64, dtype=np.uint32) % 7
    out = run(some, np.zeros_like(x), x, grid=2, block=32)
    assert np.array_equal(out, np.where(x > 3, x + 1, 0))
    assert len(seen) == 1 and np.array_equal(seen[0], x[x > 3])


@pytest.mark.parametrize(
    ("meaning", "message"),
    [
        (lambda v: v.astype(np.float32), r"returned float32 of shape \(64,\); expected uint32 of shape \(64,\)"),
        (lambda v: v[:3], r"returned uint32 of shape \(3,\); expected uint32 of shape \(64,\)"),
        (lambda v: (v, v), "returned 2 results, expected 1"),
        (lambda v: None, "returned 0 results, expected 1"),
        (lambda v: 1 // 0, "raised ZeroDivisionError"),
        (lambda: 1, "raised TypeError"),
        (None, "the simulator does not know what this PTX computes"),
    ],
)
def test_a_wrong_meaning_is_an_error_of_its_line(meaning: Any, message: str) -> None:
    x = np.arange(64, dtype=np.uint32)
    with pytest.raises(LanguageError, match=message) as caught:
        run(apply, np.zeros_like(x), x, ptx("add.u32 %0, %1, 1;", meaning=meaning), block=64)
    assert caught.value.location is not None and "inline_ptx" in caught.value.location.text


def test_a_whole_warp() -> None:
    @tw.kernel
    def reversed_lanes(out, x, bound):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        if i < bound:
            out[i] = tw.inline_ptx(
                "shfl.sync.bfly.b32 %0, %1, 31, 31, 0xffffffff;",
                x[i],
                lambda v: v[:, ::-1],
                tw.uint32,
                together="warp",
            )

    x = np.arange(128, dtype=np.uint32)
    out = run(reversed_lanes, np.zeros_like(x), x, 96, grid=2, block=64)
    assert np.array_equal(out.reshape(4, 32)[:3], x.reshape(4, 32)[:3, ::-1]) and not out[96:].any()
    assert "SHFL.BFLY" in opcodes(reversed_lanes.sass(WORD, WORD, 96, block=64))
    with pytest.raises(CheckError, match="PTX of the warp is reached by 4 of its 32 threads"):
        run(reversed_lanes, np.zeros_like(x), x, 100, grid=2, block=64)


# --- what passes may do with it ----------------------------------------------------------------------------


def count(function: Any) -> int:
    ops = lowered(apply, WORD, WORD, function, block=64)
    return sum(isinstance(op, InlinePtx) for op in ops)


def test_pure_text_is_computed_once_and_left_out() -> None:
    def meaning(v):
        return v

    for options, twice, unused in (({}, 1, 0), ({"volatile": True}, 2, 1)):
        function = ptx("add.u32 %0, %1, 1;", meaning=meaning, **options)
        assert count(lambda v, f=function: f(v) + f(v)) == twice
        assert count(lambda v, f=function: (f(v), v)[1]) == unused
        assert ("asm volatile(" in text_of(function)) == bool(options)
        assert ('"memory"' in text_of(function)) == bool(options)
    other = ptx("add.u32 %0, %1, 2;", meaning=meaning)
    assert count(lambda v: ptx("add.u32 %0, %1, 1;", meaning=meaning)(v) + other(v)) == 2


def test_loops_and_branches_take_it() -> None:
    @tw.kernel
    def steps(out, x, n):
        i = tw.thread_idx.x
        v = x[i]
        for k in range(n):
            if k % 2 == 0:
                v = tw.inline_ptx("{ .reg .u32 t; add.u32 t, %1, 1; mov.u32 %0, t; }", v, lambda v: v + 1, tw.uint32)
        out[i] = v

    x = np.arange(32, dtype=np.uint32)
    assert np.array_equal(run(steps, np.zeros_like(x), x, 5, block=32), x + 3)
    steps.resources(WORD, WORD, 5, block=32)


def test_without_results_it_says_that_it_acts() -> None:
    @tw.kernel
    def sleeps(n):
        tw.inline_ptx("nanosleep.u32 %0;", n, lambda n: None, volatile=True)

    sleeps[1, 32](np.uint32(20))
    assert 'asm volatile("nanosleep.u32 %0;" :: "r"(' in sleeps.source(tw.uint32(20), block=32)
    assert "NANOSLEEP" in opcodes(sleeps.sass(tw.uint32(20), block=32))
    with pytest.raises(LanguageError, match="PTX without results is left out"):
        text_of(lambda v: tw.inline_ptx("nanosleep.u32 %0;", v) or v)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"together": "block"}, 'together= of tw.inline_ptx is None or "warp", got'),
        ({"meaning": 3}, "meaning= of tw.inline_ptx is a function of NumPy arrays, got 3"),
        ({"result": tw.float8_e4m3fn}, "no register for float8_e4m3fn"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        text_of(ptx("add.u32 %0, %1, 1;", **options))


def test_what_is_read_of_the_text_alone_does_not_need_the_meaning() -> None:
    """`tw.check` runs no kernel: what the PTX gives is not known to it, with a meaning or without."""

    def meaning(v):
        raise AssertionError("it is run for threads that do not come there")

    @tw.kernel
    def column(x, meaning: tw.constexpr):
        smem = tw.shared(tw.float32, tw.Layout((32, 32), (32, 1)))
        i = tw.thread_idx.x
        row = tw.inline_ptx("add.s32 %0, %1, 0;", i, meaning, tw.int32)
        smem[row, 0] = x[i]
        tw.sync_threads()
        x[i] = smem[31 - i, 0]

    for given in (None, meaning):
        remarks = tw.check(column, (tw.spec(tw.float32, (32,)), given), block=32)
        assert [remark.kind for remark in remarks] == ["bank-conflict"]  # the load's, whose place is known


def test_results_that_are_not_finite_are_found() -> None:
    @tw.kernel
    def reciprocals(y, z, x):
        i = tw.thread_idx.x
        y[i] = tw.inline_ptx("rcp.approx.f32 %0, %1;", x[i], lambda v: 1 / v, tw.float32)
        z[i] = tw.rcp_approx(x[i] * 2)

    x = np.ones(32, np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    x[3] = 0
    with pytest.raises(CheckError) as caught, tw.simulate(nan=True):
        reciprocals[1, 32](y, z, x)
    for what in ("PTX", "an approximate function"):
        assert f"not finite: {what} gives inf of finite operands" in str(caught.value)
