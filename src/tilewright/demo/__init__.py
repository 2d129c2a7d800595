"""The protocol of the examples, and the runner that checks and times them."""

# An example is one Python file with a function `cases(backend, quick) -> list[Case]`. `backend` is "sim" or "cuda";
# `quick` asks for sizes at which the whole file takes a few seconds on the simulator with two cores. Each case
# prepares its own data and hands back a `Trial`; the runner launches, compares with NumPy and, on a GPU, times::
#
#     def cases(backend: Backend, quick: bool) -> list[Case]:
#         n = 256 if quick else 8192
#
#         def prepare() -> Trial:
#             x = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
#             src, dst = put(x, backend), put(np.zeros_like(x), backend)
#             launch = copy_kernel[grid, 256]
#             return Trial(lambda: launch(dst, src), lambda: fetch(dst), expected=x, limit=0.0)
#
#         return [Case("copy", f"{n} x {n} float32", prepare, bytes_moved=2 * 4 * n * n)]
#
#     if __name__ == "__main__":
#         main(cases)
#
# `tilewright demo` runs every example; `main` gives one file the same table.

from tilewright.demo.arrays import fetch, pick_backend, put
from tilewright.demo.examples import (
    Backend,
    Case,
    CasesFunction,
    Report,
    Trial,
    example_files,
    load_example,
    with_parts,
)
from tilewright.demo.products import scheduled_case
from tilewright.demo.runner import collect_cases, main, run_case, run_cases

__all__ = [
    "Backend",
    "Case",
    "CasesFunction",
    "Report",
    "Trial",
    "collect_cases",
    "example_files",
    "fetch",
    "load_example",
    "main",
    "pick_backend",
    "put",
    "run_case",
    "run_cases",
    "scheduled_case",
    "with_parts",
]
