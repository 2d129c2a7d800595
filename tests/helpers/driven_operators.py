"""Operators whose calls are made in C++, on a driver that adds: a program that prints, as JSON, what is wrong.

Tensors of the CPU stand for those of a GPU, as in `benchmarks.host_calls`. A function whose name begins with `case_` is
a test; what it says of calls of a function is seen by a profiler of Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import random
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks
import torch
from benchmarks import host_calls
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright as tw
from tilewright.errors import ArgumentError, DeviceError
from tilewright.recording import record_launches
from tilewright.runtime import compiled
from tilewright.torch.repeats import EXTENSION, guards_of

N = 300
FACTOR = 2.0
STATE = {"factor": 2.0}
DRIVER = Path(tempfile.mkdtemp()) / "driver.so"


@tw.kernel
def combine(z, x, y, factor):
    i = tw.block_idx.x * 256 + tw.thread_idx.x
    if i < z.size:
        z[i] = x[i] + factor * y[i]


@tw.torch.op("driven::combined", shape="x", vmap="loop")
def combined(x: torch.Tensor, y: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    combine[tw.ceil_div(x.numel(), 256), 256](out, x, y, factor)
    return out


@combined.backward
def combined_backward(
    grad: torch.Tensor, y: torch.Tensor, result: torch.Tensor, factor: float, needs: frozenset[str]
) -> dict[str, Any]:
    """Not quite the gradient of a sum: that of y depends on what was kept."""
    assert result.shape == y.shape
    return {name: grad if name == "x" else combined(grad * 0, y * grad, factor) for name in ("x", "y") if name in needs}


def given(*numbers: int) -> list[torch.Tensor]:
    return [torch.randn(n, generator=torch.Generator().manual_seed(n + place)) for place, n in enumerate(numbers)]


def called(operator: Any, run: Callable[[], Any]) -> int:
    """Return how often Python's function of an operator is called."""
    code, found = operator.__wrapped__.__code__, []
    sys.setprofile(lambda frame, event, _: found.append(0) if event == "call" and frame.f_code is code else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(found)


def is_repeated(operator: Any, *args: Any) -> bool:
    operator(*args)
    return not called(operator, lambda: operator(*args))


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def case_calls_are_repeated() -> None:
    launches = ctypes.c_int.in_dll(ctypes.CDLL(str(DRIVER)), "launches")
    for n in (N, 5, 1024):
        x, y = given(n, n)
        before = launches.value
        assert is_repeated(combined, x, y, 2.0)
        assert launches.value == before + 2
        x, y = given(n, n)
        found = combined(x, y, 2.0)
        equal(found, x + 2 * y)
        assert not found.requires_grad and found.is_leaf and type(found) is torch.Tensor
        assert combined(x, y, 2.0).data_ptr() != found.data_ptr()


def case_kinds_are_told_apart() -> None:
    for _ in range(3):
        for n in (N, N + 1):
            x, y = given(n, n + 1)
            for factor in (2.0, -2.0, 3.0):
                equal(combined(x, y[1:], factor), x + factor * y[1:])  # of another alignment
                equal(combined(x, y[:-1], factor=factor), x + factor * y[:-1])
                equal(combined(y=x, x=x, factor=factor), x + factor * x)
            equal(combined(x, y[1:]), x + y[1:])
            equal(combined(torch.nn.Parameter(x, requires_grad=False), x), 2 * x)


def case_variables_are_looked_at() -> None:
    global FACTOR
    factor = 3.0

    @tw.torch.op("driven::by_variables", shape="x")
    def by_variables(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, FACTOR + half(factor))
        return out

    (x,) = given(N)
    for FACTOR, factor in ((2.0, 4.0), (5.0, 4.0), (5.0, 1.0), (2.0, 4.0)):
        for _ in range(3):
            equal(by_variables(x), x + (FACTOR + factor / 2) * x)
        assert is_repeated(by_variables, x)
    code, half.__code__ = half.__code__, (lambda number: number / 4).__code__
    equal(by_variables(x), x + (FACTOR + factor / 4) * x)
    half.__code__ = code


def half(number: float) -> float:
    return number / 2


def least(number: float, most: float = 2.0) -> float:
    return min(number, most)


def case_builtins_and_defaults_are_looked_at() -> None:
    """A variable may hide a builtin later, and a function may get other defaults."""

    @tw.torch.op("driven::by_builtins", shape="x")
    def by_builtins(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, least(9.0))
        return out

    (x,) = given(N)
    assert is_repeated(by_builtins, x)
    equal(by_builtins(x), 3 * x)
    least.__defaults__ = (4.0,)
    equal(by_builtins(x), 5 * x)
    assert is_repeated(by_builtins, x)
    globals()["min"] = max
    equal(by_builtins(x), 10 * x)
    del globals()["min"]
    equal(by_builtins(x), 5 * x)
    least.__defaults__ = (2.0,)
    assert guards_of(lambda x, *, y=2: x) is None


def case_functions_that_do_more_are_called() -> None:
    """What they read changes from call to call, and no argument says so."""
    counted: list[int] = []
    count = 0

    def reads_a_dict(x: torch.Tensor) -> float:
        return STATE["factor"]

    def reads_randomness(x: torch.Tensor) -> float:
        STATE["factor"] = random.random()
        return STATE["factor"]

    def appends(x: torch.Tensor) -> float:
        counted.append(1)
        return float(len(counted))

    def counts(x: torch.Tensor) -> float:
        nonlocal count
        count += 1
        return float(count)

    def reads_elements(x: torch.Tensor) -> float:
        return float(x[0])

    def reads_gradients(x: torch.Tensor) -> float:
        return 2.0 if x.requires_grad else 1.0

    for number, pick in enumerate((reads_a_dict, reads_randomness, appends, counts, reads_elements, reads_gradients)):

        def operator_of(pick: Callable[[torch.Tensor], float]) -> Any:
            @tw.torch.op(f"driven::does_more_{number}", shape="x")
            def does_more(x: torch.Tensor) -> torch.Tensor:
                out = torch.empty_like(x)
                combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, pick(x))
                return out

            return does_more

        operator = operator_of(pick)
        for n in range(4):
            STATE["factor"] = float(n)
            (x,) = given(N)
            x[0] = n
            found = operator(x)
            expected = {"counts": n + 1.0, "appends": n + 1.0, "reads_elements": float(n), "reads_gradients": 1.0}
            equal(found, x + expected.get(pick.__name__, STATE["factor"]) * x)
        assert not is_repeated(operator, x), pick.__name__


