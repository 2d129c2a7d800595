"""The examples of the scheduling layer: right on the simulator, compiled without spills, and made of what they say."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.compilers import has_nvrtc
from tests.helpers.slow import covering, rest_is_slow

from tilewright.demo import Case, collect_cases, example_files, run_case, runner
from tilewright.demo.examples import examples_folder, load_example
from tilewright.runtime.clang import find_clang
from tilewright.schedule import Plan, ScheduledKernel

FILES = example_files(examples_folder() / "schedule")
MODULES = {path.stem: load_example(path) for path in FILES}
TARGETS = ["sm_90a", pytest.param("sm_80", marks=pytest.mark.slow)]


def test_every_file_has_cases() -> None:
    numbers = [int(path.name[:2]) for path in FILES]
    assert numbers == sorted(set(numbers)) and numbers[:6] == [1, 2, 3, 4, 5, 6]
    names = [case.name for path in FILES for case in cases_of(path)]
    assert len(set(names)) == len(names)


@cache
def cases_of(path: Path) -> list[Case]:
    """Return the quick cases of a file, which compile what they count: when a test needs them, and once."""
    cases = collect_cases([path], "sim", quick=True)
    assert cases, path
    return cases


# Products of warpgroups are simulated in the tests of their plans as well, and take longest.
LONG = {path for path in FILES if path.stem == "12_warpgroups"}


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", rest_is_slow(FILES, *(set(FILES) - LONG)), ids=lambda path: path.stem)
def test_cases(path: Path, every: int) -> None:
    """Every second case in the suite, and all of them in the slow tests."""
    for report in [run_case(case, "sim") for case in cases_of(path)[::every]]:
        assert report.passed, (report.name, report.failure)
        assert report.error is not None and report.error <= (report.limit or 0.0), report.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_check_their_kernels(path: Path) -> None:
    """The output holds no right answer before the launch."""
    for case in cases_of(path):
        trial = case.prepare()
        assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit, case.name


def test_kernels_for_other_gpus_are_simulated_where_there_is_one() -> None:
    cases = collect_cases([path for path in FILES if path.stem in ("05_multi_pass", "06_fused_passes")], "cuda", False)
    simulated = [case for case in cases if "gfx908" in case.name]
    assert len(simulated) == 5
    for case in simulated:
        report = run_case(case, "cuda")
        assert report.passed and report.rate is None and "simulated" in case.name, report.failure


# --- compilers -----------------------------------------------------------------------------------------


class Idle:
    """A launcher that launches nothing."""

    def __call__(self, *values: object) -> None:
        """Launch nothing."""

    def prepare(self, *values: object) -> Idle:
        return self


def launched(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ScheduledKernel]:
    """Return the kernels that an example's quick cases launch, without running them."""
    found: list[ScheduledKernel] = []

    def record(kernel: ScheduledKernel, args: object) -> tuple[Idle, tuple[object, ...]]:
        found.append(kernel)
        return Idle(), ()

    with monkeypatch.context() as patch:
        patch.setattr(ScheduledKernel, "_launch", record)
        for case in cases_of(path):
            case.prepare().launch()
    return found


