"""Accera's words for nests, schedules and plans, as `tilewright.schedule` has them."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace

import ml_dtypes
from tests.accera.targets import AUTO, Target, memory_space

import tilewright as tw
import tilewright.schedule as ts
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import ArrayLayout
from tilewright.schedule.naming import assigned_names
from tilewright.schedule.parameters import Delayed

Role = ts.Role


class Unsayable(Exception):
    """The adapter has no word for what a program of Accera says."""


_TYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
ScalarType = SimpleNamespace(**{name: tw.dtype(name) for name in _TYPES}, index=tw.int64)
AllocateFlags = getattr(ts, "AllocateFlags", SimpleNamespace(NONE=0, GLOBAL=1, STACK=2, HEAP=4, THREAD_LOCAL=8))
CacheStrategy = ts.Strategy

# What Python programs of Accera ask of values that are plain here.
ArrayLayout.to_numpy_order = lambda self: "C" if self is ArrayLayout.FIRST_MAJOR else "F"
if not hasattr(ArrayLayout, "DEFERRED"):
    ArrayLayout.DEFERRED = "DEFERRED"
if not hasattr(Index, "__iter__"):
    Index.__iter__ = lambda self: iter(
        (self,)
    )  # `i, = nest.get_indices()` and `i = nest.get_indices()` are both written


def element_type(given):
    """Return the element type that a program names: Accera's, Python's or NumPy's."""
    return {int: tw.int64, float: tw.float32}.get(given, given)


class Shape(tuple):
    """A shape that programs may add lists to and compare with lists, which it is in Accera."""

    __slots__ = ()

    def __add__(self, other):
        return Shape((*self, *other))

    def __getitem__(self, place):
        found = super().__getitem__(place)
        return Shape(found) if isinstance(place, slice) else found

    def __eq__(self, other):
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other):
        return not self == other

    __hash__ = tuple.__hash__


class Array(ts.Array):
    def __init__(
        self, role, name="", data=None, element_type=None, layout=ArrayLayout.FIRST_MAJOR, offset=0, shape=None, flags=0
    ):
        known = {}
        if "flags" in inspect.signature(ts.Array.__init__).parameters:
            known = {"flags": flags or AllocateFlags.NONE, "offset": offset}
        elif layout == "DEFERRED" or offset:
            raise Unsayable("Array.Layout.DEFERRED" if not offset else "Array(offset=...)")
        if shape is not None and any(extent == float("inf") for extent in shape[:-1] if isinstance(extent, float)):
            raise ValueError("only the last extent of an array can be inf")
        if role is Role.CONST and data is None:
            raise ValueError("an array of role CONST needs data")
        names = assigned_names(sys._getframe(1))
        kind = {int: tw.int64, float: tw.float32}.get(element_type, element_type)
        super().__init__(
            role,
            kind,
            None if shape is None else tuple(shape),
            layout
            if isinstance(layout, ArrayLayout)
            else tuple(layout)
            if isinstance(layout, (list, tuple))
            else layout,
            data=data,
            name=name or (names[0] if names else None),
            **known,
        )
        if not any(isinstance(extent, Delayed) for extent in self.shape):  # parameters are found in plain tuples
            self.shape = Shape(self.shape)

    @property
    def requested_layout(self):
        return self.layout

    @property
    def _size_str(self):
        return "*".join(extent.name if isinstance(extent, ts.Dimension) else str(extent) for extent in self.shape)


Scalar, Dimension = ts.Scalar, ts.Dimension


def create_dimensions(role=Role.INPUT):
    """Return a dimension for each variable that the call is assigned to."""
    names = assigned_names(sys._getframe(1))
    made = tuple(Dimension(name, role) for name in names)
    return made if len(made) != 1 else made[0]


class Nest(ts.Nest):
    def __init__(self, shape):
        super().__init__(tuple(shape))

    def get_indices(self):
        for index, name in zip(self.indices, assigned_names(sys._getframe(1)), strict=False):
            index.name = name
        return list(self.indices) if len(self.indices) > 1 else self.indices[0]

    def create_schedule(self):
        made = Schedule(self)
        made.sources = (self,)
        return made

    def create_plan(self, target=None):
        return self.create_schedule().create_plan(target)

    def iteration_logic(self, logic=None, predicate=None, placement=None):
        if predicate is not None or placement is not None:
            raise Unsayable("iteration_logic with a predicate or a placement")
        return super().iteration_logic(logic)


