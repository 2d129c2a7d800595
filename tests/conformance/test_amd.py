"""Every kernel of the conformance set that AMD's targets can do, as machine code; the others are refused, and why.

The kernels are those that the other modules launch: a process collects the tests, runs each until its result would
matter, and keeps the HIP texts. clang compiles many texts at once, each in a namespace of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.runtime.clang import compile_hip, find_clang

ROOT = Path(__file__).parents[2]
BATCH = 60
PROCESSES = min(4, os.cpu_count() or 1)  # that record, each the kernels of some modules
NEWER = re.compile(r"_mfma_\w+(bf16_1k|f64)\b")  # the matrix instructions that came with gfx90a
OF_A_NAME = 24  # texts of kernels of one name that are compiled: tests launch some for every type and shape

# Why a kernel of the set may be refused: what the hardware has not, or what would need ROCm's libraries.
REASONS = (
    r"gfx90a has no instruction for (cbrt|cos|erf|fmod|pow|sin|tan|tanh) of float(32|64), and the math library of ROCm is not linked",
    r"gfx90a has no instruction for (exp|sqrt|rsqrt) of float64, and the math library of ROCm is not linked",
    r"tw\.named_barrier: gfx90a has one barrier, that of the whole block",
    r"gfx90a has no (barrier of a part of the block|cvt\.rna\.tf32|mbarrier|printf|PTX)",
    r"gfx90a has no (atomic addition of two halves|barrier of the grid here|reduction of a wave in one instruction)",
    r"gfx90a has no instruction that the library makes (cos|sin|tanh) of",
    r"[\w.]+: gfx90a has no [\w. ]+(, whose bytes it counts)?; (it needs|they need) sm_\d+ or later",
    r"tw\.(copy|gemm|prefetch|prefetch_tensor_map): (SM\d+_|CpAsync|UniversalCopy).* needs sm_\d+ or later, and the target is gfx90a",
    r"gfx90a has no clusters, which need sm_90 or later, and the kernel asks for clusters of [\d x]+ blocks",
    r"tw\.warpgroup_id: gfx90a has no warpgroups",
    r"tw\.gemm: GFX942_\w+ needs gfx942 or later, and the target is gfx90a",
    r"arithmetic and conversion of float8_(e4m3fn|e5m2) need sm_89 or later, and the target is gfx90a",
    r"arithmetic and conversion of float8_(e4m3|e5m2)fnuz need gfx942, and the target is gfx90a",
    r".* is done by (32|64) lanes together, and the block of \d+ threads leaves .*",
    r"kernel '(large_shared|norm_gradient_held|prefix_sum)' takes \d+ bytes of shared memory; a block of gfx90a has 65536",
    # What these tests are about: they launch kernels that are wrong for every target.
    r"tw\.device_assert: n is too small",
    r"mbarrier full takes 32 arrivals a phase, and at most 0 come: this wait never ends",
    r"upcast\(\(3,2\):\(1,3\), 2\): mode 3:1 does not fall into groups of 2 elements",
    r"x\.recast: the first element is known to lie at a multiple of 2 bytes only, and a u?int(32|64) takes [48]",
    r"x\.recast: uint16 memory is not seen as (bool|tfloat32)",
    r"a TiledCopy of 32 threads is used in a block of 256 threads: some of them take slices that do not exist",
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of all kernels: texts with names, refusals, faults."""
    folder = tmp_path_factory.mktemp("amd")
    source = Path(tilewright.__file__).resolve().parents[1]
    path = os.pathsep.join([str(ROOT), str(source), os.environ.get("PYTHONPATH", "")])
    options = ["-p", "tests.helpers.amd_recorder", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not gpu"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "--assert=plain", "--import-mode=importlib", *options]
    unrecorded = {Path(__file__).name, "test_processes.py"}
    modules = sorted(os.fspath(file) for file in Path(__file__).parent.glob("test_*.py") if file.name not in unrecorded)

    def record(part: int) -> dict[str, Any]:
        file = folder / f"{part}.json"
        done = subprocess.run(
            [*command, *modules[part::PROCESSES]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=800,
            env={**os.environ, "PYTHONPATH": path, "TILEWRIGHT_AMD_RECORD": str(file)},
        )  # fmt: skip
        assert file.exists(), done.stdout + done.stderr
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    with ThreadPoolExecutor(PROCESSES) as threads:
        parts = list(threads.map(record, range(PROCESSES)))
    texts = {text: name for part in parts for text, name in part["texts"]}
    kinds = {kind: sorted({each for part in parts for each in part[kind]}) for kind in ("refusals", "faults")}
    return {"texts": list(texts.items()), **kinds}


@pytest.mark.slow  # traces every kernel of the suite
def test_every_kernel_is_printed_or_refused_for_a_reason(recorded: dict[str, Any]) -> None:
    assert recorded["faults"] == []
    unexplained = [r for r in recorded["refusals"] if not any(re.fullmatch(reason, r) for reason in REASONS)]
    assert unexplained == []
    assert len(recorded["texts"]) > 500


def spread(texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return at most `OF_A_NAME` texts of each name, from first to last."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for text, name in texts:
        by_name.setdefault(name, []).append((text, name))
    steps = {name: -(-len(found) // OF_A_NAME) for name, found in by_name.items()}
    return [each for name, found in by_name.items() for each in found[:: steps[name]]]


@pytest.mark.slow  # as above
@pytest.mark.skipif(find_clang() is None, reason="needs clang")
def test_clang_compiles_every_kernel(recorded: dict[str, Any]) -> None:
    """Half of the kernels for each target: their texts are the same for both, but those with matrix instructions of gfx90a."""
    spaces: dict[bool, list[str]] = {False: [], True: []}  # whether only gfx90a has the instructions
    for number, (text, name) in enumerate(spread(recorded["texts"])):
        own = re.sub(rf"\b{re.escape(name)}\(", f"{name}_{number}(", text)
        spaces[NEWER.search(text) is not None].append(f"namespace kernel_{number} {{\n{own}\n}}\n")
    assert spaces[True]
    jobs = [
        ("".join(part[start : start + BATCH]), arch)
        for part, arch in ((spaces[False][::2], "gfx908"), (spaces[False][1::2] + spaces[True], "gfx90a"))
        for start in range(0, len(part), BATCH)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        modules = list(threads.map(lambda job: compile_hip(job[0], name="k", arch=job[1], options=("-O1",)), jobs))
    assert [module.log for module in modules if module.log] == []
    assert sum(module.assembly.count("s_endpgm") >= 1 for module in modules) == len(jobs)
    assert sum(module.assembly.count(".amdhsa_kernel ") for module in modules) == len(spaces[False]) + len(spaces[True])
