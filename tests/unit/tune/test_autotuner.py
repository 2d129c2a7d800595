"""@tw.autotune as users write it, on the simulator; what needs a clock is in test_trials.py and tests/conformance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cache import DiskCache, default_cache
from tilewright.tune.compiling import CompilePool, Source


@tw.kernel
def fill_blocks(dst, value, BLOCK: tw.constexpr, PER: tw.constexpr = 1):
    """Fill PER elements a thread."""
    tid = tw.block_idx.x * BLOCK + tw.thread_idx.x
    for i in range(PER):
        at = tid * PER + i
        if at < dst.size:
            dst[at] = value


def blocks(meta) -> int:
    return -(-meta["dst"].shape[0] // (meta["BLOCK"] * meta["PER"]))


CONFIGS = [tw.Config(BLOCK=b, PER=p, block=b) for b in (32, 64) for p in (1, 2)]


def test_a_kernel_with_a_grid_of_the_config() -> None:
    tuned = tw.autotune(configs=CONFIGS, key=["dst"])(fill_blocks)
    dst = np.zeros(100, np.float32)
    tuned[blocks, None](dst, 3.0)
    assert (dst == 3).all()
    assert tuned.best_config(dst, 3.0) == CONFIGS[0]
    tuned[blocks, lambda meta: meta["BLOCK"]](dst, value=4.0)
    assert (dst == 4).all()


def test_configs_may_say_grid_and_block_themselves() -> None:
    configs = [tw.Config(BLOCK=64, PER=2, grid=blocks, block=lambda meta: meta["BLOCK"])]
    tuned = tw.autotune(configs=configs)(fill_blocks)
    dst = np.zeros(300, np.float32)
    tuned(dst, 1.5)
    assert (dst == 1.5).all()
    with pytest.raises(tw.ArgumentError, match="fill_blocks has no grid for BLOCK=32"):
        tw.autotune(configs=CONFIGS)(fill_blocks)(dst, 1.0)


def test_a_function_that_launches() -> None:
    hooked = []

    @tw.autotune(configs=[tw.Config(BLOCK=32, min_blocks=1, pre_hook=hooked.append)], key=["value"])
    def fill(dst, value=1.0, *, BLOCK):
        """Fill."""
        fill_blocks[4, BLOCK](dst, value, BLOCK)
        return "done"

    dst = np.zeros(128, np.float32)
    assert fill(dst) == "done" and (dst == 1).all()
    assert hooked[0]["BLOCK"] == 32 and hooked[0]["dst"] is dst
    assert fill.__doc__ == "Fill." and fill.__name__ == "fill"


def test_tune_checks_every_candidate_and_leaves_arrays_alone() -> None:
    wrong = tw.Config(BLOCK=32, PER=1, block=16)  # half of the elements stay as they are
    tuned = tw.autotune(configs=[wrong, *CONFIGS], key=["dst"], progress=False)(fill_blocks)
    dst = np.full(100, 8, np.float32)
    found = tuned.tune(dst, 3.0, grid=blocks)
    assert (dst == 8).all()
    assert [trial.status for trial in found.trials] == ["wrong", *["untimed"] * 4]
    assert found.best == CONFIGS[0] and found.source == "simulated"
    tuned[blocks, None](dst, 3.0)
    assert (dst == 3).all()


def test_a_candidate_that_cannot_be_traced_is_passed_over() -> None:
    @tw.kernel
    def limited(dst, SIZE: tw.constexpr):
        smem = tw.shared(dst.dtype, SIZE)
        smem[tw.thread_idx.x] = 1.0
        dst[tw.thread_idx.x] = smem[tw.thread_idx.x]

    configs = [tw.Config(SIZE=1 << 20), tw.Config(SIZE=64)]
    tuned = tw.autotune(configs=configs, progress=False)(limited)
    dst = np.zeros(32, np.float32)
    tuned[1, 32](dst)
    assert (dst == 1).all() and tuned.best_config(dst) == configs[1]
    found = tuned.tune(dst, grid=1, block=32)
    assert [t.status for t in found.trials] == ["failed", "untimed"]
    assert "shared memory" in (found.trials[0].reason or "")
    with pytest.raises(tw.LanguageError, match="shared memory"):
        tw.autotune(configs=configs[:1])(limited)[1, 32](dst)


def test_a_space_on_the_simulator() -> None:
    space = tw.Space(BLOCK=(32, 64, 128), PER=(1, 2, 4)).where(lambda BLOCK, PER: BLOCK * PER >= 128, "128 a block")
    tuned = tw.autotune(space=space, progress=False, seed=1)(fill_blocks)
    dst = np.zeros(500, np.float32)
    tuned[blocks, lambda meta: meta["BLOCK"]](dst, 2.0)
    assert (dst == 2).all() and tuned.best_config(dst, 2.0) == tw.Config(BLOCK=32, PER=4)
    found = tuned.tune(dst, 2.0, grid=blocks, block=lambda meta: meta["BLOCK"])
    assert len(found.trials) == 6 and {t.status for t in found.trials} == {"untimed"}


def test_kinds_of_calls_are_tuned_apart() -> None:
    tuned = tw.autotune(configs=CONFIGS, key=["dst"], progress=False)(fill_blocks)
    a = np.zeros(64, np.float32)
    tuned.tune(a, 1.0, grid=blocks)
    assert tuned.best_config(a, 2.0) is not None, "the value is no part of the key"
    for other in (np.zeros(128, np.float32), np.zeros(64, np.float64), np.zeros(128, np.float32)[::2]):
        assert tuned.best_config(other, 1.0) is None


def test_refusals() -> None:
    with pytest.raises(tw.ArgumentError, match="one of them"):
        tw.autotune()
    with pytest.raises(tw.ArgumentError, match="one of them"):
        tw.autotune(configs=CONFIGS, space=tw.Space(BLOCK=(1,)))
    with pytest.raises(tw.ArgumentError, match="at least one config"):
        tw.autotune(configs=[])(fill_blocks)
    with pytest.raises(tw.ArgumentError, match="fill_blocks takes no BM; its parameters are dst, value, BLOCK, PER"):
        tw.autotune(configs=[tw.Config(BM=1)])(fill_blocks)
    with pytest.raises(tw.ArgumentError, match="configs name the same values"):
        tw.autotune(configs=[tw.Config(BLOCK=1), tw.Config(PER=1)])(fill_blocks)
    with pytest.raises(tw.ArgumentError, match="key names n; the parameters of fill_blocks are"):
        tw.autotune(configs=CONFIGS, key=["n"])(fill_blocks)
    with pytest.raises(tw.ArgumentError, match="goes above @tw.kernel or on a function, got int"):
        tw.autotune(configs=CONFIGS)(3)
    with pytest.raises(tw.ArgumentError, match="store is a path, a tuning store or None, got int 3"):
        tw.autotune(configs=CONFIGS, store=3)
    with pytest.raises(tw.ArgumentError, match=r"takes \*operands, and a tuned function has a name for each"):
        tw.autotune(configs=[tw.Config()])(lambda dst, *operands: None)
    tuned = tw.autotune(configs=CONFIGS)(fill_blocks)
    dst = np.zeros(4, np.float32)
    with pytest.raises(tw.ArgumentError, match="BLOCK is tuned"):
        tuned[1, 32](dst, 1.0, BLOCK=32)
    with pytest.raises(tw.ArgumentError, match="missing a required argument: 'value'"):
        tuned[1, 32](dst)
    with pytest.raises(tw.ArgumentError, match="call it without"):
        tw.autotune(configs=[tw.Config()])(lambda dst: None)[1, 32]


def test_what_workers_compile_is_found_by_the_launch(cache_folder: Path) -> None:
    sources = [
        Source(
            fill_blocks[1, block].source(tw.spec("float32", (64,)), 1.0, block, arch="sm_80"), "fill_blocks", "sm_80"
        )
        for block in (32, 64)
    ]
    bad = Source("this is no CUDA", "bad", "sm_80")
    with CompilePool(2) as pool:
        assert pool.compile([*sources, sources[0], bad]) == 2
        assert pool.compile([*sources]) == 0, "they are in the cache"
    entries = DiskCache(cache_folder).entries()
    assert len(entries) == 2
    before = {entry.modified for entry in entries}
    module = default_cache().compile(sources[0].text, name="fill_blocks", arch="sm_80")
    assert module.resources.registers > 0
    assert {entry.modified for entry in DiskCache(cache_folder).entries()} == before


def test_one_kernel_is_not_worth_a_process(cache_folder: Path) -> None:
    with CompilePool(4) as pool:
        assert pool.compile([Source('extern "C" __global__ void f() {}', "f", "sm_80")]) == 0
        assert pool._all == []


def test_a_script_without_a_guard_is_not_run_again_by_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\n"
        "from tilewright.tune.compiling import CompilePool, Source\n"
        "sources = [Source(f'extern \"C\" __global__ void f{n}() {{}}', f'f{n}', 'sm_80') for n in range(2)]\n"
        "with CompilePool(2) as pool:\n"
        "    print(pool.compile(sources))\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert run.stdout.split() in (["once", "2"], ["once", "0"])  # 0 where the cache had them
