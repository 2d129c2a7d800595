"""device_print and device_assert: on the GPU in a process of its own, where C's stdout is caught."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw

_PREAMBLE = """\
import numpy as np
import tilewright as tw

def put(array):
    if {on_gpu}:
        import torch
        return torch.from_numpy(array).cuda()
    return array

def finish():
    if {on_gpu}:
        import torch
        torch.cuda.synchronize()
"""


def run_script(backend: Backend, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(_PREAMBLE.format(on_gpu=backend.name == "cuda") + textwrap.dedent(text))
    source = Path(tw.__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, env=environment, check=False
    )


PRINTS = """
@tw.kernel
def talk(x, h):
    i = tw.thread_idx.x
    tw.device_print("hello from", i)
    if i % 2 == 1:
        large = tw.int64(x[i]) * 3000000000
        tw.device_print("odd", x[i], x[i] * 0.5, x[i] > 2, large, "100% \\\\n 'quoted' \\"twice\\"")
        tw.device_print(h[i], h[i].to(tw.bfloat16), tw.uint32(x[i]) - 5, tw.float64(x[i]) / 3)
    tw.device_print()

talk[1, 4](put(np.arange(4, dtype=np.int32)), put(np.array([0.5, 1.5, 2.5, 65504], np.float16)))
finish()
"""


def test_prints(backend: Backend, tmp_path: Path) -> None:
    done = run_script(backend, tmp_path, PRINTS)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.split("\n")[:-1])
    expected = [f"hello from {i}" for i in range(4)] + [""] * 4
    for i, h in ((1, 1.5), (3, 65504.0)):
        expected.append(f"odd {i} {i * 0.5:g} {i > 2} {i * 3000000000} 100% \\n 'quoted' \"twice\"")
        narrow = {1.5: "1.5", 65504.0: "65536"}[h]
        expected.append(f"{h:g} {narrow} {(i - 5) % 2**32} {i / 3:g}")
    assert lines == sorted(expected)


ASSERTS = """
@tw.kernel
def check(x):
    i = tw.thread_idx.x
    tw.device_assert(x[i] < {limit}, "x is too large")
    x[i] = 0

x = put(np.arange(8, dtype=np.int32))
check[1, 8](x)
finish()
print("went on")
"""


def test_assertions_that_hold(backend: Backend, tmp_path: Path) -> None:
    done = run_script(backend, tmp_path, ASSERTS.format(limit=8))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "went on\n"


def test_assertions_that_fail(backend: Backend, tmp_path: Path) -> None:
    """The message and the line are shown, and the program learns of it."""
    done = run_script(backend, tmp_path, ASSERTS.format(limit=5))
    assert done.returncode != 0
    assert "went on" not in done.stdout
    shown = done.stdout + done.stderr
    assert "x is too large" in shown
    assert "script.py:" in shown


def test_an_assertion_inside_a_branch(backend: Backend) -> None:
    @tw.kernel
    def guarded(x):
        i = tw.thread_idx.x
        if i < 3:
            tw.device_assert(i != 5, "cannot be")
            x[i] = i

    x = backend.put(np.full(8, -1, np.int32))
    guarded[1, 8](x)
    assert backend.get(x).tolist() == [0, 1, 2, -1, -1, -1, -1, -1]


def test_an_assertion_that_is_known_to_fail() -> None:
    @tw.kernel
    def never(x, n: tw.constexpr):
        tw.device_assert(n > 3, "n is too small")
        x[0] = n

    with pytest.raises(tw.LanguageError, match="n is too small"):
        never[1, 1](np.zeros(1, np.int32), 2)
