"""Random structures of arguments: the kernel sees the same structure, and computes what Python does with it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.runtime.plan import Signature, named_leaves


class Named(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Fields:
    one: Any
    two: Any
    three: Any = None


ARRAYS = [np.arange(4, dtype=np.int32) + 10 * k for k in range(4)]

leaves = st.one_of(
    st.integers(-1000, 1000), st.sampled_from(ARRAYS), st.sampled_from(["text", None, tw.float32, tw.Layout(4)])
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b c", "1", 2, True]), inner, max_size=3),
        st.builds(Named, inner, inner),
        st.builds(Fields, inner, inner, inner),
    ),
    max_leaves=8,
)


def weighed(x: Any, scale: int = 1) -> Any:
    """Add up what a structure holds, so that the place of each leaf counts."""
    if isinstance(x, (str, type(None), tw.DType, tw.Layout)):
        return scale * len(str(x))
    if dataclasses.is_dataclass(x):
        x = [getattr(x, f.name) for f in dataclasses.fields(x)]
    if isinstance(x, dict):
        x = [v for key in x for v in (str(key), type(key).__name__, x[key])]
    if isinstance(x, (list, tuple)):
        total = len(x) * scale
        for n, part in enumerate(x):
            total = total + weighed(part, (scale * 3 + n) % 101)
        return total
    return x[tw.thread_idx.x] * scale if isinstance(x, tw.Tensor) else x * scale


@tw.kernel
def kernel(out, structure):
    out[tw.thread_idx.x] = weighed(structure)


@examples(8, 40)
@given(st.lists(structures, max_size=3), structures)
def test_a_kernel_computes_with_structures_what_python_does(first, second):
    for structure in (first, [second]):
        out = np.zeros(4, np.int32)
        kernel[1, 4](out, structure)
        expected = weighed(structure)
        np.testing.assert_array_equal(out, np.broadcast_to(expected, 4))


@examples(13, 60)
@given(st.lists(structures, max_size=3))
def test_generated_reading_finds_the_leaves(structure):
    plan, (_, values, _) = Signature(["v"]).read((structure,))
    by_name = named_leaves("v", structure)
    assert plan.names == tuple(by_name)
    assert [leaf is known for leaf, known in zip(plan.leaves((structure,)), by_name.values(), strict=True)] == [
        True
    ] * len(by_name)
    numbers = [v for v in by_name.values() if isinstance(v, (int, np.ndarray))]
    assert list(values) == [v if isinstance(v, int) else v.__array_interface__["data"][0] for v in numbers]
