"""Operators whose calls are made in C++: what is launched, what is refused, what is not passed by."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.helpers import operators_in_c  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.torch import repeats  # noqa: E402
from tilewright.torch.repeats import EXTENSION, guards_of  # noqa: E402


def test_calls_that_are_repeated() -> None:
    """On a driver that adds, in a program of its own: the cases are in tests/helpers/driven_operators.py."""
    operators_in_c.built()
    command = [sys.executable, "-m", "tests.helpers.driven_operators"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "NVRTC, the CUDA compiler, is not installed" in done.stdout:
        pytest.skip("needs NVRTC")
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout.splitlines()[-1])
    assert not wrong, "\n".join(wrong.values())


@tw.kernel
def double(out, x):
    i = tw.block_idx.x * 32 + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = 2 * x[i]


BLOCK, SIZES, GRIDS = 32, [32], (32, (1, 2.0), "text", torch.float32)


def grid_of(n: int, block: int = BLOCK) -> int:
    return max(n // block, *[size for size in (1, 2) if size < n])


def by_a_helper(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float16 and x.dim() != 1:
        raise ValueError(f"got {x.shape}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.contiguous_format)
    double[lambda out, x: grid_of(out.shape[0]), GRIDS[0]](out.view(-1), x.reshape(-1))
    return out


def by_a_list(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    double[SIZES[0], 32](out, x)
    return out


def by_a_global(x: torch.Tensor) -> torch.Tensor:
    global BLOCK
    BLOCK = 32
    return torch.empty_like(x)


def by_an_import(x: torch.Tensor) -> torch.Tensor:
    import os

    return torch.empty(int(os.environ["SIZE"]))


def by_the_device(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(torch.cuda.device_count())


def by_the_address(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.data_ptr() % 64)


def by_identity(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(id(x) % 64)


def by_items(x: torch.Tensor) -> Any:
    yield x


def by_a_default(x: torch.Tensor, sizes: list[int] = SIZES) -> torch.Tensor:
    return torch.empty(sizes)


def by_something_unknown(x: torch.Tensor) -> torch.Tensor:
    return unknown(x)  # noqa: F821


def by_an_attribute(x: torch.Tensor) -> torch.Tensor:
    x.mine = 3  # type: ignore[attr-defined]
    return torch.empty_like(x)


def test_code_that_can_be_repeated() -> None:
    found = guards_of(by_a_helper)
    assert found is not None
    builtins = {"max", "ValueError"}
    assert {name for _, name, _ in found} == {"", "defaults", "torch", "double", "grid_of", "GRIDS", *builtins}
    assert {name for _, name, value in found if value is ...} == {"defaults", *builtins}
    assert guards_of(grid_of) is not None


@pytest.mark.parametrize(
    "function",
    [
        *(by_a_list, by_a_global, by_an_import, by_the_device, by_the_address, by_identity, by_items, by_a_default),
        *(by_something_unknown, by_an_attribute),
    ],
)
def test_code_that_cannot(function: Any) -> None:
    assert guards_of(function) is None


def test_calls_on_the_simulator_are_not_repeated() -> None:
    """Only their questions are asked in C++."""
    operators_in_c.built()

    @tw.torch.op("calls_in_c::doubled", shape="x")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        double[tw.ceil_div(x.numel(), 32), 32](out, x)
        return out

    @doubled.backward
    def doubled_backward(grad: torch.Tensor) -> torch.Tensor:
        return doubled(grad)

    for _ in range(3):
        x = torch.randn(40)
        assert torch.equal(doubled(x), 2 * x)
    assert doubled._calls is not None
    assert set(doubled.check(x.requires_grad_()).values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(doubled, x.detach().double().requires_grad_())
    assert torch.autograd.gradgradcheck(doubled, x.detach().double().requires_grad_())
    traced = torch.compile(lambda x: doubled(x) + 1, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(traced(x).sum(), x)
    assert (found == 2).all()


# --- gradients ------------------------------------------------------------------------------------------

FACTORS = {"unit": 1}  # read from a dictionary, so the function is called each time


@tw.torch.op("calls_in_c::times", shape="x")
def times(x: torch.Tensor, y: torch.Tensor, factors: list[int], shift: int = 0) -> torch.Tensor:
    return x * y * (FACTORS["unit"] * factors.pop() + shift)  # of a list of its own


@times.backward
def times_backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, factors: list[int], shift: int, needs: frozenset[str]
) -> dict[str, Any]:
    others = {"x": y, "y": x}
    factor = factors.pop()  # of a list of its own
    return {name: grad * others[name] * (factor + shift) for name in needs}


@pytest.fixture
def xy() -> tuple[Any, Any]:
    """Inputs of `times`, whose calls are made in C++ from here on."""
    operators_in_c.built()
    x, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True)
    times(x, y, [1])
    assert times._calls is not None
    return x, y


def compiled_backward() -> Any:
    from torch._dynamo import compiled_autograd

    return compiled_autograd._enable(torch.compile(backend="eager"))


def test_compiled_backward_passes_have_what_each_call_kept(xy: tuple[Any, Any]) -> None:
    """One graph is compiled for all of them."""
    x, y = xy
    for n in range(1, 4):
        total = times(times(x, y, [n], n), y, [n + 2]).sum()
        with compiled_backward():
            found = torch.autograd.grad(total, [x, y])
        assert torch.equal(found[0], 2 * n * (n + 2) * y**2)
        assert torch.equal(found[1], 2 * n * (n + 2) * 2 * x * y)
        with compiled_backward():
            (only,) = torch.autograd.grad(times(x, y, [n]).sum(), [y])
        assert torch.equal(only, n * x)


def test_compiled_backward_passes_call_hooks_and_end_graphs(xy: tuple[Any, Any]) -> None:
    x, y = xy
    seen: list[str] = []
    result = times(x, y, [3])
    result.register_hook(lambda grad: 2 * grad)
    result.grad_fn.register_hook(lambda found, given: seen.append("node"))
    x.register_post_accumulate_grad_hook(lambda x: seen.append("x"))
    with compiled_backward():
        result.sum().backward(retain_graph=True)
        result.sum().backward()
        assert torch.equal(x.grad, 12 * y) and seen == ["node", "x"] * 2
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.sum().backward()
    with torch.autograd.graph.save_on_cpu():
        result = times(x, y, [3])
    with compiled_backward():
        (found,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(found, 3 * y)


@pytest.mark.parametrize("end", ["unused", "eager", "compiled"])
def test_what_a_call_keeps_is_freed_with_its_graph(xy: tuple[Any, Any], end: str) -> None:
    x, y = xy
    for number in [int(f"{n}000000000") for n in (1, 1, 2, 2)]:
        before = sys.getrefcount(number)
        result = times(x, y, [number])
        assert sys.getrefcount(number) > before
        if end != "unused":
            with compiled_backward() if end == "compiled" else contextlib.nullcontext():
                torch.autograd.grad(result.sum(), x)
        times(x, y, [1])  # the last call's are kept for a next one
        del result
        is_compiled = end == "compiled" and number == 10**9  # torch keeps what it compiled for
        assert is_compiled or sys.getrefcount(number) == before


@pytest.mark.parametrize("made_by", ["python", "c++"])
def test_lists_are_copied(xy: tuple[Any, Any], made_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if made_by == "python":
        operators_in_c.leave_to_python(monkeypatch, times)
    x, y = xy
    factors = [3]
    result = times(x, y, factors)
    assert factors == [3]
    factors[0] = 100
    for _ in range(2):
        (found,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        assert torch.equal(found, 3 * y)


# --- how it is built ------------------------------------------------------------------------------------


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An extension that is not looked for yet, a cache of its own, and a compiler that says what it was told."""
    compiler = tmp_path / "some-c++"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\necho "calls.cpp:1: error: no" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(EXTENSION.variable, raising=False)
    known = EXTENSION.state
    EXTENSION.forget()
    yield tmp_path
    EXTENSION.forget()
    EXTENSION.state = known


