"""Composition of shapes and strides, exact: the result equals its law on every index, or there is an error.

With A flat, write `p_k` for the product of its first k extents. Then for every x >= 0

    A(x) = d_0 * x  +  sum over k of  c_k * (x // p_k),      c_k = d_k - s_(k-1) * d_(k-1)

and when A is coalesced no `c_k` is zero. Composition asks when `i -> A(r * i)` is a layout again. Where no digit
carries, it is linear in the digits and the answer is plain; where digits carry, the carries have to fall on
multiples of one number, or cancel. `carries.py` decides that; this file handles the plain cases and the dispatch.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tilewright.errors import LayoutError
from tilewright.layout.carries import compose_with_carries, leaves_add_up
from tilewright.layout.ints import Basis, Int, Leaf, mul, need_static, scale
from tilewright.layout.tuples import leaves, merge_flat, show, unflatten

Pair: TypeAlias = tuple[Any, Any]
"""A shape and a congruent stride: what makes a layout."""

Part = tuple[Int, Int, Leaf, int, Int]
"""A mode of a result: its extent, the step it takes in the domain of A, its stride, and where that step falls: in
which mode of A (-1 when it goes across modes), and by how much there."""


def compose_strides(a_shape: Any, a_stride: Any, b_shape: Any, b_stride: Any) -> Pair:  # Any: congruent nested tuples
    """Return the shape and stride of the layout that applies `b_shape:b_stride` first and then `a_shape:a_stride`.

    Law: as that of `composition`, for plain layouts.

    Raises `LayoutError` when no layout fulfils the law, or a value that decides is dynamic.
    """
    if type(b_stride) is not int and any(isinstance(d, Basis) for d in leaves(b_stride)):
        return _compose_coordinates((a_shape, a_stride), (b_shape, b_stride))
    shape, stride = merge_flat(leaves(a_shape), leaves(a_stride), keep_last=True)
    if len(shape) <= 1:  # one mode: a linear map, and b may be anything
        return b_shape, _onto(b_stride, stride[0] if shape else 0)
    composer = _Composer((a_shape, a_stride), (b_shape, b_stride), shape, stride)
    result = composer.run(b_shape, b_stride)
    composer.check_sum()
    return result


def _compose_coordinates(a: Pair, b: Pair) -> Pair:
    """Compose with a layout whose basis strides give coordinates: each leaf steps through one mode of `a`.

    Leaves that step through one mode are composed with it together, so that they have to add up there.
    """
    by_mode: dict[tuple[int, ...], list[int]] = {}
    extents, steps = leaves(b[0]), leaves(b[1])
    for i, d in enumerate(steps):
        if isinstance(d, Basis):
            by_mode.setdefault(d.modes, []).append(i)
        elif not (type(d) is int and d == 0):
            raise LayoutError(
                f"composition({_text(a)}, {_text(b)}): b has basis strides, which give coordinates of a, and the "
                f"stride {d}, which gives an index",
                help="use basis strides for all modes of b",
            )
    composed: list[Pair] = [(extent, 0) for extent in extents]
    for path, members in by_mode.items():
        if any(path != other and path == other[: len(path)] for other in by_mode):
            raise LayoutError(
                f"composition({_text(a)}, {_text(b)}): b steps through mode {_named(path)} of a and through a part "
                "of it"
            )
        values = tuple([steps[i].value for i in members])
        part = compose_strides(*_mode_at(a, path, b), tuple([extents[i] for i in members]), values)
        for i, mode in zip(members, zip(*part, strict=True), strict=True):
            composed[i] = mode
    return unflatten([p[0] for p in composed], b[0]), unflatten([p[1] for p in composed], b[0])


def _mode_at(a: Pair, path: tuple[int, ...], b: Pair) -> Pair:
    mode = a
    for place in path:
        modes = list(zip(*mode, strict=True)) if type(mode[0]) is tuple else [mode]
        if place >= len(modes):
            raise LayoutError(
                f"composition({_text(a)}, {_text(b)}): b steps through mode {_named(path)}, which a has not"
            )
        mode = modes[place]
    return mode


def _text(pair: Pair) -> str:
    return f"{show(pair[0])}:{show(pair[1])}"


def _named(path: tuple[int, ...]) -> str:
    return ".".join(map(str, path))


def _onto(stride: Any, step: Leaf) -> Any:
    """Turn each stride of `b` into that many steps of A's one stride."""
    if type(stride) is tuple:
        return tuple([_onto(d, step) for d in stride])
    return stride * step if type(stride) is int and type(step) is int else scale(step, stride)


def _fit(parts: list[tuple[Int, Int]], extent: Int) -> bool:
    """Say whether the largest digits (n - 1) * r of static parts add up to less than an extent."""
    reach = 0
    for n, r in parts:
        if type(n) is not int or type(r) is not int:
            return False
        reach += (n - 1) * r
    return type(extent) is int and reach < extent


