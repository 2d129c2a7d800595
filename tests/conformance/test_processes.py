"""Processes that compile the same kernels at the same time, into one cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.conformance.harness import Backend

import tilewright as tw

_SCRIPT = """\
import sys, time
import numpy as np
import tilewright as tw

@tw.kernel
def scale(out, x, factor: tw.constexpr):
    i = tw.thread_idx.x
    out[i] = x[i] * factor

start, on_gpu = float(sys.argv[1]), sys.argv[2] == "cuda"
x = np.arange(32, dtype=np.float32)
out = np.zeros_like(x)
if on_gpu:
    import torch
    x, out = torch.from_numpy(x).cuda(), torch.from_numpy(out).cuda()
time.sleep(max(0.0, start - time.time()))  # both at once
for factor in range(4):
    spec = tw.spec(tw.float32, (32,))
    print(len(scale.lower(spec, spec, factor, block=32).module.cubin))
    scale[1, 32](out, x, factor)
    assert (out == factor * x).all()
print("done")
"""


def test_two_processes_compile_at_once(backend: Backend, tmp_path: Path) -> None:
    script, cache = tmp_path / "script.py", tmp_path / "cache"
    script.write_text(_SCRIPT)
    source = Path(tw.__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
        "TILEWRIGHT_CACHE_DIR": str(cache),
    }
    start = time.time() + (8.0 if backend.name == "cuda" else 1.0)
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(start), backend.name],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for _ in range(2)
    ]  # fmt: skip
    answers = [process.communicate(timeout=100) for process in running]
    for (out, err), process in zip(answers, running, strict=True):
        assert process.returncode == 0, err
        assert out.endswith("done\n"), (out, err)
    assert answers[0] == answers[1]
    files = [path for path in cache.rglob("*") if path.is_file()]
    # Nothing half-written is left; what launches is compiled where a compiler is.
    assert {".cubin"} <= {path.suffix for path in files} <= {".cubin", ".so"}
