"""Operators whose calls are made in C++: what is launched, what is refused, what is not passed by."""

from __future__ import annotations

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
