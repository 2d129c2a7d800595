"""How structures of arguments are read: names of leaves, identities, what plans are told apart by, texts."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.plan import Constexpr, Scalar, Signature


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Config:
    x: Any
    mode: Any


X = np.zeros(8, np.float32)


def test_leaves_have_paths_and_values_in_order() -> None:
    args = ([X, 2], {"a b": Pair(X, 1.5), 3: "text"}, Config((None,), X))
    plan, (_, values, _) = Signature(["xs", "d", "c"]).read(args)
    assert plan.names == ("xs[0]", "xs[1]", "d['a b'].x", "d['a b'].y", "d[3]", "c.x[0]", "c.mode")
    assert [type(d).__name__ for d in plan.describe(args)] == [
        "ArrayInfo", "Scalar", "ArrayInfo", "Scalar", "Constexpr", "Constexpr", "ArrayInfo",
    ]  # fmt: skip
    address = X.__array_interface__["data"][0]
    assert values == (address, 2, address, 1.5, address)
    assert plan.starts == (0, 1, 2, 3, 4, 4, 4)
    assert plan.describe(args)[1] == Scalar(2, tw.int32)
    assert plan.describe(args)[4] == Constexpr("text")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([X], [X, X]),
        ([X], (X,)),
        ((X, 1), Pair(X, 1)),
        (Pair(X, 1), Pair(X, 1.0)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: X}, {True: X}),
        ({"a": X}, {"b": X}),
        (Config(X, "a"), Config(X, None)),
        ([[X]], [[[X]]]),
        ([X], [X.astype(np.float64).tolist()]),
    ],
)
def test_plans_are_told_apart(one: Any, other: Any) -> None:
    signature = Signature(["v"])
    plan, _ = signature.read((one,))
    assert plan.read(other) is None
    second, _ = signature.read((other,))
    assert second is not plan
    assert signature.read((one,))[0] is plan


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([X, "a"], [X, "b"]),
        ([0, tw.float32], [0, tw.float16]),
        (Config(tw.Layout((4, 2)), 1), Config(tw.Layout((2, 4)), 1)),
        ([X[:4]], [X[::2]]),
        ([2**31 - 1], [2**31]),
        ([X[1:4]], [X[:3]]),
    ],
)
def test_identities_are_told_apart(one: Any, other: Any) -> None:
    signature = Signature(["v"])
    plan, (first, _, _) = signature.read((one,))
    again, (second, _, _) = signature.read((other,))
    assert plan is again
    assert first.key != second.key
    assert signature.read((one,))[1][0] is first


def test_a_list_is_read_by_its_own_statements() -> None:
    """No call but those that one array takes: what is generated takes lists apart itself."""
    signature = Signature(["xs", "n"])
    plan, _ = signature.read(([X, X], 1))
    assert "structure_of" not in plan.read.__code__.co_names
    assert "leaves" not in plan.read.__code__.co_names


def test_structures_that_hold_themselves_are_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ArgumentError, match="nests structures more than 32 deep"):
        Signature(["v"]).read((ring,))


def test_names_in_the_text_and_collisions() -> None:
    @tw.kernel
    def add(out, params, params_weight, xs):
        i = tw.thread_idx.x
        out[i] = params.x[i] + params_weight[i] + xs[0][i] * xs[1] + params.y["weight"][i]

    spec = tw.spec(tw.float32, (32,))
    text = add.source(spec, Pair(spec, {"weight": spec}), spec, [spec, 3])
    for name in ("params_x", "params_y_weight", "params_weight", "xs_0", "xs_1"):
        assert f" {name}," in text or f" {name})" in text, name

    @tw.kernel
    def clash(out, a, a_0, d):
        out[0] = a[0][0] + a_0[0] + d["x y"] + d["x_y"] + d["é"] + d[""]

    text = clash.source(spec, [spec], spec, {"x y": 1, "x_y": 2, "é": 3, "": 4})
    parameters = text[text.index("(") + 1 : text.index(") {")].split(",")
    names = [parameter.split()[-1] for parameter in parameters]
    assert len(set(names)) == len(names) == 7
    assert all(name.isascii() and name.isidentifier() for name in names), names
