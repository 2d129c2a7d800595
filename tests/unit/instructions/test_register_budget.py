"""tw.set_registers: what it says to ptxas, what is refused, and warpgroups that want more than the block has."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from tests.unit.instructions.test_wgmma_compiles import compiled

import tilewright as tw


@tw.kernel
def roles(out, producer: tw.constexpr, consumer: tw.constexpr):
    if tw.warpgroup_id() == 0:
        tw.set_registers(producer)
        out[tw.thread_idx.x] = 1
    else:
        tw.set_registers(consumer)
        out[tw.thread_idx.x] = 2


def test_roles_have_registers_of_their_own() -> None:
    out = np.zeros(384, np.int32)
    roles[1, 384](out, 40, 232)
    assert np.array_equal(out, np.repeat([1, 2], [128, 256]))
    lowered = roles.lower(out, 40, 232, arch="sm_90a", block=384)
    assert "set_registers_dec<40>();" in lowered.cuda.text and "set_registers_inc<232>();" in lowered.cuda.text
    assert "__launch_bounds__(384, 1)" in lowered.cuda.text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lowered.module.resources.registers == 168
    assert "set_registers_" not in roles.lower(out, 168, 168, arch="sm_90a", block=384).cuda.text


def test_blocks_of_a_multiprocessor_share_its_registers() -> None:
    """Of two blocks a thread begins with 80: 104 are taken, and were given back where it had 168."""
    twice = roles.configure(min_blocks=2)
    lowered = twice.lower(np.zeros(384, np.int32), 24, 104, arch="sm_90a", block=384)
    assert "set_registers_dec<24>();" in lowered.cuda.text and "set_registers_inc<104>();" in lowered.cuda.text
    assert lowered.module.resources.registers == 80
    for producer, kinds in ((24, []), (40, ["too-many-registers"])):
        with tw.simulate(raise_errors=False) as run:
            twice[1, 384](np.zeros(384, np.int32), producer, 104)
        assert [f.kind for f in run.findings] == kinds


@pytest.mark.parametrize(
    ("threads", "producer", "consumer", "fits"),
    [(384, 24, 240, True), (384, 40, 240, False), (256, 24, 256, True), (512, 32, 160, True), (512, 40, 160, False)],
)
def test_all_warpgroups_together_have_what_the_block_began_with(
    threads: int, producer: int, consumer: int, fits: bool
) -> None:
    with tw.simulate(raise_errors=False) as run:
        roles[1, threads](np.zeros(threads, np.int32), producer, consumer)
    assert [f.kind for f in run.findings] == ([] if fits else ["too-many-registers"])


@tw.kernel
def in_two_steps(out, gives_back: tw.constexpr):
    """The first warpgroup has many registers first, and gives them to the second one later."""
    given = tw.mbarrier(128)
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        tw.set_registers(160)
        if gives_back:
            tw.set_registers(40)
        tw.set_registers(40)
        out[tw.thread_idx.x] = 1
        given.arrive()
    elif tw.warpgroup_id() == 1:
        tw.set_registers(72)
        given.wait(0)
        tw.set_registers(232)
        out[tw.thread_idx.x] = 2
    else:
        tw.set_registers(232)
        out[tw.thread_idx.x] = 3


def test_registers_may_change_hands_more_than_once() -> None:
    out = np.zeros(384, np.int32)
    in_two_steps[1, 384](out, True)
    assert np.array_equal(out, np.repeat([1, 2, 3], 128))
    text = in_two_steps.lower(out, True, arch="sm_90a", block=384).cuda.text
    calls = [line.strip() for line in text.splitlines() if line.strip().startswith("set_registers_")]
    assert calls == [
        f"set_registers_{x};" for x in ("dec<160>()", "dec<40>()", "dec<72>()", "inc<232>()", "inc<232>()")
    ]
    assert in_two_steps.lower(out, False, arch="sm_90a", block=384).module.cubin


@tw.kernel
def takes_without_others(out):
    if tw.warpgroup_id() == 0:
        tw.set_registers(232)
    out[tw.thread_idx.x] = 1


def test_who_does_not_give_back_has_what_it_began_with() -> None:
    with tw.simulate(raise_errors=False) as run:
        takes_without_others[1, 384](np.zeros(384, np.int32))
    (finding,) = run.findings
    assert finding.kind == "too-many-registers" and "168, 168, 168" in finding.message, finding
    assert "waits for 232" in finding.message and finding.line is not None


@tw.kernel
def after_branches(out, same: tw.constexpr):
    if tw.warpgroup_id() == 0:
        tw.set_registers(40 if same else 80)
    else:
        tw.set_registers(40)
    for _ in range(out.shape[0] // 256):
        tw.set_registers(64)
    out[tw.thread_idx.x] = 1


def test_the_direction_follows_from_what_is_there() -> None:
    out = np.zeros(256, np.int32)
    for same in (True, False):
        with pytest.raises(tw.LanguageError, match="not the same on all ways"):
            after_branches.lower(out, same, arch="sm_90a", block=256).cuda.text


@tw.kernel
def divided(out, part: tw.constexpr):
    if tw.thread_idx.x < part:
        tw.set_registers(40)
    out[tw.thread_idx.x] = 1


def test_what_is_refused() -> None:
    out = np.zeros(256, np.int32)
    for count in (16, 36, 264, True, "40"):
        with pytest.raises(tw.LanguageError, match="24 to 256 registers in steps of 8"):
            roles[1, 256](out, count, 232)
    with pytest.raises(tw.LanguageError, match="only some threads of a warpgroup"):
        divided[1, 256](out, 64)
    with pytest.raises(tw.LanguageError, match="needs sm_90a"):
        roles.lower(out, 40, 232, arch="sm_90", block=256)
    with pytest.raises(tw.LanguageError, match="size of the block"):
        roles.lower(out, 40, 232, arch="sm_90a")
    with pytest.raises(tw.LanguageError, match=r"begins with 255 .* one can have 255\n(.*\n)*.*roles:"):
        roles[1, 128](out, 256, 256)


@pytest.mark.parametrize(
    ("block", "blocks", "most"), [(128, 1, 248), (128, 4, 128), (256, 2, 232), (256, 3, 136), (384, 2, 192)]
)
def test_what_no_other_warpgroup_can_give_is_refused(block, blocks, most):
    """The registers of a multiprocessor, of which all other warpgroups keep 24 a thread."""
    kernel = roles.configure(min_blocks=blocks)
    out = np.zeros(block, np.int32)
    lowered = kernel.lower(out, most, 24, arch="sm_90a", block=block)
    if most < 248:
        with pytest.raises(tw.LanguageError, match="begins with"):
            kernel.lower(out, most + 8, 24, arch="sm_90a", block=block)
        assert f"set_registers_inc<{most}>" in lowered.cuda.text or block == 128


ADVICE = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to the presence of Extern calls"


def test_what_ptxas_serialises_is_a_warning_at_the_line_of_the_product() -> None:
    lowered = compiled("SM90_64x8x16_F32BF16BF16_SS")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = lowered.module
    slow = dataclasses.replace(
        module, log=module.log + f"\nptxas info    : (C7510) {ADVICE} in function 'product'\n" * 2
    )
    with pytest.warns(tw.TilewrightWarning, match="C7510") as caught:
        lowered._warn_of_slow_products(slow)
    assert len(caught) == 1
    source = caught[0].filename, caught[0].lineno
    with open(source[0]) as file:
        assert "tw.gemm(mma" in file.readlines()[source[1] - 1]
