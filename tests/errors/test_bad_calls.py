"""Calls that no public function can take, by area: the library's own error, with the argument's name and what came."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from tests.errors.bad_calls.setting import evaluate

import tilewright as tw

AREAS = sorted(path.stem for path in Path(__file__).with_name("bad_calls").glob("*.py") if path.stem != "setting")
ROWS = [
    pytest.param(area, *row[:2], row[2:], id=f"{area}: {row[0]}")
    for area in AREAS
    for row in importlib.import_module(f"tests.errors.bad_calls.{area}").ROWS
]


@pytest.mark.parametrize(("area", "call", "error", "words"), ROWS)
def test_bad_call(area: str, call: str, error: str, words: tuple[str, ...]) -> None:
    with pytest.raises(tw.TilewrightError) as caught:
        evaluate(call, inside=area == "inside")
    assert type(caught.value).__name__ == error
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} in: {caught.value}"


def test_the_table_is_whole() -> None:
    assert len(ROWS) >= 400
    assert len({(row.values[0], row.values[1]) for row in ROWS}) == len(ROWS)
