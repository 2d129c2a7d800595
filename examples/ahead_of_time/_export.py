"""Compile two kernels ahead of time, for `main.cpp` beside this file: y = a x + y, and C = A B^T by TMA and wgmma.

    python examples/ahead_of_time/_export.py build

writes the package `products` into the folder `build`. It needs NVRTC and no GPU. (Files whose names begin with `_` are
not cases of the demo.)
"""

import importlib.util
import sys
from pathlib import Path

import tilewright as tw


@tw.kernel
def axpy(y, a: tw.float32, x):
    """Compute y = a x + y."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < y.shape[0]:
        y[i] = a * x[i] + y[i]


def hopper_product():
    """Return the example 05_persistent of examples/hopper as a module."""
    path = Path(__file__).parents[1] / "hopper" / "05_persistent.py"
    spec = importlib.util.spec_from_file_location("persistent", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["persistent"] = module
    spec.loader.exec_module(module)
    return module


def package() -> tw.Package:
    """Return the package, compiled for Hopper."""
    found = tw.Package("products", archs=["sm_90a"])
    # What is described here is what the code may take for granted: 4097 is odd, so nothing is known of extents.
    vector = tw.spec(tw.float32, (4097,), align=4)
    found.add(axpy[lambda y, a, x: tw.ceil_div(y.shape[0], 256), 256], vector, 1.0, vector)
    product = hopper_product()
    plan = product.plan_for(tw.bfloat16)
    m, n, _ = plan.tile
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    launcher = product.matmul_persistent[
        lambda C, A, B, plan, alpha: (C.shape[0] // m) * (C.shape[1] // n), product.THREADS
    ]
    found.add(launcher, matrix, matrix, matrix, plan, None, name="multiply")
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    for file in package().write(folder, overwrite=True):
        print(file)