def refuse_spills(kernel: ScheduledKernel, arch: str) -> None:
    """Compile a kernel, for `arch` where it is NVIDIA's."""
    if kernel.plan.target.arch.is_amd:
        if find_clang() is None:
            pytest.skip("needs clang")
        assert kernel.resources().registers > 0 and not kernel.resources().spills
        return
    if not has_nvrtc():
        pytest.skip("needs NVRTC")
    tile = kernel.plan.tensorization
    resources = kernel.resources(None if tile is not None and tile.recipe.is_of_warpgroup else arch)
    assert not resources.spills and resources.local_bytes == 0, resources


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.spread(3)
def test_kernels_compile_without_spills(path: Path, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = launched(path, monkeypatch)
    assert kernels
    for kernel in kernels:
        refuse_spills(kernel, arch)


Make = Callable[[], Plan]
FULL: dict[str, Make] = {
    "elements": lambda: MODULES["01_threads"].elements(2048, 2048, 2048),
    "tiles": lambda: MODULES["01_threads"].tiles(2048, 2048, 2048),
    **{
        name: lambda options=options: MODULES["02_shared_caches"].cached(2048, 2048, 2048, **options)
        for name, options in MODULES["02_shared_caches"].WAYS.items()
    },
    "one pass": lambda: MODULES["03_tensor_single_pass"].plan_for(1024, 1024, 1024, kept=False),
    "C kept": lambda: MODULES["03_tensor_single_pass"].plan_for(1024, 1024, 1024, kept=True),
    "fast": lambda: MODULES["04_fragment_caches"].fast(4096, 4096, 4096),
    "8 passes": lambda: MODULES["05_multi_pass"].multi_pass(2048, 1024, 2048),
    "2 fused": lambda: MODULES["06_fused_passes"].on_amd((2048, 1024, 2048), 2),
    "2 fused, tensor cores": lambda: MODULES["06_fused_passes"].on_nvidia((2048, 1024, 2048), 2),
    "warpgroups": lambda: MODULES["12_warpgroups"].by_warpgroups(4096, 4096, 4096),
}


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("make", FULL.values(), ids=FULL)
@pytest.mark.spread(3)
def test_full_extents_compile_without_spills(make: Make, arch: str) -> None:
    refuse_spills(make().build(), arch)


# --- what the texts say --------------------------------------------------------------------------------


def counts(plan: Plan, *names: str) -> tuple[Any, ...]:  # Any: fields of a report
    """Return some of the counts of a plan's report."""
    report = plan.report()
    return tuple(getattr(report, name) for name in names)


def test_the_first_text_shows_the_loops() -> None:
    module = MODULES["01_threads"]
    shown = re.search(r"::\n\n((?: {4}.*\n)+)", module.__doc__ or "")
    assert shown is not None
    loops = [line[4:] for line in shown[1].splitlines()]
    assert loops == module.elements(2048, 2048, 2048).nest.text().splitlines()


def test_shared_caches_hold_so_many_buffers() -> None:
    tiles = (64 * 16 + 16 * 64) * 4
    buffers = {"one buffer": 1, "double buffer": 2, "through registers": 1, "three stages": 3}
    assert {name: counts(FULL[name](), "shared_bytes") for name in buffers} == {
        name: (number * tiles,) for name, number in buffers.items()
    }
    asynchronous = {name for name in buffers if "cp.async" in FULL[name]().build().source("sm_80")}
    assert asynchronous == set(buffers) - {"through registers"}


@pytest.mark.parametrize("name", MODULES["02_shared_caches"].WAYS)
def test_shared_caches_have_no_conflicts(name: str) -> None:
    module = MODULES["02_shared_caches"]
    profile = module.cached(128, 128, 64, **module.WAYS[name]).build().analyze()
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal > 0


def test_a_kept_tile_leaves_the_loop() -> None:
    """A load and a store of C in each iteration of k, and none of them in the loop where C is kept."""
    names = ("loads_a", "loads_b", "loads_c", "stores_c", "mma", "k_trips")
    assert counts(FULL["one pass"](), *names) == (1, 1, 1, 1, 1, 64)
    assert counts(FULL["C kept"](), *names) == (1, 1, 0, 1, 1, 64)

    def loop(name: str) -> str:
        source = FULL[name]().build().source("sm_80")
        begin = source.index("for (int k = 0; k < 1024; k += 16)")
        return source[begin : source.index("\n    }\n", begin)]

    assert "&C[" in loop("one pass") and "C[" not in loop("C kept").replace("rC[", "")


def test_the_fast_plan_is_what_it_says() -> None:
    plan = FULL["fast"]()
    assert plan.block == (128, 2, 1)
    names = ("fragments_c", "loads_c", "stores_c", "mma", "k_trips", "grid", "shared_bytes")
    # 64 x 64 of C are 16 fragments; 64 of K are 4 steps; a stage has 128 x 64 of A and 64 x 256 of B.
    assert counts(plan, *names) == (16, 0, 16, 64, 64, (512, 1, 1), 3 * (128 + 256) * 64 * 2)
    source = plan.build().source("sm_80")
    assert "ldmatrix" in source and "cp.async" in source
    stores = re.findall(r"\*\((\S+ \d+)>\*\)&C\[", source)
    assert stores == ["vec<half, 8"]  # of 16 bytes, in a loop
    profile = MODULES["04_fragment_caches"].fast(256, 256, 192, group=2).build().analyze()
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal > 0


@pytest.mark.parametrize(
    ("extents", "stages"), covering([(128, 256, 64), (384, 256, 320), (256, 512, 128)], [2, 3], of=1)
)
@pytest.mark.spread(2)
def test_the_fast_plan_takes_multiples_of_its_tile(extents: tuple[int, int, int], stages: int) -> None:
    """Fewer tiles of K than stages, as many and more; a group that is not full. Whole numbers, so that sums are exact."""
    m, n, k = extents
    random = np.random.default_rng(k)
    a, b = (random.integers(-1, 2, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float16)
    MODULES["04_fragment_caches"].fast(m, n, k, 2, stages).build()(a, b.T, c)
    np.testing.assert_array_equal(c.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32).T)


FRAGMENTS = ("fragments_a", "fragments_b", "loads_a", "loads_b", "mma", "k_trips")


def test_the_reference_case() -> None:
    plan = FULL["8 passes"]()
    assert counts(plan, *FRAGMENTS, "grid", "block") == (8, 8, 8, 8, 8, 64, (64, 128, 1), (64, 1, 1))
    assert "__builtin_amdgcn_mfma_f32_16x16x4f32" in plan.build().source()


def test_the_reference_case_with_two_fused_passes() -> None:
    plan = FULL["2 fused"]()
    assert counts(plan, *FRAGMENTS, "grid", "block") == (2, 2, 8, 8, 8, 64, (64, 128, 1), (64, 1, 1))
    assert plan.tensorization is not None and plan.tensorization.groups == 4
    assert counts(FULL["2 fused, tensor cores"](), *FRAGMENTS) == (2, 2, 8, 8, 8, 16)


def test_the_table_of_fused_passes() -> None:
    module = MODULES["06_fused_passes"]
    rows = [[int(cell) for cell in re.findall(r"\d+", line)] for line in module.__doc__.splitlines() if "| " in line]
    found = {}
    for fused in (8, 4, 2, 1):
        fragments, _, loads, *_ = row = counts(module.on_amd(module.EXTENTS, fused), *FRAGMENTS)
        found[fused] = [fused, loads // fragments, *row]
    assert [row for row in rows if row] == list(found.values())


def test_fused_passes_give_the_same_bits() -> None:
    module, random = MODULES["06_fused_passes"], np.random.default_rng(0)
    a, b, c = (random.standard_normal(shape, np.float32) for shape in ((32, 128), (128, 16), (32, 16)))
    results = []
    for fused in (8, 4, 2, 1):
        results.append(c.copy())
        module.on_amd((32, 16, 128), fused).build()(a, b, results[-1])
    assert all(np.array_equal(result, results[0]) for result in results)
    np.testing.assert_allclose(results[0], c + a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)
