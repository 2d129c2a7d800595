"""`tw.jax.op`: functions that launch kernels as functions of JAX, under jit, gradients and transforms."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import jax
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames
from tilewright.jax import foreign
from tilewright.runtime.arrays import describe

Shapes: TypeAlias = Any  # jax.ShapeDtypeStruct, or a tuple of them
# Names of arrays, the other arguments, and what tells apart those that are equal: 1, 1.0 and True, 0.0 and -0.0.
_Key: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, Any], ...], str]
_METHODS = ("sequential", "broadcast_all", "expand_dims")


class Operator:
    """A function that launches kernels, callable with arrays of JAX and under its transforms; `tw.jax.op` makes it."""

    def __init__(self, function: Callable[..., Any], shape: str | Sequence[str] | Callable[..., Shapes], vmap: str):
        self.function = function
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ArgumentError(
                    f"the parameter {parameter} of {function.__name__} has no name in a call",
                    help="give the operator ordinary parameters; a function around it may have others",
                )
        self._is_given_results = "out" in parameters
        self._signature = inspect.Signature([p for name, p in parameters.items() if name != "out"])
        self._shape = shape if callable(shape) else self._like((shape,) if isinstance(shape, str) else tuple(shape))
        self._is_several = not callable(shape) and not isinstance(shape, str)
        if vmap not in _METHODS:
            raise ArgumentError(f"vmap of {function.__name__} is {vmap!r}", help=f"one of {', '.join(_METHODS)}")
        self._vmap = vmap
        self._backward: Callable[..., Any] | None = None
        self._traced = functools.lru_cache(maxsize=256)(self._make)
        functools.update_wrapper(self, function)

    def _like(self, names: tuple[str, ...]) -> Callable[..., Shapes]:
        unknown = [name for name in names if name not in self._signature.parameters]
        if unknown:
            raise ArgumentError(
                f"shape names {unknown[0]!r}, and {self.function.__name__} has the parameters "
                f"{', '.join(self._signature.parameters)}"
            )

        def shapes(**given: Any) -> Shapes:
            found = tuple(jax.ShapeDtypeStruct(given[name].shape, given[name].dtype) for name in names)
            return found if self._is_several else found[0]

        return shapes

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function as the gradient; use it as a decorator.

        It is called with the gradients of the results, in order, and then with the inputs that it names and `result`
        (`results` if there are several), and returns a dict of gradients by the names of inputs. Inputs that it leaves
        out have a gradient of 0. It computes with functions of JAX and other operators.
        """
        parameters = list(inspect.signature(function).parameters)
        known = {*self._signature.parameters, "result", "results"}
        gradients = [name for name in parameters if name not in known]
        if not gradients or parameters[: len(gradients)] != gradients:
            raise ArgumentError(
                f"the backward function of {self.function.__name__} takes ({', '.join(parameters)})",
                help=f"first the gradients of the results, then any of {', '.join(known)}",
            )
        self._backward = function
        self._traced.cache_clear()
        return function

    @hiding_frames
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        try:
            bound = self._signature.bind(*args, **keywords)
        except TypeError as error:
            raise ArgumentError(f"{self.function.__name__}: {error}") from None
        bound.apply_defaults()
        arrays = {name: x for name, x in bound.arguments.items() if isinstance(x, (jax.Array, np.ndarray))}
        for name, x in arrays.items():
            if isinstance(x, np.ndarray):
                arrays[name] = jax.numpy.asarray(x)  # of 32 bits in place of 64, unless these are enabled
            elif not isinstance(x, jax.core.Tracer) and x.is_deleted():
                describe(x, name)  # says so
        others = tuple((name, x) for name, x in bound.arguments.items() if name not in arrays)
        try:
            hash(others)
        except TypeError as error:
            raise ArgumentError(
                f"arguments of {self.function.__name__} beside arrays are compiled in: {error}",
                help="pass tuples in place of lists",
            ) from None
        return self._traced((tuple(arrays), others, repr(others)))(*arrays.values())

    def _make(self, key: _Key) -> Callable[..., Any]:
        """Return a function of arrays alone, for arguments that are none."""
        names, others = key[0], dict(key[1])

        def run(*arrays: Any) -> Any:
            given = {**dict(zip(names, arrays, strict=False)), **others}
            if not self._is_given_results:
                return self.function(**given)
            out = arrays[len(names) :]
            return self.function(**given, out=out[0] if len(out) == 1 else out)

        labels: list[str] = []

        def call(*arrays: Any) -> Any:
            varies = frozenset().union(*map(_varies, arrays))
            found = self._shape(**dict(zip(names, arrays, strict=True)), **others)
            shapes = jax.tree.map(lambda x: _struct(x, varies), found)
            if not labels:
                count = len(jax.tree.leaves(shapes)) if self._is_given_results else 0
                label = f"{self.function.__module__}.{self.function.__qualname__}{key[0]}{key[2]}"
                labels.append(foreign.known(run, label, count))
            return foreign.call(labels[0], shapes, self._vmap, [_varying(x, varies) for x in arrays])

        if self._backward is None:
            return call
        function = self._backward
        wanted = list(inspect.signature(function).parameters)
        count = sum(name not in self._signature.parameters and name not in ("result", "results") for name in wanted)

        def forward(*arrays: Any) -> tuple[Any, Any]:
            found = differentiable(*arrays)  # and not `call`: gradients of gradients come through here
            return found, (arrays, found, _Axes(tuple(map(_varies, arrays))))

        def pull(kept: Any, gradients: Any) -> tuple[Any, ...]:
            arrays, found, axes = kept
            given = {"result": found, "results": found, **dict(zip(names, arrays, strict=True)), **others}
            slopes = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
            pulled = function(*slopes[:count], *(given[name] for name in wanted[count:]))
            if not isinstance(pulled, Mapping) or not {*pulled} <= {*self._signature.parameters}:
                got = f"gradients of {[*pulled]}" if isinstance(pulled, Mapping) else f"a {type(pulled).__name__}"
                raise ArgumentError(
                    f"the backward function of {self.function.__name__} returned {got}",
                    help="return a dict of gradients by the names of inputs",
                )
            kinds = zip(names, arrays, axes.varying, strict=True)
            return tuple(_gradient(pulled.get(name), x, varying) for name, x, varying in kinds)

        differentiable: Any = jax.custom_vjp(call)
        differentiable.defvjp(forward, pull)
        found: Callable[..., Any] = differentiable
        return found

    def __repr__(self) -> str:
        return f"<operator {self.function.__name__}{self._signature}>"


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Axes:
    """The axes of the mesh along which each input differed, which arrays that were kept need not show."""

    varying: tuple[frozenset[Any], ...]


