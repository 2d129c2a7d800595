"""What functions and objects read that are constexpr arguments is watched, as what the kernel reads itself."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw

S = types.SimpleNamespace(scale=1, items=[1])


def scaled() -> int:
    return S.scale


class Config:
    def __init__(self) -> None:
        self.base = 10

    def value(self) -> int:
        return self.base + S.scale


@dataclass(frozen=True)
class ByValue:
    base: int

    def value(self) -> int:
        return self.base * S.scale


@tw.kernel
def calling(out, function: tw.constexpr):
    out[0] = function()


@tw.kernel
def asking(out, config: tw.constexpr):
    out[0] = config.value()


@tw.kernel
def looking_up(out, table):
    out[0] = table["first"]()


def launched(kernel: Any, argument: Any) -> int:
    out = np.zeros(1, np.int32)
    kernel[1, 1](out, argument)
    return int(out[0])


@pytest.mark.parametrize(
    ("kernel", "argument", "expected"),
    [
        pytest.param(calling, scaled, lambda s: s, id="function"),
        pytest.param(calling, lambda: S.scale + 1, lambda s: s + 1, id="lambda"),
        pytest.param(calling, functools.partial(lambda a: a + S.scale, 100), lambda s: 100 + s, id="partial"),
        pytest.param(calling, Config().value, lambda s: 10 + s, id="method"),
        pytest.param(asking, Config(), lambda s: 10 + s, id="object"),
        pytest.param(asking, ByValue(4), lambda s: 4 * s, id="equal by value"),
        pytest.param(looking_up, {"first": scaled}, lambda s: s, id="in a structure"),
    ],
)
def test_what_it_reads(
    kernel: Any, argument: Any, expected: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for scale in (1, 2, 1):
        monkeypatch.setattr(S, "scale", scale)
        assert launched(kernel, argument) == expected(scale)


def test_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    assert launched(asking, config) == 11
    config.base = 20
    assert launched(asking, config) == 21
    monkeypatch.setattr(Config, "value", lambda self: 77)
    assert launched(asking, config) == 77


def test_functions_of_each_call_are_not_kept_for_ever() -> None:
    for n in range(100):
        assert launched(calling, lambda n=n: n) == n
    assert len(calling.captures._given) <= 64


@dataclass(eq=False)
class Structure:
    x: np.ndarray

    def first(self) -> int:
        return self.x[0] + S.scale


@tw.kernel
def reading(out, structure):
    out[0] = structure.first()


def test_of_structures_the_class_is_kept_and_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    structure = Structure(np.full(1, 5, np.int32))
    for scale in (1, 2):
        monkeypatch.setattr(S, "scale", scale)
        assert launched(reading, structure) == 5 + scale
    kept = weakref.ref(structure)
    del structure
    gc.collect()
    assert kept() is None