def test_a_call_on_the_cpu_builds_nothing(anew: Path) -> None:
    assert repeats.library((torch.ones(2), 3)) is None
    assert not (anew / "told").exists()


def test_where_it_does_not_compile_python_makes_the_calls(anew: Path) -> None:
    operators_in_c.skip_without_compiler()
    assert EXTENSION.report().startswith(
        f"compiled, once {anew / 'some-c++'} has built it: that begins with the first call"
    )
    assert EXTENSION.wait() is None
    assert EXTENSION.report() == f"Python's ({anew / 'some-c++'} does not compile it: calls.cpp:1: error: no)"
    told = (anew / "told").read_text()
    assert f"-DFOR_TORCH={torch.__version__}" in told and "-ltorch_python" in told
    assert not list(anew.glob("cache/*/*"))
    x = torch.ones(3, 4)
    assert torch.equal(tw.torch.softmax(x), torch.softmax(x, -1))


def test_a_program_that_ends_does_not_wait_for_the_compiler(anew: Path) -> None:
    operators_in_c.skip_without_compiler()
    compiler = anew / "some-c++"
    compiler.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {anew}/started\nwait\n")
    text = "from tilewright.torch.repeats import EXTENSION; assert EXTENSION.module() is None"
    done = subprocess.run([sys.executable, "-c", text], timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    started = int((anew / "started").read_text())
    with pytest.raises(ProcessLookupError):  # once whoever adopted it has looked, it is gone
        for _ in range(200):
            os.kill(started, 0)
            if Path(f"/proc/{started}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError
            time.sleep(0.05)
    assert not list(anew.glob("cache/*/*"))


def test_it_can_be_left_out(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_OPERATORS", "python")
    assert EXTENSION.wait() is None
    assert EXTENSION.report() == "Python's (TILEWRIGHT_OPERATORS is set to it)"
    assert not (anew / "told").exists()


def test_without_a_compiler(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operators_in_c.skip_without_compiler()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert EXTENSION.wait() is None
    assert EXTENSION.report() == "Python's (there is no C++ compiler: neither CXX nor c++, g++ or clang++)"


def test_it_is_kept_for_this_pytorch_and_this_user() -> None:
    operators_in_c.built()
    path = Path(EXTENSION.report().removeprefix("compiled (").removesuffix(")"))
    assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
