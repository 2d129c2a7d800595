"""The compiled launcher gives the driver what Python's gives it, whatever the call, and tells calls apart as that does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.launch_bench import SLOTS, Bench, Tensor
from tests.helpers.shown_to_c import shown_kind, why_not_compiled

from tilewright.dtypes import bool_, float32, float64, int64
from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime import compiled, replays
from tilewright.runtime.launch import ExtentSlot, PointerSlot, ScalarSlot, Slot, StrideSlot
from tilewright.runtime.plan import NOT_ASKED, Signature

pytestmark = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}")


@pytest.fixture(autouse=True)
def built() -> None:
    assert compiled.wait() is not None, compiled.report()


# ---- the law ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layout:
    rows: int
    columns: int


SMALL = st.integers(0, 3)
KINDS = ("tensor", "int", "float", "bool", "number", "constant")
# Compile-time arguments that are easily taken for each other.
ALIKE: list[list[Any]] = [
    [1, True, 1.0, 2**40, -1],
    [0.0, -0.0, 0, False, None],
    [(1, 2), (1, 2.0), (True, 2), (1, 3)],
    [(0.0,), (-0.0,), ("a",), (("a",),)],
    ["a", "b", "", int, float],
    [Layout(2, 3), Layout(2, 4), Layout(2.0, 3)],  # type: ignore[arg-type]
]


PARAMETER: Any = shown_kind("Parameter", "torch.nn.parameter")
SUBCLASS: Any = type("Mine", (Tensor,), {"__module__": "mine"})

FIELDS: dict[str, Any] = {
    "rank": st.integers(0, 2),
    "shape": st.sampled_from([(4, 8), (4, 16), (1, 8), (8, 4)]),
    "strides": st.sampled_from([None, (8, 1), (16, 2), (1, 1), (0, 1), (-8, 1)]),
    "pointer": st.sampled_from([1 << 40, 1 << 44, 1 << 45]),
    "offset": st.sampled_from([0, 4, 8, 16]),
    "dtype": st.sampled_from(["float32", "float16", "int32"]),
    "index": st.sampled_from([0, 1]),
    "kind": st.sampled_from([Tensor, Tensor, PARAMETER, SUBCLASS]),
}


def tensor(rank: int, shape: Any, strides: Any, pointer: int, offset: int, dtype: str, index: int, kind: Any) -> Any:
    strides = None if strides is None else strides[:rank]
    return kind(shape[:rank], strides, pointer=pointer + offset, dtype=dtype, index=index)


@st.composite
def tensors(draw: Any) -> list[Any]:
    """Draw tensors that agree with the first in all but one thing."""
    first = draw(st.fixed_dictionaries(FIELDS))
    changed = draw(st.lists(st.sampled_from([*FIELDS]), max_size=3))
    return [tensor(**first), *(tensor(**{**first, name: draw(FIELDS[name])}) for name in changed)]


NUMBERS: Any = {
    "int": st.sampled_from([0, 1, -1, 7, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**63), 2**63, 2**64]),
    "float": st.sampled_from([0.0, -0.0, 0.5, 1e300, float("inf"), float("nan"), 5e-324]),
    "bool": st.booleans(),
    "number": st.sampled_from([0, 1, 0.0, 1.0, -0.0, False, True, 2**31]),
}
VALUES: Any = {kind: st.lists(number, min_size=1, max_size=3) for kind, number in NUMBERS.items()}
VALUES["tensor"] = tensors()
VALUES["constant"] = st.sampled_from(ALIKE).flatmap(lambda x: st.lists(st.sampled_from(x), min_size=1, max_size=3))


@st.composite
def programs(draw: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Draw the kinds of a kernel's arguments and calls of it, of which some repeat others."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    kinds = kinds if "tensor" in kinds else ["tensor", *kinds]
    pools = [draw(VALUES[kind]) for kind in kinds]
    picks = draw(st.lists(st.tuples(*(SMALL for _ in kinds)), min_size=1, max_size=6))
    return kinds, [tuple(pool[n % len(pool)] for pool, n in zip(pools, pick, strict=True)) for pick in [*picks, *picks]]


def parameters(kinds: Sequence[str], args: Sequence[Any]) -> list[Slot]:
    """Return parameters for arguments of these kinds; where all calls have that rank, extents and strides too."""
    slots: list[Slot] = []
    for n, (kind, value) in enumerate(zip(kinds, args, strict=True)):
        if kind == "tensor":
            slots.append(PointerSlot(n))
            slots += [
                part for mode in range(len(value.shape)) for part in (ExtentSlot(n, mode), StrideSlot(n, mode, int64))
            ]
        elif kind != "constant":
            slots.append(ScalarSlot(n, {"int": int64, "float": float32, "bool": bool_, "number": float64}[kind]))
    return slots[::-1]


def outcome(launch: Any, args: tuple[Any, ...]) -> str | None:
    try:
        launch(args)
    except (ArgumentError, DeviceError, OverflowError) as error:
        return str(error)
    return None


@given(programs())
@settings(max_examples=100)
def test_every_call_gives_the_driver_what_pythons_launcher_gives(
    program: tuple[list[str], list[tuple[Any, ...]]],
) -> None:
    kinds, calls = program
    ranks = [[len(x.shape) for x, kind in zip(args, kinds, strict=True) if kind == "tensor"] for args in calls]
    calls = [args for args, rank in zip(calls, ranks, strict=True) if rank == ranks[0]]
    slots, names = parameters(kinds, calls[0]), [f"x{n}" for n in range(len(kinds))]
    constexpr = [name for name, kind in zip(names, kinds, strict=True) if kind == "constant"]
    first, second = Bench(names, slots, constexpr), Bench(names, slots, constexpr)
    first.tells_kinds = second.tells_kinds = True
    for args in calls:
        assert outcome(first.python, args) == outcome(second.compiled, args)
    assert second.seen == first.seen
    # Once a call was made, the compiled launcher makes it: all but those of types that only Python reads.
    for args in calls:
        fits = all(-(2**63) <= x < 2**63 for x in args if type(x) is int)
        if fits and not any(type(x) is SUBCLASS for x in args):
            second.compiled(args)
            assert second.compiled(args)


@given(programs())
@settings(max_examples=100)
def test_arguments_are_read_as_python_reads_them(program: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    kinds, calls = program
    names = [f"x{n}" for n in range(len(kinds))]
    constexpr = [name for name, kind in zip(names, kinds, strict=True) if kind == "constant"]
    signature = Signature(names, constexpr)
    plans: dict[Any, Any] = {}
    for args in calls:
        try:
            plan = signature.plan(args)
            python = plans.setdefault(plan, plan.read)
            plan.current_stream = abs
            expected = python(*args)
        except (ArgumentError, OverflowError):
            continue
        if plan.compiled is NOT_ASKED:
            replays.quicken(plan, args)
        for _ in range(2):
            call, values, described = plan.read(*args)  # type: ignore[misc]
            assert call is expected[0]
            assert [(type(x), repr(x)) for x in values] == [(type(x), repr(x)) for x in expected[1]]
            assert described == expected[2]
        assert (plan.read is not python) == (SUBCLASS not in map(type, args))
    for plan in plans:
        assert plan.read(*(None for _ in names)) is None or all(kind == "constant" for kind in kinds)


# ---- what makes a call another one ---


BASE: dict[str, Any] = {"rank": 2, "shape": (4, 8), "strides": (16, 2), "pointer": 1 << 40, "offset": 0}
BASE |= {"dtype": "float32", "index": 0, "kind": Tensor}
OTHER: dict[str, Any] = {"rank": 1, "shape": (4, 6), "strides": (16, 1), "offset": 4}
OTHER |= {"dtype": "float16", "index": 1, "kind": PARAMETER}
APART: dict[str, tuple[Any, Any]] = {
    **{f"a tensor's {name}": (tensor(**BASE), tensor(**{**BASE, name: other})) for name, other in OTHER.items()},
    "float and bool": (1.0, True),
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "ints of 32 and 64 bits": (1, 2**31),
    **{f"constants {x!r} and {y!r}": (x, y) for x, y in (
        (1, True), (1, 1.0), (True, 1.0), (1, 2), (0.0, -0.0), (1.0, 2.0), ((1, 2), (1, 2.0)), ((0.0,), (-0.0,)), ("a", "b"),
        ((1,), (1, 1)), (None, 0), (int, float), (Layout(2, 3), Layout(2, 4)), (2**64, 2**64 + 1),
    )},
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_what_tells_calls_apart(name: str) -> None:
    first, second = APART[name]
    slots: list[Slot] = [PointerSlot(0)]
    if "tensor" in name:
        slots.append(PointerSlot(1))
    elif "constants" not in name:
        slots.append(ScalarSlot(1, float64))
    bench = Bench(("x", "y"), slots, ["y"] if "constants" in name else [])
    bench.tells_kinds = True
    x = Tensor((4, 8))
    assert [bench.compiled((x, y)) for y in (first, first, second, second, first)] == [False, True, False, True, True]
    handles = [handle for _, handle, _ in bench.seen]
    assert handles == [handles[0], handles[0], handles[2], handles[2], handles[0]]
    assert handles[0] != handles[2]


@pytest.mark.parametrize(
    "make", [lambda: 10**6, lambda: 0.1 + 0.2, lambda: "a" + str(1), lambda: (1, (0.1 + 0.2, str(1)))]
)
def test_constants_of_equal_value_are_one(make: Any) -> None:
    bench = Bench(("x", "y"), SLOTS[:1], ["y"])
    assert [bench.compiled((Tensor((4, 8)), make())) for _ in range(3)] == [False, True, True]