class Schedule(ts.Schedule):
    sources = ()

    def create_plan(self, target=None, _dynamic_shared_memory_size=None, _blocks_per_SM=None):
        made = Plan(self.nest, target or Target.HOST)
        made.sources = self.sources
        return made

    def reorder(self, order=None, *others):
        return super().reorder(*([order] if order is not None else []), *others)

    def skew(self, index, reference_index, unroll_loops_smaller_than=None):
        return super().skew(index, reference_index, unroll_loops_smaller_than)

    def get_indices(self):
        return list(super().get_indices())

    @property
    def _indices(self):
        """The order of the loops, as Accera's tests ask for it; the library has something of its own by that name."""
        is_ours = sys._getframe(1).f_globals["__name__"].startswith("tilewright.")
        return self._own_indices if is_ours else self.get_indices()

    @_indices.setter
    def _indices(self, order):
        self._own_indices = order

    def tile(self, shape):
        return list(super().tile(shape))

    def _create_tensorizable_plan(
        self,
        target,
        block_indices,
        warp_indices,
        tensor_indices,
        outer_nest_order,
        dynamic_shared_memory_size=0,
        blocks_per_SM=0,
    ):
        self.reorder(*outer_nest_order, *tensor_indices)
        plan = self.create_plan(target)
        units = (ts.GridUnit.BLOCK_Y, ts.GridUnit.BLOCK_X, ts.GridUnit.WARP_Y, ts.GridUnit.WARP_X)
        plan.bind(dict(zip((*block_indices, *warp_indices), units, strict=True)))
        return plan, tensor_indices


def fuse(schedules, *others, partial=None):
    """Return the schedule of several, in Accera's order of indices."""
    parts = [schedules, *others] if isinstance(schedules, ts.Schedule) else list(schedules)
    made = Schedule.__new__(Schedule)
    fused = vars(ts.fuse(*parts, partial=partial))
    made._own_indices = fused.pop("_indices", None)
    vars(made).update(fused)
    made.sources = tuple(source for part in parts for source in part.sources)
    return made


class Plan(ts.Plan):
    sources = ()

    def cache(
        self,
        source,
        index=None,
        trigger_index=None,
        layout=None,
        max_elements=None,
        element_type=None,
        thrifty=None,
        location=None,
        level=None,
        trigger_level=None,
        double_buffer=False,
        double_buffer_location=AUTO,
        _shared_memory_offset=None,
        vectorize=AUTO,
        strategy=AUTO,
        _delayed_cache=None,
        _temp_array_multicaches=False,
    ):
        given = {
            "index": index,
            "trigger_index": trigger_index,
            "layout": layout,
            "max_elements": max_elements,
            "element_type": element_type,
            "thrifty": thrifty or None,
            "location": memory_space(location),
            "level": level,
            "trigger_level": trigger_level,
            "double_buffer": double_buffer or None,
            "double_buffer_location": memory_space(double_buffer_location),
            "vectorize": None if vectorize is AUTO else vectorize,
            "strategy": None if strategy is AUTO else strategy,
        }
        return super().cache(source, **{name: value for name, value in given.items() if value is not None})

    def parallelize(self, indices, pin=None, policy="static", max_threads=None):
        """Let blocks of a GPU run through the loops, which Accera takes only where they follow one another."""
        if not isinstance(indices, (Index, Delayed)):
            places = [self.nest.position(index) for index in indices]
            if places != list(range(places[0], places[0] + len(places))):
                raise ValueError(f"{indices} do not follow one another")
        return super().parallelize(indices, None, policy, max_threads)

    def _erase_loops(self, indices):
        self.sources = ()  # the untransformed nest computes something else
        return super()._erase_loops(indices)


create_parameters = ts.create_parameters
create_parameter_grid = ts.create_parameter_grid


class Function:
    """A function of a package: `name`, the arrays of a call, and the kernel."""

    def __init__(self, name, base_name, args, source, is_plain):
        self.name, self.base_name, self.args, self.source = name, base_name, tuple(args), source
        self.is_plain = is_plain  # of a nest as it was declared
        self.made = None  # the library's function
        self.error = None

    @property
    def requested_args(self):
        return self.args

    @property
    def sources(self):
        return getattr(self.source, "sources", ())

    def __call__(self, *args):
        if self.error is not None:
            raise self.error
        return self.made(*args)


bfloat16 = ml_dtypes.bfloat16
