"""Spaces and configs: what is in them, and what is refused."""

from __future__ import annotations

import itertools
import operator
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw

AXES = st.dictionaries(
    st.sampled_from(["BM", "BN", "BK", "TM"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    min_size=1,
    max_size=4,
)


@given(AXES, st.integers(1, 30))
def test_a_space_is_the_product_without_what_a_constraint_refuses(axes: dict[str, list[int]], bound: int) -> None:
    name = next(iter(axes))
    namespace: dict[str, object] = {}
    exec(f"def holds({name}): return {name} * 3 <= {bound}", namespace)
    space = tw.Space(axes).where(namespace["holds"], "bounded")  # type: ignore[arg-type]
    expected = [p for p in itertools.product(*axes.values()) if p[0] * 3 <= bound]
    assert list(space) == expected
    assert all(point in space for point in expected)
    for point in itertools.product(*axes.values()):
        assert (point in space) == (point in expected)
        assert space.rejection(space.as_dict(point)) == (None if point in expected else "bounded")
    source = random.Random(0)
    drawn = space.sample(source, 5, set(expected[:1]))
    assert len(set(drawn)) == len(drawn) == min(5, max(len(expected) - 1, 0)) and set(drawn) <= set(expected[1:])
    for point in expected:
        for other in space.neighbours(point):
            assert other in space
            differing = [n for n in range(len(point)) if point[n] != other[n]]
            assert len(differing) == 1
            values = list(axes.values())[differing[0]]
            assert abs(values.index(point[differing[0]]) - values.index(other[differing[0]])) == 1


def test_a_large_space_is_sampled_without_being_counted() -> None:
    space = tw.Space({f"x{n}": range(10) for n in range(12)}).where(lambda x0, x1: x0 < x1, "rising")
    drawn = space.sample(random.Random(1), 50, set())
    assert len(set(drawn)) == 50 and all(point in space for point in drawn)


def test_refusals() -> None:
    with pytest.raises(tw.ArgumentError, match="axis BM of a space takes a sequence of values"):
        tw.Space(BM=())
    with pytest.raises(tw.ArgumentError, match="has a value twice"):
        tw.Space(BM=(1, 1))
    with pytest.raises(tw.ArgumentError, match="a constraint asks for BK; the axes are BM"):
        tw.Space(BM=(1,)).where(lambda BK: True)
    with pytest.raises(tw.ArgumentError, match=r"a constraint asks for \*BM; the axes are BM"):
        tw.Space(BM=(1,)).where(lambda *BM: True)
    with pytest.raises(tw.ArgumentError, match="parameters that are axes, got <class 'bool'>"):
        tw.Space(BM=(1,)).where(bool)
    with pytest.raises(tw.ArgumentError, match="Space.rejection: values is a dict with BM, got dict {}"):
        tw.Space(BM=(1,)).where(lambda BM: True).rejection({})
    with pytest.raises(tw.ArgumentError, match="at least one axis"):
        tw.Space()
    with pytest.raises(tw.ArgumentError, match="has to be hashable"):
        tw.Config(BM=[1])
    with pytest.raises(tw.ArgumentError, match="has to be hashable"):
        tw.Config(BM=([1],))
    with pytest.raises(tw.ArgumentError, match="have to be hashable"):
        tw.Space(BM=(([1],), 2))


def test_constraints_take_axes_as_their_signature_says() -> None:
    space = tw.Space(a=(1, 2), b=(1, 2))
    assert list(space.where(operator.lt)) == [(1, 2)]  # by place alone
    assert list(space.where(lambda *, b, a: a > b)) == [(2, 1)]
    limits = [space.where(lambda a, b, most=most: a + b <= most) for most in (2, 3)]
    assert [len(list(limit)) for limit in limits] == [1, 3]
    assert list(space.where(lambda a, b=0: a == b)) == [(1, 1), (2, 2)]  # an axis, with a default or without


def test_an_empty_space_says_which_constraints_empty_it() -> None:
    space = tw.Space(A=(1, 2), B=(3, 4)).where(lambda A: A > 1, "A is large").where(lambda B: B > 5, "B is large")
    with pytest.raises(tw.ArgumentError) as error:
        space.complain_if_empty()
    assert "2 fail: A is large" in str(error.value) and "2 fail: B is large" in str(error.value)


def test_configs_are_equal_by_what_they_say() -> None:
    assert tw.Config({"BM": 1}, BK=2) == tw.Config(BK=2, BM=1)
    assert hash(tw.Config({"BM": 1}, BK=2)) == hash(tw.Config(BK=2, BM=1))
    assert tw.Config(BM=1) != tw.Config(BM=1, min_blocks=2) != tw.Config(BM=1, block=32)
    assert str(tw.Config(BM=1, min_blocks=2, block=64)) == "BM=1, min_blocks=2, block=64"
    assert len({tw.Config(a=1), tw.Config(a=True), tw.Config(a=1.0)}) == 3  # a kernel computes with each otherwise
    as_json = tw.Config(a=float("nan"), b=-float("inf"), c=0.5, d=True).as_json()
    assert as_json == {"a": "nan", "b": "-inf", "c": 0.5, "d": True}