def _gradient(found: Any, x: Any, varying: frozenset[Any]) -> Any:
    """Return a gradient in the type that JAX wants for an input: none for whole numbers."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    found = jax.numpy.zeros(x.shape, x.dtype) if found is None else found.astype(x.dtype)
    # Within shard_map: what is the same on all devices has the sum of their gradients.
    summed = tuple(_varies(found) - varying)
    found = _varying(jax.lax.psum(found, summed) if summed else found, varying)
    # A mesh with explicit axes says in an array's type how it is divided.
    sharding, types = getattr(jax.typeof(x), "sharding", None), getattr(jax.sharding, "AxisType", None)
    is_explicit = sharding is not None and types is not None and types.Explicit in (sharding.mesh.axis_types or ())
    return jax.reshard(found, sharding) if is_explicit else found


def _varies(x: Any) -> frozenset[Any]:
    """Return the axes of the mesh along which an array differs within shard_map."""
    kind = jax.typeof(x)
    if hasattr(kind, "mat"):
        return frozenset(kind.mat.varying)
    return getattr(kind, "vma", None) or frozenset()  # before JAX 0.10


def _struct(x: Any, varies: frozenset[Any]) -> Any:
    if not varies:
        return x
    if hasattr(x, "manual_axis_type"):
        each = jax.sharding.PartitionSpec(*[None] * len(x.shape))
        mesh = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), each)
        kind = jax.sharding.ManualAxisType(varying=varies)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=mesh, manual_axis_type=kind)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, vma=varies)


def _varying(x: Any, varies: frozenset[Any]) -> Any:
    more = tuple(varies - _varies(x))
    return jax.lax.pcast(x, more, to="varying") if more else x


def op(
    *, shape: str | Sequence[str] | Callable[..., Shapes], vmap: str = "sequential"
) -> Callable[[Callable[..., Any]], Operator]:
    """Make a function that launches kernels callable inside of `jax.jit`, `jax.vmap` and `jax.shard_map`.

    >>> import jax, tilewright as tw
    >>> @tw.kernel
    ... def scale(out, x, factor):
    ...     i = tw.block_idx.x * 32 + tw.thread_idx.x
    ...     if i < x.shape[0]:
    ...         out[i] = x[i] * factor
    >>> @tw.jax.op(shape="x")
    ... def scaled(x, out, factor=2.0):
    ...     scale[tw.ceil_div(x.size, 32), 32](out, x, factor)
    >>> @scaled.backward
    ... def _(grad, factor):
    ...     return {"x": scaled(grad, factor)}
    >>> jax.jit(jax.grad(lambda x: scaled(x, 3.0).sum()))(jax.numpy.ones(3)).tolist()
    [3.0, 3.0, 3.0]

    The function is called by XLA, with the memory of its arrays: arrays of NumPy on the CPU, where kernels run in the
    simulator, and on a GPU arrays with a shape, dtype and size that kernels and Tilewright's functions take, on XLA's
    stream. A parameter `out` is not an argument of the operator: it is the memory of the result, or a tuple for several
    results, which the function fills. Without one it returns arrays, which are copied unless Tilewright's functions
    made them. It must not write to inputs. Arguments that are not arrays are compiled in, and must be hashable. No
    compiler is needed: `ctypes` makes the function that XLA calls (`jax.ffi`).

    `shape` describes the results: the name of an argument, names for several results, or a function of the same
    arguments, with `jax.ShapeDtypeStruct` or tracers for arrays, that returns `jax.ShapeDtypeStruct`. `vmap` is the
    `vmap_method` of `jax.ffi.ffi_call`: "sequential" calls the function for each item, "broadcast_all" once with one
    more mode in front of all arrays.

    Raises `ArgumentError` for names that are not arguments.
    """

    def decorate(function: Callable[..., Any]) -> Operator:
        return Operator(function, shape, vmap)

    return decorate
