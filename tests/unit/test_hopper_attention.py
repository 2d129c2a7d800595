"""The attention of examples/hopper: right on the simulator, each synchronisation needed, and overlapped in machine code."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.declared_effects import declared_effects
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.backends import sim
from tilewright.demo import Case, collect_cases, run_case, runner
from tilewright.demo.examples import examples_folder, load_example
from tilewright.instructions.barrier import Barrier, NamedBarrier
from tilewright.ir.effects import Scope
from tilewright.runtime import libraries
from tilewright.runtime.disassemble import disassemble

FILE = examples_folder() / "hopper" / "10_attention.py"
MODULE = load_example(FILE)
CASES = collect_cases([FILE], "sim", quick=True)
BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(*shapes: tuple[int, ...], dtype: Any = BF16) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.spread(2)
def test_case(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure
    trial = case.prepare()
    assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit  # no right answer before the launch


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (4, 3)])
def test_every_tile_is_computed_once(blocks: int, heads: int) -> None:
    """Blocks turn round after each tile, and the last turn may be for some of them only."""
    q, k, v = normal((1, heads, 300, 128), (1, 1, 16, 128), (1, 1, 16, 128))
    out, lse = np.full_like(q, np.nan), np.full((1, heads, 300), np.nan, np.float32)
    MODULE.launch(out, q, k, v, True, lse, blocks=blocks, keys_of_tile=16)
    expected, _ = MODULE.reference(q, k, v, True, np.arange(300))
    assert np.abs(out.astype(np.float64) - expected).max() <= 2.0**-7 * np.abs(expected).max()


def test_other_heads_are_refused() -> None:
    q, k, v = normal(*[(1, 1, 16, 96)] * 3)
    with pytest.raises(ValueError, match="64 or 128 elements, not 96"):
        MODULE.launch(np.zeros_like(q), q, k, v)


# --- what is compiled ------------------------------------------------------------------------------------

PLANS = [
    pytest.param(head, causal, marks=() if (head, causal) == (128, True) else pytest.mark.slow)
    for head in (64, 128)
    for causal in (False, True)
]


def arguments(head: int, causal: bool) -> tuple[int, int, tuple[Any, ...]]:
    heads, plan = tw.spec(tw.bfloat16, (1, 16, 16384, head)), MODULE.plan_for(tw.bfloat16, head, causal)
    return 132, 128 * (1 + plan.consumers), (heads, heads, heads, heads, None, np.float32(0.1), plan)


@pytest.mark.parametrize(("head", "causal"), PLANS)
def test_softmax_runs_under_the_products(head: int, causal: bool) -> None:
    """In the machine code of a step: both products one after the other, then a wait for the first, then all of softmax.

    Source: FlashAttention 3, section 3.2, and its appendix B.2 on what the compiler makes of it.
    """
    _, block, args = arguments(head, causal)
    lowered = MODULE.attention.lower(*args, arch="sm_90a", block=block)
    # A loop in each form of a step, and behind the last one.
    assert lowered.cuda.text.count("weights[i] = to_bfloat16(S[i]);") == 2 + causal
    module = lowered.module
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    plan = args[-1]
    products = head // 16 + plan.keys // 16
    steps = [loop for loop in loops_of(disassemble(module.cubin)) if sum("HGMMA" in line for line in loop) == products]
    assert len(steps) == 1 + causal  # of tiles that a mask cuts, and of the others
    for step in steps:
        at = [n for n, line in enumerate(step) if "HGMMA" in line]
        waits = {line.split(",")[-1].strip(" ;"): n for n, line in enumerate(step) if "DEPBAR.LE gsb0" in line}
        exponentials = [n for n, line in enumerate(step) if "MUFU.EX2" in line]
        packed = [n for n, line in enumerate(step) if "F2FP.BF16" in line]
        assert list(waits) == ["0x0", "0x1"]
        assert waits["0x0"] < packed[0] and packed[-1] < at[0]  # the weights of the step before are rounded
        assert at[-1] < waits["0x1"] < exponentials[0]
        assert len(packed) == plan.keys // 4  # two values each, of 2 x 64 x keys / 128 threads
        assert len(exponentials) == plan.keys // 2 + 2  # one for each score, and one for the factor of each row
        assert sum("SHFL" in line for line in step) == 4
        assert not any(word in line for line in step for word in ("LDL", "STL", "F2F.", "MUFU.RCP"))
        between = [line for line in step[at[0] : at[products - plan.keys // 16 - 1]] if "HGMMA" not in line]
        assert not any(line.startswith("F") for line in between)  # Q K^T is begun without arithmetic in between


def loops_of(sass: str) -> list[list[str]]:
    """Return the instructions of each run of lines that ends with a jump back to its beginning, under a condition."""
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in sass.splitlines()]
    labels = {line[:-1]: n for n, line in enumerate(lines) if line.startswith(".L_") and line.endswith(":")}
    found = []
    for n, line in enumerate(lines):
        jump = re.match(r"@\S+ +BRA `\((\S+)\)", line)
        if jump and labels.get(jump[1], n) < n:
            found.append([re.sub(r"^@!?U?P\d+ +", "", each) for each in lines[labels[jump[1]] : n] if each])
    return found


# --- each synchronisation removed ------------------------------------------------------------------------


@pytest.mark.slow
def test_each_synchronisation_is_needed_and_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tiles through two stages of Q: one of two masked steps and another one, and two that are over at once.

    Where a tile takes many steps, the stages of K and V alone keep Q from being overwritten.
    """
    q, k, v = normal((1, 1, 300, 128), (1, 1, 60, 128), (1, 1, 60, 128))
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        MODULE.launch(np.full_like(q, np.nan), q, k, v, True, blocks=1, keys_of_tile=16)
    ((launched, more),) = launches
    kernel = launched[0]
    assert findings(launched, more) == []
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) == 63
    for block, op in places:
        # A ring lets a warp meet before it hands a stage back; the wait for products of a warpgroup is enough for that.
        of_warp = isinstance(op, Barrier) and op.effects.together is Scope.WARP
        # Turns are a matter of speed: without a wait for one, arrivals of two may end a phase, and a later wait hang.
        is_turn = isinstance(op, NamedBarrier) and op.kind == "sync" and op.threads == 256
        with without(block, op):
            found = set(findings(launched, more))
        assert found <= {"deadlock"} if is_turn else bool(found) is not of_warp, (type(op).__name__, op.location, found)
