"""Tensors of PyTorch as C reads them by DLPack's exchange API: what Python's calls give, or Python's own answer."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.shown_to_c import why_not_compiled

from tilewright.errors import ArgumentError
from tilewright.runtime import compiled, replays
from tilewright.runtime.arrays import exchange_of
from tilewright.runtime.plan import ArgumentPlan, Signature

pytestmark = [
    pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}"),
    pytest.mark.skipif(exchange_of(torch.Tensor) is None, reason="PyTorch shows its tensors to C from 2.10 on"),
]

DTYPES = [
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32),
    *(torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2),
]


def plan_of(*args: Any) -> tuple[ArgumentPlan, Any]:
    """Return a plan whose arguments C reads, and how Python reads them."""
    assert compiled.wait() is not None
    plan = Signature([f"x{n}" for n in range(len(args))]).plan(args)
    plan.current_stream = abs
    python = plan.read
    replays.quicken(plan, args)
    return plan, python


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    base = torch.zeros(512, dtype=torch.uint8).view(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(0, 4)) for _ in shape]
    made = base.as_strided(shape, strides, draw(st.integers(0, 5)))
    if draw(st.booleans()) and made.is_floating_point():
        made = made.detach().requires_grad_()
    return torch.nn.Parameter(made, requires_grad=False) if draw(st.booleans()) else made


@given(st.lists(tensors(), min_size=1, max_size=3))
def test_a_tensor_is_read_as_python_reads_it(args: list[torch.Tensor]) -> None:
    plan, python = plan_of(*args)
    assert plan.read is not python
    expected = python(*args)
    for _ in range(3):
        call, values, described = plan.read(*args)  # type: ignore[misc]
        assert call is expected[0]
        assert (values, described) == (expected[1], ())
        layouts = [(tuple(x.shape), x.stride()) for x in args]
        # Contiguous tensors of one shape are one kind, whatever the strides of modes of one element are.
        assert all(a == b or x.is_contiguous() for a, b, x in zip(call.layouts, layouts, args, strict=True))


def test_memory_that_is_copied_at_the_first_write_is_copied() -> None:
    x = torch.zeros(8)
    plan, _ = plan_of(x)
    plan.read(x)
    clone = torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(clone)
    _, values, _ = plan.read(clone)  # type: ignore[misc]
    assert not torch._C._is_cow_tensor(clone)
    assert values == (clone.data_ptr(),)
    assert values != (x.data_ptr(),)


class Mine(torch.Tensor):
    """A subclass, which may answer in its own ways."""


def odd_tensors() -> dict[str, Any]:
    x = torch.zeros(4, 4)
    complex_one = torch.zeros(4, 4, dtype=torch.complex64)
    return {
        "subclass": x.as_subclass(Mine),
        "sparse": x.to_sparse(),
        "meta": torch.zeros(4, 4, device="meta"),
        "complex": complex_one,
        "negative": complex_one.conj().imag,
        "freed": freed(),
    }


def freed() -> torch.Tensor:
    x = torch.ones(4, 4)
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.parametrize("name", odd_tensors())
def test_other_tensors_are_as_before(name: str) -> None:
    x, odd = torch.zeros(4, 4), odd_tensors()[name]
    plan, python = plan_of(x)
    plan.read(x)
    outcomes: list[Any] = []
    for read in (python, plan.read, plan.read):
        try:
            outcomes.append(read(odd))
        except (ArgumentError, RuntimeError) as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_negative_view_is_not_taken_for_a_plain_one() -> None:
    """Both lie alike, and C sees no more than that."""
    negative, plain = torch.zeros(4, 4, dtype=torch.complex64).conj().imag, torch.zeros(4, 8)[:, 1::2]
    assert negative.stride() == plain.stride()
    plan, python = plan_of(plain)
    for read in (python, plan.read):
        assert read(plain) is not None
        with pytest.raises(ArgumentError, match=r"with the other sign\n  help: pass tensor.resolve_neg\(\)"):
            read(negative)


def test_a_tensor_within_a_transform_is_as_before() -> None:
    plan, python = plan_of(torch.zeros(4))
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        for read in (python, plan.read):
            with pytest.raises(Exception) as caught:
                read(x)
            seen.append((type(caught.value), str(caught.value)))
        return x

    torch.func.vmap(look)(torch.zeros(3, 4))
    assert seen[0] == seen[1]


def test_nothing_is_leaked() -> None:
    x, y = torch.zeros(4, 8), torch.zeros(4, 8)
    plan, _ = plan_of(x, y)

    def run(times: int) -> None:
        for _ in range(times):
            plan.read(x, y)
        gc.collect()

    run(100)
    counted = sys.getrefcount(x), sys.getrefcount(plan.read(x, y)[0])  # type: ignore[index]
    tracemalloc.start()
    run(10)
    before, _ = tracemalloc.get_traced_memory()
    run(10_000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000
    assert counted == (sys.getrefcount(x), sys.getrefcount(plan.read(x, y)[0]))  # type: ignore[index]
