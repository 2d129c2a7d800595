"""What the rows of bad calls name: one of each thing that the public functions take."""

from __future__ import annotations

import itertools
import linecache
import types
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.schedule as S

_numbers = itertools.count()


@tw.kernel
def kernel(x):
    x[tw.thread_idx.x] = 1


@tw.kernel
def constant(x, value: tw.constexpr):
    x[0] = 1


@tw.kernel
def calls_itself(x):
    calls_itself[1, 32](x)


@tw.kernel
def calls_another(x):
    kernel[1, 32](x)


@tw.kernel
def prepares_another(x):
    kernel[1, 32].prepare(x)


def simulated(**options: Any) -> None:
    with tw.simulate(**options):
        pass


@cache
def _nest() -> tuple[S.Nest, tuple[Any, ...], tuple[S.Array, ...]]:
    a, b = (S.Array(S.Role.INPUT, tw.float32, (16, 16), name=name) for name in "AB")
    c = S.Array(S.Role.INPUT_OUTPUT, tw.float32, (16, 16), name="C")
    nest = S.Nest((16, 16, 16))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, k] * b[k, j]

    return nest, (i, j, k), (a, b, c)


@cache
def setting() -> dict[str, Any]:
    """Return the names that a call may use."""
    nest, (i, j, k), arrays = _nest()
    data = np.zeros((4, 8), np.float32)
    return {
        "tw": tw,
        "np": np,
        "S": S,
        "A": tw.Layout((4, 8), (8, 1)),
        "X": np.zeros((4, 4), np.float32),
        "T": tw.tensor(data),
        "atom": tw.atoms.UniversalCopy(128),
        "mma_atom": tw.atoms.SM80_16x8x16_F32F16F16F32_TN,
        "C": tw.make_tiled_copy(tw.atoms.UniversalCopy(32), tw.Layout((8, 4)), tw.Layout((1, 1))),
        "M": tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (2, 2, 1)),
        "configs": [tw.Config({"B": 1})],
        "kernel": kernel,
        "constant": constant,
        "calls_itself": calls_itself,
        "calls_another": calls_another,
        "prepares_another": prepares_another,
        "simulated": simulated,
        "IN": S.Role.INPUT,
        "IA": arrays[0],
        "SHAPE": next(iter(S.MMAShape)),
        "i": i,
        "j": j,
        "k": k,
        "nest": lambda: nest,
        "schedule": nest.create_schedule,
        "plan": lambda: nest.create_plan(S.Target("sm_90a")),
    }


def evaluate(call: str, inside: bool) -> None:
    """Make a call: as it is, or as the one line of a kernel with an argument x that is an array of float32."""
    names = setting()
    if not inside:
        eval(call, dict(names))
        return
    file = f"<bad call {next(_numbers)}>"
    text = f"def bad(x):\n    value = {call}\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    variables: dict[str, Any] = dict(names)
    exec(compile(text, file, "exec"), variables)
    function: types.FunctionType = variables["bad"]
    tw.kernel(function).source(tw.spec("float32", (8, 8)))
