"""Whole generated CUDA files, as they were when somebody last read them: `pytest tests/golden --update-golden`.

Each is also compiled for every target, without spills and within a limit of registers: one that lets as many
blocks live on a multiprocessor as the kernel is made for, or is a little above what it takes today.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example
from tilewright.launch import Launcher
from tilewright.runtime.nvrtc import compile_cuda, nvrtc_version

HERE = Path(__file__).parent
ARCHES = ("sm_80", "sm_89", "sm_90a")
ARCH = "sm_90a"  # of the files


@dataclass(frozen=True)
class Golden:
    """A kernel in a file, which has a function example_<kernel>, and the registers a thread may take."""

    file: str
    kernel: str
    registers: int

    def launch(self) -> tuple[Launcher, tuple[object, ...]]:
        path = HERE / self.file if (HERE / self.file).exists() else examples_folder() / self.file
        module = load_example(path)
        grid, block, args = getattr(module, f"example_{self.kernel}")()
        return getattr(module, self.kernel)[grid, block], args

    def source(self, arch: str = ARCH) -> str:
        launcher, args = self.launch()
        return launcher.source(*args, arch=arch)

    @property
    def path(self) -> Path:
        return HERE / f"{self.kernel}.cu"


GOLDEN = (
    Golden("01_copy.py", "copy_tiles", 32),
    Golden("02_transpose.py", "transpose_fast", 40),
    Golden("03_matmul.py", "matmul_double_buffered", 128),  # two blocks of 256 threads share 65536 registers
    Golden("kernels.py", "histogram_of_steps", 40),
    Golden("kernels.py", "noisy_scores", 40),
)
each = pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.kernel)


@each
def test_text(golden: Golden, request: pytest.FixtureRequest) -> None:
    text = golden.source()
    if request.config.getoption("--update-golden"):
        golden.path.write_text(text, newline="\n")
        return
    kept = golden.path.read_text() if golden.path.exists() else ""
    difference = "".join(
        difflib.unified_diff(kept.splitlines(True), text.splitlines(True), golden.path.name, "generated now")
    )
    assert not difference, (
        f"the text of {golden.kernel} has changed; where that is meant: "
        f"pytest tests/golden --update-golden\n{difference}"
    )


@each
def test_text_names_no_folder(golden: Golden) -> None:
    """Files are named without their folders, so that a text is the same, and found in the cache, everywhere."""
    text = golden.source()
    assert f"{golden.file}:" in text
    assert str(HERE) not in text and str(examples_folder()) not in text


_SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from tests.golden.test_golden import GOLDEN, digest
print([digest(golden) for golden in GOLDEN])
"""


def digest(golden: Golden) -> str:
    """Return a hash of a kernel's text."""
    return hashlib.sha256(golden.source().encode()).hexdigest()


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_another_process_writes_the_same_bytes(seed: str) -> None:
    """Nothing depends on the order of a set, on an address or on what was compiled before."""
    package = Path(tw.__file__).resolve().parents[1]
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(root=str(HERE.parents[1]))],
        capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for golden in reversed(GOLDEN):
        golden.source()
    assert done.stdout.strip() == str([digest(golden) for golden in GOLDEN])


@each
def test_machine_code_is_the_same_each_time(golden: Golden) -> None:
    first, second = (compile_cuda(golden.source(), name=golden.kernel, arch=ARCH) for _ in range(2))
    assert first.cubin == second.cubin


@each
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.spread(2)
def test_compiles_without_spills(golden: Golden, arch: str) -> None:
    resources = compile_cuda(golden.source(arch), name=golden.kernel, arch=arch).resources
    # The first compiler of CUDA 13 takes a register more of the product, or spills two.
    spare = int(nvrtc_version() <= (13, 0))
    assert max(resources.spill_stores, resources.stack_bytes, resources.local_bytes) <= 8 * spare, resources
    assert 0 < resources.registers <= golden.registers + spare, resources
