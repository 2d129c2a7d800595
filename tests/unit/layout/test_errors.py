"""What CuTe rejects is rejected, and the message names the layouts, the mode and the values."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from typing import Any

import pytest

import tilewright.layout as L
from tilewright.errors import LayoutError, TilewrightError
from tilewright.layout import ComposedLayout, E, Layout, Swizzle

REFUSED: dict[str, tuple[Any, list[str]]] = {
    "nesting of shape and stride": (lambda: Layout((4, 8), (1, (2, 4))), ["(4,8)", "(1,(2,4))", "nested differently"]),
    "extent 0": (lambda: Layout((4, 0)), ["an extent is 0"]),
    "negative extent": (lambda: Layout(-3), ["an extent is -3"]),
    "a bool": (lambda: Layout((True, 4)), ["bool"]),
    "a float": (lambda: Layout((4, 2.5)), ["2.5"]),
    "coordinate of another rank": (lambda: Layout((4, 8))(1, 2, 3), ["(1,2,3)", "(4,8)"]),
    "part of a mode": (lambda: L.slice_(Layout((4, 8)), (slice(0, 2), 1)), ["0:2", "local_tile"]),
    "uneven composition": (
        lambda: L.composition(Layout((4, 8), (8, 1)), Layout(6, 3)),
        ["A = (4,8):(8,1)", "B = 6:3", "6:3", "mode 0", "4:8", "help"],
    ),
    "modes of b that carry": (
        lambda: L.composition(Layout((4, 4), (1, 10)), Layout((2, 2), (3, 3))),
        ["carry", "B = (2,2):(3,3)"],
    ),
    "strides of b forward and back": (
        lambda: L.composition(Layout((4, 8), (8, 1)), Layout((4, 4), (-1, 4))),
        ["B = (4,4):(-1,4)", "back"],
    ),
    "an index and a coordinate": (lambda: L.composition(Layout((4, 8)), Layout((2, 2), (E(0), 4))), ["the stride 4"]),
    "a coordinate of a mode that is not there": (lambda: L.composition(Layout((4, 8)), Layout(2, E(2))), ["mode 2"]),
    "a mode and a part of it": (
        lambda: L.composition(Layout(((4, 2), 8)), Layout((2, 2), (E(0), E(0, 1)))),
        ["mode 0 ", "part of it"],
    ),
    "left inverse forward and back": (lambda: L.left_inverse(Layout((2, 4), (4, -1))), ["(2,4):(4,-1)"]),
    "a tiler with too many modes": (lambda: L.composition(Layout((4, 8)), (2, 2, 2)), ["3 modes", "2"]),
    "complement of overlapping modes": (lambda: L.complement(Layout((4, 4), (1, 2)), 16), ["stride 2", "span of 4"]),
    "complement of a negative stride": (lambda: L.complement(Layout(4, -1), 16), ["-1"]),
    "left inverse of overlapping modes": (lambda: L.left_inverse(Layout((4, 4), (1, 2))), ["stride 2"]),
    "divide with too many modes": (lambda: L.logical_divide(Layout(8), (2, 2)), ["2 modes", "8:1"]),
    "tile of extent 0": (lambda: L.logical_divide(Layout(8), 0), ["0"]),
    "None for a mode that is no pair": (lambda: L.zipped_divide(Layout((8, 8)), (None, 4)), ["pair"]),
    "product with too many modes": (lambda: L.logical_product(Layout(8), (2, 2)), ["2 modes"]),
    "tile_to_shape that does not fit": (lambda: L.tile_to_shape(Layout((4, 8)), (10, 8)), ["(4,8)", "(10,8)"]),
    "upcast that cuts a group": (lambda: L.upcast(Layout((6, 4), (1, 6)), 4), ["6:1", "4"]),
    "downcast without neighbours": (lambda: L.downcast(Layout((4, 4), (2, 8)), 2), ["stride 1"]),
    "recast between odd widths": (lambda: L.recast(Layout(8), 24, 16), ["24", "16"]),
    "shape_div": (lambda: L.shape_div(6, 4), ["6", "4"]),
    "swizzle whose bits overlap": (lambda: Swizzle(3, 0, 2), ["Swizzle(3, 0, 2)"]),
    "negative bits": (lambda: Swizzle(-1, 0, 2), ["-1"]),
    "upcast through a swizzle": (
        lambda: L.upcast(L.composition(Swizzle(2, 0, 3), Layout((8, 8))), 2),
        ["Sw<2,0,3>", "group of 2"],
    ),
    "a tiler with a swizzle in it": (
        lambda: L.composition(Layout((4, 4)), (L.composition(Swizzle(1, 0, 1), Layout(4)), 4)),
        ["plain layouts", "Sw<1,0,1>"],
    ),
    "a swizzle alone on the right": (lambda: L.composition(Layout(8), Swizzle(1, 0, 1)), ["no shape"]),
    "a mode that is not there": (lambda: L.select(Layout((4, 8)), 2), ["no mode 2"]),
    "a group past the end": (lambda: L.group(Layout((4, 8)), 1, 3), ["2 modes"]),
    "profile with too many modes": (lambda: L.coalesce(Layout((4, 8)), (1, 1, 1)), ["(1,1,1)"]),
    "zeros of too many modes": (lambda: L.filter_zeros(Layout((4, 8)), (0, 1, 0)), ["(0,1,0)", "(4,8)"]),
    "zeros of modes of one extent": (lambda: L.filter_zeros(Layout((4, 8)), ((0, 1), 0)), ["(0,1)", "shape 4"]),
    "a stride of another rank": (lambda: L.crd2idx((1, 2), (2, 3), (1,)), ["(2,3)", "(1)", "nested differently"]),
    "a stride of another rank, of an index": (lambda: L.crd2idx(5, (2, 3), (1,)), ["(1)", "nested differently"]),
    "one stride of two modes": (lambda: L.crd2idx((1, 2), (2, 3), 1), ["stride 1", "nested differently"]),
    "a stride that is no number": (lambda: L.idx2crd(5, 6, "a"), ["a stride", "'a'"]),
    "an index of an extent 0": (lambda: L.crd2idx(5, (0, 2), (1, 2)), ["an extent is 0"]),
    "tile_to_shape of an extent 0": (lambda: L.tile_to_shape(Layout((2, 2)), (0, 4)), ["an extent is 0"]),
    "tile_to_shape of extents below 0": (lambda: L.tile_to_shape(Layout(2), ((-2, -2),)), ["an extent is -2"]),
    "cosize of composed coordinates": (lambda: ComposedLayout(Layout(4, E(0)), 0, Layout(4)).cosize, ["basis"]),
    "cosize past a coordinate": (lambda: ComposedLayout(Swizzle(1, 0, 1), (0, 1), Layout(4)).cosize, ["(0, 1)"]),
    "cosize of coordinates": (lambda: L.cosize(L.identity_layout((4, 8))), ["basis"]),
    "text that is no layout": (lambda: Layout.from_text("(4,8:(1,4)"), ["(4,8:(1,4)"]),
    "text with a stray sign": (lambda: Layout.from_text("(4;8)"), [";8"]),
    "a slice of a shape": (lambda: L.slice_and_offset((4, 8), (1, None)), ["takes a layout", "(4,8)"]),
    "a layout zipped with a number": (lambda: L.zip(Layout(4), 8), ["layouts or tuples"]),
    "a coordinate of an extent 0": (lambda: L.idx2crd(8, 0), ["an extent is 0"]),
    "a path of a mode that is no number": (lambda: E("a"), ["'a'"]),
    "one function for two": (lambda: L.transform_apply((1, 2), max), ["two functions"]),
    "a shape for a layout": (lambda: L.make_layout_like((4, 8)), ["takes a layout"]),
    "a layout among shapes": (lambda: L.make_layout(Layout(4), 8), ["Layout(shape)"]),
}


WHATEVER = [
    L.composition(Swizzle(2, 0, 3), Layout((8, 8), (8, 1))), L.identity_layout((2, 3)), Layout((4, 8)), (4, 8), 8, 0, -3, (),
    (1, None), (2, 4), Swizzle(2, 0, 3), "x", None, 1.5, [1, 2], {}, Layout, lambda *x: x,
]  # fmt: skip


@pytest.mark.parametrize(
    "name", [n for n in L.__all__ if not isinstance(getattr(L, n), type) and callable(getattr(L, n))]
)
def test_whatever_comes_is_taken_or_refused(name: str) -> None:
    """No function of the algebra fails inside: it gives something, or says what it takes."""
    function = getattr(L, name)
    for arguments in [(x,) for x in WHATEVER] + list(itertools.product(WHATEVER, repeat=2)):
        try:
            str(function(*arguments))
        except TilewrightError:
            pass
        except TypeError as error:
            assert "positional argument" in str(error), (arguments, error)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operation, words = REFUSED[name]
    with pytest.raises(LayoutError) as caught:
        operation()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_whole_text_of_one_error() -> None:
    with pytest.raises(LayoutError) as caught:
        L.composition(Layout((4, 8), (8, 1)), Layout(6, 3))
    assert str(caught.value) == (
        "composition(A, B): 6:3 of b does not step evenly through mode 0 of a, 4:8\n"
        "  A = (4,8):(8,1)    B = 6:3\n"
        "  help: use a stride that divides 4 or is a multiple of it, and an extent that fills whole modes"
    )


def test_values_are_frozen() -> None:
    for value, name in [(Layout(4), "shape"), (Swizzle(1, 0, 1), "bits"), (E(0), "value")]:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    with pytest.raises(AttributeError):
        ComposedLayout(Swizzle(1, 0, 1), 0, Layout(4)).offset = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "value",
    [
        Layout((4, (2, 3)), (1, (4, 8))),
        Layout((4, 8), (E(0), 3 * E(1))),
        Swizzle(3, 2, 3),
        L.composition(Swizzle(3, 2, 3), Layout((8, 64))),
    ],
    ids=str,
)
def test_equal_values_have_equal_hashes_and_survive_pickling(value: Any) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert hash(again) == hash(value)
    assert {value: 1}[again] == 1


def test_cosize_of_what_goes_through_coordinates() -> None:
    composed = ComposedLayout(Layout((4, 4)), (0, 1), Layout(4, E(0)))
    assert composed.cosize == 1 + max(composed(i) for i in range(4)) == 8


def test_coordinates_of_sequences_and_of_kept_modes() -> None:
    assert L.crd2idx(5, [2, 3], [3, 1]) == L.crd2idx((1, 2), (2, 3), (3, 1)) == 5
    assert L.idx2crd(5, [2, 3], [3, 1]) == (1, 2)
    assert L.idx2crd(None, (2, 3), (3, 1)) == (None, None)


def test_composition_with_basis_strides() -> None:
    coordinates = L.identity_layout((8, 16))
    tile = L.zipped_divide(coordinates, (4, 4))
    assert str(tile) == "((4,4),(2,4)):((1@0,1@1),(4@0,4@1))"
    assert L.composition(coordinates, Layout(16, 8))(3) == (0, 3)
    with pytest.raises(LayoutError):  # steps 1 in each mode: a sum of basis vectors is no stride
        L.composition(coordinates, Layout(4, 9))


def test_importing_the_algebra_imports_nothing_above_it() -> None:
    code = (
        "import sys, tilewright.layout\n"
        "above = [m for m in sys.modules if m.split('.')[0] in ('numpy', 'cuda', 'torch')]\n"
        "above += [m for m in sys.modules if m.startswith('tilewright.') and not m.startswith('tilewright.layout')]\n"
        "below = {'arguments', 'errors', 'frames', 'source', '_version'}\n"
        "print(sorted(set(above) - {f'tilewright.{name}' for name in below}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