def case_pytorch_computes_between() -> None:
    """No name in the code says that: the dispatcher does."""

    @tw.torch.op("driven::computes_between", shape="x")
    def computes_between(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        y = x * 3 + x[0]
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, y, 1.0)
        return out

    assert guards_of(computes_between.__wrapped__) is not None
    for n in (N, N, N + 1):
        (x,) = given(n)
        equal(computes_between(x), 4 * x + x[0])
    assert not is_repeated(computes_between, x)


def case_inputs_that_are_one_object() -> None:
    @tw.torch.op("driven::asks_whether_one", shape="x")
    def asks(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, y, 5.0 if x is y else 1.0)
        return out

    x, y = given(N, N)
    for _ in range(3):
        equal(asks(x, y), x + y)
        equal(asks(x, x), 6 * x)
        equal(asks(x, x.detach()), 2 * x)
    assert is_repeated(asks, x, y) and is_repeated(asks, x, x)


def case_results() -> None:
    @tw.torch.op("driven::two", shape=("x", "x"))
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape)
        combine[tw.ceil_div(x.numel(), 256), 256](first, x, x, 1.0)
        combine[tw.ceil_div(x.numel(), 256), 256](second.view(-1), first, x.view(-1), 1.0)
        return second, first

    @tw.torch.op("driven::viewed", shape=lambda x: x.new_empty(2, x.numel() // 2))
    def viewed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, 1.0)
        return out.view(2, -1)

    for _ in range(3):
        (x,) = given(N)
        found = two(x)
        assert type(found) is tuple
        equal(found[0], 3 * x)
        equal(found[1], 2 * x)
        equal(viewed(x), (2 * x).view(2, -1))
    assert is_repeated(two, x) and not is_repeated(viewed, x)


def case_default_type() -> None:
    @tw.torch.op("driven::default_type", shape=lambda x: torch.empty(x.shape))
    def default_type(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, 1.0)
        return out

    (x,) = given(N)
    assert is_repeated(default_type, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert default_type(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert default_type(x).dtype == torch.float32 and is_repeated(default_type, x)


def case_gradients() -> None:
    for n in (N, N, 7):
        x, y, g = given(n, n, n)
        x.requires_grad_(), y.requires_grad_()
        out = combined(x, y, 3.0)
        assert out.requires_grad and not out.is_leaf
        out.register_hook(lambda grad: grad + 0)
        (first, second) = torch.autograd.grad((out * g).sum(), (x, y), create_graph=True)
        equal(first, g)
        equal(second, 3 * y * g)
        (third,) = torch.autograd.grad(second.sum(), y)
        equal(third, 3 * y * g * g)  # as combined_backward has it: 3 * b of b = y * g
        assert called(combined, lambda: combined(x, y, 3.0)) == 0
        (only,) = torch.autograd.grad(combined(x, y.detach(), 3.0).sum(), x)
        assert (only == 1).all()
        with torch.no_grad():
            assert not combined(x, y, 3.0).requires_grad
        with torch.inference_mode(), torch.enable_grad():
            assert not combined(x, y, 3.0).requires_grad


def case_gradients_are_told_what_changed() -> None:
    for _ in range(3):
        x, y = given(N, N)
        out = combined(x.requires_grad_(), y.requires_grad_() * 1, 3.0)
        out.sum().backward()
        with refused(RuntimeError, "second time"):
            out.sum().backward()
        kept = y * 1
        out = combined(x, kept, 3.0)
        kept.detach().mul_(2)
        with refused(RuntimeError, "modified by an inplace operation"):
            out.sum().backward()

    def packed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor * 2):
        out = combined(x, y, 3.0)
    (found,) = torch.autograd.grad(out.sum(), y)
    equal(found, 6 * y.detach())


def freed(n: int, begin: int) -> torch.Tensor:
    """Return a vector whose memory was freed, as FSDP frees that of parameters; a view's pointer is its offset."""
    whole = torch.zeros(n + begin)
    view = whole[begin:]
    whole.untyped_storage().resize_(0)
    return view


def case_freed_memory_is_refused() -> None:
    x, y = given(N, N)
    assert is_repeated(combined, x, y, 2.0)
    for begin in (0, 64):
        assert freed(N, begin).data_ptr() == 4 * begin
        with refused(ArgumentError, "argument 'y' cannot be used: its memory was freed"):
            combined(x, freed(N, begin), 2.0)
        with refused(ArgumentError, "argument 'x' cannot be used: its memory was freed"):
            combined(freed(N, begin).requires_grad_(), y, 2.0)
    equal(combined(x, y, 2.0), x + 2 * y)
    assert is_repeated(combined, x, y, 2.0)


def case_freed_memory_is_refused_by_launches() -> None:
    launch, args = combine[2, 256], [*given(N, N, N), 2.0]
    for _ in range(4):
        launch(*args)
    assert launch._replay is not None
    for begin in (0, 64):
        for place, name in enumerate("zxy"):
            changed = list(args)
            changed[place] = freed(N, begin)
            for each in (launch, launch.prepare):
                with refused(ArgumentError, f"argument '{name}' cannot be used: its memory was freed"):
                    each(*changed)
    for _ in range(3):
        launch(*(freed(0, 0) for _ in range(3)), 2.0)  # without elements the pointer is null, too
    assert launch._replay((*args,), {}) and launch._replay((*(freed(0, 0) for _ in range(3)), 2.0), {})


def case_results_without_use() -> None:
    seen: list[Any] = []

    @tw.torch.op("driven::pair", shape=("x", "x"))
    def pair(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = torch.empty_like(x), torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](first, x, x, 1.0)
        combine[tw.ceil_div(x.numel(), 256), 256](second, x, x, 2.0)
        return first, second

    @pair.backward
    def pair_backward(a: torch.Tensor, b: torch.Tensor, results: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
        seen.append((b, count, [x.clone() for x in results]))
        return 2 * a + 3 * b

    for _ in range(3):
        (x,) = given(N)
        first, second = pair(x.requires_grad_(), 4)
        (found,) = torch.autograd.grad(first.sum(), x)
        equal(found, torch.full((N,), 2.0))
        b, count, results = seen.pop()
        assert count == 4 and not b.any()
        equal(results[1], second.detach())
    assert not called(pair, lambda: pair(x, 4))

    @pair.backward
    def pair_fails(a: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        assert b is None
        raise KeyError("mine")

    for _ in range(2):
        with refused(KeyError, "mine"):
            pair(x, 4)[0].sum().backward()


def case_lists_may_change_later() -> None:
    @tw.torch.op("driven::by_list", shape="x")
    def by_list(x: torch.Tensor, factors: list[int]) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, float(sum(factors)))
        return out

    @by_list.backward
    def by_list_backward(grad: torch.Tensor, factors: list[int]) -> torch.Tensor:
        return grad * (1 + sum(factors))

    x = given(N)[0].requires_grad_()
    for _ in range(3):
        factors = [1, 2]
        assert by_list(x, factors).sum() is not None
        factors[0] = 7
        (found,) = torch.autograd.grad(by_list(x, [1, 2]).sum(), x)
        assert (found == 4).all()
        equal(by_list(x, factors).detach(), (10 * x).detach())
    assert is_repeated(by_list, x, [1, 2])


@contextlib.contextmanager
def refused(kind: type[Exception], text: str) -> Any:
    try:
        yield
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised that says {text}")


class Seen(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(str(function))
        return function(*args, **(kwargs or {}))


SEEN: list[str] = []


def case_what_is_between_is_not_passed() -> None:
    x, y = given(N, N)
    assert is_repeated(combined, x, y, 4.0)
    with Seen():
        equal(combined(x, y, 4.0), x + 4 * y)
    assert "driven.combined.default" in SEEN
    with torch.inference_mode():
        for _ in range(3):
            found = combined(x, y, 4.0)
            assert found.is_inference()
            equal(combined(found, y, 4.0), x + 8 * y)
    assert not combined(x, y, 4.0).is_inference()
    with FakeTensorMode() as mode:
        assert type(combined(mode.from_tensor(x), mode.from_tensor(y), 4.0)) is not torch.Tensor
    assert combined(x.to("meta"), y.to("meta"), 4.0).device.type == "meta"
    batch = torch.func.vmap(lambda x: combined(x, y, 4.0))(torch.stack([x, y]))
    equal(batch, torch.stack([x + 4 * y, 5 * y]))
    graph = torch.compile(lambda x, y: combined(x, y, 4.0) * 2, fullgraph=True, backend="aot_eager")
    equal(graph(x, y), 2 * (x + 4 * y))
    assert combined(x[:0], y[:0]).shape == (0,)
    with refused(RuntimeError, "xpected a value of type 'float'"):
        combined(x, y, "4")
    tw.torch.Operator.check(combined, x, y, 4.0)


def case_launches_are_observed() -> None:
    x, y = given(N, N)
    assert is_repeated(combined, x, y, 6.0)
    for _ in range(20):  # more than failures are forgiven
        with record_launches() as found:
            equal(combined(x, y, 6.0), x + 6 * y)
        assert [each.kernel for each in found] == ["combine"]
        combined(x, y, 6.0)
    assert is_repeated(combined, x, y, 6.0)
    combine.forget()
    equal(combined(x, y, 6.0), x + 6 * y)
    assert is_repeated(combined, x, y, 6.0)


def case_launches_that_are_refused() -> None:
    x, y = given(N, N)
    assert is_repeated(combined, x, y, 8.0)
    refusal = ctypes.c_int.in_dll(ctypes.CDLL(str(DRIVER)), "refusal")
    refusal.value = 719
    with refused(DeviceError, "launching kernel 'combine' failed"):
        combined(x, y, 8.0)
    refusal.value = 0
    equal(combined(x, y, 8.0), x + 8 * y)
    assert is_repeated(combined, x, y, 8.0)


def case_threads() -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(400):
            x, y = given(N + seed, N + seed)
            found = combined(x, y.requires_grad_(n % 3 == 0), float(seed))
            if not torch.allclose(found, x + seed * y):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def case_many_kinds() -> None:
    @tw.torch.op("driven::of_many_kinds", shape="x")
    def of_many_kinds(x: torch.Tensor, factor: float) -> torch.Tensor:
        out = torch.empty_like(x)
        combine[tw.ceil_div(x.numel(), 256), 256](out, x, x, factor)
        return out

    (x,) = given(8)
    assert is_repeated(of_many_kinds, x, -1.0)
    for n in range(1100):
        equal(of_many_kinds(x, float(n)), (1 + n) * x)
    assert not is_repeated(of_many_kinds, x, 7.0)
    equal(of_many_kinds(x, 9.0), 10 * x)


def case_nothing_is_kept() -> None:
    x, y = given(N, N)
    y.requires_grad_()

    def run(times: int) -> tuple[int, ...]:
        for _ in range(times):
            combined(x, y, 2.0)
            combined(x, y.detach(), 2.0).sum()
        combined(x, y, 2.0).sum().backward()
        gc.collect()
        return sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(torch.float32), len(gc.get_objects()) // 100

    run(10)
    assert run(10) == run(500)


def main() -> None:
    flags = ["-O2", "-shared", "-fPIC", "-w", f"-I{Path(benchmarks.__file__ or host_calls.__file__).parent}"]
    source = Path(__file__).with_name("adding_driver.c")
    subprocess.run(["cc", *flags, "-o", str(DRIVER), str(source)], check=True)
    vars(host_calls)["built"] = lambda name: str(DRIVER)
    host_calls.install_driver()
    assert compiled.wait() is not None and EXTENSION.wait() is not None, EXTENSION.report()
    wrong = {}
    chosen = sys.argv[1:]
    for name, case in dict(globals()).items():
        if name.startswith("case_") and (not chosen or name in chosen):
            try:
                case()
            except Exception:
                wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