class _Composer:
    """One composition: the flat modes of `a`, and the parts found so far for the leaves of `b`."""

    def __init__(self, a: Pair, b: Pair, shape: list[Int], stride: list[Leaf]) -> None:
        self.a, self.b = a, b
        self.shape, self.stride = shape, stride
        self.parts: list[Part] = []
        self.leaves = 0
        self.static = all(type(s) is int for s in shape[:-1])

    def run(self, shape: Any, stride: Any) -> tuple[Any, Any]:
        """Compose each leaf of `b`, keeping its nesting."""
        if type(shape) is tuple:
            pairs = [self.run(s, d) for s, d in zip(shape, stride, strict=True)]
            return tuple([p[0] for p in pairs]), tuple([p[1] for p in pairs])
        if type(stride) is int and (stride == 0 or (type(shape) is int and shape == 1)):
            return shape, 0
        if type(stride) is int and stride < 0:
            found = [(n, mul(r, -1), scale(d, -1), k, mul(q, -1)) for n, r, d, k, q in self._leaf(shape, -stride)]
        else:
            found = self._leaf(shape, stride)
        self.leaves += 1
        self.parts += found
        if len(found) == 1:
            return found[0][0], found[0][2]
        return tuple([p[0] for p in found]), tuple([p[2] for p in found])

    def _leaf(self, extent: Int, step: Int) -> list[Part]:
        """Compose with one leaf `extent:step`: walk up the modes of `a` as long as everything divides."""
        shape, stride = self.shape, self.stride
        last = len(shape) - 1
        parts: list[Part] = []
        n, r, k = extent, step, 0
        domain: Int = 1  # the product of the extents passed
        while k < last:
            s = shape[k]
            if r is s:
                r = 1
            elif type(s) is not int or type(r) is not int:
                if type(r) is int and r == 1 and n is s:
                    break
                raise self._undecided(k, r, n)
            elif r % s == 0:
                r //= s
            elif type(n) is not int:
                raise self._undecided(k, r, n)
            elif (n - 1) * r < s:
                break
            elif s % r == 0 and n % (s // r) == 0:
                reach = s // r
                parts.append((reach, mul(domain, r), scale(stride[k], r), k, r))
                n //= reach
                r = 1
                if n == 1:
                    return parts
            else:
                carried = compose_with_carries(
                    self.shape,
                    self.stride,
                    need_static(extent, "composition", "b"),
                    need_static(step, "composition", "b"),
                )
                if carried is None:
                    raise self._uneven(k, extent, step)
                return [(*part, -1, 0) for part in carried]
            domain = mul(domain, s)
            k += 1
        parts.append((n, mul(domain, r), scale(stride[k], r), k, r))
        return parts

    def check_sum(self) -> None:
        """Check that the leaves of `b` do not carry into each other: A(x + y) == A(x) + A(y) for all they reach.

        Parts that fall into different modes of A never do; those in one mode have to fit its extent together.
        """
        if self.leaves < 2:
            return
        signs = {type(step) is int and step < 0 for _, step, _, _, _ in self.parts}
        if any(mode < 0 for _, _, _, mode, _ in self.parts) or len(signs) > 1:
            self._check_carries(0)
            return
        for k, extent in enumerate(self.shape[:-1]):
            inside = [(n, mul(r, -1) if signs == {True} else r) for n, _, _, mode, r in self.parts if mode == k]
            if len(inside) > 1 and not _fit(inside, extent):
                self._check_carries(k)
                return

    def _check_carries(self, k: int) -> None:
        """Decide whether parts that reach past mode k together still add up; only static values can tell."""
        if not (self.static and all(type(n) is int and type(step) is int for n, step, _, _, _ in self.parts)):
            raise self._error(
                f"whether modes of b together reach past mode {k} of a depends on dynamic values",
                "make the shapes static, or compose mode by mode with a tuple",
            )
        if not leaves_add_up(self.shape, self.stride, [part[:3] for part in self.parts]):
            raise self._error(
                "two modes of b together carry over an extent of a, or one leads forward and one back, so that their "
                "strides do not add up",
                "coalesce b, or compose with its modes one by one",
            )

    def _error(self, reason: str, help: str) -> LayoutError:
        return LayoutError(
            f"composition(A, B): {reason}", details=[f"A = {_text(self.a)}    B = {_text(self.b)}"], help=help
        )

    def _undecided(self, k: int, r: Int, n: Int) -> LayoutError:
        what = (
            f"extent {k} of a"
            if type(self.shape[k]) is not int
            else "the stride of b"
            if type(r) is not int
            else "the extent of b"
        )
        return self._error(
            f"{what} is dynamic, and the result depends on its value",
            f"make {what} static, or tile mode by mode with a tuple (each mode of a by its own tile)",
        )

    def _uneven(self, k: int, extent: Int, step: Int) -> LayoutError:
        return self._error(
            f"{extent}:{step} of b does not step evenly through mode {k} of a, {self.shape[k]}:{self.stride[k]}",
            f"use a stride that divides {self.shape[k]} or is a multiple of it, and an extent that fills whole modes",
        )
