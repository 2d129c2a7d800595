"""Operators of PyTorch from kernels compiled ahead of time: registered without this library, never launched on meta tensors."""

import subprocess
import sys

import pytest

import tilewright as tw
from tilewright.runtime.nvrtc import library_path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(library_path() is None, reason="needs NVRTC")


@tw.kernel
def axpy(y, a: tw.float32, x, n: tw.int32, yes: tw.bool_):
    """Compute y = a x + y for n elements."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if (i < n) & yes:
        y[i] = a * x[i] + y[i]


_SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import vectors_torch, torch
assert "tilewright" not in sys.modules
print(torch.ops.vectors.axpy.default._schema)
y, x = torch.zeros(8, device="meta"), torch.zeros(8, device="meta")
assert torch.ops.vectors.axpy(y, 2.0, x, 8, True) is None

def program(y, x):
    torch.ops.vectors.axpy(y, 2.0, x, 8, True)
    return y + 1

from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    assert program(torch.zeros(8), torch.zeros(8)).shape == (8,)
try:
    torch.ops.vectors.axpy(torch.zeros(8), 2.0, torch.zeros(8), 8, True)
except NotImplementedError as error:
    assert "CPU" in str(error)
else:
    raise AssertionError("ran on the CPU")
import vectors
try:
    vectors.axpy(torch.zeros(8), 2.0, torch.zeros(8), 8, True)
except vectors.PackageError as error:
    print(error)
"""


def test_a_package_registers_operators_that_write_in_place(tmp_path):
    vector = tw.spec(tw.float32, (4096,))
    axpy[16, 256].export(tmp_path, vector, 1.0, vector, 4096, True, name="vectors", archs=["sm_90a"])
    shown = subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    first, second = shown.stdout.splitlines()
    assert first == "vectors::axpy(Tensor(a0!) y, float a, Tensor x, int n, bool yes) -> ()"
    assert second == "axpy: y is on cpu, and the kernel runs on a GPU"
